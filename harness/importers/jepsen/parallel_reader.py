"""Reads a large file side by side: the parts behind its first one, each in a process of its own.

Each pairs the operations of its part by themselves, and lays the columns into memory that it shares
with the reader of the file, which takes them in the order of the file. A part that does not follow
from those before it, or that another reader could refuse, is not taken: its bytes and all behind
them are read as if there were no parts, so that refusals are the same with any number of cores.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import select
import signal
from array import array
from collections.abc import Iterator, Sequence
from typing import BinaryIO

import attrs
import msgspec
import numpy as np
import pyarrow as pa

from harness.importers.jepsen.exact_parser import Filler
from harness.importers.jepsen.operation_forms import Names
from harness.importers.jepsen.pairing import (
    Pairing,
    Part,
    PartSummary,
    Steps,
    Transactions,
    numbers,
)
from harness.importers.jepsen.reader import HistoryFile
from harness.supervisor import die_with_parent

LEAST_BYTES = 8 << 20
"""Of a part: reading fewer takes about as long as a process for them."""
LIMIT_S, LIMIT_S_PER_MIB = 60.0, 5.0
"""Until a part is read, from when it is asked for: some hundred times as long as that takes."""
_HEAD = b"head"


class _Head(msgspec.Struct):
    """``Part.told``, and what its reader came to."""

    told: PartSummary
    lines: int
    filler: Filler


@attrs.define(kw_only=True)
class LaterPart:
    """The bytes from ``begin`` up to ``end``, which process ``worker`` reads into ``memory``."""

    begin: int
    end: int
    _worker: int
    _handle: int
    _memory: BinaryIO
    _status: int | None = None

    def taken_by(self, reading: HistoryFile, pairing: Pairing) -> bool:
        """Have ``pairing``, which has all before the part, take it, and ``reading`` go on behind
        it. Both stay as they are where this returns ``False``.
        """
        if not reading.between_operations() or self._ended() != 0:
            return False
        # Pages are given back once the arrays that lie in them are gone.
        head, part = _loaded(mmap.mmap(self._memory.fileno(), 0, prot=mmap.PROT_READ))
        if not reading.filler.has_room_for(head.filler) or not pairing.take(part, reading.lines):
            return False
        reading.go_on_at(self.end, lines=head.lines, filler=head.filler)
        return True

    def stop(self) -> None:
        """End the worker, if it did not end by itself: the part is not to be taken."""
        if self._status is None:
            os.kill(self._worker, signal.SIGKILL)
            self._ended()

    def drop(self) -> None:
        """``stop``, and give everything back."""
        self.stop()
        os.close(self._handle)
        self._memory.close()

    def _ended(self) -> int:
        """Wait for the worker, which is killed at its limit; return 0 where it read its part."""
        if self._status is None:
            ended = select.poll()
            ended.register(self._handle, select.POLLIN)
            limit_s = LIMIT_S + LIMIT_S_PER_MIB * ((self.end - self.begin) >> 20)
            if not ended.poll(limit_s * 1000):
                os.kill(self._worker, signal.SIGKILL)
            _, self._status = os.waitpid(self._worker, 0)
        return self._status


@contextlib.contextmanager
def later_parts(reading: HistoryFile, file: str) -> Iterator[Sequence[LaterPart]]:
    """What of ``file`` is read side by side with its first part, on as many cores as there are:
    parts that follow each other, the first of them where ``reading`` is to stop. None of a file
    that is small, or has no lines of its own.
    """
    cuts = reading.cuts(len(os.sched_getaffinity(0)), LEAST_BYTES)
    parts: list[LaterPart] = []
    try:
        for begin, end in itertools.pairwise(cuts):
            part = _begun(reading, begin, end, file)
            if part is None:
                break
            parts.append(part)
        yield parts
    finally:
        for part in parts:
            part.drop()


def _begun(reading: HistoryFile, begin: int, end: int, file: str) -> LaterPart | None:
    """``None`` where this machine has no process left, or no memory for one."""
    try:
        memory = os.fdopen(os.memfd_create("firedrill-part"), "w+b")
    except OSError:
        return None
    caller = os.getpid()
    try:
        worker = os.fork()
    except OSError:
        memory.close()
        return None
    if worker:
        try:
            handle = os.pidfd_open(worker)
        except OSError:
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
            memory.close()
            return None
        return LaterPart(begin=begin, end=end, worker=worker, handle=handle, memory=memory)
    code = 1
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        if die_with_parent(caller) and _read(reading, begin, end, file, memory):
            code = 0
    # The reader of the file finds what is wrong with it; this is a copy of its process.
    finally:
        os._exit(code)


def _read(reading: HistoryFile, begin: int, end: int, file: str, memory: BinaryIO) -> bool:
    """Read a part into ``memory``; returns whether it is whole by itself."""
    names = Names()
    pairing = Pairing(file, names, begins_history=False)
    with reading.of_part(begin, end, names) as part:
        for operations, lines in part.batches(until=end):
            pairing.add(operations, lines)
        if part.between_operations():
            _lay(pairing.part(), part, memory)
            return True
    return False


def _lay(part: Part, reading: HistoryFile, memory: BinaryIO) -> None:
    head = _Head(told=part.told, lines=reading.lines, filler=reading.filler)
    columns = attrs.asdict(part.transactions, recurse=False)
    transactions = pa.table({name: np.frombuffer(c, c.typecode) for name, c in columns.items()})
    told = {_HEAD: msgspec.msgpack.encode(head)}
    steps = [pa.record_batch(attrs.asdict(piece, recurse=False)) for piece in part.steps]
    for table in (
        transactions.replace_schema_metadata(told),
        pa.table({"at_ns": numbers(part.times)}),
        pa.table({"txn": numbers(part.untold)}),
        *([pa.Table.from_batches(steps)] if steps else []),
    ):
        with pa.ipc.new_stream(memory, table.schema) as sink:
            sink.write_table(table)
    memory.flush()


def _loaded(memory: mmap.mmap) -> tuple[_Head, Part]:
    source = pa.BufferReader(pa.py_buffer(memory))
    size = source.size()
    transactions, times, untold = (pa.ipc.open_stream(source).read_all() for _ in range(3))
    steps = list(pa.ipc.open_stream(source)) if source.tell() < size else []
    head = msgspec.msgpack.decode(transactions.schema.metadata[_HEAD], type=_Head)
    columns = {name: _column(transactions[name]) for name in transactions.column_names}
    return head, Part(
        transactions=Transactions(**columns),
        steps=[Steps(**dict(zip(b.schema.names, b.columns, strict=True))) for b in steps],
        times=_column(times["at_ns"]),
        untold=_column(untold["txn"]),
        told=head.told,
    )


def _column(column: pa.ChunkedArray) -> array[int]:
    values = column.to_numpy()
    return array("b" if values.dtype == np.int8 else "q", values.tobytes())
