"""The target language: parsed at plan time, resolved against what the store tells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cluster import Roles
from harness.errors import PlanError
from nemesis import targets
from nemesis.targets import Form, Target

NODES = ("n1", "n2", "n3", "n4", "n5")
ROLES = Roles(
    leaders={3: "n2", 0: "n4", 1: "n2"},
    voters={3: ("n1", "n2", "n3"), 0: ("n4",)},
    metastorage_leader="n1",
)


def resolve(text: str, draw: int = 0, roles: Roles = ROLES) -> targets.Hit | None:
    return targets.resolve(targets.parse(text), roles, NODES, draw)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("n1", Target(form=Form.NAMED, nodes=("n1",))),
        ("n3, n1,n3", Target(form=Form.NAMED, nodes=("n1", "n3"))),
        ("minority", Target(form=Form.MINORITY)),
        ("  leader of   partition 12 ", Target(form=Form.LEADER, partition=12)),
        ("follower of partition 0", Target(form=Form.FOLLOWER, partition=0)),
        ("leader of any partition", Target(form=Form.ANY_LEADER)),
        ("metastorage leader", Target(form=Form.METASTORAGE_LEADER)),
    ],
)
def test_what_is_accepted(text: str, target: Target) -> None:
    assert targets.parse(text) == target


@pytest.mark.parametrize(
    "text",
    ["", "n1,", "Leader of partition 1", "leader of partition -1", "leader of partition", "-n1",
     "the boss", "leader of partition ¹", "n1;n2", "x" * 64],
)  # fmt: skip
def test_what_is_refused_with_the_accepted_forms(text: str) -> None:
    with pytest.raises(PlanError, match="leader of any partition") as refusal:
        targets.parse(text, "nemesis.schedule[2].target")

    assert refusal.value.path == "nemesis.schedule[2].target"
    assert repr(text) in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [("n9", "n9"), ("leader of partition 8", "below 8"), ("n1,db", "'db'")],
)
def test_what_can_never_be_resolved_is_refused(text: str, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        targets.check(targets.parse(text), NODES, 8)


def test_what_may_be_resolved_one_day_is_accepted() -> None:
    for text in ("n5", "leader of partition 7", "minority", "all"):
        targets.check(targets.parse(text), NODES, 8)
    targets.check(targets.parse("leader of partition 700"), NODES, None)


def test_a_minority_of_two_nodes_is_refused() -> None:
    with pytest.raises(PlanError, match="at least 3 nodes"):
        targets.check(targets.parse("minority"), NODES[:2], None)


def test_leaders_are_resolved_with_every_role_that_they_hold() -> None:
    assert resolve("leader of partition 3") == targets.Hit(
        nodes=("n2",), roles=("leader of partition 1", "leader of partition 3")
    )
    assert resolve("metastorage leader") == targets.Hit(
        nodes=("n1",), roles=("metastorage leader",)
    )


def test_a_named_leader_is_recorded_as_what_it_is() -> None:
    assert resolve("n4") == targets.Hit(nodes=("n4",), roles=("leader of partition 0",))


@pytest.mark.parametrize(
    "text",
    ["leader of partition 2", "follower of partition 2", "follower of partition 0",
     "follower of partition 1"],
)  # fmt: skip
def test_what_the_store_does_not_tell_is_nobody(text: str) -> None:
    assert resolve(text) is None


@pytest.mark.parametrize("text", ["leader of any partition", "metastorage leader"])
def test_a_store_that_tells_nothing_has_no_leaders(text: str) -> None:
    assert resolve(text, roles=Roles()) is None


@given(st.integers(0, 2**63))
def test_a_follower_is_a_voter_and_never_the_leader(draw: int) -> None:
    hit = resolve("follower of partition 3", draw)

    assert hit is not None
    assert hit.nodes[0] in {"n1", "n3"}
    assert "follower of partition 3" in hit.roles


@given(st.integers(0, 2**63))
def test_a_leader_of_any_partition_leads_one(draw: int) -> None:
    hit = resolve("leader of any partition", draw)

    assert hit is not None
    assert hit.nodes in {("n2",), ("n4",)}


@given(
    st.lists(st.sampled_from([f"n{i}" for i in range(1, 10)]), unique=True, min_size=3),
    st.integers(0, 2**63),
)
def test_counting_targets_take_as_many_as_they_say(nodes: list[str], draw: int) -> None:
    def count(text: str) -> int:
        hit = targets.resolve(targets.parse(text), Roles(), tuple(nodes), draw)
        assert hit is not None
        assert list(hit.nodes) == sorted(set(hit.nodes) & set(nodes))
        return len(hit.nodes)

    assert count("one") == 1
    assert 0 < count("minority") < len(nodes) / 2
    assert count("majority") > len(nodes) / 2
    assert count("minority") + count("majority") in {len(nodes), len(nodes) + 1} or (
        len(nodes) % 2 == 0 and count("minority") + count("majority") == len(nodes)
    )
    assert count("half") == len(nodes) // 2
    assert count("all") == len(nodes)


def test_equal_draws_hit_equally_and_different_draws_reach_everybody() -> None:
    hits = [resolve("one", draw) for draw in range(60)]

    assert hits == [resolve("one", draw) for draw in range(60)]
    assert {hit.nodes[0] for hit in hits if hit} == set(NODES)
