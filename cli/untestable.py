"""What no run of a plan could bring about, told before anything starts: limits that none could
test, or break, and more operations than begin. Faults: ``cli.impossible``.

Only what is certain beforehand counts: a fault that waits for its moment may come at any time, and
a heal may take longer than planned.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Self

import attrs
import msgspec

from harness.clock import NS_PER_S
from harness.errors import PlanError
from harness.plan.plan import Plan, PromisePlan, ServiceLimits, node_names
from harness.protocols import targets
from harness.protocols.cluster import System, TellsMetastorage, TellsVoters
from harness.protocols.fault_kinds import FaultKind
from harness.protocols.faults import Fault, PlannedFault
from harness.protocols.recovery import MIN_CALM_NS, MIN_COUNT_NS, NOTICED_NS, counting_ns
from harness.protocols.replica_states import TellsStates

OF_MAJORITY = ("refused_within_s", "serves_within_s")
# Operations of an open loop begin at random: more than this above their mean, never (1 in 3
# million).
BEGUN_DEVIATIONS = 5
SHOWN = 7  # names of nodes in a message


@attrs.frozen(kw_only=True)
class Untestable:
    """A resolved ``plan``, held against its schedule. ``kinds`` are those of its faults. Of the
    system, where it tells them: how many ``partitions`` there are, how many ``voters`` each has,
    the nodes that vote in ``metastorage`` at first, and whether it ``tells_states``.
    """

    plan: Plan
    kinds: Mapping[str, FaultKind]
    mode: str
    may_lose: bool
    partitions: int | None
    voters: int | None
    metastorage: tuple[str, ...] | None
    tells_states: bool

    @classmethod
    def of(cls, plan: Plan, system: System, faults: Mapping[str, Fault]) -> Self:
        """Those of ``plan`` on ``system``, with the kinds of faults that it names."""
        declared = system.declaration
        return cls(
            plan=plan,
            kinds={kind: fault.kind for kind, fault in faults.items()},
            mode=declared.mode,
            may_lose=declared.may_lose,
            partitions=system.partitions,
            voters=system.voters if isinstance(system, TellsVoters) else None,
            metastorage=system.metastorage if isinstance(system, TellsMetastorage) else None,
            tells_states=isinstance(system, TellsStates),
        )

    def refuse(self) -> None:
        """Raise ``PlanError`` for the first such key."""
        for error in (*self._always(), *self._in_schedule()):
            raise error

    def left_out(self, mix: frozenset[str]) -> tuple[PromisePlan, tuple[str, ...]]:
        """Return the limits without those that this schedule leaves untested, of the many that are
        drawn from ``mix``, and their paths. Raises ``PlanError`` for one that none could test.
        """
        for error in self._always():
            raise error
        paths = dict.fromkeys(error.path for error in self._in_schedule())
        gone = tuple(path for path in paths if self._may_be_drawn(path.split(".")[1:], mix))
        return without(self.plan.promise, gone), gone

    def _may_be_drawn(self, names: list[str], mix: frozenset[str]) -> bool:
        """Tell whether ``mix`` has what the limit, or the table of a kind, needs; else it stays,
        for the error that tells so.
        """
        if names[-1] in OF_MAJORITY:
            return any(self.kinds[kind].takes_down for kind in mix)
        return len(names) > 1 or names[0] not in self.plan.promise.during or names[0] in mix

    def _always(self) -> Iterator[PlanError]:
        """What no schedule could mend."""
        drive = self.plan.drive
        lasts_s = drive.duration_s + drive.overtime_s
        yield from self._too_few()
        given = {key for of in self.plan.promise.sections.values() for key in of.given}
        other = dict(zip(OF_MAJORITY, reversed(OF_MAJORITY), strict=True))
        for path, limits in self.plan.promise.sections.items():
            gap_s = limits.longest_gap_s
            if gap_s is not None and gap_s >= lasts_s:
                over = f" + drive.overtime_s {drive.overtime_s:g}" if drive.overtime_s else ""
                most = f"less than drive.duration_s, {drive.duration_s:g}{over}"
                most += ": no gap is as long as the drive"
                yield PlanError(f"{path}.longest_gap_s", f"expected {most} (got {gap_s:g})")
            yield from self._never_so_slow(path, limits)
            # Both stand in a plan that is for either mode.
            key = of_other_modes(self.may_lose)
            if key in limits.given and other[key] not in given:
                does = "serves" if self.may_lose else "refuses requests"
                yield PlanError(
                    f"{path}.{key}",
                    f"expected {other[key]}, alone or beside it: without its majority a partition "
                    f"{does} in mode {self.mode}",
                )

    def _too_few(self) -> Iterator[PlanError]:
        """More acknowledged operations than begin."""
        drive, least = self.plan.drive, self.plan.check.min_ok
        most = most_begun(self.plan)
        if most is not None and least > most:
            over = f" + drive.overtime_s {drive.overtime_s:g}" if drive.overtime_s else ""
            begin = f"drive.rate_per_s {drive.rate_per_s:g} x drive.duration_s {drive.duration_s:g}"
            text = f"expected at most {most}: no more operations begin of {begin}{over}"
            yield PlanError("check.min_ok", f"{text} (got {least})")

    def _never_so_slow(self, path: str, limits: ServiceLimits) -> Iterator[PlanError]:
        """A latency that no acknowledged transaction has: with its deadline its outcome is unknown.
        In an open loop one may have waited for a client before.
        """
        drive, p99_ms = self.plan.drive, limits.p99_ms
        if drive.rate_per_s is None and p99_ms is not None and p99_ms >= drive.op_deadline_s * 1000:
            most = f"less than drive.op_deadline_s, {drive.op_deadline_s * 1000:g} ms"
            why = "no transaction is acknowledged later than that"
            yield PlanError(f"{path}.p99_ms", f"expected {most}: {why} (got {p99_ms:g})")

    def _in_schedule(self) -> Iterator[PlanError]:
        """What another schedule could mend."""
        planned = sorted({fault.kind for fault in self.plan.nemesis.schedule})
        for kind in self.plan.promise.during:
            if kind not in planned:
                has = ", ".join(planned) or "no fault"
                text = f"expected a kind of the schedule's faults ({has}), or the limits left out"
                yield PlanError(f"promise.{kind}", text)
        for path, limits in self.plan.promise.sections.items():
            kind = path.partition(".")[2]
            if kind and kind not in planned:
                continue
            yield from self._without_calm(path, kind, limits)
            yield from self._without_loss(path, kind, limits)

    def _without_calm(self, path: str, kind: str, limits: ServiceLimits) -> Iterator[PlanError]:
        """A time to recover that no fault of the schedule leaves, and the count of a rate."""
        schedule, within_s = self.plan.nemesis.schedule, limits.recovered_within_s
        # A fault that waits for its moment may come at any time: its own calm is not known.
        if within_s is None or any(fault.on is not None for fault in schedule):
            return
        of_kind = [fault for fault in schedule if kind in ("", fault.kind)]
        if not of_kind:
            yield PlanError(f"{path}.recovered_within_s", "expected a fault to recover from")
            return
        rate_per_s = self.plan.drive.rate_per_s
        count_s = (
            MIN_COUNT_NS if rate_per_s is None else counting_ns(rate_per_s / NS_PER_S)
        ) / NS_PER_S
        calm_s = max(_calm_s(fault, self.plan) for fault in of_kind)
        if within_s + count_s > calm_s:
            faults = f"a fault of kind {kind}" if kind else "a fault"
            most = f"at most {max(0.0, calm_s - count_s):g}: the longest time without faults after"
            text = f"{most} {faults} is {calm_s:g}, and {count_s:g} of it count the rate"
            yield PlanError(f"{path}.recovered_within_s", f"expected {text} (got {within_s:g})")
        elif not _has_calm_before(of_kind, schedule):
            least = f"{MIN_CALM_NS / NS_PER_S:g} s without faults before one, which tell the rate"
            yield PlanError(f"{path}.recovered_within_s", f"expected a schedule with {least}")

    def _without_loss(self, path: str, kind: str, limits: ServiceLimits) -> Iterator[PlanError]:
        """A limit of the time without a majority that no fault of the schedule takes, or not for
        so long.
        """
        key = OF_MAJORITY[1] if self.may_lose else OF_MAJORITY[0]
        within_s = limits.given.get(key)
        if within_s is None:
            return
        down = [f for f in self.plan.nemesis.schedule if self.kinds[f.kind].takes_down]
        of_kind = [fault for fault in down if kind in ("", fault.kind)]
        losses = [each for each in self._losses(down) if each.voters >= self._needed]
        of = f" of kind {kind}" if kind else ""
        if not of_kind or not losses:
            taken = max((each.voters for each in self._losses(down)), default=0)
            has = f": at most {taken} of {self.voters} voters are down together" if taken else ""
            text = f"expected faults{of} that take a partition the majority of its voters{has}"
            yield PlanError(f"{path}.{key}", text)
            return
        if not self.tells_states and not any(self._is_certain(fault) for fault in of_kind):
            text = f"expected faults{of} whose target is the majority of a partition that it names "
            text += f"(`majority of partition 0`): system {self.plan.system.name!r} does not tell "
            yield PlanError(f"{path}.{key}", f"{text}the states of its replicas")
            return
        losses = [each for each in losses if not each.of_metastorage]
        if not losses:
            yield PlanError(f"{path}.{key}", self._metastorage_too())
            return
        if self.may_lose and all(each.leaves_none for each in losses):
            text = "expected faults that leave a voter of the partition, which goes on: aim at "
            text += "`majority of partition P` or at `all but one of partition P`"
            yield PlanError(f"{path}.{key}", text)
            return
        noticed_s = 0.0 if self.may_lose else NOTICED_NS / NS_PER_S
        longest_s = max(each.longest_s for each in losses)
        if within_s + noticed_s >= longest_s:
            since = f", which is timed from {noticed_s:g} s after the loss on" if noticed_s else ""
            most = f"less than {longest_s - noticed_s:g}: the longest loss lasts {longest_s:g} s"
            yield PlanError(f"{path}.{key}", f"expected {most}{since} (got {within_s:g})")

    def _is_certain(self, fault: PlannedFault) -> bool:
        """Tell whether the target of ``fault`` alone says which partition loses its majority."""
        one = self.kinds[fault.kind].strikes_one
        return not one and targets.partition_lost(targets.parse(fault.target)) is not None

    @property
    def _needed(self) -> int:
        """How many voters a partition has to lose at least."""
        return 1 if self.voters is None else _out_of(self.voters)

    def _losses(self, down: Sequence[PlannedFault]) -> Iterator[_Loss]:
        """What each of the faults ``down``, which stop programs, takes with those that hold as it
        begins; a fault that waits for its moment may meet all others.
        """
        anytime = any(fault.on is not None for fault in down)
        for fault in down:
            lasting = [f for f in down if f.at_s <= fault.at_s < _end_s(f)]
            yield self._loss(fault, down if anytime else lasting, [fault] if anytime else lasting)

    def _loss(
        self, fault: PlannedFault, most: Sequence[PlannedFault], least: Sequence[PlannedFault]
    ) -> _Loss:
        """What ``fault`` takes where ``least`` hold for certain, and ``most`` at most."""
        nodes, voters = node_names(self.plan), self.voters or self.plan.cluster.nodes
        system = self.metastorage or ()
        least = [fault for fault in least if not self.kinds[fault.kind].strikes_one]
        aims = [targets.parse(each.target) for each in least]
        named = {node for aim in aims for node in targets.certain(aim, nodes)}
        out = max((targets.least_of(aim, nodes, voters, system) for aim in aims), default=0)
        counts = (
            # Of the targets of a crash the first one to come there is struck.
            1
            if self.kinds[fault.kind].strikes_one
            else targets.most(targets.parse(fault.target), len(nodes), voters)
            for fault in most
        )
        return _Loss(
            voters=min(len(nodes), sum(counts)),
            leaves_none=self._leaves_none(aims),
            of_metastorage=bool(system)
            and max(out, len(named.intersection(system))) >= _out_of(len(system)),
            longest_s=fault.hold_s,
        )

    def _leaves_none(self, aims: Sequence[targets.Target]) -> bool:
        """Tell whether ``aims`` for certain leave no voter of any partition that they take the
        majority from: of another partition than the one that is taken whole some may be left.
        """
        nodes = node_names(self.plan)
        if {node for aim in aims for node in targets.certain(aim, nodes)}.issuperset(nodes):
            return True
        same = self.partitions == 1 or self.voters == len(nodes)
        return same and any(aim.form is targets.Form.VOTERS_ALL for aim in aims)

    def _metastorage_too(self) -> str:
        """Say that each loss takes metastorage its majority, and what would not."""
        nodes, system = node_names(self.plan), self.metastorage or ()
        aim = targets.Target(form=targets.Form.VOTERS_MAJORITY, partition=0)
        votes = f"{some(system)} vote"
        text = f"expected faults that leave metastorage, in which {votes}, its majority: without "
        text += "it nothing is certain of partitions"
        voters = self.voters or len(nodes)
        if targets.least_of(aim, nodes, voters, system) < _out_of(len(system)):
            # So many voters of P outside, and no quorum of P that is drawn takes it.
            outside = [node for node in nodes if node not in system]
            least = min(voters, voters - _out_of(len(system)) + 1)
            if least <= 0 or not outside:
                return f"{text}; aim at `majority of partition P`"
            many = f"{min(least, len(outside))} of P's voters are among {some(outside)}"
            return f"{text}; aim at `majority of partition P`, where {many}"
        return f"{text}; more nodes (cluster.nodes) leave it one beside a partition that has none"


def some(nodes: Sequence[str]) -> str:
    """Names of nodes in a message."""
    return f"{len(nodes)} nodes" if len(nodes) > SHOWN else ", ".join(nodes)


@attrs.frozen(kw_only=True)
class _Loss:
    """What a fault takes with those that hold as it begins: ``voters`` of a partition at most, and
    whether the majority ``of_metastorage`` for certain; ``leaves_none``: for certain no voter of
    the partition is left. It lasts for ``longest_s`` at most.
    """

    voters: int
    leaves_none: bool
    of_metastorage: bool
    longest_s: float


def _out_of(voters: int) -> int:
    """How many of so many voters have to be out for the others to be no majority."""
    return voters - voters // 2


def most_begun(plan: Plan) -> int | None:
    """Return how many operations begin at most in the drive of ``plan``; ``None`` in a closed
    loop, of which the store decides.
    """
    drive = plan.drive
    if drive.rate_per_s is None:
        return None
    mean = drive.rate_per_s * (drive.duration_s + drive.overtime_s)
    return int(mean + BEGUN_DEVIATIONS * mean**0.5)


def of_other_modes(may_lose: bool) -> str:
    """The limit of the time without a majority that a mode which ``may_lose`` writes, or may not,
    leaves untested.
    """
    return OF_MAJORITY[0] if may_lose else OF_MAJORITY[1]


def without(promise: PromisePlan, paths: Sequence[str]) -> PromisePlan:
    """``promise`` without the limits, and the tables of a kind, that ``paths`` name."""
    for path in paths:
        names = path.split(".")[1:]
        if len(names) == 1 and names[0] in promise.during:
            during = {kind: of for kind, of in promise.during.items() if kind != names[0]}
            promise = msgspec.structs.replace(promise, during=during)
        elif len(names) == 1:
            promise = msgspec.structs.replace(promise, **{names[0]: None})
        else:
            of = msgspec.structs.replace(promise.during[names[0]], **{names[1]: None})
            promise = msgspec.structs.replace(promise, during={**promise.during, names[0]: of})
    return promise


def _end_s(fault: PlannedFault) -> float:
    return fault.at_s + fault.hold_s


def _calm_s(fault: PlannedFault, plan: Plan) -> float:
    """How long no other fault is in force after ``fault``; 0 where one is at its end."""
    end_s, next_s = _end_s(fault), plan.drive.duration_s
    for other in plan.nemesis.schedule:
        if other is not fault and other.at_s <= end_s < _end_s(other):
            return 0.0
        if other.at_s >= end_s and other is not fault:
            next_s = min(next_s, other.at_s)
    return next_s - end_s


def _has_calm_before(of_kind: list[PlannedFault], schedule: tuple[PlannedFault, ...]) -> bool:
    """Whether there is a time without faults, long enough to tell a rate, before the last of
    ``of_kind``.
    """
    last_s = max(fault.at_s for fault in of_kind)
    clear_s, calm_s = 0.0, MIN_CALM_NS / NS_PER_S
    for fault in sorted(schedule, key=lambda each: each.at_s):
        if fault.at_s > last_s:
            return False
        if fault.at_s - clear_s >= calm_s:
            return True
        clear_s = max(clear_s, _end_s(fault))
    return False
