"""Nested data of a verdict as flat grids that a page can show, for data of any checker.

A verdict may hold megabytes of anything. What is drawn of it is bounded, and so is what is looked
at: a grid shows its first rows and columns and counts the rest, a cell its first characters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import attrs

from harness.clock import NS_PER_S
from harness.history.records import OpType
from harness.text import in_seconds, significant

GRIDS_MAX = 40
ROWS_MAX = 60
COLUMNS_MAX = 24  # the built-in checkers have at most 15
# A table of more columns than fit beside each other stands on its side where it has few rows.
UPRIGHT_COLUMNS, SIDEWAYS_ROWS = 8, 4
DEPTH_MAX = 4  # of nested values in one cell
CHARS_MAX = 100_000  # of all grids of one call: a usual verdict has some 5,000
CELL_CHARS = 600  # of any one text; the rest of a longer one is in the files
DASH = "\N{EN DASH}"
_IDENTIFIERS = frozenset(  # no amounts: 5230 is transaction 5230
    {"key", "txn", "fault", "value", "element", "other", "process", "source", "target"}
    | {"partition", "term", "index", "seed"}
)
_UNITS = (("_per_s", "1/s"), ("_ns", "s"), ("_ms", "ms"), ("_s", "s"))  # that a name ends in
_TYPES = frozenset(kind.value for kind in OpType)


@attrs.frozen(kw_only=True)
class Grid:
    """A table: texts in rows below ``columns``; ``more`` rows were cut."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    more: int = 0


def grids(data: Mapping[str, Any]) -> tuple[Grid, ...]:
    """Return the parts of ``data`` as grids, in its order; scalars together in one of their own.

    Units are in the names: fields that end in ``_ns`` or ``_s`` are shown in seconds.
    """
    looked_at = dict(islice(data.items(), GRIDS_MAX + ROWS_MAX))
    scalars = {name: value for name, value in looked_at.items() if not _nested(value)}
    left_out = len(data) - len(looked_at)
    room = _Room(CHARS_MAX)
    found = []
    if scalars or left_out:
        found.append(_pairs("", scalars, room, left_out))
    for name, value in looked_at.items():
        if isinstance(value, Mapping) and value:
            found.append(_mapping(words(name), value, room))
        elif _nested(value) and value:
            found.append(_records(words(name), value, room))
    return tuple(found)


@attrs.define
class _Room:
    """The characters that are left for further rows."""

    chars: int

    def filled(self, rows: Iterable[tuple[str, ...]]) -> tuple[tuple[str, ...], ...]:
        """Return the first rows, as many as there is room for."""
        found: list[tuple[str, ...]] = []
        for row in islice(rows, ROWS_MAX if self.chars > 0 else 0):
            found.append(row)
            self.chars -= sum(len(text) + 1 for text in row)
            if self.chars <= 0:
                break
        return tuple(found)


def words(name: str) -> str:
    """Format a key as a heading: ``time_to_first_ok_ns`` is ``time to first ok (s)``."""
    for ending, unit in _UNITS:
        if name.endswith(ending):
            return f"{name.removesuffix(ending).replace('_', ' ')} ({unit})"
    return str(name).replace("_", " ")


def cell(name: str, value: Any, depth: int = 0) -> str:  # noqa: ANN401 (what JSON holds)
    """Format a value; ``name`` implies its unit. Of a nested one the first ``CELL_CHARS``
    characters, to a depth of ``DEPTH_MAX``, and how many entries follow.
    """
    if value is None:
        return DASH
    # Before the numbers, of which a bool is one.
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_ns") and isinstance(value, int | float):
        return seconds(value)
    if isinstance(value, float):
        return number(value)
    if isinstance(value, int):
        return str(value) if name in _IDENTIFIERS else f"{value:,}"
    if not isinstance(value, Mapping | list | tuple):
        return str(value)
    if depth == DEPTH_MAX:
        return "…"
    parts = (
        (f"{_named(str(k))} {cell(str(k), v, depth + 1)}" for k, v in value.items())
        if isinstance(value, Mapping)
        else (cell(name, item, depth + 1) for item in value)
    )
    return _joined(parts, len(value)) or DASH


def _named(key: str) -> str:
    """Format a key before its value: a number is set off, which is often one as well."""
    return f"{key}:" if key.isdecimal() else words(key)


def _joined(parts: Iterable[str], count: int) -> str:
    """Join ``parts``, ``count`` of them: as many as fit into a cell."""
    shown: list[str] = []
    chars = 0
    # Every part has a character at least, so the characters bound how many are looked at.
    for part in parts:
        shown.append(part)
        chars += len(part) + len(", ")
        if chars > CELL_CHARS:
            break
    text = ", ".join(shown)
    if len(shown) == count and (len(text) <= CELL_CHARS or count == 1):
        return text
    while True:
        # What is cut off whole is one more; of the first, which has no room, its beginning stays.
        text, more = ", ".join(shown), f" … and {count - len(shown):,} more"
        if len(text) + len(more) <= CELL_CHARS or len(shown) == 1:
            return text[: CELL_CHARS - len(more)] + more
        shown.pop()


def seconds(value_ns: float) -> str:
    """Format a time in seconds: to the millisecond, shorter times to three digits."""
    return _precise(value_ns / NS_PER_S, in_seconds(value_ns))


def number(value: float) -> str:
    """Format a figure: to three decimals, one below a thousandth to three digits."""
    return _precise(value, f"{value:,.3f}")


def _precise(value: float, shown: str) -> str:
    return significant(value, 3) if 0 < abs(value) < 0.001 else shown


def _nested(value: Any) -> bool:  # noqa: ANN401
    if isinstance(value, list | tuple):
        return any(isinstance(each, Mapping) for each in value[:ROWS_MAX])
    return isinstance(value, Mapping)


def _pairs(title: str, data: Mapping[str, Any], room: _Room, left_out: int = 0) -> Grid:
    """Return a row a name; ``left_out`` more names are not in ``data``."""
    rows = room.filled((words(name), cell(name, data[name])) for name in _ordered(data))
    more = len(data) - len(rows) + left_out
    return Grid(title=title, columns=("", ""), rows=rows, more=more)


def _mapping(title: str, data: Mapping[str, Any], room: _Room) -> Grid:
    shown = dict(islice(data.items(), ROWS_MAX))
    if not all(isinstance(value, Mapping) for value in shown.values()):
        return _pairs(title, data, room)
    names = _columns(shown.values())
    if len(names) > UPRIGHT_COLUMNS and len(data) <= SIDEWAYS_ROWS:
        sides = room.filled(
            (words(name), *(cell(name, value.get(name)) for value in shown.values()))
            for name in names
        )
        more = len(names) - len(sides)
        return Grid(title=title, columns=("", *map(str, shown)), rows=sides, more=more)
    rows = room.filled(
        (str(key), *(cell(name, value.get(name)) for name in names)) for key, value in shown.items()
    )
    columns = ("", *map(words, names))
    return Grid(title=title, columns=columns, rows=rows, more=len(data) - len(rows))


def _records(title: str, records: Sequence[Any], room: _Room) -> Grid:
    shown = records[:ROWS_MAX]
    found = [record for record in shown if isinstance(record, Mapping)]
    names = _columns(found)
    rows = room.filled(tuple(cell(name, record.get(name)) for name in names) for record in found)
    more = len(records) - len(shown) + len(found) - len(rows)
    return Grid(title=title, columns=tuple(map(words, names)), rows=rows, more=more)


def _columns(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the keys of any record, in order of first appearance, ``COLUMNS_MAX`` at most;
    outcomes as the field orders them.
    """
    found = dict.fromkeys(key for record in records for key in islice(record, COLUMNS_MAX))
    return list(islice(_ordered(found), COLUMNS_MAX))


def _ordered(names: Mapping[str, object]) -> Iterator[str]:
    """Yield ``names``, with ``ok fail info`` first, in that order."""
    yield from (kind.value for kind in OpType if kind.value in names)
    yield from (name for name in names if name not in _TYPES)
