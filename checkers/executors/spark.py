"""The Spark executor: one task a sealed split, nothing shuffled.

The history was sealed split by key hash, so a KEY kernel's exchange has happened already: a task
reads its split's Parquet file with pyarrow and runs the same kernels that run in process. What they
give travels as Arrow IPC streams, a few columns of rows instead of one schema a kernel.

Spark is imported and its JVM started when the first analysis asks for it, and ended with it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from checkers.executors.java import find_java, java_home
from checkers.executors.results import Given, merge, on_all_splits, on_split
from checkers.kernel import KEY_COLUMNS, Kernel, Setting, Tables
from checkers.source import Source
from harness.errors import HarnessError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIECE_ROWS = 250_000
"""Rows of one IPC stream: some 10 MB, which the JVM copies without noticing."""
DRIVER_MEMORY = "2g"
JVM_WORDS_MAX = 4_000
"""Characters of the JVM's last words that an error repeats."""

_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""The JVM only moves bytes between workers. Without its optimising compiler and parallel collector
a session with one job costs 9 to 11 s of CPU instead of 16 (two cores)."""

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
) -> Given:
    """The EARLY and KEY kernels over every split of ``source`` on Spark (``master``: ``local[*]``).

    Raises ``HarnessError`` where Spark can't be started or a task is lost for good.
    """
    with (
        tempfile.TemporaryDirectory(prefix="firedrill-spark-") as scratch,
        source.on_disk(Path(scratch)) as files,
        session(master or "local[*]", Path(scratch)) as spark,
    ):

        def over_splits(chain: tuple[Kernel, ...], early: Tables) -> Given:
            known = _written(Path(scratch), early)
            work = _task(chain, files.paths(), msgspec.json.encode(setting), known)
            splits = spark.range(0, files.splits, 1, numPartitions=files.splits)
            return merge(_unpacked(splits.mapInArrow(work, _ENVELOPE).toArrow()))

        return on_all_splits(kernels, source, over_splits)


def _written(scratch: Path, early: Tables) -> dict[str, str]:
    """What EARLY kernels gave as files for the tasks, by name."""
    files = {name: str(scratch / f"{name}.parquet") for name in early}
    for name, table in early.items():
        pq.write_table(table, files[name])
    return files


Paths = tuple[str, tuple[str, ...]]
Work = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _task(kernels: tuple[Kernel, ...], paths: Paths, setting: bytes, early: dict[str, str]) -> Work:
    """What a Spark task does: split numbers in, envelopes out."""

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


def _packed(split: int, given: Given) -> Iterator[pa.RecordBatch]:
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


def _unpacked(rows: pa.Table) -> Iterator[Given]:
    """Envelopes in the order of their splits, whatever order Spark collected them in."""
    for batch in rows.sort_by("split").to_batches():
        for row in range(batch.num_rows):
            _, kernel, output, broken = (batch.column(i)[row].as_py() for i in range(4))
            if kernel:
                yield Given(tables={}, broken={kernel: broken})
            else:
                payload = batch.column(4)[row].as_buffer()
                yield Given(tables={output: pa.ipc.open_stream(payload).read_all()})


@contextmanager
def session(master: str, scratch: Path) -> Iterator[SparkSession]:
    """A session of our own: loopback only for a local master, no UI, quiet; stopped after use."""
    home = java_home(find_java(), scratch)
    # Without it, workers are whatever python3 PATH holds, which lacks our packages.
    with _environment({"PYSPARK_PYTHON": sys.executable, "JAVA_HOME": str(home)}):
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession

        builder = SparkSession.builder.master(master).appName("firedrill")
        for key, value in _configuration(master, scratch).items():
            builder = builder.config(key, value)
        words = scratch / "jvm.log"
        try:
            with _standard_error_into(words):
                spark = builder.getOrCreate()
        except (PySparkException, OSError) as error:
            tail = words.read_text(errors="replace")[-JVM_WORDS_MAX:]
            raise HarnessError(f"Spark did not start on {master}: {error}\n{tail}") from error
        try:
            yield spark
        except PySparkException as error:
            raise HarnessError(f"Spark lost the analysis: {_gist(error)}") from error
        finally:
            # A signal to the whole process group ends the JVM as well: what is to be told then is
            # the interruption, not that a session that is gone can't be stopped.
            with suppress(Py4JError, OSError):
                spark.stop()


def _gist(error: Exception) -> str:
    """The last line of what Spark says, which is what the worker's traceback ends in."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[-1]


def _configuration(master: str, scratch: Path) -> dict[str, str]:
    log4j = Path(__file__).with_name("log4j2.properties")
    configuration = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
        "spark.driver.memory": DRIVER_MEMORY,
        "spark.driver.maxResultSize": "0",  # edges of long histories outgrow the default of 1 GB
        "spark.driver.extraJavaOptions": f"{_JVM} -Dlog4j2.configurationFile={log4j.as_uri()}",
    }
    if master.startswith("local"):
        configuration |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.local.dir": str(scratch),
        }
    return configuration


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """``os.environ`` with ``values`` in it, and as it was afterwards."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def _standard_error_into(file: Path) -> Iterator[None]:
    """Let what is started inside, the JVM, write its standard error to ``file``.

    It greets everyone with warnings about modules and log levels before any setting is read.
    """
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with file.open("wb") as sink:
            os.dup2(sink.fileno(), 2)
        yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 2)
        os.close(kept)
