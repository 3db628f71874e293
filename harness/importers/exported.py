"""A run that ``firedrill export`` wrote as operations, back as the run that it was.

Such a file is a history of Jepsen's: invocations and completions of clients, and a nemesis. What
these alone do not hold is in records of the process ``firedrill``, which tools for Jepsen's
histories pass over as they pass over the nemesis: the manifest, the plan, what was said of the
nodes' logs, and one record a row of each other table that a verdict rests on. The last record
counts those before it and holds their digest: a file without it was cut off and is no run. A
verdict of the imported run is that of the exported one, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from harness.errors import MalformedHistory, UsageError
from harness.history import durable_files, regular_files, schema
from harness.history.evidence import sizes
from harness.history.layout import EVENTS, FAULTS, NOTES
from harness.history.load import History, load
from harness.history.manifest import PREFIX, SEALED, write_manifest
from harness.history.parquet import ParquetSink, write_side_table
from harness.history.records import INT64_MAX, INT64_MIN, Complete, Invoke, MicroOp, OpType, Phase
from harness.history.run_directory import EXPLAINING, SCHEMA_VERSION, LogSum, Manifest, RunDirectory
from harness.history.seal import no_search_for_cycles
from harness.history.tables import BATCH_ROWS, InconsistentRecords, Tabulator
from harness.importers.jepsen.edn import Number, TaggedCollection, Unordered
from harness.importers.jepsen.operation_forms import EXPORTED
from harness.importers.jepsen.reader import Clock, beginning, forms
from harness.run.side_tables import SIDE_TABLES

PROCESS = EXPORTED
NEMESIS = "nemesis"
MANIFEST, PLAN, NODE_LOGS, END = "manifest", "plan", "node_logs", "end"
TABLES: dict[str, pa.Schema] = {
    FAULTS: schema.FAULTS,
    EVENTS: schema.EVENTS,
    NOTES: schema.NOTES,
    **{name: table.columns for name, table in SIDE_TABLES.items()},
}
"""Each table whose rows are records of ``PROCESS``, by the ``f`` of the records."""

# The forms of an operation on one register; any other transaction is a ``txn``.
READ = "read"
OF_REGISTER = {READ: "r", "write": "w", "cas": "cas"}
TXN = "txn"

_OURS = re.compile(rb':process\s+:firedrill\b|"process"\s*:\s*"firedrill"')
_BEGINNING_BYTES = 400
_DEPTH_MAX = 16
# A zone that scales down never waits for ever.
_SYMBOLIC = {"##Inf": math.inf, "##-Inf": -math.inf, "##NaN": math.nan}

Int64 = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]
_Step = tuple[str, Int64, Int64 | list[Int64] | None]


class ClientRecord(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """An invocation or a completion of a client, as an exported file holds it.

    An invocation has ``node`` and ``kind``, and what differs from the usual of ``attempt``,
    ``intended``, ``wall``; ``partitions`` has the partition of each step's key. The rest belongs to
    completions, but for the ``steps`` of a transfer, which its value does not tell. Times are
    nanoseconds on the run's axis. ``run_index`` is the index in the run,
    where ``index``, which counts the records of the file, is another one.
    """

    type: str
    process: Int64
    f: str
    value: Any
    index: Int64
    time: Int64
    run_index: Int64 | None = None
    node: str = ""
    kind: str = ""
    attempt: int = 0
    intended: Int64 | None = None
    wall: Int64 = 0
    partitions: list[int | None] | None = None
    steps: list[_Step] | None = None
    error: str | None = None
    phase: Phase | None = None
    server_txn: str | None = None
    commit_ts: Int64 | None = None

    @property
    def index_of_run(self) -> int:
        """The index that the run gave it; files of older versions do not tell it."""
        return self.index if self.run_index is None else self.run_index


class NodeLogsRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was known of the nodes' logs when they were exported: the names of those that were
    sealed and gone, and the remarks on those that were not read as a whole.
    """

    missing: list[str]
    remarks: list[str]


class EndRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last record: how many of each sort (``Digest.counts``) stand before it, and their
    digest.
    """

    records: dict[str, int]
    sha256: str


class Digest:
    """Counts and SHA-256 of records, the same in every notation."""

    def __init__(self) -> None:
        self._sum, self._counts = hashlib.sha256(), Counter[str]()
        self.last: Mapping[str, Any] = {}

    def add(self, record: Mapping[str, Any]) -> None:
        """Take the next record: strings, numbers, lists and maps alone."""
        self.last = record
        process = record.get("process")
        sort = record.get("f") if process == PROCESS else process
        self._counts[str(sort) if isinstance(sort, str) else "clients"] += 1
        self._sum.update(json.dumps(record, sort_keys=True, separators=(",", ":")).encode() + b"\n")

    def end(self) -> EndRecord:
        """The last record of those that were added."""
        return EndRecord(records=dict(sorted(self._counts.items())), sha256=self._sum.hexdigest())


def end_record(end: EndRecord, last: Mapping[str, Any]) -> dict[str, Any]:
    """The record of ``end`` that follows ``last``."""
    return {
        "index": int(last.get("index", -1)) + 1,
        "time": last.get("time", 0),
        "type": OpType.INFO.value,
        "process": PROCESS,
        "f": END,
        "value": msgspec.to_builtins(end),
    }


def is_exported(path: Path) -> bool:
    """Whether ``path`` is a file that ``firedrill export`` wrote, as far as its beginning tells.
    Raises ``MalformedHistory`` for one that can't be read.
    """
    return _OURS.search(beginning(path)[:_BEGINNING_BYTES]) is not None


def import_exported(
    path: Path, run: RunDirectory, *, workload: str | None = None, clock: Clock = lambda: 0.0
) -> History:
    """Make the empty or absent directory ``run`` the run that was exported to ``path``.

    Raises ``MalformedHistory``, naming the line, for a file that holds no whole run, ``UsageError``
    for one of another version or workload, ``HarnessError`` where the disk refuses.
    """
    try:
        run.root.mkdir(parents=True, exist_ok=True)
        restored = _Restored(path, run)
        try:
            with no_search_for_cycles():
                for found, lines in forms(path, clock):
                    for form, line in zip(found, lines, strict=True):
                        restored.add(form, line)
                manifest = restored.finish(workload)
        finally:
            restored.abandon()
    except OSError as error:
        raise durable_files.disk_failure(
            "import into", run.root, error, "the tables are missing"
        ) from error
    # Last: until it is there, the directory is no run, and may be imported into again.
    write_manifest(run, manifest)
    return load(run)


class _Rows:
    """Rows of one table, as a list only until there are enough for a piece of it."""

    def __init__(self, name: str, columns: pa.Schema) -> None:
        self._columns, self._rows = columns, list[Mapping[str, Any]]()
        self._later: dict[str, Any] = dict(schema.LATER.get(name, {}))
        self._pieces: list[pa.Table] = []

    def add(self, row: dict[str, Any]) -> None:
        """Raises ``ValueError`` for a row of other columns or types."""
        row = self._later | row
        if row.keys() != set(self._columns.names):
            raise ValueError(f"expected the columns {', '.join(self._columns.names)}")
        for column in self._columns:
            if row[column.name] is None and not column.nullable:
                raise ValueError(f"expected a value for {column.name}, found none")
        self._rows.append(row)
        if len(self._rows) >= BATCH_ROWS:
            self._flush()

    def table(self) -> pa.Table:
        """All rows. Raises ``ValueError``."""
        self._flush()
        return pa.concat_tables([self._columns.empty_table(), *self._pieces])

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        try:
            self._pieces.append(pa.Table.from_pylist(rows, schema=self._columns))
        except (pa.ArrowException, OverflowError) as error:
            raise ValueError(str(error)) from error


class _Restored:
    """A run that is read record by record."""

    def __init__(self, path: Path, run: RunDirectory) -> None:
        self._path, self._run = path, run
        self._manifest: Manifest | None = None
        self._plan: str | None = None
        self._logs = NodeLogsRecord(missing=[], remarks=[])
        self._digest, self._end = Digest(), False
        self._partitions: dict[int, int | None] = {}
        self._open: dict[int, int] = {}
        self._last_ns = 0
        self._rows = {name: _Rows(name, columns) for name, columns in TABLES.items()}
        self._sink: ParquetSink | None = None
        self._tables: Tabulator | None = None

    def add(self, form: object, line: int) -> None:
        """Take the next record. Raises ``MalformedHistory``."""
        try:
            record = _plain(form)
            self._take(record)
            self._digest.add(record)
        except (ValueError, TypeError, msgspec.ValidationError, InconsistentRecords) as error:
            raise MalformedHistory(str(self._path), f"line {line}", str(error)) from error

    def abandon(self) -> None:
        """Remove what was written, unless it is finished. Never raises."""
        if self._sink is not None:
            self._sink.abandon()

    def finish(self, workload: str | None) -> Manifest:
        """Write the tables; return the manifest. Raises ``OSError``, ``MalformedHistory`` and
        ``UsageError``.
        """
        manifest, tables, sink = self._manifest, self._tables, self._sink
        if manifest is None or tables is None or sink is None:
            raise MalformedHistory(
                str(self._path), "", "expected the manifest of a run, found none"
            )
        if workload is not None and workload != manifest.workload:
            reason = f"expected a history of {workload}, found one of {manifest.workload}"
            raise UsageError(f"{self._path}: {reason}")
        if not self._end:
            reason = (
                "expected a last record of the process firedrill that counts the others, found "
            )
            raise MalformedHistory(str(self._path), "", f"{reason}none: the file was cut off")
        try:
            tables.finish(self._last_ns)
            made = {name: rows.table() for name, rows in self._rows.items()}
        except (ValueError, InconsistentRecords) as error:
            raise MalformedHistory(str(self._path), "", str(error)) from error
        for name in (FAULTS, EVENTS, NOTES):
            sink.put(name, made[name])
        checksums = sink.publish()
        self._sink = None
        explaining: dict[str, str] = {}
        had = {*manifest.checksums, *(manifest.explaining or ())}
        for name, table in SIDE_TABLES.items():
            if made[name].num_rows or table.file in had:
                missing = "the run is not imported"
                sums = explaining if table.file in EXPLAINING else checksums
                sums |= write_side_table(self._run.root, table.file, made[name], missing)
        if self._plan is not None:
            durable_files.write_atomically(self._run.plan, self._plan.encode())
            checksums[self._run.plan.name] = regular_files.sha256(self._run.plan)
        return replace(
            manifest,
            run_id=self._run.root.name,
            checksums=checksums,
            sizes=sizes(self._run, checksums),
            logs=self._missing_logs(manifest),
            log_remarks=tuple(self._logs.remarks) or msgspec.UNSET,
            explaining=explaining or msgspec.UNSET,
        )

    def _missing_logs(self, manifest: Manifest) -> dict[str, LogSum] | msgspec.UnsetType:
        """The sealed logs that were gone: they still are. Of the others the lines that count were
        exported, and are a table now.
        """
        if isinstance(manifest.logs, msgspec.UnsetType):
            return msgspec.UNSET
        unknown = set(self._logs.missing) - manifest.logs.keys()
        if unknown:
            reason = f"expected logs of the manifest to be missing, found {min(unknown)[:80]!r}"
            raise MalformedHistory(str(self._path), NODE_LOGS, reason)
        return {name: manifest.logs[name] for name in self._logs.missing}

    def _take(self, record: Any) -> None:  # noqa: ANN401 (as read)
        if not isinstance(record, dict):
            raise ValueError("expected an operation, which is a map")
        if self._end:
            raise ValueError("expected nothing behind the record that ends the run")
        process, f = record.get("process"), record.get("f")
        if process == NEMESIS:
            return  # tells for other tools what the rows of faults hold
        if process != PROCESS:
            self._client(msgspec.convert(record, ClientRecord))
            return
        value = record.get("value")
        if f == MANIFEST:
            self._begin(value)
        elif f == PLAN and isinstance(value, str):
            self._plan = value
        elif f == NODE_LOGS:
            self._logs = msgspec.convert(value, NodeLogsRecord)
        elif f == END:
            self._require_whole(record, msgspec.convert(value, EndRecord))
        elif f in self._rows and isinstance(value, dict):
            self._rows[f].add(value)
        else:
            raise ValueError(f"expected a row of {', '.join(TABLES)}, found {str(f)[:40]!r}")

    def _require_whole(self, record: Mapping[str, Any], told: EndRecord) -> None:
        found = self._digest.end()
        for sort in sorted(told.records.keys() | found.records.keys()):
            expected, here = told.records.get(sort, 0), found.records.get(sort, 0)
            if expected != here:
                raise ValueError(f"expected {expected} records of {sort[:40]} before, found {here}")
        if told.sha256 != found.sha256:
            raise ValueError(f"expected records of SHA-256 {told.sha256}, found {found.sha256}")
        # The last record is in no digest: it holds nothing that does not follow from the others.
        whole = end_record(found, self._digest.last)
        if record != whole:
            raise ValueError(f"expected {whole} as the last record, found another")
        self._end = True

    def _begin(self, value: object) -> None:
        if self._manifest is not None:
            raise ValueError("the manifest stands twice in the file")
        version = value.get("schema_version") if isinstance(value, dict) else None
        if version != SCHEMA_VERSION:
            raise ValueError(f"expected schema version {SCHEMA_VERSION}, found {version!r:.40}")
        manifest = msgspec.convert(value, Manifest)
        if manifest.state not in (SEALED, PREFIX) or manifest.key_hash != schema.KEY_HASH:
            raise ValueError("expected the manifest of a sealed run")
        schema.check_splits(manifest.splits)
        self._manifest = manifest
        self._sink = ParquetSink(self._run, manifest.splits)
        self._tables = Tabulator(
            self._sink, partition_of=self._partitions.get, splits=manifest.splits
        )

    def _client(self, record: ClientRecord) -> None:
        if self._tables is None:
            raise ValueError("expected the manifest of the run before its operations")
        self._last_ns = max(self._last_ns, record.time)
        value = record.value if record.steps is None else record.steps
        ops, index = tuple(_ops(record.f, value)), record.index_of_run
        if record.type != "invoke":
            self._tables.add(
                Complete(
                    index=index,
                    invoke=self._open.pop(record.process, -1),
                    process=record.process,
                    type=OpType(record.type),
                    at_ns=record.time,
                    ops=ops,
                    error=record.error,
                    phase=record.phase,
                    server_txn=record.server_txn,
                    commit_ts=record.commit_ts,
                )
            )
            return
        self._open[record.process] = index
        if record.partitions is not None:
            keys = (op.key for op in ops)
            self._partitions.update(zip(keys, record.partitions, strict=True))
        self._tables.add(
            Invoke(
                index=index,
                process=record.process,
                kind=record.kind,
                node=record.node,
                attempt=record.attempt,
                intended_ns=record.time if record.intended is None else record.intended,
                at_ns=record.time,
                wall_ns=record.wall,
                ops=ops,
            )
        )


def _ops(f: str, value: object) -> Iterator[MicroOp]:
    if f == READ and isinstance(value, dict):
        # Of a bank: what each account held.
        value = [[OF_REGISTER[f], int(key), held] for key, held in value.items()]
    elif f in OF_REGISTER:
        if not isinstance(value, list) or len(value) != 2:
            raise ValueError(f"expected [key value] for {f}")
        key, told = value
        if f == "cas" and isinstance(told, list) and told[:1] == [None]:
            told = told[1:]  # from nil: of a register that was never written
        value = [[OF_REGISTER[f], key, told]]
    for name, key, told in msgspec.convert(value, list[_Step]):
        yield MicroOp(name, key, tuple(told) if isinstance(told, list) else told)


def _plain(form: Any, depth: int = 0) -> Any:  # noqa: ANN401 (as read)
    """``form`` without the marks of its notation: keywords as strings, numbers as numbers."""
    if depth > _DEPTH_MAX:
        raise ValueError(f"brackets are nested more than {_DEPTH_MAX} deep")
    if isinstance(form, dict):
        return {str(key): _plain(value, depth + 1) for key, value in form.items()}
    if isinstance(form, list):
        return [_plain(value, depth + 1) for value in form]
    if isinstance(form, Number):
        return _SYMBOLIC[form] if form in _SYMBOLIC else float(form)
    if isinstance(form, Unordered):
        raise ValueError("expected a list, found a set")
    if isinstance(form, TaggedCollection):
        raise ValueError(f"expected a list or a map, found one behind {form.tags[:40]}")
    return str(form) if isinstance(form, str) else form
