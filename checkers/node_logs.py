"""What the nodes' logs say that somebody must see, by the patterns that the system declares.

Logs are read as bytes: a node may write anything into them. A line is matched by its beginning,
so that one of ten megabytes costs no more than others. Patterns come from the manifest of a run
that anybody may have made: they match in linear time, whatever they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from harness.errors import MalformedHistory
from harness.history.checksums import NodeLog
from harness.history.files import open_regular
from harness.history.load import History
from harness.logmatch import matches, unusable
from harness.promise import Declaration, LogPattern
from harness.rundir import RunDirectory

LINE_BYTES = 4096  # of one line, looked at
FILE_BYTES = 64 << 20  # of one file, its beginning: providers cap what they collect below this
SHOWN_CHARS = 400  # of a line, kept
BATCH_LINES = 4096  # matched at once: at most 16 MB
NOT_READ = "not-read"  # the pattern's name for the end of a file that is larger
KEPT_MAX = 50  # lines of one pattern of one node; the count is of all

SCHEMA = pa.schema(
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
"""One row a line that was found, at most ``KEPT_MAX`` of a pattern in a file; ``line`` counts from
1, ``file`` is relative to the run directory, ``total`` counts what the pattern matched there."""


def patterns_of(declaration: Declaration) -> tuple[LogPattern, ...] | None:
    """What the system declares; ``None`` where it promises nothing about its nodes."""
    logs = declaration.logs
    return None if isinstance(logs, msgspec.UnsetType) else logs


def scan(history: History, patterns: Iterable[LogPattern]) -> pa.Table:
    """Every finding in the logs of ``history``, as far as they are sealed. Raises
    ``MalformedHistory`` for a pattern that is no regular expression.
    """
    wanted = tuple(patterns)
    _refuse_unusable(history.run, wanted)
    rows = [row for log in history.logs.files for row in _findings(log, wanted)]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _refuse_unusable(run: RunDirectory, patterns: Iterable[LogPattern]) -> None:
    for pattern in patterns:
        if why := unusable(pattern):
            reason = f"the log pattern {pattern.name!r} can't be used: {why}"
            raise MalformedHistory(str(run.manifest), "declaration.logs", reason)


def _findings(log: NodeLog, patterns: tuple[LogPattern, ...]) -> Iterator[dict[str, Any]]:
    node, name = log.node, log.name
    size_bytes = log.path.stat().st_size if log.size_bytes is None else log.size_bytes
    kept: dict[str, list[dict[str, Any]]] = {}
    totals: dict[str, int] = {}
    last = 0
    for some in _batches(_lines(log.path, min(size_bytes, FILE_BYTES))):
        lines, last = [line for _, line in some], some[-1][0]
        for pattern in patterns:
            places = matches(lines, pattern)
            if not places:
                continue
            totals[pattern.name] = totals.get(pattern.name, 0) + len(places)
            rows = kept.setdefault(pattern.name, [])
            for place in places[: KEPT_MAX - len(rows)]:
                text = lines[place].decode("utf-8", "replace").strip()[:SHOWN_CHARS]
                rows.append(
                    {"node": node, "file": name, "line": some[place][0], "pattern": pattern.name}
                    | {"breaks": pattern.breaks, "text": text}
                )
    if (left_bytes := size_bytes - FILE_BYTES) > 0:
        text = f"the last {left_bytes} bytes of the file were not looked at"
        kept[NOT_READ] = [
            {"node": node, "file": name, "line": last, "pattern": NOT_READ}
            | {"breaks": False, "text": text}
        ]
        totals[NOT_READ] = 1
    for rows in kept.values():
        yield from (row | {"total": totals[row["pattern"]]} for row in rows)


def _batches(lines: Iterator[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    while some := list(islice(lines, BATCH_LINES)):
        yield some


def _lines(path: Path, left: int) -> Iterator[tuple[int, bytes]]:
    """The lines of the first ``left`` bytes of ``path`` by number, each cut to what is looked
    at.
    """
    number, whole = 1, True
    with open_regular(path) as stream:
        while left > 0 and (piece := stream.readline(min(left, LINE_BYTES))):
            left -= len(piece)
            if whole:
                yield number, piece.removesuffix(b"\n")
            whole = piece.endswith(b"\n")
            number += whole
