"""The files that a verdict may rest on, those that the manifest has checksums for: tables and side
files whole, logs of nodes up to the sealed byte.

A verdict uses no other file. A file that differs from its checksum is reported as damage, never
treated as absent; a missing log is reported, and its node's silence proves nothing; a file without
a checksum is not read. Names in a manifest are matched against the entries of the run's directory
or against a closed form: they never lead out of it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import attrs
import msgspec

from harness.errors import MalformedHistory
from harness.history import durable_files, record_frames, regular_files
from harness.history.regular_files import FileStamp
from harness.history.run_directory import EXPLAINING, LogSum, Manifest, RunDirectory
from harness.protocols.cluster import NODE_LOG_BYTES
from harness.text import inert

LOGS_PATTERN = "*.log"
CHUNKS_PATTERN = "*.chunk"
_BLOCK_BYTES = 1 << 20
_NAMED_MAX = 20  # files that the manifest does not name, in sentences
_NAME_CHARS = 100  # of each log that is missing
_CHANGED = "it was changed or exchanged while the run was judged: judge it again"
# No part may begin with a dot: neither ``..``, which leads out, nor a file that is unfinished.
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*(/[A-Za-z0-9_][A-Za-z0-9_.-]*)*")


@attrs.frozen(kw_only=True)
class NodeLog:
    """The readable part of a log: its first ``size_bytes``; later bytes were written after sealing.

    ``name`` is relative to the run directory; ``size_bytes`` is ``None`` where no checksum was
    made.
    """

    node: str
    name: str
    path: Path
    size_bytes: int | None


@attrs.frozen(kw_only=True)
class LogStamp:
    """The state of a log as its ``sealed`` bytes were summed."""

    file: FileStamp
    sealed: LogSum


@attrs.frozen(kw_only=True)
class NodeLogs:
    """The logs of a run. ``gone`` names logs that were sealed and are not there. ``missing``,
    ``incomplete``, ``unsealed`` and ``remarks`` are sentences: on these, on logs of which the
    beginning was not collected or the end is not read, on logs that the manifest does not name, and
    on bytes that were added later or have no checksum. ``stamps`` are those of ``files`` that have
    one.
    """

    files: tuple[NodeLog, ...] = ()
    gone: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    unsealed: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    stamps: Mapping[Path, LogStamp] = {}


def sizes(run: RunDirectory, names: Iterable[str]) -> dict[str, int]:
    """The sizes in bytes of the files ``names``, without those that are gone: what is not there
    differs from its checksum all the same. Raises ``OSError``.
    """
    paths = {name: run.root / name for name in names}
    return {
        name: path.stat().st_size for name, path in paths.items() if regular_files.is_regular(path)
    }


def require_checksums(run: RunDirectory, manifest: Manifest) -> dict[Path, FileStamp]:
    """The stamps of the files of ``manifest.checksums``, each with the bytes that were sealed.
    Raises ``MalformedHistory`` for the first that is missing or differs; for one of another size
    before any is read.
    """
    if not isinstance(manifest.sizes, msgspec.UnsetType):
        for name in sorted(manifest.checksums.keys() & manifest.sizes.keys()):
            _require_size(_inside(run, name), manifest.sizes[name])
    return {
        run.root / name: _require_named(run, manifest, name) for name in sorted(manifest.checksums)
    }


def require_unchanged(stamps: Mapping[Path, FileStamp | None]) -> None:
    """Raises ``MalformedHistory`` for a file that has another stamp than before it was read: what
    was made of it since may be of another run, or of no one.
    """
    for path, before in stamps.items():
        if regular_files.stamp(path) != before:
            raise MalformedHistory(str(path), "", _CHANGED)


def require_logs_unchanged(logs: NodeLogs) -> None:
    """As ``require_unchanged``, for the sealed part of each log: a node that was left up adds to
    it, which is no change.
    """
    for path, before in logs.stamps.items():
        now = regular_files.stamp(path)
        if now == before.file:
            continue
        if now is None or not _is_same_file(now, before.file):
            raise MalformedHistory(str(path), "", _CHANGED)
        try:
            found = _sum(path, before.sealed.size_bytes)
        except OSError as error:
            raise MalformedHistory(str(path), "", _CHANGED) from error
        if found != before.sealed:
            raise MalformedHistory(str(path), "", _CHANGED)


def _is_same_file(one: FileStamp, other: FileStamp) -> bool:
    return (one.device, one.inode) == (other.device, other.inode)


def damaged(run: RunDirectory, manifest: Manifest) -> tuple[str, ...]:
    """The names in ``manifest.checksums`` whose files are missing or differ."""
    found = []
    for name in sorted(manifest.checksums):
        try:
            _require_named(run, manifest, name)
        except MalformedHistory:
            found.append(name)
    return tuple(found)


def damaged_explanations(run: RunDirectory, manifest: Manifest) -> tuple[str, ...]:
    """One sentence for each file of ``manifest.explaining`` that is missing or differs. Raises
    ``MalformedHistory`` where it names a file that decides.
    """
    explaining = {} if isinstance(manifest.explaining, msgspec.UnsetType) else manifest.explaining
    found = []
    for name, checksum in sorted(explaining.items()):
        if name not in EXPLAINING:
            reason = f"expected of {', '.join(sorted(EXPLAINING))}, found {name!r:.80}"
            raise MalformedHistory(str(run.manifest), "explaining", reason)
        try:
            require_checksum(run.root / name, checksum)
        except MalformedHistory as error:
            found.append(f"{name} explains nothing here: {error.reason}")
    return _limited(found, "files explain nothing here")


def _require_named(run: RunDirectory, manifest: Manifest, name: str) -> FileStamp:
    return require_checksum(_inside(run, name), manifest.checksums[name])


def _inside(run: RunDirectory, name: str) -> Path:
    if not _NAME.fullmatch(name):
        reason = f"expected checksums of files in the run directory, found one of {name!r:.80}"
        raise MalformedHistory(str(run.manifest), "", reason)
    return run.root / name


def _require_size(path: Path, expected_bytes: int) -> None:
    with _readable(path, f"{expected_bytes} bytes"):
        found_bytes = regular_files.regular(path).stat().st_size
    if found_bytes != expected_bytes:
        reason = f"expected {expected_bytes} bytes, found {found_bytes}: it is not what was sealed"
        raise MalformedHistory(str(path), "", reason)


@contextlib.contextmanager
def _readable(path: Path, expected: str) -> Iterator[None]:
    """Say of ``path`` why it can't be read."""
    try:
        yield
    except FileNotFoundError as error:
        reason = f"expected a file of {expected}, found none"
        raise MalformedHistory(str(path), "", reason) from error
    except OSError as error:
        reason = f"it can't be read: {error.strerror}"
        raise MalformedHistory(str(path), "", reason) from error


def require_checksum(path: Path, expected: str) -> FileStamp:
    """The stamp of ``path``. Raises ``MalformedHistory`` where it is missing or has another
    SHA-256.
    """
    with _readable(path, f"SHA-256 {expected}"):
        found, stamp = regular_files.sha256_of(path)
    if found != expected:
        reason = f"expected SHA-256 {expected}, found {found}: it is not what was sealed"
        raise MalformedHistory(str(path), "", reason)
    return stamp


def sum_logs(run: RunDirectory) -> dict[str, LogSum]:
    """The sums of every collected log, by its name, once their contents and names are durable: a
    crash of the machine must not make them differ. Raises ``OSError``.
    """
    found = list(_present(run))
    for _, _, path in found:
        durable_files.sync_file(path)
    for directory in sorted({above for _, _, path in found for above in path.parents}):
        if directory == run.root or run.root in directory.parents:
            durable_files.sync_directory(directory)
    return {name: _sum(path, path.stat().st_size) for _, name, path in found}


def require_logs(run: RunDirectory, manifest: Manifest) -> NodeLogs:
    """The logs that may be read. Raises ``MalformedHistory`` for a log that differs from its sealed
    bytes.

    Runs of earlier versions have no checksums of logs: every present log may be read then.
    """
    present = {name: (node, path) for node, name, path in _present(run)}
    told = () if isinstance(manifest.log_remarks, msgspec.UnsetType) else manifest.log_remarks
    if isinstance(manifest.logs, msgspec.UnsetType):
        found = [
            NodeLog(node=node, name=name, path=path, size_bytes=None)
            for name, (node, path) in present.items()
        ]
        unsealed = "the logs of the nodes have no checksums: this run was recorded without them"
        return NodeLogs(files=tuple(found), remarks=(*told, unsealed) if found else told)
    kept: list[NodeLog] = []
    remarks = list(told)
    added: list[str] = []
    stamps: dict[Path, LogStamp] = {}
    for name, (node, path) in present.items():
        sealed = manifest.logs.get(name)
        if sealed is None:
            added.append(name)
            continue
        stamps[path] = LogStamp(file=_require_log(path, sealed), sealed=sealed)
        if stamps[path].file.size_bytes > sealed.size_bytes:
            remarks.append(
                f"{inert(name)} has grown since it was sealed: what was added was not read"
            )
        kept.append(NodeLog(node=node, name=name, path=path, size_bytes=sealed.size_bytes))
    gone = sorted(manifest.logs.keys() - present.keys())
    return NodeLogs(
        files=tuple(kept),
        gone=tuple(gone),
        missing=_limited(list(_missing(gone)), "nodes lack logs"),
        incomplete=_limited([*_without_beginning(manifest), *_beyond_limit(manifest)]),
        unsealed=_unnamed(added),
        remarks=tuple(remarks),
        stamps=stamps,
    )


def unnamed_tables(run: RunDirectory, manifest: Manifest) -> tuple[str, ...]:
    """One sentence for each file in the place of a table, or of a chunk of a stream, that the
    manifest does not name. Sealing leaves none: such a file was added later, or its entry is gone.
    """
    tables = {path.relative_to(run.root).as_posix() for path in _tables(run)}
    chunks = set[str]()
    if not isinstance(manifest.streams, msgspec.UnsetType):
        # A sealer that was killed leaves chunks of the run's own streams, which the tables hold.
        names = (path.name for path in run.chunks.glob(CHUNKS_PATTERN))
        placed = {name: record_frames.chunk_place(name) for name in names}
        foreign = (n for n, found in placed.items() if not found or found[0] >= manifest.streams)
        chunks = {(run.chunks / name).relative_to(run.root).as_posix() for name in foreign}
    named = set(manifest.checksums)
    if not isinstance(manifest.explaining, msgspec.UnsetType):
        named |= manifest.explaining.keys()
    return _unnamed(sorted((tables - named) | chunks))


def _tables(run: RunDirectory) -> Iterator[Path]:
    yield from run.root.glob("[!.]*.parquet")
    yield from run.history.glob("[!.]*")  # a dot begins the name of an unfinished file


def _unnamed(names: Sequence[str]) -> tuple[str, ...]:
    told = [f"{inert(name)} is not in the manifest, and was not read" for name in names]
    return _limited(told, "files are not in the manifest, and were not read")


def _without_beginning(manifest: Manifest) -> Iterator[str]:
    if not isinstance(manifest.logs_left_out, msgspec.UnsetType):
        for name, count in sorted(manifest.logs_left_out.items()):
            yield f"the first {count} bytes of {inert(name)} were not collected"


def _beyond_limit(manifest: Manifest) -> Iterator[str]:
    """Of a provider that collects more, or of a run that broke off before it collected."""
    if not isinstance(manifest.logs, msgspec.UnsetType):
        for name, log in sorted(manifest.logs.items()):
            if (count := log.size_bytes - NODE_LOG_BYTES) > 0:
                yield f"the last {count} bytes of {inert(name)} are not looked at"


def _limited(sentences: list[str], what: str = "logs are incomplete") -> tuple[str, ...]:
    more = len(sentences) - _NAMED_MAX
    return tuple(sentences[:_NAMED_MAX] + ([f"{more} more {what}"] if more > 0 else []))


def _present(run: RunDirectory) -> Iterator[tuple[str, str, Path]]:
    """(node, name, path) of every log, in the order of names."""
    parent = run.node("any").parent
    if not parent.is_dir():
        return
    for node in sorted(path for path in parent.iterdir() if path.is_dir()):
        for path in sorted(node.glob(LOGS_PATTERN)):
            if path.is_file() and not path.is_symlink():
                yield node.name, path.relative_to(run.root).as_posix(), path


def _require_log(path: Path, sealed: LogSum) -> FileStamp:
    """The stamp of ``path``, taken before its sealed bytes were summed: a later write shows."""
    try:
        with regular_files.open_regular(path) as stream:
            stamp = FileStamp.of(os.fstat(stream.fileno()))
            found = _sum_of(stream, sealed.size_bytes)
    except OSError as error:
        reason = f"it can't be read: {error.strerror}"
        raise MalformedHistory(str(path), "", reason) from error
    if found != sealed:
        reason = (
            f"expected {sealed.size_bytes} bytes of SHA-256 {sealed.sha256}, "
            f"found {found.size_bytes} of {found.sha256}: it is not what was sealed"
        )
        raise MalformedHistory(str(path), "", reason)
    return stamp


def _sum(path: Path, size_bytes: int) -> LogSum:
    """The checksum of the first ``size_bytes``, or of all bytes where there are fewer. A node that
    was left up goes on writing while its log is read.
    """
    with regular_files.open_regular(path) as stream:
        return _sum_of(stream, size_bytes)


def _sum_of(stream: BinaryIO, size_bytes: int) -> LogSum:
    digest, left = hashlib.sha256(), max(0, size_bytes)
    while left > 0 and (block := stream.read(min(left, _BLOCK_BYTES))):
        digest.update(block)
        left -= len(block)
    return LogSum(size_bytes=max(0, size_bytes) - left, sha256=digest.hexdigest())


def _missing(names: list[str]) -> Iterator[str]:
    """One sentence per node."""
    by_node: dict[str, list[str]] = {}
    for name in names:
        by_node.setdefault(name.removeprefix("nodes/").partition("/")[0], []).append(name)
    for node, gone in by_node.items():
        shown = [inert(name, _NAME_CHARS) for name in gone[:_NAMED_MAX]]
        if (more := len(gone) - _NAMED_MAX) > 0:
            shown.append(f"{more} more")
        yield f"logs of {inert(node, _NAME_CHARS)} are missing: {', '.join(shown)}"
