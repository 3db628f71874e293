"""What a primary promises about timestamps, so that snapshots need no locks."""

from __future__ import annotations

import asyncio

from clusters.reference.node.placement.lease_table import LeaseTable
from clusters.reference.node.runtime.clock import Hlc

STALENESS_S = 1.5  # a snapshot that may lack what was acknowledged so long before it is refused
CEILING_WAIT_S = 1.0  # for the lease to be renewed: it is, four times
CEILING_POLL_S = 0.05


class Promises:
    """Of one primary."""

    def __init__(self, clock: Hlc, leases: LeaseTable) -> None:
        self._clock, self._leases = clock, leases
        self._found_ts, self._opened_s = 0, 0.0

    def opened(self, written_ts: int) -> None:
        """The primary has taken over, and ``written_ts`` is the last version that it found."""
        self._found_ts, self._opened_s = written_ts, asyncio.get_running_loop().time()

    def fresh(self, at_s: float) -> int:
        """Nothing above this timestamp was acknowledged here before ``at_s``."""
        if at_s < self._opened_s:
            return self._found_ts
        return self._leases.clock_at(at_s)

    async def made(self, ts: int) -> bool:
        """Whether from now on, as long as the lease holds, no version is at or below ``ts``. A
        successor only knows what the lease says, so ``ts`` must be below its ceiling, which rises
        as it is renewed.
        """
        self._clock.observe(ts)
        now_s = asyncio.get_running_loop().time
        give_up_s = now_s() + CEILING_WAIT_S
        while ts > self._leases.ceiling and now_s() < give_up_s:  # noqa: ASYNC110 (two ends)
            await asyncio.sleep(CEILING_POLL_S)
        return ts <= self._leases.ceiling
