"""Files that the manifest of a run does not name, in the place of tables, chunks and logs: none is
read, and a run that has one is at best ``unknown``, with the file's name.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import msgspec
import pytest
from stranger_kit import NAME, copied, sound_run

from checkers.engine.analyze import analyze
from cli.judging.child_messages import JudgeOptions
from cli.judging.executor_choice import transaction_count
from cli.judging.steps import judge_here
from harness.errors import MalformedHistory
from harness.history import record_frames
from harness.history.load import load
from harness.history.manifest import read_manifest, write_manifest
from harness.history.run_directory import RunDirectory
from harness.protocols.verdict import Verdict

TABLE = "history/micro_ops-0000.parquet"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return sound_run(tmp_path_factory.mktemp("unnamed") / NAME)


@pytest.fixture(scope="module")
def unsealed(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    return sound_run(tmp_path_factory.mktemp("unnamed") / NAME, sealed=False)


def planted(original: RunDirectory, to: Path, name: str, content: bytes) -> RunDirectory:
    run = copied(original, to)
    (run.root / name).parent.mkdir(exist_ok=True)
    (run.root / name).write_bytes(content)
    return run


def judged(run: RunDirectory) -> Verdict:
    return judge_here(
        run, JudgeOptions(executor="local", model=None, search_limit=None), lambda _: None
    )


@pytest.mark.parametrize(
    "name",
    [
        "history/micro_ops-9999.parquet",
        "history/micro_ops-0001.parquet",
        "history/transactions-2.parquet",
        "history/keys.parquet",
        "history/notes.txt",
        "states.parquet",
        "logs.parquet",
        "controller.parquet",
        "assignments.parquet",
        "more.parquet",
        "chunks/w1-000000.chunk",
        "chunks/other.chunk",
        "nodes/n1/more.log",
        "nodes/n3/node.log",
    ],
)
def test_an_added_file_of_the_evidence_makes_a_run_unknown_by_its_name(
    name: str, sound: RunDirectory, tmp_path: Path
) -> None:
    content = (sound.root / TABLE).read_bytes() if name.endswith(".parquet") else b"panic: x\n"
    run = planted(sound, tmp_path / NAME, name, content)

    verdict = analyze(run, executor="local")

    assert verdict.outcome == "unknown"
    assert verdict.reasons == (f"{name} is not in the manifest, and was not read",)
    assert verdict.anomalies == {}


def test_an_added_file_takes_no_violation_back(tmp_path: Path) -> None:
    lost = sound_run(tmp_path / "original", lost=True)
    run = planted(lost, tmp_path / NAME, "history/micro_ops-0001.parquet", b"PAR1")

    verdict = analyze(run, executor="local")

    assert verdict.outcome == "violation"
    assert "history/micro_ops-0001.parquet is not in the manifest, and was not read" in (
        verdict.reasons
    )


def test_files_that_sealing_or_a_person_leaves_are_no_evidence(
    sound: RunDirectory, tmp_path: Path
) -> None:
    run = planted(sound, tmp_path / NAME, "history/.keys.parquet.x1.partial", b"PAR1")
    for name in ("notes.txt", ".table.parquet", "nodes/n1/state.json", "chunks/w0-000007.chunk"):
        (run.root / name).parent.mkdir(exist_ok=True)
        (run.root / name).write_text("x")

    verdict = analyze(run, executor="local")

    assert (verdict.outcome, verdict.reasons) == ("valid", ())


def test_many_added_files_are_counted_beyond_the_first_twenty(
    sound: RunDirectory, tmp_path: Path
) -> None:
    run = copied(sound, tmp_path / NAME)
    for number in range(50):
        (run.history / f"x{number:02}\x1b[2J").write_text("")

    unnamed = load(run).unnamed

    assert unnamed[0] == "history/x00\\x1b[2J is not in the manifest, and was not read"
    assert unnamed[20:] == ("30 more files are not in the manifest, and were not read",)


@pytest.mark.parametrize("ended", [True, False])
def test_a_chunk_behind_the_end_of_its_stream_is_named(
    ended: bool, unsealed: RunDirectory, tmp_path: Path
) -> None:
    run = copied(unsealed, tmp_path / NAME)
    first = run.chunks / record_frames.chunk_name(0, 0)
    if not ended:
        os.truncate(first, first.stat().st_size - record_frames.FRAME.size)
    shutil.copy(first, run.chunks / record_frames.chunk_name(0, 3))

    verdict = judged(run)

    assert verdict.outcome == "unknown"
    assert any("up to w0-000003.chunk, were not read" in reason for reason in verdict.reasons)


@pytest.mark.parametrize("name", ["w0-1.chunk", "w00-000001.chunk", "w1-000000.chunk", "x.chunk"])
def test_a_chunk_that_no_writer_of_the_run_wrote_is_refused_by_name(
    name: str, unsealed: RunDirectory, tmp_path: Path
) -> None:
    run = planted(unsealed, tmp_path / NAME, f"chunks/{name}", b"")

    with pytest.raises(MalformedHistory, match=name):
        judged(run)

    assert (run.chunks / name).exists()


def test_no_footer_is_read_before_the_sum_of_its_table_is_compared(
    sound: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = copied(sound, tmp_path / NAME)
    write_manifest(run, msgspec.structs.replace(read_manifest(run), recorded=msgspec.UNSET))
    assert transaction_count(run) == 3
    table = run.history / "transactions.parquet"
    content = table.read_bytes()
    table.write_bytes(content[:-20] + bytes([content[-20] ^ 1]) + content[-19:])

    def opened(*_: object) -> None:
        raise AssertionError("a footer was read")

    monkeypatch.setattr("pyarrow.parquet.read_metadata", opened)
    monkeypatch.setattr("pyarrow.parquet.ParquetFile", opened)

    assert transaction_count(run) == 0
