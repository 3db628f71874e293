"""Awaiting several things at once, without leaving any of them running, or one until a limit."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

from harness import plugins
from harness.errors import FiredrillError, HarnessError

T = TypeVar("T")


class Late(HarnessError):
    """An awaited call did not end within its limit."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"not done within {limit_s:g} s")


async def within(limit_s: float, work: Awaitable[T]) -> T:
    """The result of ``work``, which is cancelled at its limit. Raises ``Late`` then, and only then:
    a ``TimeoutError`` that ``work`` raises itself (a socket does) is passed on as it is.
    """
    try:
        async with asyncio.timeout(limit_s) as limit:
            return await work
    except TimeoutError as error:
        if limit.expired():
            raise Late(limit_s) from error
        raise


async def together(work: Iterable[Awaitable[T]]) -> list[T]:
    """All results, in order, once all of ``work`` has ended: one failure does not abandon the rest.

    Otherwise the cleanup after the failure would race with work that is still starting. Raises the
    failure, or a ``HarnessError`` that names all of several; a ``SystemExit`` is one of these.
    """
    results = await asyncio.gather(*map(_staying, work), return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    for failure in failures:
        # A cancellation or a bug keeps its type; only sentences for a person are joined.
        if len(failures) == 1 or not isinstance(failure, FiredrillError):
            raise failure
    if failures:
        raise HarnessError("; ".join(map(str, failures))) from failures[0]
    return [result for result in results if not isinstance(result, BaseException)]


async def _staying(work: Awaitable[T]) -> T:
    try:
        return await work
    # Code that is made to be a program leaves by ``sys.exit``: a task would take the loop along.
    except SystemExit as error:
        raise HarnessError(f"it raised {plugins.told(error)}") from error
