"""The target language: parsed at plan time, resolved against what the store tells."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import PlanError
from harness.protocols import targets
from harness.protocols.cluster import Roles
from harness.protocols.fault_kinds import Strength
from harness.protocols.roles import parse, parsed
from harness.protocols.targets import Form, Target
from nemesis import resolution
from nemesis.role_cut_faults import cut

SHARE, IN_MS = Strength(unit="%", usual=30.0, least=2.0), Strength(unit="ms", usual=100.0)

NODES = ("n1", "n2", "n3", "n4", "n5")
ROLES = Roles(
    leaders={3: "n2", 0: "n4", 1: "n2"},
    voters={3: ("n1", "n2", "n3"), 0: ("n4",)},
    metastorage_leader="n1",
)


MANY = ("majority", "minority")


def resolve(text: str, draw: int = 0, roles: Roles = ROLES) -> resolution.Hit | None:
    return resolution.resolve(targets.parse(text), roles, NODES, draw)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("n1", Target(form=Form.NAMED, nodes=("n1",))),
        ("n3, n1", Target(form=Form.NAMED, nodes=("n1", "n3"))),
        ("minority", Target(form=Form.MINORITY)),
        ("  leader of   partition 12 ", Target(form=Form.LEADER, partition=12)),
        ("follower of partition 0", Target(form=Form.FOLLOWER, partition=0)),
        ("leader of any partition", Target(form=Form.LEADER)),
        ("metastorage leader", Target(form=Form.METASTORAGE_LEADER)),
        ("management leader", Target(form=Form.MANAGEMENT_LEADER)),
        ("learner of partition 3", Target(form=Form.LEARNER, partition=3)),
        ("primary of partition 3", Target(form=Form.PRIMARY, partition=3)),
        ("primary of any partition", Target(form=Form.PRIMARY)),
        ("other voter of partition 3", Target(form=Form.FOLLOWER, partition=3)),
        ("majority of partition 3", Target(form=Form.VOTERS_MAJORITY, partition=3)),
        ("its majority", Target(form=Form.VOTERS_MAJORITY)),
        ("minority of any partition", Target(form=Form.VOTERS_MINORITY)),
        ("all of partition 3", Target(form=Form.VOTERS_ALL, partition=3)),
        ("all but one of partition 3", Target(form=Form.VOTERS_BUT_ONE, partition=3)),
        ("all but one of any partition", Target(form=Form.VOTERS_BUT_ONE)),
        ("all of metastorage", Target(form=Form.METASTORAGE_ALL)),
        ("majority of metastorage", Target(form=Form.METASTORAGE_MAJORITY)),
        ("first half", Target(form=Form.FIRST_HALF)),
        ("n1 at 30 %", Target(form=Form.NAMED, nodes=("n1",), strength=30.0, unit="%")),
        ("half  at 0.5ms", Target(form=Form.HALF, strength=0.5, unit="ms")),
    ],
)
def test_what_is_accepted(text: str, target: Target) -> None:
    assert targets.parse(text) == target


def test_a_node_that_is_named_twice_is_refused() -> None:
    with pytest.raises(PlanError, match="each node once"):
        targets.parse("n1,n2,n1")


@pytest.mark.parametrize("text", ["n1>n1", "n2<>n2", "n1 > n1"])
def test_a_link_between_a_node_and_itself_is_refused(text: str) -> None:
    with pytest.raises(PlanError, match="the two ends of a link, which are different nodes"):
        cut().check(text, ("n1", "n2", "n3"), 1, "target")


@pytest.mark.parametrize("text", ["n1>n2", "n1>n1,n2", "one>one", "n1<>leader of partition 0"])
def test_a_link_that_may_be_between_two_nodes_is_planned(text: str) -> None:
    cut().check(text, ("n1", "n2", "n3"), 1, "target")


@pytest.mark.parametrize(
    "text",
    ["", "n1,", "Leader of partition 1", "leader of partition -1", "leader of partition", "-n1",
     "the boss", "at 3 %",
     "leader of partition ¹", "n1;n2", "x" * 64],
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
    assert resolve("leader of partition 3") == resolution.Hit(
        nodes=("n2",), roles=parsed(("leader of partition 1", "leader of partition 3"))
    )
    assert resolve("metastorage leader") == resolution.Hit(
        nodes=("n1",), roles=parsed(("metastorage leader", "follower of partition 3"))
    )


def test_a_voter_is_no_follower_where_nobody_knows_the_leader() -> None:
    roles = Roles(leaders={1: "n2"}, voters={0: ("n1", "n3"), 1: ("n1", "n2")})

    assert resolve("n1", roles=roles) == resolution.Hit(
        nodes=("n1",), roles=parsed(("voter of partition 0", "follower of partition 1"))
    )


def test_a_primary_is_who_holds_the_lease_also_where_somebody_else_leads() -> None:
    roles = Roles(leaders={3: "n2", 1: "n2"}, primaries={3: "n1"})

    assert resolve("primary of partition 3", roles=roles) == resolution.Hit(
        nodes=("n1",), roles=parsed(("primary of partition 3",))
    )
    assert resolve("leader of partition 3", roles=roles) == resolution.Hit(
        nodes=("n2",), roles=parsed(("leader of partition 1", "leader of partition 3"))
    )
    assert resolve("primary of any partition", roles=roles) == resolution.Hit(
        nodes=("n1",), roles=parsed(("primary of partition 3",))
    )


def test_a_partition_whose_lease_nobody_holds_has_no_primary_though_it_has_a_leader() -> None:
    roles = Roles(leaders={3: "n2", 1: "n2"}, primaries={3: "n1"})

    assert resolve("primary of partition 1", roles=roles) is None
    assert resolve("primary of any partition", roles=Roles(leaders={3: "n2"}, primaries={})) is None


def test_in_a_store_without_leases_the_leaders_are_the_primaries() -> None:
    assert resolve("primary of partition 0") == resolution.Hit(
        nodes=("n4",), roles=parsed(("leader of partition 0",))
    )


def test_a_named_leader_is_recorded_as_what_it_is() -> None:
    assert resolve("n4") == resolution.Hit(nodes=("n4",), roles=parsed(("leader of partition 0",)))


@pytest.mark.parametrize(
    "text",
    ["leader of partition 2", "follower of partition 2", "follower of partition 0",
     "follower of partition 1"],
)  # fmt: skip
def test_what_the_store_does_not_tell_is_nobody(text: str) -> None:
    assert resolve(text) is None


def test_who_leads_the_management_and_who_only_learns_can_be_hit() -> None:
    roles = msgspec.structs.replace(ROLES, learners={3: ("n5",)}, management_leader="n4")
    assert resolve("management leader", roles=roles) == resolution.Hit(
        nodes=("n4",), roles=parsed(("leader of partition 0", "management leader"))
    )
    learner = resolution.Hit(nodes=("n5",), roles=parsed(("learner of partition 3",)))
    assert resolve("learner of partition 3", roles=roles) == learner
    assert resolve("learner of any partition", roles=roles) == learner
    assert resolve("learner of partition 0", roles=roles) is None


@pytest.mark.parametrize(
    "text", ["leader of any partition", "metastorage leader", "management leader"]
)
def test_a_store_that_tells_nothing_has_no_leaders(text: str) -> None:
    assert resolve(text, roles=Roles()) is None


@given(st.integers(0, 2**63))
def test_a_follower_is_a_voter_and_never_the_leader(draw: int) -> None:
    hit = resolve("follower of partition 3", draw)

    assert hit is not None
    assert hit.nodes[0] in {"n1", "n3"}
    assert parse("follower of partition 3") in hit.roles


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
        hit = resolution.resolve(targets.parse(text), Roles(), tuple(nodes), draw)
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


@given(st.integers(0, 2**63))
def test_a_majority_of_a_partition_is_a_quorum_of_its_voters(draw: int) -> None:
    majority, minority = (resolve(f"{word} of partition 3", draw) for word in MANY)

    assert majority is not None
    assert len(majority.nodes) == 2
    assert minority is not None
    assert len(minority.nodes) == 1
    assert {*majority.nodes, *minority.nodes} <= {"n1", "n2", "n3"}


@given(st.integers(0, 2**63))
def test_its_majority_is_one_of_a_partition_whose_voters_are_known(draw: int) -> None:
    hit = resolve("its majority", draw)

    assert hit is not None
    assert hit.nodes == ("n4",) or set(hit.nodes) < {"n1", "n2", "n3"}


@pytest.mark.parametrize("text", ["its majority", "other voter of any partition"])
def test_a_store_that_tells_no_voters_has_no_majorities(text: str) -> None:
    assert resolve(text, roles=Roles(leaders=ROLES.leaders)) is None


@given(st.integers(0, 2**63))
def test_all_but_one_of_a_partition_leave_one_of_its_voters(draw: int) -> None:
    every, but_one = (resolve(f"{word} of partition 3", draw) for word in ("all", "all but one"))

    assert every is not None
    assert every.nodes == ("n1", "n2", "n3")
    assert but_one is not None
    assert len(but_one.nodes) == 2
    assert set(but_one.nodes) < set(every.nodes)


def test_every_voter_of_a_partition_is_spared_by_all_but_one_under_some_draw() -> None:
    hits = [resolve("all but one of partition 3", draw) for draw in range(60)]

    assert {hit.nodes for hit in hits if hit} == {("n1", "n2"), ("n1", "n3"), ("n2", "n3")}


def test_all_but_one_of_a_partition_with_one_voter_is_nobody() -> None:
    assert resolve("all but one of partition 0") is None


@pytest.mark.parametrize(
    ("text", "many"), [("all", 3), ("all but one", 2), ("majority", 2), ("minority", 1)]
)
def test_targets_of_metastorage_take_its_voters(text: str, many: int) -> None:
    voters = ("n1", "n2", "n5")
    roles = msgspec.structs.replace(ROLES, metastorage_voters=voters)
    hit = resolve(f"{text} of metastorage", roles=roles)

    assert hit is not None
    assert len(hit.nodes) == many
    assert set(hit.nodes) <= set(voters)
    assert resolve(f"{text} of metastorage") is None  # a store that does not tell them


@pytest.mark.parametrize(
    "text", ["all of partition 3", "all but one of partition 3", "all of metastorage"]
)
def test_what_leaves_at_most_a_minority_counts_as_a_majority(text: str) -> None:
    assert targets.is_majority(targets.parse(text), 5)
    assert not targets.is_majority(targets.parse("minority of metastorage"), 5)


def test_the_first_half_is_always_the_same() -> None:
    assert {resolve("first half", draw) for draw in range(9)} == {
        resolution.Hit(
            nodes=("n1", "n2"),
            roles=parsed(
                (
                    "leader of partition 1",
                    "leader of partition 3",
                    "metastorage leader",
                    "follower of partition 3",
                )
            ),
        )
    }


@pytest.mark.parametrize(
    ("text", "has", "says"),
    [
        ("n1 at 30 %", None, "expects no strength"),
        ("n1 at -5 ms", IN_MS, "strength must be above 0 and at most 60000 ms (got -5 ms)"),
        ("one at 5000000 ms", IN_MS, "above 0 and at most 60000 ms (got 5000000 ms)"),
        ("n1 at 3", SHARE, "strength must be a number of % or ms (n1 at 30 %"),
        ("n1 at 5 s", IN_MS, "strength must be a number of % or ms (n1 at 30 %"),
        ("n1 at 30 %", IN_MS, "expects a strength in ms (got 30 %)"),
        ("n1 at 0 %", SHARE, "above 0 and at most 100 %"),
        ("n1 at 100.5 %", SHARE, "got 100.5 %"),
        ("n1 at 1.9 %", SHARE, "at least 2 %: less can't be told from a busy link (got 1.9)"),
    ],
)
def test_a_strength_that_does_not_fit_is_refused(
    text: str, has: Strength | None, says: str
) -> None:
    with pytest.raises(PlanError, match="target") as refusal:
        targets.check_strength(targets.parse(text), has)

    assert says in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "has"),
    [("n1", SHARE), ("n1", None), ("n1 at 2 %", SHARE), ("n1 at 100 %", SHARE)],
)
def test_a_strength_that_fits_passes(text: str, has: Strength | None) -> None:
    targets.check_strength(targets.parse(text), has)


def test_a_kind_has_its_usual_strength_where_the_target_gives_none() -> None:
    assert targets.strength_of(targets.parse("n1"), SHARE) == 30.0
    assert targets.strength_of(targets.parse("n1 at 4 %"), SHARE) == 4.0
    assert targets.strength_of(targets.parse("n1"), None) == 0.0
