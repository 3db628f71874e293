"""Running things side by side: the first that ends, ends all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable


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
