"""How a cell of a campaign is run and judged: simulated in a worker of a pool, or on real nodes."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import platform
import time
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import msgspec

import harness
from harness import plugins
from harness.campaigns.cell import Cell, CellResult, RunStats, failed, result_of
from harness.campaigns.coverage_log import CoverageLog
from harness.campaigns.pool import Pool, RunStarted, Work
from harness.errors import FiredrillError, UsageError
from harness.exit_codes import Outcome
from harness.history.manifest import read_manifest
from harness.history.run_directory import RunDirectory
from harness.mutation.loading import Mutation
from harness.run.log_lines import LINES_FILE
from harness.run.progress import Silent
from harness.run.stop import Stop

if TYPE_CHECKING:
    from harness.protocols.verdict import Verdict

PACKAGES = ("harness", "workloads", "nemesis", "checkers", "clusters")
# Of the command line only what makes a cell: all else changes no result.
WIRING = (
    "cli/cells.py",
    "cli/environment.py",
    "cli/plan_plugins.py",
    "cli/plan_schedule.py",
    "cli/wiring.py",
)
_PRELOADED = (
    "checkers.engine.analyze",
    "cli.cleanup",
    "cli.judging.steps",
    "cli.wiring",
    "harness.campaigns.run_stats",
    "harness.driving.driver",
    "nemesis.runner",
    "nemesis.schedule",
    "pandas",  # what the figures of a run that is kept are made with
    "pyarrow.acero",
    "pyarrow.dataset",
    "results.store.store",
)
_PRELOADED_STORE = (
    "clusters.providers.sim.provider",
    "clusters.reference.node.runtime.real",
    "clusters.reference.system",
)
_PRELOADED_PLUGINS = ("faults", "workloads", "checkers")


def simulation_pool(runs_dir: Path, *, keep: bool = False, jobs: int | None = None) -> Pool:
    """Return the pool that simulates cells into ``runs_dir`` with ``simulate``, ``jobs`` at once;
    on all cores by default.
    """
    work = partial(simulate, runs_dir=runs_dir, keep=keep)
    return pool_of(work, jobs=jobs, preloaded=(*_PRELOADED, *_PRELOADED_STORE))


def pool_of(work: Work, *, jobs: int | None, preloaded: Sequence[str] = _PRELOADED) -> Pool:
    """Return the pool for ``work`` that simulates, judges, or both. Without the store among what is
    ``preloaded`` each cell imports it anew, and may have another one.
    """
    from cli.judging.resource_limits import worker_memory_bytes

    # Before the first fork: no cell pays for them, and none is of code that changed meanwhile.
    for module in preloaded:
        importlib.import_module(module)
    for group in _PRELOADED_PLUGINS:
        for name in plugins.names(group):
            with contextlib.suppress(FiredrillError):  # the cells that need it tell
                plugins.load(group, name)
    pool = Pool(work=work)
    workers = jobs or pool.workers
    return attrs.evolve(pool, workers=workers, memory_bytes=worker_memory_bytes(workers))


def simulate(
    cell: Cell,
    run_started: RunStarted,
    *,
    runs_dir: Path,
    keep: bool,
    mutation: Mutation | None = None,
    coverage: CoverageLog | None = None,
) -> CellResult:
    """Simulate ``cell`` into a new directory of ``runs_dir``, judge it in this process, and return
    its result. The directory stays where ``keep`` says so, and wherever the run is not valid; its
    manifest names the ``mutation`` that this process has loaded. With ``coverage`` the result has
    what the run reached.

    A run that can't be judged is a result, too: a harness error. Raises ``UsageError`` for a plan
    that is refused before it starts.
    """
    from cli.judging.steps import measure_here
    from cli.wiring import run_plan
    from results.store.store import RunStore

    began_s = time.monotonic()
    run = run_plan(
        cell.plan,
        runs_dir,
        Silent(),
        Stop(),
        begun=lambda run: run_started(run.root),
        mutation=mutation,
        coverage=coverage,
    )
    result = _judged(cell, run, began_s)
    if coverage is not None:
        result = msgspec.structs.replace(result, coverage=coverage.encoded())
    if result.outcome is Outcome.VALID and not keep:
        RunStore(runs_dir).remove(run)
        return msgspec.structs.replace(result, run="")
    measure_here(run)
    return result


def _judged(cell: Cell, run: RunDirectory, began_s: float) -> CellResult:
    from checkers.engine.analyze import analyze
    from harness.protocols.verdict import write_verdict

    try:
        verdict = analyze(run, executor="local")
    except FiredrillError as error:
        return failed(cell, str(error), run=str(run.root), wall_s=time.monotonic() - began_s)
    write_verdict(run, verdict)  # a replay and a shrinking start from it
    figures = {"digest": digest(run), "stats": _stats(run, verdict)}
    return _result(cell, run, verdict, began_s, **figures, cpu_s=round(time.process_time(), 3))


def _stats(run: RunDirectory, verdict: Verdict) -> RunStats:
    from harness.campaigns.run_stats import run_stats

    found = verdict.statistics
    return msgspec.structs.replace(
        run_stats(run),
        rebalances=found.get("rebalance", {}),
        resets=sum(found.get("resets", {}).get("by_partition", {}).values()),
        lost_by_resets=found.get("lost_writes", {}).get("lost_by_reset", 0),
    )


def run_on_nodes(
    cell: Cell, run_started: RunStarted, *, runs_dir: Path, mutation: Mutation | None = None
) -> CellResult:
    """Run ``cell`` on real nodes, which get the ``mutation``, into a new directory of ``runs_dir``,
    and have it judged. A run that the environment broke is a harness error, and stays as far as it
    came. Raises ``UsageError``.
    """
    from cli.judging import judge
    from cli.wiring import run_plan

    began_s, started = time.monotonic(), []

    def begun(run: RunDirectory) -> None:
        started.append(run.root)
        run_started(run.root)

    try:
        run = run_plan(
            cell.plan,
            runs_dir,
            Silent(),
            Stop(),
            begun=begun,
            mutation=mutation,
        )
        verdict = judge.judge(run, None, report=False).verdict
    except UsageError:
        raise
    except FiredrillError as error:
        left = "".join(str(root) for root in started if root.is_dir())
        return failed(cell, str(error), run=left, wall_s=time.monotonic() - began_s)
    stats = RunStats()
    with contextlib.suppress(FiredrillError):  # of a run that broke off there may be none
        # Its time is the clock's: what is simulated in how much of a core is counted apart.
        stats = msgspec.structs.replace(_stats(run, verdict), simulated_s=0.0)
    return _result(cell, run, verdict, began_s, stats=stats)


def _result(
    cell: Cell,
    run: RunDirectory,
    verdict: Verdict,
    began_s: float,
    **figures: Any,  # noqa: ANN401 (the other fields of a result)
) -> CellResult:
    return result_of(
        cell,
        verdict.outcome,
        verdict.reasons,
        run=str(run.root),
        anomalies={name: anomaly.count for name, anomaly in verdict.anomalies.items()},
        wall_s=round(time.monotonic() - began_s, 3),
        **figures,
    )


def digest(run: RunDirectory) -> str:
    """Return one hash over the sealed tables of ``run``: operations, faults and events, byte for
    byte. The lines of logs that an import keeps as a table are in the logs of the run itself.
    """
    whole = hashlib.sha256()
    for name, checksum in sorted(read_manifest(run).checksums.items()):
        if name not in (run.plan.name, LINES_FILE):
            whole.update(f"{name} {checksum}\n".encode())
    return whole.hexdigest()


def code_digest() -> str:
    """Return a digest of the code that a simulated run executes: firedrill's sources and those of
    installed plug-ins, byte for byte, the interpreter's version and the libraries'.
    """
    from cli.wiring import LIBRARIES

    root = Path(harness.__file__ or "").resolve().parents[1]
    sources = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    sources += [root / name for name in WIRING]
    named = [(str(path.relative_to(root)), path) for path in sources]
    whole = hashlib.sha256(platform.python_version().encode())
    for name in LIBRARIES:
        whole.update(f" {name} {version(name)}".encode())
    for name, path in (*named, *plugins.foreign_sources()):
        content = path.read_bytes()
        # With the length, no content can pass for the name of a next file.
        whole.update(f"{name} {len(content)}\n".encode())
        whole.update(content)
    return whole.hexdigest()[:16]
