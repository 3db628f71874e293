"""The undo journal: the nemesis records a fault on the disk before it injects the fault.

A controller that dies leaves its faults in force. They end with the machines, which a clean-up
removes, so an entry serves a person, and machines that outlive a run; it goes away only once the
heal of its fault is proven.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import msgspec

from harness.errors import HarnessError, MalformedHistory
from harness.history.files import read_small, sync_directory, write_atomically
from harness.protocols.cluster import Grudge, LinkShape

MAX_BYTES = 1 << 20
"""Of one intent: a grudge of 64 nodes against each other is a tenth of it."""

_INTENT = re.compile(r"fault-\d{6,}\.json")


class Intent(msgspec.Struct, frozen=True, kw_only=True):
    """A fault that was about to be injected: enough to undo it without the plan."""

    fault: int
    kind: str
    target: str
    nodes: tuple[str, ...]
    grudge: Grudge
    shapes: tuple[LinkShape, ...] = ()
    at_ns: int


class Journal(Protocol):
    """Where intents are kept. Both verbs raise ``HarnessError``."""

    async def intend(self, intent: Intent) -> None:
        """Return once ``intent`` is durable."""

    async def clear(self, fault: int) -> None:
        """Forget the intent of ``fault``, if there is one; durable on return."""


class FileJournal:
    """One file a fault in a run's ``undo`` directory, made durable on a thread of its own.

    One thread, not a pool: calls take effect in the order they were made, even where the caller
    was cancelled while one was under way.
    """

    def __init__(self, directory: Path) -> None:
        """``directory`` is made with the first intent."""
        self._directory = directory
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="undo-journal")

    async def intend(self, intent: Intent) -> None:
        """Write and sync the file of ``intent``, and its name."""
        await self._later(lambda: _keep(self._directory, intent))

    async def clear(self, fault: int) -> None:
        """Remove the file of ``fault``."""
        await self._later(lambda: _forget(self._directory, fault))

    async def _later(self, work: Callable[[], None]) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, work)


class MemoryJournal:
    """A journal for clusters that end with the process that made them: simulations, tests."""

    def __init__(self) -> None:
        self.intents: dict[int, Intent] = {}

    async def intend(self, intent: Intent) -> None:
        """Remember ``intent``."""
        self.intents[intent.fault] = intent

    async def clear(self, fault: int) -> None:
        """Forget it."""
        self.intents.pop(fault, None)


def pending(directory: Path) -> tuple[Intent, ...]:
    """The intents in a run's ``undo`` directory that were not cleared, by fault.

    Raises ``MalformedHistory`` for a file that is no intent.
    """
    return tuple(_read(path) for path in sorted(directory.glob("fault-*.json")))


def forget_all(directory: Path) -> None:
    """Remove every intent from a run's ``undo`` directory: nothing is left to undo. Follows no
    link: the directory may have come from elsewhere. Raises ``HarnessError``.
    """
    try:
        handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # none was ever made
        return
    try:
        for name in os.listdir(handle):
            if _INTENT.fullmatch(name):
                os.unlink(name, dir_fd=handle)
    except OSError as error:
        raise HarnessError(f"cannot clear {directory}: {error.strerror}") from error
    finally:
        os.close(handle)


def _read(path: Path) -> Intent:
    try:
        return msgspec.json.decode(read_small(path, MAX_BYTES), type=Intent)
    except (msgspec.MsgspecError, OSError, RecursionError) as error:
        raise MalformedHistory(str(path), "", f"no intent of a fault: {error}") from error


def _path(directory: Path, fault: int) -> Path:
    return directory / f"fault-{fault:06}.json"


def _keep(directory: Path, intent: Intent) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HarnessError(f"cannot make {directory}: {error.strerror}") from error
    write_atomically(_path(directory, intent.fault), msgspec.json.encode(intent))


def _forget(directory: Path, fault: int) -> None:
    path = _path(directory, fault)
    try:
        path.unlink(missing_ok=True)
        if directory.exists():
            sync_directory(directory)
    except OSError as error:
        raise HarnessError(f"cannot clear {path}: {error.strerror}") from error
