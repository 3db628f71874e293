"""The client process (``java/Driver.java``) and the pipes to it: requests by number, answers in any
order.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import signal
from asyncio.subprocess import PIPE, Process

import attrs
import msgspec

from clusters.ignite3 import error_table
from harness.errors import InvariantError
from harness.protocols.client import StoreError

LINE_LIMIT_BYTES = 1 << 22  # one value at most
SAID_BYTES, SAID_LINES = 2048, 3  # of standard error: kept, and quoted in errors
END_LIMIT_S = 1.0  # for a process that answers no more to end by itself, and say why
LAST_WORDS = "the process of clients has ended"


Field = str | int | tuple[int, ...]  # of a request


class Answer(msgspec.Struct, frozen=True):
    """One line of the driver: a result, or several, or ``code`` and ``text`` of an error. ``rows``
    of a query: the names of its columns first.
    """

    id: int
    value: str | None = None
    values: tuple[str | None, ...] = ()
    rows: tuple[tuple[int | str | None, ...], ...] = ()
    code: str | None = None
    text: str = ""


@attrs.define(eq=False)
class _Driver:
    """One process and its pipes. ``said`` is the end of its standard error; ``over`` is set once
    it ended and that end is known.
    """

    process: Process
    requests: asyncio.StreamWriter
    answers: asyncio.StreamReader
    errors: asyncio.StreamReader
    said: bytes = b""
    over: asyncio.Event = attrs.field(factory=asyncio.Event)

    @property
    def gone(self) -> bool:
        """Whether the process takes no more requests."""
        return self.requests.is_closing() or self.process.returncode is not None

    def write(self, request: dict[str, Field]) -> None:
        self.requests.write(msgspec.json.encode(request) + b"\n")

    async def listen(self) -> None:
        """Keep the end of the driver's standard error: an unread pipe would block the driver."""
        while some := await self.errors.read(SAID_BYTES):
            self.said = (self.said + some)[-SAID_BYTES:]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()

    async def ended(self, listening: asyncio.Task[None]) -> None:
        """Return when the driver has ended; the rest of its pipes would outlive the loop."""
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(END_LIMIT_S):
                    await self.process.wait()
            self.kill()
            self.requests.close()
            await self.answers.read()
            await asyncio.wait({listening}, timeout=END_LIMIT_S)
            await self.process.wait()
        finally:
            self.over.set()

    async def last_words(self, why: str = "") -> str:
        """How the driver ended: ``why``, where that is known here, its exit code, its last
        lines.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2 * END_LIMIT_S):
                await self.over.wait()
        lines = self.said.decode("utf-8", "replace").strip().splitlines()
        code = self.process.returncode
        ended = "" if code is None else _how(code)
        said = " / ".join(line.strip() for line in lines[-SAID_LINES:])
        return ": ".join(filter(None, (LAST_WORDS, why, ended, said)))


def _how(code: int) -> str:
    """The exit in words, as a report quotes it: a killed driver did not end by itself."""
    return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


class Bridge:
    """One driver process, started with the first request, ended with the loop it was used in.
    After one that ended the next request starts another.
    """

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._driver: _Driver | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._starting = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._numbers = itertools.count(1)

    def connection(self) -> int:
        """A number for a connection, unlike that of any other."""
        return next(self._numbers)

    async def ask(self, op: str, conn: int, **fields: Field) -> Answer:
        """The result of ``op``. Raises ``StoreError`` with the store's code, or ``DRIVER-GONE``."""
        driver = await self._running()
        if driver.gone:
            raise StoreError(error_table.DRIVER_GONE, await driver.last_words())
        number = next(self._numbers)
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        try:
            # Not drained: a request is a line, and its answer is awaited anyway.
            driver.write({"id": number, "op": op, "conn": conn, **fields})
            answer = await answered
        finally:
            self._waiting.pop(number, None)
        if answer.code is not None:
            raise StoreError(answer.code, answer.text)
        return answer

    def tell(self, op: str, conn: int) -> None:
        """Send a request without waiting for an answer; do nothing where the process is gone."""
        if self._driver is not None and not self._driver.gone:
            self._driver.write({"id": next(self._numbers), "op": op, "conn": conn})

    async def _running(self) -> _Driver:
        async with self._starting:
            if self._driver is None:  # the task that served the one before has cleared it
                self._driver = await _started(self._command)
                serving = asyncio.create_task(self._serve(self._driver))
                self._serving.add(serving)
                serving.add_done_callback(self._serving.discard)
            return self._driver

    async def _serve(self, driver: _Driver) -> None:
        """Hand out the driver's answers until it ends; then fail every waiting request with its
        last words.
        """
        listening, why = asyncio.create_task(driver.listen()), ""
        try:
            await self._hand_out(driver.answers)
        except (msgspec.DecodeError, ValueError) as error:  # of a line that is too long
            why = f"what it answered can't be read: {error}"
            driver.kill()
        except asyncio.CancelledError:  # the loop ends, and no request follows
            driver.kill()
            raise
        finally:
            # No await before: every request from here on gets another process.
            self._driver = None
            left, self._waiting = self._waiting, {}
            try:
                await driver.ended(listening)
            finally:
                words = await driver.last_words(why)
                for waiting in left.values():
                    if not waiting.done():
                        waiting.set_exception(StoreError(error_table.CONNECTION_LOST, words))

    async def _hand_out(self, answers: asyncio.StreamReader) -> None:
        decoder = msgspec.json.Decoder(Answer)
        while line := await answers.readline():
            answer = decoder.decode(line)
            waiting = self._waiting.pop(answer.id, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(answer)


async def _started(command: tuple[str, ...]) -> _Driver:
    """Raises ``StoreError`` where the machine can't start it."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
            limit=LINE_LIMIT_BYTES,
            # A person's Ctrl-C is for the run, which heals and reads on with its clients.
            start_new_session=True,
        )
    except OSError as error:
        raise StoreError(
            error_table.DRIVER_GONE, f"the process of clients can't be started: {error}"
        ) from error
    if process.stdin is None or process.stdout is None or process.stderr is None:
        raise InvariantError(f"{command[0]}: started with three pipes, and one is not there")
    return _Driver(process, process.stdin, process.stdout, process.stderr)
