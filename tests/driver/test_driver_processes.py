"""Several driver processes: real ones, against a store that refuses every connection."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import attrs
import pytest

from harness.clock import NS_PER_S, RunClock
from harness.driving import driver_pool, protocol
from harness.driving.driver_pool import DriverPool
from harness.errors import HarnessError, PlanError
from harness.history.chunks import ChunkWriter
from harness.history.manifest import PREFIX, RUNNING, SEALED, write_manifest
from harness.history.records import Complete, Invoke, OpType, PhaseMark, Record
from harness.history.run_directory import SCHEMA_VERSION, Manifest, RunDirectory
from harness.history.scan import scan
from harness.history.seal import seal
from harness.plan.plan import dumps, loads
from harness.protocols.cluster import Address, Cluster
from harness.protocols.promise import Declaration
from harness.run.controller_health import LoopStats
from harness.run.stop import SETTLE_LIMIT_S, Stop

COMMAND = (sys.executable, "-m", "cli.driver_process")
NOBODY = Address(host="127.0.0.1", port=1)
NODES = ("n1", "n2", "n3")
CONCURRENCY = 5
PLAN = f"""
seed = 7
[cluster]
provider = "process"
nodes = 3
[drive]
concurrency = {CONCURRENCY}
drivers = 2
op_deadline_s = 1.0
"""
Scene = Callable[["Rig"], Awaitable[None]]


@attrs.define
class Rig:
    pool: DriverPool
    clock: RunClock
    run: RunDirectory
    seen: list[OpType]

    async def drive(self, for_s: float) -> None:
        await self.pool.enlist()
        await self.pool.drive(self.clock.now_ns() + int(for_s * NS_PER_S))

    async def recording(self) -> None:
        """Wait until every process has recorded something."""
        streams = [self.run.chunks / f"w{n}-000000.chunk" for n in (1, 2)]
        async with asyncio.timeout(20):
            while not all(s.exists() and s.stat().st_size > 2000 for s in streams):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    def records(self) -> dict[int, list[Record]]:
        by_writer: dict[int, list[Record]] = {}
        for stream, record in scan(self.run.chunks).placed():
            by_writer.setdefault(stream.writer, []).append(record)
        return by_writer


def rigged(path: Path, scene: Scene) -> Rig:
    """``scene`` with two driver processes; the run's own stream holds a mark, as always."""
    run = RunDirectory(path / "run")
    run.root.mkdir()
    run.plan.write_text(dumps(loads(PLAN)))
    manifest = Manifest(
        schema_version=SCHEMA_VERSION,
        run_id="run",
        state=RUNNING,
        versions={},
        machine={},
        declaration=Declaration(system="reference", mode="SC", promises=()),
        workload="list-append",
        checkers=(),
    )
    write_manifest(run, manifest)
    everywhere = {node: {"client": NOBODY, "peer": NOBODY} for node in NODES}
    links = {(a, b): {"peer": NOBODY} for a in NODES for b in NODES if a != b}
    cluster = Cluster(
        nodes=NODES,
        bind=everywhere,
        peer=links,
        client=everywhere,
        work_dir=dict.fromkeys(NODES, "/"),
    )

    async def main() -> Rig:
        clock = RunClock(asyncio.get_running_loop())
        writer = ChunkWriter(run.chunks, reserve_bytes=0)
        writer.append(PhaseMark(name="drive", at_ns=clock.now_ns()))
        seen: list[OpType] = []
        members = DriverPool(
            command=COMMAND,
            count=2,
            plan=run.plan,
            chunks=run.chunks,
            cluster=cluster,
            clock=clock,
            op_deadline_s=1.0,
            observe=lambda type_, _error: seen.append(type_),
        )
        rig = Rig(members, clock, run, seen)
        try:
            await scene(rig)
        finally:
            await members.close()
            writer.close()
        return rig

    return asyncio.run(main())


def test_each_drives_slots_of_its_own_on_one_axis_and_sealing_merges_them(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        await rig.drive(1.0)
        assert not await rig.pool.read_all(rig.clock.now_ns() + NS_PER_S // 4)

    rig = rigged(tmp_path, scene)
    records = rig.records()

    assert rig.pool.trouble == ()
    assert 0 < rig.pool.loop_stats().cpu_s < 60, "two processes used the machine for some seconds"
    assert rig.pool.loop_stats() == LoopStats(), "what was told is not told again"
    slots = {}
    for number in (0, 1):
        invokes = [r for r in records[number + 1] if isinstance(r, Invoke)]
        ends = [r for r in records[number + 1] if isinstance(r, Complete)]
        assert len(invokes) == len(ends) > 0
        slots[number] = {invoke.process % CONCURRENCY for invoke in invokes}
        assert all(0 < invoke.at_ns <= rig.clock.now_ns() + 20 * NS_PER_S for invoke in invokes)
    assert slots == {0: {0, 2, 4}, 1: {1, 3}}
    values = [
        op.value
        for number in (1, 2)
        for r in records[number]
        if isinstance(r, Invoke)
        for op in r.ops
        if op.f == "append"
    ]
    assert len(values) == len(set(values)) > 0
    assert len(rig.seen) == sum(isinstance(r, Complete) for n in (1, 2) for r in records[n])

    manifest = seal(rig.run, partition_of=None)
    assert manifest.state == SEALED
    assert manifest.trouble == ()


def test_one_that_is_killed_ends_the_others_and_cuts_the_history(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        driving = asyncio.ensure_future(rig.drive(60.0))
        await rig.recording()
        os.kill(rig.pool.pids[1], signal.SIGKILL)
        async with asyncio.timeout(20):
            await driving
        assert not await rig.pool.read_all(rig.clock.now_ns() + NS_PER_S)

    rig = rigged(tmp_path, scene)

    (sentence,) = rig.pool.trouble
    assert "driver process 1" in sentence
    assert "killed by SIGKILL" in sentence
    last_ns = max(r.at_ns for r in rig.records()[2] if isinstance(r, Invoke | Complete))
    manifest = seal(rig.run, partition_of=None)
    assert manifest.state == PREFIX
    assert manifest.cut_ns == last_ns


def test_without_their_run_they_end_and_what_they_recorded_stays_whole(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        driving = asyncio.ensure_future(rig.drive(60.0))
        await rig.recording()
        rig.pool.hang_up()  # as the death of this process would
        async with asyncio.timeout(20):
            await driving

    rig = rigged(tmp_path, scene)

    for number in (1, 2):
        records = rig.records()[number]
        invoked = sum(isinstance(r, Invoke) for r in records)
        assert invoked == sum(isinstance(r, Complete) for r in records) > 0
    assert all(stream.torn is None for stream in _read(rig.run.chunks))


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        ("", "went on 0.1 s after it was told to end"),
        ("print('no word of ours', flush=True)", "what it says can't be read"),
        ("print('x' * (1 << 17), flush=True)", "what it says can't be read"),
    ],
)
def test_one_that_does_not_halt_is_trouble_and_is_killed(
    says: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaf = (
        "import sys, time; sys.stdin.readline(); "
        f'print(\'{{"type":"ready"}}\', flush=True); {says or "pass"}; time.sleep(60)'
    )
    monkeypatch.setattr(driver_pool, "HALT_LIMIT_S", 0.1)
    monkeypatch.setattr(driver_pool, "LEAVE_LIMIT_S", 0.1)
    monkeypatch.setattr(protocol, "MAX_LINE_BYTES", 1 << 16)

    async def scene(rig: Rig) -> None:
        rig.pool.command = (sys.executable, "-c", deaf)
        await rig.pool.enlist()
        stop = Stop()
        asyncio.get_running_loop().call_later(0.2, stop.ask)
        await stop.unless(rig.pool.drive(rig.clock.now_ns() + 60 * NS_PER_S))

    rig = rigged(tmp_path, scene)

    assert any(expected in text for text in rig.pool.trouble), rig.pool.trouble
    for pid in rig.pool.pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_what_ends_drives_waits_longer_than_a_halted_one_may_take() -> None:
    assert driver_pool.HALT_LIMIT_S < SETTLE_LIMIT_S


def _read(chunks: Path) -> list[object]:
    scanned = scan(chunks)
    for _ in scanned:
        pass
    return list(scanned.streams)


def test_one_that_can_not_be_started_is_an_error_of_the_environment(tmp_path: Path) -> None:
    async def scene(rig: Rig) -> None:
        rig.pool.command = (str(tmp_path / "nothing"),)
        with pytest.raises(HarnessError, match="driver process 0 can't be started"):
            await rig.drive(1.0)

    rigged(tmp_path, scene)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("seed = 1\n[drive]\nconcurrency = 2\ndrivers = 3", "at most drive.concurrency, 2"),
        ('seed = 1\n[cluster]\nprovider = "sim"\n[drive]\ndrivers = 2', "expected 1 with provider"),
        ("seed = 1\n[drive]\ndrivers = 0", "an integer >= 1"),
    ],
)
def test_a_plan_that_asks_for_too_many_is_refused(text: str, says: str) -> None:
    with pytest.raises(PlanError, match=r"drive\.drivers") as refusal:
        loads(text)

    assert says in str(refusal.value)


def test_driver_processes_leave_a_node_that_is_no_member_any_more(tmp_path: Path) -> None:
    changed_ns = 0

    async def scene(rig: Rig) -> None:
        nonlocal changed_ns

        async def change() -> None:
            nonlocal changed_ns
            await rig.recording()
            rig.pool.use_nodes(("n2",))
            changed_ns = rig.clock.now_ns()

        await asyncio.gather(rig.drive(1.5), change())

    rig = rigged(tmp_path, scene)
    for writer in (1, 2):
        invokes = [r for r in rig.records()[writer] if isinstance(r, Invoke)]
        assert {r.node for r in invokes if r.at_ns < changed_ns} - {"n2"}
        # Each process heard of it within a turn of its loop or two.
        late = [r.node for r in invokes if r.at_ns > changed_ns + NS_PER_S // 2]
        assert set(late) == {"n2"}
