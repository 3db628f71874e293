"""What stands beside a history is as durable and as whole as the history itself."""

from __future__ import annotations

import asyncio
import errno
import os
import re
from pathlib import Path
from typing import cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from harness.clock import RunClock
from harness.errors import HarnessError, MalformedHistory
from harness.history.evidence import sum_logs
from harness.history.parquet import write_side_table
from harness.history.regular_files import sha256
from harness.history.run_directory import RunDirectory
from harness.protocols.cluster import Cluster
from harness.protocols.replica_states import RecoveredState, ReplicaState, TellsStates
from harness.run import controller_health, state_log
from harness.run.controller_health import read_controller_health
from harness.run.state_log import STATES_FILE, StateLog

TABLE = pa.table({"a": [1, 2, 3]})
HARNESS = Path(controller_health.__file__).parents[1]


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The inodes that were made durable, in order."""
    found: list[int] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        found.append(os.fstat(handle).st_ino)
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    return found


def test_a_side_table_is_durable_under_its_name_when_it_is_summed(
    tmp_path: Path, synced: list[int]
) -> None:
    sums = write_side_table(tmp_path, "t.parquet", TABLE, "nothing is left")

    assert sums == {"t.parquet": sha256(tmp_path / "t.parquet")}
    assert pq.read_table(tmp_path / "t.parquet").equals(TABLE)
    assert synced == [(tmp_path / "t.parquet").stat().st_ino, tmp_path.stat().st_ino]


def test_a_disk_that_refuses_half_way_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = write_side_table(tmp_path, "t.parquet", TABLE, "nothing is left")

    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", refused)
    with pytest.raises(HarnessError, match=r"t\.parquet: No space left.*nothing is left"):
        write_side_table(tmp_path, "t.parquet", TABLE, "nothing is left")

    assert [path.name for path in tmp_path.iterdir()] == ["t.parquet"]
    assert sha256(tmp_path / "t.parquet") == before["t.parquet"]


def test_a_directory_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(HarnessError, match=r"cannot write .*/none/t\.parquet"):
        write_side_table(tmp_path / "none", "t.parquet", TABLE, "nothing is left")


def test_no_part_of_the_harness_writes_a_table_in_place() -> None:
    """``imported_history`` writes its own under an unfinished name."""
    writers = {
        path.relative_to(HARNESS).as_posix()
        for path in HARNESS.rglob("*.py")
        if re.search(r"\bpq\.(write_table|ParquetWriter)\(", path.read_text())
    }
    assert writers == {"history/parquet.py", "importers/jepsen/imported_history.py"}


class OneReplica:
    """A system whose only replica is always the same."""

    async def states(
        self, cluster: Cluster, node: str, *, whole: bool
    ) -> tuple[ReplicaState, ...] | None:
        recovered = RecoveredState(term=0, vote=None, last_index=0)
        return (
            ReplicaState(
                node=node,
                life="l",
                boot="b",
                group="p0",
                partition=0,
                leading=True,
                voter=True,
                voters=1,
                term=1,
                vote=None,
                applied_index=1,
                applied_term=1,
                commit_index=1,
                last_index=1,
                recovered=recovered,
                epoch=1,
                acting=True,
                locks=0,
                prepared=0,
            ),
        )


def test_states_have_no_name_of_their_own_before_they_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_log, "PIECE_ROWS", 1)
    run = RunDirectory(tmp_path)
    cluster = Cluster(nodes=("n1",), bind={}, peer={}, client={}, work_dir={})

    async def story() -> tuple[list[str], dict[str, str]]:
        clock = RunClock(asyncio.get_running_loop())
        states = StateLog(run, cast(TellsStates, OneReplica()), clock)
        await states.sample(cluster)
        return os.listdir(tmp_path), states.close()

    begun, sums = asyncio.run(story())

    assert len(begun) == 1
    assert begun[0].startswith(f".{STATES_FILE}.")
    assert [path.name for path in tmp_path.iterdir()] == [STATES_FILE]
    assert sums == {STATES_FILE: sha256(tmp_path / STATES_FILE)}


def test_logs_are_durable_when_they_are_summed(tmp_path: Path, synced: list[int]) -> None:
    run = RunDirectory(tmp_path)
    logs = [run.node(node) / "node.log" for node in ("n1", "n2")]
    for log in logs:
        log.parent.mkdir(parents=True)
        log.write_text("fine\n")

    assert sorted(sum_logs(run)) == ["nodes/n1/node.log", "nodes/n2/node.log"]

    durable = {log.stat().st_ino for log in logs}
    names = {above.stat().st_ino for log in logs for above in log.parents[:3]}
    assert set(synced) == durable | names


def health(root: Path, table: pa.Table) -> pa.Table:
    run = RunDirectory(root)
    return read_controller_health(run, write_side_table(root, run.controller.name, table, ""))


@pytest.mark.parametrize("later", [(), ("resident_bytes",), ("cpu_share", "resident_bytes")])
def test_what_an_older_version_did_not_measure_of_a_controller_is_null(
    tmp_path: Path, later: tuple[str, ...]
) -> None:
    row = {"at_ns": 1, "length_ns": 2, "late_ns": 3, "cpu_share": 0.5, "resident_bytes": 4}
    columns = pa.schema([c for c in controller_health.SCHEMA if c.name not in later])

    found = health(tmp_path, pa.Table.from_pylist([row], schema=columns))

    assert found.schema.names == controller_health.SCHEMA.names
    assert found.to_pylist() == [row | dict.fromkeys(later)]


def test_a_table_of_a_controller_with_other_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedHistory, match="expected the columns"):
        health(tmp_path, TABLE)
    none = controller_health.SCHEMA.empty_table()
    wrong = none.set_column(0, "at_ns", pa.array([], pa.string()))
    with pytest.raises(MalformedHistory, match="expected the types"):
        health(tmp_path, wrong)
