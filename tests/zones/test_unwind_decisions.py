"""Which link a partition starts from, by what the nodes of its chain answer."""

from __future__ import annotations

from typing import get_args

from clusters.reference.node.availability.chain_unwind import Start, found
from clusters.reference.node.rebalance.keys import Chain, Link
from clusters.reference.node.tx import commands
from clusters.reference.node.tx.commands import CLASSES, CommandClass, class_of
from clusters.reference.node.wire.messages import StartReply, TxnId

ALL = tuple("ABCDEFG")
CHAIN = Chain((Link(ALL, 0, 2, 1), Link(tuple("EFG"), 1, 7, 3), Link(("G",), 2, 9, 5)))


def reply(generation: int, index: int, user: tuple[int, int]) -> StartReply:
    return StartReply(False, generation, 1, index, *user, 0)


OLD = {node: reply(0, 12, (0, 12)) for node in "ABCD"}
# Example 1: nobody wrote under the resets. What E, F and G have of the first link counts for it.
IDLE = {**OLD, "E": reply(1, 8, (0, 5)), "F": reply(1, 8, (0, 5)), "G": reply(2, 9, (0, 5))}
WRITTEN = {**IDLE, "E": reply(1, 10, (1, 10)), "F": reply(1, 10, (1, 10))}


def test_example_1_starts_from_the_graceful_link_without_the_nodes_of_later_ones() -> None:
    assert found(CHAIN, IDLE) == Start(place=0, nodes=tuple("ABCD"), answered=tuple("ABCD"))


def test_example_2_starts_from_the_link_that_was_written_to() -> None:
    assert found(CHAIN, WRITTEN) == Start(place=1, nodes=tuple("EF"), answered=tuple("EF"))


def test_one_yes_is_enough_and_a_node_that_does_not_answer_is_waited_for() -> None:
    assert found(CHAIN, {n: r for n, r in WRITTEN.items() if n != "F"}) == Start(
        place=1, nodes=tuple("EF"), answered=("E",)
    )
    assert found(CHAIN, {n: r for n, r in IDLE.items() if n != "F"}) is None
    assert found(CHAIN, {n: r for n, r in WRITTEN.items() if n != "G"}) is None


def test_the_last_link_counts_where_it_was_written_to() -> None:
    written = {**WRITTEN, "G": reply(2, 11, (2, 11))}

    assert found(CHAIN, written) == Start(place=2, nodes=("G",), answered=("G",))


def test_it_begins_once_a_majority_of_these_nodes_is_there() -> None:
    some = {node: told for node, told in IDLE.items() if node not in "AB"}

    start = found(CHAIN, some)

    assert start is not None
    assert not start.majority
    assert Start(place=0, nodes=tuple("ABCD"), answered=tuple("ABC")).majority


def test_copies_that_were_erased_are_no_copies_of_their_link() -> None:
    erased = dict.fromkeys("ABCDEF", reply(0, 0, (0, 0)))

    assert found(CHAIN, {**erased, "G": reply(2, 9, (0, 5))}) == Start(
        place=2, nodes=("G",), answered=("G",)
    )


def test_every_command_has_one_class() -> None:
    assert set(CLASSES) == set(get_args(commands.Command))
    txn = TxnId(1, "n1~1", 1)
    finish = commands.encode(commands.Finish(1, txn, 5))
    assert class_of(finish, config=False) is CommandClass.USER
    takeover = commands.encode(commands.Takeover(1, 5))
    assert class_of(takeover, config=False) is CommandClass.META
    assert class_of(b"", config=False) is class_of(b"x", config=True) is CommandClass.IN_RAFT
