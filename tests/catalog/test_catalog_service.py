"""What a leader of metastorage that may be deposed answers to statements, and who is asked next."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from clusters.providers.sim.loop import simulate
from clusters.reference.node.catalog import catalog as catalogs
from clusters.reference.node.catalog.catalog import Catalog
from clusters.reference.node.catalog.options import Zone
from clusters.reference.node.catalog.service import ASK_TIMEOUT_S, CatalogService, SqlClient
from clusters.reference.node.catalog.statements import Recovery
from clusters.reference.node.events import EventLog
from clusters.reference.node.metastorage.metastorage import Metastorage, encode_invoke
from clusters.reference.node.metastorage.metastorage_client import LeaderHint
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import Ack, Failed, PeerAnswer, PeerBody, SqlReply
from clusters.reference.node.wire.reports import AskSql, SqlProblem, SqlReport

ZONE = "CREATE ZONE z WITH PARTITIONS = 2"


class Group:
    """The group of metastorage: ``leads`` is what a quorum says of this leader."""

    def __init__(self, store: Metastorage) -> None:
        self.serving = True
        self.leader: str | None = None
        self.store, self.leads, self.index = store, True, 0
        self.late: list[bytes] = []  # applied as the quorum is asked
        self.refuses: object = None  # what is proposed, with this answer

    async def leads_now(self, limit_s: float) -> bool:
        while self.late:
            await self.propose(self.late.pop(), limit_s)
        return self.leads

    async def propose(self, data: bytes, limit_s: float) -> object:
        if self.refuses is not None:
            return self.refuses
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


def test_a_node_that_does_not_lead_names_the_leader_and_carries_nothing_out() -> None:
    group = Group(Metastorage())
    group.serving, group.leader = False, "b"

    answer = simulate(service(group).serve(AskSql(ZONE, 1000)))

    assert answer == Failed(codes.NOT_LEADER, "a does not lead metastorage", "b")
    assert catalogs.read(group.store.get) == Catalog()


@pytest.mark.parametrize(
    ("refusal", "code"),
    [(Failed(codes.OVERLOADED, "full"), codes.OVERLOADED), ("no result", codes.LOST)],
)
def test_a_statement_that_the_log_does_not_take_is_answered_with_its_code(
    refusal: object, code: str
) -> None:
    group = Group(Metastorage())
    group.refuses = refusal

    answer = simulate(service(group).serve(AskSql(ZONE, 1000)))

    assert isinstance(answer, Failed)
    assert answer.code == code


def test_a_problem_without_a_place_travels_without_one() -> None:
    group = Group(Metastorage())
    full = Catalog(zones={f"Z{number}": Zone(id=number, name="Z") for number in range(256)})
    group.store.apply(Entry(1, 1, encode_invoke(catalogs.written(group.store.get, full))))

    answer = simulate(service(group).serve(AskSql("CREATE ZONE y", 1000)))

    problem = SqlProblem(kind="SqlError", message="a cluster has at most 256 zones")
    assert answer == SqlReply(SqlReport(problem=problem))


def proposed(*statements: str) -> list[bytes]:
    """What a leader writes of ``statements``, one after the other."""
    group, written = Group(Metastorage()), list[bytes]()
    propose = group.propose

    async def kept(data: bytes, limit_s: float) -> object:
        written.append(data)
        return await propose(data, limit_s)

    async def scenario() -> None:
        group.propose = kept  # type: ignore[method-assign]
        for statement in statements:
            await service(group).serve(AskSql(statement, 1000))

    simulate(scenario())
    return written


@pytest.mark.parametrize(
    ("applied", "late", "statement"),
    [
        ([], [ZONE], "DROP ZONE z"),
        ([ZONE], ["DROP ZONE z"], "CREATE ZONE IF NOT EXISTS z"),
        ([ZONE], [], "CREATE ZONE IF NOT EXISTS z"),
    ],
    ids=["refused", "changes-nothing", "no-news"],
)
def test_a_statement_is_thought_over_once_the_quorum_has_brought_news(
    applied: list[str], late: list[str], statement: str
) -> None:
    async def scenario(group: Group, written: list[bytes]) -> PeerAnswer:
        for data in written[: len(applied)]:
            await group.propose(data, 1.0)
        group.late = written[len(applied) :]
        return await service(group).serve(AskSql(statement, 1000))

    group = Group(Metastorage())
    answer = simulate(scenario(group, proposed(*applied, *late)))

    assert answer == SqlReply(SqlReport())
    assert bool(catalogs.read(group.store.get).zones) is statement.startswith("CREATE")


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


def executed(
    statement: str, *answers: PeerAnswer, leader: str | None = "a", limit_ms: int = 4000
) -> tuple[SqlReport, list[str]]:
    """What a client reports of ``answers``, the last one again and again; the nodes it asked."""
    asked: list[str] = []

    async def ask(node: str, body: PeerBody, limit_s: float) -> PeerAnswer:
        asked.append(node)
        return answers[min(len(asked), len(answers)) - 1]

    client = SqlClient(leader=lambda: leader, ask=ask)
    return simulate(client.execute(AskSql(statement, limit_ms))), asked


QUERY = "SELECT * FROM SYSTEM.ZONES"
REPORT = SqlReport(rows=((1,),))


@pytest.mark.parametrize("statement", [ZONE, QUERY])
def test_a_statement_follows_the_leader_that_a_refusal_names(statement: str) -> None:
    refused = Failed(codes.NOT_LEADER, leader="b")

    assert executed(statement, refused, SqlReply(REPORT)) == (REPORT, ["a", "b"])


@pytest.mark.parametrize("lost", [Failed(codes.PEER_LOST, "gone"), Ack()])
def test_a_query_that_was_not_answered_is_sent_again_and_a_statement_is_in_doubt(
    lost: PeerAnswer,
) -> None:
    assert executed(QUERY, lost, SqlReply(REPORT)) == (REPORT, ["a", "a"])
    report, asked = executed(ZONE, lost, SqlReply(REPORT))
    assert asked == ["a"]
    assert report.problem is not None
    assert report.problem.doubtful
    assert report.problem.kind == (lost.code if isinstance(lost, Failed) else codes.LOST)


@pytest.mark.parametrize("statement", [ZONE, QUERY])
@pytest.mark.parametrize("code", [codes.NOT_LEADER, codes.UNREACHABLE, codes.OVERLOADED])
def test_a_statement_that_no_leader_takes_in_is_refused_at_its_limit(
    statement: str, code: str
) -> None:
    report, asked = executed(statement, Failed(code, "no"), limit_ms=950)

    assert asked == ["a"] * 11
    assert report.problem == SqlProblem(kind=code, message=f"no ({code})", retry=codes.RETRY[code])
    _, asked = executed(statement, Failed(code, "no"), limit_ms=0)
    assert asked == ["a"]


def test_a_statement_without_a_leader_asks_nobody_and_says_so() -> None:
    report, asked = executed(ZONE, SqlReply(REPORT), leader=None)

    assert asked == []
    assert report.problem is not None
    assert report.problem.kind == codes.NOT_LEADER
    assert "metastorage has no leader" in report.problem.message
    assert not report.problem.doubtful
