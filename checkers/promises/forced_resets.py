"""Forced resets: the steps of assignments that they took, and what a store owes when it takes one.

=============== ================================================================================
``early-reset`` a partition was reset before its zone's reset timer was due, which the last node
                that had left had started anew (IEP-131, "Algorithm for phase 1")
``late-reset``  a partition that has lost its majority, and has a copy that is up, was not reset
                once that timer was due ("Algorithm for phase 1")
``reset-nodes`` a reset leads to a node that was not there, or leaves out one of stable that was
                ("resetPartition")
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
from checkers.promises.fault_free_windows import Calm, Punctuality
from checkers.promises.legal_transitions import Assigned, Forced, Nodes, forced_transition
from harness.clock import NS_PER_S
from harness.history.records import EventKind
from harness.protocols.changes import TopologyKind
from harness.protocols.generations import APPLIED_WITHIN_NS, Reset
from harness.text import seconds

Found = Iterator[tuple[str, str]]  # the name and the sentence of each anomaly

# A time is when the first node has told that a revision is applied: a busy machine tells late.
EARLY_S = 0.5
# A reset asks each copy that is left, and waits until the primary before, if that is one of them,
# has given up: a lease and an election each, and then tries that are put off.
LATE_S = 4.0
STEADY_S = 5.0  # before nodes have left: what was done to the others by then is over
TOLD_S = 4.0  # before a reset: the state of a copy that is not older is that of the copy then


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
            if step.event or step.dropped or _takes_up_planned(step) or _locks(step):
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


def _takes_up_planned(step: Step) -> bool:
    """Tell whether what was planned became pending, as in a rebalance that leads elsewhere: where
    that is one node, it looks like a reset to it, and may come long before one.
    """
    before, after = step.before, step.after
    return before.pending is not None and after.pending == before.planned and after.planned is None


def _locks(step: Step) -> bool:
    """Tell whether a leader locked what was pending: where that is one node, it looks like a reset
    to it. The lock of a reset is no leader's, and has no term.
    """
    return bool(step.lock_term)


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


@attrs.frozen(kw_only=True)
class _Loss:
    """Nodes left, and with them the majority of a partition whose last ``step`` it was: what is
    left of ``copies``, of which ``generations`` they may be, and when the reset was due by the wait
    of the zone.
    """

    partition: int
    step: Step
    generations: tuple[int, ...]
    revision: int
    at_ns: int
    due_ns: int
    gone: Nodes
    copies: Nodes

    @property
    def late_ns(self) -> int:
        """From when on its reset is late."""
        return self.due_ns + int(LATE_S * NS_PER_S)


def late_resets(
    steps: Mapping[int, list[Step]],
    resets: Resets,
    topology: Sequence[Row],
    states: pa.Table,
    clock: Punctuality,
) -> Found:
    """Yield one sentence for each partition that waits for a reset for too long, though nothing
    was done to the group that writes it, nor to a node that may have a copy. Not where clocks
    differ, nor where the whole cluster has started again: what was there before is waited for.
    """
    if any(row["kind"] == TopologyKind.RESTART for row in topology) or not clock.told:
        return
    for loss in _losses(steps, resets, topology, clock.calm.end_ns):
        undisturbed = attrs.evolve(clock, voters=clock.voters | loss.copies)
        if not undisturbed.free(loss.at_ns - int(STEADY_S * NS_PER_S), loss.late_ns):
            continue
        stable = loss.step.after.stable or frozenset()
        told = [
            row
            for generation in loss.generations
            for row in _last_told(states, loss.partition, generation, loss.due_ns)
        ]
        whole = {row["node"] for row in told} & loss.copies & stable
        if whole:
            yield (
                "late-reset",
                f"late reset: {_names(loss.gone)} left at {seconds(loss.at_ns)} (revision "
                f"{loss.revision}), and with them the majority of partition {loss.partition}, of "
                f"{_names(stable)}; its reset was due at {seconds(loss.due_ns)}, and had not come "
                f"{LATE_S:g} s later, though {_names(whole)} had a copy",
            )


def _losses(
    steps: Mapping[int, list[Step]], resets: Resets, topology: Sequence[Row], end_ns: int
) -> Iterator[_Loss]:
    """Yield each loss after which neither the topology nor the partition changed until its reset
    was late.
    """
    waits, there = _reset_waits(topology), dict(logical_topologies(topology))
    changed_ns = [r["at_ns"] for r in topology if r["kind"] == TopologyKind.LOGICAL]
    for revision, at_ns, gone in _departures(topology):
        next_ns = min((ns for ns in changed_ns if ns > at_ns), default=end_ns)
        for partition, of_partition in steps.items():
            known = [step for step in of_partition if step.revision < revision]
            of_zone = waits.get(known[-1].zone, ()) if known else ()
            # What another wait does to a timer that runs is judged elsewhere.
            if not of_zone or of_zone[-1][0] >= revision:
                continue
            taken = [resets[key] for s in known if (key := (partition, s.revision)) in resets]
            number, pending = taken[-1].told.generation if taken else 0, known[-1].after.pending
            forced = bool(taken) and pending is not None
            goes_on = forced and taken[-1].step.after.pending == pending
            loss = _Loss(
                partition=partition,
                step=known[-1],
                # Where a reset goes on copies are left that have not followed it yet.
                generations=(number, number - 1) if goes_on else (number,),
                revision=revision,
                at_ns=at_ns,
                due_ns=at_ns + int(of_zone[-1][1] * NS_PER_S),
                gone=gone,
                copies=_copies(known[-1].after) & there[revision],
            )
            later_ns = [step.at_ns for step in of_partition if step.revision >= revision]
            if loss.late_ns >= min([next_ns, *later_ns]):
                continue
            # A reset that goes on ends by itself, unless its node is lost as well.
            if _is_minority(loss) and not (goes_on and (pending or frozenset()) <= there[revision]):
                yield loss


def _copies(held: Assigned) -> Nodes:
    """The nodes that may have a copy."""
    return (held.stable or frozenset()) | (held.pending or frozenset())


def _is_minority(loss: _Loss) -> bool:
    """Whether some of the stable nodes are left, and no majority."""
    stable = loss.step.after.stable or frozenset()
    return 0 < len(stable & loss.copies) <= len(stable) // 2


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


def wrong_nodes(resets: Resets, topology: Iterable[Row]) -> Found:
    """Yield one sentence for each reset that leads to other nodes than those that are left. One
    that an operator asks for may bring in others, and what takes up an earlier link has its nodes.
    """
    there = logical_topologies(topology)
    for (partition, revision), taken in resets.items():
        members = next((nodes for at, nodes in reversed(there) if at < revision), None)
        if members is None or taken.name != "reset":
            continue
        before, after = taken.step.before, taken.step.after
        led = (after.planned or frozenset()) | (after.pending or frozenset())
        absent, left_out = led - members, ((before.stable or frozenset()) & members) - led
        for wrong, why in ((absent, "not there"), (left_out, "there, and left out")):
            if wrong:
                yield (
                    "reset-nodes",
                    f"reset nodes: partition {partition} of {_names(before.stable or ())} was "
                    f"reset at {seconds(taken.step.at_ns)} (revision {revision}) to "
                    f"{_names(led)}: {_names(wrong)} was {why}",
                )


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
        holders = _copies(step.before)
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
        and (node in d.nodes or not d.kind.all_or_nothing)
        for d in calm.disturbances
        if not d.moves
    )


def _names(nodes: Iterable[str]) -> str:
    return " ".join(sorted(nodes))
