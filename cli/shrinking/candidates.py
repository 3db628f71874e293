"""Smaller plans for shrinking: each has less of one thing. A plan is smallest when nothing more can
be taken from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec

from cli.untestable import most_begun
from harness.plan.plan import Plan
from harness.protocols.faults import PlannedFault

# The limits of shrinking: a cluster needs a moment to fail in.
LEAST_DURATION_S, LEAST_HOLD_S, LEAST_RATE_PER_S, LEAST_NODES = 3.0, 0.5, 5.0, 3
CALM_S = 1.0  # of the drive, after the last fault
FIRST_S = 0.5  # before the first one
# Options of workloads, and how little of each is tried; one that the plan does not name is taken
# for more than that.
WORKLOAD_STEPS: Mapping[str, tuple[int, ...]] = {
    "max_length": (2, 1),
    "key_count": (8, 4, 2, 1),
    "accounts": (4, 2),
    "banks": (1,),
}
BEGINNINGS = (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)
TROUBLES = ("weather", "rare", "skew_s")  # of a simulated environment, beside the faults


def smaller(plan: Plan) -> list[Plan]:
    """Return ``plan`` with less of one thing, each in turn, those that save most first. All can be
    run.
    """
    from cli.wiring import can_run  # heavy

    ways: tuple[Callable[[Plan], Iterator[Plan]], ...] = (
        _sooner,
        _shorter_drive,
        _simpler_workload,
        _fewer_clients,
        _lower_rate,
        _fewer_partitions,
        _fewer_nodes,
        _calmer_environment,
        _shorter_holds,
    )
    return [less for way in ways for less in way(plan) if less != plan and can_run(less)]


def beginnings(plan: Plan) -> list[Plan]:
    """Return ``plan`` ended earlier, the shortest first. A simulated run begins the same without
    its end, so an anomaly that had happened by then happens again, and all later trials are
    cheaper.
    """
    from cli.wiring import can_run  # heavy

    return [less for share in BEGINNINGS if (less := _beginning(plan, share)) and can_run(less)]


def _beginning(plan: Plan, share: float) -> Plan | None:
    duration_s = round(plan.drive.duration_s * share, 3)
    if duration_s < LEAST_DURATION_S:
        return None
    faults = [fault for fault in plan.nemesis.schedule if fault.at_s < duration_s - CALM_S]
    return _driven(with_schedule(plan, faults), duration_s=duration_s)


def with_schedule(plan: Plan, faults: Sequence[PlannedFault]) -> Plan:
    """Return ``plan`` with ``faults`` and no others."""
    # Without the mix, from which the faults of an empty schedule would be drawn.
    nemesis = msgspec.structs.replace(plan.nemesis, mix=(), schedule=tuple(faults))
    # A limit during faults that are gone could not be tested, and such a plan is refused.
    left = {fault.kind for fault in faults}
    during = {kind: of for kind, of in plan.promise.during.items() if kind in left}
    recovered = plan.promise.recovered_within_s if faults else None
    promise = msgspec.structs.replace(plan.promise, during=during, recovered_within_s=recovered)
    return msgspec.structs.replace(plan, nemesis=nemesis, promise=promise)


def _sooner(plan: Plan) -> Iterator[Plan]:
    """Move all faults and the end so much earlier that the first comes soon."""
    schedule = plan.nemesis.schedule
    early_s = min((fault.at_s for fault in schedule), default=0.0) - FIRST_S
    for by_s in (early_s, early_s / 2):
        if by_s < FIRST_S:
            return
        faults = [
            msgspec.structs.replace(fault, at_s=round(fault.at_s - by_s, 3)) for fault in schedule
        ]
        moved = with_schedule(plan, faults)
        yield _driven(moved, duration_s=_duration(moved, plan.drive.duration_s - by_s))


def _shorter_drive(plan: Plan) -> Iterator[Plan]:
    yield _driven(plan, duration_s=_duration(plan, plan.drive.duration_s / 2))


def _duration(plan: Plan, wanted_s: float) -> float:
    """Return ``wanted_s``, or as much more as the faults need; never more than the plan's."""
    last_s = max((fault.at_s + fault.hold_s for fault in plan.nemesis.schedule), default=0.0)
    needed_s = max(LEAST_DURATION_S, last_s + CALM_S)
    return round(min(plan.drive.duration_s, max(needed_s, wanted_s)), 3)


def _simpler_workload(plan: Plan) -> Iterator[Plan]:
    """Yield the plan with the next smaller value of each option."""
    options = plan.workload.options
    for name, steps in WORKLOAD_STEPS.items():
        now = options.get(name)
        step = next((step for step in steps if not isinstance(now, int) or step < now), None)
        if step is not None:
            less = options | {name: step}
            # A least length above the greatest would be refused.
            if name == "max_length" and options.get("min_length", 1) > step:
                less["min_length"] = step
            workload = msgspec.structs.replace(plan.workload, options=less)
            yield msgspec.structs.replace(plan, workload=workload)


def _fewer_clients(plan: Plan) -> Iterator[Plan]:
    if plan.drive.concurrency >= 4:
        yield _driven(plan, concurrency=plan.drive.concurrency // 2)


def _lower_rate(plan: Plan) -> Iterator[Plan]:
    rate = plan.drive.rate_per_s
    if rate is not None and rate / 2 >= LEAST_RATE_PER_S:
        yield _driven(plan, rate_per_s=rate / 2)


def _driven(plan: Plan, **changes: object) -> Plan:
    less = msgspec.structs.replace(plan, drive=msgspec.structs.replace(plan.drive, **changes))
    most = most_begun(less)
    if most is None or less.check.min_ok <= most:
        return less
    # As many as a plan asks for that its load can't reach are refused.
    check = msgspec.structs.replace(less.check, min_ok=max(1, most))
    return msgspec.structs.replace(less, check=check)


def _fewer_partitions(plan: Plan) -> Iterator[Plan]:
    partitions = plan.system.options.get("partitions")
    for fewer in (1, partitions // 2 if isinstance(partitions, int) else 2):
        if fewer >= 1 and (not isinstance(partitions, int) or fewer < partitions):
            options = plan.system.options | {"partitions": fewer}
            system = msgspec.structs.replace(plan.system, options=options)
            yield msgspec.structs.replace(plan, system=system)


def _fewer_nodes(plan: Plan) -> Iterator[Plan]:
    if plan.cluster.nodes > LEAST_NODES:
        cluster = msgspec.structs.replace(plan.cluster, nodes=LEAST_NODES)
        yield msgspec.structs.replace(plan, cluster=cluster)


def _calmer_environment(plan: Plan) -> Iterator[Plan]:
    for trouble in TROUBLES:
        if trouble in plan.cluster.options:
            options = {name: v for name, v in plan.cluster.options.items() if name != trouble}
            cluster = msgspec.structs.replace(plan.cluster, options=options)
            yield msgspec.structs.replace(plan, cluster=cluster)


def _shorter_holds(plan: Plan) -> Iterator[Plan]:
    """Shorten all holds, and then each by itself."""
    schedule = plan.nemesis.schedule
    halved = [
        msgspec.structs.replace(fault, hold_s=round(max(LEAST_HOLD_S, fault.hold_s / 2), 3))
        if fault.hold_s > LEAST_HOLD_S
        else fault
        for fault in schedule
    ]
    yield with_schedule(plan, halved)
    if len(schedule) > 1:
        for at, fault in enumerate(halved):
            yield with_schedule(plan, (*schedule[:at], fault, *schedule[at + 1 :]))
