"""What a leader of metastorage that may be deposed answers to statements, and who is asked next."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clusters.providers.sim.loop import simulate
from clusters.reference.node.catalog.catalog import Catalog
from clusters.reference.node.catalog.service import ASK_TIMEOUT_S, CatalogService, SqlClient
from clusters.reference.node.catalog.statements import Recovery
from clusters.reference.node.events import EventLog
from clusters.reference.node.metastorage.metastorage import Metastorage
from clusters.reference.node.metastorage.metastorage_client import LeaderHint
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import Failed, PeerAnswer, PeerBody, SqlReply
from clusters.reference.node.wire.reports import AskSql, SqlReport

ZONE = "CREATE ZONE z WITH PARTITIONS = 2"


class Group:
    """The group of metastorage: ``leads`` is what a quorum says of this leader."""

    serving, leader = True, None

    def __init__(self, store: Metastorage) -> None:
        self.store, self.leads, self.index = store, True, 0
        self.late: list[bytes] = []  # applied as the quorum is asked

    async def leads_now(self, limit_s: float) -> bool:
        while self.late:
            await self.propose(self.late.pop(), limit_s)
        return self.leads

    async def propose(self, data: bytes, limit_s: float) -> object:
        self.index += 1
        return self.store.apply(Entry(1, self.index, data))


async def recover(statement: Recovery, catalog: Catalog, limit_s: float) -> SqlReport | Failed:
    """Refuses what names numbers; else tells the zone, and how much time there was."""
    if statement.numbers:
        return Failed(codes.MAJORITY_LIVES, "they live")
    return SqlReport(
        columns=("ZONE", "MS"), rows=((catalog.zone(statement.name).name, int(limit_s * 1000)),)
    )


def service(group: Group) -> CatalogService:
    made: Any = group
    return CatalogService(
        node="a",
        view=group.store,
        group=made,
        state=lambda catalog: made,
        warnings=lambda catalog, statement: (),
        recover=recover,
        event_log=EventLog(boot="boot", wall_ns=lambda: 7),
    )


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE ZONE IF NOT EXISTS z WITH PARTITIONS = 2",
        "ALTER ZONE z SET REPLICAS = 1",
        ZONE,
        "DROP ZONE y",
        "SELECT * FROM SYSTEM.ZONES",
    ],
)
def test_what_changes_nothing_is_answered_by_a_leader_that_a_quorum_knows(statement: str) -> None:
    async def scenario() -> None:
        group = Group(Metastorage())
        leader = service(group)
        assert isinstance(await leader.serve(AskSql(ZONE, 1000)), SqlReply)
        group.leads = False
        answer = await leader.serve(AskSql(statement, 1000))
        assert isinstance(answer, Failed)
        assert answer.code == codes.NOT_LEADER

    simulate(scenario())


def test_a_statement_on_partitions_is_carried_out_by_a_leader_that_a_quorum_knows() -> None:
    async def scenario() -> None:
        group = Group(Metastorage())
        leader = service(group)
        await leader.serve(AskSql(ZONE, 1000))
        answer = await leader.serve(AskSql("RESET PARTITIONS OF ZONE z", 2000))
        assert isinstance(answer, SqlReply)
        # Before its asker gives up.
        assert answer.report.rows == (("Z", 1500),)
        answer = await leader.serve(AskSql("RESTART PARTITIONS (0) OF ZONE z", 2000))
        assert isinstance(answer, SqlReply)
        problem = answer.report.problem
        assert problem is not None
        assert (problem.kind, problem.retry) == (codes.MAJORITY_LIVES, codes.Retry.NEVER)
        answer = await leader.serve(AskSql("RESET PARTITIONS OF ZONE y", 2000))
        assert isinstance(answer, SqlReply)
        assert answer.report.problem is not None
        assert answer.report.problem.kind == "NoSuchObject"
        group.leads = False
        assert isinstance(await leader.serve(AskSql("RESET PARTITIONS OF ZONE z", 9)), Failed)

    simulate(scenario())


def test_a_refusal_is_thought_over_once_the_quorum_has_brought_news() -> None:
    async def scenario() -> None:
        other, group = Group(Metastorage()), Group(Metastorage())
        written = list[bytes]()
        propose = other.propose

        async def kept(data: bytes, limit_s: float) -> object:
            written.append(data)
            return await propose(data, limit_s)

        other.propose = kept  # type: ignore[method-assign]
        await service(other).serve(AskSql(ZONE, 1000))
        group.late = written
        answer = await service(group).serve(AskSql("DROP ZONE z", 1000))
        assert isinstance(answer, SqlReply)
        assert answer.report.problem is None

    simulate(scenario())


def test_a_leader_that_was_named_and_does_not_answer_is_forgotten() -> None:
    leaders = LeaderHint(lambda: "own")
    leaders.failed(Failed(codes.NOT_LEADER, "", "named"))
    assert leaders.next() == "named"
    leaders.failed(Failed(codes.PEER_LOST))
    assert leaders.next() == "own"
    for expected in ("dead", "own", "dead"):
        leaders.failed(Failed(codes.NOT_LEADER, "", "dead"))
        assert leaders.next() == expected


@pytest.mark.parametrize(
    ("statement", "long"),
    [("ALTER ZONE z SET REPLICAS = 2", False), ("RESTART PARTITIONS OF ZONE z", True)],
)
def test_the_leader_is_told_the_time_that_is_left(statement: str, long: bool) -> None:
    asked: list[tuple[int, float]] = []

    async def ask(node: str, body: PeerBody, limit_s: float) -> PeerAnswer:
        assert isinstance(body, AskSql)
        asked.append((body.limit_ms, limit_s))
        await asyncio.sleep(0.5)
        return Failed(codes.NOT_LEADER, leader=node) if len(asked) < 3 else SqlReply(SqlReport())

    async def scenario() -> SqlReport:
        client = SqlClient(leader=lambda: "a", ask=ask)
        return await client.execute(AskSql(statement, 4000))

    assert simulate(scenario()).problem is None
    assert [limit_ms for limit_ms, _ in asked] == sorted((ms for ms, _ in asked), reverse=True)
    assert asked[0][0] == 4000
    assert 2000 < asked[2][0] < 3000
    for limit_ms, limit_s in asked:
        assert limit_s == (pytest.approx(limit_ms / 1000, abs=0.001) if long else ASK_TIMEOUT_S)
