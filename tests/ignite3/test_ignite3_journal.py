"""What nodes' logs say becomes events, each once, on the run's axis; and tells who holds what."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import ignite3_lines as lines
import pytest
from ignite3_lines import line, log

from clusters.ignite3 import log_events, node_log
from clusters.ignite3.log_events import Journal
from clusters.ignite3.logline import parse_line
from clusters.ignite3.role_holders import roles_of
from harness.clock import RunClock
from harness.errors import HarnessError
from harness.history.records import EventKind, StoreEvent
from harness.protocols.cluster import LogPiece, Roles

T = TypeVar("T")
MS = 1_000_000
WALL_NS = 1_795_275_741_796 * MS  # 2026-11-21 15:42:21.796 UTC


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


class Logs:
    """``harness.protocols.cluster.ReadsLogs`` over texts; a node without one can't be asked."""

    def __init__(self, **content: bytes) -> None:
        self.content, self.asked = content, list[tuple[str, int]]()

    async def read_log(self, node: str, offset: int, limit_bytes: int) -> LogPiece:
        self.asked.append((node, offset))
        if node not in self.content:
            raise HarnessError(f"{node} is lost")
        piece = self.content[node][offset : offset + limit_bytes]
        return LogPiece(content=piece, wall_ns=WALL_NS + 1000 * MS)


async def read(book: Journal, logs: Logs) -> list[StoreEvent]:
    await book.read(logs, ("n1", "n2", "n3"), now=True)
    return book.events(RunClock(asyncio.get_running_loop()))


@pytest.mark.parametrize(
    ("message", "kind", "text"),
    [
        (lines.BEGAN, EventKind.NODE_STARTED, "its process began"),
        (lines.ELECTED, EventKind.LEADER_ELECTED, "leads partition 3, voters n2, n3, n5"),
        (
            lines.STEPPED_DOWN,
            EventKind.LEADER_LOST,
            "steps down from partition 3: no quorum without n5, n3",
        ),
        (lines.LEASE, EventKind.LEASE_GRANTED, "accepts the lease"),
        (lines.PENDING, EventKind.ASSIGNMENTS_CHANGED, "pending: n2, n3; learners n4"),
        (lines.STABLE, EventKind.ASSIGNMENTS_CHANGED, "stable: n2, n3; learners n4"),
        (
            lines.STARTED,
            EventKind.START_DECISION,
            "starts its replica, that of partition 3, among n2, n3; learners n4",
        ),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else value.value,
)
def test_a_line_that_counts_is_an_event(message: str, kind: EventKind, text: str) -> None:
    found = parse_line(line(message))

    assert found is not None
    assert (found.kind, found.text, found.wall_ns) == (kind, text, WALL_NS)
    assert found.partition == (None if kind is EventKind.NODE_STARTED else 3)


def test_times_are_read_with_their_zone() -> None:
    east = parse_line(line(lines.BEGAN, at="17:12:21:796", zone="+0130"))
    west = parse_line(line(lines.BEGAN, at="14:42:21:796", zone="-0100"))

    assert east is not None
    assert west is not None
    assert east.wall_ns == west.wall_ns == WALL_NS


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\tat java.base/java.lang.Thread.run(Unknown Source)",
        line("Available processors: 2"),
        line(lines.DEFAULT_ZONE_ELECTED),
        line(lines.ELECTED, day="2026-11-2x"),
        line(lines.REFUSED.replace("Handshake rejected by initiator", "Rejecting handshake")),
        lines.ELECTED,
    ],
)
def test_a_line_that_says_nothing_of_the_zone_is_none(text: str) -> None:
    assert parse_line(text) is None


def test_events_stand_on_the_axis_of_the_run_whatever_the_nodes_clock() -> None:
    async def look() -> None:
        clock = RunClock(asyncio.get_running_loop())
        book = Journal()
        (event,) = await read(book, Logs(n2=log(line(lines.ELECTED))))

        assert abs(event.at_ns - (clock.now_ns() - 1000 * MS)) < 500 * MS
        assert event.uncertainty_ns >= MS
        assert (event.node, event.wall_ns, event.term) == ("n2", WALL_NS, 4)

    run(look())


def test_no_line_counts_twice_and_half_a_line_not_at_all() -> None:
    async def look() -> None:
        whole = log(line(lines.BEGAN), line(lines.ELECTED), line(lines.LEASE))
        half = len(log(line(lines.BEGAN))) + 20
        logs, book = Logs(n2=whole[:half]), Journal()

        first = await read(book, logs)
        logs.content["n2"] = whole[: half + 40]
        none = await read(book, logs)
        logs.content["n2"] = whole
        rest = await read(book, logs)

        assert [e.kind for e in first] == [EventKind.NODE_STARTED]
        assert none == []
        assert [e.kind for e in rest] == [EventKind.LEADER_ELECTED, EventKind.LEASE_GRANTED]

    run(look())


def test_what_a_killed_node_said_last_is_in_what_was_collected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def look(kept: bytes) -> list[EventKind]:
        logs, book = Logs(n2=log(line(lines.BEGAN))), Journal()
        await read(book, logs)
        return [event.kind for event in book.rest("n2", kept)]

    whole = log(line(lines.BEGAN), line(lines.ELECTED, at="15:42:21:900"))
    assert run(look(whole)) == [EventKind.LEADER_ELECTED]

    end = log("the end of a line", line(lines.BEGAN), line(lines.ELECTED, at="15:42:21:900"))
    monkeypatch.setattr(log_events, "NODE_LOG_BYTES", len(end))
    assert run(look(end)) == [EventKind.LEADER_ELECTED]


def test_what_a_node_said_whose_clock_nobody_knows_is_not_told() -> None:
    async def look() -> list[StoreEvent]:
        return Journal().rest("n2", log(line(lines.ELECTED)))

    assert run(look()) == []


def test_a_topology_is_told_once_though_every_node_tells_of_it() -> None:
    content = log(line(lines.LEFT))

    found = run(read(Journal(), Logs(n1=content, n2=content, n3=content)))

    assert [event.text for event in found] == ["n4 left the topology: n2, n3"]


def test_a_topology_is_told_when_the_first_of_all_nodes_said_it_whoever_is_read_first() -> None:
    late, soon = line(lines.LEFT, at="15:42:20:001"), line(lines.LEFT, at="15:42:15:001")

    found = run(read(Journal(), Logs(n1=log(late), n2=log(soon))))

    assert [(event.node, event.wall_ns % (60_000 * MS)) for event in found] == [("n2", 15_001 * MS)]


def test_replicas_that_a_partition_has_already_are_no_news() -> None:
    asked, stable = line(lines.ASKED), line(lines.STABLE)
    other = line(lines.STABLE.replace("n4", "n5"))

    found = run(read(Journal(), Logs(n2=log(asked, stable, asked, stable, other, stable))))

    assert [event.text for event in found] == [
        "asks for the replicas n2, n3; learners n4",
        "stable: n2, n3; learners n4",
        "stable: n2, n3; learners n5",
        "stable: n2, n3; learners n4",
    ]


def test_starts_number_the_boots_of_a_node() -> None:
    content = log(line(lines.BEGAN), line(lines.ELECTED), line(lines.BEGAN), line(lines.ELECTED))

    found = run(read(Journal(), Logs(n2=content)))

    assert [event.boot for event in found] == ["1", "1", "2", "2"]


def test_a_node_is_refused_once_in_each_of_its_lives() -> None:
    refused, began = line(lines.REFUSED), line(lines.BEGAN)
    logs = Logs(n2=log(began, refused, refused, began, refused), n3=log(refused))

    events = run(read(Journal(), logs))

    found = [(e.node, e.boot) for e in events if e.kind is EventKind.NODE_REFUSED]
    assert sorted(found) == [("n2", "1"), ("n2", "2"), ("n3", "0")]


def test_a_look_just_before_is_enough_unless_it_has_to_be_now() -> None:
    async def look() -> list[tuple[str, int]]:
        logs, book = Logs(n2=b""), Journal()
        for now in (False, False, True):
            await book.read(logs, ("n2",), now=now)
        return logs.asked

    assert run(look()) == [("n2", 0), ("n2", 0)]


def test_a_log_longer_than_a_piece_is_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_log, "PIECE_BYTES", 400)
    content = log(line(lines.BEGAN), "x" * 1000, line(lines.ELECTED), line(lines.LEASE))

    found = run(read(Journal(), Logs(n2=content)))

    assert found[0].kind is EventKind.NODE_STARTED
    assert found[-1].kind is EventKind.LEASE_GRANTED


HELD = {"n1": (), "n2": (3,), "n3": (3,), "n4": (3,)}


def test_roles_are_what_was_said_last_of_nodes_that_answer() -> None:
    book = Journal()
    older = line(lines.LEASE.replace("117655164944908288", "117655164944908280"))
    run(
        read(
            book,
            Logs(
                n1=log(line(lines.METASTORAGE_ELECTED), line(lines.MANAGEMENT_ELECTED)),
                n2=log(line(lines.STARTED), line(lines.ELECTED), line(lines.LEASE)),
                n3=log(line(lines.ELECTED.replace("term=4", "term=3")), older),
            ),
        )
    )

    roles = roles_of(HELD, book.holders)

    assert roles.leaders == {3: "n2"}
    assert roles.primaries == {3: "n2"}
    assert roles.voters == {3: ("n2", "n3")}
    assert roles.learners == {3: ("n4",)}
    assert (roles.metastorage_leader, roles.management_leader) == ("n1", "n1")
    assert roles.others == ()


@pytest.mark.parametrize("first_read", ["n2", "n3"])
def test_learners_are_those_that_were_named_last_whichever_log_is_read_first(
    first_read: str,
) -> None:
    newer = line(lines.STABLE.replace("n4", "n5"), at="16:00:00:000")
    content = {"n2": log(newer), "n3": log(line(lines.STARTED, at="15:00:00:000"))}

    async def look() -> Roles:
        book, logs = Journal(), Logs()
        for node in sorted(content, key=lambda node: node != first_read):
            logs.content[node] = content[node]
            await read(book, logs)
        return roles_of({"n2": (3,), "n3": (3,), "n4": (), "n5": (3,)}, book.holders)

    roles = run(look())

    assert roles.learners == {3: ("n5",)}
    assert roles.voters == {3: ("n2", "n3")}


@pytest.mark.parametrize("last", [lines.STEPPED_DOWN, lines.BEGAN])
def test_who_stepped_down_or_began_anew_leads_no_more(last: str) -> None:
    book = Journal()
    run(read(book, Logs(n2=log(line(lines.ELECTED), line(last)))))

    assert roles_of(HELD, book.holders).leaders == {}


def test_where_nobody_answers_nothing_is_told() -> None:
    book = Journal()
    run(read(book, Logs(n2=log(line(lines.ELECTED), line(lines.LEASE)))))

    assert roles_of({}, book.holders) == Roles()


def test_a_node_that_answers_and_holds_nothing_is_told_all_the_same() -> None:
    assert roles_of({"n1": ()}, Journal().holders).others == ("n1",)
