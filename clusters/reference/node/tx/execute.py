"""A whole transaction of one partition, at its primary."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clusters.reference.node.tx.limits import answer_too_large
from clusters.reference.node.wire import codes
from clusters.reference.node.wire.messages import Committed, Execute, Executed, Failed, Hold

if TYPE_CHECKING:
    from clusters.reference.node.tx.primary import Primary


async def execute(primary: Primary, body: Execute) -> Executed | Failed:
    """All locks, then all gets, then one command; gets see the puts before them."""
    footing = primary.stand(body.txn, Hold(0, 0), body.limit_ms)
    if isinstance(footing, Failed):
        return footing
    writes: dict[bytes, bytes] = {}
    values: list[bytes | None] = []
    for key, value in body.steps:
        failed = await primary.acquire(footing, key, exclusive=value is not None)
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
        promised = await primary.promised(ts) and not footing.over
        primary.drop(body.txn)
        if promised:
            return Executed(tuple(values), ts)
        return Failed(codes.LOST, f"{body.txn}: the lease ended before its reads were valid")
    done = await primary.commit(footing, 0, tuple(writes.items()), ())
    return Executed(tuple(values), done.ts) if isinstance(done, Committed) else done
