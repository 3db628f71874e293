"""The runs of a store as tables for months of analysis: Parquet, by month and system, and CSV.

Four tables: ``runs`` (a row a run: the index, and its verdict's outcome, model and reasons),
``findings`` (a row for each kind of finding of a run), ``faults`` (a row a fault that was injected,
with what it cost), ``coverage`` (a row for each kind of fault and role). An export is added to:
rows of runs that are gone from the store stay, rows of runs that are there are made anew.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.clock import NS_PER_S
from harness.errors import HarnessError, UsageError
from harness.history.directory_locks import locked_within
from harness.history.durable_files import begin, disk_failure, publish
from harness.history.regular_files import open_regular
from harness.protocols.verdict import Verdict
from harness.text import inert
from results.export.rows import cell
from results.store.run_entry import RunEntry

Row = dict[str, Any]
TEXT, TEXTS = pa.string(), pa.list_(pa.string())
WHOLE, REAL = pa.int64(), pa.float64()
WHEN = pa.timestamp("us", tz="UTC")  # what Spark reads, too
REASONS_MAX = 20  # of one run
PART = "part-0.parquet"
NO_VALUE = "unknown"  # of a partition: a key of nulls alone is one that readers refuse
ALONE_WITHIN_S = 300.0  # another controller's export of a year takes some ten seconds
NAME_CHARS = 120  # of a directory; a system's name may be anything

RUNS = pa.schema(
    [
        ("run", TEXT),
        ("begun", WHEN),
        ("state", TEXT),
        ("outcome", TEXT),
        ("model", TEXT),
        ("reasons", TEXTS),
        ("broken_models", TEXTS),
        ("name", TEXT),
        ("release", TEXT),
        ("commit", TEXT),
        ("branch", TEXT),
        ("mode", TEXT),
        ("workload", TEXT),
        ("provider", TEXT),
        ("faults", TEXTS),
        ("planned_faults", WHOLE),
        ("tags", TEXTS),
        ("seed", WHOLE),
        ("nodes", WHOLE),
        ("duration_s", REAL),
        ("ok", WHOLE),
        ("conflicts", WHOLE),
        ("fail", WHOLE),
        ("info", WHOLE),
        ("longest_gap_s", REAL),
        ("size_bytes", WHOLE),
    ]
)
FINDINGS = pa.schema(
    [
        ("run", TEXT),
        ("begun", WHEN),
        ("fingerprint", TEXT),
        ("anomaly", TEXT),
        ("fault", TEXT),
        ("role", TEXT),
        ("count", WHOLE),
        ("example", TEXT),
    ]
)
FAULTS = pa.schema(
    [
        ("run", TEXT),
        ("begun", WHEN),
        ("fault", WHOLE),
        ("kind", TEXT),
        ("target", TEXT),
        ("roles", TEXTS),
        ("length_s", REAL),
        ("ok", WHOLE),
        ("longest_gap_s", REAL),
        ("first_ok_after_heal_s", REAL),
    ]
)
COVERAGE = pa.schema(
    [("run", TEXT), ("begun", WHEN), ("kind", TEXT), ("role", TEXT), ("hits", WHOLE)]
)
TABLES: Mapping[str, pa.Schema] = {
    "runs": RUNS,
    "findings": FINDINGS,
    "faults": FAULTS,
    "coverage": COVERAGE,
}
"""The tables by their names; in Parquet the directories say ``month`` and ``system`` beside."""

Partition = tuple[str, str]


def export(runs: Iterable[tuple[RunEntry, Verdict | None]], target: Path, *, as_csv: bool) -> int:
    """Write ``runs`` below the directory ``target``: ``TABLE/month=2026-11/system=NAME/``, and with
    ``as_csv`` each table, the runs that are gone included, as ``TABLE.csv`` beside it. Returns how
    many files of Parquet changed. Raises ``UsageError`` where something else is in a file's place,
    and ``HarnessError``, also where another export into it takes longer than ``ALONE_WITHIN_S``.
    """
    found: dict[str, dict[Partition, list[Row]]] = {name: {} for name in TABLES}
    exported: set[str] = set()
    for entry, verdict in runs:
        exported.add(entry.run)
        where = _partition(entry)
        for name, rows in _rows(entry, verdict).items():
            # Also without a row: those of before have to go.
            found[name].setdefault(where, []).extend(rows)
    changed = 0
    try:
        # A file is read and written anew: of two exports at once one would take the other's rows,
        # whose runs may be gone for good by then.
        with _alone_in(target):
            for name, partitions in found.items():
                for where in _written(target / name):
                    # A run whose month or system is read anew has rows in its former place.
                    partitions.setdefault(where, [])
                for (month, system), rows in partitions.items():
                    directory = target / name / f"month={month}" / f"system={system}"
                    changed += _write_partition(directory, TABLES[name], rows, exported)
                if as_csv:
                    _write_csv(target, name)
    except OSError as error:
        raise disk_failure("write", target, error, "the export is not whole") from error
    return changed


@contextlib.contextmanager
def _alone_in(target: Path) -> Iterator[None]:
    target.mkdir(parents=True, exist_ok=True)
    handle = locked_within(target, ALONE_WITHIN_S)
    try:
        yield
    finally:
        if handle is not None:
            os.close(handle)


def _written(directory: Path) -> list[Partition]:
    """Return the partitions of a table that are there."""
    places = (path.parts[-3:-1] for path in sorted(directory.glob(f"month=*/system=*/{PART}")))
    return [(month.partition("=")[2], system.partition("=")[2]) for month, system in places]


def read_table(target: Path, name: str) -> pa.Table:
    """Return the table ``name`` of an export, with its partition keys, sorted by run. Raises
    ``UsageError`` where a file of it can't be read.
    """
    pieces = []
    for path in sorted((target / name).glob(f"month=*/system=*/{PART}")):
        piece = _read(path, TABLES[name])
        month, system = (part.partition("=")[2] for part in path.parts[-3:-1])
        for key, value in (("month", month), ("system", system)):
            column = pa.array([unquote(value)] * piece.num_rows, TEXT)
            piece = piece.append_column(key, column)
        pieces.append(piece)
    schema = TABLES[name].append(pa.field("month", TEXT)).append(pa.field("system", TEXT))
    if not pieces:
        return schema.empty_table()
    return pa.concat_tables(pieces).sort_by("run")


def _partition(entry: RunEntry) -> Partition:
    month = f"{entry.begun:%Y-%m}" if entry.begun else NO_VALUE
    system = quote(entry.system, safe="") or NO_VALUE
    if len(system) > NAME_CHARS:
        digest = hashlib.sha256(system.encode()).hexdigest()[:16]
        # Not within an escape, which would name another character.
        system = f"{quote(entry.system[:8], safe='')}-{digest}"
    return month, system


def _rows(entry: RunEntry, verdict: Verdict | None) -> dict[str, list[Row]]:
    head: Row = {"run": entry.run, "begun": entry.begun}
    return {
        "runs": [head | _run(entry, verdict)],
        "findings": [
            head
            | {
                name: getattr(finding, name)
                for name in ("fingerprint", "anomaly", "fault", "role", "count", "example")
            }
            for finding in entry.findings
        ],
        "faults": [] if verdict is None else [head | row for row in _faults(verdict)],
        "coverage": [] if verdict is None else [head | row for row in _coverage(verdict)],
    }


def _run(entry: RunEntry, verdict: Verdict | None) -> Row:
    own = {name for name in RUNS.names if hasattr(entry, name)}
    row = {name: getattr(entry, name) for name in own}
    if verdict is not None:
        row["model"] = inert(verdict.model)
        row["reasons"] = [inert(each) for each in verdict.reasons[:REASONS_MAX]]
        row["broken_models"] = [inert(each) for each in (*verdict.not_, *verdict.also_not)]
    return row


def _faults(verdict: Verdict) -> Iterator[Row]:
    for window in verdict.availability.windows or ():
        end_ns = window.end_ns
        healed_ns = window.first_ok_after_heal_ns
        yield {
            "fault": window.fault,
            "kind": inert(window.kind),
            "target": inert(window.target),
            "roles": [inert(each) for each in window.roles or ()],
            "length_s": None if end_ns is None else (end_ns - window.start_ns) / NS_PER_S,
            "ok": window.ok,
            "longest_gap_s": window.longest_gap_ns / NS_PER_S,
            "first_ok_after_heal_s": None if healed_ns is None else healed_ns / NS_PER_S,
        }


def _coverage(verdict: Verdict) -> Iterator[Row]:
    for kind, roles in verdict.coverage.cells.items():
        for role, hits in roles.items():
            yield {"kind": inert(kind), "role": inert(role), "hits": hits}


def _write_partition(
    directory: Path, schema: pa.Schema, rows: list[Row], exported: set[str]
) -> bool:
    """Write the file of a partition: ``rows``, and those it has of runs that are not ``exported``.
    Returns false where it is that already.
    """
    path = directory / PART
    try:
        table = pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise HarnessError(f"export {path}: a figure of a run is none: {error}") from error
    before = None
    if os.path.lexists(path):
        before = _read(path, schema)
        gone = pc.invert(pc.is_in(before["run"], value_set=pa.array(sorted(exported), TEXT)))
        table = pa.concat_tables([before.filter(gone), table])
    # One order, so that the same runs are the same file.
    table = table.sort_by([(name, "ascending") for name in schema.names[:4] if name != "begun"])
    if before is None and not table.num_rows:
        return False
    if before is not None and before.equals(table):
        return False
    directory.mkdir(parents=True, exist_ok=True)
    unfinished = begin(path)
    try:
        pq.write_table(table, unfinished, compression="zstd")
        publish(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)  # published, it has another name
    return True


def _read(path: Path, schema: pa.Schema) -> pa.Table:
    """Return the table in ``path`` with the columns of ``schema``; those that an older version did
    not write are empty.
    """
    try:
        with open_regular(path) as stream:
            found = pq.ParquetFile(stream).read()
        columns = [
            found[field.name].cast(field.type)
            if field.name in found.column_names
            else pa.nulls(found.num_rows, field.type)
            for field in schema
        ]
    except (OSError, pa.ArrowException) as error:
        raise UsageError(f"export: expected a table of runs in {path}: {error}") from error
    return pa.table(columns, schema=schema)


def _write_csv(target: Path, name: str) -> None:
    table = read_table(target, name)
    path = target / f"{name}.csv"
    unfinished = begin(path)
    try:
        with unfinished.open("w", encoding="utf-8", errors="backslashreplace", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(table.column_names)
            for piece in table.to_batches():
                for row in piece.to_pylist():
                    writer.writerow([_csv(value) for value in row.values()])
        publish(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _csv(value: object) -> object:
    return value.isoformat() if hasattr(value, "isoformat") else cell(value)
