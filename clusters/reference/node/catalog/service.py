"""SQL at the leader of metastorage: a statement is applied to the catalog and written by
compare-and-set, a query is answered from what is applied there once a quorum has confirmed that it
still leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from clusters.reference.node import events
from clusters.reference.node.catalog import catalog as catalogs
from clusters.reference.node.catalog import views
from clusters.reference.node.catalog.catalog import Catalog
from clusters.reference.node.catalog.grammar import parse
from clusters.reference.node.catalog.sql_errors import SqlError
from clusters.reference.node.catalog.statements import (
    Ddl,
    Describe,
    Recovery,
    ResetPartitions,
    RestartPartitions,
    Select,
)
from clusters.reference.node.groups.host import GroupHandle
from clusters.reference.node.markers import reached
from clusters.reference.node.metastorage.metastorage import (
    InvokeResult,
    View,
    encode_invoke,
)
from clusters.reference.node.metastorage.metastorage_client import LeaderHint
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import Failed, PeerAnswer, PeerBody, SqlReply
from clusters.reference.node.wire.reports import AskSql, SqlProblem, SqlReport

WRITE_TIMEOUT_S = 1.0
READ_TIMEOUT_S = 1.0  # for a quorum to confirm that this node leads
MAX_ATTEMPTS = 16  # of a statement that others overtake
ASK_TIMEOUT_S = 2.0
ASK_AGAIN_S = 0.1
# So much earlier than its asker gives up, a leader answers a statement that takes its time.
ANSWER_MARGIN_S = 0.5


class Recover(Protocol):
    """Carries out statements on partitions."""

    async def __call__(
        self, statement: Recovery, catalog: Catalog, limit_s: float
    ) -> SqlReport | Failed:
        """See ``availability.manual_recovery``. Raises ``SqlError``."""


class CatalogService:
    """Carries out statements while this node leads metastorage."""

    def __init__(
        self,
        *,
        node: str,
        view: View,
        group: GroupHandle,
        state: Callable[[Catalog], views.ClusterState],
        warnings: Callable[[Catalog, Ddl], tuple[str, ...]],
        recover: Recover,
        event_log: events.EventLog,
    ) -> None:
        """``state``: what views tell beside the catalog; ``warnings``: what to tell of what
        a statement has made or altered; ``recover`` carries out those on partitions.
        """
        self._recover = recover
        self._node, self._view, self._group = node, view, group
        self._state, self._warnings, self._events = state, warnings, event_log

    async def serve(self, body: AskSql) -> PeerAnswer:
        """Answer as the leader, or refuse."""
        if not self._group.serving:
            text = f"{self._node} does not lead metastorage"
            return Failed(codes.NOT_LEADER, text, self._group.leader)
        try:
            statement = parse(body.statement)
            if isinstance(statement, Describe | Select):
                if (refused := await self._deposed()) is not None:
                    return refused
                state = self._state(catalogs.read(self._view.get))
                rows = views.answer(statement, state)
                return SqlReply(SqlReport(columns=rows.columns, rows=rows.rows))
            if isinstance(statement, ResetPartitions | RestartPartitions):
                return await self._recovered(statement, body.limit_ms / 1000)
            return await self._apply(statement, " ".join(body.statement.split()))
        except SqlError as error:
            return SqlReply(SqlReport(problem=problem(error)))

    async def _recovered(self, statement: Recovery, limit_s: float) -> PeerAnswer:
        # Of a state that an earlier leader has left behind nothing is to be recovered.
        if (refused := await self._deposed()) is not None:
            return refused
        catalog = catalogs.read(self._view.get)
        answer = await self._recover(statement, catalog, max(limit_s - ANSWER_MARGIN_S, 0.0))
        if isinstance(answer, Failed):
            text, retry = answer.message, codes.RETRY[answer.code]
            return SqlReply(
                SqlReport(problem=SqlProblem(kind=answer.code, message=text, retry=retry))
            )
        return SqlReply(answer)

    async def _deposed(self) -> Failed | None:
        """Why what is applied here can't be told: a leader that was deposed without knowing would
        answer what was so before.
        """
        if await self._group.leads_now(READ_TIMEOUT_S):
            return None
        reached("query at a leader that may be deposed")
        text = f"{self._node} does not know whether it still leads metastorage"
        return Failed(codes.NOT_LEADER, text)

    async def _apply(self, statement: Ddl, text: str) -> PeerAnswer:
        for _ in range(MAX_ATTEMPTS):
            before = catalogs.read(self._view.get)
            try:
                after = before.apply(statement)
            except SqlError:
                # As good as a query: what stands in the statement's way may be gone.
                if (refused := await self._deposed()) is not None:
                    return refused
                if catalogs.read(self._view.get) == before:
                    raise
                continue
            if after is before:
                if (refused := await self._deposed()) is not None:
                    return refused
                if catalogs.read(self._view.get) != before:
                    continue
            else:
                invoke = catalogs.written(self._view.get, after)
                done = await self._group.propose(encode_invoke(invoke), WRITE_TIMEOUT_S)
                if not isinstance(done, InvokeResult):
                    return done if isinstance(done, Failed) else Failed(codes.LOST)
                if not done.success:
                    reached("statement overtaken by another one")
                    continue
                self._events.add(events.CATALOG_CHANGED, text)
            return SqlReply(SqlReport(warnings=self._warnings(after, statement)))
        return Failed(codes.OVERLOADED, f"{MAX_ATTEMPTS} other statements came first")


def problem(error: SqlError) -> SqlProblem:
    """``error`` as it travels."""
    place = error.place
    return SqlProblem(
        kind=type(error).__name__,
        message=str(error),
        token=error.token,
        place=None if place is None else (place.line, place.column),
        expected=error.expected,
    )


class Ask(Protocol):
    """The request router's."""

    async def __call__(self, node: str, body: PeerBody, limit_s: float) -> PeerAnswer:
        """The answer of ``node``."""


class SqlClient:
    """Sends statements to the leader of metastorage, on whichever node that is."""

    def __init__(self, *, leader: Callable[[], str | None], ask: Ask) -> None:
        self._leader, self._ask = leader, ask

    async def execute(self, question: AskSql) -> SqlReport:
        """The leader's answer. A statement that no leader took in is sent again, until its limit
        has passed; so is a query that was not answered.
        """
        try:
            statement = parse(question.statement)
        except SqlError as error:
            return SqlReport(problem=problem(error))
        query = isinstance(statement, Describe | Select)
        long = isinstance(statement, ResetPartitions | RestartPartitions)
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + question.limit_ms / 1000
        leaders = LeaderHint(self._leader)
        while True:
            leader = leaders.next()
            answer: PeerAnswer = Failed(codes.NOT_LEADER, "metastorage has no leader")
            if leader is not None:
                left_s = max(deadline_s - loop.time(), 0.0)
                asked = AskSql(question.statement, int(left_s * 1000))
                answer = await self._ask(leader, asked, left_s if long else ASK_TIMEOUT_S)
            if isinstance(answer, SqlReply):
                return answer.report
            code, text = codes.LOST, "no answer to a statement"
            if isinstance(answer, Failed):
                code, text = answer.code, answer.message
                leaders.failed(answer)
            taken = not query and code not in (*codes.NOT_SERVED, codes.OVERLOADED)
            if taken or loop.time() >= deadline_s:
                message, retry = f"{text} ({code})", codes.RETRY[code]
                return SqlReport(
                    problem=SqlProblem(kind=code, message=message, doubtful=taken, retry=retry)
                )
            await asyncio.sleep(ASK_AGAIN_S)
