"""The promise ``liveness``: once every fault is healed, each partition commits within a bound.

The checker examines every stretch without a fault that is longer than the declared bound: during
the drive, after the last heal before it. A partition is silent where several transactions on it
began after the bound and none committed from the heal until they ended, or many that write began
and no write committed. Transactions that began earlier prove nothing: the partition may have
recovered in time when they ended, and no client asked again. A transaction that gave way to another
does not count as a try: a store whose locks favour long readers refuses every writer of a crowded
partition for seconds, and serves. Locks without an owner are found by the checker of replicas.
Times are counted in steps, so that a long history gives a short table.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import attrs
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import OK, TYPES, codes, ints
from harness.clock import NS_PER_S
from harness.protocols.checker import EXAMPLES_MAX, Exchange, Kernel, Lookup, Part, Tables
from harness.protocols.conflicts import conflicts
from harness.protocols.consistency_models import LIVENESS
from harness.protocols.fault_spans import fault_spans
from harness.protocols.finding import Finding
from harness.protocols.setting import Setting
from harness.protocols.verdict import Anomaly
from harness.text import seconds

STEP_NS = 50_000_000  # a try or an acknowledgement within a step counts as at its end
MIN_TRIES = 3  # one or two transactions fail for their own reasons: locks, deadlines
# Where reads commit, a write may still fail for reasons that reads don't have. One in forty of the
# writes that a sound store gets after the bound fails, and in two of three short drills some
# partition gets as many.
MIN_WRITES = 5
TRIES = "liveness.tries"


def count_tries(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """Return ``liveness.tries``: the distinct micro-operations by partition, step of their
    transaction's begin and of its end, whether they write and whether they were acknowledged;
    without those of transactions that gave way to another.
    """
    declared = not isinstance(setting.declaration.liveness_s, msgspec.UnsetType)
    if not declared and not setting.limits.sections:
        return {}
    steps, transactions = tables["micro_ops"], tables["transactions"]
    steps = steps.filter(steps["partition"].is_valid())
    yielded = np.asarray(conflicts(setting.declaration, transactions))
    steps = steps.filter(pa.array(~yielded[ints(steps, "txn")]))
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


@attrs.frozen
class Liveness:
    """Judges only systems that declare a bound."""

    name: str = LIVENESS
    kernels: tuple[Kernel, ...] = (
        Kernel(name=LIVENESS, exchange=Exchange.KEY, run=count_tries, numbers={}),
    )

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Return ``liveness``, with an example for each partition and stretch without a commit."""
        bound_s = setting.declaration.liveness_s
        if isinstance(bound_s, msgspec.UnsetType) or TRIES not in tables:
            return Part()
        examples = [
            example
            for stretch in calm(tables["faults"], setting, int(bound_s * NS_PER_S))
            for example in _silent(tables[TRIES], stretch, bound_s)
        ]
        if not examples:
            return Part()
        found = Anomaly(count=len(examples), examples=tuple(examples[:EXAMPLES_MAX]))
        return Part(anomalies={LIVENESS: found})


class Calm(NamedTuple):
    """A stretch without any fault, from a heal on: a transaction that began before ``end_ns`` and
    ended by ``over_ns`` met no fault.
    """

    start_ns: int
    end_ns: int
    over_ns: int


def calm(faults: pa.Table, setting: Setting, least_ns: int) -> Iterator[Calm]:
    """Yield the calm stretches of the drive that last at least ``least_ns``. The last one's
    ``over_ns`` is unbounded: no fault follows.
    """
    marks = dict(setting.phases)
    if "drive" not in marks or "heal" not in marks:
        return
    calm_ns: int | None = None
    for span in fault_spans(faults.to_pylist()):
        start_ns, end_ns = span.begin_ns, span.healed_ns
        if calm_ns is not None and start_ns - calm_ns >= least_ns:
            yield Calm(calm_ns, start_ns, start_ns)
        # A fault that was never seen to heal may be in force to the end.
        if end_ns is None:
            return
        # A fault that began earlier may heal later than this one.
        calm_ns = max(calm_ns or 0, end_ns)
    if calm_ns is not None and marks["heal"] - calm_ns >= least_ns:
        yield Calm(calm_ns, marks["heal"], 2**62)


def _silent(tries: pa.Table, stretch: Calm, bound_s: float) -> Iterator[Finding]:
    """Yield the partitions that got several tries after the bound, and had committed none."""
    start_ns, end_ns, over_ns = stretch
    first, due = start_ns // STEP_NS + 1, (start_ns + int(bound_s * NS_PER_S)) // STEP_NS + 1
    begun, ended, partition = ints(tries, "begun"), ints(tries, "ended"), ints(tries, "partition")
    ok, writes = np.asarray(tries.column("ok")), np.asarray(tries.column("writes"))
    # The step in which the stretch ends may hold operations from beyond it.
    tried = ~ok & (begun >= due) & (begun < end_ns // STEP_NS) & (ended < over_ns // STEP_NS)
    served = ok & (ended >= first)
    for number in np.unique(partition[tried]).tolist():
        here = partition == number
        kinds = (
            ("nothing", "transactions", here, MIN_TRIES),
            ("no write", "transactions that write", here & writes, MIN_WRITES),
        )
        for none, what, among, least in kinds:
            # A lower bound: transactions that took the same steps of time count as one, since they
            # look like the operations of a single transaction.
            made = set(zip(begun[tried & among], ended[tried & among], strict=True))
            last = max((end for _, end in made), default=0)
            if len(made) >= least and not np.any(served & among & (ended <= last)):
                text = (
                    f"liveness: partition {number} committed {none} within {bound_s:g} s after "
                    f"every fault was healed at {seconds(start_ns)}, nor until "
                    f"{seconds(last * STEP_NS)} (at least {len(made)} {what} were begun after the "
                    "bound)"
                )
                where = {"partition": number}
                yield Finding(text=text, txns=(), keys=(), at_ns=start_ns, details=where)
                # Where nothing committed, no write did: one finding a partition.
                break


CHECKER = Liveness()
