"""The log of a partition once more: which of its commands count, what each of them did, and what a
replica holds that has applied them.

The log decides: a command of a past epoch does nothing, and of a commit and an abort of the same
transaction the first one in it counts. Nothing of the node's state machine is used.
"""

from __future__ import annotations

from clusters.reference.node.declarations import CONTENT_EVERY
from clusters.reference.node.tx import commands
from clusters.reference.node.tx.commands import (
    CLASSES,
    Abort,
    CommandClass,
    Commit,
    Finish,
    Forget,
    Prepare,
    Takeover,
)
from clusters.reference.node.tx.durable_outcomes import Outcome as Recorded
from clusters.reference.node.wire.messages import TxnId, Version
from harness.protocols.claims import (
    Fact,
    NewVersions,
    NoOpEntry,
    Outcome,
    ReplicaContent,
    TransactionDecided,
)


class PartitionLog:
    """The committed commands of one generation of a group, from the first on; once one is missing,
    none of those behind it is followed.
    """

    def __init__(self, group: str, name: str = "") -> None:
        """``name``: of a generation but the first."""
        self._group, self._name = group, name or group
        self._commands: dict[tuple[int, int], commands.Command] = {}
        self._complete = True
        self._epoch = self._horizon = 0
        self._prepared: dict[TxnId, Prepare] = {}
        self._outcomes: dict[TxnId, Recorded] = {}
        self._newest: dict[bytes, Version] = {}
        self._max_ts = self._written_ts = self._last_user_index = 0

    def logged(self, index: int, mark: int, command: commands.Command) -> None:
        """A disk holds ``command``."""
        self._commands[(index, mark)] = command

    def another(self, name: str) -> PartitionLog:
        """The log of another generation: nothing is committed there, and disks hold the same."""
        other = PartitionLog(self._group, name)
        other._commands = self._commands
        return other

    def is_prepared(self, txn: TxnId) -> bool:
        """Whether ``txn`` is prepared, and not finished, by what is known to be committed."""
        return txn in self._prepared

    def committed(self, index: int, mark: int) -> list[Fact]:
        """What the entry did; nothing for a leader's first entry and for configurations."""
        self._complete = self._complete and mark != 0
        if not self._complete:
            return []
        command = self._commands.get((index, mark))
        facts = [] if command is None else self._apply(index, command)
        if not index % CONTENT_EVERY:
            facts.append(ReplicaContent(self._name, index, hash(frozenset(self._content()))))
        return facts

    def _content(self) -> list[object]:
        """What ``Partition.content`` of a replica is: equal, if it has applied the same."""
        written = self._written_ts, self._last_user_index
        head = (self._epoch, self._max_ts, self._horizon, *written)
        return [head, *self._prepared.values(), *self._outcomes.items(), *self._newest.items()]

    def _apply(self, index: int, command: commands.Command) -> list[Fact]:
        if CLASSES[type(command)] is CommandClass.USER:
            self._last_user_index = index
        if isinstance(command, Takeover):
            if command.epoch > self._epoch:
                self._epoch, self._max_ts = command.epoch, max(self._max_ts, command.floor)
            return []
        if command.epoch != self._epoch:
            return []
        match command:
            case Commit():
                return self._commit(command)
            case Prepare():
                self._prepared[command.txn] = command
            case Abort():
                if self._undecided(command.txn):
                    self._outcomes[command.txn] = Recorded(0)
                    return [Outcome(str(command.txn), None)]
            case Finish():
                prepared = self._prepared.pop(command.txn, None)
                ended = TransactionDecided(self._group, str(command.txn))
                if prepared is not None and command.ts:
                    return [self._installed(prepared.writes, command.ts), ended]
                return [ended]
            case Forget():
                return self._forget(command)
        return []

    def _forget(self, command: Forget) -> list[Fact]:
        known = [self._outcomes.pop(txn) for txn in command.txns if txn in self._outcomes]
        self._horizon = max(self._horizon, command.horizon)
        old = [t for t, o in self._outcomes.items() if not o.ts and t.ts <= self._horizon]
        for txn in old:
            del self._outcomes[txn]
        return [] if known or old else [NoOpEntry(self._group)]

    def _commit(self, command: Commit) -> list[Fact]:
        ended = TransactionDecided(self._group, str(command.txn))
        if not self._undecided(command.txn):
            return [ended]
        if command.participants:  # of one partition alone: no other can ask for it
            self._outcomes[command.txn] = Recorded(command.ts, command.participants)
        told = Outcome(str(command.txn), command.ts)
        return [told, self._installed(command.writes, command.ts), ended]

    def _undecided(self, txn: TxnId) -> bool:
        return txn not in self._outcomes and txn.ts > self._horizon

    def _installed(self, writes: commands.Writes, ts: int) -> NewVersions:
        self._newest.update((key, Version(value, ts)) for key, value in writes)
        self._written_ts, self._max_ts = max(self._written_ts, ts), max(self._max_ts, ts)
        return NewVersions(self._group, tuple([key for key, _ in writes]), ts)
