"""What a command imports: the time that it takes before it does anything."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cli.main import COMMANDS

FIREDRILL = Path(sys.executable).with_name("firedrill")
NAME = "20261101-101112-drill-00ab"
RUN = Path(__file__).parents[1] / "evidence" / "runs" / "sim-valid"
HEAVY = {"numpy", "pyarrow", "scipy", "pandas", "matplotlib", "rich", "docker", "paramiko"}
IMPORTED = re.compile(r"^import time: .*\| +([\w.]+)$", re.MULTILINE)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(RUN, tmp_path / "run"))


def test_judging_a_small_run_imports_neither_scipy_nor_pandas_nor_a_plotter(run: Path) -> None:
    done = subprocess.run(
        [FIREDRILL, "check", run, "--no-report"],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"PYTHONPROFILEIMPORTTIME": "1"},
    )

    assert done.returncode == 0, done.stderr
    imported = set(IMPORTED.findall(done.stderr))
    assert {"numpy", "pyarrow"} <= imported
    # pandas itself is listed where an import of it was refused.
    assert not imported & (HEAVY - {"numpy", "pyarrow", "pandas"} | {"pandas.core"})


def test_the_command_that_asks_for_a_verdict_leaves_tables_to_the_process_that_judges(
    run: Path,
) -> None:
    code = (
        "import sys\n"
        "from cli.main import execute\n"
        f"code = execute(['check', {str(run)!r}])\n"
        f"sys.exit(code or ', '.join(sorted({HEAVY!r} & set(sys.modules))) or None)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stderr
    assert (run / "report.html").exists()


def test_every_command_is_listed_and_a_name_that_is_none_is_refused() -> None:
    told = subprocess.run([FIREDRILL, "--help"], capture_output=True, text=True, timeout=60)
    wrong = subprocess.run([FIREDRILL, "chek"], capture_output=True, text=True, timeout=60)

    for name, listed in COMMANDS.items():
        assert f"\n  {name} " in told.stdout
        assert f" {listed.summary}\n" in told.stdout
    assert all(len(line) <= 80 for line in told.stdout.splitlines())
    assert wrong.returncode == 254
    assert "No such command 'chek'" in wrong.stderr


def test_what_asks_for_pandas_by_name_still_gets_it() -> None:
    code = (
        "import sys\n"
        "from harness import arrow\n"
        "arrow.without_pandas()\n"
        "import pyarrow as pa\n"
        "table = pa.table({'a': [1, 2]})\n"
        "assert 'pandas' not in sys.modules\n"
        "assert list(table.to_pandas()['a']) == [1, 2]\n"
        "import pandas\n"
        "assert pa.array(pandas.Series([1, None])).null_count == 1\n"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr


def completed(*words: str) -> list[str]:
    """What a shell is told that completes the last of ``words``."""
    done = subprocess.run(
        [FIREDRILL],
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ
        | {
            "_FIREDRILL_COMPLETE": "bash_complete",
            "COMP_WORDS": " ".join(("firedrill", *words)),
            "COMP_CWORD": str(len(words)),
        },
    )
    assert (done.returncode, done.stderr) == (0, "")
    return [line for line in done.stdout.splitlines() if line]


def test_a_shell_completes_the_names_of_runs_and_their_nodes(run: Path) -> None:
    store = ("--runs-dir", str(run.parent))
    shutil.copytree(run, run.parent / NAME)

    assert completed("report", *store, "") == ["plain,latest", f"plain,{NAME}"]
    assert completed("report", *store, NAME[:5]) == [f"plain,{NAME}"]
    assert completed("report", *store, "./x") == ["file,./x"]
    assert completed("logs", *store, NAME, "") == ["plain,n1", "plain,n2", "plain,n3"]
    assert completed("logs", *store, "latest", "n2") == ["plain,n2"]
    assert completed("logs", *store, "absent", "") == []


def test_a_shell_completes_the_names_of_plug_ins() -> None:
    assert "plain,bank" in completed("run", "--workload", "")
    assert completed("plan", "--fault", "rolling-r") == ["plain,rolling-restart"]
    assert completed("plan", "--system", "ref") == ["plain,reference"]


@pytest.mark.parametrize("command", ["sim", "explore"])
def test_a_shell_completes_each_name_of_a_mix(command: str) -> None:
    assert "plain,bank" in completed(command, "--workload", "")
    assert completed(command, "--faults", "rolling-r") == ["plain,rolling-restart"]
    assert completed(command, "--faults", "kill,paus") == ["plain,kill,pause"]
    assert completed(command, "--faults", "kill,pause,kil") == []
