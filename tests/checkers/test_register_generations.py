"""Registers of partitions that were reset: judged inside each generation, as hard as ever."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from checker_histories import STRICT, Txn, info, ok
from reset_histories import ResetEvent, ResetHistory, verdict_of

from harness.protocols.verdict import Verdict, encode

RESET = ResetEvent(partition=1, generation=1, since=50, until=60)
NEVER = 10**9
SECOND = ResetEvent(partition=1, generation=2, since=150, until=160)


def w(value: int, start: int, finish: int | None = None) -> Txn:
    return ok(("w", 1, value), start=start, finish=start + 4 if finish is None else finish)


def r(value: int | None, start: int, finish: int | None = None) -> Txn:
    return ok(("r", 1, value), start=start, finish=start + 4 if finish is None else finish)


def cas(old: int, new: int, start: int) -> Txn:
    return ok(("cas", 1, (old, new)), start=start, finish=start + 4)


def judged(txns: tuple[Txn, ...], *resets: ResetEvent, **more: Any) -> Verdict:
    return verdict_of(ResetHistory(txns=txns, resets=resets), checkers=("register",), **more)


CASES: dict[str, tuple[tuple[Txn, ...], bool]] = {
    "goes back to an earlier value": ((w(5, 0), w(6, 10), r(5, 80)), True),
    "goes back to nothing": ((w(5, 0), w(6, 10), r(None, 80)), True),
    "keeps the last value": ((w(5, 0), w(6, 10), r(6, 80)), True),
    "holds what was never written before": ((w(5, 0), r(7, 80), w(7, 100)), False),
    "goes back before the reset": ((w(5, 0), w(6, 10), r(5, 20), r(5, 80)), False),
    "goes on from one value alone": ((w(5, 0), w(6, 10), r(5, 80), r(6, 90)), False),
    "goes back twice": ((w(5, 0), w(6, 10), r(6, 80), r(5, 90)), False),
    "is written anew": ((w(5, 0), r(5, 80), w(7, 90), r(7, 100)), True),
    "loses a new write": ((w(5, 0), w(7, 80), r(5, 90)), False),
    "is read while it was reset": ((w(5, 0), w(6, 10), r(5, 52), r(6, 56), r(5, 80)), True),
    "is written while it was reset": ((w(5, 0), w(6, 52, 57), r(6, 80), r(6, 90)), True),
    "loses what was written meanwhile": ((w(5, 0), w(6, 52, 57), r(5, 80)), True),
    "gets a write of unknown outcome late": (
        (w(5, 0), info(("w", 1, 6), start=10, finish=20), r(5, 80), r(6, 90)), True),
    "is compared and set on an old value": ((w(5, 0), w(6, 10), cas(5, 9, 80), r(9, 90)), True),
    "is compared and set on two old values": (
        (w(5, 0), w(6, 10), cas(5, 9, 80), cas(6, 8, 90)), False),
    "is compared and set on an old value, of unknown outcome": (
        (w(5, 0), w(6, 10), info(("cas", 1, (5, 9)), start=80, finish=90), r(9, 100)), True),
    "is compared and set on a value of no write, of unknown outcome": (
        (w(5, 0), w(6, 10), info(("cas", 1, (4, 9)), start=80, finish=90), r(9, 100)), False),
    "gets an old value anew": ((w(5, 0), w(6, 10), r(6, 80), w(5, 90), r(5, 100)), True),
    "holds an old value before it is written anew": (
        (w(5, 0), w(6, 10), r(5, 80), r(6, 84), w(5, 90)), False),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_register_must_be_linearizable_inside_each_generation(name: str) -> None:
    txns, permitted = CASES[name]
    found = judged(txns, RESET)

    assert (found.outcome == "violation") is not permitted
    assert found.outcome != "unknown"
    if not permitted:
        (example,) = [e for a in found.anomalies.values() for e in a.examples][:1]
        assert "register 1" in example.text


def test_in_sc_a_reset_excuses_no_register() -> None:
    txns, _ = CASES["goes back to an earlier value"]

    assert "nonlinearizable" in judged(txns, RESET, declaration=STRICT).anomalies


def test_a_register_of_another_partition_is_excused_by_nothing() -> None:
    txns = (w(5, 0), w(6, 10), r(5, 80))
    other = ResetEvent(partition=0, generation=1, since=50, until=60)

    assert judged(txns, other).outcome == "violation"


def explained(txns: tuple[Txn, ...], resets: tuple[tuple[int, int], ...]) -> bool:
    """Try every order: reads, writes and resets that take effect one after another, each reset to
    any value that the register held before it. Resets last no time, and overlap no operation.
    """
    acts = [
        (t.start, t.finish, t.ops[0]) if t.type == "ok" else (t.start, NEVER, ("maybe", *t.ops[0]))
        for t in txns
    ]
    acts += [(since, until, ("reset", 1, None)) for since, until in resets]
    for order in itertools.permutations(range(len(acts))):
        inverted = (acts[b][1] < acts[a][0] for a, b in itertools.combinations(order, 2))
        if not any(inverted) and _runs([acts[i][2] for i in order], None, (None,)):
            return True
    return False


def _runs(steps: list[Any], held: int | None, before: tuple[int | None, ...]) -> bool:
    if not steps:
        return True
    if steps[0][0] == "maybe":
        done, left = [steps[0][1:], *steps[1:]], steps[1:]
        return _runs(done, held, before) or _runs(left, held, before)
    (f, _, value), rest = steps[0], steps[1:]
    if f == "cas":
        return held == value[0] and _runs(rest, value[1], (*before, value[1]))
    if f == "reset":
        return any(_runs(rest, each, before) for each in dict.fromkeys(before))
    if f == "r":
        return value == held and _runs(rest, held, before)
    return _runs(rest, value, (*before, value))


def test_generated_registers_are_judged_as_every_order_is_tried() -> None:
    met = {True: 0, False: 0}
    for seed in range(160):
        stream = random.Random(seed)
        txns: list[Txn] = []
        moments = (*range(0, 40, 3), *range(70, 140, 3), *range(170, 200, 3))
        held: list[int | None] = [None]
        for number, start in enumerate(sorted(stream.choices(moments, k=6))):
            end = 49 if start < 50 else 149 if start < 150 else 999
            until = min(start + stream.randint(1, 15), end)
            draw, unknown = stream.random(), seed % 2 and stream.random() < 0.4
            if draw < 0.45:
                old = stream.choice((held[-1], *held))
                held.append(number % stream.choice((2, 9)))
                op = ("cas", 1, (old, held[-1])) if draw < 0.2 and old is not None else None
                made = info if unknown else ok
                txns.append(made(op or ("w", 1, held[-1]), start=start, finish=until))
            else:
                txns.append(r(stream.choice((held[-1], held[-1], *held)), start, until))
        txns.sort(key=lambda txn: txn.start)
        found = judged(tuple(txns), RESET, SECOND)
        may = explained(tuple(txns), ((50, 60), (150, 160)))
        # What no operation wrote, or wrote too late, is a violation of either kind. An operation of
        # unknown outcome is allowed in each generation, also after one in which it was seen.
        if may or not any(txn.type == "info" for txn in txns):
            assert (found.outcome == "violation") is not may, seed
        met[may] += 1

    assert min(met.values()) >= 15


@pytest.mark.spark
def test_spark_says_the_same_of_registers_byte_for_byte() -> None:
    txns, _ = CASES["goes on from one value alone"]
    history = ResetHistory(txns=txns, resets=(RESET,))

    here, there = (
        verdict_of(history, checkers=("register",), splits=3, executor=name)
        for name in ("local", "spark")
    )
    assert encode(here) == encode(there)
