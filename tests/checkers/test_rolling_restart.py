"""Rolling restarts: seamless ones are valid, and each limit is broken by what clients noticed."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from controller_load import stalled

from checkers.engine.analyze import judge
from checkers.engine.source import Source
from checkers.promises.rolling_restart import CHECKER
from harness.exit_codes import Outcome
from harness.history import schema
from harness.history.records import EventKind
from harness.protocols.consistency_models import (
    RESTART_FAILURES,
    RESTART_LATENCY,
    RESTART_RESET,
    RESTART_SILENCE,
)
from harness.protocols.faults import PlannedFault
from harness.protocols.promise import Declaration
from harness.protocols.setting import Setting
from harness.protocols.verdict import Verdict
from harness.run import controller_health

S = 1_000_000_000
END_S = 40.0
BEGIN_S, OVER_S = 10.0, 20.0
Op = tuple[float, float, int, str]
"""Begin and end in seconds, partition, and how it ended."""


def steady(begin_s: float, end_s: float, took_s: float = 0.01) -> list[Op]:
    """Acknowledged transactions, fifty a second, that take turns on two partitions."""
    count = round((end_s - begin_s) * 50)
    return [(begin_s + n / 50, begin_s + n / 50 + took_s, n % 2, "ok") for n in range(count)]


def only(ops: list[Op], partition: int) -> list[Op]:
    return [op for op in ops if op[2] == partition]


def verdict(
    ops: list[Op],
    *,
    resets: tuple[float, ...] = (),
    late_s: float = 0.0,
    load: pa.Table | None = None,
    over: tuple[tuple[str, float], ...] | None = None,
    other: tuple[float, float] | None = None,
    **options: Any,
) -> Verdict:
    rows = [
        {
            **dict.fromkeys(("process", "attempt", "wall_ns"), 0),
            **{"txn": txn, "kind": "rw", "type": type_, "error": None, "node": "n1"},
            "intended_ns": round(begin_s * S),
            "invoke_ns": round(begin_s * S),
            "complete_ns": round(end_s * S),
            "invoke_index": 2 * txn,
            "complete_index": 2 * txn + 1,
        }
        for txn, (begin_s, end_s, _, type_) in enumerate(ops)
    ]
    steps = [
        {"txn": txn, "pos": 0, "f": "append", "key": partition, "partition": partition}
        | {"value": txn, "type": type_}
        for txn, (_, _, partition, type_) in enumerate(ops)
    ]
    fault = {
        **{"fault": 0, "kind": "rolling-restart", "target": "all", "roles": []},
        "nodes": ["n1", "n2"],
        "injecting_ns": round(BEGIN_S * S),
        "effective_ns": round(BEGIN_S * S) + 1,
        "healed_ns": round(OVER_S * S),
        "state": "healed",
    }
    faults = [fault]
    if other is not None:
        faults.append(
            fault
            | {"fault": 1, "kind": "kill", "target": "one", "nodes": ["n3"]}
            | {"injecting_ns": round(other[0] * S), "effective_ns": round(other[0] * S) + 1}
            | {"healed_ns": round(other[1] * S)}
        )
    told = [(EventKind.STEP_BEGUN, node, at_s) for node, at_s in (("n1", 10.0), ("n2", 15.0))]
    over = (("n1", 14.0), ("n2", 19.0)) if over is None else over
    told += [(EventKind.STEP_OVER, node, at_s) for node, at_s in over]
    told += [(EventKind.RESET, "n1", at_s) for at_s in resets]
    events = [
        {"kind": kind.value, "node": node, "at_ns": round(at_s * S), "boot": "", "text": ""}
        | {"wall_ns": 0, "uncertainty_ns": 0}
        for kind, node, at_s in told
    ]
    if load is None:
        row = {"at_ns": 5 * S, "late_ns": round(late_s * S), "length_ns": S}
        load = pa.Table.from_pylist([row], schema=controller_health.SCHEMA)
    planned = PlannedFault(at_s=10.0, kind="rolling-restart", target="all", options=options)
    return judge(
        Source.of_tables(
            pa.Table.from_pylist(rows, schema=schema.TRANSACTIONS),
            pa.Table.from_pylist(steps, schema=schema.MICRO_OPS),
        ),
        setting=Setting(
            model="strict-serializable",
            declaration=Declaration(system="s", mode="SC", promises=(), liveness_s=5.0),
            phases=(("drive", 0), ("heal", round(END_S * S))),
            schedule=(planned,),
        ),
        checkers=(CHECKER,),
        faults=pa.Table.from_pylist(faults, schema=schema.FAULTS),
        events=pa.Table.from_pylist(events, schema=schema.EVENTS),
        beside={"controller": load},
    ).verdict


CALM = steady(0, 40)
WAITING: list[Op] = [(12.0 + n / 10, 13.01, 0, "ok") for n in range(4)]
SILENT = steady(0, 12) + only(steady(12, 13), 1) + WAITING + steady(13, 40)
# One try fails, and nobody asks again for more than a second.
ONE_TRY = steady(0, 12) + only(steady(12, 13.3), 1) + [(12.0, 12.01, 0, "fail")] + steady(13.3, 40)
UNASKED = steady(0, 12) + only(steady(12, 14), 1) + steady(14, 40)
SLOW = steady(0, 10) + steady(10, 20, took_s=0.05) + steady(20, 40)
FAILING = CALM + [(11 + n / 10, 11 + n / 10 + 0.01, 0, "fail") for n in range(20)]


def figures(found: Verdict) -> dict[str, Any]:
    (measured,) = found.statistics["restarts"].values()
    return dict(measured)


def test_a_restart_that_nobody_notices_is_valid_and_its_figures_are_told() -> None:
    found = verdict(CALM)

    assert (found.outcome, found.anomalies) == (Outcome.VALID, {})
    told = figures(found)
    assert (told["nodes"], told["failed"], told["resets"]) == (2, 0, 0)
    assert told["p99_times"] == pytest.approx(1.0)
    assert told["silence_s"] < 0.15


@pytest.mark.parametrize(
    ("ops", "options", "name", "words"),
    [
        (SILENT, {}, RESTART_SILENCE, "partition 0 acknowledged nothing for"),
        (SLOW, {}, RESTART_LATENCY, "5.0 times as long as before (10.0 ms)"),
        (FAILING, {}, RESTART_FAILURES, "3.84% of 521 transactions failed"),
        (FAILING, {"by": "kill", "slow_share": 0.01}, RESTART_FAILURES, "or took longer than"),
    ],
)
def test_each_limit_is_broken_by_what_clients_noticed(
    ops: list[Op], options: dict[str, Any], name: str, words: str
) -> None:
    found = verdict(ops, **options)

    assert found.outcome is Outcome.VIOLATION
    assert list(found.anomalies) == [name]
    assert words in found.anomalies[name].examples[0].text


@pytest.mark.parametrize(
    ("ops", "options"),
    [
        (SILENT, {"silence_s": 1.2}),
        (SILENT, {"by": "kill"}),
        (SLOW, {"p99_times": 6.0}),
        (SLOW, {"by": "kill"}),
        (FAILING, {"failed_share": 0.05}),
        (FAILING, {"by": "kill"}),
        (UNASKED, {}),
        (ONE_TRY, {}),
    ],
)
def test_within_its_limits_a_restart_is_valid(ops: list[Op], options: dict[str, Any]) -> None:
    assert verdict(ops, **options).outcome is Outcome.VALID


def test_a_reset_during_the_restart_is_a_violation_and_one_after_it_is_not() -> None:
    assert list(verdict(CALM, resets=(12.0,)).anomalies) == [RESTART_RESET]
    assert verdict(CALM, resets=(25.0,)).outcome is Outcome.VALID


def test_what_a_starved_controller_saw_is_undecided_but_a_reset_is_not() -> None:
    found = verdict(SILENT, resets=(12.0,), late_s=3.0)

    assert list(found.anomalies) == [RESTART_RESET]
    assert any("undecided: restart-silence was seen" in reason for reason in found.reasons)


def test_a_stall_that_starves_no_run_is_no_silence_of_a_restart() -> None:
    within, elsewhere = stalled(0.9, 12.5, END_S), stalled(0.9, 25.0, END_S)

    found = verdict(SILENT, load=within)
    assert (found.outcome, found.anomalies) == (Outcome.UNKNOWN, {})
    assert "restart-silence was seen, but the controller's loop stood still" in found.reasons[0]
    assert list(verdict(SILENT, load=elsewhere).anomalies) == [RESTART_SILENCE]


@pytest.mark.parametrize(
    ("ops", "name", "at_s"),
    [
        (SILENT, RESTART_SILENCE, 12.5),
        (SLOW, RESTART_LATENCY, 12.5),
        (FAILING, RESTART_FAILURES, 17.0),  # none of them failed then
    ],
)
def test_a_stall_excuses_no_more_of_a_restart_than_it_explains(
    ops: list[Op], name: str, at_s: float
) -> None:
    for late_at_s in (9.0, at_s):
        assert list(verdict(ops, load=stalled(0.3, late_at_s, END_S)).anomalies) == [name]


def test_a_limit_of_the_plan_that_too_few_transactions_test_leaves_the_run_inconclusive() -> None:
    few = [op for number, op in enumerate(CALM) if number % 20 == 0]

    usual = verdict(few)
    assert usual.outcome is Outcome.VALID
    assert any("the usual limit p99_times = 3 was not tested" in said for said in usual.reasons)
    found = verdict(few, p99_times=2.0)
    assert found.outcome is Outcome.UNKNOWN
    assert "p99_times was not tested" in found.reasons[0]


def test_a_restart_that_was_broken_off_is_judged_by_none_of_its_limits() -> None:
    found = verdict(SILENT, over=(("n1", 14.0),))

    assert (found.outcome, found.anomalies) == (Outcome.UNKNOWN, {})
    assert any("was broken off" in reason for reason in found.reasons)
    assert figures(found)["silence_s"] > 0.3


def test_a_restart_that_was_broken_off_is_judged_by_the_resets_during_its_steps() -> None:
    """The second node's step begins at 15 s, and is not over."""
    broken_off = (("n1", 13.0),)

    for at_s in (12.0, 16.0):
        found = verdict(CALM, resets=(at_s,), over=broken_off)
        assert list(found.anomalies) == [RESTART_RESET]
    assert verdict(CALM, resets=(14.0,), over=broken_off).anomalies == {}


@pytest.mark.parametrize(
    ("ops", "resets", "name"),
    [
        (SILENT, (), RESTART_SILENCE),
        (CALM, (12.0,), RESTART_RESET),
        (FAILING, (), RESTART_FAILURES),
        (steady(0, 10.5) + steady(10.5, 14.5, took_s=0.2) + steady(14.5, 40), (), RESTART_LATENCY),
    ],
)
def test_what_another_fault_may_have_done_is_not_the_restarts(
    ops: list[Op], resets: tuple[float, ...], name: str
) -> None:
    """The store declares that it serves 5 s after a heal: what the other fault may have done ends
    there.
    """
    alone = verdict(ops, resets=resets)
    during = verdict(ops, resets=resets, other=(10.2, 13.5))
    long_before = verdict(ops, resets=resets, other=(3.0, 4.0))

    assert list(alone.anomalies) == [name]
    assert during.anomalies == {}
    assert any("lay under other faults" in reason for reason in during.reasons)
    assert figures(during)["shared_s"] == pytest.approx(8.3)
    assert list(long_before.anomalies) == [name]
