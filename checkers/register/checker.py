"""The checker of registers: each of them must be linearizable by itself; then all are together."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import pyarrow as pa
import pyarrow.compute as pc

from checkers.attribution import explain_operations
from checkers.kernel import EXAMPLES_MAX, Kernel, Lookup, Part, Setting, Tables
from checkers.register.kernel import REGISTER
from checkers.register.search import CONFIGURATIONS_EACH
from checkers.register.words import of_finding
from harness.checking import Anomaly
from harness.outcome import Outcome

Row = dict[str, Any]

NO_EVIDENCE = "vacuous: no register that was written was read, so nothing was tested"
NONLINEARIZABLE = "nonlinearizable"


@attrs.frozen
class Register:
    """Registers that no order of their operations explains, and reads that none can."""

    name: str = "register"
    kernels: tuple[Kernel, ...] = (REGISTER,)

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """``unknown`` where the search of a key came to its limit, and nothing else is wrong."""
        columns = ("anomaly", "key", "form", "txns", "value")
        found = sorted(tables["register.findings"].to_pylist(), key=lambda r: _order(r, columns))
        anomalies = {
            name: _anomaly([row for row in found if row["anomaly"] == name], tables, lookup)
            for name in sorted({row["anomaly"] for row in found})
        }
        keys = tables["register.keys"]
        doubts = _doubts(keys, setting.search_limit)
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
    return tuple((row[name] is not None, row[name]) for name in columns)


def _anomaly(rows: list[Row], tables: Tables, lookup: Lookup) -> Anomaly:
    shown = rows[:EXAMPLES_MAX]
    operations = lookup.operations(tuple(txn for row in shown for txn in row["txns"] if txn >= 0))
    examples = tuple(_example(row, operations, tables["faults"]) for row in shown)
    return Anomaly(count=len(rows), examples=examples)


def _example(row: Row, operations: dict[int, Row], faults: pa.Table) -> Row:
    txns = list(dict.fromkeys(txn for txn in row["txns"] if txn >= 0))
    shown = [operations[txn] for txn in txns]
    example = {
        "text": of_finding(row),
        "txns": txns,
        "keys": [row["key"]],
        "operations": shown,
    }
    return example | explain_operations(shown, faults)


def _doubts(keys: pa.Table, limit: int) -> tuple[str, ...]:
    undecided = keys.filter(pc.equal(keys.column("judged"), "undecided")).column("key").to_pylist()
    if not undecided:
        return ()
    shown = ", ".join(map(str, sorted(undecided)[:EXAMPLES_MAX]))
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
