"""What a store owes its partitions while it moves them, judged from what is written about them.

From ``assignments`` and ``topology`` (``harness.protocols.changes``), and from the states of
replicas: transitions are legal ones of the declared variant, an event triggers once, leaders act on
no request of another term, every rebalance ends once all is quiet, replicas run where they are
assigned and nowhere else, and what an event asks for is what the declared affinity gives. No store
is known here but by its declaration.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import attrs
import msgspec
import pyarrow as pa

from checkers.explain.words import of_texts
from checkers.promises import assignment_chain
from checkers.promises.assignment_steps import Step, logical_topologies, steps_of
from checkers.promises.fault_free_windows import Calm, calm_of, punctuality
from checkers.promises.forced_resets import (
    OF_RESETS,
    Resets,
    early_resets,
    late_resets,
    steps_of_resets,
    told_resets,
    worse_copies,
    wrong_nodes,
)
from checkers.promises.legal_transitions import (
    SUPERSEDING,
    Assigned,
    Nodes,
    still_asked,
    transition,
)
from checkers.promises.rebalance_targets import Targets
from harness.clock import NS_PER_S
from harness.exit_codes import Outcome
from harness.history.records import EventKind, StartDecision
from harness.history.store_events import rows_of
from harness.protocols.changes import OF_LEADERS, AssignmentKind, TopologyKind
from harness.protocols.checker import Kernel, Lookup, Part, Tables
from harness.protocols.setting import Setting
from harness.text import seconds

Row = dict[str, Any]
Found = Iterator[tuple[str, str]]  # the name and the sentence of each anomaly

QUIET_S = 30.0  # after the last heal, and the last event, by which rebalances are over
GRACE_S = 5.0  # for a replica to start where it is assigned, and to go where it is not
RECOVERY_S = 5.0  # of a node that was cut off or down, before it acts on what it is told


@attrs.frozen
class Assignments:
    """Judges rebalances; not asked where a run has none of their changes."""

    name: str = "assignments"
    kernels: tuple[Kernel, ...] = ()

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Return every anomaly of assignments, and what rebalances came to."""
        topology, states = tables["topology"].to_pylist(), tables["states"]
        rows = tables["assignments"].to_pylist()
        if any(row["kind"] == TopologyKind.GAP for row in topology):
            reason = "not every change of assignments was reported: rebalances were not judged"
            return Part(outcome=Outcome.UNKNOWN, reasons=(reason,))
        calm = calm_of(tables["faults"], setting, tables["events"])
        steps = steps_of(rows)
        variant, available = setting.declaration.rebalance, setting.declaration.may_lose
        names: Counter[str] = Counter()
        texts: dict[str, list[str]] = defaultdict(list)
        resets: Resets = {}
        if not isinstance(variant, msgspec.UnsetType):
            told = told_resets(setting.resets, rows_of(tables["events"], OF_RESETS))
            legal = {p: [t for t in each if available or t.asked] for p, each in told.items()}
            resets = steps_of_resets(steps, variant, legal)
        checks: list[Found] = [
            conflicting(rows),
            repeated_triggers(steps),
            stale_terms(rows),
            redundant_replicas(steps, states, calm),
            missing_replicas(steps, states, tables["events"], calm),
            assignment_chain.erased_copies(_written(steps), states, tables["events"], calm),
            assignment_chain.same_members(states, tables["events"]),
            assignment_chain.outside_forced(_forced(steps, resets), states, calm),
            assignment_chain.wrong_chains(_of_chains(steps, resets), rows),
            early_resets(resets, topology, calm),
            late_resets(
                steps, resets, topology, states, punctuality(calm, states, tables["events"])
            ),
            worse_copies(resets, topology, states, calm),
            wrong_nodes(resets, topology),
        ]
        if not isinstance(variant, msgspec.UnsetType):
            there = logical_topologies(topology)
            checks.append(illegal_transitions(steps, variant, names, resets, there))
        affinities = setting.declaration.affinities
        if not isinstance(affinities, msgspec.UnsetType):
            targets = Targets(topology, affinities, available=available)
            checks.append(wrong_targets(steps, targets))
        left = list(unfinished(steps, topology, rows, resets))
        judged = [each for each in left if calm.quiet_for_s(each.since_ns) >= QUIET_S]
        early = [each for each in left if each not in judged]
        checks.append((each.name, each.text) for each in judged)
        for name, text in (found for check in checks for found in check):
            texts[name].append(text)
        return Part(
            outcome=Outcome.UNKNOWN if early else Outcome.VALID,
            reasons=(_too_short(early, calm),) if early else (),
            anomalies={name: of_texts(found) for name, found in texts.items()},
            statistics={"rebalance": _counts(rows, names)},
        )


def conflicting(rows: Iterable[Row]) -> Found:
    """Yield one sentence for each key and revision that two nodes report differently."""
    keyed = [row for row in rows if row["kind"] not in OF_LEADERS]
    order = itemgetter("revision", "partition", "kind")
    for (revision, partition, kind), group in groupby(sorted(keyed, key=order), key=order):
        told = list(group)
        if len(told) > 1:
            nodes = " and ".join(sorted(row["node"] for row in told))
            yield (
                "diverged-assignments",
                f"diverged assignments: {nodes} report another {kind} of partition {partition} at "
                f"revision {revision}",
            )


def _written(steps: dict[int, list[Step]]) -> dict[int, list[tuple[int, Assigned]]]:
    return {number: [(step.at_ns, step.after) for step in each] for number, each in steps.items()}


def _forced(steps: dict[int, list[Step]], resets: Resets) -> Iterator[tuple[int, int, int, Nodes]]:
    """Yield how long each reset's one node had a partition alone: partition, begin, end, nodes."""
    for partition, of_partition in steps.items():
        since: Step | None = None
        for step in of_partition:
            nodes = None if since is None else since.after.pending
            # What is planned behind it may change meanwhile.
            if since is not None and nodes is not None and step.after.pending != nodes:
                yield partition, since.at_ns, step.at_ns, nodes
                since = None
            if (partition, step.revision) in resets:
                since = step


def _of_chains(
    steps: dict[int, list[Step]], resets: Resets
) -> dict[int, list[tuple[int, int, Assigned, Assigned, bool]]]:
    found = {}
    for partition, of_partition in steps.items():
        forced, rows = False, []
        for step in of_partition:
            rows.append((step.revision, step.at_ns, step.before, step.after, forced))
            forced = _pending_of_reset(step, (partition, step.revision) in resets, forced)
        found[partition] = rows
    return found


def _pending_of_reset(step: Step, reset: bool, before: bool) -> bool:
    """Whether what is pending after ``step`` is a reset's; ``before`` it, it was."""
    return reset or (before and step.before.pending == step.after.pending)


def illegal_transitions(
    steps: dict[int, list[Step]],
    variant: str,
    names: Counter[str],
    resets: Resets,
    there: Sequence[tuple[int, Nodes]],
) -> Found:
    """Yield one sentence for each step that the variant's table does not have, nor ``resets``;
    count the others in ``names``. ``there``: see ``logical_topologies``.
    """
    for partition, of_partition in steps.items():
        term, asked, forced = None, tuple[Nodes, ...](), False
        for step in of_partition:
            if step.dropped and step.after == Assigned():
                asked = ()
                continue
            taken = resets.get((partition, step.revision))
            if taken is not None:
                name: str | None = taken.name
                term = None  # of a leader that the reset has deposed
            else:
                place = bisect_right(there, step.revision, key=itemgetter(0))
                name = transition(
                    variant,
                    step.before,
                    step.after,
                    event=step.event,
                    asked=asked,
                    there=there[place - 1][1] if place else None,
                    forced=forced,
                )
            forced = _pending_of_reset(step, taken is not None, forced)
            asked = still_asked(asked, step.before, step.after)
            if name is not None:
                names[name] += 1
            else:
                yield (
                    "illegal-transition",
                    f"illegal transition: partition {partition} went from {_text(step.before)} to "
                    f"{_text(step.after)} at revision {step.revision} ({seconds(step.at_ns)}), "
                    f"which the {variant} variant does not do",
                )
            held = step.before.lock is not None
            if held and step.lock_term is not None and term is not None and step.lock_term < term:
                yield (
                    "stale-term",
                    f"stale term: the lock of partition {partition} went from the leader of term "
                    f"{term} to that of term {step.lock_term} at revision {step.revision}",
                )
            term = step.lock_term if step.lock_term is not None else term


def wrong_targets(steps: dict[int, list[Step]], targets: Targets) -> Found:
    """Yield one sentence for each event whose answer is not what the table's affinity gives of the
    data nodes and replicas that its zone had by then. In a partition that is highly available
    those of them that are away are left out, if they were not stable when it was answered.
    """
    first: dict[str, int] = {}
    for partition, of_partition in steps.items():
        for step in of_partition:
            first[step.table] = min(first.get(step.table, partition), partition)
    for partition, of_partition in steps.items():
        zone = of_partition[0].zone
        for step in of_partition:
            # A table may get another zone after an event and before the answer to it.
            zones = dict.fromkeys((step.zone, zone))
            zone = step.zone
            target = _aim(step)
            if not step.event or target is None:
                continue
            number, event = partition - first[step.table], step.triggers[-1]
            asked = [targets.asked(step.table, number, each, event) for each in zones]
            problems = [
                each.problem(
                    target,
                    targets.there(_stable_since(of_partition, event, step), event, step.revision),
                )
                for each in asked
                if each is not None
            ]
            if problems and all(problems):
                yield (
                    "wrong-target",
                    f"wrong target: the event of revision {event} led partition {partition} to "
                    f"{_names(target)} at revision {step.revision} ({seconds(step.at_ns)}), though "
                    f"{problems[0]}",
                )


def repeated_triggers(steps: dict[int, list[Step]]) -> Found:
    """Yield one sentence for each event that was handled again, or after a newer one."""
    for partition, of_partition in steps.items():
        newest = -1
        for step in of_partition:
            if step.dropped:
                newest = -1
            for number in step.triggers:
                if number <= newest:
                    yield (
                        "repeated-trigger",
                        f"repeated trigger: partition {partition} handled the event of revision "
                        f"{number} at revision {step.revision} ({seconds(step.at_ns)}), after "
                        f"that of revision {newest}",
                    )
                newest = max(newest, number)


def stale_terms(rows: Iterable[Row]) -> Found:
    """Yield one sentence for each change of peers that a leader accepted for another term."""
    for row in rows:
        if row["kind"] == AssignmentKind.CHANGE_PEERS and row["term"] != row["number"]:
            yield (
                "stale-term",
                f"stale term: the leader of partition {row['partition']} in term {row['number']}, "
                f"{row['node']}, accepted a change of peers to {_names(row['nodes'])} that was for "
                f"term {row['term']} ({seconds(row['at_ns'])})",
            )


def redundant_replicas(steps: dict[int, list[Step]], states: pa.Table, calm: Calm) -> Found:
    """Yield one sentence for each replica that runs where none is assigned, for longer than the
    grace, and while nothing keeps its node from knowing it.
    """
    told: set[tuple[int, str]] = set()
    for row in states.to_pylist():
        of_partition = steps.get(row["partition"]) if row["partition"] is not None else None
        if not of_partition or (row["partition"], row["node"]) in told:
            continue
        since_ns = row["asked_ns"] - int(GRACE_S * NS_PER_S)
        if not calm.between(since_ns - int(RECOVERY_S * NS_PER_S), row["answered_ns"]):
            continue
        if of_partition[0].at_ns > since_ns:
            continue
        if any(
            row["node"] in (_running(held) or ())
            for held in _held_within(of_partition, since_ns, row["answered_ns"])
        ):
            continue
        told.add((row["partition"], row["node"]))
        yield (
            "redundant-replica",
            f"redundant replica: {row['node']} runs one of partition {row['partition']} at "
            f"{seconds(row['asked_ns'])}, which has been in no stable or pending assignments for "
            f"over {GRACE_S:g} s",
        )


def missing_replicas(
    steps: dict[int, list[Step]], states: pa.Table, events: pa.Table, calm: Calm
) -> Found:
    """Yield one sentence for each partition a majority of whose stable nodes are up and do not run
    it, while nothing but the store itself keeps them from it. A replica that starts within the
    grace of the question counts as running: an operator may have asked for its restart.
    """
    starts: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    for event in rows_of(events, (EventKind.START_DECISION,)):
        if event["decision"] == StartDecision.STARTS and event["partition"] is not None:
            around_ns = int(GRACE_S * NS_PER_S) + event["uncertainty_ns"]
            span = event["at_ns"] - around_ns, event["at_ns"] + around_ns
            starts[event["partition"]].append((*span, event["node"]))
    told: set[int] = set()
    for answers in _rounds(states):
        asked_ns = min(row["asked_ns"] for row in answers)
        answered_ns = max(row["answered_ns"] for row in answers)
        since_ns = asked_ns - int(GRACE_S * NS_PER_S)
        if not calm.between(since_ns - int(RECOVERY_S * NS_PER_S), answered_ns):
            continue
        up = {row["node"] for row in answers}
        running: dict[int, set[str]] = defaultdict(set)
        for row in answers:
            if row["partition"] is not None:
                running[row["partition"]].add(row["node"])
        for partition, of_partition in steps.items():
            if partition in told or of_partition[0].at_ns > since_ns:
                continue
            held = _held_within(of_partition, since_ns, answered_ns)
            stable = {each.stable for each in held}
            (nodes,) = stable if len(stable) == 1 else (None,)
            if nodes is None:
                continue
            majority = len(nodes) // 2 + 1
            starting = {
                node
                for first_ns, last_ns, node in starts[partition]
                if first_ns <= answered_ns and asked_ns <= last_ns
            }
            if len(nodes & up) >= majority > len(nodes & (running[partition] | starting)):
                told.add(partition)
                yield (
                    "quorum-not-running",
                    f"quorum not running: of {_names(nodes)}, which are to hold partition "
                    f"{partition}, only {_names(running[partition]) or 'none'} run it at "
                    f"{seconds(asked_ns)}, though {_names(nodes & up)} are up",
                )


@attrs.frozen(kw_only=True)
class Unfinished:
    """What is left at the end of a run, since an event at ``since_ns`` that asked for it last."""

    name: str
    text: str
    since_ns: int


def unfinished(
    steps: dict[int, list[Step]], topology: list[Row], rows: list[Row], resets: Resets
) -> Iterator[Unfinished]:
    """Yield each partition that is not where it should be at the end: something is pending, planned
    or locked, or the newest event was not handled. That contents are equal is the checker of
    replicas' to say: it knows which have applied the same.
    """
    events, zones = _newest_events(topology), _zones(rows)
    for partition, of_partition in steps.items():
        last = of_partition[-1].after
        newest, since_ns = events.get(zones.get(partition, ""), (0, 0))
        forced = {revision for number, revision in resets if number == partition}
        for name, text in _unfinished(partition, of_partition, last, newest, forced):
            yield Unfinished(name=name, text=text, since_ns=since_ns)


def _unfinished(
    partition: int, of_partition: list[Step], last: Assigned, newest: int, forced: set[int]
) -> Found:
    if last.stable is None:
        return
    if last[1:] != (None, None, None):
        yield (
            "unfinished-rebalance",
            f"unfinished rebalance: partition {partition} is left with {_text(last)} since "
            f"revision {of_partition[-1].revision} ({seconds(of_partition[-1].at_ns)})",
        )
    handled = max((n for step in of_partition for n in step.triggers), default=0)
    if handled < newest:
        yield (
            "event-not-handled",
            f"event not handled: zone or data nodes of partition {partition} changed at "
            f"revision {newest}, and its last trigger is of revision {handled}",
        )
    # A reset aims, too: at the copies that are left, until another event.
    asking = (step for step in reversed(of_partition) if step.event or step.revision in forced)
    target = next(map(_aim, asking), None)
    if last.pending is None and target is not None and last.stable != target:
        yield (
            "wrong-stable",
            f"wrong stable: partition {partition} is on {_names(last.stable)} at the end, "
            f"though {_names(target)} was asked for last",
        )


def _stable_since(of_partition: list[Step], event: int, step: Step) -> list[Nodes]:
    """What was stable at some time between ``event`` and ``step``; nothing where that creates the
    partition.
    """
    found: list[Nodes] = []
    for each in of_partition:
        if each.revision > step.revision:
            break
        if each.revision <= event:
            found.clear()
            if each.after.stable is not None and each is not step:
                found.append(each.after.stable)
        elif each.before.stable is not None and each.before.stable not in found:
            found.append(each.before.stable)
    return found


def _aim(step: Step) -> Nodes | None:
    return step.after.planned or step.after.pending or step.after.stable


def _running(held: Assigned) -> Nodes:
    return (held.stable or frozenset()) | (held.pending or frozenset())


def _held_within(steps: list[Step], start_ns: int, end_ns: int) -> list[Assigned]:
    """Everything that was written at some time from ``start_ns`` to ``end_ns``."""
    found = [steps[0].before]
    for step in steps:
        if step.at_ns > end_ns:
            break
        if step.at_ns <= start_ns:
            found.clear()
        found.append(step.after)
    return found


def _rounds(states: pa.Table) -> Iterator[list[Row]]:
    """Yield the answers of each question to all nodes."""
    rows = states.sort_by([("asked_ns", "ascending"), ("node", "ascending")]).to_pylist()
    answers: list[Row] = []
    seen: dict[str, int] = {}
    for row in rows:
        if seen.get(row["node"], row["asked_ns"]) != row["asked_ns"]:
            yield answers
            answers, seen = [], {}
        seen[row["node"]] = row["asked_ns"]
        answers.append(row)
    if answers:
        yield answers


def _newest_events(topology: Iterable[Row]) -> dict[str, tuple[int, int]]:
    """The newest revision that changed a zone or its data nodes, and when; none where it has none
    of these: then there is nowhere to go.
    """
    found: dict[str, tuple[int, int]] = {}
    empty: set[str] = set()
    for row in topology:
        if row["kind"] in (TopologyKind.ZONE, TopologyKind.DATA_NODES):
            newest = row["revision"], row["at_ns"]
            found[row["zone"]] = max(found.get(row["zone"], (0, 0)), newest)
        if row["kind"] == TopologyKind.DATA_NODES:
            (empty.discard if row["nodes"] else empty.add)(row["zone"])
    return {zone: newest for zone, newest in found.items() if zone not in empty}


def _zones(rows: Iterable[Row]) -> dict[int, str]:
    return {row["partition"]: row["zone"] for row in rows if row["zone"]}


def _counts(rows: list[Row], names: Counter[str]) -> dict[str, int]:
    """What rebalances came to, by kind; ``retried`` are changes of peers that were asked for again
    by the same pending set.
    """
    accepted = Counter(
        (row["partition"], row["revision"])
        for row in rows
        if row["kind"] == AssignmentKind.CHANGE_PEERS
    )
    failed = Counter(row["text"] for row in rows if row["kind"] == AssignmentKind.CHANGE_FAILED)
    cancelled = Counter(row["number"] for row in rows if row["kind"] == AssignmentKind.CANCEL)
    return {
        "started": names["started"],
        "completed": names["completed"] + names["continued"],
        "superseded": sum(names[name] for name in SUPERSEDING - {"continued"}),
        "retried": sum(accepted.values()) - len(accepted),
        "busy": failed["busy"],
        "failed": sum(failed.values()),
        "cancelled-true": cancelled[1],
        "cancelled-false": cancelled[0],
    }


def _too_short(left: list[Unfinished], calm: Calm) -> str:
    quiet_s = min(calm.quiet_for_s(each.since_ns) for each in left)
    return (
        f"{len(left)} partitions were not where they should be when the run ended, "
        f"{quiet_s:.0f} s after the last heal or the last event that moves data; that is a broken "
        f"promise only after {QUIET_S:g} s ({left[0].text})"
    )


def _text(held: Assigned) -> str:
    named = zip(("stable", "pending", "planned", "lock"), held, strict=True)
    return ", ".join(f"{name} {_names(n)}" for name, n in named if n is not None) or "nothing"


def _names(nodes: Iterable[str]) -> str:
    return " ".join(sorted(nodes))


CHECKER = Assignments()
