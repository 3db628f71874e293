"""Heartbeats of pairs of nodes: a quiet group sends nothing, and promises what it always did."""

from __future__ import annotations

import random

import pytest
from raft_pairs import GROUP, Pairs, paired

from clusters.reference.node.raft import Append, Role
from clusters.reference.node.rpc.coalesced_heartbeats import Receiver, Sender
from clusters.reference.node.wire.messages import Heartbeat, HeartbeatAck

PATIENCE = 10


def sent_during(pairs: Pairs, ticks: int) -> list[str]:
    """Whatever the group itself sent."""
    seen: list[str] = []
    pairs.net.loses = lambda message: bool(seen.append(type(message).__name__))
    pairs.run(ticks)
    pairs.net.loses = lambda _: False
    return seen


# -- a group between its nodes


def test_a_quiet_group_sends_nothing_and_keeps_its_leader_and_its_lease() -> None:
    pairs = paired(5)
    assert sent_during(pairs, 20 * PATIENCE) == []
    assert pairs.net.leader() == "n1"
    assert pairs.net.raft("n1").lease_holds()
    assert pairs.net.raft("n1").term == 1


def test_what_is_new_is_told_until_everyone_knows_that_it_is_committed() -> None:
    pairs = paired()
    pairs.net.raft("n1").propose(b"x")
    assert "Append" in sent_during(pairs, 3)
    assert [pairs.net.data(name) for name in pairs.net.names] == [[b"x"]] * 3
    assert sent_during(pairs, PATIENCE) == []


def test_a_lost_append_is_found_though_the_node_answers_for_its_member() -> None:
    pairs = paired()
    pairs.net.raft("n1").propose(b"x")
    pairs.net.loses = lambda message: isinstance(message, Append)
    pairs.net.settle()
    pairs.net.loses = lambda _: False
    pairs.run(4)
    assert [pairs.net.data(name) for name in pairs.net.names] == [[b"x"]] * 3


def test_a_leader_that_is_cut_off_steps_down_and_is_followed_by_another() -> None:
    pairs = paired()
    pairs.net.isolate("n1")
    pairs.run(PATIENCE)
    assert pairs.net.raft("n1").role is not Role.LEADER
    pairs.run(3 * PATIENCE)
    assert pairs.net.leader() != "n1"
    pairs.net.heal()
    pairs.run(3)
    assert pairs.net.raft("n1").leader == pairs.net.leader()


def test_a_follower_that_restarted_speaks_for_itself_before_its_node_does() -> None:
    pairs = paired()
    pairs.net.raft("n1").propose(b"x")
    pairs.run(3)
    pairs.restart("n2")
    assert not pairs.net.raft("n1").is_acking("n2")
    assert "Append" in sent_during(pairs, 3)
    assert pairs.net.data("n2") == [b"x"]
    assert sent_during(pairs, PATIENCE) == []


def test_a_follower_that_has_left_is_not_counted_by_the_word_of_its_node() -> None:
    """Both others have gone on without the leader: their nodes' word must not renew its lease."""
    pairs = paired()
    pairs.net.cuts = {(a, b) for a in pairs.net.names for b in pairs.net.names if "n1" in (a, b)}
    pairs.net.run(3 * PATIENCE, "n2", "n3")
    assert pairs.net.leader() in ("n2", "n3")
    assert pairs.net.raft("n1").role is Role.LEADER
    for follower in ("n2", "n3"):
        pairs.exchange("n1", follower)
        assert not pairs.net.raft("n1").is_acking(follower)


@pytest.mark.parametrize("seed", range(20))
def test_no_other_member_leads_a_later_term_while_a_lease_holds(seed: int) -> None:
    pairs, choose = paired(3 + 2 * (seed % 2), seed=seed), random.Random(seed)
    net, held = pairs.net, 0
    for _ in range(30):
        match choose.randrange(4):
            case 0:
                net.isolate(*choose.sample(net.names, len(net.names) // 2))
            case 1:
                pairs.restart(choose.choice(net.names))
            case 2:
                net.raft(net.leaders[max(net.leaders)]).unpair(choose.choice(net.names))
            case _:
                net.heal()
        for _ in range(choose.randrange(1, 2 * PATIENCE)):
            pairs.run(1)
            sender = [n for n in net.names if net.raft(n).role is Role.LEADER]
            for name in (n for n in sender if net.raft(n).lease_holds()):
                held += 1
                assert net.raft(name).term == max(net.raft(n).term for n in sender)
    net.heal()
    pairs.run(6 * PATIENCE)
    net.raft(net.leader()).propose(b"last")
    pairs.run(3)
    assert held
    assert len({tuple(net.data(name)) for name in net.names}) == 1
    assert sent_during(pairs, 2 * PATIENCE) == []


# -- what is claimed on a connection


def test_a_claim_is_said_once_and_its_end_once() -> None:
    sender = Sender()
    assert sender.heartbeat(1, {"a": 1, "b": 4}) == Heartbeat(1, (("a", 1), ("b", 4)))
    assert sender.heartbeat(2, {"a": 1, "b": 4}) == Heartbeat(2)
    assert sender.heartbeat(3, {"a": 2}) == Heartbeat(3, (("a", 2),), ("b",))


def test_an_answer_says_nothing_of_what_was_claimed_after_its_beat() -> None:
    sender = Sender()
    sender.heartbeat(1, {"a": 1})
    sender.heartbeat(2, {"a": 1, "b": 1})
    assert sender.answered(HeartbeatAck(1)) == ((("a", 1),), ())
    assert sender.answered(HeartbeatAck(2)) == ((("a", 1), ("b", 1)), ())
    sender.heartbeat(3, {"a": 2, "b": 1})
    assert sender.answered(HeartbeatAck(2, (("a", 1),))) == ((("b", 1),), ())


def test_what_is_refused_is_claimed_anew() -> None:
    sender, receiver = Sender(), Receiver()
    answer = receiver.take(sender.heartbeat(1, {"a": 1, "b": 1}), lambda group, _: group == "b")
    assert answer == HeartbeatAck(1, (("a", 1),))
    assert sender.answered(answer) == ((("b", 1),), ("a",))
    assert receiver.take(sender.heartbeat(2, {"b": 1}), lambda *_: True) == HeartbeatAck(2)
    assert sender.heartbeat(3, {"a": 1, "b": 1}) == Heartbeat(3, (("a", 1),))


def test_a_receiver_asks_for_every_claim_at_every_beat_until_it_ends() -> None:
    asked: list[tuple[str, int]] = []
    receiver = Receiver()

    def follows(group: str, term: int) -> bool:
        asked.append((group, term))
        return True

    for heartbeat in (
        Heartbeat(1, ((GROUP, 3),)),
        Heartbeat(2),
        Heartbeat(3, (), (GROUP,)),
        Heartbeat(4),
    ):
        assert receiver.take(heartbeat, follows) == HeartbeatAck(heartbeat.tick)
    assert asked == [(GROUP, 3)] * 2
