"""Adapters with one mistake each, and benches to check them on: the reference store simulated, and
the example store in processes, where there is a network that a relay can stand in.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from clusters.providers.process.provider import Options, ProcessProvider
from clusters.providers.sim.loop import simulate
from clusters.providers.sim.machine import wall_ns
from clusters.providers.sim.provider import SimProvider
from clusters.reference.system import build
from harness import plugins
from harness.clock import RunClock
from harness.conform.bench import Bench, Mark, Result
from harness.conform.suite import conform
from harness.protocols.consistency_models import DECIDED

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "own-store"
sys.path.insert(0, str(EXAMPLE))

from pebble import adapter as pebble  # noqa: E402

KINDS = ("kill", "pause", "partition")
NEEDS_NETWORK = {"lost answer", "lost connection", "lost further on", "deadlines"}


def broken(found: dict[str, Result], check: str) -> str:
    """What the check says is broken."""
    assert found[check].mark is Mark.BROKEN, found[check]
    return found[check].text


def same(system: Any) -> Any:
    """No mistake at all."""
    return system


class Other:
    """Something else with some of its names replaced: an adapter with a mistake in it."""

    def __init__(self, original: object, **mistakes: object) -> None:
        self.original = original
        self.__dict__.update(mistakes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)


def with_client(system: Any, change: Any) -> Other:
    """``system`` whose clients are ``change(client)``."""

    async def connect(cluster: Any, node: str, process: int) -> Any:
        return change(await system.connect(cluster, node, process))

    return Other(system, connect=connect)


def with_tx(system: Any, change: Any) -> Other:
    """``system`` whose transactions are ``change(tx)``."""

    def client(original: Any) -> Other:
        async def begin(kind: str, deadline_s: float) -> Any:
            return change(await original.begin(kind, deadline_s))

        return Other(original, begin=begin)

    return with_client(system, client)


async def results(
    system: Any, provider: Any, nodes: int, checks: Sequence[str], virtual: bool, build_: Any
) -> dict[str, Result]:
    names = tuple(f"n{i + 1}" for i in range(nodes))
    able = await provider.capabilities()
    cluster = await provider.provision(names, system.ports)
    loop = asyncio.get_running_loop()
    bench = Bench(
        system=system,
        provider=provider,
        cluster=cluster,
        clock=RunClock(loop, wall_ns) if virtual else RunClock(loop),
        build=build_,
        faults={kind: plugins.load("faults", kind)() for kind in KINDS},
        able=able,
        models=DECIDED,
        real_network=not virtual,
        ready_s=30.0,
    )
    try:
        return {result.name: result async for result in conform(bench, checks)}
    finally:
        await provider.teardown()


def simulated(
    change: Any, *checks: str, nodes: int = 3, provided: Any = lambda provider: provider
) -> dict[str, Result]:
    """The checks of the reference store, simulated, with ``change(system)`` in its place, and
    ``provided(provider)`` in that of the provider.
    """

    async def main() -> dict[str, Result]:
        provider = SimProvider(seed=1)
        names = tuple(f"n{i + 1}" for i in range(nodes))

        def another(options: Mapping[str, object]) -> Any:
            return change(build(options, names, 1, network=provider.client_network))

        system = another({"partitions": 2})
        return await results(system, provided(provider), nodes, checks, True, another)

    return simulate(main())


def in_processes(directory: Path, change: Any, *checks: str, nodes: int = 1) -> dict[str, Result]:
    """The checks of the example store on real processes, with ``change(system)`` in its place."""
    undo = directory / "undo"
    undo.mkdir()

    def another(options: Mapping[str, object]) -> Any:
        return change(pebble.build(options, (), 1))

    provider = ProcessProvider(directory.name, Options(), undo)
    return asyncio.run(results(another({}), provider, nodes, checks, False, another))
