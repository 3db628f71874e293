"""Finds the processes that a dead controller left running, by its run directory, and ends them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec

from clusters.providers.process import procfs
from clusters.providers.process.procfs import Identity, find, look, machine_boot
from harness.errors import HarnessError, MalformedHistory
from harness.history.durable_files import sync_directory, write_atomically
from harness.history.regular_files import read_small
from harness.history.run_directory import directory_mark

# From SIGKILL to the end of a process: its memory has to be given back first.
_KILL_LIMIT_S = 10.0
_ROUNDS_MAX = 10


def driven(state_dir: Path) -> bool:
    """Whether the controller of the run lives. Raises ``MalformedHistory`` for a broken list."""
    owned = read(state_dir)
    return owned is not None and owned.driven


def kept(state_dir: Path) -> bool:
    """Whether the run was left up on purpose and something of it runs. Raises as ``driven``."""
    owned = read(state_dir)
    if owned is None or not owned.kept or owned.boot != procfs.machine_boot():
        return False
    return any(procfs.find(identity) for identity in owned.processes.values())


def cleanup(state_dir: Path) -> list[str]:
    """Kill every process that the run of ``state_dir`` (its ``undo`` directory) left behind: those
    of its list, and what they started, also where they have ended themselves.

    The list alone gets no process killed: each must carry the run's mark (``procfs.marked``).
    Returns what was killed, ``process 4711 of n1``; a second call returns nothing. Raises
    ``HarnessError`` where one does not end, or is listed and carries no mark, ``MalformedHistory``
    for a broken list.
    """
    owned = read(state_dir)
    if owned is None:
        return []
    done = []
    # After a reboot none of them can live, and their ids are those of other processes.
    if owned.boot == procfs.machine_boot():
        every = end_marked(directory_mark(state_dir.parent))
        ended = [(_whose(one, owned), one.pid) for one in every]
        done = [f"process {pid} of {whose}" for whose, pid in sorted(ended)]
        # Behind the killing: one that has to be refused keeps no marked one alive.
        _refuse_unmarked(owned)
    # Last: a cleanup that is interrupted needs the list again.
    forget(state_dir)
    return done


def left(state_dir: Path) -> int:
    """How many processes a controller that died left running, but for those kept on purpose.

    Raises as ``driven``.
    """
    owned = read(state_dir)
    if owned is None or owned.driven or owned.kept or owned.boot != procfs.machine_boot():
        return 0
    return len(procfs.marked(directory_mark(state_dir.parent)))


def end_marked(ours: str) -> list[Identity]:
    """Kill every process with the mark ``ours`` until none is left: a process may start another
    just before it is killed. Blocking. Raises ``HarnessError``, also where they multiply faster.
    """
    done = list[Identity]()
    for _ in range(_ROUNDS_MAX):
        found = procfs.marked(ours)
        if not found:
            return done
        for identity in found:
            try:
                if procfs.kill_and_wait(identity, ours, _KILL_LIMIT_S):
                    done.append(identity)
            except (TimeoutError, PermissionError) as error:
                raise HarnessError(str(error)) from error
    if left := procfs.marked(ours):
        pids = ", ".join(str(identity.pid) for identity in left)
        raise HarnessError(f"processes start anew as fast as they are ended (now {pids})")
    return done


def _whose(identity: Identity, owned: OwnedProcesses) -> str:
    """The node that the process was started for; of a process that a program started, only the run
    is known.
    """
    nodes = [node for node, known in owned.processes.items() if known == identity]
    return nodes[0] if nodes else "a program of the run"


def _refuse_unmarked(owned: OwnedProcesses) -> None:
    for node, identity in sorted(owned.processes.items()):
        if procfs.find(identity):
            raise HarnessError(
                f"{node} of run {owned.run_id}: process {identity.pid} carries no mark of this "
                "run, so it was left alone; if it is yours, end it yourself"
            )


FILE = "processes.json"
MAX_BYTES = 1 << 20  # some hundred bytes a node


class OwnedProcesses(msgspec.Struct, frozen=True, kw_only=True):
    """``processes.json``: the processes that were started for the run, by node. ``boot`` is the
    machine's.

    ``owner`` is the controller; ``kept`` says that it left all these running on purpose.
    """

    run_id: str
    boot: str
    processes: dict[str, Identity] = {}
    owner: Identity | None = None
    kept: bool = False

    @property
    def driven(self) -> bool:
        """Whether the controller that wrote this lives."""
        return bool(self.owner and self.boot == machine_boot() and find(self.owner))


class Ledger:
    """``processes.json`` of one run, kept by the controller."""

    def __init__(self, run_id: str, state_dir: Path) -> None:
        self._path = state_dir / FILE
        self._mark = ""
        here = look(os.getpid())
        self._owned = OwnedProcesses(
            run_id=run_id, boot=machine_boot(), owner=here.identity if here else None
        )
        self._writing = asyncio.Lock()

    def mark(self) -> str:
        """The mark that processes of the run carry, also where its directory is gone by now. Raises
        ``OSError`` where the directory can't be made.
        """
        if not self._mark:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._mark = directory_mark(self._path.parent.parent)
        return self._mark

    async def own(self, node: str, identity: Identity) -> None:
        """Return once it is durable that ``identity`` is the run's. Takes the place of the node's
        process before, which has ended. Raises ``HarnessError``.
        """
        # Under the lock: of two writes at once the older list could land last.
        async with self._writing:
            processes = self._owned.processes | {node: identity}
            self._owned = msgspec.structs.replace(self._owned, processes=processes)
            await asyncio.to_thread(_write, self._path, self._owned)

    async def keep(self) -> None:
        """Return once it is durable that the processes are left running on purpose. Raises
        ``HarnessError``.
        """
        async with self._writing:
            self._owned = msgspec.structs.replace(self._owned, owner=None, kept=True)
            await asyncio.to_thread(_write, self._path, self._owned)

    async def close(self) -> None:
        """Nothing is owned any more. Idempotent."""
        async with self._writing:
            await asyncio.to_thread(forget, self._path.parent)


def read(state_dir: Path) -> OwnedProcesses | None:
    """The last list of a run; ``None`` where it owned nothing.

    Raises ``MalformedHistory`` for a file that is no such list.
    """
    path = state_dir / FILE
    try:
        return msgspec.json.decode(read_small(path, MAX_BYTES), type=OwnedProcesses)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MalformedHistory(str(path), "", f"it can't be read: {error.strerror}") from error
    # A list nested deeply enough exhausts the decoder's stack, and no run directory is trusted.
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedHistory(str(path), "", f"no list of processes: {error}") from error


def forget(state_dir: Path) -> None:
    """Remove the list: nothing is owned any more."""
    path = state_dir / FILE
    if path.exists():
        path.unlink()
        sync_directory(state_dir)


def _write(path: Path, owned: OwnedProcesses) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.encode(owned))
