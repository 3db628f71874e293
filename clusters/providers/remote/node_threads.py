"""Blocking calls on threads, each awaited with a deadline.

One lane a node: a frozen node fills the threads of its own lane and no other, so it never delays
another node's calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from harness.errors import DeadlineExceeded, HarnessError
from harness.tasks import Late, together, within

__all__ = ["Lane", "together"]

P = ParamSpec("P")
T = TypeVar("T")

THREADS_PER_LANE = 4  # a stuck call, the probe that looks at it, and the teardown still fit


class Lane:
    """The threads of one node (or of one daemon)."""

    def __init__(self, name: str, threads: int = THREADS_PER_LANE) -> None:
        self.name = name
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=f"lane-{name}")

    async def call(
        self, what: str, limit_s: float, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs
    ) -> T:
        """The result of ``work``. Raises ``DeadlineExceeded`` naming ``what`` after ``limit_s``;
        where ``work`` itself raises ``TimeoutError``, as a socket does, another ``HarnessError``.

        A call past its deadline is left behind on its thread: ``work`` must be bounded by itself
        as well.
        """
        loop = asyncio.get_running_loop()
        try:
            call = loop.run_in_executor(self._pool, lambda: work(*args, **kwargs))
            return await within(limit_s, call)
        except Late as error:
            raise DeadlineExceeded(f"{self.name}: {what}", limit_s) from error
        except TimeoutError as error:
            raise HarnessError(f"{self.name}: {what}: {error or 'it timed out'}") from error

    def close(self) -> None:
        """Take no more calls; waits for none."""
        # A thread stuck on a dead machine can't be ended: to wait for it would hang the end.
        self._pool.shutdown(wait=False, cancel_futures=True)
