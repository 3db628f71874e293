"""The shared log under snapshots and cuts: bounded, and whole after a crash at any moment."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest

from clusters.providers.sim.disk import Platter, SimDisk
from clusters.providers.sim.loop import simulate
from clusters.reference.node.raft.configuration import Configuration
from clusters.reference.node.raft.types import Entry, HardState, Mark
from clusters.reference.node.runtime import DiskError
from clusters.reference.node.runtime.disks import VolatileDisk
from clusters.reference.node.storage import shared_log
from clusters.reference.node.storage.log_records import Compaction, CorruptLog, SnapshotFile, Update
from clusters.reference.node.storage.shared_log import SharedLog
from clusters.reference.node.storage.snapshot_files import SnapshotFiles
from clusters.reference.node.tx.limits import MAX_TX_BYTES

MEMBERS = Configuration(("n1", "n2", "n3"))


class CutOff(SimDisk):
    """A disk that refuses everything after a number of changes: the process is killed there."""

    def __init__(self, platter: Platter, changes: int) -> None:
        super().__init__(platter)
        self._left = changes

    def _change(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise DiskError("killed here")

    async def append(self, name: str, data: bytes, *, sync: bool) -> None:
        self._change()
        await super().append(name, data, sync=sync)

    async def delete(self, name: str) -> None:
        self._change()
        await super().delete(name)


def entry(index: int) -> Entry:
    return Entry(1, index, b"%04d" % index * 10)


def put(group: str, index: int) -> Update:
    return Update(group, None, (entry(index),))


async def opened(disk: SimDisk) -> SharedLog:
    log = SharedLog(disk)
    await log.open()
    return log


async def life(disk: SimDisk, acknowledged: list[int]) -> None:
    """Write to a busy and an idle group; save and cut the busy one now and then."""
    log, files = await opened(disk), SnapshotFiles(disk)
    first = Update("busy", HardState(1, "n1"), (), Compaction(Mark(0, 0, MEMBERS)))
    await log.append([first, Update("idle", HardState(1, "n2"), (entry(1), entry(2)))])
    saved: SnapshotFile | None = None
    for index in range(1, 60):
        await log.append([put("busy", index)])
        acknowledged.append(index)
        if index % 10 == 0:
            chunks = [b"state at %d" % index, b"x" * 100]
            before, saved = saved, await files.write("busy", Mark(index, 1, MEMBERS), chunks)
            cut = Compaction(Mark(index - 3, 1, MEMBERS), saved)
            await log.append([Update("busy", None, (), cut)])
            if before is not None:
                await files.delete(before.file)


async def check(platter: Platter, acknowledged: list[int]) -> None:
    """What was acknowledged is there, in the snapshot or behind it."""
    disk = SimDisk(platter)
    log, files = await opened(disk), SnapshotFiles(disk)
    if not acknowledged:
        return
    busy, idle = log.groups["busy"], log.groups["idle"]
    await files.sweep([busy.saved.file] if busy.saved else [])
    assert busy.problem() is None
    assert busy.hard_state == HardState(1, "n1")
    assert busy.base.configuration == MEMBERS
    assert [e.index for e in busy.entries][:1] in ([], [busy.base.index + 1])
    last = busy.entries[-1].index if busy.entries else busy.base.index
    assert last >= acknowledged[-1]
    assert list(busy.entries) == [entry(i) for i in range(busy.base.index + 1, last + 1)]
    if busy.saved is not None:
        assert busy.base.index <= busy.saved.mark.index <= last
        chunks = [chunk async for chunk in files.chunks(busy.saved)]
        assert chunks[0] == b"state at %d" % busy.saved.mark.index
        files_left = [n for n in await disk.names() if n.startswith("snap-")]
        assert files_left == [busy.saved.file]
    assert (idle.hard_state, list(idle.entries)) == (HardState(1, "n2"), [entry(1), entry(2)])
    await log.append([put("busy", last + 1)])  # and it goes on
    assert (await opened(disk)).groups["busy"].entries[-1] == entry(last + 1)


@pytest.mark.parametrize(
    ("commit_bytes", "seeds", "most"), [(shared_log.COMMIT_BYTES, 3, 150), (100, 1, 300)]
)
def test_a_crash_at_any_change_of_the_disk_loses_nothing_acknowledged(
    commit_bytes: int, seeds: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second time what is written again, so that a segment can go, is several records."""
    monkeypatch.setattr(shared_log, "SEGMENT_BYTES", 700)
    monkeypatch.setattr(shared_log, "COMMIT_BYTES", commit_bytes)
    for seed in range(seeds):
        for changes in range(most):
            platter, acknowledged = Platter(random.Random(seed)), list[int]()

            async def one(platter: Platter = platter, a: list[int] = acknowledged) -> bool:
                try:
                    await life(CutOff(platter, changes), a)  # noqa: B023 (it runs at once)
                except DiskError:
                    platter.crash()
                    await check(platter, a)
                    return True
                return False

            killed = simulate(one())
            assert killed or acknowledged[-1] == 59
    assert not killed  # the last of them saw the whole life


def large(group: str, entries: int) -> Update:
    return Update(group, HardState(2, "n1"), tuple(entry(i) for i in range(3, 3 + entries)))


def test_an_update_larger_than_a_record_counts_once_its_last_part_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_log, "COMMIT_BYTES", 100)
    monkeypatch.setattr(shared_log, "SEGMENT_BYTES", 300)

    async def attempt(changes: int) -> int:
        """The log's end after a kill at the given change, and after it has gone on."""
        platter = Platter(random.Random(1))
        log = await opened(SimDisk(platter))
        await log.append([put("p0", index) for index in range(1, 6)])
        with suppress(DiskError):
            await (await opened(CutOff(platter, changes))).append([large("p0", 10)])
        platter.crash()
        log = await opened(SimDisk(platter))
        state = log.groups["p0"]
        assert state.problem() is None
        last = state.entries[-1].index
        assert (state.hard_state.term, last) in ((0, 5), (2, 12))
        await log.append([put("p0", last + 1)])
        assert (await opened(SimDisk(platter))).groups["p0"].entries[-1] == entry(last + 1)
        return last

    ends = [simulate(attempt(changes)) for changes in range(1, 12)]
    assert ends == sorted(ends)
    assert (ends[0], ends[3], ends[-1]) == (5, 5, 12)


def test_seventeen_entries_of_the_largest_size_are_one_update() -> None:
    async def scenario() -> None:
        platter = Platter(random.Random(1))
        log = await opened(SimDisk(platter))
        entries = tuple(Entry(1, index, b"x" * MAX_TX_BYTES) for index in range(1, 18))
        await log.append([Update("p0", None, entries)])
        assert tuple((await opened(SimDisk(platter))).groups["p0"].entries) == entries

    simulate(scenario())


def test_the_log_is_bounded_however_much_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_log, "SEGMENT_BYTES", 10_000)

    async def scenario() -> list[int]:
        platter = Platter(random.Random(1))
        log, sizes = await opened(SimDisk(platter)), []
        await log.append([Update("idle", HardState(1, "n2"), (entry(1),))])
        for index in range(1, 5001):
            await log.append([put("busy", index)])
            if index % 100 == 0:
                cut = Compaction(
                    Mark(index - 20, 1, MEMBERS), SnapshotFile(Mark(index, 1, MEMBERS), "f", 1)
                )
                await log.append([Update("busy", None, (), cut)])
                sizes.append(log.size_bytes)
                on_disk = sum(len(file.data) for file in platter.files.values())
                assert on_disk == log.size_bytes
        again = await opened(SimDisk(platter))
        assert list(again.groups["idle"].entries) == [entry(1)]
        assert again.groups["busy"].base.index == 4980
        return sizes

    sizes = simulate(scenario())

    assert max(sizes) < 5 * 10_000  # 400,000 bytes were written
    assert max(sizes[-10:]) <= max(sizes[:10]) + 10_000


def test_without_cuts_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_log, "SEGMENT_BYTES", 1000)

    async def scenario() -> int:
        platter = Platter(random.Random(1))
        log = await opened(SimDisk(platter))
        for index in range(1, 201):
            await log.append([put("busy", index)])
        return len((await opened(SimDisk(platter))).groups["busy"].entries)

    assert simulate(scenario()) == 200


def test_a_log_whose_first_segment_is_lost_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_log, "SEGMENT_BYTES", 1000)

    async def scenario() -> None:
        platter = Platter(random.Random(1))
        log = await opened(SimDisk(platter))
        for index in range(1, 101):
            await log.append([put("busy", index)])
        del platter.files["log-00000001"]
        with pytest.raises(CorruptLog, match="group busy: entries from"):
            await opened(SimDisk(platter))

    simulate(scenario())


def test_an_installed_snapshot_replaces_everything_and_an_older_cut_comes_too_late() -> None:
    async def scenario() -> None:
        platter = Platter(random.Random(1))
        log = await opened(SimDisk(platter))
        await log.append([put("p0", index) for index in range(1, 11)])
        installed = SnapshotFile(Mark(30, 2, MEMBERS), "new", 1)
        await log.append(
            [Update("p0", None, (), Compaction(installed.mark, installed, whole=True))]
        )
        late = SnapshotFile(Mark(8, 1, MEMBERS), "old", 1)
        await log.append([Update("p0", None, (), Compaction(Mark(5, 1, MEMBERS), late))])
        for state in (log.groups["p0"], (await opened(SimDisk(platter))).groups["p0"]):
            assert (state.base, state.saved, list(state.entries)) == (
                installed.mark,
                installed,
                [],
            )

    simulate(scenario())


def test_a_group_that_is_dropped_is_forgotten() -> None:
    async def scenario() -> None:
        platter = Platter(random.Random(1))
        log = await opened(SimDisk(platter))
        await log.append([put("p0", 1), put("p1", 1)])
        await log.append([Update("p0", None, (), None, dropped=True)])
        assert list((await opened(SimDisk(platter))).groups) == ["p1"]

    simulate(scenario())


def test_a_damaged_snapshot_is_refused_with_its_place() -> None:
    async def scenario() -> None:
        platter = Platter(random.Random(1))
        files = SnapshotFiles(SimDisk(platter))
        saved = await files.write("p0", Mark(1, 1, MEMBERS), [b"one", b"two"])
        assert [chunk async for chunk in files.chunks(saved)] == [b"one", b"two"]
        whole = bytes(platter.files[saved.file].data)
        for position in range(len(whole)):
            platter.files[saved.file].data[position] ^= 1
            with pytest.raises(CorruptLog, match=saved.file):
                [chunk async for chunk in files.chunks(saved)]
            platter.files[saved.file].data[position] ^= 1
        del platter.files[saved.file].data[-1:]
        with pytest.raises(CorruptLog, match="bytes expected"):
            [chunk async for chunk in files.chunks(saved)]

    simulate(scenario())


def test_in_power_loss_mode_a_kill_loses_what_was_not_synced_and_nothing_else() -> None:
    async def scenario() -> None:
        platter = Platter(random.Random(1))
        disk = VolatileDisk(SimDisk(platter))
        await disk.append("a", b"synced.", sync=True)
        await disk.append("a", b"tail", sync=False)
        await disk.append("b", b"new", sync=False)
        assert await disk.read("a") == b"synced.tail"
        assert await disk.read_at("a", 5, 4) == b"d.ta"
        assert await disk.names() == ("a", "b")
        after_a_kill = SimDisk(platter)
        assert (await after_a_kill.names(), await after_a_kill.read("a")) == (("a",), b"synced.")

        await disk.append("a", b"", sync=True)
        assert await after_a_kill.read("a") == b"synced.tail"

    simulate(scenario())


def test_a_later_life_of_a_replica_is_known_though_the_segment_that_told_of_it_is_gone() -> None:
    async def main() -> None:
        disk = SimDisk(Platter(random.Random(1), "n1"))
        log = SharedLog(disk, segment_bytes=512)
        await log.open()
        await log.append([Update("moved", HardState(1, "n1"), (), Compaction(Mark(0, 0, MEMBERS)))])
        await log.append([Update("moved", None, (), dropped=2)])
        told_in = await disk.names()
        # All that it holds stands in later segments: its votes, and what was cut.
        for index in range(1, 200):
            cut = Compaction(Mark(index, 1, MEMBERS))
            await log.append([Update("moved", HardState(index, "n1"), (entry(index),), cut)])
        assert not set(told_in) & set(await disk.names())
        again = SharedLog(disk, segment_bytes=512)
        await again.open()
        assert (again.groups["moved"].life, log.groups["moved"].life) == (2, 2)

    simulate(main())
