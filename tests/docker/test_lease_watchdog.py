"""The watchdog of a machine's lease on a disk that is full: here in a namespace of processes of its
own, since it lets every stopped program that it sees go on.
"""

from __future__ import annotations

import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from capabilities import lacking, small_disk

from clusters.providers.remote import fault_lease
from clusters.providers.remote.fault_lease import Lease
from nemesis.command_faults import _GUARDED

LIMIT_S = 30.0
IN_NAMESPACE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
STOPPED = 'sleep 1000 & kill -STOP $!; exec "$@"'


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with room for few files."""
    if shutil.which("unshare") is None:
        lacking("unshare, for a namespace of processes")
    with small_disk(tmp_path / "disk", "64k,nr_inodes=8") as mounted:
        yield mounted


@contextmanager
def watchdog(place: Path, *, stopped: bool = False) -> Iterator[subprocess.Popen[bytes]]:
    """A watchdog with a lease of half a second, beside a ``stopped`` program or without one."""
    numbers = ("0.5", "1000", "0.1", "2")
    argv = (sys.executable, "-I", "-S", "-c", fault_lease._WATCH, *numbers, "NO-CHAIN", str(place))
    within = ("sh", "-c", STOPPED if stopped else 'exec "$@"', "sh")
    process = subprocess.Popen(
        [*IN_NAMESPACE, *within, *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Commands of this machine's network are none of its own.
        env={"PATH": "/nowhere:/usr/bin:/bin"},
    )
    try:
        assert line_of(process) == "watching\n"
        yield process
    finally:
        process.kill()
        process.communicate(timeout=LIMIT_S)


def line_of(process: subprocess.Popen[bytes]) -> str:
    """Its next line. Read byte by byte: ``select`` does not see what a buffer holds."""
    assert process.stdout is not None
    line = b""
    while not line.endswith(b"\n"):
        assert select.select([process.stdout], [], [], LIMIT_S)[0], f"it says no more than {line!r}"
        byte = os.read(process.stdout.fileno(), 1)
        assert byte, f"it ended behind {line!r}"
        line += byte
    return line.decode()


def fill(disk: Path) -> None:
    """Use up the files and the blocks."""
    for number in range(100):
        try:
            with (disk / f"filler-{number}").open("wb", buffering=0) as file:
                while file.write(b"x" * 4096):
                    pass
        except OSError:
            continue


def until_gone(path: Path) -> None:
    ends_s = time.monotonic() + LIMIT_S
    while path.exists():
        assert time.monotonic() < ends_s, f"{path} stays"
        time.sleep(0.02)  # another process's file: there is nothing to wait on


def test_a_lease_ends_on_a_full_disk_and_its_lapse_is_told_by_the_next_watchdog(
    disk: Path,
) -> None:
    place = disk / "firedrill"
    with watchdog(place, stopped=True):
        fill(disk)
        with pytest.raises(OSError, match="No space left"):
            (place / "one-more").touch()

        until_gone(place / Path(fault_lease.LEASE_HELD).name)
        # Its own words went to a controller that is gone. It ends the faults before it notes them.
        ends_s = time.monotonic() + LIMIT_S
        while not (place / "lapsed").read_text().strip():
            assert time.monotonic() < ends_s, "no lapse is noted"
            time.sleep(0.02)  # another process's file: there is nothing to wait on

    for filler in disk.glob("filler-*"):
        filler.unlink()
    for _ in range(2):  # what was told once may not have been read
        with watchdog(place) as following:
            number, _, kinds = line_of(following).partition(" ")
            assert number.isdigit()
            assert kinds == "stopped programs\n"


def test_a_lapse_that_is_told_twice_is_one() -> None:
    lease = Lease.__new__(Lease)
    lease._lapses, lease._session = {}, type("Session", (), {"node": "n1"})()  # type: ignore

    lease._note(("17 delays", "17 delays", "", "18 delays"))

    assert list(lease._lapses) == ["17", "18"]


def test_a_guard_of_a_command_heals_once_the_lease_of_its_machine_is_gone(tmp_path: Path) -> None:
    held, healed = tmp_path / "held", tmp_path / "healed"
    held.touch()
    named = {"token": "1-n1", "heal": f"'touch {healed}'", "inject": f"touch {tmp_path / 'broken'}"}
    script = _GUARDED.format(lease_s=600, **named)
    subprocess.run(
        ["sh", "-c", script],
        env={**os.environ, "TMPDIR": str(tmp_path), "FIREDRILL_LEASE_HELD": str(held)},
        check=True,
        timeout=LIMIT_S,
    )
    guard = tmp_path / "firedrill-fault-1-n1"
    assert guard.exists()
    assert not healed.exists()

    held.unlink()

    until_gone(guard)
    ends_s = time.monotonic() + LIMIT_S
    while not healed.exists():
        assert time.monotonic() < ends_s
        time.sleep(0.02)  # another process's file: there is nothing to wait on
