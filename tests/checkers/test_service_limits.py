"""Limits of the service: each is kept and broken by what clients got, and shown with its window."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from checkers.engine.analyze import judge
from checkers.engine.source import Source
from checkers.promises.service_limits import CHECKER
from harness.exit_codes import Outcome
from harness.history import schema
from harness.plan.plan import PromisePlan, ServiceLimits
from harness.protocols.checker import Setting
from harness.protocols.models import INDEFINITE, LONGEST_GAP, P99, RECOVERY
from harness.protocols.promise import Declaration
from harness.protocols.verdict import Verdict
from harness.run import controller_health

S = 1_000_000_000
END_S = 30.0

Op = tuple[float, float, int, str]
"""Begin and end in seconds, partition, and how it ended."""


def steady(
    begin_s: float, end_s: float, *, every_s: float = 0.05, took_s: float = 0.01
) -> list[Op]:
    """Acknowledged transactions, one after another, that take turns on two partitions."""
    count = round((end_s - begin_s) / every_s)
    starts = [begin_s + number * every_s for number in range(count)]
    return [(at, at + took_s, number % 2, "ok") for number, at in enumerate(starts)]


def refused(begin_s: float, end_s: float, type_: str = "info", partition: int = 0) -> list[Op]:
    """Transactions that nothing acknowledges, one begun each tenth of a second."""
    count = round((end_s - begin_s) * 10)
    return [(begin_s + n / 10, begin_s + n / 10 + 0.09, partition, type_) for n in range(count)]


def verdict(
    ops: list[Op],
    limits: PromisePlan,
    *,
    faults: tuple[tuple[float, float | None, str], ...] = ((10.0, 15.0, "kill"),),
    late_s: float = 0.0,
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
    table = [
        {
            **{"fault": number, "kind": kind, "target": "n1", "nodes": ["n1"], "roles": []},
            "injecting_ns": round(start_s * S),
            "effective_ns": round(start_s * S),
            "healed_ns": None if healed_s is None else round(healed_s * S),
            "state": "healed",
        }
        for number, (start_s, healed_s, kind) in enumerate(faults)
    ]
    load = {"at_ns": 5 * S, "late_ns": round(late_s * S), "length_ns": S}
    empty = controller_health.SCHEMA.empty_table()
    health = pa.Table.from_pylist([load], schema=empty.schema)
    return judge(
        Source.of_tables(
            pa.Table.from_pylist(rows, schema=schema.TRANSACTIONS),
            pa.Table.from_pylist(steps, schema=schema.MICRO_OPS),
        ),
        setting=Setting(
            model="strict-serializable",
            declaration=Declaration(system="s", mode="SC", promises=()),
            phases=(("drive", 0), ("heal", round(END_S * S))),
            limits=limits,
        ),
        checkers=(CHECKER,),
        faults=pa.Table.from_pylist(table, schema=schema.FAULTS),
        events=schema.EVENTS.empty_table(),
        beside={"controller": health},
    ).verdict


OUTAGE = steady(0, 10) + refused(10, 13) + steady(13, 30)
SLOW = steady(0, 20) + steady(20, 30, took_s=0.9)
STALLED = steady(0, 10, every_s=0.01) + steady(10, 20, every_s=0.01, took_s=0.9) + steady(20, 30)
HALF = steady(0, 10, every_s=0.01) + steady(15, 30, every_s=0.02)
ONE_SILENT = [op for op in steady(0, 30) if op[2] == 1 or not 10 < op[0] < 18] + refused(
    10.5, 17.9, "fail"
)
UNSURE = steady(0, 30) + refused(11, 14, "info")


@pytest.mark.parametrize(
    ("ops", "limits", "kept", "name", "words"),
    [
        (OUTAGE, "longest_gap_s", 3.2, LONGEST_GAP, "nothing was acknowledged from 10.000 s"),
        (ONE_SILENT, "longest_gap_s", 8.2, LONGEST_GAP, "partition 0 acknowledged nothing"),
        (SLOW, "p99_ms", 950.0, P99, "took longer than 900.0 ms, from 0.000 s to 30.000 s"),
        (UNSURE, "indefinite_share", 0.06, INDEFINITE, "of 30 of 630 transactions (4.76%)"),
    ],
)  # fmt: skip
def test_a_limit_is_kept_and_broken_over_the_whole_run(
    ops: list[Op], limits: str, kept: float, name: str, words: str
) -> None:
    within = verdict(ops, PromisePlan(**{limits: kept}))
    beyond = verdict(ops, PromisePlan(**{limits: kept / 2}))

    assert (within.outcome, within.anomalies) == (Outcome.VALID, {})
    assert (beyond.outcome, list(beyond.anomalies)) == (Outcome.VIOLATION, [name])
    example = beyond.anomalies[name].examples[0]
    assert words in example.text
    assert f"promise.{limits} is {kept / 2:g}" in example.text
    assert "in force: kill of n1 from 10.000 s to 15.000 s" in example.text
    assert 0 <= example.details["window_start_ns"] < example.details["window_end_ns"] <= 30 * S
    assert (
        f"{name} ({beyond.anomalies[name].count}) breaks a limit of the plan" in beyond.reasons[0]
    )


@pytest.mark.parametrize(
    ("ops", "limit", "value", "name"),
    [
        (OUTAGE, "longest_gap_s", 2.0, LONGEST_GAP),
        (STALLED, "p99_ms", 500.0, P99),
        (UNSURE, "indefinite_share", 0.1, INDEFINITE),
        (HALF, "recovered_within_s", 5.0, RECOVERY),
    ],
)
def test_a_limit_of_a_kind_looks_at_what_its_faults_did_alone(
    ops: list[Op], limit: str, value: float, name: str
) -> None:
    def judged(kind: str) -> Verdict:
        of_kind = PromisePlan(during={kind: ServiceLimits(**{limit: value})})
        return verdict(ops, of_kind, faults=((10.0, 15.0, "kill"), (4.0, 7.0, "pause")))

    struck, spared = judged("kill"), judged("pause")

    assert list(struck.anomalies) == [name]
    assert f"promise.kill.{limit} is {value:g}" in struck.anomalies[name].examples[0].text
    assert spared.anomalies == {}


def test_a_rate_that_comes_back_in_time_has_recovered() -> None:
    later = steady(0, 10, every_s=0.01) + steady(15, 19, every_s=0.2)
    later += steady(19, 30, every_s=0.01)

    assert verdict(later, PromisePlan(recovered_within_s=5.0)).outcome is Outcome.VALID
    late = verdict(later, PromisePlan(recovered_within_s=2.0))
    assert late.outcome is Outcome.VIOLATION
    text = late.anomalies[RECOVERY].examples[0].text
    assert "of 100.0 transactions a second before kill of n1 at most 5.5" in text
    assert "from 15.000 s, when it was healed, to 17.000 s" in text


def test_a_rate_that_chance_explains_is_no_breach() -> None:
    """30 a second in bursts of one kind before, and of another afterwards."""
    bursts = [op for op in steady(0, 10) if op[0] % 1 < 0.75]
    later = bursts + [op for op in steady(15, 30) if op[0] % 1 < 0.45]

    assert verdict(later, PromisePlan(recovered_within_s=0.2)).anomalies == {}


def test_a_partition_that_stays_silent_after_the_heal_has_not_recovered() -> None:
    broken = verdict(ONE_SILENT, PromisePlan(recovered_within_s=2.0))
    kept = verdict(ONE_SILENT, PromisePlan(recovered_within_s=4.0))

    assert "partition 0 acknowledged nothing from 15.000 s" in (
        broken.anomalies[RECOVERY].examples[0].text
    )
    assert kept.outcome is Outcome.VALID


def test_where_no_client_asks_nothing_is_missing() -> None:
    silent = steady(0, 10) + steady(13, 30)

    assert verdict(silent, PromisePlan(longest_gap_s=1.0)).outcome is Outcome.VALID


@pytest.mark.parametrize(
    ("limits", "faults", "why"),
    [
        (PromisePlan(p99_ms=1.0), (), "20 transactions were acknowledged, of 100 at least"),
        (PromisePlan(indefinite_share=0.5), (), "20 transactions ended, of 100 at least"),
        (PromisePlan(recovered_within_s=1.0), (), "no heal was followed by so long a time"),
        (
            PromisePlan(during={"kill": ServiceLimits(longest_gap_s=1.0)}),
            ((5.0, 6.0, "pause"),),
            "no fault of that kind came into force",
        ),
        # Another fault follows before the time is over.
        (
            PromisePlan(recovered_within_s=3.0),
            ((5.0, 6.0, "pause"), (7.0, None, "kill")),
            "no heal was followed by so long a time",
        ),
    ],
)
def test_a_limit_that_could_not_be_tested_leaves_the_run_inconclusive(
    limits: PromisePlan, faults: tuple[tuple[float, float | None, str], ...], why: str
) -> None:
    found = verdict(steady(0, 1), limits, faults=faults)

    assert (found.outcome, found.anomalies) == (Outcome.UNKNOWN, {})
    assert why in found.reasons[0]
    assert "was not tested" in found.reasons[0]


def test_a_starved_controller_accuses_nothing() -> None:
    found = verdict(OUTAGE, PromisePlan(longest_gap_s=1.0), late_s=2.5)

    assert (found.outcome, found.anomalies) == (Outcome.UNKNOWN, {})
    assert "promise.longest_gap_s looks broken, but the controller was starved" in found.reasons[0]


def test_a_plan_without_limits_is_judged_by_none() -> None:
    found: dict[str, Any] = verdict(OUTAGE, PromisePlan()).statistics

    assert "limits" not in found
