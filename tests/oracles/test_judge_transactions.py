"""The judge on transactions: holders of locks, outcomes, and what snapshots have read."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from oracles.toy_store import Bench, broken, judged

from clusters.providers.sim.oracles.isolation import Locks, Snapshots
from clusters.providers.sim.oracles.upkeep import Upkeep
from clusters.reference.claims.partition_log import PartitionLog
from clusters.reference.node.declarations import CONTENT_EVERY
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.tx import commands
from clusters.reference.node.tx.partition_state_machine import Partition
from clusters.reference.node.wire.messages import TxnId
from harness.protocols.claims import (
    Claim,
    LockGrant,
    LockRelease,
    LoggedWrites,
    NewVersions,
    NoOpEntry,
    Outcome,
    OutcomeDrop,
    PreparedLocks,
    ReplicaContent,
    SharedRead,
    SnapshotRead,
    TransactionDecided,
    TransactionEnd,
)

KEY, OTHER = b"k", b"l"


def locked(txn: str, *, epoch: int = 1, exclusive: bool = True, key: bytes = KEY) -> LockGrant:
    return LockGrant("q", epoch, txn, key, exclusive)


@pytest.mark.parametrize(
    ("first", "second", "conflict"),
    [(True, True, True), (True, False, True), (False, True, True), (False, False, False)],
)
def test_two_transactions_share_a_lock_only_if_none_has_it_exclusively(
    first: bool, second: bool, conflict: bool
) -> None:
    locks = Locks()

    assert locks.locked(locked("a", exclusive=first)) == ""
    text = locks.locked(locked("b", exclusive=second))

    assert bool(text) == conflict
    assert not conflict or "a holds it under the same epoch 1" in text


def test_a_lock_that_was_given_up_is_free() -> None:
    locks = Locks()
    locks.locked(locked("a"))
    locks.unlocked(0.0, LockRelease("q", 1, "a"))

    assert locks.locked(locked("b")) == ""
    assert "b holds it" in locks.locked(locked("a"))


def test_what_is_read_at_once_is_written_by_no_other_that_moment() -> None:
    locks, read = Locks(), SharedRead("q", "b", KEY)
    assert locks.read(read) == ""
    locks.locked(locked("a", exclusive=False))
    assert locks.read(read) == ""
    locks.locked(locked("a"))
    assert "a holds it" in locks.read(read)
    assert locks.read(SharedRead("q", "a", KEY)) == ""
    locks.unlocked(0.0, LockRelease("q", 1, "a"))
    assert locks.read(read) == ""

    locks.prepared(PreparedLocks("q", 1, "c", (), (KEY,)))
    locks.locked(locked("d", epoch=2, key=OTHER))
    assert "c has been prepared with it" in locks.read(read)


def test_the_primary_of_another_epoch_has_locks_of_its_own() -> None:
    locks = Locks()
    locks.locked(locked("a"))

    assert locks.locked(locked("b", epoch=2)) == ""


def test_a_prepared_transaction_keeps_its_locks_under_later_primaries_until_its_end() -> None:
    locks = Locks()
    locks.prepared(PreparedLocks("q", 1, "a", (OTHER,), (KEY,)))

    assert "a has been prepared with it" in locks.locked(locked("b", epoch=2))
    assert locks.locked(locked("b", epoch=2, exclusive=False, key=OTHER)) == ""
    assert "a has been prepared with it" in locks.locked(locked("c", epoch=3, key=OTHER))
    locks.finished(TransactionEnd("q", "a"))
    assert locks.locked(locked("d", epoch=4)) == ""
    # A primary that was paused since tells late that it had prepared it.
    locks.prepared(PreparedLocks("q", 1, "a", (), (KEY,)))
    assert locks.locked(locked("e", epoch=5)) == ""


def test_a_write_needs_the_locks_that_the_transaction_was_granted() -> None:
    def wrong(*, epoch: int, drop: bool, again: bool = False) -> str:
        locks = Locks()
        locks.locked(locked("a"))
        if drop:
            locks.unlocked(0.0, LockRelease("q", 1, "a"))
        if again:
            locks.locked(locked("a", epoch=epoch))
        return locks.written(LoggedWrites("q", epoch, "a", (KEY,)))[1]

    assert wrong(epoch=1, drop=False) == ""
    assert "its lock of 6b was given up" in wrong(epoch=1, drop=True)
    assert wrong(epoch=1, drop=True, again=True) == ""
    # Its primary is another one, which knows of no such lock.
    assert "its lock of 6b was given up" in wrong(epoch=2, drop=False)
    assert wrong(epoch=2, drop=False, again=True) == ""


def test_to_commit_a_transaction_is_prepared_wherever_it_has_locks() -> None:
    def committed(others: tuple[str, ...] | None) -> str:
        locks = Locks()
        locks.locked(locked("a"))
        locks.locked(LockGrant("r", 3, "a", OTHER, False))
        return locks.written(LoggedWrites("q", 1, "a", (KEY,), others))[1]

    assert committed(("r",)) == ""
    assert committed(None) == ""  # it prepares itself
    assert committed(()) == f"a commits, and r has its lock of {OTHER.hex()} unprepared"


def test_a_write_meets_no_lock_of_another() -> None:
    locks = Locks()
    locks.locked(locked("a", exclusive=False))
    locks.locked(locked("b", exclusive=False))

    assert "b holds it" in locks.written(LoggedWrites("q", 1, "a", (KEY,)))[0]
    locks.unlocked(0.0, LockRelease("q", 1, "b"))
    assert locks.written(LoggedWrites("q", 1, "a", (KEY,)))[0] == ""


def test_an_outcome_is_dropped_only_where_all_have_finished() -> None:
    locks = Locks()
    locks.prepared(PreparedLocks("q", 1, "a", (), (KEY,)))

    assert (
        locks.forgotten(OutcomeDrop("a"))
        == "the outcome of a is dropped, and q has not finished it"
    )
    locks.finished(TransactionEnd("q", "a"))
    assert locks.forgotten(OutcomeDrop("a")) == ""


def test_an_entry_that_changes_nothing_is_needless_only_if_it_comes_again_and_again() -> None:
    upkeep = Upkeep()
    now_and_then = [upkeep.needless(at_s * 1.0, NoOpEntry("q")) for at_s in range(30)]
    at_each_turn = [upkeep.needless(40 + at_s * 0.25, NoOpEntry("q")) for at_s in range(30)]

    assert not any(now_and_then)
    assert [bool(text) for text in at_each_turn] == [False] * 7 + [True] * 23
    # A slow disk has each of three requests repeated: each is now and then by itself.
    of_three = [upkeep.needless(90 + i * 0.25, NoOpEntry("q", "abc"[i % 3])) for i in range(18)]
    assert not any(of_three)


@pytest.mark.parametrize("read_first", [True, False])
@pytest.mark.parametrize(("at", "stable"), [(5, True), (6, False), (10, False), (11, True)])
def test_no_version_comes_between_a_snapshot_and_what_it_has_read(
    at: int, stable: bool, read_first: bool
) -> None:
    snapshots = Snapshots()
    read = SnapshotRead("q", KEY, 10, 5)
    installed = NewVersions("q", (OTHER, KEY), at)
    if read_first:
        text = snapshots.read(read) or snapshots.installed(installed)
    else:
        text = snapshots.installed(installed) or snapshots.read(read)

    assert (text == "") == stable


def test_a_snapshot_reads_nothing_of_its_future() -> None:
    assert "the later version of 11" in Snapshots().read(SnapshotRead("q", KEY, 10, 11))


def test_a_transaction_has_one_outcome_until_it_is_forgotten() -> None:
    async def agreeing(bench: Bench) -> None:
        bench.declare("n1", Outcome("a", 7))
        bench.declare("n2", Outcome("a", 7))

    async def divided(bench: Bench) -> None:
        bench.declare("n1", Outcome("a", 7))
        bench.declare("n2", Outcome("a", None))

    async def forgotten(bench: Bench) -> None:
        bench.declare("n1", Outcome("a", 7))
        bench.declare("n1", OutcomeDrop("a"))
        bench.declare("n2", Outcome("a", None))

    assert judged(agreeing).judged[Claim.ONE_OUTCOME] == 2
    assert broken(agreeing) == []
    assert broken(divided) == [("one-outcome", "n2", "Outcome")]
    assert broken(forgotten) == []


T1, T2 = TxnId(10, "n1", 1), TxnId(20, "n1", 2)
WRITES = ((KEY, b"v"),)


def applied(*log: commands.Command) -> list[object]:
    partition = PartitionLog("q")
    found: list[object] = []
    for index, command in enumerate(log, 1):
        partition.logged(index, 1, command)
        found += partition.committed(index, 1)
    return found


def test_of_a_commit_and_an_abort_the_first_in_the_log_counts() -> None:
    begin, abort = commands.Takeover(1, 0), commands.Abort(1, T1)
    commit = commands.Commit(1, T1, 15, WRITES, (2,))
    ended = TransactionDecided("q", "n1-1")
    committed = [Outcome("n1-1", 15), NewVersions("q", (KEY,), 15), ended]

    assert applied(begin, commit, abort) == committed
    assert applied(begin, abort, commit) == [Outcome("n1-1", None), ended]
    assert applied(begin, commands.Takeover(2, 0), commit) == []
    assert applied(begin, abort, commands.Forget(1, (), 12), commit)[1:] == [ended]


def test_what_is_prepared_is_written_by_its_finish() -> None:
    begin = commands.Takeover(1, 0)
    prepare = commands.Prepare(1, T2, 21, (), WRITES, 0)

    ended, written = TransactionDecided("q", "n1-2"), NewVersions("q", (KEY,), 25)

    assert applied(begin, prepare, commands.Finish(1, T2, 25)) == [written, ended]
    assert applied(begin, prepare, commands.Finish(1, T2, 0)) == [ended]


def test_to_forget_what_is_not_known_is_needless() -> None:
    begin, commit = commands.Takeover(1, 0), commands.Commit(1, T1, 15, WRITES, (2,))
    forget = commands.Forget(1, (T1,), 0)

    assert applied(begin, commit, forget)[3:] == []
    assert applied(begin, commit, forget, forget)[3:] == [NoOpEntry("q")]
    assert applied(begin, commands.Abort(1, T1), commands.Forget(1, (), 12))[1:] == []
    assert applied(begin, commands.Forget(1, (), 12)) == [NoOpEntry("q")]


LOG = (
    commands.Takeover(1, 5),
    commands.Commit(1, T1, 15, WRITES, (2,)),
    commands.Commit(1, TxnId(11, "n1", 7), 16, ((OTHER, b"w"),), ()),
    commands.Prepare(1, T2, 21, (KEY,), ((KEY, b"x"),), 0),
    commands.Abort(1, TxnId(12, "n1", 8)),
    commands.Finish(1, T2, 25),
    commands.Prepare(1, TxnId(30, "n1", 9), 31, (), WRITES, 0),
    commands.Takeover(2, 40),
    commands.Takeover(1, 50),
    commands.Commit(1, TxnId(32, "n1", 10), 41, WRITES, ()),
    commands.Abort(2, TxnId(42, "n1", 11)),
    commands.Forget(2, (T1,), 12),
)
NEEDLESS = commands.Forget(9, (), 0)


def content(log: Sequence[commands.Command]) -> list[object]:
    """What follows from ``log``, filled up to a place that is told."""
    fill = [NEEDLESS] * (CONTENT_EVERY - len(log))
    return [fact for fact in applied(*log, *fill) if isinstance(fact, ReplicaContent)]


@pytest.mark.parametrize("length", range(1, len(LOG) + 1))
def test_a_replica_holds_what_follows_from_its_log(length: int) -> None:
    log, partition = LOG[:length], Partition()
    for index in range(1, CONTENT_EVERY + 1):
        command = log[index - 1] if index <= length else NEEDLESS
        partition.apply(Entry(1, index, commands.encode(command)))
    digest = hash(frozenset(partition.content()))

    assert content(log) == [ReplicaContent("q", CONTENT_EVERY, digest)]


@pytest.mark.parametrize("place", [0, 2, 3, 5, 6, 7, 10, 11])
def test_a_command_that_is_not_applied_shows_in_what_is_held(place: int) -> None:
    others = (*LOG[:place], NEEDLESS, *LOG[place + 1 :])

    assert content(others) != content(LOG)


def test_a_log_with_a_gap_is_followed_no_further() -> None:
    partition = PartitionLog("q")
    partition.logged(1, 1, commands.Takeover(1, 0))
    partition.logged(3, 1, commands.Commit(1, T1, 15, WRITES, ()))

    assert partition.committed(1, 1) == []
    assert partition.committed(2, 0) == []
    assert partition.committed(3, 1) == []


def test_a_transaction_is_prepared_with_all_of_its_locks() -> None:
    def prepared(shared: tuple[bytes, ...], exclusive: tuple[bytes, ...]) -> str | None:
        locks = Locks()
        locks.locked(locked("a"))
        locks.locked(locked("a", key=OTHER, exclusive=False))
        return locks.prepared(PreparedLocks("q", 1, "a", shared, exclusive))

    assert prepared((OTHER,), (KEY,)) == ""
    assert prepared((), (KEY, OTHER)) == ""
    assert prepared((), (KEY,)) == f"a is prepared in q without its lock of {OTHER.hex()}"


def test_what_is_prepared_is_judged_once_and_by_its_own_epoch() -> None:
    locks, prepared = Locks(), PreparedLocks("q", 2, "a", (), (KEY,))
    locks.locked(locked("a", key=OTHER))  # by the primary before: it may not prepare any more

    assert locks.prepared(prepared) == ""
    assert locks.prepared(prepared) is None


def test_locks_are_given_up_once_what_they_protect_is_certain() -> None:
    """``T-put:p:a`` has proposed entry 1 as the primary of epoch 1."""
    release = LockRelease("p", 1, "T-put:1")

    async def on_a_majority(bench: Bench) -> None:
        for node in ("n1", "n2"):
            await bench.write(node, "p 1 1 put:1")
        bench.declare("n1", release)

    async def on_one_disk(bench: Bench) -> None:
        await bench.write("n1", "p 1 1 put:1")
        bench.declare("n1", release)

    async def by_a_later_primary(bench: Bench) -> None:
        await bench.write("n1", "p 1 1 put:1")
        bench.declare("n2", LockRelease("p", 2, "T-put:1"))

    async def before_anything_is_logged(bench: Bench) -> None:
        bench.declare("n1", release)

    assert broken(on_a_majority) == []
    assert broken(by_a_later_primary) == []
    assert broken(before_anything_is_logged) == []
    (found,) = judged(on_one_disk).examples
    assert found.claim is Claim.LOCK_KEPT
    assert found.detail == (
        "T-put:1 gives up its locks in p, with writes in entry 1, and the synced disks of 1 of 3 "
        "voters hold it"
    )


def test_a_commit_behind_its_abort_needs_no_locks() -> None:
    """A participant has asked home, and the abort went before a commit that was on its way."""
    release, grant = LockRelease("p", 1, "T-put:1"), LockGrant("p", 1, "T-put:1", b"k", True)

    async def aborted(bench: Bench, *certain: str) -> None:
        bench.declare("n1", grant)
        for node in certain:
            await bench.write(node, "p 1 1 undo")
        bench.declare("n1", release)
        bench.declare("n1", LockGrant("p", 1, "another", b"k", True))
        await bench.write("n2", "p 2 1 put:1")

    async def certainly(bench: Bench) -> None:
        await aborted(bench, "n1", "n2")

    async def on_one_disk(bench: Bench) -> None:
        await aborted(bench, "n1")

    async def while_it_is_on_its_way(bench: Bench) -> None:
        bench.declare("n1", grant)
        for node in ("n1", "n2"):
            await bench.write(node, "p 1 1 undo")
        await bench.write("n1", "p 2 1 put:1")
        bench.declare("n1", release)

    assert broken(certainly) == []
    assert broken(while_it_is_on_its_way) == []
    assert {claim for claim, _, _ in broken(on_one_disk)} == {"lock-exclusive", "lock-kept"}
