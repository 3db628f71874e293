"""The oracle's questions about cycles against the definition itself: list every simple cycle."""

import random
from collections import Counter
from itertools import product

import networkx as nx
import oracle
import oracle_models
import pytest
from oracle_cycles import told

KINDS = ("ww", "wr", "rw", "process", "realtime")


def name_of(kinds):
    """The class of a cycle of which each step is used as one kind; none for orders alone."""
    anti = [kind == "rw" for kind in kinds]
    adjacent = any(one and other for one, other in zip(anti, anti[1:] + anti[:1], strict=True))
    if sum(anti) == 1:
        base = "G-single-item"
    elif sum(anti) > 1:
        base = "G2-item" if adjacent else "G-nonadjacent-item"
    elif "wr" in kinds:
        base = "G1c"
    elif "ww" in kinds:
        base = "G0"
    else:
        return None
    suffix = "-realtime" if "realtime" in kinds else "-process" if "process" in kinds else ""
    return base + suffix


def by_enumeration(graph):
    """The classes that simple cycles have, component by component."""
    edges = nx.DiGraph(set().union(*graph.values()))
    names = {frozenset(part): set() for part in nx.strongly_connected_components(edges)}
    for cycle in nx.simple_cycles(edges):
        steps = zip(cycle, cycle[1:] + cycle[:1], strict=True)
        choices = [[kind for kind in KINDS if step in graph[kind]] for step in steps]
        (part,) = (one for one in names if cycle[0] in one)
        names[part] |= {name_of(kinds) for kinds in product(*choices)} - {None}
    return [some for some in names.values() if some]


def implied(names):
    """``names`` and the classes of cycles that these imply."""
    return oracle_models.implied(names) & set(oracle.CYCLE_NAMES)


def told_by_enumeration(graph):
    """What no class of the same component implies, each as often as components hold it."""
    counts = Counter()
    for names in by_enumeration(graph):
        counts.update(
            name for name in names if not any(name in implied({one}) - {one} for one in names)
        )
    return counts


def random_graph(stream):
    """A few random dependencies over a random order in time of three to six transactions."""
    size = stream.randint(3, 6)
    writes = stream.choice((1, 3))
    pairs = [(a, b) for a in range(size) for b in range(size) if a != b]
    graph = {
        kind: set(stream.sample(pairs, stream.randint(0, most)))
        for kind, most in (("ww", writes), ("wr", writes), ("rw", 4))
    }
    start = {txn: stream.randint(0, 12) for txn in range(size)}
    longest = stream.choice((5, 12))
    end = {txn: start[txn] + stream.randint(0, longest) for txn in range(size)}
    graph["realtime"] = {(a, b) for a, b in pairs if end[a] < start[b]}
    if size >= 4 and stream.random() < 0.4:  # what chance alone all but never makes
        graph |= {"ww": {(0, 1)}, "wr": set(), "rw": {(3, 0), (1, 2)}}
    process = [stream.randrange(2 * size) for _ in range(size)]
    graph["process"] = {
        (a, b) for a, b in pairs if process[a] == process[b] and (start[a], a) < (start[b], b)
    }
    return graph


@pytest.mark.parametrize("seed", range(20))
def test_the_oracle_names_what_enumerating_every_simple_cycle_names(seed):
    stream = random.Random(seed)
    for _ in range(60):
        graph = random_graph(stream)
        every = implied(set().union(*by_enumeration(graph)))
        assert oracle.cycle_names(graph) == every, graph
        assert told(graph) == told_by_enumeration(graph), graph


def test_the_random_graphs_reach_every_class_as_a_reported_name():
    reported = set()
    for seed in range(20):
        stream = random.Random(seed)
        for _ in range(60):
            reported |= set(told(random_graph(stream)))
    assert reported == set(oracle.CYCLE_NAMES)


def test_a_walk_that_only_meets_itself_is_no_nonadjacent_cycle():
    """T0 -rw-> T1 -rw-> T0 with T1 -wr-> T2 -wr-> T1: the walk T0 T1 T2 T1 T0 alternates."""
    graph = {"rw": {(0, 1), (1, 0)}, "wr": {(1, 2), (2, 1)}, "ww": set()}
    graph |= {"process": set(), "realtime": set()}
    assert set(told(graph)) == {"G1c", "G2-item"}
    graph["wr"] |= {(0, 3)}
    graph["ww"] = {(3, 1)}  # an honest way from T0 to T1 beside the anti-dependency
    assert set(told(graph)) == {"G1c", "G-single-item"}
