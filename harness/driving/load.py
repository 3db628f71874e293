"""Who drives the clients of a run: one driver in this process, or several processes of them."""

from __future__ import annotations

from typing import Protocol

from harness.driving.driver import Driver
from harness.generators.generator import paced
from harness.plan.plan import Plan
from harness.protocols.workload import Workload, whole
from harness.run.controller_health import LoopStats


class Load(Protocol):
    """The clients of a run, as its life cycle sees them."""

    @property
    def trouble(self) -> tuple[str, ...]:
        """What makes the run inconclusive, a sentence each."""

    async def enlist(self) -> None:
        """Start who drives, once, before ``drive``: what a phase of some seconds is not to wait
        for.
        """

    async def drive(self, until_ns: int) -> None:
        """Run the workload until the clock reads ``until_ns``, and wait for what is open."""

    async def read_all(self, until_ns: int) -> bool:
        """Read every key that was touched; whether that was done by ``until_ns``."""

    def strain(self) -> LoopStats:
        """What the processes that this load started went through since the last call."""

    async def close(self) -> None:
        """Drop every connection, and end what was started. Bounded."""


class OwnLoad:
    """One driver, on this process's loop."""

    trouble: tuple[str, ...] = ()

    def __init__(self, plan: Plan, workload: Workload, driver: Driver) -> None:
        self._plan, self._workload, self._driver = plan, workload, driver

    async def enlist(self) -> None:
        """Nobody else is needed."""

    async def drive(self, until_ns: int) -> None:
        """See ``Load``."""
        generator = paced(whole(self._workload), self._plan.drive.rate_per_s, self._plan.seed)
        await self._driver.drive(generator, until_ns)

    async def read_all(self, until_ns: int) -> bool:
        """See ``Load``."""
        final = self._workload.final(self._driver.touched_keys())
        return await self._driver.drive(final, until_ns)

    def strain(self) -> LoopStats:
        """None was started."""
        return LoopStats()

    async def close(self) -> None:
        """See ``Load``."""
        await self._driver.close()
