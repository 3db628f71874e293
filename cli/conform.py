"""``firedrill conform``: checks an adapter against the contract that drills rely on."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import textwrap
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

import click
import msgspec

from cli.environment import SIMULATED, Environment, prepare
from cli.reaping.guard import ReaperGuard
from cli.run import naming_source
from cli.session import Session, runs_option, say
from harness import plugins
from harness.clock import RunClock
from harness.conform.bench import Bench, Mark, Result
from harness.conform.loop_watch import watched
from harness.conform.suite import SUITE, conform
from harness.errors import FiredrillError, PlanError, UsageError
from harness.exit_codes import Outcome
from harness.history.durable_files import write_atomically
from harness.history.run_directory import RunDirectory
from harness.plan import planfile
from harness.plan.overrides import PLUGINS, Overrides, merged
from harness.plan.plan import Plan, load, node_names
from harness.protocols.cluster import Cluster, System, felt, require_made
from harness.protocols.fault_kinds import BUILT_IN
from harness.text import inert, inert_json
from results.store.store import RunStore

RESULTS = "conform.json"
NAME_WIDTH, MARK_WIDTH, LINE_WIDTH = 18, 11, 110
USUAL_SEED = 1
DEFAULTS: Mapping[str, object] = {"cluster.nodes": 3, "limits.ready_s": 120.0}


@click.command("conform")
@click.argument("system")
@click.option(
    "--plan",
    "path",
    type=click.Path(path_type=Path),
    help="A plan whose [cluster] and [system] to take.",
)
@click.option("--provider", help="Where nodes come from: auto, docker, process, sim, ...")
@click.option("--nodes", type=int, help="How many nodes (3).")
@click.option("--seed", type=int, help=f"Of a simulation ({USUAL_SEED}).")
@click.option(
    "--set", "sets", multiple=True, metavar="KEY=VALUE", help="Any key of the plan, dotted."
)
@click.option("--check", "chosen", multiple=True, help="Only this check; repeatable.")
@click.option("--list", "listed", is_flag=True, help="Say what is checked, and check nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
@runs_option
@click.pass_obj
def conform_command(
    session: Session,
    /,
    system: str,
    path: Path | None,
    provider: str | None,
    nodes: int | None,
    seed: int | None,
    sets: tuple[str, ...],
    chosen: tuple[str, ...],
    listed: bool,
    as_json: bool,
    store: RunStore,
) -> int:
    """Check the adapter of SYSTEM against what drills rely on, on a cluster of its own.

    A line a check, as it ends. Exit code 0: everything that could be tried holds; 1: something does
    not, and a directory with the results and the nodes' logs is left; 2: nothing could be tried.
    """
    from cli.plan_plugins import build_system, named, with_provider  # heavy

    known = tuple(check.name for check in SUITE)
    if unknown := [name for name in chosen if name not in known]:
        raise UsageError(f"--check: expected one of {', '.join(known)} (got {unknown[0]!r})")
    if listed:
        for check in SUITE:
            click.echo(line(check.name, "", check.relies))
        return 0
    flags = {"cluster.provider": provider, "cluster.nodes": nodes, "seed": seed}
    _refuse_another(path, system)
    usual = {"seed": USUAL_SEED, "name": f"conform-{system}"[:48]}
    given = usual | merged({"system.name": system, **flags}, sets)

    def plan_of(flags: Overrides) -> tuple[Plan, str]:
        plan, why = with_provider(load(path, flags, usual=DEFAULTS, seed=USUAL_SEED))
        named("cluster.provider", "providers", plan.cluster.provider)
        build_system(plan)
        return plan, why

    with naming_source(path, given, plan_of):
        plan, why = plan_of(given)
    say(f"provider {plan.cluster.provider}: {why}")
    with store.create(plan.name, time.time_ns(), secrets.token_bytes(2)) as run:
        results = _run(session, plan, store, run, chosen, quiet=as_json)
        return _conclude(results, run, store, system, as_json=as_json)


def _refuse_another(path: Path | None, system: str) -> None:
    """Raise ``PlanError`` where the file has options of another system: ignoring them silently
    would check a configuration other than the requested one.
    """
    table = planfile.read_table(path).get("system") if path else None
    name = table.get("name", PLUGINS["system"]) if isinstance(table, dict) else system
    if name != system:
        expected = f"expected SYSTEM, {planfile.shown(system)}, or a plan without a table 'system'"
        raise PlanError("system.name", f"{expected} (got {planfile.shown(name)})", str(path))


def _run(
    session: Session,
    plan: Plan,
    store: RunStore,
    run: RunDirectory,
    chosen: Sequence[str],
    *,
    quiet: bool,
) -> list[Result]:
    """Return the results, once all nodes have ended; their files are in ``run``."""
    session.run = run
    simulated = plan.cluster.provider == SIMULATED
    guard = None if simulated else ReaperGuard.start(run, plan.cluster.provider)
    environment = prepare(plan, run)
    results: list[Result] = []

    async def main() -> None:
        try:
            bench = await _bench(plan, environment)
            loop = asyncio.get_running_loop()
            guarded = contextlib.nullcontext() if simulated else watched(loop)
            try:
                async with aclosing(conform(bench, chosen)) as work:
                    with guarded:
                        async for result in work:
                            results.append(result)
                            if not quiet:
                                text = inert(result.text, 1000)
                                click.echo(line(result.name, result.mark, text))
            finally:
                # Also after a check that raised: the nodes' logs may tell why.
                for node in bench.cluster.nodes:
                    await environment.provider.collect(node, run.node(node))
        finally:
            await environment.provider.teardown()
            if guard:
                guard.release()

    try:
        with plugins.keeping_alive():
            environment.run(main())
    except FiredrillError:
        store.forget(run)  # where nothing was written
        raise
    finally:
        # The teardown did not come to its end: the reaper's is left.
        if guard and not guard.released:
            guard.hand_over()
    return results


async def _bench(plan: Plan, environment: Environment) -> Bench:
    """Return the machines of a cluster, on which nothing runs yet."""
    from cli.plan_plugins import build_fault, build_system
    from harness.protocols.consistency_models import DECIDED

    system = build_system(plan, environment.system_extras)
    nodes = node_names(plan)
    await environment.provider.check(nodes, system.ports)
    able = felt(await environment.provider.capabilities(), system, environment.provider)
    require_made(system, environment.provider)
    cluster: Cluster = await environment.provider.provision(nodes, system.ports)
    loop = asyncio.get_running_loop()

    def another(options: Mapping[str, object]) -> System:
        wanted = msgspec.structs.replace(plan.system, options={**plan.system.options, **options})
        return build_system(msgspec.structs.replace(plan, system=wanted), environment.system_extras)

    return Bench(
        system=system,
        provider=environment.provider,
        cluster=cluster,
        clock=RunClock(loop, environment.wall_ns) if environment.wall_ns else RunClock(loop),
        build=another,
        # What a system is checked against are kinds that everyone has.
        faults={kind: build_fault(kind) for kind in BUILT_IN},
        able=able,
        models=DECIDED,
        real_network=environment.wall_ns is None,
        ready_s=plan.limits.ready_s,
    )


def line(name: str, mark: str, text: str) -> str:
    """Format one row of the table, folded below its last column."""
    head = f"{name:<{NAME_WIDTH}}{mark:<{MARK_WIDTH}}"
    indent = " " * len(head)
    wrapped = textwrap.wrap(text, LINE_WIDTH - len(head), break_on_hyphens=False) or [""]
    return f"\n{indent}".join([head + wrapped[0], *wrapped[1:]]).rstrip()


def _conclude(
    results: Sequence[Result], run: RunDirectory, store: RunStore, system: str, *, as_json: bool
) -> int:
    encoded = inert_json(msgspec.json.format(msgspec.json.encode(results)))
    count = Counter(result.mark for result in results)
    broken = count[Mark.BROKEN]
    if broken:
        write_atomically(run.root / RESULTS, encoded)
    else:
        store.remove(run, held=True)
    if as_json:
        click.echo(encoded)
    else:
        untried = f", {count[Mark.NOT_TRIED]} could not be tried" if count[Mark.NOT_TRIED] else ""
        told = f"{count[Mark.HOLDS]} of {len(results)} checks hold{untried}"
        if broken:
            click.echo(f"DOES NOT CONFORM: {system}: {told}, {broken} do not: {run.root}")
        elif not count[Mark.HOLDS]:
            click.echo(f"NOTHING TRIED: {system}: {told}")
        else:
            click.echo(f"CONFORMS: {system}: {told}")
    if broken:
        return Outcome.VIOLATION.exit_code
    return 0 if count[Mark.HOLDS] else Outcome.UNKNOWN.exit_code
