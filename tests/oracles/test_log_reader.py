"""The reader of a node's log: each record counts once, however the disk is read."""

from __future__ import annotations

from clusters.reference.claims.durable_facts import LogReader
from clusters.reference.node.raft.types import Entry, HardState
from clusters.reference.node.storage.log_records import Update, encode_record, segment_header
from clusters.reference.node.storage.shared_log import in_parts, segment_name
from harness.protocols.claims import LogUpdate


def segment(number: int, *updates: Update) -> bytes:
    """The bytes of a segment with one record."""
    header = segment_header(number)
    return header + encode_record(updates, number, len(header))


def reader() -> LogReader:
    return LogReader(lambda _group, _entry, _mark: ())


ENTRIES = tuple(Entry(1, index, b"x" * 40) for index in range(1, 4))
FIRST, SECOND, THIRD = in_parts(Update("p0", None, ENTRIES), 40)


def test_a_segment_of_nothing_but_a_part_is_read_once() -> None:
    log, data = reader(), segment(1, FIRST)

    assert log.read(segment_name(1), 0, data) == (len(data), [])


def test_parts_in_several_segments_are_one_update() -> None:
    log = reader()
    for number, part in enumerate((FIRST, SECOND), 1):
        data = segment(number, part)
        assert log.read(segment_name(number), 0, data) == (len(data), [])

    _, facts = log.read(segment_name(3), 0, segment(3, THIRD))

    (update,) = facts
    assert isinstance(update, LogUpdate)
    assert [entry.index for entry in update.entries] == [1, 2, 3]


def test_a_header_without_a_record_is_read_again_with_what_follows() -> None:
    log, whole = reader(), segment(1, Update("p0", None, ENTRIES))

    assert log.read(segment_name(1), 0, segment_header(1)) == (0, [])
    end, facts = log.read(segment_name(1), 0, whole)
    assert end == len(whole)
    assert len(facts) == 1


def test_what_is_left_of_a_log_is_read_as_of_the_generation_that_it_was_written_in() -> None:
    log = reader()
    first = segment(1, Update("p0", HardState(1, None, 0), ENTRIES[:1]))
    begins = segment(2, Update("p0", HardState(2, None, 1), ()))
    behind = segment(3, Update("p0", None, ENTRIES[1:]))
    whole = segment(4, Update("p0", HardState(2, None, 1), ENTRIES))
    for number, data in enumerate((first, begins, behind, whole), 1):
        log.read(segment_name(number), 0, data)

    def groups(left: LogReader, number: int, data: bytes) -> list[str]:
        _, facts = left.read(segment_name(number), 0, data)
        return [fact.group for fact in facts if isinstance(fact, LogUpdate)]

    # The first two are deleted: only the last one still says of which generation the log is.
    left = log.again()
    assert groups(left, 3, behind) == ["p0@1"]
    assert groups(left, 4, whole) == ["p0@1"]
    # Read once more, and from the first one on.
    assert groups(left.again(), 3, behind) == ["p0@1"]
    assert groups(log.again(), 1, first) == ["p0"]


def test_a_record_that_tells_of_a_vote_and_of_the_next_generation_tells_the_same_again() -> None:
    log = reader()
    votes = Update("p0", HardState(1, "n1", 0), ENTRIES[:1])
    data = segment(1, votes, Update("p0", HardState(2, None, 1), ()))
    _, told = log.read(segment_name(1), 0, data)

    assert [type(fact).__name__ for fact in told] == ["LogUpdate", "NewGeneration", "LogUpdate"]
    for left in (log.again(), log.again().again()):
        assert left.read(segment_name(1), 0, data)[1] == told
