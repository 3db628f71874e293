"""Groups that change their members, and followers that lack what the log no longer has."""

from __future__ import annotations

import pytest
from raft_net import Net

from clusters.reference.node.raft import (
    Append,
    AppendReply,
    ChangeRefused,
    Chunk,
    ChunkReply,
    Configuration,
    NotLeader,
    Role,
    Stage,
    TimeoutNow,
)
from clusters.reference.node.raft.configuration import (
    Change,
    Vote,
    enter_joint,
    invariants,
    leave_joint,
    reached,
    simple,
    tally,
)

PATIENCE = 10  # ticks: the default
JOINT = Configuration(("1", "4", "5"), ("1", "2", "3"))


def elected(size: int = 3, **settings: object) -> Net:
    net = Net(size, **settings)
    net.elect("n1")
    net.run(1)
    return net


def configurations(net: Net, name: str) -> list[str]:
    """Every configuration that the log of ``name`` went through, as it says it."""
    raft = net.raft(name)
    marks = [raft.mark(e.index) for e in raft.entries_from(1) if e.config]
    return [str(mark.configuration) for mark in marks]


# -- values


def test_a_joint_configuration_needs_both_majorities() -> None:
    new, old = {"4": True, "5": True}, {"2": True, "3": True}
    assert tally(JOINT, new) is Vote.OPEN
    assert tally(JOINT, old) is Vote.OPEN
    assert tally(JOINT, new | old) is Vote.WON
    assert tally(JOINT, new | {"2": False, "3": False}) is Vote.LOST

    values = {"1": 9, "4": 9, "5": 9, "2": 3, "3": 2}
    assert reached(JOINT, values.__getitem__) == 3
    assert reached(leave_joint(JOINT), values.__getitem__) == 9


def test_a_configuration_without_voters_elects_nobody() -> None:
    assert tally(Configuration(), {"1": True}) is Vote.LOST


def test_an_outgoing_voter_that_becomes_a_learner_votes_until_the_end() -> None:
    before = Configuration(("1", "2", "3"))
    joint = enter_joint(before, (Change("learner", "3"), Change("voter", "4")))
    assert str(joint) == "(1 2 4)&&(1 2 3) learners_next=(3)"
    assert str(leave_joint(joint)) == "(1 2 4) learners=(3)"


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (lambda: enter_joint(JOINT, ()), "already joint"),
        (lambda: enter_joint(Configuration(), ()), "without voters"),
        (lambda: leave_joint(Configuration(("1",))), "not joint"),
        (lambda: simple(JOINT, ()), "is joint"),
        (lambda: simple(Configuration(("1",)), (Change("none", "1"),)), "removed all voters"),
        (
            lambda: simple(Configuration(("1",)), (Change("voter", "2"), Change("voter", "3"))),
            "more than one voter changed without entering a joint configuration",
        ),
    ],
)
def test_a_step_that_is_not_safe_is_refused(step: object, text: str) -> None:
    with pytest.raises(ChangeRefused, match=text):
        step()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (Configuration(("1", "1")), "voters repeats a node"),
        (Configuration(("1",), (), ("1",)), "1 is in learners, and a voter"),
        (Configuration(("1",), (), (), ("2",)), "2 is in learners_next, but not in outgoing"),
        (Configuration(("1",), ("1",), (), ("1",)), "in voters or learners already"),
        (Configuration((), (), ("1",)), "no voters"),
    ],
)
def test_a_configuration_that_contradicts_itself_is_named(config: Configuration, text: str) -> None:
    assert text in str(invariants(config))
    assert invariants(JOINT) is None


# -- changes


def test_new_voters_catch_up_as_learners_before_the_group_is_joint() -> None:
    net = elected()
    for number in range(5):
        net.raft("n1").propose(b"%d" % number)
    net.run(1)
    for name in ("n4", "n5"):
        net.join(name)
    net.raft("n1").change_peers(("n1", "n4", "n5"))
    assert net.raft("n1").stage is Stage.CATCHING_UP
    net.run(5)

    assert configurations(net, "n1") == [
        "(n1 n2 n3) learners=(n4 n5)",
        "(n1 n4 n5)&&(n1 n2 n3)",
        "(n1 n4 n5)",
    ]
    assert net.raft("n1").stage is Stage.STABLE
    assert net.data("n5") == [b"%d" % number for number in range(5)]


def test_the_group_never_waits_for_a_new_voter_that_does_not_come() -> None:
    net = elected()
    net.raft("n1").change_peers(("n1", "n2", "n4"))
    net.run(30)
    net.raft("n1").propose(b"x")
    net.run(2)
    assert net.raft("n1").stage is Stage.CATCHING_UP
    assert net.data("n2") == [b"x"]

    assert net.raft("n1").cancel_change()
    net.raft("n1").change_peers(("n1", "n2", "n3"))
    net.run(3)

    assert str(net.raft("n2").configuration) == "(n1 n2 n3)"
    assert not net.raft("n1").cancel_change()


def test_a_joint_group_commits_only_with_the_majority_of_the_new_voters_too() -> None:
    net = elected()
    for name in ("n4", "n5"):
        net.join(name)
    net.raft("n1").change_peers(("n1", "n4", "n5"))
    net.loses = lambda message: (
        net.raft("n1").configuration.joint
        and isinstance(message, AppendReply)
        and message.sender in ("n4", "n5")
    )
    net.run(3)
    assert net.raft("n1").stage is Stage.JOINT
    _, index = net.raft("n1").propose(b"x")
    net.run(3)
    assert net.raft("n1").commit_index < index

    net.loses = lambda _message: False
    net.run(60)

    assert net.raft("n1").commit_index >= index
    assert str(net.raft(net.leader()).configuration) == "(n1 n4 n5)"


def test_a_leader_that_nobody_takes_over_from_leads_to_the_end_and_steps_down() -> None:
    net = elected()
    net.loses = lambda message: isinstance(message, TimeoutNow)
    net.raft("n1").change_peers(("n2", "n3"))
    net.run(3 * PATIENCE)
    assert net.raft("n1").role is Role.FOLLOWER
    assert str(net.raft("n1").configuration) == "(n2 n3)"
    assert net.raft("n1").commit_index == net.raft("n1").last_index

    net.run(60)

    assert net.leader() in ("n2", "n3")
    assert net.raft("n1").role is Role.FOLLOWER  # it asks nobody for votes


def test_a_leader_of_the_joint_configuration_that_dies_is_followed_by_one_that_ends_it() -> None:
    net = elected()
    net.join("n4")
    net.raft("n1").change_peers(("n1", "n2", "n4"))
    net.loses = lambda message: (
        isinstance(message, AppendReply) and net.raft("n2").configuration.joint
    )
    net.run(3)
    assert net.raft("n2").configuration.joint
    net.crash("n1")
    net.loses = lambda _message: False
    net.run(60)

    assert str(net.raft(net.leader()).configuration) == "(n1 n2 n4)"


def test_one_change_goes_on_at_a_time_and_only_with_an_entry_of_the_own_term() -> None:
    net = elected()
    with pytest.raises(NotLeader):
        net.raft("n2").change_peers(("n2",))
    net.isolate("n1")
    net.raft("n1").change_peers(("n1", "n2"))
    net.raft("n1").change_peers(("n1", "n2"))  # the same: nothing new
    with pytest.raises(ChangeRefused, match="it is joint"):
        net.raft("n1").change_peers(("n1", "n3"))
    net.heal()
    net.run(3)
    with pytest.raises(ChangeRefused, match="needs voters"):
        net.raft("n1").change_peers(())
    assert str(net.raft("n1").configuration) == "(n1 n2)"


def test_a_configuration_counts_at_once_and_is_gone_with_its_entry() -> None:
    net = elected()
    net.isolate("n1")
    net.raft("n1").change_peers(("n1", "n2"))
    assert net.raft("n1").configuration.joint
    net.run(60)
    net.heal()
    net.run(3)

    assert net.leader() != "n1"
    assert str(net.raft("n1").configuration) == "(n1 n2 n3)"


def test_a_wiped_voter_has_no_vote_until_the_group_has_taken_its_new_life_in() -> None:
    net = elected()
    net.raft("n1").propose(b"x")
    net.run(1)
    net.crash("n1")
    new = net.wipe("n3")
    net.run(80)
    assert all(net.raft(name).role is not Role.LEADER for name in net.up())  # one of three votes

    net.restart("n1")
    net.run(60)
    leader = net.leader()
    net.raft(leader).change_peers(("n1", "n2", new))
    net.run(5)

    assert net.data(new) == [b"x"]
    assert frozenset(net.raft(leader).configuration.voters) == {"n1", "n2", new}
    net.crash(leader)
    net.run(60)
    assert net.leader() != leader  # now its vote counts


# -- snapshots


def behind(**settings: object) -> Net:
    """``n3`` lacks what the logs of the others no longer have."""
    net = elected(**settings)
    net.isolate("n3")
    for number in range(20):
        net.raft("n1").propose(b"%d" % number)
    net.run(2)
    for name in ("n1", "n2"):
        net.members[name].compact(18)
    return net


def test_a_follower_behind_the_log_gets_the_snapshot_and_goes_on_from_it() -> None:
    net = behind()
    assert net.raft("n1").status().base_index == 18
    net.heal()
    net.run(3)

    assert net.data("n3") == [b"%d" % number for number in range(20)]
    assert net.raft("n3").base_index == 21
    net.raft("n1").propose(b"more")
    net.run(2)
    assert net.data("n3")[-1] == b"more"
    net.crash("n3")
    net.restart("n3")
    net.run(3)
    assert net.data("n3")[-1] == b"more"


def test_lost_chunks_are_sent_again_from_where_the_follower_is() -> None:
    net = behind()
    net.heal()
    fates = iter([False, True, False, True] + [False] * 100)
    net.loses = lambda message: isinstance(message, Chunk | ChunkReply) and next(fates)
    net.run(60)

    assert len(net.data("n3")) == 20


def test_a_follower_that_restarts_half_way_is_sent_the_snapshot_from_its_beginning() -> None:
    net = behind()
    net.heal()
    net.loses = lambda message: isinstance(message, ChunkReply)
    net.run(2)
    assert net.members["n3"].incoming is not None
    net.crash("n3")
    net.restart("n3")
    assert net.data("n3") == []
    net.loses = lambda _message: False
    net.run(60)

    assert len(net.data("n3")) == 20


def test_a_transfer_outlives_a_link_that_is_lost_for_a_moment_and_no_longer() -> None:
    net = behind(election_ticks=5)
    net.heal()
    net.loses = lambda message: isinstance(message, ChunkReply)
    net.run(2)
    assert net.raft("n1").sending_snapshot

    net.isolate("n3")
    net.run(4 * 5)
    assert net.raft("n1").sending_snapshot

    net.run(10 * 5)
    assert not net.raft("n1").sending_snapshot


def test_a_snapshot_of_what_is_here_already_takes_nothing_away() -> None:
    net = elected()
    for number in range(5):
        net.raft("n1").propose(b"%d" % number)
    net.run(2)
    net.members["n1"].compact(3)
    n1, n3 = net.raft("n1"), net.raft("n3")
    mark = n1.mark(4)
    last = n3.last_index
    n3.step(Chunk("n1", n1.term, 1, mark, 0, b"whatever", True))
    ready = n3.ready()

    assert ready.chunks == ()
    assert ready.installed is None
    assert [reply.match_index for _, reply in ready.send_durable] == [4]
    assert n3.last_index == last


def test_entries_that_a_follower_acknowledged_are_not_forgotten_for_a_late_snapshot() -> None:
    """It does not know yet that they are committed; the snapshot says so."""
    net = elected()
    net.loses = lambda message: isinstance(message, Append) and not message.entries
    net.raft("n1").propose(b"a")
    net.raft("n1").propose(b"b")
    net.settle()
    n3 = net.raft("n3")
    assert n3.commit_index < n3.last_index == 3
    n3.step(Chunk("n1", n3.term, 1, net.raft("n1").mark(2), 0, b"", True))

    assert (n3.last_index, n3.commit_index) == (3, 2)


def test_a_new_member_gets_snapshot_and_configuration_and_votes() -> None:
    net = behind()
    net.crash("n3")
    new = net.wipe("n3")
    net.heal()
    net.raft("n1").change_peers(("n1", "n2", new))
    net.run(5)

    assert net.raft("n1").stage is Stage.STABLE
    assert len(net.data(new)) == 20
    assert str(net.raft(new).configuration) == f"(n1 n2 {new})"
