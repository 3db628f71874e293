"""How every file of a run directory is written: whole or not at all, durable, and where the disk
refuses with a sentence about that.

Writers create a file beside the final name, with ``O_EXCL``, and rename it once it is whole: no
existing file is written into.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from harness.errors import HarnessError, NotStored
from harness.history.directory_locks import locked_within
from harness.history.regular_files import is_regular, open_regular

# The ending of names that readers ignore: a file on its way.
PARTIAL = ".partial"

ALONE_WITHIN_S = 60.0  # a few files of megabytes, synced on a disk that others keep busy

OUT_OF_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
# What bears the name can't be replaced by a file: room has nothing to do with it.
WRONG_NAME = frozenset({errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST, errno.ELOOP})


def begin(path: Path) -> Path:
    """A new empty file beside ``path``, under a random name that readers ignore, to be written and
    then renamed to ``path`` by ``publish``. Raises ``OSError``.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        # Not mkstemp: the file is as readable as any file of this user (its umask).
        name = tempfile.mktemp(prefix=f".{path.name}.", suffix=PARTIAL, dir=path.parent)  # noqa: S306
        with contextlib.suppress(FileExistsError):
            os.close(os.open(name, flags, 0o666))
            return Path(name)


def publish(unfinished: Path, path: Path) -> None:
    """Rename the finished file of ``begin(path)`` to ``path``: contents first, then the name, both
    durable. Raises ``OSError``.
    """
    sync_file(unfinished)
    unfinished.replace(path)
    sync_directory(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content``, or leave it as it was. Raises ``HarnessError``."""
    with _writing(path, content):
        _write(path, content)


def write_held(path: Path, content: bytes) -> None:
    """As ``write_atomically``, into a directory that is made where there is none, and that is no
    link at any moment.
    """
    with _writing(path, content), held(path.parent, make=True) as directory:
        _write(directory / path.name, content)


@contextlib.contextmanager
def held(directory: Path, *, make: bool = False) -> Iterator[Path]:
    """``directory`` (``make``: made where there is none) by a name that leads to it until the block
    ends, also where its own is given to another one or to a link. Raises ``OSError`` for a link.
    """
    if make:
        with contextlib.suppress(FileExistsError):
            directory.mkdir()
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{handle}")
    finally:
        os.close(handle)


@contextlib.contextmanager
def alone_in(path: Path, content: bytes) -> Iterator[None]:
    """Keep other writers of ``path`` out for the block, which writes ``content`` and takes a few
    writes at most; its directory is made where there is none. Raises ``HarnessError`` where the
    disk refuses, or another writer takes longer than ``ALONE_WITHIN_S``.
    """
    with _writing(path, content):
        with contextlib.suppress(FileExistsError):
            path.parent.mkdir()
        handle = locked_within(path.parent, ALONE_WITHIN_S)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


@contextlib.contextmanager
def _writing(path: Path, content: bytes) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        missing = "" if error.errno in WRONG_NAME else f"{len(content)} bytes are missing"
        raise disk_failure("write", path, error, missing) from error


def _write(path: Path, content: bytes) -> None:
    unfinished = begin(path)
    try:
        unfinished.write_bytes(content)
        publish(unfinished, path)
    except OSError:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


def append_plain(path: Path, content: bytes) -> None:
    """Append ``content`` to the regular file ``path``, which is made where there is none. Raises
    ``OSError``, also for a link and for any other kind of file.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with held(path.parent) as directory:
        handle = os.open(directory / path.name, flags, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "expected a regular file", str(path))
        os.write(handle, content)
    finally:
        os.close(handle)


def copy_files(source: Path, target: Path) -> None:
    """Copy the regular files below the directory ``source`` into the new directory ``target``; no
    link is followed. Raises ``HarnessError``.
    """
    try:
        for directory, _, names in os.walk(source):
            copied = target / Path(directory).relative_to(source)
            copied.mkdir(parents=True)
            for name in names:
                path = Path(directory) / name
                if is_regular(path):
                    with open_regular(path) as content, (copied / name).open("xb") as copy:
                        shutil.copyfileobj(content, copy, 1 << 20)
    except OSError as error:
        raise disk_failure("copy", source, error, "the copy is incomplete") from error


def remove_partials(directory: Path) -> None:
    """Remove the unfinished files of a writer that died."""
    for path in sorted(directory.glob(f".*{PARTIAL}")):
        with contextlib.suppress(OSError):
            path.unlink()


def sync_file(path: Path) -> None:
    """Make the contents of a regular file durable. Raises ``OSError`` as ``regular`` does."""
    with open_regular(path) as stream:
        # A handle for reading will do: what is synced is the file, with what any handle wrote.
        os.fsync(stream.fileno())


def sync_directory(directory: Path) -> None:
    """Make the names in ``directory`` durable."""
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def disk_failure(action: str, path: Path, error: OSError, missing: str) -> HarnessError:
    """The sentence for an ``OSError`` on ``path``: the action, the reason, what is ``missing``, and
    the free space where room may be the reason.
    """
    reason = error.strerror or str(error)
    if error.errno in READ_ONLY:
        return NotStored(f"cannot {action} {path}: {reason}")
    if error.errno in OUT_OF_ROOM:
        return NotStored(f"cannot {action} {path}: {reason}: {missing}{_free(path)}")
    if error.errno in WRONG_NAME:
        return HarnessError(f"cannot {action} {path}: {reason}{f': {missing}' if missing else ''}")
    return HarnessError(f"cannot {action} {path}: {reason}: {missing}{_free(path)}")


def _free(path: Path) -> str:
    for place in (path, *path.parents):
        with contextlib.suppress(OSError):
            found = os.statvfs(place)
            return f" ({found.f_bavail * found.f_frsize} bytes are free there)"
    return ""
