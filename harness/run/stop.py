"""Ending a run early, and tasks that were cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

SETTLE_LIMIT_S = 5.0  # for cancelled tasks to end


class Stop:
    """The request to end a run early: set once, checked at every phase.

    ``cut_short``: the request made the run skip work; ``over``: no work can be skipped any more.
    ``reason`` is set where not the user asked first: a budget, a limit. ``interrupted``: the user
    asked, first or later. ``budget_s`` seconds after the run began the request comes by itself,
    because of ``budget_text``.
    """

    def __init__(self, budget_s: float | None = None, budget_text: str = "") -> None:
        self._event = asyncio.Event()
        self.cut_short = self.over = self.interrupted = False
        self.reason = ""
        self.budget_s, self.budget_text = budget_s, budget_text

    def ask(self, reason: str = "") -> None:
        """Request an orderly end: heal, collect, seal."""
        if not self.asked:
            self.reason = reason
        self._event.set()

    def interrupt(self) -> None:
        """Request an orderly end for the user."""
        self.interrupted = True
        self.ask()

    @property
    def asked(self) -> bool:
        """Whether the end was requested."""
        return self._event.is_set()

    def skips(self) -> bool:
        """Whether the next piece of work is to be skipped; if so, the run is cut short."""
        self.cut_short |= self.asked
        return self.asked

    async def unless(self, work: Coroutine[Any, Any, T]) -> T | None:
        """The result of ``work``, or ``None`` as soon as the end is requested (work is cancelled,
        or never begun). Raises what ``work`` raises, also in response to its cancellation.
        """
        if self.skips():
            work.close()
            return None
        task = asyncio.ensure_future(work)
        asked = asyncio.ensure_future(self._event.wait())
        try:
            await asyncio.wait({task, asked}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                # Done counts, also where the end was requested at the same moment.
                return task.result()
            self.cut_short = True
        finally:
            await end(task)
            await end(asked)
        if task.done() and not task.cancelled() and (error := task.exception()):
            raise error
        return None


async def end(task: asyncio.Future[Any]) -> None:
    """Cancel ``task`` and wait, within a limit, until it is over; its result is left in it."""
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=SETTLE_LIMIT_S)
