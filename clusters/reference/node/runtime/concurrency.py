"""Running work side by side, waiting for one answer, and ending the node by an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TypeVar

T = TypeVar("T")
# Starts work beside everything else; an error that it raises stops the node.
Spawn = Callable[[Coroutine[None, None, None]], object]


async def together(*parts: Awaitable[None]) -> None:
    """Run ``parts`` until the first one ends; cancel the others, wait for them, and raise the error
    of the first. (A ``TaskGroup`` would wrap that error, and an exit code depends on its type.)
    """
    work = [asyncio.ensure_future(part) for part in parts]
    try:
        done, _ = await asyncio.wait(work, return_when=asyncio.FIRST_COMPLETED)
        for task in work:
            if task in done:
                task.result()
    finally:
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)


async def all_of(
    parts: Iterable[Coroutine[None, None, T]], enough: Callable[[T], bool] = lambda _: False
) -> list[T]:
    """Run ``parts`` side by side; their results, in their order. Where one raises, or returns a
    result that is ``enough``, the others are cancelled and waited for. A single part needs no task.
    """
    every = list(parts)
    if len(every) < 2:
        return [await part for part in every]
    work = [asyncio.ensure_future(part) for part in every]
    try:
        answers: list[T] = []
        while len(answers) < len(work) and not any(map(enough, answers)):
            waiting = [task for task in work if not task.done()]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            answers = [task.result() for task in work if task.done()]
        return answers
    finally:
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)


async def side_by_side(
    acts: Iterable[Callable[[], Coroutine[None, None, T]]], limit: int
) -> list[T]:
    """Call ``acts`` and wait for them, at most ``limit`` at once; their results, in their order."""
    gate = asyncio.Semaphore(limit)

    async def one(act: Callable[[], Coroutine[None, None, T]]) -> T:
        async with gate:
            return await act()

    return await all_of([one(act) for act in acts])


async def within(limit_s: float, answer: asyncio.Future[T], late: T) -> T:
    """The result of ``answer`` within ``limit_s``; after that ``answer`` is set to ``late``. A
    timer and no more: ``asyncio.timeout`` also has to be able to cancel the awaited call.
    """
    timer = asyncio.get_running_loop().call_later(limit_s, settle, answer, late)
    try:
        return await answer
    finally:
        timer.cancel()


def settle(answer: asyncio.Future[T], value: T) -> None:
    """Set ``answer`` unless it is set."""
    if not answer.done():
        answer.set_result(value)


class Failure:
    """The first error that the node can't go on with; ``future`` raises it."""

    def __init__(self) -> None:
        self.future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def report(self, error: BaseException) -> None:
        """End the node with ``error``, unless another one does already."""
        if not self.future.done():
            self.future.set_exception(error)

    @property
    def reported(self) -> bool:
        """Whether the node is about to end."""
        return self.future.done()


class Tasks:
    """Work of a node that runs beside everything else."""

    def __init__(self, failure: Failure) -> None:
        """An error that a task raises is reported to ``failure``."""
        self._failure = failure
        self._running: dict[asyncio.Task[None], None] = {}

    def __len__(self) -> int:
        return len(self._running)

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start ``work``."""
        task = asyncio.get_running_loop().create_task(work)
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    def cancel(self) -> tuple[asyncio.Task[None], ...]:
        """Cancel everything that runs; these tasks end at a later turn of the loop."""
        running = tuple(self._running)
        for task in running:
            task.cancel()
        return running

    def part(self) -> TaskPart:
        """Tasks of one part of the node, which count among these and can be cancelled alone."""
        return TaskPart(self)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failure.report(error)


class TaskPart:
    """Some of a node's tasks: see ``Tasks.part``."""

    def __init__(self, whole: Tasks) -> None:
        self._whole = whole
        self._running: dict[asyncio.Task[None], None] = {}

    def spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Start ``work``."""
        task = self._whole.spawn(work)
        self._running[task] = None
        task.add_done_callback(lambda task: self._running.pop(task, None))
        return task

    def cancel(self) -> tuple[asyncio.Task[None], ...]:
        """Cancel everything of this part that runs."""
        running = tuple(self._running)
        for task in running:
            task.cancel()
        return running
