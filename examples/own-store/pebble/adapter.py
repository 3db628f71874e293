"""pebble as firedrill sees it: what runs on a node, what is promised, how to talk to it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from asyncio import StreamReader, StreamWriter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from harness.api import (
    READ_WRITE,
    Address,
    Cluster,
    Committed,
    Declaration,
    EventKind,
    HarnessError,
    LogPattern,
    PortSpec,
    Program,
    Promise,
    Provider,
    PythonTree,
    Roles,
    RunClock,
    StoreError,
    StoreEvent,
    error_table,
    together,
)
from harness.api import options as convert

LINE_BYTES = 1 << 20
DIAL_S, LOOK_S, POLL_S = 1.0, 1.0, 0.1
# Definite: certainly not done. What a lost connection was asked to commit nobody knows.
ERRORS = error_table(
    {
        "BUSY": "another transaction held the lock until the deadline",
        "EXPIRED": "the deadline had passed, and what was open is forgotten",
        "NO-HOLDER": "the first node could not be dialed: nothing was sent",
        "REFUSED": "the node could not be dialed",
        "LOST": "the connection ended before the answer",
    },
    definite=("BUSY", "EXPIRED", "NO-HOLDER", "REFUSED"),
)


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The plan's ``[system]`` table: there is nothing to choose."""


def build(options: Mapping[str, object], nodes: tuple[str, ...], seed: int) -> Pebble:
    """The entry point. Raises ``PlanError`` for an option that is not known."""
    convert(Options, options, "system")
    return Pebble()


class Connection:
    """One connection; a call that was cancelled or failed leaves it unusable."""

    def __init__(self, reader: StreamReader, writer: StreamWriter) -> None:
        self._reader, self._writer, self._usable = reader, writer, True

    async def ask(self, op: str, **fields: object) -> dict[str, Any]:
        """The answer to one request. Raises ``StoreError``; never tries again."""
        if not self._usable:
            raise StoreError("LOST", "a call before this one did not come to its end")
        # Until the answer is here: a cancelled call leaves it for the next call to read.
        self._usable = False
        try:
            self._writer.write(json.dumps({"op": op, **fields}).encode() + b"\n")
            await self._writer.drain()
            line = await self._reader.readline()
        except OSError as error:
            raise StoreError("LOST", str(error)) from error
        if not line.endswith(b"\n"):
            raise StoreError("LOST", "the node closed the connection")
        self._usable = True
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise StoreError(answer["error"])
        return answer

    async def begin(self, kind: str, deadline_s: float) -> Transaction:
        """See ``harness.protocols.client.Client``."""
        left_s = deadline_s - asyncio.get_running_loop().time()
        return Transaction(self, (await self.ask("begin", limit_s=max(0.001, left_s)))["txn"])

    async def close(self) -> None:
        """See ``harness.protocols.client.Client``."""
        self._usable = False
        # Nothing is flushed: a paused node would never take it.
        self._writer.transport.abort()


class Transaction:
    """See ``Tx``. An append is a read and a write: a lost update would show."""

    def __init__(self, connection: Connection, name: str) -> None:
        self._connection, self.server_txn = connection, name

    async def read(self, key: int) -> int | tuple[int, ...] | None:
        value = (await self._connection.ask("get", key=str(key)))["value"]
        return tuple(value) if isinstance(value, list) else value

    async def write(self, key: int, value: int | tuple[int, ...]) -> None:
        await self._connection.ask("put", key=str(key), value=value)

    async def append(self, key: int, element: int) -> None:
        held = await self.read(key)
        await self.write(key, (*(held if isinstance(held, tuple) else ()), element))

    async def commit(self) -> Committed:
        return Committed(commit_ts=(await self._connection.ask("commit"))["number"])

    async def rollback(self) -> None:
        await self._connection.ask("rollback")


class Pebble:
    """See ``harness.protocols.cluster.System``."""

    name = "pebble"
    ports = (
        PortSpec(name="client", between_nodes=False),
        PortSpec(name="peer", between_nodes=True),  # so that cuts apply to it
    )
    errors = ERRORS
    partitions = 1
    declaration = Declaration(
        system="pebble",
        mode="one holder",
        promises=(Promise(kind=READ_WRITE, model="strict-serializable"),),
        logs=(LogPattern(name="panic", regex=r"^Traceback|^pebble: ", breaks=True),),
        liveness_s=5.0,
        conflicts=("BUSY",),
    )

    def __init__(self) -> None:
        self._told: dict[tuple[str, str], int] = {}  # of a node's boot, how many events

    def partition_of(self, key: int) -> int:
        return 0

    def versions(self) -> dict[str, str]:
        source = Path(__file__).with_name("server.py").read_bytes()
        return {"pebble": hashlib.sha256(source).hexdigest()}

    def program(self, node: str, cluster: Cluster) -> Program:
        """Each node is told its own addresses, and how *it* dials the first: over a link."""
        first = cluster.nodes[0]
        config: dict[str, Any] = {
            "role": "holder" if node == first else "passing",
            "listen": [[at.host, at.port] for at in cluster.bind[node].values()],
        }
        if node != first:
            at = cluster.peer[(node, first)]["peer"]
            config["holder"] = [at.host, at.port]
        return Program(
            argv=("python3", "-m", "pebble.server", "pebble.json"),
            files={"pebble.json": json.dumps(config).encode()},
            python=(PythonTree(source=str(Path(__file__).parent), package="pebble"),),
        )

    async def connect(self, cluster: Cluster, node: str, process: int) -> Connection:
        return await _dial(cluster.client[node]["client"])

    async def set_up(self, cluster: Cluster, provider: Provider, deadline_s: float) -> None:
        await together(provider.start(node) for node in cluster.nodes)
        await _whole(cluster, deadline_s)

    async def recover(self, cluster: Cluster, provider: Provider, deadline_s: float) -> None:
        for node in cluster.nodes:
            look = await provider.probe(node)
            if look.paused:
                await provider.resume(node)
            elif not look.running:
                await provider.start(node)
        await _whole(cluster, deadline_s)

    async def roles(self, cluster: Cluster) -> Roles:
        """The holder leads, by its own word; each node knows which one is to hold."""
        looks = await together(_look(cluster, node, "status") for node in cluster.nodes)
        told = dict(zip(cluster.nodes, looks, strict=True))
        holders = [node for node, look in told.items() if look and look["role"] == "holder"]
        if not any(told.values()):
            return Roles()
        first = next(iter(cluster.bind))  # ``cluster.nodes`` may be one that is asked alone
        return Roles(leaders={0: holders[0]} if holders else {}, voters={0: (first,)})

    async def events(self, cluster: Cluster, clock: RunClock) -> list[StoreEvent]:
        found = await together(self._events(cluster, node, clock) for node in cluster.nodes)
        return [event for events in found for event in events]

    async def _events(self, cluster: Cluster, node: str, clock: RunClock) -> list[StoreEvent]:
        """What the node has to tell that it was not asked for yet, on the run's axis."""
        asked_ns = clock.now_ns()
        if (look := await _look(cluster, node, "status")) is None:
            return []
        # The node read its clock somewhere on the way there and back: half of it, either side.
        half_ns = (clock.now_ns() - asked_ns) // 2 + 1
        offset_ns = look["now"] - (asked_ns + half_ns)
        # The list of a boot only grows: its length tells what is new.
        known = self._told.get((node, look["boot"]), 0)
        self._told[node, look["boot"]] = len(look["events"])
        return [
            StoreEvent(
                kind=EventKind(kind),
                node=node,
                wall_ns=wall_ns,
                boot=look["boot"],
                at_ns=wall_ns - offset_ns,
                uncertainty_ns=half_ns,
                text=text,
            )
            for kind, wall_ns, text in look["events"][known:]
        ]


async def _dial(at: Address) -> Connection:
    try:
        async with asyncio.timeout(DIAL_S):
            return Connection(*await asyncio.open_connection(at.host, at.port, limit=LINE_BYTES))
    except OSError as error:
        raise StoreError("REFUSED", str(error)) from error


async def _look(cluster: Cluster, node: str, op: str) -> dict[str, Any] | None:
    """The node's answer, or ``None`` where there is none in time."""
    try:
        async with asyncio.timeout(LOOK_S):
            connection = await _dial(cluster.client[node]["client"])
            try:
                return await connection.ask(op)
            finally:
                await connection.close()
    except (StoreError, TimeoutError):
        return None


async def _whole(cluster: Cluster, deadline_s: float) -> None:
    """Return when every node reaches the holder. Raises ``HarnessError`` at the deadline."""
    loop = asyncio.get_running_loop()
    while True:
        looks = await together(_look(cluster, node, "ping") for node in cluster.nodes)
        silent = [node for node, look in zip(cluster.nodes, looks, strict=True) if look is None]
        if not silent:
            return
        if loop.time() >= deadline_s:
            raise HarnessError(f"pebble is not whole: no answer from {', '.join(silent)}")
        await asyncio.sleep(POLL_S)
