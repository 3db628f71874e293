"""What must hold of a counter: a read shows at least the increments that were acknowledged before
it began, and at most those that were begun before it ended and have not failed.
"""

from __future__ import annotations

from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import FAIL, OK, codes, ints
from checkers.engine.transactions import transactions_of
from checkers.explain.attribution import explain_operations
from harness.api import (
    EXAMPLES_MAX,
    OBSERVED,
    Anomaly,
    Exchange,
    Finding,
    Kernel,
    Lookup,
    Part,
    Setting,
    Tables,
    breaking,
)

ADD, READ = 0, 1
COLUMNS = ("txn", "key", "value", "least", "most")


def bounds(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """``tally.reads``: every read of a counter, and what it had to lie between. A kernel for some
    keys, but all operations on those: it runs in process, or as a task of Spark.
    """
    txns, steps = transactions_of(tables, setting), tables["micro_ops"]
    f, txn, key = codes(steps, "f", ("add", "r")), ints(steps, "txn"), ints(steps, "key")
    type_, value = txns.type[txn], ints(steps, "value")
    found: list[tuple[int, ...]] = []
    for counter in np.unique(key):
        adds = txn[(key == counter) & (f == ADD)]
        acked = np.sort(txns.finish[adds[txns.type[adds] == OK]])
        begun = np.sort(txns.start[adds[txns.type[adds] != FAIL]])
        reads = np.flatnonzero((key == counter) & (f == READ) & (type_ == OK))
        # What touches is concurrent: an increment that ends when the read begins may be missing.
        least = np.searchsorted(acked, txns.start[txn[reads]], side="left")
        most = np.searchsorted(begun, txns.finish[txn[reads]], side="right")
        columns = (txn[reads], key[reads], value[reads], least, most)
        found += zip(*(column.tolist() for column in columns), strict=True)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in found]
    schema = pa.schema([(name, pa.int64()) for name in COLUMNS])
    return {"tally.reads": pa.Table.from_pylist(rows, schema=schema)}


BOUNDS = Kernel(name="tally.bounds", exchange=Exchange.KEY, run=bounds)


@attrs.frozen
class TallyChecker:
    """The checker; ``judge`` is called once, with what the kernels gave for all keys."""

    name: str = "tally"
    kernels: tuple[Kernel, ...] = (BOUNDS,)

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """See ``Checker``. ``missing-increment`` is not mentioned in ``meanings``: it is a
        violation under every model that the store may promise.
        """
        reads, faults = tables["tally.reads"].sort_by("txn"), tables["faults"]
        missing = reads.filter(pc.less(reads["value"], reads["least"]))
        surplus = reads.filter(pc.greater(reads["value"], reads["most"]))
        unread = reads.filter(pc.equal(reads["most"], 0))
        found = {
            "missing-increment": _anomaly(missing, _missing, faults, lookup),
            "surplus-increment": _anomaly(surplus, _surplus, faults, lookup),
            "idle-counter": _anomaly(unread, _idle, faults, lookup),
        }
        return Part(
            anomalies={name: anomaly for name, anomaly in found.items() if anomaly.count},
            meanings={"surplus-increment": breaking("read-committed"), "idle-counter": OBSERVED},
            statistics={"tally": {"reads": reads.num_rows}},
        )


def _anomaly(rows: pa.Table, tell: Any, faults: pa.Table, lookup: Lookup) -> Anomaly:  # noqa: ANN401
    """How many, and a few of them in full, each with the fault that is nearest: a verdict shows its
    proof.
    """
    shown = rows.slice(0, EXAMPLES_MAX).to_pylist()
    operations = lookup.operations(tuple(row["txn"] for row in shown))
    examples = tuple(
        Finding(
            text=tell(row),
            txns=(row["txn"],),
            keys=(row["key"],),
            operations=(operations[row["txn"]],),
            explained_by=explain_operations([operations[row["txn"]]], faults),
        )
        for row in shown
    )
    return Anomaly(count=rows.num_rows, examples=examples)


def _missing(row: dict[str, int]) -> str:
    return (
        f"missing increment: T{row['txn']} read {row['value']} of counter {row['key']}, and "
        f"{row['least']} increments were acknowledged before"
    )


def _surplus(row: dict[str, int]) -> str:
    return (
        f"surplus increment: T{row['txn']} read {row['value']} of counter {row['key']}, and "
        f"only {row['most']} increments can have happened"
    )


def _idle(row: dict[str, int]) -> str:
    return f"idle counter: T{row['txn']} read counter {row['key']}, which nobody had incremented"


CHECKER = TallyChecker()
