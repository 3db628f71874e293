"""The clients of a run: one driver in this process, or several driver processes."""

from __future__ import annotations

from typing import Protocol

from harness.driving.driver import Driver
from harness.generators import paced
from harness.plan.plan import Plan
from harness.protocols.workload import Workload, whole
from harness.run.controller_health import LoopStats


class Load(Protocol):
    """The clients of a run, as its life cycle sees them."""

    @property
    def trouble(self) -> tuple[str, ...]:
        """The reasons why the run is inconclusive, a sentence each."""

    async def enlist(self) -> None:
        """Start the driver processes, once and before ``drive``, so that the drive phase does not
        wait some seconds for them.
        """

    async def drive(self, until_ns: int) -> None:
        """Run the workload until the clock reads ``until_ns``, and wait for open operations."""

    async def read_all(self, until_ns: int) -> bool:
        """Read every key that was touched; whether that was done by ``until_ns``."""

    def strain(self) -> LoopStats:
        """The loop statistics, since the last call, of the processes that this load started."""

    async def close(self) -> None:
        """Close every connection, and end the started processes. Bounded."""


class OwnLoad:
    """One driver, on this process's loop."""

    trouble: tuple[str, ...] = ()

    def __init__(self, plan: Plan, workload: Workload, driver: Driver) -> None:
        self._plan, self._workload, self._driver = plan, workload, driver

    async def enlist(self) -> None:
        """No other process is needed."""

    async def drive(self, until_ns: int) -> None:
        """See ``Load``."""
        generator = paced(whole(self._workload), self._plan.drive.rate_per_s, self._plan.seed)
        await self._driver.drive(generator, until_ns)

    async def read_all(self, until_ns: int) -> bool:
        """See ``Load``."""
        final = self._workload.final(self._driver.touched_keys())
        return await self._driver.drive(final, until_ns)

    def strain(self) -> LoopStats:
        """Empty: this load started no process."""
        return LoopStats()

    async def close(self) -> None:
        """See ``Load``."""
        await self._driver.close()
