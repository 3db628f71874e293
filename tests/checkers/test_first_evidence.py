"""The first read that shows an anomaly decides which faults can explain it, not the last one."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from checker_histories import Fault, Txn, a, info, ok, r, setting, source, write_run

from checkers.engine.analyze import analyze
from checkers.lists.contradictions import first_contradictions
from checkers.lists.list_ops import ListOps, list_ops
from checkers.lists.lost_writes import FINAL_READS
from checkers.lists.versions import versions_of
from harness.history.records import PhaseMark
from harness.protocols.finding import Finding
from harness.protocols.verdict import Verdict

MS = 1_000_000
KILL = Fault("kill", "n1", 50 * MS, 80 * MS)


def at(ms: int, *ops: tuple[str, int, object]) -> Txn:
    """A transaction of 4 ms that answered ok."""
    return ok(*ops, start=ms * MS, finish=(ms + 4) * MS)


def judged(
    run: Path, txns: list[Txn], executor: str = "local", *, final_ms: int | None = None
) -> Verdict:
    marks = () if final_ms is None else (PhaseMark(name=FINAL_READS, at_ns=final_ms * MS),)
    return analyze(write_run(run, txns, [KILL], marks=marks), executor=executor)


def only(found: Verdict, anomaly: str) -> Finding:
    [example] = found.anomalies[anomaly].examples
    return example


# T1's append is acknowledged at 14 ms, before anything failed.
LOST_EARLY = [at(0, a(1, 1)), at(10, a(1, 2)), at(20, r(1, 1)), at(90, r(1, 1))]
LOST_LATE = [at(0, a(1, 1)), at(10, a(1, 2)), at(60, r(1, 1)), at(90, r(1, 1))]


def test_a_write_that_a_read_missed_before_the_fault_was_not_lost_by_it(tmp_path: Path) -> None:
    early = only(judged(tmp_path / "early", LOST_EARLY), "lost-write")
    late = only(judged(tmp_path / "late", LOST_LATE), "lost-write")

    assert early.explained_by is not None
    assert late.explained_by is not None
    assert (early.explained_by.fault, early.explained_by.no_fault) == (None, True)
    assert early.explained_by.text.startswith("no fault was in force when it was acknowledged")
    assert (late.explained_by.fault, late.explained_by.kind) == (0, "kill")


def test_a_lost_write_shows_the_first_read_that_misses_it_beside_the_last(tmp_path: Path) -> None:
    found = only(judged(tmp_path / "run", LOST_EARLY), "lost-write")

    assert found.txns == (1, 2, 3)
    assert [operation.txn for operation in found.operations] == [1, 2, 3]


@pytest.mark.parametrize(("seen_ms", "missed_ms", "fault"), [(20, 30, None), (40, 60, 0)])
def test_a_write_that_reads_had_shown_was_lost_by_the_first_that_misses_it_behind_them(
    tmp_path: Path, seen_ms: int, missed_ms: int, fault: int | None
) -> None:
    """A stale read before the one that shows it tells of no loss."""
    txns = [
        *(at(0, a(1, 1)), at(10, a(1, 2)), at(15, r(1, 1))),
        *(at(seen_ms, r(1, 1, 2)), at(missed_ms, r(1, 1)), at(95, r(1, 1))),
    ]

    found = only(judged(tmp_path / "run", txns, final_ms=90), "lost-write")

    assert found.txns == (1, 3, 4, 5)
    assert found.explained_by is not None
    assert found.explained_by.fault == fault


FORKED = [
    *(at(0, a(1, 1)), at(2, a(1, 2)), at(4, a(1, 3)), at(20, r(1, 1, 2)), at(21, r(1, 2))),
    *(at(90, r(1, 1, 2, 3)), at(95, r(1, 1, 2, 3))),
]


def test_reads_that_contradict_each_other_before_the_fault_are_not_explained_by_it(
    tmp_path: Path,
) -> None:
    early = only(judged(tmp_path / "early", FORKED), "incompatible-order")
    without = [txn for txn in FORKED if txn.ops != [r(1, 1, 2)]]
    late = only(judged(tmp_path / "late", without), "incompatible-order")

    assert early.txns == (3, 4)
    assert early.explained_by is not None
    assert early.explained_by.no_fault
    assert late.explained_by is not None
    assert late.explained_by.fault == 0


@pytest.mark.spark
def test_spark_names_the_same_evidence(tmp_path: Path) -> None:
    """Several keys, so that they are in several splits."""
    keyed = [
        ok(*((f, key, value) for f, _, value in txn.ops), start=txn.start, finish=txn.finish)
        for txns, keys in ((LOST_EARLY, range(8)), (FORKED, range(8, 16)))
        for key in keys
        for txn in txns
    ]
    run = write_run(tmp_path / "run", keyed, [KILL])

    local, spark = (analyze(run, executor=name) for name in ("local", "spark"))

    assert local.anomalies == spark.anomalies
    assert local.anomalies["lost-write"].count >= 8
    assert local.anomalies["incompatible-order"].count == 8


def operations(txns: list[Txn]) -> ListOps:
    found = source(txns)
    return list_ops(
        {"transactions": found.transactions, "micro_ops": found.micro_ops(0)}, setting()
    )


def contradict(one: list[int], other: list[int]) -> bool:
    return any(x != y for x, y in zip(one, other, strict=False))


def lists_of(ops: ListOps) -> list[list[int]]:
    reads = ops.reads
    return [
        ops.elements[start : start + length].tolist()
        for start, length in zip(reads.start, reads.length, strict=True)
    ]


def forked_history(rng: random.Random) -> list[Txn]:
    """Reads of a few keys whose lists fork, and fork again, in all ways."""
    txns = []
    for _ in range(rng.randint(2, 14)):
        start = rng.randrange(100)
        elements = [rng.randint(1, 2) + 2 * depth for depth in range(rng.randint(0, 6))]
        make = rng.choice([ok, ok, ok, info])
        txns.append(
            make(r(rng.randint(1, 2), *elements), start=start, finish=start + rng.randrange(40))
        )
    return txns


def test_the_first_contradiction_is_the_one_that_a_look_at_all_pairs_finds() -> None:
    rng, found, not_the_longest = random.Random(7), 0, 0
    for _ in range(1500):
        ops = operations(forked_history(rng))
        versions, lists, reads = versions_of(ops), lists_of(ops), ops.reads
        committed = ops.txns.committed[reads.txn]
        off = np.flatnonzero(committed & ~versions.prefix)
        got = first_contradictions(ops, versions, off)
        for row, partner in zip(off.tolist(), got.tolist(), strict=True):
            others = [
                other
                for other in np.flatnonzero(committed & (reads.k == reads.k[row])).tolist()
                if contradict(lists[row], lists[other])
            ]
            best = min(others, key=lambda other: (ops.txns.finish[reads.txn[other]], other))
            assert partner == best
            found += 1
            not_the_longest += partner != versions.longest[reads.k[row]]
    assert found > 3000
    assert not_the_longest > 1000


def test_no_contradiction_is_sought_where_all_lists_agree() -> None:
    ops = operations([ok(a(1, 1)), ok(r(1, 1))])

    assert len(first_contradictions(ops, versions_of(ops), np.zeros(0, dtype=np.int64))) == 0
