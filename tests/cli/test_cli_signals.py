"""Ctrl-C: once to end in order, twice to end at once. Real processes, real signals."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

LIMIT_S = 30
PROGRAM = """
import asyncio, sys
from cli.signals import stopping
from harness.run.stop import Stop

async def main(stop):
    print("driving", flush=True)
    # Nothing else wakes this loop: it sleeps in select while the signal arrives.
    await stop.unless(asyncio.Event().wait())
    print("healing", flush=True)
    {then}
    print("sealed", flush=True)

stop = Stop()
with stopping(stop, lambda text: print(text, flush=True), "clean up with: it"):
    asyncio.run(main(stop))
"""


@contextmanager
def started(
    then: str, preexec_fn: Callable[[], object] | None = None
) -> Iterator[subprocess.Popen[str]]:
    """Start it, and leave nothing of it behind where the block fails."""
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(then=then)],
        preexec_fn=preexec_fn,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_heals_and_seals(number: signal.Signals) -> None:
    with started("pass") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "driving\n"

        process.send_signal(number)
        out, err = process.communicate(timeout=LIMIT_S)

    assert process.returncode == 0
    assert sorted(out.splitlines()) == [
        "healing",
        "sealed",
        "stopping: heal, collect, seal, and judge nothing; once more to stop at once",
    ]
    assert err == ""


@pytest.mark.parametrize(
    "then", ["await asyncio.Event().wait()", "import threading; threading.Event().wait()"]
)
def test_the_second_signal_ends_at_once_whatever_goes_on(then: str) -> None:
    with started(then) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "driving\n"
        process.send_signal(signal.SIGINT)
        assert "healing\n" in iter(process.stdout.readline, "")

        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=LIMIT_S)

    assert process.returncode == 130
    assert "stopped at once; clean up with: it" in err


def test_a_hang_up_never_counts_as_the_second() -> None:
    with started("import sys; sys.stdin.readline()") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "driving\n"
        process.send_signal(signal.SIGTERM)
        assert "healing\n" in iter(process.stdout.readline, "")

        for _ in range(2):  # the kernel's, and the shell's
            process.send_signal(signal.SIGHUP)
        out, _ = process.communicate("go on\n", timeout=LIMIT_S)

    assert process.returncode == 0
    assert "sealed" in out


def test_a_signal_that_is_ignored_stays_so() -> None:
    then = "import sys; sys.stdin.readline()"
    with started(then, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "driving\n"

        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate("go on\n", timeout=LIMIT_S)

    assert process.returncode == 0
    assert out.count("stopping") == 1


FINALIZER = """
import os, signal, sys, time
from cli.signals import interrupt_on_signals

class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.{name})
        for _ in range(1000):
            pass
        print("not reached", flush=True)

interrupt_on_signals()
try:
    Finalized()
    while True:
        time.sleep(60)
except KeyboardInterrupt:
    print("unwound", flush=True)
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_an_interruption_that_a_finalizer_swallows_comes_once_more(name: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", FINALIZER.format(name=name)],
        preexec_fn=lambda: signal.signal(getattr(signal, name), signal.SIG_DFL),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )

    assert (ended.stdout, ended.stderr, ended.returncode) == ("unwound\n", "", 0)
