"""When a partition was without the majority of its voters, and what was asked of it then.

A loss is told where it is certain: faults under which no program of their targets answers
(killed, stopped, gone with their machine) were proven in force on so many of the partition's
voters, as the last states of its replicas before the fault name them, that too few were left. A
store that tells no states is believed where the fault's target takes the majority of the partition
for certain (``harness.protocols.targets.partition_lost``).
The loss ends, for what is judged by it, when the first of these faults begins to be healed, or
when another fault joins in. Where metastorage has lost its own majority nothing can be decided
about partitions, and no loss is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import OK, TYPES, Bools, Ints, codes, ints
from checkers.engine.spans import FOREVER_NS
from checkers.limits.client_outcomes import (
    Breach,
    ClientOutcomes,
    Figure,
    Scope,
    Span,
    Tries,
    Untested,
)
from checkers.limits.gaps import silences
from checkers.limits.stalls import NO_STALLS, Stalls
from checkers.promises.liveness import MIN_TRIES, STEP_NS, TRIES
from harness.clock import NS_PER_S
from harness.errors import PlanError
from harness.protocols import targets
from harness.protocols.checker import EXAMPLES_MAX, Exchange, Kernel, Tables
from harness.protocols.conflicts import conflicts
from harness.protocols.consistency_models import REFUSAL, SERVICE
from harness.protocols.fault_kinds import FaultKind, by_name
from harness.protocols.fault_spans import FaultSpan
from harness.protocols.recovery import NOTICED_NS
from harness.protocols.setting import Setting
from harness.text import seconds

LOOK_BACK_NS = 30 * NS_PER_S  # for the last state that a replica told before a fault
REQUESTS = "limits.requests"

Group = tuple[str, int | None]
"""The name of a group of replicas, and its partition; metastorage is of none."""


def requests(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """Return ``limits.requests``: the partitions of each transaction that was not acknowledged, and
    whether it writes there; where the plan wants requests refused, also of each that took longer
    than the least time within which it does.
    """
    sections = setting.limits.sections.values()
    refused = [bound_s for of in sections if (bound_s := of.refused_within_s) is not None]
    serves = [bound_s for of in sections if (bound_s := of.serves_within_s) is not None]
    loses = setting.declaration.may_lose
    if not (serves if loses else refused):
        return {}
    table, steps = tables["transactions"], tables["micro_ops"]
    asked = codes(table, "type", TYPES) != OK
    if loses:
        # One that gave way to another says nothing of service.
        asked &= ~np.asarray(conflicts(setting.declaration, table))
    else:
        took = ints(table, "complete_ns") - ints(table, "invoke_ns")
        asked |= took > int(min(refused) * NS_PER_S)
    steps = steps.filter(pa.array(asked[ints(steps, "txn")]))
    # A key of no partition is in none that was lost.
    rows = pa.table(
        {
            "txn": steps["txn"],
            "partition": pc.fill_null(steps["partition"], -1),
            "writes": pc.not_equal(steps["f"], "r"),
        }
    )
    return {REQUESTS: rows.group_by(rows.column_names).aggregate([])}


KERNEL = Kernel(name=REQUESTS, exchange=Exchange.KEY, run=requests, numbers={REQUESTS: ("txn",)})


@attrs.frozen(kw_only=True)
class MajorityLoss:
    """``partition`` was without its majority from ``start_ns`` to ``end_ns``: ``out`` are the
    voters that ``faults`` had taken, ``left`` are the others, ``None`` where the store
    does not tell them.
    """

    partition: int
    start_ns: int
    end_ns: int
    out: tuple[str, ...]
    left: tuple[str, ...] | None
    faults: tuple[FaultSpan, ...]

    @property
    def in_words(self) -> str:
        """How findings name it."""
        of = "" if self.left is None else f" of its {len(self.out) + len(self.left)} voters"
        return f"partition {self.partition} had lost {', '.join(self.out)}{of} by " + seconds(
            self.start_ns
        )

    def of(self, scopes: Sequence[Scope]) -> bool:
        """Tell whether one of its faults is that of one of ``scopes``; a scope without a fault
        is of all.
        """
        numbers = {fault.fault for fault in self.faults}
        return any(s.fault is None or s.fault.fault in numbers for s in scopes)


def majority_losses(
    tables: Tables, setting: Setting, got: ClientOutcomes
) -> tuple[MajorityLoss, ...]:
    """Return the losses of the drive, in the order of their begin."""
    kinds, found = by_name(setting.fault_kinds), list[MajorityLoss]()
    down = _taking_down(got, kinds)
    for fault in down:
        at_ns = fault.effective_ns
        if at_ns is None or not got.drive.start_ns <= at_ns < got.drive.end_ns:
            continue
        # Of several at one moment the last one, by its number, takes the majority.
        lasting = [
            each
            for each in down
            if _in_force(each, at_ns) and (each.effective_ns, each.fault) <= (at_ns, fault.fault)
        ]
        voters = _voters(tables.get("states"), fault.begin_ns)
        if _without_system(voters, lasting):
            continue
        for partition, members in _of_partitions(voters):
            before = [each for each in lasting if each.fault != fault.fault]
            if _lost(members, lasting) and not _lost(members, before):
                out = members & _targets(lasting)
                taking = tuple(each for each in lasting if members & _targets([each]))
                end_ns = _end_ns(taking, kinds, got, at_ns)
                found.append(
                    MajorityLoss(
                        partition=partition,
                        start_ns=at_ns,
                        end_ns=end_ns,
                        out=tuple(sorted(out)),
                        left=tuple(sorted(members - out)),
                        faults=taking,
                    )
                )
        if not voters:
            end_ns = _end_ns([fault], kinds, got, at_ns)
            found += _aimed_at(fault, kinds[fault.kind], at_ns, end_ns)
    return tuple(loss for loss in found if loss.end_ns > loss.start_ns)


def _taking_down(got: ClientOutcomes, kinds: Mapping[str, FaultKind]) -> list[FaultSpan]:
    return [f for f in got.faults if f.kind in kinds and kinds[f.kind].takes_down]


def _aimed_at(
    fault: FaultSpan, kind: FaultKind, start_ns: int, end_ns: int
) -> Iterator[MajorityLoss]:
    """Yield the loss of the partition from which ``fault`` was to take the majority."""
    try:
        target = targets.parse(fault.target)
    except PlanError:  # of a kind with a language of its own
        return
    partition = None if kind.strikes_one else targets.partition_lost(target)
    if partition is not None:
        yield MajorityLoss(
            partition=partition,
            start_ns=start_ns,
            end_ns=end_ns,
            out=tuple(sorted(fault.nodes)),
            left=() if target.form is targets.Form.VOTERS_ALL else None,
            faults=(fault,),
        )


@attrs.frozen(kw_only=True)
class SystemLoss:
    """A group of no partition, as metastorage, had lost its majority at ``at_ns``. ``instead`` is a
    majority of ``partition`` that would have left each such group its own; none of no partition.
    """

    at_ns: int
    partition: int | None = None
    instead: tuple[str, ...] = ()


def metastorage_loss(tables: Tables, setting: Setting, got: ClientOutcomes) -> SystemLoss | None:
    """Return when metastorage first lost its majority in the drive, as far as states tell."""
    down = _taking_down(got, by_name(setting.fault_kinds))
    for fault in down:
        at_ns = fault.effective_ns
        if at_ns is not None and got.drive.start_ns <= at_ns < got.drive.end_ns:
            voters = _voters(tables.get("states"), fault.begin_ns)
            if _without_system(voters, [each for each in down if _in_force(each, at_ns)]):
                return _system_loss(voters, at_ns)
    return None


def _system_loss(voters: Mapping[Group, frozenset[str]], at_ns: int) -> SystemLoss:
    system = [members for (_, partition), members in voters.items() if partition is None]
    for partition, members in _of_partitions(voters):
        # Those first that vote in the fewest others.
        ranked = sorted(members, key=lambda node: (sum(node in of for of in system), node))
        out = frozenset(ranked[: len(members) // 2 + 1])
        if not any(len(of - out) <= len(of) // 2 for of in system):
            return SystemLoss(at_ns=at_ns, partition=partition, instead=tuple(sorted(out)))
    return SystemLoss(at_ns=at_ns)


def _in_force(fault: FaultSpan, at_ns: int) -> bool:
    return fault.effective_ns is not None and fault.effective_ns <= at_ns < _healed(fault)


def _healed(fault: FaultSpan) -> int:
    """When ``fault`` may begin to be over."""
    times = [at_ns for at_ns in (fault.healing_ns, fault.healed_ns) if at_ns is not None]
    return min(times, default=FOREVER_NS)


def _targets(faults: Sequence[FaultSpan]) -> frozenset[str]:
    return frozenset(node for fault in faults for node in fault.nodes)


def _lost(voters: frozenset[str], faults: Sequence[FaultSpan]) -> bool:
    return len(voters - _targets(faults)) <= len(voters) // 2


def _without_system(voters: Mapping[Group, frozenset[str]], faults: Sequence[FaultSpan]) -> bool:
    """Tell whether a group that is of no partition, as metastorage, has lost its majority."""
    return any(
        _lost(members, faults) for (_, partition), members in voters.items() if partition is None
    )


def _of_partitions(
    voters: Mapping[Group, frozenset[str]],
) -> Iterator[tuple[int, frozenset[str]]]:
    """Yield the voters of each partition, ascending. Of groups that share a partition's number no
    request can be told apart.
    """
    groups = Counter(partition for _, partition in voters)
    for (_, partition), members in sorted(voters.items(), key=lambda of: of[0][1] or 0):
        if partition is not None and groups[partition] == 1:
            yield partition, members


def _end_ns(
    taking: Sequence[FaultSpan], kinds: Mapping[str, FaultKind], got: ClientOutcomes, at_ns: int
) -> int:
    """Until when nothing but ``taking`` is in force; ``at_ns`` where something else is."""
    end_ns = min(got.drive.end_ns, *(_healed(fault) for fault in taking))
    own = {fault.fault for fault in taking}
    for other in got.faults:
        kind = kinds.get(other.kind)
        if other.fault in own or (kind is not None and not kind.may_be_missed):
            continue
        over_ns = FOREVER_NS if other.healed_ns is None else other.healed_ns
        if other.begin_ns < end_ns and over_ns > at_ns:
            end_ns = max(at_ns, min(end_ns, other.begin_ns))
    return end_ns


def _voters(states: pa.Table | None, at_ns: int) -> dict[Group, frozenset[str]]:
    """Return the voters of each group as the last states before ``at_ns`` tell them; none of a
    group whose replicas do not tell all of them alike.
    """
    if states is None or not states.num_rows:
        return {}
    answered = states["answered_ns"]
    near = pc.and_(pc.less_equal(answered, at_ns), pc.greater(answered, at_ns - LOOK_BACK_NS))
    names = ("group", "partition", "node", "voter", "voters", "answered_ns")
    rows = states.filter(near).select(names).sort_by("answered_ns").to_pylist()
    last = {(row["group"], row["node"]): row for row in rows}
    groups: dict[Group, list[dict[str, Any]]] = {}
    for row in last.values():
        if row["voter"]:
            groups.setdefault((row["group"], row["partition"]), []).append(row)
    return {
        group: frozenset(row["node"] for row in told)
        for group, told in groups.items()
        if {row["voters"] for row in told} == {len(told)}
    }


# -- in SC: every request is refused


def refusals(
    tables: Tables,
    losses: Sequence[MajorityLoss],
    allowed_ns: int,
    stalls: Stalls = NO_STALLS,
) -> Figure:
    """Time the refusals of requests to partitions without their majority. Raises ``Untested``.

    Only a transaction says something that asked for nothing else: another partition may have let it
    wait. Neither does one that was asked of a node that is out. A partition that acknowledged a
    write begun ``NOTICED_NS`` after its loss, before it was over, can't be told to have been
    without its majority: either it was not, or it serves without one, which no refusal shows. A
    late one in such a loss leaves the limit open. None is late that ``stalls`` explain.
    """
    table = tables["transactions"]
    begun, ended = ints(table, "invoke_ns"), ints(table, "complete_ns")
    spans, broken, judged = list[Span](), list[Breach](), 0
    doubts, remarks = list[str](), list[str]()
    served = {loss: _write_in(tables.get(TRIES), loss) for loss in losses}
    certain = [loss for loss, at_ns in served.items() if at_ns is None]
    for loss, at_ns in served.items():
        asked = _asked_of(loss, certain if at_ns is None else losses, tables, allowed_ns)
        own_ns = stalls.explained_ns(begun[asked], ended[asked])
        late = asked[ended[asked] - begun[asked] - own_ns > allowed_ns]
        if at_ns is not None:
            said = f"{loss.in_words}, and acknowledged a write that was begun at {seconds(at_ns)}"
            if len(late):
                doubts.append(f"{said}, though {len(late)} of {len(asked)} requests were late")
            remarks.append(f"{said}: it was not judged")
            continue
        judged += len(asked)
        took = np.minimum(ended[asked], loss.end_ns) - begun[asked]
        if len(took):
            at = int(took.argmax())
            spans.append(_span(int(took[at]), int(begun[asked[at]]), loss.partition))
        if len(late):
            broken.append(_late(loss, late, begun[late], ended[late], len(asked)))
    if not (judged or doubts):
        raise Untested(
            f"no request was made to a partition alone that had lost its majority "
            f"{seconds(NOTICED_NS)} before" + "".join(f"; {remark}" for remark in remarks[:1])
        )
    figure = Figure.of_longest(spans, broken, _scopes(losses), tuple(remarks))
    return attrs.evolve(figure, doubts=tuple(doubts))


def _write_in(tries: pa.Table | None, loss: MajorityLoss) -> int | None:
    """Return when the first write was begun that the partition acknowledged in its loss, and that
    certainly began after a store has to have noticed that; ``None`` without any. A read may be
    answered under the lease from before the loss.
    """
    begun, ended = _acks(tries, loss)
    inside = begun[(begun >= loss.start_ns + NOTICED_NS) & (ended <= loss.end_ns)]
    return int(inside.min()) if len(inside) else None


def _span(length_ns: int, start_ns: int, partition: int) -> Span:
    return Span(
        length_ns=length_ns, start_ns=start_ns, end_ns=start_ns + length_ns, partition=partition
    )


def _scopes(losses: Sequence[MajorityLoss]) -> list[Scope]:
    return [Scope(start_ns=loss.start_ns, end_ns=loss.end_ns) for loss in losses]


def _asked_of(
    loss: MajorityLoss, losses: Sequence[MajorityLoss], tables: Tables, allowed_ns: int
) -> Ints:
    """Return the transactions that have to be refused within ``allowed_ns``, ascending."""
    table, rows = tables["transactions"], tables[REQUESTS]
    txn, partition = ints(rows, "txn"), ints(rows, "partition")
    begun = ints(table, "invoke_ns")[txn]

    def covered(by: MajorityLoss) -> Bools:
        since = begun >= by.start_ns + NOTICED_NS
        return np.asarray((partition == by.partition) & since & (begun + allowed_ns <= by.end_ns))

    without = np.any([covered(each) for each in losses], axis=0)
    # Of no partition that may serve.
    found = np.setdiff1d(txn[covered(loss)], txn[~without])
    nodes = table["node"].take(pa.array(found)).to_pylist()
    there = [node not in loss.out for node in nodes]
    return np.asarray(found[np.asarray(there, dtype=np.bool_)], dtype=np.int64)


def _late(loss: MajorityLoss, late: Ints, begun: Ints, ended: Ints, asked: int) -> Breach:
    slowest = np.argsort(begun - ended, kind="stable")[:EXAMPLES_MAX]
    longest_ns = int((ended - begun).max())
    return Breach(
        name=REFUSAL,
        text=f"late refusal: {loss.in_words}, and {len(late)} of {asked} requests to it alone were "
        f"not refused in time, from {seconds(int(begun.min()))} to {seconds(int(ended.max()))}; "
        f"the slowest ended after {seconds(longest_ns)}",
        start_ns=int(begun.min()),
        end_ns=int(ended.max()),
        measured=longest_ns / NS_PER_S,
        txns=tuple(sorted(late[slowest].tolist())),
        partition=loss.partition,
    )


# -- in HA: what is left goes on


def first_served(tables: Tables, losses: Sequence[MajorityLoss], allowed_ns: int) -> Figure:
    """Time the first write that each partition acknowledged after it had lost its majority, of
    those that were begun since. Raises ``Untested``.

    A read may be answered under the lease from before the loss; and of a partition without any
    voter nothing is left that could go on. A transaction that failed shows nothing where it was
    asked of a node that is out, or asked another partition, too, that had lost its majority and
    had not served since.
    """
    first = [_first_ack(tables.get(TRIES), loss) for loss in losses]
    counted, broken, judged = list[Span](), list[Breach](), 0
    for loss in losses:
        if loss.left == () or loss.end_ns - loss.start_ns < allowed_ns + STEP_NS:
            continue
        others = [
            (other, served_ns)
            for other, served_ns in zip(losses, first, strict=True)
            if other.partition != loss.partition
        ]
        acks = _acks(tables.get(TRIES), loss)
        tries = _tries(acks, *_failed(tables, loss, others))
        at = Scope(start_ns=loss.start_ns, end_ns=loss.start_ns)
        times = silences(tries, at, loss.end_ns, allowed_ns, least=MIN_TRIES)
        spans = tuple(zip(*(each.tolist() for each in times), strict=True))
        answered = bool(len(tries.acks)) and int(tries.acks[0]) <= loss.end_ns
        judged += answered or any(_too_long(span, allowed_ns) for span in spans)
        # What a step shows as acknowledged may have been so until the step's end.
        counted += [
            _span(max(0, end_ns - start_ns - STEP_NS), start_ns, loss.partition)
            for start_ns, end_ns in spans
        ]
        broken += [
            _unserved(loss, span, allowed_ns) for span in spans if _too_long(span, allowed_ns)
        ]
    if not judged:
        raise Untested("no partition was written to for so long without its majority")
    return Figure.of_longest(counted, broken, _scopes(losses))


def _too_long(span: tuple[int, int], allowed_ns: int) -> bool:
    return span[1] - span[0] > allowed_ns + STEP_NS


def _acks(tries: pa.Table | None, loss: MajorityLoss) -> tuple[Ints, Ints]:
    """Return when each acknowledged write to the partition began and ended, since the loss."""
    if tries is None:
        none = np.zeros(0, dtype=np.int64)
        return none, none
    begun, ended = ints(tries, "begun") * STEP_NS, (ints(tries, "ended") + 1) * STEP_NS
    here = (ints(tries, "partition") == loss.partition) & np.asarray(tries.column("writes"))
    here &= (begun >= loss.start_ns) & np.asarray(tries.column("ok"))
    return begun[here], ended[here]


def _first_ack(tries: pa.Table | None, loss: MajorityLoss) -> int:
    """Return by when the partition had certainly served since the loss."""
    _, ended = _acks(tries, loss)
    return int(ended.min(initial=FOREVER_NS))


def _failed(
    tables: Tables, loss: MajorityLoss, others: Sequence[tuple[MajorityLoss, int]]
) -> tuple[Ints, Ints]:
    """Return when each write that this partition alone can have let fail began and ended, since the
    loss; ``others`` are the losses of other partitions, and when each had served again.
    """
    table, rows = tables["transactions"], tables[REQUESTS]
    txn, partition = ints(rows, "txn"), ints(rows, "partition")
    begun, ended = ints(table, "invoke_ns")[txn], ints(table, "complete_ns")[txn]
    hindered = np.zeros(len(txn), dtype=bool)
    for other, served_ns in others:
        gone = (ended >= other.start_ns) & (begun < min(other.end_ns + NOTICED_NS, served_ns))
        hindered |= (partition == other.partition) & gone
    here = (partition == loss.partition) & np.asarray(rows["writes"]) & (begun >= loss.start_ns)
    found = np.setdiff1d(txn[here], txn[hindered])
    nodes = table["node"].take(pa.array(found)).to_pylist()
    found = found[np.asarray([node not in loss.out for node in nodes], dtype=np.bool_)]
    begun, ended = ints(table, "invoke_ns")[found], ints(table, "complete_ns")[found]
    return begun // STEP_NS * STEP_NS, (ended // STEP_NS + 1) * STEP_NS


def _tries(acks: tuple[Ints, Ints], begun: Ints, ended: Ints) -> Tries:
    begins, ends = np.concatenate([acks[0], begun]), np.concatenate([acks[1], ended])
    return Tries.of(begins, ends, np.unique(acks[1]))


def _unserved(loss: MajorityLoss, span: tuple[int, int], allowed_ns: int) -> Breach:
    start_ns, end_ns = span
    return Breach(
        name=SERVICE,
        text=f"late service: {loss.in_words}, and acknowledged no write from {seconds(start_ns)} "
        f"to {seconds(end_ns)}, though clients asked and {_left(loss)}",
        start_ns=start_ns,
        end_ns=end_ns,
        measured=(end_ns - start_ns) / NS_PER_S,
        partition=loss.partition,
        spare_ns=end_ns - start_ns - STEP_NS - allowed_ns,
    )


def _left(loss: MajorityLoss) -> str:
    return f"{', '.join(loss.left)} lived" if loss.left else "a minority of its voters lived"
