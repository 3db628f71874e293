"""Anomalies as cards: the promise, the operations that prove it, the store's events around them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import attrs
import msgspec
import pyarrow as pa
from markupsafe import Markup

from harness.protocols.verdict import Anomaly
from harness.text import in_seconds
from results.drawing import cycle, lanes
from results.drawing.axis import Scale
from results.report import event_context
from results.report.run_data import RunData
from results.report.steps import Step, Telling, parting
from results.report.tabulate import DASH, cell, words

EXAMPLES_MAX = 5  # of one anomaly; the verdict and the tables behind it hold the rest
OPERATIONS_MAX = 12  # of one example; a longer cycle is unreadable
DRAWN_MAX_BYTES = 700_000  # of all drawings of a page; later examples have words alone
DRAWN_FIRST_BYTES = 350_000  # of these, kept for the first example of each name
TOTAL = "bank-total"
BALANCES = frozenset({TOTAL, "lost-write"})  # the latter also of lists, which tell their value
ACCOUNTS_MAX = 16  # of one bank, looked at for writes that were missed
MISSED_MAX = 4
TICKS_MAX = 60  # events of the store in one drawing
EVENTS_MAX = 12  # of the store around one example
CLAUSES_MAX = 30
FACTS_MAX = 60
QUOTES_MAX = 10
EDGES = frozenset({"cycle"})  # the same as the clauses, for machines
SHOWN_ELSEWHERE = frozenset({"text", "txns", "keys", "operations", "value", "element"}) | {
    "ack_ns", "read_ns", "log",
}  # fmt: skip


@attrs.frozen(kw_only=True)
class Operation:
    """A transaction as a row: every field is text."""

    txn: str
    process: str
    node: str
    type: str
    error: str
    invoke: str
    complete: str
    steps: tuple[Step, ...]


@attrs.frozen(kw_only=True)
class Event:
    """An event of the store."""

    number: int
    at: str
    node: str
    kind: str
    where: str
    text: str


@attrs.frozen(kw_only=True)
class Example:
    """One proven anomaly. ``clauses`` are the steps of a long text, ``facts`` the checker's other
    fields. ``cycle`` and ``lanes`` are drawings, ``None`` where there is nothing to draw, or no
    room left on the page (``undrawn``). ``quotes`` are lines of a node's log.
    """

    text: str
    clauses: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    operations: tuple[Operation, ...]
    operations_more: int
    events: tuple[Event, ...]
    events_more: int
    cycle: Markup | None = None
    lanes: Markup | None = None
    undrawn: bool = False
    quotes: tuple[str, ...] = ()


@attrs.frozen(kw_only=True)
class Card:
    """All anomalies of one name. ``decides``: they rule out the promised model."""

    name: str
    count: int
    decides: bool
    examples: tuple[Example, ...]


def cards(material: RunData) -> tuple[Card, ...]:
    """Return first the anomalies that decide the outcome, then those observed beside them."""
    verdict = material.verdict
    if verdict is None:
        return ()
    found = [(name, anomaly, True) for name, anomaly in plainest_first(verdict.anomalies)]
    found += [(name, anomaly, False) for name, anomaly in plainest_first(verdict.observed)]
    found = [(name, _moments(material, name, anomaly), decides) for name, anomaly, decides in found]
    shown = [example for _, anomaly, _ in found for example in anomaly.examples[:EXAMPLES_MAX]]
    operations = material.operations(txn for example in shown for txn in _txns(example))
    board = _Board(material)
    return tuple(
        Card(
            name=name,
            count=anomaly.count,
            decides=decides,
            examples=tuple(
                _example(material, example, operations, board.opened(place))
                for place, example in enumerate(anomaly.examples[:EXAMPLES_MAX])
            ),
        )
        for name, anomaly, decides in found
    )


def _moments(material: RunData, name: str, anomaly: Anomaly) -> Anomaly:
    """Return the same anomalies, and with the first example of wrong balances the missed writes."""
    if name not in BALANCES or not anomaly.examples or "value" in anomaly.examples[0]:
        return anomaly
    first, *rest = anomaly.examples
    keys = [key for key in first.get("keys", ()) if isinstance(key, int)][:ACCOUNTS_MAX]
    reader = next(iter(_txns(first)), None) if name == TOTAL else None
    found = [missed for key in keys if (missed := material.missed(key, reader))]
    if not found:
        return anomaly
    told = [
        {
            "text": f"T{m.reader} found {'nothing' if m.found is None else m.found} in account"
            f" {m.key}, after T{m.writer} was acknowledged to leave {m.left}"
        }
        for m in found[:MISSED_MAX]
    ]
    more = [txn for m in found[:MISSED_MAX] for txn in (m.writer, m.reader)]
    txns = list(dict.fromkeys([*_txns(first), *more]))
    examples = (dict(first) | {"where_it_parts": told, "txns": txns}, *rest)
    return msgspec.structs.replace(anomaly, examples=examples)


def plainest_first(anomalies: Mapping[str, Anomaly]) -> list[tuple[str, Anomaly]]:
    """Sort first examples that a reset explains, then those that a fault does, then those without a
    cycle, then by the number of operations: a lost write is read sooner than a cycle of fourteen
    transactions.
    """

    def key(item: tuple[str, Anomaly]) -> tuple[bool, bool, bool, int, str]:
        first = next(iter(item[1].examples), {})
        explained = first.get("explained_by")
        reset = isinstance(explained, Mapping) and "reset" in explained
        return not reset, explained is None, "cycle" in first, len(first.get("txns", ())), item[0]

    return sorted(anomalies.items(), key=key)


def headlines(anomalies: Mapping[str, Anomaly]) -> list[str]:
    """Return one sentence for each name: the count, the first example, and the fault that explains
    it.
    """
    found = []
    for name, anomaly in plainest_first(anomalies):
        first: Mapping[str, Any] = next(iter(anomaly.examples), {})
        text, _ = clauses(str(first.get("text", "")))
        explained = first.get("explained_by")
        why = explained.get("text", "") if isinstance(explained, Mapping) else ""
        found.append("; ".join(filter(None, (f"{name} ({anomaly.count}): {text}", why))))
    return found


def other_reasons(reasons: Sequence[str], anomalies: Mapping[str, Anomaly]) -> list[str]:
    """Return the reasons that don't just quote an anomaly."""
    quoting = tuple(f"{name} (" for name in anomalies)
    return [reason for reason in reasons if not reason.startswith(quoting)]


def clauses(text: str) -> tuple[str, tuple[str, ...]]:
    """Split a long text of the form ``promise: meaning: step; step; step`` into head and steps."""
    first, *rest = text.split("; ")
    head, colon, step = first.rpartition(": ")
    if not (rest and colon):
        return text, ()
    return head, (step, *rest)


def event_rows(events: pa.Table, limit: int) -> tuple[tuple[Event, ...], int]:
    """Return the first ``limit`` events as rows, and how many more there are."""
    shown = enumerate(events.slice(0, limit).to_pylist(), start=1)
    return tuple(_event(number, row) for number, row in shown), max(0, events.num_rows - limit)


def seconds(at_ns: int | None) -> str:
    """Format a time on the run's axis, in seconds."""
    return DASH if at_ns is None else in_seconds(at_ns)


def _txns(example: Mapping[str, Any]) -> list[int]:
    """Return the transactions to show: of too many the first and the last."""
    found = [txn for txn in example.get("txns", ()) if isinstance(txn, int)]
    half = OPERATIONS_MAX // 2
    return found if len(found) <= OPERATIONS_MAX else found[:half] + found[-half:]


class _Board:
    """Draws as long as there is room for drawings on the page."""

    def __init__(self, material: RunData) -> None:
        self._scale = material.scale
        self._windows = material.windows()
        self._left_bytes, self._kept_bytes = DRAWN_MAX_BYTES, 0

    def opened(self, place: int) -> _Board:
        """Return this board for the example at ``place`` under its name: the page shows the first
        one open.
        """
        self._kept_bytes = DRAWN_FIRST_BYTES if place else 0
        return self

    def cycle(
        self, example: Mapping[str, Any], rows: Mapping[int, Mapping[str, Any]], telling: Telling
    ) -> Markup | None:
        """Return the cycle of an example, if it is one."""
        edges = cycle.edges_of(example)
        return self._paid(cycle.draw(edges, rows, telling)) if edges and self.room else None

    def lanes(
        self,
        example: Mapping[str, Any],
        rows: Sequence[Mapping[str, Any]],
        events: pa.Table,
        telling: Telling,
    ) -> Markup | None:
        """Return the timeline of ``rows``."""
        if not (rows and self.room):
            return None
        explained = example.get("explained_by")
        times = events["at_ns"].slice(0, TICKS_MAX).to_pylist()
        stage = lanes.Stage(
            operations=rows,
            faults=self._windows,
            ticks=[
                lanes.Tick(at=at_ns, number=n if n <= EVENTS_MAX else None)
                for n, at_ns in enumerate(times, start=1)
            ],
            telling=telling,
            scale=self._scale,
            explained_by=explained.get("fault") if isinstance(explained, Mapping) else None,
        )
        return self._paid(lanes.draw(stage))

    @property
    def room(self) -> bool:
        """Whether there is room for another drawing."""
        return self._left_bytes > self._kept_bytes

    def _paid(self, drawing: Markup) -> Markup:
        self._left_bytes -= len(drawing)
        return drawing


def _example(
    material: RunData,
    example: Mapping[str, Any],
    operations: Mapping[int, Mapping[str, Any]],
    board: _Board,
) -> Example:
    found = [operations[txn] for txn in dict.fromkeys(_txns(example)) if txn in operations]
    found.sort(key=lambda row: (row["invoke_ns"], row["txn"]))
    keys = tuple(key for key in example.get("keys", ()) if isinstance(key, int))
    telling = Telling(keys=keys, parts=_places(example, keys, found), names=material.key_names)
    causes_ns = event_context.moments_of_resets(example)
    near = event_context.events(material, found, example.get("at_ns"), causes_ns)
    shown = event_context.rarest(near, EVENTS_MAX, causes_ns)
    events, _ = event_rows(shown, EVENTS_MAX)
    text, steps = clauses(str(example.get("text", "")))
    ring = board.cycle(example, operations, telling)
    timeline = board.lanes(example, found, shown, telling)
    return Example(
        text=text,
        clauses=steps[:CLAUSES_MAX],
        facts=(*_named(keys, material), *_facts(example, EDGES if steps or ring else frozenset())),
        operations=tuple(_operation(row, telling, material.scale) for row in found),
        operations_more=max(0, len(example.get("txns", ())) - OPERATIONS_MAX),
        events=events,
        events_more=near.num_rows - len(events),
        undrawn=bool(found) and timeline is None,
        cycle=ring,
        lanes=timeline,
        quotes=tuple(str(line) for line in example.get("log", ())[:QUOTES_MAX]),
    )


def _places(
    example: Mapping[str, Any], keys: Sequence[int], rows: Sequence[Mapping[str, Any]]
) -> dict[int, int]:
    """Return the positions around which long lists must be shown: where they contradict each other,
    or where the element of the example stands.
    """
    element = example.get("element", example.get("value"))
    steps = [s for row in rows for s in row["ops"] if s["key"] in keys and s["elements"]]
    seen = {s["key"]: s["elements"].index(element) for s in steps if element in s["elements"]}
    return seen | parting(rows)


def _named(keys: Collection[int], material: RunData) -> list[tuple[str, str]]:
    """Return the names of an example's keys in their history, where those are no integers."""
    named = [key for key in keys if key in material.key_names]
    return [(f"key {key}", f"is {material.key_names[key]} in the file") for key in named]


def _facts(example: Mapping[str, Any], hidden: Collection[str]) -> list[tuple[str, str]]:
    """Return the other fields of an example: the fault that explains it, the edges of a cycle."""
    found = []
    for name, value in example.items():
        if name in SHOWN_ELSEWHERE or name in hidden or value in (None, "", [], {}):
            continue
        items = value if isinstance(value, list | tuple) else [value]
        for place, item in enumerate(items):
            told = isinstance(item, Mapping) and "text" in item
            text = str(item["text"]) if told else cell(name, item)
            found.append((words(name) if place == 0 else "", text))
    return found[:FACTS_MAX]


def _operation(row: Mapping[str, Any], telling: Telling, scale: Scale) -> Operation:
    begin, end = ("invoke_ns", "complete_ns") if scale.timed else ("invoke_index", "complete_index")
    return Operation(
        txn=str(row["txn"]),
        process=str(row["process"]),
        node=str(row["node"]),
        type=str(row["type"]),
        error=row["error"] or "",
        invoke=scale.at(row[begin]),
        complete=scale.at(row[end]),
        steps=tuple(telling.steps(row["ops"])),
    )


def _event(number: int, row: Mapping[str, Any]) -> Event:
    where = [] if row["partition"] is None else [f"partition {row['partition']}"]
    where += [] if row["term"] is None else [f"term {row['term']}"]
    return Event(
        number=number,
        at=seconds(row["at_ns"]),
        node=row["node"],
        kind=row["kind"],
        where=", ".join(where),
        text=row["text"],
    )
