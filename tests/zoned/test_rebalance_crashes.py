"""Leaders that die right before and right after each thing that is written to metastorage for their
partition's rebalance, in every stage of it, under load. FIREDRILL_CRASHES=all tries all of them.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from itertools import pairwise, product
from typing import Any, TypeVar

import attrs
import pytest
from test_partition_driver import KEYS, PARTITIONS, begun, settled
from test_rebalance_failover import POLL_S, SILENT_S, Timed, checked
from zoned_lab import LIMIT_S, Lab, now_s

from clusters.providers.sim.loop import simulate
from clusters.providers.sim.provider import SimProvider
from clusters.reference.claims.claims_reader import ReferenceClaims
from clusters.reference.client import encode_key
from clusters.reference.node.placement.partitioning import partition_of
from clusters.reference.node.raft import Stage
from clusters.reference.node.rebalance.driver import RebalanceDriver
from clusters.reference.node.rebalance.keys import PartitionId
from clusters.reference.node.rebalance.partition_driver import Led, PartitionDriver
from clusters.reference.node.rebalance.transitions import Outcome, Transition
from clusters.reference.node.runtime import ConnectionLost
from harness.protocols.client import READ_WRITE, StoreError
from harness.protocols.cluster import LinkShape
from harness.protocols.moments import Happening, Moment

ALL = os.environ.get("FIREDRILL_CRASHES") == "all"
SEED = 29
PARTITION = 0  # whose leader dies
DOWN_S = 1.5
CLIENT_LIMIT_S = 0.5
DELAY_S = 0.02  # to nodes that are to come: a catch-up takes long enough to be adjusted
# Of a majority that is needed twice, of old and new voters, two candidates are more often in each
# other's way: each election that came to nothing takes another time-out.
LOST_ELECTION_S = 1.0
STAGES = {
    Moment.MEMBERS_CATCHING_UP: Stage.CATCHING_UP,
    Moment.MEMBERS_JOINT: Stage.JOINT,
    Moment.MEMBERS_STABLE: Stage.STABLE,
}
VARIANTS, SIDES = ("base", "lock", "cancel"), ("before", "after")
TRIGGER = "trigger"
# What the leader itself writes, in the order in which a transition of several is called by them.
WRITTEN = (Outcome.CONTINUED, Outcome.COMPLETED, Outcome.LOCKED, Outcome.MOVED, Outcome.UNLOCKED)
T = TypeVar("T")
Cell = tuple[str, Stage, str, str]  # variant, stage at the leader, what was written, side


class Steady(Timed):
    """A client for each partition, which never waits for another one, and tries the next node where
    one refuses.
    """

    async def client_of(self, number: int) -> None:
        key = next(k for k in range(KEYS) if partition_of(encode_key(k), PARTITIONS) == number)
        nodes = itertools.cycle("fabcde")
        node = next(nodes)
        while not self.over:
            self.next_element += 1
            element = self.next_element
            try:
                client = await self.lab.dial(node)
                tx = await client.begin(READ_WRITE, now_s() + CLIENT_LIMIT_S)
                await tx.append(key, element)
                await tx.commit()
                self.acknowledged[key].append(element)
                await client.close()
            except StoreError:
                node = next(nodes)
            await asyncio.sleep(POLL_S)


@attrs.define
class Assassin:
    """Kills the leader of ``PARTITION`` on the given side of the write with that number, counted
    from when it is armed.
    """

    lab: Lab
    variant: str
    number: int
    side: str
    armed: bool = False
    seen: int = 0
    victim: str | None = None
    cell: Cell | None = None
    drivers: dict[str, PartitionDriver] = attrs.field(factory=dict)
    terms: dict[int, set[int]] = attrs.field(factory=lambda: defaultdict(set))  # that had a leader

    def leader(self) -> tuple[str, Stage] | None:
        """The node that leads the partition, and the stage of its change."""
        found = []
        for node, driver in self.drivers.items():
            replica = driver._replicas.replicas.get(PARTITION)
            if replica is not None and replica.group.serving:
                found.append((replica.group.raft.term, node, replica.group.raft.stage))
        return max(found)[1:] if found else None

    def observe(self, driver: PartitionDriver) -> None:
        """A tick of ``driver``'s node."""
        self.drivers[driver._node] = driver
        for number, replica in driver._replicas.replicas.items():
            if replica.group.serving:
                self.terms[number].add(replica.group.raft.term)

    def lost_elections(self, number: int) -> int:
        """How many terms of a partition had no leader."""
        return max(self.terms[number]) - len(self.terms[number])

    async def around(self, kind: str, node: str, write: Any) -> Any:
        """Do ``write``, which ``node`` is about to, and kill if it is its turn."""
        ours = self.armed and self.victim is None and self.leader() is not None
        self.seen += ours
        due = ours and self.seen > self.number
        if due and self.side == "before":
            await self.strike(kind, node)
        done = await write()
        if due and self.side == "after":
            await self.strike(kind, node)
        return done

    async def strike(self, kind: str, node: str) -> None:
        led = self.leader()
        if led is None or self.victim is not None:
            return
        self.victim, stage = led
        self.cell = self.variant, stage, kind, self.side
        # Its own act goes no further; that of metastorage's leader does, once it is dead.
        await asyncio.sleep(LIMIT_S if node == self.victim else 2 * POLL_S)

    async def kill(self) -> None:
        """Carry the sentence out."""
        while self.victim is None:  # noqa: ASYNC110 (of the simulated loop)
            await asyncio.sleep(POLL_S)
        await self.lab.provider.kill(self.victim)
        await asyncio.sleep(DOWN_S)
        await self.lab.provider.start(self.victim)


def hook(assassin: Assassin, patch: pytest.MonkeyPatch) -> None:
    """Let every write for the partition pass by ``assassin``."""
    tick, write, trigger = PartitionDriver.tick, PartitionDriver._do, RebalanceDriver._do

    def ticked(driver: PartitionDriver) -> None:
        assassin.observe(driver)
        tick(driver)

    async def written(driver: PartitionDriver, number: int, led: Led, step: Transition) -> Any:
        if number != PARTITION:
            return await write(driver, number, led, step)
        kind = next(outcome for outcome in WRITTEN if outcome in step.outcomes)
        return await assassin.around(
            kind.value, driver._node, lambda: write(driver, number, led, step)
        )

    async def triggered(
        driver: RebalanceDriver, steps: Sequence[tuple[PartitionId, Transition]]
    ) -> Any:
        if all(partition.number != PARTITION for partition, _ in steps):
            return await trigger(driver, steps)
        own = (n for n, each in assassin.drivers.items() if each._events is driver._events)
        node = next(own, "")
        return await assassin.around(TRIGGER, node, lambda: trigger(driver, steps))

    patch.setattr(PartitionDriver, "tick", ticked)
    patch.setattr(PartitionDriver, "_do", written)
    patch.setattr(RebalanceDriver, "_do", triggered)


async def asked(lab: Lab, question: Callable[[str], Awaitable[T]]) -> T:
    """What ``question`` answers of a node that is up."""
    for node in itertools.cycle("fab"):
        try:
            return await question(node)
        except ConnectionLost:
            await asyncio.sleep(POLL_S)
    raise AssertionError("no node answers")


async def altered(lab: Lab, nodes: str) -> None:
    """Lead the zone to ``nodes``, whatever becomes of the first answers."""
    names = ", ".join(f'"{node}"' for node in nodes)
    statement = f"ALTER ZONE z SET DATA_NODES_FILTER = '{names}'"
    deadline_s = now_s() + LIMIT_S
    while (await asked(lab, lambda node: lab.sql(statement, node))).problem is not None:
        assert now_s() < deadline_s
        await asyncio.sleep(POLL_S)


async def come(lab: Lab, moment: Moment) -> None:
    """Return once the leader that stays is at ``moment``: one that does not hands over first."""
    seen: list[Happening] = []
    lab.provider.watch(lambda now: seen.append(now))
    deadline_s = now_s() + LIMIT_S
    while not any(h.moment is moment and (h.partition, h.node) == (PARTITION, "c") for h in seen):
        assert now_s() < deadline_s, moment
        await asyncio.sleep(POLL_S)


def crashed(variant: str, moment: Moment, number: int, side: str) -> tuple[Cell | None, float]:
    """Move partitions from a, b, c to c, d, e, and at ``moment`` of that on to d, e, f, while the
    leader dies; where (``None``: there are not so many writes), and for how long no write to some
    partition was acknowledged.
    """
    lab = Lab(SEED)
    lab.provider = SimProvider(seed=SEED, claims=ReferenceClaims())
    assassin = Assassin(lab, variant, number, side)
    silences_s: list[float] = []

    async def scenario() -> None:
        await begun(lab, 3, rebalance=variant)
        slow = [(x, y) for x, y in product("abcdef", repeat=2) if x != y and {x, y} & {*"de"}]
        await lab.provider.shape(tuple(LinkShape(link=each, delay_s=DELAY_S) for each in slow))
        load = Steady(lab, SEED)
        work = [asyncio.ensure_future(load.client_of(number)) for number in range(PARTITIONS)]
        work += [asyncio.ensure_future(load.watch())]
        killing = asyncio.ensure_future(assassin.kill())
        await asyncio.sleep(1.0)
        began = asyncio.ensure_future(come(lab, moment))
        await altered(lab, "cde")
        await began
        assassin.armed = True
        await altered(lab, "def")
        await asyncio.sleep(1.0)
        moved = await asked(lab, lambda node: settled(lab, node))
        assert set().union(*moved.values()) == {"d", "e", "f"}
        if assassin.victim is None:
            killing.cancel()
        else:
            await killing
        await asyncio.sleep(0.5)
        load.over = True
        await asyncio.gather(*work)
        await checked(lab, load)
        for number, times in load.at_s.items():
            allowed_s = LOST_ELECTION_S * assassin.lost_elections(number)
            silence_s = max((later - sooner for sooner, later in pairwise(times)), default=0.0)
            assert silence_s < SILENT_S + allowed_s, (number, assassin.terms[number])
        silences_s.append(load.longest_silence_s())
        await lab.provider.teardown()

    with pytest.MonkeyPatch.context() as patch:
        hook(assassin, patch)
        simulate(scenario())
    return assassin.cell, silences_s[0]


def every_crash(variant: str, moment: Moment, side: str) -> Iterator[tuple[Cell, float]]:
    for number in itertools.count():
        cell, silence_s = crashed(variant, moment, number, side)
        if cell is None:
            return
        yield cell, silence_s


def crashes(variant: str) -> Iterator[tuple[Cell, float]]:
    """Crash beside each write; or beside one on each side, of another stage in each variant."""
    if ALL:
        for moment, side in product(STAGES, SIDES):
            yield from every_crash(variant, moment, side)
        return
    for number, side in enumerate(SIDES, VARIANTS.index(variant)):
        cell, silence_s = crashed(variant, list(STAGES)[number % 3], number % 3, side)
        assert cell is not None
        yield cell, silence_s


def lacking(variant: str, hit: Collection[Cell]) -> list[tuple[str, str]]:
    """The writes and sides beside which no leader died, of those that there must be in each stage,
    or in any.
    """
    own = {"base": Outcome.CONTINUED, "lock": Outcome.LOCKED, "cancel": Outcome.MOVED}[variant]
    cells: list[tuple[Stage | None, str]] = [(stage, TRIGGER) for stage in Stage]
    cells += [(None, Outcome.COMPLETED.value), (None, own.value)]
    return [
        (kind if stage is None else f"{kind} while {stage}", side)
        for (stage, kind), side in product(cells, SIDES)
        if not any(c[2:] == (kind, side) and stage in (None, c[1]) for c in hit)
    ]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_leader_that_dies_beside_a_write_leaves_a_rebalance_that_the_next_one_completes(
    variant: str,
) -> None:
    hit, silences_s = Counter[Cell](), dict[Cell, float]()
    for cell, silence_s in crashes(variant):
        hit[cell] += 1
        silences_s[cell] = max(silence_s, silences_s.get(cell, 0.0))
    for cell, times in sorted(hit.items()):
        print(f"{' '.join(cell)}: {times}, silent for at most {silences_s[cell]:.2f} s")

    assert len(hit) >= len(SIDES)
    assert not ALL or not lacking(variant, hit)
