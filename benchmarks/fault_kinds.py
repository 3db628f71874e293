"""Every kind of fault, many times on each provider: was it proven effective, was it proven healed?

``python benchmarks/fault_kinds.py --times 10 --provider process --provider docker`` prints a row
per kind and provider, and ends with 1 where one of them was not proven.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import attrs
import click

from harness import plugins
from harness.clock import RunClock
from harness.history.records import FaultState, FaultTransition, Record
from harness.protocols.cluster import Address, Cluster, PortSpec, Program, Provider, Roles
from harness.protocols.cluster_membership import Membership
from harness.protocols.faults import Fault, PlannedFault, Scene
from harness.tasks import together
from nemesis.runner import Nemesis

NODES = ("n1", "n2", "n3", "n4")
PORTS = (PortSpec(name="peer", between_nodes=True), PortSpec(name="client", between_nodes=False))
ANSWER_LIMIT_S = 1.0
READY_LIMIT_S = 30.0
HOLD_S = 0.2

ECHO = b"""
import socketserver, sys

class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.wfile.write(line)

socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer.daemon_threads = True
socketserver.ThreadingTCPServer((sys.argv[1], int(sys.argv[2])), Echo).serve_forever()
"""


@attrs.frozen
class Echoes:
    """A system of nodes that answer, each of which leads the partition of its number."""

    name: str = "echoes"

    def program(self, node: str, cluster: Cluster) -> Program:
        """The echo on the node's client port."""
        at = cluster.bind[node]["client"]
        argv = ("python3", "echo.py", at.host, str(at.port))
        return Program(argv=argv, files={"echo.py": ECHO})

    async def roles(self, cluster: Cluster) -> Roles:
        """Every node that answers leads."""
        told = await together(answers(cluster.client[node]["client"]) for node in cluster.nodes)
        leading = [node for node, told_so in zip(cluster.nodes, told, strict=True) if told_so]
        return Roles(leaders={int(node[1:]): node for node in leading})


async def answers(at: Address) -> bool:
    """Whether somebody there echoes a line in time."""
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(ANSWER_LIMIT_S):
            reader, writer = await asyncio.open_connection(at.host, at.port)
            try:
                writer.write(b"here\n")
                return await reader.readline() == b"here\n"
            finally:
                writer.close()
    return False


async def bring_up(provider: Provider, system: Echoes) -> Cluster:
    """Nodes that answer."""
    cluster = await provider.provision(NODES, PORTS)
    await together(provider.install(node, system.program(node, cluster)) for node in NODES)
    await together(provider.start(node) for node in NODES)
    async with asyncio.timeout(READY_LIMIT_S):
        while len((await system.roles(cluster)).leaders) < len(NODES):  # noqa: ASYNC110 (they tell nobody)
            await asyncio.sleep(0.05)
    return cluster


async def survey(name: str, times: int, root: Path) -> list[tuple[str, str, int, int]]:
    """(kind, provider, proven effective, proven healed) for every kind; -1 where it can't be."""
    provider = plugins.load("providers", name)(f"kinds-{os.getpid()}", {}, root / "undo")
    faults: dict[str, Fault] = {k: plugins.load("faults", k)() for k in plugins.names("faults")}
    rows = []
    try:
        able = await provider.capabilities()
        system = Echoes()
        cluster = await bring_up(provider, system)
        as_system: Any = system
        clock = RunClock(asyncio.get_running_loop())
        scene = Scene(
            provider=provider, system=as_system, membership=Membership(cluster), clock=clock
        )
        for kind, fault in sorted(faults.items()):
            effective = healed = -1
            if fault.kind.needs <= able:
                states = [await one(scene, faults, kind, n) for n in range(times)]
                effective = sum(FaultState.EFFECTIVE in seen for seen in states)
                healed = sum(FaultState.HEALED in seen for seen in states)
            rows.append((kind, name, effective, healed))
    finally:
        await provider.teardown()
    return rows


async def one(scene: Scene, faults: dict[str, Fault], kind: str, number: int) -> list[FaultState]:
    """Apply ``kind`` once; the states that its fault went through."""
    records: list[Record] = []
    aim = (faults[kind].kind.aims or (f"leader of partition {number % len(NODES) + 1}",))[0]
    nemesis = Nemesis(
        schedule=(PlannedFault(at_s=0.0, kind=kind, target=aim, hold_s=HOLD_S),),
        faults=faults,
        seed=number,
        write=records.append,
    )
    await nemesis.run(scene, scene.clock.now_ns())
    await nemesis.heal_all(scene)
    for sentence in nemesis.trouble:
        print(f"{scene.provider.name}: {kind}: {sentence}", file=sys.stderr)
    return [record.state for record in records if isinstance(record, FaultTransition)]


@click.command()
@click.option("--times", default=10, show_default=True)
@click.option("--provider", "providers", multiple=True, default=("process", "docker"))
def main(times: int, providers: tuple[str, ...]) -> None:
    """Try every kind on every provider."""
    print(f"{'kind':<16} {'provider':<8} {'effective':>9} {'healed':>9}")
    proven = True
    for name in providers:
        with tempfile.TemporaryDirectory() as directory:
            rows = asyncio.run(survey(name, times, Path(directory)))
        for kind, provider, effective, healed in rows:
            said = [f"{n}/{times}" if n >= 0 else "absent" for n in (effective, healed)]
            print(f"{kind:<16} {provider:<8} {said[0]:>9} {said[1]:>9}", flush=True)
            proven &= effective in (-1, times) and healed in (-1, times)
    sys.exit(0 if proven else 1)


if __name__ == "__main__":
    main()
