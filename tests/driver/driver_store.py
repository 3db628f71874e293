"""A small strictly serializable store in memory, with the troubles that drivers meet.

Reads take a snapshot at begin; commit validates the versions read and installs at one instant.
Trouble is a function of the operation's process and count, so that a test says exactly what goes
wrong, and where.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable

import attrs

from harness.protocols.client import Committed, StoreError
from harness.protocols.cluster import Address, Cluster
from harness.protocols.fail_or_info import Certainty, ErrorMeaning

HANG = "hang"  # waits for ever, ends when cancelled
STUBBORN = "stubborn"  # waits, and ignores cancellation until the store is released
SHIELDED = "shielded"  # ignores cancellation and then goes on as if nothing had been
BUG = "bug"

Trouble = Callable[[str, int, int], str | None]
"""(phase, process, number of the process's transaction) -> what goes wrong. Phases are the
driver's, ``rollback``, and ``committed``: after the store has it, before the client knows."""


def no_trouble(phase: str, process: int, count: int) -> str | None:
    return None


def cluster(size: int = 3) -> Cluster:
    nodes = tuple(f"n{i + 1}" for i in range(size))
    address = {"client": Address(host="127.0.0.1", port=1)}
    return Cluster(
        nodes=nodes,
        bind=dict.fromkeys(nodes, address),
        peer={},
        client=dict.fromkeys(nodes, address),
        work_dir=dict.fromkeys(nodes, "/"),
    )


class ConnectionDropped(StoreError):
    def __init__(self) -> None:
        super().__init__("CONNECTION-LOST")


class MemoryStore:
    """A ``System`` as far as the driver needs one."""

    name = "memory"
    ports = ()
    errors = {  # noqa: RUF012
        "CONFLICT": ErrorMeaning(
            code="CONFLICT", at_commit=Certainty.DEFINITE, reason="another one was first"
        )
    }
    partitions = 4

    def __init__(self, *, trouble: Trouble = no_trouble, latency_s: float | None = None) -> None:
        self.trouble = trouble
        self.latency_s = latency_s
        self.lists: dict[int, tuple[int, ...]] = {}
        self.commits = 0
        self.commit_calls: list[tuple[int, int]] = []
        self.connections: list[tuple[str, int]] = []
        self.open_connections = 0
        self.rollbacks = 0
        self.release = asyncio.Event()
        self.counts: dict[int, int] = {}

    def partition_of(self, key: int) -> int:
        return key % self.partitions

    async def connect(self, cluster: Cluster, node: str, process: int) -> MemoryClient:
        self.connections.append((node, process))
        await self.pass_through("connect", process)
        self.open_connections += 1
        return MemoryClient(self, process)

    async def pass_through(self, phase: str, process: int) -> None:
        if self.latency_s is not None:
            await asyncio.sleep(self.latency_s)
        trouble = self.trouble(phase, process, self.counts.get(process, 0))
        if trouble is None:
            return
        if trouble == HANG:
            await asyncio.Event().wait()
        if trouble in (STUBBORN, SHIELDED):
            await self._ignore_cancellation()
            if trouble == STUBBORN:
                raise StoreError("GAVE-UP", "at last")
            return
        if trouble == BUG:
            raise KeyError("not a store's error")
        raise StoreError(trouble, f"in {phase}")

    async def _ignore_cancellation(self) -> None:
        while not self.release.is_set():
            try:
                await self.release.wait()
            except asyncio.CancelledError:
                continue


@attrs.define
class MemoryClient:
    store: MemoryStore
    process: int
    closed: bool = False

    async def begin(self, kind: str, deadline_s: float) -> MemoryTx:
        self.store.counts[self.process] = self.store.counts.get(self.process, 0) + 1
        await self.store.pass_through("begin", self.process)
        count = self.store.counts[self.process]
        return MemoryTx(self.store, self.process, count, dict(self.store.lists))

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.store.open_connections -= 1


@attrs.define
class MemoryTx:
    store: MemoryStore
    process: int
    count: int
    snapshot: dict[int, tuple[int, ...]]
    seen: dict[int, tuple[int, ...]] = attrs.Factory(dict)
    changed: dict[int, tuple[int, ...]] = attrs.Factory(dict)

    @property
    def server_txn(self) -> str | None:
        return f"{self.process}/{self.count}"

    async def read(self, key: int) -> tuple[int, ...] | None:
        await self.store.pass_through("step", self.process)
        self.seen[key] = self.snapshot.get(key, ())
        return self.changed.get(key, self.snapshot.get(key))

    async def write(self, key: int, value: int) -> None:
        raise NotImplementedError

    async def append(self, key: int, element: int) -> None:
        self.changed[key] = (*(await self.read(key) or ()), element)

    async def commit(self) -> Committed:
        self.store.commit_calls.append((self.process, self.count))
        await self.store.pass_through("commit", self.process)
        for key, value in self.seen.items():
            if self.store.lists.get(key, ()) != value:
                raise StoreError("CONFLICT")
        self.store.lists.update(self.changed)
        self.store.commits += 1
        await self.store.pass_through("committed", self.process)
        return Committed(commit_ts=self.store.commits)

    async def rollback(self) -> None:
        self.store.rollbacks += 1
        await self.store.pass_through("rollback", self.process)


class JumpingSelector(selectors.SelectSelector):
    """Instead of waiting, lets the time pass."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing to wait for: the driver hangs")
        self.now_s += timeout
        return []


class JumpingLoop(asyncio.SelectorEventLoop):
    """A real asyncio loop on which waiting takes no time."""

    def __init__(self) -> None:
        self._jumping = JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s
