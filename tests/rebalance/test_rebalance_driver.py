"""The loop at the leader of metastorage: what a statement costs, and that nothing is left out."""

from __future__ import annotations

import asyncio
import contextlib

from test_rebalance_triggers import TABLE, Cluster

from clusters.providers.sim.loop import simulate
from clusters.reference.node import events
from clusters.reference.node.catalog import catalog as catalogs
from clusters.reference.node.metastorage.metastorage import Change, Invoke, Metastorage, Operation
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.rebalance import driver
from clusters.reference.node.rebalance.driver import RebalanceDriver
from clusters.reference.node.rebalance.keys import TRIGGER, PartitionId
from clusters.reference.node.rebalance.transitions import Variant

MANY = "CREATE ZONE z WITH PARTITIONS = 300, REPLICAS = 3"


class Applied:
    """The group of metastorage, whose commits are applied at once and counted."""

    def __init__(self, store: Metastorage) -> None:
        self._store, self.serving, self.commits = store, True, 0

    async def propose(self, data: bytes, limit_s: float) -> object:
        self.commits += 1
        return self._store.apply(Entry(1, self.commits, data))


def commits(cluster: Cluster, *statements: str, settled: bool = True) -> int:
    """How many commits of metastorage the rebalances of ``cluster`` begin with; after
    ``statements``, if there are any. ``settled``: the leader knows all that was there before it.
    """
    group = Applied(cluster.store)

    async def scenario() -> None:
        loop = RebalanceDriver(
            view=cluster.store,
            group=group,
            variant=Variant.BASE,
            lives=lambda: {name: f"{name}@1" for name in "abcdef"},
            settled=lambda: settled,
            event_log=events.EventLog(boot="boot", wall_ns=lambda: 7),
        )
        running = asyncio.ensure_future(loop.run())
        cluster.store.observe("", loop.observed)
        if statements:
            loop.observed(Change(revision=cluster.store.revision, entries={catalogs.KEY: None}))
        loop.tick()
        await asyncio.sleep(1.0)
        if statements:
            group.commits = 0
        for statement in statements:
            cluster.execute(statement)
            await asyncio.sleep(1.0)
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running

    simulate(scenario())
    return group.commits


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
    assert commits(cluster) > 0


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
