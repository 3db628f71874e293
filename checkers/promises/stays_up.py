"""The promise ``stays-up``: a node ends only when a fault, or a person, ends it.

``node-exit`` is a program that ended though no verb of the run ended it, as the provider saw it;
``panic`` is a line of a log that the system itself declares to be one. A fault in force on that
very node explains both, if its kind declares that nodes may not survive it (a disk that fails);
then they are no anomaly. The store's own events explain an exit, too: other nodes refused the node
until its next start, and its own event says that it stopped. Where the disk of the run itself was
full, both are reported and decide nothing, and so are panics in the logs of a run that its
controller did not seal: see ``analyze``.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pyarrow as pa

from checkers.engine.spans import Spans
from harness.errors import MalformedHistory
from harness.history.evidence import NodeLog
from harness.history.load import History
from harness.history.records import EventKind
from harness.history.regular_files import open_or_refuse
from harness.history.run_directory import RunDirectory
from harness.history.store_events import of_kinds, rows_of
from harness.protocols.checker import EXAMPLES_MAX, Kernel, Lookup, Part, Tables
from harness.protocols.cluster import NODE_LOG_BYTES
from harness.protocols.consistency_models import NODE_EXIT, PANIC
from harness.protocols.fault_spans import FaultSpan, fault_spans
from harness.protocols.finding import Finding
from harness.protocols.promise import Declaration, LogPattern
from harness.protocols.setting import Setting
from harness.protocols.verdict import Anomaly, LogLines
from harness.run.log_lines import LOG_LINES
from harness.run.log_patterns import matches, unusable
from harness.text import seconds

LAST_LINES = 5  # of findings in a node's logs, told beside its exit
LIFE = (EventKind.NODE_STARTED, EventKind.NODE_REFUSED, EventKind.NODE_STOPPED)

Row = dict[str, Any]
LINE_BYTES = 4096  # of one line, looked at
SHOWN_CHARS = 400  # of a line, kept
BATCH_LINES = 4096  # matched at once: at most 16 MB
NOT_READ = "not-read"  # the pattern's name for the end of a file that is larger
LAST_WORDS = "last-words"  # and for the last lines of a node that ended by itself
TAIL_BYTES = 16 << 10  # in which these are looked for
KEPT_MAX = 50  # lines of one pattern of one node; the count is of all


@attrs.frozen
class StaysUp:
    """Judges only systems that declare patterns of their logs."""

    name: str = "stays-up"
    kernels: tuple[Kernel, ...] = ()

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Return ``node-exit`` and ``panic``, and under ``node_logs`` every matching line."""
        if patterns_of(setting.declaration) is None:
            return Part()
        lines = tables["log_lines"].to_pylist()
        may_end = {kind.name for kind in setting.fault_kinds if kind.may_end}
        risky = [span for span in fault_spans(tables["faults"].to_pylist()) if span.kind in may_end]
        events = tables["events"]
        exits = rows_of(events, (EventKind.NODE_EXITED,))
        lives = _lives(events) if exits else {}
        excused = _by_node(risky)
        own = [
            row
            for row in exits
            if not (_explained(row, excused) or _gave_way(row, lives.get(row["node"])))
        ]
        panics = [_panic(row) for row in _panics(lines, risky)]
        found = {
            NODE_EXIT: (len(own), [_exit(row, lines) for row in own[:EXAMPLES_MAX]]),
            PANIC: (_count(lines, risky), panics[:EXAMPLES_MAX]),
        }
        return Part(
            anomalies={
                name: Anomaly(count=count, examples=tuple(examples))
                for name, (count, examples) in found.items()
                if examples
            },
            node_logs=_summary(lines),
        )


def _by_node(risky: Iterable[FaultSpan]) -> dict[str, Spans]:
    """Return by node when it was under faults that it may not survive."""
    found: dict[str, list[tuple[int, int | None]]] = {}
    for span in risky:
        for node in span.nodes:
            found.setdefault(node, []).append((span.begin_ns, span.healed_ns))
    return {node: Spans.of(spans) for node, spans in found.items()}


def _explained(row: Row, excused: Mapping[str, Spans]) -> bool:
    """Tell whether a fault that nodes may not survive was in force on the node when it ended."""
    # ``at_ns`` is when the exit was seen: it came some time after the look before.
    first_ns, last_ns = row["at_ns"] - row["uncertainty_ns"], row["at_ns"]
    return excused.get(row["node"], Spans()).any_from_to(last_ns, first_ns)


@attrs.frozen(kw_only=True)
class _Life:
    """A node's starts and ends in order of time, and after each of them whether others had refused
    the node in that life and the store then reported its stop.
    """

    at_ns: list[int] = attrs.Factory(list)
    gave_way: list[bool] = attrs.Factory(list)


def _lives(events: pa.Table) -> dict[str, _Life]:
    """Return by node what the store told of its starts and ends."""
    lives: dict[str, _Life] = {}
    refused: dict[str, bool] = {}
    told = of_kinds(events, LIFE).sort_by("at_ns").select(["node", "kind", "at_ns"])
    for row in told.to_pylist():
        node, kind = row["node"], row["kind"]
        if kind != EventKind.NODE_STOPPED:
            refused[node] = kind == EventKind.NODE_REFUSED
        life = lives.setdefault(node, _Life())
        life.at_ns.append(row["at_ns"])
        life.gave_way.append(kind == EventKind.NODE_STOPPED and refused.get(node, False))
    return lives


def _gave_way(row: Row, life: _Life | None) -> bool:
    """Tell whether the node ended since others had refused it."""
    before = bisect.bisect_right(life.at_ns, row["at_ns"]) if life else 0
    return life is not None and before > 0 and life.gave_way[before - 1]


def _exit(row: Row, lines: list[Row]) -> Finding:
    """Return the finding of an exit, with the last matching lines of the node's logs; where none
    matches, with the last lines.
    """
    said = sorted(
        (line for line in lines if line["node"] == row["node"]),
        key=lambda line: (line["file"], line["line"]),
    )
    said = [line for line in said if line["pattern"] not in (LAST_WORDS, NOT_READ)] or said
    between = f"between {seconds(row['at_ns'] - row['uncertainty_ns'])} and {seconds(row['at_ns'])}"
    return Finding(
        text=f"stays-up: {row['node']} {row['text']} ({between})",
        txns=(),
        keys=(),
        at_ns=row["at_ns"],
        log=tuple(_told(line) for line in said[-LAST_LINES:]),
        node=row["node"],
    )


def _panics(lines: Iterable[Row], risky: Iterable[FaultSpan]) -> Iterator[Row]:
    """Return the lines that break the promise. They have no time on the axis, so any fault that
    nodes may not survive explains them.
    """
    excused = {node for span in risky for node in span.nodes}
    return (line for line in lines if line["breaks"] and line["node"] not in excused)


def _count(lines: list[Row], risky: list[FaultSpan]) -> int:
    # Each row repeats the total of its file and pattern, which counts once.
    totals = {(r["node"], r["file"], r["pattern"]): r["total"] for r in _panics(lines, risky)}
    return sum(totals.values())


def _panic(row: Row) -> Finding:
    return Finding(
        text=f"stays-up: the log of {row['node']} has a line of kind {row['pattern']!r}: "
        f"{_told(row)}",
        txns=(),
        keys=(),
        node=row["node"],
    )


def _told(row: Row) -> str:
    # Of last words the line is no place in the file, but one among its last.
    where = row["file"] if row["pattern"] == LAST_WORDS else f"{row['file']}:{row['line']}"
    return f"{where}: {row['text']}"


def _summary(lines: Iterable[Row]) -> dict[str, dict[str, LogLines]]:
    """Return by node and pattern the number of lines and the first of them."""
    alike: dict[tuple[str, str], list[Row]] = {}
    for row in lines:
        if row["pattern"] == LAST_WORDS:
            continue  # shown beside the exit, no finding in a log
        alike.setdefault((row["node"], row["pattern"]), []).append(row)
    found: dict[str, dict[str, LogLines]] = {}
    for (node, pattern), rows in alike.items():
        files = {row["file"]: row["total"] for row in rows}
        found.setdefault(node, {})[pattern] = LogLines(
            lines=sum(files.values()), first=_told(rows[0]), files=files
        )
    return found


CHECKER = StaysUp()


def patterns_of(declaration: Declaration) -> tuple[LogPattern, ...] | None:
    """Return the patterns that the system declares; ``None`` where it promises nothing about its
    nodes.
    """
    logs = declaration.logs
    return None if isinstance(logs, msgspec.UnsetType) else logs


def scan(history: History, patterns: Iterable[LogPattern]) -> pa.Table:
    """Find the matching lines in the logs of ``history``, as far as they are sealed, and the last
    lines of nodes that ended by themselves. Raises ``MalformedHistory`` for a pattern that is no
    regular expression.
    """
    wanted = tuple(patterns)
    _refuse_unusable(history.run, wanted)
    rows = [row for log in history.logs.files for row in _findings(log, wanted)]
    if wanted:
        exits = of_kinds(history.events(("kind", "node")), (EventKind.NODE_EXITED,))
        ended = frozenset(exits["node"].unique().to_pylist())
        rows += [row for log in history.logs.files if log.node in ended for row in _tail(log)]
    return pa.Table.from_pylist(rows, schema=LOG_LINES)


def _tail(log: NodeLog) -> Iterator[Row]:
    """Yield the last lines of a log that are not blank, numbered from the part that is read."""
    size_bytes = log.path.stat().st_size if log.size_bytes is None else log.size_bytes
    with open_or_refuse(log.path) as stream:
        skipped = max(0, size_bytes - TAIL_BYTES)
        stream.seek(skipped)
        lines = stream.read(size_bytes - skipped).splitlines()
    # The first line of a part is a part of a line.
    numbered = list(enumerate(lines, 1))[bool(skipped) :]
    last = [(number, line) for number, line in numbered if line.strip()][-LAST_LINES:]
    for number, line in last:
        text = line.decode("utf-8", "replace").strip()[:SHOWN_CHARS]
        yield (
            {"node": log.node, "file": log.name, "line": number, "pattern": LAST_WORDS}
            | {"breaks": False, "text": text, "total": len(last)}
        )


def _refuse_unusable(run: RunDirectory, patterns: Iterable[LogPattern]) -> None:
    for pattern in patterns:
        if why := unusable(pattern):
            reason = f"the log pattern {pattern.name!r} can't be used: {why}"
            raise MalformedHistory(str(run.manifest), "declaration.logs", reason)


def _findings(log: NodeLog, patterns: tuple[LogPattern, ...]) -> Iterator[dict[str, Any]]:
    node, name = log.node, log.name
    # Only what was sealed: the node may have written on since.
    size_bytes = log.path.stat().st_size if log.size_bytes is None else log.size_bytes
    kept: dict[str, list[dict[str, Any]]] = {}
    totals: dict[str, int] = {}
    last = 0
    for some in _batches(_lines(log.path, min(size_bytes, NODE_LOG_BYTES))):
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
    if (left_bytes := size_bytes - NODE_LOG_BYTES) > 0:
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
    """Yield the lines of the first ``left`` bytes of ``path`` by number, each cut to the examined
    length.
    """
    number, whole = 1, True
    with open_or_refuse(path) as stream:
        while left > 0 and (piece := stream.readline(min(left, LINE_BYTES))):
            left -= len(piece)
            if whole:
                yield number, piece.removesuffix(b"\n")
            whole = piece.endswith(b"\n")
            number += whole
