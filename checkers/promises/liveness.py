"""The promise ``liveness``: once every fault is healed, each partition commits within a bound.

Looked for in every stretch without a fault that is longer than the declared bound: during the
drive, after the last heal before it. A partition is silent where several transactions on it were
begun once the bound had passed and nothing has committed from the heal until they ended, or many
that write and none of these. What was begun before proves nothing: the partition may have come back
when it was over, in time, and nobody asked again. Who gave way to another
transaction does not count as a try: a store whose locks favour long readers refuses every writer
of a crowded partition for seconds, and serves. Locks that nobody holds are found by their state.
Time is told in steps, so that a long history gives a short table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import attrs
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import OK, TYPES, codes, ints
from checkers.explain.attribution import windows
from checkers.explain.words import NANOSECONDS, seconds
from harness.protocols.checker import EXAMPLES_MAX, Exchange, Kernel, Lookup, Part, Setting, Tables
from harness.protocols.verdict import Anomaly

LIVENESS = "liveness"
STEP_NS = 50_000_000  # what is tried or acknowledged within a step counts as at its end
MIN_TRIES = 3  # one or two transactions fail for their own reasons: locks, deadlines
# Where reads commit, a write may still meet what only writes meet. One in forty of those that a
# sound store is asked for after the bound fails, and in two of three short drills some partition is
# asked for as many.
MIN_WRITES = 5
TRIES = "liveness.tries"


def count_tries(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """``liveness.tries``: what micro-operations there were, by partition, step of their
    transaction's begin and of its end, whether they write and whether it was acknowledged; none of
    who gave way to another.
    """
    if isinstance(setting.declaration.liveness_s, msgspec.UnsetType):
        return {}
    steps, transactions = tables["micro_ops"], tables["transactions"]
    steps = steps.filter(steps["partition"].is_valid())
    gave_way = np.asarray(_gave_way(transactions, setting.declaration.conflicts))
    steps = steps.filter(pa.array(~gave_way[ints(steps, "txn")]))
    txn = ints(steps, "txn")
    rows = pa.table(
        {
            "partition": ints(steps, "partition"),
            "begun": ints(transactions, "invoke_ns")[txn] // STEP_NS,
            "ended": ints(transactions, "complete_ns")[txn] // STEP_NS,
            "writes": pc.not_equal(steps["f"], "r"),
            "ok": codes(transactions, "type", TYPES)[txn] == OK,
        }
    )
    return {TRIES: rows.group_by(rows.column_names).aggregate([])}


def _gave_way(
    transactions: pa.Table, conflicts: tuple[str, ...] | msgspec.UnsetType
) -> pa.ChunkedArray:
    """Whether each transaction ended with one of the codes ``conflicts``."""
    known = () if isinstance(conflicts, msgspec.UnsetType) else conflicts
    return pc.is_in(
        transactions.column("error").cast(pa.string()), value_set=pa.array(known, pa.string())
    )


@attrs.frozen
class Liveness:
    """Judges only systems that declare a bound."""

    name: str = LIVENESS
    kernels: tuple[Kernel, ...] = (Kernel(name=LIVENESS, exchange=Exchange.KEY, run=count_tries),)

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """``liveness``, an example for each partition and stretch without a commit."""
        bound_s = setting.declaration.liveness_s
        if isinstance(bound_s, msgspec.UnsetType) or TRIES not in tables:
            return Part()
        examples = [
            example
            for stretch in calm(tables["faults"], setting, int(bound_s * NANOSECONDS))
            for example in _silent(tables[TRIES], stretch, bound_s)
        ]
        if not examples:
            return Part()
        found = Anomaly(count=len(examples), examples=tuple(examples[:EXAMPLES_MAX]))
        return Part(anomalies={LIVENESS: found})


class Calm(NamedTuple):
    """A stretch without any fault, from a heal on: what was begun before ``end_ns`` and had ended
    by ``over_ns`` met none.
    """

    start_ns: int
    end_ns: int
    over_ns: int


def calm(faults: pa.Table, setting: Setting, least_ns: int) -> Iterator[Calm]:
    """Those of the drive, of ``least_ns`` at least. What the last is over by has no end: no fault
    follows.
    """
    marks = dict(setting.phases)
    if "drive" not in marks or "heal" not in marks:
        return
    calm_ns: int | None = None
    for window in windows(faults):
        start_ns, end_ns = window["start_ns"], window["end_ns"]
        if calm_ns is not None and start_ns - calm_ns >= least_ns:
            yield Calm(calm_ns, start_ns, start_ns)
        if end_ns is None:
            return
        calm_ns = max(calm_ns or 0, end_ns)
    if calm_ns is not None and marks["heal"] - calm_ns >= least_ns:
        yield Calm(calm_ns, marks["heal"], 2**62)


def _silent(tries: pa.Table, stretch: Calm, bound_s: float) -> Iterator[dict[str, Any]]:
    """Partitions that were asked for several things after the bound, and had committed none."""
    start_ns, end_ns, over_ns = stretch
    first, due = start_ns // STEP_NS + 1, (start_ns + int(bound_s * NANOSECONDS)) // STEP_NS + 1
    begun, ended, partition = ints(tries, "begun"), ints(tries, "ended"), ints(tries, "partition")
    ok, writes = np.asarray(tries.column("ok")), np.asarray(tries.column("writes"))
    tried = ~ok & (begun >= due) & (begun < end_ns // STEP_NS) & (ended < over_ns // STEP_NS)
    served = ok & (ended >= first)
    for number in np.unique(partition[tried]).tolist():
        here = partition == number
        kinds = (
            ("nothing", "transactions", here, MIN_TRIES),
            ("no write", "transactions that write", here & writes, MIN_WRITES),
        )
        for none, what, among, least in kinds:
            # As many at least: of those that took the same steps of time one counts, as nothing
            # tells them from the operations of a single one.
            made = set(zip(begun[tried & among], ended[tried & among], strict=True))
            last = max((end for _, end in made), default=0)
            if len(made) >= least and not np.any(served & among & (ended <= last)):
                text = (
                    f"liveness: partition {number} committed {none} within {bound_s:g} s after "
                    f"every fault was healed at {seconds(start_ns)}, nor until "
                    f"{seconds(last * STEP_NS)} (at least {len(made)} {what} were begun after the "
                    "bound)"
                )
                yield {"text": text, "txns": [], "keys": [], "partition": number, "at_ns": start_ns}
                break


CHECKER = Liveness()
