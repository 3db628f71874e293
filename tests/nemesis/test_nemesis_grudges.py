"""Grudges are sets of directed links, and their algebra keeps what the names promise."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.protocols.cluster import LinkShape
from nemesis import grudges

names = st.lists(st.sampled_from([f"n{i}" for i in range(1, 8)]), unique=True, min_size=1)
clusters = names.map(tuple)
links = st.tuples(st.sampled_from("abcd"), st.sampled_from("abcd"))
cuts = st.lists(links, max_size=12).map(grudges.grudge_of)


def is_grudge(grudge: grudges.Grudge) -> bool:
    return list(grudge) == sorted(set(grudge)) and all(a != b for a, b in grudge)


def mirrored(grudge: grudges.Grudge) -> grudges.Grudge:
    return grudges.grudge_of((b, a) for a, b in grudge)


@given(clusters, st.data())
def test_a_split_cuts_exactly_the_links_between_the_group_and_the_rest(nodes, data) -> None:
    group = data.draw(st.lists(st.sampled_from(nodes), unique=True))
    rest = [node for node in nodes if node not in group]

    grudge = grudges.split(group, nodes)

    assert is_grudge(grudge)
    assert mirrored(grudge) == grudge
    if group and rest:
        assert len(grudge) == 2 * len(group) * len(rest)
        assert all((a in group) != (b in group) for a, b in grudge)


@given(clusters)
def test_a_split_without_a_rest_takes_everybody_apart(nodes) -> None:
    assert len(grudges.split(nodes, nodes)) == len(nodes) * (len(nodes) - 1)


@given(clusters)
def test_an_isolated_node_hears_nobody_and_the_others_hear_each_other(nodes) -> None:
    grudge = grudges.isolate(nodes[0], nodes)

    assert len(grudge) == 2 * (len(nodes) - 1)
    assert all(nodes[0] in link for link in grudge)


@given(clusters)
def test_halves_leave_links_only_inside_each_half(nodes) -> None:
    middle = len(nodes) // 2

    assert grudges.halves(nodes) == grudges.complete((nodes[:middle], nodes[middle:]))
    assert is_grudge(grudges.halves(nodes))


def test_one_way_leaves_the_way_back_open() -> None:
    assert grudges.one_way(("a",), ("c", "b", "a")) == (("a", "b"), ("a", "c"))


@given(cuts, cuts)
def test_union_cuts_what_either_cuts_and_difference_takes_it_back(one, other) -> None:
    both = grudges.union((one, other))

    assert is_grudge(both)
    assert set(both) == set(one) | set(other)
    assert set(grudges.difference(both, other)) == set(one) - set(other)
    assert is_grudge(grudges.difference(both, other))


def test_the_union_of_nothing_cuts_nothing() -> None:
    assert grudges.union(()) == ()


@given(st.integers(4, 40), st.randoms())
def test_in_a_ring_everybody_hears_a_majority_and_no_two_the_same(
    count: int, stream: random.Random
) -> None:
    ring = [f"n{i}" for i in range(count)]
    stream.shuffle(ring)

    grudge = grudges.majorities_ring(tuple(ring))

    heard = {node: frozenset(ring) - {a for a, b in grudge if b == node} for node in ring}
    assert all(node in heard[node] for node in ring)
    assert all(count / 2 < len(voices) < count for voices in heard.values())
    assert len(set(heard.values())) == count
    assert all((b, a) in grudge for a, b in grudge)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_a_ring_of_three_or_fewer_cuts_nothing(count: int) -> None:
    assert grudges.majorities_ring(tuple("abc"[:count])) == ()


def test_of_several_shapes_of_a_link_the_worst_is_in_force() -> None:
    link, other = ("n1", "n2"), ("n2", "n1")

    assert grudges.strongest(
        [
            LinkShape(link=other, delay_s=0.2),
            LinkShape(link=link, loss=0.1, delay_s=0.3),
            LinkShape(link=link, loss=0.4),
        ]
    ) == (LinkShape(link=link, loss=0.4, delay_s=0.3), LinkShape(link=other, delay_s=0.2))
    assert grudges.strongest([]) == ()
