"""Generated runs of every workload get the same bytes of verdict in this process, on Spark here,
and from HDFS.

``benchmarks/executors_agree.py`` does the same with two hundred, and on a cluster of two workers,
which ``test_spark_cluster.py`` compares with this process here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from every_executor import compared

RUNS = 8  # one of each family


@pytest.mark.spark
def test_executors_give_the_same_bytes(tmp_path: Path) -> None:
    here, *others = compared(tmp_path, RUNS, cluster=False)

    assert [each.executor for each in others] == ["local[2]", "HDFS"]
    for other in others:
        assert other.differing(here) == [], other.executor
    assert len(here.verdicts) == RUNS
    assert here.outcomes()["violation"] >= 2
    assert here.outcomes()["valid"] >= 2
