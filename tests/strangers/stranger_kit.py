"""Run directories from strangers: a small sound run to spoil, canaries around it, and the commands,
each in processes of its own whose time, memory and reach are measured.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import command_server
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from harness import supervisor
from harness.history.chunks import ChunkWriter
from harness.history.manifest import read_manifest, write_manifest
from harness.history.records import Complete, Invoke, MicroOp, OpType, PhaseMark
from harness.history.run_directory import SCHEMA_VERSION, LogSum, Manifest, RunDirectory
from harness.history.seal import seal
from harness.protocols.promise import Declaration, LogPattern, Promise

NAME = "20261122-060000-stranger-0001"
CPU_LIMIT_S = 2.0  # beyond what a sound run takes
# A command hangs if it takes this much processor time, or none for so long: a machine that is
# shared delays a command, but it lets every process that can run do so within some seconds.
HANG_CPU_S = 60.0
HANG_STILL_S = 60.0
POLL_S = 1.0
LOOK_S = 0.01  # between two looks at what a command holds
MEMORY_LIMIT_BYTES = 300 << 20
SECRET = "TOP-SECRET-d41d8cd98f00"  # noqa: S105
ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202e\x9b1m\r\nVALID: every promise that was tested was kept\r"
PLAN = """\
name = "stranger"
seed = 7
[cluster]
provider = "process"
nodes = 2
[nemesis]
schedule = []
[check]
executor = "local"
min_ok = 1
"""
DECLARED = Declaration(
    system="paper",
    mode="SC",
    promises=(Promise(kind="read-write"),),
    transaction_scope="cluster",
    logs=(LogPattern(name="panic", regex="^panic", breaks=True),),
)
_IN_ALL = 0x1 | 0x2 | 0x4 | 0x20 | 0xC0 | 0x100 | 0x200  # read, written, opened, moved, made, gone
_LIBC = ctypes.CDLL(None, use_errno=True)


@attrs.frozen(kw_only=True)
class Ended:
    """How a command ended, and what all its processes took, beyond what it began with."""

    code: int
    out: str
    err: str
    cpu_s: float
    memory_bytes: int

    @property
    def said(self) -> str:
        return self.out + self.err


def sound_run(root: Path, *, lost: bool = False, sealed: bool = True) -> RunDirectory:
    """A run of three transactions that broke no promise, or one that ``lost`` a write."""
    root.mkdir(parents=True)
    run = RunDirectory(root)
    run.plan.write_text(PLAN)
    checksums = {run.plan.name: hashlib.sha256(PLAN.encode()).hexdigest()}
    write_manifest(
        run,
        Manifest(
            schema_version=SCHEMA_VERSION,
            run_id=root.name,
            state="running",
            versions={"paper": "1"},
            machine={},
            declaration=DECLARED,
            workload="list-append",
            checkers=("list-append", "lost-write", "availability", "statistics", "evidence"),
            checksums=checksums,
            streams=1,
        ),
    )
    for node in ("n1", "n2"):
        run.node(node).mkdir(parents=True)
        (run.node(node) / "node.log").write_text("started\n")
    run.undo.mkdir()
    writer = ChunkWriter(run.chunks, reserve_bytes=0, run_id=root.name)
    writer.append(PhaseMark(name="drive", at_ns=0))
    for index, op in enumerate(
        (
            MicroOp("append", 1, 1),
            MicroOp("append", 1, 2),
            MicroOp("r", 1, (1,) if lost else (1, 2)),
        )
    ):
        asked = MicroOp("r", 1, None) if op.f == "r" else op
        times = {"process": index, "at_ns": 100 * index + 100}
        writer.append(
            Invoke(index=2 * index, kind="read-write", node="n1", intended_ns=0, wall_ns=0,
                   ops=(asked,), **times)
        )  # fmt: skip
        times["at_ns"] += 50
        writer.append(
            Complete(index=2 * index + 1, invoke=2 * index, type=OpType.OK, ops=(op,), **times)
        )
    for index in range(3):
        writer.append(PhaseMark(name=("heal", "final-reads", "seal")[index], at_ns=1000 + index))
    if not sealed:
        writer._chunk.finish()
        os.close(writer._lock or -1)
        return run
    writer.close()
    seal(run, partition_of=None, splits=1)
    return run


def forge(run: RunDirectory, **fields: object) -> None:
    """Give the manifest other ``fields``, and sums that match what lies in the directory now: the
    digest has no key, so that anybody can.
    """
    manifest = msgspec.structs.replace(read_manifest(run), **fields)
    if "checksums" not in fields:
        sums = {
            name: hashlib.sha256((run.root / name).read_bytes()).hexdigest()
            for name in manifest.checksums
            if (run.root / name).is_file()
        }
        sizes = {name: (run.root / name).stat().st_size for name in sums}
        manifest = msgspec.structs.replace(manifest, checksums=sums, **{"sizes": sizes} | fields)
    if "logs" not in fields and not isinstance(manifest.logs, msgspec.UnsetType):
        logs = {
            path.relative_to(run.root).as_posix(): _log_sum(path)
            for path in sorted(run.root.glob("nodes/*/*.log"))
            if path.is_file() and path.stat().st_size < 1 << 24
        }
        manifest = msgspec.structs.replace(manifest, logs=logs)
    write_manifest(run, manifest)


def _log_sum(path: Path) -> LogSum:
    content = path.read_bytes()
    return LogSum(size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())


def manifest_text(run: RunDirectory, **fields: object) -> bytes:
    """A manifest whose fields no writer of ours would write, with a digest that matches where one
    can be made.
    """
    stored = msgspec.json.decode(run.manifest.read_bytes())
    stored |= fields
    return msgspec.json.encode(stored)


def rewrite(path: Path, change: object) -> None:
    """Pass the Parquet table of ``path`` through ``change``."""
    table = pq.read_table(path)
    pq.write_table(change(table), path, compression="zstd")  # type: ignore[operator]


def equal_values(field: pa.Field, count: int) -> pa.Array:
    """So many nulls, or of a field that may have none zeros, empty texts or empty lists."""
    if field.nullable:
        return pa.nulls(count, field.type)
    if pa.types.is_list(field.type):
        return pa.array([[]] * count, field.type)
    value = 0 if pa.types.is_integer(field.type) else ""
    return pa.array([value]).cast(field.type).take(pa.array(np.zeros(count, np.int64)))


def rows_of(columns: pa.Schema, rows: int, **given: object) -> pa.Table:
    """So many rows of ``columns``: of those not ``given`` nulls, or what stands for nothing."""
    return pa.table(
        [
            pa.array(given[field.name], field.type)
            if field.name in given
            else equal_values(field, rows)
            for field in columns
        ],
        schema=columns,
    )


def column(table: pa.Table, name: str, values: Sequence[object]) -> pa.Table:
    """``table`` with other ``values`` in a column, of the same type."""
    place = table.schema.get_field_index(name)
    field = table.schema.field(place)
    return table.set_column(place, field, pa.array(list(values), field.type))


class Canaries:
    """Files and directories outside of a run, watched: what is opened, read, written, made, moved
    or removed there is told.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.file = root / "secret.txt"
        self.plan = root / "secret.toml"
        self.directory = root / "things"
        self.directory.mkdir(parents=True)
        self.file.write_text(f"{SECRET}\n" * 3)
        self.plan.write_text(f'{PLAN}\n# token = "{SECRET}"\n')
        for name in ("precious.parquet", "reserve-0", "kept", "fault-000000.json", "n1.log",
                     "processes.json", "verdict.json", ".x.partial"):  # fmt: skip
            (self.directory / name).write_text(SECRET)
        os.mkfifo(root / "fifo")

    def state(self) -> dict[str, tuple[object, ...]]:
        """Everything there, with its content and times."""
        found: dict[str, tuple[object, ...]] = {}
        for path in sorted([self.root, *self.root.rglob("*")]):
            info = path.lstat()
            content = path.read_bytes() if path.is_file() and not path.is_symlink() else b""
            found[str(path)] = (info.st_mode, info.st_ino, info.st_mtime_ns, info.st_nlink, content)
        return found

    def watch(self) -> int:
        """A descriptor that tells what happens there from now on (inotify)."""
        handle: int = _LIBC.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        for path in (self.root, *(p for p in self.root.rglob("*") if p.is_dir())):
            if _LIBC.inotify_add_watch(handle, os.fsencode(path), _IN_ALL) < 0:
                raise OSError(ctypes.get_errno(), "inotify_add_watch", str(path))
        return handle


def reached(handle: int) -> bytes:
    """The events of a ``watch``; empty where nothing happened."""
    try:
        return os.read(handle, 1 << 16)
    except BlockingIOError:
        return b""
    finally:
        os.close(handle)


class CommandServer:
    """The process of ``command_server``, and what each command that it forks takes."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair()
        program = [sys.executable, "-P", command_server.__file__, str(theirs.fileno())]
        with theirs:  # it ends with the other end, however these tests end
            subprocess.Popen(program, pass_fds=[theirs.fileno()])
        self._unread = b""

    def run(self, asked: dict[str, object]) -> tuple[dict[str, Any], int]:
        """How the command ended, and what its processes took together beyond what the first of them
        held at its begin. Raises ``AssertionError`` for one that hangs, which is killed.
        """
        self._channel.sendall(json.dumps(asked).encode() + b"\n")
        begun = self._answer()
        taken = Taken(begun["pid"])
        if reason := hangs(begun["pid"], lambda: self._over(taken)):
            for pid in (begun["pid"], *supervisor.descendants(begun["pid"])):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._answer()
            raise AssertionError(reason)
        ended = self._answer()
        highest = max(taken.highest_bytes, ended["highest_bytes"])
        return ended, highest - begun["held_bytes"]

    def _over(self, taken: Taken) -> bool:
        if b"\n" in self._unread:  # it came with the line before: the command took no time
            return True
        ready = select.poll()
        ready.register(self._channel, select.POLLIN)
        for _ in range(int(POLL_S / LOOK_S)):
            if ready.poll(LOOK_S * 1000):
                return True
            taken.look()
        return False

    def _answer(self) -> dict[str, Any]:
        while b"\n" not in self._unread:
            received = self._channel.recv(1 << 16)
            assert received, "the server of commands ended"
            self._unread += received
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer


class Taken:
    """The most memory that a process and those below it held at the same time. What they grow by
    between the last look and their end is not in it.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.highest_bytes = 0

    def look(self) -> None:
        total, left = 0, [self._pid]
        while left:
            pid = left.pop()
            with contextlib.suppress(OSError, ValueError):  # it ended
                total += command_server.highest_resident_bytes(pid)
                for thread in os.listdir(f"/proc/{pid}/task"):
                    below = Path(f"/proc/{pid}/task/{thread}/children").read_text()
                    left.extend(map(int, below.split()))
        self.highest_bytes = max(self.highest_bytes, total)


@functools.cache
def _server() -> CommandServer:
    return CommandServer()


def firedrill(*arguments: str, cwd: Path, env: dict[str, str] | None = None) -> Ended:
    """Run a command line in a process that has imported everything already."""
    out, err = cwd / ".out", cwd / ".err"
    # What a daemon of this machine runs is no business of these tests.
    environment = {**os.environ, "DOCKER_HOST": f"unix://{cwd}/no-daemon"} | (env or {})
    asked: dict[str, object] = {
        "arguments": arguments,
        "environment": environment,
        "cwd": str(cwd),
        "outputs": [str(out), str(err)],
    }
    try:
        ended, memory_bytes = _server().run(asked)
    except AssertionError as hanging:
        raise AssertionError(
            f"firedrill {' '.join(arguments)} {hanging}: {err.read_text()}"
        ) from hanging
    told = Ended(
        code=ended["code"],
        out=out.read_text("utf-8", "surrogateescape"),
        err=err.read_text("utf-8", "surrogateescape"),
        cpu_s=ended["cpu_s"],
        memory_bytes=memory_bytes,
    )
    out.unlink()
    err.unlink()
    return told


def hangs(
    pid: int,
    over: Callable[[], bool],
    cpu_limit_s: float = HANG_CPU_S,
    still_limit_s: float = HANG_STILL_S,
) -> str:
    """Wait until process ``pid`` is ``over``, which itself waits for a moment; return why it is
    taken to hang, or nothing. Time of the processes below it counts as its own.
    """
    spent_s, since_s = 0.0, time.monotonic()
    while not over():
        now_s = time.monotonic()
        if (total_s := _processor_s(pid)) > spent_s:
            spent_s, since_s = total_s, now_s
        if spent_s > cpu_limit_s:
            return f"goes on after {spent_s:.0f} s of processor time"
        if now_s - since_s > still_limit_s:
            return f"stands still, after {spent_s:.1f} s of processor time"
    return ""


def _processor_s(pid: int) -> float:
    """What ``pid``, the living processes below it and those that they waited for have taken."""
    ticks = 0
    for each in (pid, *supervisor.descendants(pid)):
        with contextlib.suppress(OSError):  # it ended: its parent has its time
            stat = Path(f"/proc/{each}/stat").read_text("utf-8", "replace")
            ticks += sum(map(int, stat.rpartition(") ")[2].split()[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


@functools.cache
def usual() -> dict[str, Ended]:
    """What each command takes for a sound run, on this machine as it is now."""
    commands = {
        "check": ("check", "--executor", "local", NAME),
        "report": ("report", NAME),
        "runs": ("runs",),
        "cleanup": ("cleanup", "--all"),
        "logs": ("logs", NAME, "n1"),
        "shrink": ("shrink", NAME),
    }
    with tempfile.TemporaryDirectory() as kept:
        store = Path(kept) / "runs"
        sound_run(store / NAME)
        return {
            name: firedrill(*command, "--runs-dir", str(store), cwd=store.parent)
            for name, command in commands.items()
        }


def below(root: Path) -> Iterator[Path]:
    """Everything below ``root``, however deep; links are not followed."""
    left = [root]
    while left:
        for entry in os.scandir(left.pop()):
            yield Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                left.append(Path(entry.path))


def written_in(run: Path) -> str:
    """The text of every file of ``run``, for looking a secret up in it."""
    found = []
    for path in sorted(below(run)):
        if path.is_file() and not path.is_symlink() and path.stat().st_size < 1 << 22:
            found.append(path.read_bytes().decode("utf-8", "replace"))
    return "\n".join(found)


def copied(run: RunDirectory, to: Path) -> RunDirectory:
    shutil.copytree(run.root, to, symlinks=True)
    return RunDirectory(to)
