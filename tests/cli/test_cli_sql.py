"""Statements from the command line to the nodes of a cluster that was kept up."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cli.main import execute
from harness.history.run_directory import RunDirectory
from harness.protocols.statement_language import StatementAnswer
from harness.run.addresses import read_addresses

ROOT = Path(__file__).parents[2]
LIMIT_S = 120
FIREDRILL = [sys.executable, "-c", "from cli.main import main; main()"]
PLAN = """
name = "zoned"
[cluster]
provider = "process"
nodes = 3
[system]
partitions = 2
replicas = 2
system_nodes = 1
[drive]
duration_s = 1
concurrency = 2
[nemesis]
mix = []
[check]
executor = "local"
min_ok = 1
"""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The store of a run whose cluster is up."""
    root = tmp_path_factory.mktemp("sql")
    (root / "plan.toml").write_text(PLAN)
    environment = os.environ | {"FIREDRILL_RUNS_DIR": str(root / "runs"), "CI": "true"}
    try:
        done = subprocess.run(
            [*FIREDRILL, "run", str(root / "plan.toml"), "--keep=always"],
            env=environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == 0, done.stderr
        yield root / "runs"
    finally:
        subprocess.run([*FIREDRILL, "cleanup", "--all"], env=environment, timeout=LIMIT_S)


def sql(runs: Path, *arguments: str) -> int:
    return execute(["sql", "latest", *arguments, "--runs-dir", str(runs)])


def test_a_node_of_a_kept_run_answers_queries_and_carries_statements_out(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = "SELECT ZONE_NAME, PARTITIONS, REPLICAS FROM SYSTEM.ZONES"
    assert sql(kept, "n2", "CREATE ZONE extra WITH REPLICAS = 3") == 0
    assert sql(kept, "n3", query) == 0

    assert capsys.readouterr().out.splitlines() == [
        "ZONE_NAME  PARTITIONS  REPLICAS",
        "DRILL      2           2",
        "EXTRA      25          3",
    ]


def test_a_statement_that_is_wrong_is_misuse_and_says_where(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sql(kept, "n1", "CREATE ZONE z WITH REPLICAS = 0") == 254
    assert sql(kept, "n9", "CREATE ZONE z") == 254

    text = capsys.readouterr().err
    assert "n1: OptionValue: line 1, column 31: REPLICAS must be a number from 1 to 100" in text
    assert "no node 'n9' (it has n1, n2, n3)" in text


def test_partitions_are_recovered_by_statements_which_are_refused_by_codes(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sql(kept, "n2", "RESTART PARTITIONS OF TABLE items ON 'n1'") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert rows[0] == ["TABLE_NAME", "PARTITION_ID", "NODE_NAME"]
    assert rows[1:]
    assert all((name, node) == ("ITEMS", "n1") for name, _, node in rows[1:])
    assert sql(kept, "n3", "RESET PARTITIONS OF ZONE drill") == 254
    assert (
        "MAJORITY-LIVES: all of its partitions have a majority that lives (try again: never)"
        in (capsys.readouterr().err)
    )
    # The same by way of the node's own admin command.
    (run,) = (path for path in kept.iterdir() if path.is_dir() and not path.is_symlink())
    address = read_addresses(RunDirectory(run)).client["n1"]["client"]
    admin = [sys.executable, "-m", "clusters.reference.node.admin"]
    done = subprocess.run(
        [*admin, f"{address.host}:{address.port}", "--sql", "RESET PARTITIONS (7) OF TABLE items"],
        capture_output=True, text=True, timeout=LIMIT_S, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 1
    assert (
        "NO-PARTITION: table ITEMS has partitions 0 to 1 (got 7) (try again: never)" in done.stderr
    )


def test_statements_are_read_one_a_line(
    kept: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = "CREATE ZONE one;\n\nALTER ZONE one SET REPLICAS = 2\nDESCRIBE ZONE one\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))

    assert sql(kept, "n1") == 0
    assert "REPLICAS" in (text := capsys.readouterr().out)
    assert next(line for line in text.splitlines() if line.startswith("REPLICAS")).endswith("2")


def test_cells_are_aligned_and_steer_no_terminal() -> None:
    from cli.sql import table

    answer = StatementAnswer(columns=("A", "LONG"), rows=((1, None), ("x\x1b[2J", "y")))

    assert list(table(answer)) == ["A         LONG", "1         NULL", "x\\x1b[2J  y"]
    assert list(table(StatementAnswer())) == []
