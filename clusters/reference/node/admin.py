"""``python -m clusters.reference.node.admin HOST:PORT``: a node's state and events, to read;
statements to carry out, those that recover partitions among them; and the voters of metastorage, to
change.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

from clusters.reference.node.runtime import Connection, ConnectionLost, Network
from clusters.reference.node.runtime.hybrid_clock import COUNTER_BITS, TICK
from clusters.reference.node.wire.messages import BadMessage, ClientRequest, Codec, decode, encode
from clusters.reference.node.wire.reports import (
    AdminBody,
    AdminQuestion,
    AskEvents,
    AskKey,
    AskSql,
    AskStatus,
    AskVoters,
    EventBatch,
    KeyReport,
    NodeReport,
    SqlReport,
    VotersReport,
)

LIMIT_S = 5.0
SHOWN_BYTES = 32  # of a value
NS_PER_S = 1_000_000_000
MAX_PORT = 65_535
VOTERS_LIMIT_MS = 30_000
SQL_LIMIT_MS = 10_000


class Refused(Exception):
    """The node does not do what it was asked for; the text says why."""


async def ask(
    network: Network,
    host: str,
    port: int,
    question: AdminQuestion,
    limit_s: float,
    source: str = "",
) -> AdminBody:
    """One admin question over a connection of its own (see ``Network.dial``). Raises
    ``ConnectionLost``, ``TimeoutError`` and ``BadMessage``.
    """
    async with asyncio.timeout(limit_s):
        connection = await network.dial(host, port, limit_s, source)
        try:
            return await ask_on(connection, question)
        finally:
            connection.close()


async def ask_on(connection: Connection, question: AdminQuestion) -> AdminBody:
    """The same on an open connection; the caller bounds the wait."""
    connection.send(encode(ClientRequest(1, question)))
    return decode(Codec.admin, await connection.recv()).body


def describe(report: NodeReport) -> Iterator[str]:
    """A report as lines of text."""
    yield f"node       {report.node}  (incarnation {report.incarnation}, boot {report.boot})"
    reachable = " ".join(report.reachable) or "none"
    yield f"members    {' '.join(report.members)}  reachable: {reachable}"
    if not report.tables:
        yield f"zone       {report.partitions} partitions x {report.replicas} replicas"
    for name, base, count in report.tables:
        yield f"table      {name}  p{base} to p{base + count - 1}"
    yield f"revision   {report.revision}   log {report.log_bytes} bytes"
    yield f"lease      {report.lease_s:.2f} s left   clock {describe_ts(report.clock)}"
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
    yield ""
    yield from describe_primaries(report)


def describe_primaries(report: NodeReport) -> Iterator[str]:
    """The primary of each partition, and the counts of its transactions on this node."""
    row = "{:<4} {:<8} {:>5} {:<7} {:>6} {:>7} {:>5} {:>8} {:>8} {:>8} {:>8}  {}"
    yield row.format(
        "p", "primary", "epoch", "serving", "locks", "waiting", "open", "prepared", "outcomes",
        "keys", "versions", "counters",
    )  # fmt: skip
    for status in report.primaries:
        yield row.format(
            f"p{status.partition}",
            status.primary or "-",
            status.epoch,
            "yes" if status.serving else "no",
            status.locks,
            status.waiting,
            status.open,
            len(status.prepared),
            status.outcomes,
            status.keys,
            status.versions,
            " ".join(f"{name} {count}" for name, count in status.counters.items() if count),
        )
        for txn in status.prepared:
            yield f"     pending {txn}"


def describe_key(key: bytes, report: KeyReport) -> Iterator[str]:
    """The versions of a key, the newest first, and the holders of its lock."""
    if report.problem:
        yield f"key {key.hex()}: {report.problem}"
        return
    yield f"key {key.hex()} in partition {report.partition}"
    for txn, exclusive in report.holders:
        yield f"  locked {'exclusively' if exclusive else 'to share'} by {txn}"
    for ts, value in report.versions:
        yield f"  {describe_ts(ts)}  {len(value)} bytes  {value[:SHOWN_BYTES].hex()}"
    if report.left_out:
        yield f"  and {report.left_out} older ones"


def describe_ts(ts: int) -> str:
    """A timestamp of the hybrid clock: wall time in UTC, and the counter."""
    wall = datetime.fromtimestamp((ts >> COUNTER_BITS) / 1000, UTC).isoformat("T", "milliseconds")
    return f"{wall}/{ts % TICK}"


def describe_events(batch: EventBatch) -> Iterator[str]:
    """Events as lines of text, wall time in UTC."""
    for event in batch.events:
        wall = datetime.fromtimestamp(event.wall_ns / NS_PER_S, UTC).isoformat()
        where = "" if event.partition is None else f" p{event.partition}"
        term = "" if event.term is None else f" term {event.term}"
        yield f"{event.seq:>6} {wall} {event.kind}{where}{term}: {event.text}"


async def change_voters(network: Network, host: str, port: int, names: str) -> Iterator[str]:
    """Make the nodes of ``names``, with commas between them, the voters of metastorage. Raises
    ``Refused``.
    """
    question = AskVoters(tuple(name.strip() for name in names.split(",")), VOTERS_LIMIT_MS)
    # The node tries until its limit is over, and then says why it was not enough.
    answer = await ask(network, host, port, question, 2 * VOTERS_LIMIT_MS / 1000)
    if not isinstance(answer, VotersReport) or answer.problem:
        raise Refused(answer.problem if isinstance(answer, VotersReport) else "another answer")
    return iter([f"voters of metastorage: {' '.join(answer.voters)}"])


async def carry_out(network: Network, host: str, port: int, statement: str) -> Iterator[str]:
    """Have ``statement`` carried out; the rows of its answer. Raises ``Refused``."""
    question = AskSql(statement, SQL_LIMIT_MS)
    answer = await ask(network, host, port, question, SQL_LIMIT_MS / 1000 + LIMIT_S)
    if not isinstance(answer, SqlReport):
        raise Refused("another answer")
    if (problem := answer.problem) is not None:
        retry = f" (try again: {problem.retry})" if problem.retry else ""
        doubt = "it may have been carried out: " if problem.doubtful else ""
        raise Refused(f"{doubt}{problem.kind}: {problem.message}{retry}")
    rows = (answer.columns, *answer.rows) if answer.columns else ()
    return ("  ".join("NULL" if cell is None else str(cell) for cell in row) for row in rows)


async def show(
    network: Network, host: str, port: int, key: bytes | None, table: str = ""
) -> Iterator[str]:
    """State and events of the node at (host, port), or the versions of ``key`` of ``table``
    there.
    """
    questions: tuple[AdminQuestion, ...] = (AskStatus(), AskEvents())
    lines: list[str] = []
    for question in questions if key is None else (AskKey(key, table),):
        answer = await ask(network, host, port, question, LIMIT_S)
        if isinstance(answer, NodeReport):
            lines += describe(answer)
        elif isinstance(answer, EventBatch):
            lines += describe_events(answer)
        elif isinstance(answer, KeyReport):
            lines += describe_key(key or b"", answer)
    return iter(lines)


def main() -> int:
    """Print the node's state, carry out a statement or change metastorage's voters; 1 where it
    does not answer, or refuses.
    """
    # Here, not above: a user of ``ask`` alone brings a network of its own.
    from clusters.reference.node.runtime.real import TcpNetwork

    parser = argparse.ArgumentParser(prog="python -m clusters.reference.node.admin")
    parser.add_argument("address", metavar="HOST:PORT", help="the node's client port")
    parser.add_argument("--key", metavar="HEX", help="show the versions of this key instead")
    parser.add_argument("--table", metavar="NAME", default="", help="the table of the key")
    parser.add_argument("--voters", metavar="NAMES", help="make these nodes metastorage's voters")
    parser.add_argument("--sql", metavar="STATEMENT", help="carry out this statement")
    arguments = parser.parse_args()
    host, _, port = arguments.address.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= MAX_PORT:
        parser.error(f"the address must be HOST:PORT, the port 1 to {MAX_PORT}")
    try:
        key = None if arguments.key is None else bytes.fromhex(arguments.key)
    except ValueError:
        parser.error("the key must be hexadecimal")
    if key == b"":
        parser.error("the key must have a byte at least")
    network, number = TcpNetwork(), int(port)
    if arguments.voters is not None:
        work = change_voters(network, host, number, arguments.voters)
    elif arguments.sql is not None:
        work = carry_out(network, host, number, arguments.sql)
    else:
        work = show(network, host, number, key, arguments.table)
    try:
        for line in asyncio.run(work):
            print(line)
    except Refused as error:
        print(f"{host}:{port}: {error}", file=sys.stderr)
        return 1
    except (ConnectionLost, BadMessage, TimeoutError) as error:
        print(f"{host}:{port} does not answer: {error or 'time is up'}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
