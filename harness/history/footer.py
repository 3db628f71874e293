"""Bounds on the footer of a Parquet file, checked before anything in the file is decoded: a few
kilobytes may claim rows and elements that no memory holds.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from harness.errors import MalformedHistory
from harness.history.files import regular

ROWS_ALWAYS = 100_000
ROWS_PER_BYTE = 32
"""64 equal reads in each of many transactions come to 13."""
VALUES_ALWAYS = 10_000_000
VALUES_PER_BYTE = 64
"""Of one column, the elements of lists counted: an hour of every fault has 0.5."""
UNCOMPRESSED_ALWAYS_BYTES = 64 << 20
UNCOMPRESSED_PER_BYTE = 200
"""As for a history that is imported; an hour of every fault has 2.4."""


def require_plausible(path: Path, *, rows_per_byte: int = ROWS_PER_BYTE) -> pa.Schema:
    """The schema of the Parquet file ``path``, whose footer claims no more than its size may hold.

    Raises ``MalformedHistory`` where it claims more, and for a file that is no Parquet.
    """
    try:
        size = regular(path).stat().st_size
        with pq.ParquetFile(path) as file:
            found, metadata = file.schema.to_arrow_schema(), file.metadata
    except (OSError, pa.ArrowException) as error:
        raise MalformedHistory(str(path), "", f"it is no Parquet file: {error}") from error
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    columns = [[group.column(number) for group in groups] for number in range(metadata.num_columns)]
    values = max((sum(c.num_values for c in chunks) for chunks in columns), default=0)
    whole = sum(c.total_uncompressed_size for chunks in columns for c in chunks)
    for what, claimed, most in (
        ("rows", metadata.num_rows, max(ROWS_ALWAYS, rows_per_byte * size)),
        ("values in a column", values, max(VALUES_ALWAYS, VALUES_PER_BYTE * size)),
        (
            "bytes once decompressed",
            whole,
            max(UNCOMPRESSED_ALWAYS_BYTES, UNCOMPRESSED_PER_BYTE * size),
        ),
    ):
        if not 0 <= claimed <= most:
            reason = f"expected at most {most:,} {what} in a file of its size, found {claimed:,}"
            raise MalformedHistory(str(path), "", reason)
    return found
