"""Copies of partitions that are reset: kept, stopped and chained as the rules of resets say."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from change_tables import Row, fault, ns, setting, state

from checkers.promises.assignment_chain import (
    erased_copies,
    outside_forced,
    same_members,
    wrong_chains,
)
from checkers.promises.fault_free_windows import calm_of
from checkers.promises.legal_transitions import Assigned
from harness.history.records import EventKind
from harness.history.schema import EVENTS, FAULTS
from harness.protocols.changes import LINKS_APART
from harness.run.state_log import STATES

ALL, ONE = frozenset({"na", "nb", "nc"}), frozenset({"na"})
STABLE = Assigned(stable=ALL)
FORCED = Assigned(stable=ALL, pending=ONE)


def event(at_s: float, node: str, text: str, partition: int = 0) -> Row:
    row: Row = dict.fromkeys(EVENTS.names)
    row |= {"kind": EventKind.START_DECISION.value, "node": node, "text": text, "boot": "b"}
    return row | {"at_ns": ns(at_s), "wall_ns": 0, "uncertainty_ns": 0, "partition": partition}


def states(*rows: Row) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=STATES)


def events(*rows: Row) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=EVENTS)


def calm(*faults: Row) -> Any:
    return calm_of(pa.Table.from_pylist(list(faults), schema=FAULTS), setting(60))


BEFORE = state(5, "nb", life="nb.1", last_index=40)
ANEW = state(9, "nb", life="nb.2", last_index=0)
KEPT = {0: [(ns(1), STABLE)]}
LATE = event(9.1, "nb", "erases its replica: an operator asked for it")
TOLD = event(7, "nb", "erases its replica: entries 3 to 9 are not of generation 1")


def test_a_typed_decision_counts_more_than_the_words() -> None:
    told = [
        TOLD | {"decision": "erases", "text": "goes"},
        TOLD | {"decision": "starts"},
    ]

    found = [list(erased_copies(KEPT, states(BEFORE, ANEW), events(e), calm())) for e in told]

    assert [len(each) for each in found] == [0, 1]


def test_a_copy_that_begins_anew_without_a_cause_was_erased() -> None:
    ((name, text),) = erased_copies(KEPT, states(BEFORE, ANEW), events(), calm())

    assert name == "erased-copy"
    assert "partition 0 on nb, which had entries up to 40 at 5.000 s" in text


@pytest.mark.parametrize(
    ("held", "second", "told", "faults"),
    [
        (KEPT, state(9, "nb", life="nb.1", last_index=0), (), ()),
        (KEPT, ANEW, (TOLD,), ()),
        (KEPT, ANEW, (LATE | {"uncertainty_ns": ns(0.2)},), ()),
        ({0: [(ns(1), STABLE), (ns(6), FORCED), (ns(7), Assigned(stable=ONE))]}, ANEW, (), ()),
        (KEPT, ANEW, (), (fault(6, 7, "wipe", "nb"),)),
        (KEPT, ANEW, (), (fault(6, 7, "unheard-of", "nb"),)),
        ({}, ANEW, (), ()),
    ],
    ids=[
        "same life",
        "told",
        "may be told by then",
        "assigned no more",
        "wiped",
        "unknown fault",
        "no assignments",
    ],
)
def test_a_copy_may_go_where_there_is_a_cause(
    held: Any, second: Row, told: tuple[Row, ...], faults: tuple[Row, ...]
) -> None:
    assert not list(erased_copies(held, states(BEFORE, second), events(*told), calm(*faults)))


@pytest.mark.parametrize(
    ("told", "faults"),
    [
        ((event(3, "nb", "erases its replica"),), ()),  # an earlier one
        ((LATE,), ()),
        ((event(7, "nc", "erases its replica"),), ()),
        ((event(7, "nb", "erases its replica", partition=1),), ()),
        ((event(7, "nb", "starts its replica"),), ()),
        ((), (fault(6, 7, "wipe", "nc"),)),
        ((), (fault(6, 7, "kill", "nb"),)),  # takes no data
    ],
)
def test_another_cause_is_none(told: tuple[Row, ...], faults: tuple[Row, ...]) -> None:
    assert list(erased_copies(KEPT, states(BEFORE, ANEW), events(*told), calm(*faults)))


def test_an_erased_copy_is_another_member() -> None:
    same = state(12, "nb", life="nb.1", last_index=3)
    another = state(12, "nb", life="nb.2", last_index=3)

    ((name, text),) = same_members(states(BEFORE, same), events(TOLD))
    assert name == "erased-copy"
    assert "went on as the same member, nb.1, at 12.000 s" in text
    assert not list(same_members(states(BEFORE, another), events(TOLD)))
    # It may still be under way; and one that had nothing has promised nothing.
    assert not list(same_members(states(BEFORE, state(8, "nb", life="nb.1")), events(TOLD)))
    assert not list(same_members(states(BEFORE | {"last_index": 0}, same), events(TOLD)))


SPAN = (0, ns(10), ns(20), ONE)


def test_where_a_reset_gave_a_partition_to_one_node_no_other_runs_it() -> None:
    ((name, text),) = outside_forced([SPAN], states(state(13, "nb"), state(14, "nb")), calm())

    assert name == "redundant-replica"
    assert "nb runs one of partition 0 at 13.000 s, which a reset has given to na alone" in text


@pytest.mark.parametrize(
    ("row", "faults"),
    [
        (state(13, "na"), ()),
        (state(11, "nb"), ()),  # within the grace
        (state(21, "nb"), ()),  # over
        (state(13, "nb", 1), ()),
        (state(13, "nb"), (fault(6, 9, "kill", "nb"),)),  # just back
        (state(13, "nb"), (fault(12, 19, "partition", "nb"),)),
    ],
)
def test_a_replica_may_run_where_its_node_was_chosen_or_does_not_know_yet(
    row: Row, faults: tuple[Row, ...]
) -> None:
    assert not list(outside_forced([SPAN], states(row), calm(*faults)))


def test_a_fault_on_the_chosen_node_excuses_no_other() -> None:
    slow = fault(8, 25, "disk-slow", "na")

    assert list(outside_forced([SPAN], states(state(13, "nb")), calm(slow)))


def chain(revision: int, *links: str) -> Row:
    nodes = [[f"n{letter}" for letter in link] for link in links]
    text = LINKS_APART.join(map(" ".join, nodes))
    last = nodes[-1] if nodes else None
    return {"kind": "chain", "partition": 0, "revision": revision, "nodes": last, "text": text}


def chains(*rows: Row, stable: str = "a", forced: bool = True) -> list[str]:
    """Created at revision 1, reset at 5, stable at ``stable`` from 7 on."""
    after = Assigned(stable=frozenset(f"n{letter}" for letter in stable))
    pending = FORCED if forced else FORCED._replace(pending=after.stable)
    steps = {
        0: [
            (1, ns(1), Assigned(), STABLE, False),
            (5, ns(5), STABLE, pending, False),
            (7, ns(7), pending, after, forced),
        ]
    }
    return [text for _, text in wrong_chains(steps, rows)]


def test_a_reset_adds_a_link_to_the_chain() -> None:
    assert chains(chain(1, "abc"), chain(7, "abc", "a")) == []
    (kept,) = chains(chain(1, "abc"))
    assert "ends with na nb nc, and na is stable, at revision 7" in kept
    (replaced,) = chains(chain(1, "abc"), chain(7, "a"))
    assert "has 1 links behind a reset, and had 1" in replaced


def test_a_graceful_change_begins_a_chain_of_one_link() -> None:
    assert chains(chain(1, "abc"), chain(7, "ad"), stable="ad", forced=False) == []
    assert chains(chain(1, "abc"), chain(7, "ab"), stable="ad", forced=False)


def test_a_revision_may_write_the_chain_alone_and_a_zone_may_have_none() -> None:
    assert chains() == []
    assert chains(chain(6, "abc"), chain(7, "abc", "a")) == []
    assert chains(chain(1, "abc"), chain(7)) == []
