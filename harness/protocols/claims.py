"""Claims: what a store's messages promise at the moment at which they leave, as neutral values.

A simulation sees every message, every synced byte and every clock, so it can hold each message
against the truth of that instant. What a message promises only the store knows: it declares a
``ClaimsReader``, which maps its messages and its files to the facts below, each of which stands for
one ``Claim``. The judge knows facts and no store; a store that declares no reader is not judged.

======================== ===================== =====================================================
fact                     claim                 holds if
======================== ===================== =====================================================
``TermClaim``            hard-state-synced     the sender's disk has that term, and in it that vote
``LogMatch``             known-after-crash     the sender's disk has its leader's entries so far
``LogUpdate`` (cut)      known-after-crash     the snapshot for the cut entries is on the disk
``RecoveredLog``         known-after-crash     it is no less than what the disk holds
``LogMatch``             known-after-crash     its leader has told of so much
``VoteClaim``            committed-on-majority the sender's disk has no more than the candidate
``CommitClaim``          committed-on-majority a majority's disks have the entry, no election can
                                               lose it and none of these disks ever replaces it
``CommitLearnt``         committed-on-majority the sender's disk has the entries that are committed
``LeaderLog`` (first)    committed-on-majority a majority of each half of its members has told
                                               that it voted for the sender
``Members`` (entry)      committed-on-majority the members before it are committed, and majorities
                                               of both meet
``LogUpdate`` (cut)      committed-on-majority its members are those of the place of the cut
``Acknowledgement``      durable-on-majority   so do those of each partition that was written
``PrimaryAct``           lease-valid           the sender's lease holds by its own clock
``PrimaryAct``           one-primary           no primary of a later epoch has acted before, but
                                               the same one, which answers for what it has logged
``PrimaryGrant`` (entry) one-primary           the lease before is over when it is committed, and
                                               its taker has waited for that, drift included
``LockGrant``            lock-exclusive        no other transaction holds the lock in a conflicting
                                               mode, nor is prepared with it
``SharedRead``           lock-exclusive        no other transaction may write the key
``ReadsValid``           lock-kept             no lock of it was given up before this moment
``LoggedWrites`` (entry) lock-exclusive        no other holds a lock on what is written
``LoggedWrites`` (entry) lock-kept             no lock that was granted to it was given up, and to
                                               commit all are held or prepared with
``LockGrant``            lock-let-go           no other holds a lock there beyond its time, with
                                               nothing in any log that would keep it
``TransactionOver``      lock-let-go           its locks on this node are let go now
``TransactionDecided``   lock-let-go           so are those at the leader that has committed it
``PreparedLocks``        lock-kept             it names all locks that the transaction has there
``LockRelease``          lock-kept             what the transaction has in the log is on a majority
``Outcome``              one-outcome           no other outcome of the transaction was told before
``OutcomeDrop``          one-outcome           the transaction is prepared nowhere any more, and its
                                               ends are on majorities
``NoOpEntry``            needed-entries        few other such entries of the group came before
``StableMembers``        committed-on-majority a majority's disks have an entry with these members
``ForcedReset`` (entry)  reset-owed            no majority is there, the grant before it has ended,
                                               and no copy that was to be asked has more
``Members`` (entry)      caught-up             each new voter has on its disk what was committed
                                               before it was taken in to learn
``ReplicaContent``       replicas-agree        each replica told of the same content at that entry,
                                               and so does the log, where its reader says that
``AnswerClock``          clock-carried         the answer's timestamp is above its question's
``Inspection``           invariants-hold       the program finds its own state consistent
``SnapshotRead``         snapshot-stable       no version between the one read and the time of the
                                               snapshot is committed, before or after
``TimestampOrder``       snapshot-stable       the first timestamp is above the second
``NewestRead``           reads-newest          nothing that was committed before it was asked for
                                               is missing in it
``NodeDeparture``        departure-owed        the node asked for it, or had been silent, by what
                                               is committed, for as long as it may be
``NodeJoined``           departure-owed        once the node is silent for so long, a leader that
                                               goes on takes it out
``TimersResumed``        downtime-left-out     timers begin later by as long as all nodes were down
``StateStep`` (entry)    state-follows         what is written of a state follows from what it was
                                               and from what it names as its causes
``Duties``               duty-done             a leader that goes on, and reaches the nodes that
                                               it needs, does each in time
``LogUpdate`` (dropped)  copy-spared           the copy is not assigned, or most others hold what
                                               it has; none is the last of a group that can't serve
======================== ===================== =====================================================

An entry of a log is known by its ``mark``: its term above, a checksum of its content below.

A forced reset begins a new generation of a group, on what its survivor has. Terms, votes, logs and
commits are those of a generation, which is a group of its own there (``NewGeneration``); locks,
outcomes, versions and acknowledgements are those of all of them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Protocol, runtime_checkable

import msgspec

TERM_SHIFT = 32


class Claim(enum.StrEnum):
    """A kind of promise."""

    HARD_STATE_SYNCED = "hard-state-synced"
    KNOWN_AFTER_CRASH = "known-after-crash"
    COMMITTED_ON_MAJORITY = "committed-on-majority"
    DURABLE_ON_MAJORITY = "durable-on-majority"
    LEASE_VALID = "lease-valid"
    ONE_PRIMARY = "one-primary"
    LOCK_EXCLUSIVE = "lock-exclusive"
    LOCK_KEPT = "lock-kept"
    LOCK_LET_GO = "lock-let-go"
    ONE_OUTCOME = "one-outcome"
    SNAPSHOT_STABLE = "snapshot-stable"
    NEEDED_ENTRIES = "needed-entries"
    RESET_OWED = "reset-owed"
    CAUGHT_UP = "caught-up"
    REPLICAS_AGREE = "replicas-agree"
    CLOCK_CARRIED = "clock-carried"
    INVARIANTS_HOLD = "invariants-hold"
    READS_NEWEST = "reads-newest"
    DEPARTURE_OWED = "departure-owed"
    DOWNTIME_LEFT_OUT = "downtime-left-out"
    DUTY_DONE = "duty-done"
    STATE_FOLLOWS = "state-follows"
    COPY_SPARED = "copy-spared"


ANOMALIES: Mapping[Claim, str] = MappingProxyType(
    {
        Claim.HARD_STATE_SYNCED: "unsynced-hard-state",
        Claim.KNOWN_AFTER_CRASH: "unsynced-answer",
        Claim.COMMITTED_ON_MAJORITY: "commit-without-majority",
        Claim.DURABLE_ON_MAJORITY: "ack-before-durable",
        Claim.LEASE_VALID: "answer-outside-lease",
        Claim.ONE_PRIMARY: "overlapping-leases",
        Claim.LOCK_EXCLUSIVE: "lock-granted-twice",
        Claim.LOCK_KEPT: "lock-given-up-early",
        Claim.LOCK_LET_GO: "lock-outlives-transaction",
        Claim.ONE_OUTCOME: "two-outcomes",
        Claim.SNAPSHOT_STABLE: "snapshot-overtaken",
        Claim.NEEDED_ENTRIES: "needless-entries",
        Claim.RESET_OWED: "reset-not-owed",
        Claim.CAUGHT_UP: "promoted-early",
        Claim.REPLICAS_AGREE: "diverged-content",
        Claim.CLOCK_CARRIED: "timestamp-behind",
        Claim.INVARIANTS_HOLD: "broken-invariant",
        Claim.READS_NEWEST: "stale-metastorage-read",
        Claim.DEPARTURE_OWED: "departure-not-owed",
        Claim.DOWNTIME_LEFT_OUT: "downtime-counted",
        Claim.DUTY_DONE: "duty-left",
        Claim.STATE_FOLLOWS: "wrong-state-step",
        Claim.COPY_SPARED: "copy-erased-early",
    }
)
"""The anomaly that a broken claim of each kind is reported as."""


def mark_of(term: int, checksum: int) -> int:
    """The mark of an entry of ``term`` whose content has the ``checksum`` of 32 bits."""
    return term << TERM_SHIFT | checksum


def term_of(mark: int) -> int:
    """The term of the entry of ``mark``."""
    return mark >> TERM_SHIFT


# Facts without containers are not tracked by the collector: each message of a run makes some.
class Fact(msgspec.Struct, frozen=True, gc=False):
    """What one message, or one entry of a log, says."""


# Of messages.


class TermClaim(Fact, frozen=True, gc=False):
    """The sender is in ``term`` of ``group``; with a ``vote``, it gave its vote there to that
    member.
    """

    group: str
    term: int
    vote: str | None = None


class VoteClaim(Fact, frozen=True, gc=False):
    """The sender has voted in ``term`` for a candidate whose log ends so."""

    group: str
    term: int
    last_term: int
    last_index: int


class LeaderLog(Fact, frozen=True):
    """The sender leads ``group`` in ``term``; the marks of its log from ``first`` on. Without any
    it tells that its log reaches to the entry before ``first``.
    """

    group: str
    term: int
    first: int
    marks: tuple[int, ...] = ()


class CommitLearnt(Fact, frozen=True, gc=False):
    """The sender, a follower, knows that everything up to ``index`` is committed."""

    group: str
    index: int


class LogMatch(Fact, frozen=True, gc=False):
    """The sender has the log of the leader of ``term`` up to ``index``."""

    group: str
    term: int
    index: int


class CommitClaim(Fact, frozen=True, gc=False):
    """The sender, the leader of ``term``, counts everything up to ``index`` as committed."""

    group: str
    term: int
    index: int


class Acknowledgement(Fact, frozen=True):
    """The transaction is durable: ``commands`` are (group, name) of what it wrote, ``lacking`` are
    its writes that no command holds.
    """

    what: str
    commands: tuple[tuple[str, str], ...]
    lacking: tuple[str, ...] = ()


class PrimaryAct(Fact, frozen=True, gc=False):
    """The sender read or acknowledged as the primary of ``group``, under ``epoch`` if it
    says so. With ``logged`` what it acknowledges came into the log under ``epoch``, and the same
    start of the same node may act under a later one of its own by now.
    """

    group: str
    epoch: int = 0
    logged: bool = False


class Outcome(Fact, frozen=True, gc=False):
    """The transaction ``txn`` has committed at ``ts``; ``None``: it is aborted, for good."""

    txn: str
    ts: int | None


class AnswerClock(Fact, frozen=True, gc=False):
    """An answer at ``ts`` of the sender's clock to a question that was asked at ``asked_ts``, and
    that the sender did not refuse for its clock.
    """

    ts: int
    asked_ts: int


# Declared by a program, since no message says it.


class LockGrant(Fact, frozen=True, gc=False):
    """The primary of ``group`` under ``epoch`` holds the lock of ``key`` for ``txn``, for no longer
    than ``limit_s`` where nothing of the transaction comes into a log; 0: no limit is known.
    """

    group: str
    epoch: int
    txn: str
    key: bytes
    exclusive: bool
    limit_s: float = 0.0


class EndRefused(Fact, frozen=True, gc=False):
    """The primary of ``group`` was told that ``txn`` has ended, and may not act on that: its lease
    is over for the moment.
    """

    group: str
    txn: str


class TransactionOver(Fact, frozen=True, gc=False):
    """The sender coordinates ``txn``, which has ended before its commit was asked for: because its
    client said so or is gone, or a step of it failed.
    """

    txn: str


class SharedRead(Fact, frozen=True, gc=False):
    """The present primary of ``group`` has read ``key`` for ``txn``, which has the lock of it up to
    this moment, to share.
    """

    group: str
    txn: str
    key: bytes


class ReadsValid(Fact, frozen=True, gc=False):
    """The primary of ``group`` under ``epoch`` says that what ``txn`` has read there is so up to
    this moment: it has had its locks until now, and needs them no longer.
    """

    group: str
    epoch: int
    txn: str


class LockRelease(Fact, frozen=True, gc=False):
    """The primary of ``group`` under ``epoch`` has given up all locks of ``txn``."""

    group: str
    epoch: int
    txn: str


class PreparedLocks(Fact, frozen=True):
    """``txn`` is prepared in ``group``, by a primary under ``epoch``: until its outcome is there
    it holds these locks under each later primary, too.
    """

    group: str
    epoch: int
    txn: str
    shared: tuple[bytes, ...]
    exclusive: tuple[bytes, ...]


class SnapshotRead(Fact, frozen=True, gc=False):
    """A snapshot at ``ts`` read the version of ``version_ts`` of ``key``; 0: there was none."""

    group: str
    key: bytes
    ts: int
    version_ts: int


class RecoveredLog(Fact, frozen=True, gc=False):
    """The program begins with this state of ``group``, which it has read from its disk."""

    group: str
    term: int
    vote: str | None
    last_term: int
    last_index: int


class ReplicaContent(Fact, frozen=True, gc=False):
    """The program's replica of ``group`` has applied everything up to ``index``: ``digest`` stands
    for what it holds then.
    """

    group: str
    index: int
    digest: int


class Inspection(Fact, frozen=True, gc=False):
    """The program has looked at the invariants of its replica of ``group``: ``problem`` is one that
    does not hold; empty where all do.
    """

    group: str
    problem: str


# Of entries of a log.


class TimestampOrder(Fact, frozen=True, gc=False):
    """``what`` the entry says is at ``ts``, and readers were promised that nothing comes to be at
    or below ``promised`` any more.
    """

    what: str
    ts: int
    promised: int


class LoggedWrites(Fact, frozen=True):
    """The entry was proposed by a primary of ``group`` under ``epoch``, with writes of ``txn`` to
    ``keys``. With ``others`` it commits, and these are the groups beside this one that are prepared
    for it. It does nothing behind the command ``void_after`` in the same log.
    """

    group: str
    epoch: int
    txn: str
    keys: tuple[bytes, ...]
    others: tuple[str, ...] | None = None
    void_after: str = ""


class TransactionEnd(Fact, frozen=True, gc=False):
    """The entry ends the prepared ``txn`` in ``group``."""

    group: str
    txn: str


class TransactionDecided(Fact, frozen=True, gc=False):
    """The entry, once committed, leaves nothing in the log of ``group`` for which ``txn`` would
    keep a lock there.
    """

    group: str
    txn: str


class OutcomeDrop(Fact, frozen=True):
    """The entry drops the outcome of ``txn``, which is finished everywhere: a transaction of which
    nothing is known counts as aborted. ``ends`` are (group, name) of the commands that end it where
    nothing says yet that it has ended.
    """

    txn: str
    ends: tuple[tuple[str, str], ...] = ()


class NewVersions(Fact, frozen=True):
    """The entry, once committed, gave each of ``keys`` a version at ``ts``."""

    group: str
    keys: tuple[bytes, ...]
    ts: int


class NoOpEntry(Fact, frozen=True, gc=False):
    """The entry, once committed, changed nothing in ``group``, nor of ``key`` where that is told:
    now and then that happens where a request is repeated.
    """

    group: str
    key: str = ""


class Command(Fact, frozen=True, gc=False):
    """The entry holds the command of that name, which is part of ``txn``."""

    name: str
    txn: str = ""


class Members(Fact, frozen=True):
    """From this entry on ``voters`` decide; while ``outgoing`` is not empty, both do."""

    voters: tuple[str, ...]
    outgoing: tuple[str, ...] = ()


class LeaseRenewal(Fact, frozen=True, gc=False):
    """``holder`` renewed its lease; it sent the renewal when its wall clock would have shown
    ``sent_ns``, had it not been set since the holder read it last, at its start or later.
    """

    holder: str
    sent_ns: int


class PrimaryGrant(Fact, frozen=True, gc=False):
    """``holder`` is the primary of ``group`` under ``epoch``, or has given that up."""

    group: str
    holder: str
    epoch: int
    released: bool = False


class StableMembers(Fact, frozen=True):
    """The entry says that ``group`` has come to ``nodes``, by entry ``index`` of its log at the
    latest.
    """

    group: str
    index: int
    nodes: tuple[str, ...]


class ForcedReset(Fact, frozen=True):
    """The entry gives ``root``, which is in the generation ``group``, to its copy on ``node``
    alone; ``member``, where that is known, is the copy. ``asked`` are the nodes whose copies were
    to be asked how much they have; ``majority``: most of its nodes are there.
    """

    root: str
    group: str
    node: str
    member: str
    asked: tuple[str, ...]
    majority: bool


class StateStep(Fact, frozen=True, gc=False):
    """The entry writes ``what`` anew: ``problem`` is what of it does not follow from what it was
    and from the causes that it names; empty where all does.
    """

    what: str
    problem: str


class NodeJoined(Fact, frozen=True, gc=False):
    """``holder``, a start of ``node``, is in the topology from this entry on, and is out once
    nothing of the node has renewed a lease for ``silence_s``.
    """

    node: str
    holder: str
    silence_s: float


class NodeDeparture(Fact, frozen=True, gc=False):
    """``holder``, a start of ``node``, is out of the topology, in which no other start of it is;
    ``asked``: it has asked for that, since it ends.
    """

    node: str
    holder: str
    asked: bool


class TimersResumed(Fact, frozen=True):
    """The whole cluster goes on, in which ``earlier`` starts were before. ``shifts`` are the timers
    that ran on then, and by how many seconds each of them begins later.
    """

    earlier: tuple[str, ...]
    shifts: tuple[tuple[str, float], ...]


class Duty(msgspec.Struct, frozen=True):
    """What the log leaves a leader to do, ``within_s`` of its time: another text is another duty.
    It needs an answer of each of ``nodes``, and of one of them a whole copy of ``root``.
    """

    what: str
    within_s: float
    nodes: tuple[str, ...] = ()
    root: str = ""


class Duties(Fact, frozen=True):
    """From this entry on these are to be done, and no others."""

    duties: tuple[Duty, ...]


class Placement(Fact, frozen=True):
    """From this entry on copies of ``root``, which is in the generation ``group``, belong on
    ``nodes``; ``majority``: most of those that
    are to serve it are there. ``reset``: it has been reset, or may take up what was cut off.
    Without nodes: it is no more.
    """

    root: str
    group: str
    nodes: tuple[str, ...]
    majority: bool
    reset: bool


class CopyGivenUp(Fact, frozen=True, gc=False):
    """An operator asks for copies that begin anew: from now on copies may go that are assigned."""


class NewestRead(Fact, frozen=True, gc=False):
    """The answer tells of ``revision``; ``least`` had been committed before it was asked for."""

    revision: int
    least: int


class LogEntry(msgspec.Struct, frozen=True):
    """An entry, and what it says."""

    index: int
    mark: int
    says: tuple[Fact, ...] = ()


# Of disks.


class Base(msgspec.Struct, frozen=True):
    """The log begins behind (``index``, ``term``); ``file``, of ``size_bytes``, stands for what is
    before. With ``whole`` no earlier entry counts.
    """

    index: int
    term: int
    members: Members
    file: str = ""
    size_bytes: int = 0
    whole: bool = False


class LogUpdate(Fact, frozen=True):
    """A record of the log of ``group``: entries replace all from the first of them on. With
    ``dropped`` nothing of the group counts any more.
    """

    group: str
    term: int | None = None
    vote: str | None = None
    entries: tuple[LogEntry, ...] = ()
    base: Base | None = None
    dropped: bool = False


class NewGeneration(Fact, frozen=True, gc=False):
    """The log of ``group`` goes on as that of ``successor``: terms, votes, configurations and
    majorities count anew there. What transactions say names the ``root`` of all generations.
    """

    root: str
    group: str
    successor: str


class Member(Fact, frozen=True, gc=False):
    """The disk belongs to this member: a node in one life of its disk. With ``group`` only the log
    of that group, of which the replica that was on this disk before is destroyed.
    """

    name: str
    group: str = ""


class ClaimBroken(msgspec.Struct, frozen=True, kw_only=True):
    """A promise that did not hold when it was made: by ``node``, at ``at_s`` of the simulation,
    in ``message``; ``detail`` is what was true instead.
    """

    claim: Claim
    node: str
    at_s: float
    message: str
    detail: str


class ClaimsReport(msgspec.Struct, frozen=True, kw_only=True):
    """How many claims were judged and broken, and the first broken ones of each kind."""

    judged: dict[Claim, int]
    broken: dict[Claim, int]
    examples: tuple[ClaimBroken, ...]


Statement = tuple[str, Fact]
"""A fact, and the name of the message that states it."""


class DiskReader(Protocol):
    """Reads what is durable on one disk, in order."""

    def read(self, name: str, start: int, data: bytes) -> tuple[int, list[Fact]]:
        """The facts in the bytes of file ``name`` from ``start`` on, and the offset up to which
        they are read: the rest comes again, with more behind it.
        """

    def again(self) -> DiskReader:
        """A reader of what is left of the same disk, from its first byte on."""


class ClaimsReader(Protocol):
    """A store's own part: its messages and files as facts. One for each run.

    ``lease_s`` and ``drift`` are what the store promises of leases: a lease lasts so long after its
    renewal was sent, by a clock that differs from any other by no more than that share.
    """

    lease_s: float
    drift: float

    def disk(self) -> DiskReader:
        """A reader of an empty disk."""

    def holder(self, node: str, boot: str) -> str:
        """The name of one start of a node in leases."""

    def configured(self, files: Mapping[str, bytes]) -> None:
        """A program begins with these files."""

    def committed(self, group: str, index: int, mark: int) -> Iterable[Fact]:
        """What the entry did, which is committed behind all those before it: each is given once,
        in order. ``mark`` is 0 where the entry is not known.
        """

    def declared(self, node: str, event: object) -> Iterable[Statement]:
        """The program on ``node`` declares ``event``, without a message."""

    def between(self, source: str, to: str, connection: int, payload: bytes) -> Iterable[Statement]:
        """A message between nodes leaves ``source``."""

    def asked(self, node: str, connection: int, payload: bytes) -> Iterable[Statement]:
        """A message of a client to ``node``, which is told of what it asks for."""

    def answered(self, node: str, connection: int, payload: bytes) -> Iterable[Statement]:
        """A message to a client leaves ``node``."""

    def ended(self, node: str, connection: int) -> Iterable[Statement]:
        """A client's connection to ``node`` is over."""


@runtime_checkable
class JudgesClaims(Protocol):
    """A ``Provider`` that judges claims where they are made."""

    def claims(self) -> ClaimsReport | None:
        """What was judged up to now; ``None`` where nothing is."""
