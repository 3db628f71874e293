"""A bank on a running store: clients of one coordinator move money between accounts."""

from __future__ import annotations

import asyncio
import random

import attrs

from clusters.reference.node.admin import ask
from clusters.reference.node.runtime.real import TcpNetwork
from clusters.reference.node.wire.reports import AskStatus, NodeReport, PrimaryStatus
from clusters.reference.system import ReferenceSystem
from harness.protocols.client import READ_WRITE, StoreError
from harness.protocols.cluster import Cluster
from harness.tasks import together

ACCOUNTS, OPENING, LIMIT_S = 16, 100, 3.0
TOTAL = ACCOUNTS * OPENING


@attrs.define
class Bank:
    """Accounts in all partitions."""

    system: ReferenceSystem
    cluster: Cluster
    commits: int = 0

    def deadline_s(self) -> float:
        return asyncio.get_running_loop().time() + LIMIT_S

    async def open(self) -> None:
        """Give each account its balance."""
        await self._one_shot("n1", OPENING)

    async def balances(self, node: str) -> list[int]:
        """What all accounts hold at one moment, asked of ``node``."""
        return await self._one_shot(node, None)

    async def transfers(self, node: str, number: int) -> None:
        """Move money through ``node`` until it is gone: the client goes on elsewhere by then."""
        choose = random.Random(number)
        client = await self.system.connect(self.cluster, node, number)
        while client.node == node:
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
                    break
                await asyncio.sleep(0.005)
        await client.close()

    async def statuses(self, nodes: tuple[str, ...]) -> list[PrimaryStatus]:
        """Every partition as each of ``nodes`` sees it."""
        reports = await together(self._report(node) for node in nodes)
        return [status for report in reports for status in report.primaries]

    async def busy(self) -> list[PrimaryStatus]:
        """Where anything is locked, waited for, open or pending."""
        told = await self.statuses(self.cluster.nodes)
        return [s for s in told if s.prepared or s.locks or s.open or s.waiting]

    async def prepared_by(self, coordinator: str, nodes: tuple[str, ...]) -> set[str]:
        """The transactions of ``coordinator`` that are pending on ``nodes``."""
        return {
            txn
            for status in await self.statuses(nodes)
            for txn in status.prepared
            if txn.startswith(f"{coordinator}~")
        }

    async def _report(self, node: str) -> NodeReport:
        address = self.cluster.client[node]["client"]
        report = await ask(TcpNetwork(), address.host, address.port, AskStatus(), LIMIT_S)
        assert isinstance(report, NodeReport)
        return report

    async def _one_shot(self, node: str, value: int | None) -> list[int]:
        client = await self.system.connect(self.cluster, node, 0)
        done = await client.one_shot([(key, value) for key in range(ACCOUNTS)], self.deadline_s())
        await client.close()
        return [held for held in done.values if isinstance(held, int)]
