"""Planted bugs: mistakes that a real engineer makes, off by default, to prove that they are found.

Each is one condition, at the place where the mistake would be made. Most ask ``planted`` for their
name there, also in the raft core; where code takes such choices as values anyway, its builder asks
instead (``ack-before-quorum``, ``commit-before-quorum``, ``no-fsync``). A bug counts for the node
that switched it on and for every task that the node starts, so that nodes of one process may have
different bugs.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterable

KNOWN = {
    "ack-before-quorum": "a leader acknowledges a commit once its own log holds it "
    "(groups/host.py)",
    "chain-not-appended": "the chain has no link of a reset (rebalance/transitions.py)",
    "clock-not-advanced": "the clock does not follow what messages carry (runtime/hybrid_clock.py)",
    "commit-before-quorum": "a leader commits what its own disk holds (raft/leader.py)",
    "commit-retried": "a coordinator asks home again when an answer is lost, and takes the "
    "second one for the outcome (tx/coordinator.py)",
    "conflict-ignored": "a transaction that should die for a lock of an older one goes on "
    "(tx/open_transactions.py)",
    "conflict-kept": "a follower keeps its entry where its leader has another (raft/raft_log.py)",
    "dead-coordinator-kept": "the transactions of a dead coordinator stay open (tx/primary.py)",
    "destroyed-replica-votes": "a replica that was erased comes back as the same member "
    "(groups/host.py)",
    "diverged-kept": "a copy that is not of its group's log stays "
    "(availability/start_decisions.py)",
    "doubt-called-abort": "a commit whose outcome is not known is called aborted (tx/primary.py)",
    "erased-at-every-start": "a node begins without the copies on its disk "
    "(availability/start_decisions.py)",
    "erased-copy-votes": "a copy that had diverged and was erased comes back as the same member "
    "(availability/start_decisions.py)",
    "filter-keeps-timers": "timers survive another filter (zones/data_nodes.py)",
    "finished-at-own-time": "a participant commits at a timestamp of its own "
    "(tx/partition_state_machine.py)",
    "forced-pending-ignored": "where a reset has given a partition to one node the stable ones go "
    "on, too (rebalance/decisions.py)",
    "in-doubt-aborted": "a participant aborts what is in doubt without asking home "
    "(tx/in_doubt.py)",
    "joint-counted-as-one": "a joint configuration needs one majority of all its voters together "
    "(raft/configuration.py)",
    "laggard-left-behind": "a leader does not go back for a follower that lacks what it was sent "
    "(raft/leader.py)",
    "last-entry-dropped": "recovery leaves the last entry of a log out (groups/host.py)",
    "learner-counted": "what a learner has counts for a commit (raft/configuration.py)",
    "lease-past-end": "a lease is honoured past its end (placement/lease_expiry.py)",
    "leave-moves-scale-up": "a leave starts the scale-up timer anew (zones/data_nodes.py)",
    "lock-leaked": "the lock on pending outlives its rebalance (rebalance/transitions.py)",
    "lock-timeout-ignored": "a transaction that has waited too long for a lock goes on "
    "(tx/primary.py)",
    "locks-not-rebuilt": "a new primary does not lock what is prepared (tx/primary.py)",
    "lost-hold-ignored": "a transaction goes on after it has lost its locks "
    "(tx/open_transactions.py)",
    "no-fsync": "the log is appended but not synced before it is acknowledged "
    "(storage/shared_log.py)",
    "needed-copy-erased": "a copy is cleaned up though others lack what it has "
    "(rebalance/replica_restarts.py)",
    "old-term-counted": "a leader commits entries of earlier terms by counting (raft/leader.py)",
    "outcome-not-recorded": "home forgets that a transaction of several partitions committed "
    "(tx/durable_outcomes.py)",
    "own-write-unseen": "a transaction does not see what it wrote itself (tx/coordinator.py)",
    "pending-ignored": "a snapshot does not wait for a commit under way below its timestamp "
    "(tx/primary.py)",
    "pending-member-stopped": "only nodes of stable assignments run replicas "
    "(rebalance/decisions.py)",
    "planned-lost": "what was planned behind a rebalance is dropped at its end "
    "(rebalance/transitions.py)",
    "prepared-forgotten": "a takeover drops what is prepared (tx/partition_state_machine.py)",
    "prepared-not-saved": "snapshots of a partition lack what is prepared "
    "(tx/partition_state_machine.py)",
    "prepared-outlives-lease": "home commits though a participant may have been reset since it "
    "prepared (tx/primary.py)",
    "prepared-times-out": "a prepared transaction loses its locks at its deadline (tx/primary.py)",
    "read-lock-skipped": "a read takes no lock (tx/primary.py)",
    "reader-joins-writer": "a shared lock is granted beside an exclusive one (tx/locks.py)",
    "refusal-ignored": "a transaction commits though a participant refused (tx/coordinator.py)",
    "released-before-durable": "locks go before the commit is in the log (tx/primary.py)",
    "removed-node-answers": "a replica that is assigned no more goes on "
    "(rebalance/partition_driver.py)",
    "reset-by-index-alone": "a reset goes on with the longest log, of whatever term "
    "(availability/survivors.py)",
    "reset-in-sc": "partitions of a strongly consistent zone are reset, too "
    "(availability/manager.py)",
    "reset-picks-any": "a reset goes on with the first copy that there is "
    "(availability/survivors.py)",
    "reset-unfenced": "a reset does not wait for the end of the lease before it "
    "(availability/resets.py)",
    "reset-with-majority": "a partition is reset though it has its majority "
    "(availability/manager.py)",
    "snapshot-applied-partly": "a restored snapshot has only the oldest version of each key "
    "(tx/partition_state_machine.py)",
    "snapshot-reads-newest": "a snapshot reads the newest version (tx/primary.py)",
    "stale-term-accepted": "a node that leads again asks for changes of peers in its earlier term, "
    "and that term is not compared (raft/membership.py)",
    "term-not-checked": "a follower takes entries behind one of another term than its leader's "
    "(raft/follower.py)",
    "term-not-persisted": "term and vote are written only together with entries (groups/host.py)",
    "timer-not-rearmed": "the next leader of metastorage does not take up timers that run "
    "(zones/driver.py)",
    "torn-tail-accepted": "damage anywhere in the log is taken for a torn tail "
    "(storage/log_records.py)",
    "trigger-not-compared": "an event of an older revision, or of the same, aims partitions "
    "again (rebalance/transitions.py)",
    "upgrade-unchecked": "a shared lock becomes exclusive though others share it (tx/locks.py)",
    "user-index-not-saved": "what clients wrote since a copy's snapshot does not count at its "
    "start (replicas/manager.py)",
    "versions-collected-early": "versions go that an open snapshot still reads "
    "(tx/partition_state_machine.py)",
    "vote-ignores-log": "a vote is given to a member that lacks entries (raft/election.py)",
    "vote-not-persisted": "the member that a vote went to is not written down (groups/host.py)",
    "watch-event-lost": "what changes while the last change is handled is not handled "
    "(rebalance/driver.py)",
    "wiped-node-votes": "a node whose disk was wiped comes back as the same member "
    "(storage/identity.py)",
}

# Those that lose nothing: what they break is that a store serves again once faults are healed.
STALLING = frozenset({"laggard-left-behind"})

_switched_on: contextvars.ContextVar[frozenset[str]] = contextvars.ContextVar(
    "planted bugs", default=frozenset()
)


class UnknownBug(Exception):
    """A configuration asks for a bug that is not planted."""


def check(names: Iterable[str]) -> frozenset[str]:
    """The bugs to switch on. Raises ``UnknownBug`` naming the known ones."""
    wanted = frozenset(names)
    for name in sorted(wanted):
        if name not in KNOWN:
            raise UnknownBug(f"bug {name!r} is not one of {', '.join(sorted(KNOWN))}")
    return wanted


def switch_on(names: Iterable[str]) -> None:
    """From here on, in the running task and those that it starts, these bugs are on."""
    _switched_on.set(check(names))


def planted(name: str) -> bool:
    """Whether bug ``name`` is on here."""
    return name in _switched_on.get()
