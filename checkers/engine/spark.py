"""The Spark executor: one task a sealed split, nothing shuffled.

The history was sealed split by key hash, so a KEY kernel's exchange has happened already: a task
reads its split's Parquet file with pyarrow and runs the same kernels that run in process. Results
travel as Arrow IPC streams in envelopes.

Of Spark only the core takes part, jobs over numbers and bytes: with its SQL a session and its first
job cost two and a half times the CPU (14 s instead of 6), and no row of ours is Spark's to read.

Spark is imported and its JVM started when the first analysis asks for it, and ended with it.
"""

from __future__ import annotations

import re
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from checkers.engine import gateway
from checkers.engine.java import find_java, java_binary
from checkers.engine.output import PROGRESS, KernelOutput, Work, merge, on_all
from checkers.engine.source import Source
from checkers.engine.stretches import Laid
from harness.errors import AnalysisLost, HarnessError
from harness.protocols.checker import Kernel, Setting

if TYPE_CHECKING:
    from pyspark import SparkContext

# Rows of one IPC stream: some 10 MB, which the JVM copies at negligible cost.
PIECE_ROWS = 250_000
PROGRESS_EVERY_S = 2.0
_FRAME = re.compile(r"\s*at [\w.$]+")
_FRILL = re.compile(r"\s*(SQLSTATE: |Driver stacktrace:)")

# Kernel and output by name, why the kernel broke, and rows as an IPC stream.
Envelope = tuple[str, str, str, bytes]


def run_by_key(
    kernels: Iterable[Kernel], source: Source, setting: Setting, master: str | None = None
) -> KernelOutput:
    """Run the EARLY, KEY and STRETCH kernels over ``source`` on Spark (``master``: ``local[*]``).

    Raises ``HarnessError`` where Spark can't be started or a task is lost for good.
    """
    with (
        tempfile.TemporaryDirectory(prefix="firedrill-spark-") as scratch,
        source.on_disk(Path(scratch)) as files,
        session(master or "local[*]", Path(scratch)) as spark,
    ):

        def on_tasks(work: Work, count: int) -> KernelOutput:
            # As many partitions as numbers, so that each has a task of its own.
            numbers = spark.parallelize(range(count), count)
            with _told(spark):
                return merge(_unpacked(numbers.flatMap(partial(_packed, work)).collect()))

        laid = Laid(directory=Path(scratch))
        return on_all(kernels, source, setting, laid, on_tasks, files.unread())


@contextmanager
def _told(spark: SparkContext) -> Iterator[None]:
    """Within the block report how many of the tasks under way are done."""
    report, over = PROGRESS.get(), threading.Event()
    tracker = spark.statusTracker()

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
            yield "", name, "", sink.getvalue().to_pybytes()


def _unpacked(envelopes: Iterable[Envelope]) -> Iterator[KernelOutput]:
    """Yield what the envelopes hold; they come in the order of the tasks."""
    for kernel, output, broken, payload in envelopes:
        if kernel:
            yield KernelOutput(tables={}, broken={kernel: broken})
        else:
            yield KernelOutput(tables={output: pa.ipc.open_stream(payload).read_all()})


@contextmanager
def session(master: str, scratch: Path) -> Iterator[SparkContext]:
    """Open a session of Spark, quiet, and stop it after use; within another of this process it is
    that one. It listens for a local master on the loopback only, and takes nothing of the caller's
    Spark configuration.
    """
    # Without it, workers are the python3 of PATH, which lacks our packages.
    workers = {"PYSPARK_PYTHON": sys.executable}
    with gateway.environment(workers, foreign=not master.startswith("local")):
        from py4j.protocol import Py4JError
        from pyspark import SparkContext
        from pyspark.errors import PySparkException

        inside = SparkContext._active_spark_context
        spark = inside or _started(master, scratch)
        try:
            yield spark
        except (PySparkException, Py4JError) as error:
            raise AnalysisLost(f"Spark lost the analysis: {_gist(error)}") from error
        finally:
            # A signal to the whole process group ends the JVM as well: what is to be told then is
            # the interruption, not that a session that is gone can't be stopped.
            if not inside:
                with suppress(Py4JError, OSError):
                    spark.stop()


def _started(master: str, scratch: Path) -> SparkContext:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    java = java_binary(find_java())
    try:
        jvm = gateway.gateway(java)
    except (HarnessError, OSError) as error:
        raise HarnessError(f"Spark did not start on {master}: {error}") from error
    try:
        return _connected(jvm, master, scratch)
    except (PySparkException, Py4JError, OSError) as error:
        # Closing removes the JVM's directory, and its log with it.
        words = jvm.last_words
        gateway.close()
        raise HarnessError(f"Spark did not start on {master}: {error}\n{words}") from error


def _connected(jvm: gateway.Gateway, master: str, scratch: Path) -> SparkContext:
    from pyspark import SparkConf, SparkContext

    where = {"PYSPARK_GATEWAY_PORT": str(jvm.port), "PYSPARK_GATEWAY_SECRET": jvm.secret}
    with gateway.environment(where, foreign=True):
        # The first takes the connection that the variables tell of.
        SparkContext._ensure_initialized()
        settings = SparkConf().setMaster(master).setAppName("firedrill")
        return SparkContext.getOrCreate(
            settings.setAll(list(_configuration(master, scratch).items()))
        )


def _gist(error: Exception) -> str:
    """Return the line of Spark's message that says what happened: the end of a worker's traceback,
    or what stands before the frames of the JVM.
    """
    said = takewhile(lambda line: not _FRAME.match(line), str(error).splitlines())
    lines = [line.strip() for line in said if line.strip() and not _FRILL.match(line)]
    return lines[-1] if lines else type(error).__name__


def _configuration(master: str, scratch: Path) -> dict[str, str]:
    """Return the settings that go over the connection, so that no command line shows them. A local
    session draws a secret of its own for the clients of its RPC and its blocks.
    """
    configuration = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
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
