"""Entries that are committed while the members of a group change."""

from __future__ import annotations

from clusters.providers.sim.oracles.synced_disks import Lives, SyncedDisk, SyncedLog
from harness.protocols.claims import Fact, LogEntry, LogUpdate, Members, mark_of

OLD = ("old2", "n3", "n1")
JOINT = Members(("n3", "n1", "n2"), OLD)
JOINT_AT, LATER = 2, 4


class NoReader:
    def read(self, name: str, start: int, data: bytes) -> tuple[int, list[Fact]]:
        raise AssertionError(f"{name} is not read here")


def lives(**last_indices: int) -> Lives:
    """The disks of members whose logs end where ``last_indices`` say."""
    found = Lives()
    for member, last in last_indices.items():
        disk = found.by_member[member] = SyncedDisk(member, NoReader())
        log = disk.logs["p"] = SyncedLog()
        log.members = [(0, Members(OLD, ()))]
        entries = tuple(
            LogEntry(index, mark_of(1, index), (JOINT,) if index == JOINT_AT else ())
            for index in range(1, last + 1)
        )
        log.take(LogUpdate("p", entries=entries))
    return found


def test_the_new_voters_decide_once_the_joint_configuration_is_committed() -> None:
    # Its leader has left it already, and no disk has that yet.
    found = lives(old2=1, n3=4, n1=2, n2=4)

    assert found.shortfall("p", LATER, mark_of(1, LATER)) == ""


def test_both_decide_as_long_as_it_is_not() -> None:
    found = lives(old2=1, n3=4, n1=1, n2=4)

    text = found.shortfall("p", LATER, mark_of(1, LATER))
    assert text == "the synced disks of 1 of 3 voters hold it"


def test_a_minority_of_the_new_voters_never_decides() -> None:
    found = lives(old2=1, n3=4, n1=2, n2=3)

    text = found.shortfall("p", LATER, mark_of(1, LATER))
    assert text == "the synced disks of 1 of 3 voters hold it"
