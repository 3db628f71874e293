"""Accounts of partitions that were reset: what they hold afterwards they held at one moment before.

A reset takes a partition back to a moment of the generation that it goes on from: what moved before
it is kept, what moved after it is lost, in all accounts of the partition alike. So of each account
the moments are found at which it may have held what was read after the reset, less what certainly
moved since (``KEPT``), and those of all accounts of a partition must have one in common. What is
open at a moment, or of unknown outcome, may count or not: a moment is excluded for certain alone.

Where no copy was left an operator has a partition begin anew: its accounts hold nothing
(``EMPTIED``) until something is transferred to them in that generation, and what they hold then
comes of that alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import FAIL, OK, Bools, Ints, codes, ints
from checkers.engine.transactions import Transactions, transactions_of
from harness.protocols.checker import Exchange, Kernel, Tables
from harness.protocols.generations import GenerationTree, trees_of
from harness.protocols.setting import Setting

NEVER = np.iinfo(np.int64).max
OPEN_MAX = 12  # of more open transactions only the sum of all is compared
_STEPS = ("r", "w", "add")
_READ, _WRITE, _ADD = range(3)

# One row a stretch of moments, one without them where there is none; ``read`` saw the account first
# in the generation ``place``. Of the transactions that were open then ``kept`` must have moved, and
# ``lost`` must not.
KEPT = pa.schema(
    [
        ("partition", pa.int32()),
        ("place", pa.int32()),
        ("key", pa.int64()),
        ("read", pa.int64()),
        ("low", pa.int64()),
        ("high", pa.int64()),
        ("kept", pa.list_(pa.int64())),
        ("lost", pa.list_(pa.int64())),
    ]
)
# The generations that were judged: ``explained`` by one moment, or contradicted by these reads.
JUDGED = pa.schema(
    [
        ("partition", pa.int32()),
        ("place", pa.int32()),
        ("explained", pa.bool_()),
        ("keys", pa.list_(pa.int64())),
        ("reads", pa.list_(pa.int64())),
    ]
)

# One row a read that found nothing in an account, though that had been given a balance: since the
# generation ``place`` began empty, and nothing was certainly written to the account by then.
EMPTIED = pa.schema(
    [
        ("partition", pa.int32()),
        ("place", pa.int32()),
        ("key", pa.int64()),
        ("read", pa.int64()),
    ]
)


@attrs.frozen(kw_only=True, eq=False)
class _Moves:
    """What was added to one account, each with the generations in which it may have been."""

    txn: Ints
    amount: Ints
    start: Ints
    finish: Ints
    first: Ints
    last: Ints

    def where(self, mask: Bools) -> _Moves:
        return _Moves(**{name: col[mask] for name, col in attrs.asdict(self).items()})


@attrs.frozen(kw_only=True)
class _Seen:
    """A balance that was held at some moment from ``start`` to ``finish``."""

    balance: int
    start: int
    finish: int
    txn: int


def find_kept(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """Return ``bank.kept`` and ``bank.emptied`` of the accounts given; empty unless resets may cost
    writes.
    """
    rows: list[dict[str, Any]] = []
    nothing: list[dict[str, Any]] = []
    trees = trees_of(setting.resets) if setting.may_lose else {}
    table = tables["micro_ops"]
    if trees:
        here = pc.is_in(table["partition"], value_set=pa.array(sorted(trees), pa.int32()))
        table = table.filter(pc.fill_null(here, False))
        txns, key = transactions_of(tables, setting), ints(table, "key")
        for each in np.unique(key).tolist():
            own = table.filter(pa.array(key == each))
            tree = trees[own["partition"][0].as_py()]
            told = {"partition": tree.partition, "key": each}
            emptied = [told | row for row in _emptied(own, txns, tree)]
            nothing += emptied
            blank = np.asarray([row["read"] for row in emptied], dtype=np.int64)
            rows += [told | row for row in _of_key(own, txns, tree, blank)]
    return {
        "bank.kept": pa.Table.from_pylist(rows, schema=KEPT),
        "bank.emptied": pa.Table.from_pylist(nothing, schema=EMPTIED),
    }


def _emptied(own: pa.Table, txns: Transactions, tree: GenerationTree) -> Iterator[dict[str, Any]]:
    """Yield the reads that may have found nothing, each with the generation that began empty."""
    if not any(reset.begins_anew for reset in tree.resets):
        return
    f, txn = codes(own, "f", _STEPS), ints(own, "txn")
    held = np.asarray(own["value"].is_valid(), dtype=np.bool_)
    given = txn[(f == _WRITE) & (txns.type[txn] == OK)]
    spans = _spans(txns.start[given], txns.finish[given], tree)
    for read in np.unique(txn[(f == _READ) & (txns.type[txn] == OK) & ~held]).tolist():
        low, high = tree.span(int(txns.moment[read]), int(txns.finish[read]))
        for place in range(high, low - 1, -1):
            # Of a generation before it what was written may be lost, by the reset behind it.
            certain = (spans == place).all(axis=1) & (txns.finish[given] < txns.moment[read])
            anew = tree.begun_anew(place)
            if anew is not None and not certain.any():
                yield {"place": anew, "read": read}
                break


def _of_key(
    own: pa.Table, txns: Transactions, tree: GenerationTree, blank: Ints
) -> Iterator[dict[str, Any]]:
    """Yield the rows of ``KEPT``; the reads ``blank`` found nothing, as they may."""
    f, txn, value = codes(own, "f", _STEPS), ints(own, "txn"), ints(own, "value")
    held = np.asarray(own["value"].is_valid(), dtype=np.bool_)
    value = np.where(held, value, 0)
    held |= np.isin(txn, blank)
    type_ = txns.type[txn]
    moved = txn[f == _ADD]
    blind = (f == _WRITE) & (type_ != FAIL) & ~np.isin(txn, txn[f == _READ])
    if blind.sum() != 1 or type_[blind][0] != OK:
        return  # set up twice, or perhaps never: no balance is known to begin with
    made = (f == _ADD) & (type_ != FAIL)
    acked = type_[made] == OK
    spans = _spans(txns.start[txn[made]], np.where(acked, txns.finish[txn[made]], NEVER), tree)
    moves = _Moves(
        txn=txn[made],
        amount=value[made],
        start=txns.start[txn[made]],
        finish=np.where(acked, txns.finish[txn[made]], NEVER),
        first=spans[:, 0],
        last=spans[:, 1],
    )
    # A transfer reads what was there before it.
    shows = (f == _READ) & (type_ == OK) & txns.real_time[txn] & held & ~np.isin(txn, moved)
    seen = [
        _Seen(
            balance=int(value[row]),
            start=int(txns.start[txn[row]]),
            finish=int(txns.finish[txn[row]]),
            txn=int(txn[row]),
        )
        for row in np.flatnonzero(shows)[np.argsort(txns.start[txn[shows]], kind="stable")]
    ]
    since = int(txn[blind][0])
    start, finish = int(txns.start[since]), int(txns.finish[since])
    first = _Seen(balance=int(value[blind][0]), start=start, finish=finish, txn=since)
    anchors = {0: first} if tree.span(start, finish) == (0, 0) else {}
    for each in seen:
        low, high = tree.span(each.start, each.finish)
        if low == high:
            anchors.setdefault(low, each)
    for place in range(1, len(tree)):
        parent = tree.parents[place]
        if place not in anchors:
            continue
        if tree.resets[place - 1].begins_anew:
            yield _since_empty(moves, anchors[place], place)
        elif parent in anchors:
            yield from _kept(moves, anchors[parent], anchors[place], tree, place)


def _spans(start: Ints, finish: Ints, tree: GenerationTree) -> Ints:
    found = [tree.span(int(s), int(f)) for s, f in zip(start, finish, strict=True)]
    return np.asarray(found, dtype=np.int64).reshape(-1, 2)


def _kept(
    moves: _Moves, before: _Seen, after: _Seen, tree: GenerationTree, place: int
) -> Iterator[dict[str, Any]]:
    """Yield the stretches of moments at which the account may have held what ``after`` tells."""
    parent = tree.parents[place]
    rest, open_ = _moved_since(moves, after, place)
    # What may have been before the reset or after it counts in either.
    old = moves.where((moves.first <= parent) & (parent <= moves.last))
    told = {"place": place, "read": after.txn}
    points = np.unique(np.concatenate([[-NEVER], old.start, old.finish[old.finish < NEVER] + 1]))
    ends = [*(points[1:] - 1).tolist(), NEVER]
    found = False
    for low, high in zip(points.tolist(), ends, strict=True):
        sure, some = _held(old, before, low, place)
        ways = _ways([*some, *open_], rest - before.balance - sure)
        if ways is not None:
            found = True
            yield told | {"low": low, "high": high} | ways
    if not found:
        yield told | {"low": None, "high": None}


def _since_empty(moves: _Moves, after: _Seen, place: int) -> dict[str, Any]:
    """Return the row of an account that held nothing when the generation began: any moment before
    explains it, or none does.
    """
    rest, open_ = _moved_since(moves, after, place)
    told = {"place": place, "read": after.txn}
    explained = _ways(open_, rest) is not None
    return told | ({"low": -NEVER, "high": NEVER} if explained else {"low": None, "high": None})


def _moved_since(moves: _Moves, after: _Seen, place: int) -> tuple[int, list[_Open]]:
    """Return what ``after`` tells, less what was certainly moved in the generation before it; and
    what may have been moved by then.
    """
    since = moves.where((moves.first <= place) & (place <= moves.last))
    certain = (since.first == since.last) & (since.finish < after.start)
    open_ = _amounts(since, (since.start <= after.finish) & ~certain)
    return after.balance - int(since.amount[certain].sum()), open_


_Open = tuple[int, int, bool]
"""A transaction, an amount that it may have moved, and whether it did so before the reset alone."""


def _amounts(moves: _Moves, some: Bools) -> list[_Open]:
    rows = zip(moves.txn[some].tolist(), moves.amount[some].tolist(), strict=True)
    return [(txn, amount, False) for txn, amount in rows]


def _ways(some: list[_Open], rest: int) -> dict[str, Any] | None:
    """Return which of ``some`` certainly moved and which did not, where together they make
    ``rest``; ``None`` where they can't.
    """
    amounts = np.asarray([amount for _, amount, _ in some], dtype=np.int64)
    if len(some) > OPEN_MAX:
        within = np.minimum(amounts, 0).sum() <= rest <= np.maximum(amounts, 0).sum()
        return {"kept": [], "lost": []} if within else None
    taken = (np.arange(1 << len(some))[:, None] >> np.arange(len(some))) & 1
    fit = taken[taken @ amounts == rest]
    if not len(fit):
        return None
    tellable = [n for n, (_, _, before) in enumerate(some) if before]
    return {
        "kept": [some[n][0] for n in tellable if fit[:, n].all()],
        "lost": [some[n][0] for n in tellable if not fit[:, n].any()],
    }


def _held(old: _Moves, anchor: _Seen, moment: int, place: int) -> tuple[int, list[_Open]]:
    """Return what certainly moved between the anchor and ``moment``, and what may have."""
    sure = old.last < place  # of a generation before for certain
    if moment > anchor.finish:
        possible = (old.start <= moment) & (old.finish >= anchor.start)
        certain = sure & (old.start > anchor.finish) & (old.finish < moment)
        # Of what was open at the anchor, the anchor may hold it already.
        told = sure & (old.start > anchor.finish)
        rows = np.flatnonzero(possible & ~certain).tolist()
        some = [(int(old.txn[n]), int(old.amount[n]), bool(told[n])) for n in rows]
        return int(old.amount[certain].sum()), some
    if moment < anchor.start:
        possible = (old.start <= anchor.finish) & (old.finish >= moment)
        certain = sure & (old.start > moment) & (old.finish < anchor.start)
        some = [(txn, -amount, False) for txn, amount, _ in _amounts(old, possible & ~certain)]
        return -int(old.amount[certain].sum()), some
    both = _amounts(old, (old.start <= anchor.finish) & (old.finish >= anchor.start))
    return 0, [*both, *((txn, -amount, False) for txn, amount, _ in both)]


def judge_kept(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """Return ``bank.generations``."""
    rows = tables["bank.kept"].to_pylist()
    where = sorted({(row["partition"], row["place"]) for row in rows})
    found = []
    for partition, place in where:
        own = [row for row in rows if (row["partition"], row["place"]) == (partition, place)]
        keys = sorted({row["key"] for row in own})
        told = {"partition": partition, "place": place, "keys": keys}
        reads = sorted({row["read"] for row in own})
        found.append(told | {"explained": _in_common(own, keys), "reads": reads})
    return {"bank.generations": pa.Table.from_pylist(found, schema=JUDGED)}


def _in_common(rows: Iterable[dict[str, Any]], keys: Iterable[int]) -> bool:
    """Tell whether all accounts have a moment in common."""
    by_key: dict[int, list[_Range]] = {key: [] for key in keys}
    for row in rows:
        if row["low"] is not None:
            kept, lost = frozenset(row["kept"] or ()), frozenset(row["lost"] or ())
            by_key[row["key"]].append(
                _Range(low=row["low"], high=row["high"], kept=kept, lost=lost)
            )
    common = [_Range(low=-NEVER, high=NEVER, kept=frozenset(), lost=frozenset())]
    for stretches in by_key.values():
        pairs = (one.meet(other) for one in common for other in stretches)
        common = [each for each in pairs if each is not None]
    return bool(common)


@attrs.frozen(kw_only=True)
class _Range:
    low: int
    high: int
    kept: frozenset[int]
    lost: frozenset[int]

    def meet(self, other: _Range) -> _Range | None:
        """Return what both allow: a transaction is kept in all accounts of a partition, or lost."""
        low, high = max(self.low, other.low), min(self.high, other.high)
        kept, lost = self.kept | other.kept, self.lost | other.lost
        if low > high or kept & lost:
            return None
        return _Range(low=low, high=high, kept=kept, lost=lost)


KEPT_BY_KEY = Kernel(
    name="bank.kept",
    exchange=Exchange.KEY,
    run=find_kept,
    numbers={"bank.kept": ("read", "kept", "lost"), "bank.emptied": ("read",)},
)
GENERATIONS = Kernel(name="bank.generations", exchange=Exchange.ONE_PLACE, run=judge_kept)
