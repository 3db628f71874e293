"""Write-ahead chunks: what was appended comes back, and nothing else ever does."""

from __future__ import annotations

import errno
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from capabilities import small_disk
from history_parts import append, complete, invoke, read, small_history

from harness.errors import HarnessError, InvariantError, MalformedHistory, UsageError
from harness.history import chunks, record_frames
from harness.history.chunks import ChunkWriter, InlineExecutor, scan
from harness.history.records import Complete, Invoke, MicroOp, Note, Record

FLIPS = 3_000


def chunked(directory: Path, records: list[Record], chunk_bytes: int = 400) -> list[Path]:
    writer = ChunkWriter(directory, chunk_bytes, reserve_bytes=0, overgrown=1)
    for record in records:
        writer.append(record)
    writer.close()
    return sorted(directory.glob("*.chunk"))


def fill(writer: ChunkWriter, make: Callable[[int], Record]) -> tuple[int, str]:
    """Append until the disk refuses: how many records went in, and what was said then."""
    written = 0
    try:
        while True:
            writer.append(make(written))
            written += 1
    except HarnessError as error:
        return written, str(error)


def is_prefix(found: list[Record], written: list[Record]) -> bool:
    return found == written[: len(found)]


def test_records_come_back_in_the_order_of_writing_over_several_chunks(tmp_path: Path) -> None:
    files = chunked(tmp_path / "chunks", small_history())
    found = scan(tmp_path / "chunks")

    assert len(files) > 2
    assert list(found) == small_history()
    assert found.torn == ()


def test_a_record_is_with_the_operating_system_when_append_returns(tmp_path: Path) -> None:
    writer = ChunkWriter(tmp_path / "chunks", reserve_bytes=0)
    for count, record in enumerate(small_history(), start=1):
        writer.append(record)

        found = scan(tmp_path / "chunks")
        assert list(found) == small_history()[:count]
        assert [torn.cut_off for torn in found.torn] == [True]
    writer.close()


def test_every_truncation_leaves_a_prefix_and_says_where_it_ends(tmp_path: Path) -> None:
    written = small_history()
    for path in chunked(tmp_path / "chunks", written):
        whole = path.read_bytes()
        for size in range(len(whole)):
            path.write_bytes(whole[:size])
            found = scan(tmp_path / "chunks")
            records = list(found)

            assert is_prefix(records, written)
            (torn,) = found.torn
            assert (torn.file, torn.cut_off) == (path, True)
            assert torn.offset <= size
        path.write_bytes(whole)
    assert list(scan(tmp_path / "chunks")) == written


def test_flipped_bits_leave_a_prefix_or_are_named(tmp_path: Path) -> None:
    written = small_history()
    files = chunked(tmp_path / "chunks", written)
    stream = random.Random(3)
    for _ in range(FLIPS):
        path = stream.choice(files)
        whole = path.read_bytes()
        place = stream.randrange(len(whole) * 8)
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        found = scan(tmp_path / "chunks")

        assert is_prefix(list(found), written)
        assert [torn.file for torn in found.torn] == [path]
        path.write_bytes(whole)


def test_frames_that_change_places_or_repeat_break_the_chain(tmp_path: Path) -> None:
    written: list[Record] = [Note(at_ns=n, text="same size") for n in range(3)]
    (path,) = chunked(tmp_path / "chunks", written, chunk_bytes=1 << 20)
    whole = path.read_bytes()
    head, tail = whole[: record_frames.HEADER.size], whole[-record_frames.FRAME.size :]
    body = whole[record_frames.HEADER.size : -record_frames.FRAME.size]
    size = len(body) // 3
    first, second, third = body[:size], body[size : 2 * size], body[2 * size :]

    for frames_then, kept in (
        ((first, third, second), 1),
        ((first, first, second, third), 1),
        ((first, third), 1),
        ((second, third), 0),
        ((first, second), 2),
    ):
        path.write_bytes(head + b"".join(frames_then) + tail)
        found = scan(tmp_path / "chunks")
        assert list(found) == written[:kept]
        assert len(found.torn) == 1


def test_a_missing_chunk_ends_the_stream_before_it(tmp_path: Path) -> None:
    files = chunked(tmp_path / "chunks", small_history())
    files[1].unlink()
    found = scan(tmp_path / "chunks")
    records = list(found)

    assert is_prefix(records, small_history())
    assert 0 < len(records) < len(small_history())
    told = "the chunk is missing; the chunks behind it, up to w0-000003.chunk, were not read"
    assert str(found.torn[0]) == f"w0-000001.chunk at byte 0: {told}"


def test_a_chunk_of_another_run_is_not_taken_for_the_next(tmp_path: Path) -> None:
    files = chunked(tmp_path / "chunks", small_history())
    others = chunked(tmp_path / "other", [Note(at_ns=1, text="x" * 500), *small_history()])
    files[1].write_bytes(others[1].read_bytes())
    found = scan(tmp_path / "chunks")

    assert is_prefix(list(found), small_history())
    assert "not the successor" in str(found.torn[0])


def test_bytes_after_the_end_are_noticed(tmp_path: Path) -> None:
    files = chunked(tmp_path / "chunks", small_history())
    with files[-1].open("ab") as stream:
        stream.write(b"\0")
    found = scan(tmp_path / "chunks")

    assert list(found) == small_history()
    assert "after the mark of the end" in str(found.torn[0])


def test_a_later_format_is_refused_by_its_number(tmp_path: Path) -> None:
    (path,) = chunked(tmp_path / "chunks", [], chunk_bytes=1 << 20)
    later = record_frames.Header(record_frames.VERSION + 1, 0, 0, 0).pack()
    path.write_bytes(later + path.read_bytes()[record_frames.HEADER.size :])

    with pytest.raises(MalformedHistory, match="expected chunk format 1, found 2"):
        list(scan(tmp_path / "chunks"))


def test_a_record_that_claims_to_be_huge_is_not_read(tmp_path: Path) -> None:
    (path,) = chunked(tmp_path / "chunks", small_history(), chunk_bytes=1 << 20)
    huge = record_frames.FRAME.pack(record_frames.MAX_RECORD_BYTES + 1, 0)
    path.write_bytes(path.read_bytes()[: record_frames.HEADER.size] + huge)
    found = scan(tmp_path / "chunks")

    assert list(found) == []
    assert f"claims {record_frames.MAX_RECORD_BYTES + 1} bytes" in str(found.torn[0])


def test_several_writers_are_merged_by_time(tmp_path: Path) -> None:
    for number, times in enumerate(((10, 30, 50), (20, 30, 40))):
        writer = ChunkWriter(tmp_path / "chunks", writer=number, reserve_bytes=0)
        for index, at_ns in enumerate(times):
            writer.append(invoke(index, append(number, index), at_ns=at_ns))
        writer.close()
    found = [record.at_ns for record in scan(tmp_path / "chunks")]

    assert found == [10, 20, 30, 30, 40, 50]


def test_a_second_history_never_replaces_the_first(tmp_path: Path) -> None:
    chunked(tmp_path / "chunks", small_history())

    with pytest.raises(UsageError, match="there is a history already"):
        ChunkWriter(tmp_path / "chunks")
    assert list(scan(tmp_path / "chunks")) == small_history()


def test_no_directory_and_no_chunk_are_both_named(tmp_path: Path) -> None:
    with pytest.raises(MalformedHistory, match="nowhere: expected the chunks of a run"):
        scan(tmp_path / "nowhere")
    with pytest.raises(MalformedHistory, match="found none"):
        scan(tmp_path)


@pytest.mark.parametrize(
    "op",
    [MicroOp("append", 1 << 63, 1), append(1, -(1 << 63) - 1), read(1, 5, 1 << 70)],
    ids=["key", "value", "element"],
)
def test_what_no_table_can_hold_is_refused_when_it_is_appended(tmp_path: Path, op: MicroOp) -> None:
    writer = ChunkWriter(tmp_path / "chunks", reserve_bytes=0)
    writer.append(invoke(0, append(1, 1)))
    with pytest.raises(InvariantError, match=r"operation 1: .* must fit in 64 bits"):
        writer.append(invoke(1, op))
    writer.append(complete(2, 0, append(1, 1)))
    writer.close()

    assert [type(record) for record in scan(tmp_path / "chunks")] == [Invoke, Complete]


def test_the_limit_of_a_record_is_exact(tmp_path: Path) -> None:
    writer = ChunkWriter(tmp_path / "chunks", reserve_bytes=0)
    around = len(record_frames.ENCODER.encode(Note(at_ns=1, text="x" * 70_000))) - 70_000
    fits = Note(at_ns=1, text="x" * (record_frames.MAX_RECORD_BYTES - around))
    writer.append(fits)
    with pytest.raises(InvariantError, match="may have at most"):
        writer.append(Note(at_ns=1, text=fits.text + "x"))
    writer.close()

    assert list(scan(tmp_path / "chunks")) == [fits]


def test_text_that_is_no_unicode_is_kept_as_escapes(tmp_path: Path) -> None:
    writer = ChunkWriter(tmp_path / "chunks", reserve_bytes=0)
    writer.append(Note(at_ns=1, text="no such file: \udcff"))
    writer.close()

    assert list(scan(tmp_path / "chunks")) == [Note(at_ns=1, text="no such file: \\udcff")]


def test_nothing_is_appended_after_the_end(tmp_path: Path) -> None:
    writer = ChunkWriter(tmp_path / "chunks", reserve_bytes=0)
    writer.close()
    writer.close()

    with pytest.raises(InvariantError, match="after the end"):
        writer.append(small_history()[0])


LIMITED = """
import resource, sys
from pathlib import Path
from harness.errors import HarnessError
from harness.history.chunks import ChunkWriter
from harness.history.records import Note
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
writer = ChunkWriter(Path(sys.argv[1]), reserve_bytes=0)
written = 0
try:
    while True:
        writer.append(Note(at_ns=written, text="x" * 100))
        written += 1
except HarnessError as error:
    print(written, error)
"""


def test_a_disk_that_refuses_is_named_and_earlier_records_stay(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LIMITED, str(tmp_path / "chunks")]
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    written, sentence = said.split(" ", 1)
    found = list(scan(tmp_path / "chunks"))

    assert [record.at_ns for record in found] == list(range(int(written)))
    assert "w0-000000.chunk" in sentence
    assert "bytes is missing at offset" in sentence


def test_a_full_disk_ends_the_workload_and_keeps_room_for_its_end(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "2m") as disk:
        writer = ChunkWriter(disk / "chunks", 1 << 16, reserve_bytes=1 << 18)
        begun, error = fill(writer, lambda number: invoke(number, append(1, number)))
        for number in range(100):
            writer.append(complete(begun + number, number, append(1, number)))
        writer.close()
        found = scan(disk / "chunks")
        records = list(found)

    assert "the disk is full, so no operation is begun" in error
    assert found.torn == ()
    assert [r.index for r in records if isinstance(r, Invoke)] == list(range(begun))
    assert [r.invoke for r in records if isinstance(r, Complete)] == list(range(100))


def test_a_disk_full_to_the_last_byte_is_named(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        writer = ChunkWriter(disk / "chunks", 1 << 16, reserve_bytes=0)
        written, error = fill(writer, lambda number: Note(at_ns=number, text="x" * 100))
        found = [record.at_ns for record in scan(disk / "chunks")]

    assert "No space left on device: a record of" in error
    assert found == list(range(written))


def test_what_is_written_in_one_go_is_whole_up_to_what_no_history_can_hold(tmp_path: Path) -> None:
    records = [invoke(n, append(1, n), process=n) for n in range(4)]
    records[2] = invoke(2, append(1, 1 << 63), process=2)
    writer = ChunkWriter(tmp_path / "chunks", reserve_bytes=0)

    with pytest.raises(InvariantError, match=r"operation 2: .* 64 bits"):
        writer.extend(records)
    writer.extend(())
    writer.append(records[3])
    writer.close()

    assert list(scan(tmp_path / "chunks")) == [*records[:2], records[3]]


def test_a_disk_that_fills_up_in_one_go_keeps_what_comes_before_the_next_invocation(
    tmp_path: Path,
) -> None:
    long = Note(at_ns=1, text="x" * (1 << 19))
    done = complete(1, 0, append(1, 0))
    with small_disk(tmp_path / "disk", "2m") as disk:
        writer = ChunkWriter(disk / "chunks", reserve_bytes=1 << 20)
        writer.extend([invoke(0, append(1, 0)), long])
        with pytest.raises(HarnessError, match="the disk is full, so no operation is begun"):
            writer.extend([done, long, invoke(2, append(1, 1)), long])
        writer.close()
        found = list(scan(disk / "chunks"))

    assert found == [invoke(0, append(1, 0)), long, done, long]


def test_nobody_waits_for_a_slow_disk_until_a_chunk_outgrows_its_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = threading.Event()
    sync = chunks.sync_directory
    monkeypatch.setattr(chunks, "sync_directory", lambda path: (slow.wait(30), sync(path)))
    records: list[Record] = [Note(at_ns=i, text="x" * 60) for i in range(60)]

    writer = ChunkWriter(tmp_path / "chunks", 400, reserve_bytes=0)
    for record in records[:25]:
        writer.append(record)
    sizes = [path.stat().st_size for path in sorted((tmp_path / "chunks").glob("*.chunk"))]
    slow.set()
    for record in records[25:]:
        writer.append(record)
    writer.close()

    assert len(sizes) == 2  # the second waits for the first, and grows meanwhile
    assert sizes[1] > 3 * sizes[0]
    assert list(scan(tmp_path / "chunks")) == records


def test_a_sync_that_failed_ends_the_stream_for_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records: list[Record] = [Note(at_ns=i, text="x" * 60) for i in range(60)]
    refused = [OSError(errno.EIO, "Input/output error")]  # a kernel tells of it once

    def sync(handle: int) -> None:
        if refused:
            raise refused.pop()

    monkeypatch.setattr("harness.history.chunks.os.fsync", sync)
    writer = ChunkWriter(tmp_path / "chunks", 400, reserve_bytes=0, executor=InlineExecutor())
    written, error = fill(writer, lambda number: records[number])

    assert "Input/output error" in error
    for _ in range(2):
        with pytest.raises(HarnessError, match="Input/output error"):
            writer.append(records[-1])
    with pytest.raises(HarnessError, match="Input/output error"):
        writer.sync()
    with pytest.raises(
        HarnessError, match=r"Input/output error: the mark of its end is missing \("
    ):
        writer.close()

    found = scan(tmp_path / "chunks")
    assert list(found) == records[:written]
    assert len(found.torn) == 1  # without its end it is a prefix
