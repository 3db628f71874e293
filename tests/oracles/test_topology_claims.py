"""What the log of metastorage says of nodes, timers and assignments."""

from __future__ import annotations

import msgspec

from clusters.reference.claims.topology_claims import RESET_WITHIN_S, TopologyClaims
from clusters.reference.node.catalog import catalog as catalogs
from clusters.reference.node.catalog.catalog import Catalog
from clusters.reference.node.catalog.grammar import parse
from clusters.reference.node.catalog.nodes import Node
from clusters.reference.node.catalog.options import HIGHLY_AVAILABLE, STRONG, Separate
from clusters.reference.node.catalog.statements import Ddl
from clusters.reference.node.metastorage.metastorage import (
    Change,
    Invoke,
    Metastorage,
    Operation,
    encode_invoke,
)
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.rebalance import keys
from clusters.reference.node.rebalance.driver import NUMBERS, Numbers
from clusters.reference.node.runtime.hybrid_clock import span
from clusters.reference.node.topology.logical import LIVES, LOGICAL, RESUMED, Member
from clusters.reference.node.zones.data_nodes import DataNodes, Timer, Topology
from clusters.reference.node.zones.data_nodes import Entry as Nodes
from clusters.reference.node.zones.manager import TIMERS
from harness.protocols.claims import (
    Duties,
    Duty,
    Fact,
    NodeDeparture,
    NodeJoined,
    Placement,
    TimersResumed,
)

PARTITION = keys.PartitionId(2, 0)
encode = msgspec.msgpack.encode


class Lab:
    """Metastorage and its claims, revision by revision."""

    def __init__(self) -> None:
        self.store = Metastorage()
        self.claims = TopologyClaims(self.store)
        self.said: list[Fact] = []
        self.store.observe("", self._observe)

    def _observe(self, change: Change) -> None:
        self.said = list(self.claims.changed(change))

    def write(self, **values: bytes | None) -> list[Fact]:
        operations = tuple(Operation(key, value) for key, value in values.items())
        data = encode_invoke(Invoke((), operations))
        self.said = []
        self.store.apply(Entry(term=1, index=self.store.revision + 1, data=data))
        return self.said

    def there(self, *names: str, start: int = 1) -> list[Fact]:
        members = tuple(
            Member(node=Node(name=name), origin=f"{name}~{start}", incarnation="a")
            for name in names
        )
        return self.write(**{LOGICAL: encode(members)})


def zoned(mode: str = HIGHLY_AVAILABLE) -> Lab:
    """One partition of a highly available zone, on n1, n2 and n3, which are there."""
    lab, catalog = Lab(), Catalog()
    chosen = f", CONSISTENCY_MODE='{mode}', PARTITION_DISTRIBUTION_RESET_TIMEOUT=2"
    for text in (
        f"CREATE ZONE Z WITH PARTITIONS=1, REPLICAS=3{chosen}",
        "CREATE TABLE T (K INT PRIMARY KEY, V INT) WITH PRIMARY_ZONE='Z'",
    ):
        statement = parse(text)
        assert isinstance(statement, Ddl)
        catalog = catalog.apply(statement)
    assert [table.id for table in catalog.tables.values()] == [PARTITION.table]
    lab.there("n1", "n2", "n3")
    lab.write(**{catalogs.KEY: msgspec.json.encode(catalog)})
    lab.write(**{NUMBERS: encode(Numbers().given(catalog))})
    lab.write(**{PARTITION.key(keys.STABLE): keys.encode(keys.assignments(("n1", "n2", "n3")))})
    return lab


def duties(said: list[Fact]) -> list[Duty]:
    return [duty for fact in said if isinstance(fact, Duties) for duty in fact.duties]


def test_nodes_join_leave_by_themselves_and_are_taken_out() -> None:
    lab = Lab()
    lab.claims.silence_s = 0.7

    assert lab.there("n1", "n2") == [
        NodeJoined("n1", "n1~1", 0.7),
        NodeJoined("n2", "n2~1", 0.7),
    ]
    assert lab.there("n1") == [NodeDeparture("n2", "n2~1", asked=False)]
    lab.there("n1", "n2")
    lab.claims.ends("n2~1")
    assert lab.there("n1") == [NodeDeparture("n2", "n2~1", asked=True)]
    # Another start of it takes its place: it has not left.
    assert lab.there("n1", start=2) == [NodeJoined("n1", "n1~2", 0.7)]


def timers(since_s: float, *, joint: bool = False) -> bytes:
    timer = Timer(span(since_s), left=("n2",))
    state = DataNodes(
        waits=Separate(),
        filter="$..*",
        topology=Topology(revision=1, nodes=()),
        history=(Nodes(1, ()),),
        down=None if joint else timer,
        joint=timer if joint else None,
    )
    return encode(state)


def test_the_cluster_goes_on_with_timers_that_begin_later_or_with_the_same() -> None:
    lab = Lab()
    lab.there("n1", "n2")
    lab.write(**{f"{TIMERS}7": timers(10.0), f"{TIMERS}8": timers(10.0)})

    said = lab.write(**{RESUMED: encode(("n1~2",)), f"{TIMERS}7": timers(14.5)})

    down = "the down timer of zone"
    resumed = TimersResumed(("n1~1", "n2~1"), ((f"{down} 7", 4.5), (f"{down} 8", 0.0)))
    assert said == [resumed]
    # The next time those that it went on with were there before.
    (fact,) = lab.write(**{RESUMED: encode(("n1~3",)), f"{TIMERS}7": timers(15.0)})
    assert isinstance(fact, TimersResumed)
    assert fact.earlier == ("n1~1", "n2~1", "n1~2")
    assert fact.shifts[0] == (f"{down} 7", 0.5)


def test_a_reset_is_owed_to_a_minority_of_a_zone_that_is_highly_available() -> None:
    lab = zoned()

    assert duties(lab.there("n1", "n2")) == []
    (duty,) = duties(lab.there("n1"))
    assert duty.what.startswith("p0 of n1 n2 n3 is to be reset, n1 are left")
    assert (duty.nodes, duty.root) == (("n1",), "p0")
    assert duty.within_s > 2.0 + RESET_WITHIN_S - 0.1
    # It is given to n1, which goes on; then it is not owed any more.
    given = keys.Assignments(("n1",), force=True, member="n1.a")
    assert Duties(()) in lab.write(**{PARTITION.key(keys.PENDING): keys.encode(given)})


def test_half_of_the_nodes_are_a_minority() -> None:
    lab = zoned()
    lab.there("n1", "n2", "n3", "n4")
    four = keys.assignments(("n1", "n2", "n3", "n4"))
    lab.write(**{PARTITION.key(keys.STABLE): keys.encode(four)})

    assert len(duties(lab.there("n1", "n4"))) == 1
    assert duties(lab.there("n1", "n2", "n4")) == []


def test_a_reset_that_was_given_to_a_copy_that_is_lost_is_owed_again() -> None:
    lab = zoned()
    member = "n1@a"
    lab.there("n1", "n2")
    lab.write(**{f"{LIVES}n1": member.encode()})
    given = keys.Assignments(("n1",), force=True, member=member)
    lab.there("n1")
    lab.write(**{PARTITION.key(keys.PENDING): keys.encode(given)})

    # Its node is gone, and another copy of stable is back.
    (duty,) = duties(lab.there("n3"))
    assert duty.nodes == ("n3",)
    # It is back, with an empty disk.
    assert duties(lab.there("n1", "n3")) == []
    (duty,) = duties(lab.write(**{f"{LIVES}n1": b"n1@b"}))
    assert duty.nodes == ("n1", "n3")


def test_none_is_owed_in_another_mode_or_to_nodes_that_the_cluster_waits_for() -> None:
    strong = zoned(STRONG)
    assert duties(strong.there("n1")) == []
    lab = zoned()
    lab.write(**{RESUMED: encode(("n1~2",))})
    assert duties(lab.there("n1", start=2)) == []
    lab.there("n1", "n2", "n3", start=2)
    assert len(duties(lab.there("n1", start=2))) == 1


def test_copies_belong_where_stable_and_pending_say_until_their_table_is_dropped() -> None:
    lab = zoned()
    pending = {PARTITION.key(keys.PENDING): keys.encode(keys.assignments(("n2", "n4")))}

    assert lab.write(**pending) == [
        Placement("p0", "p0", ("n1", "n2", "n3", "n4"), majority=True, reset=False)
    ]
    assert Placement("p0", "p0", ("n1", "n2", "n3", "n4"), majority=False, reset=False) in (
        lab.there("n1")
    )
    gone = lab.write(**{catalogs.KEY: msgspec.json.encode(Catalog())})
    assert Placement("p0", "p0", (), majority=True, reset=False) in gone


def test_none_is_owed_where_no_node_was_left_though_one_is_back_since() -> None:
    lab = zoned()
    lab.there("n1", "n2", "n3", "n4")

    assert duties(lab.there("n4")) == []
    assert duties(lab.there("n1", "n4")) == []
    assert len(duties(lab.there("n1"))) == 1  # another one has left, and the timer began anew
