"""One read of a snapshot, at the primary of its key."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from clusters.reference.node.bugs import planted
from clusters.reference.node.tx.limits import OUTCOME_TIMEOUT_S
from clusters.reference.node.tx.promises import STALENESS_S
from clusters.reference.node.wire import codes
from clusters.reference.node.wire.messages import Failed, ReadAt, Version

if TYPE_CHECKING:
    from clusters.reference.node.tx.primary import Primary


async def read_at(primary: Primary, body: ReadAt) -> Version | Failed:
    """The version at a timestamp: once promised, nobody commits below it any more; who had begun to
    is waited for. No lock is taken, so no writer ever waits for a snapshot.
    """
    now_s = asyncio.get_running_loop().time
    fresh_s = now_s() - STALENESS_S - body.age_ms / 1000
    if body.ts < primary.promises.fresh(fresh_s):
        return Failed(codes.SNAPSHOT_TOO_OLD, f"the snapshot is over {STALENESS_S:g} s old")
    if not await primary.promised(body.ts):
        if not primary.serving:
            return primary.refusal()
        return Failed(codes.CLOCK_DRIFT, "the snapshot is ahead of this node's lease")
    give_up_s = now_s() + min(OUTCOME_TIMEOUT_S, body.limit_ms / 1000)
    while (writer := primary.locks.writer(body.key)) is not None:
        tx = primary.transactions.get(writer)
        if tx is None or not tx.proposed or tx.ts > body.ts:
            break
        if planted("pending-ignored"):
            break
        primary.lazy.leave()
        if not await tx.ended(give_up_s - now_s()):
            return Failed(codes.SNAPSHOT_BUSY, f"the outcome of {writer} is not known yet")
        late = primary.partition.versions.newest(body.key).ts > body.ts
        if late and tx.durable_s < fresh_s:
            # It may have been acknowledged, at home, before the snapshot had to see it.
            return Failed(codes.SNAPSHOT_TOO_OLD, f"{writer} may be over {STALENESS_S:g} s old")
    if not primary.serving:
        return primary.refusal()
    if body.ts < primary.partition.readable_from:
        return Failed(codes.SNAPSHOT_TOO_OLD, "versions of that time may be gone")
    primary.counters["snapshots"] += 1
    if planted("snapshot-reads-newest"):
        return primary.partition.versions.newest(body.key)
    return primary.partition.versions.at(body.key, body.ts)
