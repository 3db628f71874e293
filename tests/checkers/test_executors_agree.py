"""Generated runs of every workload get the same bytes of verdict from every executor: in this
process, on Spark here, on a cluster of two workers, and from HDFS.

``benchmarks/executors_agree.py`` does the same with two hundred.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from every_executor import compared

RUNS = 8  # one of each family


@pytest.mark.spark
def test_every_executor_gives_the_same_bytes(tmp_path: Path) -> None:
    here, *others = compared(tmp_path, RUNS)

    assert [each.executor for each in others] == ["local[2]", "two workers", "HDFS"]
    for other in others:
        assert other.differing(here) == [], other.executor
    assert len(here.verdicts) == RUNS
    assert here.outcomes()["violation"] >= 2
    assert here.outcomes()["valid"] >= 2
