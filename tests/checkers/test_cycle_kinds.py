"""Cycles of random graphs against the definition itself: every simple cycle, listed."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from itertools import permutations, product

import networkx as nx
import pyarrow as pa
import pytest
from checker_histories import ok, setting, source
from checker_oracle import BASES, ORDERS, kind_of, minimal

from checkers.cycles.classification import find_cycles
from checkers.cycles.dependencies import EDGES, TAILS, Kind

Pairs = set[tuple[int, int]]
Spans = list[tuple[int, int, int]]
DEPENDENCIES = {"ww": Kind.WW, "wr": Kind.WR, "rw": Kind.RW}


def random_graph(draw: random.Random) -> tuple[Spans, dict[str, Pairs]]:
    """(process, start, finish) of three to seven transactions, and dependencies between them."""
    size = draw.randint(3, 7)
    pairs = list(permutations(range(size), 2))
    most = draw.choice([(1, 2, 4), (3, 3, 4), (2, 2, 6), (0, 4, 5)])
    chosen = {
        kind: set(draw.sample(pairs, min(draw.randint(0, n), len(pairs))))
        for kind, n in zip(DEPENDENCIES, most, strict=True)
    }
    if size >= 5 and draw.random() < 0.4:  # what chance alone all but never makes
        twice = {(0, 1), (3, 4)}
        chosen["rw"] = twice | set(draw.sample(pairs, draw.randint(0, 1)))
        chosen["ww"] = {(1, 3), (4, 0)}
        chosen["wr"] = {(1, 2), (2, 1)}
    span = draw.choice((0, 5, 12))
    free: dict[int, int] = defaultdict(int)
    spans = []
    for _ in range(size):
        process = draw.randrange(1, 2 * size)
        start = free[process] + (draw.randint(0, 12) if span else 0)
        finish = start + draw.randint(1, span or 12)
        free[process] = finish + draw.randint(0, 2)
        spans.append((process, start, finish))
    return spans, chosen


def found(spans: Spans, graph: dict[str, Pairs]) -> tuple[dict[str, int], dict[str, list[int]]]:
    """What the kernel says: components by kind of cycle, and how long those are that it shows."""
    rows = [
        {"kind": int(DEPENDENCIES[kind]), "source": a, "target": b, "key": a, "element": b}
        for kind in DEPENDENCIES
        for a, b in sorted(graph[kind])
    ]
    txns = [ok(process=p, start=start, finish=finish) for p, start, finish in spans]
    tables = {
        "transactions": source(txns).transactions,
        "lists.edges": pa.Table.from_pylist(rows, schema=EDGES),
        "lists.tails": TAILS.empty_table(),
    }
    given = find_cycles(tables, setting())
    counts = {r["anomaly"]: r["count"] for r in given["cycles.counts"].to_pylist()}
    shown: dict[tuple[str, int], list[str]] = defaultdict(list)
    for row in given["cycles.steps"].to_pylist():
        shown[row["anomaly"], row["cycle"]].append(row["kind"])
    lengths: dict[str, list[int]] = defaultdict(list)
    for (name, _), kinds in shown.items():
        kind = kind_of(tuple(kinds))
        assert kind is not None
        assert BASES[kind[0]] + ORDERS[kind[1]] == name
        lengths[name].append(len(kinds))
    return counts, {name: sorted(some) for name, some in lengths.items()}


def listed(
    spans: Spans, graph: dict[str, Pairs]
) -> tuple[Counter[str], dict[str, list[int]], list[set[tuple[int, int]]]]:
    """The same by listing every simple cycle; and all kinds of each component."""
    labels: dict[tuple[int, int], set[str]] = defaultdict(set)
    for kind in DEPENDENCIES:
        for pair in graph[kind]:
            labels[pair].add(kind)
    for a, b in permutations(range(len(spans)), 2):
        if spans[a][0] == spans[b][0] and (spans[a][1], a) < (spans[b][1], b):
            labels[a, b].add("process")
        if spans[a][2] < spans[b][1]:
            labels[a, b].add("realtime")
    whole = nx.DiGraph(list(labels))
    counts: Counter[str] = Counter()
    lengths: dict[str, list[int]] = defaultdict(list)
    kinds_of_each = []
    for part in nx.strongly_connected_components(whole):
        shortest: dict[tuple[int, int], int] = {}
        for cycle in nx.simple_cycles(whole.subgraph(part)):
            steps = [labels[pair] for pair in zip(cycle, [*cycle[1:], cycle[0]], strict=True)]
            for choice in product(*steps):
                if kind := kind_of(choice):
                    shortest[kind] = min(shortest.get(kind, len(cycle)), len(cycle))
        kinds_of_each.append(set(shortest))
        for base, order in minimal(set(shortest)):
            counts[BASES[base] + ORDERS[order]] += 1
            lengths[BASES[base] + ORDERS[order]].append(shortest[base, order])
    return counts, {name: sorted(some) for name, some in lengths.items()}, kinds_of_each


@pytest.mark.parametrize("seed", range(8))
def test_the_kernel_tells_what_listing_every_simple_cycle_tells(seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(100):
        spans, graph = random_graph(draw)
        counts, lengths = found(spans, graph)
        expected, shortest, _ = listed(spans, graph)
        assert counts == dict(expected), (spans, graph)
        for name, some in lengths.items():
            assert some == shortest[name], (name, spans, graph)


def test_the_random_graphs_show_kinds_with_rw_beside_kinds_without() -> None:
    beside: Counter[int] = Counter()
    for seed in range(8):
        draw = random.Random(seed)
        for _ in range(100):
            for kinds in listed(*random_graph(draw))[2]:
                told = minimal(kinds)
                if any(base < 2 for base, _ in told):
                    beside.update(base for base, _ in told)
    assert min(beside[base] for base in (2, 3, 4)) >= 3


TOGETHER = [(process, 0, 50) for process in range(6)]


def test_a_walk_that_only_meets_itself_is_no_cycle_without_two_rw_in_a_row() -> None:
    # T0 -rw-> T1 -rw-> T0 and T1 -wr-> T2 -wr-> T1: round T2 and back is no simple cycle.
    graph: dict[str, Pairs] = {"rw": {(0, 1), (1, 0)}, "wr": {(1, 2), (2, 1)}, "ww": set()}
    assert found(TOGETHER[:3], graph)[0] == {"G1c": 1, "G2-item": 1}

    # With an honest way round from T1 it is one: T0 -rw-> T1 -ww-> T3 -rw-> T4 -ww-> T0.
    graph["ww"] |= {(1, 3), (4, 0)}
    graph["rw"] |= {(3, 4)}
    assert found(TOGETHER[:5], graph)[0] == {"G1c": 1, "G-nonadjacent-item": 1}
