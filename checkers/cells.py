"""A split cut into cells: as much as fits into a processor's cache and a heap's free lists.

Temporaries of more than some 30 MB come from the operating system, page by page, each time anew;
on ten million transactions that was a third of the time of an analysis. Arrays of a cell are
smaller, and so is what is in memory at once.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

CELL = 2_000_000
"""Rows and list elements of a cell together, about: arrays of 1 to 16 MB."""
CELLS_MAX = 4096

_MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)
"""Not the one that splits are made with: within a split that one leaves little to choose."""


def cells(micro_ops: pa.Table, size: int = CELL) -> Iterator[pa.Table]:
    """The rows of ``micro_ops`` in parts of about ``size``, every key whole in one of them, rows in
    the order that they had; at least one part.
    """
    many = min(-(-_weight(micro_ops) // size), CELLS_MAX)
    if many <= 1:
        yield micro_ops
        return
    cell = _cell_of(micro_ops.column("key").to_numpy(), many)
    for number in range(many):
        yield micro_ops.filter(pa.array(cell == number)).combine_chunks()


def _weight(micro_ops: pa.Table) -> int:
    elements = 0
    if "elements" in micro_ops.column_names:
        elements = pc.sum(pc.list_value_length(micro_ops.column("elements"))).as_py() or 0
    return int(micro_ops.num_rows + elements)


def _cell_of(keys: NDArray[np.int64], many: int) -> NDArray[np.int16]:
    mixed = keys.view(np.uint64) * _MULTIPLIER
    mixed ^= mixed >> np.uint64(32)
    scaled = ((mixed * _MULTIPLIER) >> np.uint64(32)) * np.uint64(many) >> np.uint64(32)
    return scaled.astype(np.int16)
