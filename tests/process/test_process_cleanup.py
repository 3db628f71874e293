"""A controller that is killed at any moment leaves nothing that its run directory does not name."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
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
from clusters.providers.process.child import Child, spawn
from clusters.providers.process.cleanup import Ledger, cleanup, end_marked
from harness.errors import HarnessError

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


SHELL = "sleep 300 & echo $! >child; exec sleep 300"


def started(root: Path, script: str) -> tuple[Ledger, Child]:
    """A program of a run in ``root``, whose controller is this test."""
    (root / "nodes").mkdir(parents=True)

    async def spawned() -> tuple[Ledger, Child]:
        ledger = Ledger("r1", root / "undo")
        child = await spawn(
            "n1", ("sh", "-c", script), env=os.environ, work=root / "nodes",
            log=root / "nodes" / "n1.log", ledger=ledger,
        )  # fmt: skip
        return ledger, child

    return asyncio.run(spawned())


def child_of(root: Path) -> procfs.Identity:
    """What the shell of ``SHELL`` started and left."""
    deadline = time.monotonic() + MOMENT_LIMIT_S
    file = root / "nodes" / "child"
    while not (file.exists() and file.read_text().strip()):
        assert time.monotonic() < deadline
        time.sleep(0.01)  # another process writes it
    found = procfs.look(int(file.read_text()))
    assert found is not None
    return found.identity


@pytest.mark.parametrize("script", [SHELL, SHELL.replace("sleep 300 &", "setsid sleep 300 &")])
def test_what_a_dead_leader_started_is_ended(tmp_path: Path, script: str) -> None:
    _, leader = started(tmp_path, script)
    child = child_of(tmp_path)
    leader.process.kill()
    leader.process.wait(timeout=20)
    assert procfs.find(child)

    assert cleanup(tmp_path / "undo") == [f"process {child.pid} of a program of the run"]

    assert procfs.find(child) is None


def test_teardown_ends_what_outlived_its_leader(tmp_path: Path) -> None:
    ledger, leader = started(tmp_path, SHELL)
    child = child_of(tmp_path)
    leader.process.kill()
    leader.process.wait(timeout=20)

    assert end_marked(ledger.mark()) == [child]


def test_a_strangers_list_gets_none_of_the_users_processes_killed(tmp_path: Path) -> None:
    own, stranger, moved = (tmp_path / name for name in ("own", "stranger", "moved"))
    _, mine = started(own, "exec sleep 300")
    try:
        shutil.copytree(own, stranger)

        with pytest.raises(HarnessError, match="carries no mark of this run"):
            cleanup(stranger / "undo")
        assert procfs.find(mine.identity)

        own.rename(moved)
        assert cleanup(moved / "undo") == [f"process {mine.identity.pid} of n1"]
    finally:
        mine.process.kill()
        mine.process.wait(timeout=20)


def test_a_program_that_overwrote_its_environment_is_known_by_its_output(tmp_path: Path) -> None:
    _, leader = started(tmp_path, "exec env -i sleep 300")

    deadline = time.monotonic() + MOMENT_LIMIT_S
    while b"env" in (environ := Path(f"/proc/{leader.identity.pid}/cmdline").read_bytes()):
        assert time.monotonic() < deadline, environ
    assert cleanup(tmp_path / "undo") == [f"process {leader.identity.pid} of n1"]


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
