"""How long each partition acknowledged no write while a fault was in force."""

from __future__ import annotations

from typing import Any

import attrs
import pyarrow as pa

from checkers.promises.availability import PARTITIONS_MAX, partition_gaps
from checkers.promises.liveness import STEP_NS
from harness.protocols.fault_spans import FaultSpan
from harness.protocols.verdict import Availability
from results.report.fault_recovery import availability
from results.report.tabulate import DASH

S = 1_000_000_000
KILL = FaultSpan(
    fault=3, kind="kill", target="n1", nodes=("n1",), roles=(), state="healed",
    begin_ns=10 * S, effective_ns=10 * S, healing_ns=30 * S, healed_ns=30 * S,
)  # fmt: skip


def tries(*rows: tuple[int, float, bool, bool]) -> pa.Table:
    """(partition, second of the end, whether it writes, whether it was acknowledged)."""
    names = ("partition", "ended", "writes", "ok")
    made = [(p, int(at_s * S) // STEP_NS, writes, ok) for p, at_s, writes, ok in rows]
    return pa.Table.from_pylist([dict(zip(names, row, strict=True)) for row in made])


def gaps(*rows: tuple[int, float, bool, bool], window: FaultSpan = KILL) -> list[Any]:
    found = partition_gaps(tries(*rows), [window])
    return list(found.windows[0].longest_gap_ns)


def wrote(partition: int, *seconds: float) -> list[tuple[int, float, bool, bool]]:
    return [(partition, at_s, True, True) for at_s in seconds]


def test_each_partition_has_its_own_longest_time_without_a_write() -> None:
    assert gaps(*wrote(0, 9, 11, 20, 31), *wrote(1, 9, 10, 12, 13, 33)) == [11 * S, 20 * S]


def test_neither_reads_nor_what_failed_end_a_gap() -> None:
    others = [(0, 15.0, False, True), (0, 16.0, True, False)]

    assert gaps(*wrote(0, 9, 32), *others) == [23 * S]


def test_a_partition_that_was_never_written_again_has_no_length_to_tell() -> None:
    assert gaps(*wrote(0, 9, 11), *wrote(1, 9, 31)) == [None, 22 * S]


def test_a_fault_that_was_never_healed_is_looked_at_up_to_the_last_write() -> None:
    assert gaps(*wrote(0, 9, 18, 19), window=attrs.evolve(KILL, healed_ns=None)) == [9 * S]


def test_nothing_is_told_of_no_partitions_and_of_too_many() -> None:
    crowd = [row for number in range(PARTITIONS_MAX + 1) for row in wrote(number, 9, 31)]

    assert partition_gaps(tries(*crowd), [KILL]) is None
    assert partition_gaps(tries(*wrote(0, 9)).slice(0, 0), [KILL]) is None
    assert partition_gaps(tries(*wrote(0, 9)), []) is None


def test_a_page_shows_them_side_by_side() -> None:
    told = partition_gaps(tries(*wrote(0, 9, 31), *wrote(5, 9, 12)), [KILL])

    table = availability(Availability(windows=(), partitions=told))[1]

    assert table.columns == ("window", "partition 0", "partition 5")
    assert table.rows == (("3 kill", "22.000", DASH),)
