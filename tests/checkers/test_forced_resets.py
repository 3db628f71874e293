"""Forced resets: not before their time, and from the best copy that is up."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from change_tables import Row, fault, ns, setting, state, topology, wrote

from checkers.promises.assignment_steps import steps_of
from checkers.promises.fault_free_windows import calm_of
from checkers.promises.forced_resets import (
    Resets,
    early_resets,
    steps_of_resets,
    told_resets,
    worse_copies,
)
from harness.history.schema import FAULTS
from harness.protocols.generations import Reset
from harness.run.state_log import STATES

ZONE = topology(1, 0.5, "zone", up_s=0.0, down_s=9.0, replicas=3, reset_s=2.0)
JOINED = topology(2, 0.6, "logical", "abcde", zone=None)
GONE = topology(20, 10.0, "logical", "acde", zone=None)
MORE_GONE = topology(22, 11.0, "logical", "ade", zone=None)


def reset(at_s: float, *, base: int = 40, asked: bool = False) -> Reset:
    return Reset(
        partition=0,
        generation=1,
        previous=0,
        earliest_ns=ns(at_s),
        latest_ns=ns(at_s) + 1,
        node="na",
        base_index=base,
        survivors=("na",),
        asked=asked,
    )


def taken(at_s: float, told: Reset, pending: str | None = None) -> Resets:
    """The steps that a reset to "a" took at ``at_s``, as revision 30."""
    before = {} if pending is None else {"pending": pending}
    rows = [
        *wrote(3, 0.7, stable="abc", trigger=2),
        *wrote(9, 9.0, trigger=8, **before),
        *wrote(30, at_s, pending="a"),
    ]
    return steps_of_resets(steps_of(rows), "base", told_resets((told,), ()))


def calm(*faults: Row) -> Any:
    return calm_of(pa.Table.from_pylist(list(faults), schema=FAULTS), setting(60))


def states(*rows: Row) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=STATES)


def copy(at_s: float, node: str, applied: int, **more: Any) -> Row:
    return state(at_s, node, generation=0, applied_index=applied) | more


def test_a_reset_comes_once_its_timer_is_due_that_the_last_leave_has_started() -> None:
    rows = [ZONE, JOINED, GONE, MORE_GONE]

    ((name, text),) = early_resets(taken(12.1, reset(12.2)), rows, calm())
    assert name == "early-reset"
    assert "0.9 s before the wait of 2 s was over that began when nc left, at 11.000 s" in text
    assert not list(early_resets(taken(13.0, reset(13.1)), rows, calm()))
    # Without the second leave the first one's timer was due.
    assert not list(early_resets(taken(12.1, reset(12.2)), [ZONE, JOINED, GONE], calm()))


@pytest.mark.parametrize(
    ("told", "more", "faults"),
    [
        (reset(12.2, asked=True), (), ()),
        (reset(12.2), (topology(8, 8.0, "restart", zone=None),), ()),
        (reset(12.2), (topology(40, 13.0, "restart", zone=None),), ()),
        (reset(12.2), (), (fault(5, 6, "clock-jump", "nb"),)),
        (reset(12.2), (topology(24, 11.5, "zone", replicas=3, reset_s=0.0),), ()),
    ],
    ids=["asked for", "was down", "is down later", "a clock was changed", "another wait"],
)
def test_no_reset_is_early_whose_time_is_not_that_of_the_timer(
    told: Reset, more: tuple[Row, ...], faults: tuple[Row, ...]
) -> None:
    rows = [ZONE, JOINED, GONE, MORE_GONE, *more]

    assert not list(early_resets(taken(12.1, told), rows, calm(*faults)))


def test_a_reset_goes_on_from_what_any_copy_that_is_up_has_applied() -> None:
    rows = [ZONE, JOINED, GONE]
    of_pending = taken(13.0, reset(13.1), pending="ade")
    better = states(copy(12, "na", 40), copy(12, "nd", 41))

    ((name, text),) = worse_copies(of_pending, rows, better, calm())
    assert name == "worse-copy"
    assert "to what na had, up to entry 40, though nd, which was up, had applied 41" in text
    for equal in (states(copy(12, "nd", 40)), states(copy(7, "nd", 41))):
        assert not list(worse_copies(of_pending, rows, equal, calm()))


@pytest.mark.parametrize(
    ("pending", "row", "faults"),
    [
        (None, copy(12, "nd", 41), ()),
        ("ade", copy(12, "nd", 41, generation=1), ()),
        ("ade", copy(12, "nd", 41, voter=False), ()),
        ("abe", copy(12, "nb", 41), ()),
        ("ade", copy(12, "nd", 41), (fault(12.5, 20, "kill", "nd"),)),
        ("ade", copy(12, "nd", 41), (fault(12.5, 20, "partition", "ne"),)),
    ],
    ids=["not assigned", "generation", "learner", "not there", "killed", "links are cut"],
)
def test_a_copy_that_could_not_be_asked_is_not_missed(
    pending: str | None, row: Row, faults: tuple[Row, ...]
) -> None:
    found = worse_copies(
        taken(13.0, reset(13.1), pending=pending), [ZONE, JOINED, GONE], states(row), calm(*faults)
    )

    assert not list(found)
