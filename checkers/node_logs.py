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


def scan(run: RunDirectory, patterns: Iterable[LogPattern]) -> pa.Table:
    """Every finding in the logs below ``run``. Raises ``MalformedHistory`` for a pattern that is no
    regular expression.
    """
    wanted = tuple(patterns)
    _refuse_unusable(run, wanted)
    rows = [
        row
        for node, path in _files(run)
        for row in _findings(path, wanted, node, path.relative_to(run.root).as_posix())
    ]
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def _refuse_unusable(run: RunDirectory, patterns: Iterable[LogPattern]) -> None:
    for pattern in patterns:
        if why := unusable(pattern):
            reason = f"the log pattern {pattern.name!r} can't be used: {why}"
            raise MalformedHistory(str(run.manifest), "declaration.logs", reason)


def _files(run: RunDirectory) -> Iterator[tuple[str, Path]]:
    parent = run.node("any").parent
    nodes = sorted(path for path in parent.iterdir() if path.is_dir()) if parent.is_dir() else []
    for node in nodes:
        for path in sorted(node.glob("*.log")):
            if path.is_file() and not path.is_symlink():
                yield node.name, path


def _findings(
    path: Path, patterns: tuple[LogPattern, ...], node: str, name: str
) -> Iterator[dict[str, Any]]:
    kept: dict[str, list[dict[str, Any]]] = {}
    totals: dict[str, int] = {}
    last = 0
    for some in _batches(_lines(path)):
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
    if (left_bytes := path.stat().st_size - FILE_BYTES) > 0:
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


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of ``path`` by number, each cut to what is looked at."""
    left, number, whole = FILE_BYTES, 1, True
    with path.open("rb") as stream:
        while left > 0 and (piece := stream.readline(LINE_BYTES)):
            left -= len(piece)
            if whole:
                yield number, piece.removesuffix(b"\n")
            whole = piece.endswith(b"\n")
            number += whole
