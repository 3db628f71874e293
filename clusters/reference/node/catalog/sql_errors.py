"""What is wrong with a statement: an exception class for each reason, all with their place."""

from __future__ import annotations

import msgspec


class Place(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Where a token begins: line and column, both from 1."""

    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


class SqlError(Exception):
    """A statement that is not carried out. ``token``: the text that is wrong, as it was written;
    ``place``: where it begins; ``expected``: what could have stood there. All are empty where the
    statement is right and the catalog is not as it needs.
    """

    def __init__(
        self,
        message: str,
        *,
        token: str = "",
        place: Place | None = None,
        expected: tuple[str, ...] = (),
    ) -> None:
        super().__init__(f"{place}: {message}" if place else message)
        self.token, self.place, self.expected = token, place, expected


class SqlSyntaxError(SqlError):
    """The text is no statement."""


class ManualDataNodes(SqlError):
    """APPLY, which the seed reserves for data nodes that are set by hand."""


class UnknownOption(SqlError):
    """An option that its object does not have."""


class RepeatedOption(SqlError):
    """An option that is set twice in one statement."""


class OptionValue(SqlError):
    """A value that its option can't have."""


class IncompatibleOptions(SqlError):
    """Options of which the compatibility matrix allows one or the other."""


class NotAlterable(SqlError):
    """An option that is fixed when its object is created, or is another object's."""


class FilterError(SqlError):
    """A text that is no filter, or one that costs too much."""


class ObjectExists(SqlError):
    """CREATE of what there is."""


class NoSuchObject(SqlError):
    """A zone, table, table group, view or column that there is not."""


class ZoneInUse(SqlError):
    """DROP of a zone that tables are in."""


class PartitionsDiffer(SqlError):
    """Another PRIMARY_ZONE with another number of partitions."""
