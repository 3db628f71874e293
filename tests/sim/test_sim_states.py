"""What replicas tell is written down while a run lives, and whole at its end."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from clusters.providers.sim.loop import simulate
from clusters.providers.sim.machine import wall_ns
from harness.clock import RunClock
from harness.errors import HarnessError, MalformedHistory
from harness.history.run_directory import RunDirectory
from harness.protocols.cluster import Cluster
from harness.protocols.replica_states import LogMark, RecoveredState, ReplicaState, TellsStates
from harness.run.state_log import StateLog, read_states

CLUSTER = Cluster(nodes=("n1", "n2"), bind={}, peer={}, client={}, work_dir={})
REPLICA = ReplicaState(
    node="n1",
    life="n1@1",
    boot="b",
    group="p0",
    partition=0,
    leading=True,
    voter=True,
    voters=2,
    term=1,
    vote="n1@1",
    applied_index=4,
    applied_term=1,
    commit_index=4,
    last_index=4,
    recovered=RecoveredState(0, None, 0),
    epoch=1,
    acting=True,
    locks=0,
    prepared=0,
)


class Store:
    """``TellsStates``: ``n2`` holds no replica; locks go at ``quiet_s``, and the nodes of
    ``silent`` answer from ``told_s`` on.
    """

    def __init__(self, quiet_s: float, *silent: str, told_s: float = 0.0) -> None:
        self.quiet_s, self.silent, self.told_s = quiet_s, silent, told_s

    async def states(
        self, cluster: Cluster, node: str, *, whole: bool
    ) -> tuple[ReplicaState, ...] | None:
        now_s = asyncio.get_running_loop().time()
        await asyncio.sleep(0.01)
        if node in self.silent and now_s < self.told_s:
            return None
        if node == "n2":
            return ()
        state = msgspec.structs.replace(REPLICA, locks=int(now_s < self.quiet_s))
        if whole:
            state = msgspec.structs.replace(state, content=5, log=(LogMark(4, 1, 9),))
        return (state,)


def watched(root: Path, store: Store, *, samples: int = 0, limit_s: float = 15.0) -> dict[str, str]:
    """Sample, finish and close; the checksums of the files."""
    return timed(root, store, samples=samples, limit_s=limit_s)[1]


def timed(
    root: Path, store: Store, *, samples: int = 0, limit_s: float = 15.0
) -> tuple[float, dict[str, str]]:
    """As ``watched``, with the seconds that the end took."""
    root.mkdir(exist_ok=True)

    async def main() -> tuple[float, dict[str, str]]:
        loop = asyncio.get_running_loop()
        log = StateLog(RunDirectory(root), store, RunClock(loop, wall_ns))
        for _ in range(samples):
            await log.sample(CLUSTER)
            await asyncio.sleep(0.5)
        began_s = loop.time()
        await log.finish(CLUSTER, limit_s)
        took_s = loop.time() - began_s
        checksums = log.close()
        tables = read_states(root, checksums)
        assert tables["states"].num_rows == pq.read_metadata(root / "states.parquet").num_rows
        return took_s, checksums

    return simulate(main())


def test_a_store_that_tells_is_known_by_what_it_can() -> None:
    assert isinstance(Store(0), TellsStates)
    assert not isinstance(object(), TellsStates)


def test_samples_come_once_a_second_and_the_end_is_whole(tmp_path: Path) -> None:
    watched(tmp_path, Store(0), samples=4)

    rows = pq.read_table(tmp_path / "states.parquet").to_pylist()
    assert [row["final"] for row in rows] == [False, False, True]
    assert [row["content"] for row in rows] == [None, None, 5]
    assert all(row["asked_ns"] < row["answered_ns"] for row in rows)
    (mark,) = pq.read_table(tmp_path / "logs.parquet").to_pylist()
    assert (mark["group"], mark["index"], mark["term"], mark["digest"]) == ("p0", 4, 1, 9)


def test_the_end_waits_for_locks_to_go_but_not_for_ever(tmp_path: Path) -> None:
    assert 3.0 < timed(tmp_path / "a", Store(3.0))[0] < 4.0
    assert 15.0 <= timed(tmp_path / "b", Store(1e9))[0] < 16.0
    assert timed(tmp_path / "c", Store(1e9), limit_s=0.0)[0] < 1.0


class LateStore(Store):
    """``Store`` in which a second node holds the locks, and shows them only in whole states."""

    async def states(
        self, cluster: Cluster, node: str, *, whole: bool
    ) -> tuple[ReplicaState, ...] | None:
        if node == "n1":
            return (REPLICA,)
        found = await super().states(cluster, "n1", whole=whole)
        return found if whole else ()


def test_locks_that_only_the_last_answer_shows_are_waited_for_as_well(tmp_path: Path) -> None:
    took_s, _ = timed(tmp_path / "a", LateStore(3.0))
    rows = pq.read_table(tmp_path / "a" / "states.parquet").to_pylist()

    assert 3.0 < took_s < 4.0
    assert [row["locks"] for row in rows] == [0, 0]
    assert 15.0 <= timed(tmp_path / "b", LateStore(1e9))[0] < 16.0
    rows = pq.read_table(tmp_path / "b" / "states.parquet").to_pylist()
    assert [row["locks"] for row in rows] == [0, 1]


@pytest.mark.parametrize("silent", [("n2",), ("n1", "n2")])
def test_the_end_waits_for_every_node_and_names_those_that_never_answer(
    tmp_path: Path, silent: tuple[str, ...]
) -> None:
    took_s, sums = timed(tmp_path / "a", Store(0.0, *silent, told_s=3.0))
    assert 3.0 < took_s < 4.0
    assert read_states(tmp_path / "a", sums)["states"].num_rows == 1

    never = Store(0.0, *silent, told_s=1e9)
    expected = f"no answer at the end from {', '.join(silent)}: logs were not compared"
    with pytest.raises(HarnessError, match=expected):
        timed(tmp_path / "b", never)
    with pytest.raises(HarnessError, match=expected):
        timed(tmp_path / "c", never, limit_s=0.0)
    # What the others told is on the disk all the same.
    assert pq.read_metadata(tmp_path / "b" / "logs.parquet").num_rows == 2 - len(silent)


@pytest.mark.parametrize("name", ["states.parquet", "logs.parquet"])
def test_a_file_that_is_missing_or_differs_is_named_and_never_taken_for_none(
    tmp_path: Path, name: str
) -> None:
    checksums = watched(tmp_path, Store(0))
    whole = (tmp_path / name).read_bytes()
    assert read_states(tmp_path, checksums)[name.removesuffix(".parquet")].num_rows

    for damaged in (whole[:-1], b"", bytes([whole[0] ^ 1]) + whole[1:], None):
        (tmp_path / name).unlink()
        if damaged is not None:
            (tmp_path / name).write_bytes(damaged)
        with pytest.raises(MalformedHistory, match=name):
            read_states(tmp_path, checksums)
        (tmp_path / name).write_bytes(whole)


def test_files_without_a_checksum_are_not_read(tmp_path: Path) -> None:
    watched(tmp_path, Store(0))

    tables = read_states(tmp_path, {})

    assert tables["states"].num_rows == tables["logs"].num_rows == 0


def test_a_disk_that_refuses_is_said_with_what_is_missing(tmp_path: Path) -> None:
    (tmp_path / "logs.parquet").mkdir()

    with pytest.raises(HarnessError, match=r"cannot write .*logs.parquet.*logs were not compared"):
        watched(tmp_path, Store(0))
