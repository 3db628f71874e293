"""The process of clients: what it leaves behind, and that its end is told with its reason."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from ignite3_thin import Thin, needs_java, thin

from clusters.ignite3 import error_table
from clusters.ignite3.artifacts import Artifacts
from clusters.ignite3.bridge import Bridge
from clusters.ignite3.client import dial
from harness.protocols.client import READ_WRITE, StoreError
from harness.protocols.cluster import Address

LIMIT_S = 60
REFUSED, SILENT = 40, 4
SPARE = 8  # threads and descriptors that the machine may open and keep: a pool, a file
SETTLE_S = 20.0  # in which the library ends what it was told to: it waits two seconds for more


def said(*command: str) -> StoreError:
    """What a request to a process of ``command`` ends as."""

    async def run() -> StoreError:
        async with asyncio.timeout(10):
            with pytest.raises(StoreError) as caught:
                await Bridge(command).ask("ping", 1)
        return caught.value

    return asyncio.run(run())


def played(script: str) -> StoreError:
    return said(sys.executable, "-c", script)


def test_what_a_driver_said_last_and_its_exit_code_are_in_the_error() -> None:
    lost = played("import sys; input(); sys.exit('java.lang.OutOfMemoryError: Java heap space')")

    assert lost.code == error_table.CONNECTION_LOST
    assert lost.message.endswith("exit code 1: java.lang.OutOfMemoryError: Java heap space")


def test_a_driver_that_was_killed_is_told_as_killed() -> None:
    lost = played("import os; input(); os.kill(os.getpid(), 9)")

    assert lost.message.endswith("the process of clients has ended: killed by SIGKILL")


def test_a_driver_that_chatters_on_its_error_output_is_not_held_up() -> None:
    talk = "import sys; input(); [print('x' * 999, file=sys.stderr) for _ in range(2000)]"

    lost = played(f"{talk}; sys.exit('at last')")

    assert lost.message.endswith("at last")
    assert len(lost.message) < 4000


def test_an_answer_that_can_not_be_read_is_named_as_the_reason() -> None:
    lost = played("import time; input(); print('WARNING: no answer', flush=True); time.sleep(9)")

    assert "what it answered can't be read" in lost.message


def test_a_driver_that_can_not_be_started_is_an_error_of_the_store_and_definite() -> None:
    gone = said("/nowhere/java")

    assert gone.code == error_table.DRIVER_GONE
    assert "can't be started" in gone.message
    assert "/nowhere/java" in gone.message


def driven(work: Callable[[Bridge, Thin], Awaitable[None]]) -> None:
    """Run ``work`` with a real driver and a listener that speaks the handshake."""
    needs_java()

    async def run() -> None:
        async with asyncio.timeout(LIMIT_S), thin() as node:
            await work(Bridge(Artifacts().driver_command()), node)

    asyncio.run(run())


def held(bridge: Bridge) -> tuple[int, int]:
    """Threads and file descriptors of the driver."""
    assert bridge._driver is not None
    own = Path("/proc", str(bridge._driver.process.pid))
    return len(os.listdir(own / "task")), len(os.listdir(own / "fd"))


async def failing(bridge: Bridge, address: Address, limit_s: float) -> None:
    with pytest.raises(StoreError) as caught:
        await dial(bridge, address, limit_s)
    assert caught.value.code == error_table.CONNECTION_LOST


@pytest.mark.slow
def test_a_dial_that_fails_leaves_neither_threads_nor_descriptors_in_the_driver() -> None:
    async def work(bridge: Bridge, node: Thin) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            refused = Address(host="127.0.0.1", port=free.getsockname()[1])
            await failing(bridge, refused, 5.0)
            threads, files = held(bridge)
            for _ in range(REFUSED):
                await failing(bridge, refused, 5.0)
        for _ in range(SILENT):
            await failing(bridge, node.address, 0.3)
        async with asyncio.timeout(SETTLE_S):
            while (now := held(bridge)) > (threads + SPARE, files + SPARE):
                await bridge.ask("ping", 1)
                await asyncio.sleep(0.2)
        assert now[1] <= files + SPARE

    driven(work)


@pytest.mark.slow
def test_a_connection_opens_as_few_descriptors_on_a_machine_of_many_processors() -> None:
    async def work(_: Bridge, node: Thin) -> None:
        java, *rest = Artifacts().driver_command()
        bridge = Bridge((java, "-XX:ActiveProcessorCount=32", *rest))
        await bridge.ask("ping", 1)
        before = held(bridge)[1]
        node.welcoming.set()
        await dial(bridge, node.address, 20.0)
        assert held(bridge)[1] - before < 32

    driven(work)


@pytest.mark.slow
def test_a_dial_that_was_given_up_is_closed_when_it_comes_through() -> None:
    async def work(bridge: Bridge, node: Thin) -> None:
        dialing = asyncio.ensure_future(dial(bridge, node.address, 20.0))
        await node.count(1)
        dialing.cancel()
        await asyncio.wait({dialing})
        node.welcoming.set()
        await node.count(0)

    driven(work)


@pytest.mark.slow
def test_a_line_that_is_no_request_ends_the_driver_with_its_reason_and_another_is_started() -> None:
    async def work(bridge: Bridge, node: Thin) -> None:
        node.welcoming.set()
        client = await dial(bridge, node.address, 20.0)
        tx = await client.begin(READ_WRITE, asyncio.get_running_loop().time() + 20)
        await tx.commit()
        async with thin() as silent:
            waiting = asyncio.ensure_future(dial(bridge, silent.address, 20.0))
            await silent.count(1)
            assert bridge._driver is not None
            bridge._driver.requests.write(b"no request\n")
            with pytest.raises(StoreError, match=r"exit code 70: .*JsonParseException"):
                await waiting
        await dial(bridge, node.address, 20.0)

    driven(work)


@pytest.mark.slow
def test_what_the_library_throws_without_a_code_is_not_called_a_wrong_request() -> None:
    async def work(bridge: Bridge, node: Thin) -> None:
        node.welcoming.set()
        client = await dial(bridge, node.address, 20.0)
        with pytest.raises(StoreError, match="no table is open") as caught:
            await bridge.ask("get", client._number, key=1)
        assert caught.value.code == error_table.MISUSE
        with pytest.raises(StoreError, match="IllegalArgumentException") as caught:
            await client.ask("begin", limit_ms=-1, read_only=0)
        assert caught.value.code == error_table.UNKNOWN
        with pytest.raises(StoreError, match="IllegalArgumentException") as caught:
            await client.begin(READ_WRITE, asyncio.get_running_loop().time() + 20)
        assert caught.value.code == error_table.BROKEN

    driven(work)
