"""A session of Spark: the JVM that is met, the settings it gets, and its end."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from checkers.engine.kernel_output import NOTE
from checkers.engine.spark import gateway
from checkers.engine.spark.java import find_java, java_binary
from checkers.engine.spark.options import SparkOptions
from checkers.engine.spark.packed_environment import INTERPRETER, NAME, as_archive
from harness.errors import AnalysisLost, HarnessError, UsageError
from harness.scratch import scratch_directory

if TYPE_CHECKING:
    from pyspark import SparkContext

# Settings that decide who may read what, or what is run: none of them is a caller's.
_OURS = ("spark.python.daemon.module", "spark.ui.enabled", "spark.master")
_FRAME = re.compile(r"\s*at [\w.$]+")
# How Spark tells that a session ended by itself, and what that mostly comes from.
_STOPPED = "stopped SparkContext"
_NO_CLUSTER = (
    "the cluster gave the application up: its master does not answer, or its executors end as they "
    "start (the workers' logs tell)"
)
# Until a cluster takes an application: its clients of YARN and Kubernetes would try for hours.
CLUSTER_TOLD_S = 20.0
CLUSTER_LIMIT_S = 600.0
_WHERE_TO_LOOK = "it may be busy, or is not where HADOOP_CONF_DIR or the master's name says"
JVM_ENDS_S = 2.0  # from its last answer until it is seen to have ended
_FRILL = re.compile(r"\s*(SQLSTATE: |Driver stacktrace:)")


def prepare(options: SparkOptions | None = None) -> None:
    """Start the JVM of a session to come beside what this process does before; a failure is that
    session's to tell.
    """
    options = options or SparkOptions()
    with suppress(HarnessError, OSError), _environment(options):
        gateway.begin(_java, alone=options.local)


@contextmanager
def kept_open() -> Iterator[None]:
    """Within the block the first session that is opened stays open, with a directory of its own,
    and later ones are that one.
    """
    with ExitStack() as stack:
        _keeper[:] = [stack]
        try:
            yield
        finally:
            _keeper.clear()


@contextmanager
def session(options: SparkOptions, scratch: Path) -> Iterator[SparkContext]:
    """Open a session of Spark, quiet, and stop it after use; within another of this process it is
    that one. It listens for a local master on the loopback only, and takes nothing of the caller's
    Spark configuration.
    """
    if _keeper:
        from pyspark import SparkContext

        keeper = _keeper[0]
        if SparkContext._active_spark_context is None:
            lasting = keeper.enter_context(scratch_directory("session"))
            keeper.enter_context(_opened(options, lasting.path))
    with _opened(options, scratch) as spark:
        yield spark


@contextmanager
def _opened(options: SparkOptions, scratch: Path) -> Iterator[SparkContext]:
    with _environment(options):
        from py4j.protocol import Py4JError
        from pyspark import SparkContext
        from pyspark.errors import PySparkException

        inside = SparkContext._active_spark_context
        spark = inside or _started(options)
        if not inside:
            _scratch[:] = [scratch]
        try:
            yield spark
        except (PySparkException, Py4JError) as error:
            raise AnalysisLost(f"Spark lost the analysis: {_gist(error)}") from error
        # What pyspark says by itself to a JVM, py4j does not wrap.
        except (OSError, EOFError) as error:
            if not gateway.ended(within_s=JVM_ENDS_S):
                raise
            raise AnalysisLost("Spark lost the analysis: its JVM ended") from error
        finally:
            # A signal to the whole process group ends the JVM as well: what is to be told then is
            # the interruption, not that a session that is gone can't be stopped.
            if not inside:
                with suppress(Py4JError, OSError):
                    spark.stop()
                # Where its JVM is gone it has not: the next session would be this one.
                SparkContext._active_spark_context = None


@contextmanager
def _environment(options: SparkOptions) -> Iterator[None]:
    # Without it, workers are the python3 of PATH, which lacks our packages.
    python = sys.executable if options.environment is None else INTERPRETER
    with gateway.environment({"PYSPARK_PYTHON": python}, foreign=not options.local):
        yield


# Of the session of this process: its directory, and what keeps it open.
_scratch: list[Path] = []
_keeper: list[ExitStack] = []


def session_directory() -> Path:
    """Return the directory of the session that is open: what lies there stays as long as it."""
    return _scratch[0]


def _java() -> Path:
    return java_binary(find_java())


def _started(options: SparkOptions) -> SparkContext:
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        jvm = gateway.gateway(_java, alone=options.local)
    except (HarnessError, OSError) as error:
        raise HarnessError(f"Spark did not start on {options.master}: {error}") from error
    configuration = _configuration(options, jvm.directory)
    waiting = _Waiting(jvm, options)
    try:
        with nullcontext() if options.local else waiting.bounded():
            return _connected(jvm, options, configuration)
    except (PySparkException, Py4JError, OSError) as error:
        # Closing removes the JVM's directory and its log; what py4j tells of an error, it asks for.
        said = f"{waiting.given_up or error}\n{jvm.last_words}"
        gateway.close()
        raise HarnessError(f"Spark did not start on {options.master}: {said}") from error


@attrs.define
class _Waiting:
    """A wait for a cluster to take the application: told after a while, then given up."""

    _jvm: gateway.Gateway
    _options: SparkOptions
    given_up: str = ""  # why
    _over: bool = False
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    @contextmanager
    def bounded(self) -> Iterator[None]:
        """Within the block tell of the wait, and end the JVM at the limit."""
        waits = f"Spark waits for {self._options.master} to take the application: {_WHERE_TO_LOOK}"
        timers = (
            threading.Timer(CLUSTER_TOLD_S, NOTE.get(), (waits,)),
            threading.Timer(CLUSTER_LIMIT_S, self._give_up),
        )
        for timer in timers:
            timer.daemon = True
            timer.start()
        try:
            yield
        finally:
            with self._lock:
                self._over = True
            for timer in timers:
                timer.cancel()

    def _give_up(self) -> None:
        with self._lock:
            if not self._over:
                limit = f"it did not take the application within {CLUSTER_LIMIT_S:.0f} s"
                self.given_up = f"{limit}: {_WHERE_TO_LOOK}"
                self._jvm.jvm.end()


def _connected(
    jvm: gateway.Gateway, options: SparkOptions, configuration: dict[str, str]
) -> SparkContext:
    from pyspark import SparkConf, SparkContext

    where = {"PYSPARK_GATEWAY_PORT": str(jvm.port), "PYSPARK_GATEWAY_SECRET": jvm.secret}
    with gateway.environment(where, foreign=True):
        # The first takes the connection that the variables tell of.
        SparkContext._ensure_initialized()
        settings = SparkConf().setMaster(options.master).setAppName("firedrill")
        spark = SparkContext.getOrCreate(settings.setAll(list(configuration.items())))
    if options.ui:
        NOTE.get()(f"Spark's own pages: {spark.uiWebUrl}")
    if options.local:
        threading.Thread(target=_warm, args=(spark,), name="spark-warming", daemon=True).start()
    return spark


def _warm(spark: SparkContext) -> None:
    """Have a worker forked for each core, beside what the driver reads before its first job."""
    with suppress(Exception):  # where a session does not work, its first job tells
        cores = spark.defaultParallelism
        spark.parallelize(range(cores), cores).foreach(_nothing)


def _nothing(_number: int) -> None:
    """The work of a task that only begins."""


def _gist(error: Exception) -> str:
    """Return the line of Spark's message that says what happened: the end of a worker's traceback,
    or what stands before the frames of the JVM.
    """
    if _STOPPED in str(error):
        return _NO_CLUSTER
    said = takewhile(lambda line: not _FRAME.match(line), str(error).splitlines())
    lines = [line.strip() for line in said if line.strip() and not _FRILL.match(line)]
    return lines[-1] if lines else type(error).__name__


def _configuration(options: SparkOptions, directory: Path) -> dict[str, str]:
    """Return the settings that go over the connection, so that no command line shows them. A local
    session draws a secret of its own for the clients of its RPC and its blocks.
    """
    configuration = {
        "spark.ui.enabled": str(options.ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.python.daemon.module": "checkers.engine.spark.worker_daemon",
        "spark.driver.maxResultSize": "0",  # findings of long histories outgrow the default of 1 GB
    }
    if options.local:
        configuration |= {
            "spark.authenticate": "true",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            # A JVM keeps to the first that it was given, for all sessions: not the session's own.
            "spark.local.dir": str(directory),
        }
    if options.environment is not None:
        archive = as_archive(Path(options.environment))
        configuration |= {
            "spark.archives": f"{archive}#{NAME}",
            # Relative to where an executor starts, beside which the archive is unpacked.
            "spark.executorEnv.PYTHONPATH": NAME,
        }
    for name, value in options.conf:
        if not name.startswith("spark.") or name in _OURS:
            raise UsageError(f"--spark-conf: expected a setting of Spark's to change (got {name})")
        configuration[name] = value
    return configuration
