"""What a supervised command leaves: nothing, however it and its caller end. Real processes."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness import supervisor
from harness.scratch import PREFIX, SUFFIX, sweep
from harness.supervisor import EXIT_NOT_STARTED, NoScratch, Supervised

LIMIT_S = 30
FAMILY = """
import os, sys, time
out = open(sys.argv[1], "w")
if os.fork() == 0:
    os.setsid()          # as Spark's daemon leaves its group
    if os.fork() == 0:
        os.setsid()
    out.write(f"{os.getpid()} ")
    out.flush()
    time.sleep(600)
while len(open(sys.argv[1]).read().split()) < 2:
    time.sleep(0.01)
out.write(f"{os.getpid()} .")
out.flush()
{then}
"""
"""A process with a child and a grandchild in sessions of their own; each writes its number."""
CALLER = """
import sys, time
from pathlib import Path
from harness.supervisor import Supervised
started = Supervised(sys.argv[2:], Path(sys.argv[1]))
print(started._process.pid, flush=True)
time.sleep(600)
"""


def family(numbers: Path, then: str = "time.sleep(600)") -> list[str]:
    return [sys.executable, "-c", FAMILY.replace("{then}", then), str(numbers)]


def await_family(numbers: Path) -> list[int]:
    """The three numbers, opened as handles of their processes."""
    waiting = select.poll()
    for _ in range(LIMIT_S * 50):
        if numbers.exists() and numbers.read_text().endswith("."):
            return [os.pidfd_open(int(word)) for word in numbers.read_text().split()[:-1]]
        waiting.poll(20)
    raise AssertionError("the family did not start")


def gone(processes: list[int], limit_s: float = LIMIT_S) -> bool:
    waiting = [p for p in processes if not select.select([p], [], [], limit_s)[0]]
    return not waiting


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    return tmp_path / "scratch"


def test_a_command_that_ends_takes_its_descendants_and_its_files_with_it(
    tmp_path: Path, scratch: Path
) -> None:
    numbers = tmp_path / "numbers"

    started = Supervised(family(numbers, "sys.exit(7)"), scratch)

    assert started.wait(LIMIT_S) == 7
    assert [w for w in numbers.read_text().split()[:-1] if Path(f"/proc/{w}").exists()] == []
    assert not scratch.exists()


def test_to_end_it_kills_sessions_of_their_own_as_well(tmp_path: Path, scratch: Path) -> None:
    started = Supervised(family(tmp_path / "numbers"), scratch)
    processes = await_family(tmp_path / "numbers")
    assert started.poll() is None
    assert not gone(processes[:1], 0)

    started.end()

    assert len(processes) == 3
    assert gone(processes, 0)
    assert not scratch.exists()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
def test_a_caller_that_is_killed_leaves_nothing(
    number: signal.Signals, tmp_path: Path, scratch: Path
) -> None:
    numbers = tmp_path / "numbers"
    command = [sys.executable, "-c", CALLER, str(scratch), *family(numbers)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as caller:
        processes = await_family(numbers)
        assert caller.stdout is not None
        supervisor = os.pidfd_open(int(caller.stdout.readline()))
        caller.send_signal(number)

    assert gone([*processes, supervisor])
    assert not scratch.exists()


def test_a_supervisor_that_is_killed_takes_its_command_with_it(
    tmp_path: Path, scratch: Path
) -> None:
    started = Supervised(family(tmp_path / "numbers"), scratch)
    processes = await_family(tmp_path / "numbers")

    started._process.kill()

    try:
        assert gone(processes[2:])  # its own child; what that one leaves is another's
    finally:
        for process in processes[:2]:
            signal.pidfd_send_signal(process, signal.SIGKILL)


@pytest.mark.parametrize(
    ("body", "code"), [("sys.exit(0)", 0), ("os.abort()", 134), ("os.kill(os.getpid(), 9)", 137)]
)
def test_the_exit_code_says_how_it_ended(body: str, code: int, scratch: Path) -> None:
    started = Supervised([sys.executable, "-c", f"import os, sys; {body}"], scratch)

    assert started.wait(LIMIT_S) == code


def test_the_command_finds_its_directory_and_the_directory_its_log(scratch: Path) -> None:
    told = "import os, sys; print(os.environ['TMPDIR'], os.getcwd(), file=sys.stderr, flush=True)"
    started = Supervised([sys.executable, "-c", f"{told}; sys.stdin.read()"], scratch, log="log")
    try:
        for _ in range(LIMIT_S * 50):
            if (scratch / "log").read_text().endswith("\n"):
                break
            select.select([], [], [], 0.02)

        assert (scratch / "log").read_text() == f"{scratch} {scratch}\n"
        assert scratch.stat().st_mode & 0o777 == 0o700
    finally:
        started.end()
    assert not scratch.exists()


def test_while_it_lives_no_sweep_removes_its_directory(tmp_path: Path) -> None:
    held = tmp_path / f"{PREFIX}judge-1{SUFFIX}"
    started = Supervised([sys.executable, "-c", "import sys; sys.stdin.read()"], held)

    sweep(tmp_path)
    assert held.is_dir()

    started.end()
    assert not held.exists()


def test_a_directory_of_another_is_refused_and_stays(scratch: Path) -> None:
    scratch.mkdir()
    (scratch / "precious").write_text("much")

    with pytest.raises(NoScratch) as refused:
        Supervised([sys.executable, "-c", "pass"], scratch)

    assert refused.value.errno == errno.EEXIST
    assert (scratch / "precious").read_text() == "much"


def test_a_directory_that_can_not_be_made_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(NoScratch, match="No such file or directory"):
        Supervised([sys.executable, "-c", "pass"], tmp_path / "nothing" / "scratch")


def test_what_can_not_be_started_says_so(scratch: Path) -> None:
    assert Supervised([str(scratch / "nothing")], scratch).wait(LIMIT_S) == EXIT_NOT_STARTED


def test_signals_that_the_supervisor_ignores_reach_its_command(
    tmp_path: Path, scratch: Path
) -> None:
    started = Supervised(
        [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"], scratch
    )

    assert started.wait(LIMIT_S) == 128 + signal.SIGTERM


LIMITED = """
import resource, sys
from harness.supervisor import limit_memory, memory_limit_bytes
from_outside, asked = int(sys.argv[1]), int(sys.argv[2])
if from_outside:
    resource.setrlimit(resource.RLIMIT_DATA, (from_outside, from_outside))
limit_memory(asked)
print(memory_limit_bytes())
"""


@pytest.mark.parametrize(
    ("from_outside", "asked", "expected"),
    [
        (0, 3 << 30, 3 << 30),
        (2 << 30, 3 << 30, 2 << 30),
        (4 << 30, 3 << 30, 3 << 30),
        (0, 1 << 80, 1 << 62),  # --memory-mib 1000000000000000000
    ],
)
def test_a_limit_of_memory_never_exceeds_one_that_was_set_from_outside(
    from_outside: int, asked: int, expected: int
) -> None:
    command = [sys.executable, "-P", "-c", LIMITED, str(from_outside), str(asked)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True)

    assert int(told.stdout) == expected


def test_a_fork_whose_supervisor_is_gone_already_becomes_no_command(tmp_path: Path) -> None:
    """Its parent is another one then: the kernel would send it no signal any more."""
    lifeline, kept = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            supervisor._become(["touch", str(tmp_path / "there")], lifeline, os.getpid())
        finally:  # the fork must not go on with the tests
            os._exit(1)
    _, status = os.waitpid(child, 0)
    os.close(lifeline)
    os.close(kept)

    assert os.waitstatus_to_exitcode(status) == EXIT_NOT_STARTED
    assert not (tmp_path / "there").exists()
