"""What reaches for the machine from inside a simulation is an error that names it."""

from __future__ import annotations

import _thread
import importlib
import logging
import os
import random
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path

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
    "time.clock_gettime": lambda: time.clock_gettime(time.CLOCK_MONOTONIC),
    "time.process_time": lambda: time.process_time(),
    "time.localtime": lambda: time.localtime(),
    "time.gmtime": lambda: time.gmtime(None),
    "time.strftime": lambda: time.strftime("%H"),
    "random.gauss": lambda: random.gauss(0, 1),
    "random.randbytes": lambda: random.randbytes(4),
    "without a seed": lambda: random.Random(),
    "uuid.uuid1": lambda: uuid.uuid1(),
    "uuid.uuid4": lambda: uuid.uuid4(),
}
# Others of the same name, or by another way.
BY_OTHER_WAYS: dict[str, tuple[str, Callable[[], object]]] = {
    "SystemRandom": ("os.urandom", lambda: random.SystemRandom().random()),
    "secrets": ("os.urandom", lambda: secrets.token_hex(4)),
    "_thread": ("a thread", lambda: _thread.start_new_thread(int, ())),
    "os.system": ("a child process", lambda: os.system("true")),  # noqa: S605
    "os.execv": ("another program", lambda: os.execv("/bin/true", ["true"])),  # noqa: S606
    "gethostbyname": ("a name server", lambda: socket.gethostbyname("localhost")),
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


@pytest.mark.parametrize("way", BY_OTHER_WAYS)
def test_it_is_refused_by_other_ways_too(way: str) -> None:
    what, reach = BY_OTHER_WAYS[way]

    async def main() -> None:
        reach()

    with pytest.raises(OutsideWorld, match=what):
        simulate(main())


def test_what_only_computes_is_let_pass() -> None:
    async def main() -> tuple[object, ...]:
        stream = random.Random(7)
        stream.seed(a=8)
        return time.gmtime(0), time.strftime("%Y", time.gmtime(0)), stream.random()

    assert simulate(main()) == (time.gmtime(0), "1970", random.Random(8).random())
    assert random.Random().random() != random.Random().random()


def test_a_module_may_look_at_the_machine_while_it_is_loaded_and_not_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "loaded_late.py").write_text(
        "import time\n\ndef zone():\n    return time.localtime()\n\nzone()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)

    async def main() -> None:
        importlib.import_module("loaded_late").zone()

    with pytest.raises(OutsideWorld, match=r"time\.localtime"):
        simulate(main())
    assert sys.modules.pop("loaded_late").zone()


def test_a_name_for_a_file_may_be_drawn_by_whoever_makes_files() -> None:
    async def main() -> str:
        with tempfile.TemporaryDirectory(prefix="made-") as path:
            return path

    assert "made-" in simulate(main())


def test_what_only_stamps_what_people_read_may_look_at_the_clock(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> int:
        logging.getLogger("sim.test").warning("a line")
        return random.Random(7).randrange(10)

    assert simulate(main()) == random.Random(7).randrange(10)
    assert "a line" in caplog.text
