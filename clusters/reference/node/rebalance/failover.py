"""Retries of a change of peers that failed ("Failover" of the seed), as a value per partition.

The pool of the seed is a bounded set of tasks of the node; here is what each of them does next.
"""

from __future__ import annotations

import enum

import msgspec

RETRY_DELAY_S = 0.2  # Ignite's rebalanceRetryDelay
MAX_DELAY_S = 2.0  # between retries while a node stays away; a target that changes waits no longer
MAX_FAILURES = 50  # of one pending set, one after the other: some 90 s
# Then: what was in the way, as a link between two nodes, may go without a sign of it.
GIVEN_UP_DELAY_S = 10.0


class ReconfigurationError(enum.StrEnum):
    """Why a change of peers did not come about (the seed's nodeCatchUp, and the answers)."""

    TIMED_OUT = "timed-out"  # ETIMEDOUT: a new peer has not caught up in time
    HIGHER_TERM = "higher-term"  # EPERM: there is another leader
    REPLICATOR_STOPPED = "replicator-stopped"  # ESTOP: another target took its place
    STEPPED_DOWN = "stepped-down"
    STALE_TERM = "stale-term"
    STALE_REVISION = "stale-revision"
    BUSY = "busy"
    UNREACHABLE = "unreachable"
    NOT_STARTED = "not-started"  # a pending node's replica can't open its storage


# Another leader, or a newer request, does it: this node has nothing left to retry.
_OTHERS = frozenset(
    {
        ReconfigurationError.HIGHER_TERM,
        ReconfigurationError.REPLICATOR_STOPPED,
        ReconfigurationError.STEPPED_DOWN,
        ReconfigurationError.STALE_TERM,
        ReconfigurationError.STALE_REVISION,
    }
)


class Next(enum.StrEnum):
    """What to do after a failure."""

    RETRY = "retry"
    STOP = "stop"
    FAILURE_HANDLER = "failure-handler"


class Retries(msgspec.Struct, frozen=True):
    """The consecutive failures of the pending set of ``revision``; ``given_up``: the failure
    handler was told.
    """

    revision: int = 0
    failures: int = 0
    given_up: bool = False


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What to do, after how long, and the retries to remember."""

    act: Next
    retries: Retries
    delay_s: float = 0.0


def failed(
    retries: Retries, error: ReconfigurationError, revision: int, *, limit: int = MAX_FAILURES
) -> Decision:
    """After ``error`` in the change that the pending set of ``revision`` asks for. The failure
    handler is told once a pending set: from then on it is tried in silence, and rarely.
    """
    if error in _OTHERS:
        return Decision(act=Next.STOP, retries=Retries())
    before = retries if retries.revision == revision else Retries(revision)
    if before.given_up:
        return Decision(act=Next.STOP, retries=before, delay_s=GIVEN_UP_DELAY_S)
    failures = before.failures + 1
    if failures >= limit:
        given_up = Retries(revision, failures, given_up=True)
        return Decision(act=Next.FAILURE_HANDLER, retries=given_up, delay_s=GIVEN_UP_DELAY_S)
    # The exponent is bounded so that many failures make no huge number.
    delay_s = min(RETRY_DELAY_S * 2 ** min(failures - 1, 10), MAX_DELAY_S)
    return Decision(act=Next.RETRY, retries=Retries(revision, failures), delay_s=delay_s)


def resumed(retries: Retries) -> Retries:
    """After a change of topology, or the election of a leader: all failures are forgotten."""
    return Retries(retries.revision)
