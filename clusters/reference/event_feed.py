"""Events that nodes report, on the run's axis: asked for while the nodes live, read from their logs
once the run is over.

A killed node takes the events since the last question with it, and those are the ones that explain
the kill. Its log has them, by the same number (boot, seq), so none is reported twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs
import msgspec

from clusters.reference.node.events import parse_line
from clusters.reference.node.wire.reports import AskEvents, EventBatch, NodeEvent
from harness.history.records import EventKind, PartitionReset, StartDecision, StoreEvent

CLOCK_DRIFT = 1e-4  # how far wall and monotonic time of one machine may drift apart
_KINDS = frozenset(EventKind)
Flat = Callable[[int | None], int | None]

_DECISIONS = frozenset(map(str, StartDecision))


@attrs.frozen
class Answer:
    """A node's answer, between two moments of the run's axis."""

    batch: EventBatch
    asked_ns: int
    answered_ns: int


@attrs.frozen
class ClockReading:
    """One reading of a node's wall clock: ``wall_ns`` there was ``wall_ns - offset_ns`` on the
    run's axis, with an error of at most ``half_trip_ns``.
    """

    wall_ns: int
    offset_ns: int
    half_trip_ns: int

    def uncertainty_ns(self, wall_ns: int) -> int:
        """The greatest error of mapping ``wall_ns`` by this reading."""
        return self.half_trip_ns + int(abs(self.wall_ns - wall_ns) * CLOCK_DRIFT)

    def mapped(self, node: str, event: NodeEvent, flat: Flat) -> StoreEvent:
        """``event`` on the run's axis."""
        return StoreEvent(
            kind=EventKind(event.kind),
            node=node,
            wall_ns=event.wall_ns,
            boot=event.boot,
            at_ns=event.wall_ns - self.offset_ns,
            uncertainty_ns=self.uncertainty_ns(event.wall_ns),
            partition=flat(event.partition),
            term=event.term,
            text=event.text,
            generation=event.generation,
            reset=None
            if event.reset is None
            else PartitionReset(**msgspec.structs.asdict(event.reset)),
            # Of a later version a node may tell one that is not known here.
            decision=StartDecision(event.decision) if event.decision in _DECISIONS else None,
            about=event.about,
        )


def reading_of(answer: Answer) -> ClockReading:
    """The reading of an answer: the node read its wall clock somewhere between question and answer,
    so half of that span bounds the error of the mapping.
    """
    return ClockReading(
        wall_ns=answer.batch.wall_ns,
        offset_ns=answer.batch.wall_ns - (answer.asked_ns + answer.answered_ns) // 2,
        half_trip_ns=(answer.answered_ns - answer.asked_ns + 1) // 2,
    )


class EventFeed:
    """The events already reported of each node, so that every event is reported once."""

    def __init__(self, flat: Flat = lambda number: number) -> None:
        """``flat``: from the store's number of a partition to the run's."""
        self._flat = flat
        self._boots: dict[str, str] = {}  # of each node, the start that answered last
        self._told: dict[tuple[str, str], int] = {}  # (node, boot) -> the last event told
        self._readings: dict[str, dict[tuple[str, str], ClockReading]] = {}

    def question(self, node: str) -> AskEvents:
        """The question for the events of ``node`` after the last that it reported."""
        boot = self._boots.get(node, "")
        return AskEvents(boot, self._told.get((node, boot), 0))

    def take(self, node: str, answer: Answer) -> list[StoreEvent]:
        """The events of an answer to ``question``; they count as reported from now on."""
        batch, reading = answer.batch, reading_of(answer)
        self._boots[node] = batch.boot
        self._told[(node, batch.boot)] = batch.cursor
        # Of each start the first and the last: the nearest to the events that no answer held.
        readings = self._readings.setdefault(node, {})
        readings.setdefault((batch.boot, "first"), reading)
        readings[(batch.boot, "last")] = reading
        return [reading.mapped(node, event, self._flat) for event in batch.events]

    def read(self, node: str, lines: Iterable[str]) -> list[StoreEvent]:
        """The events in a log of ``node`` that no answer held; they count as reported from now on.

        They are mapped by the nearest answer of the node, from any of its starts. The result is
        empty where it never gave one: its clock is unknown then.
        """
        readings = self._readings.get(node)
        if not readings:
            return []
        found = []
        for line in lines:
            event = parse_line(line)
            if event is None or event.kind not in _KINDS:
                continue
            if event.seq <= self._told.get((node, event.boot), 0):
                continue
            self._told[(node, event.boot)] = event.seq
            wall_ns = event.wall_ns
            nearest = min(readings.values(), key=lambda r: r.uncertainty_ns(wall_ns))
            found.append(nearest.mapped(node, event, self._flat))
        return found
