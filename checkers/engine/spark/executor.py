"""The Spark executor: one task a sealed split, then one a stretch of time.

The history was sealed split by key hash, so a KEY kernel's exchange has happened already: a task
reads its split's Parquet file with pyarrow and runs the same kernels that run in process. Results
travel as Arrow IPC streams in envelopes.

On one machine, what STRETCH kernels take lies in files beside the history (``ShuffleFiles``). On a
cluster no directory is taken to be shared: files of the history travel with the job, what a split's
task left is kept by Spark where it was made and shuffled once, by stretch. A lost executor costs
the tasks whose results it held.

Of Spark only the core takes part, jobs over numbers and bytes: with its SQL a session and its first
job cost two and a half times the CPU (14 s instead of 6), and no row of ours is Spark's to read.

Spark is imported and its JVM started when the first analysis asks for it, and ended with it.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

import attrs
import pyarrow as pa

from checkers.engine.kernel_output import (
    NOTE,
    KernelOutput,
    merge,
)
from checkers.engine.progress import STAGE
from checkers.engine.shuffle_files import ShuffleFiles
from checkers.engine.source import Source
from checkers.engine.spark import gateway
from checkers.engine.spark.options import SparkOptions
from checkers.engine.spark.session import session, session_directory
from checkers.engine.stages import on_all
from checkers.engine.work import SplitWork, Work
from harness.errors import HarnessError, InvariantError
from harness.protocols.checker import Kernel
from harness.protocols.setting import Setting
from harness.scratch import scratch_directory

if TYPE_CHECKING:
    from pyspark import RDD, Accumulator, AccumulatorParam, SparkContext

# Rows of one IPC stream: some 10 MB, which the JVM copies at negligible cost.
PIECE_ROWS = 250_000
PROGRESS_EVERY_S = 2.0
# A cluster may have others to serve first; one whose executors end as they start never comes to it.
NO_EXECUTOR_TOLD_S = 20.0
NO_EXECUTOR_LIMIT_S = 600.0

_WHERE_TO_LOOK = "it may be busy, or executors end as they start (the workers' logs tell)"
_LOST = re.compile(r"Lost (executor \S+ on [^\s:]+)")

# Kernel and output by name, why the kernel broke, and rows as an IPC stream: empty if it broke.
Envelope = tuple[str, str, str, bytes]
# The stretch on the grid that rows begin in, the name of their file, and its content.
Piece = tuple[int, str, bytes]
# What the driver is told, by task.
Told = dict[int, list[Envelope]]
T = TypeVar("T")


def run_on_spark(
    kernels: Iterable[Kernel],
    source: Source,
    setting: Setting,
    options: SparkOptions | None = None,
) -> KernelOutput:
    """Run the EARLY, KEY and STRETCH kernels over ``source`` on Spark.

    Raises ``HarnessError`` where Spark can't be started or a task is lost for good.
    """
    options = options or SparkOptions()
    with (
        scratch_directory("spark") as scratch,
        source.on_disk(scratch.path) as on_disk,
        session(options, scratch.path) as spark,
    ):
        files = ShuffleFiles(directory=scratch.path)
        if options.local:
            tasks = partial(_on_machine, spark)
            return on_all(kernels, source, setting, files, tasks, on_disk.unread())
        there = _travelling(spark, on_disk)
        cluster = _Cluster(spark)
        try:
            return on_all(kernels, source, setting, files, cluster.on_tasks, there)
        finally:
            cluster.forget()


def _on_machine(spark: SparkContext, work: Work, count: int) -> KernelOutput:
    # As many partitions as numbers, so that each has a task of its own.
    numbers = spark.parallelize(range(count), count)
    with _watched(spark, None):
        return merge(_unpacked(numbers.flatMap(partial(_packed, work)).collect()))


class _Executors:
    """The executors of a cluster for a job: that there is none for long is told, then given up."""

    def __init__(self, spark: SparkContext) -> None:
        self._spark, self._note = spark, NOTE.get()
        self._seen_s, self._told = time.monotonic(), False
        self.given_up = ""  # why

    def look(self) -> None:
        """Look whether there is one now; cancel the jobs under way once there was none for too
        long.
        """
        registered = int(self._spark._jsc.sc().getExecutorMemoryStatus().size()) - 1  # the driver
        now_s = time.monotonic()
        if registered > 0:
            self._seen_s, self._told = now_s, False
        elif now_s - self._seen_s >= NO_EXECUTOR_LIMIT_S:
            limit = f"{NO_EXECUTOR_LIMIT_S:.0f} s"
            text = f"no executor of {self._spark.master} was there for {limit}"
            self.given_up = f"{text}: {_WHERE_TO_LOOK}"
            self._spark.cancelAllJobs()
        elif now_s - self._seen_s >= NO_EXECUTOR_TOLD_S and not self._told:
            self._told = True
            self._note(f"Spark waits for an executor of {self._spark.master}: {_WHERE_TO_LOOK}")


class _Cluster:
    """Tasks on machines that share no directory with this one, nor with each other."""

    def __init__(self, spark: SparkContext) -> None:
        self._spark = spark
        self._made: RDD[Piece] | None = None
        self._read = gateway.log_end()

    def on_tasks(self, work: Work, count: int) -> KernelOutput:
        """Run ``work``; what it leaves stays in the cluster until a later work takes it. Tells
        of each executor that was lost meanwhile.
        """
        try:
            return self._on_tasks(work, count)
        finally:
            lines, self._read = gateway.lines_since(self._read)
            for line in lines:
                if found := _LOST.search(line):
                    NOTE.get()(f"Spark lost {found[1]}; what it had done is done again")

    def _on_tasks(self, work: Work, count: int) -> KernelOutput:
        from pyspark import StorageLevel

        if not isinstance(work, SplitWork) and work.stretches:
            if self._made is None:
                raise InvariantError("stretches before the splits that they are made of")
            routed = self._made.flatMap(partial(_routed, work.stretches, work.files.grid.length))
            by_stretch = routed.partitionBy(count, _itself)
            return self._collected(by_stretch.mapPartitionsWithIndex(partial(_judged, work)))
        numbers = self._spark.parallelize(range(count), count)
        if not isinstance(work, SplitWork) or not work.taking:
            return self._collected(numbers.flatMap(partial(_packed_there, work)))
        by_task = cast("AccumulatorParam[Told]", _ByTask())
        told: Accumulator[Told] = self._spark.accumulator({}, by_task)
        made = numbers.flatMap(partial(_apart, work, told)).persist(StorageLevel.DISK_ONLY)
        self._made = made
        # By the JVM: a job of Python's would read all pieces to tell of none.
        self._run(made._jrdd.count)
        return merge(_unpacked(chain.from_iterable(told.value[n] for n in range(count))))

    def _collected(self, envelopes: RDD[Envelope]) -> KernelOutput:
        return merge(_unpacked(self._run(envelopes.collect)))

    def _run(self, job: Callable[[], T]) -> T:
        executors = _Executors(self._spark)
        try:
            with _watched(self._spark, executors):
                return job()
        except Exception as error:
            if executors.given_up:
                raise HarnessError(executors.given_up) from error
            raise

    def forget(self) -> None:
        """Let go of what was left."""
        if self._made is not None:
            # The session may be gone: then there is nothing left to let go of.
            with suppress(Exception):
                self._made.unpersist()


class _ByTask:
    """Spark's ``AccumulatorParam`` of ``Told``: a task that runs again tells the same again."""

    def zero(self, _value: Told) -> Told:
        return {}

    def addInPlace(self, told: Told, more: Told) -> Told:
        return told | more


def _itself(stretch: int) -> int:
    return stretch


def _packed_there(work: Work, number: int) -> Iterator[Envelope]:
    return _packed(attrs.evolve(work, source=_fetched(work.source)), number)


def _apart(work: SplitWork, told: Accumulator[Told], number: int) -> Iterator[Piece]:
    """Do the work of a split's task, tell the driver of it, and yield what later tasks need."""
    with scratch_directory("split") as scratch:
        files = attrs.evolve(work.files, directory=scratch.path)
        own = attrs.evolve(work, source=_fetched(work.source), files=files)
        told.add({number: list(_packed(own, number))})
        yield from files.pieces()


def _routed(
    stretches: tuple[tuple[int, int], ...], length: int, piece: Piece
) -> Iterator[tuple[int, tuple[str, bytes]]]:
    """Yield the piece for each of the ``stretches`` that may hold rows of it."""
    at, name, content = piece
    for number, (low, high) in enumerate(stretches):
        if low // length <= at <= (high - 1) // length:
            yield number, (name, content)


def _judged(
    work: Work, number: int, pieces: Iterable[tuple[int, tuple[str, bytes]]]
) -> Iterator[Envelope]:
    """Do the work of a stretch's task, from the pieces that came to it."""
    with scratch_directory("stretch") as scratch:
        for _, (name, content) in pieces:
            (scratch.path / name).write_bytes(content)
        files = attrs.evolve(work.files, directory=scratch.path)
        own = attrs.evolve(work, source=_fetched(work.source), files=files)
        yield from _packed(own, number)


def _travelling(spark: SparkContext, source: Source) -> Source:
    """Have the files of ``source`` travel with jobs; return it by the names that they have there.
    They stay as long as the session: an executor that joins late fetches all that were ever added.
    """
    scratch = session_directory()
    transactions, splits = source.paths()
    token = secrets.token_hex(4)  # of several runs in a session, files have the same names
    names = []
    for path in (transactions, *splits):
        # A symbolic link would travel by the name of what it leads to.
        named = scratch / f"{token}-{Path(path).name}"
        try:
            os.link(path, named)
        except OSError:  # of another file system, or one that has no links
            shutil.copyfile(path, named)
        spark.addFile(str(named))
        names.append(Path(named.name))
    return source.elsewhere(names[0], tuple(names[1:]))


def _fetched(source: Source) -> Source:
    """Return ``source`` by the paths that its files have on this worker."""
    from pyspark import SparkFiles

    transactions, splits = source.names()
    files = tuple(Path(SparkFiles.get(name)) for name in splits)
    return source.elsewhere(Path(SparkFiles.get(transactions)), files)


@contextmanager
def _watched(spark: SparkContext, executors: _Executors | None) -> Iterator[None]:
    """Within the block report how many of the tasks under way are done, and watch ``executors``."""
    told, over, context = STAGE.get(), threading.Event(), copy_context()
    tracker = spark.statusTracker()

    def watch() -> None:
        while not over.wait(PROGRESS_EVERY_S):
            # Spark may end meanwhile, for any reason: that is the block's to tell.
            with suppress(Exception):
                if executors is not None:
                    executors.look()
                stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
                for stage in (stage for stage in stages if stage is not None):
                    done, count = stage.numCompletedTasks, stage.numTasks
                    if told is not None and count == told.tasks:
                        context.run(told.tell, done, done / count)

    watcher = threading.Thread(target=watch, name="spark-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join(timeout=PROGRESS_EVERY_S)


def _packed(work: Work, number: int) -> Iterator[Envelope]:
    """Do the work of one task."""
    given = work(number)
    for name, why in given.broken.items():
        yield name, "", why, b""
    for name, table in given.tables.items():
        # One stream even of no rows: its schema says what the concatenation looks like.
        for start in range(0, max(table.num_rows, 1), PIECE_ROWS):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table.slice(start, PIECE_ROWS))
            yield given.makers.get(name, ""), name, "", sink.getvalue().to_pybytes()


def _unpacked(envelopes: Iterable[Envelope]) -> Iterator[KernelOutput]:
    """Yield what the envelopes hold; they come in the order of the tasks."""
    for kernel, output, broken, payload in envelopes:
        if not payload:
            yield KernelOutput(tables={}, broken={kernel: broken})
        else:
            table = pa.ipc.open_stream(payload).read_all()
            yield KernelOutput(tables={output: table}, makers={output: kernel} if kernel else {})
