"""A cluster of two workers that share no directory with the driver and have nothing of this package
gives the verdict of one process, byte for byte.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from checker_generator import generate
from checker_histories import Txn, ok, r, setting, source
from spark_cluster import Cluster, executors_of, require_parts, standalone
from test_cycle_stretches import overlapping
from test_cycle_windows import by_windows, stages_of

from checkers.engine.analyze import judge
from checkers.engine.kernel_output import NOTE, KernelOutput
from checkers.engine.source import Source
from checkers.engine.spark import executor as spark_executor
from checkers.engine.spark.options import SparkOptions
from checkers.engine.spark.session import session
from checkers.engine.work import StretchWork, Work
from checkers.lists.checker import CHECKER
from checkers.promises.lost_write import CHECKER as LOST_WRITE
from harness.history import schema
from harness.protocols.verdict import encode

pytestmark = pytest.mark.spark
HISTORIES = 24


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    require_parts()
    with standalone(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture(scope="module")
def options(cluster: Cluster) -> Iterator[SparkOptions]:
    found = SparkOptions(
        master=cluster.master,
        environment=str(cluster.hidden / "environment.tar.gz"),
        conf=(("spark.driver.host", "127.0.0.1"), ("spark.executor.memory", "512m")),
    )
    with session(found, cluster.hidden):
        yield found


def verdict_of(history: Source, executor: str, options: SparkOptions | None = None) -> bytes:
    found = judge(
        history,
        setting=setting(),
        checkers=(CHECKER, LOST_WRITE),
        faults=schema.FAULTS.empty_table(),
        events=schema.EVENTS.empty_table(),
        executor=executor,
        spark=options or SparkOptions(),
    )
    return encode(found.verdict)


def histories() -> Iterator[tuple[int, list[Txn]]]:
    for seed in range(HISTORIES):
        yield seed, generate(seed) if seed % 2 else overlapping(seed, size=200)
    yield HISTORIES, [ok(r(1))]


def test_its_verdicts_are_those_of_one_process(
    cluster: Cluster, options: SparkOptions, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # What the driver writes lies where no worker sees it.
    monkeypatch.setattr("tempfile.tempdir", str(cluster.hidden))
    violations = 0
    for seed, txns in histories():
        history = source(txns, splits=random.Random(seed).randint(1, 3))
        in_process = verdict_of(history, "local")
        assert verdict_of(history, "spark", options) == in_process, seed
        violations += b"violation" in in_process
    assert violations > HISTORIES // 3


def test_its_verdicts_by_windows_are_those_of_one_process(
    cluster: Cluster, options: SparkOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(cluster.hidden))
    seen = stages_of(monkeypatch)
    for seed in range(6):
        history = source(overlapping(seed, size=200), splits=2)
        in_process = verdict_of(history, "local")
        with monkeypatch.context() as patch:
            by_windows(patch, 16)
            assert verdict_of(history, "spark", options) == in_process, seed
    assert seen["COMPONENT"] > 3


def test_an_executor_that_is_killed_in_the_middle_changes_no_byte_and_is_told(
    cluster: Cluster, options: SparkOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(cluster.hidden))
    history = source(overlapping(4, size=4000), splits=4)
    in_process = verdict_of(history, "local")
    assert b"violation" in in_process
    killed: list[int] = []
    judged = spark_executor._Cluster._on_tasks

    def killing(self: spark_executor._Cluster, work: Work, count: int) -> KernelOutput:
        # Once the edges are made: some of them are lost with it.
        if isinstance(work, StretchWork) and not killed:
            killed.extend(executors_of(cluster.workers[0]))
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
        return judged(self, work, count)

    monkeypatch.setattr(spark_executor._Cluster, "_on_tasks", killing)
    notes: list[str] = []
    token = NOTE.set(notes.append)
    try:
        on_cluster = verdict_of(history, "spark", options)
    finally:
        NOTE.reset(token)

    assert killed
    assert on_cluster == in_process
    assert any(note.startswith("Spark lost executor") for note in notes), notes
