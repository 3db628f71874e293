"""The store's error codes, as they travel. What each says about a transaction is in the adapter's
table (``clusters/reference/errors.py``).
"""

from __future__ import annotations

CONFLICT = "TX-CONFLICT"
SCOPE = "TX-SCOPE"
EXPIRED = "TX-EXPIRED"
NO_TRANSACTION = "TX-NONE"
KIND = "TX-KIND"
TOO_LARGE = "TX-TOO-LARGE"
NO_LEADER = "NO-LEADER"
NOT_LEADER = "NOT-LEADER"
UNREACHABLE = "UNREACHABLE"
OVERLOADED = "OVERLOADED"
LEADER_LOST = "LEADER-LOST"
PEER_LOST = "PEER-LOST"
COMMIT_TIMEOUT = "COMMIT-TIMEOUT"
