"""Writes that were lost or read stale are attributed to a fault, its target's role, and a phase."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from checker_histories import STRICT, Fault, a, ok, r, verdict, write_run

from checkers.engine.analyze import analyze
from checkers.explain.attribution_table import DecidingRoles
from checkers.explain.fault_attribution import KnownFaults, attribute
from checkers.explain.fault_explanations import ACKNOWLEDGED, explain
from harness.history import schema

MS = 1_000_000
FAULT = {
    **dict.fromkeys(schema.FAULTS.names),
    **{"fault": 4, "kind": "kill", "target": "primary of partition 1", "nodes": ["n2"]},
    **{"roles": ["follower of partition 2", "primary of partition 1"], "state": "healed"},
    **{"injecting_ns": 100 * MS, "injected_ns": 110 * MS, "effective_ns": 120 * MS},
    **{"healing_ns": 200 * MS, "healed_ns": 240 * MS},
}


def known(*faults: dict[str, Any]) -> KnownFaults:
    return KnownFaults.of(pa.Table.from_pylist(list(faults), schema=schema.FAULTS))


def attributed(ack_ms: int, **changed: Any) -> dict[str, Any]:
    lost = {"since_ns": (ack_ms - 5) * MS, "ack_ns": ack_ms * MS, "shown_ns": 300 * MS}
    if ack_ms > 240:
        lost["since_ns"] = 230 * MS
    [row] = attribute(
        pa.table({name: [value] for name, value in lost.items()} | {"partition": [1]}),
        known(FAULT | changed),
    ).to_pylist()
    return row


@pytest.mark.parametrize(
    ("ack_ms", "phase", "boundary", "distance_ms"),
    [
        (90, "before", "injection", -10),
        (100, "inject", "injection", 0),
        (119, "inject", "effect", -1),
        (120, "hold", "effect", 0),
        (190, "hold", "healing", -10),
        (200, "heal", "healing", 0),
        (240, "heal", "heal", 0),
        (250, "after", "heal", 10),
    ],
)
def test_an_acknowledgement_is_in_one_of_five_phases_and_so_far_from_a_boundary(
    ack_ms: int, phase: str, boundary: str, distance_ms: int
) -> None:
    row = attributed(ack_ms)

    told = (row["phase"], row["boundary"], row["distance_ns"])
    assert told == (phase, boundary, distance_ms * MS)
    side = "before" if distance_ms < 0 else "after"
    explained = explain(row, ACKNOWLEDGED, known(FAULT))
    assert explained is not None
    assert (explained.phase, explained.distance_ns) == (phase, distance_ms * MS)
    assert explained.text.endswith(f"{abs(distance_ms) / 1000:.3f} s {side} its {boundary})")


def test_a_step_that_was_never_seen_bounds_no_phase() -> None:
    unproven = {"effective_ns": None, "healing_ns": None, "healed_ns": None}

    assert attributed(150, **unproven)["phase"] == "inject"
    assert attributed(150, healing_ns=None, healed_ns=None)["phase"] == "hold"


def test_the_role_is_the_one_that_decides_most_in_the_partition() -> None:
    held = ("follower of partition 2", "leader of partition 1", "primary of partition 3")
    roles = DecidingRoles.of(held)

    assert roles.name(1) == "leader"
    assert roles.name(2) == "follower"
    assert roles.name(None) == "primary"
    assert DecidingRoles.of((*held, "metastorage leader")).name(2) == "follower"
    assert DecidingRoles.of((*held, "metastorage leader")).name(7) == "metastorage leader"
    assert DecidingRoles.of(()).name(1) == "none"


def test_losses_and_stale_reads_stand_in_one_table_by_fault_and_phase(tmp_path: Path) -> None:
    txns = [
        ok(a(1, 1), start=0, finish=10 * MS),
        ok(a(1, 2), start=20 * MS, finish=30 * MS),
        ok(r(1, 1), start=90 * MS, finish=95 * MS),
    ]
    kill = Fault("kill", "n2", 25 * MS, 60 * MS, ("n2",), ("leader of partition 1",))

    found = analyze(write_run(tmp_path / "run", txns, [kill]), executor="local")

    lost, stale = found.statistics["attribution"]
    assert {name: lost[name] for name in ("write", "mode", "fault", "kind", "role", "phase")} == {
        **{"write": "lost", "mode": STRICT.mode, "fault": 0, "kind": "kill", "role": "leader"},
        **{"phase": "hold"},
    }
    assert (lost["count"], lost["of"], lost["reset"], lost["nearest_ns"]) == (1, 1, False, 5 * MS)
    assert (stale["write"], stale["kind"], stale["count"]) == ("stale", "kill", 1)


def test_a_valid_history_has_no_such_table() -> None:
    found = verdict([ok(a(1, 1)), ok(r(1, 1))])

    assert "attribution" not in found.statistics
