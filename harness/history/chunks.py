"""Appending records to write-ahead chunks during a run.

The operating system has a record when ``append`` returns, so the record survives a kill -9 of this
process; a finished chunk is on the disk, so it survives a crash of the machine.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

import msgspec

from harness.errors import (
    DeadlineExceeded,
    FiredrillError,
    HarnessError,
    InvariantError,
    UsageError,
)
from harness.history import record_frames
from harness.history.directory_locks import lock_directory
from harness.history.durable_files import OUT_OF_ROOM, disk_failure, sync_directory
from harness.history.records import Complete, Invoke, Record, is_recordable
from harness.history.scan import Scan, TornChunk, scan

__all__ = [
    "CHUNK_BYTES",
    "RESERVE_BYTES",
    "ChunkWriter",
    "InlineExecutor",
    "OpenHistory",
    "Scan",
    "TornChunk",
    "scan",
]

P = ParamSpec("P")
T = TypeVar("T")

# Some ten thousand operations: the most that a crash of the machine may lose.
CHUNK_BYTES = 8 << 20

# How many times ``CHUNK_BYTES`` a chunk may grow to while the one before is being synced.
OVERGROWN = 8

# A disk that takes longer for one chunk is as good as gone.
SYNC_LIMIT_S = 60.0

# Room kept for the end of a run on a full disk: open operations, heals, marks, the manifest.
RESERVE_BYTES = 16 << 20


class _Chunk:
    """One chunk file, open for appending. Methods raise ``OSError``."""

    def __init__(self, path: Path, header: record_frames.Header) -> None:
        self.path = path
        self.size = 0
        # Appending, since after ``ftruncate`` below the handle's own offset is beyond the end.
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        self._handle = os.open(path, flags, 0o644)
        try:
            self.write(header.pack())
        except OSError:
            self.discard()
            raise

    def write(self, content: bytes | bytearray) -> None:
        """Append all of ``content``, or nothing of it and raise."""
        written = 0
        try:
            while written < len(content):
                written += os.write(self._handle, content[written:])
        except OSError:
            # A part of a frame would end the stream for its reader, and hide all behind it.
            if written:
                os.ftruncate(self._handle, self.size)
            raise
        self.size += written

    def sync(self) -> None:
        """Make the chunk and its name durable."""
        os.fsync(self._handle)
        # The name is the directory's data: without this a crash may lose a file that is synced.
        sync_directory(self.path.parent)

    def finish(self) -> None:
        """Make the chunk and its name durable and close it."""
        try:
            self.sync()
        finally:
            os.close(self._handle)

    def discard(self) -> None:
        """Close the chunk and remove it."""
        os.close(self._handle)
        self.path.unlink(missing_ok=True)


class InlineExecutor(Executor):
    """Runs each call at once, on the calling thread: for a simulation, in which no thread may start
    and no task may wait for the machine's disk.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """The result of ``fn``, or its exception, as a future that is done."""
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:
            future.set_exception(error)
        return future


class OpenHistory(Protocol):
    """Opens the first stream of records of a run."""

    def __call__(self, directory: Path, *, run_id: str) -> ChunkWriter:
        """The stream of run ``run_id`` in ``directory``. Raises as ``ChunkWriter``."""


class ChunkWriter:
    """One writer's stream of records in ``directory`` (created). Not thread-safe.

    While it is open no process can seal or recover the run. When the disk is full the writer gives
    up its reserve: from then on it refuses invocations, so that the workload ends, and still
    accepts the records that end a run (completions, heals, marks) as long as the reserve lasts.
    """

    def __init__(
        self,
        directory: Path,
        chunk_bytes: int = CHUNK_BYTES,
        *,
        writer: int = 0,
        reserve_bytes: int = RESERVE_BYTES,
        overgrown: int = OVERGROWN,
        executor: Executor | None = None,
        run_id: str = "",
    ) -> None:
        """Open the stream of ``writer`` (0 to 65535) with an empty first chunk. ``executor`` makes
        finished chunks durable (a thread of the writer's own by default); ``close`` shuts it down.
        The stream is tied to the run ``run_id``, unless that is empty.

        Raises ``UsageError`` where the stream exists already or the run is being sealed,
        ``HarnessError`` where the disk refuses.
        """
        self._directory = directory
        self._chunk_bytes, self._overgrown = chunk_bytes, overgrown
        self._writer = writer
        self._sequence = 0
        self._chain = record_frames.first_chain(run_id)
        self._full = False
        self._syncer = executor or ThreadPoolExecutor(1, f"fsync-{writer}")
        self._syncing: Future[None] | None = None
        self._unsynced: OSError | None = None
        self._reserve = directory / f"reserve-{writer}"
        self._lock: int | None = None
        first = directory / record_frames.chunk_name(writer, 0)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            # Shared by the writers of one run; sealing holds it alone.
            self._lock = lock_directory(directory, shared=True)
            if self._lock is None:
                raise UsageError(f"{directory}: the run is being sealed, so it can't be written")
            # Before the first record: a disk without that room is refused while nothing was driven.
            _allocate(self._reserve, reserve_bytes)
            self._chunk = self._open_chunk(0, chain=self._chain)
        except FileExistsError as error:
            self._unlock()
            raise UsageError(
                f"{first}: there is a history already; it is never replaced"
            ) from error
        except OSError as error:
            self._unlock()
            raise disk_failure("begin", first, error, "no record can be kept") from error

    def append(self, record: Record) -> None:
        """``extend`` by one record."""
        self.extend((record,))

    def extend(self, records: Sequence[Record]) -> None:
        """Hand ``records`` to the operating system, with one write.

        Raises ``HarnessError`` where the disk refuses: all earlier records are in the history, and
        none of these. ``InvariantError`` for a record that no history can hold; those before it are
        in the history.
        """
        if self._lock is None:
            raise InvariantError(f"{self._chunk.path}: a record was appended after the end")
        payloads, refused = self._encoded(records)
        try:
            if payloads:
                self._write(payloads)
        except OSError as error:
            # Once: with the reserve gone the same error is final.
            if self._gave_up_reserve(error):
                self.extend(records)
                return
            raise disk_failure(
                "append to", self._chunk.path, error, self._missing(payloads)
            ) from error
        if refused is not None:
            raise refused

    def _missing(self, payloads: list[bytes]) -> str:
        size = sum(map(len, payloads))
        some = f"{len(payloads)} records of {size} bytes are"
        one = f"a record of {size} bytes is"
        return f"{one if len(payloads) == 1 else some} missing at offset {self._chunk.size}"

    def _encoded(self, records: Sequence[Record]) -> tuple[list[bytes], FiredrillError | None]:
        """The bytes of the records up to the first that can't be written, and the reason for that
        one.
        """
        payloads: list[bytes] = []
        for record in records:
            # Completions and heals need the room: what is open must still end in the history.
            if self._full and type(record) is Invoke:
                reason = "the disk is full, so no operation is begun (its room ends the run)"
                return payloads, HarnessError(f"{self._chunk.path}: {reason}")
            try:
                payloads.append(_encode(record))
            except InvariantError as error:
                return payloads, error
        return payloads, None

    def _write(self, payloads: list[bytes]) -> None:
        """Append the frames of ``payloads``, or none of them and raise ``OSError``."""
        self._require_synced()
        if self._chunk.size >= self._chunk_bytes and self._may_rotate():
            self._rotate()
        # The chain of the stream moves only once the write is done: a refused one leaves it as it
        # was.
        chain, content = self._chain, bytearray()
        for payload in payloads:
            length = len(payload)
            chain = record_frames.frame_crc(length, payload, chain)
            content += record_frames.FRAME.pack(length, chain)
            content += payload
        self._chunk.write(content)
        self._chain = chain

    def sync(self) -> None:
        """Make the written records and the stream's name durable: called before anything is driven,
        so that after a crash of the machine every stream is still found. Raises ``HarnessError``.
        """
        try:
            self._require_synced()
            self._chunk.sync()
        except OSError as error:
            self._unsynced = error
            raise disk_failure("sync", self._chunk.path, error, "no record is durable") from error

    @property
    def out_of_room(self) -> bool:
        """Whether the disk was full at some time, so that the reserve was given up."""
        return self._full

    def close(self) -> None:
        """End the stream and make it durable. Idempotent.

        Raises ``HarnessError`` where the disk refuses; the run can then be recovered as a prefix.
        """
        if self._lock is None:
            return
        mark, _ = record_frames.pack_mark(record_frames.END, self._chain)
        try:
            # First, since on a full disk the mark may need this room.
            with contextlib.suppress(FileNotFoundError):
                self._reserve.unlink()
            try:
                self._await_sync()
                self._require_synced()
                self._chunk.write(mark)
            finally:
                self._chunk.finish()
        except OSError as error:
            missing = "the mark of its end is missing"
            if self._unsynced is None:
                missing += ", the records are there"
            raise disk_failure("close", self._chunk.path, error, missing) from error
        finally:
            # A sync that hangs has had its limit in ``_await_sync``: the run does not wait again.
            self._syncer.shutdown(wait=False)
            self._unlock()

    def _may_rotate(self) -> bool:
        """Whether the disk has the previous chunk, so that rotating waits for no sync; a chunk that
        outgrows its size too far waits all the same.
        """
        # To wait here would stop every client of this loop for one slow sync.
        over = self._syncing is None or self._syncing.done()
        return over or self._chunk.size >= self._overgrown * self._chunk_bytes

    def _rotate(self) -> None:
        """Continue in a new chunk, or, where the disk refuses, stay in this one unharmed.

        The next chunk is made first, so that a chunk that ends with a ``more`` mark always has a
        successor. The executor syncs finished chunks, one at a time: on a thread of its own a slow
        disk does not stop the clients of this loop.
        """
        self._await_sync()
        mark, chain = record_frames.pack_mark(record_frames.MORE, self._chain)
        successor = self._open_chunk(self._sequence + 1, chain=chain)
        try:
            self._chunk.write(mark)
        except OSError:
            # An empty successor without the mark before it would look like a torn stream.
            successor.discard()
            raise
        finished, self._chunk = self._chunk, successor
        self._sequence += 1
        self._chain = chain
        self._syncing = self._syncer.submit(finished.finish)

    def _await_sync(self) -> None:
        syncing, self._syncing = self._syncing, None
        if syncing is None:
            return
        try:
            syncing.result(SYNC_LIMIT_S)
        except OSError as error:
            self._unsynced = error
            if syncing.done():
                raise
            self._unsynced = TimeoutError(errno.ETIMEDOUT, "an earlier fsync has not ended")
            raise DeadlineExceeded(f"fsync in {self._directory}", SYNC_LIMIT_S) from error

    def _require_synced(self) -> None:
        """Raise the error of a sync that failed: the kernel drops what it could not write and tells
        of it once, so this stream has no more records and no end, and is a prefix for good.
        """
        if self._unsynced is not None:
            raise self._unsynced

    def _open_chunk(self, sequence: int, *, chain: int) -> _Chunk:
        header = record_frames.Header(record_frames.VERSION, self._writer, sequence, chain)
        return _Chunk(self._directory / record_frames.chunk_name(self._writer, sequence), header)

    def _gave_up_reserve(self, error: OSError) -> bool:
        """Whether ``error`` is a full disk and there was a reserve to remove."""
        if error.errno not in OUT_OF_ROOM or not self._reserve.exists():
            return False
        self._reserve.unlink()
        self._full = True
        return True

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _allocate(path: Path, size_bytes: int) -> None:
    """Make a file that only reserves space."""
    if size_bytes == 0:
        return
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # A sparse file would reserve nothing.
        os.posix_fallocate(handle, 0, size_bytes)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    finally:
        os.close(handle)


def _encode(record: Record) -> bytes:
    if type(record) is Invoke or type(record) is Complete:
        _require_int64(record)
    try:
        try:
            payload = record_frames.ENCODER.encode(record)
        except UnicodeEncodeError:
            # Only then: to search every text for surrogates would slow each record down.
            payload = record_frames.ENCODER.encode(_legible(record))
    except (OverflowError, UnicodeEncodeError, TypeError, msgspec.MsgspecError) as error:
        raise InvariantError(f"a record can't be written: {error}: {record!r:.500}") from error
    if len(payload) > record_frames.MAX_RECORD_BYTES:
        limit = (
            f"a record may have at most {record_frames.MAX_RECORD_BYTES} bytes (got {len(payload)})"
        )
        raise InvariantError(f"{limit}: {record!r:.500}")
    return payload


def _legible(record: Record) -> Record:
    """``record`` with lone surrogates (as in file names that are no text) written as escapes."""
    texts = {
        name: value.encode("utf-8", "backslashreplace").decode()
        for name in record.__struct_fields__
        if type(value := getattr(record, name)) is str
    }
    return msgspec.structs.replace(record, **texts)


def _require_int64(record: Invoke | Complete) -> None:
    for op in record.ops:
        if not is_recordable(op):
            raise InvariantError(
                f"operation {record.index}: key and values must fit in 64 bits (got {op!r:.200})"
            )
