"""Forced resets: not before their time, and from the best copy that is up."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest
from change_tables import Row, fault, ns, setting, state, tables, topology, wrote

from checkers.promises.assignment_steps import steps_of
from checkers.promises.fault_free_windows import calm_of, punctuality
from checkers.promises.forced_resets import (
    Resets,
    early_resets,
    late_resets,
    steps_of_resets,
    told_resets,
    worse_copies,
    wrong_nodes,
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


def test_what_was_planned_and_becomes_pending_is_no_step_of_a_later_reset_to_the_same_node() -> (
    None
):
    rows = [
        *wrote(3, 0.7, stable="abc", trigger=2),
        *wrote(9, 9.0, pending="ab", planned="a"),
        *wrote(20, 10.0, pending="a", planned=None),
        *wrote(24, 11.0, stable="a", pending=None),
        *wrote(26, 12.0, stable="abc"),
        *wrote(30, 15.0, pending="a"),
    ]

    found = steps_of_resets(steps_of(rows), "base", told_resets((reset(15.1),), ()))

    assert [revision for _, revision in found] == [30]


def elected(at_s: float) -> Row:
    """Another leader of the group that is of no partition."""
    times = {"at_ns": ns(at_s), "uncertainty_ns": 0, "wall_ns": ns(at_s)}
    return times | {"kind": "leader-elected", "node": "nw", "boot": "nw-1", "partition": None}


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


def led(planned: str | None, *, stable: str = "abc", **more: Any) -> list[tuple[str, str]]:
    """Of a reset to a, with what is planned behind it, once c has left and b before it."""
    rows = [
        *wrote(3, 0.7, stable=stable, trigger=2),
        *wrote(24, 13.0, pending="a", planned=planned),
    ]
    resets = steps_of_resets(steps_of(rows), "base", told_resets((reset(13.1, **more),), ()))
    assert resets
    return list(wrong_nodes(resets, [ZONE, JOINED, GONE, MORE_GONE]))


def test_a_reset_leads_to_the_nodes_that_are_left_and_to_all_of_them() -> None:
    assert not led(None)
    assert not led("ad", stable="abcd")
    ((name, text),) = led("ab")
    assert name == "reset-nodes"
    assert "partition 0 of na nb nc was reset" in text
    assert "to na nb: nb was not there" in text
    ((_, text),) = led("ad", stable="abcde")
    assert "ne was there, and left out" in text
    # An operator's brings in others, which must be there as well.
    assert not led("ade", asked=True)
    assert [name for name, _ in led("abe", asked=True)] == ["reset-nodes"]


def late(
    *faults: Row,
    rows: tuple[Row, ...] = (ZONE, JOINED, GONE, MORE_GONE),
    steps: tuple[Row, ...] = (),
    told: tuple[Row, ...] = (copy(10, "na", 40), copy(9, "nb", 40)),
    resets: Resets | None = None,
    more: tuple[Row, ...] = (),
) -> list[tuple[str, str]]:
    """Of partition 0 on a, b and c, of which the last two are killed, and so they leave."""
    written = [*wrote(3, 0.7, stable="abc", trigger=2), *steps]
    killed = (fault(9, 59, "kill", "nb"), fault(10, 59, "kill", "nc"))
    group = state(9, "nv", None, voter=True)
    clock = punctuality(calm(*killed, *faults), states(group), tables(events=list(more))["events"])
    of_states = states(*told)
    return list(late_resets(steps_of(written), resets or {}, rows, of_states, clock))


def test_a_reset_does_not_come_too_late_for_a_partition_that_has_a_copy() -> None:
    ((name, text),) = late()
    assert name == "late-reset"
    assert text == (
        "late reset: nc left at 11.000 s (revision 22), and with them the majority of partition 0, "
        "of na nb nc; its reset was due at 13.000 s, and had not come 4 s later, though na had a "
        "copy"
    )
    # It came within that, or was written at least.
    assert not late(steps=tuple(wrote(30, 16.9, pending="a")))
    assert late(steps=tuple(wrote(30, 17.1, pending="a")))


def test_a_reset_whose_node_is_lost_comes_once_more() -> None:
    again = {"resets": taken(2.0, reset(2.1)), "steps": tuple(wrote(30, 2.0, pending="a"))}

    assert not late(**again)
    forced = wrote(9, 2.0, pending="c")
    told = told_resets((msgspec.structs.replace(reset(2.1), node="nc"),), ())
    written = [*wrote(3, 0.7, stable="abc", trigger=2), *forced]
    resets = steps_of_resets(steps_of(written), "base", told)
    assert resets
    assert [name for name, _ in late(resets=resets, steps=tuple(forced))] == ["late-reset"]


@pytest.mark.parametrize(
    "case",
    [
        {"rows": (ZONE, JOINED, GONE)},
        {"rows": (ZONE, JOINED, GONE, topology(22, 11.0, "logical", "de", zone=None))},
        {"rows": (ZONE, JOINED, GONE, MORE_GONE, topology(24, 16.9, "logical", "abde", zone=None))},
        {"rows": (ZONE, JOINED, GONE, MORE_GONE, topology(24, 11.5, "zone", reset_s=9.0))},
        {"rows": (topology(1, 0.5, "zone", replicas=3), JOINED, GONE, MORE_GONE)},
        {"rows": (ZONE, JOINED, GONE, MORE_GONE, topology(8, 8.0, "restart", zone=None))},
        {"told": ()},
        {"told": (copy(8, "na", 40),)},
        {"told": (copy(10, "na", 40, voter=False),)},
        {"told": (copy(10, "na", 40, generation=1),)},
        {"steps": tuple(wrote(9, 9.0, pending="d")), "faults": (fault(11, 12, "pause", "nd"),)},
        {"faults": (fault(11, 12, "pause", "na"),)},
        {"faults": (fault(7, 8, "kill", "nv"),)},
        {"faults": (fault(12, 13, "partition", "ne"),)},
        {"faults": (fault(5, 6, "clock-jump", "nb"),)},
        {"more": (elected(12),)},
        {"resets": taken(2.0, reset(2.1)), "steps": tuple(wrote(30, 2.0, pending="a"))},
    ],
    ids=" and ".join,
)
def test_what_a_store_could_not_reset_in_time_is_not_missed(case: dict[str, Any]) -> None:
    faults = case.get("faults", ())

    assert not late(*faults, **{name: rows for name, rows in case.items() if name != "faults"})
