"""Generations of a group: a forced reset goes on alone, and nothing of an older one counts."""

from __future__ import annotations

import random

import msgspec
import pytest

from clusters.reference.node.raft import (
    Append,
    AppendReply,
    ChangeRefused,
    Chunk,
    Configuration,
    Diverged,
    Entry,
    Generation,
    HardState,
    Mark,
    Raft,
    RaftConfig,
    RaftEvent,
    Role,
    VoteReply,
    VoteRequest,
)
from clusters.reference.node.raft.configuration import encode, shared_index

VOTERS = ("n1", "n2", "n3")
FIRST = Generation(1, 0, 3, 1)


def member(name: str, *terms: int, term: int = 1, commit: int = 0) -> Raft:
    """With a log of entries of ``terms``, of which those up to ``commit`` are committed."""
    entries = tuple(Entry(t, i + 1, b"%d" % i) for i, t in enumerate(terms))
    mark = Mark(commit, terms[commit - 1] if commit else 0, Configuration(VOTERS))
    return Raft(
        config=RaftConfig(node=name, voters=VOTERS),
        hard_state=HardState(term),
        entries=entries[commit:],
        random=random.Random(1),
        base=mark,
        snapshot=mark,
    )


def finish(raft: Raft) -> tuple[list[object], list[RaftEvent]]:
    """What was sent and told, with all writes done."""
    sent: list[object] = []
    told: list[RaftEvent] = []
    while raft.has_ready():
        ready = raft.ready()
        if ready.hard_state is not None:
            raft.vote_persisted(ready.hard_state)
        if ready.entries:
            raft.persisted(ready.entries[-1].index, ready.entries[-1].term)
        sent += [message for _, message in ready.send_now + ready.send_durable]
        told += ready.events
    return sent, told


def append(*entries: Entry, previous: tuple[int, int], term: int, lineage: object) -> Append:
    assert isinstance(lineage, tuple)
    return Append("n1", term, *previous, 0, 1, entries, lineage)


def test_a_reset_leads_alone_with_all_of_its_log() -> None:
    raft = member("n1", 1, 1, 1)

    begun = raft.begin_generation(1)
    finish(raft)

    assert begun == FIRST
    assert raft.role is Role.LEADER
    assert raft.configuration == Configuration(("n1",), lineage=(FIRST,))
    # What no majority had before is committed now, too.
    assert raft.commit_index == raft.last_index == 5
    assert raft.hard_state.generation == raft.generation == 1
    with pytest.raises(ChangeRefused):
        raft.begin_generation(1)


@pytest.mark.parametrize(
    "message",
    [
        VoteReply("n2", 3, True, False),
        VoteRequest("n2", 9, 9, 9, False),
        AppendReply("n2", 3, False, 4, 0, 1),
        Append("n2", 9, 3, 1, 3, 1),
    ],
)
def test_nothing_that_an_older_majority_says_counts(message: Append) -> None:
    raft = member("n1", 1, 1, 1)
    raft.begin_generation(1)
    finish(raft)
    before = raft.status()

    raft.step(message)

    assert finish(raft) == ([], [])
    assert raft.status() == before
    assert message.generation == 0


def test_a_member_with_a_higher_term_follows_the_later_generation() -> None:
    raft = member("n2", 1, 1, 1, term=40)

    raft.step(append(previous=(3, 1), term=3, lineage=(FIRST,)))

    assert (raft.generation, raft.term, raft.leader) == (1, 3, "n1")
    (reply,) = finish(raft)[0]
    assert isinstance(reply, AppendReply)
    assert (reply.generation, reply.refused, reply.match_index) == (1, False, 3)


def test_what_was_committed_in_an_earlier_generation_is_no_commit_of_the_later_one() -> None:
    # A majority had committed entry 3 of term 2; the reset goes on with another entry 3.
    raft = member("n2", 1, 1, 2, term=2, commit=3)

    raft.step(append(previous=(6, 3), term=3, lineage=(FIRST,)))
    raft.step(append(previous=(2, 1), term=3, lineage=(FIRST,)))

    replies = [reply for reply in finish(raft)[0] if isinstance(reply, AppendReply)]
    assert [(reply.refused, reply.commit) for reply in replies] == [(True, 0), (False, 0)]
    # The log of the generation, once it is here: then its commits count.
    begun = Entry(3, 4, encode(Configuration(("n1",), lineage=(FIRST,))), config=True)
    raft = member("n2", 1, 1, 1, term=2, commit=3)
    raft.step(append(begun, previous=(3, 1), term=3, lineage=(FIRST,)))
    (reply,) = finish(raft)[0]
    assert isinstance(reply, AppendReply)
    assert (reply.refused, reply.match_index, reply.commit) == (False, 4, 3)


def test_what_is_of_a_later_term_than_the_leader_of_the_later_generation_goes() -> None:
    # The reset goes on from entry 3 of term 1; a candidate of term 5 had written another one here.
    raft = member("n2", 1, 1, 5, term=5, commit=2)
    raft.step(append(previous=(6, 3), term=3, lineage=(FIRST,)))
    finish(raft)

    assert (raft.term, raft.last_index, raft.last_term) == (3, 2, 1)
    assert raft.invariants() is None
    # Where it is committed nothing can be left off.
    raft = member("n2", 1, 1, 5, term=5, commit=3)
    raft.step(append(previous=(6, 3), term=3, lineage=(FIRST,)))
    assert raft.diverged
    assert raft.invariants() is None


def test_a_member_learns_of_a_generation_by_its_log_alone() -> None:
    raft = member("n2", 1, 1, 1)

    raft.step(VoteRequest("n1", 9, 9, 9, False, generation=1))

    assert raft.generation == 0
    assert finish(raft) == ([], [])


def test_a_member_without_the_reset_in_its_log_asks_for_no_votes() -> None:
    raft = member("n2", 1, 1, 1)
    raft.step(append(previous=(3, 1), term=3, lineage=(FIRST,)))
    finish(raft)

    for _ in range(100):
        raft.tick()

    assert raft.role is Role.FOLLOWER
    assert finish(raft) == ([], [])


def test_what_was_not_committed_gives_way_even_to_an_entry_that_looks_the_same() -> None:
    # Entry 4 of term 2 is another one in the generation that went its own way behind entry 3: the
    # configuration with which it begins.
    raft = member("n2", 1, 1, 1, 2, term=2, commit=3)
    other = Entry(2, 4, encode(Configuration(("n1",), lineage=(FIRST,))), config=True)

    raft.step(append(other, previous=(3, 1), term=2, lineage=(FIRST,)))
    sent, told = finish(raft)

    assert told == []
    assert [reply.match_index for reply in sent if isinstance(reply, AppendReply)] == [4]
    raft.step(msgspec.structs.replace(append(previous=(4, 2), term=2, lineage=(FIRST,)), commit=4))
    assert raft.ready().committed == (other,)


def test_a_member_that_applied_what_was_cut_off_says_that_it_diverged() -> None:
    raft = member("n2", 1, 1, 1, 1, commit=4)

    for _ in range(2):
        raft.step(append(previous=(3, 1), term=3, lineage=(FIRST,)))
    sent, told = finish(raft)

    assert told == [Diverged(1, 3, 4)]  # once
    assert sent == []
    assert raft.diverged
    assert (raft.generation, raft.log_generation) == (1, 0)
    assert not member("n2", 1, 1, 1, 1, commit=4).keeps((FIRST,))
    assert member("n2", 1, 1, 1, commit=3).keeps((FIRST,))


def test_a_member_that_is_to_be_erased_acknowledges_nothing_more() -> None:
    raft = member("n2", 1, 1, 2, term=2, commit=3)
    raft.step(append(previous=(3, 1), term=3, lineage=(FIRST,)))
    finish(raft)
    assert raft.diverged
    mark = Mark(9, 3, Configuration(VOTERS, lineage=(FIRST,)))

    raft.step(Chunk("n1", 3, 1, mark, 0, b"whole", True, (FIRST,)))
    raft.step(append(previous=(9, 3), term=3, lineage=(FIRST,)))

    ready = raft.ready()
    assert (ready.chunks, ready.installed, ready.events) == ((), None, ())
    assert not ready.send_now
    assert not ready.send_durable
    assert raft.last_index == 3


@pytest.mark.parametrize(
    ("terms", "commit", "keeps"),
    [
        ((1, 1, 2), 3, False),  # an old majority has committed another entry 3 since
        ((1, 2), 2, False),  # nothing of term 2 lies before the entry 3 of term 1
        ((1, 1, 2), 2, True),  # what is not committed may be left off
        ((1, 1), 2, True),
    ],
)
def test_what_an_old_majority_has_committed_since_a_reset_is_not_kept(
    terms: tuple[int, ...], commit: int, keeps: bool
) -> None:
    raft = member("n2", *terms, term=2, commit=commit)

    assert raft.keeps((FIRST,)) is keeps
    assert raft.diverged is not keeps


def test_a_committed_entry_may_be_another_one_before_the_reset_as_well() -> None:
    # The survivor had entry 3 of term 1 as its leader; the majority committed one of term 2 there.
    raft = member("n2", 1, 1, 2, term=2, commit=3)

    raft.step(append(Entry(1, 3, b"tail"), previous=(2, 1), term=3, lineage=(FIRST,)))

    assert finish(raft)[1] == [Diverged(1, 3, 3)]
    # Where it was not committed it gives way.
    other = member("n2", 1, 1, 2, term=2, commit=2)
    other.step(append(Entry(1, 3, b"tail"), previous=(2, 1), term=3, lineage=(FIRST,)))
    assert finish(other)[1] == []
    assert other.last_term == 1
    assert other.log_generation == 1


def test_a_log_is_told_as_of_the_generation_before_until_it_is_known_to_be_the_leaders() -> None:
    # Entry 3 was committed in term 2; the survivor of the reset has one of term 1 there.
    raft = member("n2", 1, 1, 2, term=2, commit=3)
    assert raft.log_generation == 0

    # Further ahead than this log: nothing in it can be compared yet.
    raft.step(append(Entry(3, 6, b"new"), previous=(5, 3), term=3, lineage=(FIRST,)))
    assert [reply.refused for reply in finish(raft)[0] if isinstance(reply, AppendReply)] == [True]
    assert (raft.generation, raft.log_generation, raft.diverged) == (1, 0, False)
    # What lies before the end of what is committed here proves nothing of the rest.
    raft.step(append(Entry(1, 2, b"1"), previous=(1, 1), term=3, lineage=(FIRST,)))
    assert (raft.log_generation, raft.diverged) == (0, False)
    raft.step(append(previous=(3, 1), term=3, lineage=(FIRST,)))

    assert (raft.log_generation, raft.diverged) == (0, True)
    # One that has what the survivor has is of its generation from then on.
    other = member("n3", 1, 1, 1, commit=3)
    other.step(append(Entry(3, 6, b"new"), previous=(5, 3), term=3, lineage=(FIRST,)))
    assert other.log_generation == 0
    other.step(append(previous=(3, 1), term=3, lineage=(FIRST,)))
    assert other.log_generation == 1


def test_who_is_of_a_later_generation_has_not_diverged_from_an_earlier_one() -> None:
    raft = member("n2", 1, 1, 1)
    raft.begin_generation(1)
    finish(raft)

    assert not raft.keeps(())
    assert not raft.diverged
    assert finish(raft) == ([], [])
    assert raft.keeps(raft.configuration.lineage)


def test_two_logs_are_the_same_up_to_where_the_first_of_them_went_its_own_way() -> None:
    second, aside = Generation(2, 1, 7, 2), Generation(3, 1, 5, 2)

    assert shared_index((), ()) is None
    assert shared_index((), (FIRST,)) == 3
    assert shared_index((FIRST,), (FIRST, second)) == 7
    assert shared_index((FIRST, second), (FIRST, aside)) == 5
    # One is left out: nobody knows from where on.
    assert shared_index((), (second,)) == 0


def test_hard_states_and_configurations_of_before_are_read() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode([4, "n2"]), type=HardState) == HardState(
        4, "n2"
    )
    old = msgspec.msgpack.encode([["n1"], [], [], []])
    assert msgspec.msgpack.decode(old, type=Configuration) == Configuration(("n1",))
