"""The values that checkers and kernels give, held against their protocol before they are merged.

A value that does not fit is its own checker's trouble: merged into a verdict it would end the
analysis, and with it the findings of all others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any, get_type_hints

import attrs
import msgspec
import pyarrow as pa

from harness.errors import BrokenPlugin
from harness.exit_codes import Outcome
from harness.history.records import INT64_MAX, INT64_MIN
from harness.protocols.checker import Checker, Exchange, Kernel, Part, Tables
from harness.protocols.consistency_models import Meaning, declared
from harness.protocols.finding import Finding, finding_of
from harness.protocols.verdict import Anomaly

OUTCOMES = (Outcome.VALID, Outcome.UNKNOWN, Outcome.VIOLATION)
"""What a checker can say. That a run is worse than others, or that firedrill failed, it can't."""

# A table is a file of ``analysis/``, beside those of other names there.
TABLE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")

# Fields that hold tables, or what a checker of an earlier version gives in another form: each is
# looked at by itself. All others are of the types that ``Part`` gives them.
_BY_THEMSELVES = ("anomalies", "meanings", "statistics", "tables")
_TYPED: Mapping[str, Any] = {
    name: type_ for name, type_ in get_type_hints(Part).items() if name not in _BY_THEMSELVES
}


def kernels_of(checker: Checker) -> tuple[Kernel, ...]:
    """Return the kernels of ``checker``. Raises ``BrokenPlugin``, and what a property raises."""
    kernels = checker.kernels
    if not isinstance(kernels, (tuple, list)):
        raise BrokenPlugin(f"kernels: expected a tuple (got {_kind(kernels)})")
    for kernel in kernels:
        if not isinstance(kernel, Kernel):
            raise BrokenPlugin(f"kernels: expected a Kernel (got {_kind(kernel)})")
        if not isinstance(kernel.name, str) or not kernel.name:
            raise BrokenPlugin(f"kernel: expected a name (got {kernel.name!r:.100})")
        # Compared by identity: a kernel of any other exchange would silently not run.
        if not isinstance(kernel.exchange, Exchange):
            known = ", ".join(f"Exchange.{each.name}" for each in Exchange)
            got = f"{kernel.exchange!r:.100}"
            raise BrokenPlugin(f"kernel {kernel.name!r}: exchange: expected {known} (got {got})")
        _require_names(kernel)
    return tuple(kernels)


def _require_names(kernel: Kernel) -> None:
    """Raise ``BrokenPlugin`` unless ``numbers`` and ``takes`` name columns of tables."""
    for field in ("numbers", "takes"):
        value = getattr(kernel, field)
        names = value or {}
        wanted = f"kernel {kernel.name!r}: {field}: expected a tuple of columns by table"
        if not isinstance(names, Mapping):
            raise BrokenPlugin(f"{wanted} (got {value!r:.100})")
        for name, columns in names.items():
            if not isinstance(name, str) or not isinstance(columns, (tuple, list)):
                raise BrokenPlugin(f"{wanted} (got {name!r:.50}: {columns!r:.100})")
            none = field == "takes" and not columns
            if none or not all(isinstance(column, str) for column in columns):
                raise BrokenPlugin(f"{wanted} (got {name!r:.50}: {columns!r:.100})")


def tables_of(kernel: Kernel, given: object, there: Collection[str]) -> Tables:
    """Return the tables that ``kernel`` has ``given``; ``there`` are the names of those that it was
    given itself. Raises ``BrokenPlugin``.
    """
    if not isinstance(given, Mapping):
        raise BrokenPlugin(f"kernel {kernel.name!r}: expected tables by name (got {_kind(given)})")
    for name, table in given.items():
        if not isinstance(name, str) or not isinstance(table, pa.Table):
            what = f"table {name!r:.100}: expected a pyarrow.Table (got {_kind(table)})"
            raise BrokenPlugin(f"kernel {kernel.name!r}: {what}")
        # It would take that one's place for every kernel and checker behind it.
        if name in there:
            why = "there is one of this name already"
            raise BrokenPlugin(f"kernel {kernel.name!r}: table {name!r}: {why}")
        require_numbers(kernel, name, table, (kernel.numbers or {}).get(name, ()))
    return given


def require_numbers(
    kernel: Kernel, name: str, table: pa.Table, columns: tuple[str, ...], *, lists: bool = True
) -> None:
    """Raise ``BrokenPlugin`` unless ``columns`` of ``table``, which ``kernel`` declares, can hold
    numbers of transactions, or ``lists`` of them.
    """
    for column in columns:
        where = f"kernel {kernel.name!r}: table {name!r}: column {column!r:.100}"
        places = table.schema.get_all_field_indices(column)
        if len(places) != 1:
            expected = f"expected one column of that name (got {len(places)})"
            raise BrokenPlugin(f"{where}: {expected}")
        type_ = found = table.schema.field(places[0]).type
        while lists and pa.types.is_list(type_):
            type_ = type_.value_type
        if not pa.types.is_signed_integer(type_):
            what = "signed integers, or lists of them" if lists else "signed integers"
            raise BrokenPlugin(f"{where}: expected {what} (got {found})")


def complete(checker: str, part: object) -> Part:
    """Return the ``part`` that ``checker`` gave, with the meaning of every anomaly of its own.
    Every accusation has an example: a verdict must show its proof.

    Raises ``BrokenPlugin`` for values of other types than ``Part`` has, ``UsageError`` for a model
    that is not in the lattice, ``HarnessBug`` where a known anomaly is given another meaning.
    """
    if not isinstance(part, Part):
        raise BrokenPlugin(f"judge: expected a Part (got {_kind(part)})")
    fields = {
        name: _field(name, partial(_converted, getattr(part, name), expected))
        for name, expected in _TYPED.items()
    }
    if fields["outcome"] not in OUTCOMES:
        expected = ", ".join(outcome.value for outcome in OUTCOMES)
        raise BrokenPlugin(f"Part.outcome: expected one of {expected} (got {part.outcome!r})")
    anomalies = {name: _anomaly(name, each) for name, each in _items(part, "anomalies")}
    if fields["outcome"] is Outcome.VIOLATION and not anomalies and not fields["reasons"]:
        raise BrokenPlugin("Part.outcome: expected an anomaly or a reason beside a violation")
    _field("statistics", lambda: _require_json(dict(_items(part, "statistics"))))
    for name, table in _items(part, "tables"):
        if not TABLE_NAME.fullmatch(name) or not isinstance(table, pa.Table):
            what = "expected a pyarrow.Table under a name of letters, digits, '.', '_' and '-'"
            raise BrokenPlugin(f"Part.tables: {what} (got {_kind(table)} {name!r:.100})")
    for name, meaning in _items(part, "meanings"):
        if not isinstance(meaning, Meaning):
            what = f"{name!r:.100}: expected OBSERVED or breaking(...)"
            raise BrokenPlugin(f"Part.meanings: {what} (got {_kind(meaning)})")
    meanings = declared(anomalies, part.meanings, checker)
    return attrs.evolve(part, **fields, anomalies=anomalies, meanings=meanings)


def _items(part: Part, field: str) -> list[tuple[str, Any]]:
    """The items of a field that is a mapping by names."""
    value = getattr(part, field)
    if not isinstance(value, Mapping):
        raise BrokenPlugin(f"Part.{field}: expected a mapping by name (got {_kind(value)})")
    for name in value:
        if not isinstance(name, str) or not name or not _is_text(name):
            raise BrokenPlugin(f"Part.{field}: expected texts for names (got {name!r:.100})")
    return list(value.items())


def _anomaly(name: str, anomaly: object) -> Anomaly:
    """``anomaly`` with findings for examples: plug-ins of before give mappings."""
    where = f"anomaly {name!r:.100}"
    if not isinstance(anomaly, Anomaly):
        raise BrokenPlugin(f"{where}: expected an Anomaly (got {_kind(anomaly)})")
    if not isinstance(anomaly.examples, (tuple, list)):
        raise BrokenPlugin(f"{where}: examples: expected a tuple (got {_kind(anomaly.examples)})")
    examples = tuple(_finding(where, each) for each in anomaly.examples)
    if not examples or not examples[0].text:
        raise BrokenPlugin(f"{where}: expected an example with a text, found none")
    # A boolean is an integer to Python.
    if type(anomaly.count) is not int or not len(examples) <= anomaly.count <= INT64_MAX:
        expected = f"an integer that counts its {len(examples)} examples at least"
        raise BrokenPlugin(f"{where}: count: expected {expected} (got {anomaly.count!r:.100})")
    return Anomaly(count=anomaly.count, examples=examples)


def _finding(where: str, example: object) -> Finding:
    if isinstance(example, Mapping):
        example = finding_of(example)
    if not isinstance(example, Finding):
        raise BrokenPlugin(f"{where}: example: expected a Finding (got {_kind(example)})")
    plain = msgspec.structs.replace(example, details={})
    found: Finding = _field(f"{where}: example", partial(_converted, plain, Finding), "")
    for number in (*found.txns, *found.keys):
        if not INT64_MIN <= number <= INT64_MAX:
            raise BrokenPlugin(f"{where}: example: expected numbers of 64 bits (got {number:e})")
    _field(f"{where}: example: details", lambda: _require_json(example.details), "")
    return msgspec.structs.replace(found, details=example.details)


def _field(name: str, value: Callable[[], Any], of: str = "Part.") -> Any:  # noqa: ANN401
    """The result of ``value``; an error of it names the field."""
    try:
        return value()
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise BrokenPlugin(f"{of}{name}: {error}") from error


def _converted(value: object, expected: Any) -> Any:  # noqa: ANN401 (a type expression)
    plain = msgspec.to_builtins(value)
    msgspec.json.encode(plain)  # for its error alone: a text may hold half a character
    return msgspec.convert(plain, expected)


def _require_json(value: object) -> None:
    try:
        msgspec.json.encode(value, order="sorted")
    except RecursionError:  # nested more deeply than a verdict is: it is cut where it is stored
        return


def _is_text(name: str) -> bool:
    return name == name.encode("utf-8", "replace").decode()


def _kind(value: object) -> str:
    return type(value).__name__
