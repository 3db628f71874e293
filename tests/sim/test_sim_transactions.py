"""Coordinators are killed between prepare and commit: nothing stays locked, nothing is done by
halves; and drills over several partitions are judged like any other.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import attrs
import pytest
from sim_lab import drill

from checkers.engine.analyze import analyze
from clusters.providers.sim.loop import simulate
from clusters.providers.sim.provider import SimProvider
from clusters.reference.client import ReferenceClient
from clusters.reference.node.admin import ask
from clusters.reference.node.tx.primary import STALENESS_S
from clusters.reference.node.wire.reports import AskStatus, NodeReport, PrimaryStatus
from clusters.reference.system import CLIENT, ReferenceSystem
from clusters.reference.system import build as build_system
from harness.exit_codes import Outcome
from harness.plan.plan import loads
from harness.protocols.client import READ_WRITE, StoreError
from harness.protocols.cluster import Cluster

NAMES = ("n1", "n2", "n3")
PARTITIONS = 4
OPENING = 100
LIMIT_S = 3.0
MARK = 10_000  # a key beside the accounts


@attrs.define
class Bank:
    """One account in each partition, and clients that move money between them."""

    provider: SimProvider
    system: ReferenceSystem
    cluster: Cluster
    accounts: tuple[int, ...]
    rng: random.Random
    commits: int = 0
    over: bool = False
    looks: int = 0
    marks: list[tuple[float, int]] = attrs.field(factory=list)
    refused: dict[str, int] = attrs.field(factory=dict)

    async def client(self, node: str) -> ReferenceClient:
        return await self.system.connect(self.cluster, node, 0)

    def deadline_s(self) -> float:
        return asyncio.get_running_loop().time() + LIMIT_S

    async def transfers(self, node: str) -> None:
        """Move money through ``node`` until it is over or the node is gone."""
        client = await self.client(node)
        while not self.over and client.node == node:
            giver, taker = self.rng.sample(self.accounts, 2)
            try:
                tx = await client.begin(READ_WRITE, self.deadline_s())
                held = [await tx.read(giver), await tx.read(taker)]
                amount = self.rng.randint(1, 5)
                await tx.write(giver, int(held[0] or 0) - amount)  # type: ignore[call-overload]
                await tx.write(taker, int(held[1] or 0) + amount)  # type: ignore[call-overload]
                await tx.commit()
                self.commits += 1
            except StoreError as error:
                if error.code == "CONNECTION-LOST":
                    return
                await asyncio.sleep(0.002)
        await client.close()

    async def snapshots(self, node: str) -> None:
        """Look at all accounts at one moment, again and again: there is always the same money, and
        never less than was put down ``STALENESS_S`` before.
        """
        client = await self.client(node)
        while not self.over and client.node == node:
            begun_s = asyncio.get_running_loop().time()
            least = max((n for at_s, n in self.marks if at_s < begun_s - STALENESS_S), default=0)
            try:
                tx = await client.begin("snapshot", self.deadline_s())
                held = []
                for key in self.accounts:
                    held.append(await tx.read(key))
                    await asyncio.sleep(self.rng.uniform(0.0, 0.05))
                mark = await tx.read(MARK)
                await tx.commit()
            except StoreError as error:
                self.refused[error.code] = self.refused.get(error.code, 0) + 1
                if error.code == "CONNECTION-LOST":
                    return
                await asyncio.sleep(0.01)
                continue
            assert sum(int(value or 0) for value in held) == PARTITIONS * OPENING  # type: ignore[call-overload]
            assert int(mark or 0) >= least  # type: ignore[call-overload]
            self.looks += 1
        await client.close()

    async def put_marks(self, node: str) -> None:
        """Count up at ``MARK``, and remember when each count was acknowledged."""
        client, count = await self.client(node), 0
        while not self.over and client.node == node:
            count += 1
            try:
                await client.one_shot([(MARK, count)], self.deadline_s())
            except StoreError:
                pass
            else:
                self.marks.append((asyncio.get_running_loop().time(), count))
            await asyncio.sleep(0.05)
        await client.close()

    async def open_accounts(self) -> None:
        client = await self.client("n1")
        await client.one_shot([(key, OPENING) for key in self.accounts], self.deadline_s())

    async def total(self) -> int:
        client = await self.client("n2")
        done = await client.one_shot([(key, None) for key in self.accounts], self.deadline_s())
        assert all(isinstance(value, int) for value in done.values)
        return sum(value for value in done.values if isinstance(value, int))

    async def reports(self) -> list[NodeReport]:
        found = []
        for node in self.cluster.nodes:
            address = self.cluster.client[node][CLIENT]
            try:
                report = await ask(
                    self.provider.client_network, address.host, address.port, AskStatus(), 1.0
                )
            except (OSError, TimeoutError, Exception):  # noqa: S112 (a killed node)
                continue
            assert isinstance(report, NodeReport)
            found.append(report)
        return found

    async def statuses(self) -> list[PrimaryStatus]:
        return [status for report in await self.reports() for status in report.primaries]

    async def round(self, coordinator: str) -> int:
        """Kill ``coordinator`` at a random moment of its clients' work; how many transactions it
        left prepared.
        """
        self.over = False
        others = [name for name in NAMES if name != coordinator]
        work = [
            asyncio.ensure_future(self.transfers(node))
            for node in (coordinator, coordinator, coordinator, others[0])
        ]
        await asyncio.sleep(self.rng.uniform(0.02, 0.12))
        await self.provider.kill(coordinator)
        left = {
            txn
            for status in await self.statuses()
            for txn in status.prepared
            if txn.startswith(f"{coordinator}~")
        }
        await asyncio.sleep(self.rng.uniform(0.0, 3.0))
        await self.provider.start(coordinator)
        self.over = True
        await asyncio.gather(*work)
        loop = asyncio.get_running_loop()
        await self.system.recover(self.cluster, self.provider, loop.time() + 30.0)
        return len(left)

    async def quiet(self, limit_s: float) -> None:
        """Return once nobody holds or waits for anything, and every node has its lease, without
        which primaries take it for silent; fail after ``limit_s``.
        """
        give_up_s = asyncio.get_running_loop().time() + limit_s
        while True:
            reports = await self.reports()
            busy = [
                status
                for report in reports
                for status in report.primaries
                if status.prepared or status.locks or status.open or status.waiting
            ]
            leased = [report.node for report in reports if report.lease_s > 0]
            if not busy and len(leased) == len(NAMES):
                return
            assert asyncio.get_running_loop().time() < give_up_s, (busy, leased)
            await asyncio.sleep(0.1)


async def bank(seed: int, names: tuple[str, ...] = NAMES) -> Bank:
    loop = asyncio.get_running_loop()
    provider = SimProvider(seed=seed)
    options = {"partitions": PARTITIONS}
    system = build_system(options, names, seed, network=provider.client_network)
    cluster = await provider.provision(names, system.ports)
    for name in names:
        await provider.install(name, system.program(name, cluster))
    await system.set_up(cluster, provider, loop.time() + 30.0)
    accounts = tuple(
        next(key for key in range(1000) if system.partition_of(key) == partition)
        for partition in range(PARTITIONS)
    )
    made = Bank(provider, system, cluster, accounts, random.Random(seed))
    await made.open_accounts()
    return made


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_a_coordinator_killed_at_any_moment_leaves_no_lock_and_no_half_transaction(
    seed: int,
) -> None:
    async def main() -> tuple[int, int]:
        made, left = await bank(seed), 0
        for number in range(25):
            left += await made.round(NAMES[number % 3])
            await made.quiet(limit_s=LIMIT_S + 2.0)
            assert await made.total() == PARTITIONS * OPENING
        await made.quiet(limit_s=1.0)
        assert not [status for status in await made.statuses() if status.outcomes > 60]
        await made.provider.teardown()
        return left, made.commits

    left, commits = simulate(main(), horizon_s=1000.0)

    assert left >= 5, "no kill hit a prepared transaction: nothing was shown"
    assert commits > 200


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_snapshots_are_one_moment_and_not_too_old_while_primaries_are_cut_off_and_killed(
    seed: int,
) -> None:
    async def main() -> Bank:
        made = await bank(seed)
        work = [
            asyncio.ensure_future(task)
            for task in (
                *(made.transfers(node) for node in NAMES),
                *(made.snapshots(node) for node in NAMES),
                made.put_marks("n1"),
            )
        ]
        for number in range(4):
            await asyncio.sleep(2.0)
            roles = await made.system.roles(made.cluster)
            away = roles.leaders.get(number % PARTITIONS, "n2")
            if away == "n1" or number % 2:
                others = [name for name in NAMES if name != away]
                links = [(away, o) for o in others] + [(o, away) for o in others]
                await made.provider.cut(tuple(sorted(links)))
                await asyncio.sleep(2.0)
                await made.provider.cut(())
            else:
                await made.provider.kill(away)
                await asyncio.sleep(1.0)
                await made.provider.start(away)
        await asyncio.sleep(2.0)
        made.over = True
        await asyncio.gather(*work)
        await made.provider.teardown()
        return made

    made = simulate(main(), horizon_s=200.0)

    assert made.looks > 50, made.refused
    assert made.commits > 100
    assert len(made.marks) > 50


PLAN = """
[cluster]
provider = "sim"
nodes = 5
[system]
partitions = 8
[workload]
key_count = 12
[drive]
duration_s = 20
concurrency = 8
rate_per_s = 100
[nemesis]
mix = ["kill", "partition"]
first_s = 2
hold_s = 3
quiet_s = 2
"""


@pytest.mark.parametrize("seed", range(1, 9))
def test_transactions_over_partitions_stay_strictly_serializable_under_kills_and_cuts(
    seed: int, tmp_path: Path
) -> None:
    run, manifest = drill(loads(PLAN, {"seed": seed}), tmp_path / "run")

    verdict = analyze(run, executor="local")

    assert manifest.trouble == ()
    assert (verdict.outcome, dict(verdict.anomalies)) == (Outcome.VALID, {})
