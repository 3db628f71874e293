"""What the reference store's messages promise: the tables ``RAFT`` (``raft_claims``) and
``ANSWERS``, the cases of ``_of_transaction`` for what primaries declare, and the readers behind
them.

This is all that the judge of a simulation knows of the store. A message that is not in the tables
promises nothing: a pre-vote binds no voter, and a refusal no replica.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import msgspec

from clusters.reference.claims.durable_facts import LogReader, entry_mark, generation_name, root_of
from clusters.reference.claims.metastorage_claims import (
    MetastorageClaims,
    partition_group,
    renewed,
)
from clusters.reference.claims.partition_log import PartitionLog
from clusters.reference.claims.raft_claims import RaftClaims, begun_claim
from clusters.reference.node import declarations
from clusters.reference.node.config import loads
from clusters.reference.node.declarations import LocksRelease, PrimaryAnswer, Recovery
from clusters.reference.node.metastorage.metastorage import (
    METASTORAGE,
    Invoke,
)
from clusters.reference.node.placement.lease_expiry import (
    DRIFT,
    LEASE,
    LEASE_S,
    origin_of,
)
from clusters.reference.node.placement.partitioning import partition_of
from clusters.reference.node.raft.types import (
    Entry,
)
from clusters.reference.node.tx import commands
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import (
    NO_ANSWER,
    Ack,
    BadMessage,
    Begin,
    ClientBody,
    ClientRequest,
    Codec,
    Commit,
    CommitReply,
    Committed,
    CommitTx,
    Execute,
    ExecuteReply,
    Failed,
    Finish,
    Get,
    InvokeReply,
    LeaderBody,
    Leave,
    Lock,
    LockReply,
    MetaInvoke,
    OneShot,
    OneShotReply,
    PeerAnswer,
    PeerBody,
    PeerReply,
    PeerRequest,
    Ping,
    Prepare,
    PrepareReply,
    Put,
    RaftBatch,
    ReadAt,
    ReplyBody,
    Resolve,
    ResolveReply,
    Rollback,
    Started,
    TxnId,
    Validate,
    Value,
    Version,
    decode,
)
from clusters.reference.node.wire.reports import AdminQuestion, AskSql
from harness.protocols.claims import (
    Acknowledgement,
    AnswerClock,
    Claim,
    Command,
    CopyGivenUp,
    EndRefused,
    Fact,
    Inspection,
    LockGrant,
    LockRelease,
    LoggedWrites,
    NewestRead,
    Outcome,
    OutcomeDrop,
    PreparedLocks,
    PrimaryAct,
    ReadsValid,
    RecoveredLog,
    ReplicaContent,
    SharedRead,
    SnapshotRead,
    Statement,
    TimestampOrder,
    TransactionEnd,
    TransactionOver,
)

# Primaries: a request that was answered, and the answer. A command in the log is in nobody's way
# once the lease is over: that it is prepared may be told late.
UNDER_LEASE = (Claim.LEASE_VALID, Claim.ONE_PRIMARY)
ANSWERS: Mapping[tuple[type, type], tuple[Claim, ...]] = {
    (Lock, LockReply): UNDER_LEASE,
    (ReadAt, Version): UNDER_LEASE,
    (Validate, Ack): UNDER_LEASE,
    (Resolve, ResolveReply): UNDER_LEASE,
    (Prepare, PrepareReply): (Claim.DURABLE_ON_MAJORITY,),
    (CommitTx, CommitReply): (Claim.DURABLE_ON_MAJORITY, *UNDER_LEASE),
    (Execute, ExecuteReply): (Claim.DURABLE_ON_MAJORITY, *UNDER_LEASE),
}
"""What the answers of a primary promise."""

_invoke = msgspec.msgpack.Decoder(Invoke)
_PONG = msgspec.msgpack.encode("pong")  # the tag, behind one byte that says the number of fields


class ReferenceClaims:
    """``harness.protocols.claims.ClaimsReader`` of the reference store, for one run."""

    lease_s, drift = LEASE_S, DRIFT

    def __init__(self) -> None:
        self._says: dict[tuple[str, int, int], tuple[Fact, ...]] = {}
        # By timestamp: partitions may give the same one.
        self._commits: dict[int, dict[str, commands.Commit]] = {}
        self._prepares: dict[tuple[str, str], commands.Prepare] = {}  # by group and transaction
        self._raft = RaftClaims()
        # By connection and id: what was asked, when, and the revision of metastorage by then.
        self._requests: dict[tuple[int, int], tuple[PeerBody, int, int]] = {}
        self._clients: dict[int, _Session] = {}
        # What coordinators asked of primaries on other nodes: the rest they answer themselves.
        self._asked_for: dict[tuple[str, bytes], int] = {}
        self._sent: dict[str, None] = {}
        self._metastorage = MetastorageClaims()
        self._logs: dict[str, PartitionLog] = {}  # of generations of partitions
        self._origins: dict[str, str] = {}  # of the present start of each node

    def disk(self) -> LogReader:
        """See ``ClaimsReader``."""
        return LogReader(self._entry)

    def holder(self, node: str, boot: str) -> str:
        """See ``ClaimsReader``."""
        origin = self._origins[node] = origin_of(node, boot)
        return origin

    def configured(self, files: Mapping[str, bytes]) -> None:
        """See ``ClaimsReader``."""
        for data in files.values():
            zoned = loads(data).zoned
            if zoned is not None:
                self._metastorage.topology.silence_s = zoned.detection_s

    # Primaries.

    def declared(self, node: str, event: object) -> Iterable[Statement]:
        """See ``ClaimsReader``."""
        if isinstance(event, LocksRelease):
            unlocked = LockRelease(partition_group(event.partition), event.epoch, str(event.txn))
            return [("LocksRelease", unlocked)]
        if isinstance(event, Recovery):
            return [("Recovery", _recovered(event))]
        if isinstance(event, declarations.Content):
            name = generation_name(event.group, event.generation)
            return [("Content", ReplicaContent(name, event.index, event.digest))]
        if isinstance(event, declarations.Inspection):
            return [("Inspection", Inspection(event.group, event.problem or ""))]
        if isinstance(event, PrimaryAnswer):
            facts = (
                self._of_transaction(event.body, event.answer),
                self._ended(event.body, event.answer),
                _end_refused(event.body, event.answer),
                self._acts(event.body, event.answer),
                self._promised(node, event.body, event.answer),
                *_read_at_once(event.body, event.answer),
            )
            name = f"{type(event.answer).__name__} to {type(event.body).__name__}"
            return [(name, fact) for fact in facts if fact is not None]
        return ()

    def _ended(self, body: PeerBody, answer: PeerAnswer) -> Fact | None:
        """A participant says that it has finished: home forgets the outcome upon that."""
        if not isinstance(body, Finish) or not isinstance(answer, Ack):
            return None
        group, txn = partition_group(body.partition), str(body.txn)
        if not self._is_prepared(group, body.txn):
            return None
        return Acknowledgement(f"the end of {txn}", ((group, _finish_name(txn)),))

    def _promised(self, node: str, body: PeerBody, answer: PeerAnswer) -> Fact | None:
        """What is read at a timestamp stays so, under later primaries, too."""
        if isinstance(body, Execute) and isinstance(answer, ExecuteReply):
            ts = 0 if _writes(body.steps) else answer.ts
        elif isinstance(body, ReadAt | Validate) and isinstance(answer, Version | Ack):
            ts = body.ts
        else:
            return None
        if not ts:
            return None
        group, origin = partition_group(body.partition), self._origins.get(node, "")
        return self._metastorage.promises(group, origin, ts)

    def _is_prepared(self, group: str, txn: TxnId) -> bool:
        """Whether ``txn`` is prepared in ``group``, as far as is known to be committed: what never
        was has nothing to finish. A reset may have cut off that it is, or that it was.
        """
        names = [name for name in self._logs if root_of(name) == group]
        return names == [group] and self._logs[group].is_prepared(txn)

    def _ends(self, txn: TxnId) -> tuple[tuple[str, str], ...]:
        groups = [group for group in self._logs if self._is_prepared(group, txn)]
        return tuple([(group, _finish_name(str(txn))) for group in groups])

    def _of_transaction(self, body: PeerBody, answer: PeerAnswer) -> Fact | None:
        """What a primary grants, and what it tells of outcomes."""
        match body, answer:
            case Lock(), LockReply():
                txn, epoch = str(body.txn), answer.token.epoch
                group, limit_s = partition_group(body.partition), body.limit_ms / 1000
                return LockGrant(group, epoch, txn, body.key, body.exclusive, limit_s)
            case Prepare(), PrepareReply():
                return self._prepared(partition_group(body.partition), str(body.txn))
            case Prepare(), Failed():  # its coordinator asks for no commit then
                return Outcome(str(body.txn), None)
            case CommitTx(), CommitReply():
                return Outcome(str(body.txn), answer.ts)
            case CommitTx(), Failed() if answer.code in codes.DEFINITE:
                return Outcome(str(body.txn), None)
            case Execute(), ExecuteReply() if _writes(body.steps):
                return Outcome(str(body.txn), answer.ts)
            case Resolve(), ResolveReply():
                return Outcome(str(body.txn), answer.ts or None)
            case Finish(), _:  # its sender knows the outcome
                return Outcome(str(body.txn), body.ts or None)
            case Validate(), Ack() if body.token.epoch:
                return ReadsValid(partition_group(body.partition), body.token.epoch, str(body.txn))
            case ReadAt(), Version():
                return SnapshotRead(partition_group(body.partition), body.key, body.ts, answer.ts)
        return None

    def _prepared(self, group: str, txn: str) -> Fact | None:
        command = self._prepares.get((group, txn))
        if command is None:  # told before it is in any log: that is broken by itself
            return None
        return PreparedLocks(group, command.epoch, txn, command.reads, _keys(command.writes))

    # Messages between nodes.

    def between(self, source: str, to: str, connection: int, payload: bytes) -> Iterable[Statement]:
        """See ``ClaimsReader``."""
        # A third of all messages: they promise nothing, and their tag says that they are these.
        if payload.startswith(_PONG, 1):
            return ()
        frame = decode(Codec.peer, payload)
        if isinstance(frame, RaftBatch):
            return [
                said
                for group, message in frame.messages
                for said in self._raft.said(source, to, group, message)
            ]
        if isinstance(frame, Ping):
            if frame.heartbeat is None or not frame.heartbeat.begun:
                return ()
            begun = frame.heartbeat.begun
            return [("Heartbeat", begun_claim(group, claim)) for group, claim in begun]
        if isinstance(frame, PeerRequest) and frame.id != NO_ANSWER:
            revision = self._metastorage.revision
            self._requests[(connection, frame.id)] = frame.body, frame.ts, revision
            self._note_request(source, frame.body)
        elif isinstance(frame, PeerReply):
            asked = self._requests.pop((connection, frame.id), None)
            if asked is not None:
                body, asked_ts, revision = asked
                said = [*_clock_of(frame, asked_ts), *self._of_answer(body, frame.body)]
                if isinstance(body, MetaInvoke) and isinstance(frame.body, InvokeReply):
                    said.append(("InvokeReply", NewestRead(frame.body.revision, revision)))
                return said
        return ()

    def _of_answer(self, asked: PeerBody, answer: PeerAnswer) -> list[Statement]:
        claims = ANSWERS.get((type(asked), type(answer)), ())
        facts: list[Fact] = []
        if (act := self._acts(asked, answer)) is not None:
            facts.append(act)
        if Claim.DURABLE_ON_MAJORITY in claims:
            facts += self._durable(asked, answer)
        return [(type(answer).__name__, fact) for fact in facts]

    def _acts(self, body: PeerBody, answer: PeerAnswer) -> Fact | None:
        """It answers as a primary: as it says so, and as that leaves, if another node has asked."""
        if Claim.LEASE_VALID not in ANSWERS.get((type(body), type(answer)), ()):
            return None
        if isinstance(body, LeaderBody):
            return None
        group = partition_group(body.partition)
        if isinstance(answer, LockReply):
            return PrimaryAct(group, answer.token.epoch)
        # One that only reads has an ``ExecuteReply``, too, and no entry in any log.
        if isinstance(body, CommitTx | Execute) and isinstance(answer, CommitReply | ExecuteReply):
            commit = self._commits.get(answer.ts, {}).get(group)
            if commit is not None and commit.txn == body.txn:
                return PrimaryAct(group, commit.epoch, logged=True)
        return PrimaryAct(group)

    def _durable(self, asked: PeerBody, answer: PeerAnswer) -> list[Fact]:
        if isinstance(asked, Prepare):
            name = _prepare_name(str(asked.txn))
            return [Acknowledgement(str(asked.txn), ((partition_group(asked.partition), name),))]
        if isinstance(asked, CommitTx) and isinstance(answer, CommitReply):
            return [self._committed(str(asked.txn), answer.ts, dict(asked.writes))]
        if isinstance(asked, Execute) and isinstance(answer, ExecuteReply):
            writes = _writes(asked.steps)
            # A transaction that only reads has no entry in any log.
            return [self._committed(str(asked.txn), answer.ts, writes)] if writes else []
        return []

    def _note_request(self, source: str, body: PeerBody) -> None:
        if isinstance(body, Lock | ReadAt):
            key = source, body.key
            self._asked_for[key] = self._asked_for.get(key, 0) + 1
        elif isinstance(body, Leave):
            self._metastorage.topology.ends(body.origin)
        elif isinstance(body, CommitTx | Execute):
            self._sent[str(body.txn)] = None

    # Messages of clients.

    def asked(self, node: str, connection: int, payload: bytes) -> Iterable[Statement]:
        """See ``ClaimsReader``."""
        try:
            request = decode(Codec.request, payload)
        except BadMessage:
            return ()
        if isinstance(request.body, AskSql):
            cleanup = "CLEANUP" in request.body.statement.upper()
            return [("AskSql", CopyGivenUp())] if cleanup else ()
        session = self._clients.get(connection)
        if session is None:
            session = self._clients[connection] = _Session()
        session.asked(request, lambda key: self._asked_for.get((node, key), 0))
        return ()

    def answered(self, node: str, connection: int, payload: bytes) -> Iterable[Statement]:
        """See ``ClaimsReader``."""
        session = self._clients.get(connection)
        # Those of admin are large, and promise nothing.
        if session is None or not session.awaits:
            return ()
        try:
            reply = decode(Codec.reply, payload)
        except BadMessage:
            return ()
        body, facts = reply.body, list[Fact]()
        if over := session.over(reply.id, body):
            facts.append(TransactionOver(over))
        session.began(reply.id, body)
        read = session.reads.pop(reply.id, None)
        if read is not None and isinstance(body, Value):
            facts += self._own_read(node, *read)
        txn, writes = session.commits.pop(reply.id, ("", {}))
        if txn and writes and isinstance(body, Committed):
            facts.append(Outcome(txn, body.ts))
        elif txn and writes and isinstance(body, Failed) and body.code in codes.DEFINITE:
            facts.append(Outcome(txn, None))
        if writes and isinstance(body, Committed | OneShotReply):
            facts.append(self._committed(f"the transaction at {body.ts}", body.ts, writes))
            home, commit = self._home(body.ts, writes)
            if commit is not None and str(commit.txn) not in self._sent:
                facts.append(PrimaryAct(home, commit.epoch, logged=True))
        return [(type(body).__name__, fact) for fact in facts]

    def ended(self, node: str, connection: int) -> Iterable[Statement]:
        """See ``ClaimsReader``. With a request under way the node goes on for a while."""
        session = self._clients.pop(connection, None)
        if session is None or not session.idle or not session.txn:
            return ()
        return [("end of its client's connection", TransactionOver(session.txn))]

    def _own_read(self, node: str, key: bytes, asked_for: int) -> list[Fact]:
        """The contacted node read ``key`` as its primary, unless it asked another node for it."""
        partitions = self._metastorage.partitions
        if not partitions or self._asked_for.get((node, key), 0) != asked_for:
            return []
        return [PrimaryAct(partition_group(partition_of(key, partitions)))]

    def _home(self, ts: int, writes: Mapping[bytes, bytes]) -> tuple[str, commands.Commit | None]:
        """The group and the command that committed ``writes`` at ``ts``, or part of them."""
        for group, commit in self._commits.get(ts, {}).items():
            if commit.writes and commit.writes[0][0] in writes:
                return group, commit
        return "", None

    def _committed(self, what: str, ts: int, writes: Mapping[bytes, bytes]) -> Acknowledgement:
        """The commands of the transaction that committed ``writes`` at ``ts``."""
        home, commit = self._home(ts, writes)
        if commit is None:
            return Acknowledgement(what, (), tuple(key.hex() for key in writes))
        txn, held = str(commit.txn), dict(commit.writes)
        named = [(home, commit_name(ts))]
        # A reset may cut the outcome off at home: then all must have it.
        finished = self._metastorage.topology.resets_itself(root_of(home))
        for partition in commit.participants:
            group = partition_group(partition)
            named.append((group, _prepare_name(txn)))
            if finished:
                named.append((group, _finish_name(txn)))
            prepare = self._prepares.get((group, txn))
            held |= dict(prepare.writes) if prepare is not None else {}
        lacking = tuple(key.hex() for key, value in writes.items() if held.get(key) != value)
        return Acknowledgement(what, tuple(named), lacking)

    # Entries of logs.

    def _entry(self, group: str, entry: Entry, mark: int) -> tuple[Fact, ...]:
        key = group, entry.index, mark
        says = self._says.get(key)
        if says is None:
            # Each entry lies on several disks, and may be written again: it is read once.
            of = self._renewals if group == METASTORAGE else self._command
            says = self._says[key] = of(group, entry)
        return says

    def _renewals(self, group: str, entry: Entry) -> tuple[Fact, ...]:
        self._metastorage.logged(entry)
        operations = _invoke.decode(entry.data).success
        values = [o.value for o in operations if o.key.startswith(LEASE) and o.value is not None]
        for value in values:
            self._metastorage.renewal_logged(value)
        return tuple([renewed(value) for value in values])

    def committed(self, group: str, index: int, mark: int) -> Iterable[Fact]:
        """See ``ClaimsReader``."""
        if group == METASTORAGE:
            return self._metastorage.committed(index, mark)
        return self._log(group).committed(index, mark)

    def _log(self, group: str) -> PartitionLog:
        found = self._logs.get(group)
        if found is None:
            root = root_of(group)
            found = PartitionLog(group) if root == group else self._log(root).another(group)
            self._logs[group] = found
        return found

    def _command(self, group: str, entry: Entry) -> tuple[Fact, ...]:
        command = commands.decode(entry.data)
        self._log(group).logged(entry.index, entry_mark(entry), command)
        if isinstance(command, commands.Commit):
            self._commits.setdefault(command.ts, {})[group] = command
            others = tuple(map(partition_group, command.participants))
            keys, txn = _keys(command.writes), str(command.txn)
            void_after = _abort_name(txn)
            written = LoggedWrites(group, command.epoch, txn, keys, others, void_after)
            return (
                Command(commit_name(command.ts), str(command.txn)),
                written,
                self._above(command),
            )
        if isinstance(command, commands.Prepare):
            txn = str(command.txn)
            self._prepares[(group, txn)] = command
            written = LoggedWrites(group, command.epoch, txn, _keys(command.writes))
            return Command(_prepare_name(txn), txn), written
        if isinstance(command, commands.Abort):
            return (Command(_abort_name(str(command.txn))),)
        if isinstance(command, commands.Finish):
            txn = str(command.txn)
            ended = TransactionEnd(group, txn), Outcome(txn, command.ts or None)
            return Command(_finish_name(txn)), *ended
        if isinstance(command, commands.Takeover):
            promised = self._metastorage.promised(root_of(group), command.epoch)
            what = f"the floor of epoch {command.epoch} of {group}"
            return (TimestampOrder(what, command.floor, promised),)
        if isinstance(command, commands.Forget):
            return tuple([OutcomeDrop(str(txn), self._ends(txn)) for txn in command.txns])
        return ()

    def _above(self, commit: commands.Commit) -> Fact:
        """A participant has made promises to readers up to the time at which it has prepared."""
        txn = str(commit.txn)
        prepares = [self._prepares.get((partition_group(p), txn)) for p in commit.participants]
        promised = max((p.ts for p in prepares if p is not None), default=0)
        return TimestampOrder(f"the commit of {txn}", commit.ts, promised)


class _Session:
    """A client's connection: the writes of its open transaction, and of the commits that it waits
    for by the number of their request; likewise the first reads of its keys.
    """

    def __init__(self) -> None:
        self.commits: dict[int, tuple[str, dict[bytes, bytes]]] = {}  # with the transaction's name
        self.reads: dict[int, tuple[bytes, int]] = {}
        self._begins: dict[int, None] = {}
        self._steps: dict[int, ClientBody] = {}  # not answered yet
        self._blind = False  # a put without an answer may be under way
        self.txn = ""
        self._writes: dict[bytes, bytes] = {}
        self._known: dict[bytes, None] = {}  # keys that the coordinator need not ask for

    @property
    def awaits(self) -> bool:
        """Whether an answer may say anything."""
        return bool(self._steps)

    @property
    def idle(self) -> bool:
        """Whether the node has nothing to do for it."""
        return not (self._steps or self._blind)

    def over(self, number: int, answer: ReplyBody) -> str:
        """The transaction that has ended with the answer to the request ``number``, if it has, and
        before its commit was asked for.
        """
        asked = self._steps.pop(number, None)
        self._blind = self._blind and bool(self._steps)
        if isinstance(asked, Begin) or asked is None:
            return ""
        failed = isinstance(answer, Failed) and not isinstance(asked, Commit)
        if not (failed or isinstance(asked, Rollback)):
            return ""
        txn, self.txn = self.txn, ""
        return txn

    def began(self, number: int, answer: ReplyBody) -> None:
        """The request ``number`` is answered: that names the transaction which it began."""
        if number in self._begins:
            del self._begins[number]
            self.txn = answer.txn if isinstance(answer, Started) else ""

    def asked(self, request: ClientRequest, asked_for: Callable[[bytes], int]) -> None:
        """``asked_for``: how often the node has asked another one for a key."""
        body = request.body
        if isinstance(body, AdminQuestion):
            return
        if request.id == NO_ANSWER:
            self._blind = True
        else:
            self._steps[request.id] = body
        if isinstance(body, Begin):
            self.txn, self._writes, self._known = "", {}, {}
            self._begins[request.id] = None
        elif isinstance(body, Get):
            if body.key not in self._known:
                self.reads[request.id] = body.key, asked_for(body.key)
            self._known[body.key] = None
        elif isinstance(body, Put):
            self._known[body.key] = None
            self._writes[body.key] = body.value
        elif isinstance(body, Commit):
            self.commits[request.id], self._writes = (self.txn, self._writes), {}
            self.txn = ""
        elif isinstance(body, OneShot):
            self.commits[request.id] = "", _writes(body.steps)


def _read_at_once(body: PeerBody, answer: PeerAnswer) -> list[Fact]:
    """A transaction of one request that only reads has all its locks until this moment."""
    if not isinstance(body, Execute) or not isinstance(answer, ExecuteReply) or _writes(body.steps):
        return []
    group, txn = partition_group(body.partition), str(body.txn)
    return [SharedRead(group, txn, key) for key in dict.fromkeys(key for key, _ in body.steps)]


def _clock_of(reply: PeerReply, asked_ts: int) -> list[Statement]:
    """Every answer carries a clock that has followed the question's, unless that is refused."""
    if isinstance(reply.body, Failed) and reply.body.code == codes.CLOCK_DRIFT:
        return []
    return [("PeerReply", AnswerClock(reply.ts, asked_ts))]


def _end_refused(body: PeerBody, answer: PeerAnswer) -> Fact | None:
    if isinstance(body, Finish) and isinstance(answer, Failed):
        return EndRefused(partition_group(body.partition), str(body.txn))
    return None


def _recovered(event: Recovery) -> Fact:
    name = generation_name(event.group, event.generation)
    return RecoveredLog(name, event.term, event.vote, event.last_term, event.last_index)


def _keys(writes: commands.Writes) -> tuple[bytes, ...]:
    return tuple([key for key, _ in writes])


def _writes(steps: Iterable[tuple[bytes, bytes | None]]) -> dict[bytes, bytes]:
    return {key: value for key, value in steps if value is not None}


def commit_name(ts: int) -> str:
    """The name of the command that commits at ``ts`` in the home of its transaction."""
    return f"commit at {ts}"


def _prepare_name(txn: str) -> str:
    return f"prepare of {txn}"


def _abort_name(txn: str) -> str:
    return f"abort of {txn}"


def _finish_name(txn: str) -> str:
    return f"finish of {txn}"
