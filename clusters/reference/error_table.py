"""The reason of each error code of the reference store, for a transaction whose commit was sent.
``wire/codes.py`` says which are definite.
"""

from __future__ import annotations

from clusters.reference.node.wire import codes
from harness.protocols.client import ErrorMeaning, error_table

CONNECT_FAILED = "CONNECT-FAILED"
CONNECTION_LOST = "CONNECTION-LOST"
BAD_ANSWER = "BAD-ANSWER"

_REASONS = {
    codes.CONFLICT: "an older transaction holds a lock that was asked for: the younger dies",
    codes.LOCK_TIMEOUT: "a lock was not free in time, and no commit goes on without its locks",
    codes.LOST: "the primary that held the transaction's locks is gone, or gave them up",
    codes.ABORTED: "no outcome was asked for, or abortion was recorded first: the log decides",
    codes.EXPIRED: "the deadline had passed before the commit was proposed",
    codes.NO_TRANSACTION: "the connection had no open transaction",
    codes.KIND: "the store does not offer this kind of transaction",
    codes.READ_ONLY: "a snapshot transaction was asked to write",
    codes.TOO_LARGE: "a key, a value, or what the transaction writes or reads is over its limit",
    codes.SNAPSHOT_TOO_OLD: "the snapshot could be staler than promised, or its versions are gone",
    codes.SNAPSHOT_BUSY: "a write below the snapshot's time was in doubt for too long",
    codes.NO_PRIMARY: "no primary was granted in time, so nothing was sent on",
    codes.NOT_PRIMARY: "the node asked is not the primary, or its log refused the epoch",
    codes.NOT_LEADER: "the node asked does not lead the partition and proposed nothing",
    codes.UNREACHABLE: "there was no connection to the primary, so nothing was sent on",
    codes.OVERLOADED: "the primary's queue was full and it proposed nothing",
    codes.CLOCK_DRIFT: "a clock was too far ahead to follow: refused before anything was done",
    CONNECT_FAILED: "the node could not be dialed",
    codes.LEASE_LOST: "the primary's lease ended before it could acknowledge what is in the log",
    codes.LEADER_LOST: "the leader lost its leadership, or stopped, with the commit in its log",
    codes.PEER_LOST: "the primary did not answer after the commit was sent on to it",
    codes.COMMIT_TIMEOUT: "no quorum was heard of in time; the commit may still come",
    CONNECTION_LOST: "the connection ended before the answer",
    BAD_ANSWER: "the node's answer could not be read",
}

# The client sends nothing before it is connected.
ERRORS: dict[str, ErrorMeaning] = error_table(_REASONS, codes.DEFINITE | {CONNECT_FAILED})
