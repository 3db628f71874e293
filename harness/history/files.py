"""How every file of a run directory is opened, summed and written.

A run directory may come from an untrusted sender, so the type behind a name is unknown. Readers
open only regular files and no links: a link leads out of the directory, a FIFO never ends, a device
acts. Writers create a file beside the final name, with ``O_EXCL``, and rename it once it is whole:
no existing file is written into. Directories on the way are checked by
``harness.run.directory.require_plain``, which readers of a run call first.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from io import DEFAULT_BUFFER_SIZE, BufferedReader, FileIO
from pathlib import Path

import attrs

from harness.errors import HarnessError, MalformedHistory, NotStored
from harness.history.directory_locks import locked_within

# The ending of names that readers ignore: a file on its way.
PARTIAL = ".partial"

OUT_OF_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT})
# No writer of ours leaves a hole. One of terabytes costs its sender nothing, and its reader hours.
HOLES_MAX_BYTES = 64 << 20

ALONE_WITHIN_S = 60.0  # a few files of megabytes, synced on a disk that others keep busy
READ_ONLY = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})
# What bears the name can't be replaced by a file: room has nothing to do with it.
WRONG_NAME = frozenset({errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.EEXIST, errno.ELOOP})


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


def sha256(path: Path) -> str:
    """The SHA-256 of a regular file, in hexadecimal. Raises ``OSError`` as ``regular`` does."""
    return sha256_of(path)[0]


def sha256_of(path: Path) -> tuple[str, FileStamp]:
    """As ``sha256``, and the stamp of the file that was read."""
    with open_regular(path) as stream:
        found = FileStamp.of(os.fstat(stream.fileno()))  # before: a later write shows
        return hashlib.file_digest(stream, "sha256").hexdigest(), found
