"""A cluster that has no executor for a check: nobody waits for it without end."""

from __future__ import annotations

from pathlib import Path

import pytest
from checker_histories import ok, r, setting, source
from spark_cluster import require_parts, standalone

from checkers.engine import spark
from checkers.engine.analyze import judge
from checkers.engine.output import NOTE
from checkers.engine.spark_options import SparkOptions
from checkers.lists.checker import CHECKER
from harness.errors import HarnessError
from harness.history import schema

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("workers", [0, 1])
def test_a_cluster_whose_executors_never_come_is_told_and_given_up(
    workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    require_parts()
    monkeypatch.setattr(spark, "NO_EXECUTOR_TOLD_S", 1.0)
    monkeypatch.setattr(spark, "NO_EXECUTOR_LIMIT_S", 8.0)
    notes: list[str] = []
    token = NOTE.set(notes.append)
    request.addfinalizer(lambda: NOTE.reset(token))
    with standalone(tmp_path, workers=workers) as cluster:
        conf = (
            ("spark.driver.host", "127.0.0.1"),
            ("spark.executor.memory", "512m"),
            ("spark.executor.extraJavaOptions", "--add-modules=none.such"),  # it ends
        )
        environment = str(cluster.hidden / "environment.tar.gz")
        options = SparkOptions(master=cluster.master, environment=environment, conf=conf)
        with pytest.raises(HarnessError, match=r"^no executor of spark://\S+ was there for 8 s: "):
            judge(
                source([ok(r(1))]),
                setting=setting(),
                checkers=(CHECKER,),
                faults=schema.FAULTS.empty_table(),
                events=schema.EVENTS.empty_table(),
                executor="spark",
                spark=options,
            )
    assert [note for note in notes if note.startswith("Spark waits for an executor of spark://")]
