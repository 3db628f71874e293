"""What one member answers, message by message, and what its log keeps."""

from __future__ import annotations

import random
from random import Random

import pytest
from raft_net import Net

from clusters.reference.node.raft import (
    Append,
    AppendReply,
    Configuration,
    Entry,
    HardState,
    InvariantBroken,
    Message,
    Raft,
    RaftConfig,
    RaftConfigError,
    Role,
    VoteReply,
    VoteRequest,
)
from clusters.reference.node.raft.configuration import Vote, reached, tally
from clusters.reference.node.raft.raft_log import Log

VOTERS = ("n1", "n2", "n3")


def member(*terms: int, term: int = 0, vote: str | None = None, **settings: object) -> Raft:
    """``n1`` of a group of three, awake, with a log of entries of ``terms``."""
    raft = Raft(
        config=RaftConfig(node="n1", voters=VOTERS, **settings),
        hard_state=HardState(term or max(terms, default=0), vote),
        entries=log_of(*terms),
        random=random.Random(1),
    )
    for _ in range(10):  # a member that was part of the group keeps quiet that long
        raft.tick()
    return raft


def log_of(*terms: int) -> tuple[Entry, ...]:
    return tuple(Entry(t, i + 1, b"%d" % i) for i, t in enumerate(terms))


def finish(raft: Raft) -> list[Message]:
    """Do what every ready asks; return what was sent."""
    sent: list[Message] = []
    while raft.has_ready():
        ready = raft.ready()
        if ready.hard_state is not None:
            raft.vote_persisted(ready.hard_state)
        if ready.entries:
            raft.persisted(ready.entries[-1].index, ready.entries[-1].term)
        sent += [message for _, message in ready.send_now + ready.send_durable]
    return sent


def answer(raft: Raft, message: Message) -> Message:
    finish(raft)
    raft.step(message)
    (reply,) = finish(raft)
    return reply


def ask(sender: str, term: int, last: tuple[int, int], *, pre: bool = False) -> VoteRequest:
    last_term, last_index = last
    return VoteRequest(sender, term, last_index, last_term, pre)


def append(
    term: int, after: tuple[int, int], *terms: int, commit: int = 0, sender: str = "n2"
) -> Append:
    """An append of entries of ``terms`` after the entry (term, index)."""
    previous_term, previous = after
    entries = tuple(Entry(t, previous + 1 + i, b"%d" % (previous + i)) for i, t in enumerate(terms))
    return Append(sender, term, previous, previous_term, commit, 7, entries)


def leader(*terms: int, **settings: object) -> Raft:
    """``n1`` as leader of the term after its log's last."""
    raft = member(*terms, **settings)
    while raft.role is Role.FOLLOWER:
        raft.tick()
    raft.step(VoteReply("n2", raft.term + 1, True, True))
    finish(raft)  # its own vote is durable
    raft.step(VoteReply("n2", raft.term, True, False))
    assert raft.role is Role.LEADER
    finish(raft)
    return raft


# -- votes: Raft 5.2, 5.4.1


@pytest.mark.parametrize("voters", [3, 5])
@pytest.mark.parametrize("pre", [True, False])
def test_a_round_that_was_refused_is_tried_again_sooner_than_one_without_answers(
    pre: bool, voters: int
) -> None:
    def waited(seed: int, *, refused: bool) -> int:
        """The ticks from a round, of which nothing more is heard, to the next one."""
        names = tuple(f"n{number + 1}" for number in range(voters))
        config = RaftConfig(node="n1", voters=names)
        raft = Raft(config=config, hard_state=HardState(1), entries=log_of(1), random=Random(seed))
        while raft.role is Role.FOLLOWER:
            raft.tick()
        finish(raft)
        if not pre:
            for name in names[1 : voters // 2 + 1]:
                raft.step(VoteReply(name, raft.term + 1, True, True))
            assert raft.role is Role.CANDIDATE
            finish(raft)
        if refused:
            # With three voters the last one may be gone: the round is decided by nothing then.
            raft.step(VoteReply("n2", raft.term, False, pre))
        for ticks in range(1, 100):
            raft.tick()
            if any(isinstance(message, VoteRequest) for message in finish(raft)):
                return ticks
        raise AssertionError("no other round")

    refused = [waited(seed, refused=True) for seed in range(60)]
    silent = [waited(seed, refused=False) for seed in range(60)]

    # The range is as wide, so that two that were in each other's way part as surely.
    assert (min(refused), max(refused)) == (3, 12)
    assert (min(silent), max(silent)) == (10, 19)


@pytest.mark.parametrize(
    ("last", "granted"),
    [((2, 3), True), ((2, 4), True), ((3, 1), True), ((2, 2), False), ((1, 9), False)],
)
@pytest.mark.parametrize("pre", [True, False])
def test_a_vote_goes_only_to_a_log_at_least_as_new(
    last: tuple[int, int], granted: bool, pre: bool
) -> None:
    assert answer(member(1, 2, 2), ask("n2", 5, last, pre=pre)).granted is granted


def test_a_pre_vote_changes_nothing() -> None:
    raft = member(1)
    answer(raft, ask("n2", 5, (1, 1), pre=True))

    assert (raft.term, raft.status().vote) == (1, None)


def test_one_vote_a_term_also_after_a_restart() -> None:
    raft = member(1, term=4, vote="n2")

    assert not answer(raft, ask("n3", 4, (1, 1))).granted
    assert answer(raft, ask("n2", 4, (1, 1))).granted


def test_a_vote_leaves_only_after_it_is_durable() -> None:
    raft = member(1)
    raft.step(ask("n2", 2, (1, 1)))
    ready = raft.ready()

    assert ready.hard_state == HardState(2, "n2")
    assert ready.send_now == ()
    assert [to for to, _ in ready.send_durable] == ["n2"]


def test_votes_of_strangers_and_of_other_rounds_do_not_elect() -> None:
    raft = member()
    while raft.role is Role.FOLLOWER:
        raft.tick()
    raft.step(VoteReply("n9", 1, True, True))
    raft.step(VoteReply("n2", 9, True, True))
    raft.step(VoteReply("n2", 0, True, False))
    assert raft.role is Role.PRE_CANDIDATE

    raft.step(VoteReply("n2", 1, True, True))

    assert raft.role is Role.CANDIDATE


@pytest.mark.parametrize("pre", [True, False])
def test_nobody_is_elected_over_a_leader_that_is_alive(pre: bool) -> None:
    raft = member(1)
    answer(raft, append(1, (1, 1)))
    assert not answer(raft, ask("n3", 9, (9, 9), pre=pre)).granted
    assert raft.term == 1

    for _ in range(10):
        raft.tick()

    assert answer(raft, ask("n3", 9, (9, 9), pre=pre)).granted


def test_a_restarted_member_keeps_the_patience_it_may_have_promised() -> None:
    raft = Raft(
        config=RaftConfig(node="n1", voters=VOTERS),
        hard_state=HardState(1, None),
        entries=log_of(1),
        random=random.Random(1),
    )
    assert not answer(raft, ask("n2", 2, (1, 1))).granted

    for _ in range(10):
        raft.tick()

    assert answer(raft, ask("n2", 2, (1, 1))).granted


def test_the_only_voter_leads_once_its_vote_is_durable_and_never_two_logs_of_one_term() -> None:
    net = Net(1)
    net.join("n2")
    net.elect("n1")
    net.raft("n1").change_peers(("n1",), ("n2",))
    net.run(3)
    assert net.raft("n2").configuration.learners == ("n2",)
    net.crash("n1")
    net.restart("n1")
    n1, term = net.raft("n1"), net.raft("n1").term
    net.slow_disks.add("n1")
    net.run(30)
    # It asks itself for its vote, and sends nothing of the new term until that is on the disk.
    assert (n1.role, n1.term, net.raft("n2").term) == (Role.CANDIDATE, term + 1, term)
    net.crash("n1")
    net.slow_disks.clear()
    net.restart("n1")
    net.run(30)
    assert (net.leader(), net.raft("n2").term) == ("n1", term + 1)


def test_a_leader_of_the_past_is_told_the_term() -> None:
    raft = member(1, term=6)
    reply = answer(raft, append(2, (1, 1), 2))

    assert (reply.refused, reply.term) == (True, 6)
    assert raft.last_index == 1


def test_a_leader_that_hears_of_a_later_term_steps_down() -> None:
    raft = leader(1)
    raft.step(AppendReply("n3", 9, True, 1, 0, 1))

    assert (raft.role, raft.term, raft.leader) == (Role.FOLLOWER, 9, None)


def test_two_leaders_of_one_term_stop_the_node() -> None:
    raft = leader(1)

    with pytest.raises(InvariantBroken, match="n2 and n1 both lead term 2"):
        raft.step(append(2, (1, 1)))


# -- the log: Raft 5.3


@pytest.mark.parametrize(
    ("message", "refused", "hint", "terms"),
    [
        (append(4, (1, 2), 4), False, 0, (1, 1, 4)),
        (append(4, (2, 3), 4), False, 0, (1, 1, 2, 4)),
        (append(4, (1, 1), 1), False, 0, (1, 1, 2)),  # a prefix truncates nothing
        (append(4, (0, 0), 1, 1, 2, 4), False, 0, (1, 1, 2, 4)),
        (append(4, (3, 9), 4), True, 3, (1, 1, 2)),  # too short
        (append(4, (3, 3), 4), True, 2, (1, 1, 2)),  # another term: skip all of it
        (append(4, (3, 2), 4), True, 0, (1, 1, 2)),
    ],
)
def test_entries_are_taken_only_after_one_that_matches(
    message: Append, refused: bool, hint: int, terms: tuple[int, ...]
) -> None:
    raft = member(1, 1, 2)
    reply = answer(raft, message)

    assert (reply.refused, reply.hint_index) == (refused, hint)
    assert tuple(entry.term for entry in raft.entries_from(1)) == terms
    assert reply.context == message.context


def test_a_follower_commits_only_what_it_knows_to_match() -> None:
    raft = member(1, 1, 1)
    answer(raft, append(2, (1, 1), commit=3))

    assert raft.commit_index == 1


def test_an_acknowledgement_waits_for_the_disk() -> None:
    raft = member(1)
    raft.step(append(1, (1, 1), 1))
    ready = raft.ready()

    assert ready.send_now == ()
    assert [reply.match_index for _, reply in ready.send_durable] == [2]
    assert [entry.index for entry in ready.entries] == [2]


def test_a_conflict_with_a_committed_entry_stops_the_node() -> None:
    raft = member(1, 1)
    answer(raft, append(1, (1, 2), commit=2))

    with pytest.raises(InvariantBroken, match="entry 2 of term 3 conflicts"):
        raft.step(append(3, (1, 1), 3))


def test_only_an_entry_of_the_own_term_commits_by_counting() -> None:
    raft = leader(1, 2)  # figure 8 (c): entry 2 is of an earlier term
    raft.step(AppendReply("n2", 3, False, 2, 0, 1))
    raft.step(AppendReply("n3", 3, False, 2, 0, 1))
    assert raft.commit_index == 0

    raft.step(AppendReply("n2", 3, False, 3, 0, 1))

    assert raft.commit_index == 3


@pytest.mark.parametrize("announced", [True, False])
def test_followers_hear_of_a_commit_at_once_where_it_is_announced(announced: bool) -> None:
    raft = leader(1, announce_commits=announced)
    raft.step(AppendReply("n2", 2, False, 2, 0, 1))

    sent = [m for m in finish(raft) if isinstance(m, Append)]
    assert [(m.commit, m.entries) for m in sent] == ([(2, ())] * 2 if announced else [])
    # Once: a follower that does not answer is told again by heartbeats.
    raft.step(AppendReply("n2", 2, False, 2, 0, 1))
    assert finish(raft) == []


def test_a_follower_that_lacks_entries_hears_of_the_commit_with_them() -> None:
    raft = leader(1, announce_commits=True, max_inflight=1)
    for data in (b"x", b"y"):
        raft.propose(data)
        finish(raft)
    raft.step(AppendReply("n2", 2, False, 3, 0, 1))

    # To n2 the next entry leaves, to n3 nothing before it has answered.
    assert [len(m.entries) for m in finish(raft) if isinstance(m, Append)] == [1]


def test_an_answer_that_comes_twice_or_late_changes_nothing() -> None:
    raft = leader(1)
    raft.step(AppendReply("n2", 2, False, 2, 0, 1))
    before = raft.status().peers[0]
    raft.step(AppendReply("n2", 2, True, 1, 0, 1))
    raft.step(AppendReply("n2", 2, False, 1, 0, 1))

    assert raft.status().peers[0] == before


def test_a_batch_that_was_truncated_since_is_not_durable_even_if_its_entries_came_back() -> None:
    log = Log(log_of(1))
    log.merge([Entry(2, 2, b"a")], commit_index=0)
    log.hand_out()
    log.merge([Entry(3, 2, b"b")], commit_index=0)
    log.hand_out()
    log.merge([Entry(4, 2, b"c")], commit_index=0)
    log.hand_out()

    log.persisted(2, 2)
    assert log.durable_index == 1
    log.persisted(2, 3)
    assert log.durable_index == 1
    log.persisted(2, 4)
    assert log.durable_index == 2


def test_telling_of_a_write_that_nobody_asked_for_is_refused() -> None:
    log = Log(())
    log.append(1, b"")
    log.hand_out()

    with pytest.raises(InvariantBroken, match="ends no batch"):
        log.persisted(1, 2)


@pytest.mark.parametrize(
    "entries", [(Entry(1, 2, b""),), (Entry(2, 1, b""), Entry(1, 2, b"")), log_of(1)[:1] * 2]
)
def test_a_log_with_a_hole_or_a_falling_term_is_refused_at_recovery(
    entries: tuple[Entry, ...],
) -> None:
    with pytest.raises(InvariantBroken, match="recovered log"):
        Log(entries)


def test_a_message_keeps_both_limits_but_takes_one_large_entry() -> None:
    log = Log([Entry(1, i + 1, b"x" * 10) for i in range(9)])

    assert len(log.bounded(1, 4, 1000)) == 4
    assert len(log.bounded(1, 9, 25)) == 2
    assert len(log.bounded(1, 9, 1)) == 1
    assert log.bounded(10, 9, 1) == ()


# -- counting


def test_a_majority_decides_as_soon_as_it_can() -> None:
    assert tally(Configuration(VOTERS), {"n1": True}) is Vote.OPEN
    assert tally(Configuration(VOTERS), {"n1": True, "n3": True}) is Vote.WON
    assert tally(Configuration(VOTERS), {"n1": True, "n2": False, "n3": False}) is Vote.LOST
    assert tally(Configuration(VOTERS), {"n1": True, "n8": True, "n9": True}) is Vote.OPEN


@pytest.mark.parametrize(("values", "expected"), [((5, 3, 9), 5), ((1, 1, 9), 1), ((0, 0, 0), 0)])
def test_a_value_is_reached_when_a_majority_has_it(values: tuple[int, ...], expected: int) -> None:
    assert (
        reached(Configuration(VOTERS), dict(zip(VOTERS, values, strict=True)).__getitem__)
        == expected
    )


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"voters": ("n1", "n1")}, "voters must be distinct"),
        ({"election_ticks": 3}, "election_ticks must be >= 4"),
        ({"heartbeat_ticks": 0}, "heartbeat_ticks must be >= 1"),
        ({"max_inflight": 0}, "max_inflight must be >= 1"),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(
    settings: dict[str, object], text: str
) -> None:
    with pytest.raises(RaftConfigError, match=text):
        RaftConfig(**{"node": "n1", "voters": VOTERS, **settings})


def test_a_member_that_stands_down_leads_no_more_and_asks_for_no_votes_meanwhile() -> None:
    raft = leader(1)
    term = raft.term
    for _ in range(100):
        raft.step_down()
        raft.tick()
        assert (raft.role, raft.term) == (Role.FOLLOWER, term)
    assert not [m for m in finish(raft) if isinstance(m, VoteRequest)]

    for _ in range(20):
        raft.tick()
    assert raft.role is Role.PRE_CANDIDATE


def test_a_follower_that_lost_what_it_had_acknowledged_is_told_of_unless_it_was_only_late() -> None:
    raft = leader(1, 1)
    finish(raft)
    last, term = raft.last_index, raft.term

    def replied(*, refused: bool, match: int, hint: int, late: int = 0) -> tuple[str, ...]:
        if not late:
            raft.tick()
            finish(raft)
        raft.step(AppendReply("n2", term, refused, match, hint, raft.now - late))
        return raft.followers_with_lost_log()

    assert replied(refused=False, match=last, hint=0) == ()
    # A pipeline of which the first message was lost, refused behind what was accepted since.
    for _ in range(20):
        assert replied(refused=True, match=last, hint=1, late=1) == ()
    for _ in range(9):
        assert replied(refused=True, match=last, hint=1) == ()
    assert replied(refused=False, match=last, hint=0) == ()
    for _ in range(9):
        assert replied(refused=True, match=last, hint=1) == ()
    assert replied(refused=True, match=last, hint=1) == ("n2",)
    assert replied(refused=False, match=last, hint=0) == ()
