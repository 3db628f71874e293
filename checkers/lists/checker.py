"""The checker of transactions that append to lists and read them, with Elle's semantics."""

from __future__ import annotations

import attrs
import pyarrow as pa

from checkers.cycles.cycle_anomalies import first_cycles, inferred, judged
from checkers.cycles.kernel import CYCLES
from checkers.explain.words import of_finding
from checkers.lists.by_generation import by_generation, with_keys
from checkers.lists.edges import edges, tails
from checkers.lists.findings import findings, suspects
from checkers.lists.given_up import without_given_up
from checkers.lists.list_ops import list_ops
from checkers.lists.lost_writes import lost_writes
from checkers.lists.snapshot_reads import SNAPSHOTS, snapshots
from checkers.lists.versions import versions_of
from checkers.lists.within_transaction import internal, lost_updates, own_operations
from checkers.lists.witness import WITNESSES
from harness.protocols.checker import Exchange, Kernel, Lookup, Part, Tables
from harness.protocols.setting import Setting


def infer(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """Return ``lists.findings``, ``.edges`` and ``.tails`` of the keys given, ``snapshots.seen``
    and ``.written``, ``lost-write.lost`` and ``.counts``, ``resets.cuts``, ``.findings`` and
    ``.elsewhere``, and ``lists.counts``: how many dependencies there are.

    Edges, findings and snapshots of a partition that was reset have surrogates for keys.
    """
    whole = list_ops(tables, setting)
    kept, elsewhere = without_given_up(whole, tables, setting)
    generations = by_generation(kept, tables, setting)
    ops = generations.ops
    versions = versions_of(ops)
    seen = suspects(ops, versions)
    own = own_operations(ops)
    found = [findings(ops, versions, seen), internal(ops, own), lost_updates(ops, versions, own)]
    stale, of_snapshots = snapshots(ops, versions)
    return {
        "lists.findings": pa.concat_tables([*found, stale]),
        **inferred(edges(ops, versions), tails(ops, versions), ops.txns),
        **of_snapshots,
        # Of whole keys: whether a reset permits a loss is asked once it is known.
        **lost_writes(whole, tables, setting),
        **generations.tables,
        **elsewhere,
    }


INFERENCE = Kernel(
    name="lists",
    exchange=Exchange.KEY,
    run=infer,
    numbers={
        "lists.findings": ("txn", "other"),
        "lists.edges": ("source", "target"),
        "lists.tails": ("txn",),
        "snapshots.seen": ("txn",),
        "snapshots.written": ("writer",),
        "lost-write.lost": ("writer", "read", "gone", "seen"),
        "resets.cuts": ("writer", "shown_by", "missed_by"),
        "resets.findings": ("writer", "reader"),
        "resets.elsewhere": ("writer",),
    },
)


@attrs.frozen
class ListAppend:
    """Isolation anomalies of list-append histories: those of single keys, snapshots, cycles."""

    name: str = "list-append"
    kernels: tuple[Kernel, ...] = (WITNESSES, INFERENCE, SNAPSHOTS, CYCLES)

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Return every anomaly, of any model; the model decides later which of them count."""
        findings = pa.concat_tables([tables["lists.findings"], tables["snapshots.findings"]])
        findings = with_keys(findings, setting)
        steps = with_keys(first_cycles(tables["cycles.steps"]), setting)
        return judged(tables, findings, steps, lookup, of_finding)


CHECKER = ListAppend()
