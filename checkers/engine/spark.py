"""The Spark executor: one task a sealed split, nothing shuffled.

The history was sealed split by key hash, so a KEY kernel's exchange has happened already: a task
reads its split's Parquet file with pyarrow and runs the same kernels that run in process. Results
travel as Arrow IPC streams, in rows of a few columns instead of one schema a kernel.

Spark is imported and its JVM started when the first analysis asks for it, and ended with it.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.engine import gateway
from checkers.engine.java import find_java, java_binary
from checkers.engine.output import PROGRESS, KernelOutput, merge, on_all_splits, on_split
from checkers.engine.source import Source
from harness.errors import AnalysisLost, HarnessError
from harness.protocols.checker import KEY_COLUMNS, Kernel, Setting, Tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Rows of one IPC stream: some 10 MB, which the JVM copies at negligible cost.
PIECE_ROWS = 250_000
PROGRESS_EVERY_S = 2.0

_ENVELOPE = "split int, kernel string, output string, broken string, payload binary"
_FIELDS = pa.schema(
    [
        ("split", pa.int32()),
        ("kernel", pa.string()),
        ("output", pa.string()),
        ("broken", pa.string()),
        ("payload", pa.binary()),
    ]
)


def run_by_key(
    kernels: Iterable[Kernel], source: Source, setting: Setting, master: str | None = None
) -> KernelOutput:
    """Run the EARLY and KEY kernels over every split of ``source`` on Spark (``master``:
    ``local[*]``).

    Raises ``HarnessError`` where Spark can't be started or a task is lost for good.
    """
    with (
        tempfile.TemporaryDirectory(prefix="firedrill-spark-") as scratch,
        source.on_disk(Path(scratch)) as files,
        session(master or "local[*]", Path(scratch)) as spark,
    ):

        def over_splits(chain: tuple[Kernel, ...], early: Tables) -> KernelOutput:
            known = _written(Path(scratch), early)
            work = _task(chain, files.paths(), msgspec.json.encode(setting), known)
            splits = spark.range(0, files.splits, 1, numPartitions=files.splits)
            with _told(spark):
                return merge(_unpacked(splits.mapInArrow(work, _ENVELOPE).toArrow()))

        return on_all_splits(kernels, source, over_splits)


@contextmanager
def _told(spark: SparkSession) -> Iterator[None]:
    """Within the block report how many of the tasks under way are done."""
    report, over = PROGRESS.get(), threading.Event()
    tracker = spark.sparkContext.statusTracker()

    def watch() -> None:
        while not over.wait(PROGRESS_EVERY_S):
            # Spark may end meanwhile, for any reason: that is the block's to tell.
            with suppress(Exception):
                stages = map(tracker.getStageInfo, tracker.getActiveStageIds())
                for stage in (stage for stage in stages if stage is not None):
                    report(f"Spark: {stage.numCompletedTasks} of {stage.numTasks} splits done")

    watcher = threading.Thread(target=watch, name="spark-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join(timeout=PROGRESS_EVERY_S)


def _written(scratch: Path, early: Tables) -> dict[str, str]:
    """Write the tables of EARLY kernels to files for the tasks; return the files by name."""
    files = {name: str(scratch / f"{name}.parquet") for name in early}
    for name, table in early.items():
        pq.write_table(table, files[name])
    return files


Paths = tuple[str, tuple[str, ...]]
Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _task(kernels: tuple[Kernel, ...], paths: Paths, setting: bytes, early: dict[str, str]) -> Work:
    """Run one Spark task: split numbers in, envelopes out."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        transactions, micro_ops = paths
        files = tuple(map(Path, micro_ops))
        source = Source.of_files(Path(transactions), files, columns=KEY_COLUMNS)
        known = msgspec.json.decode(setting, type=Setting)
        tables = {name: pq.read_table(file) for name, file in early.items()}
        for batch in batches:
            for split in batch.column(0).to_pylist():
                yield from _packed(split, on_split(kernels, source, split, known, tables))

    return work


def _packed(split: int, given: KernelOutput) -> Iterator[pa.RecordBatch]:
    for name, why in given.broken.items():
        yield _row(split, name, "", why, b"")
    for name, table in given.tables.items():
        # One stream even of no rows: its schema says what the concatenation looks like.
        for start in range(0, max(table.num_rows, 1), PIECE_ROWS):
            sink = pa.BufferOutputStream()
            with pa.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table.slice(start, PIECE_ROWS))
            yield _row(split, "", name, "", sink.getvalue().to_pybytes())


def _row(split: int, kernel: str, output: str, broken: str, payload: bytes) -> pa.RecordBatch:
    columns = zip(_FIELDS, (split, kernel, output, broken, payload), strict=True)
    return pa.record_batch([pa.array([v], f.type) for f, v in columns], schema=_FIELDS)


def _unpacked(rows: pa.Table) -> Iterator[KernelOutput]:
    """Yield the envelopes in the order of their splits: Spark collects them in any order."""
    for batch in rows.sort_by("split").to_batches():
        for row in range(batch.num_rows):
            _, kernel, output, broken = (batch.column(i)[row].as_py() for i in range(4))
            if kernel:
                yield KernelOutput(tables={}, broken={kernel: broken})
            else:
                # ``as_py`` would copy every payload.
                payload = batch.column(4)[row].as_buffer()
                yield KernelOutput(tables={output: pa.ipc.open_stream(payload).read_all()})


@contextmanager
def session(master: str, scratch: Path) -> Iterator[SparkSession]:
    """Open a Spark session, quiet, and stop it after use; it listens for a local master on the
    loopback only, and takes nothing of the caller's Spark configuration.
    """
    java = java_binary(find_java())
    remote = not master.startswith("local")
    # Without it, workers are the python3 of PATH, which lacks our packages.
    with gateway.environment({"PYSPARK_PYTHON": sys.executable}, foreign=remote):
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        try:
            jvm = gateway.gateway(java)
        except (HarnessError, OSError) as error:
            raise HarnessError(f"Spark did not start on {master}: {error}") from error
        try:
            spark = _connected(jvm, master, scratch)
        except (PySparkException, Py4JError, OSError) as error:
            # Closing removes the JVM's directory, and its log with it.
            words = jvm.last_words
            gateway.close()
            raise HarnessError(f"Spark did not start on {master}: {error}\n{words}") from error
        try:
            yield spark
        except (PySparkException, Py4JError) as error:
            raise AnalysisLost(f"Spark lost the analysis: {_gist(error)}") from error
        finally:
            # A signal to the whole process group ends the JVM as well: what is to be told then is
            # the interruption, not that a session that is gone can't be stopped.
            with suppress(Py4JError, OSError):
                spark.stop()


def _connected(jvm: gateway.Gateway, master: str, scratch: Path) -> SparkSession:
    from pyspark.sql import SparkSession

    where = {"PYSPARK_GATEWAY_PORT": str(jvm.port), "PYSPARK_GATEWAY_SECRET": jvm.secret}
    with gateway.environment(where, foreign=True):
        builder = SparkSession.builder.master(master).appName("firedrill")
        for key, value in _configuration(master, scratch).items():
            builder = builder.config(key, value)
        return builder.getOrCreate()


def _gist(error: Exception) -> str:
    """Return the last line of Spark's message, which is the end of the worker's traceback."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1]


def _configuration(master: str, scratch: Path) -> dict[str, str]:
    """Return the settings that go over the connection, so that no command line shows them. A local
    session draws a secret of its own for the clients of its RPC and its blocks.
    """
    configuration = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.driver.maxResultSize": "0",  # edges of long histories outgrow the default of 1 GB
    }
    if master.startswith("local"):
        configuration |= {
            "spark.authenticate": "true",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(scratch),
        }
    return configuration
