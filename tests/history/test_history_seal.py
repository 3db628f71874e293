"""Sealing and loading: the tables say what the records said, and only undamaged ones are read."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pytest
from capabilities import small_disk
from history_parts import (
    append,
    complete,
    event,
    fault,
    invoke,
    new_run,
    read,
    small_history,
    unknown,
    write,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from harness.errors import HarnessError, MalformedHistory, UsageError
from harness.history import regular_files, schema, tables
from harness.history.chunks import ChunkWriter
from harness.history.layout import table_names, table_path
from harness.history.load import History, load
from harness.history.manifest import read_manifest, write_manifest
from harness.history.records import (
    EventKind,
    FaultState,
    MicroOp,
    OpType,
    PartitionReset,
    Record,
)
from harness.history.regular_files import sha256
from harness.history.run_directory import RunDirectory
from harness.history.seal import seal
from harness.run.state_log import read_states

FLIPS = 400


def sealed(root: Path, records: list[Record], *, splits: int = 2) -> History:
    run = new_run(root)
    write(run, records)
    seal(run, partition_of=lambda key: key % 3, splits=splits)
    return load(run)


def steps(history: History) -> dict[int, list[dict[str, Any]]]:
    """The micro-operations of every transaction, in order."""
    rows = sorted(history.micro_ops().to_pylist(), key=lambda row: (row["txn"], row["pos"]))
    found: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row["txn"], []).append(row)
    return found


def test_transactions_are_numbered_by_their_invocation(tmp_path: Path) -> None:
    rows = sealed(tmp_path, small_history()).transactions().to_pylist()

    assert [row["txn"] for row in rows] == [0, 1, 2, 3]
    assert [row["invoke_index"] for row in rows] == [0, 1, 4, 5]
    assert [row["type"] for row in rows] == ["ok", "fail", "info", "ok"]
    assert [row["error"] for row in rows] == [None, "conflict", "no-completion", None]


def test_an_operation_without_outcome_is_info_until_the_end(tmp_path: Path) -> None:
    history = sealed(tmp_path, small_history())
    (row,) = [row for row in history.transactions().to_pylist() if row["type"] == "info"]

    assert (row["invoke_ns"], row["complete_ns"]) == (40, 100)
    assert row["complete_index"] > 6
    assert [(op["f"], op["value"], op["elements"]) for op in steps(history)[2]] == [
        ("append", 11, None),
        ("r", None, None),
    ]


def test_what_a_read_saw_is_told_from_what_is_not_known(tmp_path: Path) -> None:
    records: list[Record] = [
        invoke(0, unknown(1), unknown(2), unknown(3), unknown(4)),
        complete(1, 0, read(1), read(2, 7, 8), unknown(3), MicroOp("r", 4, 9)),
        invoke(2, unknown(1), unknown(2)),
        complete(3, 2, read(1), unknown(2), type=OpType.INFO, error="timeout"),
    ]
    ops = steps(sealed(tmp_path, records))

    assert [(op["value"], op["elements"]) for op in ops[0]] == [
        (None, []),
        (None, [7, 8]),
        (None, []),
        (9, None),
    ]
    assert [(op["value"], op["elements"]) for op in ops[1]] == [(None, []), (None, None)]


def test_steps_that_may_have_happened_are_kept_unless_the_operation_is_ok(tmp_path: Path) -> None:
    asked = (unknown(1), append(1, 5), append(2, 6))
    records: list[Record] = [
        invoke(0, *asked),
        complete(1, 0, read(1, 4), type=OpType.INFO, error="timeout"),
        invoke(2, *asked, process=1),
        complete(3, 2, read(1, 4), append(1, 5), process=1),
    ]
    ops = steps(sealed(tmp_path, records))

    assert [(op["f"], op["value"]) for op in ops[0]] == [("r", None), ("append", 5), ("append", 6)]
    assert ops[0][0]["elements"] == [4]
    assert [(op["f"], op["value"]) for op in ops[1]] == [("r", None), ("append", 5)]


def test_faults_are_one_row_each_with_their_proofs(tmp_path: Path) -> None:
    records: list[Record] = [
        fault(FaultState.PLANNED, 1),
        fault(FaultState.PLANNED, 2, number=1),
        fault(FaultState.INJECTING, 10),
        fault(FaultState.INJECTED, 11),
        fault(FaultState.EFFECTIVE, 12, "n2 is not running"),
        fault(FaultState.HEALING, 20),
        fault(FaultState.HEALED, 25, "n2 runs as another process"),
        fault(FaultState.SKIPPED, 30, "no leader of partition 3", number=1),
    ]
    killed, skipped = sealed(tmp_path, records).faults().to_pylist()

    times = ("planned_ns", "injecting_ns", "injected_ns", "effective_ns", "healing_ns", "healed_ns")
    assert [killed[name] for name in times] == [1, 10, 11, 12, 20, 25]
    assert killed["nodes"] == ["n2"]
    assert (killed["proof"], killed["heal_proof"]) == (
        "n2 is not running",
        "n2 runs as another process",
    )
    assert (skipped["state"], skipped["reason"]) == ("skipped", "no leader of partition 3")
    assert skipped["effective_ns"] is None


def test_events_stand_in_the_order_of_mapped_time(tmp_path: Path) -> None:
    history = sealed(tmp_path, [event(30), event(10), event(20)])

    assert history.events().column("at_ns").to_pylist() == [10, 20, 30]
    assert history.events().column("kind").to_pylist() == ["leader-elected"] * 3


def test_phases_and_notes_are_kept(tmp_path: Path) -> None:
    history = sealed(tmp_path, small_history())

    assert history.manifest.phases == (("drive", 1), ("seal", 100))
    note = {"at_ns": 41, "process": 1, "text": "reconnected", "fault": None}
    assert history.notes().to_pylist() == [note]


def test_a_sealed_run_says_so_and_drops_its_chunks(tmp_path: Path) -> None:
    history = sealed(tmp_path, small_history())

    assert history.manifest.state == "sealed"
    assert history.manifest.cut_ns is None
    assert history.manifest.trouble == ()
    assert not history.run.chunks.exists()
    assert [str(path.relative_to(tmp_path)) for path in history.micro_op_files] == [
        "history/micro_ops-0000.parquet",
        "history/micro_ops-0001.parquet",
    ]


def test_sealing_twice_changes_nothing(tmp_path: Path) -> None:
    history = sealed(tmp_path, small_history())
    before = contents(tmp_path)

    assert seal(history.run, partition_of=None, splits=7) == history.manifest
    assert contents(tmp_path) == before


def test_the_same_records_seal_to_the_same_bytes(tmp_path: Path) -> None:
    first = sealed(tmp_path / "a", small_history())
    second = sealed(tmp_path / "b", small_history())

    assert first.manifest.checksums == second.manifest.checksums
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_sealing_can_be_done_again_after_it_was_killed_before_the_manifest(tmp_path: Path) -> None:
    whole = sealed(tmp_path / "whole", small_history())
    run = new_run(tmp_path / "killed")
    write(run, small_history())
    for name in table_names(3):  # an attempt with more splits got as far as its tables
        path = table_path(run, name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"from an earlier attempt")
    (run.history / ".transactions.parquet.partial").write_bytes(b"half")
    seal(run, partition_of=lambda key: key % 3, splits=2)

    assert contents(run.root) == contents(whole.run.root)


def test_sealing_can_be_done_again_after_it_was_killed_before_the_chunks_were_gone(
    tmp_path: Path,
) -> None:
    history = sealed(tmp_path, small_history())
    write(history.run, small_history())

    assert load(history.run).manifest == history.manifest
    assert seal(history.run, partition_of=None) == history.manifest
    assert not history.run.chunks.exists()


def test_a_run_that_is_still_written_is_not_sealed(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    writer = ChunkWriter(run.chunks)
    with pytest.raises(UsageError, match="still going on"):
        seal(run, partition_of=None)
    writer.append(invoke(0, append(1, 1)))
    writer.close()

    assert seal(run, partition_of=None).state == "sealed"


def test_a_torn_chunk_makes_a_prefix(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    write(run, small_history())
    (chunk,) = run.chunks.glob("*.chunk")
    chunk.write_bytes(chunk.read_bytes()[:-12])
    manifest = seal(run, partition_of=None)

    assert manifest.state == "prefix"
    assert manifest.cut_ns == 60
    assert "w0-000000.chunk at byte" in manifest.trouble[0]


def long_run(tmp_path: Path) -> RunDirectory:
    run = new_run(tmp_path)
    records: list[Record] = []
    for number in range(500):
        records += [invoke(2 * number, process=number)]
        records += [complete(2 * number + 1, 2 * number, process=number)]
    write(run, records, chunk_bytes=4096, reserve_bytes=0)
    assert len(list(run.chunks.glob("*.chunk"))) > 3
    return run


def test_chunks_behind_damage_are_kept_and_no_later_command_takes_them_away(tmp_path: Path) -> None:
    run = long_run(tmp_path)
    damaged = run.chunks / "w0-000001.chunk"
    content = bytearray(damaged.read_bytes())
    content[700] ^= 4
    damaged.write_bytes(content)
    before = {path.name: path.read_bytes() for path in run.chunks.glob("*.chunk")}
    manifest = seal(run, partition_of=None)

    assert manifest.state == "prefix"
    assert any("kept in unread/" in sentence for sentence in manifest.trouble)
    assert seal(run, partition_of=None) == manifest
    assert not run.chunks.exists()
    assert {path.name: path.read_bytes() for path in run.unread.glob("*.chunk")} == before


def test_a_sealer_that_died_before_it_put_damaged_chunks_away_takes_none_with_it(
    tmp_path: Path,
) -> None:
    run = long_run(tmp_path)
    (run.chunks / "w0-000001.chunk").unlink()
    seal(run, partition_of=None)
    run.unread.rename(run.chunks)

    seal(run, partition_of=None)
    assert (run.unread / "w0-000002.chunk").is_file()


def test_a_chunk_that_the_system_refuses_to_open_seals_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = long_run(tmp_path)

    def refuse(path: Path, *sizes: int) -> BinaryIO:
        if path.name == "w0-000002.chunk":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        return regular_files.open_regular(path, *sizes)

    monkeypatch.setattr("harness.history.scan.open_regular", refuse)
    with pytest.raises(HarnessError, match=r"w0-000002\.chunk: Too many open files.*are kept"):
        seal(run, partition_of=None)
    monkeypatch.undo()
    assert seal(run, partition_of=None).state == "sealed"


@pytest.mark.parametrize(
    ("records", "sentence"),
    [
        ([complete(1, 0)], "operation 0 was completed, but it is not open"),
        ([invoke(0), complete(1, 0), complete(2, 0)], "it is not open"),
        ([invoke(0), invoke(0)], "operation 0 was invoked twice"),
        ([invoke(0), complete(1, 0, process=9)], "but process 9 completed it"),
        ([invoke(0, at_ns=9), complete(1, 0, at_ns=8)], "invoked at 9 ns, but completed at 8 ns"),
        ([invoke(0), invoke(1)], "invokes operation 1 before its operation 0 has completed"),
        (
            [invoke(0), complete(1, 0, type=OpType.INFO), invoke(2)],
            "process 0 invokes operation 2 after its operation 0 ended as info",
        ),
        ([invoke(5), invoke(3, process=1)], "record 3 was written after record 5"),
        ([invoke(0), complete(0, 0)], "record 0 was written after record 0"),
    ],
)
def test_records_that_contradict_each_other_are_refused(
    tmp_path: Path, records: list[Record], sentence: str
) -> None:
    run = new_run(tmp_path)
    write(run, records)
    with pytest.raises(MalformedHistory, match=sentence) as found:
        seal(run, partition_of=None)

    assert found.value.file.endswith("w0-000000.chunk")
    assert found.value.where.startswith("byte ")
    assert not list(tmp_path.rglob("*.partial"))
    assert run.chunks.exists()


@pytest.mark.parametrize(
    "records",
    [
        [invoke(0), invoke(1, process=1)],
        [invoke(0), complete(1, 0), invoke(2)],
        [invoke(0), complete(1, 0, type=OpType.FAIL), invoke(2)],
        [invoke(0), complete(1, 0, type=OpType.INFO), invoke(2, process=5)],
        [invoke(3), complete(7, 3)],
    ],
)
def test_their_mutations_that_can_be_true_are_sealed(tmp_path: Path, records: list[Record]) -> None:
    begun = sum(type(record).__name__ == "Invoke" for record in records)

    assert sealed(tmp_path, records).transactions().num_rows == begun


def test_keys_of_both_ends_of_the_range_keep_their_partition_and_split(tmp_path: Path) -> None:
    keys = [-(1 << 63), -5, -1, 0, 1, 1 << 62, (1 << 63) - 1]
    ops = tuple(append(key, number) for number, key in enumerate(keys))
    history = sealed(tmp_path, [invoke(0, *ops), complete(1, 0, *ops)], splits=5)

    for split in range(5):
        for row in history.micro_ops(split).to_pylist():
            assert schema.split_of(row["key"], 5) == split
            assert row["partition"] == row["key"] % 3
    assert sorted(history.micro_ops().column("key").to_pylist()) == keys


def test_a_key_without_a_known_partition_has_none(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    ops = (append(1, 1), append(2, 1))
    write(run, [invoke(0, *ops), complete(1, 0, *ops)])
    seal(run, partition_of=lambda key: 4 if key == 1 else None, splits=1)

    assert load(run).micro_ops().column("partition").to_pylist() == [4, None]


@given(keys=st.lists(st.integers(-(1 << 63), (1 << 63) - 1)), splits=st.integers(1, 1024))
def test_the_hash_of_one_key_and_of_many_are_the_same(keys: list[int], splits: int) -> None:
    import numpy as np

    many = schema.splits_of(np.array(keys, dtype=np.int64), splits)

    assert many.tolist() == [schema.split_of(key, splits) for key in keys]
    assert all(0 <= split < splits for split in many.tolist())


def test_the_hash_spreads_neighbours_and_never_changes() -> None:
    counts = [0] * 8
    for key in range(8_000):
        counts[schema.split_of(key, 8)] += 1

    assert min(counts) > 950
    assert [schema.split_of(key, 4) for key in (0, 1, 2, 3, -1, 1 << 62)] == [0, 2, 0, 3, 1, 1]


@pytest.mark.parametrize("splits", [0, 1025, -1])
def test_a_number_of_splits_out_of_bounds_is_refused(tmp_path: Path, splits: int) -> None:
    with pytest.raises(UsageError, match=f"from 1 to 1024 \\(got {splits}\\)"):
        seal(new_run(tmp_path), partition_of=None, splits=splits)


def test_an_operation_that_outlasts_thousands_of_others_still_stands_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = overlapping(200, hung={0, 7, 60})
    plain = sealed(tmp_path / "plain", records)
    monkeypatch.setattr(tables, "BATCH_ROWS", 8)
    monkeypatch.setattr(tables, "HELD_ROWS", 16)
    merged = sealed(tmp_path / "merged", records)

    assert merged.transactions().equals(plain.transactions())
    for split in range(2):
        assert merged.micro_ops(split).equals(plain.micro_ops(split))
    assert merged.transactions().column("txn").to_pylist() == list(range(200))


def overlapping(count: int, hung: set[int]) -> list[Record]:
    """Operations one after the other, those in ``hung`` completing last or never."""
    records: list[Record] = []
    index = 0
    waiting: list[tuple[int, int]] = []
    for number in range(count):
        begun = index
        records.append(invoke(begun, append(number % 9, number), process=number))
        index += 1
        if number in hung:
            waiting.append((begun, number))
            continue
        done = append(number % 9, number)
        records.append(complete(index, begun, done, process=number))
        index += 1
    for begun, number in waiting[:-1]:
        done = append(number % 9, number)
        records.append(complete(index, begun, done, process=number))
        index += 1
    return records


values = st.one_of(
    st.none(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.lists(st.integers(-(1 << 63), (1 << 63) - 1), max_size=4).map(tuple),
)
micro_ops = st.builds(
    MicroOp,
    f=st.sampled_from(["r", "append", "w"]),
    key=st.integers(-(1 << 63), (1 << 63) - 1),
    value=values,
)


@settings(max_examples=60, deadline=None)
@given(
    operations=st.lists(
        st.tuples(st.lists(micro_ops, max_size=4), st.sampled_from(OpType)), max_size=12
    ),
    splits=st.integers(1, 4),
)
def test_every_operation_comes_back_as_it_was_recorded(
    tmp_path_factory: pytest.TempPathFactory,
    operations: list[tuple[list[MicroOp], OpType]],
    splits: int,
) -> None:
    records: list[Record] = []
    for number, (ops, kind) in enumerate(operations):
        records.append(invoke(2 * number, *ops, process=number))
        records.append(complete(2 * number + 1, 2 * number, *ops, type=kind, process=number))
    history = sealed(tmp_path_factory.mktemp("run"), records, splits=splits)
    found = steps(history)

    types = history.transactions().column("type").to_pylist()
    assert types == [kind.value for _, kind in operations]
    for number, (ops, kind) in enumerate(operations):
        rows = found.get(number, [])
        assert [(row["f"], row["key"]) for row in rows] == [(op.f, op.key) for op in ops]
        for row, op in zip(rows, ops, strict=True):
            empty = op.value is None and op.f == "r" and kind is OpType.OK
            elements = list(op.value) if isinstance(op.value, tuple) else [] if empty else None
            assert row["elements"] == elements
            assert row["value"] == (op.value if isinstance(op.value, int) else None)
            assert row["type"] == kind.value


def contents(root: Path) -> dict[str, str]:
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files
    }


def test_every_table_has_the_schema_of_its_version(tmp_path: Path) -> None:
    history = sealed(tmp_path, small_history())
    expected = {
        "transactions": schema.TRANSACTIONS,
        "micro_ops": schema.MICRO_OPS,
        "faults": schema.FAULTS,
        "events": schema.EVENTS,
        "notes": schema.NOTES,
    }
    for name, columns in expected.items():
        found: pa.Table = getattr(history, name)()
        assert found.schema.equals(columns, check_metadata=True)
        assert found.schema.metadata[b"firedrill.schema_version"] == b"1"


def test_a_reset_is_sealed_with_all_that_it_is(tmp_path: Path) -> None:
    reset = PartitionReset(
        generation=2, previous_generation=1, base_index=70, base_term=5, survivors=("n1", "n4")
    )
    told = replace(
        event(40), kind=EventKind.PARTITION_RESET, partition=1, generation=2, reset=reset
    )

    history = sealed(tmp_path, [event(30), told])

    plain, row = history.events().to_pylist()
    assert {name: row[name] for name in msgspec.structs.asdict(reset)} == {
        **msgspec.structs.asdict(reset),
        "survivors": ["n1", "n4"],
    }
    assert all(plain[name] is None for name in schema.LATER["events"])


def test_a_run_from_before_there_were_generations_is_of_the_first_one() -> None:
    old = Path(__file__).parent.parent / "evidence" / "runs" / "sim-valid"

    history = load(RunDirectory(old))
    states = read_states(old, history.manifest.checksums)

    assert history.events().column("generation").null_count == history.events().num_rows > 0
    assert set(states["states"].column("generation").to_pylist()) == {0}
    assert set(states["logs"].column("generation").to_pylist()) == {0}


def test_a_run_without_any_operation_seals_and_loads(tmp_path: Path) -> None:
    history = sealed(tmp_path, [])

    assert history.manifest.state == "sealed"
    assert history.transactions().num_rows == 0
    assert history.micro_ops().num_rows == 0


def test_flipped_bits_in_sealed_files_are_named(tmp_path: Path) -> None:
    run = sealed(tmp_path, small_history()).run
    stream = random.Random(5)
    targets = [table_path(run, name) for name in table_names(2)]
    for _ in range(FLIPS):
        path = stream.choice(targets)
        whole = path.read_bytes()
        damaged = bytearray(whole)
        place = stream.randrange(len(whole) * 8)
        damaged[place // 8] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(MalformedHistory, match=r"expected SHA-256 \w+, found") as found:
            load(run)
        assert found.value.file == str(path)
        path.write_bytes(whole)
    load(run)


def test_truncated_and_missing_sealed_files_are_named(tmp_path: Path) -> None:
    run = sealed(tmp_path, small_history()).run
    for name in table_names(2):
        path = table_path(run, name)
        whole = path.read_bytes()
        for size in range(0, len(whole), 97):
            path.write_bytes(whole[:size])
            with pytest.raises(MalformedHistory, match=path.name):
                load(run)
        path.unlink()
        with pytest.raises(MalformedHistory, match="found none"):
            load(run)
        path.write_bytes(whole)
    load(run)


def test_every_file_that_the_manifest_names_is_there_and_what_it_was(tmp_path: Path) -> None:
    """Side files too: one whose sum stands there can't be taken for one that never was."""
    run = sealed(tmp_path, small_history()).run
    side = run.root / "states.parquet"
    side.write_bytes(b"whatever is sealed")
    sums = read_manifest(run).checksums | {side.name: sha256(side)}
    write_manifest(run, msgspec.structs.replace(read_manifest(run), checksums=sums))
    load(run)

    side.write_bytes(b"whatever is seale")
    with pytest.raises(MalformedHistory, match=r"states\.parquet.*it is not what was sealed"):
        load(run)
    side.unlink()
    with pytest.raises(MalformedHistory, match=r"states\.parquet.*found none"):
        load(run)


def test_a_file_of_another_size_is_named_before_any_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = sealed(tmp_path, small_history()).run
    grown = table_path(run, "transactions")
    size_bytes = grown.stat().st_size
    os.truncate(grown, 1 << 40)
    monkeypatch.setattr(regular_files, "sha256", lambda path: pytest.fail(f"{path} was read"))

    expected = f"transactions.*expected {size_bytes} bytes, found {1 << 40}: it is not what was"
    with pytest.raises(MalformedHistory, match=expected):
        load(run)


def test_a_run_of_before_sizes_were_recorded_is_judged_by_its_sums(tmp_path: Path) -> None:
    run = sealed(tmp_path, small_history()).run
    write_manifest(run, msgspec.structs.replace(read_manifest(run), sizes=msgspec.UNSET))
    assert b"sizes" not in run.manifest.read_bytes()
    load(run)

    with table_path(run, "events").open("ab") as file:
        file.write(b"x")
    with pytest.raises(MalformedHistory, match=r"events\.parquet.*expected SHA-256"):
        load(run)


def test_a_file_that_is_a_hole_is_not_read_and_one_with_some_holes_is(tmp_path: Path) -> None:
    path = tmp_path / "file"
    half = regular_files.HOLES_MAX_BYTES
    with path.open("wb") as file:
        file.truncate(half)
    assert len(regular_files.open_regular(path).read()) == half

    os.truncate(path, half + 1)
    with pytest.raises(OSError, match=f"it is a hole, of {half + 1} bytes only 0 were written"):
        regular_files.open_regular(path)
    with path.open("r+b") as file:
        file.seek(1 << 20)
        file.write(b"x" * 4096)
    assert regular_files.open_regular(path).seek(0, os.SEEK_END) == half + 1


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "nodes/../../secret", "", "a//b"])
def test_no_name_of_the_manifest_leads_out_of_the_run(tmp_path: Path, name: str) -> None:
    run = sealed(tmp_path / "run", small_history()).run
    (tmp_path / "secret").write_bytes(b"")
    sums = read_manifest(run).checksums | {name: sha256(tmp_path / "secret")}
    write_manifest(run, msgspec.structs.replace(read_manifest(run), checksums=sums))

    with pytest.raises(MalformedHistory, match="expected checksums of files in the run directory"):
        load(run)


def test_every_truncation_of_the_manifest_is_named_and_every_flip_or_harmless(
    tmp_path: Path,
) -> None:
    run = sealed(tmp_path, small_history()).run
    honest = read_manifest(run)
    whole = run.manifest.read_bytes()
    for place in range(len(whole) * 8):
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << place % 8
        run.manifest.write_bytes(damaged)
        assert manifest_or_none(run) in (honest, None)
    for size in range(len(whole)):
        run.manifest.write_bytes(whole[:size])
        assert manifest_or_none(run) is None


def manifest_or_none(run: RunDirectory) -> object:
    try:
        return read_manifest(run)
    except MalformedHistory as error:
        return None if error.file == str(run.manifest) else error


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "expected a manifest"),
        (b"[1]", "expected a manifest"),
        (b"[" * 100_000, "expected a manifest"),
        (b"[" * 200_000, "expected at most 100000 lists and objects, found 200000"),
        (b'{"schema_version": 2, "future": 1}', "expected schema version 1, found 2"),
        (b'{"schema_version": 1, "future": 1}', "expected a manifest"),
        (b'{"schema_version": 1e400}', "expected a manifest"),
        (b'{"run_id": "\xff"}', "expected a manifest"),
    ],
)
def test_what_is_no_manifest_is_named(tmp_path: Path, content: bytes, sentence: str) -> None:
    run = RunDirectory(tmp_path)
    run.manifest.write_bytes(content)

    with pytest.raises(MalformedHistory, match=sentence):
        read_manifest(run)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"state": "running"}, "never sealed"),
        ({"state": "done"}, "expected a state of running, sealed, prefix, found 'done'"),
        ({"splits": 0}, "expected 1 to 1024 splits, found 0"),
        ({"splits": 3}, "expected a checksum of micro_ops-0002.parquet, found none"),
        ({"key_hash": "md5"}, "expected the key hash 'fibonacci-64', found 'md5'"),
        ({"schema_version": 2}, "expected schema version 1, found 2"),
    ],
)
def test_a_manifest_that_does_not_fit_its_files_is_refused(
    tmp_path: Path, change: dict[str, Any], sentence: str
) -> None:
    history = sealed(tmp_path, small_history())
    write_manifest(history.run, msgspec.structs.replace(history.manifest, **change))

    with pytest.raises(MalformedHistory, match=sentence):
        load(history.run)


def test_a_file_with_other_columns_is_refused_even_with_the_right_checksum(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    history = sealed(tmp_path, small_history())
    path = history.run.faults
    pq.write_table(pa.table({"fault": [1]}), path)
    checksums = dict(history.manifest.checksums)
    checksums["faults.parquet"] = hashlib.sha256(path.read_bytes()).hexdigest()
    forged = {"checksums": checksums, "sizes": {"faults.parquet": path.stat().st_size}}
    write_manifest(history.run, msgspec.structs.replace(history.manifest, **forged))

    with pytest.raises(MalformedHistory, match="found \\['fault'\\]"):
        load(history.run)


def test_a_run_directory_can_be_moved_and_its_name_means_nothing(tmp_path: Path) -> None:
    run = sealed(tmp_path / "run", small_history()).run
    moved = tmp_path / "key=7"
    run.root.rename(moved)
    history = load(RunDirectory(moved))

    assert history.micro_ops().schema.equals(schema.MICRO_OPS)
    assert history.transactions().num_rows == 4


def test_a_disk_that_refuses_to_seal_is_named_and_the_chunks_stay(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    write(run, small_history())
    run.events.mkdir()  # in the way
    with pytest.raises(HarnessError, match=r"cannot seal .*: Is a directory"):
        seal(run, partition_of=None)
    run.events.rmdir()

    assert seal(run, partition_of=None).state == "sealed"


def test_a_disk_too_full_to_seal_keeps_the_chunks_until_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        run = new_run(disk / "run")
        write(run, small_history(), reserve_bytes=0)
        ballast = disk / "ballast"
        with ballast.open("wb", buffering=0) as stream, contextlib.suppress(OSError):
            while stream.write(bytes(1024)):
                pass
        with pytest.raises(HarnessError, match="No space left on device: the tables are missing"):
            seal(run, partition_of=None)
        assert not list(run.root.rglob("*.partial"))
        assert read_manifest(run).state == "running"
        ballast.unlink()

        assert seal(run, partition_of=None).state == "sealed"
        assert load(run).transactions().num_rows == 4


def test_a_manifest_without_its_digest_is_malformed(tmp_path: Path) -> None:
    run = new_run(tmp_path)
    stored = msgspec.json.decode(run.manifest.read_bytes())
    del stored["digest"]
    run.manifest.write_bytes(msgspec.json.encode(stored))
    with pytest.raises(MalformedHistory, match="found none: it was changed after it was written"):
        read_manifest(run)
