"""How long who waits for what in a transaction. Who asks waits longer than who answers, or a plain
refusal would look like a lost peer.
"""

from __future__ import annotations

from clusters.reference.node.wire.messages import Lock, PrimaryBody, ReadAt

LOCK_WAIT_S = 1.0  # for one lock; a transaction that holds others must not wait for ever
RECOVER_AFTER_S = 1.0  # prepared, and no lock is waited for: an outcome is due in milliseconds
OUTCOME_WAIT_S = 1.5  # of a snapshot for a transaction in doubt: longer than most recoveries take
WAY_S = 0.4  # for a question and its answer to travel, on machines that are busy
CALL_LIMIT_S = 1.0  # for one answer that may be asked for again; who is slower is likely cut off
OWN_LIMIT_S = 5.0  # for commands that nobody waits for; then they are proposed again
PATIENCE_S = 2.0  # for a partition to get a primary; beyond it the client should hear about it


def answer_limit_s(body: PrimaryBody) -> float:
    """How long one answer to ``body``, which may be asked again, is waited for."""
    if isinstance(body, Lock):
        return LOCK_WAIT_S + WAY_S
    if isinstance(body, ReadAt):
        return OUTCOME_WAIT_S + WAY_S
    return CALL_LIMIT_S
