"""How far an analysis is: the stage under way, and when it may be over."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from contextvars import ContextVar

import attrs

from checkers.engine.kernel_output import PROGRESS
from harness.text import long_duration


@attrs.define(kw_only=True)
class StageProgress:
    """The progress of the stage ``name``, whose ``tasks`` judge ``transactions`` together.
    ``weight`` is that of a task, in any unit, where tasks tell of their ends one by one.
    """

    name: str
    tasks: int
    transactions: int
    weight: Callable[[int], int]
    _begun_s: float = attrs.field(factory=time.perf_counter)
    _done: int = 0
    _done_weight: int = 0
    _lock: threading.Lock = attrs.field(factory=threading.Lock)

    def one_done(self, number: int) -> None:
        """Tell that task ``number`` is done. Threads may."""
        with self._lock:
            self._done, self._done_weight = self._done + 1, self._done_weight + self.weight(number)
            done, share = self._done, self._done_weight / max(self._whole, 1)
        self.tell(done, share)

    def begin_again(self) -> None:
        """Tell that no task is done any more."""
        self._done = self._done_weight = 0
        self.tell(0, 0.0)

    @functools.cached_property
    def _whole(self) -> int:
        return sum(map(self.weight, range(self.tasks)))

    def tell(self, done: int, share: float) -> None:
        """Tell that ``done`` tasks are done, that ``share`` of the stage."""
        PROGRESS.get()(self.sentence(done, share, time.perf_counter() - self._begun_s))

    def sentence(self, done: int, share: float, took_s: float) -> str:
        """Say how far it is after ``took_s``, how fast, and how much time is left at that rate."""
        text = f"{self.name}, {done} of {self.tasks} tasks done"
        if not 0 < share < 1 or took_s <= 0:
            return text
        rate, left_s = self.transactions * share / took_s, took_s * (1 - share) / share
        return f"{text}, {rate:,.0f} transactions/s, about {long_duration(left_s)} left"


# Of the stage that is under way.
STAGE: ContextVar[StageProgress | None] = ContextVar("STAGE", default=None)
