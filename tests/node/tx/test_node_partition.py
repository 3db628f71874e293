"""A partition's state machine as values: commits, two-phase commit, versions, snapshots."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from reference_kit import restore

from clusters.reference.node.node_report import ROWS_AT_ONCE, content_digest
from clusters.reference.node.raft.settings import InvariantBroken
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.runtime.hybrid_clock import span
from clusters.reference.node.storage.memory_storage import MemoryStorage
from clusters.reference.node.tx import commands
from clusters.reference.node.tx.commands import Abort, Commit, Finish, Forget, Prepare, Takeover
from clusters.reference.node.tx.partition_state_machine import (
    CHUNK_BYTES,
    SNAPSHOT_S,
    Partition,
    Result,
)
from clusters.reference.node.wire.messages import (
    Ack,
    CommitReply,
    Failed,
    PrepareReply,
    ResolveReply,
    TxnId,
    Version,
)

EPOCH = 1


def txn(number: int) -> TxnId:
    return TxnId(number, "n1~1", number)


class Log:
    """Applies commands as entries of a log."""

    def __init__(self) -> None:
        self.partition = Partition()
        self.ended: list[TxnId] = []
        self.index = 0
        self.do(Takeover(EPOCH, 0))

    def do(self, command: commands.Command) -> Result:
        self.index += 1
        done = self.partition.apply(Entry(1, self.index, commands.encode(command)))
        self.ended += self.partition.take_ended()
        return done

    def value(self, key: bytes) -> bytes | None:
        return self.partition.versions.newest(key).value


def commit(
    number: int, ts: int, *writes: tuple[bytes, bytes], others: tuple[int, ...] = ()
) -> Commit:
    return Commit(EPOCH, txn(number), ts, writes, others)


def prepare(number: int, ts: int, *writes: tuple[bytes, bytes]) -> Prepare:
    return Prepare(EPOCH, txn(number), ts, (), writes, 0)


def test_a_commit_installs_its_writes_at_its_timestamp() -> None:
    log = Log()

    assert log.do(commit(1, 10, (b"k", b"v"), (b"l", b"w"))) == CommitReply(10)
    assert log.do(commit(2, 20, (b"k", b"x"))) == CommitReply(20)

    at = log.partition.versions.at
    assert [at(b"k", ts).value for ts in (9, 10, 19, 20)] == [None, b"v", b"v", b"x"]
    assert log.partition.versions.newest(b"l") == Version(b"w", 10)
    assert log.ended == [txn(1), txn(2)]


def test_a_version_below_another_is_refused_as_a_bug() -> None:
    log = Log()
    log.do(commit(1, 10, (b"k", b"v")))

    with pytest.raises(InvariantBroken, match="version 10 after version 10"):
        log.do(commit(2, 10, (b"k", b"w")))


def test_a_primary_of_an_earlier_epoch_changes_nothing() -> None:
    log = Log()
    log.do(Takeover(EPOCH + 1, 50))

    for command in (
        commit(1, 60, (b"k", b"v")),
        prepare(2, 60, (b"k", b"v")),
        Abort(EPOCH, txn(3)),
    ):
        refused = log.do(command)
        assert isinstance(refused, Failed)
        assert refused.code == "NOT-PRIMARY"
    assert (log.value(b"k"), log.partition.prepared, log.partition.outcomes.rows) == (None, {}, {})
    assert log.ended == [txn(1), txn(2)]  # their locks are free
    assert log.partition.max_ts == 50
    assert isinstance(log.do(Takeover(EPOCH + 1, 0)), Failed)


def test_what_is_prepared_shows_when_it_is_finished() -> None:
    log = Log()

    assert log.do(prepare(1, 10, (b"k", b"v"))) == PrepareReply(10)
    assert (log.value(b"k"), log.ended) == (None, [])
    assert log.do(Finish(EPOCH, txn(1), 15)) == Ack()
    assert log.partition.versions.newest(b"k") == Version(b"v", 15)
    assert log.ended == [txn(1)]
    assert log.do(Finish(EPOCH, txn(1), 15)) == Ack()  # told twice
    assert log.ended == [txn(1)]


def test_what_is_prepared_and_given_up_leaves_nothing() -> None:
    log = Log()
    log.do(prepare(1, 10, (b"k", b"v")))

    log.do(Finish(EPOCH, txn(1), 0))

    assert (log.value(b"k"), log.partition.prepared, log.ended) == (None, {}, [txn(1)])


def test_whoever_decides_first_decides() -> None:
    first = Log()
    assert first.do(commit(1, 10, (b"k", b"v"), others=(2,))) == CommitReply(10)
    assert first.do(Abort(EPOCH, txn(1))) == ResolveReply(10)
    assert first.value(b"k") == b"v"

    second = Log()
    assert second.do(Abort(EPOCH, txn(1))) == ResolveReply(0)
    assert second.ended == [txn(1)]
    late = second.do(commit(1, 10, (b"k", b"v"), others=(2,)))
    assert isinstance(late, Failed)
    assert late.code == "TX-ABORTED"
    assert (second.value(b"k"), set(second.ended)) == (None, {txn(1)})


def test_an_outcome_is_kept_until_it_is_finished_everywhere_and_an_abortion_for_good() -> None:
    log = Log()
    log.do(commit(1, 10, (b"k", b"v"), others=(2, 3)))
    log.do(Abort(EPOCH, txn(2)))
    log.do(Abort(EPOCH, txn(9)))
    assert sorted(log.partition.outcomes.rows) == [txn(1), txn(2), txn(9)]

    log.do(Forget(EPOCH, (txn(1),), horizon=5))

    assert sorted(log.partition.outcomes.rows) == [txn(9)]
    assert log.partition.outcomes.decided(txn(2)) == ResolveReply(0)
    assert log.partition.outcomes.decided(txn(6)) is None
    assert isinstance(log.do(commit(2, 30, (b"l", b"v"), others=(2,))), Failed)


def test_versions_that_no_snapshot_can_see_are_collected() -> None:
    log, step = Log(), span(1)
    for second in range(1, 41):
        log.do(commit(second, second * step, (b"k", b"%d" % second)))

    versions = log.partition.versions
    assert log.partition.readable_from == 40 * step - span(SNAPSHOT_S)
    assert len(versions.all_of(b"k")) == SNAPSHOT_S + 1
    assert versions.at(b"k", log.partition.readable_from).value == b"25"
    assert versions.at(b"k", log.partition.readable_from + 1).value == b"25"
    assert (len(versions), versions.older) == (1, SNAPSHOT_S)


KEY = st.sampled_from((b"a", b"b", b"c"))


@given(st.lists(st.tuples(KEY, st.binary(max_size=4), st.integers(1, span(3))), max_size=60))
def test_a_restored_snapshot_goes_on_like_the_original(
    steps: list[tuple[bytes, bytes, int]],
) -> None:
    log, other, ts = Log(), Log(), 0
    for number, (key, value, gap) in enumerate(steps, 1):
        ts += gap
        log.do(commit(number, ts, (key, value), others=(number % 2,) * (number % 3)))
    log.do(prepare(1000, ts, (b"z", b"v")))
    log.do(Abort(EPOCH, txn(1001)))

    chunks = list(log.partition.snapshot())
    restore(other.partition, chunks)
    other.index = log.index  # the entries that follow are those of one log
    assert list(other.partition.snapshot()) == chunks

    for each in (log, other):
        each.do(Finish(EPOCH, txn(1000), ts + 1))
        each.do(commit(1002, ts + span(SNAPSHOT_S + 1), (b"a", b"last")))
    assert list(other.partition.snapshot()) == list(log.partition.snapshot())
    assert other.partition.versions.older == log.partition.versions.older


def test_a_snapshot_is_of_the_moment_when_it_was_asked_for() -> None:
    log, other = Log(), Log()
    log.do(commit(1, 10, (b"k", b"v")))
    chunks = log.partition.snapshot()
    log.do(commit(2, 20, (b"k", b"w"), (b"l", b"w")))

    restore(other.partition, chunks)

    assert (other.value(b"k"), other.value(b"l")) == (b"v", None)


def test_a_snapshot_that_is_being_read_shows_once_it_is_whole() -> None:
    log, other = Log(), Log()
    for number in range(1, 4):
        log.do(commit(number, number, (b"key %d" % number, b"x" * CHUNK_BYTES)))
    other.do(commit(1, 1, (b"key 1", b"mine")))
    restoring, chunks = other.partition.restoring(), list(log.partition.snapshot())

    assert len(chunks) == 4
    for chunk in chunks:
        restoring.feed(chunk)
        assert other.value(b"key 1") == b"mine"
    other.do(commit(2, 2, (b"key 1", b"meanwhile")))
    assert other.value(b"key 1") == b"meanwhile"
    restoring.done()

    assert list(other.partition.snapshot()) == list(log.partition.snapshot())


def test_a_dump_shows_its_moment_whatever_is_installed_and_collected_while_it_is_read() -> None:
    versions = MemoryStorage()
    for ts, key in enumerate((b"a", b"b", b"a", b"a", b"b"), 1):
        versions.install(key, b"%d" % ts, ts)
    dump = versions.dump()
    versions.install(b"a", b"later", 6)
    versions.install(b"c", b"later", 7)
    versions.collect(3)  # what 3 superseded: the first of a

    assert dict(dump) == {
        b"a": (Version(b"3", 3), Version(b"4", 4)),
        b"b": (Version(b"2", 2), Version(b"5", 5)),
    }
    assert [v.ts for v in dict(versions.dump())[b"a"]] == [3, 4, 6]


def test_a_digest_is_of_one_moment_and_the_loop_turns_while_it_is_made() -> None:
    async def scenario() -> None:
        partition = Partition()
        partition.epoch = 1
        for number in range(4 * ROWS_AT_ONCE):
            partition.versions.install(b"key %d" % number, b"x", 1)
        before = await content_digest(partition.content())
        reading = asyncio.ensure_future(content_digest(partition.content()))
        turns = 0
        while not reading.done():
            await asyncio.sleep(0)
            turns += 1
            partition.versions.install(b"key 0", b"y", 1 + turns)
        assert turns >= 4
        assert await reading == before
        assert await content_digest(partition.content()) != before

    asyncio.run(scenario())
