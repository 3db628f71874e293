"""The judge on the second replica of a group in one directory, by the files of the real log."""

from __future__ import annotations

from dataclasses import dataclass

from clusters.providers.sim.disk import Platter, SimDisk
from clusters.providers.sim.loop import simulate
from clusters.providers.sim.oracles.judge import Judge
from clusters.reference.claims.claims_reader import ReferenceClaims
from clusters.reference.node.raft.configuration import Configuration
from clusters.reference.node.raft.types import Entry, HardState, Mark
from clusters.reference.node.storage.identity import Identity, member_of, replica_of, save
from clusters.reference.node.storage.log_records import Compaction, Update
from clusters.reference.node.storage.shared_log import SharedLog
from clusters.reference.node.tx import commands
from clusters.reference.node.wire.messages import TxnId
from harness.clock import substream
from harness.protocols.claims import ClaimsReport, CommitClaim, Fact

GROUP, FILLER = "p0", "p1"
NODES = ("n1", "n2", "n3")
SEGMENT_BYTES = 512


def entry(index: int, value: bytes = b"v") -> Entry:
    command = commands.Commit(
        epoch=1,
        txn=TxnId(ts=index, origin="n1", number=index),
        ts=index,
        writes=((b"k", value),),
        participants=(),
    )
    return Entry(1, index, commands.encode(command))


class Facts(ReferenceClaims):
    """The reference store's reader; a declared fact is taken as it stands."""

    def declared(self, node: str, event: object) -> list[tuple[str, Fact]]:
        return [("told", event)] if isinstance(event, Fact) else []


@dataclass
class Node:
    """``life`` is the number of its replica of ``GROUP``."""

    platter: Platter
    log: SharedLog
    life: int = 1

    async def append(self, update: Update) -> None:
        await self.log.append([update])

    async def found(self, members: tuple[str, ...]) -> None:
        base = Mark(0, 0, Configuration(members))
        await self.append(Update(GROUP, HardState(1, None), (), Compaction(base)))

    async def erase(self) -> None:
        """Destroy the replica; the next one begins."""
        self.life += 1
        await self.append(Update(GROUP, None, (), dropped=self.life))

    async def fill_until_rewritten(self) -> None:
        """Fill the log with entries of another group that count no more, until all that counts of
        ``GROUP`` is in another segment.
        """
        first, index = self.log.groups[GROUP].oldest_segment(), 0
        while self.log.groups[GROUP].oldest_segment() == first:
            index += 1
            cut = Compaction(Mark(index, 1, Configuration(("n1",))))
            await self.append(Update(FILLER, None, (entry(index, b"x" * 200),), cut))


class Cluster:
    def __init__(self) -> None:
        self.judge = Judge(Facts())
        self.nodes: dict[str, Node] = {}
        self.members: dict[str, str] = {}

    async def begin(self) -> None:
        for name in NODES:
            platter = Platter(substream(1, "lives", name), name)
            platter.watcher = self.judge
            self.judge.inserted(platter)
            disk = SimDisk(platter)
            await save(disk, Identity(node=name, incarnation="a"))
            self.members[name] = member_of(name, "a")
            self.nodes[name] = Node(platter, SharedLog(disk, segment_bytes=SEGMENT_BYTES))
        for node in self.nodes.values():
            await node.found(tuple(self.members.values()))

    async def replace(self, name: str) -> None:
        """The group takes the next replica on node ``name`` in place of the one there."""
        await self.nodes[name].erase()
        self.members[name] = replica_of(member_of(name, "a"), self.nodes[name].life)
        for node in self.nodes.values():
            await node.found(tuple(self.members.values()))

    def told_committed(self, index: int) -> None:
        self.judge.declared("n1", CommitClaim(GROUP, 1, index))


def judged(*holders: str, rewrites: int) -> ClaimsReport:
    """Entry 1 is on the disks of ``holders`` when it is told as committed; the log of ``n2``, in
    the second life of its replica, was written again so many times before.
    """

    async def main() -> ClaimsReport:
        cluster = Cluster()
        await cluster.begin()
        await cluster.replace("n2")
        for _ in range(rewrites):
            await cluster.nodes["n2"].fill_until_rewritten()
        for name in holders:
            await cluster.nodes[name].append(Update(GROUP, None, (entry(1),)))
        cluster.told_committed(1)
        return cluster.judge.report()

    return simulate(main())


def test_a_replica_whose_log_is_written_again_lives_on() -> None:
    for rewrites in (0, 1, 2):
        assert judged("n1", "n2", rewrites=rewrites).broken == {}


def test_it_counts_for_no_more_than_it_holds() -> None:
    for rewrites in (0, 1, 2):
        [found] = judged("n1", rewrites=rewrites).examples
        assert "the synced disks of 1 of 3 voters hold it" in found.detail


def test_a_former_replica_keeps_what_it_held_when_the_disk_is_read_again() -> None:
    async def main() -> ClaimsReport:
        cluster = Cluster()
        await cluster.begin()
        for name in ("n1", "n2"):
            await cluster.nodes[name].append(Update(GROUP, None, (entry(1),)))
        # That this replica is gone is no broken promise, and no other disk knows its successor.
        await cluster.nodes["n2"].erase()
        await cluster.nodes["n2"].fill_until_rewritten()
        cluster.told_committed(1)
        return cluster.judge.report()

    assert simulate(main()).broken == {}
