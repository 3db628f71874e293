"""The paper's situations, one at a time, in a group without a clock or a network."""

from __future__ import annotations

import pytest
from raft_net import Net

from clusters.reference.node.raft import (
    COMMIT_BEFORE_QUORUM,
    Append,
    InvariantBroken,
    NotLeader,
    Role,
    TimeoutNow,
)
from clusters.reference.node.raft.leader import Progress

ELECTION_TICKS = 10


def elected(size: int = 3, **settings: object) -> Net:
    """A group that ``n1`` leads, everything said and done."""
    net = Net(size, **settings)
    net.elect("n1")
    net.run(1)
    return net


# -- elections: Raft 5.2


def test_a_group_elects_one_leader_and_all_know_it() -> None:
    net = Net(5)
    net.run(60)

    assert {net.raft(name).leader for name in net.names} == {net.leader()}
    assert [net.raft(name).role for name in net.names].count(Role.LEADER) == 1


def test_a_single_voter_elects_itself_and_commits_alone() -> None:
    net = elected(1)
    net.raft("n1").propose(b"x")
    net.settle()

    assert net.data("n1") == [b"x"]


def test_of_rounds_that_begin_at_once_one_goes_on_and_no_vote_is_split() -> None:
    net = Net(3)
    while not all(net.raft(name).role is Role.PRE_CANDIDATE for name in net.names):
        net.tick(*net.names)  # all three lose their patience before a word is exchanged
    net.tick(*(name for name in net.names if name != "n3"))
    net.settle()

    assert net.leader() == "n3"
    assert [net.raft(name).status().vote for name in net.names] == ["n3", "n3", "n3"]


def test_a_split_vote_ends_because_patience_is_drawn_anew() -> None:
    net = elected()
    net.isolate("n1")
    for name in ("n2", "n3"):  # both are told to lead
        net.raft(name).step(TimeoutNow("n1", net.raft("n1").term))
    net.settle()
    assert [net.raft(name).status().vote for name in ("n2", "n3")] == ["n2", "n3"]
    assert net.raft("n2").term not in net.leaders

    net.run(8 * ELECTION_TICKS)

    assert net.raft(net.leader()).commit_index >= 1


def test_a_candidate_that_hears_a_leader_of_its_term_follows_it() -> None:
    net = Net(3)
    for _ in range(2 * ELECTION_TICKS):
        net.tick("n1", "n2")
    net.isolate("n3")
    net.settle()
    assert net.raft("n2").role is not Role.LEADER
    net.heal()
    net.run(6 * ELECTION_TICKS)

    assert {net.raft(name).leader for name in net.names} == {net.leader()}


# -- pre-vote and check-quorum: thesis 9.6, 6.2, 4.2.3


def test_a_member_that_comes_back_from_isolation_does_not_disturb() -> None:
    net = elected()
    term = net.raft("n1").term
    net.isolate("n3")
    net.run(20 * ELECTION_TICKS)
    assert net.raft("n3").role is Role.PRE_CANDIDATE
    assert net.raft("n3").term == term

    net.heal()
    net.run(3 * ELECTION_TICKS)

    assert (net.leader(), net.raft("n3").leader, net.raft("n1").term) == ("n1", "n1", term)


def test_a_leader_without_quorum_steps_down_and_says_that_it_knows_no_leader() -> None:
    net = elected()
    net.isolate("n1")
    net.run(ELECTION_TICKS - 1, "n1")
    assert net.raft("n1").role is Role.LEADER
    net.run(1, "n1")
    assert net.raft("n1").role is Role.FOLLOWER

    with pytest.raises(NotLeader, match="not known"):
        net.raft("n1").propose(b"x")


def test_a_leader_that_hears_a_quorum_stays_however_long() -> None:
    net = elected(5)
    net.isolate("n4", "n5")
    net.run(20 * ELECTION_TICKS)

    assert net.leader() == "n1"
    assert net.raft("n1").lease_holds()


@pytest.mark.parametrize("seed", range(20))
def test_the_lease_of_a_cut_off_leader_ends_before_another_leads(seed: int) -> None:
    net = elected(3, seed=seed)
    net.isolate("n1")
    lease_was_seen = False
    for _ in range(4 * ELECTION_TICKS):
        net.run(1)
        lease_was_seen |= net.raft("n1").lease_holds()
        if len(net.leaders) > 1:
            assert not net.raft("n1").lease_holds()

    assert lease_was_seen
    assert len(net.leaders) > 1


def test_a_new_leader_holds_no_lease_before_a_quorum_has_answered_it() -> None:
    net = Net(3)
    while net.raft("n1").role is not Role.LEADER:
        net.tick("n1")
        for _ in range(6):
            if net.raft("n1").role is Role.LEADER:
                break
            for name in net.names:
                if net.raft(name).has_ready():
                    net.take(name)
                    net.finish_write(name)
            while net.wire and net.raft("n1").role is not Role.LEADER:
                net.deliver(0)
    assert not net.raft("n1").lease_holds()

    net.settle()

    assert net.raft("n1").lease_holds()


# -- replication: Raft 5.3


def test_an_acknowledged_entry_is_applied_everywhere_in_order() -> None:
    net = elected()
    for data in (b"a", b"b", b"c"):
        net.raft("n1").propose(data)
    net.run(2)

    assert [net.data(name) for name in net.names] == [[b"a", b"b", b"c"]] * 3


def test_the_uncommitted_tail_of_a_deposed_leader_is_replaced() -> None:
    net = elected()
    net.isolate("n1")
    for _ in range(3):
        net.raft("n1").propose(b"lost")
    net.settle()
    net.run(4 * ELECTION_TICKS)
    net.raft(net.leader()).propose(b"kept")
    net.settle()
    assert net.raft("n1").last_index == 4

    net.heal()
    net.run(2)

    assert [net.data(name) for name in net.names] == [[b"kept"]] * 3
    assert net.raft("n1").entries_from(1) == net.raft("n2").entries_from(1)


def test_a_long_conflicting_tail_is_skipped_a_term_at_a_time() -> None:
    net = elected()
    net.isolate("n1")
    for _ in range(200):
        net.raft("n1").propose(b"lost")
    net.settle()
    net.run(4 * ELECTION_TICKS)
    for _ in range(200):
        net.raft(net.leader()).propose(b"kept")
    net.settle()
    net.heal()
    refusals = 0
    net.tick(*net.names)
    while net.raft("n1").commit_index < 200:
        net.tick(*net.names)
        for name in net.names:
            net.take(name)
            net.finish_write(name)
        while net.wire:
            refusals += bool(getattr(net.wire[0][2], "refused", False))
            net.deliver(0)

    assert refusals <= 6


def test_a_lost_last_message_is_found_by_the_next_heartbeat() -> None:
    net = elected()
    net.isolate("n1", "n2")
    net.raft("n1").propose(b"x")
    net.settle()
    assert net.raft("n3").last_index == 1

    net.heal()
    net.run(2)

    assert net.data("n3") == [b"x"]


def test_messages_ahead_of_answers_stop_at_the_limit() -> None:
    net = elected(max_inflight=2, max_append_entries=1)
    for number in range(10):
        net.raft("n1").propose(b"%d" % number)
    net.take("n1")
    sent = [message for _, to, message in net.wire if to == "n2"]
    assert [len(message.entries) for message in sent] == [1, 1]

    net.run(2)

    assert net.data("n3") == [b"%d" % number for number in range(10)]


# -- durability: thesis 10.2.1


def test_a_leader_commits_while_its_own_disk_is_slow_but_applies_only_what_it_has() -> None:
    net = elected()
    net.slow_disks = {"n1"}
    _, index = net.raft("n1").propose(b"x")
    net.settle()
    assert net.raft("n1").commit_index == index
    assert net.data("n1") == []

    net.slow_disks = set()
    net.settle()

    assert net.data("n1") == [b"x"]


def test_what_no_quorum_has_on_disk_is_not_committed() -> None:
    net = elected()
    net.slow_disks = {"n2", "n3"}
    _, index = net.raft("n1").propose(b"x")
    net.run(3)
    assert net.raft("n2").last_index == index
    assert net.raft("n1").commit_index < index

    net.slow_disks = set()
    net.settle()

    assert net.raft("n1").commit_index == index


def test_a_group_that_restarts_from_its_disks_applies_everything_again() -> None:
    net = elected()
    net.raft("n1").propose(b"x")
    net.run(2)
    term = net.raft("n1").term
    for name in net.names:
        net.crash(name)
        net.restart(name)
    assert {net.raft(name).term for name in net.names} == {term}
    assert net.data("n1") == []

    net.run(6 * ELECTION_TICKS)

    assert [net.data(name) for name in net.names] == [[b"x"]] * 3
    assert net.raft(net.leader()).term > term


def test_an_entry_that_was_not_on_disk_at_the_crash_comes_back_from_the_leader() -> None:
    net = elected()
    net.slow_disks = {"n3"}
    net.raft("n1").propose(b"x")
    net.settle()
    net.crash("n3")
    net.slow_disks = set()
    net.restart("n3")
    assert net.raft("n3").last_index == 1

    net.run(3)

    assert net.data("n3") == [b"x"]


# -- committing entries of earlier terms: Raft 5.4.2


def figure_8_c() -> Net:
    """Entry 2 of term 1 is on a majority, and nothing of its leader's new term is anywhere else."""
    net = elected(5, max_append_entries=1)
    net.isolate("n1", "n2")
    net.raft("n1").propose(b"old")  # (a) on n1 and n2 only
    net.settle()
    net.crash("n1")
    net.loses = lambda message: isinstance(message, Append)
    net.elect("n5")  # (b) by n3 and n4, which hear no more of it
    net.crash("n5")
    net.restart("n1")
    net.heal()
    new_term = net.raft("n3").term + 1
    net.loses = lambda message: any(
        entry.term == new_term for entry in getattr(message, "entries", ())
    )
    net.elect("n1")
    net.run(3)
    return net


def test_figure_8_c_an_old_entry_on_a_majority_is_not_committed() -> None:
    net = figure_8_c()

    assert [net.raft(name).mark(2).term for name in ("n1", "n2", "n3", "n4")] == [1] * 4
    assert {net.raft(name).commit_index for name in ("n1", "n2", "n3", "n4")} <= {0, 1}


def test_figure_8_d_it_may_still_be_replaced() -> None:
    net = figure_8_c()
    net.crash("n1")
    net.loses = lambda _message: False
    net.restart("n5")
    net.elect("n5")
    net.restart("n1")
    net.run(3)

    assert [net.data(name) for name in net.names] == [[]] * 5


def test_figure_8_e_an_entry_of_the_new_term_commits_it_too() -> None:
    net = figure_8_c()
    net.loses = lambda _message: False
    net.run(3)
    net.restart("n5")
    net.run(3)

    assert [net.data(name) for name in net.names] == [[b"old"]] * 5


# -- the planted bug, and what must stop a node


def test_a_leader_that_does_not_count_a_quorum_breaks_leader_completeness() -> None:
    net = elected(bugs=frozenset({COMMIT_BEFORE_QUORUM}))
    net.isolate("n1")
    net.raft("n1").propose(b"acknowledged too early")
    net.settle()
    assert net.data("n1") == [b"acknowledged too early"]

    with pytest.raises((AssertionError, InvariantBroken), match="leader completeness"):
        net.run(4 * ELECTION_TICKS)


def test_without_the_bug_the_same_leader_acknowledges_nothing() -> None:
    net = elected()
    net.isolate("n1")
    net.raft("n1").propose(b"never acknowledged")
    net.settle()
    net.run(4 * ELECTION_TICKS)

    assert net.data("n1") == []
    assert net.leader() != "n1"


def test_a_follower_that_lost_what_it_had_said_is_not_asked_again_with_each_answer() -> None:
    progress = Progress(12)
    progress.accepted(10)
    progress.refused(11, 3, 1)
    assert progress.may_send(16)
    progress.sent(11)

    progress.refused(10, 3, 1)  # it had said that it has 10

    assert not progress.may_send(16)
    progress.accepted(11)
    assert progress.may_send(16)
