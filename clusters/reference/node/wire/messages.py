"""What travels: between nodes, and between a client and the node it talks to."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from clusters.reference.node.raft.types import Message

PROTOCOL = 1


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


class Ping(msgspec.Struct, frozen=True, array_like=True, tag="ping"):
    """Keeps the link known to be alive, and tells what the sender leads, (partition, term), and who
    founded its cluster, if it knows.
    """

    leads: tuple[tuple[int, int], ...] = ()
    founders: tuple[str, ...] = ()


class Pong(msgspec.Struct, frozen=True, array_like=True, tag="pong"):
    """Answers a ping."""


class ReadKey(msgspec.Struct, frozen=True, array_like=True, tag="read"):
    """To a partition's leader: value and version of ``key``."""

    partition: int
    key: bytes


class CommitTx(msgspec.Struct, frozen=True, array_like=True, tag="commit"):
    """To a partition's leader: install ``writes`` if every key read still has its version.

    ``limit_ms``: how long the leader may wait before it answers that it does not know.
    """

    partition: int
    reads: tuple[tuple[bytes, int], ...]
    writes: tuple[tuple[bytes, bytes], ...]
    limit_ms: int


class Read(msgspec.Struct, frozen=True, array_like=True, tag="value"):
    """A value and the log index that wrote it; (``None``, 0) where there never was one."""

    value: bytes | None
    version: int


class Committed(msgspec.Struct, frozen=True, array_like=True, tag="committed"):
    """The transaction is durable on a quorum and visible; ``index`` is its place in the
    partition's log.
    """

    index: int


class Failed(msgspec.Struct, frozen=True, array_like=True, tag="failed"):
    """An error by its code (``codes``); ``leader`` where a better address is known."""

    code: str
    message: str = ""
    leader: str | None = None


class PeerRequest(msgspec.Struct, frozen=True, array_like=True, tag="request"):
    """A question to a peer. Ids count up per connection."""

    id: int
    body: ReadKey | CommitTx


class PeerReply(msgspec.Struct, frozen=True, array_like=True, tag="reply"):
    """The answer to the request ``id`` of the same connection."""

    id: int
    body: Read | Committed | Failed


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


class NodeReport(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """The state of a node. ``assignments`` is empty until metastorage told it."""

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


ClientBody = Begin | Get | Put | Commit | Rollback | AskStatus | AskEvents
ReplyBody = Begun | Value | Done | Failed
AdminBody = NodeReport | EventBatch


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
