"""The checker of registers: each of them must be linearizable by itself; then all are together."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import Bools, group_starts
from checkers.explain.fault_attribution import KnownFaults
from checkers.explain.fault_explanations import explain_operations
from checkers.explain.words import KeyNames
from checkers.register.by_generation import UNSEEN, by_generation
from checkers.register.gibbons_korach import judge_by_zones
from checkers.register.linearization_search import (
    CONFIGURATIONS_EACH,
    Contradiction,
    SearchExhausted,
    search_from,
)
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
from checkers.register.timeline import Op
from harness.exit_codes import Outcome
from harness.protocols.checker import EXAMPLES_MAX, Exchange, Kernel, Lookup, Part, Tables
from harness.protocols.finding import Finding, RecordedOperation
from harness.protocols.setting import Setting
from harness.protocols.verdict import Anomaly

# ``judged`` is ``zones``, ``search`` or ``undecided``, the hardest of its generations. A register
# is ``tested`` if it has a write that may have taken effect, and a read that answered and could
# have seen it.
KEYS = pa.schema(
    [
        ("key", pa.int64()),
        ("operations", pa.int64()),
        ("judged", pa.string()),
        ("tested", pa.bool_()),
    ]
)
# The number of writers that an example names beside the operation that nothing explains.
MENTIONED_MAX = 4
NO_EVIDENCE = "vacuous: no register that was written was read, so nothing was tested"
Row = dict[str, Any]


def judge_keys(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """Return ``register.findings`` and ``register.keys``."""
    whole, unexplained = register_ops(tables, setting)
    cut = by_generation(whole, tables["micro_ops"], setting)
    ops = cut.ops
    searched = searched_keys(ops)
    searched[list(cut.bases)] = True
    by_zones = judge_by_zones(ops.take(~searched[ops.k]))
    # As objects: numpy's strings of six characters would cut "undecided".
    judged = np.full(len(whole.keys), "zones", dtype=object)
    judged[cut.register[searched]] = "search"
    found = []
    for one in _one_by_one(ops.take(searched[ops.k])):
        k = int(one.k[0])
        bases = cut.bases.get(k, (INITIAL,))
        answer = search_from(bases, _operations(one), setting.search_limit)
        if isinstance(answer, Contradiction):
            found.append(_contradiction(one, answer))
        elif isinstance(answer, SearchExhausted):
            judged[cut.register[k]] = "undecided"
    count = np.bincount(whole.k, minlength=len(whole.keys))
    by_search = pa.Table.from_pylist(found, schema=FINDINGS)
    keys = [
        pa.array(whole.keys),
        pa.array(count, pa.int64()),
        pa.array(judged, pa.string()),
        pa.array(_tested(whole)),
    ]
    return {
        "register.findings": pa.concat_tables([unexplained, by_zones, by_search]),
        "register.keys": pa.table(keys, schema=KEYS),
    }


def _tested(ops: Ops) -> Bools:
    """Tell for each key whether it was written, and read by an operation that answered."""
    written, read = np.zeros((2, len(ops.keys)), dtype=np.bool_)
    written[ops.k[ops.f != READ]] = True
    read[ops.k[(ops.f != WRITE) & (ops.finish != NEVER)]] = True
    return written & read


def _one_by_one(ops: Ops) -> list[Ops]:
    """Return the operations key by key: the one place where keys are not judged all at once."""
    starts = np.flatnonzero(group_starts(ops.k))
    # The part before the first start is empty.
    return [ops.take(rows) for rows in np.split(np.arange(len(ops.k)), starts)[1:]]


def _operations(one: Ops) -> list[Op]:
    columns = (one.f, one.seen, one.left, one.start, one.finish)
    return [Op(*map(int, row)) for row in zip(*columns, strict=True)]


def _contradiction(one: Ops, answer: Contradiction) -> dict[str, Any]:
    """Return the operation, then the operations that wrote the other values that the register could
    hold.
    """
    held = [number for number in answer.held if number >= 0]
    wrote = np.flatnonzero((one.f != READ) & np.isin(one.left, [*held, one.seen[answer.op]]))
    # Only what began before its end could have given it the value that it must have found.
    wrote = wrote[(one.start[wrote] <= one.finish[answer.op]) & (wrote != answer.op)]
    latest = wrote[np.argsort(one.start[wrote], kind="stable")][-MENTIONED_MAX:]
    return {
        "anomaly": "nonlinearizable",
        "key": int(one.keys[one.k[0]]),
        "form": "search",
        "value": one.value(int(one.seen[answer.op])),
        "other": one.value(int(one.left[answer.op])) if one.f[answer.op] == CAS else None,
        "txns": [int(one.txn[answer.op]), *sorted(int(t) for t in one.txn[latest])],
        "held": [one.value(number) for number in answer.held if number != UNSEEN],
    }


REGISTER = Kernel(
    name="register",
    exchange=Exchange.KEY,
    run=judge_keys,
    numbers={"register.findings": ("txns",)},
)


@attrs.frozen
class Register:
    """Registers that no order of their operations explains, and reads that none can."""

    name: str = "register"
    kernels: tuple[Kernel, ...] = (REGISTER,)

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Return ``unknown`` where the search of a key reached its limit and there
        is no anomaly.
        """
        columns = ("anomaly", "key", "form", "txns", "value")
        found = sorted(tables["register.findings"].to_pylist(), key=lambda r: _order(r, columns))
        anomalies = {
            name: _anomaly([row for row in found if row["anomaly"] == name], tables, lookup)
            for name in sorted({row["anomaly"] for row in found})
        }
        keys = tables["register.keys"]
        doubts = _doubts(keys, setting.search_limit, KeyNames(tables))
        if not anomalies and not pc.any(keys.column("tested")).as_py():
            doubts = (NO_EVIDENCE, *doubts)
        return Part(
            outcome=Outcome.UNKNOWN if doubts else Outcome.VALID,
            anomalies=anomalies,
            reasons=doubts,
            statistics={"register": _statistics(tables["register.keys"])},
            tables={"register_keys": tables["register.keys"].sort_by("key")},
        )


def _order(row: Row, columns: tuple[str, ...]) -> tuple[Any, ...]:
    # Null does not compare with a number.
    return tuple((row[name] is not None, row[name]) for name in columns)


def _anomaly(rows: list[Row], tables: Tables, lookup: Lookup) -> Anomaly:
    shown = rows[:EXAMPLES_MAX]
    operations = lookup.operations(tuple(txn for row in shown for txn in row["txns"] if txn >= 0))
    known, named = KnownFaults.of(tables["faults"]), KeyNames(tables)
    examples = tuple(_finding(row, operations, known, named) for row in shown)
    return Anomaly(count=len(rows), examples=examples)


def _finding(
    row: Row, operations: dict[int, RecordedOperation], known: KnownFaults, named: KeyNames
) -> Finding:
    # -1 stands for the register's beginning, which no transaction wrote.
    txns = tuple(dict.fromkeys(txn for txn in row["txns"] if txn >= 0))
    shown = tuple(operations[txn] for txn in txns)
    return Finding(
        text=sentence(named.within(row)),
        txns=txns,
        keys=(row["key"],),
        operations=shown,
        explained_by=explain_operations(shown, known),
    )


def _doubts(keys: pa.Table, limit: int, named: KeyNames) -> tuple[str, ...]:
    undecided = keys.filter(pc.equal(keys.column("judged"), "undecided")).column("key").to_pylist()
    if not undecided:
        return ()
    shown = ", ".join(map(named, sorted(undecided)[:EXAMPLES_MAX]))
    more = f" and {len(undecided) - EXAMPLES_MAX} more" if len(undecided) > EXAMPLES_MAX else ""
    return (
        f"undecided: {len(undecided)} of {keys.num_rows} registers need more than "
        f"{limit} configurations, and {CONFIGURATIONS_EACH} for each operation "
        f"(key {shown}{more}): "
        "raise it by check --search-limit, or by check.search_limit of the plan",
    )


def _statistics(keys: pa.Table) -> Row:
    judged = Counter(keys.column("judged").to_pylist())
    return {"registers": keys.num_rows} | {
        name: judged[name] for name in ("zones", "search", "undecided")
    }


CHECKER = Register()


def sentence(row: Row) -> str:
    """Format one row of ``register.findings``, whose key has its name, as a sentence."""
    return _FORMS[row["form"]](row)


def _nobody(row: Row) -> str:
    return (
        f"garbage read: T{row['txns'][0]} found {row['value']} in register {row['key']}, which "
        "nobody wrote"
    )


def _aborted(row: Row) -> str:
    reader, writer = row["txns"]
    return (
        f"aborted read (G1a): T{reader} found {row['value']} in register {row['key']}, which "
        f"T{writer} wrote and then failed"
    )


def _early(row: Row) -> str:
    reader, writer = row["txns"]
    return (
        f"not linearizable: T{reader} read {row['value']} from register {row['key']} and had ended "
        f"before T{writer}, the only write of it, began"
    )


def _overlap(row: Row) -> str:
    first, last, other_first, other_last = row["txns"]
    return (
        f"not linearizable: register {row['key']} must have held {_value(row['value'])} all the "
        f"time {_span(first, last)}, and {_value(row['other'])} all the time "
        f"{_span(other_first, other_last)}, but these times overlap"
    )


def _inside(row: Row) -> str:
    first, last, other = row["txns"]
    return (
        f"not linearizable: register {row['key']} must have held {_value(row['value'])} all the "
        f"time {_span(first, last)}, but T{other}, which wrote {_value(row['other'])}, can only "
        "have taken effect within that time"
    )


def _search(row: Row) -> str:
    txn = row["txns"][0]
    what = f"read {_value(row['value'])}"
    if row["other"] is not None:
        what = f"set {row['other']} where it found {_value(row['value'])}"
    held = " or ".join(_value(value) for value in row["held"]) or "what no operation found"
    return (
        f"not linearizable: no order of the operations on register {row['key']} explains that "
        f"T{txn} {what}: before what was open as it ended, the register held {held}, and no order "
        "of what was open leads there"
    )


def _span(first: int, last: int) -> str:
    since = "from the beginning" if first < 0 else f"from the end of T{first}"
    return f"{since} to the start of T{last}"


def _value(value: int | None) -> str:
    return "nothing" if value is None else str(value)


_FORMS = {
    "nobody": _nobody,
    "aborted": _aborted,
    "early": _early,
    "overlap": _overlap,
    "inside": _inside,
    "search": _search,
}
