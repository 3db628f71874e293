"""Which partitions' assignments must change: a function of metastorage, the catalog and the zones'
data nodes ("Operations, which can trigger rebalance").

REPLICAS, data nodes, a filter and PRIMARY_ZONE all come here as one question: is what a partition
was last asked to be what it should be? The event's revision is that of the newest key that the
answer rests on, so that every event is handled once, however often the question comes, also after
a restart.
PARTITIONS can't change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol

from clusters.reference.node.bugs import planted
from clusters.reference.node.catalog.catalog import KEY as CATALOG
from clusters.reference.node.catalog.catalog import Catalog, Table
from clusters.reference.node.metastorage.metastorage import Invoke, Versioned
from clusters.reference.node.rebalance import keys, transitions
from clusters.reference.node.rebalance.keys import (
    PREFIXES,
    STABLE,
    TRIGGER,
    PartitionId,
    assignments,
    encode_number,
)
from clusters.reference.node.rebalance.transitions import Transition, Variant
from clusters.reference.node.topology import logical
from clusters.reference.node.zones.affinity import FUNCTIONS, Affinity, assigned
from clusters.reference.node.zones.data_nodes import of_profile
from clusters.reference.node.zones.manager import HISTORY, read


class View(Protocol):
    """What is read of metastorage: one state of it."""

    def get(self, key: str) -> Versioned | None:
        """The value of ``key``."""

    def prefixed(self, prefix: str) -> Mapping[str, Versioned]:
        """All keys that begin with ``prefix``."""


def step(
    view: View,
    catalog: Catalog,
    variant: Variant,
    *,
    functions: Mapping[str, Affinity] = FUNCTIONS,
    altered_at: Mapping[int, int] = {},
) -> Iterator[tuple[PartitionId, Transition]]:
    """The transitions of all partitions that have not handled the newest event yet, by table and
    partition. ``catalog`` is that of ``view``; ``altered_at``: by tables' ids the revision at which
    the catalog last changed what it says of their zones, where that is known. A table whose zone
    has no data nodes keeps what it has: there is nowhere to go. Raises ``UnknownAffinity``.
    """
    for name in sorted(catalog.tables):
        table = catalog.tables[name]
        altered = altered_at.get(table.id, _revision(view, CATALOG))
        yield from _table(view, catalog, table, variant, functions, altered)


def _table(
    view: View,
    catalog: Catalog,
    table: Table,
    variant: Variant,
    functions: Mapping[str, Affinity],
    altered: int,
) -> Iterator[tuple[PartitionId, Transition]]:
    zone = catalog.zones[table.zone]
    state = read(view, zone.id)
    nodes = () if state is None else of_profile(state.latest, table.profile)
    if not nodes:
        return
    revision = max(altered, _revision(view, f"{HISTORY}{zone.id}"))
    targets = assigned(
        function=zone.affinity,
        partitions=zone.partitions,
        replicas=zone.replicas,
        nodes=[node.name for node in nodes],
        functions=functions,
    )
    for number, target in enumerate(targets):
        partition = PartitionId(table.id, number)
        if _handled(view, partition, revision):
            continue
        if view.get(partition.key(STABLE)) is None:
            yield (
                partition,
                transitions.created(
                    partition, assignments(target), revision, chained=zone.highly_available
                ),
            )
            continue
        if zone.highly_available:
            target = _alive(view, partition, target)
        # Without any there is nowhere to go until a node joins.
        if target:
            aim = assignments(target)
            yield (
                partition,
                transitions.triggered(variant, partition, target=aim, revision=revision),
            )


def _alive(view: View, partition: PartitionId, target: tuple[str, ...]) -> tuple[str, ...]:
    """Those of ``target`` that are there, or have been stable: a node that left is no aim before it
    comes back, and leaves stable by the zone's data nodes alone (IEP-131, "Change rebalance
    scheduling").
    """
    there = {member.name for member in logical.logical(view)}
    stable = keys.read(view, partition).stable
    there.update(() if stable is None else stable.nodes)
    return tuple(node for node in target if node in there)


def dropped(view: View, catalog: Catalog) -> Iterator[Invoke]:
    """The invokes that remove the keys of tables that the catalog does not have, but of partitions
    that have stable assignments: those have replicas, whose leader removes them once no transaction
    needs them any more.
    """
    there = {table.id for table in catalog.tables.values()}
    held = {
        tuple(map(int, key.removeprefix(prefix).split("/")))
        for prefix in PREFIXES
        for key in view.prefixed(prefix)
    }
    for table, number in sorted(held):
        partition = PartitionId(table, number)
        if table not in there and view.get(partition.key(STABLE)) is None:
            yield Invoke((), transitions.removed(partition))


def _revision(view: View, key: str) -> int:
    held = view.get(key)
    return 0 if held is None else held.revision


def _handled(view: View, partition: PartitionId, revision: int) -> bool:
    held = view.get(partition.key(TRIGGER))
    newest = held is not None and held.value >= encode_number(revision)
    return newest and not planted("trigger-not-compared")
