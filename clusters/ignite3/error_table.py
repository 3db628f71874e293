"""The meaning of each error code of Apache Ignite 3 for a transaction whose commit was sent.

Codes are the release's own, group and number: every one that its client library can name stands
here (a test asks it). Before commit was sent any of them is definite. The coordinator of a
transaction finishes it without bound, so that a commit may land long after its client gave up: an
outcome that is not certain is indefinite. A code that was not investigated is unknown, which counts
as indefinite.
"""

from __future__ import annotations

from harness.protocols.client import StoreError
from harness.protocols.fail_or_info import ErrorMeaning, error_table

CONNECTION_LOST = "DRIVER-CONNECTION-LOST"
DRIVER_GONE = "DRIVER-GONE"
BROKEN = "DRIVER-BROKEN"
BAD_VALUE = "DRIVER-BAD-VALUE"
MISUSE = "DRIVER-MISUSE"
UNKNOWN = "DRIVER-UNKNOWN"
MISMATCH, MISMATCH_ABORTED = "TX-3", "TX-3-ABORTED"

CONFLICTS = ("TX-4", "TX-5")  # another transaction held the lock: the younger dies

_DEFINITE = {
    MISMATCH_ABORTED: "the transaction had been finished otherwise, and the text says: aborted",
    "TX-4": "a lock was not granted, and no commit goes on without its locks",
    "TX-5": "a lock was not granted in time",
    "TX-10": "a read-only transaction was too old",
    "TX-11": "the schema had changed, which is looked at before the commit is recorded",
    "TX-12": "the primary's lease had expired, so the transaction was finished as aborted",
    "TX-16": "the transaction had been rolled back by its timeout",
    DRIVER_GONE: "the process of clients was gone before anything was sent",
}
_INDEFINITE = {
    "TX-1": "the storage of outcomes failed: the outcome may be in it",
    "TX-2": "the storage of outcomes was stopping: the outcome may be in it",
    MISMATCH: "the outcome differs from what was asked for, and the text does not say how",
    "TX-6": "the commit failed in a way that may have followed its record",
    "TX-7": "seen at commit it says that something was rolled back, not what",
    "TX-9": "the storage of outcomes was being moved: the outcome may be in it",
    "TX-13": "the transaction was finished already, and nobody says how",
    "TX-14": "the operation belonged to a transaction that was over, and nobody says how",
    "TX-15": "the read timestamp was too old; seen at commit it says nothing",
    "REP-1": "the replica answered with an error of its own",
    "REP-3": "the replica did not answer in time",
    "REP-5": "the replica was not there",
    "REP-6": "the replica was not the primary any more",
    "REP-8": "the replica was stopping",
    "REP-9": "the group was overloaded: whether the request had come through is not told",
    "PLACEMENTDRIVER-1": "no primary was known in time",
    "PLACEMENTDRIVER-2": "no primary was agreed on",
    "PLACEMENTDRIVER-3": "the partition had no assignments",
    "DISTRZONES-2": "the zone had no data nodes: a try before may have been recorded",
    "CLIENT-1": "the connection ended before the answer",
    "CLIENT-2": "the answer could not be read",
    "CMN-1": "the node was stopping",
    "CMN-5": "a node that took part had left",
    "CMN-7": "what the node needed was being closed",
    "CMN-65535": "the store calls it an internal error",
    "META-5": "metastorage did not answer in time",
    "NETWORK-1": "a node's name led to no address",
    "NETWORK-5": "a node that was asked had left",
    "NETWORK-6": "a node's address could not be resolved",
    "STORAGE-2": "a storage is damaged",
    CONNECTION_LOST: "the connection ended before the answer",
    BROKEN: "a call before it was given up, and its answer with it",
    BAD_VALUE: "what was stored could not be read",
    MISUSE: "the process of clients refused the request, or knows no such connection",
    UNKNOWN: "an exception without a code: of the client's library, or of this machine",
}
_UNKNOWN: tuple[tuple[str, tuple[int, ...], str], ...] = (
    ("AUTHENTICATION", (1, 2, 3), "of signing in, which our clusters do not ask for"),
    ("CATALOG", (1,), "of definitions of tables and zones"),
    ("CLIENT", (3, 4, 5, 6, 7, 8, 9), "of dialing a node or looking a table up, not of a commit"),
    ("CMN", (2, 3, 4, 6, 8, 9), "of arguments, cursors or a node that starts"),
    ("CODEDEPLOY", (1, 2, 3, 4, 5, 6), "of deployed code"),
    ("COMMONCFG", (1, 2, 3), "of configuration"),
    ("COMPUTE", tuple(range(1, 16)), "of compute jobs"),
    ("DISTRZONES", (1,), "of a zone that there is not"),
    ("EMBEDDED", (1, 2, 3, 4), "of nodes inside a program"),
    ("GC", (1,), "of the collector of old versions"),
    ("IDX", (1, 2), "of definitions of indexes"),
    ("MARSHALLING", (1, 2, 3), "of rows that can't be converted"),
    ("META", (1, 2, 3, 4, 6, 7), "of metastorage, which a commit may or may not have needed"),
    ("NETWORK", (2, 3, 4), "of ports and files that are sent"),
    ("NODECFG", (1, 2, 3, 4), "of a node's configuration"),
    ("RECOVERY", (1, 2, 3, 4, 5), "of repairs that an operator asks for"),
    ("REP", (2, 4, 7), "of replicas that start, or of cursors"),
    ("REST", (1,), "of calls over REST"),
    ("SQL", (1, 2, 3, 4, 5, 6, 7, 8, 9), "of a statement, and a commit is none"),
    ("STORAGE", (1,), "of an index that is not built yet"),
    ("TBL", (1, 2, 3, 4, 5, 6), "of tables and their columns"),
    ("TX", (8,), "of a step of the transaction, not of its commit"),
    ("WORKERS", (1, 2), "of threads that a node watches"),
)


def refined(error: StoreError) -> StoreError:
    """``error`` of a commit, under a code of its own where only the text says how it ended."""
    if error.code == MISMATCH and "txState=ABORTED" in error.message:
        return StoreError(MISMATCH_ABORTED, error.message)
    return error


ERRORS: dict[str, ErrorMeaning] = error_table(
    _DEFINITE
    | _INDEFINITE
    | {
        f"{group}-{number}": f"unknown: {why}; never looked into at commit"
        for group, numbers, why in _UNKNOWN
        for number in numbers
    },
    definite=_DEFINITE,
)
