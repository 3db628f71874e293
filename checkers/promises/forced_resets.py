"""Forced resets: the steps of assignments that they took, and what a store owes when it takes one.

=============== ================================================================================
``early-reset`` a partition was reset before its zone's reset timer was due, which the last node
                that had left had started anew (IEP-131, "Algorithm for phase 1")
``worse-copy``  a reset goes on from less than a node had applied that was up, and that was to be
                asked: one of stable or of pending ("resetPartition")
=============== ================================================================================
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from checkers.promises.assignment_steps import Row, Step, logical_topologies
from checkers.promises.fault_free_windows import Calm
from checkers.promises.legal_transitions import Forced, Nodes, forced_transition
from harness.clock import NS_PER_S
from harness.history.records import EventKind
from harness.protocols.changes import TopologyKind
from harness.protocols.fault_kinds import Effect
from harness.protocols.generations import APPLIED_WITHIN_NS, Reset
from harness.text import seconds

Found = Iterator[tuple[str, str]]  # the name and the sentence of each anomaly

# A time is when the first node has told that a revision is applied: a busy machine tells late.
EARLY_S = 0.5
TOLD_S = 4.0  # before a reset: the state of a copy that is not older is that of the copy then
# Under these a node is there as a whole, or not at all.
_ALL_OR_NOTHING = frozenset(
    {Effect.ENDS_PROGRAM, Effect.STOPS_PROGRAM, Effect.SILENCES_MACHINE, Effect.CHANGES_PLACEMENT}
)


@attrs.frozen(kw_only=True)
class ResetRecord:
    """A forced reset of a partition as events told it: where it began, if it did, whether it takes
    up what an earlier one had cut off, and whether an operator has asked for it. No step of it was
    applied later than ``until_ns``. The generation goes on behind entry ``base_index``, where that
    was told.
    """

    generation: int
    node: str | None
    restores: bool
    asked: bool
    until_ns: int
    base_index: int | None = None


@attrs.frozen(kw_only=True)
class Taken:
    """The step that a reset took, and the name of its transition."""

    name: str
    told: ResetRecord
    step: Step


Resets = Mapping[tuple[int, int], Taken]  # by partition and revision
OF_RESETS = (EventKind.REBALANCE_STAGE, EventKind.RESTORED, EventKind.RESET_ASKED)


def told_resets(resets: Sequence[Reset], events: Iterable[Row]) -> dict[int, list[ResetRecord]]:
    """Return the resets of each partition, by generation. One that was asked for may never have
    begun: then the node that it was given to is not known.
    """
    found: dict[int, dict[int, ResetRecord]] = defaultdict(dict)
    for reset in resets:
        found[reset.partition][reset.generation] = ResetRecord(
            generation=reset.generation,
            node=reset.node,
            restores=reset.restores,
            asked=reset.asked,
            until_ns=reset.latest_ns + APPLIED_WITHIN_NS,
            base_index=reset.base_index,
        )
    for row in events:
        if row["kind"] not in OF_RESETS:
            continue
        if row["partition"] is not None and row["generation"] is not None:
            latest_ns = row["at_ns"] + row["uncertainty_ns"]
            found[row["partition"]].setdefault(
                row["generation"],
                ResetRecord(
                    generation=row["generation"],
                    node=None,
                    restores=row["kind"] == EventKind.RESTORED,
                    asked=row["kind"] == EventKind.RESET_ASKED,
                    until_ns=latest_ns + APPLIED_WITHIN_NS,
                ),
            )
    return {p: [each for _, each in sorted(told.items())] for p, told in found.items()}


def steps_of_resets(
    steps: Mapping[int, list[Step]], variant: str, told: Mapping[int, list[ResetRecord]]
) -> dict[tuple[int, int], Taken]:
    """Return the steps that told resets took, by partition and revision; each reset takes one, and
    they follow one another as their generations do.
    """
    found: dict[tuple[int, int], Taken] = {}
    for partition, of_partition in steps.items():
        left, held = list(told.get(partition, ())), frozenset[str]()
        for step in of_partition:
            before = step.before
            held |= before.stable or frozenset()
            if step.event or step.dropped:
                continue
            for place, reset in enumerate(left):
                now = (before.stable or frozenset()) | (before.pending or frozenset())
                forced = Forced(
                    node=reset.node,
                    copies=held | now if reset.restores else now,
                    restores=reset.restores,
                    asked=reset.asked,
                )
                name = forced_transition(variant, before, step.after, forced)
                if name is not None and step.at_ns <= reset.until_ns:
                    found[partition, step.revision] = Taken(name=name, told=reset, step=step)
                    del left[: place + 1]
                    break
    return found


def early_resets(resets: Resets, topology: Sequence[Row], calm: Calm) -> Found:
    """Yield one sentence for each reset before its time. Not where clocks differ, nor where the
    whole cluster has started again: what leaves then had been gone before, and what was not
    told before has the time at which a node applied it once more.
    """
    restarted = any(row["kind"] == TopologyKind.RESTART for row in topology)
    if restarted or not calm.one_clock:
        return
    waits = _reset_waits(topology)
    left = list(_departures(topology))
    for taken in resets.values():
        step = taken.step
        automatic = taken.name == "reset" and not taken.told.asked and not taken.told.restores
        known = [wait for revision, wait in waits.get(step.zone, ()) if revision <= step.revision]
        before = [each for each in left if each[0] < step.revision]
        if not (automatic and known and before):
            continue
        _, at_ns, nodes = before[-1]
        ahead_s = known[-1] - (step.at_ns - at_ns) / NS_PER_S
        if ahead_s > EARLY_S:
            yield (
                "early-reset",
                f"early reset: a partition of {step.zone} was reset at {seconds(step.at_ns)} "
                f"(revision {step.revision}), {ahead_s:.1f} s before the wait of {known[-1]:g} s "
                f"was over that began when {_names(nodes)} left, at {seconds(at_ns)}",
            )


def _reset_waits(topology: Iterable[Row]) -> dict[str, list[tuple[int, float]]]:
    """The waits of each zone before it resets, by revision."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in sorted(topology, key=lambda row: int(row["revision"])):
        if row["kind"] == TopologyKind.ZONE and row.get("reset_s") is not None:
            found.setdefault(row["zone"], []).append((row["revision"], row["reset_s"]))
    return found


def _departures(topology: Iterable[Row]) -> Iterator[tuple[int, int, Nodes]]:
    """Yield each revision with which nodes left, its time, and these nodes."""
    rows = [row for row in topology if row["kind"] == TopologyKind.LOGICAL]
    before: Nodes = frozenset()
    for row in sorted(rows, key=lambda row: int(row["revision"])):
        now = frozenset(row["nodes"] or ())
        if before - now:
            yield row["revision"], row["at_ns"], before - now
        before = now


def worse_copies(resets: Resets, topology: Iterable[Row], states: pa.Table, calm: Calm) -> Found:
    """Yield one sentence for each reset that has left out what a copy had applied, though its node
    was up and nothing but the store kept it from an answer. Logs that are compared end with all
    that was ever committed in them: the most advanced one holds what any of them has applied.
    """
    there = logical_topologies(topology)
    for (partition, revision), taken in resets.items():
        step, base = taken.step, taken.told.base_index
        if taken.name != "reset" or taken.told.asked or base is None:
            continue
        members = next((nodes for at, nodes in reversed(there) if at < revision), frozenset())
        holders = (step.before.stable or frozenset()) | (step.before.pending or frozenset())
        for row in _last_told(states, partition, taken.told.generation - 1, step.at_ns):
            node, since_ns = row["node"], row["asked_ns"] - NS_PER_S
            if node not in holders & members or row["applied_index"] <= base:
                continue
            if not _undisturbed(calm, node, since_ns, step.at_ns):
                continue
            yield (
                "worse-copy",
                f"worse copy: partition {partition} was reset at {seconds(step.at_ns)} (revision "
                f"{revision}) to what {taken.told.node} had, up to entry {base}, though {node}, "
                f"which was up, had applied {row['applied_index']} by {seconds(row['asked_ns'])}",
            )
            break


def _last_told(
    states: pa.Table, partition: int, generation: int, at_ns: int
) -> list[dict[str, Any]]:
    """The last state of each voter of ``partition`` in that generation that was told shortly before
    ``at_ns``.
    """
    since_ns = at_ns - int(TOLD_S * NS_PER_S)
    chosen = pc.and_(
        pc.and_(
            pc.equal(states["partition"], partition), pc.equal(states["generation"], generation)
        ),
        pc.and_(
            pc.greater_equal(states["asked_ns"], since_ns), pc.less(states["answered_ns"], at_ns)
        ),
    )
    rows = states.filter(pc.and_(chosen, states["voter"])).sort_by("asked_ns").to_pylist()
    return [row for _, row in sorted({row["node"]: row for row in rows}.items())]


def _undisturbed(calm: Calm, node: str, since_ns: int, until_ns: int) -> bool:
    return not any(
        d.start_ns <= until_ns
        and d.end_ns >= since_ns
        and (node in d.nodes or not d.effects or not d.effects <= _ALL_OR_NOTHING)
        for d in calm.disturbances
        if not d.moves
    )


def _names(nodes: Iterable[str]) -> str:
    return " ".join(sorted(nodes))
