"""What each error code of Apache Ignite 3 says about a transaction whose commit was sent.

Codes are the release's own, group and number. Before commit was sent any of them is definite. The
coordinator of a transaction finishes it without bound, so that a commit may land long after its
client gave up: what is not certain is indefinite, and so is what stands in no row.
"""

from __future__ import annotations

from harness.client import Certainty, ErrorMeaning

CONNECTION_LOST = "DRIVER-CONNECTION-LOST"
DRIVER_GONE = "DRIVER-GONE"
BROKEN = "DRIVER-BROKEN"
BAD_VALUE = "DRIVER-BAD-VALUE"
MISUSE = "DRIVER-MISUSE"

CONFLICTS = ("TX-4", "TX-5")  # another transaction held the lock: the younger dies

_DEFINITE = {
    "TX-4": "a lock was not granted, and no commit goes on without its locks",
    "TX-5": "a lock was not granted in time",
    "TX-10": "a read-only transaction was too old",
    "TX-11": "the schema had changed, which is looked at before the commit is recorded",
    "TX-12": "the primary's lease had expired, so the transaction was finished as aborted",
    "TX-14": "the operation belonged to a stale transaction",
    "TX-16": "the transaction had been rolled back by its timeout",
    "DISTRZONES-2": "the zone had no data nodes, so nothing was sent on",
    DRIVER_GONE: "the process of clients was gone before anything was sent",
}
_INDEFINITE = {
    "TX-3": "the outcome differs from what was asked for; which one, only the text tells",
    "TX-6": "the commit failed in a way that may have followed its record",
    "TX-13": "the transaction was finished already, and nobody says how",
    "TX-15": "the read timestamp was too old; seen at commit it says nothing",
    "REP-1": "the replica answered with an error of its own",
    "REP-3": "the replica did not answer in time",
    "REP-5": "the replica was stopping, or not there",
    "REP-6": "the replica was not the primary any more",
    "REP-8": "the group was overloaded or gone",
    "PLACEMENTDRIVER-1": "no primary was known in time",
    "PLACEMENTDRIVER-2": "no primary was agreed on in time",
    "CLIENT-1": "the connection ended before the answer",
    "CLIENT-2": "the answer could not be read",
    "CMN-1": "the node was stopping",
    "CMN-5": "a node that took part had left",
    "CMN-65535": "the store calls it an internal error",
    "NETWORK-1": "a node could not be reached",
    CONNECTION_LOST: "the connection ended before the answer",
    BROKEN: "a call before it was given up, and its answer with it",
    BAD_VALUE: "what was stored could not be read",
    MISUSE: "the process of clients refused the request, or knows no such connection",
    "DRIVER-UNKNOWN": "an exception without a code",
}

ERRORS: dict[str, ErrorMeaning] = {
    code: ErrorMeaning(code=code, at_commit=certainty, reason=reason)
    for certainty, rows in (
        (Certainty.DEFINITE, _DEFINITE),
        (Certainty.INDEFINITE, _INDEFINITE),
    )
    for code, reason in rows.items()
}
