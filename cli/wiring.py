"""Resolves a plan, refuses it or runs it: the one module that depends on every package.

What its names build is in ``cli.plan_plugins``, its faults are in ``cli.plan_schedule``.
"""

from __future__ import annotations

import os
import platform
import secrets
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs
import msgspec

from cli.calibrator import calibrate
from cli.environment import SIMULATED, prepare
from cli.impossible import Impossible
from cli.plan_plugins import (
    build_fault,
    build_system,
    build_workload,
    check_provider_options,
    faults_of,
    named,
    refuse_unfit,
    refuse_without_checkers,
    with_provider,
)
from cli.plan_schedule import materialised
from cli.reaping.guard import ReaperGuard
from cli.signals import ending_in_time
from cli.untestable import Untestable
from harness import plugins
from harness.arrow import without_pandas
from harness.campaigns.coverage_log import CoverageLog
from harness.errors import (
    FiredrillError,
    Interrupted,
    UsageError,
)
from harness.history.records import FaultTransition, Record
from harness.history.run_directory import RunDirectory
from harness.mutation.loading import MUTANT, Mutation
from harness.plan.plan import (
    Plan,
    machine_names,
    resolved,
)
from harness.protocols.cluster import (
    Capability,
    Provider,
    RunsCommands,
    System,
    felt,
    require_made,
)
from harness.protocols.fault_kinds import by_name, recorded
from harness.protocols.faults import (
    Fault,
)
from harness.protocols.moments import moments_told
from harness.protocols.statement_language import of_system
from harness.run.disk_budget import require_room
from harness.run.execute import execute
from harness.run.lifecycle import Guard, Parts
from harness.run.progress import Progress
from harness.run.stop import Stop
from harness.text import inert

LIBRARIES = ("msgspec", "pyarrow", "pyspark", "numpy", "docker", "paramiko")
DRIVER_COMMAND = (sys.executable, "-P", "-m", "cli.driver_process")
NOTE_CHARS = 400  # a sentence that names some runs


# A callback about a sealed run, or an interrupted one (``True``): does its cluster stay up?
Keep = Callable[[RunDirectory, bool], Awaitable[bool]]


@attrs.frozen(kw_only=True)
class ResolvedPlan:
    """A plan that names its provider and every fault; ``provider_reason`` is why that provider,
    ``mix`` are the kinds that its faults were drawn from.
    """

    plan: Plan
    mix: tuple[str, ...] = ()
    provider_reason: str
    system: System
    faults: Mapping[str, Fault]


@attrs.frozen(kw_only=True)
class MachineLook:
    """The capabilities of this machine, and everything that a plan needs and is not there."""

    able: frozenset[Capability]
    missing: tuple[FiredrillError, ...]


def run_plan(
    plan: Plan,
    runs_dir: Path,
    progress: Progress,
    stop: Stop,
    keep: Keep | None = None,
    *,
    trace: bool = False,
    begun: Callable[[RunDirectory], None] | None = None,
    mutation: Mutation | None = None,
    coverage: CoverageLog | None = None,
) -> RunDirectory:
    """Resolve ``plan``, refuse it or run it into a new directory of ``runs_dir``, and seal it.

    With ``trace`` a simulated run keeps every message and disk operation. ``begun`` is called with
    the directory as soon as there is one. Real nodes get the ``mutation``; for simulated ones it
    must be loaded already. A simulated run writes what it reaches into ``coverage``.

    A plan that can be refused is refused before anything starts, and then leaves no directory
    behind. Raises ``UsageError`` for that and ``HarnessError`` when the environment fails on the
    way.
    """
    from cli.cleanup import left_by_others
    from results.store.store import RunStore

    without_pandas()
    ready = resolve(plan)
    plan, faults = ready.plan, ready.faults
    progress.note(f"provider {plan.cluster.provider}: {ready.provider_reason}")
    if keep and plan.cluster.provider == SIMULATED:
        raise UsageError("--keep needs nodes that outlive the run: those of 'sim' are simulated")
    require_room(plan, runs_dir)
    _leave_unbegun(stop)
    store = RunStore(runs_dir)
    # A simulated run takes nothing of the machine, so what others left there can't hinder it.
    if plan.cluster.provider != SIMULATED and (left := left_by_others(store)):
        progress.note(inert(left, NOTE_CHARS))
    with store.create(plan.name, time.time_ns(), secrets.token_bytes(2)) as run:
        if begun:
            begun(run)
        try:
            _run(
                plan,
                run,
                faults,
                progress,
                stop,
                keep,
                trace=trace,
                mutation=mutation,
                coverage=coverage,
                mix=ready.mix,
            )
        except (FiredrillError, KeyboardInterrupt):
            store.forget(run)  # where nothing was written
            raise
    return run


def _leave_unbegun(stop: Stop, guard: Guard | None = None) -> None:
    """Raise ``Interrupted`` where the user asked for the end before anything was made: to record
    and seal an empty history would take seconds, on a busy machine more than all the rest.
    """
    if stop.interrupted:
        if guard:
            guard.release()
        raise Interrupted("interrupted before the run began: nothing was made")


def resolve(plan: Plan) -> ResolvedPlan:
    """``plan`` with its provider and its schedule, without a look at what the machine can do.

    Refuses what no machine could carry out, and what could not be judged afterwards. Raises
    ``UsageError``.
    """
    plan, why = with_provider(plan)
    mix = plan.nemesis.mix
    check_provider_options(plan)
    system = build_system(plan)
    # So that wrong options, and checkers that are not there, are refused before anything starts.
    workload = build_workload(plan, system)
    refuse_unfit(plan, workload)
    refuse_without_checkers(plan, workload)
    faults = faults_of(plan)
    plan = resolved(plan, materialised(plan, system, faults))
    refuse_untestable(plan, system, faults)
    return ResolvedPlan(plan=plan, mix=mix, provider_reason=why, system=system, faults=faults)


def refuse_impossible(plan: Plan) -> None:
    """Refuse faults that somebody wrote into ``plan`` and that no run could bring about. A schedule
    that was drawn is left to the run, in which such a fault is skipped. Raises ``PlanError``.
    """
    if plan.nemesis.schedule:
        faults = faults_of(plan)
        system = build_system(plan)
        materialised(plan, system, faults)  # for its checks
        Impossible.of(plan, system, faults).refuse()


def refuse_untestable(plan: Plan, system: System, faults: Mapping[str, Fault]) -> None:
    """Refuse limits that no run of the resolved ``plan`` could break, or test. Raises
    ``PlanError``.
    """
    for kind in plan.promise.during:
        named(f"promise.{kind}", "faults", kind)
    Untestable.of(plan, system, faults).refuse()


def without_untestable(plan: Plan) -> tuple[Plan, tuple[str, ...]]:
    """Return ``plan`` without those limits that its seed leaves untested, and their paths: for a
    series, whose other seeds may draw what they need. Raises ``PlanError``, also for limits that no
    seed could test.
    """
    if not plan.promise.sections or not plan.nemesis.mix:
        return plan, ()
    faults = {kind: build_fault(kind) for kind in sorted(plan.nemesis.mix)}
    system = build_system(plan)
    drawn = resolved(plan, materialised(plan, system, faults))
    left, gone = Untestable.of(drawn, system, faults).left_out(frozenset(plan.nemesis.mix))
    return msgspec.structs.replace(plan, promise=left), gone


def _run(
    plan: Plan,
    run: RunDirectory,
    faults: Mapping[str, Fault],
    progress: Progress,
    stop: Stop,
    keep: Keep | None,
    *,
    trace: bool,
    mutation: Mutation | None,
    coverage: CoverageLog | None,
    mix: tuple[str, ...],
) -> None:
    from nemesis.runner import Nemesis

    environment = prepare(plan, run, trace=trace, coverage=coverage)
    # Again, with what the environment gives it: the first one was built to refuse wrong options.
    system = build_system(plan, environment.system_extras)
    simulated = plan.cluster.provider == SIMULATED
    altered = None
    if mutation and not simulated:
        altered = partial(mutation.altered, scratch=run.root / MUTANT)

    async def main(guard: Guard | None) -> None:
        able = await _refuse(plan, environment.provider, system, faults, guard)
        _leave_unbegun(stop, guard)
        parts = Parts(
            provider=environment.provider,
            system=system,
            workload=build_workload(plan, system),
            make_nemesis=lambda write: Nemesis(
                schedule=plan.nemesis.schedule,
                faults=faults,
                seed=plan.seed,
                write=write if coverage is None else _tapped(write, coverage),
                duration_s=plan.drive.duration_s,
                overtime_s=plan.drive.overtime_s,
            ),
            versions={"firedrill": plugins.own_version()}
            | {name: version(name) for name in LIBRARIES}
            | (mutation.versions if mutation else {}),
            machine=machine() if simulated else machine() | {"calibrator": _calibrated(run.root)},
            wall_ns=environment.wall_ns,
            open_history=environment.open_history,
            keep=partial(keep, run) if keep else None,
            guard=guard,
            driver_command=DRIVER_COMMAND,
            altered=altered,
            # Other plug-ins that are installed decide nothing of a run, and need not be sound.
            fault_kinds=recorded(by_name(fault.kind for fault in faults.values()).values(), able),
            mix=mix,
        )
        progress.note(f"run directory {run.root}")
        await execute(plan, run, parts, progress, stop)

    if simulated:
        with ending_in_time(stop):
            environment.run(main(None))
        return
    _leave_unbegun(stop)
    # Before anything is made that a dead controller would leave.
    guard = ReaperGuard.start(run, plan.cluster.provider)
    try:
        environment.run(main(guard))
    finally:
        if not guard.released:
            progress.note("what the run left is removed in the background; see reaper.log")
            guard.hand_over()


def _tapped(write: Callable[[Record], None], coverage: CoverageLog) -> Callable[[Record], None]:
    """Write a record, and tell ``coverage`` of it."""

    def written(record: Record) -> None:
        write(record)
        if isinstance(record, FaultTransition):
            coverage.changed(record)

    return written


async def _refuse(
    plan: Plan,
    provider: Provider,
    system: System,
    faults: Mapping[str, Fault],
    guard: Guard | None,
) -> frozenset[Capability]:
    """Refuse a plan that this machine can't run, before anything of the run is made; return the
    machine's capabilities.
    """
    look = await examine(plan, provider, system, faults)
    if look.missing:
        # Nothing was made, so nothing has to be healed.
        if guard:
            guard.release()
        raise look.missing[0]
    return look.able


async def examine(
    plan: Plan, provider: Provider, system: System, faults: Mapping[str, Fault]
) -> MachineLook:
    """What the machine can do of what a resolved ``plan`` needs. Nothing of a run is made."""
    from nemesis.aims import refuse_untold
    from nemesis.runner import refuse_missing

    missing: list[FiredrillError] = []

    @contextmanager
    def noted() -> Iterator[None]:
        try:
            yield
        except FiredrillError as error:
            if str(error) not in map(str, missing):
                missing.append(error)

    with noted():
        await provider.check(machine_names(plan), system.ports)
    able = frozenset[Capability]()
    with noted():
        there = await provider.capabilities()
        able = felt(there, system, provider) | of_system(system)
        around = f"nodes of {system.name} walk around what provider {provider.name} does there"
        why = dict.fromkeys(there - able, around)
        why[Capability.COMMANDS] = (
            provider.commands_refused
            if isinstance(provider, RunsCommands)
            else f"nodes of provider {provider.name} have no shell"
        )
        # One by one: a person mends all that is missing at once.
        for planned in plan.nemesis.schedule:
            with noted():
                refuse_missing((planned,), faults, able, why)
    told = moments_told(provider, system)
    for planned in plan.nemesis.schedule:
        with noted():
            refuse_untold((planned,), told, f"nodes of {system.name} on {provider.name}")
    with noted():
        require_made(system, provider)
    return MachineLook(able=able, missing=tuple(missing))


def can_run(plan: Plan) -> bool:
    """Tell whether its workload accepts its options, and the nodes that its faults name exist."""
    try:
        system, faults = build_system(plan), faults_of(plan)
        build_workload(plan, system)
        drawn = resolved(plan, materialised(plan, system, faults))
        refuse_untestable(drawn, system, faults)
    except UsageError:
        return False
    return True


def machine() -> dict[str, Any]:
    """Describe the controller's machine for the manifest."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "system": platform.system(),
        "kernel": platform.release(),
        "architecture": platform.machine(),
        "python": platform.python_version(),
        # Those that this process may use, which a container or taskset may restrict.
        "cores": len(os.sched_getaffinity(0)),
        "memory_mib": memory_bytes >> 20,
    }


def _calibrated(directory: Path) -> dict[str, float]:
    """Measure how fast this machine is now: times of another one, or of the same one when it was
    busier, are no times to compare with.
    """
    try:
        return attrs.asdict(calibrate(directory))
    except OSError:
        return {}  # a disk that refuses will be reported by what needs it
