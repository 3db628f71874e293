"""The drills and tests that mutants of a store are tried in: which there are, and what a worker
does with the cell of one.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import attrs
from msgspec.structs import replace

from cli.cells import code_digest, run_on_nodes, simulate
from cli.environment import SIMULATED
from cli.session import say
from harness.campaigns.cell import Cell, CellResult, Failure, failed, result_of
from harness.campaigns.pool import RunStarted
from harness.errors import UsageError
from harness.exit_codes import Outcome
from harness.mutation.line_coverage import count_lines, decode, encode
from harness.mutation.loading import MUTANT, Mutation, load_mutant
from harness.mutation.suites import (
    TESTS,
    TESTS_DIGEST,
    Suite,
    digest,
    first_failure,
    is_below,
    paths_of,
)
from harness.mutation.target import Sources, Target
from harness.mutation.trials import WALL_LIMIT_S, Drill
from harness.plan.plan import Plan, dumps, load, loads

TARGET = Path(__file__).resolve().parents[1] / "clusters" / "reference" / "mutants.toml"
SOUND = "lines"  # the option of a cell that counts the lines of the sound store
# Tests may take so many times their wall time on the sound store, and always that.
SUITE_TIMES, SUITE_LIMIT_S = 20.0, 60.0
SIM_SEEDS = range(8)
OF_ZONES: tuple[Mapping[str, object], ...] = (
    *({"system.rebalance": variant} for variant in ("base", "lock", "cancel")),
    *({"system.mode": mode} for mode in ("HA", "HA", "SC")),
)


def reference_plans() -> list[Plan]:
    """Return the drills of the reference store: those that suit planted bugs, each once, one that
    moves partitions, and some seeds of ``firedrill sim``: as it comes, of each variant of rebalance
    and of majorities that are lost.
    """
    # Elsewhere, since it imports the store: here that must not be, for a mutant takes its place.
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as other:
        texts = other.submit(_reference_texts).result()
    return [loads(text) for text in texts]


def _reference_texts() -> list[str]:
    from cli.campaign_plans import SWARM_WORKLOADS, swarm_plan
    from clusters.reference.planted_bug_drills import MOVING, drills

    hunts = [
        load(None, {**overrides, "seed": 1, "name": f"mutant-{name}"})
        for name, overrides in {**drills(), "moving": MOVING}.items()
    ]
    asked: list[tuple[int, Mapping[str, object]]] = [(seed, {}) for seed in SIM_SEEDS]
    asked += enumerate(OF_ZONES, SIM_SEEDS.stop)
    sims = [
        swarm_plan(seed, SWARM_WORKLOADS[seed % len(SWARM_WORKLOADS)], given)
        for seed, given in asked
    ]
    named = [replace(plan, name=f"mutant-sim-{plan.seed}") for plan in sims]
    return [dumps(plan) for plan in (*hunts, *named)]


def drill(
    cell: Cell, run_started: RunStarted, *, runs_dir: Path, sources: Sources, code: str
) -> CellResult:
    """Drill the sound store, where it is simulated counting its lines, or the mutant that ``cell``
    names; a run that is not valid stays. A cell with tests runs those in place of its plan.
    ``code`` is that of the campaign's beginning.
    """
    key = cell.options.get(MUTANT)
    mutation = None if key is None else sources.mutation(key)
    if TESTS in cell.options:
        result = _tested(cell, sources, mutation)
    elif not is_simulated(cell.plan):
        result = run_on_nodes(cell, run_started, runs_dir=runs_dir, mutation=mutation)
    elif mutation is None:
        lines = count_lines(sources.sources)
        result = simulate(cell, run_started, runs_dir=runs_dir, keep=False)
        result = replace(result, coverage=encode(lines))
    else:
        load_mutant(mutation.module, mutation.source)
        result = simulate(cell, run_started, runs_dir=runs_dir, keep=False, mutation=mutation)
    if code_digest() != code or _are_other_tests(cell):  # each worker imports the store anew
        return failed(cell, "the code was changed meanwhile", failure=Failure.STALE)
    return result


def _are_other_tests(cell: Cell) -> bool:
    """Whether the tests that ``cell`` names were changed since it was made."""
    before = cell.options.get(TESTS_DIGEST)
    return before is not None and before != digest(paths_of(cell.options))


def _tested(cell: Cell, sources: Sources, mutation: Mutation | None) -> CellResult:
    """Run the tests that ``cell`` names against the mutant, or against the sound store, whose lines
    are counted.
    """
    lines = {}
    if mutation is None:
        lines = dict(count_lines(sources.sources))
    else:
        load_mutant(mutation.module, mutation.source)
    failed_test = first_failure(paths_of(cell.options))
    return result_of(
        cell,
        Outcome.VALID if failed_test is None else Outcome.VIOLATION,
        [] if failed_test is None else [failed_test],
        coverage=encode(lines) if lines else b"",
        cpu_s=round(time.process_time(), 3),
    )


def suites_of(
    path: Path, target: Target, modules: Collection[str]
) -> dict[str, tuple[Suite, Cell]]:
    """Return the tests of ``modules`` in ``target``, which the file at ``path`` has, and the cell
    of the sound store that runs them, by name. Raises ``UsageError`` for tests that are not there,
    or of what is no target.
    """
    found = {}
    for number, suite in enumerate(target.tests, start=1):
        for package in suite.packages:
            if not any(is_below(package, of) or is_below(of, package) for of in target.packages):
                raise UsageError(f"tests of {package}: expected a package of the target")
        if not any(map(suite.covers, modules)):
            continue
        try:
            options = suite.options(path.absolute().parent)
        except UsageError as error:
            if path != TARGET:
                raise
            say(f"left out: {error}")  # firedrill is installed without its own
            continue
        name = f"tests-{number}"
        plan = load(None, {"name": name, "seed": 0, "cluster.provider": SIMULATED})
        options = {**options, SOUND: "counted"}
        found[name] = suite, Cell(plan=plan, options=options, limit_s=WALL_LIMIT_S)
    return found


def sound_suite(suite: Suite, cell: Cell, result: CellResult) -> Drill:
    """Return ``suite`` as a drill, by the ``result`` of its ``cell`` on the sound store."""
    options = {key: value for key, value in cell.options.items() if key != SOUND}
    limit_s = max(SUITE_LIMIT_S, SUITE_TIMES * result.wall_s)
    return attrs.evolve(
        sound_drill(cell.plan, result), suite=suite, options=options, limit_s=limit_s
    )


def is_simulated(plan: Plan) -> bool:
    """Return whether ``plan`` needs no nodes beside this process."""
    return plan.cluster.provider == SIMULATED


def sound_drill(plan: Plan, result: CellResult) -> Drill:
    """Return the drill of ``plan``, by its ``result`` on the sound store."""
    return Drill(
        name=plan.name,
        plan=plan,
        lines=decode(result.coverage) if is_simulated(plan) else None,
        # Real nodes are processes of their own, whose CPU time this one does not see.
        cost_s=result.cpu_s or result.wall_s,
        digest=result.digest,
    )
