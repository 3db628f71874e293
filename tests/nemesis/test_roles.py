"""Roles are values; their text is made and read in one place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.protocols.cluster import Roles
from harness.protocols.roles import (
    METASTORAGE,
    OF_CLUSTER,
    PRIMARY,
    VOTER,
    Role,
    RoleKind,
    classes,
    held_by,
    parse,
    parsed,
)

of_partitions = st.builds(
    Role, st.sampled_from([k for k in RoleKind if k not in OF_CLUSTER]), st.integers(0, 10**9 - 1)
)
roles = of_partitions | st.builds(Role, st.sampled_from(OF_CLUSTER))


@given(roles)
def test_the_text_of_a_role_is_read_back_as_that_role(role: Role) -> None:
    assert parse(str(role)) == role


@pytest.mark.parametrize(
    "text",
    ["", "leader", "leader of partition", "leader of partition x", "leader of partition ³",
     "metastorage leader of partition 1", "owner of partition 1", " leader of partition 1",
     "leader of partition 1\n", "leader of partition 1234567890"],
)  # fmt: skip
def test_any_other_text_is_no_role(text: str) -> None:
    assert parse(text) is None
    assert parsed([text, "leader of partition 1"]) == (Role(RoleKind.LEADER, 1),)


def test_the_older_word_for_a_follower_is_still_read() -> None:
    assert parse("other voter of partition 2") == Role(RoleKind.FOLLOWER, 2)


def test_the_texts_that_stand_on_disk_are_these() -> None:
    told = Roles(
        leaders={0: "n1"},
        primaries={1: "n1"},
        voters={0: ("n1", "n2"), 1: ("n1", "n2"), 2: ("n1",)},
        learners={3: ("n1",)},
        metastorage_leader="n1",
        management_leader="n1",
    )

    assert [str(role) for role in held_by(("n1",), told)] == [
        "primary of partition 1", "leader of partition 0", "metastorage leader",
        "management leader", "voter of partition 1", "voter of partition 2",
        "learner of partition 3",
    ]  # fmt: skip
    assert [str(role) for role in held_by(("n2",), told)] == [
        "follower of partition 0", "voter of partition 1"
    ]  # fmt: skip
    assert held_by(("n3",), told) == ()


def test_a_voter_that_may_be_the_leader_counts_for_no_class() -> None:
    assert classes([Role(RoleKind.VOTER, 1), Role(RoleKind.LEARNER, 1)]) == ()
    assert classes([Role(RoleKind.METASTORAGE_LEADER), Role(RoleKind.FOLLOWER, 1)]) == (
        VOTER, METASTORAGE,
    )  # fmt: skip
    assert classes([Role(RoleKind.LEADER, 1), Role(RoleKind.PRIMARY, 2)]) == (PRIMARY,)
