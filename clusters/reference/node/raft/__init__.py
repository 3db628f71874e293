"""A raft group's member as a pure state machine: ``Raft`` and the values it is stepped with."""

from clusters.reference.node.raft.config import RaftConfig
from clusters.reference.node.raft.core import COMMIT_BEFORE_QUORUM, Raft
from clusters.reference.node.raft.errors import (
    InvariantBroken,
    NotLeader,
    RaftConfigError,
    RaftError,
)
from clusters.reference.node.raft.status import PeerStatus, Status
from clusters.reference.node.raft.types import (
    Append,
    AppendReply,
    Entry,
    HardState,
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
    "Entry",
    "HardState",
    "InvariantBroken",
    "Message",
    "NotLeader",
    "PeerStatus",
    "Raft",
    "RaftConfig",
    "RaftConfigError",
    "RaftError",
    "Ready",
    "Role",
    "Status",
    "VoteReply",
    "VoteRequest",
]
