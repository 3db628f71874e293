"""Small random histories: what a strict store could have given, and what bugs make of it."""

from __future__ import annotations

import math
import random
from typing import Any

import attrs
from checker_histories import Txn

Lists = dict[int, list[int]]
BUGS = (
    "none",
    "none",
    "stale",
    "lost",
    "skew",
    "dirty",
    "reorder",
    "repeat",
    "garbage",
    "late",
    "partial",
    "crash",
    "chaos",
)


def generate(seed: int, size: int = 7, keys: int = 3) -> list[Txn]:
    """A history of ``size`` transactions by three or so clients, damaged as ``seed`` says."""
    draw = random.Random(seed)
    bug = BUGS[seed % len(BUGS)]
    intervals = _intervals(draw, size)
    points = sorted(
        (draw.uniform(start, finish), i) for i, (_, start, finish) in enumerate(intervals)
    )
    store: Lists = {k: [] for k in range(keys)}
    snapshots = [{k: list(v) for k, v in store.items()}]
    made: dict[int, Txn] = {}
    fresh = iter(range(1, 1000))
    for _, i in points:
        process, start, finish = intervals[i]
        type_ = draw.choices(["ok", "fail", "info"], [8, 1, 2])[0]
        applies = type_ == "ok" or (type_ == "info" and draw.random() < 0.5)
        view = store
        if bug in ("stale", "skew", "late") and draw.random() < 0.5:
            view = draw.choice(snapshots[-3:])
        view = {k: list(v) for k, v in view.items()}
        ops = _steps(draw, view, fresh, keys)
        if applies or (bug == "dirty" and draw.random() < 0.6):
            _apply(draw, bug, store, ops)
        snapshots.append({k: list(v) for k, v in store.items()})
        if type_ == "info" and draw.random() < 0.5:
            ops = [(f, k, None if f == "r" else v) for f, k, v in ops]
        ops = _damage(draw, bug, ops, store)
        made[i] = Txn(type_, ops, process=process, start=start, finish=finish)
    return _as_processes_live([made[i] for i in range(size)])


def _as_processes_live(txns: list[Txn]) -> list[Txn]:
    """A process whose transaction is in doubt, or not over yet, ends: another takes its place."""
    place: dict[int, int] = {}
    over: dict[int, float] = {}
    lived = []
    for txn in txns:
        assert txn.process is not None
        assert txn.start is not None
        assert txn.finish is not None
        process = place.setdefault(txn.process, txn.process)
        if over.get(process, -1) > txn.start:
            process = place[txn.process] = process + 10
        over[process] = math.inf if txn.type == "info" else txn.finish
        lived.append(attrs.evolve(txn, process=process))
    return lived


def _intervals(draw: random.Random, size: int) -> list[tuple[int, int, int]]:
    """(process, start, finish) in the order of start; an interval may touch the next."""
    clients = draw.choice([1, 2, 3, 5])
    free = dict.fromkeys(range(clients), 0)
    found = []
    for _ in range(size):
        process = draw.randrange(clients)
        start = free[process] + draw.randrange(4)
        finish = start + 1 + draw.randrange(12)
        free[process] = finish + draw.randrange(2)
        found.append((process, start, finish))
    return sorted(found, key=lambda x: (x[1], x[0]))


def _steps(draw: random.Random, view: Lists, fresh: Any, keys: int) -> list[tuple[str, int, Any]]:
    ops: list[tuple[str, int, Any]] = []
    for _ in range(draw.randint(1, 4)):
        key = draw.randrange(keys)
        if draw.random() < 0.5:
            ops.append(("r", key, tuple(view[key])))
        else:
            element = next(fresh)
            view[key].append(element)
            ops.append(("append", key, element))
    return ops


def _apply(draw: random.Random, bug: str, store: Lists, ops: list[tuple[str, int, Any]]) -> None:
    for f, key, value in ops:
        if f == "append" and not (bug == "lost" and draw.random() < 0.4):
            at = len(store[key])
            if bug in ("skew", "reorder") and draw.random() < 0.3:
                at = max(at - 1, 0)
            store[key].insert(at, value)


def _damage(
    draw: random.Random, bug: str, ops: list[tuple[str, int, Any]], store: Lists
) -> list[tuple[str, int, Any]]:
    """Reads as a bug would have answered them."""
    damaged = []
    for f, key, value in ops:
        seen = list(value) if f == "r" and value is not None else None
        if seen and draw.random() < 0.4:
            if bug == "repeat":
                seen.append(seen[0])
            elif bug == "garbage":
                seen.insert(draw.randrange(len(seen) + 1), draw.randint(2000, 2005))
            elif bug == "partial":
                seen.pop()
            elif bug == "chaos":
                draw.shuffle(seen)
        if seen is not None and bug == "chaos" and draw.random() < 0.2:
            seen = list(store[key])
        if seen is not None and bug == "late" and draw.random() < 0.3:
            later = [v for g, k, v in ops if g == "append" and k == key]
            seen += [e for e in later if e not in seen]
        damaged.append((f, key, value if seen is None else tuple(seen)))
    return damaged
