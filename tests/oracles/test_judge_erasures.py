"""The judge on copies that are erased."""

from __future__ import annotations

from oracles.test_judge_resets import Group, entries, lagging

from clusters.providers.sim.oracles.erasures import Erasures
from harness.protocols.claims import Placement


def erasures(group: Group, *nodes: str, majority: bool = True, reset: bool = False) -> Erasures:
    """Since 0 s copies of the group belong on ``nodes``."""
    found = Erasures(group.lives, group.durability)
    found.placed(0.0, Placement("p", "p", nodes, majority, reset))
    return found


def erase(group: Group, found: Erasures, node: str, now_s: float = 10.0) -> str | None:
    disk = group.disks[node]
    return found.erased(now_s, disk, "p", disk.log("p"))


def test_a_copy_that_is_assigned_stays() -> None:
    group = lagging(n1=4, n2=4, n3=4)
    found = erasures(group, "n1", "n2")

    assert erase(group, found, "n3") == ""
    assert erase(group, found, "n2") == "a copy of p is erased, which belongs there since 0.000 s"
    # Metastorage has taken it in again just now.
    assert erase(group, found, "n2", now_s=1.0) == ""
    # An operator may want it to begin anew; or a reset has cut off what it has.
    found.begin_anew()
    assert erase(group, found, "n2") == ""
    assert erase(group, erasures(group, "n1", "n2", reset=True), "n2") == ""


def test_most_voters_hold_what_a_copy_has_that_is_erased() -> None:
    group = lagging(n1=4, n2=4, n3=2)
    found = erasures(group, "n1", "n2", "n3")
    found.begin_anew()

    assert erase(group, found, "n1") == (
        "a copy of p is erased, and 1 of 3 voters hold entry 4 without it"
    )
    assert erase(group, found, "n3") == ""  # nothing of it counts
    group.write("n3", *entries(4))
    assert erase(group, found, "n1") == ""


def test_no_copy_is_erased_of_a_partition_that_was_reset_and_does_not_serve() -> None:
    group = lagging(n1=4, n2=4, n3=4)
    served = erasures(group, "n1", "n2", reset=True)
    lost = erasures(group, "n1", "n2", majority=False, reset=True)

    assert erase(group, served, "n3") == ""
    assert erase(group, lost, "n3") == (
        "a copy of p is erased, and of n1 n2, which are to have it, too few are there since 0.000 s"
    )
    assert erase(group, lost, "n3", now_s=1.0) == ""  # just lost
    lost.placed(5.0, Placement("p", "p", ("n1", "n2"), majority=True, reset=True))
    assert erase(group, lost, "n3") == ""


def test_nothing_is_known_of_a_copy_without_a_configuration_or_of_a_dropped_table() -> None:
    group = lagging(n1=4, n2=4, n3=4)
    found = erasures(group, "n1", "n2", "n3")
    group.disks["n1"].log("p").members = []
    assert erase(group, found, "n1") is None
    found.placed(3.0, Placement("p", "p", (), majority=True, reset=False))
    assert erase(group, found, "n2") is None
