"""Which partition a key of a table is in, as the catalog that this node has applied says."""

from __future__ import annotations

from clusters.reference.node.catalog import catalog as catalogs
from clusters.reference.node.catalog.catalog import Catalog
from clusters.reference.node.catalog.grammar import parse
from clusters.reference.node.metastorage.metastorage import Metastorage, encode_invoke
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import Failed
from clusters.reference.node.zones.table_routes import TableRoutes


class Node:
    """A catalog that statements change, and the routes of a node that applies it."""

    def __init__(self) -> None:
        self.store, self.catalog = Metastorage(), Catalog()
        self.stable: set[int] = set()
        self.routes = TableRoutes(self.store, self.stable.__contains__)
        self.store.observe("", self.routes.observed)

    def execute(self, *statements: str) -> None:
        for statement in statements:
            self.catalog = self.catalog.apply(parse(statement))
            invoke = catalogs.written(self.store.get, self.catalog)
            self.store.apply(Entry(1, 1, encode_invoke(invoke)))


ZONE = "CREATE ZONE z WITH PARTITIONS = 2, REPLICAS = 1"


def test_tables_that_come_and_go_are_known_as_soon_as_they_are_applied() -> None:
    node = Node()
    refused = node.routes.number("T", b"key")
    assert isinstance(refused, Failed)
    assert refused.code == codes.NO_TABLE

    node.execute(ZONE, "CREATE TABLE t WITH PRIMARY_ZONE = z")
    assert node.routes.number("T", b"key") in (0, 1)
    node.execute("CREATE TABLE u WITH PRIMARY_ZONE = z")
    assert node.routes.number("U", b"key") in (2, 3)
    assert node.routes.tables() == (("T", 0, 2), ("U", 2, 2))
    node.execute("DROP TABLE t")
    assert isinstance(node.routes.number("T", b"key"), Failed)


def test_dropped_is_what_a_table_has_had_and_nothing_that_none_had_yet() -> None:
    node = Node()
    node.execute(ZONE, "CREATE TABLE t WITH PRIMARY_ZONE = z")
    assert [node.routes.dropped(number) for number in range(4)] == [False] * 4
    node.execute("DROP TABLE t")
    assert [node.routes.dropped(number) for number in range(4)] == [True, True, False, False]
    node.stable.add(1)
    assert [node.routes.removed(number) for number in range(4)] == [True, False, False, False]
