"""What the tests of hostile runs take for a hang, on a machine that may be shared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from stranger_kit import hangs

BUSY = "while True: pass"
STILL = "import time; time.sleep(1000)"
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
