"""What a forced reset may cost: the envelope of each, and the checker of what no reset permits.

A store in mode HA lets a partition that has lost its majority go on from the copies that survive.
Of what had been acknowledged before, such a reset may cost what no survivor holds, and nothing
else:

* the write was acknowledged before the reset (or its answer was on the way then);
* no surviving replica had applied it, as far as the store tells the states of its replicas;
* what is left is a prefix of the partition's log: what was acknowledged before something that is
  kept was begun is kept, too; a transaction's writes to one partition are kept or lost together;
* then a new suffix: what is lost comes back only by a reset that restores, as a whole, and where
  nothing was acknowledged meanwhile; nothing of two generations is mixed;
* one reset costs once: what a generation has shown is lost by another reset or by none;
* a transaction of several partitions whose write to the reset one is lost inside the envelope may
  be given up in another, which asks in vain for its outcome: unless that one has shown its write,
  or let another transaction follow it before the reset.

In any other mode nothing may be lost, and in SC a forced reset is a broken promise by itself, but
for one that an operator has asked for, which is told as that and has an envelope in either mode. A
reset while a majority of the partition's voters lives breaks a promise in any mode. Times of resets
are mapped, with an error bound that is granted to the store.
"""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import attrs
import msgspec
import numpy as np
import pyarrow as pa

from checkers.engine.arrays import ints
from checkers.engine.spans import Spans
from checkers.explain.fault_attribution import KnownFaults
from checkers.explain.fault_explanations import explain_operations
from checkers.lists.by_generation import CUTS, RESET_FINDINGS, UNDECIDED
from checkers.lists.given_up import CUT_OFF
from checkers.promises.permitted_loss import Envelope, judged_resets
from checkers.promises.told_states import ToldStates
from harness.clock import NS_PER_S
from harness.exit_codes import Outcome
from harness.history.records import EventKind
from harness.history.store_events import rows_of
from harness.protocols.checker import EXAMPLES_MAX, Kernel, Lookup, Part, Tables
from harness.protocols.consistency_models import (
    MIXED_GENERATIONS,
    NOT_A_PREFIX,
    RESET_IN_SC,
    RESET_OVER_SURVIVOR,
    RESET_WITH_MAJORITY,
    RESTORED_IN_PART,
    RESTORED_OVER_WRITES,
    RETURNED_WRITE,
    TORN_IN_PARTITION,
)
from harness.protocols.fault_kinds import by_name
from harness.protocols.fault_spans import fault_spans
from harness.protocols.finding import Finding
from harness.protocols.generations import GenerationTree, Reset, trees_of
from harness.protocols.promise import STRONG_CONSISTENCY
from harness.protocols.roles import VOTES, parsed
from harness.protocols.setting import Setting
from harness.protocols.verdict import Anomaly
from harness.run.state_log import STATES
from harness.text import seconds

SETTLED_NS = 5 * NS_PER_S
"""How long a node must have been there before it counts as live for certain: what was just healed
or started may still be missing in the topology from which a store decides."""
_LIFE = (
    EventKind.NODE_STARTED,
    EventKind.NODE_EXITED,
    EventKind.NODE_REFUSED,
    EventKind.NODE_STOPPED,
)

Row = Mapping[str, Any]
Tell = Callable[[], Finding]


@attrs.frozen
class Resets:
    """Resets that the mode or the state of the majority forbids, and lists that no reset leaves."""

    name: str = "resets"
    kernels: tuple[Kernel, ...] = (CUT_OFF,)

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Return every breach of what resets may cost, but for single lost writes, which the
        checker ``lost-write`` judges.
        """
        trees = trees_of(setting.resets)
        states = ToldStates(tables.get("states", STATES.empty_table()))
        away = TimesOut.of(tables["faults"], tables["events"], setting)
        count = judged_resets(trees, states)
        judged = [
            Envelope(tree=tree, place=place, states=states)
            for partition, tree in trees.items()
            for place in range(1, 1 + count.get(partition, 0))
        ]
        every = len(setting.resets)
        told = cuts_that_tell(tables.get("resets.cuts", CUTS.empty_table()))
        found: dict[str, _Counted] = {}
        for name, tell in (
            *_forbidden(judged, away, setting),
            *_over_survivors(judged),
            *_contradictions(
                trees, tables.get("resets.findings", RESET_FINDINGS.empty_table()), lookup
            ),
            *_no_prefix(trees, told, lookup),
            *_served_after(trees, told, lookup),
            *_torn_inside(trees, told, lookup),
        ):
            found.setdefault(name, _Counted()).add(tell)
        undecided = tables.get("resets.undecided", UNDECIDED.empty_table())
        reasons = [_UNDECIDED.format(undecided.num_rows)] if undecided.num_rows else []
        if len(judged) < every:
            reasons.append(_UNJUDGED.format(every - len(judged), every))
        known = KnownFaults.of(tables["faults"])
        resets = {str(p): len(tree.resets) for p, tree in trees.items()}
        return Part(
            anomalies={
                name: Anomaly(
                    count=these.count,
                    examples=tuple(_attributed(each, known) for each in these.examples),
                )
                for name, these in found.items()
            },
            outcome=Outcome.UNKNOWN if reasons else Outcome.VALID,
            reasons=tuple(reasons),
            statistics={"resets": {"mode": setting.declaration.mode, "by_partition": resets}},
        )


@attrs.define
class _Counted:
    """Findings of one name: how many, and the first of them. Only these are made: each asks for the
    operations of its transactions.
    """

    count: int = 0
    examples: list[Finding] = attrs.field(factory=list)

    def add(self, tell: Tell) -> None:
        """Count another one."""
        self.count += 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(tell())


_UNDECIDED = (
    "undecided: around resets, {} keys were read in more ways than can be compared; what was read "
    "of them then is left out"
)
_UNJUDGED = "{} of {} resets were not judged: they are more than a run of this size can have"


def _attributed(finding: Finding, known: KnownFaults) -> Finding:
    """Return a finding about writes with the fault that is nearest."""
    if not finding.operations:
        return finding
    why = explain_operations(finding.operations, known)
    return msgspec.structs.replace(finding, explained_by=why)


def _forbidden(
    envelopes: Iterable[Envelope], away: TimesOut, setting: Setting
) -> Iterator[tuple[str, Tell]]:
    for envelope in envelopes:
        reset = envelope.reset
        if setting.declaration.mode == STRONG_CONSISTENCY and not reset.asked:
            yield (
                RESET_IN_SC,
                partial(
                    _of_reset,
                    reset,
                    f"reset in SC: {_told(reset)}: a partition of this mode waits for its "
                    "majority, and goes on from no minority",
                ),
            )
        why = live_majority(envelope, away, setting)
        if why is not None and not reset.restores:
            yield (
                RESET_WITH_MAJORITY,
                partial(
                    _of_reset, reset, f"reset with a live majority: {_told(reset)}, though {why}"
                ),
            )


def _over_survivors(envelopes: Iterable[Envelope]) -> Iterator[tuple[str, Tell]]:
    for envelope in envelopes:
        reset = envelope.reset
        if reset.base_index is None or reset.restores:
            continue
        base_term = reset.base_term or 0
        for node, (term, index) in sorted(envelope.applied_by_survivors().items()):
            # A log that ends with an entry of an earlier term has none of a later one.
            if index and (index > reset.base_index or 0 < base_term < term):
                yield (
                    RESET_OVER_SURVIVOR,
                    partial(
                        _of_reset,
                        reset,
                        f"reset over a survivor: {_told(reset)} goes on from entry "
                        f"{reset.base_index} of term {base_term}, though {node}, which "
                        f"survived, had applied entry {index} of term {term}",
                        node=node,
                    ),
                )


def live_majority(envelope: Envelope, times: TimesOut, setting: Setting) -> str | None:
    """Say why a majority of the partition's voters certainly lived when it was reset; ``None``
    where that is not certain.

    By states: a voter that answered long enough before the reset and after it, from one start and
    under no fault that may take it out, lived meanwhile. By declaration: too few voters were under
    such faults for the majority to be lost.
    """
    away = times.at(envelope.reset)
    voters = _voters(envelope, times)
    if voters:
        beyond = times.beyond(envelope.reset, voters)
        there = voters - away - beyond
        live = sorted(node for node in there if _lived(envelope, node))
        if len(live) >= len(voters) // 2 + 1:
            return f"{', '.join(live)} lived, {len(live)} of its {len(voters)} voters"
        return None
    least = setting.declaration.forgets_without
    if isinstance(least, msgspec.UnsetType) or times.cut_off(envelope.reset):
        return None
    out = times.voting_at(envelope.reset, setting)
    if len(out) >= least:
        return None
    of_them = f"only {', '.join(sorted(out))}" if out else "none"
    return f"{of_them} of its voters was out, and it takes {least} to lose the majority"


def _voters(envelope: Envelope, times: TimesOut) -> frozenset[str]:
    """Return the partition's voters before the reset, by the last sample of each node; empty where
    the samples do not tell all of them alike, or others may have come to vote since.
    """
    last = envelope.states.before(envelope.reset).last_by_node
    voters = [row for row in last if row["voter"]]
    sizes = {row["voters"] for row in voters}
    sampled_ns = min((row["asked_ns"] for row in voters), default=0)
    if times.moved(envelope.reset, sampled_ns):
        return frozenset()
    return frozenset(row["node"] for row in voters) if sizes == {len(voters)} else frozenset()


def _lived(envelope: Envelope, node: str) -> bool:
    """Tell whether ``node`` answered well before the reset and after it, from one start."""
    reset = envelope.reset
    boots = envelope.states.boots(node)
    return boots.any_from_to(reset.earliest_ns - SETTLED_NS, reset.latest_ns)


@attrs.frozen(kw_only=True)
class TimesOut:
    """When each node may have been out: from the begin of a fault that takes it out, or its end, to
    its next start. ``voting`` are those of them in which it may have voted in a partition, of
    ``None`` in any. ``cuts`` are the targets of faults that separated them from all others, and
    when.
    """

    by_node: Mapping[str, Spans]
    voting: Mapping[str, Mapping[int | None, Spans]]
    cuts: Sequence[tuple[frozenset[str], Spans]]
    # When a step of a rebalance was told, ascending, by partition.
    steps: Mapping[int, Sequence[int]]

    @classmethod
    def of(cls, faults: pa.Table, events: pa.Table, setting: Setting) -> TimesOut:
        """Those of a run."""
        kinds = by_name(setting.fault_kinds)
        started: dict[str, list[int]] = {}
        ended: list[tuple[str, int, int | None, tuple[str, ...]]] = []
        for row in rows_of(events, _LIFE, ("node", "at_ns", "uncertainty_ns")):
            if row["kind"] == EventKind.NODE_STARTED:
                started.setdefault(row["node"], []).append(row["at_ns"] + row["uncertainty_ns"])
            else:
                at_ns = row["at_ns"] - row["uncertainty_ns"]
                ended.append((row["node"], at_ns, row["at_ns"], ()))
        cuts: list[tuple[frozenset[str], Spans]] = []
        for span in fault_spans(faults.to_pylist()):
            if span.kind not in kinds or kinds[span.kind].separates:
                cuts.append((frozenset(span.nodes), Spans.of([(span.begin_ns, span.healed_ns)])))
            # A kind of which nothing is known may take its targets out: an accusation needs
            # certainty.
            if span.kind not in kinds or kinds[span.kind].may_be_missed:
                its = (span.begin_ns, span.healed_ns, span.roles)
                ended += [(node, *its) for node in span.nodes]
        starts = {node: sorted(times) for node, times in started.items()}
        out: dict[str, dict[int | None, list[tuple[int, int | None]]]] = {}
        every: dict[str, list[tuple[int, int | None]]] = {}
        votes = functools.cache(_votes)
        for node, start_ns, end_ns, roles in ended:
            time = start_ns, _next(starts.get(node, ()), end_ns)
            every.setdefault(node, []).append(time)
            for partition in votes(roles):
                out.setdefault(node, {}).setdefault(partition, []).append(time)
        return cls(
            by_node={node: Spans.of(times) for node, times in every.items()},
            voting={
                node: {partition: Spans.of(times) for partition, times in own.items()}
                for node, own in out.items()
            },
            cuts=tuple(cuts),
            steps=_steps(events),
        )

    def cut_off(self, reset: Reset) -> tuple[frozenset[str], ...]:
        """Return the sides of cuts on which ``reset`` was made: those beyond may have been out,
        though they are targets of none, where the side had what decides (metastorage's majority).
        """
        here = {reset.node, *(reset.survivors or ())}
        return tuple(nodes for nodes, its in self.cuts if nodes & here and _includes(its, reset))

    def beyond(self, reset: Reset, nodes: frozenset[str]) -> frozenset[str]:
        """Return those of ``nodes`` that a cut had separated from where ``reset`` was made."""
        return frozenset(
            node for node in nodes if any(node not in side for side in self.cut_off(reset))
        )

    def moved(self, reset: Reset, since_ns: int) -> bool:
        """Whether the members of its partition may have changed from ``since_ns`` to ``reset``."""
        steps = self.steps.get(reset.partition, ())
        place = bisect.bisect_left(steps, since_ns)
        return place < len(steps) and steps[place] <= reset.latest_ns

    def at(self, reset: Reset) -> frozenset[str]:
        """Return the nodes that may have been out at ``reset``.

        A node that was under such a fault counts as out until it has started again and settled: a
        store may keep out a node that it once missed.
        """
        return frozenset(node for node, its in self.by_node.items() if _includes(its, reset))

    def voting_at(self, reset: Reset, setting: Setting) -> frozenset[str]:
        """Return those of them that may be voters of its partition: by their roles when the fault
        struck, else any node that may vote at all.
        """
        keepers = setting.declaration.keepers
        able = None if isinstance(keepers, msgspec.UnsetType) else keepers
        return frozenset(
            node
            for node, its in self.voting.items()
            if (able is None or node in able)
            and any(
                _includes(its[where], reset) for where in (None, reset.partition) if where in its
            )
        )


def _steps(events: pa.Table) -> dict[int, list[int]]:
    """Return when leaders told that assignments have changed; resets tell of their own generation
    with it.
    """
    found: dict[int, list[int]] = {}
    columns = ("partition", "generation", "at_ns")
    for row in rows_of(events, (EventKind.REBALANCE_STAGE,), columns):
        if row["partition"] is not None and row["generation"] is None:
            found.setdefault(row["partition"], []).append(row["at_ns"])
    return {partition: sorted(times) for partition, times in found.items()}


def _includes(times: Spans, reset: Reset) -> bool:
    return times.any_from_to(reset.latest_ns, reset.earliest_ns - SETTLED_NS + 1)


def _next(started: Sequence[int], end_ns: int | None) -> int | None:
    """Return the first start at ``end_ns`` or later; ``None`` where none followed."""
    place = len(started) if end_ns is None else bisect.bisect_left(started, end_ns)
    return started[place] if place < len(started) else None


def _votes(roles: tuple[str, ...]) -> frozenset[int | None]:
    """Return the partitions in which a node of these roles may vote; ``None``: in any."""
    if not roles:
        return frozenset({None})
    return frozenset(role.partition for role in parsed(roles) if role.kind in VOTES)


_SENTENCES = {
    RETURNED_WRITE: "returned write: {element} of key {key}, which T{writer} appended, is in the "
    "list of generation {generation} of partition {partition}, though the generation that it goes "
    "on from had lost it{reader}",
    MIXED_GENERATIONS: "mixed generations: the list of key {key} in generation {generation} of "
    "partition {partition} holds {element}, which T{writer} appended before the reset, behind what "
    "parted from the list of then{reader}",
    RESTORED_IN_PART: "restored in part: generation {generation} of partition {partition} takes up "
    "what a reset had cut off, and its list of key {key} lacks {element}, which T{writer} had "
    "appended there{reader}",
    RESTORED_OVER_WRITES: "restored over writes: generation {generation} of partition {partition} "
    "takes up what a reset had cut off, though {element} of key {key} was acknowledged to "
    "T{writer} since",
}

_UNFIT = (
    "mixed generations: with the list of key {key} that T{writer} read around the reset of "
    "partition {partition} to generation {generation}, no order of reads, writes and resets "
    "explains what was read of the key"
)


def _contradictions(
    trees: Mapping[int, GenerationTree], rows: pa.Table, lookup: Lookup
) -> Iterator[tuple[str, Tell]]:
    order = [(name, "ascending") for name in rows.column_names]
    for row in rows.sort_by(order).to_pylist():
        reset = trees[row["partition"]].resets[row["place"] - 1]
        reader = "" if row["reader"] < 0 else f" (T{row['reader']})"
        sentence = _UNFIT if row["element"] is None else _SENTENCES[row["anomaly"]]
        text = sentence.format(**row | {"generation": reset.generation, "reader": reader})
        txns = (row["writer"], *((row["reader"],) if row["reader"] >= 0 else ()))
        yield row["anomaly"], partial(_of_writes, reset, text, txns, row, lookup)


def _no_prefix(
    trees: Mapping[int, GenerationTree], cuts: Sequence[Row], lookup: Lookup
) -> Iterator[tuple[str, Tell]]:
    """not-a-prefix: the reset kept a write that began after one that it lost was in the log."""
    kept: dict[tuple[int, int], Row] = {}
    for row in cuts:
        where = row["partition"], row["place"]
        if row["kept"] and (where not in kept or row["invoke_ns"] > kept[where]["invoke_ns"]):
            kept[where] = row
    for row in cuts:
        later = kept.get((row["partition"], row["place"]))
        if row["kept"] or later is None or row["known_ns"] is None:
            continue
        if row["known_ns"] < later["invoke_ns"]:
            reset = trees[row["partition"]].resets[row["place"] - 1]
            text = (
                f"not a prefix: {_told(reset)} lost {row['element']} of key {row['key']}, in the "
                f"log at {seconds(row['known_ns'])}, and kept {later['element']} of key "
                f"{later['key']}, which T{later['writer']} began at {seconds(later['invoke_ns'])}"
            )
            yield (
                NOT_A_PREFIX,
                partial(
                    _of_writes,
                    reset,
                    text,
                    (row["writer"], later["writer"]),
                    row,
                    lookup,
                    later["key"],
                ),
            )


def _served_after(
    trees: Mapping[int, GenerationTree], cuts: Sequence[Row], lookup: Lookup
) -> Iterator[tuple[str, Tell]]:
    """mixed-generations: what a reset had lost, as one read shows, was served once more."""
    first: dict[tuple[int, int], Row] = {}
    rows = [row for row in cuts if not row["kept"]]
    for row in rows:
        where = row["partition"], row["place"]
        if row["missed_ns"] is not None and (
            where not in first or row["missed_ns"] < first[where]["missed_ns"]
        ):
            first[where] = row
    for row in rows:
        gone = first.get((row["partition"], row["place"]))
        if gone is None or row["shown_ns"] is None or row["shown_ns"] <= gone["missed_ns"]:
            continue
        reset = trees[row["partition"]].resets[row["place"] - 1]
        text = (
            f"mixed generations: T{row['shown_by']} read {row['element']} of key {row['key']}, "
            f"which {_told(reset)} lost, after T{gone['missed_by']} had read key {gone['key']} "
            f"without {gone['element']}, which it lost as well"
        )
        yield (
            MIXED_GENERATIONS,
            partial(
                _of_writes,
                reset,
                text,
                (gone["missed_by"], row["shown_by"]),
                row,
                lookup,
                gone["key"],
            ),
        )


def _torn_inside(
    trees: Mapping[int, GenerationTree], cuts: Sequence[Row], lookup: Lookup
) -> Iterator[tuple[str, Tell]]:
    """torn-in-partition: of one transaction's writes to one partition a reset kept a part."""
    kept = {
        (row["partition"], row["place"], row["writer"]): row
        for row in reversed(cuts)
        if row["kept"]
    }
    for row in cuts:
        half = kept.get((row["partition"], row["place"], row["writer"]))
        if row["kept"] or half is None:
            continue
        reset = trees[row["partition"]].resets[row["place"] - 1]
        text = (
            f"torn in a partition: {_told(reset)} lost {row['element']} of key {row['key']} and "
            f"kept {half['element']} of key {half['key']}, both of T{row['writer']}"
        )
        writer = (row["writer"],)
        yield TORN_IN_PARTITION, partial(_of_writes, reset, text, writer, row, lookup, half["key"])


def cuts_that_tell(cuts: pa.Table) -> list[Row]:
    """Return, in order, the rows of ``CUTS`` that may accuse: what was lost, and of what was kept
    beside it by the same reset the last to begin, and what has a writer in common with it. All else
    was kept rightly, and may be as much as was ever read.
    """
    order = ("partition", "place", "key", "element")
    rows = cuts.sort_by([(name, "ascending") for name in order])
    kept = rows["kept"].to_numpy()
    if kept.all():
        return []
    where = ints(rows, "partition") << 32 | ints(rows, "place")
    begun, writer = ints(rows, "invoke_ns"), ints(rows, "writer")
    beside = np.flatnonzero(kept & np.isin(where, where[~kept]))
    # Of each reset the first in order of those that began last.
    last = beside[np.lexsort((beside, -begun[beside], where[beside]))]
    last = last[np.unique(where[last], return_index=True)[1]]
    lost = set(zip(where[~kept].tolist(), writer[~kept].tolist(), strict=True))
    pairs = zip(beside.tolist(), where[beside].tolist(), writer[beside].tolist(), strict=True)
    halves = [place for place, *pair in pairs if tuple(pair) in lost]
    told = np.unique(np.concatenate([np.flatnonzero(~kept), last, np.asarray(halves, np.int64)]))
    found: list[Row] = rows.take(pa.array(told)).to_pylist()
    return found


def _told(reset: Reset) -> str:
    return (
        f"the reset of partition {reset.partition} to generation {reset.generation} by "
        f"{reset.node} at {seconds(reset.earliest_ns)}"
    )


def _of_reset(reset: Reset, text: str, node: str | None = None) -> Finding:
    return Finding(
        text=text,
        txns=(),
        keys=(),
        node=node or reset.node,
        at_ns=reset.earliest_ns,
        details={"partition": reset.partition, "generation": reset.generation},
    )


def _of_writes(
    reset: Reset,
    text: str,
    txns: Iterable[int],
    row: Row,
    lookup: Lookup,
    *keys: int,
) -> Finding:
    txns = tuple(dict.fromkeys(txns))
    found = lookup.operations(txns)
    return Finding(
        text=text,
        txns=txns,
        keys=tuple(sorted({row["key"], *keys})),
        element=row["element"],
        operations=tuple(found[txn] for txn in txns),
        at_ns=reset.earliest_ns,
        details={"partition": reset.partition, "generation": reset.generation},
    )


CHECKER = Resets()
