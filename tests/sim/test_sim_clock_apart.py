"""A node that starts with a clock which the others can't follow leads nothing."""

from __future__ import annotations

import asyncio

import pytest
from test_sim_transactions import NAMES, PARTITIONS, Bank, bank

from clusters.providers.sim.loop import simulate
from harness.clock import RunClock
from harness.history.records import EventKind
from harness.protocols.client import READ_WRITE, StoreError
from harness.protocols.hardware import ClockTrouble

SETTLED_S = 5.0  # an election, a lease that ends, a takeover


async def served(made: Bank, node: str) -> set[int]:
    """The partitions that a client of ``node`` can use."""
    client, found = await made.client(node), set()
    for partition, key in enumerate(made.accounts):
        try:
            tx = await client.begin(READ_WRITE, made.deadline_s())
            await tx.read(key)
            await tx.commit()
        except StoreError:
            continue
        found.add(partition)
    await client.close()
    return found


async def restarted(made: Bank, jump_s: float) -> tuple[dict[str, set[int]], list[str]]:
    """Start n1 anew with its wall clock moved, then the others in turn, so that whoever may lead
    does; what each node serves, and what n1 says of its leases.
    """
    provider, loop, names = made.provider, asyncio.get_running_loop(), made.cluster.nodes
    await provider.set_clock("n1", ClockTrouble(jump_s=jump_s))
    for node in names:
        await provider.kill(node)
        await asyncio.sleep(SETTLED_S)
        await provider.start(node)
        await asyncio.sleep(SETTLED_S)
    told = await made.system.events(made.cluster, RunClock(loop))
    lost = [e.text for e in told if e.node == "n1" and e.kind is EventKind.LEASE_LOST]
    return {node: await served(made, node) for node in names}, lost


@pytest.mark.parametrize(("jump_s", "said"), [(20.0, "ahead of n2, n3"), (-20.0, "behind n2, n3")])
def test_a_clock_too_far_from_all_others_leads_nothing(jump_s: float, said: str) -> None:
    async def main() -> tuple[dict[str, set[int]], list[str]]:
        made = await bank(1)
        found = await restarted(made, jump_s)
        await made.provider.teardown()
        return found

    serves, lost = simulate(main(), horizon_s=500.0)

    every = set(range(PARTITIONS))
    assert serves == {"n1": set(), "n2": every, "n3": every}
    assert [text for text in lost if text.startswith("n1 leads nothing") and said in text]


@pytest.mark.parametrize("names", [NAMES, ("n1", "n2"), ("n1", "n2", "n3", "n4")])
@pytest.mark.parametrize("jump_s", [20.0, -20.0])
def test_a_clock_that_is_set_right_needs_no_restart(jump_s: float, names: tuple[str, ...]) -> None:
    async def main() -> dict[str, set[int]]:
        made = await bank(1, names)
        await restarted(made, jump_s)
        await made.provider.set_clock("n1", ClockTrouble(jump_s=-jump_s))
        await asyncio.sleep(abs(jump_s) + SETTLED_S)
        found = {node: await served(made, node) for node in names}
        await made.provider.teardown()
        return found

    every = set(range(PARTITIONS))
    assert simulate(main(), horizon_s=500.0) == dict.fromkeys(names, every)


def test_a_clock_that_can_be_followed_is_no_reason_to_lead_nothing() -> None:
    async def main() -> tuple[dict[str, set[int]], list[str]]:
        made = await bank(1)
        found = await restarted(made, 3.0)
        await made.provider.teardown()
        return found

    serves, lost = simulate(main(), horizon_s=500.0)

    assert set(map(len, serves.values())) == {PARTITIONS}
    assert not [text for text in lost if "leads nothing" in text]
