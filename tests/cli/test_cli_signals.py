"""Ctrl-C: once to end in order, twice to end at once. Real processes, real signals."""

from __future__ import annotations

import signal
import subprocess
import sys

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


def started(then: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(then=then)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
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
        "stopping: heal, collect, seal; once more to stop at once",
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
        while process.stdout.readline() != "healing\n":
            pass

        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=LIMIT_S)

    assert process.returncode == 130
    assert "stopped at once; clean up with: it" in err
