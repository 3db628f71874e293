"""``firedrill check`` of runs and histories that lie in a store of Hadoop's."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest
from mini_hdfs import hdfs

from checkers.engine.spark.hadoop import RemoteStore, remote_store
from cli.importing import opened
from cli.main import execute
from harness.errors import HarnessError
from harness.exit_codes import Outcome
from harness.history.run_directory import RunDirectory
from harness.protocols.verdict import read_outcome, read_verdict, write_verdict
from results.store.store import RunStore

FIREDRILL = Path(sys.executable).with_name("firedrill")
RUNS = Path(__file__).parents[1] / "evidence" / "runs"
LIMIT_S = 240
HISTORY = """
{"type":"invoke","f":"txn","value":[["append",1,1]],"process":0,"time":5,"index":0}
{"type":"ok","f":"txn","value":[["append",1,1]],"process":0,"time":7,"index":1}
{"type":"invoke","f":"txn","value":[["r",1,null]],"process":1,"time":8,"index":2}
{"type":"ok","f":"txn","value":[["r",1,[]]],"process":1,"time":9,"index":3}
"""


def check(path: str, *more: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [FIREDRILL, "check", path, *more], cwd=cwd, capture_output=True, text=True, timeout=LIMIT_S
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with hdfs(tmp_path_factory.mktemp("hdfs")) as address:
        yield address


@pytest.mark.spark
@pytest.mark.parametrize("executor", ["local", "spark"])
def test_a_run_on_hdfs_gets_the_verdict_that_it_gets_here(
    store: str, tmp_path: Path, executor: str
) -> None:
    shutil.copytree(RUNS / "sim-valid", tmp_path / "here")
    address = f"{store}/runs/{executor}"
    with remote_store(store) as remote:
        remote.put(tmp_path / "here", address)

    beside = check("here", "--executor", "local", cwd=tmp_path)
    done = check(address, "--executor", executor, cwd=tmp_path)

    assert done.returncode == beside.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].endswith(f"{address}/report.html")
    with remote_store(store) as remote:
        remote.fetch(address, tmp_path / "back")
    assert (tmp_path / "back/report.html").exists()
    verdicts = [tmp_path / name / "analysis/verdict.json" for name in ("here", "back")]
    assert verdicts[0].read_bytes() == verdicts[1].read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["back", "here"]


@pytest.mark.spark
def test_a_history_on_hdfs_is_imported(store: str, tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text(HISTORY)
    with remote_store(store) as remote:
        remote.put(tmp_path / "history.jsonl", f"{store}/history.jsonl")

    done = check(f"{store}/history.jsonl", "--json", "--executor", "local", cwd=tmp_path)

    assert done.returncode == Outcome.VIOLATION.exit_code, done.stderr
    assert set(json.loads(done.stdout)["anomalies"]) == {"G-single-item-realtime", "lost-write"}


@pytest.mark.spark
@pytest.mark.parametrize("how", ["no verdict", "cut off", "a verdict"])
def test_what_is_stored_of_a_run_stays_until_another_verdict_is_whole(
    store: str, tmp_path: Path, how: str
) -> None:
    shutil.copytree(RUNS / "sim-forgotten-vote", tmp_path / "run")
    address = f"{store}/judged/{how.replace(' ', '-')}"
    here = RunDirectory(tmp_path / "run")
    assert check("run", "--executor", "local", cwd=tmp_path).returncode == 1
    here.report.write_text("report")
    with remote_store(store) as remote:
        remote.put(here.root, address)
    stored = here.verdict.read_bytes()
    left = pytest.raises(Killed) if how == "cut off" else nullcontext()

    with left, opened(address, RunStore(tmp_path / "runs"), None, keep=False) as found:
        run = found.run
        # What judges it finds what is stored: by less than that no violation is replaced.
        assert read_outcome(run) is Outcome.VIOLATION
        (run.analysis / "new-table.parquet").write_bytes(b"")
        if how == "cut off":
            raise Killed
        if how == "a verdict":
            write_verdict(run, msgspec.structs.replace(read_verdict(run), reasons=("again",)))

    with remote_store(store) as remote:
        remote.fetch(address, tmp_path / "back")
    back = RunDirectory(tmp_path / "back")
    assert back.report.read_text() == "report"
    assert (back.verdict.read_bytes() == stored) is (how != "a verdict")
    assert (back.analysis / "new-table.parquet").exists() is (how == "a verdict")
    assert read_outcome(back) is Outcome.VIOLATION


class Killed(BaseException):
    """What no handler of the package takes for an error."""


@pytest.mark.spark
@pytest.mark.parametrize(("last", "there"), [(".before", "old"), ("/analysis", "new")])
def test_results_that_are_replaced_are_never_gone(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, last: str, there: str
) -> None:
    for name in ("old", "new", "newer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "verdict.json").write_text(name)
    parent = f"{store}/replaced-{there}"
    address = f"{parent}/analysis"
    rename = RemoteStore._rename_new

    def killed(remote: RemoteStore, old: str, new: str) -> None:
        rename(remote, old, new)
        if new.endswith(last) and not old.endswith(".before"):
            raise Killed

    with remote_store(store) as remote:
        remote.put(tmp_path / "old", address)
        with monkeypatch.context() as patch:
            patch.setattr(RemoteStore, "_rename_new", killed)
            with pytest.raises(Killed):
                remote.put(tmp_path / "new", address)
        assert list(remote.entries(parent)) == ["analysis"]
        remote.fetch(address, tmp_path / "back")
        assert (tmp_path / "back/verdict.json").read_text() == there


@pytest.mark.spark
def test_what_a_killed_one_moved_aside_stays_for_a_day(store: str, tmp_path: Path) -> None:
    parent, now_s = f"{store}/killed", int(time.time())
    (tmp_path / "verdict.json").write_text("old")
    names = [f"verdict.json.{now_s - age_s:08x}00000000.before" for age_s in (60, 2 * 86_400)]
    with remote_store(store) as remote:
        for name in (*names, "verdict.json.other.before"):
            remote.put(tmp_path / "verdict.json", f"{parent}/{name}")

        remote.put(tmp_path / "verdict.json", f"{parent}/verdict.json")

        left = ["verdict.json", names[0], "verdict.json.other.before"]
        assert list(remote.entries(parent)) == sorted(left)


@pytest.mark.spark
def test_of_results_that_are_put_at_the_same_time_one_stays_whole(
    store: str, tmp_path: Path
) -> None:
    address = f"{store}/at-once/analysis"
    puts = (
        "import sys; from pathlib import Path\n"
        "from checkers.engine.spark.hadoop import remote_store\n"
        "with remote_store(sys.argv[1]) as remote:\n"
        "    for _ in range(12): remote.put(Path(sys.argv[2]), sys.argv[1])"
    )
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        for number in range(4):
            (tmp_path / name / f"table-{number}").write_text(name)
    both = [
        subprocess.Popen([sys.executable, "-c", puts, address, tmp_path / name])
        for name in ("one", "two")
    ]

    assert [each.wait(LIMIT_S) for each in both] == [0, 0]

    with remote_store(store) as remote:
        assert list(remote.entries(f"{store}/at-once")) == ["analysis"]
        remote.fetch(address, tmp_path / "back")
    found = {file.name: file.read_text() for file in (tmp_path / "back").iterdir()}
    assert sorted(found) == [f"table-{number}" for number in range(4)]
    assert len(set(found.values())) == 1


@pytest.mark.spark
def test_results_that_can_not_be_put_leave_the_old_ones_in_place(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("old", "new"):
        (tmp_path / name).write_text(name)
    address = f"{store}/refused/report.html"
    rename = RemoteStore._rename_new

    def refused(remote: RemoteStore, old: str, new: str) -> None:
        if new == address and old.endswith(".partial"):
            raise HarnessError(f"{new}: refused")
        rename(remote, old, new)

    with remote_store(store) as remote:
        remote.put(tmp_path / "old", address)
        monkeypatch.setattr(RemoteStore, "_rename_new", refused)
        with pytest.raises(HarnessError, match="refused"):
            remote.put(tmp_path / "new", address)
        remote.fetch(address, tmp_path / "back")
        assert list(remote.entries(f"{store}/refused")) == ["report.html"]
    assert (tmp_path / "back").read_text() == "old"


@pytest.mark.spark
def test_what_was_found_holds_where_the_store_takes_no_results(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    address = f"{store}/full/a run"
    with remote_store(store) as remote:
        remote.put(RUNS / "sim-forgotten-vote", address)

    def refused(remote: RemoteStore, source: Path, address: str) -> None:
        raise HarnessError(f"{address}: no space is left")

    monkeypatch.setattr(RemoteStore, "put", refused)
    code = execute(["check", address, "--executor", "local"])

    assert code == Outcome.VIOLATION.exit_code
    told = capsys.readouterr()
    said = " ".join(told.err.split())
    assert "analysis could not be put beside the run" in said
    assert told.out.splitlines()[-1].endswith(f": {address}")  # no report that is not there
    assert "no space is left" in said


@pytest.mark.spark
@pytest.mark.parametrize(
    ("name", "reason"), [("/nothing", "does not exist"), ("nosuch://x/y", "nosuch")]
)
def test_what_is_not_there_is_refused_by_name(
    store: str, tmp_path: Path, name: str, reason: str
) -> None:
    address = name if "://" in name else f"{store}{name}"

    done = check(address, cwd=tmp_path)

    assert done.returncode == 254, done.stderr
    assert address in done.stderr
    assert reason in done.stderr


@pytest.mark.spark
def test_what_is_refused_of_a_copy_is_told_by_its_address(store: str, tmp_path: Path) -> None:
    shutil.copytree(RUNS / "sim-valid", tmp_path / "run")
    with (tmp_path / "run/manifest.json").open("a") as manifest:
        manifest.write("x")
    (tmp_path / "bad.jsonl").write_text(HISTORY.replace('"ok"', '"okay"'))
    with remote_store(store) as remote:
        remote.put(tmp_path / "run", f"{store}/torn")
        remote.put(tmp_path / "bad.jsonl", f"{store}/bad.jsonl")

    for address in (f"{store}/torn", f"{store}/bad.jsonl"):
        done = check(address, "--no-report", cwd=tmp_path)

        assert done.returncode == 254, done.stderr
        assert done.stderr.splitlines()[-1].startswith(f"firedrill: {address}"), done.stderr
        assert "firedrill-fetch" not in done.stderr
