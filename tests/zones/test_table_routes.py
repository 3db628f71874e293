"""Which partition a key of a table is in, as the catalog that this node has applied says."""

from __future__ import annotations

from zone_store import FILTER, ZoneStore, alter

from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import Failed
from clusters.reference.node.zones import manager
from clusters.reference.node.zones.table_routes import TableRoutes


class Node(ZoneStore):
    """The routes of a node that applies what statements write."""

    def __init__(self) -> None:
        super().__init__()
        self.stable: set[int] = set()
        self.routes = TableRoutes(self.store, self.stable.__contains__)
        self.store.observe("", self.routes.observed)

    def refused(self, table: str) -> str:
        """The code that a key of the table is refused with."""
        found = self.routes.number(table, b"key")
        return found.code if isinstance(found, Failed) else ""

    def step(self) -> None:
        """Switch the data nodes of zones as the leader of metastorage does."""
        now = self.store.revision
        for invoke in manager.step(self.store, self.catalog, self.topology(), now):
            assert self.apply(invoke).success


ZONE = "CREATE ZONE z WITH PARTITIONS = 2, REPLICAS = 1"


def test_tables_that_come_and_go_are_known_as_soon_as_they_are_applied() -> None:
    node = Node()
    assert node.refused("T") == codes.NO_TABLE

    node.does(ZONE, "CREATE TABLE t WITH PRIMARY_ZONE = z")
    assert node.routes.number("T", b"key") in (0, 1)
    node.does("CREATE TABLE u WITH PRIMARY_ZONE = z")
    assert node.routes.number("U", b"key") in (2, 3)
    assert node.routes.tables() == (("T", 0, 2), ("U", 2, 2))
    node.does("DROP TABLE t")
    assert node.refused("T") == codes.NO_TABLE


def test_dropped_is_what_a_table_has_had_and_nothing_that_none_had_yet() -> None:
    node = Node()
    node.does(ZONE, "CREATE TABLE t WITH PRIMARY_ZONE = z")
    assert [node.routes.dropped(number) for number in range(4)] == [False] * 4
    node.does("DROP TABLE t")
    assert [node.routes.dropped(number) for number in range(4)] == [True, True, False, False]
    node.stable.add(1)
    assert [node.routes.removed(number) for number in range(4)] == [True, False, False, False]


def test_a_request_without_a_table_is_told_so_and_one_of_none_its_name() -> None:
    routes = Node().routes

    assert routes.number("", b"key") == Failed(codes.NO_TABLE, "the request names no table")
    assert routes.number("T", b"key") == Failed(codes.NO_TABLE, "there is no table 'T'")


def test_a_table_is_refused_while_no_node_of_its_zone_can_hold_it() -> None:
    node = Node()
    node.does("AB", ZONE, "CREATE TABLE t WITH PRIMARY_ZONE = z")
    # Before the zone's data nodes are decided nothing says that there are none.
    assert node.refused("T") == ""
    node.step()
    assert node.refused("T") == ""
    node.does(alter(f"{FILTER}='\"nowhere\"'"))
    assert node.refused("T") == ""
    node.step()
    refused = node.routes.number("T", b"key")
    assert isinstance(refused, Failed)
    assert refused.code == codes.NO_DATA_NODES
    assert "table 'T' has no data nodes: none passes the filter '\"nowhere\"'" in refused.message
    assert node.routes.tables() == (("T", 0, 2),)
    node.does(alter(f"{FILTER}='\"A\"'"))
    node.step()
    assert node.refused("T") == ""


def test_a_table_is_refused_while_no_data_node_has_its_profile() -> None:
    node = Node()
    node.does("AB", f"{ZONE}, STORAGE_PROFILES = 'default, fast'")
    for name, profile in (("t", "default"), ("u", "fast")):
        node.does(f"CREATE TABLE {name} WITH PRIMARY_ZONE = z, STORAGE_PROFILE = '{profile}'")
    node.step()

    assert (node.refused("T"), node.refused("U")) == ("", codes.NO_DATA_NODES)
