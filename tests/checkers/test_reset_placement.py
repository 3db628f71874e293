"""Operations around resets: placed in generations by an exact search, or left undecided."""

from __future__ import annotations

import random

import attrs
import msgspec
import pytest
from checker_histories import Txn, a, ok, r
from reset_histories import HA, MS, ResetEvent, ResetHistory, verdict_of

from checkers.lists import generation_search
from checkers.lists.generation_search import Work, place_reads
from harness.protocols.promise import Promise
from harness.protocols.verdict import Verdict

SPAN = 200  # milliseconds within which each reset took place


def busy(seed: int, *, resets: int, operations: int = 30) -> ResetHistory:
    """An execution on one key, most operations of which overlap resets of unknown moments."""
    stream = random.Random(seed)
    cuts = sorted(70 + stream.randint(0, SPAN - 40) for _ in range(resets))
    log: list[int] = []
    txns: list[Txn] = []
    for at in sorted(stream.sample(range(SPAN + 160), operations)):
        while cuts and at > cuts[0]:
            cuts.pop(0)
            log = log[: max(0, len(log) - stream.randint(1, 3))]
        if stream.random() < 0.35:
            log.append(len(txns))
            op = a(1, len(txns))
        else:
            op = r(1, *log)
        off, more = stream.randint(1, 15), stream.randint(1, 15)
        txns.append(ok(op, start=max(0, at - off), finish=at + more))
    txns.append(ok(r(1, *log), start=SPAN + 400, finish=SPAN + 404))
    events = (
        ResetEvent(partition=1, generation=g, since=60, until=60 + SPAN)
        for g in range(1, resets + 1)
    )
    return ResetHistory(txns=tuple(txns), resets=tuple(events))


def judged(history: ResetHistory) -> Verdict:
    return verdict_of(history, phases=(("drive", 0), ("final-reads", (SPAN + 400) * MS)))


@pytest.mark.parametrize("resets", [1, 2])
def test_many_reads_around_resets_accuse_no_execution(resets: int) -> None:
    for seed in range(8):
        assert judged(busy(seed, resets=resets)).outcome == "valid", seed


def test_a_read_that_no_placement_explains_is_accused_among_many() -> None:
    for seed in range(4):
        history = busy(seed, resets=2)
        at = next(i for i, t in enumerate(history.txns) if t.ops[0][0] == "r" and t.start > 150)
        twisted = attrs.evolve(history.txns[at], ops=[r(1, *range(900, 903))])
        foreign = [ok(a(1, n), start=n, finish=n + 1) for n in range(900, 903)]
        txns = (*history.txns[:at], twisted, *history.txns[at + 1 :], *foreign)
        assert judged(attrs.evolve(history, txns=txns)).outcome == "violation", seed


def test_what_can_not_be_compared_is_undecided_and_accuses_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generation_search, "TRIED_MAX", 2)

    found = judged(busy(1, resets=2))

    assert (found.outcome, found.anomalies) == ("unknown", {})
    assert any("1 keys were read in more ways than can be compared" in r for r in found.reasons)


@attrs.frozen(kw_only=True)
class Op:
    start_ns: int
    finish_ns: int
    first: int
    last: int
    elements: tuple[int, ...] = ()
    element: int = 0
    current: bool = True
    acked: bool = True


def test_an_append_is_of_the_generations_that_the_reads_around_it_leave() -> None:
    early = Op(start_ns=0, finish_ns=5, first=0, last=1, element=1)
    missing = Op(start_ns=10, finish_ns=15, first=0, last=1)
    found = place_reads([missing], [early], Work())

    assert (found.fits, found.places, found.spans) == (True, (1,), {1: (0, 0)})

    again = Op(start_ns=20, finish_ns=25, first=0, last=1, elements=(1,))
    assert not place_reads([missing, again], [early], Work()).fits


def snapshot(start: int, *elements: int) -> Txn:
    return ok(r(1, *elements), kind="snapshot", start=start, finish=start + 4)


SNAPSHOTS = msgspec.structs.replace(
    HA, promises=(Promise(kind="read-write"), Promise(kind="snapshot", staleness_s=0.1))
)


@pytest.mark.parametrize(("start", "outcome"), [(100, "valid"), (300, "violation")])
def test_a_snapshot_after_a_reset_may_show_what_was_there_before_it(
    start: int, outcome: str
) -> None:
    """It shows a write that the reset cost: as of 100 ms before it, at most."""
    history = ResetHistory(
        txns=(
            ok(a(1, 1), start=0, finish=4),
            ok(a(1, 2), start=10, finish=14),
            snapshot(start, 1, 2),
            ok(r(1, 1), start=400, finish=404),
        ),
        resets=(ResetEvent(partition=1, generation=1, since=50, until=60),),
    )
    found = verdict_of(
        history, declaration=SNAPSHOTS, phases=(("drive", 0), ("final-reads", 400 * MS))
    )

    assert found.outcome == outcome
    if outcome == "valid":
        assert found.observed["lost-by-reset"].count == 1
