"""The store's error codes, as they travel, and which of them are definite for a commit. The reason
of each is in the adapter's table (``clusters/reference/error_table.py``).
"""

from __future__ import annotations

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
NO_PRIMARY = "NO-PRIMARY"
NOT_PRIMARY = "NOT-PRIMARY"
NOT_LEADER = "NOT-LEADER"
UNREACHABLE = "UNREACHABLE"
OVERLOADED = "OVERLOADED"
CLOCK_DRIFT = "CLOCK-DRIFT"
LEASE_LOST = "LEASE-LOST"
LEADER_LOST = "LEADER-LOST"
PEER_LOST = "PEER-LOST"
COMMIT_TIMEOUT = "COMMIT-TIMEOUT"

# The transaction met another one: the partition served, and decided for the other.
CONFLICTS = (CONFLICT, LOCK_TIMEOUT)

# The request reached no primary that acted on it: the next one may be asked.
NOT_SERVED = (NO_PRIMARY, NOT_PRIMARY, NOT_LEADER, UNREACHABLE)

# A raft group's refusals of a command that it did not take into its log.
NOT_PROPOSED = (NOT_LEADER, OVERLOADED, TOO_LARGE)

# As the answer to a commit: it did not happen and never will. Nothing was proposed to any log, or
# the log itself decided against it.
DEFINITE = frozenset(
    (
        *CONFLICTS,
        *NOT_SERVED,
        *NOT_PROPOSED,
        *(LOST, ABORTED, EXPIRED, CLOCK_DRIFT),
        *(NO_TRANSACTION, KIND, READ_ONLY, SNAPSHOT_TOO_OLD, SNAPSHOT_BUSY),
    )
)
