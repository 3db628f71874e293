"""Which stretches of a traced run are drawn."""

from __future__ import annotations

import attrs

from cli.trace_figure import STRETCHES_MAX, TELLING, said, stretches_of
from harness.history.records import EventKind, MicroOp
from results.drawing.spacetime import FaultBand, Happening, Operation, Story

STORY = Story(
    title=("run", "lost write: key 1"),
    faults=(FaultBand(start_s=2.0, end_s=4.0, nodes=("n1",), text="partition"),),
    operations=(
        Operation(start_s=2.5, end_s=2.6, node="n1", text="append"),
        Operation(start_s=9.0, end_s=9.9, node="n2", text="read"),
    ),
    happenings=(
        Happening(at_s=3.0, node="n2", text="n2 leads p3", rank=4),
        Happening(at_s=3.5, node="n2", text="n2 leads p33", rank=4),
        Happening(at_s=5.0, node="n1", text="p3: entries 1 to 2 replaced", rank=0),
    ),
)


def covers(stretches: list[tuple[float, float]], at_s: float) -> bool:
    return any(start_s <= at_s <= end_s for start_s, end_s in stretches)


def test_the_proof_the_fault_and_what_the_store_did_to_the_partition_are_drawn() -> None:
    drawn = stretches_of(STORY, ("p3", "partition 3"))

    assert all(covers(drawn, at_s) for at_s in (2.0, 2.5, 2.6, 3.0, 4.0, 5.0, 9.9))
    assert not covers(drawn, 3.5)  # another partition
    assert not covers(drawn, 9.1)  # of a long operation its end is drawn
    assert len(drawn) <= STRETCHES_MAX


def test_what_tells_most_has_room_first() -> None:
    many = tuple(
        Happening(at_s=4.0 + 0.3 * number, node="n2", text="n2 leads p3", rank=4)
        for number in range(10)
    )
    story = attrs.evolve(STORY, happenings=(*many, *STORY.happenings))

    drawn = stretches_of(story, ("p3",))

    assert covers(drawn, 5.0)
    assert len(drawn) <= STRETCHES_MAX


def test_where_replicas_are_found_out_the_moments_of_their_nodes_are_drawn() -> None:
    story = attrs.evolve(STORY, operations=(), title=("run", "forgotten state: p3 on n1: voted"))

    drawn = stretches_of(story, ())

    assert covers(drawn, 2.0)
    assert covers(drawn, 5.0)
    assert not covers(drawn, 3.0)  # n2 is not named


def test_resets_are_drawn_with_and_without_their_generation() -> None:
    plain, numbered = (TELLING.index(k) for k in (EventKind.RESET, EventKind.PARTITION_RESET))

    assert max(plain, numbered) < TELLING.index(EventKind.LEADER_ELECTED)


def test_nothing_at_all_still_has_a_beginning() -> None:
    ((start_s, end_s),) = stretches_of(Story(), ())

    assert start_s == 0.0 < end_s


def test_steps_are_said_as_people_write_them() -> None:
    ops = (
        MicroOp("append", 1, 7),
        MicroOp("r", 1, (1, 2, 3, 4, 5, 6, 7)),
        MicroOp("r", 2, None),
    )

    assert said(ops, {1}) == "append 1 7, r 1 = [… 2 3 4 5 6 7]"
    assert said(ops, {2}) == "r 2"
    assert said(ops[:1], {9}) == "append 1 7"
