"""The file of each table in a run directory."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from harness.history import schema
from harness.history.run_directory import RunDirectory

# In ``history/`` of an imported run: the names of keys that were no integers in its file.
KEYS_FILE = "keys.parquet"
KEYS = pa.schema(
    [pa.field("key", pa.int64(), nullable=False), pa.field("name", pa.string(), nullable=False)]
)
TRANSACTIONS, FAULTS, EVENTS, NOTES = "transactions", "faults", "events", "notes"


def micro_ops_name(split: int) -> str:
    """The name of one split of the micro-operations."""
    return f"micro_ops-{split:04d}"


def table_names(splits: int) -> tuple[str, ...]:
    """Every table of a sealed run, in the order of writing."""
    return (TRANSACTIONS, *map(micro_ops_name, range(splits)), FAULTS, EVENTS, NOTES)


def table_path(run: RunDirectory, name: str) -> Path:
    """The file of table ``name``."""
    if name == FAULTS:
        return run.faults
    if name == EVENTS:
        return run.events
    return run.history / f"{name}.parquet"


def table_schema(name: str) -> pa.Schema:
    """The schema of table ``name``."""
    fixed = {
        TRANSACTIONS: schema.TRANSACTIONS,
        FAULTS: schema.FAULTS,
        EVENTS: schema.EVENTS,
        NOTES: schema.NOTES,
    }
    return fixed.get(name, schema.SPLIT)
