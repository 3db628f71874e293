"""The process of clients (``java/Driver.java``) and the pipes to it: requests by number, answers
in whatever order they come.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from asyncio.subprocess import DEVNULL, PIPE, Process

import msgspec

from clusters.ignite3 import errors
from harness.client import StoreError

LINE_LIMIT_BYTES = 1 << 22  # one value at most
LAST_WORDS = "the process of clients has ended"


Field = str | int | tuple[int, ...]  # of a request


class Answer(msgspec.Struct, frozen=True):
    """One line of the driver: a result, or several, or ``code`` and ``text`` of an error."""

    id: int
    value: str | None = None
    values: tuple[str | None, ...] = ()
    code: str | None = None
    text: str = ""


class Bridge:
    """One driver process, started with the first request, ended with the loop it was used in."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._process: Process | None = None
        self._reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._numbers = itertools.count(1)

    def connection(self) -> int:
        """A number for a connection that nobody else has."""
        return next(self._numbers)

    async def ask(self, op: str, conn: int, **fields: Field) -> Answer:
        """The result of ``op``. Raises ``StoreError`` with the store's code, or ``DRIVER-GONE``."""
        process = await self._running()
        number = next(self._numbers)
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        try:
            self._write(process, {"id": number, "op": op, "conn": conn, **fields})
            answer = await answered
        finally:
            self._waiting.pop(number, None)
        if answer.code is not None:
            raise StoreError(answer.code, answer.text)
        return answer

    def tell(self, op: str, conn: int) -> None:
        """Send a request whose answer nobody awaits; nothing where the process is gone."""
        if self._process is not None:
            with contextlib.suppress(StoreError):
                self._write(self._process, {"id": next(self._numbers), "op": op, "conn": conn})

    def _write(self, process: Process, request: dict[str, Field]) -> None:
        if process.stdin is None or process.stdin.is_closing() or process.returncode is not None:
            raise StoreError(errors.DRIVER_GONE, LAST_WORDS)
        process.stdin.write(msgspec.json.encode(request) + b"\n")

    async def _running(self) -> Process:
        async with self._starting:
            if self._process is None:  # the reader of the one before has said so
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=PIPE,
                    stdout=PIPE,
                    stderr=DEVNULL,
                    limit=LINE_LIMIT_BYTES,
                    # A person's Ctrl-C is for the run, which heals and reads on with its clients.
                    start_new_session=True,
                )
                self._reading = asyncio.create_task(self._read(self._process))
            return self._process

    async def _read(self, process: Process) -> None:
        try:
            assert process.stdout is not None, "it was started with a pipe"  # noqa: S101
            decoder = msgspec.json.Decoder(Answer)
            while line := await process.stdout.readline():
                answer = decoder.decode(line)
                waiting = self._waiting.pop(answer.id, None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(answer)
        finally:
            # Also when the loop ends: a process that nobody talks to any more must not stay. No
            # await before its waiters know: whoever asks from here on gets another process.
            self._process = None
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(StoreError(errors.CONNECTION_LOST, LAST_WORDS))
            await _end(process)


async def _end(process: Process) -> None:
    """Kill it, and see its pipes to their end: what is left of them would outlive the loop."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    if process.stdin is not None:
        process.stdin.close()
    if process.stdout is not None:
        await process.stdout.read()
    await process.wait()
