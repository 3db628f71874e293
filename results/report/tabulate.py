"""Nested data of a verdict as flat grids that a page can show, for data of any checker."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from harness.clock import NS_PER_S
from harness.history.records import OpType
from harness.text import in_seconds

ROWS_MAX = 60
DASH = "\N{EN DASH}"
_IDENTIFIERS = frozenset(  # no amounts: 5230 is transaction 5230
    {"key", "txn", "fault", "value", "element", "other", "process", "source", "target"}
    | {"partition", "term", "index", "seed"}
)
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
    scalars = {name: value for name, value in data.items() if not _nested(value)}
    found = [_pairs("", scalars)] if scalars else []
    for name, value in data.items():
        if isinstance(value, Mapping) and value:
            found.append(_mapping(words(name), value))
        elif _nested(value) and value:
            found.append(_records(words(name), value))
    return tuple(found)


def words(name: str) -> str:
    """Format a key as a heading: ``time_to_first_ok_ns`` is ``time to first ok (s)``."""
    for unit in ("_ns", "_s"):
        if name.endswith(unit):
            return f"{name.removesuffix(unit).replace('_', ' ')} (s)"
    return str(name).replace("_", " ")


def cell(name: str, value: Any) -> str:  # noqa: ANN401 (what JSON holds)
    """Format a value; ``name`` implies its unit."""
    if value is None:
        return DASH
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_ns") and isinstance(value, int | float):
        return seconds(value)
    if isinstance(value, float):
        return f"{value:,.3f}"
    if isinstance(value, int):
        return str(value) if name in _IDENTIFIERS else f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{words(str(k))} {cell(str(k), v)}" for k, v in value.items()) or DASH
    if isinstance(value, list | tuple):
        return ", ".join(cell(name, item) for item in value) or DASH
    return str(value)


def seconds(value_ns: float) -> str:
    """Format a time in seconds: to the millisecond, shorter times to three digits."""
    shown = in_seconds(value_ns)
    return f"{value_ns / NS_PER_S:.3g}" if value_ns and not float(shown) else shown


def _nested(value: Any) -> bool:  # noqa: ANN401
    records = isinstance(value, list | tuple) and any(isinstance(v, Mapping) for v in value)
    return isinstance(value, Mapping) or records


def _pairs(title: str, data: Mapping[str, Any]) -> Grid:
    names = _ordered(map(str, data))
    rows = tuple((words(name), cell(name, data[name])) for name in names)
    return Grid(title=title, columns=("", ""), rows=rows[:ROWS_MAX], more=_more(rows))


def _mapping(title: str, data: Mapping[str, Any]) -> Grid:
    if not all(isinstance(value, Mapping) for value in data.values()):
        return _pairs(title, data)
    names = _columns(data.values())
    rows = tuple(
        (str(key), *(cell(name, value.get(name)) for name in names)) for key, value in data.items()
    )
    columns = ("", *map(words, names))
    return Grid(title=title, columns=columns, rows=rows[:ROWS_MAX], more=_more(rows))


def _records(title: str, records: Iterable[Any]) -> Grid:
    found = [record for record in records if isinstance(record, Mapping)]
    names = _columns(found)
    rows = tuple(tuple(cell(name, record.get(name)) for name in names) for record in found)
    columns = tuple(map(words, names))
    return Grid(title=title, columns=columns, rows=rows[:ROWS_MAX], more=_more(rows))


def _columns(records: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return every key of any record, in order of first appearance; outcomes as the field orders
    them.
    """
    return _ordered(dict.fromkeys(str(key) for record in records for key in record))


def _ordered(names: Iterable[str]) -> list[str]:
    """Move ``ok fail info`` to the front of ``names``, in that order."""
    found = list(names)
    return [t.value for t in OpType if t.value in found] + [n for n in found if n not in _TYPES]


def _more(rows: Sequence[object]) -> int:
    return max(0, len(rows) - ROWS_MAX)
