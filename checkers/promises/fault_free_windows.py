"""When a run was calm: the time in which no fault could keep a store from what it owes."""

from __future__ import annotations

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from harness.clock import NS_PER_S
from harness.protocols.checker import Setting
from harness.protocols.fault_kinds import Effect, by_name
from harness.protocols.fault_spans import FaultSpan, fault_spans

APART_S = 0.2  # of two wall clocks: no timer is judged as closely
_PLACEMENT = frozenset({Effect.CHANGES_PLACEMENT})


@attrs.frozen(kw_only=True)
class Disturbance:
    """A fault that was in force, and on which nodes. ``moves``: it only asked the store to move
    data, and is over for others once it was asked back.
    """

    start_ns: int
    end_ns: int
    nodes: frozenset[str]
    effects: frozenset[Effect]
    moves: bool


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
        return not (
            self.skewed or any(Effect.CHANGES_CLOCK in d.effects for d in self.disturbances)
        )

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


def calm_of(faults: pa.Table, setting: Setting, events: pa.Table | None = None) -> Calm:
    """The calm of a run, whose end is when its states and changes were asked for last; ``events``
    tell whether wall clocks differed.
    """
    phases = dict(setting.phases)
    end_ns = phases.get("collect", max(phases.values(), default=0))
    known = by_name(setting.fault_kinds)
    found = []
    for span in fault_spans(faults.to_pylist()):
        kind = known.get(span.kind)
        effects = frozenset() if kind is None else frozenset(kind.effects)
        moves = effects == _PLACEMENT
        found.append(
            Disturbance(
                start_ns=span.begin_ns,
                end_ns=_asked_back_ns(span, end_ns) if moves else span.end_ns(end_ns),
                nodes=frozenset(span.nodes),
                effects=effects,
                moves=moves,
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
