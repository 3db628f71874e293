"""A raft group's member as a pure state machine: ``Raft`` and the values it is stepped with."""

from clusters.reference.node.raft.configuration import Configuration, Stage
from clusters.reference.node.raft.core import COMMIT_BEFORE_QUORUM, Raft
from clusters.reference.node.raft.settings import (
    ChangeRefused,
    InvariantBroken,
    NotLeader,
    RaftConfig,
    RaftConfigError,
    RaftError,
)
from clusters.reference.node.raft.types import (
    Append,
    AppendReply,
    Chunk,
    ChunkReply,
    Entry,
    HardState,
    Mark,
    Message,
    PeerStatus,
    Ready,
    Role,
    Status,
    VoteReply,
    VoteRequest,
)

__all__ = [
    "COMMIT_BEFORE_QUORUM",
    "Append",
    "AppendReply",
    "ChangeRefused",
    "Chunk",
    "ChunkReply",
    "Configuration",
    "Entry",
    "HardState",
    "InvariantBroken",
    "Mark",
    "Message",
    "NotLeader",
    "PeerStatus",
    "Raft",
    "RaftConfig",
    "RaftConfigError",
    "RaftError",
    "Ready",
    "Role",
    "Stage",
    "Status",
    "VoteReply",
    "VoteRequest",
]
