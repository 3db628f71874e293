"""What a plan asks of distribution zones: its options, checked, and what each node is told."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, Protocol

import attrs

from clusters.reference.node.availability.majority import Standing
from clusters.reference.node.catalog.catalog import PRIMARY_ZONE, Catalog
from clusters.reference.node.catalog.filters import filtered
from clusters.reference.node.catalog.grammar import parse
from clusters.reference.node.catalog.nodes import DEFAULT_PROFILE, AttributeValue, Node, text
from clusters.reference.node.catalog.options import (
    AFFINITY,
    AFFINITY_FUNCTIONS,
    FILTER,
    HIGHLY_AVAILABLE,
    JOINT,
    MODE,
    PARTITIONS,
    REPLICAS,
    RESET_TIMEOUT,
    SCALE_DOWN,
    SCALE_UP,
    STRONG,
    Joint,
    seconds,
    values_of,
)
from clusters.reference.node.catalog.sql_errors import SqlError
from clusters.reference.node.catalog.statements import (
    AlterTable,
    AlterTableGroup,
    AlterZone,
    Describe,
    ResetPartitions,
    RestartPartitions,
    Select,
)
from clusters.reference.node.config import (
    DEFAULT_DETECTION_S,
    Attributes,
    Rebalance,
    Zoned,
)
from clusters.reference.node.placement.partitioning import partition_of
from clusters.reference.node.zones.affinity import assigned
from clusters.reference.node.zones.data_nodes import of_profile
from harness.errors import PlanError
from harness.protocols.promise import Affinity

USUAL_SYSTEM_NODES = 3
TABLE, ZONE = "ITEMS", "DRILL"
KEYS = (
    *("system_nodes", "system_apart", "attributes", "profiles"),
    *("detection_s", "rebalance", "ddl", "mode", "reset_timeout_s", "phase2"),
)
Mode = Literal["SC", "HA"]
MODES: Mapping[Mode, str] = {"SC": STRONG, "HA": HIGHLY_AVAILABLE}
DROPPED = 1 << 20  # beyond it are the numbers of tables that ``ddl`` makes and drops
JOINED = "SELECT NODE_NAME FROM SYSTEM.LOGICAL_TOPOLOGY"


class Options(Protocol):
    """Those of ``options.Options`` that are about zones."""

    @property
    def partitions(self) -> int: ...
    @property
    def replicas(self) -> int: ...
    @property
    def system_nodes(self) -> int | None: ...
    @property
    def system_apart(self) -> bool: ...
    @property
    def attributes(self) -> Mapping[str, Attributes | list[str]]: ...
    @property
    def profiles(self) -> Mapping[str, tuple[str, ...]]: ...
    @property
    def detection_s(self) -> float | None: ...
    @property
    def rebalance(self) -> Rebalance | None: ...
    @property
    def ddl(self) -> tuple[str, ...] | None: ...
    @property
    def mode(self) -> Mode | None: ...
    @property
    def reset_timeout_s(self) -> int | None: ...
    @property
    def phase2(self) -> bool: ...


Cell = int | str | None
# Read in this order: what is read later is as new as what it is compared with, or newer.
VIEWS = {
    "PARTITION_STATES": "SELECT * FROM SYSTEM.PARTITION_STATES",
    "ZONES": "SELECT * FROM SYSTEM.ZONES",
    "LOGICAL_TOPOLOGY": "SELECT * FROM SYSTEM.LOGICAL_TOPOLOGY",
    "TABLES": "SELECT * FROM SYSTEM.TABLES",
    "ASSIGNMENTS": "SELECT * FROM SYSTEM.ASSIGNMENTS",
}
Recovery = ResetPartitions | RestartPartitions
Alteration = AlterZone | AlterTableGroup | AlterTable | Recovery
WAITS = (JOINT, SCALE_UP, SCALE_DOWN)
OFF = seconds(None)
NOT_WHOLE = (Standing.MINORITY.name, Standing.LOST.name)


@attrs.frozen
class Table:
    """The answer to a query."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def named(self) -> list[dict[str, Cell]]:
        """Each row, by the names of columns."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.rows]

    def of(self, column: str) -> dict[Cell, dict[str, Cell]]:
        """The rows by what they have in ``column``."""
        return {row[column]: row for row in self.named()}


@attrs.frozen(kw_only=True)
class PlanTable:
    """A table that a plan's ``ddl`` leaves. Of its ``count`` partitions the first has the number
    ``flat`` in the run, and ``base`` in the store.
    """

    name: str
    flat: int
    base: int
    count: int


@attrs.frozen(kw_only=True)
class Zones:
    """``tables``: those that keys are spread over, in the order of their flat numbers; ``given``:
    how many numbers the store has given to partitions once ``ddl`` is carried out.
    """

    system_nodes: tuple[str, ...]
    ddl: tuple[str, ...]
    tables: tuple[PlanTable, ...]
    given: int
    attributes: Mapping[str, Attributes]
    profiles: Mapping[str, tuple[str, ...]]
    detection_s: float
    rebalance: Rebalance
    affinities: tuple[Affinity, ...]
    mode: Mode
    phase2: bool

    @property
    def partitions(self) -> int:
        """How many partitions the tables have together."""
        return sum(table.count for table in self.tables)

    def table_of(self, key: bytes) -> PlanTable:
        """The table of ``key``: each has as many keys as it has of the partitions."""
        if len(self.tables) == 1:
            return self.tables[0]
        at = partition_of(key, self.partitions)
        place = bisect_right(self.tables, at, key=lambda table: table.flat)
        return self.tables[place - 1]

    def partition_of(self, key: bytes) -> int:
        """The flat number of the partition of ``key``."""
        table = self.table_of(key)
        return table.flat + partition_of(key, table.count)

    def flat(self, number: int | None) -> int | None:
        """The number in the run of the store's partition ``number``. A table that the plan dropped,
        or that it does not make, has numbers of its own.
        """
        if number is None or number >= self.given:
            return number
        for table in self.tables:
            if table.base <= number < table.base + table.count:
                return table.flat + number - table.base
        return DROPPED + number

    def node(self, name: str) -> Node:
        """The node ``name`` as filters see it."""
        zoned = self.of(name)
        return Node(name=name, attributes=zoned.attributes, profiles=zoned.profiles)

    def announcing(self, name: str, attributes: Attributes) -> Node:
        """The node ``name`` as filters see it, with ``attributes`` in place of the plan's."""
        return Node(name=name, attributes=attributes, profiles=self.of(name).profiles)

    def of(self, node: str, attributes: Attributes | None = None) -> Zoned:
        """What ``node`` is told; ``attributes`` take the place of the plan's."""
        given = self.attributes.get(node, {}) if attributes is None else attributes
        return Zoned(
            system_nodes=self.system_nodes,
            attributes=given,
            profiles=self.profiles.get(node, (DEFAULT_PROFILE,)),
            detection_s=self.detection_s,
            rebalance=self.rebalance,
            phase2=self.phase2,
        )


def zones_of(
    options: Options,
    given: Mapping[str, object],
    nodes: tuple[str, ...],
    spares: tuple[str, ...] = (),
) -> Zones | None:
    """What ``options`` ask for, ``None`` where the plan, which has ``given``, names none of
    ``KEYS``. Raises ``PlanError``.
    """
    if not any(key in given for key in KEYS):
        return None
    count = options.system_nodes or min(USUAL_SYSTEM_NODES, len(nodes))
    if count > len(nodes):
        limits = f"expected 1 to {len(nodes)}, which is cluster.nodes (got {count})"
        raise PlanError("system.system_nodes", limits)
    system_nodes = nodes[:count]
    for key, named in (("attributes", options.attributes), ("profiles", options.profiles)):
        for name in named:
            if name not in (*nodes, *spares):
                known = ", ".join((*nodes, *spares))
                raise PlanError(f"system.{key}", f"expected nodes among {known} (got {name!r})")
    profiles = dict(options.profiles)
    if options.system_apart:
        # Without a profile no table of any zone has them among its data nodes.
        profiles.update(dict.fromkeys(system_nodes, ()))
    ddl = _ddl(options, given, sum(profiles.get(name) != () for name in nodes))
    catalog = _catalog(ddl)
    return Zones(
        system_nodes=system_nodes,
        ddl=ddl,
        tables=_tables(catalog),
        given=catalog.next_number,
        attributes={
            name: dict.fromkeys(said) if isinstance(said, list) else said
            for name, said in options.attributes.items()
        },
        profiles=profiles,
        detection_s=options.detection_s or DEFAULT_DETECTION_S,
        rebalance=options.rebalance or "base",
        affinities=_affinities(catalog, profiles, (*nodes, *spares)),
        phase2=options.phase2,
        mode="HA" if any(z.highly_available for z in catalog.zones.values()) else "SC",
    )


def partitions_of(ddl: Iterable[str]) -> int:
    """How many partitions the tables that ``ddl`` leaves have together. Raises ``PlanError``."""
    return sum(table.count for table in _tables(_catalog(tuple(ddl))))


def alteration(zones: Zones, text: str) -> Alteration:
    """The statement in ``text``, which alters a zone of ``zones``, or the zone of a table, or
    recovers its partitions. Raises ``SqlError``, and ``ValueError`` for a statement of another
    kind.
    """
    statement = parse(text)
    catalog = _catalog(zones.ddl)
    if isinstance(statement, ResetPartitions | RestartPartitions):
        _recovered(statement, catalog)
        return statement
    if not isinstance(statement, AlterZone | AlterTableGroup | AlterTable):
        expected = "ALTER ZONE, ALTER TABLE GROUP, ALTER TABLE, RESET or RESTART PARTITIONS"
        raise ValueError(f"expected {expected} (got {text[:40]!r})")
    catalog.apply(statement)
    return statement


def _recovered(statement: Recovery, catalog: Catalog) -> frozenset[str]:
    """The names of the tables whose partitions ``statement`` recovers. Raises ``SqlError``."""
    if statement.kind == "TABLE":
        return frozenset({catalog.table(statement.name).name})
    return frozenset(table.name for table in catalog.group(catalog.zone(statement.name).name))


def differing(zones: Zones, statement: Alteration, views: Mapping[str, Table]) -> list[str]:
    """What ``views``, ZONES, TABLES and PARTITION_STATES among them, have otherwise than
    ``statement`` says. A restart leaves no trace in them.
    """
    if isinstance(statement, RestartPartitions):
        return []
    if isinstance(statement, ResetPartitions):
        tables = _recovered(statement, _catalog(zones.ddl))
        return [
            f"partition {row['PARTITION_ID']} of {row['TABLE_NAME']} has {row['STATE']}"
            for row in views["PARTITION_STATES"].named()
            if row["TABLE_NAME"] in tables
            and row["STATE"] in (NOT_WHOLE if statement.numbers else NOT_WHOLE[:1])
            and row["PARTITION_ID"] in (statement.numbers or (row["PARTITION_ID"],))
        ]
    if isinstance(statement, AlterTable):
        return _differing_table(statement, views["TABLES"])
    zone = statement.name.full
    row = views["ZONES"].of("ZONE_NAME").get(zone)
    if row is None:
        return [f"there is no zone {zone}"]
    wanted = {
        name: seconds(value) if name in WAITS else value
        for name, value in values_of(statement.options, AFFINITY_FUNCTIONS).items()
    }
    return [
        f"zone {zone}: {name} is {row[name]}, not {value}"
        for name, value in wanted.items()
        if row[name] != value
    ]


def _differing_table(statement: AlterTable, found: Table) -> list[str]:
    name = statement.name.full
    row = found.of("TABLE_NAME").get(name)
    if row is None:
        return [f"there is no table {name}"]
    # Ignite writes the name in quotes, which its value has not.
    given = [o.value if isinstance(o.value, str) else o.text for o in statement.options]
    told = row[PRIMARY_ZONE]
    return [
        f"table {name}: {PRIMARY_ZONE} is {told}, not {zone.upper()}"
        for zone in given
        if zone.upper() != told
    ]


def unplaced(zones: Zones, views: Mapping[str, Table]) -> list[str]:
    """Which partitions are not where ``views``, all of ``VIEWS`` by name, want them, or are on
    their way.
    """
    joined = _joined(zones, views)
    configured = views["ZONES"].of("ZONE_NAME")
    found: list[str] = []
    aims: dict[tuple[Cell, int], str] = {}
    for table, row in views["TABLES"].of("TABLE_NAME").items():
        zone = configured.get(row["PRIMARY_ZONE"])
        if zone is None:
            found.append(f"table {table}: its zone is not told")
            continue
        nodes = str(row["DATA_NODES"] or "").split(",") if row["DATA_NODES"] else []
        found += _unswitched(table, row, zone, nodes, joined)
        targets = assigned(
            function=str(zone[AFFINITY]),
            partitions=int(str(zone[PARTITIONS])),
            replicas=int(str(zone[REPLICAS])),
            nodes=nodes,
        )
        # Without data nodes there is nowhere to go, and each partition stays where it is.
        aims |= {(table, p): ",".join(target) for p, target in enumerate(targets) if target}
    stable: dict[tuple[Cell, int], str] = {}
    for line in views["ASSIGNMENTS"].named():
        here = (line["TABLE_NAME"], int(str(line["PARTITION_ID"])))
        if line["KIND"] == "stable":
            stable[here] = str(line["NODES"])
        else:
            found.append(f"{_said(here)}: {line['KIND']} is {line['NODES']}")
    for here, target in aims.items():
        if stable.get(here) != target:
            found.append(f"{_said(here)}: stable is {stable.get(here)}, not {target}")
    return found


def unsettled(zones: Zones, views: Mapping[str, Table], nodes: Sequence[str]) -> list[str]:
    """``unplaced``, and for which of ``nodes`` timers of zones still run: a node that has joined is
    to be among the data nodes of what it passes the filter of, one that has left among none.
    """
    joined = _joined(zones, views)
    configured = views["ZONES"].of("ZONE_NAME")
    found: list[str] = []
    for table, row in views["TABLES"].of("TABLE_NAME").items():
        zone = configured.get(row["PRIMARY_ZONE"])
        if zone is None:
            continue  # ``unplaced`` names it
        there = str(row["DATA_NODES"] or "").split(",")
        able = _able(row, zone, joined)
        up, down = _waits(zone)
        late = sorted(able & set(nodes) - set(there)) if up != OFF else []
        gone = sorted(set(nodes) & set(there) - able) if down != OFF else []
        found += [f"table {table}: {name} waits to be among its data nodes" for name in late]
        found += [f"table {table}: {name} waits to be out of its data nodes" for name in gone]
    return found + unplaced(zones, views)


def keeping(zones: Zones) -> str:
    """Why a table's data stays assigned to a node that has left; empty where all of it moves."""
    catalog = _catalog(zones.ddl)
    for table in catalog.tables.values():
        zone = catalog.zones[table.zone]
        wait = zone.waits.wait_s if isinstance(zone.waits, Joint) else zone.waits.down_s
        if seconds(wait) == OFF:
            return f"zone {zone.name} keeps nodes that are gone: {SCALE_DOWN} is {OFF}"
    return ""


def announced(topology: Table) -> dict[str, str]:
    """The attributes that each node in ``topology``, the rows of LOGICAL_TOPOLOGY, has announced,
    as the view has them.
    """
    return {str(row["NODE_NAME"]): str(row.get("ATTRIBUTES") or "") for row in topology.named()}


def attributes_text(attributes: Attributes) -> str:
    """``attributes`` as LOGICAL_TOPOLOGY has them."""
    return ",".join(n if v is None else f"{n}={text(v)}" for n, v in attributes.items())


def _joined(zones: Zones, views: Mapping[str, Table]) -> list[Node]:
    """The nodes in the logical topology as filters see them."""
    found = []
    for name, told in announced(views["LOGICAL_TOPOLOGY"]).items():
        planned = zones.of(name).attributes
        # The view's text names no types: those of the plan are known.
        same = attributes_text(planned) == told
        found.append(zones.announcing(name, planned if same else _attributes(told)))
    return found


def _attributes(told: str) -> Attributes:
    """The attributes in a text of LOGICAL_TOPOLOGY."""
    found: Attributes = {}
    for pair in filter(None, told.split(",")):
        name, equals, value = pair.partition("=")
        found[name] = _value(value) if equals else None
    return found


def _value(told: str) -> AttributeValue:
    if told in ("true", "false"):
        return told == "true"
    for kind in (int, float):
        try:
            return kind(told)
        except ValueError:
            continue
    return told


def _able(
    row: Mapping[str, Cell], zone: Mapping[str, Cell], joined: Sequence[Node]
) -> frozenset[str]:
    """The nodes among ``joined`` that may be data nodes of the table of ``row``."""
    passing = {node.name for node in filtered(str(zone[FILTER]), joined)}
    profiled = {node.name for node in of_profile(joined, str(row["STORAGE_PROFILE"]))}
    return frozenset(passing & profiled)


def _waits(zone: Mapping[str, Cell]) -> tuple[Cell, Cell]:
    """What a join and a leave wait for, as the view has it."""
    joint = zone[JOINT]
    return (zone[SCALE_UP], zone[SCALE_DOWN]) if joint is None else (joint, joint)


def _unswitched(
    table: Cell,
    row: Mapping[str, Cell],
    zone: Mapping[str, Cell],
    nodes: Sequence[str],
    joined: Sequence[Node],
) -> list[str]:
    """Why the data nodes of ``table`` can't be those that its zone has come to: one does not pass
    the filter, or one is left out that nothing waits for.
    """
    passing = {node.name for node in filtered(str(zone[FILTER]), joined)}
    there = {node.name for node in joined}
    able = _able(row, zone, joined)
    late = sorted(able - set(nodes)) if zone[SCALE_UP] == seconds(0) else []
    wrong = sorted((set(nodes) & there) - passing)
    told = [f"{name} is not yet among its data nodes" for name in late]
    told += [f"{name} is still among its data nodes" for name in wrong]
    return [f"table {table}: {text}" for text in told]


def _said(partition: tuple[Cell, int]) -> str:
    return f"partition {partition[1]} of {partition[0]}"


def _ddl(options: Options, given: Mapping[str, object], holders: int) -> tuple[str, ...]:
    if options.ddl is not None:
        for key in ("partitions", "replicas", "mode", "reset_timeout_s"):
            if key in given:
                raise PlanError(f"system.{key}", "expected none, since system.ddl says it")
        return options.ddl
    if not options.replicas <= holders:
        limits = f"expected 1 to {holders}, the nodes that hold data (got {options.replicas})"
        raise PlanError("system.replicas", limits)
    modes = ""
    if options.mode is not None:
        modes += f", {MODE} = {MODES[options.mode]}"
    if options.reset_timeout_s is not None:
        modes += f", {RESET_TIMEOUT} = {options.reset_timeout_s}"
    return (
        f"CREATE ZONE {ZONE} WITH PARTITIONS = {options.partitions}, REPLICAS = {options.replicas}"
        f"{modes}",
        f"CREATE TABLE {TABLE} WITH PRIMARY_ZONE = {ZONE}",
    )


def _catalog(ddl: Sequence[str]) -> Catalog:
    """What ``ddl`` makes of an empty catalog."""
    catalog = Catalog()
    for number, told in enumerate(ddl, 1):
        try:
            statement = parse(told)
            if isinstance(statement, Describe | Select | ResetPartitions | RestartPartitions):
                raise PlanError("system.ddl", f"statement {number}: expected CREATE, ALTER or DROP")
            catalog = catalog.apply(statement)
        except SqlError as error:
            raise PlanError("system.ddl", f"statement {number}: {error}") from error
    if not catalog.tables:
        raise PlanError("system.ddl", "expected a table at least (got none)")
    return catalog


def _affinities(
    catalog: Catalog, profiles: Mapping[str, tuple[str, ...]], machines: Sequence[str]
) -> tuple[Affinity, ...]:
    """Where the partitions of each table are to be; nodes without its profile hold none."""
    return tuple(
        Affinity(
            table=name,
            function=catalog.zones[table.zone].affinity,
            barred=tuple(
                node
                for node in machines
                if table.profile not in profiles.get(node, (DEFAULT_PROFILE,))
            ),
        )
        for name, table in sorted(catalog.tables.items())
    )


def _tables(catalog: Catalog) -> tuple[PlanTable, ...]:
    found: list[PlanTable] = []
    flat = 0
    for table in sorted(catalog.tables.values(), key=lambda table: table.id):
        count = catalog.partitions(table)
        found.append(PlanTable(name=table.name, flat=flat, base=table.base, count=count))
        flat += count
    return tuple(found)
