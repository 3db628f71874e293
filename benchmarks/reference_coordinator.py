"""Coordinators killed between prepare and commit: is anything left locked, half-done or lost?

``python benchmarks/reference_coordinator.py [--times 100] [--provider process]``. Clients move
money between accounts of several partitions, all through one node, which is killed at a random
moment; a kill counts where a transaction that it coordinated was prepared on another node and not
finished. Once it is back nothing may be locked or pending, and the accounts must hold what they
always held. Ends with 1 where one of that fails.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
from pathlib import Path

import attrs
import click
from calibrator import calibrate

from reference_running import READY_S, Running, running  # isort: skip (finds the next)
from reference_bank import TOTAL, Bank

CLIENTS = 8
PARTITIONS = 4
QUIET_S = 10.0  # who is prepared asks after a second, and again; a kill may hit who answers
TRIES_MAX = 5  # kills for each that counts: more, and something is wrong with the load
TURN_S = 120.0


@attrs.define
class Tally:
    """What came of the kills."""

    kills: int = 0
    between: int = 0
    prepared: int = 0
    locked: int = 0
    half: int = 0

    def __str__(self) -> str:
        return (
            f"{self.kills} kills, {self.between} of them between prepare and commit "
            f"({self.prepared} transactions); after recovery {self.locked} with something locked "
            f"or pending, {self.half} with another total"
        )


async def turn(store: Running, bank: Bank, number: int, tally: Tally) -> None:
    """Kill a coordinator once and look at what it left."""
    names = store.cluster.nodes
    victim = names[number % len(names)]
    others = tuple(name for name in names if name != victim)
    choose = random.Random(number)
    work = [
        asyncio.ensure_future(bank.transfers(victim, CLIENTS * number + slot))
        for slot in range(CLIENTS)
    ]
    await asyncio.sleep(choose.uniform(0.1, 0.4))
    await store.provider.kill(victim)
    # At once: before long the others ask for the outcome, and finish it without the coordinator.
    left = await bank.prepared_by(victim, others)
    await asyncio.gather(*work)
    await store.provider.start(victim)
    await store.whole()
    tally.kills += 1
    tally.between += bool(left)
    tally.prepared += len(left)
    tally.locked += not await quiet(bank)
    held = await bank.balances(choose.choice(names))
    if sum(held) != TOTAL:
        tally.half += 1
        print(f"kill {number} of {victim}: {sum(held)} instead of {TOTAL}: {held}")


async def quiet(bank: Bank) -> bool:
    """Whether nothing is locked or pending any more, within ``QUIET_S``."""
    until_s = asyncio.get_running_loop().time() + QUIET_S
    while busy := await bank.busy():
        if asyncio.get_running_loop().time() > until_s:
            print(f"still locked or pending after {QUIET_S:g} s: {busy}")
            return False
        await asyncio.sleep(0.05)
    return True


async def survey(directory: Path, provider: str, times: int) -> Tally:
    """Kill until ``times`` of the kills came between prepare and commit."""
    tally = Tally()
    async with running(provider, directory, partitions=PARTITIONS) as store:
        bank = Bank(store.system, store.cluster)
        await bank.open()
        for number in range(TRIES_MAX * times):
            async with asyncio.timeout(TURN_S + READY_S):
                await turn(store, bank, number, tally)
            if tally.kills % 10 == 0:
                print(tally, flush=True)
            if tally.between >= times:
                break
        print(f"{bank.commits} transfers were committed meanwhile")
    return tally


@click.command()
@click.option("--times", default=100, show_default=True)
@click.option("--provider", default="process", show_default=True)
def main(times: int, provider: str) -> None:
    """Kill, look, print."""
    with tempfile.TemporaryDirectory() as directory:
        print(calibrate())
        tally = asyncio.run(survey(Path(directory), provider, times))
    print(tally)
    sys.exit(0 if tally.between >= times and not tally.locked and not tally.half else 1)


if __name__ == "__main__":
    main()
