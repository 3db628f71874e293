"""DESCRIBE and the system views: what the catalog and the cluster's state say, as rows (IEP-101,
"Retrieve distribution zones configuration").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from clusters.reference.node.catalog.catalog import Catalog, Table
from clusters.reference.node.catalog.nodes import Node, text
from clusters.reference.node.catalog.options import Joint, Zone, seconds
from clusters.reference.node.catalog.sql_errors import NoSuchObject
from clusters.reference.node.catalog.statements import Describe, Name, Query, Select

Cell = int | str | None
Row = tuple[Cell, ...]
SCHEMA = "SYSTEM"
KINDS = ("stable", "pending", "planned")  # of assignments, in the order of their rows


class Rows(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a query."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]


class ClusterState(msgspec.Struct, frozen=True, kw_only=True):
    """What views tell: the catalog; per table, by full name, its data nodes; per table and
    partition the nodes of its stable, pending and planned assignments, as far as there are, what
    is left of the stable ones in a word, and its generation; the nodes of the logical topology and
    its revision, and the names in the physical one.
    """

    catalog: Catalog
    data_nodes: dict[str, tuple[str, ...]] = {}
    assignments: dict[tuple[str, int], dict[str, tuple[str, ...]]] = {}
    standings: dict[tuple[str, int], tuple[str, int]] = {}
    topology: tuple[Node, ...] = ()
    topology_revision: int = 0
    physical: tuple[str, ...] = ()


def answer(query: Query, state: ClusterState) -> Rows:
    """The rows of ``query``. Raises ``SqlError``."""
    if isinstance(query, Select):
        return _select(query, state)
    match query.kind:
        case "ZONE":
            return _properties(_zone_properties(state.catalog.zone(query.name)))
        case "TABLE":
            return _properties(_describe_table(query, state))
        case "TABLE GROUP":
            return _describe_group(query, state)


def _properties(properties: Mapping[str, Cell]) -> Rows:
    return Rows(columns=("PROPERTY", "VALUE"), rows=tuple(properties.items()))


def _zone_properties(zone: Zone) -> dict[str, Cell]:
    joint = up = down = None  # NULL: the zone has no such timer
    if isinstance(zone.waits, Joint):
        joint = seconds(zone.waits.wait_s)
    else:
        up, down = seconds(zone.waits.up_s), seconds(zone.waits.down_s)
    return {
        "ZONE_NAME": zone.name,
        "ZONE_ID": zone.id,
        "PARTITIONS": zone.partitions,
        "REPLICAS": zone.replicas,
        "AFFINITY_FUNCTION": zone.affinity,
        "DATA_NODES_AUTO_ADJUST": joint,
        "DATA_NODES_AUTO_ADJUST_SCALE_UP": up,
        "DATA_NODES_AUTO_ADJUST_SCALE_DOWN": down,
        "DATA_NODES_FILTER": zone.filter,
        "STORAGE_PROFILES": ",".join(zone.profiles),
        "CONSISTENCY_MODE": zone.mode,
        "PARTITION_DISTRIBUTION_RESET_TIMEOUT": zone.reset_timeout_s,
    }


def _table_properties(table: Table, state: ClusterState) -> dict[str, Cell]:
    nodes = state.data_nodes.get(table.name)
    return {
        "TABLE_NAME": table.name,
        "TABLE_ID": table.id,
        "PRIMARY_ZONE": table.zone,
        "STORAGE_PROFILE": table.profile,
        "DATA_NODES": None if nodes is None else ",".join(nodes),
    }


def _describe_table(query: Describe, state: ClusterState) -> dict[str, Cell]:
    table = state.catalog.table(query.name)
    zone = _zone_properties(state.catalog.zones[table.zone])
    columns = {
        f"COLUMN {column.name}": f"{column.type}{' PRIMARY KEY' if column.primary_key else ''}"
        for column in table.columns
    }
    # The zone's configuration belongs to what is asked: it decides the table's data nodes.
    return {**_table_properties(table, state), **columns, **zone}


def _describe_group(query: Describe, state: ClusterState) -> Rows:
    if query.name.full not in state.catalog.zones:
        raise _missing("table group", query.name, tuple(state.catalog.zones))
    tables = state.catalog.group(query.name.full)
    return Rows(
        columns=tuple(_TABLES),
        rows=tuple(tuple(_table_properties(table, state).values()) for table in tables),
    )


def _missing(kind: str, name: Name, there: tuple[str, ...]) -> NoSuchObject:
    message = f"there is no {kind} {'.'.join(name.parts)!r}; expected {', '.join(there) or 'none'}"
    return NoSuchObject(message, token=name.full, place=name.place, expected=there)


# -- system views


def _zones(state: ClusterState) -> list[Row]:
    zones = state.catalog.zones
    return [tuple(_zone_properties(zones[name]).values()) for name in sorted(zones)]


def _profiles(state: ClusterState) -> list[Row]:
    zones = state.catalog.zones
    return [(name, profile) for name in sorted(zones) for profile in zones[name].profiles]


def _tables(state: ClusterState) -> list[Row]:
    tables = state.catalog.tables
    return [tuple(_table_properties(tables[name], state).values()) for name in sorted(tables)]


def _data_nodes(state: ClusterState) -> list[Row]:
    held = state.data_nodes
    return [(table, node) for table in sorted(held) for node in held[table]]


def _assignments(state: ClusterState) -> list[Row]:
    return [
        (table, partition, kind, ",".join(kinds[kind]))
        for (table, partition), kinds in sorted(state.assignments.items())
        for kind in KINDS
        if kind in kinds
    ]


def _partition_states(state: ClusterState) -> list[Row]:
    there = {node.name for node in state.topology}
    return [
        (
            table,
            partition,
            word,
            generation,
            ",".join(n for n in state.assignments[table, partition]["stable"] if n in there),
        )
        for (table, partition), (word, generation) in sorted(state.standings.items())
    ]


def _logical_topology(state: ClusterState) -> list[Row]:
    return [
        (
            node.name,
            ",".join(n if v is None else f"{n}={text(v)}" for n, v in node.attributes.items()),
            ",".join(node.profiles),
            state.topology_revision,
        )
        for node in state.topology
    ]


def _physical_topology(state: ClusterState) -> list[Row]:
    return [(name,) for name in state.physical]


_ZONES = tuple(_zone_properties(Zone(id=0, name="")))
_TABLES = ("TABLE_NAME", "TABLE_ID", "PRIMARY_ZONE", "STORAGE_PROFILE", "DATA_NODES")
VIEWS: Mapping[str, tuple[tuple[str, ...], Callable[[ClusterState], list[Row]]]] = {
    "ZONES": (_ZONES, _zones),
    "ZONE_STORAGE_PROFILES": (("ZONE_NAME", "STORAGE_PROFILE"), _profiles),
    "TABLES": (_TABLES, _tables),
    "DATA_NODES": (("TABLE_NAME", "NODE_NAME"), _data_nodes),
    "ASSIGNMENTS": (("TABLE_NAME", "PARTITION_ID", "KIND", "NODES"), _assignments),
    "PARTITION_STATES": (
        ("TABLE_NAME", "PARTITION_ID", "STATE", "GENERATION", "NODES_LEFT"),
        _partition_states,
    ),
    "LOGICAL_TOPOLOGY": (
        ("NODE_NAME", "ATTRIBUTES", "STORAGE_PROFILES", "REVISION"),
        _logical_topology,
    ),
    "PHYSICAL_TOPOLOGY": (("NODE_NAME",), _physical_topology),
}


def _select(query: Select, state: ClusterState) -> Rows:
    there = tuple(f"{SCHEMA}.{name}" for name in VIEWS)
    if query.view.parts[:-1] != (SCHEMA,) or query.view.parts[-1] not in VIEWS:
        raise _missing("system view", query.view, there)
    columns, rows_of = VIEWS[query.view.parts[-1]]
    wanted = [_column(columns, name, query) for name in query.columns or columns]
    where = [(_column(columns, e.column, query), e.value) for e in query.where]
    rows = (row for row in rows_of(state) if all(row[at] == value for at, value in where))
    return Rows(
        columns=tuple(columns[at] for at in wanted),
        rows=tuple(tuple(row[at] for at in wanted) for row in rows),
    )


def _column(columns: tuple[str, ...], name: str, query: Select) -> int:
    if name not in columns:
        raise _missing("column", Name((SCHEMA, query.view.parts[-1], name), query.place), columns)
    return columns.index(name)
