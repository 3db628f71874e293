"""The environment of a run: the provider, the loop and the clock that go with it.

Real providers share one environment: asyncio's own loop and the machine's clocks. ``sim`` brings
its own, in which nothing touches the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

import attrs

from harness import plugins
from harness.history.chunks import CHUNK_BYTES, ChunkWriter, InlineExecutor, OpenHistory
from harness.history.durable_files import disk_failure
from harness.history.run_directory import RunDirectory
from harness.plan.plan import Plan
from harness.protocols.cluster import Provider
from harness.protocols.coverage import CoverageSink, RecordsCoverage

SIMULATED = "sim"
TRACE = "trace.jsonl"  # in the run directory


@attrs.frozen(kw_only=True)
class Environment:
    """The parts of an environment. ``run`` runs a coroutine to its end on the environment's loop.

    ``system_extras`` are keyword arguments for the system's factory (the network that its clients
    dial with); ``wall_ns`` is ``None`` where it is the machine's clock. ``open_history`` writes the
    history without threads where the environment is simulated.
    """

    provider: Provider
    run: Callable[[Coroutine[Any, Any, None]], None]
    system_extras: Mapping[str, object] = {}
    wall_ns: Callable[[], int] | None = None
    open_history: OpenHistory = ChunkWriter


def prepare(
    plan: Plan, run: RunDirectory, *, trace: bool = False, coverage: CoverageSink | None = None
) -> Environment:
    """Prepare the environment of the plan's provider; the run's ``undo`` holds the data for a
    clean-up.

    ``trace`` records every message and disk operation in a file of the run, ``coverage`` is told
    what nodes come to: simulated only.
    """
    try:
        run.undo.mkdir(exist_ok=True)
    except OSError as error:
        missing = "the run could not be cleaned up after"
        raise disk_failure("make", run.undo, error, missing) from error
    build = plugins.load("providers", plan.cluster.provider)
    if plan.cluster.provider == SIMULATED:
        # Options come last: a plan may give its machines a seed of their own.
        options = {"seed": plan.seed, **plan.cluster.options}
        provider = build(run.root.name, options, run.undo)
        if coverage is not None and isinstance(provider, RecordsCoverage):
            provider.cover(coverage)
        return _virtual(provider, run.root / TRACE if trace else None)
    provider = build(run.root.name, plan.cluster.options, run.undo)
    return Environment(provider=provider, run=asyncio.run)


def _virtual(provider: Any, trace: Path | None) -> Environment:  # noqa: ANN401 (a SimProvider)
    from clusters.providers.sim.loop import simulate
    from clusters.providers.sim.machine import wall_ns

    def run(main: Coroutine[Any, Any, None]) -> None:
        recorded = provider.record() if trace else None
        try:
            simulate(main)
        # A run that broke off is the one whose trace is wanted most.
        finally:
            if trace and recorded:
                recorded.write(trace)

    return Environment(
        provider=provider,
        run=run,
        system_extras={"network": provider.client_network},
        wall_ns=wall_ns,
        open_history=simulated_history,
    )


def simulated_history(
    directory: Path, chunk_bytes: int = CHUNK_BYTES, *, run_id: str
) -> ChunkWriter:
    """Open the history of a simulated run: chunks are synced on the loop's own thread."""
    return ChunkWriter(directory, chunk_bytes, executor=InlineExecutor(), run_id=run_id)
