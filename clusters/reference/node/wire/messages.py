"""Messages between nodes, and between a client and the node that it talks to.

A node's reports of itself are in ``reports``.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from clusters.reference.node.catalog.nodes import Node
from clusters.reference.node.raft.configuration import Lineage
from clusters.reference.node.raft.types import Message
from clusters.reference.node.wire.reports import (
    AdminBody,
    AdminQuestion,
    AskSql,
    AskVoters,
    SqlReport,
    VotersReport,
)

PROTOCOL = 4
NO_ANSWER = 0  # the id of a request that wants no answer


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """First frame of a connection between nodes, in both directions: the node, and since which
    wipe of its directory.
    """

    node: str
    incarnation: str
    protocol: int = PROTOCOL


class RaftBatch(msgspec.Struct, frozen=True, array_like=True, tag="raft"):
    """Messages of any number of groups to one peer: (group, message)."""

    messages: tuple[tuple[str, Message], ...]


class TxnId(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A transaction; smaller is older. ``origin`` is the start of the node that coordinates it, so
    that nothing is named twice; ``number`` counts its transactions.
    """

    ts: int
    origin: str
    number: int

    def __str__(self) -> str:
        return f"{self.origin}-{self.number}"


class LockToken(msgspec.Struct, frozen=True, array_like=True):
    """The token of a transaction's locks at a primary: the primary's epoch, and a number that it
    gives once. (0, 0): no locks yet. A transaction that shows another token than the primary's has
    lost its locks.
    """

    epoch: int
    number: int


NO_TOKEN = LockToken(0, 0)


# A group and a term of it.
Claim = tuple[str, int]


class Heartbeat(msgspec.Struct, frozen=True, array_like=True):
    """A node's heartbeat to another, for all the groups that it leads and the other one follows in:
    those that were ``begun`` on this connection and not ``ended``. ``tick`` is the sender's.
    """

    tick: int
    begun: tuple[Claim, ...] = ()
    ended: tuple[str, ...] = ()


class HeartbeatAck(msgspec.Struct, frozen=True, array_like=True):
    """Answers the heartbeat of ``tick``: all its claims hold, and go on to hold, except those
    ``refused``.
    """

    tick: int
    refused: tuple[Claim, ...] = ()


class Ping(msgspec.Struct, frozen=True, array_like=True, tag="ping"):
    """Keeps the link known to be alive and clocks together, and reports the founders of the
    sender's cluster: empty where it does not know them, ``None`` where it reported them before on
    this connection.
    """

    ts: int
    founders: tuple[str, ...] | None
    heartbeat: Heartbeat | None = None


class Pong(msgspec.Struct, frozen=True, array_like=True, tag="pong"):
    """Answers a ping; ``refused``: the clock in it is too far ahead to follow."""

    ack: HeartbeatAck | None = None
    refused: bool = False


class Lock(msgspec.Struct, frozen=True, array_like=True, tag="lock"):
    """To a primary: lock ``key``, and return its value where it is ``read``. All ``limit_ms``: how
    long the primary may keep the transaction, or wait before it answers that the outcome is
    unknown.
    """

    partition: int
    txn: TxnId
    token: LockToken
    key: bytes
    exclusive: bool
    read: bool
    limit_ms: int


class Execute(msgspec.Struct, frozen=True, array_like=True, tag="execute"):
    """To a primary: a whole transaction. A step without value is a get."""

    partition: int
    txn: TxnId
    steps: tuple[tuple[bytes, bytes | None], ...]
    limit_ms: int


class Validate(msgspec.Struct, frozen=True, array_like=True, tag="validate"):
    """To a primary: do the locks still hold? Then write no version below ``ts`` to the keys that
    they protect any more, and release them.
    """

    partition: int
    txn: TxnId
    token: LockToken
    ts: int


class Prepare(msgspec.Struct, frozen=True, array_like=True, tag="prepare"):
    """To a primary: lock the written keys exclusively, and make the transaction's locks and writes
    here durable, to be finished as the partition ``home`` decides. ``settled``: it has every lock
    that it needs elsewhere.
    """

    partition: int
    txn: TxnId
    token: LockToken
    writes: tuple[tuple[bytes, bytes], ...]
    home: int
    limit_ms: int
    settled: bool


class CommitTx(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """To the primary of the commit partition: lock the written keys exclusively, commit not before
    ``ts``, record the outcome, and finish the transaction at ``participants``, which are prepared,
    each in its one of ``generations``.
    """

    partition: int
    txn: TxnId
    token: LockToken
    ts: int
    writes: tuple[tuple[bytes, bytes], ...]
    participants: tuple[int, ...]
    limit_ms: int
    generations: tuple[int, ...] = ()


class Finish(msgspec.Struct, frozen=True, array_like=True, tag="finish"):
    """To a primary: the prepared ``txn`` has committed at ``ts``; 0: the transaction is given
    up.
    """

    partition: int
    txn: TxnId
    ts: int


class Resolve(msgspec.Struct, frozen=True, array_like=True, tag="resolve"):
    """To the primary of a commit partition: the outcome of ``txn``. Where it has none, it is
    aborted now.
    """

    partition: int
    txn: TxnId


class ReadAt(msgspec.Struct, frozen=True, array_like=True, tag="read-at"):
    """To a primary: the version of ``key`` at ``ts``, which a snapshot took ``age_ms`` ago."""

    partition: int
    key: bytes
    ts: int
    age_ms: int
    limit_ms: int


class Renew(msgspec.Struct, frozen=True, array_like=True, tag="renew"):
    """To the leader of metastorage: renew the lease of ``node``; ``lease`` is its next record."""

    node: str
    lease: bytes


class MetaInvoke(msgspec.Struct, frozen=True, array_like=True, tag="invoke"):
    """To the leader of metastorage: an encoded ``Invoke``."""

    data: bytes


class Join(msgspec.Struct, frozen=True, array_like=True, tag="join"):
    """To the leader of metastorage: ``origin``, a start of ``node``, wants to be in the logical
    topology. ``incarnation``: since which wipe of its directory.
    """

    node: Node
    origin: str
    incarnation: str
    cluster_tag: str
    version: str


class Leave(msgspec.Struct, frozen=True, array_like=True, tag="leave"):
    """To the leader of metastorage: ``origin``, a start of ``node``, stops in order."""

    node: str
    origin: str


class AskMember(msgspec.Struct, frozen=True, array_like=True, tag="member?"):
    """To a node: as which member of the group of ``partition`` does its replica run? Asked by the
    group's leader for the pending set of ``revision``, with the ``lineage`` of its log.
    """

    partition: int
    revision: int
    lineage: Lineage = ()


class MemberReply(msgspec.Struct, frozen=True, array_like=True, tag="member!"):
    """The member; ``None``: no replica runs, or what it has applied is not of the leader's log and
    has to be erased, or the node has not applied the revision yet, and may still stop a replica
    that a later one asks for.
    """

    member: str | None


class AskLog(msgspec.Struct, frozen=True, array_like=True, tag="log?"):
    """To a node: how far is the log of its copy of ``partition``? Asked before a reset."""

    partition: int


class LogReply(msgspec.Struct, frozen=True, array_like=True, tag="log!"):
    """Where the log of the copy ends, whether its replica runs or not: the generation that the log
    is of, and its last entry. All 0: there is none. ``whole``: it has voters in its configuration,
    and the beginning of the generation that it is in, and is not about to be erased. ``member``:
    the copy, in its present life. ``durable``: as the first three, of what is on its disk.
    """

    generation: int
    term: int
    index: int
    whole: bool = True
    member: str = ""
    durable: tuple[int, int, int] = (0, 0, 0)

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing in the copy."""
        return (self.generation, self.term, self.index) == (0, 0, 0)


class AskStart(msgspec.Struct, frozen=True, array_like=True, tag="start?"):
    """To a node: does its replica of ``partition`` live, and what of the user's is in its log? One
    question for both (IEP-131, "Optimisations").
    """

    partition: int


class RestartReplica(msgspec.Struct, frozen=True, array_like=True, tag="restart"):
    """To a node: stop the replica of ``partition`` and start it again from its disk, or with
    ``cleanup`` without what is on it. Answered with ``Ack`` once it runs.
    """

    partition: int
    cleanup: bool = False


class StartReply(msgspec.Struct, frozen=True, array_like=True, tag="start!"):
    """``alive``: the replica runs, and is a voter of its own configuration. The last entry of the
    copy, ``index`` of ``term`` in ``generation``; the last that a client has asked for, committed
    or not: ``user_index`` (lastUserCmdIdx; 0: none), of ``user_generation``; and the last
    configuration (lastCfgIdx). ``whole`` and ``member``: see ``LogReply``.
    """

    alive: bool
    generation: int
    term: int
    index: int
    user_generation: int
    user_index: int
    config_index: int
    whole: bool = True
    member: str = ""


class LockReply(msgspec.Struct, frozen=True, array_like=True, tag="locked"):
    """The lock is held; the last committed value."""

    token: LockToken
    value: bytes | None


class ExecuteReply(msgspec.Struct, frozen=True, array_like=True, tag="executed"):
    """A whole transaction happened at ``ts``; the values of its gets, in order."""

    values: tuple[bytes | None, ...]
    ts: int


class PrepareReply(msgspec.Struct, frozen=True, array_like=True, tag="prepared"):
    """Durable; it can't commit below ``ts``. A reset may cut it off: it counts in ``generation`` of
    its partition only.
    """

    ts: int
    generation: int = 0


class CommitReply(msgspec.Struct, frozen=True, array_like=True, tag="committed"):
    """Durable on a quorum and visible at ``ts``."""

    ts: int


class ResolveReply(msgspec.Struct, frozen=True, array_like=True, tag="resolved"):
    """Committed at ``ts``; 0: aborted, for good."""

    ts: int


class Version(msgspec.Struct, frozen=True, array_like=True, tag="version"):
    """A value and when it was committed; (``None``, 0) where there was none."""

    value: bytes | None
    ts: int


class Ack(msgspec.Struct, frozen=True, array_like=True, tag="fine"):
    """It is so."""


class InvokeReply(msgspec.Struct, frozen=True, array_like=True, tag="invoked"):
    """The outcome of an invoke: see ``metastorage.InvokeResult``."""

    success: bool
    revision: int = 0
    branch: int = 0


class JoinReply(msgspec.Struct, frozen=True, array_like=True, tag="joined"):
    """The node is in the logical topology, or is refused for good: why."""

    refused: str = ""


class SqlReply(msgspec.Struct, frozen=True, array_like=True, tag="sql"):
    """The answer to a statement."""

    report: SqlReport


class VotersReply(msgspec.Struct, frozen=True, array_like=True, tag="voters"):
    """The answer to a change of metastorage's voters."""

    report: VotersReport


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """An error by its code (``codes``); ``leader`` where a better address is known."""

    code: str
    message: str = ""
    leader: str | None = None


PrimaryBody = Lock | Execute | Validate | Prepare | CommitTx | Finish | Resolve | ReadAt
LeaderBody = Renew | MetaInvoke | Join | Leave | AskSql | AskVoters
PeerBody = PrimaryBody | LeaderBody | AskMember | AskLog | AskStart | RestartReplica
PeerAnswer = (
    VotersReply
    | LockReply
    | MemberReply
    | LogReply
    | StartReply
    | ExecuteReply
    | PrepareReply
    | CommitReply
    | ResolveReply
    | Version
    | Ack
    | InvokeReply
    | JoinReply
    | SqlReply
    | Failed
)


class PeerRequest(msgspec.Struct, frozen=True, array_like=True, tag="request"):
    """A question to a peer, with its clock. Ids count up per connection; 0 wants no answer."""

    id: int
    body: PeerBody
    ts: int


class PeerReply(msgspec.Struct, frozen=True, array_like=True, tag="reply"):
    """The answer to the request ``id`` of the same connection, and the answering clock."""

    id: int
    body: PeerAnswer
    ts: int


PeerFrame = Hello | RaftBatch | Ping | Pong | PeerRequest | PeerReply


class Begin(msgspec.Struct, frozen=True, array_like=True, tag="begin"):
    """Open a transaction; an open one of this connection is rolled back. ``after``: a timestamp
    that the client has seen at another node, and does not go back behind.
    """

    kind: str
    limit_ms: int
    after: int = 0


class Get(msgspec.Struct, frozen=True, array_like=True, tag="get"):
    """Read ``key`` in the open transaction; ``for_update``: it will be written, too. ``table``: its
    full name, where the cluster has distribution zones.
    """

    key: bytes
    for_update: bool = False
    table: str = ""


class Put(msgspec.Struct, frozen=True, array_like=True, tag="put"):
    """Write ``key`` in the open transaction; no other transaction sees it before commit. ``table``:
    see ``Get``.
    """

    key: bytes
    value: bytes
    table: str = ""


class Commit(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """End the open transaction, durably."""


class Rollback(msgspec.Struct, frozen=True, array_like=True, tag="rollback"):
    """End the open transaction, if any, without effect."""


class OneShot(msgspec.Struct, frozen=True, array_like=True, tag="one-shot"):
    """A whole read-write transaction in one round trip. A step without value is a get. ``tables``:
    that of each step, where the cluster has distribution zones.
    """

    steps: tuple[tuple[bytes, bytes | None], ...]
    limit_ms: int
    tables: tuple[str, ...] = ()


class Started(msgspec.Struct, frozen=True, array_like=True, tag="begun"):
    """The open transaction's id."""

    txn: str


class Value(msgspec.Struct, frozen=True, array_like=True, tag="value"):
    """The value that a get saw."""

    value: bytes | None


class Ok(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """It is so."""


class Committed(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """It is committed, at ``ts``."""

    ts: int


class OneShotReply(msgspec.Struct, frozen=True, array_like=True, tag="results"):
    """A one-shot is committed, at ``ts``; the values of its gets, in order."""

    values: tuple[bytes | None, ...]
    ts: int


ClientBody = Begin | Get | Put | Commit | Rollback | OneShot | AdminQuestion
ReplyBody = Started | Value | Ok | Committed | OneShotReply | Failed


class ClientRequest(msgspec.Struct, frozen=True, array_like=True):
    """A client's request; ids count up per connection. A request that wants no answer gets none
    unless it fails: then the next one is not tried, and answered with that failure.
    """

    id: int
    body: ClientBody


class ClientReply(msgspec.Struct, frozen=True, array_like=True):
    """The answer to a step of a transaction."""

    id: int
    body: ReplyBody


class AdminReply(msgspec.Struct, frozen=True, array_like=True):
    """The answer to an admin question."""

    id: int
    body: AdminBody


class BadMessage(Exception):
    """A payload that is none of the expected messages: the connection can't go on."""


T = TypeVar("T")
_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode


class Codec:
    """Decoders, made once: one for each stream of messages."""

    peer = msgspec.msgpack.Decoder(PeerFrame)
    request = msgspec.msgpack.Decoder(ClientRequest)
    reply = msgspec.msgpack.Decoder(ClientReply)
    admin = msgspec.msgpack.Decoder(AdminReply)


def decode(decoder: msgspec.msgpack.Decoder[T], payload: bytes) -> T:
    """The message in ``payload``. Raises ``BadMessage``."""
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadMessage(f"not a message of this protocol: {error}") from error
