"""The shared log on a real directory: round trips, torn tails, damage."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from clusters.reference.node.raft.types import Entry, HardState
from clusters.reference.node.runtime import DiskError
from clusters.reference.node.runtime.disks import FileDisk
from clusters.reference.node.storage import shared_log
from clusters.reference.node.storage.log_records import SEGMENT_HEADER_BYTES, CorruptLog, Update
from clusters.reference.node.storage.shared_log import SharedLog, segment_name

FIRST = segment_name(1)


@contextmanager
def disk(directory: Path) -> Iterator[FileDisk]:
    opened = FileDisk(directory)
    try:
        yield opened
    finally:
        opened.close()


def write(directory: Path, *commits: tuple[Update, ...]) -> list[int]:
    """Write commits; the size of the first segment after each."""

    async def run(files: FileDisk) -> list[int]:
        log = SharedLog(files)
        await log.open()
        sizes = []
        for commit in commits:
            await log.append(commit)
            sizes.append((directory / FIRST).stat().st_size)
        return sizes

    with disk(directory) as files:
        return asyncio.run(run(files))


def recover(directory: Path) -> SharedLog:
    with disk(directory) as files:
        log = SharedLog(files)
        asyncio.run(log.open())
        return log


def entries_of(log: SharedLog, group: str) -> list[Entry]:
    return list(log.groups[group].entries) if group in log.groups else []


def entry(index: int, term: int = 1) -> Entry:
    return Entry(term, index, f"data {term}/{index}".encode())


def put(group: str, *entries: Entry, term: int | None = None) -> Update:
    return Update(group, None if term is None else HardState(term, "n1"), entries)


COMMITS = (
    (put("p0", entry(1), term=1), put("p1", entry(1))),
    (put("p0", entry(2), entry(3)),),
    (put("p0", entry(4)), put("p1", entry(2), term=7)),
)


def test_a_recovered_log_holds_every_group_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path, *COMMITS)

    log = recover(tmp_path)

    assert entries_of(log, "p0") == [entry(i) for i in (1, 2, 3, 4)]
    assert entries_of(log, "p1") == [entry(1), entry(2)]
    assert log.groups["p0"].hard_state == HardState(1, "n1")
    assert log.groups["p1"].hard_state == HardState(7, "n1")
    assert log.torn is None


def test_entries_replace_everything_from_their_first_index_on(tmp_path: Path) -> None:
    write(tmp_path, (put("p0", entry(1), entry(2), entry(3)),), (put("p0", entry(2, term=5)),))

    assert entries_of(recover(tmp_path), "p0") == [entry(1), entry(2, term=5)]


def test_a_tail_torn_at_any_byte_is_cut_and_the_log_goes_on_behind_it(tmp_path: Path) -> None:
    sizes = write(tmp_path, *COMMITS)
    whole = (tmp_path / FIRST).read_bytes()

    for size in range(len(whole) + 1):
        (tmp_path / FIRST).write_bytes(whole[:size])
        complete = sum(end <= size for end in sizes)

        log = recover(tmp_path)

        boundary = size in (0, *sizes) or size == SEGMENT_HEADER_BYTES
        assert (log.torn is None) == boundary, size
        assert len(entries_of(log, "p0")) == (0, 1, 3, 4)[complete]
        write(tmp_path, (put("p9", entry(1)),))
        after = recover(tmp_path)
        assert entries_of(after, "p9") == [entry(1)]
        assert after.torn is None


def test_a_flip_in_the_last_record_is_a_torn_tail_and_before_it_refuses_the_start(
    tmp_path: Path,
) -> None:
    sizes = write(tmp_path, *COMMITS)
    whole = (tmp_path / FIRST).read_bytes()

    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x40
        (tmp_path / FIRST).write_bytes(damaged)
        if position >= sizes[-2]:
            log = recover(tmp_path)
            assert log.torn is not None
            assert log.torn.offset == sizes[-2]
            assert len(entries_of(log, "p0")) == 3
        else:
            with pytest.raises(CorruptLog, match=FIRST):
                recover(tmp_path)


def test_damage_is_reported_with_file_offset_and_reason(tmp_path: Path) -> None:
    sizes = write(tmp_path, *COMMITS)
    damaged = bytearray((tmp_path / FIRST).read_bytes())
    damaged[sizes[0] + 20] ^= 1
    (tmp_path / FIRST).write_bytes(damaged)

    with pytest.raises(CorruptLog) as caught:
        recover(tmp_path)

    assert str(caught.value) == (
        f"{FIRST} at byte {sizes[0]}: a record's CRC does not match, "
        f"and a good record follows at byte {sizes[1]}"
    )


def test_a_tail_of_zeros_is_torn(tmp_path: Path) -> None:
    sizes = write(tmp_path, *COMMITS)
    with (tmp_path / FIRST).open("ab") as file:
        file.write(bytes(4096))

    log = recover(tmp_path)

    assert log.torn is not None
    assert (log.torn.offset, log.torn.cut_bytes) == (sizes[-1], 4096)
    assert len(entries_of(log, "p0")) == 4


def test_a_first_write_of_which_only_later_sectors_came_to_the_disk_is_torn(
    tmp_path: Path,
) -> None:
    write(tmp_path, (put("p0", Entry(1, 1, b"x" * 900)),))
    whole = (tmp_path / FIRST).read_bytes()
    (tmp_path / FIRST).write_bytes(bytes(512) + whole[512:])

    log = recover(tmp_path)

    assert log.torn is not None
    assert (log.torn.offset, log.groups) == (0, {})
    write(tmp_path, (put("p0", entry(1)),))
    assert entries_of(recover(tmp_path), "p0") == [entry(1)]


def test_a_header_that_is_gone_before_a_good_record_refuses_the_start(tmp_path: Path) -> None:
    write(tmp_path, (put("p0", Entry(1, 1, b"x" * 900)),), (put("p0", entry(2)),))
    whole = (tmp_path / FIRST).read_bytes()
    (tmp_path / FIRST).write_bytes(bytes(512) + whole[512:])

    with pytest.raises(CorruptLog, match="a good record follows"):
        recover(tmp_path)


def test_a_copy_of_a_record_inside_a_value_is_not_taken_for_a_record(tmp_path: Path) -> None:
    write(tmp_path, *COMMITS)
    stored = (tmp_path / FIRST).read_bytes()
    write(tmp_path, (put("p2", Entry(1, 1, stored)),))
    whole = (tmp_path / FIRST).read_bytes()
    (tmp_path / FIRST).write_bytes(whole[:-1])

    log = recover(tmp_path)

    assert log.torn is not None
    assert len(entries_of(log, "p0")) == 4


def test_segments_are_closed_when_full_and_none_may_be_missing_or_torn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_log, "SEGMENT_BYTES", 100)
    write(tmp_path, *((put("p0", entry(i)),) for i in range(1, 9)))
    assert (tmp_path / segment_name(3)).exists()
    assert len(entries_of(recover(tmp_path), "p0")) == 8

    second = tmp_path / segment_name(2)
    kept = second.read_bytes()
    second.write_bytes(kept[:-1])
    with pytest.raises(CorruptLog, match="in a segment that was closed"):
        recover(tmp_path)

    second.unlink()
    with pytest.raises(CorruptLog, match="segment 2 is missing"):
        recover(tmp_path)


def test_a_large_commit_is_written_as_several_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_log, "COMMIT_BYTES", 10)
    write(tmp_path, tuple(put(f"p{i}", entry(1)) for i in range(5)))

    log = recover(tmp_path)

    assert [len(entries_of(log, f"p{i}")) for i in range(5)] == [1] * 5


def test_a_gap_in_a_group_refuses_the_start(tmp_path: Path) -> None:
    write(tmp_path, (put("p0", entry(1)),), (put("p0", entry(3)),))

    with pytest.raises(CorruptLog, match="group p0: entries from 3 on, after 1"):
        recover(tmp_path)


def test_a_directory_belongs_to_one_node_at_a_time(tmp_path: Path) -> None:
    with disk(tmp_path), pytest.raises(DiskError, match="another node runs in this directory"):
        FileDisk(tmp_path)
    with disk(tmp_path):
        pass


def test_the_name_of_a_file_is_durable_even_where_who_made_it_was_killed_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / FIRST).touch()
    synced: list[str] = []
    fsync = os.fsync

    def noted(handle: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{handle}"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    with disk(tmp_path) as files:
        asyncio.run(files.append(FIRST, b"x", sync=True))
        asyncio.run(files.append(FIRST, b"y", sync=True))

    assert synced == [str(tmp_path)]


def test_a_synced_append_makes_what_came_before_it_durable_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole: list[int] = []
    fdatasync = os.fdatasync

    def noted(handle: int) -> None:
        whole.append(os.stat(handle).st_size)
        fdatasync(handle)

    monkeypatch.setattr(os, "fdatasync", noted)

    async def body(files: FileDisk) -> None:
        await files.append(FIRST, b"1", sync=True)  # an earlier process may have left more
        await files.append(FIRST, b"2", sync=True)
        await files.append(FIRST, b"3", sync=False)
        await files.append(FIRST, b"4", sync=True)

    with disk(tmp_path) as files:
        asyncio.run(body(files))

    assert whole == [1, 4]
    assert (tmp_path / FIRST).read_bytes() == b"1234"


def test_files_have_flat_names_only(tmp_path: Path) -> None:
    with disk(tmp_path) as files, pytest.raises(DiskError, match="not a flat"):
        asyncio.run(files.append("../evil", b"x", sync=True))
