"""Minimal histories written by hand: each anomaly in the fewest transactions, and a valid twin.

Notation: ``txn(process, invoke, complete, "a0=1 r1=1,2 r2= r3=?")`` appends 1 to key 0 and reads
[1 2] of key 1, the empty list of key 2 and something unknown of key 3. Transactions that share the
interval ``TOGETHER`` are concurrent.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs
from oracle import Op, Txn

TOGETHER = (10, 90)


@attrs.frozen(kw_only=True)
class Exhibit:
    """``bad`` shows exactly the anomalies ``names``; ``twin`` differs in one place and is clean.

    ``lost``: the bad one holds a lost write too.
    """

    names: tuple[str, ...]
    bad: tuple[Txn, ...]
    twin: tuple[Txn, ...]
    lost: bool = False


def txn(process: int, invoke: int, complete: int, ops: str, type: str = "ok") -> Txn:
    """A transaction in the notation above, without its place in the order of invocation."""
    steps = tuple(_op(word) for word in ops.split())
    return Txn(index=-1, process=process, type=type, invoke=invoke, complete=complete, ops=steps)


def _op(word: str) -> Op:
    key, _, value = word[1:].partition("=")
    if word[0] == "a":
        return ("append", int(key), int(value))
    if value == "?":
        return ("r", int(key), None)
    return ("r", int(key), tuple(map(int, value.split(",")))) if value else ("r", int(key), ())


def history(txns: Iterable[Txn]) -> tuple[Txn, ...]:
    """``txns`` in the order of invocation, numbered."""
    ordered = sorted(txns, key=lambda txn: (txn.invoke, txn.process))
    return tuple(attrs.evolve(txn, index=index) for index, txn in enumerate(ordered))


def together(*ops: str) -> tuple[Txn, ...]:
    """Concurrent ok transactions, each of a process of its own (from 10 on)."""
    return tuple(txn(10 + place, *TOGETHER, text) for place, text in enumerate(ops))


def in_turn(first: str, second: str, *, same: bool, third: str = "") -> tuple[Txn, ...]:
    """Two (three) ok transactions one after the other, the first two of one process or of two."""
    turns = (txn(0, 20, 30, first), txn(0 if same else 1, 40, 50, second))
    return (*turns, txn(2, 70, 80, third)) if third else turns


def _exhibit(
    names: str, bad: tuple[Txn, ...], twin: tuple[Txn, ...], *, lost: bool = False
) -> Exhibit:
    return Exhibit(
        names=tuple(sorted(names.split())), bad=history(bad), twin=history(twin), lost=lost
    )


def _plain_cycles() -> tuple[Exhibit, ...]:
    return (
        _exhibit(
            "G0",
            together("a0=1 a1=2", "a0=2 a1=1", "r0=1,2 r1=1,2"),
            together("a0=1 a1=2", "a0=2 a1=1", "r0=1,2 r1=2,1"),
        ),
        _exhibit(
            "G1c",
            together("a0=1 r1=1", "a1=1 r0=1"),
            together("a0=1 r1=", "a1=1 r0=1"),
        ),
        _exhibit(
            "G-single-item",
            together("a0=1 a1=1", "r0=1 r1="),
            together("a0=1 a1=1", "r0=1 r1=1"),
        ),
        _exhibit(
            "G-nonadjacent-item",
            together("a0=1", "a1=1", "r0=1 r1=", "r0= r1=1"),
            together("a0=1", "a1=1", "r0=1 r1=", "r0=1 r1=1"),
        ),
        _exhibit(
            "G2-item",
            together("r0= a1=1", "r1= a0=1"),
            together("r0=1 a1=1", "r1= a0=1"),
        ),
    )


def _ordered_cycles(suffix: str, *, same: bool) -> tuple[Exhibit, ...]:
    """The cycle classes that need an edge of process order (``same``) or of real time."""
    fork = together("a0=1", "r0=1 r1=")
    skew = together("a0=1 r1=")
    return (
        _exhibit(
            "G0" + suffix,
            (*in_turn("a0=2", "a0=1", same=same), *together("r0=1,2")),
            (*in_turn("a0=2", "a0=1", same=same), *together("r0=2,1")),
        ),
        _exhibit(
            "G1c" + suffix,
            in_turn("r0=1", "a0=1", same=same),
            in_turn("r0=", "a0=1", same=same),
        ),
        _exhibit(
            "G-single-item" + suffix,
            in_turn("a0=1", "r0=", same=same, third="r0=1"),
            in_turn("a0=1", "r0=1", same=same, third="r0=1"),
        ),
        _exhibit(
            "G-nonadjacent-item" + suffix,
            (*in_turn("a1=1", "r0=", same=same), *fork),
            (*in_turn("a1=1", "r0=1", same=same), *fork),
        ),
        _exhibit(
            "G2-item" + suffix,
            (*in_turn("a1=1", "r0=", same=same), *skew),
            (*in_turn("a1=1", "r0=1", same=same), *skew),
        ),
    )


def _lists() -> tuple[Exhibit, ...]:
    failed = txn(0, *TOGETHER, "a0=1", "fail")
    unsure = txn(0, *TOGETHER, "a0=1", "info")
    return (
        _exhibit("G1a", (failed, *together("r0=1")), (unsure, *together("r0=1"))),
        _exhibit(
            "G1b G-single-item",
            together("a0=1 a0=2", "r0=1"),
            together("a0=1 a0=2", "r0=1,2"),
        ),
        _exhibit(
            "dirty-update G1a",
            (failed, *together("a0=2", "r0=1,2")),
            (failed, *together("a0=2", "r0=2")),
        ),
        _exhibit(
            "dirty-update G1a",
            (failed, txn(1, *TOGETHER, "a0=3", "info"), *together("a0=2", "r0=1,3,2")),
            (unsure, txn(1, *TOGETHER, "a0=3", "info"), *together("a0=2", "r0=1,3,2")),
        ),
        _exhibit("duplicate-elements", together("a0=1", "r0=1,1"), together("a0=1", "r0=1")),
        _exhibit("future-read", together("r0=1 a0=1", "r0=1"), together("r0= a0=1", "r0=1")),
        _exhibit("garbage-read", together("a0=1", "r0=1,9"), together("a0=1 a0=9", "r0=1,9")),
        _exhibit(
            "incompatible-order",
            together("a0=1", "a0=2", "r0=1,2", "r0=2,1"),
            together("a0=1", "a0=2", "r0=1,2", "r0=1"),
        ),
        _exhibit("internal", together("a0=1", "a0=2 r0=1"), together("a0=1", "a0=2 r0=1,2")),
        _exhibit(
            "internal G-single-item",
            together("a0=1", "r0= r0=1"),
            together("a0=1", "r0=1 r0=1"),
        ),
    )


def _lost() -> tuple[Exhibit, ...]:
    return (
        _exhibit(
            "lost-update G2-item",
            together("r0= a0=1", "r0= a0=2"),
            together("r0=2 a0=1", "r0= a0=2"),
        ),
        _exhibit(
            "lost-update G-single-item",
            together("r0= a0=1", "r0= a0=2", "r0=1,2"),
            together("r0= a0=1", "r0=1 a0=2", "r0=1,2"),
        ),
        *(
            _exhibit(
                "G-single-item" + suffix,
                in_turn("a0=1", "r0=", same=same),
                in_turn("a0=1", "r0=1", same=same),
                lost=True,
            )
            for suffix, same in (("-realtime", False), ("-process", True))
        ),
    )


def _crashed() -> tuple[Exhibit, ...]:
    """Crashed transactions that committed: what they wrote was read, so what they read counts."""
    seen = together("a0=1 a1=1", "r2=1")
    torn, whole = ("r0=1 r1= a2=1", "r0=1 r1=1 a2=1")
    return (
        _exhibit(
            "G-single-item",
            (txn(1, *TOGETHER, torn, "info"), *seen),
            (txn(1, *TOGETHER, whole, "info"), *seen),
        ),
        _exhibit(
            "G1c-process",
            (txn(0, 10, 20, "r0=1"), txn(0, 30, 40, "a0=1", "info")),
            (txn(0, 10, 20, "r0="), txn(0, 30, 40, "a0=1", "info")),
        ),
        *(
            _exhibit(
                names,
                (*before, txn(1, *TOGETHER, crashed, "info"), *together(*others, "r2=1")),
                (*before, txn(1, *TOGETHER, crashed, "info"), *together(*others, "r2=")),
            )
            for names, before, others, crashed in _crashed_readers()
        ),
    )


def _crashed_readers() -> tuple[tuple[str, tuple[Txn, ...], tuple[str, ...], str], ...]:
    """What a crashed transaction alone read, and whether anybody read its append tells."""
    failed = (txn(0, *TOGETHER, "a0=1", "fail"),)
    return (
        ("incompatible-order", (), ("a0=1", "a0=2", "r0=1,2"), "r0=2,1 a2=1"),
        ("duplicate-elements", (), ("a0=1",), "r0=1,1 a2=1"),
        ("dirty-update", failed, ("a0=2",), "r0=1,2 a2=1"),
        ("garbage-read", (), ("a0=1",), "r0=1,9 a2=1"),
        ("G0", (), ("a0=1 a1=2", "a0=2 a1=1"), "r0=1,2 r1=1,2 a2=1"),
    )


def exhibits() -> tuple[Exhibit, ...]:
    """All of them; together they name every anomaly of the family."""
    return (
        *_plain_cycles(),
        *_ordered_cycles("-process", same=True),
        *_ordered_cycles("-realtime", same=False),
        *_lists(),
        *_lost(),
        *_crashed(),
    )
