"""How every file of a run directory is opened and summed.

A run directory may come from an untrusted sender, so the type behind a name is unknown. Readers
open only regular files and no links: a link leads out of the directory, a FIFO never ends, a device
acts. Directories on the way are checked by ``run_directory.require_plain``, which readers of a run
call first.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from io import DEFAULT_BUFFER_SIZE, BufferedReader, FileIO
from pathlib import Path

import attrs

from harness.errors import MalformedHistory

# No writer of ours leaves a hole. One of terabytes costs its sender nothing, and its reader hours.
HOLES_MAX_BYTES = 64 << 20


def what_it_is(mode: int) -> str:
    """A file's type in words, from its ``st_mode``; empty for a regular file or a directory."""
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "" if stat.S_ISREG(mode) or stat.S_ISDIR(mode) else "a device"


@attrs.frozen(kw_only=True)
class FileStamp:
    """Which file a name led to, and which state of it: another file, and one that was written into
    later, has another. No time of the inode's own, which a hard link made elsewhere changes.
    """

    device: int
    inode: int
    size_bytes: int
    modified_ns: int

    @classmethod
    def of(cls, found: os.stat_result) -> FileStamp:
        """The stamp of the file that was found so."""
        return cls(
            device=found.st_dev,
            inode=found.st_ino,
            size_bytes=found.st_size,
            modified_ns=found.st_mtime_ns,
        )


def stamp(path: Path) -> FileStamp | None:
    """The stamp of the file ``path``, of a link its own; ``None`` where there is none."""
    try:
        return FileStamp.of(os.lstat(path))
    except OSError:
        return None


def is_regular(path: Path) -> bool:
    """Whether ``path`` is a regular file, and no link to one."""
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def regular(path: Path) -> Path:
    """``path``, if it is a regular file: for readers that open by name.

    Raises ``OSError``, whose ``strerror`` is the rest of a sentence about the file.
    """
    mode = os.lstat(path).st_mode
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if found := what_it_is(mode):
        raise OSError(errno.EINVAL, f"it is {found}, expected a regular file", str(path))
    return path


def open_regular(path: Path, buffer_bytes: int = DEFAULT_BUFFER_SIZE) -> BufferedReader:
    """The regular file ``path``, open for reading. Raises ``OSError`` as ``regular`` does, and for
    a file that is a hole for the most part.
    """
    regular(path)  # before it is opened, since that alone makes some devices act
    # The name may have become another file since: a link is refused, a FIFO not waited for, a
    # terminal not made this process's own.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    handle = os.open(path, flags)
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it became another file while it was opened", str(path))
        if found.st_size > HOLES_MAX_BYTES:
            _require_no_hole(handle, path, found.st_size)
        return BufferedReader(FileIO(handle), buffer_bytes)
    except BaseException:
        os.close(handle)
        raise


def open_or_refuse(path: Path) -> BufferedReader:
    """``open_regular``, but raises ``MalformedHistory`` for a file that can't be read."""
    try:
        return open_regular(path)
    except OSError as error:
        reason = f"it can't be read: {error.strerror}"
        raise MalformedHistory(str(path), "", reason) from error


def _require_no_hole(handle: int, path: Path, size_bytes: int) -> None:
    """Raises ``OSError`` where holes make up more of the file than its data and
    ``HOLES_MAX_BYTES``. File systems that know of no holes call everything data.
    """
    data_bytes, place = 0, 0
    while place < size_bytes:
        try:
            begin_of_data = os.lseek(handle, place, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # a hole up to the end
        place = os.lseek(handle, begin_of_data, os.SEEK_HOLE)
        data_bytes += place - begin_of_data
    os.lseek(handle, 0, os.SEEK_SET)  # where its reader begins
    if size_bytes - data_bytes > max(data_bytes, HOLES_MAX_BYTES):
        reason = f"it is a hole, of {size_bytes} bytes only {data_bytes} were written"
        raise OSError(errno.EFBIG, reason, str(path))


def read_small(path: Path, limit_bytes: int) -> bytes:
    """The content of the regular file ``path``. Raises ``OSError`` as ``regular`` does, and for a
    file of more than ``limit_bytes``, of which no more than that is read.
    """
    with open_regular(path) as stream:
        content = stream.read(limit_bytes + 1)
    if len(content) > limit_bytes:
        raise OSError(errno.EFBIG, f"expected at most {limit_bytes} bytes, found more", str(path))
    return content


def sha256(path: Path) -> str:
    """The SHA-256 of a regular file, in hexadecimal. Raises ``OSError`` as ``regular`` does."""
    return sha256_of(path)[0]


def sha256_of(path: Path) -> tuple[str, FileStamp]:
    """As ``sha256``, and the stamp of the file that was read."""
    with open_regular(path) as stream:
        found = FileStamp.of(os.fstat(stream.fileno()))  # before: a later write shows
        return hashlib.file_digest(stream, "sha256").hexdigest(), found
