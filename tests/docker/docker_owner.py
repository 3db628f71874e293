"""A controller to be killed: provisions a run, starts a program, says so, and waits."""

from __future__ import annotations

import asyncio
import sys

from docker_runs import running


async def main() -> None:
    async with running(sys.argv[1], ("n1", "n2")) as run:
        print("up", flush=True)
        await run.start_all()
        await run.provider.cut((("n1", "n2"),))
        print("cut", flush=True)
        await asyncio.Event().wait()


asyncio.run(main())
