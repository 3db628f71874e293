"""Results of kernels, split by split and stretch by stretch, and their merging: the same for every
executor.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from pathlib import Path

import attrs
import numpy as np
import pyarrow as pa

from checkers.engine.arrays import cells
from checkers.engine.costs import COST_TABLE, COSTS, EXPLAIN, Meter, stage_cost
from checkers.engine.source import Source
from checkers.engine.split import named
from checkers.engine.stretches import (
    BACK_TABLE,
    IN_ORDER,
    STRETCH,
    Laid,
    in_order,
    observed_within,
)
from checkers.engine.transactions import OBSERVED_TABLE, PREPARED, prepared, proven
from harness.errors import FiredrillError
from harness.history import files
from harness.plugins import where
from harness.protocols.checker import KEY_COLUMNS, Exchange, Kernel, Setting, Tables
from harness.supervisor import memory_limit_bytes

# Splits in memory at a time, and the least history that is worth the second one.
THREADS = 2
LONG = 100_000

# A callback with the name of each kernel or checker before it runs: it tells which one a process
# died of.
ENTERING: ContextVar[Callable[[str], None]] = ContextVar("ENTERING", default=lambda _name: None)

# A callback with a sentence for the user, at once.
NOTE: ContextVar[Callable[[str], None]] = ContextVar("NOTE", default=lambda _text: None)

# A callback with a sentence about how far an executor is, some times a minute.
PROGRESS: ContextVar[Callable[[str], None]] = ContextVar("PROGRESS", default=lambda _text: None)


@attrs.frozen
class Joined(Mapping[str, pa.Table]):
    """Tables of ``first``, then of ``second``. Those that ``loading`` names are read when they are
    asked for, and kept: of a long history few checkers ask for all transactions.
    """

    first: Tables
    second: Tables
    loading: Mapping[str, Callable[[], pa.Table]] = attrs.field(factory=dict)

    def __getitem__(self, name: str) -> pa.Table:
        for tables in (self.first, self.second):
            if name in tables:
                return tables[name]
        return self.loading[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self.first, *self.second, *self.loading)))

    def __len__(self) -> int:
        return len({*self.first, *self.second, *self.loading})


@attrs.frozen(kw_only=True)
class KernelOutput:
    """Tables by name, and for each kernel that broke, the reason."""

    tables: Tables
    broken: dict[str, str] = attrs.field(factory=dict)


def apply(kernels: Sequence[Kernel], tables: Tables, setting: Setting) -> KernelOutput:
    """Run ``kernels`` one after another, each with the tables of those before it.

    A kernel that raises is broken and gives nothing; the others' results stand.
    """
    given: dict[str, pa.Table] = {}
    broken: dict[str, str] = {}
    for kernel in kernels:
        ENTERING.get()(kernel.name)
        try:
            given |= kernel.run(Joined(given, tables), setting)
        except Exception as error:  # a broken plugin must not end the analysis
            broken[kernel.name] = describe(error)
    return KernelOutput(tables=given, broken=broken)


def merge(parts: Iterable[KernelOutput]) -> KernelOutput:
    """Merge the results of all splits: tables concatenated, the least complaint per kernel.

    Least, so that it does not depend on how many splits there were.
    """
    pieces: dict[str, list[pa.Table]] = {}
    broken: dict[str, str] = {}
    for part in parts:
        for name, table in part.tables.items():
            pieces.setdefault(name, []).append(table)
        for name, why in part.broken.items():
            broken[name] = min(why, broken.get(name, why))
    return KernelOutput(
        tables={name: pa.concat_tables(tables) for name, tables in pieces.items()}, broken=broken
    )


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
        columns = {name: columns for k in able for name, columns in (k.numbers or {}).items()}
        # The words of an error may name transactions, so those that broke break again below.
        given = KernelOutput(tables=named(local.tables, columns, there.number))
        able = tuple(k for k in able if k.name not in local.broken)
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
    return KernelOutput(tables={**given.tables, **whole.tables}, broken=whole.broken)


def _on_cells(
    kernels: Sequence[Kernel], tables: Tables, micro_ops: pa.Table, setting: Setting
) -> KernelOutput:
    tables = {**tables, PREPARED: prepared(tables, setting)}
    return merge(
        apply(kernels, {**tables, "micro_ops": cell}, setting) for cell in cells(micro_ops)
    )


@attrs.frozen(kw_only=True)
class OfSplits:
    """The work on split after split. What the kernels ``taking`` take is laid down."""

    kernels: tuple[Kernel, ...]
    source: Source
    setting: Setting
    laid: Laid
    early: Tables = attrs.field(factory=dict)
    taking: tuple[Kernel, ...] = ()

    def weight(self, split: int) -> int:
        """Return how much ``split`` holds."""
        return self.source.size_of(split)[1]

    def __call__(self, split: int) -> KernelOutput:
        meter = Meter()
        given = on_split(self.kernels, self.source, split, self.setting, self.early)
        tables = given.tables
        if self.taking:
            tables = self.laid.lay(self.taking, split, tables)
        meter.rows, meter.read_bytes = self.source.size_of(split)
        return attrs.evolve(given, tables={**tables, COST_TABLE: meter.table()})


@attrs.frozen(kw_only=True)
class OfStretches:
    """The work of STRETCH kernels on one of ``stretches`` after the other. ``empty`` are the tables
    that they take, without rows.
    """

    kernels: tuple[Kernel, ...]
    source: Source
    setting: Setting
    laid: Laid
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
        }
        for kernel in self.kernels:
            for name, ends in kernel.takes.items():
                table = self.laid.take(name, low, high, ends)
                # Where neither it nor ``empty`` is there, its kernel broke: this one does as well.
                if table is not None:
                    tables[name] = table
                    meter.rows += table.num_rows
                    meter.read_bytes += table.nbytes
        given = apply(self.kernels, tables, self.setting)
        columns = {name: of for k in self.kernels for name, of in (k.numbers or {}).items()}
        told = named(given.tables, columns, np.arange(low, high))
        return attrs.evolve(given, tables={**told, COST_TABLE: meter.table()})


Work = OfSplits | OfStretches
OnTasks = Callable[[Work, int], KernelOutput]
"""An executor: it runs work for the numbers from 0 to before another, side by side or one after the
other, and merges the results in their order.
"""


def on_all(
    kernels: Iterable[Kernel],
    source: Source,
    setting: Setting,
    laid: Laid,
    tasks: OnTasks,
    there: Source | None = None,
) -> KernelOutput:
    """Run the EARLY, then the KEY, then the STRETCH kernels on ``tasks``, which are given the
    history as ``there``.
    """
    kernels, there = tuple(kernels), there or source
    first = _needed(of(kernels, Exchange.EARLY), source)
    given = KernelOutput(tables={})
    if first:
        work = OfSplits(kernels=first, source=there, setting=setting, laid=laid)
        given = _stage(tasks, work, source.splits, "EARLY")
    early = dict(given.tables)
    if OBSERVED_TABLE in early:
        early[OBSERVED_TABLE] = proven(early[OBSERVED_TABLE])
    by_key, taking = of(kernels, Exchange.KEY), of(kernels, Exchange.STRETCH)
    by_split = OfSplits(
        kernels=by_key, source=there, setting=setting, laid=laid, early=early, taking=taking
    )
    found = _stage(tasks, by_split, source.splits, "KEY")
    tables, broken = {**early, **found.tables}, given.broken | found.broken
    if taking:
        whole = not in_order(source.pieces(IN_ORDER))
        back = tables.pop(BACK_TABLE)
        names = [name for kernel in taking for name in kernel.takes if name in tables]
        stretches = laid.stretches(back, source.count, whole)
        last = OfStretches(
            kernels=taking,
            source=there,
            setting=setting,
            laid=laid,
            early=early,
            empty={name: tables.pop(name) for name in names},
            stretches=tuple(stretches) or ((0, 0),),
        )
        # Of no stretch there are empty tables, which need no task.
        if stretches:
            judged = _stage(tasks, last, len(stretches), "STRETCH")
        else:
            judged = _without_costs(attrs.evolve(last, source=source)(0))
        tables, broken = {**tables, **judged.tables}, broken | judged.broken
    return KernelOutput(tables=tables, broken=broken)


def _stage(tasks: OnTasks, work: Work, count: int, name: str) -> KernelOutput:
    """Have the work done, and tell what it cost."""
    begun_s = time.perf_counter()
    given = tasks(work, count)
    costs = given.tables.get(COST_TABLE, COSTS.empty_table())
    # There are as many splits however long a history is; a stretch is as long as any other.
    grows = isinstance(work, OfSplits)
    EXPLAIN.get()(stage_cost(name, costs, time.perf_counter() - begun_s, grows=grows))
    return _without_costs(given)


def _without_costs(given: KernelOutput) -> KernelOutput:
    tables = {name: table for name, table in given.tables.items() if name != COST_TABLE}
    return attrs.evolve(given, tables=tables)


def _needed(kernels: tuple[Kernel, ...], source: Source) -> tuple[Kernel, ...]:
    """Return those that have something to search for in any part of the transactions."""
    needed: set[str] = set()
    left = kernels
    for piece in source.pieces() if kernels else ():
        needed |= {kernel.name for kernel in left if kernel.needed(piece)}
        left = tuple(kernel for kernel in left if kernel.name not in needed)
        if not left:
            break
    return tuple(kernel for kernel in kernels if kernel.name in needed)


def of(kernels: Iterable[Kernel], exchange: Exchange) -> tuple[Kernel, ...]:
    """Return those of ``kernels`` that declare ``exchange``, each name once, in order."""
    return tuple({k.name: k for k in kernels if k.exchange is exchange}.values())


def describe(error: Exception) -> str:
    """Describe an exception as a reason: with class, file and line, unless it is a sentence of this
    package's.
    """
    if isinstance(error, FiredrillError):
        return str(error)
    if isinstance(error, MemoryError):
        limit = memory_limit_bytes()
        bound = "" if limit is None else f" than the {limit >> 20} MiB allowed"
        return f"it needs more memory{bound}"
    return f"{type(error).__name__}: {error} ({where(error)})"


def run_by_key(
    kernels: Iterable[Kernel], source: Source, setting: Setting, *, stretch: int = STRETCH
) -> KernelOutput:
    """Run the EARLY, KEY and STRETCH kernels over ``source``, a split or stretch in memory at a
    time.
    """
    with tempfile.TemporaryDirectory(prefix="firedrill-analysis-") as scratch:
        laid = Laid(directory=Path(scratch), stretch=stretch)
        try:
            return on_all(kernels, source, setting, laid, _side_by_side)
        except OSError as error:
            missing = "the analysis lacks room for the edges of its graph"
            raise files.disk_failure("write into", laid.directory, error, missing) from error


def _side_by_side(work: Work, count: int) -> KernelOutput:
    """Do the work on threads: most of it is numpy's and Arrow's, which hold no lock."""
    # Of several kernels, the one that a process died of could not be told.
    able = count > 1 and len(work.kernels) == 1 and work.source.count >= LONG
    if not able:
        return merge(work(number) for number in range(count))
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1, count)) as threads:
        # The heaviest first: one that holds a hot key must not begin when the others are done.
        heavy = sorted(range(count), key=work.weight, reverse=True)
        jobs = {number: threads.submit(copy_context().run, work, number) for number in heavy}
        try:
            return merge(jobs[number].result() for number in range(count))
        finally:
            # An interruption does not wait for the splits that nobody has begun.
            threads.shutdown(wait=False, cancel_futures=True)
