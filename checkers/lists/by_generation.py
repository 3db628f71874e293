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

from collections.abc import Iterable, Sequence

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import FAIL, OK, Ints
from checkers.lists.generation_search import WORK_A_ROW, WORK_SPARE, Work
from checkers.lists.key_generations import Cut, KeyGenerations, ListAppend, ListRead, Row
from checkers.lists.list_ops import Appends, ListOps, Reads, append_codes_of
from checkers.lists.versions import NEVER
from harness.errors import MalformedHistory
from harness.protocols.checker import Tables
from harness.protocols.generations import GenerationTree, trees_of
from harness.protocols.setting import Setting

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
    spare = WORK_SPARE
    made, rows = _Made(ops), _RowsOfKeys.of(ops)
    cuts = list[tuple[int, int, Cut]]()
    findings, undecided = list[Row](), list[Row]()
    for k in cut:
        tree = trees[int(partition[k])]
        reads, appends = rows.reads(k), rows.appends(k)
        elements = int(ops.reads.length[reads].sum())
        # Each key has what its own rows allow, and what the ones before it left of the rest.
        work = Work(spare + WORK_A_ROW * (len(reads) + len(appends) + elements))
        one = _key(ops, reads, appends, tree, work)
        spare = max(0, min(spare, work.left))
        where = {"partition": tree.partition, "key": int(ops.keys[k])}
        cuts += [(tree.partition, int(ops.keys[k]), cut) for cut in one.cuts]
        findings += [where | row for row in one.findings]
        undecided += [where] if one.undecided else []
        made.add(k, one)
    return Generations(
        ops=made.ops(cut),
        tables={
            "resets.cuts": _cuts_table(cuts),
            "resets.findings": pa.Table.from_pylist(findings, schema=RESET_FINDINGS),
            "resets.undecided": pa.Table.from_pylist(undecided, schema=UNDECIDED),
        },
    )


def _cuts_table(cuts: Sequence[tuple[int, int, Cut]]) -> pa.Table:
    columns = {
        field.name: pa.array([getattr(cut, field.name) for *_, cut in cuts], field.type)
        for field in CUTS
        if field.name not in ("partition", "key")
    }
    columns["partition"] = pa.array([partition for partition, *_ in cuts], pa.int32())
    columns["key"] = pa.array([key for _, key, _ in cuts], pa.int64())
    return pa.table([columns[name] for name in CUTS.names], schema=CUTS)


@attrs.frozen(kw_only=True, eq=False)
class _RowsOfKeys:
    """The rows of reads and appends in the order of their keys, each key's ascending."""

    read_rows: Ints
    read_k: Ints
    append_rows: Ints
    append_k: Ints

    @classmethod
    def of(cls, ops: ListOps) -> _RowsOfKeys:
        reads, appends = (np.argsort(k, kind="stable") for k in (ops.reads.k, ops.appends.k))
        return cls(
            read_rows=reads,
            read_k=ops.reads.k[reads],
            append_rows=appends,
            append_k=ops.appends.k[appends],
        )

    def reads(self, k: int) -> list[int]:
        """Return the rows of the key's reads."""
        low, high = np.searchsorted(self.read_k, [k, k + 1])
        found: list[int] = self.read_rows[low:high].tolist()
        return found

    def appends(self, k: int) -> list[int]:
        """Return the rows of its appends."""
        low, high = np.searchsorted(self.append_k, [k, k + 1])
        found: list[int] = self.append_rows[low:high].tolist()
        return found


def _key(
    ops: ListOps,
    read_rows: Iterable[int],
    append_rows: Iterable[int],
    tree: GenerationTree,
    work: Work,
) -> KeyGenerations:
    txns = ops.txns
    reads: dict[int, list[int]] = {}
    for row in read_rows:
        reads.setdefault(int(ops.reads.txn[row]), []).append(row)
    found = []
    for txn, rows in reads.items():
        longest = max(rows, key=lambda row: int(ops.reads.length[row]))
        at, length = int(ops.reads.start[longest]), int(ops.reads.length[longest])
        start, finish = int(txns.start[txn]), int(txns.finish[txn])
        first, last = tree.span(int(txns.moment[txn]), finish)
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
    for row in append_rows:
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
    return KeyGenerations(tree, found, appends, work)


class _Made:
    """The rows of reads and appends by the keys that generations get."""

    def __init__(self, ops: ListOps) -> None:
        self._ops = ops
        self._keys = ops.keys.tolist()
        self._reads: list[tuple[int, int]] = []  # row and new k
        self._appends: list[tuple[int, int]] = []

    def add(self, k: int, one: KeyGenerations) -> None:
        """Take the generations of key ``k``; the first one keeps its place."""
        read: dict[int, list[int]] = {}
        for each, at in zip(one.reads, one.places, strict=True):
            read.setdefault(at, []).extend(each.rows)
        for place in sorted(read.keys() | one.members.keys()):
            to = k
            if place:
                to = len(self._keys)
                self._keys.append(surrogate(int(self._ops.keys[k]), place))
            self._reads += [(row, to) for row in read.get(place, ())]
            self._appends += [(append.row, to) for append in one.members.get(place, ())]

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
