"""Strongly connected components of small graphs are those of the compiled library."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from checkers.cycles.components import (
    SMALL_EDGES,
    _components_of_few,
    _components_of_many,
    components,
    cyclic,
)
from checkers.cycles.graph import Edges

VERTICES = 12


def edges_of(pairs: list[tuple[int, int]]) -> Edges:
    ends = np.asarray(pairs, dtype=np.int64).reshape(-1, 2)
    return Edges.of(ends[:, 0], ends[:, 1], 0)


def parts(label: np.ndarray) -> set[frozenset[int]]:
    return {frozenset(np.flatnonzero(label == each).tolist()) for each in set(label.tolist())}


vertex = st.integers(0, VERTICES - 1)


@given(st.lists(st.tuples(vertex, vertex), max_size=40))
def test_small_graphs_have_the_components_that_the_compiled_library_finds(
    pairs: list[tuple[int, int]],
) -> None:
    edges = edges_of(pairs)

    few, many = _components_of_few(edges, VERTICES), _components_of_many(edges, VERTICES)

    assert parts(few) == parts(many)


def test_a_long_chain_has_no_cycle_and_its_closing_edge_makes_one() -> None:
    chain = [(at, at + 1) for at in range(SMALL_EDGES - 1)]

    assert not cyclic(edges_of(chain), SMALL_EDGES).any()
    assert cyclic(edges_of([*chain, (SMALL_EDGES - 1, 0)]), SMALL_EDGES).all()


def test_a_larger_graph_is_searched_by_the_compiled_library_alike() -> None:
    ring = [(at, (at + 1) % (SMALL_EDGES + 1)) for at in range(SMALL_EDGES + 1)]

    assert len(set(components(edges_of(ring), SMALL_EDGES + 2).tolist())) == 2


def test_a_small_graph_imports_no_library() -> None:
    code = (
        "import sys, numpy as np\n"
        "from checkers.cycles import components as c\n"
        "from checkers.cycles.graph import Edges\n"
        "c.components(Edges.of(np.arange(3), np.arange(1, 4), 0), 4)\n"
        "sys.exit('scipy' in sys.modules)"
    )

    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
