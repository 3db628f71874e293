"""The tables of a sealed history, and the hash that splits micro-operations by key.

``transactions`` has one row a transaction, ``micro_ops`` one row a step of one, split into files by
``split_of`` of the key, so that every step on a key stands in one file. Both are sorted by
``txn`` (then ``pos``); ``txn`` counts invocations from 0. A file of a split (``SPLIT``) tells with
each step what inference needs of its transaction, so that it can be judged alone; those of version
1 (``MICRO_OPS``) don't.

The result of a read: ``elements`` is null where it is not known, ``[]`` where the key was empty; a
register's read has its ``value`` and null ``elements``. ``error`` is the code alone.

The hash, ``fibonacci-64``, for any language: take the key as 64 bits in two's complement, multiply
by 0x9E3779B97F4A7C15 modulo 2**64, keep the upper 32 bits, multiply those by the number of splits
and drop the lower 32 bits of the product.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.errors import UsageError
from harness.history.run_directory import SCHEMA_VERSION

KEY_HASH = "fibonacci-64"
# More files than any machine has tasks for only make opening them the main work.
MAX_SPLITS = 1024

_MULTIPLIER = 0x9E3779B97F4A7C15
_MASK_64 = (1 << 64) - 1


def _column(name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


def _list(kind: pa.DataType) -> pa.DataType:
    """A list whose elements have the name that Parquet gives them, so that a file reads back
    equal.
    """
    return pa.list_(pa.field("element", kind))


def _schema(table: str, *columns: pa.Field, version: int = SCHEMA_VERSION) -> pa.Schema:
    metadata = {"firedrill.table": table, "firedrill.schema_version": str(version)}
    return pa.schema(columns, metadata=metadata)


TRANSACTIONS = _schema(
    "transactions",
    _column("txn", pa.int64()),
    _column("process", pa.int64()),
    _column("kind", pa.string()),
    _column("type", pa.string()),
    _column("node", pa.string()),
    _column("attempt", pa.int32()),
    _column("server_txn", pa.string(), nullable=True),
    _column("commit_ts", pa.int64(), nullable=True),
    _column("intended_ns", pa.int64()),
    _column("invoke_ns", pa.int64()),
    _column("complete_ns", pa.int64()),
    _column("invoke_index", pa.int64()),
    _column("complete_index", pa.int64()),
    _column("wall_ns", pa.int64()),
    _column("error", pa.string(), nullable=True),
    _column("phase", pa.string(), nullable=True),
)

MICRO_OPS = _schema(
    "micro_ops",
    _column("txn", pa.int64()),
    _column("pos", pa.int32()),
    _column("f", pa.string()),
    _column("key", pa.int64()),
    _column("partition", pa.int32(), nullable=True),
    _column("value", pa.int64(), nullable=True),
    _column("elements", _list(pa.int64()), nullable=True),
    _column("type", pa.string()),
)

OF_TRANSACTION = ("process", "kind", "error", "invoke_ns", "complete_ns")
SPLIT = _schema(
    "micro_ops", *MICRO_OPS, *(TRANSACTIONS.field(name) for name in OF_TRANSACTION), version=2
)

FAULTS = _schema(
    "faults",
    _column("fault", pa.int64()),
    _column("kind", pa.string()),
    _column("target", pa.string()),
    _column("nodes", _list(pa.string())),
    _column("roles", _list(pa.string())),
    _column("planned_ns", pa.int64(), nullable=True),
    _column("injecting_ns", pa.int64(), nullable=True),
    _column("injected_ns", pa.int64(), nullable=True),
    _column("effective_ns", pa.int64(), nullable=True),
    _column("healing_ns", pa.int64(), nullable=True),
    _column("healed_ns", pa.int64(), nullable=True),
    _column("state", pa.string()),
    _column("proof", pa.string(), nullable=True),
    _column("heal_proof", pa.string(), nullable=True),
    _column("reason", pa.string(), nullable=True),
)

EVENTS = _schema(
    "events",
    _column("kind", pa.string()),
    _column("node", pa.string()),
    _column("wall_ns", pa.int64()),
    _column("boot", pa.string()),
    _column("at_ns", pa.int64()),
    _column("uncertainty_ns", pa.int64()),
    _column("partition", pa.int32(), nullable=True),
    _column("term", pa.int64(), nullable=True),
    _column("text", pa.string()),
    _column("generation", pa.int64(), nullable=True),
    _column("previous_generation", pa.int64(), nullable=True),
    _column("base_index", pa.int64(), nullable=True),
    _column("base_term", pa.int64(), nullable=True),
    _column("survivors", _list(pa.string()), nullable=True),
    _column("decision", pa.string(), nullable=True),
    _column("about", pa.string(), nullable=True),
)

NOTES = _schema(
    "notes",
    _column("at_ns", pa.int64()),
    _column("process", pa.int64(), nullable=True),
    _column("text", pa.string()),
    _column("fault", pa.int64(), nullable=True),
)


LATER: Mapping[str, Mapping[str, int | None]] = {
    "events": dict.fromkeys(
        (
            *("generation", "previous_generation", "base_index", "base_term", "survivors"),
            *("decision", "about"),
        )
    ),
    "notes": {"fault": None},
    "controller": dict.fromkeys(("cpu_share", "resident_bytes")),
    "states": {"generation": 0},
    "logs": {"generation": 0},
    "topology": {"reset_s": None},
}
"""Columns that tables of older runs lack, and what stands for them there."""

MAY_BE_NULL: Mapping[str, frozenset[str]] = {
    "states": frozenset({"partition", "vote", "recovered_vote", "content"}),
    "logs": frozenset({"partition"}),
    "assignments": frozenset({"nodes", "term", "number"}),
    "topology": frozenset(
        {"zone", "nodes", "ts_ns", "up_s", "down_s", "joint_s", "replicas", "reset_s"}
    ),
    "claims": frozenset(),
    "claims_judged": frozenset(),
}
"""Columns without a value in some rows, of tables whose schema does not tell."""


def without_values(name: str, table: pa.Table) -> tuple[str, ...]:
    """Return the columns of ``table``, which was read for table ``name``, in which values are
    missing that the store has always told; none of a table of which nothing is known.
    """
    if name not in MAY_BE_NULL:
        return ()
    told = (column for column in table.column_names if column not in MAY_BE_NULL[name])
    return tuple(column for column in told if table[column].null_count)


def without_later(name: str, columns: pa.Schema, found: Collection[str] = ()) -> pa.Schema:
    """``columns`` of table ``name`` as its first runs had them, and the later ones in ``found``."""
    later = LATER.get(name, {})
    first = [column for column in columns if column.name in found or column.name not in later]
    return pa.schema(first, metadata=columns.metadata)


def with_later(name: str, table: pa.Table, columns: pa.Schema) -> pa.Table:
    """``table``, which was read for table ``name``, with all of ``columns``."""
    for column, value in LATER.get(name, {}).items():
        if column not in table.column_names:
            kind = columns.field(column).type
            table = table.append_column(
                columns.field(column), pa.array([value] * table.num_rows, kind)
            )
    return table


def of_split(steps: pa.Table, transactions: pa.Table) -> pa.Table:
    """``steps`` (``MICRO_OPS``) as rows of ``SPLIT``; ``transactions`` has theirs, sorted."""
    at = pa.array(np.searchsorted(transactions["txn"].to_numpy(), steps["txn"].to_numpy()))
    told = [transactions.column(name).take(at) for name in OF_TRANSACTION]
    return pa.Table.from_arrays([*steps.columns, *told], schema=SPLIT)


def check_splits(splits: int) -> None:
    """Raise ``UsageError`` unless ``splits`` is a number of files that a history may have."""
    if not 1 <= splits <= MAX_SPLITS:
        raise UsageError(f"splits must be from 1 to {MAX_SPLITS} (got {splits})")


def split_of(key: int, splits: int) -> int:
    """The file, 0 to ``splits`` - 1, that holds the micro-operations on ``key`` (an int64)."""
    spread = (key & _MASK_64) * _MULTIPLIER & _MASK_64
    # The upper bits: the lower ones of a product depend on few bits of the key. Scaled by a
    # product, which is quicker than a remainder and needs no power of two.
    return (spread >> 32) * splits >> 32


def splits_of(keys: npt.NDArray[np.int64], splits: int) -> npt.NDArray[np.int64]:
    """``split_of`` of every key at once."""
    # The view is two's complement, and products of arrays wrap: both as ``_MASK_64`` does it.
    spread = keys.astype(np.int64, copy=False).view(np.uint64) * np.uint64(_MULTIPLIER)
    scaled = (spread >> np.uint64(32)) * np.uint64(splits) >> np.uint64(32)
    return scaled.astype(np.int64)
