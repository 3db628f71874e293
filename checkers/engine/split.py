"""A split by itself: some keys' micro-operations and their transactions, without the others."""

from __future__ import annotations

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import Ints, group_starts, ints
from checkers.engine.transactions import OBSERVED, OBSERVED_TABLE
from harness.history import schema
from harness.protocols.checker import KEY_COLUMNS, Tables


@attrs.frozen(kw_only=True, eq=False)
class Split:
    """The micro-operations of some keys, and the transactions that have any of them, numbered anew
    from 0 in the same order; transaction i here is ``number[i]`` of the history.
    """

    transactions: pa.Table
    micro_ops: pa.Table
    number: Ints

    def early(self, tables: Tables) -> dict[str, pa.Table]:
        """Return ``OBSERVED_TABLE``, whose readers are proven (``proven``), of these
        transactions.
        """
        if OBSERVED_TABLE not in tables:
            return {}
        writer = ints(tables[OBSERVED_TABLE], "writer")
        here = np.flatnonzero(np.isin(self.number, writer))
        readers = np.full(len(here), -1)
        return {
            OBSERVED_TABLE: pa.Table.from_arrays(
                [pa.array(here), pa.array(readers)], schema=OBSERVED
            )
        }


def split_of_steps(steps: pa.Table, transactions: pa.Table | None = None) -> Split:
    """Return the split that ``steps`` hold: rows of ``schema.SPLIT``, or, with all
    ``transactions``, of ``schema.MICRO_OPS``.
    """
    txn = ints(steps, "txn")
    if np.all(txn[1:] >= txn[:-1]):
        starts = group_starts(txn)
        first, place = np.flatnonzero(starts), np.cumsum(starts) - 1
        number = txn[first]
    else:  # of no sealed file
        number, first, place = np.unique(txn, return_index=True, return_inverse=True)
    if transactions is None:
        told = steps.select([name for name in KEY_COLUMNS if name != "txn"]).take(pa.array(first))
    else:
        told = transactions.select([name for name in KEY_COLUMNS if name != "txn"])
        told = told.take(pa.array(number))
    told = told.add_column(0, "txn", pa.array(np.arange(len(number)), pa.int64()))
    own = steps.select([n for n in steps.column_names if n not in schema.OF_TRANSACTION])
    at = own.column_names.index("txn")
    return Split(
        transactions=told.combine_chunks(),
        micro_ops=own.set_column(at, "txn", pa.array(place, pa.int64())),
        number=number,
    )


def named(table: pa.Table, columns: tuple[str, ...], number: Ints) -> pa.Table:
    """Return ``table`` with ``number`` of what stands in ``columns``: a transaction each, or lists
    of them; null and numbers below 0, which stand for none, stay. Raises ``IndexError`` for one
    that has no number here, ``ArrowInvalid`` where the column can't hold that number.
    """
    for name in columns:
        field = table.schema.field(name)
        column = table.column(name).combine_chunks()
        place = table.column_names.index(name)
        table = table.set_column(place, field, _numbered(column, number).cast(field.type))
    return table


def _numbered(column: pa.Array, number: Ints) -> pa.Array:
    if pa.types.is_list(column.type):
        # Without the items behind nulls, to which the lengths don't count.
        items, length = column.flatten(), pc.fill_null(pc.list_value_length(column), 0)
        offsets = np.append(0, np.cumsum(length.to_numpy(zero_copy_only=False)))
        mask = column.is_null() if column.null_count else None
        return pa.ListArray.from_arrays(
            pa.array(offsets, pa.int32()), _numbered(items, number), mask=mask
        )
    if not column.null_count and len(number):
        told = column.to_numpy()
        if not len(told) or told.min() >= 0:
            return pa.array(number[told], pa.int64())
    told = pc.fill_null(column, -1).to_numpy(zero_copy_only=False)
    # A split without transactions has no number to look up, and no row but those of none.
    known = np.where(told >= 0, number[np.maximum(told, 0)], told) if len(number) else told
    return pa.array(known, pa.int64(), mask=np.asarray(column.is_null()))
