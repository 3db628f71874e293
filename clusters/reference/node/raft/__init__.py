"""A raft group's member as a pure state machine: ``Raft`` and the values it is stepped with."""

from clusters.reference.node.raft.config import RaftConfig
from clusters.reference.node.raft.configuration import Configuration
from clusters.reference.node.raft.core import COMMIT_BEFORE_QUORUM, Raft
from clusters.reference.node.raft.errors import (
    ChangeRefused,
    InvariantBroken,
    NotLeader,
    RaftConfigError,
    RaftError,
)
from clusters.reference.node.raft.membership import Stage
from clusters.reference.node.raft.status import PeerStatus, Status
from clusters.reference.node.raft.types import (
    Append,
    AppendReply,
    Chunk,
    ChunkReply,
    Entry,
    HardState,
    Mark,
    Message,
    Ready,
    Role,
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
