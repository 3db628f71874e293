"""Zones on a metastorage of their own, that statements and topologies are written to."""

from __future__ import annotations

import msgspec

from clusters.reference.node.catalog import catalog as catalogs
from clusters.reference.node.catalog.catalog import Catalog
from clusters.reference.node.catalog.grammar import parse
from clusters.reference.node.catalog.nodes import Node
from clusters.reference.node.catalog.statements import Ddl
from clusters.reference.node.metastorage.metastorage import (
    Invoke,
    InvokeResult,
    Metastorage,
    Operation,
    encode_invoke,
)
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.topology import logical
from clusters.reference.node.topology.logical import LOGICAL, Member
from clusters.reference.node.zones import manager
from clusters.reference.node.zones.data_nodes import DataNodes, Topology

UP, DOWN = "DATA_NODES_AUTO_ADJUST_SCALE_UP", "DATA_NODES_AUTO_ADJUST_SCALE_DOWN"
FILTER = "DATA_NODES_FILTER"


class ZoneStore:
    """Catalog, topology and zones as a node has them; nobody drives the zones."""

    def __init__(self, max_history: int | None = None) -> None:
        self.store, self.catalog = Metastorage(max_history), Catalog()

    def does(self, *moves: str) -> None:
        """Write each: a statement, or the names of the nodes that are there from then on."""
        for move in moves:
            if " " in move:
                statement = parse(move)
                assert isinstance(statement, Ddl)
                self.catalog = self.catalog.apply(statement)
                key, value = catalogs.KEY, msgspec.json.encode(self.catalog)
            else:
                members = tuple(Member(Node(name=name), "origin", "start") for name in move)
                key, value = LOGICAL, msgspec.msgpack.encode(members)
            self.put((key, value))

    def put(self, *pairs: tuple[str, bytes | None]) -> None:
        self.apply(Invoke((), tuple(Operation(key, value) for key, value in pairs)))

    def apply(self, invoke: Invoke) -> InvokeResult:
        return self.store.apply(Entry(1, 1, encode_invoke(invoke)))

    def topology(self) -> Topology:
        return logical.topology(self.store)

    def state(self, zone: str = "Z") -> DataNodes:
        state = manager.read(self.store, self.catalog.zones[zone].id)
        assert state is not None
        return state


def alter(options: str, zone: str = "z") -> str:
    return f"ALTER ZONE {zone} SET {options}"
