"""The members of metastorage's raft group, in a cluster where not all nodes vote in it ("Metastore
rebalance" of 003): they change by the same change of peers as those of partitions.

No key of metastorage says which members there are to be, since its own group would have to be there
to read them: a leader is asked, and forgets it with its term. So the asking node asks the next
leader again, until the configuration that was asked for is committed. All other nodes of the
logical topology follow as learners, and go on with it while they are connected: a node that takes
in a snapshot can't renew its lease, so it is out before it has that, and would begin anew.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Mapping, Sequence

from clusters.reference.node import events
from clusters.reference.node.groups.group import Group
from clusters.reference.node.groups.host import RaftHost
from clusters.reference.node.markers import reached
from clusters.reference.node.metastorage.metastorage import METASTORAGE
from clusters.reference.node.metastorage.metastorage_client import LeaderHint
from clusters.reference.node.raft import (
    ChangeFailed,
    ChangeRefused,
    NotLeader,
    PeersApplied,
    Stage,
)
from clusters.reference.node.rebalance import failover
from clusters.reference.node.rebalance.failover import ReconfigurationError, Retries
from clusters.reference.node.storage.identity import name_of, names_of, replaced
from clusters.reference.node.topology.logical import Ask
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import Failed, PeerAnswer, VotersReply
from clusters.reference.node.wire.reports import AskVoters, VotersReport

ASK_TIMEOUT_S = 2.0
SERVE_S = 1.5  # for a leader to make the change, before it is asked again
POLL_S = 0.05
ASK_AGAIN_S = 0.1

log = logging.getLogger("node.voters")


class MetastorageVoters:
    """Changes the members of metastorage's group where this node leads it."""

    def __init__(
        self,
        *,
        node: str,
        host: RaftHost,
        connected: Callable[[], Mapping[str, str]],
        joined: Callable[[], Mapping[str, str]],
        event_log: events.EventLog,
    ) -> None:
        """``connected``: the members that the nodes in reach are now, by name; ``joined``: those of
        the logical topology.
        """
        self._node, self._host, self._events = node, host, event_log
        self._connected, self._joined = connected, joined
        self._asked: tuple[int, tuple[str, ...]] | None = None  # of which term, and the members
        self._retries = Retries()
        self._wait_until_s = 0.0

    def tick(self, group: Group) -> None:
        """Take one step towards the voters that were asked for, or that are there, in their present
        lives; ``group`` is led here.
        """
        raft = group.raft
        self._note_events(group)
        if self._asked is not None and self._asked[0] != raft.term:
            self._asked = None
        connected = dict(self._connected())
        target = raft.configuration.voters if self._asked is None else self._asked[1]
        voters = replaced(target, connected)
        behind = (m for m in raft.configuration.learners if m in connected.values())
        following = dict.fromkeys((*self._joined().values(), *behind))
        learners = tuple(m for m in following if m not in voters)
        if raft.stage is Stage.CATCHING_UP and raft.changing_to not in (None, voters):
            reached("change of metastorage's members cancelled")
            raft.cancel_change()
        config = raft.configuration
        there = frozenset(config.voters), frozenset(config.learners)
        if raft.stage is not Stage.STABLE or there == (frozenset(voters), frozenset(learners)):
            return
        if asyncio.get_running_loop().time() < self._wait_until_s:
            return
        try:
            raft.change_peers(voters, learners, term=raft.term)
        except (ChangeRefused, NotLeader) as error:
            log.debug("%s: not now: %s", group.name, error)
            return
        log.info("%s: from %s to %s, and %s", group.name, config, voters, learners)
        self._host.mark_ready(group)

    def _note_events(self, group: Group) -> None:
        term = group.raft.term
        for event in group.take_events():
            if isinstance(event, PeersApplied) and event.term == term:
                self._retries = Retries()
                voters = " ".join(names_of(event.configuration.voters))
                text = f"voters of metastorage: {voters}"
                self._events.add(events.REBALANCE_STAGE, text, term=term)
            elif isinstance(event, ChangeFailed) and event.term == term:
                error = ReconfigurationError(event.error.value)
                # Never given up: without it no other group could change its members either.
                decision = failover.failed(self._retries, error, 0, limit=sys.maxsize)
                self._retries = decision.retries
                self._wait_until_s = asyncio.get_running_loop().time() + decision.delay_s
                whose = "" if event.member is None else f", {name_of(event.member)}"
                text = f"change of metastorage's voters failed: {error}{whose}"
                self._events.add(events.REBALANCE_STAGE, text, term=term)

    async def serve(self, body: AskVoters) -> PeerAnswer:
        """Make the nodes of ``body`` the voters as the leader, or refuse."""
        group = self._host.groups.get(METASTORAGE)
        if group is None or not group.serving:
            text = f"{self._node} does not lead metastorage"
            return Failed(codes.NOT_LEADER, text, None if group is None else group.leader)
        joined = self._joined()
        if problem := _problem(body.nodes, joined):
            return VotersReply(VotersReport(problem=problem))
        raft = group.raft
        asked = self._asked = raft.term, tuple(joined[node] for node in body.nodes)
        deadline_s = asyncio.get_running_loop().time() + SERVE_S
        while group.serving and raft.term == asked[0]:
            voters = names_of(raft.committed_configuration[1].voters)
            if raft.stage is Stage.STABLE and frozenset(voters) == frozenset(body.nodes):
                return VotersReply(VotersReport(voters=voters))
            if asyncio.get_running_loop().time() >= deadline_s:
                return Failed(codes.OVERLOADED, f"metastorage's voters are {' '.join(voters)} yet")
            await asyncio.sleep(POLL_S)
        reached("leader of metastorage lost while its voters change")
        text = f"{self._node} does not lead metastorage any more"
        return Failed(codes.NOT_LEADER, text, group.leader)


def _problem(nodes: Sequence[str], joined: Mapping[str, str]) -> str:
    """Why ``nodes`` can't be the voters; empty where they can."""
    if not nodes or len(frozenset(nodes)) != len(nodes):
        return f"voters: expected distinct nodes, one at least (got {' '.join(nodes) or 'none'})"
    strangers = [node for node in nodes if node not in joined]
    if strangers:
        there = ", ".join(sorted(joined))
        return f"voters: expected nodes of the logical topology: {there} (got {strangers[0]!r})"
    return ""


class VotersClient:
    """Asks the leader of metastorage, on whichever node that is, to change its voters."""

    def __init__(self, *, leader: Callable[[], str | None], ask: Ask) -> None:
        self._leader, self._ask = leader, ask

    async def execute(self, question: AskVoters) -> VotersReport:
        """The voters once they are those that were asked for, or why they are not in time. Asking
        twice for the same changes nothing, so that every failure is answered by another try.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + question.limit_ms / 1000
        leaders = LeaderHint(self._leader)
        while True:
            leader = leaders.next()
            answer: PeerAnswer = Failed(codes.NOT_LEADER, "metastorage has no leader")
            if leader is not None:
                answer = await self._ask(leader, question, ASK_TIMEOUT_S)
            if isinstance(answer, VotersReply):
                return answer.report
            failed = answer if isinstance(answer, Failed) else Failed(codes.LOST, "no answer")
            leaders.failed(failed)
            if loop.time() >= deadline_s:
                return VotersReport(problem=f"{failed.message} ({failed.code})")
            await asyncio.sleep(ASK_AGAIN_S)
