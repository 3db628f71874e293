"""A controller that is killed at any moment leaves nothing that its run directory does not name."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from process_programs import recorded

from clusters.providers.process import procfs
from clusters.providers.process.cleanup import cleanup

OWNER = Path(__file__).with_name("process_owner.py")
MOMENT_LIMIT_S = 30.0


@contextmanager
def owner(root: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A controller, and no node of it is left after the block, however the test ends."""
    root.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(OWNER), str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        yield process
    finally:
        kill(process)
        cleanup(root / "undo")


def nodes_of(root: Path) -> list[int]:
    """Every living process whose working directory is in ``root``: written down or not."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and procfs.look(int(entry.name)):
            try:
                where = os.readlink(entry / "cwd")
            except OSError:
                continue
            if where.startswith(f"{root}/nodes/"):
                found.append(int(entry.name))
    return sorted(found)


def ended_by_itself(identity: procfs.Identity, limit_s: float = 10.0) -> bool:
    """Whether the process ends without anybody's doing."""
    try:
        handle = os.pidfd_open(identity.pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        return bool(poll.poll(limit_s * 1000))
    finally:
        os.close(handle)


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=20)


def test_cleanup_after_kill_9_of_the_controller_ends_exactly_its_nodes(tmp_path: Path) -> None:
    dead, alive = tmp_path / "dead", tmp_path / "alive"
    with owner(dead) as first, owner(alive) as second:
        for process in (first, second):
            assert process.stdout
            assert process.stdout.readline() == b"up\n"
        kill(first)
        left = recorded(dead)
        assert sorted(entry["pid"] for entry in left.values()) == nodes_of(dead)
        assert sorted(left) == ["n1", "n2", "n3"]

        killed = cleanup(dead / "undo")

        assert killed == [
            f"process {entry['pid']} of {node}" for node, entry in sorted(left.items())
        ]
        assert nodes_of(dead) == []
        assert cleanup(dead / "undo") == []
        others = nodes_of(alive)
        assert len(others) == 3
        kill(second)
        cleanup(alive / "undo")
        assert nodes_of(alive) == []


def test_a_test_that_dies_takes_controller_and_nodes_with_it(tmp_path: Path) -> None:
    root = tmp_path / "run"
    with owner(root) as process:
        assert process.stdout
        assert process.stdout.readline() == b"up\n"
        assert len(nodes_of(root)) == 3
        assert process.stdin
        process.stdin.close()  # as the kernel does for whoever is killed
        process.stdin = None
        process.wait(timeout=20)

        assert nodes_of(root) == []


@pytest.mark.parametrize("moment", range(8))
def test_killed_while_it_brings_nodes_up_nothing_unknown_is_left(
    tmp_path: Path, moment: int
) -> None:
    """The moment is when the run directory has so many entries: before, between and after the
    spawns.
    """
    root = tmp_path / "run"
    with owner(root) as process:
        deadline = time.monotonic() + MOMENT_LIMIT_S
        while process.poll() is None and len(list(root.rglob("*"))) < 2 * moment:
            assert time.monotonic() < deadline, sorted(root.rglob("*"))
        kill(process)

    cleanup(root / "undo")

    # What was still held at the gate ends by itself, at the end of its pipe.
    for pid in nodes_of(root):
        if found := procfs.look(pid):
            assert ended_by_itself(found.identity)
    assert nodes_of(root) == []
