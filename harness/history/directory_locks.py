"""Locks of directories: the kernel's, which end with the last process that has their descriptor."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from harness.clock import machine_s, pause
from harness.errors import DeadlineExceeded

# Some network file systems.
NO_LOCKS = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})
LOOK_EVERY_S = 0.01


def lock_directory(directory: Path, *, shared: bool) -> int | None:
    """A descriptor that locks ``directory`` until it is closed or its process dies.

    ``None`` where another process holds the lock. Several processes may hold it shared; otherwise
    only one holds it.
    """
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        # Not a lock of POSIX: that needs a handle for writing, which no directory has, and is lost
        # when any handle of the file is closed.
        fcntl.flock(handle, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError:
        os.close(handle)
        raise
    return handle


def lock_new_directory(directory: Path, *, shared: bool) -> int | None:
    """As ``lock_directory``, for a directory that this process has just made: between the two a
    sweep may have come, which holds what it finds unheld, and removes it. ``None`` where it is held
    or gone. Raises ``OSError``.
    """
    with contextlib.suppress(FileNotFoundError):
        handle = lock_directory(directory, shared=shared)
        if handle is not None and is_open_as(directory, handle):
            return handle
        if handle is not None:
            os.close(handle)
    return None


def is_open_as(path: Path, handle: int) -> bool:
    """Whether ``path`` still names what ``handle`` has open."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(handle))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[bool]:
    """Hold ``directory`` alone; yields whether that was possible."""
    handle = lock_directory(directory, shared=False)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)


def locked_within(directory: Path, limit_s: float) -> int | None:
    """``lock_directory`` for this process alone, once it can be had; ``None`` on a file system that
    has no locks.
    """
    ends_s = machine_s() + limit_s
    while True:
        try:
            handle = lock_directory(directory, shared=False)
        except OSError as error:
            if error.errno in NO_LOCKS:
                return None
            raise
        if handle is not None:
            return handle
        if machine_s() >= ends_s:
            raise DeadlineExceeded(f"another writer in {directory}", limit_s)
        pause(LOOK_EVERY_S)
