"""Metastorage's service at its leader: what goes through the log, and what is refused."""

from __future__ import annotations

import asyncio

import pytest

from clusters.providers.sim.loop import simulate
from clusters.reference.node.metastorage.metastorage import (
    Condition,
    Invoke,
    Metastorage,
    Operation,
    encode_invoke,
)
from clusters.reference.node.metastorage.metastorage_service import BATCH_S, MetastorageService
from clusters.reference.node.placement.lease_expiry import LEASE, Lease, encode
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import (
    Ack,
    Failed,
    InvokeReply,
    Join,
    LeaderBody,
    Leave,
    MetaInvoke,
    PeerAnswer,
    Renew,
)
from clusters.reference.node.wire.reports import AskSql, AskVoters

WRITE = Invoke((Condition("key", "absent"),), (Operation("key", b"1"),))
CHAIN = Invoke(
    (Condition("key", "absent"),),
    (),
    otherwise=Invoke((Condition("key", "present"),), (Operation("key", b"2"),)),
)
READ = Invoke((Condition("key", "present"),), ())


class Leader:
    """A group whose leader does what it proposes at once, or answers it with ``outcome``."""

    def __init__(self) -> None:
        self.store = Metastorage()
        self.serving = self.leads = True
        self.proposed: list[bytes] = []
        self.outcome: list[object] = []

    async def leads_now(self, limit_s: float) -> bool:
        return self.leads

    async def propose(self, data: bytes, limit_s: float) -> object:
        self.proposed.append(data)
        return self.outcome.pop(0) if self.outcome else self.store.apply(Entry(1, 1, data))

    def holds(self, node: str, number: int) -> None:
        """Metastorage has this renewal of ``node`` already."""
        invoke = Invoke((), (Operation(f"{LEASE}{node}", lease(node, number)),))
        self.store.apply(Entry(1, 1, encode_invoke(invoke)))


class Topology:
    """The service of topology and catalog."""

    async def serve(self, body: Join | Leave | AskSql | AskVoters) -> PeerAnswer:
        return Ack()


def lease(node: str, number: int) -> bytes:
    return encode(Lease(f"{node}~a", number, 10 * number))


def renewal(node: str, number: int) -> Renew:
    return Renew(node, lease(node, number))


def codes_of(found: list[PeerAnswer]) -> list[str]:
    """The code of each refusal, empty of what was done."""
    return [answer.code if isinstance(answer, Failed) else "" for answer in found]


def answers(leader: Leader, *bodies: LeaderBody, zoned: Topology | None = None) -> list[PeerAnswer]:
    """What ``leader`` answers to each of ``bodies``, once all of their renewals are written."""

    async def scenario() -> list[PeerAnswer]:
        work = list[asyncio.Task[None]]()
        service = MetastorageService(
            node="n1",
            group=leader,
            get=leader.store.get,
            read=leader.store.read,
            spawn=lambda step: work.append(asyncio.ensure_future(step)),
            zoned=zoned,
        )
        found = list[PeerAnswer]()
        for body in bodies:
            found.append(await service.serve(body))
            await asyncio.sleep(BATCH_S / 10)
        await asyncio.gather(*work)
        return found

    return simulate(scenario())


def invoked(invoke: Invoke) -> MetaInvoke:
    return MetaInvoke(encode_invoke(invoke))


def test_an_invoke_that_may_write_goes_through_the_log_and_one_that_only_reads_does_not() -> None:
    leader = Leader()

    assert answers(leader, *map(invoked, (WRITE, READ, WRITE, CHAIN))) == [
        InvokeReply(True, 1, 0),
        InvokeReply(True, 1, 0),
        InvokeReply(False, 1, 0),
        InvokeReply(True, 2, 1),
    ]
    assert leader.proposed == [encode_invoke(each) for each in (WRITE, WRITE, CHAIN)]


def test_nothing_is_read_where_the_leadership_may_have_passed_on() -> None:
    leader = Leader()
    leader.leads = False

    assert codes_of(answers(leader, invoked(READ))) == [codes.NOT_LEADER]
    assert leader.proposed == []


@pytest.mark.parametrize("body", [invoked(WRITE), renewal("n2", 2)])
def test_who_does_not_lead_refuses_and_does_nothing(body: LeaderBody) -> None:
    leader = Leader()
    leader.holds("n2", 1)
    leader.serving = False

    assert codes_of(answers(leader, body)) == [codes.NOT_LEADER]
    assert leader.proposed == []


@pytest.mark.parametrize("outcome", [Failed(codes.OVERLOADED), Failed(codes.LEADER_LOST)])
def test_why_a_proposal_failed_is_passed_on(outcome: Failed) -> None:
    leader = Leader()
    leader.outcome = [outcome]

    assert answers(leader, invoked(WRITE)) == [outcome]


def test_an_outcome_of_another_kind_leaves_an_invoke_open() -> None:
    leader = Leader()
    leader.outcome = [None]

    assert answers(leader, invoked(WRITE)) == [Failed(codes.LOST)]


def test_topology_and_catalog_are_served_in_a_cluster_that_has_zones_and_refused_elsewhere() -> (
    None
):
    leader, leave = Leader(), Leave("n2", "n2~a")
    leader.serving = False  # their own service looks at that

    assert answers(leader, leave, zoned=Topology()) == [Ack()]
    assert codes_of(answers(leader, leave)) == [codes.KIND]


def test_renewals_that_come_together_are_one_command_and_one_that_is_repeated_is_refused() -> None:
    leader = Leader()
    for node in ("n2", "n3"):
        leader.holds(node, 1)
    renewals = renewal("n2", 2), renewal("n3", 2)

    found = answers(leader, *renewals, renewals[0])
    assert found[:2] == [InvokeReply(True), InvokeReply(True)]
    assert codes_of(found[2:]) == [codes.LOST]
    assert len(leader.proposed) == 1
    for body in renewals:
        held = leader.store.get(f"{LEASE}{body.node}")
        assert held is not None
        assert held.value == body.lease


@pytest.mark.parametrize(("number", "code"), [(2, codes.LOST), (3, codes.LOST), (4, "")])
def test_a_leader_that_has_accepted_none_refuses_a_renewal_that_comes_late_or_twice(
    number: int, code: str
) -> None:
    leader = Leader()
    leader.holds("n2", 3)

    assert codes_of(answers(leader, renewal("n2", number))) == [code]
    assert len(leader.proposed) == (code == "")


def test_a_node_that_has_no_lease_renews_none() -> None:
    leader = Leader()

    assert codes_of(answers(leader, renewal("n2", 1))) == [codes.LOST]
    assert leader.proposed == []
