"""Statements as values: what the grammar makes and the catalog applies."""

from __future__ import annotations

from typing import Literal

import msgspec

from clusters.reference.node.catalog.sql_errors import Place

SCHEMA = ("DEFAULT", "PUBLIC")  # database and schema of a name that says neither
START = Place(1, 1)


class Name(msgspec.Struct, frozen=True):
    """A name, qualified or not. Unquoted parts are in upper case, as SQL folds them."""

    parts: tuple[str, ...]
    place: Place = START

    @property
    def full(self) -> str:
        """The name with database and schema, less those that are the default: two names are of one
        object if these are equal.
        """
        missing = 3 - len(self.parts)
        parts = (*SCHEMA[:missing], *self.parts)
        return ".".join(parts if parts[:2] != SCHEMA else parts[2:])


class Option(msgspec.Struct, frozen=True):
    """``NAME = value``. A number may be negative here; a name as a value stands for itself."""

    name: str
    value: int | str | Name
    text: str
    place: Place
    value_place: Place


class Column(msgspec.Struct, frozen=True):
    """A column of a table; ``type`` with its length, as it was written."""

    name: str
    type: str
    primary_key: bool = False


class CreateZone(msgspec.Struct, frozen=True, kw_only=True, tag="create-zone"):
    """CREATE ZONE."""

    name: Name
    if_not_exists: bool = False
    options: tuple[Option, ...] = ()


class AlterZone(msgspec.Struct, frozen=True, kw_only=True, tag="alter-zone"):
    """ALTER ZONE; WITH and SET mean the same."""

    name: Name
    if_exists: bool = False
    options: tuple[Option, ...] = ()


class DropZone(msgspec.Struct, frozen=True, kw_only=True, tag="drop-zone"):
    """DROP ZONE."""

    name: Name
    if_exists: bool = False


class CreateTable(msgspec.Struct, frozen=True, kw_only=True, tag="create-table"):
    """CREATE TABLE ... WITH PRIMARY_ZONE = zone."""

    name: Name
    if_not_exists: bool = False
    columns: tuple[Column, ...] = ()
    options: tuple[Option, ...] = ()


class AlterTable(msgspec.Struct, frozen=True, kw_only=True, tag="alter-table"):
    """ALTER TABLE; WITH and SET mean the same."""

    name: Name
    if_exists: bool = False
    options: tuple[Option, ...] = ()


class DropTable(msgspec.Struct, frozen=True, kw_only=True, tag="drop-table"):
    """DROP TABLE."""

    name: Name
    if_exists: bool = False


class AlterTableGroup(msgspec.Struct, frozen=True, kw_only=True, tag="alter-table-group"):
    """ALTER TABLE GROUP: ALTER ZONE of the zone that the group is named after."""

    name: Name
    if_exists: bool = False
    options: tuple[Option, ...] = ()


class Describe(msgspec.Struct, frozen=True, kw_only=True, tag="describe"):
    """DESCRIBE ZONE, TABLE or TABLE GROUP."""

    kind: Literal["ZONE", "TABLE", "TABLE GROUP"]
    name: Name


class Equal(msgspec.Struct, frozen=True):
    """``column = value`` of a WHERE."""

    column: str
    value: int | str
    place: Place


class Select(msgspec.Struct, frozen=True, kw_only=True, tag="select"):
    """SELECT from a system view; no ``columns``: all of them. All of ``where`` must hold."""

    view: Name
    columns: tuple[str, ...] = ()
    where: tuple[Equal, ...] = ()
    place: Place = START


class ResetPartitions(msgspec.Struct, frozen=True, kw_only=True, tag="reset-partitions"):
    """RESET PARTITIONS (...) OF ZONE or TABLE: let partitions that have lost their majority go on
    without it. No ``numbers``: all that have lost it.
    """

    kind: Literal["ZONE", "TABLE"]
    name: Name
    numbers: tuple[int, ...] = ()


class RestartPartitions(msgspec.Struct, frozen=True, kw_only=True, tag="restart-partitions"):
    """RESTART PARTITIONS (...) OF ZONE or TABLE ON ... WITH CLEANUP: stop replicas and start them
    again from their disks, or with ``cleanup`` without what is on them. No ``numbers``: all; no
    ``nodes``: on all that hold them, and a cleanup has exactly one.
    """

    kind: Literal["ZONE", "TABLE"]
    name: Name
    numbers: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()
    cleanup: bool = False


Ddl = CreateZone | AlterZone | DropZone | CreateTable | AlterTable | DropTable | AlterTableGroup
Query = Describe | Select
Recovery = ResetPartitions | RestartPartitions
Statement = Ddl | Query | Recovery
