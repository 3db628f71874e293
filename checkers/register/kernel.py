"""The kernel of registers: findings, and how each key was judged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from checkers.columns import Bools, group_starts
from checkers.kernel import Exchange, Kernel, Setting, Tables
from checkers.register.ops import (
    CAS,
    FINDINGS,
    INITIAL,
    NEVER,
    READ,
    WRITE,
    Ops,
    register_ops,
    searched_keys,
)
from checkers.register.search import Contradicted, Op, Undecided, search
from checkers.register.zones import judge_by_zones

KEYS = pa.schema(
    [
        ("key", pa.int64()),
        ("operations", pa.int64()),
        ("judged", pa.string()),
        ("tested", pa.bool_()),
    ]
)
"""``judged`` is ``zones``, ``search`` or ``undecided``. A register is ``tested`` if something was
written that somebody could have seen: a write that may have taken effect, and a read that answered.
"""


def judge_keys(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """``register.findings`` and ``register.keys``."""
    ops, unexplained = register_ops(tables, setting)
    searched = searched_keys(ops)
    by_zones = judge_by_zones(ops.take(~searched[ops.k]))
    judged = np.where(searched, "search", "zones").astype(object)
    found = []
    for one in _one_by_one(ops.take(searched[ops.k])):
        k = int(one.k[0])
        answer = search(_operations(one), setting.search_limit)
        if isinstance(answer, Contradicted):
            found.append(_contradiction(one, answer))
        elif isinstance(answer, Undecided):
            judged[k] = "undecided"
    count = np.bincount(ops.k, minlength=len(ops.keys))
    by_search = pa.Table.from_pylist(found, schema=FINDINGS)
    keys = [
        pa.array(ops.keys),
        pa.array(count, pa.int64()),
        pa.array(judged, pa.string()),
        pa.array(_tested(ops)),
    ]
    return {
        "register.findings": pa.concat_tables([unexplained, by_zones, by_search]),
        "register.keys": pa.table(keys, schema=KEYS),
    }


def _tested(ops: Ops) -> Bools:
    """For each key whether it was written, and read by an operation that answered."""
    written, read = np.zeros((2, len(ops.keys)), dtype=np.bool_)
    written[ops.k[ops.f != READ]] = True
    read[ops.k[(ops.f != WRITE) & (ops.finish != NEVER)]] = True
    return written & read


def _one_by_one(ops: Ops) -> list[Ops]:
    """The operations key by key: the one place where keys are not judged all at once."""
    starts = np.flatnonzero(group_starts(ops.k))
    return [ops.take(rows) for rows in np.split(np.arange(len(ops.k)), starts)[1:]]


def _operations(one: Ops) -> list[Op]:
    columns = (one.f, one.seen, one.left, one.start, one.finish)
    return [Op(*map(int, row)) for row in zip(*columns, strict=True)]


def _contradiction(one: Ops, answer: Contradicted) -> dict[str, Any]:
    """The operation, then those that left what the register could hold instead."""
    held = [number for number in answer.held if number != INITIAL]
    wrote = np.flatnonzero((one.f != READ) & np.isin(one.left, [*held, one.seen[answer.op]]))
    wrote = wrote[(one.start[wrote] <= one.finish[answer.op]) & (wrote != answer.op)]
    latest = wrote[np.argsort(one.start[wrote], kind="stable")][-MENTIONED_MAX:]
    return {
        "anomaly": "nonlinearizable",
        "key": int(one.keys[one.k[0]]),
        "form": "search",
        "value": one.value(int(one.seen[answer.op])),
        "other": one.value(int(one.left[answer.op])) if one.f[answer.op] == CAS else None,
        "txns": [int(one.txn[answer.op]), *sorted(int(t) for t in one.txn[latest])],
        "held": [one.value(number) for number in answer.held],
    }


MENTIONED_MAX = 4
"""Writers that an example names beside the operation that nothing explains."""

REGISTER = Kernel(name="register", exchange=Exchange.KEY, run=judge_keys)
