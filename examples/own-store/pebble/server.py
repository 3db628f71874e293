"""pebble, a key-value store in one file: ``python3 -m pebble.server CONFIG``.

The first node holds the data, the others pass on to it what clients ask: lose the first, and
nothing is served until it is back. One transaction at a time; a commit is one line of a log,
synced before it is acknowledged. A request is a JSON object a line, its answer another.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import sys
import time
from asyncio import StreamReader, StreamWriter
from pathlib import Path
from typing import Any

LINE_BYTES = 1 << 20
DIAL_S = 1.0
Answer = dict[str, Any]


class Holder:
    """The data, its log, and the one transaction that is open."""

    def __init__(self, path: Path, events: list[list[Any]]) -> None:
        self.path, self.lock, self.data, self.commits = path, asyncio.Lock(), {}, 0
        good = 0
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
            if not line.endswith(b"\n"):  # it was never synced, so never acknowledged
                events.append(["torn-tail", time.time_ns(), f"{len(line)} bytes cut off"])
                break
            self.data.update(json.loads(line))
            self.commits, good = self.commits + 1, good + len(line)
        self.log, self.good = path.open("ab", buffering=0), good
        # The next line must not follow the half of one.
        os.truncate(path, good)

    data: dict[str, Any]

    def commit(self, writes: dict[str, Any]) -> int:
        """Make ``writes`` durable, then visible; the number of the commit."""
        if writes:
            self.append(json.dumps(writes).encode() + b"\n")
            self.data.update(writes)
            self.commits += 1
        return self.commits

    def append(self, line: bytes) -> None:
        """The whole of ``line``, synced. A full disk takes a part of it and says no more than how
        much: no later line may follow that, and what a failed sync left behind is unknown. So the
        node takes it back and ends: the client does not learn the outcome.
        """
        try:
            if (written := self.log.write(line)) != len(line):
                raise OSError(f"{written} of {len(line)} bytes written")
            os.fsync(self.log.fileno())
        except OSError as error:
            try:
                os.truncate(self.path, self.good)
                print(f"pebble: {self.path} can't be written: {error}", file=sys.stderr, flush=True)
            finally:
                os._exit(1)  # whatever connections are doing, and where nothing can be told, too
        self.good += len(line)


class Session:
    """A connection's transaction. The lock is its own from ``begin`` to the end or the deadline."""

    def __init__(self, holder: Holder) -> None:
        self.holder, self.writes = holder, dict[str, Any]()
        self.alarm: asyncio.TimerHandle | None = None

    def end(self) -> None:
        """Let go of the lock; what was not committed is forgotten."""
        if self.alarm is not None:
            self.alarm.cancel()
            self.alarm = None
            self.holder.lock.release()

    async def serve(self, asked: Answer) -> Answer:
        """The answer to one request."""
        match asked["op"]:
            case "ping":
                return {}
            case "begin":
                # A client that begins anew gives up what it had open.
                self.end()
                try:
                    async with asyncio.timeout(asked["limit_s"]):
                        await self.holder.lock.acquire()
                except TimeoutError:
                    return {"error": "BUSY"}
                loop, self.writes = asyncio.get_running_loop(), {}
                # A client that vanished must not hold the only lock beyond its deadline.
                self.alarm = loop.call_later(asked["limit_s"], self.end)
                return {"txn": secrets.token_hex(4)}
            case _ if self.alarm is None:
                return {"error": "EXPIRED"}
            case "get":
                return {"value": self.writes.get(asked["key"], self.holder.data.get(asked["key"]))}
            case "put":
                self.writes[asked["key"]] = asked["value"]
                return {}
            case "commit":
                number = self.holder.commit(self.writes)
                self.end()
                return {"number": number}
            case _:
                self.end()
                return {}


class Passing:
    """A connection's way to the holder, dialed with the first request."""

    def __init__(self, host: str, port: int) -> None:
        self.at, self.way = (host, port), None

    way: tuple[StreamReader, StreamWriter] | None

    def end(self) -> None:
        """Drop it: the holder forgets the transaction."""
        if self.way is not None:
            self.way[1].transport.abort()

    async def serve(self, asked: Answer) -> Answer:
        """The holder's answer. Raises ``OSError`` where it was asked and did not answer."""
        if self.way is None:
            try:
                async with asyncio.timeout(DIAL_S):
                    self.way = await asyncio.open_connection(*self.at, limit=LINE_BYTES)
            except OSError:
                return {"error": "NO-HOLDER"}
        self.way[1].write(json.dumps(asked).encode() + b"\n")
        if not (line := await self.way[0].readline()):
            raise ConnectionResetError("the holder is gone")
        answer: Answer = json.loads(line)
        return answer


async def main(config: Answer) -> None:
    """Serve until killed."""
    boot, events = secrets.token_hex(4), [["node-started", time.time_ns(), config["role"]]]
    holder = Holder(Path("pebble.log"), events) if config["role"] == "holder" else None

    async def converse(reader: StreamReader, writer: StreamWriter) -> None:
        session = Session(holder) if holder else Passing(*config["holder"])
        with contextlib.suppress(OSError):  # of connections: a log that fails ends the node
            while line := await reader.readline():
                asked = json.loads(line)
                if asked["op"] == "status":
                    now = time.time_ns()
                    answer = {"role": config["role"], "boot": boot, "events": events, "now": now}
                else:
                    answer = await session.serve(asked)
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        session.end()
        writer.transport.abort()

    servers = [
        await asyncio.start_server(converse, host, port, limit=LINE_BYTES)
        for host, port in config["listen"]
    ]
    async with asyncio.TaskGroup() as group:
        for server in servers:
            group.create_task(server.serve_forever())


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
