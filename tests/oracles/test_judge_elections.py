"""The judge on what raft promises between disks: votes, what followers hold, changes of members."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from oracles.toy_store import LOG, Bench, broken, details, judged

from clusters.providers.sim.disk import SimDisk
from clusters.providers.sim.oracles.durability import Durability
from clusters.providers.sim.oracles.synced_disks import Lives, SyncedDisk, SyncedLog
from clusters.reference.claims.durable_facts import LogReader
from harness.protocols.claims import (
    Claim,
    Inspection,
    LogEntry,
    LogUpdate,
    Members,
    RecoveredLog,
    ReplicaContent,
    mark_of,
)


def test_a_vote_goes_to_no_member_that_lacks_what_the_voter_has() -> None:
    async def to_equals(bench: Bench) -> None:
        await bench.write("n1", "p term 3 n3", "p 1 1 a", "p 2 2 b")
        bench.send("n1", "votes p 3 2 2")

    async def to_a_longer_log_of_an_earlier_term(bench: Bench) -> None:
        await bench.write("n1", "p term 3 n3", "p 1 1 a", "p 2 2 b")
        bench.send("n1", "votes p 3 1 9")

    async def with_what_came_since(bench: Bench) -> None:
        await bench.write("n1", "p term 3 n3", "p 1 1 a", "p 2 3 b")
        bench.send("n1", "votes p 3 1 1")

    async def after_a_later_leader(bench: Bench) -> None:
        await bench.write("n1", "p term 4", "p 1 1 a", "p 2 4 b")
        bench.send("n1", "votes p 3 1 0")

    async def again_once_its_leader_has_sent_a_snapshot(bench: Bench) -> None:
        await bench.write("n1", "snapshot", file="snap")
        await bench.write("n1", "p term 1 n3", "p cut 8 1 snap 9")
        bench.send("n1", "votes p 1 0 0")

    assert broken(to_equals) == []
    assert broken(with_what_came_since) == []
    assert broken(again_once_its_leader_has_sent_a_snapshot) == []
    assert broken(after_a_later_leader) == []
    (found,) = details(to_a_longer_log_of_an_earlier_term)
    assert found.detail == (
        "the vote of term 3 in p goes to a log that ends with entry 9 of term 1, and entry 2 of "
        "term 2 is synced here"
    )


def test_a_follower_answers_for_no_more_than_its_leader_has_told_of() -> None:
    async def up_to_the_message(bench: Bench) -> None:
        bench.send("n3", "leads p 1 1 1 1")
        await bench.write("n1", "p term 1", "p 1 1 a", "p 2 1 b")
        bench.send("n1", "holds p 1 2")

    async def up_to_the_end_of_its_log(bench: Bench) -> None:
        # The leader has told that it has entry 1; those behind it are of a leader before.
        bench.send("n3", "leads p 2 2")
        await bench.write("n1", "p term 2", "p 1 1 a", "p 2 1 b", "p 3 1 c")
        bench.send("n1", "holds p 2 3")

    assert broken(up_to_the_message) == []
    (found,) = details(up_to_the_end_of_its_log)
    assert found.detail == (
        "p up to entry 3 is answered for, and the leader of term 2 has told of entries up to 1"
    )


def test_a_follower_counts_nothing_as_committed_but_what_is() -> None:
    async def told(bench: Bench, third: str) -> None:
        await bench.agree("p 1 1 a", "p 2 1 b")
        bench.platters["n3"].wipe()
        await bench.write("n3", "member n3-again", "p 1 1 a", third)
        bench.send("n3", "learnt p 2", to="n1")

    async def the_same(bench: Bench) -> None:
        await told(bench, "p 2 1 b")

    async def another(bench: Bench) -> None:
        await told(bench, "p 2 2 c")

    assert broken(the_same) == []
    (found,) = details(another)
    assert found.detail == (
        "entry 2 of p, of term 2, counts as committed here, and the one of term 1 is"
    )


def test_members_change_once_those_before_them_are_certain() -> None:
    async def agreed(bench: Bench) -> None:
        for node in ("n1", "n2"):
            await bench.write(node, "p joins 1 1 n1,n2")
        await bench.write("n1", "p joins 2 1 n1,n2,n4")

    async def at_once(bench: Bench) -> None:
        await bench.write("n1", "p joins 1 1 n1,n2")
        await bench.write("n1", "p joins 2 1 n1,n2,n4")

    async def late(bench: Bench) -> None:
        for node in ("n1", "n2"):
            await bench.write(node, "p joins 1 1 n1,n2,n3")
        await bench.write("n1", "p joins 2 1 n1,n2")
        # It hears of both at once, as does one that was away.
        await bench.write("n3", "p joins 1 1 n1,n2,n3", "p joins 2 1 n1,n2")

    async def in_place_of_another(bench: Bench) -> None:
        await bench.write("n1", "p joins 1 1 n1,n2")
        await bench.write("n1", "p joins 1 2 n1,n3")

    assert broken(agreed) == []
    assert broken(late) == []
    assert broken(in_place_of_another) == []
    (found,) = details(at_once)
    assert found.detail == (
        "entry 2 of p changes members again after 1, and the synced disks of 1 of 3 voters hold it"
    )


def test_a_record_that_changes_members_twice_is_held_against_the_first_of_both() -> None:
    lives = Lives()
    logs = {name: SyncedLog() for name in ("n1", "n2", "n3")}
    founders = (0, Members(("n1", "n2", "n3")))
    for name, log in logs.items():
        disk = lives.by_member[name] = SyncedDisk(name, LogReader(lambda group, entry: ()))
        disk.member, disk.logs["p"], log.members = name, log, [founders]
    joint = LogEntry(1, mark_of(1, 1), (Members(("n1", "n2"), ("n1", "n2", "n3")),))
    update = LogUpdate("p", entries=(joint, LogEntry(2, mark_of(1, 2), (Members(("n1", "n2")),))))

    # A majority has the first by the time at which the third hears of both.
    assert "changes members again after 1" in str(
        Durability(lives).reconfigured(logs["n3"], update)
    )
    for name in ("n1", "n2"):
        logs[name].take(LogUpdate("p", entries=(joint,)))
        lives.changed("p")
    assert Durability(lives).reconfigured(logs["n3"], update) == ""


def test_members_change_in_steps_whose_majorities_meet() -> None:
    async def changed(bench: Bench, *steps: str) -> None:
        for index, names in enumerate(steps, 1):
            for node in ("n1", "n2", "n3"):
                await bench.write(node, f"p joins {index} 1 {names}")

    async def by_a_joint_one(bench: Bench) -> None:
        await changed(bench, "n1,n2,n4&&n1,n2,n3", "n1,n2,n4")

    async def at_once(bench: Bench) -> None:
        await changed(bench, "n1,n2,n4")

    async def from_others_than_the_last(bench: Bench) -> None:
        await changed(bench, "n1,n2", "n1,n2,n4&&n1,n2,n3")

    async def to_others_than_the_joint_one_says(bench: Bench) -> None:
        await changed(bench, "n1,n2,n4&&n1,n2,n3", "n1,n2,n3")

    def text_of(act: Callable[[Bench], object]) -> str:
        return details(act)[0].detail

    assert broken(by_a_joint_one) == []
    assert text_of(at_once) == ("entry 1 of p changes the members from (n1 n2 n3) to (n1 n2 n4)")
    assert text_of(from_others_than_the_last) == (
        "entry 2 of p changes the members from (n1 n2) to (n1 n2 n4)&&(n1 n2 n3)"
    )
    assert text_of(to_others_than_the_joint_one_says) == (
        "entry 2 of p changes the members from (n1 n2 n4)&&(n1 n2 n3) to (n1 n2 n3)"
    )


def test_a_leader_has_the_votes_of_each_half() -> None:
    async def led(bench: Bench, members: str, *voters: str) -> None:
        for node in ("n1", "n2", "n3"):
            await bench.write(node, f"p joins 1 1 {members}", "p term 2 n1")
        for node in voters:
            bench.send(node, "told p 2 n1", to="n1")
        bench.send("n1", "told p 2 n1")
        bench.send("n1", "leads p 2 2")
        bench.send("n1", "leads p 2 2")

    async def by_a_majority(bench: Bench) -> None:
        await led(bench, "n1,n2", "n2")

    async def by_itself(bench: Bench) -> None:
        await led(bench, "n1,n2")

    async def by_both_halves(bench: Bench) -> None:
        await led(bench, "n1,n2,n4&&n1,n2,n3", "n2")

    async def by_one_half(bench: Bench) -> None:
        await led(bench, "n1,n2&&n1,n2,n3")

    async def of_a_later_term(bench: Bench) -> None:
        await bench.write("n1", "p term 5 n2")
        bench.send("n1", "told p 2 n1")
        bench.send("n1", "leads p 2 2")

    assert broken(by_a_majority) == []
    assert broken(by_both_halves) == []
    assert broken(of_a_later_term) == []
    (found,) = details(by_itself)
    assert found.detail == "n1 leads term 2 of p by the votes of 1 of the 2 voters n1 n2"
    assert any("by the votes of 1 of the 2 voters" in f.detail for f in details(by_one_half))


def test_a_cut_keeps_the_members_of_its_place() -> None:
    async def cut(bench: Bench, index: int, members: str, whole: str = "") -> None:
        for line in ("p joins 1 1 n1,n2", "p 2 1 b", "p joins 3 1 n1,n2,n3"):
            for node in ("n1", "n2", "n3"):
                await bench.write(node, line)
        bench.send("n1", "leads p 1 1 1 1 1")
        bench.send("n1", "committed p 1 3")
        await bench.write("n3", f"p base {index} 1 {members} {whole}".rstrip())

    async def as_it_was(bench: Bench) -> None:
        await cut(bench, 2, "n1,n2")

    async def as_it_came_to_be(bench: Bench) -> None:
        await cut(bench, 3, "n1,n2,n3")

    async def with_the_newest(bench: Bench) -> None:
        await cut(bench, 2, "n1,n2,n3")

    async def with_the_founders(bench: Bench) -> None:
        await cut(bench, 2, "n1,n2,n3", "whole")

    async def behind_what_is_known(bench: Bench) -> None:
        await cut(bench, 9, "n1,n2", "whole")

    assert broken(as_it_was) == []
    assert broken(as_it_came_to_be) == []
    assert broken(behind_what_is_known) == []
    for act in (with_the_newest, with_the_founders):
        (found,) = details(act)
        assert found.detail == (
            "p is cut at entry 2 with (n1 n2 n3), and there its members are (n1 n2)"
        )


def test_a_start_finds_no_less_than_is_synced() -> None:
    async def began(bench: Bench, found: RecoveredLog) -> None:
        await bench.write("n1", "p term 2 n3", "p 1 1 a", "p 2 2 b")
        bench.declare("n1", found)

    def details_of(found: RecoveredLog) -> list[str]:
        async def act(bench: Bench) -> None:
            await began(bench, found)

        return [each.detail for each in details(act)]

    assert details_of(RecoveredLog("p", 2, "n3", 2, 2)) == []
    assert details_of(RecoveredLog("p", 3, None, 3, 2)) == []  # was not synced, and is there
    (text,) = details_of(RecoveredLog("p", 1, None, 2, 2))
    assert text == "p begins in term 1, and term 2 is synced"
    (text,) = details_of(RecoveredLog("p", 2, None, 2, 2))
    assert text == "p begins with no vote in term 2, and the vote for n3 is synced"
    (text,) = details_of(RecoveredLog("p", 2, "n3", 1, 5))
    assert text == ("p begins with a log up to entry 5 of term 1, and entry 2 of term 2 is synced")


def test_nothing_that_counts_goes_with_a_deleted_file() -> None:
    async def act(bench: Bench) -> None:
        await bench.write("n1", "p term 2 n3", "p 1 1 a")
        await SimDisk(bench.platters["n1"]).delete(LOG)

    (found,) = details(act)
    assert found.detail == "log is deleted, and with it the vote of term 2 of p"


def test_a_new_voter_has_what_was_committed_before_it_was_taken_in() -> None:
    async def act(bench: Bench, *lines: str, apart_s: float = 5.0) -> None:
        for node in ("n1", "n2"):
            await bench.write(node, "p joins 1 1 n1,n2", "p term 1 n1", "p 2 1 a", "p 3 1 b")
        bench.send("n1", "leads p 1 1 1 1 1")
        bench.send("n1", "committed p 1 3")
        await asyncio.sleep(apart_s)
        # The members as they were, with learners beside that decide nothing.
        for node in ("n1", "n2"):
            await bench.write(node, "p joins 4 1 n1,n2")
        await bench.write("n3", *lines)
        bench.send("n1", "leads p 1 4 1")
        bench.send("n1", "committed p 1 4")
        await bench.write("n1", "p joins 5 1 n1,n2,n3&&n1,n2")

    async def with_all(bench: Bench) -> None:
        await act(bench, "p joins 1 1 n1,n2", "p 2 1 a", "p 3 1 b")

    async def by_a_snapshot(bench: Bench) -> None:
        await act(bench, "p base 3 1 n1,n2 whole")

    async def with_a_part(bench: Bench) -> None:
        await act(bench, "p joins 1 1 n1,n2", "p 2 1 a")

    async def with_a_part_of_what_has_just_come(bench: Bench) -> None:
        await act(bench, "p joins 1 1 n1,n2", "p 2 1 a", apart_s=0.5)

    for allowed in (with_all, by_a_snapshot, with_a_part_of_what_has_just_come):
        assert [b for b in broken(allowed) if b[0] == "caught-up"] == []
    assert judged(with_all).judged[Claim.CAUGHT_UP] == 1
    (found,) = [each for each in details(with_a_part) if each.claim is Claim.CAUGHT_UP]
    assert found.detail == (
        "n3 votes in p, and has entries up to 2: up to 3 were committed before it was taken in as "
        "a learner"
    )


def test_replicas_that_have_applied_the_same_hold_the_same() -> None:
    async def act(bench: Bench, *told: tuple[str, int, int]) -> None:
        for node, index, digest in told:
            bench.declare(node, ReplicaContent("p", index, digest))

    async def alike(bench: Bench) -> None:
        await act(bench, ("n1", 16, 7), ("n2", 16, 7), ("n1", 32, 8), ("n2", 16, 7))

    async def apart(bench: Bench) -> None:
        await act(bench, ("n1", 16, 7), ("n2", 32, 9), ("n2", 16, 8))

    assert judged(alike).judged[Claim.REPLICAS_AGREE] == 2
    assert broken(alike) == []
    (found,) = details(apart)
    assert (found.claim, found.node) == (Claim.REPLICAS_AGREE, "n2")
    assert found.detail == "p of n2 and of n1 differ after entry 16"


def test_what_a_node_finds_wrong_with_itself_is_a_broken_promise() -> None:
    async def whole(bench: Bench) -> None:
        bench.declare("n1", Inspection("p", ""))

    async def with_a_problem(bench: Bench) -> None:
        bench.declare("n1", Inspection("p", "entry 7 follows entry 5"))

    assert judged(whole).judged[Claim.INVARIANTS_HOLD] == 1
    assert broken(whole) == []
    (found,) = details(with_a_problem)
    assert (found.claim, found.node) == (Claim.INVARIANTS_HOLD, "n1")
    assert found.detail == "of p: entry 7 follows entry 5"
