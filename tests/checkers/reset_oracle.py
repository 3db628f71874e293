"""A brute-force oracle of what resets may cost: it looks for an execution that gives the history.

The store that it executes is the definition: each partition has one log; a transaction takes effect
at one moment between its invocation and its completion, and its reads return what the logs hold; a
reset takes effect at one moment of its interval and cuts the log to a prefix that holds all that a
survivor had applied. What it cuts of acknowledged transactions must have been answered before (or
within the second that an answer may take). Of a transaction that it cuts, another partition may
give up its part in the same moment, unless a read has shown that part, or another transaction has
followed it on one of its keys; and only where the last read of a key shows that it was cut, since
a loss that no read shows excuses none. A reset that restores gives the log back that its
generation ended with, unless something was acknowledged since. Nothing of the checkers is used.
"""

from __future__ import annotations

from collections.abc import Iterator

import attrs
from reset_histories import MS, ResetEvent, ResetHistory, Sample

ANSWER_NS = 1_000_000_000
NEVER = 2**60

Entry = tuple[int, tuple[tuple[int, int], ...]]  # transaction, and what it appended here
Log = tuple[Entry, ...]


@attrs.frozen
class State:
    """Logs, the ended generations of each partition, what each survivor is known to hold."""

    logs: tuple[Log, ...]
    ended: tuple[tuple[tuple[int, Log], ...], ...]
    now: tuple[int, ...]
    applied: frozenset[tuple[int, int, str, int]]
    given: frozenset[int] = frozenset()


def permitted(history: ResetHistory) -> bool:
    """Tell whether some execution of the store gives ``history``."""
    txns = history.timed
    shown = {
        (key % 2, key, element)
        for txn in txns
        for f, key, value in txn.ops
        if f == "r" and txn.type == "ok"
        for element in value or ()
        if ("append", key, element) not in txn.ops
    }
    txns = [txn for txn in txns if txn.type != "fail"]
    lost = _lost(txns)
    items: list[tuple[int, int, object]] = []
    for txn in txns:
        items.append((txn.start, txn.finish if txn.type == "ok" else NEVER, txn))
    items += [(reset.since * MS, reset.until * MS, reset) for reset in history.resets]
    items += [(s.asked * MS, s.answered * MS, s) for s in history.samples]
    start = State(logs=((), ()), ended=((), ()), now=(0, 0), applied=frozenset())
    return _search(tuple(items), frozenset(range(len(items))), start, set(), shown, lost)


def _lost(txns) -> set[tuple[int, int]]:
    """The partitions in which the last read of some key misses what an acknowledged transaction
    wrote, with its number.
    """
    found = set()
    for number, txn in enumerate(txns):
        for f, key, value in txn.ops:
            reads = [
                (other.start, i, own)
                for i, other in enumerate(txns)
                for g, k, own in other.ops
                if g == "r" and k == key and other.type == "ok"
            ]
            late = [own for start, _, own in sorted(reads)[-1:] if start > txn.finish]
            if f == "append" and txn.type == "ok" and late and value not in late[0]:
                found.add((key % 2, number))
    return found


def _search(items, left, state, seen, shown, lost) -> bool:
    if all(items[i][1] == NEVER for i in left):
        return True  # of unknown fate: they need not have happened
    if (left, state) in seen:
        return False
    seen.add((left, state))
    due = min(items[i][1] for i in left)
    for i in sorted(left):
        if items[i][0] > due:
            continue
        for after in _steps(items, i, state, shown, lost):
            if _search(items, left - {i}, after, seen, shown, lost):
                return True
    # A transaction of unknown fate that never happens is one that nothing waits for.
    return False


def _steps(items, i, state, shown, lost) -> Iterator[State]:
    what = items[i][2]
    if isinstance(what, ResetEvent):
        for number, after in _reset(items, what, state):
            may = {n for n in number if (what.partition, n) in lost}
            yield from _given_up(what.partition, may, after, shown)
    elif isinstance(what, Sample):
        yield from _sample(what, state)
    else:
        after = _transaction(i, what, state)
        if after is not None:
            yield after


def _contents(log: Log, key: int) -> tuple[int, ...]:
    return tuple(e for _, entry in log for k, e in entry if k == key)


def _transaction(number, txn, state) -> State | None:
    own: dict[int, list[tuple[int, int]]] = {}
    for f, key, value in txn.ops:
        mine = tuple(e for k, e in own.get(key % 2, ()) if k == key)
        if f == "append":
            own.setdefault(key % 2, []).append((key, value))
        elif value is not None and tuple(value) != _contents(state.logs[key % 2], key) + mine:
            return None
    logs = tuple(
        (*log, (number, tuple(own[p]))) if p in own else log for p, log in enumerate(state.logs)
    )
    return attrs.evolve(state, logs=logs)


def _sample(sample, state) -> Iterator[State]:
    if sample.generation != state.now[sample.partition]:
        return
    length = len(state.logs[sample.partition])
    if sample.acting and sample.index == length:
        yield state
    if not sample.acting and sample.index <= length:
        mark = (sample.partition, sample.generation, sample.node, sample.index)
        yield attrs.evolve(state, applied=state.applied | {mark})


def _given_up(partition, gone, state, shown) -> Iterator[State]:
    """Every way in which other partitions give up their parts of the transactions ``gone``."""
    yield state
    for at, log in enumerate(state.logs):
        for place, (number, own) in enumerate(log):
            if at == partition or number not in gone:
                continue
            keys = {key for key, _ in own}
            followed = any(k in keys for _, entry in log[place + 1 :] for k, _ in entry)
            if followed or any((at, key, element) in shown for key, element in own):
                continue
            logs = [*state.logs]
            logs[at] = log[:place] + log[place + 1 :]
            given = state.given | {number}
            after = attrs.evolve(state, logs=tuple(logs), given=given)
            yield from _given_up(partition, gone - {number}, after, shown)


def _reset(items, reset, state) -> Iterator[tuple[frozenset[int], State]]:
    p = reset.partition
    previous = reset.generation - 1 if reset.previous is None else reset.previous
    log = state.logs[p]
    ended = dict(state.ended[p]) | {state.now[p]: log}
    whole = ended.get(previous)
    if whole is None:
        return
    held = max(
        (i for at, g, node, i in state.applied
         if at == p and g == previous and node in (reset.survivors or ())), default=0
    )  # fmt: skip
    if reset.base is not None and held > reset.base and not reset.restores:
        return
    lengths = [len(whole)] if reset.restores else range(held, len(whole) + 1)
    for length in lengths:
        kept = whole[:length]
        gone = [entry for entry in {*log, *whole} if entry not in kept]
        if reset.restores:
            if any(items[number][1] != NEVER for number, _ in gone):
                continue
            if any(entry[0] in state.given and entry not in log for entry in kept):
                continue
        elif previous != state.now[p]:
            continue
        late = reset.until * MS + ANSWER_NS
        if any(items[n][1] != NEVER and items[n][1] > late for n, _ in gone):
            continue
        yield (
            frozenset(n for n, _ in gone if not reset.restores),
            attrs.evolve(
                state,
                logs=tuple(kept if at == p else each for at, each in enumerate(state.logs)),
                ended=tuple(
                    tuple(sorted(ended.items())) if at == p else each
                    for at, each in enumerate(state.ended)
                ),
                now=tuple(reset.generation if at == p else g for at, g in enumerate(state.now)),
            ),
        )
