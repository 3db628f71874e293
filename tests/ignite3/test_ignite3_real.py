"""A real node of the release as a process here: its client does what drills rely on."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ignite3_thin import needs_java

from clusters.ignite3 import local
from clusters.ignite3.artifacts import Artifacts
from clusters.ignite3.system import build
from clusters.providers.process.provider import Options, ProcessProvider
from harness import plugins
from harness.clock import RunClock
from harness.conform.bench import Bench, Mark, Result
from harness.conform.suite import conform
from harness.protocols.cluster import felt

READY_S = 90.0
SMALL = {"partitions": 2, "storage_mib": 64, "heap_mib": 384}
OF_SQL = ("transactions", "kinds", "contention", "codes")
ALL = (
    *("options", "partitions", "serves", "transactions", "identity", "kinds", "roles"),
    *("contention", "lost answer", "lost connection", "deadlines", "codes"),
)


@pytest.fixture(scope="module")
def prepared() -> None:
    """Jars, a Java runtime and the archive of classes; the client's driver."""
    needs_java()
    local.ensure(Artifacts())


async def checked(
    directory: Path, options: Mapping[str, object], checks: tuple[str, ...]
) -> dict[str, Result]:
    """The checks on one node, and who is left is killed."""
    undo = directory / "undo"
    undo.mkdir()
    provider, nodes = ProcessProvider(directory.name, Options(), undo), ("n1",)

    def another(given: Mapping[str, object]) -> Any:
        return build({**SMALL, **options, **given}, nodes, 1)

    system = another({})
    able = felt(await provider.capabilities(), system, provider)
    try:
        bench = Bench(
            system=system,
            provider=provider,
            cluster=await provider.provision(nodes, system.ports),
            clock=RunClock(asyncio.get_running_loop()),
            build=another,
            faults={"kill": plugins.load("faults", "kill")()},
            able=able,
            ready_s=READY_S,
        )
        return {result.name: result async for result in conform(bench, checks)}
    finally:
        await provider.teardown()


@pytest.mark.slow
@pytest.mark.usefixtures("prepared")
@pytest.mark.parametrize(("access", "checks"), [("key-value", ALL), ("sql", OF_SQL)])
def test_a_real_node_conforms_by_rows_and_by_sql(
    tmp_path: Path, access: str, checks: tuple[str, ...]
) -> None:
    found = asyncio.run(checked(tmp_path, {"access": access}, checks))

    assert sorted(found) == sorted(checks)
    assert not [result for result in found.values() if result.mark is not Mark.HOLDS]
