"""The lines of the nodes' logs that count, as a table: what ``checkers.promises.stays_up`` finds in
logs, and what an exported run holds of them.
"""

from __future__ import annotations

import pyarrow as pa

LINES_FILE = "log_lines.parquet"
LOG_LINES = pa.schema(
    [
        ("node", pa.string()),
        ("file", pa.string()),
        ("line", pa.int64()),
        ("pattern", pa.string()),
        ("breaks", pa.bool_()),
        ("text", pa.string()),
        ("total", pa.int64()),
    ]
)
"""One row a matching line, some of each pattern in a file; ``line`` counts from 1, ``file`` is
relative to the run directory, ``total`` counts the pattern's matches there.
"""
