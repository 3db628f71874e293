"""Tables of a run as CSV (RFC 4180), for spreadsheets and ``grep``."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from harness.errors import PlanError
from harness.history.due_faults import due_ns, schedule_rows
from harness.history.layout import EVENTS, FAULTS
from harness.history.load import History
from harness.plan import planfile
from harness.text import inactive
from results.export.notation import edn
from results.export.operations import steps_of, transactions

OPERATIONS = "operations"
CSV_TABLES = (OPERATIONS, FAULTS, EVENTS)
_STEPS = "ops"
_DUE = "planned_ns"
_LISTS = "; "
# A spreadsheet takes a text that begins with one of these for a formula; where a semicolon parts
# cells, one that begins with it for two.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", ";")


def csv_lines(history: History, table: str) -> Iterator[bytes]:
    """Yield the table ``table`` (one of ``CSV_TABLES``), its header first: a row a transaction,
    fault or event. Times are nanoseconds on the run's axis; a fault is planned for the time at
    which it is due. ``ops`` are the steps as EDN. A text that a spreadsheet would take for a
    formula has an apostrophe before it; what a terminal would act on is escaped, so that a row is a
    line.
    """
    if table == OPERATIONS:
        found = history.transactions()
        names = [*found.column_names, _STEPS]
        rows = _with_steps(history)
    else:
        found = history.faults() if table == FAULTS else history.events()
        names = found.column_names
        rows = _due(history) if table == FAULTS else _rows_of(found)
    yield _line(names)
    for row in rows:
        yield _line([cell(row[name]) for name in names])


def _with_steps(history: History) -> Iterator[dict[str, Any]]:
    for row in transactions(history):
        yield row | {_STEPS: edn(steps_of(row["ops"]))}


def _due(history: History) -> Iterator[dict[str, Any]]:
    schedule = _schedule(history)
    for row in _rows_of(history.faults()):
        yield row | {_DUE: due_ns(history.manifest, schedule, row["fault"])}


def _schedule(history: History) -> list[Any]:
    if not history.planned:
        return []
    try:
        return schedule_rows(planfile.parse(planfile.read_text(history.run.plan), "plan"))
    except PlanError:
        return []


def _rows_of(table: pa.Table) -> Iterator[dict[str, Any]]:
    for piece in table.to_batches():
        yield from piece.to_pylist()


def cell(value: object) -> object:
    """Format a value of a table: a list as one text, the beginning of a formula marked."""
    if isinstance(value, list):
        return _LISTS.join(str(cell(element)) for element in value)
    if not isinstance(value, str):
        return value
    return inactive(f"'{value}" if value.startswith(_FORMULA) else value)


def _line(cells: list[Any]) -> bytes:
    buffer = io.StringIO()
    csv.writer(buffer).writerow(cells)
    return buffer.getvalue().encode()
