"""The catalog: the zones and tables of a cluster, as one immutable value.

A statement makes another catalog of it or is refused, with no effect. The catalog is stored under
one key of metastorage and replaced by compare-and-set, so that of two statements at once one sees
what the other did.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from clusters.reference.node.catalog import options as zone_options
from clusters.reference.node.catalog.options import AFFINITY_FUNCTIONS, Zone
from clusters.reference.node.catalog.sql_errors import (
    NoSuchObject,
    NotAlterable,
    ObjectExists,
    OptionValue,
    PartitionsDiffer,
    RepeatedOption,
    SqlError,
    ZoneInUse,
)
from clusters.reference.node.catalog.statements import (
    AlterTable,
    AlterTableGroup,
    AlterZone,
    Column,
    CreateTable,
    CreateZone,
    Ddl,
    DropTable,
    DropZone,
    Name,
    Option,
)
from clusters.reference.node.config import MAX_PARTITIONS
from clusters.reference.node.metastorage.metastorage import (
    Invoke,
    Operation,
    Versioned,
    unchanged,
)

KEY = "catalog"
PRIMARY_ZONE = "PRIMARY_ZONE"
STORAGE_PROFILE = "STORAGE_PROFILE"
TABLE_OPTIONS = (PRIMARY_ZONE, STORAGE_PROFILE)
TYPES = ("INT", "INTEGER", "BIGINT", "VARCHAR", "VARBINARY")
MAX_ZONES = 256
MAX_TABLES = 1024
MAX_COLUMNS = 64
COLUMNS = (Column("KEY", "VARBINARY", True), Column("VALUE", "VARBINARY"))
replace = msgspec.structs.replace
Kind = TypeVar("Kind", "Zone", "Table")


class Table(msgspec.Struct, frozen=True, kw_only=True):
    """A table: ``zone`` is the full name of its primary zone (the seed's primaryDistributionZone),
    ``profile`` the storage profile that its nodes need. Its partitions have flat numbers in the
    cluster, from ``base`` on, which are never given again: what is left of a dropped table's
    partition is never another's.
    """

    id: int
    name: str
    zone: str
    profile: str
    base: int = 0
    columns: tuple[Column, ...] = COLUMNS


class Catalog(msgspec.Struct, frozen=True, kw_only=True):
    """All zones and tables by their full names. ``version`` counts the statements that changed
    something; ``next_id`` is the next zone's or table's, ``next_number`` the next partition's.
    """

    version: int = 0
    next_id: int = 1
    next_number: int = 0
    zones: dict[str, Zone] = {}
    tables: dict[str, Table] = {}

    def zone(self, name: Name) -> Zone:
        """The zone of that name. Raises ``NoSuchObject``."""
        return _found(self.zones, name, "zone")

    def table(self, name: Name) -> Table:
        """The table of that name. Raises ``NoSuchObject``."""
        return _found(self.tables, name, "table")

    def group(self, zone: str) -> tuple[Table, ...]:
        """The table group of a zone: all its tables, by name."""
        return tuple(
            self.tables[name] for name in sorted(self.tables) if self.tables[name].zone == zone
        )

    def partitions(self, table: Table) -> int:
        """How many partitions ``table``, one of this catalog, has."""
        return self.zones[table.zone].partitions

    def apply(self, statement: Ddl, *, affinities: Sequence[str] = AFFINITY_FUNCTIONS) -> Catalog:
        """The catalog after ``statement``: this very one if the statement changes nothing, as with
        IF [NOT] EXISTS. ``affinities``: the names of the affinity functions there are. Raises
        ``SqlError``.
        """
        match statement:
            case CreateZone():
                return self._create_zone(statement, affinities)
            case AlterZone() | AlterTableGroup():
                return self._alter_zone(statement, affinities)
            case DropZone():
                return self._drop_zone(statement)
            case CreateTable():
                return self._create_table(statement)
            case AlterTable():
                return self._alter_table(statement)
            case DropTable():
                return self._drop_table(statement)

    def _next(self, **changes: dict[str, Zone] | dict[str, Table] | int) -> Catalog:
        return replace(self, version=self.version + 1, **changes)

    # -- zones

    def _create_zone(self, statement: CreateZone, affinities: Sequence[str]) -> Catalog:
        values = zone_options.values_of(statement.options, affinities)
        name = statement.name.full
        if name in self.zones:
            return self._exists(statement.name, "zone", statement.if_not_exists)
        if len(self.zones) >= MAX_ZONES:
            raise SqlError(f"a cluster has at most {MAX_ZONES} zones")
        zone = zone_options.created(Zone(id=self.next_id, name=name), values)
        return self._next(next_id=self.next_id + 1, zones={**self.zones, name: zone})

    def _alter_zone(
        self, statement: AlterZone | AlterTableGroup, affinities: Sequence[str]
    ) -> Catalog:
        values = zone_options.values_of(statement.options, affinities)
        if statement.if_exists and statement.name.full not in self.zones:
            return self
        kind = "zone" if isinstance(statement, AlterZone) else "table group"
        before = _found(self.zones, statement.name, kind)
        after = zone_options.altered(before, statement.options, values)
        return self if after == before else self._next(zones={**self.zones, before.name: after})

    def _drop_zone(self, statement: DropZone) -> Catalog:
        name = statement.name.full
        if statement.if_exists and name not in self.zones:
            return self
        zone = self.zone(statement.name)
        if tables := self.group(zone.name):
            inside = ", ".join(table.name for table in tables)
            message = f"zone {name!r} can't be dropped, it is the primary zone of {inside}"
            raise ZoneInUse(message, token=name, place=statement.name.place)
        return self._next(zones=_without(self.zones, name))

    # -- tables

    def _create_table(self, statement: CreateTable) -> Catalog:
        found = _table_options(statement.options)
        columns = _columns(statement)
        name = statement.name.full
        if name in self.tables:
            return self._exists(statement.name, "table", statement.if_not_exists)
        if len(self.tables) >= MAX_TABLES:
            raise SqlError(f"a cluster has at most {MAX_TABLES} tables")
        zone = self._primary_zone(statement, found)
        there = sum(map(self.partitions, self.tables.values()))
        if there + zone.partitions > MAX_PARTITIONS:
            raise SqlError(
                f"a cluster has at most {MAX_PARTITIONS} partitions: its tables have {there}, "
                f"zone {zone.name!r} asks for {zone.partitions} more"
            )
        table = Table(
            id=self.next_id,
            name=name,
            zone=zone.name,
            profile=_profile(zone, found.get(STORAGE_PROFILE)),
            base=self.next_number,
            columns=columns,
        )
        return self._next(
            next_id=self.next_id + 1,
            next_number=self.next_number + zone.partitions,
            tables={**self.tables, name: table},
        )

    def _primary_zone(self, statement: CreateTable, found: Mapping[str, Option]) -> Zone:
        if PRIMARY_ZONE not in found:
            raise OptionValue(
                f"table {statement.name.full!r} needs a {PRIMARY_ZONE}",
                token=statement.name.full,
                place=statement.name.place,
                expected=(PRIMARY_ZONE,),
            )
        return self._named_zone(found[PRIMARY_ZONE])

    def _named_zone(self, option: Option) -> Zone:
        if isinstance(option.value, int):
            raise OptionValue(
                f"{PRIMARY_ZONE} must be the name of a zone (got {option.text})",
                token=option.text,
                place=option.value_place,
                expected=("a name",),
            )
        name = option.value
        if isinstance(name, str):  # Ignite writes the name in quotes
            name = Name((name.upper(),), option.value_place)
        return self.zone(name)

    def _alter_table(self, statement: AlterTable) -> Catalog:
        found = self._checked_alter(statement)
        if statement.if_exists and statement.name.full not in self.tables:
            return self
        table = self.table(statement.name)
        before, after = self.zones[table.zone], self._named_zone(found[PRIMARY_ZONE])
        option = found[PRIMARY_ZONE]
        if before.partitions != after.partitions:
            raise PartitionsDiffer(
                f"table {table.name!r} has {before.partitions} partitions, zone {after.name!r} "
                f"has {after.partitions}",
                token=option.text,
                place=option.value_place,
            )
        if table.profile not in after.profiles:
            raise _no_profile(after, table.profile, option)
        if before == after:
            return self
        return self._next(tables={**self.tables, table.name: replace(table, zone=after.name)})

    def _checked_alter(self, statement: AlterTable) -> dict[str, Option]:
        table = self.tables.get(statement.name.full)
        for option in statement.options:
            if option.name in zone_options.ALL:
                zone = "its primary zone" if table is None else f"zone {table.zone!r}"
                message = f"{option.name} is an option of {zone}: ALTER ZONE"
                raise NotAlterable(message, token=option.name, place=option.place)
        found = _table_options(statement.options)
        if STORAGE_PROFILE in found:
            option = found[STORAGE_PROFILE]
            message = f"table {statement.name.full!r}: {STORAGE_PROFILE} can't be altered"
            raise NotAlterable(
                message, token=option.name, place=option.place, expected=(PRIMARY_ZONE,)
            )
        return found

    def _drop_table(self, statement: DropTable) -> Catalog:
        name = statement.name.full
        if statement.if_exists and name not in self.tables:
            return self
        self.table(statement.name)
        return self._next(tables=_without(self.tables, name))

    def _exists(self, name: Name, kind: str, if_not_exists: bool) -> Catalog:
        if if_not_exists:
            return self
        message = f"{kind} {name.full!r} exists already"
        raise ObjectExists(message, token=name.full, place=name.place)


def read(view: Callable[[str], Versioned | None]) -> Catalog:
    """The catalog in metastorage, whose ``get`` is ``view``."""
    held = view(KEY)
    return Catalog() if held is None else decode(held.value)


def decode(value: bytes) -> Catalog:
    """The catalog from the value of its key."""
    return msgspec.json.decode(value, type=Catalog)


def written(view: Callable[[str], Versioned | None], after: Catalog) -> Invoke:
    """The invoke that puts ``after`` in place of the catalog in ``view``, unless that has changed
    since: then the statement must be applied to what is there now.
    """
    return Invoke((unchanged(KEY, view(KEY)),), (Operation(KEY, msgspec.json.encode(after)),))


def _found(objects: Mapping[str, Kind], name: Name, kind: str) -> Kind:
    if name.full not in objects:
        message = f"there is no {kind} {name.full!r}"
        raise NoSuchObject(message, token=name.full, place=name.place, expected=tuple(objects))
    return objects[name.full]


def _without(objects: Mapping[str, Kind], name: str) -> dict[str, Kind]:
    return {other: value for other, value in objects.items() if other != name}


def _table_options(options: Sequence[Option]) -> dict[str, Option]:
    found: dict[str, Option] = {}
    for option in options:
        if option.name not in TABLE_OPTIONS:
            raise zone_options.unknown(option, TABLE_OPTIONS, "a table")
        if option.name in found:
            message = f"{option.name} is set twice"
            raise RepeatedOption(message, token=option.name, place=option.place)
        found[option.name] = option
    return found


def _profile(zone: Zone, option: Option | None) -> str:
    if option is None:
        return zone.profiles[0]
    wanted = option.value
    if isinstance(wanted, Name):
        wanted = ".".join(wanted.parts).lower()
    if wanted not in zone.profiles:
        raise _no_profile(zone, str(wanted), option)
    return str(wanted)


def _no_profile(zone: Zone, profile: str, option: Option) -> OptionValue:
    return OptionValue(
        f"zone {zone.name!r} has no storage profile {profile!r}; expected one of "
        f"{', '.join(zone.profiles)}",
        token=option.text,
        place=option.value_place,
        expected=zone.profiles,
    )


def _columns(statement: CreateTable) -> tuple[Column, ...]:
    if not statement.columns:
        return COLUMNS
    names = [column.name for column in statement.columns]
    problem = ""
    if len(set(names)) < len(names):
        problem = "has a column twice"
    elif len(names) > MAX_COLUMNS:
        problem = f"has at most {MAX_COLUMNS} columns (got {len(names)})"
    elif sum(column.primary_key for column in statement.columns) != 1:
        problem = "needs one column that is its PRIMARY KEY"
    for column in statement.columns:
        if column.type.partition("(")[0] not in TYPES:
            problem = f"column {column.name!r} must be of {', '.join(TYPES)} (got {column.type})"
    if problem:
        at = statement.name
        raise OptionValue(f"table {at.full!r} {problem}", token=at.full, place=at.place)
    return statement.columns
