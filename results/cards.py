"""Anomalies as cards: the promise, the operations that prove it, what the store did then."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from harness.checking import Anomaly
from results.material import Material
from results.tabulate import DASH, cell, words

NS = 1e9
EXAMPLES_MAX = 5  # of one anomaly; the verdict and the tables behind it hold the rest
OPERATIONS_MAX = 12  # of one example; a cycle longer than this nobody follows
SHORT = 4  # micro-operations that are shown whole
STEPS_MAX = 16  # micro-operations of one transaction
ELEMENTS_MAX = 14  # of one list that was read, its end
EVENTS_MAX = 12  # of the store around one example
AROUND_NS = 1_000_000_000  # a leader change shows about a second before it hurts
CLAUSES_MAX = 30
EDGES = frozenset({"cycle"})  # the same as the clauses, for machines
SHOWN_ELSEWHERE = frozenset({"text", "txns", "keys", "operations", "value", "element"}) | {
    "ack_ns", "read_ns",
}  # fmt: skip


@attrs.frozen
class Step:
    """A micro-operation; ``hot`` where its key is what the anomaly is about."""

    text: str
    hot: bool = False


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
    """Something the store did."""

    at: str
    node: str
    kind: str
    where: str
    text: str


@attrs.frozen(kw_only=True)
class Example:
    """One proven anomaly. ``clauses`` are the steps of a long text, ``facts`` whatever else the
    checker had to say.
    """

    text: str
    clauses: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    operations: tuple[Operation, ...]
    operations_more: int
    events: tuple[Event, ...]
    events_more: int


@attrs.frozen(kw_only=True)
class Card:
    """All anomalies of one name. ``decides``: they rule out what was promised."""

    name: str
    count: int
    decides: bool
    examples: tuple[Example, ...]


def cards(material: Material) -> tuple[Card, ...]:
    """First what decides the outcome, then what was observed beside it."""
    verdict = material.verdict
    if verdict is None:
        return ()
    found = [(name, anomaly, True) for name, anomaly in plainest_first(verdict.anomalies)]
    found += [(name, anomaly, False) for name, anomaly in plainest_first(verdict.observed)]
    shown = [example for _, anomaly, _ in found for example in anomaly.examples[:EXAMPLES_MAX]]
    operations = material.operations(txn for example in shown for txn in _txns(example))
    return tuple(
        Card(
            name=name,
            count=anomaly.count,
            decides=decides,
            examples=tuple(
                _example(material, example, operations)
                for example in anomaly.examples[:EXAMPLES_MAX]
            ),
        )
        for name, anomaly, decides in found
    )


def plainest_first(anomalies: Mapping[str, Anomaly]) -> list[tuple[str, Anomaly]]:
    """What a fault explains first, then by how few operations prove it: a lost write is read
    sooner than a cycle of fourteen transactions.
    """

    def key(item: tuple[str, Anomaly]) -> tuple[bool, int, str]:
        first = next(iter(item[1].examples), {})
        return "explained_by" not in first, len(first.get("txns", ())), item[0]

    return sorted(anomalies.items(), key=key)


def headlines(anomalies: Mapping[str, Anomaly]) -> list[str]:
    """One sentence for each name: how many, the first of them, and the fault that explains it."""
    found = []
    for name, anomaly in plainest_first(anomalies):
        first: Mapping[str, Any] = next(iter(anomaly.examples), {})
        text, _ = clauses(str(first.get("text", "")))
        explained = first.get("explained_by")
        why = explained.get("text", "") if isinstance(explained, Mapping) else ""
        found.append("; ".join(filter(None, (f"{name} ({anomaly.count}): {text}", why))))
    return found


def other_reasons(reasons: Sequence[str], anomalies: Mapping[str, Anomaly]) -> list[str]:
    """The reasons that don't just quote an anomaly."""
    quoting = tuple(f"{name} (" for name in anomalies)
    return [reason for reason in reasons if not reason.startswith(quoting)]


def clauses(text: str) -> tuple[str, tuple[str, ...]]:
    """A long text of the form ``promise: meaning: step; step; step`` as head and steps."""
    first, *rest = text.split("; ")
    head, colon, step = first.rpartition(": ")
    if not (rest and colon):
        return text, ()
    return head, (step, *rest)


def event_rows(events: pa.Table, limit: int) -> tuple[tuple[Event, ...], int]:
    """The first ``limit`` events as rows, and how many more there are."""
    rows = tuple(_event(row) for row in events.slice(0, limit).to_pylist())
    return rows, max(0, events.num_rows - limit)


def seconds(at_ns: int | None) -> str:
    """A time on the run's axis, in seconds."""
    return DASH if at_ns is None else f"{at_ns / NS:.3f}"


def _txns(example: Mapping[str, Any]) -> list[int]:
    return [txn for txn in example.get("txns", ()) if isinstance(txn, int)][:OPERATIONS_MAX]


def _example(
    material: Material, example: Mapping[str, Any], operations: Mapping[int, Mapping[str, Any]]
) -> Example:
    keys = tuple(example.get("keys", ()))
    found = [operations[txn] for txn in dict.fromkeys(_txns(example)) if txn in operations]
    found.sort(key=lambda row: (row["invoke_ns"], row["txn"]))
    events, events_more = _events_around(material, found)
    text, steps = clauses(str(example.get("text", "")))
    return Example(
        text=text,
        clauses=steps[:CLAUSES_MAX],
        facts=tuple(_facts(example, hidden=EDGES if steps else frozenset())),
        operations=tuple(_operation(row, keys, parting(found)) for row in found),
        operations_more=max(0, len(example.get("txns", ())) - OPERATIONS_MAX),
        events=events,
        events_more=events_more,
    )


def _facts(example: Mapping[str, Any], hidden: Collection[str]) -> list[tuple[str, str]]:
    """The other fields of an example: the fault that explains it, the edges of a cycle."""
    found = []
    for name, value in example.items():
        if name in SHOWN_ELSEWHERE or name in hidden or value in (None, "", [], {}):
            continue
        items = value if isinstance(value, list | tuple) else [value]
        for place, item in enumerate(items):
            told = isinstance(item, Mapping) and "text" in item
            text = str(item["text"]) if told else cell(name, item)
            found.append((words(name) if place == 0 else "", text))
    return found


def parting(rows: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """For each key of which ``rows`` read lists that contradict each other, the first position
    where they do: what a reader must see of long lists.
    """
    longest: dict[int, Sequence[int]] = {}
    found: dict[int, int] = {}
    for step in (step for row in rows for step in row["ops"] if step["elements"] is not None):
        key, elements = step["key"], step["elements"]
        other = longest.setdefault(key, elements)
        pairs = enumerate(zip(elements, other, strict=False))
        differs = next((at for at, (a, b) in pairs if a != b), None)
        if differs is not None:
            found[key] = min(differs, found.get(key, differs))
        elif len(elements) > len(other):
            longest[key] = elements
    return found


def _operation(
    row: Mapping[str, Any], keys: Collection[int], parts: Mapping[int, int]
) -> Operation:
    return Operation(
        txn=str(row["txn"]),
        process=str(row["process"]),
        node=str(row["node"]),
        type=str(row["type"]),
        error=row["error"] or "",
        invoke=seconds(row["invoke_ns"]),
        complete=seconds(row["complete_ns"]),
        steps=tuple(_steps(row["ops"], keys, parts)),
    )


def _steps(
    ops: Sequence[Mapping[str, Any]], keys: Collection[int], parts: Mapping[int, int]
) -> Iterator[Step]:
    """The micro-operations; of a long transaction only those on the keys in question."""
    hot = [step for step in ops if step["key"] in keys]
    shown = hot if hot and len(ops) > SHORT else ops
    yield from (Step(_step(step, parts), step["key"] in keys) for step in shown[:STEPS_MAX])
    rest = len(ops) - len(shown[:STEPS_MAX])
    if rest:
        yield Step(f"… and {rest} more")


def _step(step: Mapping[str, Any], parts: Mapping[int, int]) -> str:
    """A micro-operation in the field's own hand: ``append 7 31``, ``r 7 [1 2 31]``."""
    f, key, value, elements = step["f"], step["key"], step["value"], step["elements"]
    if elements is not None:
        return f"{f} {key} {_elements(elements, parts.get(key))}"
    if value is None:
        return f"{f} {key} ?" if f == "r" else f"{f} {key}"
    return f"{f} {key} {value}"


def _elements(elements: Sequence[int], part: int | None) -> str:
    """A list, or of a long one its end; around ``part`` where it parts from another."""
    start = max(0, len(elements) - ELEMENTS_MAX)
    if part is not None:
        start = min(start, max(0, part - ELEMENTS_MAX // 2))
    shown = elements[start : start + ELEMENTS_MAX]
    after = len(elements) - start - len(shown)
    before = f"… {start} before, " if start else ""
    behind = f", … {after} after" if after else ""
    return f"[{before}{' '.join(map(str, shown))}{behind}]"


def _events_around(
    material: Material, operations: Sequence[Mapping[str, Any]]
) -> tuple[tuple[Event, ...], int]:
    """What the store did from just before the first operation to just after the last, in the
    partitions that they touch or in none in particular.
    """
    if not operations:
        return (), 0
    events = material.events
    start = min(row["invoke_ns"] for row in operations) - AROUND_NS
    end = max(row["complete_ns"] for row in operations) + AROUND_NS
    touched = sorted(
        {s["partition"] for row in operations for s in row["ops"] if s["partition"] is not None}
    )
    near = pc.and_(pc.greater_equal(events["at_ns"], start), pc.less_equal(events["at_ns"], end))
    here = pc.is_in(events["partition"], value_set=pa.array(touched, pa.int32()))
    nowhere = pc.is_null(events["partition"])
    return event_rows(events.filter(pc.and_(near, pc.or_(here, nowhere))), EVENTS_MAX)


def _event(row: Mapping[str, Any]) -> Event:
    where = [] if row["partition"] is None else [f"partition {row['partition']}"]
    where += [] if row["term"] is None else [f"term {row['term']}"]
    return Event(
        at=seconds(row["at_ns"]),
        node=row["node"],
        kind=row["kind"],
        where=", ".join(where),
        text=row["text"],
    )
