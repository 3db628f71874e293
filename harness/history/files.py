"""Files that are either wholly there or not at all, and the lock of a history being written."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from harness.errors import HarnessError

PARTIAL = ".partial"
"""The ending of names that readers ignore: a file on its way."""

OUT_OF_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})


def disk_failure(action: str, path: Path, error: OSError, missing: str) -> HarnessError:
    """The sentence for an ``OSError`` on ``path``: what failed, why, what is missing, what is
    free.
    """
    reason = os.strerror(error.errno) if error.errno else str(error)
    return HarnessError(f"cannot {action} {path}: {reason}: {missing}{_free(path)}")


def _free(path: Path) -> str:
    for place in (path, *path.parents):
        with contextlib.suppress(OSError):
            found = os.statvfs(place)
            return f" ({found.f_bavail * found.f_frsize} bytes are free there)"
    return ""


def sync_directory(directory: Path) -> None:
    """Make the names in ``directory`` durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def partial(path: Path) -> Path:
    """The name under which ``path`` is written before it is whole."""
    return path.with_name(f".{path.name}{PARTIAL}")


def publish(path: Path) -> None:
    """Give the finished ``partial(path)`` its name: contents first, then the name, both
    durable.
    """
    unfinished = partial(path)
    handle = os.open(unfinished, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
    unfinished.replace(path)
    sync_directory(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content``, or leave it as it was. Raises ``HarnessError``."""
    unfinished = partial(path)
    try:
        unfinished.write_bytes(content)
        publish(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise disk_failure("write", path, error, f"{len(content)} bytes are missing") from error


def remove_partials(directory: Path) -> None:
    """Forget what a writer that died left unfinished."""
    for path in sorted(directory.glob(f".*{PARTIAL}")):
        path.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def lock_directory(directory: Path, *, shared: bool) -> int | None:
    """A descriptor that locks ``directory`` until it is closed or its process dies.

    ``None`` where somebody else holds the lock. Many may hold it shared, one alone otherwise.
    """
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    mode = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(handle, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    except OSError:
        os.close(handle)
        raise
    return handle


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[bool]:
    """Hold ``directory`` alone; yields whether that was possible."""
    handle = lock_directory(directory, shared=False)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)
