"""The plans of a simulated campaign: what its command line says becomes a plan a seed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from harness.clock import substream
from harness.errors import PlanError
from harness.plan.overrides import PLUGINS, merged, said
from harness.plan.plan import Plan, load, resolved

FIXED: dict[str, object] = {"cluster.provider": "sim", "check.executor": "local"}
NAME_CHARS = 48  # of a plan
WORKLOADS = ("list-append", "bank")
# Of swarm: operations of one key are judged more sharply, and meet fewer of a store's paths.
SWARM_WORKLOADS = (*WORKLOADS, *WORKLOADS, "register")
MOST_KINDS = 4  # of a seed's mix: few, and then some more than once, find more than all at once
FAULTS = (
    *("kill", "restart", "pause", "host-loss", "wipe"),
    *("partition", "one-way", "loss", "delay"),
    *("disk-slow", "disk-full", "disk-error", "bit-flip"),
    *("clock-jump", "clock-fast", "clock-slow"),
)
# About 500 operations and a handful of faults: a seed is short, so that there can be many.
DEFAULTS: dict[str, object] = {
    "name": "sim",
    "cluster.nodes": 5,
    # Of which the last 7 s are calm: whether a store is back within its bound is shown by what is
    # begun after that.
    "drive.duration_s": 28.4,
    "drive.rate_per_s": 19.0,
    "drive.concurrency": 20,
    "nemesis.mix": list(FAULTS),
    "nemesis.first_s": 1.5,
    "nemesis.hold_s": 2.0,
    "nemesis.quiet_s": 2.5,
    "cluster.options.rare": 0.35,
    "cluster.options.weather": {
        **{"loss": 0.002, "reorder": 0.02, "duplicate": 0.01},
        **{"slow": 0.05, "resets_per_s": 0.1},
    },
}
# The same drill on real nodes, whose providers know no weather.
ON_NODES = {key: value for key, value in DEFAULTS.items() if not key.startswith("cluster.options.")}


def flags_given(
    faults: Sequence[str], bugs: Sequence[str], sets: Sequence[str]
) -> dict[str, object]:
    """Return the plan's keys that flags name. Raises ``PlanError``."""
    flags = {
        "nemesis.mix": [kind.strip() for text in faults for kind in text.split(",")] or None,
        "system.bugs": list(bugs) or None,
    }
    given = merged(flags, sets)
    for path, only in FIXED.items():
        if (value := said(given, path)) not in (None, only):
            raise PlanError(path, f"expected {only!r}: seeds are simulated (got {value!r})")
    if "seed" in given:
        raise PlanError("seed", f"expected --seed for the first (got {given['seed']!r})")
    return given


def seed_plans(
    path: Path | None,
    overrides: Mapping[str, object],
    workloads: Sequence[str],
    seeds: Iterable[int],
) -> list[Plan]:
    """Return the plan of every seed: the file (by default a short drill) with ``overrides``; of
    several ``workloads`` seeds take turns, of the mix each takes a few kinds. Raises ``PlanError``.
    """
    from cli.wiring import refuse_impossible, without_untestable

    given = dict(overrides) | FIXED
    usual = WORKLOADS if path is None and said(given, "workload.name") is None else ()
    turns = workloads or usual
    plans = []
    for seed in seeds:
        own: dict[str, object] = {"seed": seed}
        if turns:
            own["workload.name"] = turns[seed % len(turns)]
        # Loaded for its name first, which the file may set.
        plan = load(path, given | own, usual=DEFAULTS)
        own["name"] = f"{plan.name}-{seed}"
        plans.append(_with_some_kinds(load(path, given | own, usual=DEFAULTS)))
    for plan in plans[:1]:  # one schedule for all
        refuse_impossible(plan)
    return [without_untestable(plan)[0] for plan in plans]


def swarm_plans(
    path: Path | None,
    overrides: Mapping[str, object],
    workloads: Sequence[str],
    seeds: Iterable[int],
) -> list[Plan]:
    """Return the plan of every seed, each with settings of its own where ``overrides`` leave them
    open: see ``clusters.reference.swarm``. Another system has ``seed_plans``. Raises ``PlanError``.
    """
    if said(overrides, "system.name") not in (None, PLUGINS["system"]):
        return seed_plans(path, overrides, workloads, seeds)
    name = said(overrides, "workload.name")
    turns = workloads or ((str(name),) if name else SWARM_WORKLOADS)
    return [swarm_plan(seed, turns[seed % len(turns)], overrides) for seed in seeds]


def swarm_plan(seed: int, workload: str, overrides: Mapping[str, object]) -> Plan:
    """Return the plan that ``seed`` draws, with its schedule. Raises ``PlanError``."""
    from cli.plan_plugins import named
    from cli.plan_schedule import drawn_schedule, schedule_of, told_of_the_mix
    from clusters.reference.swarm import settings, sharpened

    drawn = settings(seed, workload, overrides)
    own = {"seed": seed, "workload.name": workload}
    given = dict(overrides) | FIXED | own
    # The name with them: options of a workload go where another one is named.
    plan = load(None, given, usual=DEFAULTS | drawn | {"workload.name": workload})
    plan = replace(plan, name=f"{plan.name}-{seed}"[:NAME_CHARS])
    if plan.nemesis.schedule or not plan.nemesis.mix:
        return plan
    for kind in plan.nemesis.mix:
        named("nemesis.mix", "faults", kind)
    schedule = sharpened(plan, drawn_schedule(plan))
    plan = resolved(plan, schedule)
    with told_of_the_mix(schedule):
        schedule_of(plan)  # for its checks
    return plan


def _with_some_kinds(plan: Plan) -> Plan:
    """Return ``plan`` with a few kinds of its mix, drawn by its seed."""
    mix = plan.nemesis.mix
    if not mix:
        return plan
    stream = substream(plan.seed, "sim-kinds")
    count = stream.randint(1, min(MOST_KINDS, len(mix)))
    # Sorted: the order in which a plan lists its kinds must not change what its seed draws.
    some = tuple(sorted(stream.sample(sorted(mix), count)))
    return replace(plan, nemesis=replace(plan.nemesis, mix=some))


def refuse_unrunnable(plans: Sequence[Plan]) -> None:
    """Report an error that would refuse every seed once, before any. Raises ``UsageError``."""
    from cli.plan_plugins import build_system, build_workload, named
    from clusters.providers.sim.provider import build

    kinds = dict.fromkeys(kind for plan in plans for kind in plan.nemesis.mix)
    for kind in kinds:
        named("nemesis.mix", "faults", kind)
    for plan in {plan.workload.name: plan for plan in plans}.values():
        build_workload(plan, build_system(plan))
    for plan in plans[:1]:
        # For its options alone: nothing is provisioned.
        build("none", {"seed": plan.seed, **plan.cluster.options}, Path())


def markers_of(plan: Plan) -> Mapping[str, str]:
    """Return the markers of the system in ``plan`` with their places; empty for one without."""
    if plan.system.name != PLUGINS["system"]:
        return {}
    from clusters.reference.marker_index import known_markers

    return known_markers()
