"""The work of one task: kernels on a split, on a stretch of time, on a window of one, or on some
transactions alone. The same for every executor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import numpy as np
import pyarrow as pa

from checkers.engine.arrays import Ints, cells
from checkers.engine.costs import COST_TABLE, Meter
from checkers.engine.kernel_output import KernelOutput, apply, merge, renumbered
from checkers.engine.shuffle_files import ShuffleFiles, observed_within
from checkers.engine.source import Source
from checkers.engine.transactions import OBSERVED_TABLE, PREPARED, prepared
from harness.errors import InvariantError
from harness.protocols.checker import KEY_COLUMNS, Kernel, Tables
from harness.protocols.setting import Setting
from harness.protocols.windows import Window, Windows


def on_split(
    kernels: Sequence[Kernel], source: Source, split: int, setting: Setting, early: Tables
) -> KernelOutput:
    """Run EARLY or KEY kernels over one split of ``source``, KEY ones with the tables of the EARLY
    ones: the work of a Spark task, and of the process executor.
    """
    # What a reset cut off in other partitions is told by numbers that a split may not have.
    alone = all(name == OBSERVED_TABLE or not table.num_rows for name, table in early.items())
    able = tuple(k for k in kernels if alone and k.numbers is not None)
    there = source.split(split)
    given = KernelOutput(tables={})
    if able:
        tables = {"transactions": there.transactions, **early, **there.early(early)}
        local = _on_cells(able, tables, there.micro_ops, setting)
        # The words of an error may name transactions, so those that broke break again below.
        able = tuple(k for k in able if k.name not in local.broken)
        given = renumbered(attrs.evolve(local, broken={}), able, there.number)
    rest = [k for k in kernels if k not in able]
    if not rest:
        return given
    # Only what a Spark task reads: a kernel must not find more in process than there.
    tables = {"transactions": source.transactions.select(KEY_COLUMNS), **early}
    at = there.micro_ops.column_names.index("txn")
    steps = there.micro_ops.set_column(
        at, "txn", pa.array(there.number).take(there.micro_ops["txn"])
    )
    whole = _on_cells(rest, tables, steps, setting)
    return KernelOutput(
        tables={**given.tables, **whole.tables},
        broken={**given.broken, **whole.broken},
        makers={**given.makers, **whole.makers},
        starved=whole.starved,
    )


def _on_cells(
    kernels: Sequence[Kernel], tables: Tables, micro_ops: pa.Table, setting: Setting
) -> KernelOutput:
    tables = {**tables, PREPARED: prepared(tables, setting)}
    return merge(
        apply(kernels, {**tables, "micro_ops": cell}, setting) for cell in cells(micro_ops)
    )


@attrs.frozen(kw_only=True)
class SplitWork:
    """The work on split after split. What the kernels ``taking`` take is written into ``files``."""

    kernels: tuple[Kernel, ...]
    source: Source
    setting: Setting
    files: ShuffleFiles
    early: Tables = attrs.field(factory=dict)
    taking: tuple[Kernel, ...] = ()

    def weight(self, split: int) -> int:
        """Return how much ``split`` holds."""
        return self.source.size_of(split)[1]

    def __call__(self, split: int) -> KernelOutput:
        meter = Meter()
        given = on_split(self.kernels, self.source, split, self.setting, self.early)
        if self.taking:
            left = self.files.write(self.taking, split, given.tables)
            given = attrs.evolve(
                given,
                tables=left.tables,
                broken={**given.broken, **left.broken},
                starved=given.starved or left.starved,
            )
        meter.rows, meter.read_bytes = self.source.size_of(split)
        return attrs.evolve(given, tables={**given.tables, COST_TABLE: meter.table()})


@attrs.frozen(kw_only=True)
class StretchWork:
    """The work of STRETCH kernels on one of ``stretches`` after the other. ``empty`` are the tables
    that they take, without rows.
    """

    kernels: tuple[Kernel, ...]
    source: Source
    setting: Setting
    files: ShuffleFiles
    early: Tables
    empty: Tables
    stretches: tuple[tuple[int, int], ...]

    def weight(self, number: int) -> int:
        """Return how long the stretch is."""
        low, high = self.stretches[number]
        return high - low

    def __call__(self, number: int) -> KernelOutput:
        low, high = self.stretches[number]
        meter = Meter()
        tables = {
            "transactions": self.source.between(low, high),
            **observed_within(self.early, low, high),
            **self.empty,
            **_taken(self.kernels, self.files, low, high, meter),
        }
        given = apply(self.kernels, tables, self.setting)
        given = renumbered(given, self.kernels, np.arange(low, high))
        return attrs.evolve(given, tables={**given.tables, COST_TABLE: meter.table()})


Step = Callable[[Windows, Tables, Setting, Window], Tables]


@attrs.frozen(kw_only=True)
class WindowWork:
    """A step of the judgement of a kernel by windows (``Windows``): ``run``, on the tables of one
    window after another and the tables ``beside`` them. Without ``taking`` it needs transactions
    alone.
    """

    kernel: Kernel
    run: Step
    source: Source
    setting: Setting
    files: ShuffleFiles
    early: Tables
    empty: Tables
    windows: tuple[Window, ...]
    beside: Tables = attrs.field(factory=dict)
    taking: bool = True

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernel whose step it is."""
        return (self.kernel,)

    @property
    def stretches(self) -> tuple[tuple[int, int], ...]:
        """The bounds of the windows whose rows are taken."""
        return tuple((w.low, w.high) for w in self.windows) if self.taking else ()

    def weight(self, number: int) -> int:
        """Return how long the window is."""
        return self.windows[number].high - self.windows[number].low

    def __call__(self, number: int) -> KernelOutput:
        window, meter = self.windows[number], Meter()
        tables = {"transactions": self.source.between(window.low, window.high), **self.beside}
        if self.taking:
            tables |= {**observed_within(self.early, window.low, window.high), **self.empty}
            tables |= _taken(self.kernels, self.files, window.low, window.high, meter)
        own = self.kernel.windows
        if own is None:
            raise InvariantError(
                f"kernel {self.kernel.name!r}: expected one that judges by windows"
            )
        step = attrs.evolve(
            self.kernel, run=lambda given, asked: self.run(own, given, asked, window)
        )
        given = apply([step], tables, self.setting)
        given = renumbered(given, self.kernels, np.arange(window.low, window.high))
        return attrs.evolve(given, tables={**given.tables, COST_TABLE: meter.table()})


@attrs.frozen(kw_only=True)
class GroupWork:
    """The work of a STRETCH kernel on ``groups`` of transactions, without those between them."""

    kernel: Kernel
    source: Source
    setting: Setting
    files: ShuffleFiles
    early: Tables
    empty: Tables
    groups: tuple[Ints, ...]

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        """The kernel."""
        return (self.kernel,)

    @property
    def stretches(self) -> tuple[tuple[int, int], ...]:
        """The bounds of the groups."""
        return tuple((int(group[0]), int(group[-1]) + 1) for group in self.groups)

    def weight(self, number: int) -> int:
        """Return how many transactions a group has."""
        return len(self.groups[number])

    def __call__(self, number: int) -> KernelOutput:
        group, (low, high), meter = self.groups[number], self.stretches[number], Meter()
        tables = {
            "transactions": self.source.between(low, high, group),
            **observed_within(self.early, low, high, group),
            **self.empty,
            **_taken(self.kernels, self.files, low, high, meter, group),
        }
        given = renumbered(apply(self.kernels, tables, self.setting), self.kernels, group)
        return attrs.evolve(given, tables={**given.tables, COST_TABLE: meter.table()})


def _taken(
    kernels: Sequence[Kernel],
    files: ShuffleFiles,
    low: int,
    high: int,
    meter: Meter,
    among: Ints | None = None,
) -> dict[str, pa.Table]:
    tables = {}
    for kernel in kernels:
        for name, ends in kernel.takes.items():
            table = files.read(name, low, high, ends, among)
            # Where neither it nor an empty one is there, its kernel broke: this one does as well.
            if table is not None:
                tables[name] = table
                meter.rows += table.num_rows
                meter.read_bytes += table.nbytes
    return tables


Work = SplitWork | StretchWork | WindowWork | GroupWork
OnTasks = Callable[[Work, int], KernelOutput]
"""An executor: it runs work for the numbers from 0 to before another, side by side or one after the
other, and merges the results in their order.
"""
