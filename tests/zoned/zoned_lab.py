"""Simulated nodes of a cluster with distribution zones, started one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from clusters.providers.sim.provider import SimProvider
from clusters.reference.client import ReferenceClient, connect
from clusters.reference.node.admin import ask
from clusters.reference.node.config import Config, Endpoint, Zoned
from clusters.reference.node.runtime import ConnectionLost, Network
from clusters.reference.node.wire.reports import (
    AdminBody,
    AdminQuestion,
    AskEvents,
    AskSql,
    AskStatus,
    EventBatch,
    NodeEvent,
    NodeReport,
    SqlReport,
)
from harness.protocols.cluster import Cluster, PortSpec, Program

PORTS = (PortSpec(name="peer", between_nodes=True), PortSpec(name="client", between_nodes=False))
NODES = ("a", "b", "c", "d", "e", "f")
SYSTEM = ("a", "b", "c")
LIMIT_S = 30.0
POLL_S = 0.01
Row = tuple[int | str | None, ...]


def now_s() -> float:
    return asyncio.get_running_loop().time()


class Lab:
    """Machines for ``NODES``; each becomes a node once it is started."""

    def __init__(self, seed: int = 1, nodes: tuple[str, ...] = NODES) -> None:
        self.provider = SimProvider(seed=seed)
        self.nodes = nodes

    async def provision(
        self,
        common: Mapping[str, object] | None = None,
        own: Mapping[str, Mapping[str, object]] | None = None,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        """``common`` of ``Zoned`` on all nodes, ``own`` on those that it names; other settings."""
        self.cluster: Cluster = await self.provider.provision(self.nodes, PORTS)
        for node in self.nodes:
            zoned = {"system_nodes": SYSTEM, **(common or {}), **(own or {}).get(node, {})}
            config = Config(
                node=node,
                peer_bind=self.endpoint(node, "peer"),
                client_bind=self.endpoint(node, "client"),
                peers={n: self.endpoint_of(node, n) for n in self.nodes if n != node},
                data_dir=f"{self.cluster.work_dir[node]}/data",
                partitions=4,
                replicas=1,
                zoned=msgspec.convert(zoned, Zoned),
            )
            config = msgspec.structs.replace(config, **(settings or {}))
            await self.provider.install(node, self.program(msgspec.json.encode(config)))

    def program(self, config: bytes) -> Program:
        argv = ("python3", "-m", "clusters.reference.node", "--config", "node.json")
        return Program(argv=argv, files={"node.json": config})

    @property
    def network(self) -> Network:
        """That of clients."""
        return self.provider.client_network

    def endpoint(self, node: str, port: str) -> Endpoint:
        address = self.cluster.bind[node][port]
        return Endpoint(host=address.host, port=address.port)

    def endpoint_of(self, node: str, other: str) -> Endpoint:
        """Where ``node`` reaches ``other``."""
        return self.endpoint(other, "peer")

    async def start(self, *nodes: str) -> None:
        for node in nodes:
            await self.provider.start(node)

    async def ask(self, node: str, question: AdminQuestion) -> AdminBody:
        """The answer of ``node``."""
        at = self.cluster.client[node]["client"]
        return await ask(self.network, at.host, at.port, question, LIMIT_S, at.source)

    async def sql(self, statement: str, node: str = "a", limit_ms: int = 10_000) -> SqlReport:
        answer = await self.ask(node, AskSql(statement, limit_ms))
        assert isinstance(answer, SqlReport)
        return answer

    async def done(self, statement: str, node: str = "a") -> tuple[Row, ...]:
        """The rows of a statement that must be carried out."""
        answer = await self.sql(statement, node)
        assert answer.problem is None, answer.problem
        return answer.rows

    async def dial(self, node: str, table: str = "T") -> ReferenceClient:
        """A client of ``table``. Raises ``StoreError``."""
        at = self.cluster.client[node]["client"]
        return await connect(
            self.network, at.host, at.port, 1.0, at.source, table_of=lambda _: table
        )

    async def report(self, node: str) -> NodeReport:
        answer = await self.ask(node, AskStatus())
        assert isinstance(answer, NodeReport)
        return answer

    async def metastorage_leader(self) -> str:
        for node in SYSTEM:
            if (await self.provider.probe(node)).running:
                groups = (await self.report(node)).groups
                if any(group.role == "leader" and group.partition is None for group in groups):
                    return node
        raise AssertionError("no leader")

    async def events(self, node: str, kind: str) -> list[NodeEvent]:
        answer = await self.ask(node, AskEvents())
        assert isinstance(answer, EventBatch)
        return [event for event in answer.events if event.kind == kind]

    async def until_rows(
        self, query: str, rows: set[Row], node: str = "a", limit_s: float = LIMIT_S
    ) -> float:
        """When ``query`` first answers ``rows``."""
        deadline_s = now_s() + limit_s
        while True:
            try:
                found = (await self.sql(query, node)).rows
            except (ConnectionLost, TimeoutError):
                found = ()
            if set(found) == rows:
                return now_s()
            assert now_s() < deadline_s, (query, found)
            await asyncio.sleep(POLL_S)


def columns(names: str) -> set[Row]:
    """One row for each word of ``names``."""
    return {(name,) for name in names.split()}
