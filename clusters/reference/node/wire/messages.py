"""What travels: between nodes, and between a client and the node it talks to."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from clusters.reference.node.raft.types import Message
from clusters.reference.node.wire.states import AskStates, StateReport

PROTOCOL = 3


class Hello(msgspec.Struct, frozen=True, array_like=True, tag="hello"):
    """First frame of a connection between nodes, in both directions: who speaks, and since which
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


class Hold(msgspec.Struct, frozen=True, array_like=True):
    """What a transaction holds at a primary, by the primary's epoch and a number that it gives
    once. (0, 0): nothing yet. Whoever shows another hold than the primary has, has lost his locks.
    """

    epoch: int
    number: int


NO_HOLD = Hold(0, 0)


Claim = tuple[str, int]
"""A group and a term of it."""


class Beat(msgspec.Struct, frozen=True, array_like=True):
    """A node's heartbeat to another, for all the groups that it leads and the other one follows in:
    those that were ``begun`` on this connection and not ``ended``. ``tick`` is the sender's.
    """

    tick: int
    begun: tuple[Claim, ...] = ()
    ended: tuple[str, ...] = ()


class Beaten(msgspec.Struct, frozen=True, array_like=True):
    """Answers the beat of ``tick``: all that it claims is so, and goes on to be, except what was
    ``refused``.
    """

    tick: int
    refused: tuple[Claim, ...] = ()


class Ping(msgspec.Struct, frozen=True, array_like=True, tag="ping"):
    """Keeps the link known to be alive and clocks together, and tells who founded the sender's
    cluster, none where it does not know, ``None`` where it told before on this connection.
    """

    ts: int
    founders: tuple[str, ...] | None
    beat: Beat | None = None


class Pong(msgspec.Struct, frozen=True, array_like=True, tag="pong"):
    """Answers a ping."""

    beaten: Beaten | None = None


class Lock(msgspec.Struct, frozen=True, array_like=True, tag="lock"):
    """To a primary: lock ``key``, and tell its value. All ``limit_ms``: how long the primary may
    keep the transaction, or wait before it answers that it does not know.
    """

    partition: int
    txn: TxnId
    hold: Hold
    key: bytes
    exclusive: bool
    limit_ms: int


class Execute(msgspec.Struct, frozen=True, array_like=True, tag="execute"):
    """To a primary: a whole transaction. A step without value is a get."""

    partition: int
    txn: TxnId
    steps: tuple[tuple[bytes, bytes | None], ...]
    limit_ms: int


class Validate(msgspec.Struct, frozen=True, array_like=True, tag="validate"):
    """To a primary: do the locks still hold? Then write no version below ``ts`` to what they
    protect any more, and let them go.
    """

    partition: int
    txn: TxnId
    hold: Hold
    ts: int


class Prepare(msgspec.Struct, frozen=True, array_like=True, tag="prepare"):
    """To a primary: make the transaction's locks and writes here durable, to be finished as the
    partition ``home`` says.
    """

    partition: int
    txn: TxnId
    hold: Hold
    writes: tuple[tuple[bytes, bytes], ...]
    home: int
    limit_ms: int


class CommitTx(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """To the primary of the commit partition: commit not before ``ts``, record that it is so, and
    finish it at ``participants``, which are prepared.
    """

    partition: int
    txn: TxnId
    hold: Hold
    ts: int
    writes: tuple[tuple[bytes, bytes], ...]
    participants: tuple[int, ...]
    limit_ms: int


class Finish(msgspec.Struct, frozen=True, array_like=True, tag="finish"):
    """To a primary: what is prepared has committed at ``ts``; 0: the transaction is given up."""

    partition: int
    txn: TxnId
    ts: int


class Resolve(msgspec.Struct, frozen=True, array_like=True, tag="resolve"):
    """To the primary of a commit partition: what became of ``txn``? If nothing did, it is aborted
    now.
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


class Locked(msgspec.Struct, frozen=True, array_like=True, tag="locked"):
    """The lock is held; the last committed value."""

    hold: Hold
    value: bytes | None


class Executed(msgspec.Struct, frozen=True, array_like=True, tag="executed"):
    """A whole transaction happened at ``ts``; the values of its gets, in order."""

    values: tuple[bytes | None, ...]
    ts: int


class Prepared(msgspec.Struct, frozen=True, array_like=True, tag="prepared"):
    """Durable; it can't commit below ``ts``."""

    ts: int


class Committed(msgspec.Struct, frozen=True, array_like=True, tag="committed"):
    """Durable on a quorum and visible at ``ts``."""

    ts: int


class Resolved(msgspec.Struct, frozen=True, array_like=True, tag="resolved"):
    """Committed at ``ts``; 0: aborted, for good."""

    ts: int


class Version(msgspec.Struct, frozen=True, array_like=True, tag="version"):
    """A value and when it was committed; (``None``, 0) where there was none."""

    value: bytes | None
    ts: int


class Fine(msgspec.Struct, frozen=True, array_like=True, tag="fine"):
    """It is so."""


class Invoked(msgspec.Struct, frozen=True, array_like=True, tag="invoked"):
    """Which branch of an invoke was done."""

    success: bool


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """An error by its code (``codes``); ``leader`` where a better address is known."""

    code: str
    message: str = ""
    leader: str | None = None


PrimaryBody = Lock | Execute | Validate | Prepare | CommitTx | Finish | Resolve | ReadAt
PeerBody = PrimaryBody | Renew | MetaInvoke
PeerAnswer = Locked | Executed | Prepared | Committed | Resolved | Version | Fine | Invoked | Failed


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
    """Open a transaction; an open one of this connection is rolled back."""

    kind: str
    limit_ms: int


class Get(msgspec.Struct, frozen=True, array_like=True, tag="get"):
    """Read ``key`` in the open transaction."""

    key: bytes


class Put(msgspec.Struct, frozen=True, array_like=True, tag="put"):
    """Write ``key`` in the open transaction; nobody else sees it before commit."""

    key: bytes
    value: bytes


class Commit(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """End the open transaction, durably."""


class Rollback(msgspec.Struct, frozen=True, array_like=True, tag="rollback"):
    """End the open transaction, if any, without effect."""


class OneShot(msgspec.Struct, frozen=True, array_like=True, tag="one-shot"):
    """A whole read-write transaction in one round trip. A step without value is a get."""

    steps: tuple[tuple[bytes, bytes | None], ...]
    limit_ms: int


class AskKey(msgspec.Struct, frozen=True, array_like=True, tag="key"):
    """Admin: the versions of ``key`` on this node."""

    key: bytes


class AskStatus(msgspec.Struct, frozen=True, array_like=True, tag="status"):
    """Admin: the state of this node."""


class AskEvents(msgspec.Struct, frozen=True, array_like=True, tag="events"):
    """Admin: events after ``cursor`` of start ``boot``; all there are if this is another start."""

    boot: str = ""
    cursor: int = 0


class Begun(msgspec.Struct, frozen=True, array_like=True, tag="begun"):
    """The open transaction's id."""

    txn: str


class Value(msgspec.Struct, frozen=True, array_like=True, tag="value"):
    """What a get saw."""

    value: bytes | None


class Done(msgspec.Struct, frozen=True, array_like=True, tag="done"):
    """It is so."""


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """It is committed, at ``ts``."""

    ts: int


class Results(msgspec.Struct, frozen=True, array_like=True, tag="results"):
    """A one-shot is committed, at ``ts``; the values of its gets, in order."""

    values: tuple[bytes | None, ...]
    ts: int


class GroupStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One member of one group, as this node sees it. ``partition`` is ``None`` for metastorage.

    ``serving``: it leads, and has applied everything of earlier terms. ``members``: the voters with
    their incarnations; ``stage``: of a change of members; the log begins behind ``base_index``.
    """

    group: str
    partition: int | None
    role: str
    serving: bool
    term: int
    leader: str | None
    voters: tuple[str, ...]
    last_index: int
    commit_index: int
    applied_index: int
    members: tuple[str, ...] = ()
    stage: str = "stable"
    base_index: int = 0


class PrimaryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One partition as this node sees it. ``primary`` and ``epoch`` are as granted, ``None`` and 0
    where they are not; ``serving``: this node is the primary and its lease holds. ``locks``,
    ``waiting`` and ``open`` count at the primary only, the others in the replica: ``prepared``
    transactions are pending here, ``outcomes`` are kept for others that are.
    """

    partition: int
    primary: str | None
    epoch: int
    serving: bool
    locks: int
    waiting: int
    open: int
    prepared: tuple[str, ...]
    outcomes: int
    keys: int
    versions: int
    max_ts: int
    counters: dict[str, int]


class NodeReport(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """The state of a node. ``assignments`` is empty until metastorage told it; ``lease_s``: how
    long its lease still holds, below 0 if it does not; ``clock``: its hybrid logical clock.
    """

    node: str
    incarnation: str
    boot: str
    wall_ns: int
    revision: int
    partitions: int
    replicas: int
    members: tuple[str, ...]
    assignments: dict[int, tuple[str, ...]]
    groups: tuple[GroupStatus, ...]
    primaries: tuple[PrimaryStatus, ...]
    lease_s: float
    clock: int
    reachable: tuple[str, ...]
    log_bytes: int
    bugs: tuple[str, ...]


class NodeEvent(msgspec.Struct, frozen=True, array_like=True):
    """Something that happened on a node; ``seq`` counts up from 1 at each start."""

    seq: int
    kind: str
    wall_ns: int
    boot: str
    partition: int | None
    term: int | None
    text: str


class EventBatch(msgspec.Struct, frozen=True, kw_only=True, tag="event-batch"):
    """Events in order, the node's wall clock now, and the cursor to ask from next."""

    boot: str
    wall_ns: int
    cursor: int
    events: tuple[NodeEvent, ...]


class KeyReport(msgspec.Struct, frozen=True, kw_only=True, tag="key-report"):
    """A key on this node: its partition, its versions, the newest first, and who holds its lock
    (transaction, exclusively or not) where this node is the primary.
    """

    partition: int
    versions: tuple[tuple[int, bytes], ...]
    holders: tuple[tuple[str, bool], ...]


AdminQuestion = AskStatus | AskEvents | AskKey | AskStates
ClientBody = Begin | Get | Put | Commit | Rollback | OneShot | AdminQuestion
ReplyBody = Begun | Value | Done | Ended | Results | Failed
AdminBody = NodeReport | EventBatch | KeyReport | StateReport


class ClientRequest(msgspec.Struct, frozen=True, array_like=True):
    """A client's request; ids count up per connection."""

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
