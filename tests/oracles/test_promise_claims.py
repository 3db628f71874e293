"""Promises to readers about timestamps: what comes to be later is numbered above them."""

from __future__ import annotations

import msgspec
import pytest
from oracles.toy_store import Bench, details

from clusters.providers.sim.oracles.isolation import Locks
from clusters.reference.claims.claims_reader import ReferenceClaims
from clusters.reference.claims.durable_facts import entry_mark
from clusters.reference.node.catalog.nodes import Node
from clusters.reference.node.declarations import PrimaryAnswer
from clusters.reference.node.metastorage.metastorage import (
    METASTORAGE,
    Invoke,
    Operation,
    encode_invoke,
)
from clusters.reference.node.placement.lease_expiry import Grant, Lease, encode, released
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.rebalance import keys
from clusters.reference.node.rebalance.driver import NUMBERS, Numbers
from clusters.reference.node.rebalance.keys import Assignments, PartitionId, Position
from clusters.reference.node.storage.log_records import Update, encode_record, segment_header
from clusters.reference.node.topology.logical import LOGICAL, Member
from clusters.reference.node.tx import commands
from clusters.reference.node.wire.messages import (
    Ack,
    CommitReply,
    CommitTx,
    Execute,
    ExecuteReply,
    Failed,
    Lock,
    LockReply,
    LockToken,
    PeerAnswer,
    PeerReply,
    PeerRequest,
    PrimaryBody,
    ReadAt,
    Resolve,
    ResolveReply,
    TxnId,
    Validate,
    Version,
)
from clusters.reference.node.wire.messages import encode as encode_message
from harness.protocols.claims import (
    AnswerClock,
    Claim,
    Fact,
    ForcedReset,
    LockGrant,
    LockRelease,
    LogUpdate,
    PrimaryAct,
    ReadsValid,
    StableMembers,
    TimestampOrder,
)

TXN = TxnId(7, "n1~a", 1)


class Logged:
    """A disk of one node, and the reader that follows what is written and committed there."""

    def __init__(self) -> None:
        self.reader = ReferenceClaims()
        self.followed: list[Fact] = []
        self._disk, self._at, self._next = self.reader.disk(), 0, {"p0": 1, METASTORAGE: 1}

    def commit(self, group: str, data: bytes) -> tuple[Fact, ...]:
        """What the entry says that is written and committed next."""
        entry = Entry(1, self._next[group], data)
        self._next[group] += 1
        header = b"" if self._at else segment_header(1)
        record = encode_record((Update(group, None, (entry,)),), 1, self._at + len(header))
        self._at, facts = self._disk.read("log-00000001", self._at, header + record)
        self.followed = list(self.reader.committed(group, entry.index, entry_mark(entry)))
        (update,) = [fact for fact in facts if isinstance(fact, LogUpdate)]
        return update.entries[0].says

    def write(self, key: str, value: bytes) -> list[Fact]:
        """Set a key of metastorage; return what follows from that."""
        self.commit(METASTORAGE, encode_invoke(Invoke((), (Operation(key, value),))))
        return self.followed

    def order(self, command: commands.Command) -> TimestampOrder:
        """What ``command`` says of timestamps."""
        (found,) = [
            fact
            for fact in self.commit("p0", commands.encode(command))
            if isinstance(fact, TimestampOrder)
        ]
        return found


def after(held: Grant, taker: str = "n2") -> Logged:
    """``held`` after its holder has renewed twice, the last one late, and another that follows."""
    logged = Logged()
    for number, ceiling in ((1, 400), (2, 500), (3, 450)):
        logged.write("lease/n1", encode(Lease("n1~a", number, ceiling)))
    logged.write("primary/0", encode(Grant("n1", "n1~a", 1)))
    logged.write("primary/0", encode(held))
    logged.write("primary/0", encode(Grant(taker, f"{taker}~b", 2)))
    return logged


@pytest.mark.parametrize(
    ("held", "taker", "promised"),
    [
        (Grant("n1", "n1~a", 1), "n2", 500),  # as far as its lease has ever allowed
        (released(Grant("n1", "n1~a", 1), 320), "n2", 320),  # as it told itself
        (Grant("n1", "n1~a", 1), "n1", 0),  # by its own clock
    ],
)
def test_an_epoch_begins_above_what_the_primary_before_may_have_promised(
    held: Grant, taker: str, promised: int
) -> None:
    order = after(held, taker).order(commands.Takeover(2, 490))

    assert (order.ts, order.promised) == (490, promised)


def test_a_transaction_commits_above_what_its_participants_have_prepared_at() -> None:
    logged = Logged()
    logged.commit("p0", commands.encode(commands.Prepare(1, TXN, 55, (), ((b"k", b"v"),), 1)))

    order = logged.order(commands.Commit(1, TXN, 50, ((b"l", b"v"),), (0,)))

    assert (order.ts, order.promised) == (50, 55)


def test_a_timestamp_that_was_promised_away_breaks_a_promise() -> None:
    async def act(bench: Bench) -> None:
        bench.declare("n1", TimestampOrder("the commit of t", 56, 55))
        bench.declare("n1", TimestampOrder("the commit of u", 55, 55))

    (found,) = details(act)
    assert found.detail == ("the commit of u is 55, and up to 55 readers may have been promised")


def test_an_answer_carries_a_timestamp_above_that_of_its_question() -> None:
    reader, asked = ReferenceClaims(), PeerRequest(7, Resolve(0, TXN), 500)

    def clocks(reply: PeerReply) -> list[Fact]:
        list(reader.between("n1", "n2", 1, encode_message(asked)))
        said = reader.between("n2", "n1", 1, encode_message(reply))
        return [fact for _, fact in said if isinstance(fact, AnswerClock)]

    assert clocks(PeerReply(7, ResolveReply(0), 501)) == [AnswerClock(501, 500)]
    assert clocks(PeerReply(7, Failed("CLOCK-DRIFT", "too far ahead"), 20)) == []

    async def act(bench: Bench) -> None:
        bench.declare("n1", AnswerClock(501, 500))
        bench.declare("n1", AnswerClock(500, 500))

    (found,) = details(act)
    assert (found.claim, found.node) == (Claim.CLOCK_CARRIED, "n1")
    assert found.detail == "it answers at 500 what it was asked at 500"


def assigned() -> Logged:
    """Partition 0 of a table on ``n1`` to ``n3``, of which ``n1`` has left, and its next one."""
    logged, partition = Logged(), PartitionId(7, 0)
    members = tuple(Member(Node(name=name), f"{name}~a", name) for name in ("n2", "n3", "n4"))
    logged.write(NUMBERS, msgspec.msgpack.encode(Numbers(((7, 0, 1),))))
    logged.write(LOGICAL, msgspec.msgpack.encode(members))
    logged.write(partition.key(keys.STABLE), keys.encode(keys.assignments(("n1", "n2", "n3"))))
    logged.write(partition.key(keys.PENDING), keys.encode(keys.assignments(("n1", "n2", "n4"))))
    return logged


def test_a_reset_is_to_ask_all_that_are_there_of_stable_and_pending() -> None:
    logged, partition = assigned(), PartitionId(7, 0)
    forced = Assignments(("n2",), force=True, survivors=("n2",), member="n2@x")
    facts = logged.write(partition.key(keys.PENDING), keys.encode(forced))

    (found,) = [fact for fact in facts if isinstance(fact, ForcedReset)]
    assert found == ForcedReset("p0", "p0", "n2", "n2@x", ("n2", "n3", "n4"), majority=True)
    # That an operator asks for, and one that goes on already, may come though most are there.
    again = msgspec.structs.replace(forced, nodes=("n3",), manual=True)
    facts = logged.write(partition.key(keys.PENDING), keys.encode(again))
    assert not [fact for fact in facts if isinstance(fact, ForcedReset) and fact.majority]


def test_stable_members_are_told_with_their_place_in_the_log() -> None:
    logged, partition = assigned(), PartitionId(7, 0)
    facts = logged.write(partition.key(keys.APPLIED), Position(2, 40).encode())

    told = StableMembers("p0@2", 40, ("n1", "n2", "n3"))
    assert [fact for fact in facts if isinstance(fact, StableMembers)] == [told]


def test_a_commit_is_acknowledged_for_the_epoch_that_has_logged_it() -> None:
    logged, token = Logged(), LockToken(4, 1)
    writes = ((b"k", b"v"),)
    logged.commit("p0", commands.encode(commands.Commit(3, TXN, 50, writes, ())))

    def acts(body: PrimaryBody, answer: PeerAnswer) -> list[Fact]:
        said = logged.reader.declared("n1", PrimaryAnswer(body, answer))
        return [fact for _, fact in said if isinstance(fact, PrimaryAct)]

    step = CommitTx(
        partition=0, txn=TXN, token=token, ts=0, writes=writes, participants=(), limit_ms=9
    )
    assert acts(step, CommitReply(50)) == [PrimaryAct("p0", 3, logged=True)]
    whole = Execute(partition=0, txn=TXN, steps=writes, limit_ms=9)
    assert acts(whole, ExecuteReply((), 50)) == [PrimaryAct("p0", 3, logged=True)]
    # Another transaction that only reads may have the same timestamp.
    reads = Execute(partition=0, txn=TxnId(8, "n1~a", 2), steps=((b"k", None),), limit_ms=9)
    assert acts(reads, ExecuteReply((b"v",), 50)) == [PrimaryAct("p0")]
    lock = Lock(partition=0, txn=TXN, token=token, key=b"k", exclusive=True, read=False, limit_ms=9)
    assert acts(lock, LockReply(token, None)) == [PrimaryAct("p0", 4)]


def test_what_is_told_to_be_valid_was_read_under_locks_until_now() -> None:
    token = LockToken(3, 1)
    answer = PrimaryAnswer(Validate(0, TXN, token, 500), Ack())
    said = [fact for _, fact in ReferenceClaims().declared("n1", answer)]
    assert ReadsValid("p0", 3, str(TXN)) in said
    assert PrimaryAct("p0") in said

    def valid(released_s: float) -> str:
        locks = Locks()
        locks.locked(LockGrant("p0", 3, "t", b"k", exclusive=False))
        locks.unlocked(released_s, LockRelease("p0", 3, "t"))
        return locks.valid(5.0, ReadsValid("p0", 3, "t"))

    assert valid(5.0) == ""
    assert valid(4.5) == (
        "what t has read in p0 is told to be valid, and its lock of 6b was given up 0.500 s before"
    )


def test_the_ceiling_of_a_lease_never_falls() -> None:
    logged = Logged()

    def order(number: int, ceiling: int, start: str = "a") -> TimestampOrder:
        facts = logged.write("lease/n1", encode(Lease(f"n1~{start}", number, ceiling)))
        (found,) = [fact for fact in facts if isinstance(fact, TimestampOrder)]
        return found

    for number, ceiling in ((1, 400), (2, 500), (2, 500)):
        found = order(number, ceiling)
        assert found.ts > found.promised
    late = order(1, 400)
    assert late.what == "the ceiling of renewal 1 of n1~a"
    assert late.ts <= late.promised
    # Another start has made no promises yet; those of the one before are told by its takeover.
    other = order(1, 300, start="b")
    assert other.ts > other.promised


def told(reader: ReferenceClaims, ts: int) -> TimestampOrder | None:
    """What is said of the ceiling as n1, the primary, reads at ``ts``."""
    event = PrimaryAnswer(ReadAt(0, b"k", ts, 0, 100), Version(b"v", 1))
    found = [fact for _, fact in reader.declared("n1", event)]
    orders = [fact for fact in found if isinstance(fact, TimestampOrder)]
    return orders[0] if orders else None


def test_a_primary_promises_readers_nothing_above_the_ceiling_of_its_lease() -> None:
    logged = Logged()
    origin = logged.reader.holder("n1", "boot-000000a1")
    assert told(logged.reader, 400) is None  # of no renewal that was seen

    logged.write("lease/n1", encode(Lease(origin, 1, 500)))
    within, beyond = told(logged.reader, 500), told(logged.reader, 501)

    assert within is not None
    assert within.ts > within.promised
    assert beyond is not None
    assert beyond.ts <= beyond.promised
    # Another start of the node has made no use of it.
    logged.reader.holder("n1", "boot-000000b2")
    assert told(logged.reader, 100) is None


def test_a_primary_that_gives_its_grant_up_tells_of_all_that_it_has_promised() -> None:
    def given_up(ceiling: int) -> TimestampOrder:
        logged = Logged()
        origin = logged.reader.holder("n1", "boot-000000a1")
        told(logged.reader, 450)
        told(logged.reader, 400)
        facts = logged.write("primary/0", encode(released(Grant("n1", origin, 3), ceiling)))
        (order,) = [fact for fact in facts if isinstance(fact, TimestampOrder)]
        return order

    assert given_up(450).ts > given_up(450).promised
    assert given_up(449).ts <= given_up(449).promised
