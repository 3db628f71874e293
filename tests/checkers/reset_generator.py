"""Random small histories with resets: executions of a store, half of them with a defect in what a
client saw.
"""

from __future__ import annotations

import random

import attrs
from checker_histories import Txn
from reset_histories import ResetEvent, ResetHistory

SPAN = 400  # milliseconds
Entry = tuple[int, list[tuple[int, int]]]  # a transaction's number, and what it appended


def generated(seed: int) -> ResetHistory:
    """The history of ``seed``."""
    stream = random.Random(f"resets {seed}")
    resets = _resets(stream)
    moments = sorted(stream.sample(range(5, SPAN, 2), stream.randint(4, 8)))
    acts = sorted([*((at, None) for at in moments), *((at, reset) for at, reset in resets)],
                  key=lambda act: (act[0], act[1] is not None))  # fmt: skip
    logs: dict[int, list[Entry]] = {0: [], 1: []}
    ended: dict[int, dict[int, list[Entry]]] = {0: {}, 1: {}}
    shown: set[tuple[int, int]] = set()
    now = {0: 0, 1: 0}
    txns, element = [], 0
    for at, reset in acts:
        if reset is not None:
            p = reset.partition
            ended[p][now[p]] = list(logs[p])
            if reset.restores:
                logs[p] = list(ended[p][reset.previous])
            else:
                # Seldom at the end: most resets are to cost something.
                keep = stream.randint(max(0, len(logs[p]) - 2), len(logs[p]))
                cut = {number for number, _ in logs[p][keep:]}
                logs[p] = logs[p][:keep]
                if stream.random() < 0.6:
                    logs[1 - p] = _without(logs[1 - p], cut, shown)
            now[p] = reset.generation
            continue
        ops = []
        own: dict[int, list[tuple[int, int]]] = {}
        for _ in range(stream.choice((1, 1, 2))):
            key = stream.choice((1, 1, 1, 3, 2, 2))
            # One key of a partition: what a transaction's operations on two of them imply together
            # about its generation is not asked.
            if any(k % 2 == key % 2 for _, k, _ in ops):
                continue
            if stream.random() < 0.55:
                element += 1
                ops.append(("append", key, element))
                own.setdefault(key % 2, []).append((key, element))
            else:
                held = tuple(e for _, entry in logs[key % 2] for k, e in entry if k == key)
                shown |= {(key, e) for e in held}
                ops.append(("r", key, held))
        for p, entry in own.items():
            logs[p].append((len(txns), entry))
        kind = "info" if stream.random() < 0.1 else "ok"
        start, finish = at - stream.randint(1, 25), at + stream.randint(1, 25)
        if kind == "info":
            ops = [(f, k, None if f == "r" else v) for f, k, v in ops]
        txns.append(Txn(kind, ops, process=len(txns), start=max(0, start), finish=finish))
    history = ResetHistory(txns=tuple(txns), resets=tuple(reset for _, reset in resets))
    return _defect(history, stream) if seed % 2 else history


def _without(log: list[Entry], cut: set[int], shown: set[tuple[int, int]]) -> list[Entry]:
    """The log without what its partition gives up with the outcomes of the transactions ``cut``."""
    kept = [*log]
    for place, (number, entry) in reversed([*enumerate(log)]):
        keys = {key for key, _ in entry}
        followed = any(k in keys for _, later in kept[place + 1 :] for k, _ in later)
        if number in cut and not followed and not shown & set(entry):
            del kept[place]
    return kept


def _resets(stream: random.Random) -> list[tuple[int, ResetEvent]]:
    found = []
    for number in range(1, stream.choice((1, 1, 2, 2, 3)) + 1):
        at = 100 * number + stream.randint(-30, 30)
        off = stream.randint(1, 30)
        once = not any(reset.restores for _, reset in found)
        restores = number > 1 and once and stream.random() < 0.3
        reset = ResetEvent(
            partition=1,
            generation=number,
            since=at - off,
            until=at + off,
            previous=number - 2 if restores else number - 1,
            restores=restores,
        )
        found.append((at, reset))
    return found


def _defect(history: ResetHistory, stream: random.Random) -> ResetHistory:
    """Change what one read saw, or forget a reset."""
    reads = [
        (i, j)
        for i, txn in enumerate(history.txns)
        for j, (f, _, value) in enumerate(txn.ops)
        if f == "r" and value is not None
    ]
    if stream.random() < 0.15 and history.resets:
        return attrs.evolve(history, resets=history.resets[:-1])
    if not reads:
        return history
    i, j = stream.choice(reads)
    txn = history.txns[i]
    f, key, value = txn.ops[j]
    written = [v for each in history.txns for g, k, v in each.ops if g == "append" and k == key]
    how = stream.choice(("drop", "cut", "add", "swap"))
    seen = list(value)
    if how == "drop" and seen:
        seen.pop(stream.randrange(len(seen)))
    elif how == "cut" and seen:
        seen = seen[: stream.randrange(len(seen))]
    elif how == "add" and (more := [v for v in written if v not in seen]):
        seen.append(stream.choice(more))
    elif how == "swap" and len(seen) > 1:
        seen[-1], seen[-2] = seen[-2], seen[-1]
    ops = [*txn.ops]
    ops[j] = (f, key, tuple(seen))
    changed = attrs.evolve(txn, ops=ops)
    txns = tuple(changed if n == i else each for n, each in enumerate(history.txns))
    return attrs.evolve(history, txns=txns)
