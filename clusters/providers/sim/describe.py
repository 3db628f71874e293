"""What a frame of the reference store is: in a few words for traces, and whether it may repeat."""

from __future__ import annotations

import msgspec

from clusters.reference.node.wire.messages import (
    NO_ANSWER,
    Codec,
    PeerFrame,
    PeerReply,
    PeerRequest,
    RaftBatch,
)

SHOWN = 3  # messages of a batch by name; the rest as a number
_CLIENT_CODECS = (Codec.request, Codec.reply, Codec.admin)


def describe(payload: bytes) -> str:
    """Names of the message and of what is in it; its first bytes where it is none."""
    try:
        return _peer(Codec.peer.decode(payload))
    except (msgspec.DecodeError, RecursionError):
        pass
    for codec in _CLIENT_CODECS:
        try:
            frame = codec.decode(payload)
        except (msgspec.DecodeError, RecursionError):
            continue
        return f"client {type(frame.body).__name__}"
    return f"unknown {payload[:16].hex()}"


def repeatable(payload: bytes) -> bool:
    """Whether it is of raft, or a request that wants no answer: those may come twice, and late."""
    try:
        frame = Codec.peer.decode(payload)
    except (msgspec.DecodeError, RecursionError):
        return False
    unasked = isinstance(frame, PeerRequest) and frame.id == NO_ANSWER
    return unasked or isinstance(frame, RaftBatch)


def _peer(frame: PeerFrame) -> str:
    if isinstance(frame, PeerRequest | PeerReply):
        return f"{type(frame).__name__} {type(frame.body).__name__}"
    if isinstance(frame, RaftBatch):
        shown = [f"{group} {type(message).__name__}" for group, message in frame.messages]
        rest = f" and {len(shown) - SHOWN} more" if len(shown) > SHOWN else ""
        return ", ".join(shown[:SHOWN]) + rest or "an empty batch"
    return type(frame).__name__
