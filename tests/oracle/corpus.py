"""Two hundred histories of 5 to 60 transactions: good, broken on purpose, and mutated.

The same count and seed give the same histories on every machine and under every hash seed, and a
smaller corpus is a prefix of a larger one of the same seed.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator

import attrs
import gallery
import pyarrow as pa
import store
from oracle import Txn, Value
from store import Level

from harness.clock import substream
from harness.history.schema import MICRO_OPS, TRANSACTIONS

SEED = 5
GALLERY_AGAIN = 2
"""How often every exhibit comes, each time in other surroundings."""

LEVELS = {
    "strict": Level(),
    "stale-session": Level(lag=6, sessions=True),
    "stale": Level(lag=6),
    "snapshot": Level(reads="snapshot", conflicts=True),
    "snapshot-behind": Level(reads="snapshot", conflicts=True, lag=6),
    "committed": Level(reads="latest"),
    "uncommitted": Level(reads="dirty"),
    "overwrite": Level(reads="snapshot", puts=True),
    "lost-ack": Level(lose=0.1),
    "aborted": Level(ghost=0.5),
    "aborted-in-place": Level(reads="dirty", ghost=0.6),
    "intermediate": Level(parts=0.3),
    "twice": Level(twice=0.1),
    "garbage": Level(garbage=0.05),
    "turned": Level(turned=0.05),
    "future": Level(future=0.5),
    "blind": Level(reads="snapshot"),
}
"""The store that each simulated history comes from, by the name that its case bears."""

KEYS_APART = 1_000
PROCESSES_APART = 10_000_000
"""How far apart ``combined`` puts the keys and processes of two cases: further than any has."""

MORE = ("strict", "strict", "strict", "snapshot")
"""Levels that come more often: what most runs are like."""


@attrs.frozen(kw_only=True)
class Case:
    """One history. ``name`` says where it comes from; ``names`` what it shows, where it is known
    beforehand.
    """

    name: str
    txns: tuple[Txn, ...]
    names: tuple[str, ...] | None = None


def corpus(count: int = 200, seed: int = SEED) -> list[Case]:
    """The first ``count`` cases for ``seed``, of all families in turn."""
    recipes = _recipes(seed)
    return [next(recipes) for _ in range(count)]


def _recipes(seed: int) -> Iterator[Case]:
    exhibits = _exhibits(seed)
    simulated = _simulations(seed)
    mutated = _mutations(seed)
    while True:
        for family in (exhibits, simulated, exhibits, mutated, simulated):
            case = next(family, None)
            if case is not None:
                yield case


def _exhibits(seed: int) -> Iterator[Case]:
    """Every exhibit among others' traffic; a third of them with the valid twin."""
    for again in range(GALLERY_AGAIN):
        for place, exhibit in enumerate(gallery.exhibits()):
            label = f"exhibit-{again}-{place}-" + "+".join(exhibit.names)
            stream = substream(seed, "oracle-exhibit", again, place)
            yield Case(name=label, txns=_surround(stream, exhibit.bad), names=exhibit.names)
            if (again + place) % 3 == 0:
                twin = _surround(stream, exhibit.twin)
                yield Case(name=label + "-twin", txns=twin, names=())


def _surround(stream: random.Random, shown: tuple[Txn, ...]) -> tuple[Txn, ...]:
    """``shown`` beside honest traffic of other processes on other keys, some time later."""
    honest = store.simulate(stream, LEVELS["strict"], size=stream.randint(5, 30), slots=3, keys=2)
    shift = stream.randint(0, 60)
    rename = stream.sample(range(100, 200), 3)
    moved = [
        attrs.evolve(
            txn,
            process=txn.process + 5000,
            invoke=txn.invoke + shift,
            complete=txn.complete + shift,
            ops=tuple((f, rename[key], value) for f, key, value in txn.ops),
        )
        for txn in shown
    ]
    return gallery.history([*honest, *moved])


def _simulations(seed: int) -> Iterator[Case]:
    kinds = [*LEVELS, *MORE]
    for number in range(10**6):
        kind = kinds[number % len(kinds)]
        stream = substream(seed, "oracle-store", number)
        yield Case(name=f"{kind}-{number}", txns=_simulated(stream, LEVELS[kind]))


def _simulated(stream: random.Random, level: Level) -> tuple[Txn, ...]:
    keys = stream.randint(1, 5)
    return store.simulate(
        stream, level, size=stream.randint(5 + keys, 60), slots=stream.randint(2, 7), keys=keys
    )


# --- Mutations ------------------------------------------------------------------------------------


def _mutations(seed: int) -> Iterator[Case]:
    """Honest histories with one to three changes; some change nothing that matters."""
    kinds = tuple(_CHANGES)
    for number in range(10**6):
        stream = substream(seed, "oracle-mutation", number)
        txns = list(_simulated(stream, LEVELS["strict"]))
        kind = kinds[number % len(kinds)]
        for _ in range(stream.randint(1, 3)):
            _CHANGES[kind](stream, txns)
        yield Case(name=f"mutated-{kind}-{number}", txns=gallery.history(txns))


def _change_a_read(
    stream: random.Random, txns: list[Txn], change: Callable[[list[int]], list[int]]
) -> None:
    """Change what one ok read of a list saw, if there is any that saw two elements."""
    places = [
        (place, pos)
        for place, txn in enumerate(txns)
        for pos, (_, _, value) in enumerate(txn.ops)
        if txn.type == "ok" and isinstance(value, tuple) and len(value) > 1
    ]
    if places:
        place, pos = stream.choice(places)
        f, key, value = txns[place].ops[pos]
        seen = tuple(change(list(value))) if isinstance(value, tuple) else value
        ops = [*txns[place].ops]
        ops[pos] = (f, key, seen)
        txns[place] = attrs.evolve(txns[place], ops=tuple(ops))


def _drop_last(stream: random.Random, txns: list[Txn]) -> None:
    _change_a_read(stream, txns, lambda seen: seen[:-1])


def _drop_first(stream: random.Random, txns: list[Txn]) -> None:
    _change_a_read(stream, txns, lambda seen: seen[1:])


def _repeat(stream: random.Random, txns: list[Txn]) -> None:
    _change_a_read(stream, txns, lambda seen: [*seen, seen[0]])


def _swap(stream: random.Random, txns: list[Txn]) -> None:
    _change_a_read(stream, txns, lambda seen: [*seen[:-2], seen[-1], seen[-2]])


def _invent(stream: random.Random, txns: list[Txn]) -> None:
    _change_a_read(stream, txns, lambda seen: [*seen, 999])


def _fail(stream: random.Random, txns: list[Txn]) -> None:
    place = stream.randrange(len(txns))
    txns[place] = attrs.evolve(txns[place], type="fail")


def _crash(stream: random.Random, txns: list[Txn]) -> None:
    """Of a process that does nothing after it, since a crash ends a process."""
    place = stream.randrange(len(txns))
    own = 3000 + txns[place].process
    txns[place] = attrs.evolve(txns[place], type="info", process=own + place * 10_000)


def _move(stream: random.Random, txns: list[Txn]) -> None:
    """To another time, as a process of its own."""
    place = stream.randrange(len(txns))
    txn, later = txns[place], stream.randint(1, 40)
    txns[place] = attrs.evolve(
        txn,
        process=7000 + txn.process + place * 10_000,
        invoke=txn.invoke + later,
        complete=txn.complete + later,
    )


def _trade(stream: random.Random, txns: list[Txn]) -> None:
    """Two neighbours of one process change their places in its order."""
    pairs = [
        (a, b)
        for b in range(len(txns))
        for a in range(b)
        if txns[a].process == txns[b].process and txns[a].type == txns[b].type
    ]
    if pairs:
        a, b = stream.choice(pairs)
        one, other = txns[a], txns[b]
        txns[a] = attrs.evolve(one, ops=other.ops)
        txns[b] = attrs.evolve(other, ops=one.ops)


_CHANGES: dict[str, Callable[[random.Random, list[Txn]], None]] = {
    "drop-last": _drop_last,
    "drop-first": _drop_first,
    "repeat": _repeat,
    "swap": _swap,
    "invent": _invent,
    "fail": _fail,
    "crash": _crash,
    "move": _move,
    "trade": _trade,
}


def combined(cases: list[Case]) -> Case:
    """All of ``cases`` as one history, one after the other, on keys and processes of their own."""
    txns: list[Txn] = []
    start = 0
    for number, case in enumerate(cases):
        txns += [
            attrs.evolve(
                txn,
                process=txn.process + number * PROCESSES_APART,
                invoke=txn.invoke + start,
                complete=txn.complete + start,
                ops=tuple((f, key + number * KEYS_APART, value) for f, key, value in txn.ops),
            )
            for txn in case.txns
        ]
        start = 1 + max(txn.complete for txn in txns)
    return Case(name=f"combined-{len(cases)}", txns=gallery.history(txns))


# --- Other forms ----------------------------------------------------------------------------------


def _marks(txns: tuple[Txn, ...]) -> list[tuple[int, bool, Txn]]:
    """(time, whether it is the completion, transaction) in order: the place is the index."""
    marks = [(txn.invoke, False, txn) for txn in txns] + [(txn.complete, True, txn) for txn in txns]
    return sorted(marks, key=lambda mark: (mark[0], mark[1], mark[2].index))


def as_tables(case: Case) -> tuple[pa.Table, pa.Table]:
    """The tables ``transactions`` and ``micro_ops`` of a sealed history, in one split."""
    begin = {txn.index: at for at, (_, end, txn) in enumerate(_marks(case.txns)) if not end}
    finish = {txn.index: at for at, (_, end, txn) in enumerate(_marks(case.txns)) if end}
    rows = [_transaction(txn, begin[txn.index], finish[txn.index]) for txn in case.txns]
    steps = [row for txn in case.txns for row in _micro_ops(txn)]
    return (
        pa.Table.from_pylist(rows, schema=TRANSACTIONS),
        pa.Table.from_pylist(steps, schema=MICRO_OPS),
    )


def _transaction(txn: Txn, begin: int, finish: int) -> dict[str, object]:
    return {
        "txn": txn.index,
        "process": txn.process,
        "kind": txn.kind,
        "type": txn.type,
        "node": f"n{txn.process % 3 + 1}",
        "attempt": 0,
        "intended_ns": txn.invoke,
        "invoke_ns": txn.invoke,
        "complete_ns": txn.complete,
        "invoke_index": begin,
        "complete_index": finish,
        "wall_ns": txn.invoke,
        "error": None if txn.type == "ok" else "simulated",
        "phase": None if txn.type == "ok" else "commit",
    }


def _micro_ops(txn: Txn) -> Iterator[dict[str, object]]:
    for pos, (f, key, value) in enumerate(txn.ops):
        elements = value if isinstance(value, tuple) else None
        if f == "r" and value is None and txn.type == "ok":
            elements = ()
        yield {
            "txn": txn.index,
            "pos": pos,
            "f": f,
            "key": key,
            "value": value if isinstance(value, int) else None,
            "elements": elements,
            "type": txn.type,
        }


def as_jsonl(case: Case) -> str:
    """The history as Jepsen's operations, one JSON object a line."""
    return "".join(
        json.dumps(
            {
                "type": txn.type if end else "invoke",
                "f": "txn",
                "value": _value(txn, end),
                "process": txn.process,
                "time": at,
                "index": index,
            }
        )
        + "\n"
        for index, (at, end, txn) in enumerate(_marks(case.txns))
    )


def as_edn(case: Case) -> str:
    """The history as Jepsen's operations, one EDN map a line."""
    return "".join(
        f"{{:type :{txn.type if end else 'invoke'}, :f :txn, :value {_edn(_value(txn, end))}, "
        f":process {txn.process}, :time {at}, :index {index}}}\n"
        for index, (at, end, txn) in enumerate(_marks(case.txns))
    )


def _value(txn: Txn, end: bool) -> list[list[object]]:
    return [[f, key, _told(f, value, end)] for f, key, value in txn.ops]


def _told(f: str, value: Value, end: bool) -> object:
    if f == "r" and (not end or value is None):
        return None
    return list(value) if isinstance(value, tuple) else value


def _edn(value: list[list[object]]) -> str:
    return "[" + " ".join(f"[:{f} {key} {_edn_atom(seen)}]" for f, key, seen in value) + "]"


def _edn_atom(seen: object) -> str:
    if seen is None:
        return "nil"
    if isinstance(seen, list):
        return "[" + " ".join(map(str, seen)) + "]"
    return str(seen)
