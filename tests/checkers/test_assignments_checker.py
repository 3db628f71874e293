"""What a store owes its partitions while it moves them, shown and broken by hand."""

from __future__ import annotations

from typing import Any

import pytest
from change_tables import fault, names, ns, setting, state, tables, topology, wrote

from checkers.promises.assignment_transitions import Assigned, transition
from checkers.promises.assignments import CHECKER
from harness.exit_codes import Outcome
from harness.protocols.checker import Part
from harness.protocols.models import OF_PLACEMENT

BEGUN = wrote(2, 0.5, stable="abc", trigger=1)
ASKED = wrote(5, 1.0, pending="abd", planned=None, trigger=4)
DONE = wrote(7, 2.0, stable="abd", pending=None, planned=None)
QUEUED = wrote(6, 1.5, planned="abe", trigger=5)
SOUND = [*BEGUN, *ASKED, *DONE]


def judged(changes: list[Any], end_s: float = 40.0, variant: str = "base", **more: Any) -> Part:
    return CHECKER.judge(tables(changes, **more), setting(end_s, variant), None)  # type: ignore[arg-type]


def assigned(text: str) -> Assigned:
    sets = (None if each == "-" else frozenset(each) for each in text.split())
    return Assigned(*sets)


@pytest.mark.parametrize(
    ("variants", "before", "after", "event", "name"),
    [
        ("base lock cancel", "- - - -", "a - - -", True, "created"),
        ("base lock cancel", "a - b -", "a - - -", True, "equals-stable"),
        ("base lock cancel", "a - - -", "a b - -", True, "started"),
        ("base lock cancel", "a b c -", "a b - -", True, "equals-pending"),
        ("base cancel", "a b c -", "a b d -", True, "planned"),
        ("lock", "a b - -", "a b c -", True, None),
        ("lock", "a b - b", "a b c b", True, "planned"),
        ("lock", "a b - -", "a c - -", True, "retargeted"),
        ("base cancel", "a b - -", "a c - -", True, None),
        ("base lock cancel", "a b - -", "b - - -", False, "completed"),
        ("base lock cancel", "a b b -", "b - - -", False, "completed"),
        ("base lock cancel", "a b c -", "b c - -", False, "continued"),
        # What was planned is lost.
        ("base lock cancel", "a b c -", "b - - -", False, None),
        ("base lock cancel", "a b - -", "c b - -", False, "applied-another"),
        ("base lock cancel", "a - - -", "b - - -", False, "settled"),
        ("base cancel", "a b - -", "a - - -", False, None),
        ("lock", "a b - -", "a b - b", False, "locked"),
        ("lock", "a b - -", "a b - c", False, None),
        ("lock", "a b - b", "a b - -", False, "unlocked"),
        ("lock", "a b c b", "a c - -", False, "moved"),
        # A lock outlives what it was for.
        ("lock", "a b - b", "b - - b", False, None),
        ("lock", "a b - b", "b - - -", False, "completed"),
        ("cancel", "a b c -", "a c - -", False, "moved"),
        ("base", "a b c -", "a c - -", False, None),
    ],
)
def test_a_transition_is_one_of_its_variants_table(
    variants: str, before: str, after: str, event: bool, name: str | None
) -> None:
    for variant in variants.split():
        found = transition(variant, assigned(before), assigned(after), event=event)
        assert found == name, variant


def test_a_rebalance_that_ends_is_sound_and_counted() -> None:
    part = judged(SOUND)

    assert (part.outcome, names(part)) == (Outcome.VALID, [])
    counts = part.statistics["rebalance"]
    assert (counts["started"], counts["completed"], counts["superseded"]) == (1, 1, 0)


@pytest.mark.parametrize(
    ("name", "rows", "variant"),
    [
        ("illegal-transition", [*BEGUN, *ASKED, *QUEUED, *DONE], "base"),
        ("repeated-trigger", [*SOUND, *wrote(9, 3.0, planned=None, trigger=4)], "base"),
        ("unfinished-rebalance", [*BEGUN, *ASKED], "base"),
        ("wrong-stable", [*SOUND, *wrote(9, 3.0, stable="abc")], "base"),
        ("diverged-assignments", [*SOUND, {**BEGUN[0], "node": "nb", "nodes": ["nx"]}], "base"),
        (
            "stale-term",
            [*BEGUN, *ASKED, *wrote(6, 1.2, lock=("abd", 4)), *wrote(8, 1.4, lock=("abd", 3))],
            "lock",
        ),
        (
            "stale-term",
            [*SOUND, {**wrote(5, 1.1, **{"change-peers": "abd"})[0], "term": 2, "number": 3}],
            "base",
        ),
    ],
)
def test_each_broken_promise_of_assignments_is_named(
    name: str, rows: list[Any], variant: str
) -> None:
    assert name in names(judged(rows, variant=variant))
    assert name in OF_PLACEMENT


def test_an_event_that_was_never_handled_is_named() -> None:
    zone = topology(12, 5.0, "zone", replicas=2)
    data = topology(3, 0.6, "data-nodes", "abcd")

    assert names(judged(SOUND, rows=[data, zone])) == ["event-not-handled"]
    handled = [*SOUND, *wrote(13, 5.1, planned=None, trigger=12)]
    assert names(judged(handled, rows=[data, zone])) == []
    # Without data nodes there is nowhere to go.
    empty = topology(11, 4.0, "data-nodes", "")
    assert names(judged(SOUND, rows=[data, empty, zone])) == []


def test_what_is_unfinished_soon_after_the_last_heal_is_unknown() -> None:
    healed = [fault(5.0, 20.0, "kill", "nb")]
    part = judged([*BEGUN, *ASKED], faults=healed)

    assert (part.outcome, names(part)) == (Outcome.UNKNOWN, [])
    assert "20 s after the last heal" in part.reasons[0]
    assert names(judged([*BEGUN, *ASKED], end_s=50.1, faults=healed)) == ["unfinished-rebalance"]
    # A fault that only asked for the move does not end with it.
    moving = fault(0.9, None, "ddl")
    moving["healing_ns"] = ns(1.5)
    assert names(judged([*BEGUN, *ASKED], faults=[moving])) == ["unfinished-rebalance"]


@pytest.mark.parametrize(
    ("at_s", "node", "faults", "found"),
    [
        (20.0, "nc", [], ["redundant-replica"]),
        (6.0, "nc", [], []),  # within the grace of its erasure
        (20.0, "nd", [], []),
        (20.0, "nc", [fault(9.0, 12.0, "partition", "nc")], []),
        (30.0, "nc", [fault(9.0, 12.0, "partition", "nc")], ["redundant-replica"]),
    ],
)
def test_a_replica_runs_nowhere_but_where_it_is_assigned(
    at_s: float, node: str, faults: list[Any], found: list[str]
) -> None:
    part = judged(SOUND, end_s=60.0, states=[state(at_s, node)], faults=faults)

    assert names(part) == found


def test_nodes_that_are_up_run_what_they_are_to_hold() -> None:
    up = [state(20.0, node, None) for node in ("na", "nb", "nd")]
    one = [*up, state(20.0, "na")]

    assert names(judged(SOUND, states=one)) == ["quorum-not-running"]
    assert names(judged(SOUND, states=[*one, state(20.0, "nb")])) == []
    # With a majority down it is not the store's doing.
    assert names(judged(SOUND, states=[up[0], state(20.0, "na")])) == []


def test_a_run_that_misses_changes_can_not_be_judged() -> None:
    part = judged([*BEGUN, *ASKED], rows=[topology(4, 1.0, "gap")])

    assert (part.outcome, names(part)) == (Outcome.UNKNOWN, [])
