"""Builds the plug-ins that a plan names: its provider, system, workload and faults."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import msgspec

from harness import plugins
from harness.errors import BrokenPlugin, PlanError, UnknownPlugin
from harness.plan.editor_schema import NoStruct
from harness.plan.installed_plugins import plugin
from harness.plan.plan import Plan, node_names, options, spare_names
from harness.protocols.cluster import System
from harness.protocols.fault_kinds import FaultKind
from harness.protocols.faults import Fault
from harness.protocols.workload import Workload, WorkloadSetting, trouble_of

DAEMON_LIMIT_S = 10  # a daemon that is slower than this would not carry a run


def named(path: str, group: str, name: str) -> Any:  # noqa: ANN401 (each group has its own)
    """Return the plugin that the plan names at ``path``. Raises ``PlanError`` where
    there is none.
    """
    try:
        return plugins.load(group, name)
    except UnknownPlugin as error:
        raise PlanError(path, str(error)) from error


def with_provider(plan: Plan) -> tuple[Plan, str]:
    """Return ``plan`` with ``auto`` replaced by a provider, and the reason for that one."""
    if plan.cluster.provider != "auto":
        return plan, "as the plan says"
    name, why = choose_provider()
    cluster = msgspec.structs.replace(plan.cluster, provider=name)
    return msgspec.structs.replace(plan, cluster=cluster), why


def choose_provider() -> tuple[str, str]:
    """Choose containers where a Docker daemon answers, else local processes; return the reason,
    too.
    """
    from clusters.providers.docker.daemon import NoDaemon, connect

    try:
        daemon = connect(DAEMON_LIMIT_S).version()["Version"]
    except NoDaemon as error:
        where = f"at {error.where} ({error.reason})"
        return "process", f"nodes are local processes, since no Docker daemon answers {where}"
    return "docker", f"a Docker daemon answers, version {daemon}"


def check_provider_options(plan: Plan) -> None:
    """Refuse options that the plan's provider does not have. Raises ``PlanError``."""
    named("cluster.provider", "providers", plan.cluster.provider)
    known = plugin("providers", plan.cluster.provider).options
    if not isinstance(known, NoStruct):
        options(known, plan.cluster.options, "cluster.options")


def build_system(plan: Plan, extras: Mapping[str, object] | None = None) -> System:
    """Build the system under test that the plan names; ``extras`` are the environment's arguments
    for it. Raises ``PlanError``, also for spares of a system whose factory takes none.
    """
    build = named("system.name", "systems", plan.system.name)
    parameters = inspect.signature(build).parameters
    extras = dict(extras or {})
    if spares := spare_names(plan):
        if "spares" not in parameters:
            what = f"no node joins system {plan.system.name!r} while it serves"
            raise PlanError("cluster.spares", f"expected 0: {what} (got {len(spares)})")
        extras["spares"] = spares
    for name in extras:
        if name not in parameters:
            what = f"{plan.cluster.provider!r} can't run system {plan.system.name!r}"
            why = f"whose nodes are programs: its factory takes no {name!r} that is simulated"
            raise PlanError("cluster.provider", f"{what}, {why} (try --provider process)")
    system: System = plugins.made(
        "systems",
        plan.system.name,
        System,
        lambda: build(plan.system.options, node_names(plan), plan.seed, **extras),
    )
    plugins.require_name("systems", plan.system.name, system.name)
    return system


def build_workload(plan: Plan, system: System) -> Workload:
    """Build the plan's workload, with the system's properties that it may know."""
    build = named("workload.name", "workloads", plan.workload.name)
    setting = WorkloadSetting(
        seed=plan.seed,
        concurrency=plan.drive.concurrency,
        drivers=plan.drive.drivers,
        transaction_scope=system.declaration.transaction_scope,
        partitions=system.partitions,
        partition_of=system.partition_of,
        kinds=tuple(promise.kind for promise in system.declaration.promises),
    )
    workload: Workload = plugins.made(
        "workloads", plan.workload.name, Workload, lambda: build(plan.workload.options, setting)
    )
    plugins.require_name("workloads", plan.workload.name, workload.name)
    return workload


def refuse_unfit(plan: Plan, workload: Workload) -> None:
    """Refuse a workload that would break the run when it has begun. Raises ``BrokenPlugin``."""
    name, kind = plan.workload.name, type(workload)
    with plugins.naming("workloads", name):
        trouble = trouble_of(workload)
    if trouble:
        where = f"{kind.__module__}.{kind.__qualname__}"
        raise BrokenPlugin(f"workload {name!r} ({where}): {trouble}")


def refuse_without_checkers(plan: Plan, workload: Workload) -> None:
    """Refuse a plan that could not be judged. Raises ``PlanError`` and ``BrokenPlugin``."""
    from checkers.engine.analyze import checkers_named

    try:
        checkers_named(workload.checkers)
    except UnknownPlugin as error:
        kind = type(workload)
        names = f"the checkers of {plan.workload.name!r} ({kind.__module__}.{kind.__qualname__})"
        raise PlanError("workload.name", f"{names}: {error}") from error


def build_fault(kind: str) -> Fault:
    """Build the fault kind that the plan names."""
    return _checked(kind, plugins.made("faults", kind, Fault, plugins.load("faults", kind)))


def faults_of(plan: Plan) -> dict[str, Fault]:
    """Return the kinds of faults that ``plan`` names, by name. Raises ``PlanError`` with the path
    where one that is not installed is first named.
    """
    found = dict.fromkeys(plan.nemesis.mix, "nemesis.mix")
    for number, fault in enumerate(plan.nemesis.schedule):
        found.setdefault(fault.kind, f"nemesis.schedule[{number}].kind")
    return {
        kind: _checked(kind, plugins.made("faults", kind, Fault, named(path, "faults", kind)))
        for kind, path in sorted(found.items())
    }


def _checked(name: str, fault: Fault) -> Fault:
    """Refuse a fault without a kind of its name: plans, records and reports find it by that.
    Raises ``BrokenPlugin``.
    """
    kind: object = fault.kind
    if not isinstance(kind, FaultKind) or kind.name != name:
        expected = f"expected its kind to be a FaultKind named {name!r} (got {kind!r:.200})"
        raise BrokenPlugin(f"fault {name!r}: {expected}")
    return fault
