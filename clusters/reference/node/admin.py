"""``python -m clusters.reference.node.admin HOST:PORT``: a node's state and events, to read."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

from clusters.reference.node.runtime import Connection, ConnectionLost, Network
from clusters.reference.node.wire.messages import (
    AskEvents,
    AskStatus,
    BadMessage,
    ClientRequest,
    Codec,
    EventBatch,
    NodeReport,
    decode,
    encode,
)

LIMIT_S = 5.0
NS_PER_S = 1_000_000_000


async def ask(
    network: Network, host: str, port: int, question: AskStatus | AskEvents, limit_s: float
) -> NodeReport | EventBatch:
    """One admin question over a connection of its own. Raises ``ConnectionLost``, ``TimeoutError``
    and ``BadMessage``.
    """
    async with asyncio.timeout(limit_s):
        connection = await network.dial(host, port, limit_s)
        try:
            return await ask_on(connection, question)
        finally:
            connection.close()


async def ask_on(
    connection: Connection, question: AskStatus | AskEvents
) -> NodeReport | EventBatch:
    """The same on an open connection; the caller bounds the wait."""
    connection.send(encode(ClientRequest(0, question)))
    return decode(Codec.admin, await connection.recv()).body


def describe(report: NodeReport) -> Iterator[str]:
    """A report as lines of text."""
    yield f"node       {report.node}  (incarnation {report.incarnation}, boot {report.boot})"
    reachable = " ".join(report.reachable) or "none"
    yield f"members    {' '.join(report.members)}  reachable: {reachable}"
    yield f"zone       {report.partitions} partitions x {report.replicas} replicas"
    yield f"revision   {report.revision}   log {report.log_bytes} bytes"
    if report.bugs:
        yield f"BUGS       {' '.join(report.bugs)}"
    row = "{:<12} {:<13} {:>5} {:<10} {:>9} {:>9} {:>9}  {}"
    yield row.format("group", "role", "term", "leader", "last", "commit", "applied", "voters")
    for group in report.groups:
        yield row.format(
            group.group,
            group.role,
            group.term,
            group.leader or "-",
            group.last_index,
            group.commit_index,
            group.applied_index,
            " ".join(group.voters),
        )
    for partition in sorted(report.assignments):
        if report.node not in report.assignments[partition]:
            yield row.format(
                f"p{partition}", "-", "-", "-", "-", "-", "-",
                " ".join(report.assignments[partition]),
            )  # fmt: skip


def describe_events(batch: EventBatch) -> Iterator[str]:
    """Events as lines of text, wall time in UTC."""
    for event in batch.events:
        wall = datetime.fromtimestamp(event.wall_ns / NS_PER_S, UTC).isoformat()
        where = "" if event.partition is None else f" p{event.partition}"
        term = "" if event.term is None else f" term {event.term}"
        yield f"{event.seq:>6} {wall} {event.kind}{where}{term}: {event.text}"


async def show(network: Network, host: str, port: int) -> Iterator[str]:
    """State and events of the node at (host, port)."""
    lines: list[str] = []
    for question in (AskStatus(), AskEvents()):
        answer = await ask(network, host, port, question, LIMIT_S)
        lines += describe(answer) if isinstance(answer, NodeReport) else describe_events(answer)
    return iter(lines)


def main() -> int:
    """Print the node's state; 1 where it does not answer."""
    # Here, not above: who only wants ``ask`` brings a network of its own.
    from clusters.reference.node.runtime.real import TcpNetwork

    parser = argparse.ArgumentParser(prog="python -m clusters.reference.node.admin")
    parser.add_argument("address", metavar="HOST:PORT", help="the node's client port")
    host, _, port = parser.parse_args().address.rpartition(":")
    if not host or not port.isdigit():
        parser.error("the address must be HOST:PORT")
    try:
        for line in asyncio.run(show(TcpNetwork(), host, int(port))):
            print(line)
    except (ConnectionLost, BadMessage, TimeoutError) as error:
        print(f"{host}:{port} does not answer: {error or 'time is up'}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
