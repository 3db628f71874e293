"""A leader that is asked to change its group's members: refusals, catch-up, cancelling, handing
over, and what it tells of them.
"""

from __future__ import annotations

import pytest
from raft_net import Net

from clusters.reference.node.raft import (
    Append,
    AppendReply,
    CatchUpError,
    ChangeBusy,
    ChangeFailed,
    Configuration,
    LeaderElected,
    Message,
    NotLeader,
    PeersApplied,
    Role,
    Stage,
    StaleRevision,
    StaleTerm,
    TimeoutNow,
)

PATIENCE = 10
LIMIT = 20  # of a catch-up


def elected(size: int = 3, *joining: str, **settings: object) -> Net:
    net = Net(size, catch_up_ticks=LIMIT, **settings)
    net.elect("n1")
    net.run(1)
    for name in joining:
        net.join(name)
    net.members["n1"].events.clear()
    return net


def voters(net: Net, name: str) -> frozenset[str]:
    return frozenset(net.raft(name).configuration.voters)


# -- refusals


def test_a_request_for_the_leader_of_another_term_changes_nothing() -> None:
    net = elected()
    n1 = net.raft("n1")
    for term in (n1.term - 1, n1.term + 1):
        with pytest.raises(StaleTerm, match=f"of term {term}, not {n1.term}"):
            n1.change_peers(("n1", "n2"), term=term)
    assert n1.stage is Stage.STABLE

    n1.change_peers(("n1", "n2"), term=n1.term)
    net.run(2)
    assert voters(net, "n1") == {"n1", "n2"}


def test_a_request_older_than_the_last_one_is_refused_though_it_asks_for_the_same() -> None:
    net = elected()
    n1 = net.raft("n1")
    n1.change_peers(("n1", "n2"), revision=7)
    net.run(2)
    for wanted in (("n1", "n2", "n3"), ("n1", "n2")):
        with pytest.raises(StaleRevision, match="6 comes after 7"):
            n1.change_peers(wanted, revision=6)
    n1.change_peers(("n1", "n2", "n3"), revision=7)
    net.run(2)

    assert voters(net, "n1") == {"n1", "n2", "n3"}


def test_a_repeated_request_changes_nothing_and_another_one_finds_it_busy() -> None:
    net = elected(3, "n4")
    n1 = net.raft("n1")
    n1.change_peers(("n1", "n2", "n4"), revision=1)
    n1.change_peers(("n4", "n2", "n1"), revision=2)
    with pytest.raises(ChangeBusy, match="catching-up"):
        n1.change_peers(("n1", "n2"), revision=3)
    net.run(5)
    n1.change_peers(("n1", "n2", "n4"), revision=3)

    assert n1.stage is Stage.STABLE
    assert net.members["n1"].events == [
        PeersApplied(n1.term, n1.committed_configuration[0], n1.configuration)
    ]


# -- catching up


def test_a_change_waits_for_its_confirmation_before_it_is_joint() -> None:
    net = elected(3, "n4")
    n1 = net.raft("n1")
    n1.change_peers(("n1", "n2", "n4"), revision=5, confirm=True)
    assert not n1.confirm_change(5)
    net.run(10)

    assert (n1.stage, n1.waiting_revision) == (Stage.CATCHING_UP, 5)
    assert net.members["n1"].events == []
    assert not n1.configuration.decides("n4")
    assert not n1.confirm_change(4)
    net.run(2 * LIMIT)
    assert n1.stage is Stage.CATCHING_UP
    assert n1.confirm_change(5)
    net.run(3)
    assert (n1.stage, n1.waiting_revision) == (Stage.STABLE, None)
    assert voters(net, "n1") == {"n1", "n2", "n4"}


def test_a_new_voter_that_does_not_come_fails_the_change_in_time_and_comes_with_the_next() -> None:
    net = elected()
    n1 = net.raft("n1")
    n1.change_peers(("n1", "n2", "n4"), revision=5)
    net.run(LIMIT)
    assert n1.stage is Stage.CATCHING_UP
    net.run(3)

    failed = ChangeFailed(n1.term, 5, CatchUpError.TIMED_OUT, "n4")
    assert net.members["n1"].events == [failed]
    assert (n1.stage, str(n1.configuration)) == (Stage.STABLE, "(n1 n2 n3) learners=(n4)")

    net.join("n4")
    n1.change_peers(("n1", "n2", "n4"), revision=5)
    net.run(5)
    assert str(n1.configuration) == "(n1 n2 n4)"


def test_a_new_voter_that_comes_slowly_is_waited_for() -> None:
    net = elected(3, "n4", max_append_entries=1, max_inflight=1)
    n1 = net.raft("n1")
    for number in range(30):
        n1.propose(b"%d" % number)
    net.run(2)
    n1.change_peers(("n1", "n2", "n4"))
    lets_through = iter(number % 9 == 0 for number in range(10_000))
    net.loses = lambda m: isinstance(m, AppendReply) and m.sender == "n4" and not next(lets_through)
    begun = n1.now
    while not n1.configuration.decides("n4") and n1.now < begun + 40 * LIMIT:
        net.run(1)
    assert 2 * LIMIT < n1.now - begun < 40 * LIMIT
    assert not [e for e in net.members["n1"].events if isinstance(e, ChangeFailed)]


def test_a_new_voter_that_is_slower_than_the_load_fails_the_change_and_comes_once_it_is_not() -> (
    None
):
    net = elected(3, "n4", max_append_entries=1, max_inflight=1)
    n1 = net.raft("n1")
    for number in range(PATIENCE):
        n1.propose(b"%d" % number)
    net.run(1)
    ticks: set[int] = set()

    def beyond_one_a_tick(message: Message) -> bool:
        if not isinstance(message, AppendReply) or message.sender != "n4":
            return False
        more = n1.now in ticks
        ticks.add(n1.now)
        return more

    net.loses = beyond_one_a_tick
    n1.change_peers(("n1", "n2", "n4"), revision=5)
    while n1.stage is Stage.CATCHING_UP or not ticks:
        for _ in range(2):
            n1.propose(b"faster")
        net.run(1)
    failed = ChangeFailed(n1.term, 5, CatchUpError.TIMED_OUT, "n4")
    assert net.members["n1"].events == [failed]
    assert n1.last_index - net.raft("n4").last_index > LIMIT
    net.loses = lambda _message: False
    n1.change_peers(("n1", "n2", "n4"), revision=5)
    for _ in range(5):
        n1.propose(b"on")
        net.run(1)

    assert voters(net, "n1") == {"n1", "n2", "n4"}


def test_a_new_voter_that_has_fallen_behind_meanwhile_is_waited_for_again() -> None:
    net = elected(3, "n4", "n5")
    n1 = net.raft("n1")
    net.isolate("n5")
    n1.change_peers(("n1", "n4", "n5"))
    net.run(3)
    assert net.raft("n4").last_index == n1.last_index
    net.isolate("n4", "n5")
    n1.propose(b"x")
    net.run(PATIENCE + 1)
    net.isolate("n4")
    net.run(3)
    assert net.raft("n5").last_index == n1.last_index
    assert n1.stage is Stage.CATCHING_UP
    net.heal()
    net.run(4)
    assert voters(net, "n1") == {"n1", "n4", "n5"}


def test_what_learners_acknowledge_is_not_committed_by_it() -> None:
    net = elected(3, "n4", "n5")
    n1 = net.raft("n1")
    n1.change_peers(("n1", "n2", "n3", "n4", "n5"), confirm=True)
    net.run(3)
    assert n1.waiting_revision == 0
    net.loses = lambda m: isinstance(m, AppendReply) and m.sender in ("n2", "n3")
    _, index = n1.propose(b"x")
    net.settle()

    held = {name for name in net.names if net.raft(name).last_index >= index}
    assert held == {"n1", "n2", "n3", "n4", "n5"}
    assert n1.commit_index < index


def test_a_change_that_catches_up_takes_another_target_where_that_is_asked_for() -> None:
    net = elected(3, "n5")
    n1 = net.raft("n1")
    n1.change_peers(("n1", "n2", "n4"), revision=1, confirm=True)
    net.run(3)
    assert str(n1.configuration) == "(n1 n2 n3) learners=(n4)"
    n1.change_peers(("n1", "n2", "n5"), revision=2, confirm=True, adjust=True)
    net.run(3)

    assert str(n1.configuration) == "(n1 n2 n3) learners=(n5)"
    stopped = ChangeFailed(n1.term, 1, CatchUpError.REPLICATOR_STOPPED)
    assert net.members["n1"].events == [stopped]
    assert n1.waiting_revision == 2
    assert n1.confirm_change(2)
    with pytest.raises(ChangeBusy, match="joint"):
        n1.change_peers(("n1", "n2"), revision=3, adjust=True)
    net.run(3)
    assert str(n1.configuration) == "(n1 n2 n5)"


# -- cancelling


def test_a_cancelled_change_is_confirmed_by_a_quorum_that_follows_after_it() -> None:
    net = elected()
    n1 = net.raft("n1")
    assert not n1.cancel_change()
    n1.change_peers(("n1", "n2", "n4"))
    net.run(2)
    asked = n1.now
    assert n1.cancel_change()
    assert not n1.leads_since(asked)
    net.settle()
    assert not n1.leads_since(asked)
    net.run(1)
    assert n1.leads_since(asked)
    net.run(2 * LIMIT)
    assert voters(net, "n1") == {"n1", "n2", "n3"}


def test_a_leader_that_is_cut_off_never_confirms_what_it_cancelled() -> None:
    net = elected()
    n1 = net.raft("n1")
    n1.change_peers(("n1", "n2", "n4"))
    net.run(2)
    net.isolate("n1")
    asked = n1.now
    assert n1.cancel_change()
    for _ in range(30):
        net.run(1)
        assert not n1.leads_since(asked)
    assert n1.role is not Role.LEADER


def test_a_change_whose_last_configuration_is_in_the_log_can_not_be_cancelled() -> None:
    net = elected()
    n1 = net.raft("n1")
    n1.change_peers(("n1", "n2"))
    assert (n1.configuration.joint, n1.cancel_change()) == (True, False)
    net.loses = lambda m: isinstance(m, AppendReply) and not n1.configuration.joint
    net.settle()
    assert (str(n1.configuration), n1.stage) == ("(n1 n2)", Stage.JOINT)
    assert not n1.cancel_change()

    net = elected()
    n1 = net.raft("n1")
    n1.change_peers(("n1", "n2", "n3"), ("n4",))
    assert (str(n1.configuration), n1.stage) == ("(n1 n2 n3) learners=(n4)", Stage.JOINT)
    assert not n1.cancel_change()


# -- handing over


def test_a_leader_that_is_not_to_stay_hands_over_before_anything_changes() -> None:
    net = elected(3, "n4")
    n1, term = net.raft("n1"), net.raft("n1").term
    n1.propose(b"a")
    n1.change_peers(("n2", "n3", "n4"), revision=3)
    with pytest.raises(NotLeader, match="the leader is n"):
        n1.propose(b"b")
    net.run(2)

    successor = net.leader()
    assert successor in ("n2", "n3")
    assert net.raft(successor).term == term + 1
    assert voters(net, successor) == {"n1", "n2", "n3"}
    assert net.members["n1"].events == [ChangeFailed(term, 3, CatchUpError.HIGHER_TERM)]
    net.raft(successor).change_peers(("n2", "n3", "n4"), term=term + 1, revision=3)
    net.run(4)
    assert voters(net, successor) == {"n2", "n3", "n4"}
    assert net.leader() == successor
    assert net.data("n4") == [b"a"]


def test_no_lease_holds_once_another_member_was_asked_to_lead() -> None:
    net = elected()
    n1 = net.raft("n1")
    net.run(1)
    assert n1.lease_holds()
    net.loses = lambda m: isinstance(m, TimeoutNow)
    n1.hand_over("n2")
    net.settle()
    assert not n1.lease_holds()
    net.run(2 * PATIENCE)

    assert n1.role is Role.LEADER
    assert not n1.lease_holds()
    n1.propose(b"goes on")
    net.run(2)
    assert net.data("n3") == [b"goes on"]


def test_a_late_word_to_lead_wakes_nobody() -> None:
    net = elected()
    term = net.raft("n1").term
    net.crash("n1")
    net.run(60)
    leader = net.leader()
    other = next(name for name in ("n2", "n3") if name != leader)
    for late in (TimeoutNow("n1", term), TimeoutNow("n1", net.raft(other).term)):
        net.raft(other).step(late)
        assert net.raft(other).role is Role.FOLLOWER
    net.raft(leader).step(TimeoutNow(leader, net.raft(leader).term))
    assert net.raft(leader).role is Role.LEADER


def test_a_successor_is_asked_only_with_the_whole_log() -> None:
    net = elected()
    n1 = net.raft("n1")
    net.loses = lambda m: isinstance(m, Append) and bool(m.entries)
    n1.propose(b"x")
    n1.hand_over("n2")
    net.settle()
    assert not [m for m in net.wire if isinstance(m[2], TimeoutNow)]
    assert net.raft("n2").role is Role.FOLLOWER
    net.loses = lambda _message: False
    net.run(3)

    assert net.leader() == "n2"
    assert net.data("n2") == [b"x"]


def test_learners_are_taken_in_while_a_new_voter_does_not_come() -> None:
    net = elected()
    net.join("n4")
    n1 = net.raft("n1")
    n1.propose(b"x")
    n1.change_peers(("n1", "n2", "n9"), ("n4",))
    net.run(4)

    assert n1.stage is Stage.CATCHING_UP
    assert voters(net, "n1") == {"n1", "n2", "n3"}
    assert net.data("n4") == [b"x"]


def test_of_several_successors_the_one_with_most_of_the_log_is_asked() -> None:
    net = elected()
    n1 = net.raft("n1")
    net.slow_disks = {"n2"}
    n1.propose(b"x")
    net.settle()
    n1.hand_over("n2", "n3")
    net.settle()

    assert net.leader() == "n3"


# -- events


def test_a_leader_tells_of_itself_once_it_may_change_members() -> None:
    net = Net(3)
    net.elect("n1")
    net.run(5)
    assert net.members["n1"].events == [LeaderElected(net.raft("n1").term)]
    assert net.members["n2"].events == []


def test_the_next_leader_ends_a_joint_configuration_and_tells_of_it() -> None:
    net = elected(3, "n4")
    net.raft("n1").change_peers(("n1", "n2", "n4"))
    net.loses = lambda m: isinstance(m, AppendReply) and net.raft("n2").configuration.joint
    net.run(3)
    net.crash("n1")
    net.loses = lambda _message: False
    net.run(60)

    leader = net.leader()
    term, (index, config) = net.raft(leader).term, net.raft(leader).committed_configuration
    assert str(config) == "(n1 n2 n4)"
    assert net.members[leader].events == [
        LeaderElected(term),
        PeersApplied(term, index, Configuration(("n1", "n2", "n4"))),
    ]
