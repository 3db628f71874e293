"""The reference store's messages by class, as the adversary chooses them."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import msgspec

from clusters.reference.node.raft.types import (
    Append,
    AppendReply,
    Chunk,
    ChunkReply,
    Message,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from clusters.reference.node.wire.messages import (
    NO_ANSWER,
    Codec,
    CommitReply,
    CommitTx,
    Execute,
    ExecuteReply,
    Finish,
    InvokeReply,
    Join,
    JoinReply,
    Leave,
    Lock,
    LockReply,
    MetaInvoke,
    PeerReply,
    PeerRequest,
    Ping,
    Pong,
    Prepare,
    PrepareReply,
    RaftBatch,
    ReadAt,
    Renew,
    Resolve,
    ResolveReply,
    Validate,
    Version,
    encode,
)
from harness.protocols.crash_points import DATAGRAMS, METASTORAGE, MessageClass

# ``Ack`` and ``Failed`` answer several questions: which one stands in no message.
CLASSES: dict[type, MessageClass] = {
    VoteRequest: MessageClass.VOTES,
    VoteReply: MessageClass.VOTES,
    TimeoutNow: MessageClass.VOTES,  # it asks for the election of its receiver
    Append: MessageClass.APPENDS,
    AppendReply: MessageClass.APPENDS,
    Chunk: MessageClass.SNAPSHOTS,
    ChunkReply: MessageClass.SNAPSHOTS,
    Ping: MessageClass.HEARTBEATS,
    Pong: MessageClass.HEARTBEATS,
    Renew: MessageClass.RENEWALS,
    MetaInvoke: MessageClass.GRANTS,
    InvokeReply: MessageClass.GRANTS,
    Lock: MessageClass.LOCKS,
    LockReply: MessageClass.LOCKS,
    Validate: MessageClass.LOCKS,
    Execute: MessageClass.EXECUTES,
    ExecuteReply: MessageClass.EXECUTES,
    Prepare: MessageClass.PREPARES,
    PrepareReply: MessageClass.PREPARES,
    CommitTx: MessageClass.COMMITS,
    CommitReply: MessageClass.COMMITS,
    Finish: MessageClass.FINISHES,
    Resolve: MessageClass.RESOLVES,
    ResolveReply: MessageClass.RESOLVES,
    ReadAt: MessageClass.SNAPSHOT_READS,
    Version: MessageClass.SNAPSHOT_READS,
    Join: MessageClass.JOINS,
    JoinReply: MessageClass.JOINS,
    Leave: MessageClass.JOINS,
}


@attrs.frozen(kw_only=True)
class Part:
    """One message of a frame: ``kind`` is ``None`` where it is of no class; ``payload`` is the
    frame that would hold it alone.
    """

    kind: MessageClass | None
    partition: int | None = None
    metastorage: bool = False  # of its group
    datagram: bool = True
    payload: bytes = b""


def parts_of(payload: bytes) -> tuple[Part, ...]:
    """The messages in a frame; a single one of no class where it is not between nodes."""
    try:
        frame = Codec.peer.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return (Part(kind=None, datagram=False, payload=payload),)
    if isinstance(frame, RaftBatch):
        return tuple(
            Part(
                kind=CLASSES[type(message)],
                partition=_partition(group),
                metastorage=group == METASTORAGE,
                payload=encode(RaftBatch(((group, message),))),
            )
            for group, message in frame.messages
        )
    body: object = frame.body if isinstance(frame, PeerRequest | PeerReply) else frame
    kind = CLASSES.get(type(body))
    unasked = isinstance(frame, PeerRequest) and frame.id == NO_ANSWER
    return (
        Part(
            kind=kind,
            partition=getattr(body, "partition", None),
            datagram=unasked and kind in DATAGRAMS,
            payload=payload,
        ),
    )


def joined(parts: Sequence[Part]) -> bytes | None:
    """One frame of the messages of a batch that are left; ``None`` where none is."""
    if not parts:
        return None
    messages: list[tuple[str, Message]] = []
    for part in parts:
        batch = Codec.peer.decode(part.payload)
        if isinstance(batch, RaftBatch):  # only batches have several messages
            messages.extend(batch.messages)
    return encode(RaftBatch(tuple(messages)))


def _partition(group: str) -> int | None:
    """The partition of a raft group; ``None`` for that of the metastorage."""
    number = group.removeprefix("p")
    return int(number) if number.isdecimal() else None
