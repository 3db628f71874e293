"""Small histories of transactions on registers, and an independent judge that tries every order.

It shares no code with the checkers: a history is serializable where some order of its transactions
gives what they read, strictly so where that order keeps to time; it has snapshots where some order
of begins and commits does. Only for histories of half a dozen transactions.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from checker_histories import Txn, times

Seen = tuple[tuple[int, int | None], ...]
State = dict[int, int | None]


def w(key: int, value: int) -> tuple[str, int, int | None]:
    return ("w", key, value)


def rd(key: int, value: int | None = None) -> tuple[str, int, int | None]:
    return ("r", key, value)


def serializable(txns: list[Txn], *, order: str = "") -> bool:
    """Whether some order explains the history; ``order``: "process" or "realtime" that it keeps.

    What failed took no effect; of unknown outcome any part may have.
    """
    span = times(txns)
    before = {
        (a, b)
        for a, one in enumerate(span)
        for b, other in enumerate(span)
        if txns[a].type == "ok"
        and one[2] < other[1]
        and (order == "realtime" or (order == "process" and one[0] == other[0]))
    }
    able = [t for t, txn in enumerate(txns) if txn.type != "fail"]
    needed = frozenset(t for t in able if txns[t].type == "ok")
    tried: set[tuple[frozenset[int], Seen]] = set()

    def onward(done: frozenset[int], state: State) -> bool:
        if needed <= done:
            return True
        mark = (done, tuple(sorted(state.items())))
        if mark in tried:
            return False
        tried.add(mark)
        for t in able:
            if t in done or any(a not in done for a in needed if (a, t) in before):
                continue
            after = applied(txns[t], state, state)
            if after is not None and onward(done | {t}, after):
                return True
        return False

    return onward(frozenset(), {})


def has_snapshots(txns: list[Txn]) -> bool:
    """Whether some order of begins and commits explains the history, in which each transaction
    reads what had been committed as it began, and of two that write one key one began behind the
    other's commit.
    """
    able = [t for t, txn in enumerate(txns) if txn.type != "fail"]
    needed = frozenset(t for t in able if txns[t].type == "ok")
    writes = {t: {k for f, k, _ in txns[t].ops if f == "w"} for t in able}
    tried: set[tuple[frozenset[int], frozenset[tuple[int, Seen]], Seen]] = set()

    def onward(done: frozenset[int], open_: dict[int, State], state: State) -> bool:
        if needed <= done:
            return True
        opened = frozenset((t, tuple(sorted(seen.items()))) for t, seen in open_.items())
        mark = (done, opened, tuple(sorted(state.items())))
        if mark in tried:
            return False
        tried.add(mark)
        for t in able:
            if t in done:
                continue
            if t not in open_:
                if applied(txns[t], state, state) is not None and onward(
                    done, {**open_, t: state}, state
                ):
                    return True
            # The first to commit wins: what it wrote had not changed since it began.
            elif all(state.get(k) == open_[t].get(k) for k in writes[t]):
                after = applied(txns[t], open_[t], state)
                left = {other: seen for other, seen in open_.items() if other != t}
                if after is not None and onward(done | {t}, left, after):
                    return True
        return False

    return onward(frozenset(), {}, {})


def applied(txn: Txn, seen: State, state: State) -> State | None:
    """The ``state`` behind ``txn``, which reads from ``seen``; none where it read another value."""
    own: State = {}
    for f, key, value in txn.ops:
        if f == "w":
            own[key] = value
        # Of an unknown outcome nothing may be known of what was read.
        elif (value is not None or txn.type == "ok") and own.get(key, seen.get(key)) != value:
            return None
    return {**state, **own}


def generate(seed: int) -> list[Txn]:
    """A history of three to seven transactions by a store that is correct, reads snapshots, reads
    stale states, or reads anything.
    """
    draw = random.Random(seed)
    count, keys = draw.randint(3, 7), draw.randint(1, 3)
    store = draw.choice(["serial", "serial", "snapshot", "stale", "torn", "any"])
    values = iter(range(1, 100))
    states: list[State] = [{}]
    txns = []
    for place in range(count):
        begin = (
            len(states) - 1
            if store == "serial"
            else draw.randrange(max(0, len(states) - 3), len(states))
        )
        ops, state = list(_drawn(draw, keys, states, begin, store, values)), dict(states[-1])
        type_ = draw.choices(["ok", "info", "fail"], [12, 2, 1])[0]
        took = type_ == "ok" or (type_ == "info" and draw.random() < 0.5) or draw.random() < 0.02
        if took:
            state |= {k: v for f, k, v in ops if f == "w"}
            states.append(state)
        if type_ != "ok":
            ops = [
                (f, k, None) if f == "r" and draw.random() < 0.7 else (f, k, v) for f, k, v in ops
            ]
        at = place * 10
        txns.append(
            Txn(
                type_,
                ops,
                process=draw.randrange(3) * 10 + place if draw.random() < 0.3 else None,
                start=at - draw.choice([0, 0, 5, 15, 30]),
                finish=at + draw.choice([1, 1, 6, 16, 31]),
            )
        )
    return txns


def _drawn(
    draw: random.Random,
    keys: int,
    states: list[State],
    begin: int,
    store: str,
    values: Iterator[int],
) -> Iterator[tuple[str, int, int | None]]:
    own: State = {}
    for _ in range(draw.randint(1, 4)):
        key = draw.randrange(keys)
        if draw.random() < 0.5:
            own[key] = next(values)
            yield w(key, own[key] or 0)
            continue
        at = begin if store in ("serial", "snapshot", "stale") else draw.randrange(len(states))
        found = states[at].get(key)
        if store == "any" and draw.random() < 0.1:
            found = draw.randrange(1, 30)
        yield rd(key, own.get(key, found))
