"""The reset timer of a zone, the choice of a copy, and the chain of assignments, as values."""

from __future__ import annotations

from clusters.reference.node.availability import reset_intents
from clusters.reference.node.availability.majority import Standing, standing
from clusters.reference.node.availability.reset_intents import Intent
from clusters.reference.node.availability.survivors import chosen, holders
from clusters.reference.node.raft import Configuration, HardState, Mark
from clusters.reference.node.rebalance.keys import (
    Assignments,
    Chain,
    Link,
    PartitionId,
    PartitionState,
    assignments,
)
from clusters.reference.node.rebalance.transitions import linked
from clusters.reference.node.runtime.hybrid_clock import span
from clusters.reference.node.storage.shared_log import GroupState
from clusters.reference.node.wire.messages import LogReply

PARTITION = PartitionId(1, 0)


def starts(names: str, life: str = "1") -> dict[str, str]:
    """The start ``life`` of each node of ``names``."""
    return {name: f"{name}~{life}" for name in names}


def test_a_leave_starts_the_timer_and_a_later_one_starts_it_anew() -> None:
    state = reset_intents.created(5, ("a", "b", "c"), span(1), lacking=False)
    assert reset_intents.due_at(state, 2) is None

    state = reset_intents.topology_changed(state, 6, starts("ab"), span(2))
    assert state.intent == Intent(6, span(2), ("a", "b"))
    assert reset_intents.due_at(state, 2) == span(4)

    state = reset_intents.topology_changed(state, 7, starts("a"), span(3))
    assert reset_intents.due_at(state, 2) == span(5)
    # Another timeout counts from the same start.
    assert reset_intents.due_at(state, 60) == span(63)

    # A join moves nothing, nor does what was handled already; a leap arms it again.
    again = reset_intents.topology_changed(state, 8, starts("ab"), span(4))
    assert again.intent == state.intent
    assert reset_intents.topology_changed(again, 8, starts(""), span(5)) == again
    leap = reset_intents.topology_changed(again, 9, starts("ac"), span(6))
    assert leap.intent == Intent(9, span(6), ("a", "c"))
    assert reset_intents.due_at(reset_intents.done(leap), 2) is None


def test_who_was_not_back_since_a_restart_of_the_whole_cluster_has_not_left() -> None:
    state = reset_intents.created(5, "abcd", span(1), lacking=False)

    state = reset_intents.restarted(state, ("a", "d"), starts("abcd"))

    again = starts("ad", "2")
    assert reset_intents.topology_changed(state, 6, again, span(2)).intent is None
    assert reset_intents.topology_changed(state, 6, starts("a", "2"), span(2)).intent is not None


def test_a_start_of_before_that_is_missed_after_the_restart_is_no_leave() -> None:
    state = reset_intents.created(5, "abcd", span(1), lacking=False)
    state = reset_intents.restarted(state, ("a",), starts("abcd"))

    # The leader has written who is back, and misses the leases of the others only then.
    state = reset_intents.topology_changed(state, 6, starts("bcd") | starts("a", "2"), span(2))
    state = reset_intents.topology_changed(state, 7, starts("ad", "2"), span(3))
    assert (state.names, state.intent) == (("a", "d"), None)

    # A node that is back and leaves starts the timer, and those that are not back count as there.
    state = reset_intents.topology_changed(state, 8, starts("a", "2"), span(4))
    assert state.intent == Intent(8, span(4), ("a", "b", "c"))
    state = reset_intents.topology_changed(state, 9, starts("abc", "2"), span(5))
    assert (state.names, state.awaited) == (("a", "b", "c"), ())


def test_a_leave_that_a_restart_of_the_whole_cluster_overtook_counts() -> None:
    state = reset_intents.created(5, "abcd", span(1), lacking=False)

    state = reset_intents.restarted(state, ("a",), starts("abc"))

    state = reset_intents.topology_changed(state, 7, starts("a", "2"), span(3))
    assert state.intent == Intent(7, span(3), ("a", "b", "c"))


def test_a_zone_that_lacks_a_majority_when_it_is_altered_is_looked_at_once() -> None:
    state = reset_intents.created(5, ("a",), span(1), lacking=True)

    assert reset_intents.due_at(state, 3) == span(4)


def test_a_majority_is_counted_over_stable() -> None:
    state = PartitionState(partition=PARTITION, stable=assignments("abcd"))

    assert standing(state, "abc") is Standing.MAJORITY
    assert standing(state, "abx") is Standing.MINORITY
    assert standing(state, "xyz") is Standing.LOST


def test_the_most_advanced_log_is_chosen_and_of_equal_ones_the_first_name() -> None:
    assert chosen([("c", LogReply(0, 2, 9)), ("b", LogReply(0, 3, 7))]) == "b"
    assert chosen([("c", LogReply(0, 3, 8)), ("b", LogReply(0, 3, 7))]) == "c"
    assert chosen([("c", LogReply(1, 1, 1)), ("b", LogReply(0, 3, 7))]) == "c"
    assert chosen([("c", LogReply(0, 3, 7)), ("b", LogReply(0, 3, 7))]) == "b"
    assert chosen([]) is None


def test_a_copy_without_voters_or_behind_in_its_generation_is_not_chosen() -> None:
    blank = LogReply(0, 0, 0, whole=False)
    assert chosen([("b", blank)]) is None
    assert chosen([("b", LogReply(2, 9, 9, whole=False)), ("c", LogReply(1, 1, 1))]) == "c"

    state = GroupState()
    assert not state.is_whole
    state.base = Mark(0, 0, Configuration(("b@1",)))
    assert state.is_whole
    state.hard_state = HardState(3, None, 1)
    assert not state.is_whole


def test_a_pending_node_may_hold_the_data_and_who_is_gone_does_not() -> None:
    state = PartitionState(
        partition=PARTITION, stable=assignments("ab"), pending=assignments("bcd")
    )

    assert holders(state, ("b", "c", "x")) == ("b", "c")


def test_the_chain_follows_its_three_rules() -> None:
    graceful, alone, more = (
        Link(("a", "b", "c")),
        Link(("c",), 1, 10, 2),
        Link(("c", "d"), 1, 20, 3),
    )
    state = PartitionState(partition=PARTITION, chain=Chain((graceful,)))

    forced = linked(state, Assignments(("c",), force=True), assignments("c"), alone)
    assert forced == Chain((graceful, alone))
    # Another reset has taken the place of what was forced: its generation is news all the same.
    assert linked(state, None, assignments("c"), alone) == Chain((graceful, alone))

    state = PartitionState(partition=PARTITION, chain=forced)
    reset = Assignments(("c", "d"), from_reset=True)
    assert linked(state, reset, assignments("cd"), more) == Chain((graceful, more))
    assert linked(state, assignments("cd"), assignments("cd"), more) == Chain((more,))
    # Of a set that was overtaken nobody knows what it followed: nothing is forgotten.
    assert linked(state, None, assignments("cd"), more) == Chain((graceful, more))
    assert linked(PartitionState(partition=PARTITION), reset, assignments("c"), alone) is None


def test_the_last_link_of_a_node() -> None:
    chain = Chain((Link(("a", "b", "c")), Link(("c", "d")), Link(("c",))))

    assert [chain.last_link(node) for node in "abcdx"] == [0, 0, 2, 1, None]
