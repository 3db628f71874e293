"""The tables of a plan after flags and ``--set`` are applied.

Overrides have no order: whole tables apply before the keys in them, and the options in a plan's
file of another plug-in, or the file's mix where the overrides give a schedule (and the reverse),
are removed first. So any two overrides are either both applied, or refused by name; only of two
``--set`` of one key the later counts.
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from harness.errors import PlanError
from harness.plan import planfile

RIVALS = {"nemesis.mix": "schedule", "nemesis.schedule": "mix"}
ONE_OF_RIVALS = "expected a mix or a schedule, not both"
# Tables that hold a plugin's own options, and the plugin where none is named.
PLUGINS = {"system": "reference", "workload": "list-append"}
# Kept as what TOML reads them to: as texts they would pass where a text is expected.
TOML_TIMES = (datetime.datetime, datetime.date, datetime.time)

# Dotted path -> value.
Overrides = Mapping[str, object]


def override(text: str) -> tuple[str, object]:
    """``KEY=VALUE`` as (dotted path, value): a TOML value, or else the text itself."""
    path, equals, value = text.partition("=")
    path = path.strip()
    if not equals or not path:
        raise PlanError("", f"expected KEY=VALUE (got {planfile.shown(text)})", "--set")
    # Before ``planfile.override``, which recurses once for each table on the path.
    if path.count(".") >= planfile.MAX_DEPTH:
        problem = f"nested too deeply (more than {planfile.MAX_DEPTH} tables)"
        raise PlanError(path[: planfile.MAX_SHOWN], problem, "--set")
    try:
        found = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        # Words need no quotes of TOML within those of the shell: ``--set workload.name=bank``.
        return path, value.strip()
    except RecursionError as error:
        raise PlanError(path, "nested too deeply", "--set") from error
    except ValueError as error:  # Python refuses to read an integer of more than 4,300 digits
        problem = f"{planfile.OF_64_BITS}, found one of far too many digits"
        raise PlanError(path, problem, "--set") from error
    planfile.require_shape(found, path, "--set")
    return path, found


def merged(flags: Overrides, sets: Iterable[str]) -> dict[str, object]:
    """The combination of ``flags`` (``None``: not given) and the texts of ``--set``. Raises
    ``PlanError`` for keys on which they disagree.
    """
    given = {path: value for path, value in flags.items() if value is not None}
    later = dict(override(text) for text in sets)
    for path in given.keys() & later.keys():
        if given[path] != later[path]:
            raise _twice(path, given[path], later[path])
    given |= later
    refuse_contradictions(given)
    return given


def refuse_contradictions(given: Overrides) -> None:
    """Raises ``PlanError`` where a table and a key within it disagree, and where both a mix and a
    schedule name faults.
    """
    for path, value in given.items():
        for outer in _outer(path):
            within = _inside(given.get(outer), path.removeprefix(f"{outer}."))
            if within is not None and within != value:
                raise _twice(path, within, value)
    if all(said(given, path) for path in RIVALS):
        raise PlanError("nemesis.mix", ONE_OF_RIVALS, "flags")


def said(given: Overrides, path: str) -> object:
    """The value that ``given`` has for ``path``, by itself or within a table; ``None`` without
    one.
    """
    if path in given:
        return given[path]
    every = (_inside(given.get(outer), path.removeprefix(f"{outer}.")) for outer in _outer(path))
    return next((value for value in every if value is not None), None)


def applied(table: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    """``table`` with ``overrides`` (``None``: not given). Raises ``PlanError``.

    The options of a system or workload are its own: an override that names another plug-in removes
    the options of the file's. Mix and schedule are one choice: an override that names faults of one
    removes the other, and an override that names none removes nothing.
    """
    given: dict[str, object] = {
        path: msgspec.to_builtins(value, builtin_types=TOML_TIMES)
        for path, value in overrides.items()
        if value is not None
    }
    # Again, since some callers join further values to what ``merged`` returned.
    refuse_contradictions(given)
    result = dict(table)
    for head, usual in PLUGINS.items():
        owner, name = result.get(head), said(given, f"{head}.name")
        if name is not None and isinstance(owner, dict) and owner.get("name", usual) != name:
            del result[head]
    for path, rival in RIVALS.items():
        nemesis = result.get("nemesis")
        if said(given, path) and isinstance(nemesis, dict):
            result["nemesis"] = {key: part for key, part in nemesis.items() if key != rival}
    for path in sorted(given, key=lambda path: (path.count("."), path)):
        result = planfile.override(result, path, given[path])
    return result


def _outer(path: str) -> list[str]:
    """The paths of the tables around ``path``."""
    steps = path.split(".")
    return [".".join(steps[:count]) for count in range(1, len(steps))]


def _inside(table: object, path: str) -> object:
    """The value in ``table`` at ``path``; ``None`` without one."""
    found = table
    for step in path.split("."):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found


def _twice(path: str, one: object, other: object) -> PlanError:
    both = f"{planfile.shown(one)} and {planfile.shown(other)}"
    return PlanError(path, f"expected one value (got {both})", "flags")
