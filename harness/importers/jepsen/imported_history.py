"""Importing histories recorded by Jepsen: EDN or JSON, into the tables that checkers read.

Operations are ordered by their ``:index``, or by their place in the file where they have none.
``invoke_index`` and ``complete_index`` of the tables are these; ``invoke_ns`` and ``complete_ns``
keep the same order: the file's own times, moved apart by nanoseconds where they tie, or a
millisecond an operation where times are missing or go back.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec.structs import replace

from harness.errors import MalformedHistory, UsageError
from harness.history import durable_files, regular_files, schema
from harness.history.evidence import sizes
from harness.history.layout import (
    EVENTS,
    FAULTS,
    KEYS_FILE,
    NOTES,
    TRANSACTIONS,
    micro_ops_name,
)
from harness.history.load import History, load
from harness.history.manifest import SEALED, write_manifest
from harness.history.parquet import ParquetSink
from harness.history.run_directory import (
    SCHEMA_VERSION,
    BankRules,
    Manifest,
    Origin,
    RecordCounts,
    RunDirectory,
)
from harness.history.seal import SPLITS, no_search_for_cycles
from harness.history.tables import BATCH_ROWS
from harness.importers.jepsen import imported_tables, nemesis
from harness.importers.jepsen.operation_forms import Names
from harness.importers.jepsen.pairing import BANKS, LISTS, REGISTERS, Pairing
from harness.importers.jepsen.parallel_reader import later_parts
from harness.importers.jepsen.reader import Clock, opened
from harness.protocols.client import READ_WRITE
from harness.protocols.promise import Declaration, Promise

LIST_APPEND, REGISTER, BANK, RW_REGISTER = "list-append", "register", "bank", "rw-register"
_ALWAYS = ("statistics", "evidence")
# The checkers of a workload; gaps in availability only where times are real.
CHECKERS = {
    LIST_APPEND: (LIST_APPEND, "lost-write", *_ALWAYS),
    REGISTER: (REGISTER, *_ALWAYS),
    BANK: (BANK, *_ALWAYS),
    RW_REGISTER: (RW_REGISTER, *_ALWAYS),
}

# The workloads that histories of a kind can be judged as; those of plug-ins are not restricted.
_JUDGES = {LISTS: (LIST_APPEND,), REGISTERS: (REGISTER, BANK, RW_REGISTER), BANKS: (BANK,)}


@attrs.frozen(kw_only=True)
class ImportedHistory:
    """The tables of an imported history, in memory; as ``load.History``.

    ``keys`` (key, name) maps numbers to the keys that are no integers in the file. ``remarks`` is
    the number of operations of no client (the nemesis); they are ``notes()``. ``operations`` counts
    everything in the file, ``incomplete`` the transactions without a completion. ``real_time``:
    times are the file's own.
    """

    manifest: Manifest
    keys: pa.Table
    operations: int
    remarks: int
    incomplete: int
    real_time: bool
    _transactions: pa.Table
    _micro_ops: tuple[pa.Table, ...]
    _notes: pa.Table
    _faults: pa.Table

    def transactions(self) -> pa.Table:
        """One row a transaction, in the order of invocation (``schema.TRANSACTIONS``)."""
        return self._transactions

    def micro_ops(self, split: int | None = None) -> pa.Table:
        """One row a micro-operation of ``split``, or of all splits one after the other."""
        return pa.concat_tables(self._micro_ops) if split is None else self._micro_ops[split]

    def faults(self) -> pa.Table:
        """One row per act of a nemesis and its undoing, as the file records them (``nemesis``)."""
        return self._faults

    def events(self) -> pa.Table:
        """No row: Jepsen does not collect events of stores."""
        return schema.EVENTS.empty_table()

    def notes(self) -> pa.Table:
        """One row an operation of no client (``schema.NOTES``)."""
        return self._notes


def read_jepsen(
    path: Path,
    *,
    workload: str | None = None,
    bank: BankRules | None = None,
    splits: int = SPLITS,
    clock: Clock = lambda: 0.0,
) -> ImportedHistory:
    """The history in ``path``, which may be compressed with gzip.

    ``workload`` is inferred from the operations where it is not given. ``clock`` returns the
    seconds of processor time spent, which are limited by the size of the file. Raises
    ``MalformedHistory``, naming file, line and reason, for a file that is no whole history whose
    operations pair up, and ``UsageError`` for one that no checker can judge.
    """
    schema.check_splits(splits)
    file = str(path)
    names = Names()
    pairing = Pairing(file, names)
    with (
        no_search_for_cycles(),
        opened(path, names, clock) as reading,
        later_parts(reading, file) as later,
    ):
        with pairing.refusing_in_order():
            for number, part in enumerate(later):
                for operations, lines in reading.batches(until=part.begin):
                    pairing.add(operations, lines)
                if not part.taken_by(reading, pairing):
                    for left in later[number:]:
                        left.stop()
                    break
            for operations, lines in reading.batches():
                pairing.add(operations, lines)
        pairing.finish()
    if not pairing.transactions.process:
        raise MalformedHistory(file, "", "expected operations of clients, found none")
    workload = _workload(pairing, workload, file)
    if bank is not None and pairing.kind != BANKS:
        found = pairing.kind or "operations without values"
        raise UsageError(f"{file}: a bank's total was given; expected {BANKS}, found {found}")
    axis = imported_tables.axis(pairing)
    transactions = imported_tables.transactions(pairing, axis.at_ns)
    steps = sum(len(piece.txn) for piece in pairing.steps)
    try:
        micro_ops, keys = imported_tables.micro_ops(pairing, names, splits, file)
    except pa.ArrowException as error:
        # Only by count: lists of more than 2**31 elements in all have no place in one column.
        raise MalformedHistory(file, "", f"it is too large for the tables: {error}") from error
    return ImportedHistory(
        manifest=_manifest(
            Origin(
                file=path.name,
                operations=pairing.operations,
                remarks=len(pairing.remarks),
                incomplete=pairing.incomplete,
                real_time=axis.real,
                bank=bank or BankRules(),
            ),
            workload,
            splits,
            RecordCounts(transactions=len(pairing.transactions.process), micro_ops=steps),
        ),
        keys=keys,
        operations=pairing.operations,
        remarks=len(pairing.remarks),
        incomplete=pairing.incomplete,
        real_time=axis.real,
        transactions=transactions,
        micro_ops=micro_ops,
        notes=imported_tables.notes(pairing.remarks, axis.at_ns),
        faults=nemesis.faults(pairing.remarks, axis.at_ns),
    )


def import_run(
    path: Path,
    run: RunDirectory,
    *,
    workload: str | None = None,
    bank: BankRules | None = None,
    clock: Clock = lambda: 0.0,
) -> History:
    """Import ``path`` into the empty or absent directory ``run``: a sealed run like any other.

    Raises ``MalformedHistory``, ``UsageError`` where there is a run already, and ``HarnessError``
    where the disk refuses.
    """
    if run.manifest.exists():
        raise UsageError(f"{run.root}: expected an empty directory, found a run")
    history = read_jepsen(path, workload=workload, bank=bank, clock=clock)
    try:
        run.root.mkdir(parents=True, exist_ok=True)
        checksums = _write(history, run)
        sized = sizes(run, checksums)
    except OSError as error:
        raise durable_files.disk_failure(
            "import into", run.root, error, "the tables are missing"
        ) from error
    written = {"run_id": run.root.name, "checksums": checksums, "sizes": sized}
    # Last: until it is there, the directory is no run, and may be imported into again.
    write_manifest(run, replace(history.manifest, **written))
    return load(run)


def _write(history: ImportedHistory, run: RunDirectory) -> dict[str, str]:
    splits = history.manifest.splits
    sink = ParquetSink(run, splits)
    try:
        transactions = history.transactions()
        _put(sink, TRANSACTIONS, transactions)
        for number in range(splits):
            steps = schema.of_split(history.micro_ops(number), transactions)
            _put(sink, micro_ops_name(number), steps)
        _put(sink, FAULTS, history.faults())
        _put(sink, EVENTS, history.events())
        _put(sink, NOTES, history.notes())
        checksums = sink.publish()
    finally:
        sink.abandon()
    return checksums | _write_keys(history, run)


def _put(sink: ParquetSink, name: str, table: pa.Table) -> None:
    # Each piece becomes a row group: readers hold one of them at a time.
    for start in range(0, table.num_rows, BATCH_ROWS):
        sink.put(name, table.slice(start, BATCH_ROWS))


def _write_keys(history: ImportedHistory, run: RunDirectory) -> dict[str, str]:
    if not history.keys.num_rows:
        return {}
    # By a descriptor: a link that is planted meanwhile leads nowhere.
    with durable_files.held(run.history) as directory:
        path = directory / KEYS_FILE
        unfinished = durable_files.begin(path)
        pq.write_table(history.keys, unfinished, compression="zstd")
        durable_files.publish(unfinished, path)
        checksum = regular_files.sha256(path)
    return {(run.history / KEYS_FILE).relative_to(run.root).as_posix(): checksum}


def _workload(pairing: Pairing, asked: str | None, file: str) -> str:
    """The workload to judge the history as: ``asked``, or the one of its operations. Raises
    ``UsageError`` where no checker can judge it.
    """
    able = _JUDGES.get(pairing.kind or "", (REGISTER,))
    if asked is not None and asked not in CHECKERS:
        return asked
    if pairing.kind is not None and asked is not None and asked not in able:
        raise UsageError(f"{file}: expected a history of {asked}, found {pairing.kind}")
    several = pairing.longest > 1
    chosen = asked or (RW_REGISTER if able[0] == REGISTER and several else able[0])
    if chosen == REGISTER and several:
        raise UsageError(
            f"{file}: expected one operation on a register at a time, found transactions of up to "
            f"{pairing.longest}: judge it as {RW_REGISTER}"
        )
    return chosen


def _manifest(origin: Origin, workload: str, splits: int, recorded: RecordCounts) -> Manifest:
    checkers = CHECKERS.get(workload, (workload, *_ALWAYS))
    return Manifest(
        schema_version=SCHEMA_VERSION,
        run_id=origin.file,
        state=SEALED,
        versions={},
        machine={},
        declaration=Declaration(
            system="jepsen", mode="imported", promises=(Promise(kind=READ_WRITE),)
        ),
        workload=workload,
        checkers=(*checkers, "availability") if origin.real_time else checkers,
        splits=splits,
        key_hash=schema.KEY_HASH,
        origin=origin,
        recorded=recorded,
    )
