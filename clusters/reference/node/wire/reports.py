"""Admin questions, and a node's reports of itself in answer."""

from __future__ import annotations

import msgspec


class AskStates(msgspec.Struct, frozen=True, array_like=True, tag="states"):
    """Admin: the state of every replica here; with ``whole`` also contents and logs, as digests."""

    whole: bool = False


class LogMark(msgspec.Struct, frozen=True, array_like=True):
    """One entry of a log: ``digest`` stands for all that is in it."""

    index: int
    term: int
    digest: int


class Recovered(msgspec.Struct, frozen=True, array_like=True):
    """The state that this start found on its disk: term, vote, and the last index of the log or its
    snapshot.
    """

    term: int
    vote: str | None
    last_index: int


class ReplicaReport(msgspec.Struct, frozen=True, array_like=True):
    """One replica at one moment, ``member`` of its group. ``term`` and ``vote`` are durable, as is
    all up to ``applied_index``, whose entry is of ``applied_term``.

    ``voter``: it counts, among ``voters``. ``acting``: it would acknowledge now, under ``epoch``.
    ``locks`` and ``prepared``: how many locks are held and transactions prepared here. ``content``
    and ``log``, the newest committed entries, only where the whole was asked for.
    """

    group: str
    partition: int | None
    member: str
    leading: bool
    voter: bool
    voters: int
    term: int
    vote: str | None
    applied_index: int
    applied_term: int
    commit_index: int
    last_index: int
    recovered: Recovered
    epoch: int
    acting: bool
    locks: int
    prepared: int
    content: int | None = None
    log: tuple[LogMark, ...] = ()
    generation: int = 0


class StateReport(msgspec.Struct, frozen=True, kw_only=True, tag="state-report"):
    """All replicas of a node. ``member`` is the node in this life of its directory."""

    node: str
    member: str
    boot: str
    replicas: tuple[ReplicaReport, ...]


class AskStatus(msgspec.Struct, frozen=True, array_like=True, tag="status"):
    """Admin: the state of this node."""


class AskEvents(msgspec.Struct, frozen=True, array_like=True, tag="events"):
    """Admin: events after ``cursor`` of start ``boot``; all there are if this is another start."""

    boot: str = ""
    cursor: int = 0


class AskKey(msgspec.Struct, frozen=True, array_like=True, tag="key"):
    """Admin: the versions of ``key`` on this node. ``table``: its full name, where the cluster has
    distribution zones.
    """

    key: bytes
    table: str = ""


class AskSql(msgspec.Struct, frozen=True, array_like=True, tag="sql"):
    """Admin: carry out a statement on zones and tables, or answer a query. Where no leader of
    metastorage is found within ``limit_ms`` it is refused.
    """

    statement: str
    limit_ms: int


class SqlProblem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a statement was not carried out. ``kind``: the error's name; ``token``, ``place`` (line
    and column) and ``expected`` where the text is wrong. ``doubtful``: it may have been carried
    out. ``retry``: of a code, whether to try again.
    """

    kind: str
    message: str
    token: str = ""
    place: tuple[int, int] | None = None
    expected: tuple[str, ...] = ()
    doubtful: bool = False
    retry: str = ""


class SqlReport(msgspec.Struct, frozen=True, kw_only=True, tag="sql-report"):
    """The answer to a statement: rows of a query, none of any other. ``warnings``: what was
    accepted all the same.
    """

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[int | str | None, ...], ...] = ()
    warnings: tuple[str, ...] = ()
    problem: SqlProblem | None = None


class GroupStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One member of one group, as this node sees it. ``partition`` is ``None`` for metastorage.

    ``serving``: it leads, and has applied everything of earlier terms. ``members``: the voters with
    their incarnations; ``stage``: of a change of members, whose new voters are ``learners`` while
    they catch up; the log begins behind ``base_index``.
    """

    group: str
    partition: int | None
    role: str
    serving: bool
    term: int
    leader: str | None
    voters: tuple[str, ...]
    last_index: int
    commit_index: int
    applied_index: int
    members: tuple[str, ...] = ()
    stage: str = "stable"
    base_index: int = 0
    learners: tuple[str, ...] = ()


class PrimaryStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One partition as this node sees it. ``primary`` and ``epoch`` are as granted, ``None`` and 0
    where they are not; ``serving``: this node is the primary and its lease holds. ``locks``,
    ``waiting`` and ``open`` count at the primary only, the others in the replica: ``prepared``
    transactions are pending here, ``outcomes`` are kept for others that are.
    """

    partition: int
    primary: str | None
    epoch: int
    serving: bool
    locks: int
    waiting: int
    open: int
    prepared: tuple[str, ...]
    outcomes: int
    keys: int
    versions: int
    max_ts: int
    counters: dict[str, int]


class NodeReport(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """The state of a node. ``assignments`` is empty until metastorage holds them; ``lease_s``: how
    long its lease still holds, below 0 if it does not; ``clock``: its hybrid logical clock.
    ``tables``: the full name of each, the flat number of its first partition, and how many it has;
    empty where the cluster has no distribution zones.
    """

    node: str
    incarnation: str
    boot: str
    wall_ns: int
    revision: int
    partitions: int
    replicas: int
    members: tuple[str, ...]
    assignments: dict[int, tuple[str, ...]]
    groups: tuple[GroupStatus, ...]
    primaries: tuple[PrimaryStatus, ...]
    lease_s: float
    clock: int
    reachable: tuple[str, ...]
    log_bytes: int
    bugs: tuple[str, ...]
    tables: tuple[tuple[str, int, int], ...] = ()


class ResetReport(msgspec.Struct, frozen=True, array_like=True):
    """A forced reset: ``generation`` goes on from ``base_index``, of ``base_term``, of
    ``previous_generation``, with the copies of ``survivors``.
    """

    generation: int
    previous_generation: int
    base_index: int
    base_term: int
    survivors: tuple[str, ...]


class NodeEvent(msgspec.Struct, frozen=True, array_like=True):
    """Something that happened on a node; ``seq`` counts up from 1 at each start."""

    seq: int
    kind: str
    wall_ns: int
    boot: str
    partition: int | None
    term: int | None
    text: str
    generation: int | None = None
    reset: ResetReport | None = None
    decision: str | None = None
    about: str | None = None


class EventBatch(msgspec.Struct, frozen=True, kw_only=True, tag="event-batch"):
    """Events in order, the node's wall clock now, and the cursor to ask from next."""

    boot: str
    wall_ns: int
    cursor: int
    events: tuple[NodeEvent, ...]


class KeyReport(msgspec.Struct, frozen=True, kw_only=True, tag="key-report"):
    """A key on this node: its partition, its versions, the newest first, and the holders of its
    lock (transaction, exclusively or not) where this node is the primary. ``left_out``: how many
    older versions the answer has no room for. ``problem``: why it has no partition.
    """

    partition: int = 0
    versions: tuple[tuple[int, bytes], ...] = ()
    holders: tuple[tuple[str, bool], ...] = ()
    left_out: int = 0
    problem: str = ""


class AskVoters(msgspec.Struct, frozen=True, array_like=True, tag="voters"):
    """Admin: make ``nodes`` the voters of metastorage; refused where that takes longer than
    ``limit_ms``.
    """

    nodes: tuple[str, ...]
    limit_ms: int


class VotersReport(msgspec.Struct, frozen=True, kw_only=True, tag="voters"):
    """The names of metastorage's voters, or why they are not those that were asked for."""

    voters: tuple[str, ...] = ()
    problem: str = ""


class AskChanges(msgspec.Struct, frozen=True, array_like=True, tag="changes"):
    """Admin: changes of assignments and topology after ``cursor`` of start ``boot``; all there are
    if this is another start.
    """

    boot: str = ""
    cursor: int = 0


class ChangeRow(msgspec.Struct, frozen=True, array_like=True):
    """One key about a partition, the topology or a zone that ``revision`` wrote, applied here
    ``age_us`` before the answer; ``seq`` counts up from 1 at each start.

    ``kind`` is that of the harness's ``AssignmentKind`` or ``TopologyKind``, and so is what the
    others mean; ``name`` is the table's or zone's, ``zone`` that of the table. ``waits``: up, down
    and joint in seconds, below 0 for never; ``reset_s``: what the resets of a highly available zone
    wait for.
    """

    seq: int
    revision: int
    age_us: int
    kind: str
    name: str = ""
    partition: int | None = None
    nodes: tuple[str, ...] | None = None
    term: int | None = None
    number: int | None = None
    ts: int | None = None
    waits: tuple[int | None, int | None, int | None] = (None, None, None)
    text: str = ""
    zone: str = ""
    reset_s: int | None = None


class ChangeReport(msgspec.Struct, frozen=True, kw_only=True, tag="change-report"):
    """Changes in order, and the cursor to ask from next. This start has applied, and reports, all
    above revision ``begins``, so far up to ``revision``.
    """

    boot: str
    cursor: int
    begins: int
    revision: int
    rows: tuple[ChangeRow, ...]


AdminQuestion = AskStatus | AskEvents | AskKey | AskStates | AskSql | AskChanges | AskVoters
AdminBody = (
    NodeReport | EventBatch | KeyReport | StateReport | SqlReport | ChangeReport | VotersReport
)
