"""Lists by generation of their partition: one history of a key is cut into one for each generation.

A forced reset takes a partition's lists back to a prefix of what they were, and they grow on from
there. So a key's lists of two generations have a common prefix and nothing else: each generation is
inferred from as a key of its own (``surrogate``), to which the generations before give a prefix.
Within one nothing is forgiven. What the lists of two generations owe each other is told beside:
``resets.findings`` where they are not what a reset may leave, ``resets.cuts`` what each reset kept
and lost, from which it is judged later, over all keys, whether that was a prefix of the log.

Which generation an operation is of follows from its time where that is certain. One that overlaps a
reset is of a generation that its list and those of all others fit, if there is one; where that
can't be decided within bounds (``placement``), such reads are left out and the key is named in
``resets.undecided``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import FAIL, OK, Ints
from checkers.engine.transactions import staleness_ns
from checkers.lists.generation_search import TRIED_MAX, place_reads
from checkers.lists.list_ops import Appends, ListOps, Reads, append_codes_of
from checkers.lists.versions import NEVER
from harness.errors import MalformedHistory
from harness.protocols.checker import Setting, Tables
from harness.protocols.generations import GenerationTree, trees_of
from harness.protocols.models import (
    MIXED_GENERATIONS,
    RESTORED_IN_PART,
    RESTORED_OVER_WRITES,
    RETURNED_WRITE,
)

SURROGATE_BITS = 48

# One row an element that a reset left out or kept, of the elements that its parent surely had.
# ``known_ns``: it was in the log by then; null where a read shows it only after the reset. The read
# that shows a lost element and began last, at ``shown_ns``, and the one that misses it, though it
# was known, and ended first, at ``missed_ns``: the reset lies between the two.
CUTS = pa.schema(
    [
        ("partition", pa.int32()),
        ("place", pa.int32()),
        ("kept", pa.bool_()),
        ("key", pa.int64()),
        ("element", pa.int64()),
        ("writer", pa.int64()),
        ("invoke_ns", pa.int64()),
        ("known_ns", pa.int64()),
        ("shown_by", pa.int64()),
        ("shown_ns", pa.int64()),
        ("missed_by", pa.int64()),
        ("missed_ns", pa.int64()),
    ]
)
# Lists of two generations that no reset explains; ``reader`` saw ``element``, or should have. Where
# ``element`` is null, the list that ``writer`` read is of no generation.
RESET_FINDINGS = pa.schema(
    [
        ("anomaly", pa.string()),
        ("partition", pa.int32()),
        ("place", pa.int32()),
        ("key", pa.int64()),
        ("element", pa.int64()),
        ("writer", pa.int64()),
        ("reader", pa.int64()),
    ]
)
UNDECIDED = pa.schema([("partition", pa.int32()), ("key", pa.int64())])
Row = dict[str, Any]


def surrogate(key: int, place: int) -> int:
    """Return the number under which the generation ``place`` of ``key`` is inferred from."""
    if not 0 <= key < 1 << SURROGATE_BITS:
        reason = f"in a partition that was reset, keys must be from 0 to 2**{SURROGATE_BITS} - 1"
        raise MalformedHistory("history", f"key {key}", reason)
    return key | place << SURROGATE_BITS


def with_keys(table: pa.Table, setting: Setting) -> pa.Table:
    """Return ``table`` with keys in its column ``key`` in place of surrogates."""
    if not cuts_keys(setting):
        return table
    place = table.column_names.index("key")
    mask = pa.scalar((1 << SURROGATE_BITS) - 1, pa.int64())
    column = table.column(place)
    real = pc.if_else(pc.less(column, 0), column, pc.bit_wise_and(column, mask))
    return table.set_column(place, table.schema.field(place), real)


def cuts_keys(setting: Setting) -> bool:
    """Tell whether keys are cut: partitions were reset, of a store that may lose by that."""
    return setting.may_lose


@attrs.frozen(kw_only=True)
class ListRead:
    """The longest read of a key by one transaction, with the ``rows`` of all of them. ``current``:
    it promises to see what was acknowledged before it began; else it may be of the past.
    """

    rows: tuple[int, ...]
    txn: int
    start_ns: int
    finish_ns: int
    elements: tuple[int, ...]
    committed: bool
    current: bool
    first: int
    last: int


@attrs.frozen(kw_only=True)
class ListAppend:
    """An append; ``finish_ns`` is ``NEVER`` unless it was acknowledged. ``first`` and ``last`` are
    the generations in which it may have taken effect.
    """

    row: int
    txn: int
    element: int
    start_ns: int
    finish_ns: int
    acked: bool
    failed: bool
    first: int
    last: int

    def possible(self, place: int) -> bool:
        """Tell whether it may have taken effect in the generation ``place``."""
        return self.first <= place <= self.last


class KeyGenerations:
    """The operations on one key of a partition that was reset, each in one generation."""

    def __init__(
        self, tree: GenerationTree, reads: Sequence[ListRead], appends: Sequence[ListAppend]
    ) -> None:
        self.tree = tree
        self.reads = list(reads)
        self.appends = {append.element: append for append in appends}
        self._paths = [tree.path(place) for place in range(len(tree))]
        self.undecided = False
        self._unfit: ListRead | None = None
        self.places = self._assign()
        self.longest = self._longest(self.places)

    def _assign(self) -> tuple[int, ...]:
        """Return the generation of each read: by its time, and by its list where that leaves a
        choice. Where no choice could be made the reads that have one are left out.
        """
        committed = [read for read in self.reads if read.committed]
        free = [read for read in committed if read.first != read.last]
        if not free:
            return tuple(read.last for read in self.reads)
        certain = [append for append in self.appends.values() if not append.failed]
        found = place_reads(committed, certain, len(self.tree))
        if not found.decided:
            return self._without(free)
        if not found.fits:
            fixed = [read for read in committed if read.first == read.last]
            sure = [append for append in certain if append.first == append.last]
            if place_reads(fixed, sure, len(self.tree)).fits:
                self._unfit = max(free, key=lambda read: (len(read.elements), -read.txn))
            return self._all(committed, found.places)
        for element, (first, last) in found.spans.items():
            self.appends[element] = attrs.evolve(self.appends[element], first=first, last=last)
        for places in (found.places, *found.others):
            every = self._all(committed, places)
            if not self._misfits(every):
                return every
        return self._tried(free) or self._without(free)

    def _without(self, free: Sequence[ListRead]) -> tuple[int, ...]:
        self.undecided = True
        self.reads = [read for read in self.reads if read not in free]
        return tuple(read.last for read in self.reads)

    def _all(self, committed: Sequence[ListRead], places: Sequence[int]) -> tuple[int, ...]:
        """Return the places of all reads, of which those that did not commit tell nothing."""
        of = dict(zip((read.txn for read in committed), places, strict=True))
        return tuple(of.get(read.txn, read.last) for read in self.reads)

    def _tried(self, free: Sequence[ListRead]) -> tuple[int, ...] | None:
        """Return the places with the fewest contradictions, of all that there are; ``None`` where
        they are too many.
        """
        spans = [range(read.last, read.first - 1, -1) for read in free]
        if math.prod(map(len, spans)) > TRIED_MAX:
            return None
        txns = [read.txn for read in free]
        tried = []
        for chosen in itertools.product(*spans):
            of = dict(zip(txns, chosen, strict=True))
            tried.append(tuple(of.get(read.txn, read.last) for read in self.reads))
        return min(tried, key=self._misfits)

    def _longest(self, places: Sequence[int]) -> dict[int, ListRead]:
        """Return the longest committed read of each generation, the earliest of equals."""
        longest: dict[int, ListRead] = {}
        for read, at in zip(self.reads, places, strict=True):
            if read.committed and (
                at not in longest or len(read.elements) > len(longest[at].elements)
            ):
                longest[at] = read
        return longest

    def _misfits(self, places: Sequence[int]) -> int:
        """Count the contradictions that the reads show where they are of ``places``."""
        pairs = zip(self.reads, places, strict=True)
        placed = [(read, at) for read, at in pairs if read.committed]
        longest = self._longest(places)
        found = len(list(self._findings(longest, placed)))
        current = [(read, at) for read, at in placed if read.current]
        for (one, at), (other, later) in itertools.permutations(current, 2):
            # A generation is over once another has been read, and no list of it ever shrinks.
            found += at < later and other.finish_ns < one.start_ns
            shorter = len(other.elements) < len(one.elements)
            found += at == later and one.finish_ns < other.start_ns and shorter
        for read, at in placed:
            whole = longest[at].elements
            found += read.elements != whole[: len(read.elements)]
            if read.current:
                due = [self.appends[e] for e in whole[len(read.elements) :] if e in self.appends]
                due += [a for a in self.appends.values() if a.first == a.last == at]
                found += any(
                    a.acked and a.finish_ns < read.start_ns and a.element not in read.elements
                    for a in due
                )
        return found

    def findings(self) -> list[Row]:
        """Return the rows of ``RESET_FINDINGS`` of this key, without key."""
        found = list(self._findings(self.longest, self._placed()))
        if not found and self._unfit is not None:
            # What is of no generation for certain must not go unsaid.
            read = self._unfit
            row = {"element": None, "writer": read.txn, "reader": -1}
            found = [{"anomaly": MIXED_GENERATIONS, "place": max(1, read.last), **row}]
        return found

    def _placed(self) -> list[tuple[ListRead, int]]:
        pairs = zip(self.reads, self.places, strict=True)
        return [(read, place) for read, place in pairs if read.committed]

    def _findings(
        self, longest: Mapping[int, ListRead], placed: Sequence[tuple[ListRead, int]]
    ) -> Iterable[Row]:
        for place, read in sorted(longest.items()):
            if not place:
                continue
            before = longest.get(self.tree.parents[place])
            held = before.elements if before else ()
            common = _common(held, read.elements)
            for element in read.elements[common:]:
                append = self.appends.get(element)
                if append is None or append.failed or append.possible(place):
                    continue  # garbage and aborted reads are findings of their own
                if len(held) > common:
                    # The lists have parted: what follows must be new.
                    yield _found(MIXED_GENERATIONS, place, append, read)
                elif (witness := self._absent(append, place, placed)) is not None:
                    yield _found(RETURNED_WRITE, place, append, witness)
        yield from self._restored(placed)

    def _absent(
        self, append: ListAppend, place: int, placed: Sequence[tuple[ListRead, int]]
    ) -> ListRead | None:
        """Return a read that shows that the generation ``place`` can't have got ``append`` from the
        ones whose log it continues; ``None`` where it can.
        """
        path = self._paths[place]
        if not any(append.possible(each) for each in path):
            return next((read for read, at in placed if append.element in read.elements), None)
        for each in reversed(path[:-1]):
            for read, at in placed:
                due = not append.possible(each) or append.finish_ns < read.start_ns
                lacks = due and append.element not in read.elements
                if at == each and read.current and lacks:
                    return read
            if append.possible(each):
                return None
        return None

    def _restored(self, placed: Sequence[tuple[ListRead, int]]) -> Iterable[Row]:
        """A generation that takes up another one has all of it, and hides nothing that was
        acknowledged since.
        """
        for place in range(1, len(self.tree)):
            reset = self.tree.reset(place)
            if reset is None or not reset.restores:
                continue
            for append in self.appends.values():
                # In every generation in which it may have been acknowledged.
                span = range(append.first, append.last + 1) if append.acked else ()
                told = [self._against(append, at, place, placed) for at in span]
                if told and all(told):
                    yield from (row for row in told[:1] if row is not None)

    def _against(
        self,
        append: ListAppend,
        at: int,
        place: int,
        placed: Sequence[tuple[ListRead, int]],
    ) -> Row | None:
        """Return what the restored generation ``place`` breaks if ``append`` was of generation
        ``at``; ``None`` where nothing.
        """
        parent = self.tree.parents[place]
        if parent < at < place and at not in self._paths[place]:
            return _found(RESTORED_OVER_WRITES, place, append, None)
        for read, later in placed:
            if not read.current or append.element in read.elements:
                continue
            if place not in self._paths[later]:
                continue
            # What the restored generation has got since, and passed on: a list that has grown by it
            # has all that came before.
            since = [
                self.appends[e]
                for e in read.elements
                if e in self.appends
                and self.appends[e].first >= place
                and not (later != place and self.appends[e].possible(later))
            ]
            if at == parent and (later == place or since):
                return _found(RESTORED_IN_PART, place, append, read)
            stale = later == place and append.finish_ns < read.start_ns
            if at == place and (stale or any(append.finish_ns < e.start_ns for e in since)):
                return _found(RESTORED_OVER_WRITES, place, append, read)
        return None

    def cuts(self) -> list[Row]:
        """Return the rows of ``CUTS`` of this key, without key."""
        placed = self._placed()
        found = []
        for place in range(1, len(self.tree)):
            reads = [read for read, at in placed if at == place and read.current]
            parent = self.tree.parents[place]
            held = self.longest[parent].elements if parent in self.longest else ()
            for append in self.appends.values():
                had = append.element in held or (append.acked and append.first == append.last)
                had = had and append.first <= parent and append.first in self._paths[parent]
                if append.failed or not had:
                    continue
                if any(self._shows(read, append, place) for read in reads):
                    found.append(self._cut(append, place, True, placed))
                elif append.element in held or append.first == parent:
                    row = self._cut(append, place, False, placed)
                    if any(self._misses(read, append, place, row["known_ns"]) for read in reads):
                        found.append(row)
        return found

    def _shows(self, read: ListRead, append: ListAppend, place: int) -> bool:
        """Tell whether ``read`` shows that the generation ``place`` has ``append``: by its time, or
        by what else it shows, the read is of no generation before.
        """
        later = read.first >= place or any(
            e in self.appends and self.appends[e].first >= place for e in read.elements
        )
        return later and append.element in read.elements

    def _misses(self, read: ListRead, append: ListAppend, place: int, known_ns: int | None) -> bool:
        """Tell whether ``read`` shows that ``place`` lacks what the generation before had."""
        late = read.first >= place or (known_ns is not None and known_ns < read.start_ns)
        return late and append.element not in read.elements

    def _cut(
        self,
        append: ListAppend,
        place: int,
        kept: bool,
        placed: Sequence[tuple[ListRead, int]],
    ) -> Row:
        seen = [
            read.finish_ns
            for read, at in placed
            if at < place and read.current and append.element in read.elements
        ]
        known = [*seen, *([append.finish_ns] if append.acked else [])]
        known_ns = min(known, default=None)
        row: Row = {
            "place": place,
            "kept": kept,
            "element": append.element,
            "writer": append.txn,
            "invoke_ns": append.start_ns,
            "known_ns": known_ns,
        }
        if kept:
            return row
        # A branch that takes up what was cut off shows it rightly.
        beyond = [at for at in range(place, len(self.tree)) if place not in self._paths[at]]
        shown = [
            read
            for read, at in placed
            if at not in beyond and read.current and append.element in read.elements
        ]
        missed = [
            read
            for read, at in placed
            if at == place
            and read.current
            and known_ns is not None
            and known_ns < read.start_ns
            and self._misses(read, append, place, known_ns)
        ]
        if shown:
            last = max(shown, key=lambda read: (read.start_ns, read.txn))
            row |= {"shown_by": last.txn, "shown_ns": last.start_ns}
        if missed:
            first = min(missed, key=lambda read: (read.finish_ns, read.txn))
            row |= {"missed_by": first.txn, "missed_ns": first.finish_ns}
        return row

    def members(self, place: int) -> list[ListAppend]:
        """Return the appends that belong to the list of generation ``place``: those that a read of
        it shows, with all of their transactions' to this key; those of transactions that read it
        there; and those that certainly took effect in it.
        """
        shown: set[int] = set()
        own: set[int] = set()
        for read, at in zip(self.reads, self.places, strict=True):
            if at == place:
                shown.update(read.elements)
                own.add(read.txn)
        own |= {self.appends[e].txn for e in shown if e in self.appends}
        elsewhere = {
            read.txn for read, at in zip(self.reads, self.places, strict=True) if at != place
        }
        return [
            append
            for append in self.appends.values()
            if append.element in shown
            or append.txn in own
            or (
                append.first == append.last == place
                and not append.failed
                and append.txn not in elsewhere
            )
        ]


@attrs.frozen(kw_only=True)
class Generations:
    """The operations with a key for each generation, and the tables that the cutting gives."""

    ops: ListOps
    tables: dict[str, pa.Table]


def by_generation(ops: ListOps, tables: Tables, setting: Setting) -> Generations:
    """Cut the keys of partitions that were reset; ``ops`` itself where the store may lose nothing,
    or none was.
    """
    nothing = {
        "resets.cuts": CUTS.empty_table(),
        "resets.findings": RESET_FINDINGS.empty_table(),
        "resets.undecided": UNDECIDED.empty_table(),
    }
    trees = trees_of(setting.resets) if cuts_keys(setting) else {}
    partition = partitions_of(ops, tables)
    cut = [k for k in range(len(ops.keys)) if int(partition[k]) in trees]
    if not cut:
        return Generations(ops=ops, tables=nothing)
    past_ns = staleness_ns(tables, setting)
    made = _Made(ops)
    cuts, findings, undecided = list[Row](), list[Row](), list[Row]()
    for k in cut:
        tree = trees[int(partition[k])]
        one = _key(ops, k, tree, past_ns)
        where = {"partition": tree.partition, "key": int(ops.keys[k])}
        cuts += [where | row for row in one.cuts()]
        findings += [where | row for row in one.findings()]
        undecided += [where] if one.undecided else []
        made.add(k, one)
    return Generations(
        ops=made.ops(cut),
        tables={
            "resets.cuts": pa.Table.from_pylist(cuts, schema=CUTS),
            "resets.findings": pa.Table.from_pylist(findings, schema=RESET_FINDINGS),
            "resets.undecided": pa.Table.from_pylist(undecided, schema=UNDECIDED),
        },
    )


def _key(ops: ListOps, k: int, tree: GenerationTree, past_ns: Ints) -> KeyGenerations:
    txns = ops.txns
    reads: dict[int, list[int]] = {}
    for row in np.flatnonzero(ops.reads.k == k).tolist():
        reads.setdefault(int(ops.reads.txn[row]), []).append(row)
    found = []
    for txn, rows in reads.items():
        longest = max(rows, key=lambda row: int(ops.reads.length[row]))
        at, length = int(ops.reads.start[longest]), int(ops.reads.length[longest])
        start, finish = int(txns.start[txn]), int(txns.finish[txn])
        first, last = tree.span(start - int(past_ns[txn]), finish)
        found.append(
            ListRead(
                rows=tuple(rows),
                txn=txn,
                start_ns=start,
                finish_ns=finish,
                elements=tuple(ops.elements[at : at + length].tolist()),
                committed=bool(txns.committed[txn]),
                current=bool(txns.real_time[txn]) and int(txns.type[txn]) == OK,
                first=first,
                last=last,
            )
        )
    appends = []
    for row in np.flatnonzero(ops.appends.k == k).tolist():
        txn = int(ops.appends.txn[row])
        acked = int(txns.type[txn]) == OK
        start = int(txns.start[txn])
        finish = int(txns.finish[txn]) if acked else NEVER
        first, last = tree.span(start, finish)
        appends.append(
            ListAppend(
                row=row,
                txn=txn,
                element=int(ops.appends.element[row]),
                start_ns=start,
                finish_ns=finish,
                acked=acked,
                failed=int(txns.type[txn]) == FAIL,
                first=first,
                last=last,
            )
        )
    return KeyGenerations(tree, found, appends)


class _Made:
    """The rows of reads and appends by the keys that generations get."""

    def __init__(self, ops: ListOps) -> None:
        self._ops = ops
        self._keys = ops.keys.tolist()
        self._reads: list[tuple[int, int]] = []  # row and new k
        self._appends: list[tuple[int, int]] = []

    def add(self, k: int, one: KeyGenerations) -> None:
        """Take the generations of key ``k``; the first one keeps its place."""
        for place in range(len(one.tree)):
            rows = [
                row
                for read, at in zip(one.reads, one.places, strict=True)
                if at == place
                for row in read.rows
            ]
            members = one.members(place)
            to = k
            if place and (rows or members):
                to = len(self._keys)
                self._keys.append(surrogate(int(self._ops.keys[k]), place))
            self._reads += [(row, to) for row in rows]
            self._appends += [(append.row, to) for append in members]

    def ops(self, cut: Sequence[int]) -> ListOps:
        """Return the operations, those of the keys ``cut`` under their new ones."""
        ops = self._ops
        read, read_k = _renamed(self._reads, ops.reads.k, cut)
        append, append_k = _renamed(self._appends, ops.appends.k, cut)
        order = np.lexsort((ops.reads.pos[read], ops.reads.txn[read], read_k))
        read, read_k = read[order], read_k[order]
        # Lookups need a code for each pair, in the order that they define.
        found, order = append_codes_of(append_k, ops.appends.element[append])
        append, append_k = append[order], append_k[order]
        return attrs.evolve(
            ops,
            keys=np.asarray(self._keys, dtype=np.int64),
            appends=Appends(
                txn=ops.appends.txn[append],
                pos=ops.appends.pos[append],
                k=append_k,
                element=ops.appends.element[append],
            ),
            reads=Reads(
                txn=ops.reads.txn[read],
                pos=ops.reads.pos[read],
                k=read_k,
                start=ops.reads.start[read],
                length=ops.reads.length[read],
            ),
            append_codes=found,
        )


def _renamed(made: list[tuple[int, int]], k: Ints, cut: Sequence[int]) -> tuple[Ints, Ints]:
    """Return rows and keys: those of keys that were not ``cut`` as they are, then ``made``."""
    whole = np.flatnonzero(~np.isin(k, np.asarray(cut, dtype=np.int64)))
    rows = np.asarray(made, dtype=np.int64).reshape(-1, 2)
    return np.concatenate([whole, rows[:, 0]]), np.concatenate([k[whole], rows[:, 1]])


def partitions_of(ops: ListOps, tables: Tables) -> Ints:
    """Return the partition of each key, -1 where it is not known."""
    found = np.full(len(ops.keys), -1, dtype=np.int64)
    micro_ops = tables["micro_ops"]
    if "partition" not in micro_ops.column_names or not len(ops.keys):
        return found
    key = np.asarray(micro_ops.column("key").to_numpy(), dtype=np.int64)
    partition = np.asarray(micro_ops.column("partition").fill_null(-1).to_numpy(), dtype=np.int64)
    # Any operation on a key tells its partition: the hash does not change in a run.
    found[np.searchsorted(ops.keys, key)] = partition
    return found


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


def _found(anomaly: str, place: int, append: ListAppend, reader: ListRead | None) -> Row:
    return {
        "anomaly": anomaly,
        "place": place,
        "element": append.element,
        "writer": append.txn,
        "reader": -1 if reader is None else reader.txn,
    }
