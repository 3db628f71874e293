"""One replica of a partition: raft group, state machine, primary role and finisher."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from clusters.reference.node.groups.group import Group, SnapshotRestore
from clusters.reference.node.groups.host import GroupHandle
from clusters.reference.node.raft import Entry
from clusters.reference.node.raft.configuration import Lineage
from clusters.reference.node.runtime.concurrency import TaskPart
from clusters.reference.node.tx import commands
from clusters.reference.node.tx.finisher import Finisher
from clusters.reference.node.tx.partition_state_machine import Partition
from clusters.reference.node.tx.primary import Primary


class PartitionReplication:
    """``Replication`` by a raft group."""

    def __init__(self, group: GroupHandle) -> None:
        self._group = group

    @property
    def serving(self) -> bool:
        """Whether this replica leads, and has applied every command of earlier leaders."""
        return self._group.serving

    @property
    def generation(self) -> int:
        """The generation of the partition."""
        return self._group.generation

    async def propose(self, command: commands.Command, limit_s: float) -> object:
        """The result of ``Partition.apply`` for ``command``, or ``Failed``."""
        return await self._group.propose(commands.encode(command), limit_s)


class PartitionMachine:
    """The state machine of a partition's group: after each command the primary, if it is here,
    releases the locks of the transactions that ended with it.
    """

    def __init__(self, partition: Partition, primary: Primary) -> None:
        self._partition, self._primary = partition, primary

    def apply(self, entry: Entry) -> object:
        """Take one committed command."""
        result = self._partition.apply(entry)
        ended = self._partition.take_ended()
        if ended:
            self._primary.applied(ended)
        return result

    def snapshot(self) -> Iterator[bytes]:
        """The partition's."""
        return self._partition.snapshot()

    def restoring(self) -> SnapshotRestore:
        """The partition's."""
        return self._partition.restoring()

    def predict(self, entry: Entry) -> object:
        """The partition's."""
        return self._partition.predict(entry)

    def content(self) -> Iterable[object]:
        """The partition's."""
        return self._partition.content()

    def leadership_lost(self) -> None:
        """The primary role ends with the leadership."""
        self._primary.close()


class Replica:
    """The parts that ``ReplicaManager`` starts and stops together."""

    def __init__(
        self,
        *,
        group: Group,
        partition: Partition,
        primary: Primary,
        finisher: Finisher,
        tasks: TaskPart,
    ) -> None:
        """``tasks`` are those of the finisher."""
        self.group, self.partition, self.primary = group, partition, primary
        self.finisher, self.tasks = finisher, tasks

    @property
    def member(self) -> str:
        """Its member of the group."""
        return self.group.raft.node

    def keeps(self, lineage: Lineage) -> bool:
        """Whether what it has applied is of a log with ``lineage``; if not, its group tells of
        it.
        """
        return self.group.raft.keeps(lineage)
