"""What each error code of the reference store says about a transaction whose commit was sent.

Definite means: certainly nothing was proposed to any log, or the log itself decided against it.
"""

from __future__ import annotations

from harness.client import Certainty, ErrorMeaning

CONNECT_FAILED = "CONNECT-FAILED"
CONNECTION_LOST = "CONNECTION-LOST"
BAD_ANSWER = "BAD-ANSWER"

_DEFINITE = {
    "TX-CONFLICT": "a key that was read has changed: validation refuses, on every replica alike",
    "TX-SCOPE": "keys of two partitions in one transaction: refused before anything was sent on",
    "TX-EXPIRED": "the deadline had passed before the commit was sent to the leader",
    "TX-NONE": "the connection had no open transaction",
    "TX-KIND": "the store does not offer this kind of transaction",
    "TX-TOO-LARGE": "a key, a value or the transaction is over its limit",
    "NO-LEADER": "no leader was known in time, so nothing was sent on",
    "NOT-LEADER": "the node asked does not lead the partition and proposed nothing",
    "UNREACHABLE": "there was no connection to the leader, so nothing was sent on",
    "OVERLOADED": "the leader's queue was full and it proposed nothing",
    CONNECT_FAILED: "the node could not be dialed",
}
_INDEFINITE = {
    "LEADER-LOST": "the leader lost its leadership, or stopped, with the commit in its log",
    "PEER-LOST": "the leader did not answer after the commit was sent on to it",
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
