"""The tables of an analysis: from a sealed run's files, or from memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from checkers.engine.arrays import Ints
from checkers.engine.split import Split, split_of_steps
from harness.errors import InvariantError, MalformedHistory, UsageError
from harness.history import schema
from harness.history.parquet import batches
from harness.history.records import MicroOp
from harness.history.regular_files import regular
from harness.protocols.checker import KEY_COLUMNS
from harness.protocols.finding import RecordedOperation


@attrs.frozen(kw_only=True)
class Source:
    """The transactions as a table, the micro-operations split by split.

    All micro-operations of a key are in one split. Transactions are dense: row i is transaction i.
    """

    _loaded: pa.Table | None = None
    _files: tuple[Path, ...] = ()
    _transactions_file: Path | None = None
    _columns: tuple[str, ...] | None = None
    _tables: tuple[pa.Table, ...] = ()

    @classmethod
    def of_files(
        cls,
        transactions: Path,
        micro_ops: tuple[Path, ...],
        *,
        columns: tuple[str, ...] | None = None,
    ) -> Source:
        """Open a sealed history, all columns of its transactions or only ``columns``."""
        # A task on Spark reads them from another working directory than this process's.
        return cls(
            files=tuple(file.absolute() for file in micro_ops),
            transactions_file=transactions.absolute(),
            columns=columns,
        )

    @classmethod
    def of_tables(cls, transactions: pa.Table, *micro_ops: pa.Table) -> Source:
        """Wrap tables in memory, one of micro-operations per split."""
        return cls(loaded=_dense(transactions, "transactions"), tables=micro_ops)

    @cached_property
    def transactions(self) -> pa.Table:
        """The transactions, read when they are first asked for. Raises ``MalformedHistory`` where
        they are not dense.
        """
        if self._loaded is not None:
            return self._loaded
        file = self._transactions_file
        if file is None:
            raise InvariantError("a history without transactions, in memory or in a file")
        wanted = None if self._columns is None else list(self._columns)
        # In one piece: taking a few rows of a column of many pieces joins them each time.
        return _dense(_read(file, columns=wanted).combine_chunks(), file.name)

    @cached_property
    def count(self) -> int:
        """The number of transactions."""
        if self._loaded is not None or self._transactions_file is None:
            return int(self.transactions.num_rows)
        return int(pq.read_metadata(regular(self._transactions_file)).num_rows)

    def pieces(self, columns: tuple[str, ...] = KEY_COLUMNS) -> Iterator[pa.Table]:
        """Yield ``columns`` of the transactions in their order, a part at a time and at least one:
        of a history in files no more is in memory. Raises as ``transactions`` does.
        """
        if self._loaded is not None or self._transactions_file is None or not self.count:
            yield self.transactions.select(columns)
            return
        wanted, begin = list(dict.fromkeys(("txn", *columns))), 0
        names = [name for name in _NAMES if name in wanted]
        with pq.ParquetFile(regular(self._transactions_file), read_dictionary=names) as source:
            for batch in batches(source, wanted, PIECE_ROWS):
                piece = pa.Table.from_batches([batch])
                _dense(piece, self._transactions_file.name, begin)
                begin += piece.num_rows
                yield piece.select(columns)

    @property
    def splits(self) -> int:
        """The number of splits."""
        return len(self._files) or len(self._tables)

    def size_of(self, split: int) -> tuple[int, int]:
        """Return the rows and the bytes of ``split``, as they are stored."""
        if not self._files:
            return self._tables[split].num_rows, self._tables[split].nbytes
        file = regular(self._files[split])
        return int(pq.read_metadata(file).num_rows), file.stat().st_size

    def micro_ops(self, split: int) -> pa.Table:
        """Return every micro-operation of the keys of ``split``."""
        return _read(self._files[split]) if self._files else self._tables[split]

    def split(self, number: int) -> Split:
        """Return split ``number`` by itself; its file is all that is read, unless it is of version
        1 of the tables.
        """
        steps = self.micro_ops(number)
        told = set(schema.OF_TRANSACTION) <= set(steps.column_names)
        return split_of_steps(steps, None if told else self.transactions)

    def unread(self) -> Source:
        """Return the same files without what was read of them, for a task elsewhere."""
        return attrs.evolve(self)

    def between(self, low: int, high: int, among: Ints | None = None) -> pa.Table:
        """Return ``KEY_COLUMNS`` of the transactions ``low`` to before ``high``, or of those
        ``among`` them, ascending; numbered anew from 0.
        """
        file = self._transactions_file
        if file is None:
            table = _rows_between(self.transactions.select(KEY_COLUMNS), 0, low, high, among)
        else:
            begin, columns = 0, list(KEY_COLUMNS)
            with pq.ParquetFile(regular(file), read_dictionary=_KEY_NAMES) as source:
                parts = [source.read_row_groups([], columns=columns)]
                for group in range(source.num_row_groups):
                    end = begin + source.metadata.row_group(group).num_rows
                    if end > low and begin < high:
                        rows = source.read_row_group(group, columns=columns)
                        parts.append(_rows_between(rows, begin, low, high, among))
                    begin = end
            table = pa.concat_tables(parts).unify_dictionaries()
        numbers = pa.array(np.arange(table.num_rows), pa.int64())
        at = table.column_names.index("txn")
        return table.set_column(at, "txn", numbers).combine_chunks()

    def operations(self, txns: tuple[int, ...]) -> dict[int, RecordedOperation]:
        """Return the operations ``txns``; see ``Lookup``. Raises ``UsageError`` for one that is not
        in the history: a checker asked for it.
        """
        strange = [txn for txn in txns if not 0 <= txn < self.count]
        if strange:
            expected = f"transactions of the history, from 0 to below {self.count}"
            raise UsageError(f"operations: expected {expected} (got {strange[0]})")
        ops: dict[int, list[MicroOp]] = {txn: [] for txn in sorted(set(txns))}
        steps: list[dict[str, Any]] = []
        # Without a transaction to look for, no file is read.
        for split in range(self.splits if ops else 0):
            steps += self._steps_of(split, list(ops)).to_pylist()
        for step in sorted(steps, key=lambda row: (row["txn"], row["pos"])):
            value = step["value"] if step["elements"] is None else tuple(step["elements"])
            ops[step["txn"]].append(MicroOp(step["f"], step["key"], value))
        rows = self._rows(list(ops))
        return {t: _operation(rows[t], tuple(own)) for t, own in ops.items()}

    def _rows(self, txns: list[int]) -> dict[int, pa.Table]:
        """Return the row of each of ``txns``, ascending; row t is transaction t."""
        if self._loaded is not None or self._transactions_file is None:
            return {txn: self.transactions.slice(txn, 1) for txn in txns}
        found: dict[int, pa.Table] = {}
        with pq.ParquetFile(regular(self._transactions_file)) as source:
            begin, left = 0, list(txns)
            for group in range(source.num_row_groups):
                end = begin + source.metadata.row_group(group).num_rows
                here = [txn for txn in left if txn < end]
                if here:
                    table = source.read_row_group(group)
                    found |= {txn: table.slice(txn - begin, 1) for txn in here}
                left, begin = left[len(here) :], end
        return found

    def _steps_of(self, split: int, txns: list[int]) -> pa.Table:
        among = pc.field("txn").isin(txns)
        if self._files:
            # Files are sorted by transaction: most row groups are passed over unread.
            return pq.read_table(regular(self._files[split]), filters=among)
        return self._tables[split].filter(among)

    @contextmanager
    def on_disk(self, scratch: Path) -> Iterator[Source]:
        """Yield the same source as files, for executors whose workers are other processes."""
        if self._files:
            yield self
            return
        transactions = scratch / "transactions.parquet"
        files = tuple(scratch / f"micro_ops-{i:04}.parquet" for i in range(self.splits))
        pq.write_table(self.transactions, transactions)
        for file, table in zip(files, self._tables, strict=True):
            pq.write_table(table, file)
        yield Source.of_files(transactions, files)

    def names(self) -> tuple[str, tuple[str, ...]]:
        """The files of transactions and splits as they were given."""
        if self._transactions_file is None:
            raise InvariantError("names of the files of a history that is in memory")
        return str(self._transactions_file), tuple(str(file) for file in self._files)

    def elsewhere(self, transactions: Path, splits: tuple[Path, ...]) -> Source:
        """Return the same history by other paths of the same files."""
        return attrs.evolve(self, transactions_file=transactions, files=splits)

    def paths(self) -> tuple[str, tuple[str, ...]]:
        """The files of transactions and splits; only of a source that is on disk."""
        if self._transactions_file is None:
            raise InvariantError("paths of a history that is in memory, not in files")
        names = (str(file.absolute()) for file in self._files)
        return str(self._transactions_file.absolute()), tuple(names)


# Rows of transactions in memory at a time, where one after the other is enough: some 10 MB.
PIECE_ROWS = 131_072
# Columns of few names with many repetitions, read as dictionaries: otherwise a history of ten
# million makes a hundred million small strings.
_NAMES = ("kind", "type", "node", "error", "phase", "f")
_KEY_NAMES = [name for name in KEY_COLUMNS if name in _NAMES]


def _read(file: Path, columns: list[str] | None = None) -> pa.Table:
    table = pq.read_table(
        regular(file), columns=columns, read_dictionary=_NAMES
    ).unify_dictionaries()
    for place, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type):
            whole = table.column(place).combine_chunks()
            table = table.set_column(place, field, whole)
    return table


def _rows_between(table: pa.Table, begin: int, low: int, high: int, among: Ints | None) -> pa.Table:
    """Return the rows of ``table``, whose first one is ``begin``, from ``low`` to before ``high``,
    or those ``among`` them.
    """
    if among is not None:
        first, last = np.searchsorted(among, (begin, begin + table.num_rows))
        return table.take(pa.array(among[first:last] - begin))
    first, last = (min(max(end - begin, 0), table.num_rows) for end in (low, high))
    return table.slice(first, last - first)


def _dense(table: pa.Table, name: str, begin: int = 0) -> pa.Table:
    txn = table.column("txn").to_numpy()
    if not np.array_equal(txn, np.arange(begin, begin + len(txn))):
        raise MalformedHistory(name, "column txn", "must be 0, 1, 2 ... in order")
    return table


def _operation(row: pa.Table, ops: tuple[MicroOp, ...]) -> RecordedOperation:
    shown = ("txn", "process", "kind", "type", "node", "invoke_ns", "complete_ns", "error")
    # A history in memory may lack the columns that an importer adds.
    (fields,) = row.select([name for name in shown if name in row.column_names]).to_pylist()
    return RecordedOperation(**fields, ops=ops)
