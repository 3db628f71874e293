"""A client that goes on writing while data moves, and how long its writes take."""

from __future__ import annotations

import asyncio

from zoned_lab import now_s

from clusters.reference.client import ReferenceClient
from harness.protocols.client import StoreError


class Writer:
    """A client that overwrites one small value, and how long each write took."""

    def __init__(self) -> None:
        self.over = False
        self.took_s: list[tuple[float, float]] = []  # when it ended, and the seconds

    async def run(self, client: ReferenceClient, key: int) -> None:
        """Write until it is over."""
        while not self.over:
            begun_s = now_s()
            await write(client, key)
            self.took_s.append((now_s(), now_s() - begun_s))
            await asyncio.sleep(0.01)
        await client.close()

    def p99_s(self, start_s: float, end_s: float) -> float:
        """What one in a hundred of those that ended in this time took longer than."""
        took_s = sorted(took for ended, took in self.took_s if start_s <= ended < end_s)
        return took_s[int(len(took_s) * 0.99)]


async def write(client: ReferenceClient, key: int) -> None:
    """Write one key, again where it was refused."""
    while True:
        try:
            await client.one_shot([(key, 1)], now_s() + 5.0)
            return
        except StoreError:
            await asyncio.sleep(0.05)
