"""When a run was calm: the time in which no fault could keep a store from what it owes."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from harness.clock import NS_PER_S
from harness.history.records import EventKind
from harness.protocols.fault_kinds import FaultKind, by_name
from harness.protocols.fault_spans import FaultSpan, fault_spans
from harness.protocols.setting import Setting

TAKEOVER_S = 5.0  # of the leader that writes switches, with all that the next one has to find out
HANDLED_S = 1.0  # a change that was written so long before a switch may not have been seen by it,
# and for as long as metastorage was kept from committing the switch, see Punctuality.unseen_since
APART_S = 0.2  # of two wall clocks: no timer is judged as closely


@attrs.frozen(kw_only=True)
class Disturbance:
    """A fault of ``kind`` that was in force, and on which nodes. One that only asks the store to
    move data is over once it was asked back.
    """

    start_ns: int
    end_ns: int
    nodes: frozenset[str]
    kind: FaultKind

    @property
    def moves(self) -> bool:
        """Whether it only asked the store to move data."""
        return self.kind.only_moves_data


@attrs.frozen(kw_only=True)
class Calm:
    """The disturbances of a run that was looked at until ``end_ns``. ``skewed``: wall clocks of
    nodes are known to have differed.
    """

    disturbances: tuple[Disturbance, ...]
    end_ns: int
    skewed: bool = False

    @property
    def one_clock(self) -> bool:
        """Whether a time that one node took from its clock can be compared by that of another."""
        return not (self.skewed or any(d.kind.changes_clock for d in self.disturbances))

    def between(self, start_ns: int, end_ns: int) -> bool:
        """Whether no fault was in force from ``start_ns`` to ``end_ns``, but for such as move
        data.
        """
        return not any(
            d.start_ns <= end_ns and start_ns <= d.end_ns for d in self.disturbances if not d.moves
        )

    def quiet_for_s(self, since_ns: int = 0) -> float:
        """How long nothing was done to the store before the end of the run, counted from
        ``since_ns`` at the earliest.
        """
        last_ns = max((d.end_ns for d in self.disturbances), default=0)
        return max(self.end_ns - max(last_ns, since_ns), 0) / NS_PER_S


@attrs.frozen(kw_only=True)
class Punctuality:
    """Whether a switch may be expected in time. ``voters``: nodes that faults must leave alone for
    that; ``elected_ns``: when another of them began to write switches.
    """

    calm: Calm
    voters: frozenset[str]
    elected_ns: tuple[int, ...]

    @property
    def told(self) -> bool:
        """Whether times can be compared at all: nodes that start with another clock may bring the
        cluster's time forward.
        """
        return self.calm.one_clock

    def holds(self, due_ns: int, until_ns: int) -> bool:
        """Whether nothing keeps the store from a switch that is due."""
        return self.free(due_ns - int(TAKEOVER_S * NS_PER_S), until_ns)

    def free(self, since_ns: int, until_ns: int) -> bool:
        """Whether nothing in that time keeps the store from acting on what it knows."""
        return not any(True for _ in self._hindrances(since_ns, until_ns))

    def unseen_since(self, at_ns: int) -> int:
        """The time from which on changes may have been written that a switch at ``at_ns`` had not
        seen: a leader that has lost its majority has its switch committed, as it decided it, when
        the majority is back.
        """
        since_ns = at_ns - int(HANDLED_S * NS_PER_S)
        while earlier := [
            start_ns - int(HANDLED_S * NS_PER_S)
            for start_ns in self._hindrances(since_ns, at_ns)
            if start_ns - int(HANDLED_S * NS_PER_S) < since_ns
        ]:
            since_ns = min(earlier)
        return since_ns

    def _hindrances(self, since_ns: int, until_ns: int) -> Iterator[int]:
        """When each began that may keep the store from writing a switch in that time."""
        for at_ns in self.elected_ns:
            if since_ns <= at_ns <= until_ns:
                yield at_ns - int(TAKEOVER_S * NS_PER_S)
        for d in self.calm.disturbances:
            alone = d.kind.leaves_others and self.voters.isdisjoint(d.nodes)
            if d.start_ns <= until_ns and d.end_ns >= since_ns and not d.moves and not alone:
                yield d.start_ns


def punctuality(calm: Calm, states: pa.Table, events: pa.Table) -> Punctuality:
    """What may be expected in time of the group that writes switches."""
    return Punctuality(calm=calm, voters=_voters(states), elected_ns=_elected(events))


def _voters(states: pa.Table) -> frozenset[str]:
    """The nodes that vote in the group of no partition, which writes switches."""
    chosen = pc.and_(pc.is_null(states["partition"]), states["voter"])
    return frozenset(states.filter(chosen)["node"].to_pylist())


def _elected(events: pa.Table) -> tuple[int, ...]:
    chosen = pc.and_(
        pc.is_null(events["partition"]), pc.equal(events["kind"], EventKind.LEADER_ELECTED.value)
    )
    return tuple(events.filter(chosen)["at_ns"].to_pylist())


def calm_of(faults: pa.Table, setting: Setting, events: pa.Table | None = None) -> Calm:
    """The calm of a run, whose end is when its states and changes were asked for last; ``events``
    tell whether wall clocks differed.
    """
    phases = dict(setting.phases)
    end_ns = phases.get("collect", max(phases.values(), default=0))
    known = by_name(setting.fault_kinds)
    found = []
    for span in fault_spans(faults.to_pylist()):
        kind = known.get(span.kind) or FaultKind(name=span.kind, effects=frozenset())
        over_ns = _asked_back_ns(span, end_ns) if kind.only_moves_data else span.end_ns(end_ns)
        found.append(
            Disturbance(
                start_ns=span.begin_ns,
                end_ns=over_ns,
                nodes=frozenset(span.nodes),
                kind=kind,
            )
        )
    skewed = events is not None and wall_clocks_apart_s(events) > APART_S
    return Calm(disturbances=tuple(found), end_ns=end_ns, skewed=skewed)


def wall_clocks_apart_s(events: pa.Table) -> float:
    """By how much the wall clocks of two nodes have certainly differed, each in one of its starts:
    beyond what the times of their events may be off by.
    """
    ahead = pc.subtract(events["wall_ns"], events["at_ns"])
    known = pa.table(
        {
            "start": pc.binary_join_element_wise(events["node"], events["boot"], " "),
            "least": pc.subtract(ahead, events["uncertainty_ns"]),
            "most": pc.add(ahead, events["uncertainty_ns"]),
        }
    )
    starts = known.group_by("start").aggregate([("least", "max"), ("most", "min")])
    if not len(starts):
        return 0.0
    apart_ns: int = pc.max(starts["least_max"]).as_py() - pc.min(starts["most_min"]).as_py()
    return max(apart_ns, 0) / NS_PER_S


def _asked_back_ns(span: FaultSpan, end_ns: int) -> int:
    # That it is not healed may be the very promise that was broken.
    return span.end_ns(end_ns) if span.healing_ns is None else span.healing_ns
