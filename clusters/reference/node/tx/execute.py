"""A whole transaction of one partition, at its primary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusters.reference.node.tx.limits import answer_too_large
from clusters.reference.node.wire import codes
from clusters.reference.node.wire.messages import (
    CommitReply,
    Execute,
    ExecuteReply,
    Failed,
    LockToken,
)

if TYPE_CHECKING:
    from clusters.reference.node.tx.primary import Primary


async def execute(primary: Primary, body: Execute) -> ExecuteReply | Failed:
    """All locks, then all gets, then one command; gets see the puts before them."""
    tx = primary.open_or_resume(body.txn, LockToken(0, 0), body.limit_ms)
    if isinstance(tx, Failed):
        return tx
    writes: dict[bytes, bytes] = {}
    values: list[bytes | None] = []
    for key, value in body.steps:
        failed = await primary.acquire(tx, key, exclusive=value is not None)
        if failed is not None:
            primary.drop(body.txn)
            return failed
        if value is not None:
            writes[key] = value
        else:
            values.append(writes.get(key, primary.partition.versions.newest(key).value))
    failed = answer_too_large(values)
    if failed is not None:
        primary.drop(body.txn)
        return failed
    if not writes:
        ts = primary.clock.now()
        promised = await primary.promised(ts) and not tx.over
        primary.drop(body.txn)
        if promised:
            return ExecuteReply(tuple(values), ts)
        return Failed(codes.LOST, f"{body.txn}: the lease ended before its reads were valid")
    done = await primary.commit(tx, 0, tuple(writes.items()), ())
    return ExecuteReply(tuple(values), done.ts) if isinstance(done, CommitReply) else done
