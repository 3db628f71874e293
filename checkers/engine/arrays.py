"""Arrow columns as flat numpy arrays, without copies where Arrow allows it."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from harness.errors import MalformedHistory

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

OK, FAIL, INFO = 0, 1, 2
TYPES = ("ok", "fail", "info")
# The approximate number of rows and list elements in a cell: arrays of 1 to 16 MB.
CELL = 2_000_000
CELLS_MAX = 4096
_KEYS_AT_ONCE = 1 << 16
# A hash other than the one of splits: within a split, that one leaves little to choose.
_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)
# Parameters of mallopt(3): how many arenas threads have, from what size on an allocation gets pages
# of its own, and how much of what is free goes back to the machine.
_M_ARENA_MAX, _M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -8, -3, -1
_OWN_PAGES_BYTES, _NO_TRIM = 1 << 30, -1


def keep_freed_memory() -> None:
    """Have all later arrays of this process, Arrow's too, take the memory of those that were freed:
    cell after cell makes arrays of the same sizes, and the kernel clears each page that it gives
    anew (a third of the time of ten million transactions). The process then keeps the most that it
    ever had: for one that judges and ends. Nothing changes with a C library other than glibc, nor
    before its version 2.35, which gives every large array pages of its own.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # The one that may be refused comes first: without it the others would cost time.
    if mallopt is not None and mallopt(_M_MMAP_THRESHOLD, _OWN_PAGES_BYTES):
        mallopt(_M_TRIM_THRESHOLD, _NO_TRIM)
        # What one thread has freed is any other's to take.
        mallopt(_M_ARENA_MAX, 1)
        # Arrow's own allocator gives back what is not used for a tenth of a second.
        pa.set_memory_pool(pa.system_memory_pool())


def ints(table: pa.Table, name: str, null: int = 0) -> Ints:
    """Return column ``name`` as int64, nulls as ``null``."""
    column = table.column(name)
    if column.null_count:
        column = pc.fill_null(column, null)
    return np.asarray(column.to_numpy(), dtype=np.int64)


def codes(table: pa.Table, name: str, names: tuple[str, ...]) -> NDArray[np.int8]:
    """Return column ``name`` of strings as positions in ``names``; -1 for any other string."""
    column = table.column(name)
    if pa.types.is_dictionary(column.type):
        parts = [_codes_of_dictionary(chunk, names) for chunk in column.chunks]
        return np.concatenate(parts) if parts else np.zeros(0, dtype=np.int8)
    return _codes(column, names)


def _codes(column: pa.ChunkedArray | pa.Array, names: tuple[str, ...]) -> NDArray[np.int8]:
    found = pc.index_in(column, value_set=pa.array(names, pa.string()))
    return np.asarray(pc.fill_null(found, -1), dtype=np.int8)


def _codes_of_dictionary(chunk: pa.DictionaryArray, names: tuple[str, ...]) -> NDArray[np.int8]:
    """Translate the dictionary: each name is looked up once, not once a row."""
    # Nulls point beyond the dictionary, where -1 stands.
    known = np.append(_codes(chunk.dictionary, names), np.int8(-1))
    place = pc.fill_null(chunk.indices, len(chunk.dictionary))
    found: NDArray[np.int8] = known[np.asarray(place)]
    return found


def lists(table: pa.Table, name: str) -> tuple[Ints, Ints, Ints, Bools]:
    """Return a column of lists as (start, length, flat values, known): row i's list is
    ``flat[start[i]:start[i] + length[i]]``; nulls are not ``known`` and have length 0.

    Raises ``MalformedHistory`` for a list with an item that is null: no table of ours has one.
    """
    array = table.column(name).combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks) if array.num_chunks else pa.array([], array.type)
    if array.flatten().null_count:  # without the items behind nulls
        raise MalformedHistory("history", f"column {name}", "a list holds null")
    offsets = np.asarray(array.offsets, dtype=np.int64)
    known = np.asarray(array.is_valid(), dtype=np.bool_)
    length = np.where(known, np.diff(offsets), 0)
    # ``values``, not ``flatten``: the offsets count all items, those behind nulls as well.
    return offsets[:-1], length, np.asarray(array.values, dtype=np.int64), known


def spread(length: Ints) -> tuple[Ints, Ints]:
    """Return (row, place within the row) of every item, for rows with ``length[i]`` items each."""
    rows = np.repeat(np.arange(len(length)), length)
    first = np.cumsum(length) - length
    return rows, np.arange(len(rows)) - first[rows]


def distinct(values: Ints, size: int) -> Ints:
    """Return the different ``values``, each of 0 to before ``size``, ascending: by a mark each,
    many times faster than by sorting or hashing where there are many.
    """
    marks = np.zeros(size, dtype=np.bool_)
    marks[values] = True
    found: Ints = np.flatnonzero(marks)
    return found


def batches(length: Ints, limit: int) -> Iterator[slice]:
    """Yield consecutive slices of the rows with at most about ``limit`` items in each."""
    total = np.cumsum(length)
    start = 0
    while start < len(length):
        before = total[start - 1] if start else 0
        # A row beyond the limit gets a slice of its own, or the loop would not advance.
        end = max(int(np.searchsorted(total, before + limit, side="right")), start + 1)
        yield slice(start, end)
        start = end


def group_starts(*columns: NDArray[Any]) -> Bools:
    """Return true where sorted rows begin a new group, that is where any column changes."""
    starts = np.zeros(len(columns[0]), dtype=np.bool_)
    if len(starts):
        starts[0] = True
    for column in columns:
        starts[1:] |= column[1:] != column[:-1]
    return starts


def cells(micro_ops: pa.Table, size: int = CELL) -> Iterator[pa.Table]:
    """Yield the rows of ``micro_ops`` in parts of about ``size``: every key is whole in one part,
    rows keep their order; at least one part.
    """
    many = min(-(-_weight(micro_ops) // size), CELLS_MAX)
    if many <= 1:
        yield micro_ops
        return
    cell = _cell_of(micro_ops.column("key").to_numpy(), many)
    # Sorted once: a filter for each cell would look at every row as often as there are cells.
    order = np.argsort(cell, kind="stable")
    ends = np.cumsum(np.bincount(cell, minlength=many))
    whole = micro_ops.combine_chunks()  # taking from many chunks joins them each time
    for rows in np.split(order, ends[:-1]):
        yield whole.take(pa.array(rows))


def _weight(micro_ops: pa.Table) -> int:
    elements = 0
    if "elements" in micro_ops.column_names:
        elements = pc.sum(pc.list_value_length(micro_ops.column("elements"))).as_py() or 0
    return int(micro_ops.num_rows + elements)


def _cell_of(keys: NDArray[np.int64], many: int) -> NDArray[np.int16]:
    found = np.empty(len(keys), np.int16)
    # In parts that stay in the cache: there are four numbers on the way to each.
    for begin in range(0, len(keys), _KEYS_AT_ONCE):
        part = slice(begin, begin + _KEYS_AT_ONCE)
        mixed = keys[part].view(np.uint64) * _MULTIPLIER
        mixed ^= mixed >> np.uint64(32)
        # The high half scaled to ``many``: as even as a modulo, without a division for each row.
        found[part] = ((mixed * _MULTIPLIER) >> np.uint64(32)) * np.uint64(many) >> np.uint64(32)
    return found
