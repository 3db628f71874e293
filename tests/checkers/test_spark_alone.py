"""Spark as it is started here: nothing that lies about configures it or runs in it, and nothing of
it is open to others.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark import SparkContext

from checkers.engine.spark import gateway
from checkers.engine.spark.options import SparkOptions
from checkers.engine.spark.session import session
from cli.main import execute
from cli.session import _of_spark
from harness.scratch import scratch_directory, sweep

FIREDRILL = Path(sys.executable).with_name("firedrill")
LIMIT_S = 240
HISTORY = """
{:type :invoke, :f :txn, :value [[:append 1 1]], :process 0, :time 5, :index 0}
{:type :ok, :f :txn, :value [[:append 1 1]], :process 0, :time 7, :index 1}
{:type :invoke, :f :txn, :value [[:r 1 nil]], :process 1, :time 8, :index 2}
{:type :ok, :f :txn, :value [[:r 1 [1]]], :process 1, :time 9, :index 3}
"""
MODULES = ("socket", "queue", "tomllib", "numpy", "pyspark", "py4j", "msgspec", "sitecustomize")
LOOPBACK = ("0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000")


def lay_traps(directory: Path, sprung: Path) -> dict[str, str]:
    """Everything that Python, Spark, Hadoop or a JVM might take from ``directory``; each file says
    so in ``sprung``. Gives the variables that point there.
    """
    for module in MODULES:
        (directory / f"{module}.py").write_text(f"open({str(sprung)!r}, 'a').write('{module} ')\n")
    (directory / "spark-env.sh").write_text(f"echo spark-env >> {sprung}\n")
    (directory / "spark-defaults.conf").write_text("spark.master spark://192.0.2.1:7077\n")
    (directory / "core-site.xml").write_text("no XML at all")
    (directory / "log4j2.properties").write_text("status = trace\nrootLogger.level = trace\n")
    (directory / ".hotspotrc").write_text("NoSuchOption\n")
    return {
        "SPARK_CONF_DIR": str(directory),
        "SPARK_HOME": str(directory),
        "SPARK_REMOTE": "sc://192.0.2.1",
        "HADOOP_CONF_DIR": str(directory),
        "PYSPARK_SUBMIT_ARGS": "--no-such-option",
        "PYSPARK_GATEWAY_PORT": "1",
        "JAVA_TOOL_OPTIONS": "-XX:NoSuchOption",
        "CLASSPATH": str(directory),
    }


@pytest.mark.spark
def test_nothing_that_lies_in_the_current_directory_or_the_environment_takes_part(
    tmp_path: Path,
) -> None:
    directory, sprung = tmp_path / "here", tmp_path / "sprung"
    directory.mkdir()
    (directory / "history.edn").write_text(HISTORY)
    variables = lay_traps(directory, sprung)
    before = sorted(os.listdir(directory))

    done = subprocess.run(
        [FIREDRILL, "check", "history.edn", "--executor", "spark", "--json"],
        cwd=directory,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )

    assert not sprung.exists(), sprung.read_text()
    assert done.returncode in (0, 2), done.stderr
    assert "gave up" not in done.stdout
    assert sorted(os.listdir(directory)) == before


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkContext]:
    with session(SparkOptions(master="local[1]"), tmp_path_factory.mktemp("spark")) as spark:
        yield spark


def jvm_of(spark: SparkContext) -> int:
    return int(spark._jvm.java.lang.ProcessHandle.current().pid())


@pytest.mark.spark
def test_the_options_are_those_of_sparks_launcher_but_for_one_module(begun: SparkContext) -> None:
    options = begun._jvm.org.apache.spark.launcher.JavaModuleOptions
    wanted = options.defaultModuleOptions().split()

    assert set(wanted) - set(gateway.MODULE_OPTIONS) == {"--add-modules=jdk.incubator.vector"}
    assert set(gateway.MODULE_OPTIONS) <= set(wanted)


@pytest.mark.spark
def test_all_that_it_listens_on_is_the_loopback(begun: SparkContext) -> None:
    jvm = Path("/proc") / str(jvm_of(begun))
    sockets = {os.readlink(handle) for handle in (jvm / "fd").iterdir() if handle.exists()}
    rows = [
        line.split()
        for table in ("tcp", "tcp6")
        for line in (jvm / "net" / table).read_text().splitlines()[1:]
    ]
    listening = [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets]

    assert len(listening) >= 2  # py4j and blocks, at least
    assert [at for at in listening if not at.startswith(LOOPBACK)] == []


@pytest.mark.spark
def test_a_session_within_another_is_that_one_and_leaves_it_open(
    begun: SparkContext, tmp_path: Path
) -> None:
    with session(SparkOptions(master="local[1]"), tmp_path) as inner:
        assert inner is begun
    assert begun.parallelize([1, 2], 2).sum() == 3


@pytest.mark.spark
def test_a_session_that_is_kept_open_serves_the_next_and_ends_with_the_block(
    tmp_path: Path,
) -> None:
    # In a process of its own: this one has a session.
    script = """
import sys
from pathlib import Path
from pyspark import SparkContext
from checkers.engine.spark.options import SparkOptions
from checkers.engine.spark.session import kept_open, session, session_directory

options = SparkOptions(master="local[1]")
with kept_open():
    with session(options, Path(sys.argv[1])) as first:
        assert first.parallelize([1, 2], 2).sum() == 3
    with session(options, Path(sys.argv[1])) as second:
        assert second is first
        assert second.parallelize([1, 2], 2).sum() == 3
    lasting = session_directory()
    assert lasting.is_dir() and lasting != Path(sys.argv[1])
    assert SparkContext._active_spark_context is first
assert SparkContext._active_spark_context is None and not lasting.exists()
"""
    done = subprocess.run(
        [sys.executable, "-c", script, tmp_path], capture_output=True, text=True, timeout=LIMIT_S
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.spark
def test_it_asks_for_a_secret_that_no_command_line_shows(begun: SparkContext) -> None:
    words = (Path("/proc") / str(jvm_of(begun)) / "cmdline").read_text()

    assert begun.getConf().get("spark.authenticate") == "true"
    assert "secret" not in words
    assert begun._gateway.gateway_parameters.auth_token
    assert begun._gateway.gateway_parameters.auth_token not in words
    assert begun.uiWebUrl is None


def test_the_environment_is_afterwards_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    before = dict(os.environ)

    with gateway.environment({"PYSPARK_PYTHON": "x"}, foreign=False):
        assert "SPARK_CONF_DIR" not in os.environ
        assert os.environ["PYSPARK_PYTHON"] == "x"

    assert dict(os.environ) == before


@pytest.mark.spark
def test_a_later_session_of_a_process_keeps_its_files_from_the_sweep_of_another_command() -> None:
    for _ in range(2):
        with (
            scratch_directory("spark") as scratch,
            session(SparkOptions(master="local[1]"), scratch.path) as spark,
        ):
            sweep()
            assert spark.parallelize(range(4), 1).sum() == 6


KILLED = """
import os, signal
from pathlib import Path
from checkers.engine.spark import gateway
from checkers.engine.spark.session import session
from checkers.engine.spark.options import SparkOptions
from harness.scratch import scratch_directory

def parent_of(stat):
    return int(stat.read_text().rpartition(") ")[2].split()[1])

def run():
    with (
        scratch_directory("spark") as scratch,
        session(SparkOptions(master="local[1]"), scratch.path) as spark,
    ):
        supervisor = gateway._running[0].jvm._process.pid
        every = Path("/proc").glob("[0-9]*/stat")
        (jvm,) = (stat.parent.name for stat in every if parent_of(stat) == supervisor)
        os.kill(int(jvm), signal.SIGKILL)
        return spark.parallelize(range(2), 2).count()

try:
    run()
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.spark
def test_a_jvm_that_is_killed_is_an_analysis_that_is_lost() -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED], capture_output=True, text=True, timeout=LIMIT_S
    )

    assert done.stdout.startswith("AnalysisLost Spark lost the analysis"), done.stderr


@pytest.mark.parametrize(
    "master", ["local[0]", "local[x]", "bogus://x", "spark://", "spark://host", "yarn-client", ""]
)
def test_a_master_that_is_mistyped_is_refused_before_anything_is_read(
    master: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = execute(["check", str(tmp_path / "history.edn"), "--spark-master", master])

    assert code == 254
    assert "--spark-master: expected local" in capsys.readouterr().err


@pytest.mark.parametrize(
    "master",
    [
        *("local", "local[2]", "local[*]", "local[2,3]", "yarn", "spark://host:7077"),
        *("spark://one:7077,two:7077", "spark://[::1]:7077", "k8s://https://10.0.0.1:6443"),
    ],
)
def test_every_kind_of_master_is_taken(master: str) -> None:
    assert _of_spark(master, None, (), False).master == master
