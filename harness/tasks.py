"""Awaiting several things at once without leaving any of them behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

from harness.errors import FiredrillError, HarnessError

T = TypeVar("T")


async def together(work: Iterable[Awaitable[T]]) -> list[T]:
    """All results, in order, once everything has ended: one failure does not abandon the rest.

    Whoever cleans up after the failure would otherwise race with what still begins. Raises the
    failure, or a ``HarnessError`` that names all of several.
    """
    results = await asyncio.gather(*work, return_exceptions=True)
    failures = [result for result in results if isinstance(result, BaseException)]
    for failure in failures:
        if len(failures) == 1 or not isinstance(failure, FiredrillError):
            raise failure
    if failures:
        raise HarnessError("; ".join(map(str, failures))) from failures[0]
    return [result for result in results if not isinstance(result, BaseException)]
