"""Coordinators are killed among transfers, as processes: no lock stays, no money is lost."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import attrs
from reference_kit import Store, eventually, store

from clusters.reference.node.admin import ask
from clusters.reference.node.runtime.real import TcpNetwork
from clusters.reference.node.wire.messages import AskStatus, NodeReport, PrimaryStatus
from harness.client import READ_WRITE, StoreError

ACCOUNTS, OPENING, LIMIT_S, ROUNDS = 16, 100, 3.0, 4


@attrs.define
class Bank:
    """Accounts in all partitions, and clients of one coordinator that move money."""

    running: Store
    commits: int = 0

    def deadline_s(self) -> float:
        return asyncio.get_running_loop().time() + LIMIT_S

    async def transfers(self, node: str, number: int) -> None:
        """Move money through ``node`` until it is gone."""
        choose = random.Random(number)
        client = await self.running.system.connect(self.running.cluster, node, number)
        while True:
            try:
                tx = await client.begin(READ_WRITE, self.deadline_s())
                giver, taker = choose.sample(range(ACCOUNTS), 2)
                for key, amount in ((giver, -1), (taker, 1)):
                    held = await tx.read(key)
                    assert isinstance(held, int)
                    await tx.write(key, held + amount)
                await tx.commit()
                self.commits += 1
            except StoreError as error:
                if error.code == "CONNECTION-LOST":
                    return
                await asyncio.sleep(0.005)

    async def one_shot(self, node: str, value: int | None) -> list[int]:
        client = await self.running.system.connect(self.running.cluster, node, 0)
        done = await client.one_shot([(key, value) for key in range(ACCOUNTS)], self.deadline_s())
        await client.close()
        return [held for held in done.values if isinstance(held, int)]

    async def primaries(self, nodes: tuple[str, ...]) -> list[PrimaryStatus]:
        found: list[PrimaryStatus] = []
        for node in nodes:
            address = self.running.cluster.client[node]["client"]
            report = await ask(TcpNetwork(), address.host, address.port, AskStatus(), LIMIT_S)
            assert isinstance(report, NodeReport)
            found += report.primaries
        return found

    async def quiet(self) -> bool:
        statuses = await self.primaries(self.running.cluster.nodes)
        return not any(s.prepared or s.locks or s.open or s.waiting for s in statuses)


def test_coordinators_killed_among_transfers_leave_no_lock_and_no_half_transaction(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(100), store(tmp_path, partitions=4) as running:
            bank, pending = Bank(running), 0
            await bank.one_shot("n1", OPENING)
            for number in range(ROUNDS):
                names = running.cluster.nodes
                victim = names[number % 3]
                work = [
                    asyncio.ensure_future(bank.transfers(victim, 10 * number + slot))
                    for slot in range(8)
                ]
                await asyncio.sleep(random.Random(number).uniform(0.3, 0.6))
                await running.processes.kill(victim)
                survivors = tuple(name for name in names if name != victim)
                pending += sum(len(s.prepared) for s in await bank.primaries(survivors))
                await asyncio.gather(*work)
                await running.processes.start(victim)
                await running.whole()
                await eventually(bank.quiet, "nothing is locked or pending", limit_s=5.0)
                held = await bank.one_shot(names[(number + 1) % 3], None)
                assert (len(held), sum(held)) == (ACCOUNTS, ACCOUNTS * OPENING)
            assert bank.commits > 50
            assert pending > 0, "no kill hit a prepared transaction: nothing was shown"

    asyncio.run(scenario())
