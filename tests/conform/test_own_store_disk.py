"""The example store on a disk that takes no more: what it acknowledged is there afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from conform_kit import EXAMPLE, pebble

from harness.protocols.client import READ_WRITE, StoreError
from harness.protocols.cluster import Address

LIMIT_S = 20
ROOM_BYTES = 40
SMALL, LARGE = 1, tuple(range(20))
# A file may grow to so many bytes: like a full disk, it takes a part of a write.
SERVE = """
import resource, runpy, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)), resource.RLIM_INFINITY))
runpy.run_module("pebble.server", run_name="__main__")
"""


def served(
    directory: Path, room_bytes: int, work: Callable[[Any], Awaitable[None]], *, ends: bool
) -> tuple[int, str]:
    """Run ``work`` on a connection to a node in ``directory``, which is told to end then, unless it
    ``ends`` by itself; its exit code, and what it said.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        at = Address(host="127.0.0.1", port=free.getsockname()[1])
    config = {"role": "holder", "listen": [[at.host, at.port]]}
    (directory / "pebble.json").write_text(json.dumps(config))
    node = subprocess.Popen(
        (sys.executable, "-c", SERVE, str(room_bytes), "pebble.json"),
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(EXAMPLE)},
        stderr=subprocess.PIPE,
        text=True,
    )

    async def run() -> None:
        async with asyncio.timeout(LIMIT_S):
            await work(await dialed(at))

    try:
        asyncio.run(run())
        if not ends:
            node.terminate()
        said = node.communicate(timeout=LIMIT_S)[1]
    finally:
        node.kill()
        node.wait()
    return node.returncode, said


async def dialed(at: Address) -> Any:
    """A connection as soon as the node listens."""
    while True:
        try:
            return await pebble._dial(at)
        except StoreError:
            await asyncio.sleep(0.05)


async def committed(connection: Any, value: Any) -> None:
    tx = await connection.begin(READ_WRITE, asyncio.get_running_loop().time() + 5)
    await tx.write(7, value)
    await tx.commit()


def test_a_node_whose_disk_is_full_acknowledges_nothing_and_ends_and_keeps_what_it_had(
    tmp_path: Path,
) -> None:
    async def fill(connection: Any) -> None:
        await committed(connection, SMALL)
        with pytest.raises(StoreError) as caught:
            await committed(connection, LARGE)
        assert caught.value.code == "LOST"

    code, said = served(tmp_path, ROOM_BYTES, fill, ends=True)

    assert code == 1
    assert re.fullmatch(r"pebble: pebble\.log can't be written: \d+ of \d+ bytes written\n", said)
    assert (tmp_path / "pebble.log").read_bytes() == b'{"7": 1}\n'

    async def go_on(connection: Any) -> None:
        tx = await connection.begin(READ_WRITE, asyncio.get_running_loop().time() + 5)
        assert await tx.read(7) == SMALL
        await tx.commit()
        await committed(connection, LARGE)

    assert served(tmp_path, 1 << 20, go_on, ends=False) == (-signal.SIGTERM, "")
