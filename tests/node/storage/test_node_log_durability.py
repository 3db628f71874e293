"""What the shared log keeps when the power fails, on a disk that loses what was not synced."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

from clusters.providers.sim.disk import Platter, SimDisk
from clusters.providers.sim.loop import simulate
from clusters.reference.node.raft.types import Entry, HardState
from clusters.reference.node.storage.identity import load
from clusters.reference.node.storage.log_records import Update
from clusters.reference.node.storage.shared_log import SharedLog

SEEDS = range(20)


async def opened(platter: Platter, *, fsync: bool = True) -> SharedLog:
    log = SharedLog(SimDisk(platter), fsync=fsync)
    await log.open()
    return log


async def commits(log: SharedLog, count: int) -> None:
    for index in range(1, count + 1):
        entry = Entry(1, index, b"x" * 50)
        await log.append([Update("p0", HardState(1, "n1"), (entry,))])


def kept(log: SharedLog) -> int:
    return len(log.groups["p0"].entries) if "p0" in log.groups else 0


def after_power_loss(scenario: Callable[[Platter], Awaitable[None]]) -> list[int]:
    """How many entries are left, for each of some crashes."""

    async def one(seed: int) -> int:
        platter = Platter(random.Random(seed))
        await scenario(platter)
        platter.crash()
        return kept(await opened(platter))

    return [simulate(one(seed)) for seed in SEEDS]


def test_what_was_appended_survives_a_power_loss() -> None:
    async def scenario(platter: Platter) -> None:
        await commits(await opened(platter), 5)

    assert after_power_loss(scenario) == [5] * len(SEEDS)


def test_the_planted_bug_no_fsync_loses_it() -> None:
    async def scenario(platter: Platter) -> None:
        await commits(await opened(platter, fsync=False), 5)

    assert min(after_power_loss(scenario)) < 5


def test_an_append_that_was_cut_off_leaves_a_log_that_opens() -> None:
    async def scenario(platter: Platter) -> None:
        await commits(await opened(platter), 3)
        unsynced = await opened(platter, fsync=False)
        await unsynced.append([Update("p0", None, (Entry(1, 4, b"y" * 500),))])

    left = after_power_loss(scenario)
    assert set(left) <= {3, 4}
    assert 3 in left


def test_what_a_start_found_in_the_cache_is_durable_before_it_is_relied_on() -> None:
    async def scenario(platter: Platter) -> None:
        await commits(await opened(platter, fsync=False), 5)
        assert kept(await opened(platter)) == 5  # a restart of the process alone

    assert after_power_loss(scenario) == [5] * len(SEEDS)


def test_a_node_stays_who_it_is_until_it_is_wiped() -> None:
    async def scenario() -> None:
        platter = Platter(random.Random(1))
        identity = await load(SimDisk(platter), "n1", random.Random(7))
        platter.crash()

        again = await load(SimDisk(platter), "n1", random.Random(8))
        assert again == identity
        wiped = await load(SimDisk(Platter(random.Random(2))), "n1", random.Random(9))
        assert wiped.incarnation != identity.incarnation

    simulate(scenario())
