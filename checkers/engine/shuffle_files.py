"""What KEY kernels give a STRETCH kernel, in files where the tasks that made it ran, until it is
judged.

A task writes what its split comes to (the edges of a graph) sorted by stretches of time, and it
never comes together: a stretch is judged from its part of the files of all splits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import Ints, ints
from checkers.engine.kernel_output import KernelOutput, describe
from checkers.engine.plugin_contract import require_numbers
from checkers.engine.stretches import BACK_TABLE, Grid
from checkers.engine.transactions import OBSERVED_TABLE
from harness.errors import BrokenPlugin, HarnessError
from harness.protocols.checker import Kernel, Tables
from harness.protocols.windows import SPANNING

# Of what travels: a third of the bytes.
_PACKED = pa.ipc.IpcWriteOptions(compression="lz4")


@attrs.frozen(kw_only=True)
class ShuffleFiles:
    """The files in ``directory``, whose rows are sorted by the stretches of ``grid``."""

    directory: Path
    grid: Grid = attrs.field(factory=Grid)

    def write(self, kernels: Sequence[Kernel], split: int, tables: Tables) -> KernelOutput:
        """Write what ``kernels`` take of the ``tables`` of a split; return the others, what was
        written without its rows, ``BACK_TABLE``, and ``SPANNING`` where a kernel judges by windows.
        One that takes columns which a table lacks, or raises, is broken. Raises ``HarnessError``
        where the directory is not there.
        """
        self._require()
        broken: dict[str, str] = {}
        starved = False
        for kernel in kernels:
            try:
                for name in kernel.takes.keys() & tables.keys():
                    columns = kernel.takes[name]
                    require_numbers(kernel, name, tables[name], columns, lists=False)
            except BrokenPlugin as error:
                broken[kernel.name] = describe(error)
        kernels = [kernel for kernel in kernels if kernel.name not in broken]
        taken = {name: columns for kernel in kernels for name, columns in kernel.takes.items()}
        given = {name: table for name, table in tables.items() if name not in taken}
        for name, columns in taken.items():
            if name in tables:
                self._write_rows(self._file(name, split), tables[name], columns[0])
                given[name] = tables[name].slice(0, 0)
        ends = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        for kernel in (k for k in kernels if k.takes.keys() <= tables.keys()):
            # ``SystemExit`` as well: a broken plug-in must not end the analysis.
            try:
                if kernel.leads_back is not None:
                    high, low = kernel.leads_back(tables)
                    ends.append((np.asarray(high, np.int64), np.asarray(low, np.int64)))
                if kernel.windows is not None:
                    given[SPANNING] = kernel.windows.spanning(tables, self.grid.length, split)
            except (Exception, SystemExit) as error:
                broken[kernel.name] = describe(error)
                starved |= isinstance(error, MemoryError)
        high, low = (np.concatenate(column) for column in zip(*ends, strict=True))
        tables = {**given, BACK_TABLE: self.grid.back(high, low)}
        return KernelOutput(tables=tables, broken=broken, starved=starved)

    def _require(self) -> None:
        """Raise ``HarnessError`` where the directory is gone, or of another machine: no verdict
        may rest on rows that are missing here.
        """
        if not self.directory.is_dir():
            raise HarnessError(
                f"{self.directory}, where this analysis keeps the edges of its graph, is not there"
            )

    def read(
        self,
        name: str,
        low: int,
        high: int,
        columns: tuple[str, ...],
        among: Ints | None = None,
    ) -> pa.Table | None:
        """Return the rows of ``name`` whose ``columns`` all lie from ``low`` to before ``high``,
        less ``low``, of all splits in order; ``None`` where no split has such a table. With
        ``among``, ascending numbers in these bounds, those whose columns are all among them, as
        places there.
        """
        self._require()
        parts = []
        for file in self._files(name):
            with pa.memory_map(str(file)) as content, pa.ipc.open_file(content) as source:
                starts = msgspec.json.decode(source.schema.metadata[b"stretches"], type=list[int])
                schema = source.schema.remove_metadata()
                first, last = low // self.grid.length, (high - 1) // self.grid.length
                numbers = [n for n, at in enumerate(starts) if first <= at <= last]
                # A batch at a time: of what lies between, few rows may be among those asked for.
                parts.append(schema.empty_table())
                for number in numbers:
                    rows = pa.Table.from_batches([source.get_batch(number)], schema)
                    parts.append(
                        _within(rows, low, high, columns)
                        if among is None
                        else _among(rows, among, columns)
                    )
        return pa.concat_tables(parts).combine_chunks() if parts else None

    def pieces(self) -> Iterator[tuple[int, str, bytes]]:
        """Yield what lies here as files of one stretch each: its place on the grid, a name that
        sorts as its rows do, and the content.
        """
        for file in sorted(self.directory.glob("*.arrow")):
            with pa.memory_map(str(file)) as content, pa.ipc.open_file(content) as source:
                starts = msgspec.json.decode(source.schema.metadata[b"stretches"], type=list[int])
                for number, at in enumerate(starts):
                    schema = source.schema.with_metadata({"stretches": f"[{at}]"})
                    sink = pa.BufferOutputStream()
                    with pa.ipc.new_file(sink, schema, options=_PACKED) as piece:
                        piece.write_batch(source.get_batch(number))
                    yield at, f"{file.stem}-{at:08}.arrow", sink.getvalue().to_pybytes()

    def _files(self, name: str) -> list[Path]:
        """The files of ``name``, and not of one that begins so, in the order of splits."""
        # Of a split, or a piece of that of one stretch.
        ours = re.compile(rf"{re.escape(name)}-\d{{4,}}(-\d{{8,}})?\.arrow")
        return sorted(file for file in self.directory.iterdir() if ours.fullmatch(file.name))

    def _file(self, name: str, split: int) -> Path:
        return self.directory / f"{name}-{split:04}.arrow"

    def _write_rows(self, file: Path, table: pa.Table, column: str) -> None:
        at = table.column(column).to_numpy() // self.grid.length
        order = np.argsort(at.astype(np.int32), kind="stable")
        starts, counts = np.unique(at, return_counts=True)
        (rows,) = table.take(pa.array(order)).combine_chunks().to_batches() or [None]
        schema = table.schema.with_metadata({"stretches": msgspec.json.encode(starts.tolist())})
        unfinished = file.with_suffix(".tmp")
        with pa.ipc.new_file(str(unfinished), schema) as sink:
            begin = 0
            for count in counts.tolist():
                sink.write_batch(rows.slice(begin, count))
                begin += count
        # A task that is tried again must not be read half-written.
        unfinished.replace(file)


def _within(table: pa.Table, low: int, high: int, columns: tuple[str, ...]) -> pa.Table:
    numbers = [ints(table, name) for name in columns]
    inside = np.ones(table.num_rows, dtype=np.bool_)
    for number in numbers:
        inside &= (number >= low) & (number < high)
    table = table.filter(pa.array(inside))
    for name in columns:
        field = table.schema.field(name)
        own = pc.subtract(table.column(name), pa.scalar(low, field.type))
        table = table.set_column(table.column_names.index(name), field, own)
    return table


def _among(table: pa.Table, numbers: Ints, columns: tuple[str, ...]) -> pa.Table:
    inside, places = np.ones(table.num_rows, dtype=np.bool_), []
    for name in columns:
        number = ints(table, name)
        places.append(np.minimum(np.searchsorted(numbers, number), len(numbers) - 1))
        inside &= numbers[places[-1]] == number
    table = table.filter(pa.array(inside))
    for name, place in zip(columns, places, strict=True):
        field = table.schema.field(name)
        own = pa.array(place[inside]).cast(field.type)
        table = table.set_column(table.column_names.index(name), field, own)
    return table


def observed_within(
    tables: Tables, low: int, high: int, among: Ints | None = None
) -> dict[str, pa.Table]:
    """Return ``OBSERVED_TABLE``, whose readers are proven, of the transactions of a stretch, or of
    those ``among`` them.
    """
    if OBSERVED_TABLE not in tables:
        return {}
    table, columns = tables[OBSERVED_TABLE], ("writer",)
    rows = _within(table, low, high, columns) if among is None else _among(table, among, columns)
    return {OBSERVED_TABLE: rows}
