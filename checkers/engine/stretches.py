"""Stretches of time: how what KEY kernels give stays where it was made until it is judged.

Transactions are numbered in the order of invocation. What a STRETCH kernel takes (the edges of a
graph) is written beside the history by each task, sorted by stretches of ``STRETCH`` numbers, and
never comes together: where nothing leads back over a number, no cycle passes it, so the history is
cut there, and a stretch is judged by a task from the files of all splits. What is told to decide
where, is a few hundred bytes a split and stretch.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import attrs
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import OK, TYPES, Bools, Ints, codes, ints
from checkers.engine.output import KernelOutput, describe
from checkers.engine.plugin_contract import require_numbers
from checkers.engine.transactions import OBSERVED_TABLE
from harness.errors import BrokenPlugin, HarnessError
from harness.protocols.checker import Kernel, Tables
from harness.protocols.windows import SPANNING, Window

# The least number of transactions of a stretch: their graph has a few million numbers.
STRETCH = 100_000
# A stretch begins at the first possible place of this many, or goes on: 512 bytes tell of them.
WINDOW = 4096

# By split: bits of the places of all windows over which something leads back, and of the stretches
# in which anything does.
BACK = pa.schema([("over", pa.binary()), ("within", pa.binary())])
BACK_TABLE = "stretches.back"


@attrs.frozen(kw_only=True)
class Laid:
    """The directory in which rows lie until a STRETCH kernel takes them, the least length of a
    stretch, and the most that one task judges.
    """

    directory: Path
    stretch: int = STRETCH
    most: int = attrs.field(default=attrs.Factory(lambda self: 2 * self.stretch, takes_self=True))

    def lay(self, kernels: Sequence[Kernel], split: int, tables: Tables) -> KernelOutput:
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
                self._write(self._file(name, split), tables[name], columns[0])
                given[name] = tables[name].slice(0, 0)
        ends = [(np.zeros(0, np.int64), np.zeros(0, np.int64))]
        for kernel in (k for k in kernels if k.takes.keys() <= tables.keys()):
            # ``SystemExit`` as well: a broken plug-in must not end the analysis.
            try:
                if kernel.leads_back is not None:
                    high, low = kernel.leads_back(tables)
                    ends.append((np.asarray(high, np.int64), np.asarray(low, np.int64)))
                if kernel.windows is not None:
                    given[SPANNING] = kernel.windows.spanning(tables, self.stretch, split)
            except (Exception, SystemExit) as error:
                broken[kernel.name] = describe(error)
                starved |= isinstance(error, MemoryError)
        high, low = (np.concatenate(column) for column in zip(*ends, strict=True))
        tables = {**given, BACK_TABLE: self._back(high, low)}
        return KernelOutput(tables=tables, broken=broken, starved=starved)

    def _require(self) -> None:
        """Raise ``HarnessError`` where the directory is gone, or of another machine: no verdict
        may rest on rows that are missing here.
        """
        if not self.directory.is_dir():
            raise HarnessError(
                f"{self.directory}, where this analysis keeps the edges of its graph, is not there"
            )

    def take(
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
                first, last = low // self.stretch, (high - 1) // self.stretch
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
                    with pa.ipc.new_file(sink, schema) as piece:
                        piece.write_batch(source.get_batch(number))
                    yield at, f"{file.stem}-{at:08}.arrow", sink.getvalue().to_pybytes()

    def _files(self, name: str) -> list[Path]:
        """The files of ``name``, and not of one that begins so, in the order of splits."""
        # Of a split, or a piece of that of one stretch.
        ours = re.compile(rf"{re.escape(name)}-\d{{4,}}(-\d{{8,}})?\.arrow")
        return sorted(file for file in self.directory.iterdir() if ours.fullmatch(file.name))

    def _file(self, name: str, split: int) -> Path:
        return self.directory / f"{name}-{split:04}.arrow"

    def _write(self, file: Path, table: pa.Table, column: str) -> None:
        at = table.column(column).to_numpy() // self.stretch
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

    def _back(self, high: Ints, low: Ints) -> pa.Table:
        order = np.argsort(low, kind="stable")
        low, high = low[order], high[order]
        reach = np.maximum.accumulate(high) if len(high) else high
        stretches = int(reach[-1]) // self.stretch + 1 if len(reach) else 0
        places = self.places(stretches)
        # The farthest that anything which begins before a place leads back from.
        at = np.searchsorted(low, places, side="left") - 1
        over = (at >= 0) & (reach[np.maximum(at, 0)] >= places) if len(reach) else at >= 0
        steps = np.zeros(stretches + 1, dtype=np.int64)
        np.add.at(steps, low // self.stretch, 1)
        np.add.at(steps, high // self.stretch + 1, -1)
        within = np.cumsum(steps)[:-1] > 0
        bits = [np.packbits(marks).tobytes() for marks in (over, within)]
        return pa.table({"over": [bits[0]], "within": [bits[1]]}, schema=BACK)

    def places(self, stretches: int) -> Ints:
        """Return the numbers before which the first ``stretches`` may be cut."""
        window = min(WINDOW, self.stretch)
        grid = np.arange(stretches) * self.stretch
        return np.asarray((grid[:, None] + np.arange(window)).ravel(), dtype=np.int64)

    def stretches(self, back: pa.Table, count: int, whole: bool) -> list[tuple[int, int]]:
        """Return the stretches of ``count`` transactions in which anything leads back: the first
        transaction and the one after the last. ``whole``: all of them, if any does.
        """
        most = -(-count // self.stretch)
        over, within = np.zeros(len(self.places(most)), np.bool_), np.zeros(most, np.bool_)
        for row in back.to_batches():
            for name, marks in (("over", over), ("within", within)):
                for told in row.column(name).to_pylist():
                    found = np.unpackbits(np.frombuffer(told, np.uint8))[: len(marks)]
                    marks[: len(found)] |= found.astype(np.bool_)
        cuts = [] if whole else self._cuts(over, count)
        bounds = zip([0, *cuts], [*cuts, count], strict=True)
        return [
            (low, high)
            for low, high in bounds
            if within[low // self.stretch : (high - 1) // self.stretch + 1].any()
        ]

    def windows(self, stretches: Sequence[tuple[int, int]], begins: Ints) -> tuple[Window, ...]:
        """Return the windows of ``stretches``, whose borders are on the grid; ``begins`` are the
        invocations of the transactions there.
        """
        found: list[Window] = []
        for low, high in stretches:
            grid = range((low // self.stretch + 1) * self.stretch, high, self.stretch)
            for begin, end in itertools.pairwise((low, *grid, high)):
                found.append(
                    Window(
                        place=len(found),
                        low=begin,
                        high=end,
                        begin_ns=int(begins[begin // self.stretch]),
                        end_ns=None if end == high else int(begins[end // self.stretch]),
                    )
                )
        return tuple(found)

    def _cuts(self, over: Bools, count: int) -> list[int]:
        window = min(WINDOW, self.stretch)
        rows = over.reshape(-1, window)
        first = np.argmin(rows, axis=1)  # the first place that nothing leads back over
        free = ~rows[np.arange(len(rows)), first] if len(rows) else first > 0
        cuts = np.arange(len(rows)) * self.stretch + first
        return [int(cut) for cut in cuts[free] if 0 < cut < count]


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


IN_ORDER = ("type", "invoke_ns", "complete_ns")


def begins_in_order(pieces: Iterable[pa.Table], length: int) -> Ints | None:
    """Return when every ``length``-th transaction was invoked, from ``IN_ORDER`` of all; ``None``
    where real time or processes lead from higher numbers to lower ones.
    """
    last, number = None, 0
    begins = [np.zeros(0, dtype=np.int64)]
    for piece in pieces:
        start, finish = (ints(piece, name) for name in ("invoke_ns", "complete_ns"))
        sound = (finish >= start) | (codes(piece, "type", TYPES) != OK)
        if not (np.all(start[1:] >= start[:-1]) and sound.all()):
            return None
        if len(start):
            if last is not None and start[0] < last:
                return None
            last = int(start[-1])
        # A view would keep all of the piece.
        begins.append(start[-number % length :: length].copy())
        number += len(start)
    return np.concatenate(begins)


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
