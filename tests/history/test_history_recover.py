"""Recovery: what a dead controller leaves is a prefix that accuses nobody."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from history_parts import append, complete, invoke, new_run, read, small_history, unknown, write

from harness.errors import MalformedHistory, UsageError
from harness.history.chunks import ChunkWriter
from harness.history.load import load
from harness.history.manifest import read_manifest, write_manifest
from harness.history.record_frames import FRAME, HEADER
from harness.history.records import Complete, Heartbeat, Invoke, PhaseMark, Record
from harness.history.regular_files import sha256
from harness.history.run_directory import RunDirectory
from harness.history.scan import MAX_STREAMS
from harness.history.seal import recover, seal

FLIPS = 300

CHILD = """
import sys
from pathlib import Path
from history_parts import append, complete, invoke
from harness.history.chunks import ChunkWriter
from harness.history.record_frames import HEADER
from harness.history.run_directory import RunDirectory

writer = ChunkWriter(RunDirectory(Path(sys.argv[1])).chunks, 1 << 14)
number = 0
while True:
    writer.append(invoke(2 * number, append(number % 7, number)))
    print(2 * number, flush=True)
    writer.append(complete(2 * number + 1, 2 * number, append(number % 7, number)))
    print(2 * number + 1, flush=True)
    number += 1
"""


def unsealed(root: Path, records: Sequence[Record], cut_bytes: int = 8) -> RunDirectory:
    """A run whose only chunk lost its last bytes (the mark of its end, unless told)."""
    run = new_run(root)
    write(run, list(records))
    (chunk,) = run.chunks.glob("*.chunk")
    chunk.write_bytes(chunk.read_bytes()[:-cut_bytes])
    return run


@pytest.mark.parametrize("records_before_the_kill", [1, 2, 3, 200, 1501])
def test_a_controller_killed_while_it_writes_leaves_all_it_had_written(
    tmp_path: Path, records_before_the_kill: int
) -> None:
    run = new_run(tmp_path)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    assert child.stdout is not None
    acknowledged = [int(child.stdout.readline()) for _ in range(records_before_the_kill)]
    with pytest.raises(UsageError, match="still going on"):
        recover(run)
    child.send_signal(signal.SIGKILL)
    acknowledged += [int(line) for line in child.stdout.read().split()]
    assert child.wait(timeout=30) == -signal.SIGKILL
    child.stdout.close()

    manifest = recover(run)
    rows = load(run).transactions().to_pylist()
    assert manifest.state == "prefix"
    assert manifest.cut_ns is not None
    assert manifest.cut_ns >= acknowledged[-1] * 10
    invoked = {row["invoke_index"] for row in rows}
    completed = {row["complete_index"] for row in rows if row["type"] == "ok"}
    assert invoked >= {index for index in acknowledged if index % 2 == 0}
    assert completed >= {index for index in acknowledged if index % 2 == 1}
    assert all(row["error"] == "no-completion" for row in rows if row["type"] != "ok")


def test_a_recovered_run_says_where_it_stops_and_stays_as_it_is(tmp_path: Path) -> None:
    run = unsealed(tmp_path, small_history())
    manifest = recover(run)

    assert manifest.state == "prefix"
    assert manifest.cut_ns == 100
    assert manifest.trouble[0] == "the run ended at about 0.000 s without being sealed"
    assert manifest.trouble[1].startswith("the history is readable up to 0.000 s of the run: w0")
    assert recover(run) == manifest
    assert load(run).manifest == manifest
    assert load(run).transactions().num_rows == 4


def test_a_run_that_closed_its_history_but_was_never_sealed_is_a_prefix_too(
    tmp_path: Path,
) -> None:
    run = new_run(tmp_path)
    write(run, small_history())
    manifest = recover(run)

    assert manifest.state == "prefix"
    assert manifest.trouble == ("the run ended at about 0.000 s without being sealed",)


def test_a_sealed_run_is_left_alone_by_recovery(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    write(run, small_history())
    manifest = seal(run, partition_of=None)

    assert recover(run) == manifest
    assert manifest.state == "sealed"


def test_every_cut_of_a_chunk_recovers_and_completes_nothing_that_was_not_written(
    tmp_path: Path,
) -> None:
    written = small_history()
    ends = {record.invoke: record for record in written if isinstance(record, Complete)}
    whole = unsealed(tmp_path / "whole", written, cut_bytes=1)
    (chunk,) = whole.chunks.glob("*.chunk")
    for size in range(0, chunk.stat().st_size, 7):
        run = new_run(tmp_path / str(size))
        run.chunks.mkdir()
        (run.chunks / chunk.name).write_bytes(chunk.read_bytes()[:size])

        assert recover(run).state == "prefix"
        assert_accuses_nobody(run, ends)


def test_flipped_bits_before_recovery_give_a_prefix_or_a_name(tmp_path: Path) -> None:
    written = small_history()
    ends = {record.invoke: record for record in written if isinstance(record, Complete)}
    whole = unsealed(tmp_path / "whole", written)
    (chunk,) = whole.chunks.glob("*.chunk")
    stream = random.Random(11)
    for number in range(FLIPS):
        run = new_run(tmp_path / str(number))
        run.chunks.mkdir()
        damaged = bytearray(chunk.read_bytes())
        place = stream.randrange(len(damaged) * 8)
        damaged[place // 8] ^= 1 << place % 8
        (run.chunks / chunk.name).write_bytes(damaged)
        if place // 8 < HEADER.size:
            with pytest.raises(MalformedHistory, match=chunk.name):
                recover(run)
            continue
        manifest = recover(run)
        assert manifest.state == "prefix"
        assert "w0-000000.chunk at byte" in manifest.trouble[1]
        assert_accuses_nobody(run, ends)


def assert_accuses_nobody(run: RunDirectory, ends: dict[int, Complete]) -> None:
    """Nothing is said to be done, or not done, that the records did not say."""
    for row in load(run).transactions().to_pylist():
        if row["error"] == "no-completion":
            assert row["type"] == "info"
            continue
        end = ends[row["invoke_index"]]
        found = (row["complete_index"], row["type"], row["error"])
        assert found == (end.index, end.type, end.error)


def two_writers(run: RunDirectory, second: list[Record], *, torn: bool) -> None:
    first: list[Record] = [
        invoke(0, append(1, 1), at_ns=10),
        complete(1, 0, append(1, 1), at_ns=20),
        invoke(2, append(1, 2), at_ns=30),
    ]
    for number, records in enumerate((first, second)):
        writer = ChunkWriter(run.chunks, writer=number, reserve_bytes=0)
        for record in records:
            writer.append(record)
        writer.close()
    if torn:
        chunk = run.chunks / "w0-000000.chunk"
        chunk.write_bytes(chunk.read_bytes()[:-8])


OF_SECOND: list[Record] = [
    invoke(0, unknown(1), at_ns=25, process=1),
    complete(1, 0, read(1, 1), at_ns=30, process=1),
    invoke(2, unknown(1), at_ns=30, process=1),
    complete(3, 2, read(1, 1, 2, 3), at_ns=31, process=1),
    invoke(4, unknown(1), at_ns=40, process=1),
]


def test_a_prefix_of_several_writers_ends_where_the_first_of_them_stopped(tmp_path: Path) -> None:
    """What the first sent after its last readable record is not known; nobody reads thin air."""
    run = new_run(tmp_path)
    two_writers(run, OF_SECOND, torn=True)
    manifest = recover(run)
    history = load(run)

    assert manifest.cut_ns == 30
    rows = history.transactions().to_pylist()
    assert [(row["invoke_ns"], row["type"]) for row in rows] == [
        (10, "ok"),
        (25, "ok"),
        (30, "info"),
        (30, "info"),
    ]
    assert [row["txn"] for row in rows] == [0, 1, 2, 3]
    seen = [op["elements"] for op in history.micro_ops().to_pylist() if op["f"] == "r"]
    assert seen == [[1], None]


def test_a_run_that_died_beside_its_driver_processes_does_not_cut_what_they_recorded(
    tmp_path: Path,
) -> None:
    """Its own stream marks phases; they sent nothing after the end of theirs."""
    run = new_run(tmp_path)
    write(run, [PhaseMark(name="drive", at_ns=5)])
    (own,) = run.chunks.glob("w0-*.chunk")
    own.write_bytes(own.read_bytes()[: -FRAME.size])
    write(run, OF_SECOND, writer=1)
    manifest = recover(run)
    rows = load(run).transactions().to_pylist()

    assert manifest.state == "prefix"
    assert manifest.cut_ns == max(row["complete_ns"] for row in rows)
    assert len(rows) == sum(isinstance(record, Invoke) for record in OF_SECOND)


def test_damage_before_the_first_invocation_may_hide_others(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    write(run, [PhaseMark(name="drive", at_ns=5), invoke(0, at_ns=6)])
    (own,) = run.chunks.glob("w0-*.chunk")
    content = bytearray(own.read_bytes())
    content[-FRAME.size - 3] ^= 1
    own.write_bytes(content)
    write(run, OF_SECOND, writer=1)

    assert recover(run).cut_ns == 5


def test_writers_that_all_ended_are_not_cut(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    two_writers(run, OF_SECOND, torn=False)
    manifest = seal(run, partition_of=None)
    rows = load(run).transactions().to_pylist()

    assert (manifest.state, manifest.cut_ns) == ("sealed", None)
    assert [row["invoke_ns"] for row in rows] == [10, 25, 30, 30, 40]
    indices = [row[name] for row in rows for name in ("invoke_index", "complete_index")]
    assert sorted(indices) == list(range(10))


CONTROLLER: list[Record] = [
    PhaseMark(name="drive", at_ns=5),
    Heartbeat(at_ns=26),
    Heartbeat(at_ns=50),
    PhaseMark(name="seal", at_ns=60),
]
WRITES: list[Record] = [
    Heartbeat(at_ns=4),
    invoke(0, append(1, 1), at_ns=10),
    complete(1, 0, append(1, 1), at_ns=20),
]
READS: list[Record] = [
    Heartbeat(at_ns=4),
    invoke(0, unknown(1), at_ns=25, process=1),
    complete(1, 0, read(1, 1), at_ns=30, process=1),
]


def three_streams(root: Path, *, drive: bool = True) -> RunDirectory:
    """A controller and two processes that drive, one of which reads what the other appended."""
    run = new_run(root, streams=3)
    streams = (CONTROLLER, WRITES, READS) if drive else ([PhaseMark(name="set-up", at_ns=5)],)
    for number, records in enumerate(streams):
        write(run, records, writer=number, run_id="drill-1", reserve_bytes=0)
    return run


def thin_air(run: RunDirectory) -> list[int]:
    """The elements that reads saw and no operation of the history appended."""
    ops = load(run).micro_ops().to_pylist()
    appended = {op["value"] for op in ops if op["f"] == "append"}
    return [e for op in ops if op["f"] == "r" for e in op["elements"] or () if e not in appended]


def test_a_stream_cut_before_its_first_invocation_accuses_nobody(tmp_path: Path) -> None:
    whole = (three_streams(tmp_path / "whole").chunks / "w1-000000.chunk").read_bytes()
    for size in range(len(whole)):
        run = three_streams(tmp_path / str(size))
        (run.chunks / "w1-000000.chunk").write_bytes(whole[:size])
        manifest = recover(run)

        assert thin_air(run) == []
        assert any("w1-000000.chunk" in text for text in manifest.trouble), manifest.trouble


def test_whole_streams_are_recovered_whole(tmp_path: Path) -> None:
    run = three_streams(tmp_path)
    manifest = recover(run)

    assert manifest.trouble == ("the run ended at about 0.000 s without being sealed",)
    assert load(run).transactions().num_rows == 2


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_stream_that_is_gone_is_named(tmp_path: Path, number: int) -> None:
    run = three_streams(tmp_path)
    (run.chunks / f"w{number}-000000.chunk").unlink()

    with pytest.raises(MalformedHistory, match=rf"w{number}-000000\.chunk.*the chunk is missing"):
        recover(run)
    assert read_manifest(run).state == "running"


def test_a_stream_of_another_run_is_not_taken_for_one_of_this(tmp_path: Path) -> None:
    run = three_streams(tmp_path)
    (run.chunks / "w1-000000.chunk").unlink()
    write(run, WRITES, writer=1, run_id="another", reserve_bytes=0)

    with pytest.raises(MalformedHistory, match="the chunk is not of this stream and run"):
        recover(run)


def test_a_stream_more_than_the_run_had_is_refused(tmp_path: Path) -> None:
    run = three_streams(tmp_path)
    write(run, WRITES, writer=3, run_id="drill-1", reserve_bytes=0)

    with pytest.raises(MalformedHistory, match=r"expected chunks of 3 writers, found .* writer 3"):
        recover(run)


@pytest.mark.parametrize("claimed", [-1, 0, MAX_STREAMS + 1, 10**9, (1 << 63) - 1])
def test_streams_that_no_run_can_have_are_refused_before_any_is_read(
    claimed: int, tmp_path: Path
) -> None:
    run = three_streams(tmp_path)
    write_manifest(run, msgspec.structs.replace(read_manifest(run), streams=claimed))

    with pytest.raises(MalformedHistory, match=rf"1 to {MAX_STREAMS} writers, found {claimed}$"):
        recover(run)


def test_a_run_of_as_many_streams_as_it_can_have_is_read(tmp_path: Path) -> None:
    run = new_run(tmp_path, streams=MAX_STREAMS)
    for number in range(MAX_STREAMS):
        write(run, CONTROLLER if number == 0 else [], writer=number, run_id="drill-1")

    assert recover(run).trouble == ("the run ended at about 0.000 s without being sealed",)


def test_what_came_after_the_controllers_last_heartbeat_is_cut(tmp_path: Path) -> None:
    """It may lack the very fault that explains what clients saw."""
    run = three_streams(tmp_path)
    own = run.chunks / "w0-000000.chunk"
    content = own.read_bytes()
    place = content.index(b"heartbeat", content.index(b"heartbeat") + 1)
    own.write_bytes(content[:place])

    assert recover(run).cut_ns == 26
    assert [row["type"] for row in load(run).transactions().to_pylist()] == ["ok", "info"]


def test_streams_of_processes_that_never_drove_are_not_missed(tmp_path: Path) -> None:
    run = three_streams(tmp_path, drive=False)
    manifest = seal(run, partition_of=None)

    assert (manifest.state, manifest.trouble) == ("sealed", ())


def test_a_damaged_plan_is_named_before_anything_is_made_of_the_chunks(tmp_path: Path) -> None:
    run = three_streams(tmp_path)
    run.plan.write_text("seed = 1")
    sums = {run.plan.name: sha256(run.plan)}
    write_manifest(run, msgspec.structs.replace(read_manifest(run), checksums=sums))
    run.plan.write_text("seed = 2")

    with pytest.raises(MalformedHistory, match=r"plan\.toml"):
        recover(run)
    assert sorted(run.chunks.glob("*.chunk"))


def test_a_run_without_manifest_or_chunk_is_named(tmp_path: Path) -> None:
    with pytest.raises(MalformedHistory, match="there is no manifest"):
        recover(RunDirectory(tmp_path))
    run = new_run(tmp_path)
    with pytest.raises(MalformedHistory, match="expected the chunks of a run, found none"):
        recover(run)
    run.chunks.mkdir()
    with pytest.raises(MalformedHistory, match="expected the chunks of a run, found none"):
        recover(run)


def test_the_partitions_are_told_where_the_system_is_still_known(tmp_path: Path) -> None:
    run = unsealed(tmp_path, small_history())
    recover(run, partition_of=lambda key: key + 1)

    assert set(load(run).micro_ops().column("partition").to_pylist()) == {2, 3}
