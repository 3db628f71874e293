"""Parquet files of a run: written so that all appear at once, read only where the footer is
plausible and true of the pages, since a few kilobytes may claim rows and elements that no memory
holds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from harness.errors import MalformedHistory
from harness.history import durable_files, regular_files
from harness.history.evidence import require_checksum
from harness.history.layout import (
    KEYS,
    KEYS_FILE,
    TRANSACTIONS,
    micro_ops_name,
    table_names,
    table_path,
    table_schema,
)
from harness.history.page_headers import PageMismatch, RepeatedTexts, require_agreement
from harness.history.regular_files import open_regular, regular
from harness.history.run_directory import RunDirectory
from harness.history.schema import without_later, without_values

# Columns whose values are all different and near to those beside them: as differences they take a
# third of what a dictionary takes, and half of the time to read.
ASCENDING = frozenset(
    ("txn", "intended_ns", "invoke_ns", "complete_ns", "invoke_index", "complete_index", "wall_ns")
)
# Told of each file before its footer is looked at, and "" once it was: some footers, those of
# encrypted columns, end the process that reads them, without an exception.
OPENING: ContextVar[Callable[[str], None]] = ContextVar("OPENING", default=lambda _path: None)
ROWS_ALWAYS = 20_000
# Of any table but the history itself: an hour of every fault has at most 0.23 (entries of the
# logs of five replicas).
ROWS_PER_BYTE = 1.0
VALUES_ALWAYS = 10_000_000
# Of one column, the elements of lists counted: an hour of every fault has 0.5.
VALUES_PER_BYTE = 64
UNCOMPRESSED_ALWAYS_BYTES = 64 << 20
# As for a history that is imported; an hour of every fault has 2.4.
UNCOMPRESSED_PER_BYTE = 200


def batches(
    source: pq.ParquetFile, columns: Sequence[str], rows: int = 65_536
) -> Iterator[pa.RecordBatch]:
    """Yield ``columns`` of ``source`` in its order, at most so many ``rows`` at a time: group by
    group, since one pass over all groups keeps what it has read of each until its end.
    """
    for group in range(source.num_row_groups):
        yield from source.iter_batches(rows, row_groups=[group], columns=list(columns))


class ParquetSink:
    """Writes tables piece by piece under partial names. Methods raise ``OSError``."""

    def __init__(self, run: RunDirectory, splits: int) -> None:
        """Open every table of ``run`` for writing."""
        self._paths = {name: table_path(run, name) for name in table_names(splits)}
        self._names = {
            name: path.relative_to(run.root).as_posix() for name, path in self._paths.items()
        }
        self._held = contextlib.ExitStack()
        self._unfinished: dict[str, Path] = {}
        self._late: dict[str, list[pa.Table]] = {}
        self._writers: dict[str, pq.ParquetWriter] = {}
        try:
            run.root.mkdir(parents=True, exist_ok=True)
            self._history = self._held.enter_context(durable_files.held(run.history, make=True))
            for directory in (run.root, self._history):
                durable_files.remove_partials(directory)
            for name, path in self._paths.items():
                at = self._history / path.name if path.parent == run.history else path
                self._paths[name], self._unfinished[name] = at, durable_files.begin(at)
                self._writers[name] = writer(self._unfinished[name], table_schema(name))
        except OSError:
            self.abandon()
            raise

    def put(self, name: str, piece: pa.Table, *, late: bool = False) -> None:
        """Append rows; ``late`` ones are merged into their place by ``publish``."""
        if piece.num_rows == 0:
            return
        if late:
            self._late.setdefault(name, []).append(piece)
        else:
            # A row group a piece: ``_woven`` holds no more than one of them in memory.
            self._writers[name].write_table(piece, row_group_size=piece.num_rows)

    def publish(self) -> dict[str, str]:
        """Finish and rename the files; returns their checksums by relative path."""
        for writer in self._writers.values():
            writer.close()
        for name, pieces in self._late.items():
            _merge(self._unfinished[name], pa.concat_tables(pieces))
        for name, path in self._paths.items():
            durable_files.publish(self._unfinished[name], path)
        self._forget_others()
        checksums = {
            self._names[name]: regular_files.sha256(path) for name, path in self._paths.items()
        }
        self._held.close()
        return checksums

    def abandon(self) -> None:
        """Remove the written files. Never raises."""
        for writer in self._writers.values():
            with contextlib.suppress(OSError, pa.ArrowException):
                writer.close()
        for path in self._unfinished.values():
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        self._held.close()

    def _forget_others(self) -> None:
        """Remove further splits, which an attempt that died may have left."""
        for path in sorted(self._history.glob("*.parquet")):
            if path not in self._paths.values():
                path.unlink()


class SideTable:
    """A table of a run beside its history, written piece by piece under a name that readers ignore,
    and then published whole and durable under its own.
    """

    def __init__(self, root: Path, name: str, columns: pa.Schema, missing: str) -> None:
        """Begin ``root / name``. ``missing`` is what the run lacks without it, for errors. Raises
        ``HarnessError``.
        """
        self._name, self._path, self._missing = name, root / name, missing
        try:
            self._unfinished = durable_files.begin(self._path)
        except OSError as error:
            raise durable_files.disk_failure("write", self._path, error, missing) from error
        with self._writing():
            self._writer = writer(self._unfinished, columns)

    def add(self, piece: pa.Table) -> None:
        """Append rows. Raises ``HarnessError``."""
        with self._writing():
            self._writer.write_table(piece)

    def publish(self) -> dict[str, str]:
        """Give the table its name; returns its checksum by name. Raises ``HarnessError``."""
        with self._writing():
            self._writer.close()
            durable_files.publish(self._unfinished, self._path)
            return {self._name: regular_files.sha256(self._path)}

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            with contextlib.suppress(OSError):
                self._unfinished.unlink(missing_ok=True)
            raise durable_files.disk_failure("write", self._path, error, self._missing) from error


def write_side_table(root: Path, name: str, table: pa.Table, missing: str) -> dict[str, str]:
    """Make ``table`` the file ``name`` of the run in ``root``, whole and durable, or leave it as it
    was; returns its checksum by name. Raises ``HarnessError``, which says what is ``missing``.
    """
    side = SideTable(root, name, table.schema, missing)
    side.add(table)
    return side.publish()


def writer(path: Path, like: pa.Schema) -> pq.ParquetWriter:
    """Open ``path`` for pieces of a table with the columns ``like``, as sealed runs have them."""
    near = {f.name for f in like if f.name in ASCENDING and pa.types.is_integer(f.type)}
    return pq.ParquetWriter(
        str(path),
        like,
        compression="zstd",
        use_dictionary=[_leaf(field) for field in like if field.name not in near],
        column_encoding=dict.fromkeys(near, "DELTA_BINARY_PACKED"),
    )


def _leaf(field: pa.Field) -> str:
    """Return the name that Parquet gives to the values of a column."""
    if not pa.types.is_list(field.type):
        return str(field.name)
    return f"{field.name}.list.{field.type.value_field.name}"


def rows_of(run: RunDirectory, splits: int) -> tuple[int, int]:
    """How many transactions, and how many micro-operations, the tables of ``run`` hold. Raises
    ``OSError``.
    """
    rows = {
        name: int(pq.read_metadata(regular(table_path(run, name))).num_rows)
        for name in (TRANSACTIONS, *map(micro_ops_name, range(splits)))
    }
    return rows.pop(TRANSACTIONS), sum(rows.values())


def _merge(path: Path, late: pa.Table) -> None:
    """Rewrite ``path`` with the rows of ``late`` in their places; both are sorted."""
    merged = durable_files.begin(path)
    try:
        with pq.ParquetFile(path) as source, writer(merged, late.schema) as sink:
            for piece in _woven(source, late):
                sink.write_table(piece, row_group_size=max(1, piece.num_rows))
        merged.replace(path)
    finally:
        merged.unlink(missing_ok=True)


def _woven(source: pq.ParquetFile, late: pa.Table) -> Iterator[pa.Table]:
    order = [(name, "ascending") for name in ("txn", "pos") if name in late.column_names]
    txns = late.column("txn").to_numpy()
    taken = 0
    for number in range(source.num_row_groups):
        group = source.read_row_group(number)
        # Late rows up to the last of this group are in their place once it is sorted with them.
        until = int(np.searchsorted(txns, pc.max(group.column("txn")).as_py()))
        yield pa.concat_tables([group, late.slice(taken, until - taken)]).sort_by(order)
        taken = until
    yield late.slice(taken)


def require_plausible(path: Path, *, rows_per_byte: float = ROWS_PER_BYTE) -> pa.Schema:
    """The schema of the Parquet file ``path``, whose footer claims no more than its size may hold.

    Raises ``MalformedHistory`` where it claims more, and for a file that is no Parquet.
    """
    OPENING.get()(str(path))
    found = _plausible(path, rows_per_byte)
    OPENING.get()("")
    return found


def _plausible(path: Path, rows_per_byte: float) -> pa.Schema:
    try:
        size = regular(path).stat().st_size
        with pq.ParquetFile(path) as file:
            found, metadata = file.schema.to_arrow_schema(), file.metadata
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise MalformedHistory(str(path), "", f"it is no Parquet file: {error}") from error
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    # A forged footer may contradict itself, and readers allocate by either figure.
    rows = max(metadata.num_rows, sum(group.num_rows for group in groups))
    columns = [[group.column(number) for group in groups] for number in range(metadata.num_columns)]
    values = max((sum(c.num_values for c in chunks) for chunks in columns), default=0)
    whole = sum(c.total_uncompressed_size for chunks in columns for c in chunks)
    most_bytes = max(UNCOMPRESSED_ALWAYS_BYTES, UNCOMPRESSED_PER_BYTE * size)
    _require_most(path, "rows", rows, max(ROWS_ALWAYS, int(rows_per_byte * size)))
    _require_most(path, "values in a column", values, max(VALUES_ALWAYS, VALUES_PER_BYTE * size))
    _require_most(path, "bytes once decompressed", whole, most_bytes)
    try:
        with open_regular(path) as content:
            repeated = require_agreement(content, metadata, size)
        # What can't be too much need not be counted: of a column with few names, that is.
        if sum(texts.most_bytes for texts in repeated) > most_bytes:
            _require_most(
                path, "bytes of texts", whole + _repeated_bytes(path, repeated), most_bytes
            )
    except (PageMismatch, OSError, pa.ArrowException, UnicodeDecodeError) as error:
        reason = f"expected pages as its footer tells of them, found {error}"
        raise MalformedHistory(str(path), "", reason) from error
    return found


def _require_most(path: Path, what: str, claimed: int, most: int) -> None:
    if not 0 <= claimed <= most:
        reason = f"expected at most {most:,} {what} in a file of its size, found {claimed:,}"
        raise MalformedHistory(str(path), "", reason)


def _repeated_bytes(path: Path, repeated: Sequence[RepeatedTexts]) -> int:
    """How many bytes the texts of these column chunks have once each row holds its own. They are
    read as the file has them: each text once, and each row's place of it.
    """
    total = 0
    paths = sorted({texts.path for texts in repeated})
    with pq.ParquetFile(regular(path), read_dictionary=paths) as file:
        for texts in repeated:
            column = file.read_row_group(texts.group, columns=[texts.path]).column(0)
            for piece in column.chunks:
                while not pa.types.is_dictionary(piece.type):
                    piece = piece.flatten()
                lengths = pc.binary_length(piece.dictionary).cast(pa.int64())
                total += pc.sum(lengths.take(piece.indices)).as_py() or 0
    return total


def read_key_names(run: RunDirectory, checksums: Mapping[str, str]) -> pa.Table:
    """The names of an imported run's keys (``layout.KEYS``); empty where all keys were integers.
    Raises as ``read_summed``.
    """
    name = (run.history / KEYS_FILE).relative_to(run.root).as_posix()
    return next(iter(read_summed(run.root, checksums, {name: KEYS}).values()))


def read_summed(
    root: Path, checksums: Mapping[str, str], schemas: Mapping[str, pa.Schema]
) -> dict[str, pa.Table]:
    """The tables of ``root`` in the files that ``schemas`` names, by stem; empty ones of its schema
    where ``checksums``, the manifest's, names none.

    Raises ``MalformedHistory`` for a file that the manifest names and that is missing or differs,
    or has other columns.
    """
    found = {}
    for name, schema in schemas.items():
        path = root / name
        if name in checksums:
            require_checksum(path, checksums[name])
            columns = require_plausible(path)
            if not columns.equals(without_later(path.stem, schema, columns.names)):
                reason = f"expected the columns {schema.names}, found {columns.names}"
                if columns.names == schema.names:
                    reason = "expected the types of the columns here, found others"
                raise MalformedHistory(str(path), "", reason)
            found[path.stem] = _whole_table(path)
            if lacking := without_values(path.stem, found[path.stem]):
                reason = f"expected a value in each row of {', '.join(lacking)}, found rows without"
                raise MalformedHistory(str(path), "", reason)
        else:
            found[path.stem] = schema.empty_table()
    return found


def _whole_table(path: Path) -> pa.Table:
    try:
        return pq.read_table(regular(path))
    except (OSError, pa.ArrowException) as error:
        raise MalformedHistory(str(path), "", f"it can't be read: {error}") from error
