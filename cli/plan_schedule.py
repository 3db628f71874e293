"""The schedule of a plan's faults: as its author wrote it, or drawn from its mix and seed; checked
against the kinds of its faults and the system under test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from cli.plan_plugins import build_fault, build_system, faults_of
from harness.errors import PlanError
from harness.plan.plan import Plan, node_names, spare_names
from harness.protocols.cluster import System
from harness.protocols.faults import ChecksSystem, EndsByItself, Fault, PlannedFault, configured
from nemesis.schedule import PATH, about_fault, check_schedule, materialise


def materialised(
    plan: Plan, system: System, faults: Mapping[str, Fault]
) -> tuple[PlannedFault, ...]:
    """Return the plan's schedule: as written, or drawn from its mix and seed.
    Raises ``PlanError``.
    """
    if plan.nemesis.schedule:
        _check_schedule(plan, plan.nemesis.schedule, system, faults)
        return plan.nemesis.schedule
    drawn = _drawn(plan, system, faults)
    with told_of_the_mix(drawn):
        _check_schedule(plan, drawn, system, faults)
    return drawn


def schedule_of(plan: Plan) -> tuple[PlannedFault, ...]:
    """Return the schedule that a run of ``plan`` would have. Raises ``PlanError``."""
    return materialised(plan, build_system(plan), faults_of(plan))


def drawn_schedule(plan: Plan) -> tuple[PlannedFault, ...]:
    """Return the schedule that is drawn from the mix and seed of ``plan``, of which kinds that need
    options have none yet. Raises ``PlanError``.
    """
    faults = {kind: build_fault(kind) for kind in sorted(plan.nemesis.mix)}
    return _drawn(plan, build_system(plan), faults)


@contextmanager
def told_of_the_mix(drawn: Sequence[PlannedFault]) -> Iterator[None]:
    """Name the mix, which its author wrote, where a fault of the schedule that was ``drawn`` from
    it is refused in the block.
    """
    try:
        yield
    except PlanError as error:
        if error.fault is None:
            raise
        fault = drawn[error.fault]
        key = error.path.removeprefix(f"{PATH}[{error.fault}]").removeprefix(".")
        given = "; a mix gives no options, a schedule does" if key.startswith("options") else ""
        text = f"{fault.kind!r}, drawn at {fault.at_s:g} s: {key}: {error.problem}{given}"
        raise PlanError("nemesis.mix", text) from error


def _check_schedule(
    plan: Plan, schedule: Sequence[PlannedFault], system: System, faults: Mapping[str, Fault]
) -> None:
    check_schedule(
        schedule,
        faults=faults,
        nodes=node_names(plan),
        spares=spare_names(plan),
        duration_s=plan.drive.duration_s,
        partitions=system.partitions,
    )
    for number, planned in enumerate(schedule):
        with about_fault(number) as here:
            _check_options(planned, faults[planned.kind], system, f"{here}.options")


def _check_options(planned: PlannedFault, kind: Fault, system: System, path: str) -> None:
    fault = configured(kind, planned, system.partitions, path)
    if isinstance(fault, ChecksSystem):
        fault.check_system(system, path)
    if isinstance(fault, EndsByItself) and fault.lease_s <= planned.hold_s:
        least = f"more than its hold_s, {planned.hold_s:g}"
        raise PlanError(f"{path}.lease_s", f"expected {least} (got {fault.lease_s:g})")


def _drawn(plan: Plan, system: System, faults: Mapping[str, Fault]) -> tuple[PlannedFault, ...]:
    given = plan.nemesis
    return materialise(
        mix=given.mix,
        seed=plan.seed,
        duration_s=plan.drive.duration_s,
        first_s=given.first_s,
        hold_s=given.hold_s,
        quiet_s=given.quiet_s,
        partitions=system.partitions,
        overlap=given.overlap,
        among=given.among,
        kinds={name: fault.kind for name, fault in faults.items()},
        nodes=plan.cluster.nodes,
    )
