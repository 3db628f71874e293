"""Anomalies as cards: the promise, the operations that prove it, the store's events around them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

import attrs
import msgspec
import pyarrow as pa
from markupsafe import Markup

from harness.protocols import cycle_words
from harness.protocols.consistency_models import BANK_TOTAL, LOST_WRITE
from harness.protocols.finding import Finding
from harness.protocols.verdict import Anomaly
from harness.text import in_seconds, inert
from results.drawing import cycle, lanes
from results.drawing.axis import Scale
from results.drawing.operation_texts import MicroOpFormat, Step, parting
from results.report import event_context, key_history
from results.report.key_history import KeyHistory
from results.report.limit_rows import with_unit
from results.report.missed import MissedWrite
from results.report.run_data import RunData
from results.report.tabulate import DASH, cell, words

T = TypeVar("T")

NOTHING = Finding(text="", txns=(), keys=())
CARDS_MAX = 60  # the built-in checkers know some fifty names
EXAMPLES_MAX = 5  # of one anomaly; the verdict and the tables behind it hold the rest
OPERATIONS_MAX = 12  # of one example; a longer cycle is unreadable
DRAWN_MAX_BYTES = 700_000  # of all drawings of a page; later examples have words alone
DRAWN_FIRST_BYTES = 350_000  # of these, kept for the first example of each name
ACCOUNTS_MAX = 16  # of one bank, looked at for writes that were missed
MISSED_MAX = 4
TICKS_MAX = 60  # events of the store in one drawing
EVENTS_MAX = 12  # of the store around one example
CLAUSES_MAX = 30
OF_LIMIT = ("allowed", "measured")  # details in the unit of the limit that a breach names
WINDOW = ("window_start_ns", "window_end_ns")  # of a breach: two details that are one fact
ANCHOR_CHARS = 40
FACTS_MAX = 60
QUOTES_MAX = 10


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
    """One proven anomaly. ``clauses`` are the steps of a cycle, ``facts`` the checker's other
    figures. ``cycle`` and ``lanes`` are drawings, ``None`` where there is nothing to draw, or no
    room left on the page (``undrawn``). ``quotes`` are lines of a node's log, ``keys`` the other
    operations on its keys, of the first examples.
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
    keys: tuple[KeyHistory, ...] = ()


@attrs.frozen(kw_only=True)
class Card:
    """All anomalies of one name. ``decides``: they rule out the promised model. ``anchor`` is its
    place on the page: a plug-in may name an anomaly as it likes, also as a section.
    """

    name: str
    anchor: str
    count: int
    decides: bool
    examples: tuple[Example, ...]


def cards(run_data: RunData) -> tuple[Card, ...]:
    """Return first the anomalies that decide the outcome, then those observed beside them;
    ``CARDS_MAX`` at most.
    """
    verdict = run_data.verdict
    if verdict is None:
        return ()
    found = [(name, anomaly, True) for name, anomaly in plainest_first(verdict.anomalies)]
    found += [(name, anomaly, False) for name, anomaly in plainest_first(verdict.observed)]
    found = found[:CARDS_MAX]
    shown = [
        (name, [_Shown.of(run_data, name, e, place) for place, e in enumerate(_examples(anomaly))])
        for name, anomaly, _ in found
    ]
    every = (each for _, these in shown for each in these)
    # For all examples together, since each call reads every split.
    operations = run_data.operations(txn for each in every for txn in _some(each.txns))
    board = _Board(run_data)
    return tuple(
        Card(
            name=name,
            anchor=f"anomaly-{place}-{_slug(name)}",
            count=anomaly.count,
            decides=decides,
            examples=tuple(
                _example(run_data, each, operations, board.opened(place))
                for place, each in enumerate(these)
            ),
        )
        for place, ((_, anomaly, decides), (name, these)) in enumerate(
            zip(found, shown, strict=True), start=1
        )
    )


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower())[:ANCHOR_CHARS].strip("-")


def _examples(anomaly: Anomaly) -> tuple[Finding, ...]:
    return anomaly.examples[:EXAMPLES_MAX]


@attrs.frozen(kw_only=True)
class _Shown:
    """A finding of the anomaly ``name``, its transactions, and the writes that its reads of
    balances ``missed``.
    """

    name: str
    finding: Finding
    txns: tuple[int, ...]
    missed: tuple[MissedWrite, ...] = ()
    first: bool = False

    @classmethod
    def of(cls, run_data: RunData, name: str, finding: Finding, place: int) -> _Shown:
        # Only for the first example, which the page shows open: each key costs a read of its split.
        missed = () if place else tuple(_missed(run_data, name, finding))
        more = (txn for each in missed for txn in (each.writer, each.reader))
        txns = dict.fromkeys([*_some(finding.txns), *more]) if missed else finding.txns
        return cls(name=name, finding=finding, txns=tuple(txns), missed=missed, first=not place)


def _missed(run_data: RunData, name: str, finding: Finding) -> Iterator[MissedWrite]:
    """Yield the writes of accounts that a wrong balance missed."""
    # A lost write of a list tells its value; one of an account does not.
    if name not in (BANK_TOTAL, LOST_WRITE) or finding.value is not None:
        return iter(())
    reader = next(iter(finding.txns), None) if name == BANK_TOTAL else None
    found = (run_data.missed(key, reader) for key in finding.keys[:ACCOUNTS_MAX])
    return islice((missed for missed in found if missed), MISSED_MAX)


def plainest_first(anomalies: Mapping[str, Anomaly]) -> list[tuple[str, Anomaly]]:
    """Sort first examples that a reset explains, then those that a fault does, then those without a
    cycle, then by the number of operations: a lost write is read sooner than a cycle of fourteen
    transactions.
    """

    def key(item: tuple[str, Anomaly]) -> tuple[bool, bool, bool, int, str]:
        first = next(iter(item[1].examples), NOTHING)
        explained = first.explained_by
        reset = explained is not None and explained.reset is not None
        by_none = explained is None or explained.no_fault
        return not reset, by_none, bool(first.cycle), len(first.txns), item[0]

    return sorted(anomalies.items(), key=key)


def headlines(anomalies: Mapping[str, Anomaly]) -> Iterator[str]:
    """Yield one sentence for each name: the count, the first example, and the fault that explains
    it.
    """
    for name, anomaly in plainest_first(anomalies):
        first = next(iter(anomaly.examples), NOTHING)
        text, _ = clauses(name, first)
        why = first.explained_by.text if first.explained_by else ""
        yield "; ".join(filter(None, (f"{name} ({anomaly.count}): {text}", why)))


def clauses(
    name: str, finding: Finding, named: Callable[[int], str] = str
) -> tuple[str, tuple[str, ...]]:
    """Return the broken promise of a cycle and its steps, where its text says no more than these;
    of any other finding of the anomaly ``name`` the text alone.
    """
    promise = cycle_words.promise(name, finding.operations)
    # The first condition alone spares the words of a cycle of a hundred thousand from elsewhere.
    if finding.text.startswith(f"{promise}: ") and finding.cycle:
        steps = cycle_words.steps(finding.cycle, finding.operations, named)
        if finding.text == cycle_words.sentence(name, steps, finding.operations):
            return promise, steps
    return finding.text, ()


def event_rows(events: pa.Table, limit: int) -> tuple[tuple[Event, ...], int]:
    """Return the first ``limit`` events as rows, and how many more there are."""
    shown = enumerate(events.slice(0, limit).to_pylist(), start=1)
    return tuple(_event(number, row) for number, row in shown), max(0, events.num_rows - limit)


def seconds(at_ns: int | None) -> str:
    """Format a time on the run's axis, in seconds."""
    return DASH if at_ns is None else in_seconds(at_ns)


def _some(txns: tuple[int, ...]) -> tuple[int, ...]:
    """Return the transactions to show: of too many the first and the last."""
    half = OPERATIONS_MAX // 2
    return txns if len(txns) <= OPERATIONS_MAX else txns[:half] + txns[-half:]


class _Board:
    """Draws as long as there is room for drawings on the page."""

    def __init__(self, run_data: RunData) -> None:
        self._scale = run_data.scale
        self._windows = run_data.windows()
        self._left_bytes, self._kept_bytes = DRAWN_MAX_BYTES, 0

    def opened(self, place: int) -> _Board:
        """Return this board for the example at ``place`` under its name: the page shows the first
        one open.
        """
        self._kept_bytes = DRAWN_FIRST_BYTES if place else 0
        return self

    def cycle(
        self, finding: Finding, rows: Mapping[int, Mapping[str, Any]], telling: MicroOpFormat
    ) -> Markup | None:
        """Return the cycle of a finding, if it has one."""
        edges = finding.cycle
        drawn = cycle.closed(edges) and self.room
        return self._paid(cycle.draw(edges, rows, telling)) if drawn else None

    def lanes(
        self,
        finding: Finding,
        rows: Sequence[Mapping[str, Any]],
        events: pa.Table,
        telling: MicroOpFormat,
    ) -> Markup | None:
        """Return the timeline of ``rows``."""
        if not (rows and self.room):
            return None
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
            explained_by=finding.explained_by.fault if finding.explained_by else None,
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
    run_data: RunData,
    given: _Shown,
    operations: Mapping[int, Mapping[str, Any]],
    board: _Board,
) -> Example:
    finding = given.finding
    found = [operations[txn] for txn in dict.fromkeys(_some(given.txns)) if txn in operations]
    found.sort(key=lambda row: (row["invoke_ns"], row["txn"]))
    keys = frozenset(finding.keys)
    telling = MicroOpFormat(
        keys=keys, parts=_places(finding, keys, found), names=run_data.key_names
    )
    causes_ns = event_context.moments_of_resets(finding.explained_by)
    near = event_context.events(run_data, found, finding.at_ns, causes_ns)
    shown = event_context.rarest(near, EVENTS_MAX, causes_ns)
    events, _ = event_rows(shown, EVENTS_MAX)
    text, steps = clauses(given.name, finding, partial(_key_name, run_data))
    ring = board.cycle(finding, operations, telling)
    timeline = board.lanes(finding, found, shown, telling)
    facts = chain(_named(finding, run_data), _facts(given, edges=not (steps or ring)))
    return Example(
        text=text,
        clauses=_first(steps, CLAUSES_MAX, "{} more steps".format),
        facts=_first(
            tuple(facts),
            FACTS_MAX,
            lambda more: ("and", f"{more} more"),
            unread=max(0, len(finding.details) - FACTS_MAX),
        ),
        operations=tuple(_operation(row, telling, run_data.scale) for row in found),
        operations_more=max(0, len(given.txns) - OPERATIONS_MAX),
        events=events,
        events_more=near.num_rows - len(events),
        undrawn=bool(found) and timeline is None,
        cycle=ring,
        lanes=timeline,
        quotes=_first(finding.log, QUOTES_MAX, "… and {} more lines".format),
        keys=tuple(key_history.histories(run_data, finding.keys, given.txns, telling))
        if given.first
        else (),
    )


def _first(
    rows: Sequence[T], limit: int, more: Callable[[int], T], unread: int = 0
) -> tuple[T, ...]:
    """Return the first ``limit`` of ``rows``, and in a last one how many more there are, with those
    that were not read.
    """
    left_out = max(0, len(rows) - limit) + unread
    return (*rows[:limit], more(left_out)) if left_out else tuple(rows)


def _places(
    finding: Finding, keys: Collection[int], rows: Sequence[Mapping[str, Any]]
) -> dict[int, int]:
    """Return the positions around which long lists must be shown: where they contradict each other,
    or where the element of the finding stands.
    """
    element = finding.value if finding.element is None else finding.element
    steps = [s for row in rows for s in row["ops"] if s["key"] in keys and s["elements"]]
    seen = {s["key"]: s["elements"].index(element) for s in steps if element in s["elements"]}
    # Where lists contradict each other outweighs where the element stands.
    return seen | parting(rows)


def _key_name(run_data: RunData, key: int) -> str:
    return inert(run_data.key_names[key]) if key in run_data.key_names else str(key)


def _named(finding: Finding, run_data: RunData) -> Iterator[tuple[str, str]]:
    """Yield the names of a finding's keys in their history, where those are no integers."""
    for key in finding.keys if run_data.key_names else ():
        if key in run_data.key_names:
            yield f"key {key}", f"is {run_data.key_names[key]} in the file"


def _facts(given: _Shown, *, edges: bool) -> Iterator[tuple[str, str]]:
    """Yield the further figures of a finding by name, then where its reads missed a write.
    ``edges``: those of a cycle that neither words nor a drawing show.
    """
    finding = given.finding
    own: dict[str, Any] = {"at_ns": finding.at_ns, "node": finding.node}
    if finding.explained_by is not None:
        name = "no_fault" if finding.explained_by.no_fault else "explained_by"
        own[name] = finding.explained_by.text
    if edges:
        own["cycle"] = msgspec.to_builtins(finding.cycle[:FACTS_MAX])
    first = dict(islice(finding.details.items(), FACTS_MAX))  # a verdict's names are in order
    if isinstance(first.get(WINDOW[0]), int) and isinstance(first.get(WINDOW[1]), int):
        start_ns, end_ns = (first.pop(name) for name in WINDOW)
        own["window (s)"] = f"{in_seconds(start_ns)} to {in_seconds(end_ns)}"
    limit = first.get("limit")
    for name in OF_LIMIT if isinstance(limit, str) else ():
        if isinstance(figure := first.get(name), float):
            own[name] = with_unit(str(limit), figure)
    for name, value in sorted((first | own).items()):
        items = value if isinstance(value, list | tuple) else [value]
        for place, item in enumerate(items if value not in (None, "", [], {}) else ()):
            told = isinstance(item, Mapping) and "text" in item
            text = str(item["text"]) if told else cell(name, item)
            yield words(name) if place == 0 else "", text
    for place, m in enumerate(given.missed):
        found = "nothing" if m.found is None else m.found
        yield (
            "" if place else "where it parts",
            f"T{m.reader} found {found} in account {m.key}, after T{m.writer} was acknowledged to"
            f" leave {m.left}",
        )


def _operation(row: Mapping[str, Any], telling: MicroOpFormat, scale: Scale) -> Operation:
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
