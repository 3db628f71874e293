"""The stages of an analysis: EARLY, KEY and STRETCH kernels, each on tasks of an executor; and the
executor in process.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context

import attrs
import numpy as np
import pyarrow as pa

from checkers.engine.arrays import Ints, group_starts, ints
from checkers.engine.costs import COST_TABLE, COSTS, EXPLAIN, stage_cost
from checkers.engine.kernel_output import (
    ENTERING,
    ONE_BY_ONE,
    SIDE_BY_SIDE,
    KernelOutput,
    apply,
    describe,
    merge,
    of,
)
from checkers.engine.progress import STAGE, StageProgress
from checkers.engine.shuffle_files import ShuffleFiles
from checkers.engine.source import Source
from checkers.engine.stretches import BACK_TABLE, IN_ORDER, STRETCH, Grid, begins_in_order
from checkers.engine.transactions import OBSERVED_TABLE, proven
from checkers.engine.work import GroupWork, OnTasks, SplitWork, Step, StretchWork, WindowWork, Work
from harness.history import durable_files
from harness.protocols.checker import Exchange, Kernel, Tables
from harness.protocols.setting import Setting
from harness.protocols.windows import (
    CYCLIC,
    LABELS,
    MEMBERS,
    OUTLASTING,
    SPANNING,
    Window,
    Windows,
)
from harness.scratch import scratch_directory
from harness.supervisor import memory_limit_bytes

# Splits in memory at a time, and the least history that is worth the second one.
THREADS = 2
LONG = 100_000
# What a row of a split takes while its kernels run, and the share of memory that splits may.
ROW_BYTES = 640
SPLITS_SHARE = 0.5


def on_all(
    kernels: Iterable[Kernel],
    source: Source,
    setting: Setting,
    files: ShuffleFiles,
    tasks: OnTasks,
    there: Source | None = None,
) -> KernelOutput:
    """Run the EARLY, then the KEY, then the STRETCH kernels on ``tasks``, which are given the
    history as ``there``.
    """
    kernels, there = tuple(kernels), there or source
    first, unsaid = _needed(of(kernels, Exchange.EARLY), source)
    given = KernelOutput(tables={})
    if first:
        by_split = SplitWork(kernels=first, source=there, setting=setting, files=files)
        given = _stage(tasks, by_split, source.splits, "EARLY", source.count)
    early = dict(given.tables)
    if OBSERVED_TABLE in early:
        early[OBSERVED_TABLE] = proven(early[OBSERVED_TABLE])
    by_key, taking = of(kernels, Exchange.KEY), of(kernels, Exchange.STRETCH)
    by_split = SplitWork(
        kernels=by_key, source=there, setting=setting, files=files, early=early, taking=taking
    )
    found = _stage(tasks, by_split, source.splits, "KEY", source.count)
    tables, broken = {**early, **found.tables}, unsaid | given.broken | found.broken
    back, spanning = tables.pop(BACK_TABLE, None), tables.pop(SPANNING, None)
    taking = tuple(kernel for kernel in taking if kernel.name not in broken)
    if taking and back is not None:
        begins = begins_in_order(source.pieces(IN_ORDER), files.grid.length)
        names = [name for kernel in taking for name in kernel.takes if name in tables]
        stretches = files.grid.stretches(back, source.count, begins is None)
        work = StretchWork(
            kernels=taking,
            source=there,
            setting=setting,
            files=files,
            early=early,
            empty={name: tables.pop(name) for name in names},
            stretches=tuple(stretches),
        )
        judged = _judged(work, source, begins, spanning, tasks)
        tables, broken = {**tables, **judged.tables}, broken | judged.broken
    return KernelOutput(tables=tables, broken=broken)


def _judged(
    work: StretchWork,
    source: Source,
    begins: Ints | None,
    spanning: pa.Table | None,
    tasks: OnTasks,
) -> KernelOutput:
    """Do ``work``: of stretches that are too long for a task, by windows."""
    able = begins is not None and spanning is not None
    able = able and all(kernel.windows is not None for kernel in work.kernels)
    long = [s for s in work.stretches if able and s[1] - s[0] > work.files.grid.most]
    short = attrs.evolve(work, stretches=tuple(s for s in work.stretches if s not in set(long)))
    # Of no stretch there are empty tables, which need no task.
    nothing = attrs.evolve(work, source=source, stretches=((0, 0),))
    parts = [_without_costs(nothing(0))]
    if short.stretches:
        parts.append(_stage(tasks, short, len(short.stretches), "STRETCH"))
    if long and begins is not None and spanning is not None:
        windows = work.files.grid.windows(long, begins)
        parts += [
            _ByWindows(kernel, work, windows, tasks).judged(spanning) for kernel in work.kernels
        ]
    return merge(parts)


@attrs.frozen
class _ByWindows:
    """The judgement of ``kernel`` by windows of long stretches, step after step."""

    kernel: Kernel
    work: StretchWork
    windows: tuple[Window, ...]
    tasks: OnTasks

    def judged(self, spanning: pa.Table) -> KernelOutput:
        """Return the kernel's tables; ``spanning`` is of all splits."""
        given = self._on_windows("OUTLASTING", _outlasting, taking=False)
        given = self._here({SPANNING: spanning, **given.tables}, _borders, given.broken)
        borders = given.tables
        if not given.broken:
            given = self._on_windows("CONTRACT", _contract, beside=borders)
        if not given.broken:
            cyclic = set(given.tables[CYCLIC]["place"].to_pylist())
            given = self._here({**borders, **given.tables}, _solve, given.broken)
        if given.broken:
            return KernelOutput(tables={}, broken=given.broken)
        places = cyclic | set(given.tables[LABELS]["place"].to_pylist())
        there = tuple(window for window in self.windows if window.place in places)
        if not there:
            return KernelOutput(tables={})
        beside = {**borders, **given.tables}
        given = self._on_windows("WINDOW", _judge, beside=beside, windows=there)
        tables = dict(given.tables)
        groups = _groups(tables.pop(MEMBERS, None), self.work.files.grid.length)
        parts = [attrs.evolve(given, tables=tables)]
        if groups:
            parts.append(self._on_groups(groups))
        return merge(parts)

    def _on_windows(
        self,
        name: str,
        run: Step,
        *,
        beside: Tables | None = None,
        windows: tuple[Window, ...] = (),
        taking: bool = True,
    ) -> KernelOutput:
        work = WindowWork(
            kernel=self.kernel,
            run=run,
            source=self.work.source,
            setting=self.work.setting,
            files=self.work.files,
            early=self.work.early,
            empty=self.work.empty,
            windows=windows or self.windows,
            beside=beside or {},
            taking=taking,
        )
        return _stage(self.tasks, work, len(work.windows), name)

    def _here(
        self,
        tables: Tables,
        run: Callable[[Windows, Tables, Setting, tuple[Window, ...]], Tables],
        broken: dict[str, str],
    ) -> KernelOutput:
        """Do what needs all windows at once."""
        if broken or self.kernel.windows is None:
            return KernelOutput(tables={}, broken=broken)
        own = self.kernel.windows
        here = attrs.evolve(
            self.kernel, run=lambda given, asked: run(own, given, asked, self.windows)
        )
        return apply([here], tables, self.work.setting)

    def _on_groups(self, groups: tuple[Ints, ...]) -> KernelOutput:
        work = GroupWork(
            kernel=self.kernel,
            source=self.work.source,
            setting=self.work.setting,
            files=self.work.files,
            early=self.work.early,
            empty=self.work.empty,
            groups=groups,
        )
        return _stage(self.tasks, work, len(groups), "COMPONENT")


def _outlasting(own: Windows, tables: Tables, setting: Setting, window: Window) -> Tables:
    return {OUTLASTING: own.outlasting(tables["transactions"], setting, window.end_ns)}


def _contract(own: Windows, tables: Tables, setting: Setting, window: Window) -> Tables:
    return own.contract(tables, setting, window)


def _judge(own: Windows, tables: Tables, setting: Setting, window: Window) -> Tables:
    return own.judge(tables, setting, window)


def _borders(own: Windows, tables: Tables, setting: Setting, windows: tuple[Window, ...]) -> Tables:
    return own.borders(tables[SPANNING], tables[OUTLASTING], windows, setting)


def _solve(own: Windows, tables: Tables, setting: Setting, windows: tuple[Window, ...]) -> Tables:
    return {LABELS: own.solve(tables, windows)}


def _groups(members: pa.Table | None, most: int) -> tuple[Ints, ...]:
    """Return the transactions of the components in groups of about ``most`` and whole components,
    those that begin side by side together.
    """
    if members is None or not members.num_rows:
        return ()
    txn, component = ints(members, "txn"), ints(members, "component")
    order = np.lexsort((txn, component))
    txn, component = txn[order], component[order]
    first = np.flatnonzero(group_starts(component))
    parts = np.split(txn, first[1:])
    parts.sort(key=lambda part: int(part[0]))
    groups: list[list[Ints]] = [[]]
    size = 0
    for part in parts:
        if groups[-1] and size + len(part) > most:
            groups.append([])
            size = 0
        groups[-1].append(part)
        size += len(part)
    return tuple(np.sort(np.concatenate(group)) for group in groups)


def _stage(
    tasks: OnTasks, work: Work, count: int, name: str, transactions: int | None = None
) -> KernelOutput:
    """Have the work done, tell how far it is meanwhile, and what it cost. ``transactions`` are all
    of them, where not the weights tell: on a cluster the files of splits are not here.
    """
    begun_s = time.perf_counter()
    of_splits = isinstance(work, SplitWork)
    if transactions is None:
        transactions = sum(map(work.weight, range(count)))
    progress = StageProgress(name=name, tasks=count, transactions=transactions, weight=work.weight)
    STAGE.set(progress)
    progress.tell(0, 0.0)
    given = tasks(work, count)
    costs = given.tables.get(COST_TABLE, COSTS.empty_table())
    # There are as many splits however long a history is; a stretch is as long as any other.
    EXPLAIN.get()(stage_cost(name, costs, time.perf_counter() - begun_s, grows=of_splits))
    return _without_costs(given)


def _without_costs(given: KernelOutput) -> KernelOutput:
    tables = {name: table for name, table in given.tables.items() if name != COST_TABLE}
    return attrs.evolve(given, tables=tables)


def _needed(
    kernels: tuple[Kernel, ...], source: Source
) -> tuple[tuple[Kernel, ...], dict[str, str]]:
    """Return those that have something to search for in any part of the transactions, and for each
    that raises instead of saying so, the reason.
    """
    needed: set[str] = set()
    broken: dict[str, str] = {}
    left = kernels
    for piece in source.pieces() if kernels else ():
        for kernel in left:
            try:
                needed |= {kernel.name} if kernel.needed(piece) else set()
            except (Exception, SystemExit) as error:  # a broken plug-in must not end the analysis
                broken[kernel.name] = describe(error)
        left = tuple(k for k in left if k.name not in needed and k.name not in broken)
        if not left:
            break
    return tuple(kernel for kernel in kernels if kernel.name in needed), broken


def run_in_process(
    kernels: Iterable[Kernel], source: Source, setting: Setting, *, stretch: int = STRETCH
) -> KernelOutput:
    """Run the EARLY, KEY and STRETCH kernels over ``source``, a split or stretch in memory at a
    time.
    """
    with scratch_directory("analysis") as scratch:
        files = ShuffleFiles(directory=scratch.path, grid=Grid(length=stretch))
        try:
            return on_all(kernels, source, setting, files, _side_by_side)
        except OSError as error:
            missing = "the edges of the graph can't be kept, or a split can't be read"
            raise durable_files.disk_failure(
                "write into", files.directory, error, missing
            ) from error


def _side_by_side(work: Work, count: int) -> KernelOutput:
    """Do the work on threads, where memory has room for two splits: most of it is numpy's and
    Arrow's, which hold no lock. What lacks memory so is done again, one task at a time.
    """
    if count > 1 and work.source.count >= LONG and _has_room(work, count) and not ONE_BY_ONE.get():
        with suppress(MemoryError):
            given = _on_threads(work, count)
            if not given.starved:
                return given
            del given
        if (stage := STAGE.get()) is not None:
            stage.begin_again()
    return merge(_told(work, number) for number in range(count))


def _has_room(work: Work, count: int) -> bool:
    limit_bytes = memory_limit_bytes()
    if limit_bytes is None or not isinstance(work, SplitWork):
        return True
    rows = sorted(work.source.size_of(split)[0] for split in range(count))
    return sum(rows[-THREADS:]) * ROW_BYTES <= limit_bytes * SPLITS_SHARE


def _on_threads(work: Work, count: int) -> KernelOutput:
    several = len(work.kernels) > 1
    if several:
        ENTERING.get()(SIDE_BY_SIDE)

    def one(number: int) -> KernelOutput:
        if several:
            ENTERING.set(lambda _name: None)
        return _told(work, number)

    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1, count)) as threads:
        # The heaviest first: one that holds a hot key must not begin when the others are done.
        heavy = sorted(range(count), key=work.weight, reverse=True)
        jobs = {number: threads.submit(copy_context().run, one, number) for number in heavy}
        try:
            return merge(jobs[number].result() for number in range(count))
        finally:
            # An interruption does not wait for the splits that nobody has begun.
            threads.shutdown(wait=False, cancel_futures=True)


def _told(work: Work, number: int) -> KernelOutput:
    """Do the work of a task, and tell that it is done."""
    given = work(number)
    if (stage := STAGE.get()) is not None:
        stage.one_done(number)
    return given
