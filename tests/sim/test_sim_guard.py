"""What reaches for the machine from inside a simulation is an error that names it."""

from __future__ import annotations

import logging
import os
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import pytest

from clusters.providers.sim.loop import OutsideWorld, simulate

REACHING: dict[str, Callable[[], object]] = {
    "a socket": socket.socket,
    "a name server": lambda: socket.getaddrinfo("localhost", 80),
    "a thread": lambda: threading.Thread(target=int).start(),
    "a child process": lambda: subprocess.Popen([sys.executable, "-V"]),
    "time.sleep": lambda: time.sleep(0),
    "time.time": lambda: time.time(),
    "time.monotonic": lambda: time.monotonic(),
    "time.perf_counter_ns": lambda: time.perf_counter_ns(),
    "random.random": lambda: random.random(),
    "os.urandom": lambda: os.urandom(8),
}


@pytest.mark.parametrize("what", REACHING)
def test_it_is_refused_by_name_inside_and_let_pass_outside(what: str) -> None:
    async def main() -> None:
        REACHING[what]()

    with pytest.raises(OutsideWorld, match=what):
        simulate(main())
    REACHING["time.time"]()
    random.random()
    os.urandom(1)


def test_what_only_stamps_what_people_read_may_look_at_the_clock(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> int:
        logging.getLogger("sim.test").warning("a line")
        return random.Random(7).randrange(10)

    assert simulate(main()) == random.Random(7).randrange(10)
    assert "a line" in caplog.text
