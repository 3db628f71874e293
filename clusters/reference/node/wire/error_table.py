"""The store's error codes, as they travel; which of them are definite for a commit, the reason of
each, and whether what it refuses is to be tried again. The adapter adds those of its own side of
the connection.
"""

from __future__ import annotations

import enum

CONFLICT = "TX-CONFLICT"
LOCK_TIMEOUT = "TX-LOCK-TIMEOUT"
LOST = "TX-LOST"
ABORTED = "TX-ABORTED"
EXPIRED = "TX-EXPIRED"
NO_TRANSACTION = "TX-NONE"
KIND = "TX-KIND"
READ_ONLY = "TX-READ-ONLY"
TOO_LARGE = "TX-TOO-LARGE"
SNAPSHOT_TOO_OLD = "SNAPSHOT-TOO-OLD"
SNAPSHOT_BUSY = "SNAPSHOT-BUSY"
NO_TABLE = "NO-TABLE"
NO_DATA_NODES = "NO-DATA-NODES"
NO_MAJORITY = "NO-MAJORITY"
PARTITION_LOST = "PARTITION-LOST"
NO_PRIMARY = "NO-PRIMARY"
NOT_PRIMARY = "NOT-PRIMARY"
NOT_LEADER = "NOT-LEADER"
UNREACHABLE = "UNREACHABLE"
NODE_STOPPING = "NODE-STOPPING"
OVERLOADED = "OVERLOADED"
CLOCK_DRIFT = "CLOCK-DRIFT"
LEASE_LOST = "LEASE-LOST"
LEADER_LOST = "LEADER-LOST"
PEER_LOST = "PEER-LOST"
COMMIT_TIMEOUT = "COMMIT-TIMEOUT"
NO_PARTITION = "NO-PARTITION"
NO_REPLICA = "NO-REPLICA"
MAJORITY_LIVES = "MAJORITY-LIVES"
NO_COPY = "NO-COPY"
RESET_WAITS = "RESET-WAITS"
REPLICA_BUSY = "REPLICA-BUSY"
COPY_NEEDED = "COPY-NEEDED"

# The transaction met another one: the partition served, and decided for the other.
CONFLICTS = (CONFLICT, LOCK_TIMEOUT)

# The partition can do nothing until nodes come back, or it is reset: nothing was sent to it.
UNAVAILABLE = (NO_MAJORITY, PARTITION_LOST)

# The request reached no primary that acted on it: the next one may be asked.
NOT_SERVED = (NO_PRIMARY, NOT_PRIMARY, NOT_LEADER, UNREACHABLE)

# A raft group's refusals of a command that it did not take into its log.
NOT_PROPOSED = (NOT_LEADER, OVERLOADED, TOO_LARGE)

# As the answer to a commit: it did not happen and never will. Nothing was proposed to any log, or
# the log itself decided against it.
DEFINITE = frozenset(
    (
        *CONFLICTS,
        *UNAVAILABLE,
        *NOT_SERVED,
        *NOT_PROPOSED,
        *(LOST, ABORTED, EXPIRED, CLOCK_DRIFT),
        *(NO_TABLE, NO_DATA_NODES),
        NODE_STOPPING,
        *(NO_TRANSACTION, KIND, READ_ONLY, SNAPSHOT_TOO_OLD, SNAPSHOT_BUSY),
    )
)

# Of each code: why a commit that it answers certainly did not happen, or may have.
REASONS: dict[str, str] = {
    CONFLICT: "an older transaction holds a lock that was asked for: the younger dies",
    LOCK_TIMEOUT: "a lock was not free in time, and no commit goes on without its locks",
    LOST: "the primary that held the transaction's locks is gone, or gave them up",
    ABORTED: "no outcome was asked for, or abortion was recorded first: the log decides",
    EXPIRED: "the deadline had passed before the commit was proposed",
    NO_TRANSACTION: "the connection had no open transaction",
    KIND: "the store does not offer this kind of transaction",
    READ_ONLY: "a snapshot transaction was asked to write",
    TOO_LARGE: "a key, a value, or what the transaction writes or reads is over its limit",
    SNAPSHOT_TOO_OLD: "the snapshot could be staler than promised, or its versions are gone",
    SNAPSHOT_BUSY: "a write below the snapshot's time was in doubt for too long",
    NO_TABLE: "the catalog has no table of the name (any more), so nothing was proposed",
    NO_DATA_NODES: "no node may hold the table's data, so nothing was sent on",
    NO_MAJORITY: "most of the partition's nodes have left, so nothing was sent on",
    PARTITION_LOST: "none of the partition's nodes is left, so nothing was sent on",
    NO_PRIMARY: "no primary was granted in time, so nothing was sent on",
    NOT_PRIMARY: "the node asked is not the primary, or its log refused the epoch",
    NOT_LEADER: "the node asked does not lead the partition and proposed nothing",
    UNREACHABLE: "there was no connection to the primary, so nothing was sent on",
    NODE_STOPPING: "the node stops, and did nothing of it that lasts: another one may be asked",
    OVERLOADED: "the primary's queue was full and it proposed nothing",
    CLOCK_DRIFT: "a clock was too far ahead to follow: refused before anything was done",
    LEASE_LOST: "the primary's lease ended before it could acknowledge what is in the log",
    LEADER_LOST: "the leader lost its leadership, or stopped, with the commit in its log",
    PEER_LOST: "the primary did not answer after the commit was sent on to it",
    COMMIT_TIMEOUT: "no quorum was heard of in time; the commit may still come",
}

# Of each code that refuses a statement on partitions, beside those above: nothing was done.
OF_RECOVERY: dict[str, str] = {
    NO_PARTITION: "the zone or table has no partition of the number",
    NO_REPLICA: "the node is to run no replica of the partition",
    MAJORITY_LIVES: "the partition has its majority, and goes on by it: a reset could only cost",
    NO_COPY: "no copy is left to go on with: the partition begins anew only where it is named",
    RESET_WAITS: "a lease that may hold, or a copy that may have more, stands in the reset's way",
    COPY_NEEDED: "the others do not hold, by a majority, all that the copy may have acknowledged",
    REPLICA_BUSY: "the replica starts, stops or is reconfigured just now, or can't start",
}


class Retry(enum.StrEnum):
    """Whether what a code refuses is to be tried again, as it is."""

    AT_ONCE = "at once"  # by way of another node where this one refuses for itself
    LATER = "later"  # once the cluster has changed: nodes come back, queues drain
    NEVER = "never"  # every try is refused alike, as things are
    IN_DOUBT = "in doubt"  # it may have happened, and another try may do it twice


RETRY: dict[str, Retry] = {
    **dict.fromkeys((*CONFLICTS, LOST, ABORTED, EXPIRED), Retry.AT_ONCE),
    **dict.fromkeys((SNAPSHOT_TOO_OLD, SNAPSHOT_BUSY), Retry.AT_ONCE),
    **dict.fromkeys((*NOT_SERVED, NODE_STOPPING), Retry.AT_ONCE),
    **dict.fromkeys((*UNAVAILABLE, NO_DATA_NODES, OVERLOADED, CLOCK_DRIFT), Retry.LATER),
    **dict.fromkeys((RESET_WAITS, REPLICA_BUSY, COPY_NEEDED), Retry.LATER),
    **dict.fromkeys((NO_TRANSACTION, KIND, READ_ONLY, TOO_LARGE, NO_TABLE), Retry.NEVER),
    **dict.fromkeys((NO_PARTITION, NO_REPLICA, MAJORITY_LIVES, NO_COPY), Retry.NEVER),
    **dict.fromkeys((LEASE_LOST, LEADER_LOST, PEER_LOST, COMMIT_TIMEOUT), Retry.IN_DOUBT),
}
