"""A run as one file: a compressed tar of its files, their sums first, and the way back.

An archive may come from elsewhere: nothing in it is written before its name, type and size were
found to be what the list of sums says, and a run is in the store only once every sum is right.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import io
import itertools
import os
import re
import secrets
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from tarfile import AREGTYPE, BLOCKSIZE, RECORDSIZE, REGTYPE, ReadError
from typing import IO, Self

import msgspec

from harness.errors import FiredrillError, HarnessError, MalformedHistory, UsageError
from harness.history.directory_locks import lock_new_directory, locked
from harness.history.durable_files import WRONG_NAME, begin, disk_failure, publish
from harness.history.regular_files import open_or_refuse, open_regular
from harness.history.run_directory import RunDirectory, require_plain
from harness.text import key_twice
from results.store.store import RunStore, is_run_id

SUMS = "SHA256SUMS.json"
SUFFIX = ".run.tar.gz"
UNFINISHED = ".restoring"
MAX_SUMS_BYTES = 32 << 20
MAX_FILES = 100_000
MAX_NAME_CHARS = 255  # USTAR has no room for more
CHUNK_BYTES = 1 << 20
# Of a run's bytes to those of its archive: logs get ten times smaller, a column of zeros a thousand
# times. An archive that claims more than this would fill a disk for what it costs to send.
RATIO_MAX = 200
SMALL_BYTES = 64 << 20
ROOM_KEPT_BYTES = 256 << 20  # of the disk: a run at work needs some
LEVEL = 6  # of gzip: tables are compressed already, logs are what it is for
TRIES = 16  # new directories that a sweep of another process removed at once
_PART = re.compile(r"[^/\x00]{1,255}")
_LEFT_OUT = ("undo",)  # resources on the machine that made the run; a copy has none


class ArchivedFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of an archive."""

    size_bytes: int
    sha256: str


class _PlainFile(tarfile.TarInfo):
    """A header of a regular file. Of all others ``tarfile`` would read names of any length into
    memory, or follow one to the next, before anybody sees them.
    """

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Self:
        """See ``tarfile.TarInfo``. Raises ``tarfile.ReadError``."""
        # The whole of it, since what the library calls on the way differs between its releases.
        if (fileobj := tarfile.fileobj) is None:
            raise ReadError("a closed archive")
        found = cls.frombuf(
            fileobj.read(BLOCKSIZE), tarfile.encoding or "utf-8", tarfile.errors or "strict"
        )
        if found.type not in (REGTYPE, AREGTYPE):
            raise ReadError("something that is no regular file")
        found.offset_data = fileobj.tell()
        found.offset = found.offset_data - BLOCKSIZE
        tarfile.offset = found.offset_data + -(-found.size // BLOCKSIZE) * BLOCKSIZE
        return found


class _Sums(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    run: str
    files: dict[str, ArchivedFile]


def archive(run: RunDirectory, target: Path, *, held: bool = False) -> Path:
    """Write ``run`` into the new file ``target``, without what it holds of other machines, and
    without what is ``left_out``; the run stays. ``held``: within a block of ``alone``. Raises
    ``UsageError`` where the file exists, ``MalformedHistory`` for a directory with links,
    ``HarnessError`` where the disk refuses or the run changes meanwhile.
    """
    require_plain(run)
    if not is_run_id(run.root.name):
        raise UsageError(f"run {run.root}: its name is no identifier of a run")
    if target.exists() or target.is_symlink():
        raise UsageError(f"archive {target}: it exists")
    try:
        with contextlib.nullcontext() if held else alone(run):
            files = _named(run)
            sums = _Sums(run=run.root.name, files={name: _sum(files[name]) for name in files})
            unfinished = begin(target)
            try:
                _write(unfinished, sums, files)
                publish(unfinished, target)
            finally:
                unfinished.unlink(missing_ok=True)  # published, it has another name
    except OSError as error:
        raise disk_failure("write", target, error, "the run is not archived") from error
    except ValueError as error:
        reason = f"a name in it is too long for an archive, or a file too large: {error}"
        raise HarnessError(f"run {run.root}: {reason}") from error
    return target


@contextlib.contextmanager
def alone(run: RunDirectory) -> Iterator[None]:
    """Hold ``run`` as a judgement does. Raises ``UsageError`` where another process holds it."""
    with locked(run.root) as unheld:
        if not unheld:
            raise UsageError(f"run {run.root.name} can't be archived: another process works on it")
        yield


def _write(unfinished: Path, sums: _Sums, files: Mapping[str, Path]) -> None:
    # The oldest format: its names need no further headers, which no reader here takes.
    with tarfile.open(unfinished, "w:gz", compresslevel=LEVEL, format=tarfile.USTAR_FORMAT) as tar:
        head = msgspec.json.format(msgspec.json.encode(sums, order="sorted"), indent=1)
        _add(tar, f"{sums.run}/{SUMS}", io.BytesIO(head), len(head))
        for name, path in files.items():
            with open_regular(path) as stream:
                content = _Summing(stream)
                _add(tar, f"{sums.run}/{name}", content, sums.files[name].size_bytes)
            # No lock keeps a program of the user's from it: its sum would be of another content.
            if content.digest.hexdigest() != sums.files[name].sha256:
                raise HarnessError(f"{name}: it changed while it was archived")


class _Summing:
    """A stream that sums what is read of it."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self.digest = hashlib.sha256()

    def read(self, size_bytes: int = -1) -> bytes:
        """See ``io.BufferedIOBase``."""
        content = self._stream.read(size_bytes)
        self.digest.update(content)
        return content


def require_whole(source: Path) -> Mapping[str, ArchivedFile]:
    """Read the archive ``source`` to its end, and return its files by their names. Raises
    ``MalformedHistory`` where a sum is wrong.
    """
    with open_or_refuse(source) as raw, _reading(source), _opened(raw) as tar:
        sums = _read_sums(tar, source)
        _read(tar, sums, None, source)
    return sums.files


def require_all_of(source: Path, run: RunDirectory) -> None:
    """Require that the whole archive ``source`` holds all that is in ``run``, as it is now. Raises
    ``MalformedHistory`` where a sum is wrong, ``HarnessError`` where the run has changed.
    """
    there = require_whole(source)
    try:
        now = {name: _sum(path) for name, path in _named(run).items()}
    except OSError as error:
        raise disk_failure("read", run.root, error, "the run is archived and stays") from error
    changed = [name for name in now.keys() | there.keys() if now.get(name) != there.get(name)]
    if changed := [*changed, *left_out(run)]:
        reason = f"{min(changed)[:80]!r} changed while it was archived"
        raise HarnessError(f"run {run.root.name} is archived and stays: {reason}")


def archived_run(source: Path) -> str:
    """Return the identifier of the run in the archive ``source``, by the list of its sums. Raises
    ``MalformedHistory``.
    """
    with open_or_refuse(source) as raw, _reading(source), _opened(raw) as tar:
        return _read_sums(tar, source).run


def require_same(source: Path, run: RunDirectory) -> None:
    """Require that ``run`` is the one in the archive ``source``: their manifests, which sum all
    that a verdict rests on, are equal. Raises ``MalformedHistory``.
    """
    with open_or_refuse(source) as raw, _reading(source), _opened(raw) as tar:
        archived = _read_sums(tar, source).files.get(run.manifest.name)
    if archived is None:
        raise _malformed(source, f"expected a {run.manifest.name}, found none")
    if archived != _sum(run.manifest):
        reason = f"expected the run in {run.root}, found another run of that name"
        raise _malformed(source, f"{reason}: their {run.manifest.name} differ")


def restore(source: Path, store: RunStore) -> RunDirectory:
    """Bring the run of the archive ``source`` back into ``store``. Raises ``MalformedHistory`` for
    what is no whole archive, ``UsageError`` where the store has the run, and ``HarnessError``.
    """
    try:
        with open_or_refuse(source) as raw, _reading(source), _opened(raw) as tar:
            sums = _read_sums(tar, source)
            root = store.root / sums.run
            if root.exists() or root.is_symlink():
                raise _there_already(sums.run, store)
            _require_room(store, sums, source)
            with _new_directory(store, sums.run) as unfinished:
                _read(tar, sums, unfinished, source)
                require_plain(RunDirectory(unfinished))
                _rename(unfinished, root, sums.run, store)
        return RunDirectory(root)
    except OSError as error:
        raise disk_failure("write", store.root, error, "the run is not restored") from error


def left_out(run: RunDirectory) -> tuple[str, ...]:
    """Return the names of the links and special files of ``run``, in their order, which no archive
    holds. Raises ``HarnessError`` where a directory can't be read.
    """
    try:
        return tuple(
            str(path.relative_to(run.root)) for path, regular in _below(run.root) if not regular
        )
    except OSError as error:
        raise disk_failure("read", run.root, error, "the run is not archived") from error


def _named(run: RunDirectory) -> dict[str, Path]:
    """The files of ``run`` by their names in an archive."""
    return {str(path.relative_to(run.root)): path for path in _files(run.root)}


def _files(root: Path) -> Iterator[Path]:
    """The regular files below ``root`` in the order of their names; links and special files stay
    behind: no reader of a run opens them.
    """
    return (path for path, regular in _below(root) if regular)


def _below(root: Path) -> Iterator[tuple[Path, bool]]:
    """Yield everything below ``root`` but directories, and whether it is a regular file."""
    for directory, names, files in os.walk(root, onerror=_refuse):
        if Path(directory) == root:
            names[:] = [name for name in names if name not in _LEFT_OUT]
        names.sort()
        # Of a directory's names those that are links to directories stand among the directories.
        links = [name for name in names if Path(directory, name).is_symlink()]
        for path in (Path(directory, name) for name in sorted([*files, *links])):
            yield path, path.is_file() and not path.is_symlink()


def _refuse(error: OSError) -> None:
    raise error


def _sum(path: Path) -> ArchivedFile:
    digest, size_bytes = hashlib.sha256(), 0
    with open_or_refuse(path) as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
            size_bytes += len(chunk)
    return ArchivedFile(size_bytes=size_bytes, sha256=digest.hexdigest())


def _add(tar: tarfile.TarFile, name: str, stream: _Summing | IO[bytes], size_bytes: int) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = size_bytes, 0o644
    try:
        tar.addfile(member, stream)
    except OSError as error:
        if str(error) == "unexpected end of data":
            raise HarnessError(f"{name}: it became shorter while it was archived") from error
        raise


def _opened(raw: IO[bytes]) -> tarfile.TarFile:
    # A stream: nothing is sought. Python's own of gzip looks at no sum of the whole.
    unpacked = gzip.GzipFile(fileobj=raw)
    return tarfile.open(fileobj=unpacked, mode="r|", tarinfo=_PlainFile)


@contextlib.contextmanager
def _reading(source: Path) -> Iterator[None]:
    try:
        yield
    except FiredrillError:
        raise
    except (
        tarfile.TarError,
        zlib.error,
        gzip.BadGzipFile,
        EOFError,
        ValueError,
        RecursionError,
    ) as error:
        raise _malformed(source, f"expected an archive of a run, found {error}") from error


def _malformed(source: Path, reason: str) -> MalformedHistory:
    return MalformedHistory(str(source), "", reason)


def _read_sums(tar: tarfile.TarFile, source: Path) -> _Sums:
    member = tar.next()
    if member is None or not member.isreg() or not member.name.endswith(f"/{SUMS}"):
        raise _malformed(source, f"expected {SUMS} as its first file")
    if member.size > MAX_SUMS_BYTES:
        raise _malformed(source, f"expected at most {MAX_SUMS_BYTES} bytes of {SUMS}")
    content = tar.extractfile(member)
    text = content.read() if content else b""
    try:
        sums, twice = msgspec.json.decode(text, type=_Sums), key_twice(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise _malformed(source, f"expected a list of sums, found {error}") from error
    if twice:
        raise _malformed(source, f"expected each name once in {SUMS}, found {twice[:80]!r} twice")
    if member.name != f"{sums.run}/{SUMS}" or not is_run_id(sums.run):
        raise _malformed(source, f"expected the identifier of a run, found {sums.run[:80]!r}")
    if len(sums.files) > MAX_FILES:
        raise _malformed(source, f"expected at most {MAX_FILES} files, found {len(sums.files)}")
    for name, file in sums.files.items():
        # First: the beginnings of a name of many parts take the square of its length.
        if len(name) > MAX_NAME_CHARS:
            reason = f"expected names of at most {MAX_NAME_CHARS} characters"
            raise _malformed(source, f"{reason}, found {len(name)}: {name[:80]!r}")
        parts = name.split("/")
        plain = all(_PART.fullmatch(part) and part not in (".", "..") for part in parts)
        if not plain or file.size_bytes < 0 or parts[0] in _LEFT_OUT:
            raise _malformed(source, f"expected names of files below the run, found {name[:80]!r}")
        for parent in itertools.accumulate(parts[:-1], "{}/{}".format):
            if parent in sums.files:
                raise _malformed(
                    source, f"expected a file or a directory, both are {parent[:80]!r}"
                )
    claimed = sum(file.size_bytes for file in sums.files.values())
    most = max(SMALL_BYTES, RATIO_MAX * source.stat().st_size)
    if claimed > most:
        reason = f"expected at most {most:,} bytes in an archive of its size, found {claimed:,}"
        raise _malformed(source, reason)
    return sums


def _require_room(store: RunStore, sums: _Sums, source: Path) -> None:
    needed = sum(file.size_bytes for file in sums.files.values())
    place = next(p for p in (store.root, *store.root.resolve().parents) if p.is_dir())
    free = shutil.disk_usage(place).free
    if needed + ROOM_KEPT_BYTES > free:
        kept = f"of which {ROOM_KEPT_BYTES:,} stay free"
        raise HarnessError(
            f"archive {source}: it needs {needed:,} bytes, and {free:,} are free, {kept}"
        )


@contextlib.contextmanager
def _new_directory(store: RunStore, run: str) -> Iterator[Path]:
    """Make a directory of ``store`` for the files of ``run``, held within the block, and removed
    after it where it has not got another name. Raises ``HarnessError`` and ``OSError``.
    """
    store.root.mkdir(parents=True, exist_ok=True)
    for left in store.root.glob(f".{run}.*{UNFINISHED}"):
        # Held as long as the process lives that makes it; another sweep may have removed it.
        with contextlib.suppress(FileNotFoundError), locked(left) as unheld:
            if unheld:
                shutil.rmtree(left, ignore_errors=True)
    for _ in range(TRIES):
        # No identifier: no listing shows it. As readable as any directory of this user (its umask).
        path = store.root / f".{run}.{secrets.token_hex(8)}{UNFINISHED}"
        path.mkdir()
        if (lock := lock_new_directory(path, shared=False)) is not None:
            break
    else:
        raise HarnessError(f"run store {store.root}: {TRIES} new directories were removed at once")
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _rename(unfinished: Path, root: Path, run: str, store: RunStore) -> None:
    try:
        os.rename(unfinished, root)
    except OSError as error:
        # Another process brought the run back while this one read its archive.
        if error.errno in WRONG_NAME:
            raise _there_already(run, store) from error
        raise


def _there_already(run: str, store: RunStore) -> UsageError:
    return UsageError(f"run {run} is in {store.root}: remove it first")


def _read(tar: tarfile.TarFile, sums: _Sums, root: Path | None, source: Path) -> None:
    """Read all files of ``sums``, and write them below ``root``, where that is not ``None``."""
    missing = dict(sums.files)
    while (member := tar.next()) is not None:
        name = member.name.removeprefix(f"{sums.run}/")
        told = missing.pop(name, None)
        if told is None or not member.isreg() or member.size != told.size_bytes:
            raise _malformed(source, f"expected the files of its sums, found {member.name[:80]!r}")
        content = tar.extractfile(member)
        digest = hashlib.sha256()
        with contextlib.ExitStack() as stack:
            target = None
            if root is not None:
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                target = stack.enter_context(path.open("xb"))
            while content is not None and (chunk := content.read(CHUNK_BYTES)):
                digest.update(chunk)
                if target is not None:
                    target.write(chunk)
        if digest.hexdigest() != told.sha256:
            raise _malformed(source, f"{name[:80]!r} is not what its sum says")
    # Zeros fill the last record; a stream of them costs its reader a thousand times its size.
    rest = b"" if tar.fileobj is None else tar.fileobj.read(RECORDSIZE + 1)
    if len(rest) > RECORDSIZE or rest.strip(b"\0"):
        reason = f"expected at most {RECORDSIZE:,} zeros behind its last file, found more"
        raise _malformed(source, reason)
    if missing:
        raise _malformed(source, f"{len(missing)} files are missing, {min(missing)[:80]!r} first")
