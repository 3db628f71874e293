"""A slow judge of small list-append histories, written from the definitions and from nothing else.

It shares no code with the checkers: every relation is an explicit Python set of pairs, real time
order is the full relation (never a reduction), and every question is answered by search. Histories
of a few dozen transactions are what it is for.

Order. A transaction precedes another in real time iff it is ok and its completion is earlier than
the other's invocation; at a tie they are concurrent. In process order the ok transactions of one
process precede what it did after them. What precedes is ok; what follows may be info too.

Evidence. What a crashed transaction read proves something only if it committed: an aborted one may
have read anything. It is *proven* to have committed if an ok transaction, or a proven one, read an
element of it. Dependencies, version orders and what lists show of versions come from ok and proven
transactions; what accuses a single transaction (G1a, G1b, future-read, internal, lost-update) from
ok ones alone. Elle believes all that crashed ones read, and would accuse a store that validates
reads at commit.

Versions. The version order of a key is the longest list that was read of it, repetitions dropped
(among equally long ones, the first that was read). Dependencies are those between neighbours: the
writer of the last element a read returned -> the reader (wr), the writer of the element before ->
the appender (ww), whoever read exactly up to the element before -> the appender (rw). An element
that was never read comes after everything that was. Failed transactions are in no dependency.

Cycles. ``cycle_names`` says which classes have a simple cycle, closed under "seeing a means that b
is there too". Told are, in each strongly connected component, those that no other class found in
it implies (``told``): a cycle of writes hides none that has an anti-dependency. That leaves the
same models ruled out, which a test shows.

Garbage (an element that nobody appended) is in no published lattice. A version that was never
written is no history at any level, so it rules out what duplicates do: read-uncommitted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import product

import attrs
import oracle_models as models
from oracle_cycles import CYCLE_NAMES, Relation, cycle_names, told
from oracle_history import (
    History,
    Op,
    Txn,
    Value,
    committed,
    known_reads,
    of_type,
    version_orders,
)
from oracle_lists import LIST_NAMES, list_names

NAMES = CYCLE_NAMES + LIST_NAMES
LOST_WRITE = "lost-write"

__all__ = [
    "CYCLE_NAMES",
    "LOST_WRITE",
    "NAMES",
    "Judgement",
    "Op",
    "Txn",
    "Value",
    "committed",
    "cycle_names",
    "dependencies",
    "found",
    "judge",
]


WITHOUT = {"process": ("untimed",), "realtime": ("untimed", "session")}
"""Kinds of transactions that don't promise an order."""


@attrs.frozen(kw_only=True)
class Judgement:
    """What is to be said about a history: ``names`` as reported, the models that are ruled out.

    ``not_`` are the weakest of these, ``also_not`` all others. ``components`` counts, by cycle
    class, the components in which it is told.
    """

    names: frozenset[str]
    components: Mapping[str, int]
    not_: frozenset[str]
    also_not: frozenset[str]
    lost: frozenset[tuple[int, int]]
    unverified: frozenset[int]
    vacuous: bool

    def outcome(self, model: str) -> str:
        """``violation``, ``unknown`` (nothing depends on anything) or ``valid`` for ``model``."""
        broken = model in self.not_ | self.also_not
        if broken or (self.lost and models.promises_real_time(model)):
            return "violation"
        return "unknown" if self.vacuous else "valid"


def judge(history: History) -> Judgement:
    """All that is to be said about ``history``."""
    graph, without = dependencies(history), without_order(history)
    not_, also_not = models.ruled_out(found(history))
    lost, unverified = lost_writes(history)
    by_class = told(graph, without)
    shown = list_names(history)
    return Judgement(
        names=frozenset(shown.union(by_class)),
        components=by_class,
        not_=not_,
        also_not=also_not,
        lost=frozenset(lost),
        unverified=frozenset(unverified),
        vacuous=not (graph["ww"] or graph["wr"] or graph["rw"]),
    )


def found(history: History) -> set[str]:
    """Every anomaly of ``history``; the cycle classes closed under what they imply."""
    return list_names(history) | cycle_names(dependencies(history), without_order(history))


def without_order(history: History) -> dict[str, frozenset[int]]:
    """By the suffix of cycle classes the transactions whose kind does not promise that order."""
    return {
        f"-{order}": frozenset(txn.index for txn in history if txn.kind in kinds)
        for order, kinds in WITHOUT.items()
    }


def dependencies(history: History) -> dict[str, Relation]:
    """The relations ``ww``, ``wr``, ``rw``, ``process`` and ``realtime`` between indices."""
    possible = of_type(history, "ok", "info")
    writer = {append: txn.index for txn in possible for append in txn.appends()}
    readers: dict[tuple[int, int | None], set[int]] = defaultdict(set)
    for reader, key, elements in known_reads(committed(history)):
        readers[key, elements[-1] if elements else None].add(reader)
    orders = version_orders(committed(history))
    graph: dict[str, Relation] = {"ww": set(), "wr": set(), "rw": set()}
    for (key, last), those in readers.items():
        if last is not None and (key, last) in writer:
            graph["wr"] |= {(writer[key, last], reader) for reader in those}
    for (key, element), appender in writer.items():
        before = predecessor(orders.get(key, []), element)
        if before is not None and (key, before) in writer:
            graph["ww"].add((writer[key, before], appender))
        graph["rw"] |= {(reader, appender) for reader in readers[key, before]}
    graph |= {"process": process_order(history), "realtime": real_time_order(history)}
    return {kind: {pair for pair in pairs if pair[0] != pair[1]} for kind, pairs in graph.items()}


def predecessor(order: list[int], element: int) -> int | None:
    """The element before ``element``; after everything, if it was never read. None: the start."""
    place = order.index(element) if element in order else len(order)
    return order[place - 1] if place else None


def process_order(history: History) -> Relation:
    """All pairs of one process of which the first was acknowledged, in the order of invocation."""
    return {
        (one.index, other.index)
        for one, other in product(of_type(history, "ok"), of_type(history, "ok", "info"))
        if one.process == other.process and one.index < other.index
        if not {one.kind, other.kind}.intersection(WITHOUT["process"])
    }


def real_time_order(history: History) -> Relation:
    """All pairs of which the first was acknowledged before the second was invoked."""
    return {
        (one.index, other.index)
        for one, other in product(of_type(history, "ok"), of_type(history, "ok", "info"))
        if one.complete < other.invoke
        if not {one.kind, other.kind}.intersection(WITHOUT["realtime"])
    }


def lost_writes(history: History) -> tuple[set[tuple[int, int]], set[int]]:
    """The lost (key, element) pairs, and the keys that hold an append which no read verifies.

    An acknowledged append is lost if some ok read of its key was invoked after the acknowledgement,
    and none of those shows it. The last read alone proves no loss: where an earlier or concurrent
    one shows the element, the last one may be stale, and "in no later read" would be false.
    """
    lost: set[tuple[int, int]] = set()
    unverified: set[int] = set()
    ok = of_type(history, "ok")
    for txn in ok:
        for key, element in txn.appends():
            later = [
                (other.kind, elements)
                for other in ok
                for read_key, elements in other.reads()
                if read_key == key and other.invoke > txn.complete
            ]
            # Any read shows an element; only one that promises real time had to.
            if all(kind in WITHOUT["realtime"] for kind, _ in later):
                unverified.add(key)
            elif not any(element in elements for _, elements in later):
                lost.add((key, element))
    return lost, unverified
