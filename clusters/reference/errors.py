"""The meaning of each error code of the reference store for a transaction whose commit was sent.

Definite means: certainly nothing was proposed to any log, or the log itself decided against it.
"""

from __future__ import annotations

from harness.protocols.client import Certainty, ErrorMeaning

CONNECT_FAILED = "CONNECT-FAILED"
CONNECTION_LOST = "CONNECTION-LOST"
BAD_ANSWER = "BAD-ANSWER"

CONFLICTS = ("TX-CONFLICT", "TX-LOCK-TIMEOUT")
"""A transaction that met another one: the partition served, and decided for the other."""

_DEFINITE = {
    "TX-CONFLICT": "an older transaction holds a lock that was asked for: the younger dies",
    "TX-LOCK-TIMEOUT": "a lock was not free in time, and no commit goes on without its locks",
    "TX-LOST": "the primary that held the transaction's locks is gone, or gave them up",
    "TX-ABORTED": "no outcome was asked for, or abortion was recorded first: the log decides",
    "TX-EXPIRED": "the deadline had passed before the commit was proposed",
    "TX-NONE": "the connection had no open transaction",
    "TX-KIND": "the store does not offer this kind of transaction",
    "TX-READ-ONLY": "a snapshot transaction was asked to write",
    "TX-TOO-LARGE": "a key, a value, or what the transaction writes or reads is over its limit",
    "SNAPSHOT-TOO-OLD": "the snapshot could be staler than promised, or its versions are gone",
    "SNAPSHOT-BUSY": "a write below the snapshot's time was in doubt for too long",
    "NO-PRIMARY": "no primary was granted in time, so nothing was sent on",
    "NOT-PRIMARY": "the node asked is not the primary, or its log refused the epoch",
    "NOT-LEADER": "the node asked does not lead the partition and proposed nothing",
    "UNREACHABLE": "there was no connection to the primary, so nothing was sent on",
    "OVERLOADED": "the primary's queue was full and it proposed nothing",
    "CLOCK-DRIFT": "a clock was too far ahead to follow: refused before anything was done",
    CONNECT_FAILED: "the node could not be dialed",
}
_INDEFINITE = {
    "LEASE-LOST": "the primary's lease ended before it could acknowledge what is in the log",
    "LEADER-LOST": "the leader lost its leadership, or stopped, with the commit in its log",
    "PEER-LOST": "the primary did not answer after the commit was sent on to it",
    "COMMIT-TIMEOUT": "no quorum was heard of in time; the commit may still come",
    CONNECTION_LOST: "the connection ended before the answer",
    BAD_ANSWER: "the node's answer could not be read",
}

ERRORS: dict[str, ErrorMeaning] = {
    code: ErrorMeaning(code=code, at_commit=certainty, reason=reason)
    for certainty, rows in (
        (Certainty.DEFINITE, _DEFINITE),
        (Certainty.INDEFINITE, _INDEFINITE),
    )
    for code, reason in rows.items()
}
