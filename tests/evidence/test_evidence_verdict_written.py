"""Verdicts that are written as a writer dies, or as another one writes: a reader finds the verdict
before or the new one, and an analysis that came to nothing replaces neither.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from pathlib import Path

import pytest

from cli.judging.keep import keep_first_verdict
from harness.errors import DeadlineExceeded, MalformedHistory, NotStored
from harness.exit_codes import Outcome
from harness.history import directory_locks, durable_files, regular_files
from harness.history.run_directory import RunDirectory
from harness.protocols import verdict as verdicts
from harness.protocols.verdict import Verdict, read_verdict, write_first_verdict, write_verdict

RUNS = Path(__file__).with_name("runs")
PROVEN = Verdict(outcome=Outcome.VIOLATION, model="serializable")
OTHER = Verdict(outcome=Outcome.VALID, model="serializable")
NONE = Verdict(outcome=Outcome.UNKNOWN, model="serializable", reasons=("it died",))
WRITES = 3  # of a verdict into the place of another


class Killed(BaseException):
    """The end of a writer."""


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory(Path(shutil.copytree(RUNS / "sim-valid", tmp_path / "run")))


def refusing(patched: pytest.MonkeyPatch, count: int, error: BaseException) -> None:
    """Have ``error`` come in the place of the write after ``count``."""
    written: list[Path] = []

    def write(path: Path, content: bytes) -> None:
        if len(written) == count:
            raise error
        written.append(path)
        durable_files.write_held(path, content)

    patched.setattr(verdicts, "write_held", write)


def killed_after(run: RunDirectory, count: int, verdict: Verdict) -> None:
    with pytest.MonkeyPatch.context() as patched, contextlib.suppress(Killed):
        refusing(patched, count, Killed())
        write_verdict(run, verdict)


@pytest.mark.parametrize("count", range(WRITES + 1))
def test_a_writer_that_is_killed_leaves_the_verdict_before_or_its_own(
    run: RunDirectory, count: int
) -> None:
    write_verdict(run, PROVEN)

    killed_after(run, count, OTHER)

    assert read_verdict(run) == (PROVEN if count < 2 else OTHER)
    assert not keep_first_verdict(run, NONE, lambda _: None)
    assert read_verdict(run) == (PROVEN if count < 2 else OTHER)
    write_verdict(run, NONE)
    assert read_verdict(run) == NONE


@pytest.mark.parametrize("count", range(WRITES))
def test_a_writer_that_is_killed_twice_leaves_a_verdict(run: RunDirectory, count: int) -> None:
    write_verdict(run, PROVEN)
    killed_after(run, count, OTHER)
    before = read_verdict(run)

    killed_after(run, 1, NONE)

    assert read_verdict(run) == before


@pytest.mark.parametrize("count", range(2))
def test_the_first_verdict_is_there_whole_or_not_at_all(run: RunDirectory, count: int) -> None:
    killed_after(run, count, PROVEN)
    assert read_verdict(run) is None

    write_verdict(run, PROVEN)
    assert read_verdict(run) == PROVEN


def test_a_verdict_of_an_older_version_stays_until_another_is_there(run: RunDirectory) -> None:
    write_verdict(run, PROVEN)
    run.verdict_seal.unlink()

    killed_after(run, 1, OTHER)

    assert read_verdict(run) == PROVEN


def test_no_seal_covers_the_verdict_of_another_run(run: RunDirectory, tmp_path: Path) -> None:
    write_verdict(run, PROVEN)
    run.verdict.write_bytes(verdicts.encode(OTHER))

    killed_after(run, 1, NONE)

    with pytest.raises(MalformedHistory, match="found another: check it"):
        read_verdict(run)


def test_once_a_verdict_is_written_the_one_before_is_believed_no_more(run: RunDirectory) -> None:
    write_verdict(run, PROVEN)
    before = run.verdict.read_bytes()
    write_verdict(run, OTHER)
    assert b"before" not in run.verdict_seal.read_bytes()

    run.verdict.write_bytes(before)

    with pytest.raises(MalformedHistory, match="found another: check it"):
        read_verdict(run)


def test_a_verdict_that_is_there_is_stored_whatever_becomes_of_its_seal(run: RunDirectory) -> None:
    write_verdict(run, PROVEN)

    with pytest.MonkeyPatch.context() as patched:
        refusing(patched, WRITES - 1, NotStored("full"))
        write_verdict(run, OTHER)

    assert read_verdict(run) == OTHER


def test_between_look_and_write_no_other_writer_comes(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused: list[str] = []

    def looked(of: RunDirectory) -> Outcome | None:
        with pytest.raises(DeadlineExceeded, match=r"another writer in .*analysis"):
            write_verdict(run, PROVEN)
        refused.append("another writer")
        return original(of)

    original = verdicts.read_outcome
    monkeypatch.setattr(verdicts, "read_outcome", looked)
    monkeypatch.setattr(durable_files, "ALONE_WITHIN_S", 0.0)

    assert write_first_verdict(run, NONE)

    assert refused == ["another writer"]
    assert read_verdict(run) == NONE


def test_a_verdict_that_another_analysis_writes_meanwhile_stays(run: RunDirectory) -> None:
    write_verdict(run, PROVEN)

    assert not write_first_verdict(run, NONE)

    assert read_verdict(run) == PROVEN


def test_a_writer_waits_for_the_one_before(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.analysis.mkdir()
    held = directory_locks.lock_directory(run.analysis, shared=False)
    assert held is not None
    monkeypatch.setattr(directory_locks, "pause", lambda _: os.close(held))

    write_verdict(run, PROVEN)

    assert read_verdict(run) == PROVEN


def test_where_there_are_no_locks_a_verdict_is_written_all_the_same(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*given: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)

    write_verdict(run, PROVEN)

    assert read_verdict(run) == PROVEN


@pytest.mark.parametrize("times", [1, verdicts.READS_MAX - 1])
def test_a_reader_between_two_replacements_finds_the_new_verdict(
    times: int, run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_verdict(run, PROVEN)
    coming = ([OTHER, PROVEN] * times)[:times]

    def read(path: Path, limit_bytes: int) -> bytes:
        content = regular_files.read_small(path, limit_bytes)
        if path == run.verdict and coming:
            with monkeypatch.context() as original:
                original.setattr(verdicts, "read_small", regular_files.read_small)
                write_verdict(run, coming.pop(0))
        return content

    monkeypatch.setattr(verdicts, "read_small", read)

    assert read_verdict(run) == (OTHER if times % 2 else PROVEN)


def test_a_verdict_that_is_another_runs_is_refused_at_once(
    run: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_verdict(run, PROVEN)
    run.verdict.write_bytes(verdicts.encode(OTHER))
    read: list[Path] = []

    def counted(path: Path, limit_bytes: int) -> bytes:
        read.append(path)
        return regular_files.read_small(path, limit_bytes)

    monkeypatch.setattr(verdicts, "read_small", counted)

    with pytest.raises(MalformedHistory, match="found another: check it"):
        read_verdict(run)
    assert read.count(run.verdict) == 1
