"""What a run stands on: the provider, the loop, the clock and the journal that go with it.

Real providers share one ground: asyncio's own loop, the machine's clocks, a journal on the disk.
``sim`` brings its own, in which nothing touches the machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import attrs

from harness import plugins
from harness.cluster import Provider
from harness.history.files import disk_failure
from harness.plan import Plan
from harness.rundir import RunDirectory
from nemesis.journal import FileJournal, Journal, MemoryJournal

SIMULATED = "sim"


@attrs.frozen(kw_only=True)
class Ground:
    """``run`` runs a coroutine to its end on the ground's loop.

    ``system_extras`` are keyword arguments for the system's factory (the network that its clients
    dial with); ``wall_ns`` is ``None`` where it is the machine's clock.
    """

    provider: Provider
    run: Callable[[Coroutine[Any, Any, None]], None]
    journal: Journal
    system_extras: Mapping[str, object] = {}
    wall_ns: Callable[[], int] | None = None


def prepare(plan: Plan, run: RunDirectory) -> Ground:
    """The ground for the plan's provider; the run's ``undo`` keeps what a clean-up needs."""
    try:
        run.undo.mkdir(exist_ok=True)
    except OSError as error:
        missing = "nobody could clean up after the run"
        raise disk_failure("make", run.undo, error, missing) from error
    build = plugins.load("providers", plan.cluster.provider)
    if plan.cluster.provider == SIMULATED:
        return _virtual(build(run.root.name, {"seed": plan.seed, **plan.cluster.options}, run.undo))
    provider = build(run.root.name, plan.cluster.options, run.undo)
    return Ground(provider=provider, run=asyncio.run, journal=FileJournal(run.undo))


def _virtual(provider: Any) -> Ground:  # noqa: ANN401 (a SimProvider, imported lazily below)
    from clusters.providers.sim.loop import simulate
    from clusters.providers.sim.machine import wall_ns

    return Ground(
        provider=provider,
        run=simulate,
        journal=MemoryJournal(),
        system_extras={"network": provider.client_network},
        wall_ns=wall_ns,
    )
