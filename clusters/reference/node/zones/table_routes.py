"""Which partition holds a key of a table, and which tables have no node that could hold any."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import msgspec

from clusters.reference.node.catalog import catalog as catalogs
from clusters.reference.node.metastorage.metastorage import Change, View
from clusters.reference.node.placement.partitioning import partition_of
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import Failed
from clusters.reference.node.zones import manager
from clusters.reference.node.zones.data_nodes import of_profile


class Route(msgspec.Struct, frozen=True):
    """The partitions of a table: from the flat number ``base`` on as many as ``count``; or why its
    operations are refused.
    """

    base: int
    count: int
    refused: Failed | None = None


class TableRoutes:
    """``tx.routes.Routes`` of the tables in the catalog, as far as this node has applied it.

    A table without data nodes is refused, also where replicas of it are left: its zone's
    configuration names no node for it, and what is left is there for when it does again.
    """

    def __init__(self, view: View, stable: Callable[[int], bool]) -> None:
        """``stable``: whether metastorage has assignments of the partition with a flat number."""
        self._view, self._stable = view, stable
        self._routes: dict[str, Route] | None = None
        self._live: frozenset[int] = frozenset()  # of the tables there are
        self._next_number = 0  # no table has had it, nor one above

    def observed(self, change: Change) -> None:
        """A revision of metastorage was applied."""
        if any(key.startswith((catalogs.KEY, manager.HISTORY)) for key in change.entries):
            self._routes = None

    def number(self, table: str, key: bytes) -> int | Failed:
        """See ``tx.routes.Routes``. ``table`` is a full name."""
        route = self._known().get(table)
        if route is None:
            text = f"there is no table {table!r}" if table else "the request names no table"
            return Failed(codes.NO_TABLE, text)
        if route.refused is not None:
            return route.refused
        return route.base + partition_of(key, route.count)

    def tables(self) -> tuple[tuple[str, int, int], ...]:
        """See ``tx.routes.Routes``."""
        known = self._known().items()
        return tuple(sorted(((n, r.base, r.count) for n, r in known), key=lambda each: each[1]))

    def dropped(self, number: int) -> bool:
        """See ``tx.routes.Routes``."""
        self._known()
        return number < self._next_number and number not in self._live

    def removed(self, number: int) -> bool:
        """See ``tx.routes.Routes``."""
        return self.dropped(number) and not self._stable(number)

    def _known(self) -> dict[str, Route]:
        if self._routes is None:
            self._routes = self._read()
        return self._routes

    def _read(self) -> dict[str, Route]:
        catalog, found = catalogs.read(self._view.get), dict[str, Route]()
        for name, table in catalog.tables.items():
            zone, refused = catalog.zones[table.zone], None
            state = manager.read(self._view, zone.id)
            # A zone whose state is not written yet has just been created: its nodes are decided
            # before anything can be granted.
            if state is not None and not of_profile(state.latest, table.profile):
                text = (
                    f"table {name!r} has no data nodes: none passes the filter {zone.filter!r} of "
                    f"zone {zone.name!r} and has the storage profile {table.profile!r}"
                )
                refused = Failed(codes.NO_DATA_NODES, text)
            found[name] = Route(table.base, catalog.partitions(table), refused)
        self._next_number = catalog.next_number
        ranges = (range(route.base, route.base + route.count) for route in found.values())
        self._live = frozenset(chain.from_iterable(ranges))
        return found
