"""Generated runs, judged by every executor."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from generated_runs import Judged, judged, write_runs
from spark_cluster import require_parts, standalone

from checkers.engine.spark.hadoop import remote_store

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from mini_hdfs import hdfs, minicluster


def compared(scratch: Path, count: int, *, cluster: bool = True) -> Iterator[Judged]:
    """Yield the verdicts of ``count`` runs, in process first, then of each other executor, with a
    ``cluster`` or without, as soon as it has judged its own copies of all.
    """
    if cluster:
        require_parts()
    minicluster()
    runs = scratch / "runs"
    write_runs(runs, count)
    on = {name: scratch / name / "runs" for name in ("here", "spark", "workers", "hdfs")}
    for copy in on.values():
        shutil.copytree(runs, copy)
    yield judged("in process", on["here"], "--executor", "local")
    yield judged("local[2]", on["spark"], "--spark-master", "local[2]")
    if cluster:
        yield _on_workers(scratch / "cluster", on["workers"])
    with hdfs(scratch / "hdfs") as address:
        with remote_store(address) as remote:
            remote.put(runs, f"{address}/runs")
        there = f"{address}/runs"
        yield judged("HDFS", on["hdfs"], "--spark-master", "local[2]", there=there)


def _on_workers(directory: Path, runs: Path) -> Judged:
    directory.mkdir()
    with standalone(directory) as cluster:
        environment = cluster.hidden / "environment.tar.gz"
        confs = ("spark.driver.host=127.0.0.1", "spark.executor.memory=512m")
        options = ["--spark-master", cluster.master, "--spark-environment", str(environment)]
        for conf in confs:
            options += ["--spark-conf", conf]
        return judged("two workers", runs, *options)
