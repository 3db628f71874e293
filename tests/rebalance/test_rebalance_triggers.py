"""From SQL and topology to assignments: what triggers a rebalance, once, and what does not."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from group_model import done

from clusters.reference.node.catalog import catalog as catalogs
from clusters.reference.node.catalog.catalog import Catalog
from clusters.reference.node.catalog.grammar import parse
from clusters.reference.node.catalog.nodes import Node
from clusters.reference.node.catalog.statements import Describe, Select
from clusters.reference.node.metastorage.metastorage import (
    Invoke,
    Metastorage,
    Operation,
    encode_invoke,
)
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.rebalance import triggers as rebalance
from clusters.reference.node.rebalance.keys import (
    FOUNDERS,
    PREFIXES,
    STABLE,
    PartitionId,
    PartitionState,
    Position,
    assignments,
    read,
)
from clusters.reference.node.rebalance.transitions import Outcome, Variant, stable_switched
from clusters.reference.node.runtime.hybrid_clock import span
from clusters.reference.node.topology.logical import LOGICAL, Member
from clusters.reference.node.zones import manager as zones
from clusters.reference.node.zones.affinity import assigned
from clusters.reference.node.zones.data_nodes import Topology

PARTITIONS = 8


class Cluster:
    """Metastorage and what drives it, without raft groups: ``rebalanced`` stands for them."""

    def __init__(self, nodes: str, *statements: str, variant: Variant = Variant.BASE) -> None:
        self.store, self.variant = Metastorage(), variant
        self.topology = Topology(revision=0, nodes=())
        self.index = 1
        self.now(0, nodes, *statements)

    def now(self, second: int, nodes: str, *statements: str) -> Counter[Outcome]:
        """At ``second`` these nodes are there and the statements are made."""
        while (due := zones.next_due(self.store)) is not None and due < span(second):
            self._zones(due)
        if nodes != "".join(node.name for node in self.topology.nodes):
            self.topology = Topology(
                revision=self.topology.revision + 1,
                nodes=tuple(Node(name=name, attributes={name: None}) for name in nodes),
            )
        for text in statements:
            self.execute(text)
        self._zones(span(second))
        return self.triggered()

    def execute(self, text: str) -> None:
        """The statement is written, and nothing has followed on it yet."""
        statement = parse(text)
        assert not isinstance(statement, (Describe, Select))
        self._do(catalogs.written(self.store.get, self.catalog.apply(statement)))

    @property
    def catalog(self) -> Catalog:
        return catalogs.read(self.store.get)

    def triggered(self) -> Counter[Outcome]:
        """What a pass over all partitions did."""
        steps = list(rebalance.step(self.store, self.catalog, self.variant))
        return Counter(done(self.store, transition) for _, transition in steps)

    def rebalanced(self) -> int:
        """Every raft group reaches its pending set, and what follows; returns how many sets."""
        count = 0
        while moving := [state for state in self.states() if state.pending is not None]:
            self.index += 1
            for state in moving:
                assert state.pending is not None
                position = Position(0, self.index)
                switch = stable_switched(self.variant, state, state.pending, position)
                done(self.store, switch)
                count += 1
        return count

    def states(self) -> list[PartitionState]:
        return [
            read(self.store, PartitionId(table.id, number))
            for table in self.catalog.tables.values()
            for number in range(self.catalog.zones[table.zone].partitions)
        ]

    def held(self) -> set[str]:
        return {n for s in self.states() if s.stable is not None for n in s.stable.nodes}

    def _zones(self, ts: int) -> None:
        for invoke in zones.step(self.store, self.catalog, self.topology, ts):
            self._do(invoke)

    def _do(self, invoke: Invoke) -> None:
        assert self.store.apply(Entry(1, 1, encode_invoke(invoke))).success


ZONE = f"CREATE ZONE z WITH PARTITIONS = {PARTITIONS}, REPLICAS = 3"
TABLE = "CREATE TABLE t WITH PRIMARY_ZONE = z"


def nothing(outcomes: Counter[Outcome]) -> bool:
    return not set(outcomes) - {Outcome.EQUALS_STABLE}


def test_a_new_table_begins_with_the_affinity_of_its_data_nodes() -> None:
    cluster = Cluster("ABCDE", ZONE, TABLE)
    targets = assigned(
        function="rendezvous", partitions=PARTITIONS, replicas=3, nodes=list("ABCDE")
    )

    assert [s.stable.nodes for s in cluster.states() if s.stable is not None] == list(targets)
    assert cluster.triggered() == Counter()


def test_the_joint_timeline_is_one_rebalance_where_two_timers_are_two() -> None:
    for waits, rebalances in (
        ("DATA_NODES_AUTO_ADJUST = 300", [550]),
        (
            "DATA_NODES_AUTO_ADJUST_SCALE_UP = 300, DATA_NODES_AUTO_ADJUST_SCALE_DOWN = 300",
            [400, 550],
        ),
    ):
        cluster = Cluster("ABC", f"{ZONE}, {waits}", TABLE)
        events = {0: "ABCD", 100: "ABD", 250: "ABDE"}
        moved, nodes = [], "ABC"
        for second in range(1, 601):
            nodes = events.get(second, nodes)
            if second == 1:
                nodes = events[0]
            if not nothing(cluster.now(second, nodes)):
                moved.append(second)
                cluster.rebalanced()

        # D joins at 1 instead of 0; a timer that is due at its second fires in it.
        assert moved == rebalances
        assert cluster.held() == set("ABDE")


@pytest.mark.parametrize(
    ("statement", "held"),
    [
        ("ALTER ZONE z SET REPLICAS = 5", "ABCDE"),
        ('ALTER ZONE z SET DATA_NODES_FILTER = \'"A", "B", "C"\'', "ABC"),
        ("ALTER TABLE t SET PRIMARY_ZONE = y", "DE"),
    ],
)
def test_what_triggers_a_rebalance_in_sql(statement: str, held: str) -> None:
    other = ZONE.replace("z", "y").replace("3", "2") + ', DATA_NODES_FILTER = \'"D", "E"\''
    cluster = Cluster("ABCDE", ZONE, other, TABLE)

    outcomes = cluster.now(1, "ABCDE", statement)

    assert outcomes[Outcome.PENDING_UPDATED] > 0
    assert cluster.triggered() == Counter()
    cluster.rebalanced()
    assert cluster.held() == set(held)


def test_data_nodes_trigger_a_rebalance_that_moves_only_what_must() -> None:
    cluster = Cluster("ABCD", ZONE, TABLE)
    before = cluster.states()
    outcomes = cluster.now(1, "ABCDE")
    after = cluster.states()

    gained = [s for s in after if s.pending is not None]
    assert outcomes[Outcome.PENDING_UPDATED] == len(gained) > 0
    assert all(s.pending is not None and "E" in s.pending.nodes for s in gained)
    assert [s.stable for s in before] == [s.stable for s in after]


def test_what_changes_no_target_moves_nothing() -> None:
    cluster = Cluster("ABC", ZONE, TABLE)
    stable = [state.stable for state in cluster.states()]

    assert nothing(cluster.now(1, "AB"))  # a leave that is never a scale-down
    assert nothing(cluster.now(2, "ABC"))  # and a return: an entry of the history, the same nodes
    assert nothing(cluster.now(3, "ABC", "ALTER ZONE z SET DATA_NODES_AUTO_ADJUST = 9"))
    assert nothing(cluster.now(4, "ABC", "CREATE ZONE y"))
    assert [state.stable for state in cluster.states()] == stable
    assert all(state.pending is None for state in cluster.states())


def test_three_changes_before_a_rebalance_ends_are_two_rebalances_at_most() -> None:
    for variant in Variant:
        cluster = Cluster("ABCDE", ZONE, TABLE, variant=variant)
        for second, replicas in enumerate((2, 4, 5), 1):
            cluster.now(second, "ABCDE", f"ALTER ZONE z SET REPLICAS = {replicas}")

        count = cluster.rebalanced()

        assert count == PARTITIONS * (1 if variant is Variant.LOCK else 2)
        assert all(state.stable is not None for state in cluster.states())
        assert all(len(s.stable.nodes) == 5 for s in cluster.states() if s.stable is not None)


def there(cluster: Cluster, nodes: str) -> None:
    """The logical topology is ``nodes``; data nodes have not followed it yet."""
    members = [Member(Node(name=name), f"{name}~1", "1") for name in nodes]
    cluster._do(Invoke((), (Operation(LOGICAL, msgspec.msgpack.encode(members)),)))


AVAILABLE = f"{ZONE}, CONSISTENCY_MODE = 'HIGH_AVAILABILITY'"


@pytest.mark.parametrize(("zone", "aims"), [(ZONE, "ABCDE"), (AVAILABLE, "ABCD")])
def test_a_node_that_has_left_is_no_aim_of_an_available_zone_unless_it_is_stable(
    zone: str, aims: str
) -> None:
    cluster = Cluster("ABCDE", zone, TABLE)
    there(cluster, "ABCDE")
    cluster.now(1, "ABCDE", 'ALTER ZONE z SET DATA_NODES_FILTER = \'"A", "B", "C"\'')
    cluster.rebalanced()
    assert {state.stable for state in cluster.states()} == {assignments("ABC")}
    there(cluster, "ABD")
    cluster.now(2, "ABCDE", "ALTER ZONE z SET DATA_NODES_FILTER = '$..*', REPLICAS = 5")

    assert [state.pending for state in cluster.states()] == [assignments(aims)] * PARTITIONS
    assert {state.chain is not None for state in cluster.states()} == {zone == AVAILABLE}


def test_where_all_aims_of_an_available_zone_have_left_nothing_moves() -> None:
    cluster = Cluster("ABCDE", AVAILABLE, TABLE)
    there(cluster, "ABCDE")
    cluster.now(1, "ABCDE", 'ALTER ZONE z SET DATA_NODES_FILTER = \'"A", "B", "C"\'')
    cluster.rebalanced()
    there(cluster, "ABC")

    assert not cluster.now(2, "ABCDE", 'ALTER ZONE z SET DATA_NODES_FILTER = \'"D", "E"\'')
    assert all(state.pending is None for state in cluster.states())
    there(cluster, "ABCD")
    cluster.triggered()
    assert {state.pending for state in cluster.states()} == {assignments("D")}


def test_a_table_waits_until_its_zone_has_data_nodes() -> None:
    cluster = Cluster("ABC")
    for text in (ZONE, TABLE):
        cluster.execute(text)

    assert cluster.triggered() == Counter()
    assert cluster.now(1, "ABC") == Counter({Outcome.CREATED: PARTITIONS})


def test_without_data_nodes_a_table_keeps_what_it_has_and_a_new_one_waits() -> None:
    cluster = Cluster("ABC", ZONE, TABLE)
    stable = [state.stable for state in cluster.states()]
    cluster.now(1, "ABC", "ALTER ZONE z SET DATA_NODES_FILTER = '\"X\"'")

    assert [(s.stable, s.pending) for s in cluster.states()] == [(held, None) for held in stable]
    cluster.now(2, "ABC", "CREATE TABLE u WITH PRIMARY_ZONE = z")
    assert sum(state.stable is None for state in cluster.states()) == PARTITIONS
    cluster.now(3, "ABCX")
    assert sum(state.stable is None for state in cluster.states()) == 0


def test_the_keys_of_a_dropped_table_stay_until_its_replicas_are_drained() -> None:
    cluster = Cluster("ABC", ZONE, TABLE, "CREATE TABLE u WITH PRIMARY_ZONE = z")
    cluster.now(1, "ABC", "DROP TABLE t")

    assert list(rebalance.dropped(cluster.store, cluster.catalog)) == []
    tables = {k.split("/")[1] for k in cluster.store.prefixed("partition.assignments.stable/")}
    assert len(tables) == 2


@pytest.mark.parametrize("prefix", [prefix for prefix in PREFIXES if prefix != STABLE])
def test_any_key_that_a_dropped_table_has_left_is_removed(prefix: str) -> None:
    cluster = Cluster("ABC", ZONE)
    left = Operation(PartitionId(77, 3).key(prefix), b"left")
    cluster._do(Invoke((), (left,)))
    for invoke in rebalance.dropped(cluster.store, cluster.catalog):
        cluster._do(invoke)

    assert cluster.store.prefixed(prefix) == {}


def test_no_key_of_a_table_that_is_there_is_removed() -> None:
    cluster = Cluster("ABC", ZONE)
    cluster.execute(TABLE)
    (table,) = cluster.catalog.tables.values()
    cluster._do(Invoke((), (Operation(PartitionId(table.id, 0).key(FOUNDERS), b"kept"),)))

    assert list(rebalance.dropped(cluster.store, cluster.catalog)) == []
