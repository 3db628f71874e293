"""What the tests of hostile runs take for a hang, on a machine that may be shared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stranger_kit import Taken, firedrill, hangs

BUSY = "while True: pass"
STILL = "import time; time.sleep(1000)"
HOLDING = """
import subprocess, sys
held = b"x" * (int(sys.argv[1]) << 20)
if sys.argv[2:]:
    subprocess.run([sys.executable, "-c", sys.argv[2], *sys.argv[3:]])
print("held", flush=True)
sys.stdin.read(1)
"""
LATE = "import sys; sys.stdin.read(1)"


@contextmanager
def started(code: str) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)  # its children, too


def over(process: subprocess.Popen[bytes], within_s: float = 0.05) -> bool:
    try:
        process.wait(within_s)
    except subprocess.TimeoutExpired:
        return False
    return True


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (BUSY, "goes on after"),
        (STILL, "stands still"),
        (f"import subprocess, sys; subprocess.run([sys.executable, '-c', {BUSY!r}])", "goes on"),
    ],
)
def test_what_takes_too_much_processor_time_or_none_hangs(code: str, reason: str) -> None:
    with started(code) as process:
        found = hangs(process.pid, lambda: over(process), cpu_limit_s=0.5, still_limit_s=5.0)
        assert found.startswith(reason)


def test_what_ends_does_not_hang_however_long_the_wall_clock_ran() -> None:
    looks = 0

    def at_last(process: subprocess.Popen[bytes]) -> bool:
        nonlocal looks
        looks += 1
        if looks < 20:
            return over(process)
        process.communicate(b"x", timeout=60)
        return True

    with started(LATE) as process:
        assert hangs(process.pid, lambda: at_last(process), 60.0, 60.0) == ""


def held_by(mib: int, *below: str) -> int:
    """The MiB that a process which holds ``mib``, and what it starts, hold together."""
    command = [sys.executable, "-c", HOLDING, str(mib), *below]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        taken = Taken(process.pid)
        taken.look()
        process.communicate(b"x" * 2)
        taken.look()  # it is gone: what was seen stays
    return taken.highest_bytes >> 20


def test_what_processes_hold_at_the_same_time_is_added_up() -> None:
    nothing, below = held_by(0), held_by(0, HOLDING, "0")

    assert held_by(100) - nothing in range(98, 103)
    assert below in range(nothing * 3 // 2, nothing * 5 // 2)
    assert held_by(70, HOLDING, "50") - below in range(117, 124)


def test_what_a_command_takes_does_not_depend_on_what_the_tests_hold(tmp_path: Path) -> None:
    alone = firedrill("runs", cwd=tmp_path).memory_bytes
    held = b"x" * (200 << 20)
    beside = firedrill("runs", cwd=tmp_path).memory_bytes
    del held

    assert 0 < alone < 64 << 20
    assert abs(beside - alone) < 8 << 20
