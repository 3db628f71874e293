"""Coordinators are killed among transfers, as processes: no lock stays, no money is lost."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from reference_bank import ACCOUNTS, TOTAL, Bank
from reference_kit import eventually, store

ROUNDS = 4


def test_coordinators_killed_among_transfers_leave_no_lock_and_no_half_transaction(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with asyncio.timeout(100), store(tmp_path, partitions=4) as running:
            bank, pending = Bank(running.system, running.cluster), 0
            await bank.open()

            async def quiet() -> bool:
                return not await bank.busy()

            for number in range(ROUNDS):
                names = running.cluster.nodes
                victim = names[number % 3]
                work = [
                    asyncio.ensure_future(bank.transfers(victim, 10 * number + slot))
                    for slot in range(8)
                ]
                goal = bank.commits + random.Random(number).randrange(10, 50)

                async def reached(goal: int = goal) -> bool:
                    return bank.commits >= goal

                await eventually(reached, "money moves")
                await running.processes.kill(victim)
                survivors = tuple(name for name in names if name != victim)
                pending += len(await bank.prepared_by(victim, survivors))
                await asyncio.gather(*work)
                await running.processes.start(victim)
                await running.whole()
                await eventually(quiet, "nothing is locked or pending", limit_s=5.0)
                held = await bank.balances(names[(number + 1) % 3])
                assert (len(held), sum(held)) == (ACCOUNTS, TOTAL)
            assert bank.commits > 50
            assert pending > 0, "no kill hit a prepared transaction: nothing was shown"

    asyncio.run(scenario())
