"""What a group that is joint is asked too late: it is refused, recorded, and asked once."""

from __future__ import annotations

import asyncio
from collections import Counter
from itertools import product

import pytest
from test_partition_driver import begun, settled
from test_rebalance_crashes import SEED, altered, asked, come
from zoned_lab import Lab

from clusters.providers.sim.loop import simulate
from clusters.reference.node.rebalance.failover import ReconfigurationError
from clusters.reference.node.wire.reports import AskChanges, ChangeReport, ChangeRow
from harness.protocols.cluster import LinkShape
from harness.protocols.moments import Moment

# So long that a statement, and an election, come about while a configuration is on its way.
DELAY_S = 0.15


async def slowed(lab: Lab, nodes: str, delay_s: float) -> None:
    links = [(x, y) for x, y in product("abcdef", repeat=2) if x != y and {x, y} & {*nodes}]
    await lab.provider.shape(tuple(LinkShape(link=each, delay_s=delay_s) for each in links))


async def told(lab: Lab, kind: str) -> list[ChangeRow]:
    """What leaders on all nodes have recorded of ``kind``."""
    found: list[ChangeRow] = []
    for node in "abcdef":
        reply = await lab.ask(node, AskChanges())
        assert isinstance(reply, ChangeReport)
        found += [row for row in reply.rows if row.kind == kind]
    return found


async def joint(variant: str) -> Lab:
    """A cluster in which the change of a partition, from a, b, c to c, d, e, is joint just now."""
    lab = Lab(SEED)
    await begun(lab, 3, rebalance=variant)
    await slowed(lab, "de", DELAY_S)
    began = asyncio.ensure_future(come(lab, Moment.MEMBERS_JOINT))
    await altered(lab, "cde")
    await began
    return lab


@pytest.mark.parametrize("variant", ["base", "lock", "cancel"])
def test_a_change_of_a_joint_group_is_not_cancelled_and_planned_waits(variant: str) -> None:
    async def scenario() -> list[ChangeRow]:
        lab = await joint(variant)
        await altered(lab, "def")
        moved = await asked(lab, lambda node: settled(lab, node))
        assert set().union(*moved.values()) == {"d", "e", "f"}
        return await told(lab, "cancel")

    answers = simulate(scenario())

    refused = Counter((row.partition, row.term) for row in answers if row.number == 0)
    assert bool(refused) is (variant == "cancel")
    assert set(refused.values()) <= {1}  # only once a planned set, of which there is one


@pytest.mark.parametrize("variant", ["base", "lock", "cancel"])
def test_a_leader_elected_in_a_joint_group_is_told_that_it_is_busy(variant: str) -> None:
    async def scenario() -> list[ChangeRow]:
        lab = await joint(variant)
        await asyncio.sleep(DELAY_S)  # until others have the joint configuration
        await lab.provider.kill("c")
        await asyncio.sleep(2.0)
        await lab.provider.start("c")
        moved = await asked(lab, lambda node: settled(lab, node))
        assert set().union(*moved.values()) == {"c", "d", "e"}
        return await told(lab, "change-failed")

    failures = simulate(scenario())

    busy = Counter(
        (row.partition, row.term) for row in failures if row.text == ReconfigurationError.BUSY
    )
    assert busy
    assert set(busy.values()) == {1}
