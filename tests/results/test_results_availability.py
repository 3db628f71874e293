"""What the report says about availability, where a checker had enough to tell."""

from __future__ import annotations

from harness.protocols.verdict import Availability, PartitionGaps, PartitionWindow
from results.report.fault_recovery import availability
from results.report.tabulate import DASH


def by_partition(*gaps: int | None) -> Availability:
    windows = (PartitionWindow(fault=3, kind="kill", longest_gap_ns=gaps),)
    return Availability(windows=(), partitions=PartitionGaps(partition=(0, 1), windows=windows))


def test_the_longest_gap_of_each_partition_is_shown() -> None:
    _, table = availability(by_partition(1_500_000_000, None))

    assert table.columns == ("window", "partition 0", "partition 1")
    assert table.rows == (("3 kill", "1.500", DASH),)


def test_a_table_that_would_say_nothing_is_left_out() -> None:
    assert len(availability(by_partition(None, None))) == 1
