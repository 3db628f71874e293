"""The kernel of all inferences over single keys; shared by the checkers of lists."""

from __future__ import annotations

import pyarrow as pa

from checkers.lists.edges import edges, tails
from checkers.lists.findings import findings, suspects
from checkers.lists.lost import lost_writes
from checkers.lists.ops import list_ops
from checkers.lists.snapshot_reads import snapshots
from checkers.lists.transactions import internal, lost_updates, own_operations
from checkers.lists.versions import versions_of
from harness.protocols.checker import Exchange, Kernel, Setting, Tables


def infer(tables: Tables, setting: Setting) -> dict[str, pa.Table]:
    """Return ``lists.findings``, ``.edges`` and ``.tails`` of the keys given, ``snapshots.seen``
    and ``.written``, ``lost-write.lost`` and ``.counts``."""
    ops = list_ops(tables, setting)
    versions = versions_of(ops)
    seen = suspects(ops, versions)
    own = own_operations(ops)
    found = [findings(ops, versions, seen), internal(ops, own), lost_updates(ops, versions, own)]
    stale, of_snapshots = snapshots(ops, versions, tables, setting)
    return {
        "lists.findings": pa.concat_tables([*found, stale]),
        "lists.edges": edges(ops, versions),
        "lists.tails": tails(ops, versions),
        **of_snapshots,
        **lost_writes(ops, tables, setting),
    }


INFERENCE = Kernel(name="lists", exchange=Exchange.KEY, run=infer)
