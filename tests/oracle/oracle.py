"""A slow judge of small list-append histories, written from the definitions and from nothing else.

It shares no code with the checkers: every relation is an explicit Python set of pairs, real time
order is the full relation (never a reduction), and every question is answered by search. Histories
of a few dozen transactions are what it is for.

Order. A transaction precedes another in real time iff it is ok and its completion is earlier than
the other's invocation; at a tie they are concurrent. In process order the ok transactions of one
process precede what it did after them. What precedes is ok; what follows may be info too.

Evidence. What a crashed transaction read proves something only if it committed: an aborted one may
have read anything. It is *proven* to have committed if an ok transaction, or a proven one, read an
element of it. Dependencies come from ok and proven transactions; version orders and the anomalies
of lists from ok ones alone, or (``lists="committed"``) from both: the first is what the project
does, the second finds more where crashed transactions tell what they read. Elle believes all of
them, and would accuse a store that validates reads at commit.

Versions. The version order of a key is the longest list that was read of it, repetitions dropped
(among equally long ones, the first that was read). Dependencies are those between neighbours: the
writer of the last element a read returned -> the reader (wr), the writer of the element before ->
the appender (ww), whoever read exactly up to the element before -> the appender (rw). An element
that was never read comes after everything that was. Failed transactions are in no dependency.

Cycles. ``cycle_names`` says which classes have a simple cycle, closed under "seeing a means that b
is there too". Two rules say which of them are told:

* ``reported``: those that no other found class implies, over the whole history;
* ``told``, the project's: in each strongly connected component those classes of which no other has
  a base (in the order of ``BASES``) and a suffix (in the order of ``SUFFIXES``) as low or lower.

Both leave the same models ruled out, which a test shows.

Garbage (an element that nobody appended) is in no published lattice. A version that was never
written is no history at any level, so it rules out what duplicates do: read-uncommitted.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product

import attrs
import networkx as nx
import oracle_models as models

BASES = ("G0", "G1c", "G-single-item", "G-nonadjacent-item", "G2-item")
SUFFIXES = ("", "-process", "-realtime")
_PLACES = {
    base + suffix: (BASES.index(base), SUFFIXES.index(suffix))
    for base, suffix in product(BASES, SUFFIXES)
}
CYCLE_NAMES = tuple(_PLACES)
LIST_NAMES = (
    "G1a",
    "G1b",
    "dirty-update",
    "duplicate-elements",
    "future-read",
    "garbage-read",
    "incompatible-order",
    "internal",
    "lost-update",
)
NAMES = CYCLE_NAMES + LIST_NAMES
LOST_WRITE = "lost-write"

WRITES = ("ww", "wr")
ORDERS: Mapping[str, tuple[str, ...]] = {
    "": (),
    "-process": ("process",),
    "-realtime": ("process", "realtime"),
}
SEARCH_LIMIT = 2_000_000
"""Steps of the one search that is exponential; a history that needs more is not small."""

Value = int | tuple[int, ...] | None
Op = tuple[str, int, Value]
Read = tuple[int, int, tuple[int, ...]]
Relation = set[tuple[int, int]]
Graph = Mapping[str, Relation]


@attrs.frozen(kw_only=True)
class Txn:
    """One transaction: ``ops`` are ``("append", key, element)`` or ``("r", key, elements)``.

    ``index`` counts invocations from 0. A read of ``None`` saw the empty list if the transaction is
    ok; else it is not known what it saw. Times are on one axis, in no particular unit.
    """

    index: int
    process: int
    type: str
    invoke: int
    complete: int
    ops: tuple[Op, ...]
    kind: str = "read-write"

    def reads(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """(key, elements) of every read whose answer is known, in order."""
        for f, key, value in self.ops:
            if f == "r" and isinstance(value, tuple):
                yield key, value
            elif f == "r" and self.type == "ok":
                yield key, ()

    def appends(self) -> Iterator[tuple[int, int]]:
        """(key, element) of every append, in order."""
        for f, key, value in self.ops:
            if f == "append" and isinstance(value, int):
                yield key, value


History = Sequence[Txn]


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


def judge(history: History, *, lists: str = "ok") -> Judgement:
    """All that is to be said about ``history``; ``lists``: see "Evidence" above."""
    graph = dependencies(history, lists=lists)
    not_, also_not = models.ruled_out(found(history, lists=lists))
    lost, unverified = lost_writes(history)
    by_class = told(graph)
    shown = list_names(history, lists=lists)
    return Judgement(
        names=frozenset(shown.union(by_class)),
        components=by_class,
        not_=not_,
        also_not=also_not,
        lost=frozenset(lost),
        unverified=frozenset(unverified),
        vacuous=not (graph["ww"] or graph["wr"] or graph["rw"]),
    )


def found(history: History, *, lists: str = "ok") -> set[str]:
    """Every anomaly of ``history``; the cycle classes closed under what they imply."""
    shown = list_names(history, lists=lists)
    return shown | cycle_names(dependencies(history, lists=lists))


def reported(names: set[str]) -> set[str]:
    """``names`` without those cycle classes that another of the cycle classes in it implies."""
    cycles = names.intersection(CYCLE_NAMES)
    implied = {
        weaker for name in cycles for weaker in models.implied({name}) - {name} if weaker in cycles
    }
    return names - implied


def told(graph: Graph) -> Counter[str]:
    """For each cycle class the components that hold it and no lesser one."""
    counts: Counter[str] = Counter()
    for component in components(graph):
        held = classes(component)
        counts.update(name for name in held if not any(_lesser(one, name) for one in held))
    return counts


def _lesser(one: str, other: str) -> bool:
    """Whether ``one`` is another class than ``other``, with base and suffix as low or lower."""
    pairs = zip(_PLACES[one], _PLACES[other], strict=True)
    return one != other and all(low <= high for low, high in pairs)


# --- Anomalies that one list or one transaction shows ---------------------------------------------


def list_names(history: History, *, lists: str = "ok") -> set[str]:
    """The anomalies that need no cycle."""
    read = committed(history) if lists == "committed" else of_type(history, "ok")
    tests = {
        "G1a": aborted_read(history),
        "G1b": intermediate_read(history),
        "dirty-update": dirty_update(history, read),
        "duplicate-elements": duplicates(read),
        "future-read": any(map(reads_its_future, of_type(history, "ok"))),
        "garbage-read": garbage(history, read),
        "incompatible-order": incompatible(read),
        "internal": any(map(contradicts_itself, of_type(history, "ok"))),
        "lost-update": lost_update(history),
    }
    return {name for name, holds in tests.items() if holds}


def of_type(history: History, *types: str) -> list[Txn]:
    """The transactions that ended as one of ``types``."""
    return [txn for txn in history if txn.type in types]


def committed(history: History) -> list[Txn]:
    """The ok transactions, and the info ones of which a committed one read an element."""
    proven = {txn.index for txn in of_type(history, "ok")}
    by = writers(history)
    while True:
        seen = {
            by[key, element].index
            for txn in history
            for key, elements in txn.reads()
            for element in elements
            if txn.index in proven and (key, element) in by
        }
        more = {txn.index for txn in of_type(history, "info")} & seen - proven
        if not more:
            return [txn for txn in history if txn.index in proven]
        proven |= more


def known_reads(txns: History) -> list[Read]:
    """(transaction, key, elements) of all reads of ``txns``, in order."""
    return [(txn.index, *read) for txn in txns for read in txn.reads()]


def writers(history: History) -> dict[tuple[int, int], Txn]:
    """Who appended (key, element), whatever became of it."""
    return {append: txn for txn in history for append in txn.appends()}


def aborted_read(history: History) -> bool:
    """G1a: an ok transaction read an element that a failed one appended."""
    failed = {append for txn in of_type(history, "fail") for append in txn.appends()}
    return any(
        (key, element) in failed
        for _, key, elements in known_reads(of_type(history, "ok"))
        for element in elements
    )


def intermediate_read(history: History) -> bool:
    """G1b: an ok transaction read a state that ends inside another transaction's appends."""
    by = writers(history)
    last = {(txn.index, key): element for txn in history for key, element in txn.appends()}
    for reader, key, elements in known_reads(of_type(history, "ok")):
        writer = by.get((key, elements[-1])) if elements else None
        if writer is None or writer.index == reader:
            continue
        if last[writer.index, key] != elements[-1]:
            return True
    return False


def contradicts_itself(txn: Txn) -> bool:
    """internal: a read differs from what the transaction's earlier reads and appends imply."""
    state: dict[int, tuple[int, ...]] = {}  # what the list is, or, in ``suffix``, how it ends
    suffix: dict[int, tuple[int, ...]] = {}
    for f, key, value in txn.ops:
        if f == "append" and isinstance(value, int):
            if key in state:
                state[key] += (value,)
            else:
                suffix[key] = (*suffix.get(key, ()), value)
            continue
        seen = value if isinstance(value, tuple) else ()
        end = suffix.pop(key, ())
        if key in state and seen != state[key]:
            return True
        if end and seen[-len(end) :] != end:
            return True
        state[key] = seen
    return False


def reads_its_future(txn: Txn) -> bool:
    """future-read: the transaction read an element that it appends only later."""
    for place, (f, key, value) in enumerate(txn.ops):
        if f == "r" and isinstance(value, tuple):
            later = [op[2] for op in txn.ops[place:] if op[:2] == ("append", key)]
            if any(element in value for element in later):
                return True
    return False


def duplicates(readers: History) -> bool:
    """duplicate-elements: one list holds an element more than once."""
    return any(len(set(elements)) < len(elements) for _, _, elements in known_reads(readers))


def garbage(history: History, readers: History) -> bool:
    """garbage-read: a list holds an element that nobody ever appended to it."""
    by = writers(history)
    return any(
        (key, element) not in by
        for _, key, elements in known_reads(readers)
        for element in elements
    )


def incompatible(readers: History) -> bool:
    """incompatible-order: of two lists read of one key neither is how the other begins."""
    lists: dict[int, set[tuple[int, ...]]] = defaultdict(set)
    for _, key, elements in known_reads(readers):
        lists[key].add(elements)
    return any(
        one[: len(other)] != other[: len(one)]
        for some in lists.values()
        for one, other in product(some, repeat=2)
    )


def lost_update(history: History) -> bool:
    """lost-update: two ok transactions first read the same of a key, and then appended to it."""
    seen: set[tuple[int, tuple[int, ...]]] = set()
    for txn in of_type(history, "ok"):
        first: dict[int, tuple[int, ...]] = {}
        updated: set[int] = set()
        for f, key, value in txn.ops:
            if f == "r":
                first.setdefault(key, value if isinstance(value, tuple) else ())
            elif key in first:
                updated.add(key)
        mine = {(key, first[key]) for key in updated}
        if seen & mine:
            return True
        seen |= mine
    return False


def dirty_update(history: History, readers: History) -> bool:
    """dirty-update: an ok append lies on a failed one, with nothing but info ones between."""
    by = writers(history)
    for key, order in version_orders(readers).items():
        dirty = False
        for element in order:
            writer = by.get((key, element))
            kind = writer.type if writer else "info"
            if kind == "ok" and dirty:
                return True
            dirty = kind == "fail" or (dirty and kind == "info")
    return False


def version_orders(readers: History) -> dict[int, list[int]]:
    """The longest list that was read of each key, repetitions dropped."""
    longest: dict[int, tuple[int, ...]] = {}
    for _, key, elements in known_reads(readers):
        if len(elements) > len(longest.get(key, ())):
            longest[key] = elements
    return {key: list(dict.fromkeys(elements)) for key, elements in longest.items()}


# --- Dependencies ---------------------------------------------------------------------------------


def dependencies(history: History, *, lists: str = "ok") -> dict[str, Relation]:
    """The relations ``ww``, ``wr``, ``rw``, ``process`` and ``realtime`` between indices."""
    possible = of_type(history, "ok", "info")
    writer = {append: txn.index for txn in possible for append in txn.appends()}
    readers: dict[tuple[int, int | None], set[int]] = defaultdict(set)
    for reader, key, elements in known_reads(committed(history)):
        readers[key, elements[-1] if elements else None].add(reader)
    ordering = committed(history) if lists == "committed" else of_type(history, "ok")
    orders = version_orders(ordering)
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
    }


def real_time_order(history: History) -> Relation:
    """All pairs of which the first was acknowledged before the second was invoked."""
    return {
        (one.index, other.index)
        for one, other in product(of_type(history, "ok"), of_type(history, "ok", "info"))
        if one.complete < other.invoke
    }


# --- Cycles ---------------------------------------------------------------------------------------


def cycle_names(graph: Graph) -> set[str]:
    """The classes of which ``graph`` has a simple cycle, and what these imply."""
    return set().union(*map(classes, components(graph)))


def components(graph: Graph) -> list[Graph]:
    """The parts that cycles lie in: strongly connected over all relations."""
    everything = nx.DiGraph(_union(graph, graph))
    return [
        {
            kind: {(a, b) for a, b in pairs if a in component and b in component}
            for kind, pairs in graph.items()
        }
        for component in nx.strongly_connected_components(everything)
        if len(component) > 1
    ]


def classes(component: Graph) -> set[str]:
    """``cycle_names`` of one component.

    Asked from the strongest claim to the weakest; what is implied is not asked. So when a class is
    asked for, the stronger ones are known to be absent, and that leaves simple questions: where
    there is no cycle of writes and orders alone, each cycle has the edge that is asked for.
    """
    names: set[str] = set()
    for suffix in SUFFIXES:
        for base in BASES:
            name = base + suffix
            if name not in names and _has_cycle(component, base, ORDERS[suffix]):
                names |= {implied for implied in models.implied({name}) if implied in CYCLE_NAMES}
    return names


def _has_cycle(graph: Graph, base: str, orders: tuple[str, ...]) -> bool:
    """Whether there is a cycle of class ``base``, given that no stronger class has one."""
    anti = graph["rw"]
    if base == "G0":
        return _cyclic(_union(graph, ("ww", *orders)))
    calm = _union(graph, (*WRITES, *orders))
    if base == "G1c":
        return _cyclic(calm)
    if base == "G-single-item":
        return _closed_by(calm, anti)
    if base == "G-nonadjacent-item":
        return _alternates(calm, anti)
    return _closed_by(calm | anti, anti)


def _union(graph: Graph, kinds: Iterable[str]) -> Relation:
    return set().union(*(graph[kind] for kind in kinds))


def _cyclic(edges: Relation) -> bool:
    return not nx.is_directed_acyclic_graph(nx.DiGraph(edges))


def _closed_by(edges: Relation, needed: Relation) -> bool:
    """Whether a path over ``edges`` leads from the end of one of ``needed`` to its start."""
    graph = nx.DiGraph(edges | needed)
    graph.remove_edges_from(needed - edges)
    starts: dict[int, set[int]] = defaultdict(set)
    for start, end in needed:
        starts[end].add(start)
    return any(those & {end, *nx.descendants(graph, end)} for end, those in starts.items())


def _alternates(calm: Relation, anti: Relation) -> bool:
    """Whether a simple cycle has edges of ``anti``, and after each of them one of ``calm``.

    A closed walk of that kind is necessary. It is sufficient where ``calm`` has no cycle: cut in
    two where it meets itself, at least one part is of that kind again, and it has an ``anti`` edge.
    Otherwise a simple one is searched for.
    """
    step = {(a, d) for a, b in anti for c, d in calm if b == c}
    if not _closed_by(step | calm, step):
        return False
    return not _cyclic(calm) or _simple_alternation(calm, anti)


def _simple_alternation(calm: Relation, anti: Relation) -> bool:
    steps: dict[int, list[tuple[int, bool]]] = defaultdict(list)
    for edges, is_anti in ((calm, False), (anti, True)):
        for a, b in sorted(edges):
            steps[a].append((b, is_anti))
    budget = [SEARCH_LIMIT]
    return any(_closes(steps, start, first, (start,), True, budget) for start, first in anti)


def _closes(
    steps: Mapping[int, list[tuple[int, bool]]],
    start: int,
    here: int,
    path: tuple[int, ...],
    after_anti: bool,
    budget: list[int],
) -> bool:
    """Whether a simple path leads from ``here`` back to ``start``, whose first edge is ``anti``."""
    budget[0] -= 1
    if budget[0] < 0:
        raise RuntimeError(f"the search for a simple cycle took over {SEARCH_LIMIT} steps")
    for there, is_anti in steps[here]:
        if is_anti and after_anti:
            continue
        if there == start and not is_anti:
            return True
        fresh = there != start and there != here and there not in path
        if fresh and _closes(steps, start, there, (*path, here), is_anti, budget):
            return True
    return False


# --- Lost writes ----------------------------------------------------------------------------------


def lost_writes(history: History) -> tuple[set[tuple[int, int]], set[int]]:
    """The lost (key, element) pairs, and the keys that hold an append which no read verifies.

    An acknowledged append is lost if the last ok read of its key (largest invocation) was invoked
    after the acknowledgement and lacks it.
    """
    lost: set[tuple[int, int]] = set()
    unverified: set[int] = set()
    ok = of_type(history, "ok")
    for txn in ok:
        for key, element in txn.appends():
            later = [
                (other.invoke, other.index, place, elements)
                for other in ok
                for place, (read_key, elements) in enumerate(other.reads())
                if read_key == key and other.invoke > txn.complete
            ]
            if not later:
                unverified.add(key)
            elif element not in max(later)[-1]:
                lost.add((key, element))
    return lost, unverified
