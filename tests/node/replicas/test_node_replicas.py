"""Replicas that come and go on nodes that stay up, in virtual time, while clients write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

import attrs

from clusters.providers.sim.loop import simulate
from clusters.providers.sim.provider import SimProvider
from clusters.reference.node.composition import Components
from clusters.reference.node.config import loads
from clusters.reference.node.metastorage.metastorage import (
    METASTORAGE,
    Condition,
    Invoke,
    Operation,
    encode_invoke,
)
from clusters.reference.node.placement.rendezvous import ASSIGNMENTS, Assignment, encode
from clusters.reference.node.raft import Configuration, HardState
from clusters.reference.node.replicas.manager import group_of
from clusters.reference.node.runtime import Runtime
from clusters.reference.node.runtime.concurrency import together
from clusters.reference.node.server import Life, Node
from clusters.reference.node.wire.reports import AskStates, StateReport
from clusters.reference.system import build
from harness.protocols.client import READ_WRITE, StoreError
from harness.protocols.cluster import Program

NODES = ("n1", "n2", "n3", "n4")
LIMIT_S = 30.0
PARTITION = 0
KEYS = 12  # in all partitions
Work = Callable[[], Coroutine[None, None, None]]


@attrs.frozen
class Inside:
    """A node, and a way to let work run within it."""

    node: Components
    work: asyncio.Queue[tuple[Work, asyncio.Future[None]]] = attrs.field(factory=asyncio.Queue)

    async def do(self, work: Work) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.work.put_nowait((work, done))
        await done

    async def serve(self) -> None:
        while True:
            work, done = await self.work.get()
            await work()
            done.set_result(None)


class Store:
    """Four nodes that hold two partitions three times, a client that appends, and their insides."""

    def __init__(self) -> None:
        self.nodes: dict[str, Inside] = {}
        self.provider = SimProvider(seed=3, body=self.body)
        options = {"partitions": 2, "snapshot_bytes": 2000}
        self.system = build(options, NODES, 3, network=self.provider.client_network)
        self.acknowledged: dict[int, list[int]] = {}
        self.next_element = 0
        self.over = False

    async def body(self, program: Program, runtime: Runtime) -> None:
        config = loads(program.files[program.argv[program.argv.index("--config") + 1]])
        inside = Inside(await Node(config, runtime).recover())
        self.nodes[config.node] = inside
        await together(Life(inside.node).run(), inside.serve())

    async def begin(self) -> None:
        self.cluster = await self.provider.provision(NODES, self.system.ports)
        for node in NODES:
            await self.provider.install(node, self.system.program(node, self.cluster))
        await self.system.set_up(self.cluster, self.provider, now_s() + LIMIT_S)

    async def append_forever(self) -> None:
        while not self.over:
            self.next_element += 1
            element = self.next_element
            try:
                node = NODES[element % len(NODES)]
                client = await self.system.connect(self.cluster, node, 0)
                tx = await client.begin(READ_WRITE, now_s() + 2.0)
                await tx.append(element % KEYS, element)
                await tx.commit()
                self.acknowledged.setdefault(element % KEYS, []).append(element)
                await client.close()
            except StoreError:
                await asyncio.sleep(0.05)

    async def nothing_is_lost(self) -> None:
        for key, elements in self.acknowledged.items():
            client = await self.system.connect(self.cluster, "n1", 9)
            tx = await client.begin(READ_WRITE, now_s() + 5.0)
            found = await tx.read(key)
            await client.close()
            assert isinstance(found, tuple)
            assert frozenset(elements) <= frozenset(found)

    async def goes_on(self) -> None:
        """Every partition commits."""
        before = {key: len(elements) for key, elements in self.acknowledged.items()}
        await until(
            lambda: all(len(self.acknowledged[key]) > count for key, count in before.items()),
            "every key is written again",
        )

    def leader(self) -> str:
        return next(
            node
            for node, inside in self.nodes.items()
            if PARTITION in inside.node.replicas.replicas
            and inside.node.replicas.replicas[PARTITION].group.serving
        )

    def holders(self) -> list[str]:
        return [n for n, inside in self.nodes.items() if PARTITION in inside.node.replicas.replicas]

    def assignment(self) -> Assignment:
        return self.nodes["n1"].node.assignments[PARTITION]

    async def assign(self, *nodes: str) -> None:
        """Make ``nodes`` those that are to hold the partition; wait until its group is of them."""
        before = self.assignment()
        group = group_of(PARTITION)
        members = tuple(self.nodes[node].node.host.member_of(group) for node in nodes)
        after = attrs_replaced(before, members)
        key = f"{ASSIGNMENTS}{PARTITION}"
        invoke = Invoke(
            (Condition(key, "value", value=encode(before)),), (Operation(key, encode(after)),)
        )

        def leads(node: str) -> bool:
            return self.nodes[node].node.host.groups[METASTORAGE].serving

        inside = self.nodes[next(filter(leads, NODES))]

        async def propose() -> None:
            group = inside.node.host.groups[METASTORAGE]
            await inside.node.host.ask(group, encode_invoke(invoke), 5.0)

        await inside.do(propose)

        def reached() -> bool:
            config = self.nodes[self.leader()].node.replicas.replicas[PARTITION].group.raft
            return frozenset(config.configuration.voters) == frozenset(members)

        await until(lambda: any(map(self.leads, NODES)) and reached(), f"the group is {members}")

    def leads(self, node: str) -> bool:
        replica = self.nodes[node].node.replicas.replicas.get(PARTITION)
        return replica is not None and replica.group.serving


def attrs_replaced(before: Assignment, members: tuple[str, ...]) -> Assignment:
    return Assignment(members=members, founders=before.founders)


def now_s() -> float:
    return asyncio.get_running_loop().time()


async def until(check: Callable[[], bool], what: str) -> None:
    give_up_s = now_s() + LIMIT_S
    while not check():
        assert now_s() < give_up_s, f"not within {LIMIT_S:g} s: {what}"
        await asyncio.sleep(0.05)


def drilled(scenario: Callable[[Store], Awaitable[None]]) -> None:
    """Run ``scenario`` while a client writes; nothing that was acknowledged is lost by it."""

    async def whole() -> None:
        store = Store()
        await store.begin()
        client = asyncio.ensure_future(store.append_forever())
        await until(lambda: len(store.acknowledged) == KEYS, "every key is written")
        await scenario(store)
        await store.goes_on()
        store.over = True
        await client
        await store.nothing_is_lost()
        await store.provider.teardown()

    simulate(whole())


def test_a_replica_that_is_stopped_is_gone_and_comes_back_with_what_it_had() -> None:
    async def scenario(store: Store) -> None:
        leader = store.leader()
        node = next(n for n in store.holders() if n != leader)
        inside = store.nodes[node]
        manager, name = inside.node.replicas, group_of(PARTITION)
        replica = manager.replicas[PARTITION]
        applied = replica.group.applied_index

        await inside.do(lambda: manager.stop(PARTITION))
        assert (PARTITION in manager.replicas, name in inside.node.host.groups) == (False, False)
        assert replica.tasks.cancel() == ()
        assert list(manager.status()) == [n for n in (0, 1) if n in manager.replicas]
        await store.goes_on()
        assert name not in inside.node.host.groups

        async def start() -> None:
            await manager.start(PARTITION, store.assignment())

        await inside.do(start)
        again = manager.replicas[PARTITION].group
        assert again.recovered.last_index >= applied
        await until(
            lambda: (
                again.applied_index
                >= store.nodes[store.leader()].node.replicas.replicas[PARTITION].group.applied_index
                - 1
            ),
            "it has caught up",
        )

    drilled(scenario)


def test_a_stopped_replica_that_is_assigned_anew_starts_with_what_the_disk_holds() -> None:
    async def scenario(store: Store) -> None:
        node = next(n for n in store.holders() if n != store.leader())
        inside, name = store.nodes[node], group_of(PARTITION)
        await until(lambda: inside.node.log.groups[name].saved is not None, "a snapshot")
        held = len(inside.node.replicas.replicas[PARTITION].partition.versions)
        await inside.do(lambda: inside.node.replicas.stop(PARTITION))
        await store.assign(*reversed([*store.holders(), node]))

        await until(lambda: PARTITION in inside.node.replicas.replicas, "it runs again")
        again = inside.node.replicas.replicas[PARTITION]
        assert len(again.partition.versions) >= held > 0
        assert again.group.recovered.last_index > 0

    drilled(scenario)


def test_no_state_of_a_replica_goes_back_because_it_was_stopped_and_started_again() -> None:
    async def scenario(store: Store) -> None:
        node = next(n for n in store.holders() if n != store.leader())
        inside = store.nodes[node]
        manager = inside.node.replicas
        told: list[int] = []

        async def tell() -> None:
            report = await inside.node.sessions.admin(AskStates(whole=False))
            assert isinstance(report, StateReport)
            told.extend(r.commit_index for r in report.replicas if r.partition == PARTITION)

        async def again() -> None:
            await tell()
            await manager.stop(PARTITION)
            await manager.start(PARTITION, store.assignment())
            assert manager.catches_up(PARTITION)
            await tell()

        await inside.do(again)
        assert len(told) == 1
        await until(lambda: not manager.catches_up(PARTITION), "it has caught up")
        await inside.do(tell)
        assert len(told) == 2
        assert told == sorted(told)

    drilled(scenario)


def test_a_primary_that_is_stopped_answers_its_requests_and_another_takes_over() -> None:
    async def scenario(store: Store) -> None:
        node = store.leader()
        inside = store.nodes[node]
        replica = inside.node.replicas.replicas[PARTITION]
        await inside.do(lambda: inside.node.replicas.stop(PARTITION))

        assert (replica.primary.serving, replica.primary.locks.count) == (False, 0)
        assert replica.group.waiters == {}
        await until(lambda: any(store.leads(n) for n in NODES if n != node), "another one leads")

    drilled(scenario)


def test_a_replica_that_is_erased_does_not_come_back_by_a_restart() -> None:
    async def scenario(store: Store) -> None:
        node = next(n for n in store.holders() if n != store.leader())
        spare = next(n for n in NODES if n not in store.holders())
        name = group_of(PARTITION)
        await store.assign(*(spare if n == node else n for n in store.holders()))
        inside = store.nodes[node]
        member = inside.node.replicas.replicas[PARTITION].member
        await inside.do(lambda: inside.node.replicas.erase(PARTITION))

        def left() -> tuple[int, object, Configuration]:
            state = store.nodes[node].node.log.groups[name]
            return len(state.entries), state.saved, state.base.configuration

        assert left() == (0, None, Configuration())
        files = [f for f in await files_of(store, node) if f.endswith(f"-{name}")]
        assert files == []
        await store.goes_on()
        await store.provider.kill(node)
        await store.provider.start(node)
        await store.system.recover(store.cluster, store.provider, now_s() + LIMIT_S)
        assert left() == (0, None, Configuration())
        assert PARTITION not in store.nodes[node].node.replicas.replicas
        host = store.nodes[node].node.host
        assert host.log.groups[name].hard_state == HardState()
        assert host.member_of(name) == f"{member}.2"

    drilled(scenario)


def test_a_founder_that_was_erased_joins_again_as_one_that_has_to_be_taken_in() -> None:
    async def scenario(store: Store) -> None:
        before = tuple(store.holders())
        node = next(n for n in before if n != store.leader())
        spare = next(n for n in NODES if n not in before)
        await store.assign(*(spare if n == node else n for n in before))
        inside = store.nodes[node]
        await inside.do(lambda: inside.node.replicas.erase(PARTITION))
        assert store.nodes[node].node.member in store.assignment().founders
        await store.goes_on()

        await store.assign(*before)
        group = inside.node.replicas.replicas[PARTITION].group
        assert group.recovered.last_index == 0
        assert group.raft.node == f"{inside.node.member}.2"
        assert group.raft.configuration.decides(group.raft.node)

    drilled(scenario)


async def files_of(store: Store, node: str) -> tuple[str, ...]:
    found = list[tuple[str, ...]]()
    inside = store.nodes[node]

    async def look() -> None:
        found.append(await inside.node.runtime.disk.names())

    await inside.do(look)
    return found[0]
