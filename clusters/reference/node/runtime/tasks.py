"""Running things side by side, and waiting for one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import TypeVar

T = TypeVar("T")


async def together(*parts: Awaitable[None]) -> None:
    """Run ``parts`` until the first one ends; cancel the others, wait for them, and raise what it
    raised. (A ``TaskGroup`` would wrap that, and whoever decides on exit codes wants it as it is.)
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
    """Run ``parts`` side by side; what each returned, in their order. Where one raises, or returns
    what is ``enough``, the others are cancelled and waited for. A single one needs no task.
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


async def within(limit_s: float, answer: asyncio.Future[T], late: T) -> T:
    """What ``answer`` is set to within ``limit_s``; then it is set to ``late``. A timer and no
    more: ``asyncio.timeout`` also has to be able to cancel what it waits for.
    """
    timer = asyncio.get_running_loop().call_later(limit_s, settle, answer, late)
    try:
        return await answer
    finally:
        timer.cancel()


def settle(answer: asyncio.Future[T], value: T) -> None:
    """Set ``answer`` if nothing did."""
    if not answer.done():
        answer.set_result(value)
