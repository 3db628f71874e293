"""Values of the raft core: entries, messages, the work that a step asks of its caller, its
status.
"""

from __future__ import annotations

import enum

import msgspec

from clusters.reference.node.raft.configuration import Configuration, Lineage, Stage


class Role(enum.StrEnum):
    """The role of a member in its group now."""

    FOLLOWER = "follower"
    PRE_CANDIDATE = "pre-candidate"
    CANDIDATE = "candidate"
    LEADER = "leader"


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One log entry. Empty ``data`` is a new leader's first entry; with ``config`` it holds a
    configuration, which counts from the moment that the entry is in the log (Raft 6).
    """

    term: int
    index: int
    data: bytes
    config: bool = False


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """A place in the log, and the configuration there: all that must be known of the entries cut
    off before it. (0, 0) with the founders' configuration stands before the first entry.
    """

    index: int = 0
    term: int = 0
    configuration: Configuration = Configuration()


class HardState(msgspec.Struct, frozen=True, array_like=True):
    """The state that must be durable before a message that depends on it leaves: current term and
    vote. Terms and votes are those of a ``generation``, and count in no other.
    """

    term: int = 0
    vote: str | None = None
    generation: int = 0


class VoteRequest(msgspec.Struct, frozen=True, array_like=True, tag="vote?"):
    """Asks for a vote; with ``pre`` only whether one would be given (no term is disturbed). With
    ``handed_over`` the leader itself has asked the sender to lead, so its followers owe it no
    patience.
    """

    sender: str
    term: int
    last_index: int
    last_term: int
    pre: bool
    handed_over: bool = False
    generation: int = 0


class VoteReply(msgspec.Struct, frozen=True, array_like=True, tag="vote!"):
    """Grants or refuses."""

    sender: str
    term: int
    granted: bool
    pre: bool
    generation: int = 0


class Append(msgspec.Struct, frozen=True, array_like=True, tag="append?"):
    """Entries after (previous_index, previous_term); without entries it is a heartbeat or a probe.

    ``context`` is the leader's tick at sending, echoed: check-quorum and the lease count from it.
    ``lineage``: of the leader's log.
    """

    sender: str
    term: int
    previous_index: int
    previous_term: int
    commit: int
    context: int
    entries: tuple[Entry, ...] = ()
    lineage: Lineage = ()

    @property
    def generation(self) -> int:
        """The generation that the sender leads."""
        return self.lineage[-1].number if self.lineage else 0


class AppendReply(msgspec.Struct, frozen=True, array_like=True, tag="append!"):
    """Accepted: everything up to ``match_index`` is durable here. Refused: the entry before those
    sent, repeated as ``match_index``, is not here; ``hint_index`` is where to try next. ``commit``
    is the follower's commit index; 0 as long as its log is not of the leader's generation.
    """

    sender: str
    term: int
    refused: bool
    match_index: int
    hint_index: int
    context: int
    commit: int = 0
    generation: int = 0


class Chunk(msgspec.Struct, frozen=True, array_like=True, tag="chunk?"):
    """Bytes from ``offset`` on of a snapshot at ``mark``, for a follower that lacks entries that
    its leader's log no longer has; ``last`` of them with the final bytes. ``lineage``: see
    ``Append``.
    """

    sender: str
    term: int
    context: int
    mark: Mark
    offset: int
    data: bytes = b""
    last: bool = False
    lineage: Lineage = ()

    @property
    def generation(self) -> int:
        """The generation that the sender leads."""
        return self.lineage[-1].number if self.lineage else 0


class ChunkReply(msgspec.Struct, frozen=True, array_like=True, tag="chunk!"):
    """The bytes before ``offset`` of the snapshot at ``index`` are here: go on from there.

    An ``AppendReply`` with its index reports that the whole is installed.
    """

    sender: str
    term: int
    context: int
    index: int
    offset: int
    generation: int = 0


class TimeoutNow(msgspec.Struct, frozen=True, array_like=True, tag="lead?"):
    """The leader of ``term`` hands its leadership over: the receiver, which has its whole log, is
    to ask for votes at once (thesis 3.10).
    """

    sender: str
    term: int
    generation: int = 0


Message = VoteRequest | VoteReply | Append | AppendReply | Chunk | ChunkReply | TimeoutNow


class LeaderElected(msgspec.Struct, frozen=True):
    """This member leads ``term``, and an entry of that term is committed: it may change members.
    The seed's onLeaderElected.
    """

    term: int


class PeersApplied(msgspec.Struct, frozen=True):
    """The configuration at ``index``, which is not joint, is committed: its change is over. The
    seed's onNewPeersConfigurationApplied.
    """

    term: int
    index: int
    configuration: Configuration


class CatchUpError(enum.StrEnum):
    """Why a change of members ended before it was joint: the kinds of the seed's nodeCatchUp."""

    TIMED_OUT = "timed-out"  # a new voter made no progress for ``catch_up_ticks``
    HIGHER_TERM = "higher-term"  # a member told of a later term
    STEPPED_DOWN = "stepped-down"  # this member leads no more, for any other reason
    REPLICATOR_STOPPED = "replicator-stopped"  # another target took its place


class ChangeFailed(msgspec.Struct, frozen=True):
    """The change that was asked for with ``revision`` has failed; nothing of its configuration was
    applied by the leader of ``term``. The seed's onReconfigurationError. ``member`` is the new
    voter that did not come, where it is one's fault.
    """

    term: int
    revision: int
    error: CatchUpError
    member: str | None = None


class Diverged(msgspec.Struct, frozen=True):
    """This member has applied entries that ``generation``, whose leader has reached it, does not
    have: its data must be erased, and comes back as another member's (IEP-131, "possible node
    cleanup").
    """

    generation: int
    shared_index: int
    applied_index: int


RaftEvent = LeaderElected | PeersApplied | ChangeFailed | Diverged


class Ready(msgspec.Struct, frozen=True, kw_only=True):
    """The work of the caller after a step, in this order.

    1. ``send_now`` may leave at once. 2. Make ``installed`` (the snapshot there, in place of all
    entries before), ``hard_state`` and ``entries`` durable, as far as there are; ``entries``
    replace everything from their first index on. 3. Then send ``send_durable``, and call
    ``Raft.vote_persisted`` and ``Raft.persisted`` for what was written. 4. Apply ``committed`` in
    order: only entries that are durable on this member are handed out.

    ``events`` tell of leadership and members, once ``committed`` is applied.

    At any time: ``send_chunks`` leave once the caller has put the bytes of its snapshot into them;
    ``chunks`` are bytes to keep, and then to report by ``Raft.chunk_stored`` and ``Raft.install``.
    """

    hard_state: HardState | None
    entries: tuple[Entry, ...]
    send_now: tuple[tuple[str, Message], ...]
    send_durable: tuple[tuple[str, Message], ...]
    committed: tuple[Entry, ...]
    installed: Mark | None = None
    send_chunks: tuple[tuple[str, Chunk], ...] = ()
    chunks: tuple[Chunk, ...] = ()
    events: tuple[RaftEvent, ...] = ()

    @property
    def must_write(self) -> bool:
        """Whether step 2 is more than nothing."""
        return bool(self.hard_state is not None or self.entries or self.installed is not None)


class Outbox:
    """What steps leave to do, until the next ``Ready`` takes it: messages, chunks and events in
    their order. ``hard_state`` and ``installed`` are present where they are to be written.
    """

    def __init__(self) -> None:
        self.hard_state: HardState | None = None
        self.installed: Mark | None = None
        self.send_now: list[tuple[str, Message]] = []
        self.send_durable: list[tuple[str, Message]] = []
        self.send_chunks: list[tuple[str, Chunk]] = []
        self.chunks: list[Chunk] = []
        self.events: list[RaftEvent] = []

    def __bool__(self) -> bool:
        # The most likely reason comes first: this is asked at every turn.
        return bool(
            self.send_durable
            or self.send_now
            or self.hard_state is not None
            or self.send_chunks
            or self.chunks
            or self.installed is not None
            or self.events
        )

    def take(self, entries: tuple[Entry, ...], committed: tuple[Entry, ...]) -> Ready:
        """Everything, with ``entries`` to write and ``committed`` ones to apply."""
        ready = Ready(
            hard_state=self.hard_state,
            entries=entries,
            send_now=tuple(self.send_now),
            send_durable=tuple(self.send_durable),
            committed=committed,
            installed=self.installed,
            send_chunks=tuple(self.send_chunks),
            chunks=tuple(self.chunks),
            events=tuple(self.events),
        )
        self.hard_state = self.installed = None
        for taken in (self.send_now, self.send_durable, self.send_chunks, self.chunks, self.events):
            taken.clear()
        return ready


class PeerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A follower as its leader sees it. ``sending_snapshot``: index of the one on its way to it."""

    node: str
    match_index: int
    next_index: int
    probing: bool
    inflight: int
    sending_snapshot: int | None = None


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """One member of one group. ``peers`` is empty unless it leads; the log begins behind
    ``base_index``.
    """

    node: str
    role: Role
    term: int
    vote: str | None
    leader: str | None
    configuration: Configuration
    stage: Stage
    base_index: int
    commit_index: int
    applied_index: int
    durable_index: int
    last_index: int
    last_term: int
    lease: bool
    peers: tuple[PeerStatus, ...]


def broken(status: Status) -> str | None:
    """The text of the first broken invariant between the parts of a member."""
    if status.last_term > status.term:
        return f"log ends in term {status.last_term}, which is after term {status.term}"
    if not status.base_index <= status.applied_index <= status.commit_index <= status.last_index:
        return (
            f"base {status.base_index}, applied {status.applied_index}, commit "
            f"{status.commit_index} and last {status.last_index} are out of order"
        )
    if status.role in (Role.LEADER, Role.CANDIDATE) and status.vote != status.node:
        return f"a {status.role} voted for {status.vote!r} in its own term {status.term}"
    for peer in status.peers:
        if not peer.match_index < peer.next_index <= status.last_index + 1:
            return f"{peer.node}: match {peer.match_index}, next {peer.next_index} are out of order"
    return None
