"""The list of processes that a run owns: on the disk before any of them does anything."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec

from clusters.providers.process.procfs import Identity, find, look, machine_boot
from harness.errors import MalformedHistory
from harness.history.files import read_small, sync_directory, write_atomically
from harness.rundir import directory_mark

FILE = "processes.json"
MAX_BYTES = 1 << 20  # some hundred bytes a node


class Owned(msgspec.Struct, frozen=True, kw_only=True):
    """``processes.json``: who was started for the run, by node. ``boot`` is the machine's.

    ``owner`` is the controller; ``kept`` says that it left all this running on purpose.
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
        self._owned = Owned(
            run_id=run_id, boot=machine_boot(), owner=here.identity if here else None
        )
        self._writing = asyncio.Lock()

    def mark(self) -> str:
        """What processes of the run carry, also where its directory is gone by now. Raises
        ``OSError`` where it can't be made.
        """
        if not self._mark:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._mark = directory_mark(self._path.parent.parent)
        return self._mark

    async def own(self, node: str, identity: Identity) -> None:
        """Return once it is durable that ``identity`` is the run's. Takes the place of the node's
        process before, which has ended. Raises ``HarnessError``.
        """
        async with self._writing:
            processes = self._owned.processes | {node: identity}
            self._owned = msgspec.structs.replace(self._owned, processes=processes)
            await asyncio.to_thread(_write, self._path, self._owned)

    async def keep(self) -> None:
        """Return once it is durable that what runs is left on purpose. Raises ``HarnessError``."""
        async with self._writing:
            self._owned = msgspec.structs.replace(self._owned, owner=None, kept=True)
            await asyncio.to_thread(_write, self._path, self._owned)

    async def close(self) -> None:
        """Nothing is owned any more. Idempotent."""
        async with self._writing:
            await asyncio.to_thread(forget, self._path.parent)


def read(state_dir: Path) -> Owned | None:
    """What a run owned when it was last heard of; ``None`` where it owned nothing.

    Raises ``MalformedHistory`` for a file that says something else.
    """
    path = state_dir / FILE
    try:
        return msgspec.json.decode(read_small(path, MAX_BYTES), type=Owned)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise MalformedHistory(str(path), "", f"it can't be read: {error.strerror}") from error
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise MalformedHistory(str(path), "", f"no list of processes: {error}") from error


def forget(state_dir: Path) -> None:
    """Remove the list: nothing is owned any more."""
    path = state_dir / FILE
    if path.exists():
        path.unlink()
        sync_directory(state_dir)


def _write(path: Path, owned: Owned) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.encode(owned))
