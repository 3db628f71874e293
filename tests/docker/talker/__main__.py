"""A little node: echoes lines, and asks other nodes to echo over connections that it keeps.

``echo TEXT`` -> ``TEXT``; ``ask HOST PORT`` -> ``ok``, ``timeout``, ``reset`` or ``unreachable``.
"""

from __future__ import annotations

import asyncio
import sys

ANSWER_LIMIT_S = 1.0
kept: dict[str, tuple[asyncio.StreamReader, asyncio.StreamWriter]] = {}


async def ask(host: str, port: str) -> str:
    try:
        async with asyncio.timeout(ANSWER_LIMIT_S):
            if host not in kept:
                kept[host] = await asyncio.open_connection(host, int(port))
            reader, writer = kept[host]
            writer.write(b"echo hello\n")
            line = await reader.readline()
    except TimeoutError:
        return "timeout"
    except ConnectionResetError:
        line = b""
    except OSError:
        return "unreachable"
    if not line:
        kept.pop(host)[1].close()
        return "reset"
    return "ok"


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while line := await reader.readline():
        verb, *rest = line.decode().split()
        answer = await ask(*rest) if verb == "ask" else " ".join(rest)
        writer.write(answer.encode() + b"\n")


async def main() -> None:
    server = await asyncio.start_server(serve, sys.argv[1], int(sys.argv[2]))
    print(f"talker listens on {sys.argv[1]}", flush=True)
    async with server:
        await server.serve_forever()


asyncio.run(main())
