"""Loading a sealed history, once its checksums match those that sealing wrote."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

import attrs
import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from harness.errors import MalformedHistory
from harness.history import schema
from harness.history.consistency import contradictions
from harness.history.evidence import (
    NodeLogs,
    damaged_explanations,
    require_checksums,
    require_logs,
    require_logs_unchanged,
    require_unchanged,
    unnamed_tables,
)
from harness.history.layout import (
    EVENTS,
    FAULTS,
    NOTES,
    TRANSACTIONS,
    micro_ops_name,
    table_names,
    table_path,
    table_schema,
)
from harness.history.manifest import RUNNING, plan_drove, read_manifest
from harness.history.parquet import ROWS_PER_BYTE, batches, require_plausible
from harness.history.records import EventKind, OpType
from harness.history.regular_files import FileStamp, regular, stamp
from harness.history.run_directory import Manifest, RunDirectory
from harness.text import inert

# Their times differ, so that the densest history that can be recorded has 0.15; an imported one of
# operations that follow each other at equal distances, or without times, has 6.0.
TRANSACTIONS_PER_BYTE = 8
# What judges and draws a run holds its events in memory, some 350 bytes of each. An hour of every
# fault tells of 15,000, two days of 750,000.
EVENTS_MAX = 750_000
# Those that readers look at one by one, of each kind.
RARE_EVENTS_MAX = 50_000
COMMON_EVENTS = frozenset(
    (
        EventKind.LEASE_GRANTED,
        EventKind.LEASE_LOST,
        EventKind.LEADER_ELECTED,
        EventKind.LEADER_LOST,
        EventKind.ASSIGNMENTS_CHANGED,
        EventKind.DATA_NODES_CHANGED,
        EventKind.TOPOLOGY_CHANGED,
        EventKind.CONFIGURATION_CHANGED,
        EventKind.REBALANCE_STAGE,
        EventKind.LOG_TRUNCATED,
    )
)
# 64 equal reads in each of many transactions come to 13, and to 3 with the times of version 2.
STEPS_PER_BYTE = 16

_TYPES = tuple(sorted(type_.value for type_ in OpType))
_MICRO_OPS = re.compile(r"history/micro_ops-\d+\.parquet")


@attrs.frozen
class History:
    """A sealed run whose files match the manifest. Tables are read when they are requested.

    ``unnamed``: a sentence for each table or chunk that the manifest does not name,
    ``unexplained`` one for each file that would explain the run, and is damaged, ``contradictions``
    one for each that the manifest is in.
    """

    run: RunDirectory
    manifest: Manifest
    logs: NodeLogs
    unnamed: tuple[str, ...] = ()
    unexplained: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    _stamps: Mapping[Path, FileStamp | None] = {}

    def require_unchanged(self) -> None:
        """Raises ``MalformedHistory`` where the manifest or a file that it has a sum of is not the
        one any more that was summed: the tables may be of another. Of a log, whose lines may
        accuse, the sealed part must be the same. Called once all is read.
        """
        require_unchanged(self._stamps)
        require_logs_unchanged(self.logs)

    @property
    def planned(self) -> bool:
        """Whether a plan drove the history."""
        return plan_drove(self.run, self.manifest)

    @property
    def transactions_file(self) -> Path:
        """The Parquet file of ``transactions``."""
        return table_path(self.run, TRANSACTIONS)

    @property
    def micro_op_files(self) -> tuple[Path, ...]:
        """The Parquet files of ``micro_ops``, by split."""
        names = map(micro_ops_name, range(self.manifest.splits))
        return tuple(table_path(self.run, name) for name in names)

    def transactions(self) -> pa.Table:
        """One row a transaction, in the order of invocation (``schema.TRANSACTIONS``)."""
        return self._table(TRANSACTIONS)

    def micro_ops(self, split: int | None = None) -> pa.Table:
        """One row a micro-operation of ``split``, or of all splits one after the other.

        A split is sorted by (txn, pos) and holds every row of its keys (``schema.MICRO_OPS``).
        """
        splits = range(self.manifest.splits) if split is None else (split,)
        steps = schema.MICRO_OPS
        # What later files tell of transactions as well, ``transactions`` tells here.
        return pa.concat_tables(
            self._table(micro_ops_name(number), steps.names).replace_schema_metadata(steps.metadata)
            for number in splits
        )

    def faults(self) -> pa.Table:
        """One row a fault (``schema.FAULTS``)."""
        return self._table(FAULTS)

    def events(self, columns: Collection[str] = ()) -> pa.Table:
        """One row an event of the store, by mapped time (``schema.EVENTS``), with ``columns`` of
        its first version alone where any are given.
        """
        if not columns:
            return self._table(EVENTS)
        return self._table(EVENTS, list(columns)).select(list(columns))

    def notes(self) -> pa.Table:
        """One row a note, in the order of writing (``schema.NOTES``)."""
        return self._table(NOTES)

    def _table(self, name: str, columns: list[str] | None = None) -> pa.Table:
        path = table_path(self.run, name)
        try:
            with pq.ParquetFile(regular(path)) as source:
                return schema.with_later(name, source.read(columns), table_schema(name))
        except (OSError, pa.ArrowException) as error:
            raise MalformedHistory(str(path), "", f"it can't be read: {error}") from error


def load(run: RunDirectory) -> History:
    """The history of a sealed run (or of a recovered one).

    Raises ``MalformedHistory``, naming the file, the expected and the found state, where the run is
    not sealed, a file is missing or changed, or a version is not known here.
    """
    before = stamp(run.manifest)
    manifest = read_manifest(run)
    _require_readable(run, manifest)
    tables = {name: table_path(run, name) for name in table_names(manifest.splits)}
    for path in tables.values():
        if path.relative_to(run.root).as_posix() not in manifest.checksums:
            reason = f"expected a checksum of {path.name}, found none"
            raise MalformedHistory(str(run.manifest), "", reason)
    _require_splits(run, manifest)
    stamps = {run.manifest: before, **require_checksums(run, manifest)}
    for name, path in tables.items():
        _require_schema(path, name, table_schema(name))
    _require_few_events(tables[EVENTS])
    _require_transactions(tables, manifest)
    return History(
        run,
        manifest,
        require_logs(run, manifest),
        unnamed_tables(run, manifest),
        damaged_explanations(run, manifest),
        contradictions(run, manifest),
        stamps,
    )


def _require_splits(run: RunDirectory, manifest: Manifest) -> None:
    """The manifest names the files of as many splits as it counts, and of no more."""
    named = sum(_MICRO_OPS.fullmatch(name) is not None for name in manifest.checksums)
    if named != manifest.splits:
        reason = f"expected checksums of {manifest.splits} files of micro-operations, found {named}"
        raise MalformedHistory(str(run.manifest), "", reason)


def _require_transactions(tables: Mapping[str, Path], manifest: Manifest) -> None:
    """Each micro-operation is one of a transaction that is there, and of its type: the number of a
    transaction is its row, which the checkers count on. Each stands in the split of its key. There
    are as many of both as were recorded.
    """
    types = _types_by_row(tables[TRANSACTIONS])
    count, steps, splits = len(types), 0, manifest.splits
    for split, name in enumerate(map(micro_ops_name, range(splits))):
        for of_step, (txn, key) in _numbers(tables[name], "txn", "key"):
            if np.any(schema.splits_of(key, splits) != split):
                reason = f"expected the keys of split {split} of {splits}, found others"
                raise MalformedHistory(str(tables[name]), "", reason)
            if len(txn) and not 0 <= txn.min() <= txn.max() < count:
                found = f"found {txn.max() if txn.max() >= count else txn.min()}"
                reason = f"expected micro-operations of {count} transactions, {found}"
                raise MalformedHistory(str(tables[name]), "", f"{reason}: it is of another run")
            if (other := np.flatnonzero(types[txn] != of_step)).size:
                at = txn[other[0]]
                expected = f"expected the type {_TYPES[types[at]]} of transaction {at}"
                reason = f"{expected} in its micro-operations, found {_TYPES[of_step[other[0]]]}"
                raise MalformedHistory(str(tables[name]), "", reason)
            steps += len(txn)
    recorded = manifest.recorded
    if isinstance(recorded, msgspec.UnsetType):
        return  # by a version that did not count them
    if (count, steps) != (recorded.transactions, recorded.micro_ops):
        expected = f"{recorded.transactions} transactions of {recorded.micro_ops} micro-operations"
        reason = f"expected {expected}, as were recorded, found {count} of {steps}"
        raise MalformedHistory(str(tables[TRANSACTIONS].parent), "", reason)


def _types_by_row(path: Path) -> npt.NDArray[np.int8]:
    """The type of each transaction, as a place in ``_TYPES``: one byte each, of millions."""
    found = [np.empty(0, np.int8)]
    count = 0
    for types, (txn,) in _numbers(path, "txn"):
        if not np.array_equal(txn, np.arange(count, count + len(txn))):
            reason = "expected transactions numbered by their rows, found others"
            raise MalformedHistory(str(path), "", reason)
        found.append(types)
        count += len(txn)
    return np.concatenate(found)


def _require_few_events(path: Path) -> None:
    """No more events than can be held, before any of them is."""
    try:
        with pq.ParquetFile(regular(path)) as source:
            if (rows := source.metadata.num_rows) > EVENTS_MAX:
                reason = f"expected at most {EVENTS_MAX:,} events, found {rows:,}"
                raise MalformedHistory(str(path), "", reason)
            counted: Counter[str] = Counter()
            for piece in source.iter_batches(columns=["kind"]):
                for each in piece.column(0).value_counts().to_pylist():
                    counted[each["values"]] += each["counts"]
    except (OSError, pa.ArrowException) as error:
        raise MalformedHistory(str(path), "", f"it can't be read: {error}") from error
    for kind, count in sorted(counted.items()):
        if count > RARE_EVENTS_MAX and kind not in COMMON_EVENTS:
            expected = f"expected at most {RARE_EVENTS_MAX:,} events {inert(kind)!r}"
            raise MalformedHistory(str(path), "", f"{expected}, found {count:,}")


def _numbers(
    path: Path, *names: str
) -> Iterator[tuple[npt.NDArray[np.int8], list[npt.NDArray[np.int64]]]]:
    """The types, as places in ``_TYPES``, and the columns ``names`` of a table, piece by piece."""
    try:
        with pq.ParquetFile(regular(path), read_dictionary=["type"]) as source:
            for piece in batches(source, (*names, "type")):
                types = _places(path, piece.column("type"))
                yield types, [piece.column(name).to_numpy() for name in names]
    except (OSError, pa.ArrowException) as error:
        raise MalformedHistory(str(path), "", f"it can't be read: {error}") from error


def _places(path: Path, types: pa.DictionaryArray) -> npt.NDArray[np.int8]:
    names = types.dictionary.to_pylist()
    if unknown := [each for each in names if each not in _TYPES]:
        expected = f"expected the types {', '.join(_TYPES)}"
        raise MalformedHistory(str(path), "", f"{expected}, found {inert(unknown[0])!r:.80}")
    places = np.array([_TYPES.index(each) for each in names], np.int8)
    rows: npt.NDArray[np.int32] = types.indices.to_numpy()
    return places[rows]


def _require_readable(run: RunDirectory, manifest: Manifest) -> None:
    where = str(run.manifest)
    if manifest.state == RUNNING:
        reason = "expected a sealed run, found one that was never sealed (it can be recovered)"
        raise MalformedHistory(where, "", reason)
    if manifest.key_hash != schema.KEY_HASH:
        reason = f"expected the key hash {schema.KEY_HASH!r}, found {manifest.key_hash!r}"
        raise MalformedHistory(where, "", reason)
    if not 1 <= manifest.splits <= schema.MAX_SPLITS:
        reason = f"expected 1 to {schema.MAX_SPLITS} splits, found {manifest.splits}"
        raise MalformedHistory(where, "", reason)


def _require_schema(path: Path, name: str, expected: pa.Schema) -> None:
    """Called only after the checksum: Parquet readers are not hardened against untrusted bytes."""
    dense: float = TRANSACTIONS_PER_BYTE if name == TRANSACTIONS else ROWS_PER_BYTE
    if expected is schema.SPLIT:
        dense = STEPS_PER_BYTE
    found = require_plausible(path, rows_per_byte=dense)
    # The version of the schema is in its metadata.
    first = schema.without_later(name, expected, found.names)
    known = (expected, first, *((schema.MICRO_OPS,) if expected is schema.SPLIT else ()))
    if not any(found.equals(like, check_metadata=True) for like in known):
        reason = f"expected the columns {expected.names}, found {found.names}"
        if found.names == expected.names:
            reason = "expected the types and version of the schema here, found others"
        raise MalformedHistory(str(path), "", reason)
