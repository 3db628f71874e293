"""Runs that another hand changes while they are judged or sealed: nothing is written where a link
leads, nothing is told of tables that are not those that were summed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from checkers.engine import analyze as engine
from checkers.engine.analyze import analyze
from cli.judging.keep import keep_verdict
from cli.main import execute
from harness.errors import HarnessError, MalformedHistory
from harness.history import durable_files
from harness.history.evidence import require_logs
from harness.history.load import load
from harness.history.manifest import RUNNING, read_manifest
from harness.history.run_directory import RunDirectory
from harness.history.seal import recover

RUNS = Path(__file__).with_name("runs")


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(Path(shutil.copytree(RUNS / "sim-valid", tmp_path / "run")))


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    place = tmp_path / "outside"
    place.mkdir()
    (place / "reserve-0").write_text("precious")
    (place / "verdict.json").write_text("precious")
    return place


def content(place: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in place.iterdir()}


def link_instead(directory: Path, outside: Path) -> None:
    """Put a link to ``outside`` into the place of ``directory``."""
    directory.rename(directory.with_name(f"{directory.name}-before"))
    directory.symlink_to(outside)


def once_begun(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[], None], *, after: int = 0
) -> list[Path]:
    """Have ``act`` happen before a writer begins its file number ``after``; return those begun."""
    begun: list[Path] = []

    def begin(path: Path) -> Path:
        if len(begun) == after:
            act()
        begun.append(path)
        return original(path)

    original = durable_files.begin
    monkeypatch.setattr(durable_files, "begin", begin)
    return begun


@pytest.mark.parametrize("after", [0, 1, 2])
def test_a_link_in_the_place_of_the_analysis_leads_no_table_out(
    run: RunDirectory, outside: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    before = content(outside)
    act = lambda: link_instead(run.analysis, outside)  # noqa: E731
    begun = once_begun(monkeypatch, act, after=after)

    analyze(run, executor="local")

    assert len(begun) > after
    assert content(outside) == before
    assert len(list(run.analysis.with_name("analysis-before").iterdir())) == len(begun)


def test_a_link_in_the_place_of_the_analysis_takes_no_verdict(
    run: RunDirectory, outside: Path
) -> None:
    before = content(outside)
    verdict = analyze(run, executor="local")
    link_instead(run.analysis, outside)

    with pytest.raises(HarnessError, match=r"cannot write .*analysis/verdict\.json: Not a direct"):
        keep_verdict(run, verdict, lambda _: None)

    assert content(outside) == before


@pytest.mark.parametrize("after", [0, 3])
def test_a_link_in_the_place_of_the_history_leads_no_recovery_out(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    run = RunDirectory(Path(shutil.copytree(RUNS / "two-drivers-killed", tmp_path / "run")))
    before = content(outside)
    once_begun(monkeypatch, lambda: link_instead(run.history, outside), after=after)

    with pytest.raises(HarnessError, match=r"cannot seal .*history"):
        recover(run)

    assert content(outside) == before
    run.history.unlink()
    assert read_manifest(run).state == RUNNING
    assert list(run.chunks.iterdir())


def test_a_link_in_the_place_of_the_chunks_costs_no_other_file(
    tmp_path: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory(Path(shutil.copytree(RUNS / "two-drivers-killed", tmp_path / "run")))
    before = content(outside)
    original = durable_files.held

    def held(directory: Path, **asked: Any) -> Any:
        if directory == run.chunks:
            link_instead(run.chunks, outside)
        return original(directory, **asked)

    monkeypatch.setattr(durable_files, "held", held)

    with pytest.raises(HarnessError, match=r"cannot seal .*Not a directory"):
        recover(run)

    assert content(outside) == before


def exchanged(path: Path) -> None:
    """Another file with the same bytes: only who put it there knows what it was in between."""
    shutil.copy(path, path.with_suffix(".other"))
    path.with_suffix(".other").replace(path)


def linked(path: Path) -> None:
    path.rename(path.with_suffix(".other"))
    path.symlink_to(path.with_suffix(".other").name)


def written(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.write(stream.read(1))
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))  # within one tick of the clock as well


@pytest.mark.parametrize("how", [exchanged, linked, written, Path.unlink])
@pytest.mark.parametrize(
    "name",
    [
        "manifest.json",
        "plan.toml",
        "faults.parquet",
        "states.parquet",
        "history/transactions.parquet",
        "history/micro_ops-0001.parquet",
    ],
)
def test_a_file_that_is_exchanged_while_it_is_judged_is_named(
    run: RunDirectory, name: str, how: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = engine.judge

    def exchanging(*given: Any, **named: Any) -> Any:
        try:
            return judge(*given, **named)
        finally:
            how(run.root / name)

    monkeypatch.setattr(engine, "judge", exchanging)

    with pytest.raises(MalformedHistory, match=f"{name}: it was changed or exchanged while"):
        analyze(run, executor="local")

    assert not run.analysis.exists()


def test_a_hard_link_made_meanwhile_is_no_change(
    run: RunDirectory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge = engine.judge

    def linking(*given: Any, **named: Any) -> Any:
        os.link(run.root / "history" / "transactions.parquet", tmp_path / "link")
        return judge(*given, **named)

    monkeypatch.setattr(engine, "judge", linking)

    assert analyze(run, executor="local").outcome.value == "valid"


def test_a_run_is_judged_again_once_it_stands_still(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patched:
        judge = engine.judge

        def exchanging(*given: Any, **named: Any) -> Any:
            exchanged(run.faults)
            return judge(*given, **named)

        patched.setattr(engine, "judge", exchanging)
        with pytest.raises(MalformedHistory, match="judge it again"):
            analyze(run, executor="local")
    (run.root / "faults.other").unlink(missing_ok=True)

    assert execute(["check", str(run.root), "--executor", "local", "--no-report"]) == 0
    assert "VALID" in capsys.readouterr().out


LOG = "nodes/n1/node.log"


def overwritten(path: Path) -> None:
    """Put other bytes into the place of the first ones, and leave the size."""
    with path.open("r+b") as stream:
        stream.write(b"PANIC: ")
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))  # within one tick of the clock as well


def overwritten_and_grown(path: Path) -> None:
    overwritten(path)
    grown(path)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def grown(path: Path) -> None:
    with path.open("ab") as stream:
        stream.write(b"one more line\n")


@pytest.mark.parametrize(
    "how", [exchanged, linked, overwritten, overwritten_and_grown, cut, Path.unlink]
)
def test_a_log_of_other_lines_than_were_sealed_accuses_no_node(
    run: RunDirectory, how: Callable[[Path], None]
) -> None:
    history = load(run)
    history.require_unchanged()

    how(run.root / LOG)

    with pytest.raises(MalformedHistory, match=f"{LOG}: it was changed or exchanged while"):
        history.require_unchanged()


def test_a_log_may_grow_while_it_is_judged(run: RunDirectory) -> None:
    history = load(run)

    grown(run.root / LOG)
    history.require_unchanged()
    grown(run.root / LOG)
    history.require_unchanged()


def test_hostile_names_of_missing_logs_are_told_in_a_line(run: RunDirectory) -> None:
    manifest = read_manifest(run)
    assert not isinstance(manifest.logs, msgspec.UnsetType)
    gone = next(iter(manifest.logs.values()))
    names = [f"nodes/\x01/\x1b[2J{number:05}.log" for number in range(10_000)]
    names += [f"nodes/\x1b[1m{number:05}/node.log" for number in range(10_000)]

    logs = dict.fromkeys(names, gone)
    told = require_logs(run, msgspec.structs.replace(manifest, logs=logs)).missing

    assert len(told) == 21
    assert told[-1] == "9981 more nodes lack logs"
    assert sum(map(len, told)) < 20_000
    assert all(sentence.isprintable() for sentence in told)
    assert any(sentence.endswith("9980 more") for sentence in told)
