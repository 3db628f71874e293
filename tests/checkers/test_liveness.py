"""The promise to serve again: a partition that stays silent in calm breaks it, and nothing else."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from checkers.engine.analyze import judge
from checkers.engine.source import Source
from checkers.promises.liveness import CHECKER, LIVENESS, MIN_WRITES
from harness.exit_codes import Outcome
from harness.history import schema
from harness.protocols.promise import Declaration
from harness.protocols.setting import Setting

S = 1_000_000_000
BOUND_S = 5.0
HEALED_S, END_S = 10.0, 20.0

Op = tuple[float, float, int, str, str]
"""Begin and end in seconds, partition, f, and how it ended: "met" is a fail for another's sake."""

SILENT: list[Op] = [(10.5 + i, 11.4 + i, 0, "append", "fail") for i in range(9)]
SERVED: list[Op] = [(10.5 + i, 11.4 + i, 1, "append", "ok") for i in range(8)]


def verdict(
    ops: list[Op],
    *,
    healed_s: float | None = HEALED_S,
    bound_s: float = BOUND_S,
    again_s: float | None = None,
) -> dict[str, Any]:
    """Anomalies of a history in which one fault was healed at ``healed_s``, and another was there
    from ``again_s`` until the end.
    """
    rows = [
        {
            **dict.fromkeys(("process", "attempt", "wall_ns", "intended_ns"), 0),
            "txn": txn,
            "kind": "rw",
            "type": "fail" if type_ == "met" else type_,
            "error": "CONFLICT" if type_ == "met" else None,
            "node": "n1",
            "invoke_ns": int(begin_s * S),
            "complete_ns": int(end_s * S),
            "invoke_index": 2 * txn,
            "complete_index": 2 * txn + 1,
        }
        for txn, (begin_s, end_s, _, _, type_) in enumerate(ops)
    ]
    steps = [
        {"txn": txn, "pos": 0, "f": f, "key": txn, "partition": partition, "value": txn}
        | {"type": "fail" if t == "met" else t}
        for txn, (_, _, partition, f, t) in enumerate(ops)
    ]
    fault = {
        "fault": 0,
        "kind": "kill",
        "target": "n1",
        "nodes": ["n1"],
        "roles": [],
        "injecting_ns": 5 * S,
        "effective_ns": 5 * S,
        "healed_ns": None if healed_s is None else int(healed_s * S),
        "state": "healed",
    }
    times = ("injecting_ns", "effective_ns")
    later = [] if again_s is None else [fault | dict.fromkeys(times, int(again_s * S))]
    for number, one in enumerate(later, 1):
        one.update(fault=number, healed_ns=int(END_S * S))
    setting = Setting(
        model="strict-serializable",
        declaration=Declaration(
            system="s", mode="SC", promises=(), liveness_s=bound_s, conflicts=("CONFLICT",)
        ),
        phases=(("drive", 0), ("heal", int(END_S * S))),
    )
    found = judge(
        Source.of_tables(
            pa.Table.from_pylist(rows, schema=schema.TRANSACTIONS),
            pa.Table.from_pylist(steps, schema=schema.MICRO_OPS),
        ),
        setting=setting,
        checkers=(CHECKER,),
        faults=pa.Table.from_pylist([fault, *later], schema=schema.FAULTS),
        events=schema.EVENTS.empty_table(),
    )
    broken = found.verdict.outcome is Outcome.VIOLATION
    assert broken is bool(found.verdict.anomalies)
    return dict(found.verdict.anomalies)


def test_a_partition_that_commits_nothing_in_calm_is_named() -> None:
    found = verdict(SILENT + SERVED)

    assert list(found) == [LIVENESS]
    (example,) = found[LIVENESS].examples
    assert "partition 0 committed nothing within 5 s" in example.text
    assert "nor until 19.400 s (at least 4 transactions were begun after the bound)" in example.text


@pytest.mark.parametrize(
    "also",
    [
        (14.0, 14.9, 0, "append", "ok"),  # in time, and enough
        (14.0, 14.9, 0, "w", "ok"),
        (14.0, 14.9, 0, "r", "ok"),  # conflicts may have refused a few writes
    ],
)
def test_one_commit_in_time_keeps_the_promise(also: Op) -> None:
    assert verdict([*SILENT, *SERVED, also]) == {}


def test_what_committed_before_the_heal_proves_nothing() -> None:
    assert list(verdict([*SILENT, *SERVED, (8.0, 9.0, 0, "append", "ok")])) == [LIVENESS]


def test_who_was_asked_only_while_it_might_still_come_back_is_not_accused() -> None:
    early: list[Op] = [(14.1 + i / 10, 16.05 + i / 10, 0, "append", "info") for i in range(8)]

    assert verdict(early + SERVED) == {}
    assert list(verdict([*early, *SILENT, *SERVED])) == [LIVENESS]


def test_a_commit_before_the_last_who_were_refused_ended_is_one_in_doubt() -> None:
    assert verdict([*SILENT, *SERVED, (16.5, 18.9, 0, "append", "ok")]) == {}
    assert list(verdict([*SILENT, *SERVED, (19.5, 19.8, 0, "append", "ok")])) == [LIVENESS]


def test_who_was_hit_by_the_next_fault_was_not_tried_in_calm() -> None:
    refused: list[Op] = [(15.5 + i / 10, 17.5, 0, "append", "info") for i in range(8)]

    assert list(verdict(refused)) == [LIVENESS]
    assert verdict(refused, again_s=17.0) == {}


def test_steps_of_one_transaction_are_one_try() -> None:
    steps: list[Op] = [(15.5, 16.4, 0, "append", "info")] * 6

    assert verdict(steps + SERVED) == {}


def test_reads_do_not_hide_that_no_write_passes() -> None:
    many = [(15.5 + i / 10, 16.4 + i / 10, 0, "append", "fail") for i in range(25)]
    read: Op = (14.0, 14.9, 0, "r", "ok")

    (example,) = verdict([*many, read])[LIVENESS].examples

    assert "25 transactions that write were begun" in example.text
    assert list(verdict([*many[:MIN_WRITES], read])) == [LIVENESS]
    assert verdict([*many[: MIN_WRITES - 1], read]) == {}


def test_who_gave_way_to_another_was_served() -> None:
    met: list[Op] = [(15.5 + i / 10, 16.4 + i / 10, 0, "append", "met") for i in range(25)]
    read: Op = (14.0, 14.9, 0, "r", "ok")
    assert verdict([*met, read]) == {}
    assert verdict(met) == {}

    refused: list[Op] = [(*op[:4], "fail") for op in met]
    assert list(verdict([*met, *refused, read])) == [LIVENESS]


def test_nothing_is_said_where_nothing_was_tried_or_the_calm_was_too_short() -> None:
    assert verdict(SERVED) == {}
    assert verdict(SILENT[:1] + SERVED) == {}
    assert verdict(SILENT, healed_s=16.0) == {}
    assert verdict(SILENT, healed_s=None) == {}
