"""Markers of the node: each has one place, and is counted where something counts."""

from __future__ import annotations

import contextvars

from clusters.reference.marker_index import NODE_SOURCE, known_markers
from clusters.reference.node.markers import Counts, count_into, reached


def test_every_marker_has_one_place_in_the_nodes_source() -> None:
    known = known_markers()

    assert len(known) >= 100
    for marker, place in known.items():
        file, line = place.split(":")
        text = (NODE_SOURCE / file).read_text().splitlines()[int(line) - 1]
        assert f'reached("{marker}")' in text


def test_the_word_of_raft_is_no_marker() -> None:
    in_leader = [m for m, place in known_markers().items() if place.startswith("raft/leader.py")]

    assert "follower needs a snapshot" in in_leader
    assert all(" " in marker for marker in known_markers())


def test_a_marker_is_counted_in_its_own_context_alone() -> None:
    counts: Counts = {}
    context = contextvars.copy_context()
    context.run(count_into, counts)

    context.run(reached, "a")
    context.run(reached, "a")
    reached("a")

    assert counts == {"a": 2}
