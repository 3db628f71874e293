"""Snapshot reads: one cut, not older than promised, never back within a process."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
from checker_histories import STRICT, Txn, a, fail, info, names, ok, r, source, verdict

from checkers.engine.analyze import checkers_named, judge
from harness.history import schema
from harness.protocols.promise import Declaration, Promise
from harness.protocols.setting import Setting
from harness.protocols.verdict import Verdict

STALENESS_NS = 100
DECLARED = Declaration(
    system="paper",
    mode="SC",
    promises=(
        Promise(kind="read-write"),
        Promise(kind="snapshot", model="snapshot-isolation", staleness_s=STALENESS_NS / 1e9),
    ),
)
OURS = {"fractured-snapshot", "stale-snapshot", "snapshot-went-back"}


def snap(*ops: Any, **more: Any) -> Txn:
    return ok(*ops, kind="snapshot", **more)


def told(txns: list[Txn], **more: Any) -> Verdict:
    return verdict(txns, declaration=DECLARED, **more)


def ours(txns: list[Txn], **more: Any) -> set[str]:
    return names(told(txns, **more)) & OURS


TRANSFER = [ok(a(1, 1), a(2, 1), start=0, finish=10), ok(r(1, 1), r(2, 1), start=20, finish=30)]


def test_a_snapshot_sees_a_transaction_whole_or_not_at_all() -> None:
    torn = told([*TRANSFER, snap(r(1, 1), r(2), start=40, finish=50)])

    assert torn.outcome == "violation"
    assert names(torn) == {"fractured-snapshot", "G-single-item"}
    assert torn.anomalies["fractured-snapshot"].examples[0].text == (
        "fractured snapshot: T2 saw T0 only in part, without its append of 1 to key 2"
    )
    for whole in (snap(r(1, 1), r(2, 1)), snap(r(1), r(2))):
        history = [*TRANSFER, attrs.evolve(whole, start=40, finish=50)]
        assert (told(history).outcome, names(told(history))) == ("valid", set())


def test_a_transaction_that_wrote_a_key_twice_is_seen_in_part_between_the_two() -> None:
    twice = [ok(a(1, 1), a(1, 2), start=0, finish=10), ok(r(1, 1, 2), start=20, finish=30)]

    assert "fractured-snapshot" in ours([*twice, snap(r(1, 1), start=40, finish=50)])
    assert ours([*twice, snap(r(1, 1, 2), start=40, finish=50)]) == set()


def test_a_crashed_transaction_that_was_seen_must_be_seen_whole() -> None:
    crashed = [info(a(1, 1), a(2, 1), start=0, finish=10)]

    assert ours([*crashed, snap(r(1, 1), r(2), start=40, finish=50)]) == {"fractured-snapshot"}
    assert ours([*crashed, snap(r(1), r(2), start=40, finish=50)]) == set()


def test_a_failed_transaction_is_no_part_of_any_cut() -> None:
    failed = [fail(a(1, 1), a(2, 1), start=0, finish=10), ok(a(2, 2), start=0, finish=10)]

    assert ours([*failed, snap(r(1), r(2, 2), start=40, finish=50)]) == set()


def test_a_snapshot_may_be_as_old_as_promised_and_no_older() -> None:
    def at(start: int) -> list[Txn]:
        return [*TRANSFER, snap(r(1), r(2), start=start, finish=start + 5)]

    assert ours(at(10 + STALENESS_NS)) == set()
    late = told(at(10 + STALENESS_NS + 1))
    assert names(late) == {"stale-snapshot"}
    assert late.outcome == "violation"
    assert late.reasons[0].startswith("stale-snapshot (1) breaks what snapshots promise: ")
    assert (late.not_, late.also_not) == ((), ())


def test_what_nobody_ever_saw_makes_a_snapshot_stale_too() -> None:
    history = [ok(a(1, 1), start=0, finish=10), ok(r(1), start=5, finish=9)]

    assert ours([*history, snap(r(1), start=200, finish=210)]) == {"stale-snapshot"}


def test_what_was_never_acknowledged_makes_nothing_stale() -> None:
    history = [info(a(1, 1), start=0, finish=10), ok(r(1, 1), start=20, finish=30)]

    assert ours([*history, snap(r(1), start=500, finish=510)]) == set()


def test_the_write_that_was_acknowledged_first_accuses_wherever_it_lies() -> None:
    history = [
        ok(a(1, 1), start=0, finish=190),
        ok(a(1, 2), start=0, finish=10),
        ok(r(1, 1, 2), start=195, finish=199),
    ]

    assert ours([*history, snap(r(1), start=150, finish=160)]) == {"stale-snapshot"}
    assert ours([*history, snap(r(1), start=100, finish=105)]) == set()


@pytest.mark.parametrize("same", [True, False])
def test_a_process_never_goes_back(same: bool) -> None:
    later = 7 if same else 8
    new = snap(r(1, 1), r(2, 1), process=7, start=40, finish=50)
    expected = {"snapshot-went-back"} if same else set()

    # The same key, and another that the same transaction wrote.
    for old in (snap(r(1)), snap(r(2)), snap(r(1), r(2))):
        again = attrs.evolve(old, process=later, start=60, finish=70)
        assert ours([*TRANSFER, new, again]) == expected
        before = attrs.evolve(old, process=later, start=31, finish=35)
        assert ours([*TRANSFER, before, new]) == set()


def test_going_back_is_seen_across_snapshots_of_other_keys() -> None:
    history = [
        *TRANSFER,
        snap(r(1, 1), process=7, start=40, finish=50),
        snap(r(3), process=7, start=51, finish=55),
        snap(r(2), process=7, start=60, finish=70),
    ]

    found = told(history)

    (example,) = found.anomalies["snapshot-went-back"].examples
    assert example.txns == (2, 4)
    assert example.text == (
        "snapshot went back: T4 read key 2 without 1, though an earlier snapshot of its process, "
        "T2, had seen the transaction that appended it"
    )


def test_reads_that_promise_no_snapshot_are_not_asked() -> None:
    history = [*TRANSFER, ok(r(1, 1), r(2), start=500, finish=510)]

    assert ours(history) == set()
    assert not names(verdict([*TRANSFER, snap(r(1), r(2))], declaration=STRICT)) & OURS


def random_history(seed: int) -> list[Txn]:
    """Snapshots of a store that keeps its promises, or of one that breaks some at random."""
    draw = random.Random(seed)
    broken = seed % 2
    lists: dict[int, tuple[int, ...]] = dict.fromkeys(range(4), ())
    states = [(0, lists)]
    history: list[Txn] = []
    at = dict.fromkeys(range(3), 0)
    for number in range(25):
        now = number * 20
        if draw.random() < 0.5:
            keys = draw.sample(range(4), draw.randint(1, 3))
            lists = {k: (*v, number) if k in keys else v for k, v in lists.items()}
            states.append((now, lists))
            history.append(ok(*(a(k, number) for k in keys), start=now, finish=now + 9))
        else:
            process = draw.randrange(3)
            recent = [i for i, (t, _) in enumerate(states) if t > now - 60]
            low = max(at[process], min(recent, default=len(states) - 1))
            at[process] = draw.randint(0 if broken else low, len(states) - 1)
            view = [states[at[process]][1]] * 2
            if broken and draw.random() < 0.3:
                view[1] = draw.choice(states)[1]
            ops = [r(k, *view[k % 2][k]) for k in draw.sample(range(4), draw.randint(1, 3))]
            history.append(snap(*ops, process=100 + process, start=now, finish=now + 9))
    final = ok(*(r(k, *lists[k]) for k in range(4)), start=1000, finish=1001)
    return [*history, final]


def by_definition(txns: list[Txn]) -> dict[str, set[int]]:
    """The accused snapshots, pair by pair."""
    order = {k: v for _, k, v in txns[-1].ops}
    wrote = [{(k, v) for f, k, v in txn.ops if f == "append"} for txn in txns]
    accused: dict[str, set[int]] = {name: set() for name in OURS}

    def parts(s: int, t: int) -> tuple[bool, bool]:
        """Whether snapshot ``s`` sees some of ``t``, and whether it lacks some."""
        seen = [e in v for f, k, v in txns[s].ops for key, e in wrote[t] if f == "r" and k == key]
        return any(seen), not all(seen)

    snapshots = [i for i, txn in enumerate(txns) if txn.kind == "snapshot"]
    assert all(v == order[k][: len(v)] for i in snapshots for _, k, v in txns[i].ops)
    for s in snapshots:
        for t in range(len(txns)):
            sees, lacks = parts(s, t)
            if sees and lacks:
                accused["fractured-snapshot"].add(s)
            elif lacks:
                earlier = [i for i in snapshots if i < s and txns[i].process == txns[s].process]
                if any(parts(i, t)[0] for i in earlier):
                    accused["snapshot-went-back"].add(s)
            if lacks and (txns[t].finish or 0) + STALENESS_NS < (txns[s].start or 0):
                accused["stale-snapshot"].add(s)
    return {name: who for name, who in accused.items() if who}


def test_random_snapshots_are_judged_as_the_definitions_say() -> None:
    reached: set[str] = set()
    for seed in range(200):
        history = random_history(seed)
        expected = {name: len(who) for name, who in by_definition(history).items()}
        found = judge(
            source(history, splits=3),
            setting=Setting(model="read-committed", declaration=DECLARED, min_ok=1),
            checkers=checkers_named(("list-append",)),
            faults=schema.FAULTS.empty_table(),
            events=schema.EVENTS.empty_table(),
        ).verdict.anomalies
        assert {n: x.count for n, x in found.items() if n in OURS} == expected, seed
        assert seed % 2 or not expected
        reached |= set(expected)
    assert reached == OURS


FINAL_NS = 5_000_000_000


def finally_read(start_ns: int, *elements: int) -> Verdict:
    """Two appends, the second acknowledged at 4 s, and the final read of a snapshot, 1 s stale at
    most.
    """
    history = [
        ok(a(1, 1), start=0, finish=10),
        ok(a(1, 2), start=20, finish=4_000_000_000),
        ok(r(1, *elements), kind="snapshot", start=start_ns, finish=start_ns + 10),
    ]
    declared = Declaration(
        system="s",
        mode="SC",
        promises=(Promise(kind="read-write"), Promise(kind="snapshot", staleness_s=1.0)),
    )
    return verdict(history, declaration=declared, phases=(("final-reads", 4_500_000_000),))


def test_a_final_read_of_a_snapshot_is_evidence_once_its_staleness_has_passed() -> None:
    early, late = finally_read(4_600_000_000, 1, 2), finally_read(FINAL_NS + 1, 1, 2)

    assert early.statistics["lost_writes"]["unverified"] == 1
    assert late.statistics["lost_writes"] == {"acknowledged": 2, "unverified": 0, "lost": 0}
    assert "lost-write" in finally_read(FINAL_NS + 1, 1).anomalies
    assert "lost-write" not in finally_read(4_600_000_000, 1).anomalies
