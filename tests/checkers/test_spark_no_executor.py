"""A cluster that has no executor for a check: nobody waits for it without end."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from checker_histories import ok, r, setting, source
from spark_cluster import require_parts, standalone

from checkers.engine.analyze import judge
from checkers.engine.kernel_output import NOTE
from checkers.engine.spark import executor, gateway, session
from checkers.engine.spark.options import SparkOptions
from checkers.lists.checker import CHECKER
from harness.errors import HarnessError
from harness.history import schema

pytestmark = pytest.mark.spark


def noted(request: pytest.FixtureRequest) -> list[str]:
    """What is said from now on."""
    notes: list[str] = []
    token = NOTE.set(notes.append)
    request.addfinalizer(lambda: NOTE.reset(token))
    return notes


def judged(options: SparkOptions) -> None:
    judge(
        source([ok(r(1))]),
        setting=setting(),
        checkers=(CHECKER,),
        faults=schema.FAULTS.empty_table(),
        events=schema.EVENTS.empty_table(),
        executor="spark",
        spark=options,
    )


@pytest.mark.parametrize("workers", [0, 1])
def test_a_cluster_whose_executors_never_come_is_told_and_given_up(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    require_parts()
    notes = noted(request)
    monkeypatch.setattr(executor, "NO_EXECUTOR_TOLD_S", 1.0)
    monkeypatch.setattr(executor, "NO_EXECUTOR_LIMIT_S", 8.0)
    with standalone(tmp_path, workers=workers) as cluster:
        conf = (
            ("spark.driver.host", "127.0.0.1"),
            ("spark.executor.memory", "512m"),
            ("spark.executor.extraJavaOptions", "--add-modules=none.such"),  # it ends
        )
        environment = str(cluster.hidden / "environment.tar.gz")
        options = SparkOptions(master=cluster.master, environment=environment, conf=conf)
        with pytest.raises(HarnessError, match=r"^no executor of spark://\S+ was there for 8 s: "):
            judged(options)
    assert [note for note in notes if note.startswith("Spark waits for an executor of spark://")]


def test_a_resource_manager_that_is_silent_is_told_and_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    notes = noted(request)
    monkeypatch.setattr(session, "CLUSTER_TOLD_S", 0.5)
    monkeypatch.setattr(session, "CLUSTER_LIMIT_S", 8.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        (tmp_path / "yarn-site.xml").write_text(
            "<configuration><property><name>yarn.resourcemanager.address</name>"
            f"<value>{address}</value></property></configuration>"
        )
        monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
        # A JVM reads it as it starts.
        gateway.close()
        request.addfinalizer(gateway.close)
        conf = (("spark.driver.host", "127.0.0.1"),)
        with pytest.raises(HarnessError, match="did not take the application within 8 s"):
            judged(SparkOptions(master="yarn", conf=conf))
        silent.settimeout(0)
        silent.accept()[0].close()  # it was asked
    (note,) = notes
    assert note.startswith("Spark waits for yarn to take the application")
