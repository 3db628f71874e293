"""What must hold of a counter: a read shows at least the increments that were acknowledged before
it began, and at most those that were begun before it ended and have not failed.
"""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from checkers.engine.arrays import FAIL, OK, codes, ints
from checkers.engine.transactions import transactions_of
from checkers.row_checker import RowChecker, table
from harness.api import OBSERVED, Setting, Tables, breaking

ADD, READ = 0, 1


def wrong_reads(tables: Tables, setting: Setting) -> pa.Table:
    """A row for each read that shows too few or too many increments, of the keys at hand."""
    return table(_rows(tables, setting))


def _rows(tables: Tables, setting: Setting) -> Iterator[tuple[str, int, int, str]]:
    txns, steps = transactions_of(tables, setting), tables["micro_ops"]
    f, txn, key = codes(steps, "f", ("add", "r")), ints(steps, "txn"), ints(steps, "key")
    type_, value = txns.type[txn], ints(steps, "value")
    for counter in np.unique(key).tolist():
        adds = txn[(key == counter) & (f == ADD)]
        acked = np.sort(txns.finish[adds[txns.type[adds] == OK]])
        begun = np.sort(txns.start[adds[txns.type[adds] != FAIL]])
        reads = np.flatnonzero((key == counter) & (f == READ) & (type_ == OK))
        # What touches is concurrent: an increment that ends when the read begins may be missing.
        least = np.searchsorted(acked, txns.start[txn[reads]], side="left")
        most = np.searchsorted(begun, txns.finish[txn[reads]], side="right")
        for t, seen, low, high in zip(txn[reads], value[reads], least, most, strict=True):
            read = f"T{t} read {seen} of counter {counter}"
            if seen < low:
                text = f"missing increment: {read}, and {low} were acknowledged before"
                yield "missing-increment", int(t), counter, text
            if seen > high:
                text = f"surplus increment: {read}, and only {high} can have happened"
                yield "surplus-increment", int(t), counter, text
            if high == 0:
                text = f"idle counter: {read}, which nothing had incremented"
                yield "idle-counter", int(t), counter, text


# "missing-increment" is not mentioned: it is a violation whatever model the store promises.
CHECKER = RowChecker(
    name="tally",
    rows=wrong_reads,
    meanings={"surplus-increment": breaking("read-committed"), "idle-counter": OBSERVED},
)
