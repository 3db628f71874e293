"""How long a partition is silent while the node that leads it stops in order."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from test_partition_resets import Writer, cluster
from zoned_lab import Lab, now_s

from clusters.providers.sim.loop import simulate

SILENT_S = 0.3


@pytest.mark.parametrize("seed", [1, 4])
def test_a_leader_that_stops_in_order_is_silent_for_a_moment_only(seed: int) -> None:
    async def story() -> None:
        lab = Lab(seed, ("a", "b", "c", "d"))
        await cluster(lab, "bcd", "DATA_NODES_AUTO_ADJUST_SCALE_DOWN = OFF", 3)
        writer = Writer(lab)
        work = asyncio.ensure_future(writer.run())
        await asyncio.sleep(3.0)
        primaries = (await lab.report("b")).primaries
        primary = next(status.primary for status in primaries if status.partition == 0)
        assert primary is not None
        began_s = now_s()
        await lab.provider.stop(primary)
        await asyncio.sleep(3.0)
        writer.over = True
        await work
        acks = [a.ended_s for a in writer.attempts if not a.code and a.ended_s > began_s - 1]
        assert max(later - sooner for sooner, later in pairwise(acks)) <= SILENT_S

    simulate(story())
