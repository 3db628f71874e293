"""Real nodes for tests: subprocesses on loopback, behind the provider protocol."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import attrs

from clusters.reference.node.groups.group import StateMachine
from clusters.reference.system import ReferenceSystem, build
from harness.protocols.cluster import Address, Cluster, NodeStatus, Program

ROOT = Path(__file__).resolve().parents[2]
READY_S = 20.0


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def loopback_cluster(directory: Path, nodes: tuple[str, ...]) -> Cluster:
    ports = iter(free_ports(2 * len(nodes)))
    bind = {
        node: {
            "peer": Address(host="127.0.0.1", port=next(ports)),
            "client": Address(host="127.0.0.1", port=next(ports)),
        }
        for node in nodes
    }
    for node in nodes:
        (directory / node).mkdir(parents=True, exist_ok=True)
    return Cluster(
        nodes=nodes,
        bind=bind,
        peer={(a, b): bind[b] for a in nodes for b in nodes if a != b},
        client=bind,
        work_dir={node: str(directory / node) for node in nodes},
    )


def restore(machine: StateMachine, chunks: Iterable[bytes]) -> None:
    """Make ``machine`` what a snapshot says."""
    restoring = machine.restoring()
    for chunk in chunks:
        restoring.feed(chunk)
    restoring.done()


@attrs.define
class Processes:
    """The verbs of a provider that these tests need, on child processes."""

    cluster: Cluster
    children: dict[str, asyncio.subprocess.Process] = attrs.field(factory=dict)
    programs: dict[str, Program] = attrs.field(factory=dict)

    def install(self, node: str, program: Program) -> None:
        for name, data in program.files.items():
            (Path(self.cluster.work_dir[node]) / name).write_bytes(data)
        self.programs[node] = program

    async def start(self, node: str, *prefix: str) -> NodeStatus:
        directory = Path(self.cluster.work_dir[node])
        with (directory / "node.log").open("ab") as log:
            self.children[node] = await asyncio.create_subprocess_exec(
                *prefix,
                sys.executable,
                *self.programs[node].argv[1:],
                cwd=directory,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )
        return await self.probe(node)

    async def probe(self, node: str) -> NodeStatus:
        child = self.children.get(node)
        runs = child is not None and child.returncode is None
        return NodeStatus(node=node, running=runs, pid=child.pid if child and runs else None)

    async def signal(self, node: str, number: signal.Signals) -> int:
        """Send a signal that ends the node; its exit code."""
        self.children[node].send_signal(number)
        async with asyncio.timeout(10):
            return await self.children[node].wait()

    async def kill(self, node: str) -> NodeStatus:
        await self.signal(node, signal.SIGKILL)
        return await self.probe(node)

    def log(self, node: str) -> str:
        return (Path(self.cluster.work_dir[node]) / "node.log").read_text()


@attrs.define
class Store:
    """A running cluster and its adapter."""

    system: ReferenceSystem
    cluster: Cluster
    processes: Processes

    async def whole(self) -> None:
        deadline_s = asyncio.get_running_loop().time() + READY_S
        await self.system.recover(self.cluster, self.processes, deadline_s)  # type: ignore[arg-type]


async def eventually(
    check: Callable[[], Awaitable[bool]], what: str, limit_s: float = READY_S
) -> None:
    """Wait until ``check`` says yes."""
    try:
        async with asyncio.timeout(limit_s):
            while not await check():  # noqa: ASYNC110 (it happens in other processes)
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"not within {limit_s:g} s: {what}") from None


@asynccontextmanager
async def store(directory: Path, nodes: int = 3, **options: object) -> AsyncIterator[Store]:
    names = tuple(f"n{i + 1}" for i in range(nodes))
    cluster = loopback_cluster(directory, names)
    system = build(options, names, 1)
    processes = Processes(cluster)
    for node in names:
        processes.install(node, system.program(node, cluster))
    deadline_s = asyncio.get_running_loop().time() + READY_S
    try:
        await system.set_up(cluster, processes, deadline_s)  # type: ignore[arg-type]
        yield Store(system, cluster, processes)
    finally:
        for child in processes.children.values():
            if child.returncode is None:
                child.kill()
                await child.wait()
