"""The judge on what metastorage says of a group: resets that are owed, members that are certain."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from oracles.toy_store import Bench

from clusters.providers.sim.oracles.durability import Durability
from clusters.providers.sim.oracles.histories import Histories
from clusters.providers.sim.oracles.memberships import Configurations
from clusters.providers.sim.oracles.resets import Resets
from clusters.providers.sim.oracles.synced_disks import Lives, SyncedDisk
from harness.protocols.claims import (
    Base,
    CommitClaim,
    DiskReader,
    ForcedReset,
    LeaderLog,
    LogEntry,
    LogUpdate,
    Members,
    NewGeneration,
    StableMembers,
    mark_of,
)

VOTERS = Members(("n1", "n2", "n3"))
MARKS = tuple(mark_of(1, index) for index in range(1, 5))


class Group:
    """The group ``p`` of three nodes, of which each has some of four entries of term 1."""

    def __init__(self, talking: Callable[[str, str], bool] = lambda one, other: True) -> None:
        self.lives, self.histories = Lives(), Histories()
        self.durability, self.configurations = Durability(self.lives), Configurations()
        reader: DiskReader = Bench().judge._disks["n1"].reader
        self.disks = {node: SyncedDisk(node, reader) for node in VOTERS.voters}
        for node, disk in self.disks.items():
            disk.member = node
            self.lives.by_member[node] = disk
            disk.logs["p"] = log = type(disk.log("p"))()
            log.take(LogUpdate("p", base=Base(0, 0, VOTERS)))
        self.resets = Resets(
            disks=self.disks,
            lives=self.lives,
            durability=self.durability,
            configurations=self.configurations,
            histories=self.histories,
            talking=talking,
        )

    def write(self, node: str, *entries: LogEntry, at_s: float = 0.0) -> None:
        log = self.disks[node].log("p")
        log.take(LogUpdate("p", 1, None, entries))
        for entry in entries:
            self.configurations.logged("p", entry)
        self.histories.synced(at_s, node, "p", log.last_index)

    def commit(self, index: int, at_s: float) -> None:
        self.durability.log_told(LeaderLog("p", 1, 1, MARKS))
        self.durability.committed(self.disks["n1"], CommitClaim("p", 1, index))
        self.histories.committed(at_s, "p", index)


def entries(count: int) -> tuple[LogEntry, ...]:
    return tuple(LogEntry(index, MARKS[index - 1]) for index in range(1, count + 1))


def reset(
    group: Group, to: str, *asked: str, now_s: float = 10.0, member: str | None = None
) -> str | None:
    """To the copy on ``to``, in its life ``member``; in none: it begins anew."""
    fact = ForcedReset("p", "p", to, to if member is None else member, asked, majority=False)
    return group.resets.forced(now_s, "n9", fact, "")


def lagging(**held: int) -> Group:
    group = Group()
    for node, count in held.items():
        group.write(node, *entries(count), at_s=5.0)
    group.commit(4, at_s=6.0)
    return group


def test_a_reset_goes_on_with_a_copy_that_has_what_another_one_has() -> None:
    group = lagging(n1=4, n2=4, n3=2)

    assert reset(group, "n2", "n2", "n3") == ""
    assert reset(group, "n3", "n2", "n3") == (
        "p is reset to n3, which lacks entry 4: that was committed, and n2 has it"
    )
    # No copy that is there has it.
    assert reset(group, "n3", "n3") == ""
    # What was chosen is another life of it by now.
    assert reset(group, "n3", "n2", "n3", member="n3.2") is None


def test_a_learner_has_a_copy_as_well_and_one_without_members_has_none() -> None:
    group = lagging(n1=4, n2=4, n3=2)
    log = group.disks["n2"].log("p")
    log.members = [(0, Members(("n1", "n3")))]

    assert "and n2 has it" in (reset(group, "n3", "n2", "n3") or "")
    log.members = []
    assert reset(group, "n3", "n2", "n3") == ""


def test_what_came_while_a_reset_was_decided_or_can_not_be_asked_counts_for_nothing() -> None:
    assert reset(lagging(n1=4, n2=4, n3=2), "n3", "n2", "n3", now_s=7.9) is None
    late = lagging(n1=4, n2=4, n3=2)
    late.histories.synced(6.5, "n2", "p", 1)
    late.histories.synced(9.5, "n2", "p", 4)
    assert reset(late, "n3", "n2", "n3") == ""
    silent = Group(talking=lambda one, other: False)
    for node, count in (("n1", 4), ("n2", 4), ("n3", 2)):
        silent.write(node, *entries(count), at_s=5.0)
    silent.commit(4, at_s=6.0)
    assert reset(silent, "n3", "n2", "n3") == ""


def test_a_partition_begins_anew_only_where_no_copy_is_left_and_be_it_a_silent_one() -> None:
    silent = Group(talking=lambda one, other: False)
    for node in ("n1", "n2"):
        silent.write(node, *entries(4), at_s=5.0)
    silent.commit(4, at_s=6.0)

    assert (
        reset(silent, "n3", "n2", "n3", member="") == "p begins anew on n3, and n2 has a copy of it"
    )
    assert reset(silent, "n3", "n3", member="") == ""
    # Its disk was lost since.
    silent.disks["n2"].logs.clear()
    assert reset(silent, "n3", "n2", "n3", member="") == ""


@pytest.mark.parametrize(
    ("majority", "holder", "text"),
    [
        (True, "", "p is reset to n2, and most of its nodes are there"),
        (False, "n1~a", "p is reset to n2, and its grant to n1~a is in force"),
        (False, "", None),
    ],
)
def test_a_reset_is_of_a_group_without_majority_and_without_primary(
    majority: bool, holder: str, text: str | None
) -> None:
    fact = ForcedReset("p", "p", "n2", "", ("n2",), majority)

    assert Group().resets.forced(10.0, "n9", fact, holder) == text


def test_stable_members_are_those_of_an_entry_on_a_majority() -> None:
    def stable(*on: str, joint: bool = False, said: str = "n1 n2") -> str | None:
        group = Group()
        after = Members(("n1", "n2"), VOTERS.voters if joint else ())
        for node in on:
            group.write(node, LogEntry(1, MARKS[0], (after,)))
        return group.resets.stable(StableMembers("p", 1, tuple(said.split())))

    assert stable("n1", "n2") == ""
    assert stable("n1") == "p has come to n1 n2, and the synced disks of 1 of 3 voters hold it"
    assert stable("n1", "n2", "n3", joint=True) == "p has come to n1 n2, and no entry says so"
    assert stable(said="n1 n2 n3") is None  # it was founded with them


def test_what_an_earlier_generation_has_committed_is_not_what_a_fork_of_it_goes_on_with() -> None:
    group = lagging(n1=4, n2=4)
    own = mark_of(1, 99)
    group.write("n3", *entries(2), LogEntry(3, own))
    (second, third), disk = ("p@1", "p@2"), group.disks["n3"]
    for name, successor in (("p", second), (second, third)):
        disk.logs[successor] = log = disk.log(name).leave()
        if successor == third:
            # Only a snapshot stands for them by now.
            log.take(LogUpdate(successor, base=Base(3, 1, Members(("n3",)))))
        group.durability.began(disk, NewGeneration("p", name, successor))

    marks = [group.durability.mark(disk, third, 2, index) for index in (1, 2, 3)]
    assert marks == [MARKS[0], MARKS[1], None]
    assert group.durability.committed_mark(second, 2) == MARKS[1]
    assert group.durability.committed_mark(second, 3) is None
