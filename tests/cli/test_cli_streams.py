"""Standard streams that are closed, full or not read, and a Ctrl-C before anything began."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import EXIT_NO_READER, execute
from harness.exit_codes import EXIT_INTERRUPTED
from harness.history.manifest import read_manifest
from harness.history.run_directory import RunDirectory

LIMIT_S = 300
FIREDRILL = [sys.executable, "-c", "from cli.entry import main; main()"]
DRILL = ["run", "--provider", "sim", "--executor", "local", "--duration", "4"]
QUIET = ["--set", "nemesis.mix=[]"]

# A command line whose import takes until it is interrupted.
SLOW_IMPORT = """
import sys, types
from pathlib import Path

class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "cli.main":
            print("importing", flush=True)
            sys.stdin.read()

sys.meta_path.insert(0, Slow())
from cli.entry import main
main()
"""


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run that is sealed and judged."""
    runs = tmp_path_factory.mktemp("streams")
    assert execute([*DRILL, *QUIET, "--runs-dir", str(runs)]) == 0
    return RunDirectory((runs / "latest").resolve())


def in_shell(redirection: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command line in a shell that redirects its streams."""
    return subprocess.run(
        ["bash", "-c", f'set -o pipefail; "$@" {redirection}', "bash", *FIREDRILL, *arguments],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.mark.parametrize(
    ("redirection", "says"), [(">&-", "stdout is closed"), (">/dev/full", "No space left")]
)
@pytest.mark.parametrize("flags", [["--json"], ["--no-report"]])
def test_a_stdout_that_takes_nothing_is_one_sentence_and_leaves_the_run_alone(
    sealed: RunDirectory, redirection: str, says: str, flags: list[str]
) -> None:
    before = sorted(path.name for path in sealed.root.iterdir())

    done = in_shell(redirection, "check", str(sealed.root), "--executor", "local", *flags)

    assert done.returncode == 255
    # On a busy machine it says every ten seconds what it is still doing.
    at_work = ("judging", "firedrill: still ")
    said = [line for line in done.stderr.splitlines() if not any(w in line for w in at_work)]
    assert len(said) == 1, done.stderr
    assert says in said[0]
    assert sorted(path.name for path in sealed.root.iterdir()) == before


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "<&-"])
def test_other_streams_that_are_closed_or_full_change_no_outcome(
    sealed: RunDirectory, redirection: str
) -> None:
    done = in_shell(redirection, "check", str(sealed.root), "--executor", "local")

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("VALID: ")


@pytest.mark.parametrize("provider", ["sim", "process"])
def test_a_reader_that_leaves_ends_no_run(tmp_path: Path, provider: str) -> None:
    done = in_shell(
        "2>&1 | head -1", *DRILL, *QUIET, "--provider", provider, "--nodes", "3",
        "--runs-dir", str(tmp_path),
    )  # fmt: skip

    assert done.returncode == EXIT_NO_READER
    assert len(done.stdout.splitlines()) == 1
    run = RunDirectory(tmp_path / "latest")
    manifest = read_manifest(run)
    assert (manifest.state, manifest.interrupted, manifest.trouble) == ("sealed", False, ())
    assert run.verdict.exists()
    assert list(run.undo.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_command_line_is_imported_is_130_and_one_sentence(
    number: signal.Signals,
) -> None:
    command = [sys.executable, "-c", SLOW_IMPORT]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=LIMIT_S)

    assert process.returncode == EXIT_INTERRUPTED
    assert err == "firedrill: interrupted\n"


def test_the_console_script_is_the_light_one() -> None:
    script = Path(sys.executable).with_name("firedrill")

    done = subprocess.run([script, "--help"], capture_output=True, text=True, timeout=LIMIT_S)

    assert os.access(script, os.X_OK)
    assert "cli.entry" in script.read_text()
    assert done.returncode == 0


def test_a_warning_that_comes_a_thousand_times_is_shown_ten_times_and_said_to_repeat() -> None:
    """In a process of its own: handlers are the process's."""
    script = """
import logging
from cli.streams import bound_warnings
bound_warnings()
bound_warnings()
for port in range(1000):
    logging.getLogger("node.network").warning("dropping %s: %s", port, "no frame")
logging.getLogger("node.network").warning("another kind")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S
    )
    lines = done.stderr.splitlines()
    assert lines[:2] == ["dropping 0: no frame", "dropping 1: no frame"]
    assert lines[9] == "dropping 9: no frame (more of this kind are left out)"
    assert lines[10:] == ["another kind"]


def test_a_warning_of_what_a_node_said_is_no_command_to_a_ci() -> None:
    script = r"""
import logging
from cli.streams import bound_warnings
bound_warnings()
logging.getLogger("client").warning("%s", "refused\n::stop-commands::t\r::error::x\x1b[2J")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.stderr == "refused\n\\x3a:stop-commands::t ::error::x\\x1b[2J\n"
