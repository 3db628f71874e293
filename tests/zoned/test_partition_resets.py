"""Simulated clusters in which partitions lose their majority, in both modes (IEP-131)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

import attrs
import pytest
from zoned_lab import LIMIT_S, Lab, now_s

from clusters.providers.sim.loop import simulate
from clusters.reference.node.events import PARTITION_RESET
from clusters.reference.node.wire.reports import AskStates, ReplicaReport, StateReport
from harness.protocols.client import READ_WRITE, StoreError

NODES = ("a", "b", "c", "d", "e", "f", "g", "h")
APART = {node: {"profiles": ()} for node in "abc"}
SYSTEM_ALONE = {"system_nodes": ("a",)}
STABLE = "SELECT NODES FROM SYSTEM.ASSIGNMENTS WHERE KIND = 'stable'"
KINDS = "SELECT KIND FROM SYSTEM.ASSIGNMENTS"
ACK_LIMIT_S = 1.0
HA = "CONSISTENCY_MODE = HIGH_AVAILABILITY, PARTITION_DISTRIBUTION_RESET_TIMEOUT = 1"


@attrs.define
class Attempt:
    """One write: when it began and ended, and the error code where it failed."""

    began_s: float
    ended_s: float
    code: str = ""


class Writer:
    """Appends numbers to one key by way of node a, one after the other."""

    def __init__(self, lab: Lab, key: int = 1) -> None:
        self.lab, self.key = lab, key
        self.acknowledged: list[int] = []
        self.attempts: list[Attempt] = []
        self.over = False

    async def run(self) -> None:
        number = 0
        client = None
        while not self.over:
            number += 1
            attempt = Attempt(now_s(), 0.0)
            try:
                client = client or await self.lab.dial("a")
                tx = await client.begin(READ_WRITE, now_s() + 2.0)
                before = await tx.read(self.key)
                await tx.append(self.key, number)
                await tx.commit()
                self.acknowledged.append(number)
                assert before is None or number not in before
            except StoreError as error:
                attempt.code = error.code
                if "CONN" in error.code:
                    client = None
            attempt.ended_s = now_s()
            self.attempts.append(attempt)
            await asyncio.sleep(0.02)

    def ok_after(self, at_s: float) -> float:
        """How long after ``at_s`` the first write that began later was acknowledged."""
        return min(a.ended_s for a in self.attempts if not a.code and a.began_s >= at_s) - at_s


async def read(lab: Lab, key: int = 1) -> tuple[int, ...]:
    deadline_s = now_s() + LIMIT_S
    while True:
        try:
            client = await lab.dial("a")
            tx = await client.begin(READ_WRITE, now_s() + 2.0)
            found = await tx.read(key)
            await tx.commit()
        except StoreError:
            assert now_s() < deadline_s
            await asyncio.sleep(0.05)
        else:
            assert isinstance(found, tuple | None)
            return found or ()


async def append(lab: Lab, number: int, key: int = 1) -> None:
    """Append until it is acknowledged."""
    deadline_s = now_s() + LIMIT_S
    while True:
        try:
            client = await lab.dial("a")
            tx = await client.begin(READ_WRITE, now_s() + 2.0)
            await tx.append(key, number)
            await tx.commit()
        except StoreError:
            assert now_s() < deadline_s
            await asyncio.sleep(0.05)
        else:
            return


async def refused(lab: Lab, code: str = "NO-MAJORITY") -> None:
    """A read is refused with ``code``, at once."""
    client = await lab.dial("a")
    began_s = now_s()
    tx = await client.begin(READ_WRITE, now_s() + 5.0)
    with pytest.raises(StoreError) as found:
        await tx.read(1)
    assert found.value.code == code
    assert now_s() - began_s <= ACK_LIMIT_S


async def settled_replicas(lab: Lab, nodes: str) -> dict[str, ReplicaReport]:
    """The replicas on ``nodes``, once all have applied the same and nothing moves."""
    deadline_s = now_s() + LIMIT_S
    while True:
        told = await replicas(lab, nodes)
        kinds = {row[0] for row in await lab.done(KINDS)}
        places = {(r.applied_index, r.last_index) for r in told.values()}
        if len(told) == len(nodes) and kinds == {"stable"} and len(places) == 1:
            return told
        assert now_s() < deadline_s, (told, kinds)
        await asyncio.sleep(0.1)


async def replicas(lab: Lab, nodes: Iterable[str]) -> dict[str, ReplicaReport]:
    """The replica of partition 0 on each of ``nodes``, where it runs."""
    found = {}
    for node in nodes:
        answer = await lab.ask(node, AskStates(whole=True))
        assert isinstance(answer, StateReport)
        for replica in answer.replicas:
            if replica.partition == 0:
                found[node] = replica
    return found


async def cluster(
    lab: Lab,
    nodes: Iterable[str],
    options: str,
    replicas: int,
    *,
    phase2: bool = False,
    rebalance: str = "base",
    settings: Mapping[str, object] | None = None,
) -> None:
    """Node a with metastorage alone, and ``nodes`` with one partition of ``replicas``."""
    common = {**SYSTEM_ALONE, "phase2": phase2, "rebalance": rebalance}
    await lab.provision(common, {"a": {"profiles": ()}}, settings)
    await lab.start("a", *nodes)
    names = {("a",), *((node,) for node in nodes)}
    await lab.until_rows("SELECT NODE_NAME FROM SYSTEM.LOGICAL_TOPOLOGY", names)
    await lab.done(f"CREATE ZONE Z WITH PARTITIONS = 1, REPLICAS = {replicas}, {options}")
    await lab.done("CREATE TABLE T WITH PRIMARY_ZONE = Z")
    await lab.until_rows(STABLE, {(",".join(sorted(nodes)),)})


async def kill(lab: Lab, nodes: Iterable[str]) -> float:
    for node in nodes:
        await lab.provider.kill(node)
    return now_s()


async def lost_majority(seed: int, options: str) -> tuple[Lab, Writer, float]:
    lab = Lab(seed, ("a", "b", "c", "d"))
    await cluster(lab, "bcd", options, 3)
    writer = Writer(lab)
    work = asyncio.ensure_future(writer.run())
    await asyncio.sleep(3.0)
    at_s = await kill(lab, "cd")
    await asyncio.sleep(9.0)
    writer.over = True
    await work
    return lab, writer, at_s


def test_ha_serves_again_with_what_is_left_within_six_seconds() -> None:
    async def story() -> None:
        options = "CONSISTENCY_MODE = HIGH_AVAILABILITY, PARTITION_DISTRIBUTION_RESET_TIMEOUT = 2"
        lab, writer, at_s = await lost_majority(1, options)
        print("ok after", writer.ok_after(at_s), len(writer.acknowledged))
        assert writer.ok_after(at_s) <= 6.0
        await lab.until_rows(STABLE, {("b",)})
        (event,) = await lab.events("b", PARTITION_RESET)
        assert event.reset is not None
        assert (event.reset.generation, event.reset.previous_generation) == (1, 0)
        assert event.reset.survivors == ("b",)
        # Every acknowledged write before it was on b as well, if b had it: what is there is kept.
        found = await read(lab)
        after = [n for n in writer.acknowledged if n in found]
        assert len(after) >= len(writer.acknowledged) - 1

    simulate(story())


def test_sc_acknowledges_nothing_without_a_majority_and_says_so_at_once() -> None:
    async def story() -> None:
        lab, writer, at_s = await lost_majority(2, "CONSISTENCY_MODE = STRONG_CONSISTENCY")
        last_s = max(a.ended_s for a in writer.attempts if not a.code)
        assert last_s <= at_s + 1.5
        later = [a for a in writer.attempts if a.began_s >= at_s + 3.0]
        assert len(later) > 20
        assert {a.code for a in later} == {"NO-MAJORITY"}
        assert max(a.ended_s - a.began_s for a in later) <= 1.0
        for node in "ab":
            assert not await lab.events(node, PARTITION_RESET)
        await lab.start("c", "d")
        assert set(writer.acknowledged) <= set(await read(lab))

    simulate(story())


@pytest.mark.parametrize("mode", ["STRONG_CONSISTENCY", "HIGH_AVAILABILITY"])
def test_a_partition_without_any_node_is_lost_and_not_reset(mode: str) -> None:
    async def story() -> None:
        lab = Lab(9, ("a", "b", "c", "d"))
        await cluster(lab, "bcd", f"CONSISTENCY_MODE = {mode}", 3)
        states = "SELECT STATE, GENERATION, NODES_LEFT FROM SYSTEM.PARTITION_STATES"
        await lab.until_rows(states, {("MAJORITY", 0, "b,c,d")})
        await append(lab, 1)
        # At once, or what is left of a highly available one is reset.
        for node in "bcd":
            await lab.provider.kill(node)
        await lab.until_rows(states, {("LOST", 0, "")})
        await refused(lab, "PARTITION-LOST")
        await lab.start("b")
        await lab.until_rows(states, {("MINORITY", 0, "b")})
        await refused(lab)
        await lab.start("c", "d")
        await lab.until_rows(states, {("MAJORITY", 0, "b,c,d")})
        assert await read(lab) == (1,)
        assert not [e for node in "bcd" for e in await lab.events(node, PARTITION_RESET)]

    simulate(story())


@pytest.mark.parametrize("rebalance", ["base", "lock", "cancel"])
def test_all_that_are_left_have_the_partition_again_in_each_variant(rebalance: str) -> None:
    async def story() -> None:
        lab = Lab(8, ("a", *"bcdefg"))
        await cluster(
            lab, "bcdefg", f"{HA}, DATA_NODES_AUTO_ADJUST_SCALE_UP = OFF", 6, rebalance=rebalance
        )
        await append(lab, 1)
        await kill(lab, "defg")
        await lab.until_rows(STABLE, {("b,c",)})
        await append(lab, 2)
        assert await read(lab) == (1, 2)
        (event,) = [e for n in "bc" for e in await lab.events(n, PARTITION_RESET)]
        assert event.reset is not None
        assert event.reset.survivors == ("b", "c")
        assert {row[0] for row in await lab.done(KINDS)} == {"stable"}

    simulate(story())


@pytest.mark.parametrize("missed", [False, True])
def test_a_copy_that_was_wiped_since_it_was_asked_for_its_log_begins_nothing(missed: bool) -> None:
    """The chosen copy is gone before it has begun: it would begin with nothing."""

    async def story() -> None:
        lab = Lab(10, ("a", *"bcdef"))
        await cluster(lab, "bcdef", HA, 5)
        await append(lab, 1)
        await kill(lab, "def")
        pending = "SELECT NODES FROM SYSTEM.ASSIGNMENTS WHERE KIND = 'pending'"
        await lab.until_rows(pending, {("b",)})
        await lab.provider.kill("b")
        await lab.provider.wipe("b")
        if missed:
            await asyncio.sleep(3.0)
        await lab.start("b")
        # Of the copies that are left c has what was acknowledged.
        assert await read(lab) == (1,)
        await append(lab, 2)
        (event,) = await lab.events("c", PARTITION_RESET)
        assert event.reset is not None
        assert event.reset.survivors == ("c",)
        assert not await lab.events("b", PARTITION_RESET)
        await lab.start("d", "e", "f")
        await lab.until_rows(STABLE, {("b,c,d,e,f",)})
        told = await settled_replicas(lab, "bcdef")
        assert len({r.content for r in told.values()}) == 1
        assert await read(lab) == (1, 2)

    simulate(story())
