"""An independent judge of small histories: definitions spelled out, everything enumerated.

It shares no code with the checkers: plain Python over ``Txn`` values, every simple cycle of the
whole graph, every pair of operations. Only for histories of a dozen transactions.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from typing import Any

import attrs
import networkx as nx
from checker_histories import Txn, times

BASES = ["G0", "G1c", "G-single-item", "G-nonadjacent-item", "G2-item"]
ORDERS = ["", "-process", "-realtime"]


@attrs.frozen
class Judgement:
    """What must come out: anomalies with their counts, and whether a lost write is among them."""

    counts: dict[str, int]
    not_: set[str]
    also_not: set[str]

    def breaks(self, model: str) -> bool:
        return model in self.not_ | self.also_not


# Kinds of transactions without a real time order: the second keeps the order of its process.
UNTIMED, SESSION = "untimed", "session"


def judge(txns: list[Txn]) -> Judgement:
    counts = Counter(Oracle(txns).findings())
    counts.update(Oracle(txns).cycles())
    counts.update(Oracle(txns).lost_writes())
    weakest, above = ruled_out(set(counts))
    return Judgement(dict(counts), weakest, above)


class Oracle:
    def __init__(self, txns: list[Txn]) -> None:
        self.txns = txns
        self.process, self.start, self.finish = (
            zip(*times(txns), strict=True) if txns else ((),) * 3
        )
        self.writer = {
            (k, v): (t, p)
            for t, txn in enumerate(txns)
            for p, (f, k, v) in enumerate(txn.ops)
            if f == "append"
        }
        self.committed = self._committed()
        self.order = self._version_orders()

    def reads(self, types: tuple[str, ...] = ("ok",)) -> list[tuple[int, int, int, list[int]]]:
        """(transaction, position, key, list) of the reads whose result is known."""
        return [
            (t, p, k, list(v or ()))
            for t, txn in enumerate(self.txns)
            for p, (f, k, v) in enumerate(txn.ops)
            if f == "r" and txn.type in types and (v is not None or txn.type == "ok")
        ]

    def committed_reads(self) -> list[tuple[int, int, int, list[int]]]:
        return [read for read in self.reads(("ok", "info")) if read[0] in self.committed]

    def keys(self) -> set[int]:
        return {k for txn in self.txns for _, k, _ in txn.ops}

    def _longest(self, key: int) -> list[int]:
        lists = [v for _, _, k, v in self.committed_reads() if k == key]
        return max(lists, key=len, default=[])

    def _version_orders(self) -> dict[int, list[int]]:
        return {k: list(dict.fromkeys(self._longest(k))) for k in self.keys()}

    def _committed(self) -> set[int]:
        known = {t for t, txn in enumerate(self.txns) if txn.type == "ok"}
        for _ in self.txns:
            for t, _, k, v in self.reads(("ok", "info")):
                if t in known:
                    writers = {self.writer[k, e][0] for e in v if (k, e) in self.writer}
                    known |= {w for w in writers if self.txns[w].type == "info"}
        return known

    def type_of(self, key: int, element: int) -> str | None:
        found = self.writer.get((key, element))
        return self.txns[found[0]].type if found else None

    def findings(self) -> dict[str, int]:
        accused: dict[str, set[int]] = defaultdict(set)
        for t, _, k, v in self.committed_reads():
            if any(self.type_of(k, e) is None for e in v):
                accused["garbage-read"].add(t)
            if len(set(v)) < len(v):
                accused["duplicate-elements"].add(t)
            if v != self._longest(k)[: len(v)]:
                accused["incompatible-order"].add(t)
        for t, p, k, v in self.reads():
            for e in v:
                if self.type_of(k, e) == "fail":
                    accused["G1a"].add(t)
                if self.writer.get((k, e), (-1, -1))[0] == t and self.writer[k, e][1] > p:
                    accused["future-read"].add(t)
            if v and (k, v[-1]) in self.writer:
                w, _ = self.writer[k, v[-1]]
                mine = [e for f, key, e in self.txns[w].ops if f == "append" and key == k]
                if w != t and mine[-1] != v[-1]:
                    accused["G1b"].add(t)
            if self._contradicts_itself(t, p, k, v):
                accused["internal"].add(t)
        accused["lost-update"] |= self._lost_updates()
        accused["dirty-update"] |= self._dirty_updates()
        return {name: len(who) for name, who in accused.items() if who}

    def _contradicts_itself(self, t: int, p: int, k: int, v: list[int]) -> bool:
        expected: list[int] | None = None
        tail: list[int] = []
        for f, key, value in self.txns[t].ops[:p]:
            if key != k:
                continue
            if f == "r":
                expected, tail = list(value or ()), []
            else:
                tail.append(value)
        if expected is not None:
            return v != expected + tail
        return bool(tail) and v[len(v) - len(tail) :] != tail if len(v) >= len(tail) else bool(tail)

    def _lost_updates(self) -> set[int]:
        groups: dict[Any, set[int]] = defaultdict(set)
        for t, txn in enumerate(self.txns):
            for k in self.keys():
                mine = [(f, v) for f, key, v in txn.ops if key == k]
                at = next((i for i, (f, _) in enumerate(mine) if f == "r"), None)
                if txn.type == "ok" and at is not None and any(f == "append" for f, _ in mine[at:]):
                    groups[k, tuple(mine[at][1] or ())].add(t)
        return {t for group in groups.values() for t in sorted(group)[1:]}

    def _dirty_updates(self) -> set[int]:
        accused = set()
        for k, order in self.order.items():
            dirty = False
            for e in order:
                if self.type_of(k, e) == "fail":
                    dirty = True
                elif self.type_of(k, e) == "ok":
                    if dirty:
                        accused.add(self.writer[k, e][0])
                    dirty = False
        return accused

    def lost_writes(self) -> dict[str, int]:
        lost = 0
        for (k, e), (w, _) in self.writer.items():
            later = [
                v for t, _, key, v in self.reads() if key == k and self.start[t] > self.finish[w]
            ]
            shown = any(e in v for v in later)
            if self.txns[w].type == "ok" and later and not shown:
                lost += 1
        return {"lost-write": lost} if lost else {}

    def edges(self) -> dict[tuple[int, int], set[str]]:
        """Every dependency and order between two transactions, helpers and reductions aside."""
        found: dict[tuple[int, int], set[str]] = defaultdict(set)

        def add(kind: str, a: int, b: int) -> None:
            if a != b and "fail" not in (self.txns[a].type, self.txns[b].type):
                found[a, b].add(kind)

        states = self.committed_reads()
        for t, _, k, v in states:
            if v and (k, v[-1]) in self.writer:
                add("wr", self.writer[k, v[-1]][0], t)
        for (k, e), (w, _) in self.writer.items():
            order = self.order[k]
            place = order.index(e) if e in order else len(order)
            if place and (k, order[place - 1]) in self.writer:
                add("ww", self.writer[k, order[place - 1]][0], w)
            for t, _, key, v in states:
                known = not v or (k, v[-1]) in self.writer
                if key == k and known and v[-1:] == order[max(place - 1, 0) : place]:
                    add("rw", t, w)
        for x, y in itertools.permutations(range(len(self.txns)), 2):
            if self.txns[x].type == "ok":
                before = (self.start[x], x) < (self.start[y], y)
                if self.process[x] == self.process[y] and before and self._keep("process", x, y):
                    add("process", x, y)
                if self.finish[x] < self.start[y] and self._keep("realtime", x, y):
                    add("realtime", x, y)
        return found

    def _keep(self, order: str, *txns: int) -> bool:
        """Whether all of ``txns`` promise ``order``, the real time or the process's."""
        without = {"": (), "process": (UNTIMED,), "realtime": (UNTIMED, SESSION)}[order]
        return all(self.txns[t].kind not in without for t in txns)

    def kinds(self) -> list[tuple[set[int], dict[tuple[int, int], int]]]:
        """Every component, and by kind the length of the shortest simple cycle in it."""
        edges = self.edges()
        graph = nx.DiGraph(list(edges))
        found = []
        for component in nx.strongly_connected_components(graph):
            shortest: dict[tuple[int, int], int] = {}
            for cycle in nx.simple_cycles(graph.subgraph(component)):
                steps = [edges[pair] for pair in zip(cycle, [*cycle[1:], cycle[0]], strict=True)]
                for labels in itertools.product(*steps):
                    kind = kind_of(labels)
                    order = ("", "process", "realtime")[kind[1] if kind else 0]
                    if kind and self._keep(order, *cycle):
                        shortest[kind] = min(shortest.get(kind, len(cycle)), len(cycle))
            found.append((component, shortest))
        return found

    def cycles(self) -> dict[str, int]:
        """Components by the kinds of simple cycles in them that no other kind there implies; of a
        causal reverse are those that hold none, though they are components.
        """
        counts: Counter[str] = Counter()
        for component, shortest in self.kinds():
            counts.update(BASES[b] + ORDERS[o] for b, o in minimal(set(shortest)))
            if len(component) > 1 and not shortest:
                counts["causal-reverse"] += 1
        return dict(counts)


def kind_of(labels: tuple[str, ...]) -> tuple[int, int] | None:
    rw = [label == "rw" for label in labels]
    adjacent = any(a and b for a, b in zip(rw, [*rw[1:], rw[0]], strict=True))
    if sum(rw) == 1:
        base = 2
    elif sum(rw) > 1:
        base = 4 if adjacent else 3
    elif "wr" in labels:
        base = 1
    elif "ww" in labels:
        base = 0
    else:
        return None
    return base, 2 if "realtime" in labels else 1 if "process" in labels else 0


IMPLIED_BASES = {0: {0, 1}, 1: {1}, 2: {2, 3, 4}, 3: {3, 4}, 4: {4}}


def minimal(kinds: set[tuple[int, int]]) -> set[tuple[int, int]]:
    return {
        k
        for k in kinds
        if not any(o != k and k[0] in IMPLIED_BASES[o[0]] and o[1] <= k[1] for o in kinds)
    }


LATTICE = """
strict-serializable > serializable snapshot-isolation strong-snapshot-isolation
strict-serializable > strong-session-serializable
strong-session-serializable > serializable strong-session-snapshot-isolation
strong-snapshot-isolation > strong-session-snapshot-isolation strong-read-committed
strong-session-snapshot-isolation > snapshot-isolation strong-session-read-committed
strong-read-committed > strong-session-read-committed strong-read-uncommitted
strong-session-read-committed > read-committed strong-session-read-uncommitted
strong-read-uncommitted > strong-session-read-uncommitted
strong-session-read-uncommitted > read-uncommitted
serializable > repeatable-read snapshot-isolation update-serializable
update-serializable > forward-consistent-view
forward-consistent-view > consistent-view
consistent-view > cursor-stability monotonic-view
repeatable-read > cursor-stability monotonic-atomic-view
snapshot-isolation > forward-consistent-view monotonic-atomic-view monotonic-snapshot-read
snapshot-isolation > parallel-snapshot-isolation prefix
parallel-snapshot-isolation > causal-cerone update-atomic
prefix > causal-cerone
causal-cerone > read-atomic
update-atomic > read-atomic
read-atomic > monotonic-atomic-view
monotonic-atomic-view > read-committed
cursor-stability > read-committed
monotonic-view > read-committed
monotonic-snapshot-read > read-committed
read-committed > read-uncommitted
"""
WEAKEST = {
    "read-uncommitted": "G0 duplicate-elements garbage-read",
    "read-committed": "G1a G1b G1c dirty-update incompatible-order future-read",
    "read-atomic": "internal",
    "cursor-stability": "lost-update",
    "update-atomic": "lost-update",
    "consistent-view": "G-single-item",
    "snapshot-isolation": "G-nonadjacent-item",
    "repeatable-read": "G-single-item G-nonadjacent-item G2-item",
    "strong-session-read-uncommitted": "G0-process",
    "strong-session-read-committed": "G1c-process",
    "strong-session-snapshot-isolation": "G-single-item-process G-nonadjacent-item-process",
    "strong-session-serializable": "G2-item-process",
    "strong-read-uncommitted": "G0-realtime",
    "strong-read-committed": "G1c-realtime",
    "strong-snapshot-isolation": "G-single-item-realtime G-nonadjacent-item-realtime lost-write",
    "strict-serializable": "G2-item-realtime",
}


def ruled_out(anomalies: set[str]) -> tuple[set[str], set[str]]:
    lattice = nx.DiGraph()
    for line in LATTICE.split("\n"):
        if line:
            stronger, weaker = line.split(" > ")
            lattice.add_edges_from((w, stronger) for w in weaker.split())
    broken = {m for m, names in WEAKEST.items() if anomalies & set(names.split())}
    every = broken.union(*(nx.descendants(lattice, m) for m in broken)) if broken else set()
    weakest = {m for m in every if not nx.ancestors(lattice, m) & every}
    return weakest, every - weakest
