"""The loop at the leader of metastorage: what a statement costs, and that nothing is left out."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import msgspec
import pytest
from test_rebalance_triggers import TABLE, Cluster

from clusters.providers.sim.loop import simulate
from clusters.reference.node import events
from clusters.reference.node.catalog import catalog as catalogs
from clusters.reference.node.catalog.nodes import Node
from clusters.reference.node.metastorage.metastorage import (
    Change,
    Invoke,
    Metastorage,
    Operation,
    Versioned,
)
from clusters.reference.node.placement.lease_expiry import PRIMARY
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.rebalance import driver, keys
from clusters.reference.node.rebalance.driver import RebalanceDriver
from clusters.reference.node.rebalance.keys import TRIGGER, PartitionId, PartitionState
from clusters.reference.node.rebalance.transitions import Variant, removed
from clusters.reference.node.runtime.hybrid_clock import span
from clusters.reference.node.topology.logical import LIVES
from clusters.reference.node.zones.data_nodes import Topology

MANY = "CREATE ZONE z WITH PARTITIONS = 300, REPLICAS = 3"


class Applied:
    """The group of metastorage, whose commits are applied at once and counted. ``lost``: the number
    of the one that is not made, without an answer; ``before``: what others write just before the
    first one.
    """

    def __init__(self, store: Metastorage, lost: int | None = None) -> None:
        self._store, self.serving, self.commits, self._lost = store, True, 0, lost
        self.leader: str | None = None
        self.before: Callable[[], None] | None = None
        self.most = 0  # invokes in one commit

    async def propose(self, data: bytes, limit_s: float) -> object:
        self.commits += 1
        if self.commits == self._lost:
            return None
        before, self.before = self.before, None
        if before is not None:
            before()
        result = self._store.apply(Entry(1, self.commits, data))
        self.most = max(self.most, 1 + len(result.following))
        return result


@contextlib.asynccontextmanager
async def driving(
    cluster: Cluster,
    group: Applied,
    *,
    settled: bool = True,
    life: int = 1,
    event_log: events.EventLog | None = None,
) -> AsyncIterator[RebalanceDriver]:
    """The loop of ``cluster`` at a node that leads it. ``settled``: it knows all that was there
    before it; ``life``: of all nodes' directories.
    """
    loop = RebalanceDriver(
        view=cluster.store,
        group=group,
        variant=Variant.BASE,
        lives=lambda: {name: f"{name}@{life}" for name in "abcdef"},
        settled=lambda: settled,
        event_log=event_log or events.EventLog(boot="boot", wall_ns=lambda: 7),
    )
    running = asyncio.ensure_future(loop.run())
    cluster.store.observe("", loop.observed)
    try:
        yield loop
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


async def ticked(loop: RebalanceDriver, times: int = 1) -> None:
    for _ in range(times):
        loop.tick()
        await asyncio.sleep(1.0)


def commits(cluster: Cluster, *statements: str, settled: bool = True) -> int:
    """How many commits of metastorage the rebalances of ``cluster`` begin with; after
    ``statements``, if there are any. ``settled``: the leader knows all that was there before it.
    """
    group = Applied(cluster.store)

    async def scenario() -> None:
        async with driving(cluster, group, settled=settled) as loop:
            if statements:
                loop.observed(Change(revision=cluster.store.revision, entries={catalogs.KEY: None}))
            await ticked(loop)
            if statements:
                group.commits = 0
            for statement in statements:
                cluster.execute(statement)
                await asyncio.sleep(1.0)

    simulate(scenario())
    assert group.most <= driver.MAX_TOGETHER
    return group.commits


def few(partitions: int = 1, replicas: int = 3, nodes: str = "abcdef") -> Cluster:
    """A cluster that has a table without assignments."""
    cluster = Cluster(nodes)
    cluster.now(1, nodes, f"CREATE ZONE z WITH PARTITIONS = {partitions}, REPLICAS = {replicas}")
    cluster.execute(TABLE)
    return cluster


def test_a_statement_costs_one_commit_and_not_one_for_each_partition() -> None:
    cluster = Cluster("abcdef")
    cluster.now(1, "abcdef", MANY)
    cluster.execute(TABLE)
    # The partitions' numbers, and their first assignments.
    assert commits(cluster) == 1 + -(-300 // driver.MAX_TOGETHER)
    assert len([s for s in cluster.states() if s.stable is not None]) == 300
    assert commits(cluster) == 0
    cluster.execute("ALTER ZONE z SET REPLICAS = 5")
    assert commits(cluster) == -(-300 // driver.MAX_TOGETHER)
    assert {len(s.pending.nodes) for s in cluster.states() if s.pending is not None} == {5}


def test_a_leader_that_is_not_settled_writes_nothing() -> None:
    cluster = Cluster("abcdef")
    cluster.now(1, "abcdef", MANY)
    cluster.execute(TABLE)
    assert commits(cluster, settled=False) == 0
    assert commits(cluster, "ALTER ZONE z SET REPLICAS = 2", settled=False) == 0
    assert commits(cluster) > 0


def test_a_leader_writes_nothing_while_it_does_not_serve_and_all_once_it_does() -> None:
    cluster = few()
    group = Applied(cluster.store)

    async def scenario() -> None:
        async with driving(cluster, group) as loop:
            group.serving = False
            await ticked(loop)
            assert group.commits == 0
            group.serving = True
            await ticked(loop)
            assert all(state.stable is not None for state in cluster.states())
            before, group.serving = group.commits, False
            cluster.execute("ALTER ZONE z SET REPLICAS = 5")
            await asyncio.sleep(1.0)
            assert group.commits == before
            await ticked(loop)
            group.serving = True
            await ticked(loop)
            assert all(state.pending is not None for state in cluster.states())

    simulate(scenario())


# Of numbers, of three batches of assignments, of what a table has left, and of founders.
@pytest.mark.parametrize("lost", range(1, 7))
def test_what_was_not_written_is_written_with_the_next_tick(lost: int) -> None:
    cluster = few(partitions=driver.MAX_TOGETHER + 1)
    commits(cluster)
    (table,) = cluster.catalog.tables.values()
    first = PartitionId(table.id, 0)
    # The founders of a group in lives that are gone, and a key that a dropped table has left.
    gone = Operation(first.key(keys.FOUNDERS), keys.encode_founders(("a@0", "b@0")))
    left = Operation(PartitionId(77, 0).key(TRIGGER), b"left")
    cluster._do(Invoke((), (gone, left)))
    cluster.execute("CREATE TABLE u WITH PRIMARY_ZONE = z")
    group = Applied(cluster.store, lost)

    async def scenario() -> None:
        async with driving(cluster, group) as loop:
            await ticked(loop)
            assert group.commits == lost
            await ticked(loop)

    simulate(scenario())
    assert all(state.stable is not None for state in cluster.states())
    assert cluster.store.get(PartitionId(77, 0).key(TRIGGER)) is None
    assert keys.founders(cluster.store, first) == ("a@1", "b@1")


def test_a_number_is_of_the_table_that_has_the_partition() -> None:
    given = driver.Numbers(tables=((1, 0, 2), (2, 2, 3)))
    known = [PartitionId(1, 0), PartitionId(1, 1), *(PartitionId(2, n) for n in range(3))]
    assert [given.of(partition) for partition in known] == list(range(5))
    assert [given.partition(number) for number in range(5)] == known
    for strange in (PartitionId(1, 2), PartitionId(2, 3), PartitionId(3, 0)):
        assert given.of(strange) is None
    assert given.partition(5) is None


def test_a_statement_about_another_table_writes_none_of_the_partitions() -> None:
    cluster = Cluster("abcdef")
    cluster.now(1, "abcdef", MANY)
    cluster.execute(TABLE)
    commits(cluster)
    few = ("CREATE ZONE y WITH PARTITIONS = 2", "DROP ZONE y", "CREATE ZONE x WITH PARTITIONS = 2")
    assert commits(cluster, *few) == 0
    assert commits(cluster, "ALTER ZONE z SET REPLICAS = 2") == -(-300 // driver.MAX_TOGETHER)


def test_keys_without_assignments_go_with_their_table_in_few_commits() -> None:
    cluster = Cluster("abcdef")
    cluster.now(1, "abcdef", MANY)
    for number in range(300):
        left = Operation(PartitionId(77, number).key(TRIGGER), b"left")
        cluster._do(Invoke((), (left,)))
    assert commits(cluster) == -(-300 // driver.MAX_TOGETHER)
    assert not cluster.store.prefixed(TRIGGER)


def test_no_assignments_are_written_before_their_partitions_have_numbers() -> None:
    cluster = few()
    group = Applied(cluster.store)
    # Another leader gives numbers just before, by an older catalog.
    other = Operation(driver.NUMBERS, msgspec.msgpack.encode(driver.Numbers()))
    group.before = lambda: cluster._do(Invoke((), (other,)))

    async def scenario() -> None:
        async with driving(cluster, group) as loop:
            await ticked(loop)
            assert group.commits == 1
            assert all(state.stable is None for state in cluster.states())
            await ticked(loop)
            assert all(state.stable is not None for state in cluster.states())

    simulate(scenario())


def test_data_nodes_that_change_are_followed_and_other_keys_cost_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched, prefixed = list[str](), Metastorage.prefixed

    def counted(store: Metastorage, prefix: str) -> dict[str, Versioned]:
        searched.append(prefix)
        return prefixed(store, prefix)

    cluster = few(nodes="abc", replicas=4)
    group = Applied(cluster.store)
    commits(cluster)

    async def scenario() -> None:
        async with driving(cluster, group) as loop:
            await ticked(loop)
            monkeypatch.setattr(Metastorage, "prefixed", counted)
            cluster._do(Invoke((), (Operation("topology/alive", b""),)))
            await ticked(loop, 3)
            assert searched == []
            # A node's life is news, and of no partition: nothing is written.
            cluster._do(Invoke((), (Operation(f"{LIVES}d", b"d@1"),)))
            await ticked(loop)
            assert searched
            assert group.commits == 0
            nodes = tuple(Node(name=name, attributes={}) for name in "abcd")
            cluster.topology = Topology(revision=9, nodes=nodes)
            cluster._zones(span(2))
            await asyncio.sleep(1.0)

    simulate(scenario())
    assert [state.pending for state in cluster.states()] == [keys.assignments("abcd")]


def test_each_aim_is_an_event_of_its_partition_and_none_is_one_twice() -> None:
    cluster = few(nodes="abcde")
    group, log = Applied(cluster.store), events.EventLog(boot="boot", wall_ns=lambda: 7)
    (table,) = cluster.catalog.tables.values()

    def overtake() -> None:
        """Another leader handles an event that is newer still."""
        trigger = Operation(PartitionId(table.id, 0).key(TRIGGER), keys.encode_number(1 << 40))
        cluster._do(Invoke((), (trigger,)))

    async def scenario() -> None:
        async with driving(cluster, group, event_log=log) as loop:
            await ticked(loop)
            for replicas in (4, 5):
                cluster.execute(f"ALTER ZONE z SET REPLICAS = {replicas}")
                await asyncio.sleep(1.0)
            group.before = overtake
            cluster.execute("ALTER ZONE z SET REPLICAS = 1")
            await asyncio.sleep(1.0)

    simulate(scenario())
    (state,) = cluster.states()
    assert state.stable is not None
    assert state.pending is not None
    assert [(event.partition, event.text) for event in log.since("boot", 0).events] == [
        (table.base, f"created: {' '.join(state.stable.nodes)}"),
        (table.base, f"pending-updated: {' '.join(state.pending.nodes)}"),
        (table.base, "planned-updated: a b c d e"),
    ]


def test_the_keys_of_a_table_that_is_dropped_meanwhile_do_not_come_back() -> None:
    cluster = few(partitions=driver.MAX_TOGETHER + 1)
    commits(cluster)
    group = Applied(cluster.store)
    (table,) = cluster.catalog.tables.values()
    last = PartitionId(table.id, driver.MAX_TOGETHER)
    group.before = lambda: cluster._do(Invoke((), removed(last)))

    async def scenario() -> None:
        async with driving(cluster, group) as loop:
            cluster.execute("ALTER ZONE z SET REPLICAS = 5")
            await ticked(loop)
            assert group.commits == 2

    simulate(scenario())
    assert keys.read(cluster.store, last) == PartitionState(partition=last)
    assert len([state for state in cluster.states() if state.pending]) == driver.MAX_TOGETHER


@pytest.mark.parametrize(
    ("founders", "granted", "known", "after"),
    [
        (("a@0", "b@0"), False, True, ("a@1", "b@1")),
        # One of them still is what it was.
        (("a@1", "b@0"), False, True, ("a@1", "b@0")),
        # It may have acknowledged writes.
        (("a@0", "b@0"), True, True, ("a@0", "b@0")),
        (("a@0", "b@0"), False, False, ("a@0", "b@0")),
    ],
)
def test_a_group_is_founded_again_where_all_founders_are_gone_before_it_had_a_primary(
    founders: tuple[str, ...], granted: bool, known: bool, after: tuple[str, ...]
) -> None:
    cluster = few()
    commits(cluster)
    (table,) = cluster.catalog.tables.values()
    partition = PartitionId(table.id if known else 77, 0)
    written = [
        Operation(partition.key(keys.STABLE), keys.encode(keys.assignments("abc"))),
        Operation(partition.key(keys.FOUNDERS), keys.encode_founders(founders)),
    ]
    if granted:
        written.append(Operation(f"{PRIMARY}{table.base}", b"granted"))
    cluster._do(Invoke((), tuple(written)))

    assert commits(cluster) == (after != founders)
    assert keys.founders(cluster.store, partition) == after
