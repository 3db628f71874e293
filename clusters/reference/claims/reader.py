"""What the reference store's messages promise: two tables, and the readers behind them.

This is all that the judge of a simulation knows of the store. A message that is not in the tables
promises nothing: a pre-vote binds nobody, a refusal neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from clusters.reference.claims.records import LogReader, entry_mark
from clusters.reference.node.metastorage.metastorage import METASTORAGE
from clusters.reference.node.raft.types import (
    Append,
    AppendReply,
    Chunk,
    Entry,
    Message,
    VoteReply,
    VoteRequest,
)
from clusters.reference.node.tx import commands
from clusters.reference.node.wire.messages import (
    NO_ANSWER,
    BadMessage,
    Begin,
    ClientRequest,
    Codec,
    Commit,
    CommitReply,
    Committed,
    CommitTx,
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
    decode,
)
from harness.protocols.claims import (
    Acknowledged,
    Claim,
    Command,
    CommitTold,
    Fact,
    LogHeld,
    LogTold,
    Said,
    TermTold,
)

# Raft: a message of a group as a fact.


def _candidate(group: str, message: VoteRequest) -> Fact | None:
    return None if message.pre else TermTold(group, message.term, message.sender)


def _leader(group: str, message: Append | Chunk) -> Fact:
    return TermTold(group, message.term, message.sender)


def _log_told(group: str, message: Append) -> Fact | None:
    if not message.entries:
        return None
    marks = tuple([entry_mark(entry) for entry in message.entries])
    return LogTold(group, message.term, message.previous_index + 1, marks)


def _commit_told(group: str, message: Append) -> Fact:
    return CommitTold(group, message.term, message.commit)


def _answering(group: str, message: AppendReply) -> Fact:
    return TermTold(group, message.term)


def _log_held(group: str, message: AppendReply) -> Fact | None:
    return None if message.refused else LogHeld(group, message.term, message.match_index)


RAFT: Mapping[type, tuple[tuple[Claim, Callable[[str, Any], Fact | None]], ...]] = {
    VoteRequest: ((Claim.HARD_STATE_SYNCED, _candidate),),
    Append: (
        (Claim.HARD_STATE_SYNCED, _leader),
        (Claim.KNOWN_AFTER_CRASH, _log_told),  # the other half of what its answers promise
        (Claim.COMMITTED_ON_MAJORITY, _commit_told),
    ),
    Chunk: ((Claim.HARD_STATE_SYNCED, _leader),),
    AppendReply: ((Claim.HARD_STATE_SYNCED, _answering), (Claim.KNOWN_AFTER_CRASH, _log_held)),
}
"""What messages of raft promise, and where that stands in them. ``VoteReply`` is read by itself: it
does not say whom the vote went to.
"""


class ReferenceClaims:
    """``harness.protocols.claims.ClaimsReader`` of the reference store, for one run."""

    def __init__(self) -> None:
        self._says: dict[tuple[str, int, int], tuple[Fact, ...]] = {}
        # By timestamp: partitions may give the same one.
        self._commits: dict[int, dict[str, commands.Commit]] = {}
        self._prepares: dict[tuple[str, str], commands.Prepare] = {}  # by group and transaction
        self._candidates: dict[tuple[str, str], str] = {}  # group and node: who asks for votes
        self._requests: dict[tuple[int, int], PeerBody] = {}  # connection and id
        self._clients: dict[int, _Session] = {}

    def disk(self) -> LogReader:
        """See ``ClaimsReader``."""
        return LogReader(self._entry)

    # Messages between nodes.

    def between(self, source: str, to: str, connection: int, payload: bytes) -> Iterable[Said]:
        """See ``ClaimsReader``."""
        frame = decode(Codec.peer, payload)
        if isinstance(frame, RaftBatch):
            return [
                said
                for group, message in frame.messages
                for said in self._of_raft(source, to, group, message)
            ]
        if isinstance(frame, Ping):
            begun = () if frame.heartbeat is None else frame.heartbeat.begun
            return [("Heartbeat", TermTold(group, term)) for group, term in begun]
        if isinstance(frame, PeerRequest) and frame.id != NO_ANSWER:
            self._requests[(connection, frame.id)] = frame.body
        elif isinstance(frame, PeerReply):
            asked = self._requests.pop((connection, frame.id), None)
            if asked is not None:
                return self._of_answer(asked, frame.body)
        return ()

    def _of_raft(self, source: str, to: str, group: str, message: Message) -> list[Said]:
        name = type(message).__name__
        if isinstance(message, VoteReply):
            given = message.granted and not message.pre
            candidate = self._candidates.get((group, to))
            return [(name, TermTold(group, message.term, candidate))] if given else []
        if isinstance(message, VoteRequest):
            self._candidates[(group, source)] = message.sender
        facts = (read(group, message) for _, read in RAFT.get(type(message), ()))
        return [(name, fact) for fact in facts if fact is not None]

    def _of_answer(self, asked: PeerBody, answer: PeerAnswer) -> list[Said]:
        facts: list[Fact | None] = []
        if isinstance(asked, Prepare) and isinstance(answer, PrepareReply):
            group = _group(asked.partition)
            name = _prepare_name(str(asked.txn))
            facts.append(Acknowledged(str(asked.txn), ((group, name),)))
        elif isinstance(asked, CommitTx) and isinstance(answer, CommitReply):
            facts.append(self._committed(str(asked.txn), answer.ts, dict(asked.writes)))
        return [(type(answer).__name__, fact) for fact in facts if fact is not None]

    # Messages of clients.

    def asked(self, connection: int, payload: bytes) -> None:
        """See ``ClaimsReader``."""
        try:
            request = decode(Codec.request, payload)
        except BadMessage:
            return
        session = self._clients.get(connection)
        if session is None:
            session = self._clients[connection] = _Session()
        session.asked(request)

    def answered(self, connection: int, payload: bytes) -> Iterable[Said]:
        """See ``ClaimsReader``."""
        session = self._clients.get(connection)
        # Most answers promise nothing by themselves, and those of admin are large.
        if session is None or not session.commits:
            return ()
        try:
            reply = decode(Codec.reply, payload)
        except BadMessage:
            return ()
        writes = session.commits.pop(reply.id, None)
        if not writes or not isinstance(reply.body, Committed | OneShotReply):
            return ()
        fact = self._committed(f"the transaction at {reply.body.ts}", reply.body.ts, writes)
        return [(type(reply.body).__name__, fact)]

    def _committed(self, what: str, ts: int, writes: Mapping[bytes, bytes]) -> Acknowledged:
        """The commands of the transaction that committed ``writes`` at ``ts``."""
        found = self._commits.get(ts, {})
        home = next((g for g, c in found.items() if c.writes and c.writes[0][0] in writes), None)
        if home is None:
            return Acknowledged(what, (), tuple(key.hex() for key in writes))
        commit = found[home]
        txn, held = str(commit.txn), dict(commit.writes)
        named = [(home, _commit_name(ts))]
        for partition in commit.participants:
            group = _group(partition)
            named.append((group, _prepare_name(txn)))
            prepare = self._prepares.get((group, txn))
            held |= dict(prepare.writes) if prepare is not None else {}
        lacking = tuple(key.hex() for key, value in writes.items() if held.get(key) != value)
        return Acknowledged(what, tuple(named), lacking)

    # Entries of logs.

    def _entry(self, group: str, entry: Entry, mark: int) -> tuple[Fact, ...]:
        key = group, entry.index, mark
        says = self._says.get(key)
        if says is None:
            # Each entry lies on several disks, and may be written again: it is read once.
            says = self._says[key] = () if group == METASTORAGE else self._command(group, entry)
        return says

    def _command(self, group: str, entry: Entry) -> tuple[Fact, ...]:
        command = commands.decode(entry.data)
        if isinstance(command, commands.Commit):
            self._commits.setdefault(command.ts, {})[group] = command
            return (Command(_commit_name(command.ts)),)
        if isinstance(command, commands.Prepare):
            txn = str(command.txn)
            self._prepares[(group, txn)] = command
            return (Command(_prepare_name(txn)),)
        return ()


class _Session:
    """A client's connection: the writes of its open transaction, and of the commits that it waits
    for by the number of their request.
    """

    def __init__(self) -> None:
        self.commits: dict[int, dict[bytes, bytes]] = {}
        self._writes: dict[bytes, bytes] = {}

    def asked(self, request: ClientRequest) -> None:
        body = request.body
        if isinstance(body, Begin):
            self._writes = {}
        elif isinstance(body, Put):
            self._writes[body.key] = body.value
        elif isinstance(body, Commit):
            self.commits[request.id], self._writes = self._writes, {}
        elif isinstance(body, OneShot):
            self.commits[request.id] = {k: value for k, value in body.steps if value is not None}


def _group(partition: int) -> str:
    return f"p{partition}"


def _commit_name(ts: int) -> str:
    return f"commit at {ts}"


def _prepare_name(txn: str) -> str:
    return f"prepare of {txn}"
