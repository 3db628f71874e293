"""Run as a script: a controller that brings nodes up, says so, and waits to be killed.

``process_owner.py ROOT``. Where its own parent goes first, its stdin ends, and it takes its nodes
away: a test run that is killed must not leave any.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from process_programs import bring_up


async def main(root: Path) -> None:
    provider, _ = await bring_up(root, "n1", "n2", "n3")
    print("up", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await provider.teardown()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
