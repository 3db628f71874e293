"""Spans and ways in the tree of a partition's generations, beside their plain definitions."""

from __future__ import annotations

import random
from collections.abc import Iterator

from harness.protocols.generations import GenerationTree, Reset, tree_of


def trees(count: int) -> Iterator[tuple[random.Random, GenerationTree]]:
    rng = random.Random(5)
    for _ in range(count):
        branching = rng.choice((0.0, 0.2, 0.7))
        resets = []
        for number in range(1, rng.randrange(2, 12)):
            at_ns = rng.randrange(40)
            previous = rng.randrange(number) if rng.random() < branching else number - 1
            resets.append(
                Reset(
                    partition=1,
                    generation=number,
                    previous=previous,
                    earliest_ns=at_ns,
                    latest_ns=at_ns + rng.randrange(4),
                    node="n1",
                )
            )
        yield rng, tree_of(1, resets)


def edges(tree: GenerationTree, since: int, until: int, first: int, last: int) -> list[int]:
    found = set[int]()
    for end in range(first, last + 1):
        path = tree.path(end)
        starts = [path.index(place) for place in range(since, until + 1) if place in path]
        found.update(path[min(starts) + 1 :] if starts else ())
    return sorted(found)


def test_the_ways_are_what_each_path_shows_behind_the_write() -> None:
    branched = 0
    for rng, tree in trees(400):
        branched += bool(tree.branches)
        for _ in range(60):
            since, until = sorted(rng.randrange(len(tree)) for _ in "ab")
            first, last = sorted(rng.randrange(len(tree)) for _ in "ab")
            ways = tree.ways(since, until, first, last)

            found = [place for way in ways for place in way]
            assert found == edges(tree, since, until, first, last), (
                tree,
                since,
                until,
                first,
                last,
            )
    assert branched > 100


def test_the_ancestors_are_those_of_the_path() -> None:
    for rng, tree in trees(400):
        for place in range(len(tree)):
            path, most = tree.path(place), rng.randrange(-1, len(tree))
            assert tree.ancestor(place, most) == max((p for p in path if p <= most), default=-1)
            for other in range(len(tree)):
                assert tree.continues(place, other) == (other in path)


def test_an_ancestor_far_up_a_tree_of_branches_is_found_in_few_steps() -> None:
    # Every second generation is left again: no two follow each other.
    left = (
        Reset(
            partition=1, generation=n, previous=n - 1 - n % 2, earliest_ns=n, latest_ns=n, node="n1"
        )
        for n in range(1, 20_000)
    )
    tree = tree_of(1, left)

    steps, jumps, place = 0, tree._jumps, len(tree) - 1
    while place > 1000:
        jump = jumps[place]
        place = jump if jump > 1000 else tree.parents[place]
        steps += 1
    assert steps < 60
    assert tree.ancestor(len(tree) - 1, 1000) == place


def test_an_operation_spans_the_generations_that_may_have_served_it() -> None:
    for _, tree in trees(100):
        for start in range(-1, 45):
            for finish in range(start, 46, 3):
                first = next(i for i, end in enumerate(tree.ends) if start <= end)
                last = next(
                    i for i in reversed(range(len(tree))) if i == 0 or finish >= tree.begins[i]
                )
                assert tree.span(start, finish) == (first, max(first, last))


def test_a_way_past_ten_thousand_resets_is_one_range() -> None:
    resets = [
        Reset(
            partition=1,
            generation=number,
            previous=number - 1,
            earliest_ns=number,
            latest_ns=number,
            node="n1",
        )
        for number in range(1, 10_001)
    ]
    tree = tree_of(1, resets)

    assert tree.ways(3, 5, 9_000, 9_999) == (range(4, 10_000),)
