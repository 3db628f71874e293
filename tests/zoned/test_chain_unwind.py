"""The examples of IEP-131, phase 2: resets one after the other, and a restart of all.

b to h are A to G there, and a has metastorage.
"""

from __future__ import annotations

import asyncio
from itertools import product

import pytest
from test_partition_resets import STABLE, append, cluster, kill, read, settled_replicas
from zoned_lab import Lab

from clusters.providers.sim.loop import simulate
from clusters.reference.node.config import DEFAULT_SNAPSHOT_BYTES
from clusters.reference.node.events import PARTITION_RESET, RESTORED, START_DECISION

NODES = "bcdefgh"
OPTIONS = (
    "CONSISTENCY_MODE = HIGH_AVAILABILITY, PARTITION_DISTRIBUTION_RESET_TIMEOUT = 1, "
    "DATA_NODES_AUTO_ADJUST_SCALE_UP = 600"
)


async def example(
    lab: Lab,
    *,
    phase2: bool,
    inserted: int | None,
    last: int | None = None,
    snapshot_bytes: int = DEFAULT_SNAPSHOT_BYTES,
) -> None:
    """A(10) B(10) C(10) D(10) E(5) F(5) G(5), resets to E, F, G and to G, and a restart of all."""
    settings = {"snapshot_bytes": snapshot_bytes}
    await cluster(lab, NODES, OPTIONS, 7, phase2=phase2, settings=settings)
    for number in range(1, 6):
        await append(lab, number)
    await settled_replicas(lab, NODES)
    sides = tuple(sorted((*product("bcde", "fgh"), *product("fgh", "bcde"))))
    await lab.provider.cut(sides)
    await asyncio.sleep(5.0)  # or what was sent before would arrive once the links are healed
    for number in range(6, 11):
        await append(lab, number)
    await kill(lab, "bcde")
    await lab.provider.cut(())
    await lab.until_rows(STABLE, {("f,g,h",)})
    if inserted is not None:
        await append(lab, inserted)
        await asyncio.sleep(2.0)  # snapshots that are due are taken
    await kill(lab, "fg")
    await lab.until_rows(STABLE, {("h",)})
    if last is not None:
        await append(lab, last)
    await lab.provider.kill("h")
    await asyncio.sleep(1.0)
    await lab.start(*NODES)


async def decisions(lab: Lab) -> dict[str, str]:
    """What each node did with its copy."""
    found = {}
    for node in NODES:
        told = [e for e in await lab.events(node, START_DECISION) if "link" in e.text]
        found[node] = told[0].decision or "" if told else ""
    return found


@pytest.mark.parametrize("phase2", [False, True])
def test_example_1_nobody_wrote_after_the_resets(phase2: bool) -> None:
    async def story() -> None:
        lab = Lab(4, ("a", *NODES))
        await example(lab, phase2=phase2, inserted=None)
        found = await read(lab)
        if not phase2:
            assert found == (1, 2, 3, 4, 5)
            return
        assert found == tuple(range(1, 11))
        expected = dict.fromkeys("bcde", "starts") | dict.fromkeys("fgh", "erases")
        assert await decisions(lab) == expected
        (event,) = await lab.events("a", RESTORED)
        assert event.partition == 0
        await lab.until_rows(STABLE, {(",".join(NODES),)})
        told = await settled_replicas(lab, NODES)
        assert len({replica.content for replica in told.values()}) == 1

    simulate(story())


def test_example_2_the_second_link_was_written_to() -> None:
    async def story() -> None:
        lab = Lab(5, ("a", *NODES))
        await example(lab, phase2=True, inserted=100)
        assert await read(lab) == (1, 2, 3, 4, 5, 100)
        expected = dict.fromkeys("bcdeh", "erases") | dict.fromkeys("fg", "starts")
        assert await decisions(lab) == expected

    simulate(story())


def test_what_a_snapshot_covers_counts_as_user_input() -> None:
    async def story() -> None:
        lab = Lab(5, ("a", *NODES))
        await example(lab, phase2=True, inserted=100, snapshot_bytes=1)
        assert await read(lab) == (1, 2, 3, 4, 5, 100)

    simulate(story())


def test_a_start_from_the_last_link_restores_nothing_and_begins_no_generation() -> None:
    async def story() -> None:
        lab = Lab(7, ("a", *NODES))
        await example(lab, phase2=True, inserted=100, last=101)
        assert await read(lab) == (1, 2, 3, 4, 5, 100, 101)
        assert not await lab.events("a", RESTORED)
        assert not await lab.events("h", PARTITION_RESET)

    simulate(story())


def test_a_copy_starts_as_usual_where_its_group_lives() -> None:
    async def story() -> None:
        lab = Lab(6, ("a", *"bcde"))
        await cluster(lab, "bcde", OPTIONS, 4, phase2=True)
        await append(lab, 1)
        await kill(lab, "de")
        await lab.until_rows(STABLE, {("b,c",)})
        await append(lab, 2)
        for node in "cb":
            await lab.provider.kill(node)
            await lab.start(node)
            await append(lab, 3 if node == "c" else 4)
        assert await read(lab) == (1, 2, 3, 4)
        (told,) = [e.text for e in await lab.events("c", START_DECISION) if "usual" in e.text]
        assert told.startswith("starts as usual: a majority lives, of b c")
        assert not await lab.events("a", RESTORED)

    simulate(story())
