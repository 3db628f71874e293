"""Runs with more of something than any run has: faults, events, states, resets, lost writes."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from reset_runs import Operation, accounts, add_resets, given_up, lists, registers, written
from stranger_kit import equal_values, forge, rows_of, sound_run

from harness.history import schema
from harness.history.chunks import ChunkWriter
from harness.history.manifest import read_manifest
from harness.history.records import Complete, Invoke, MicroOp, OpType, PhaseMark
from harness.history.run_directory import RunDirectory
from harness.history.seal import seal
from harness.run.state_log import STATES, STATES_FILE

Attack = Callable[[RunDirectory], None]
VALID, VIOLATION, UNKNOWN, REFUSED, JUDGED = (0,), (1,), (2,), (254,), (0, 1, 2)


def many_rows(name: str, rows: int) -> Attack:
    """A table of equal rows: a few bytes each million."""

    def spoil(run: RunDirectory) -> None:
        path = run.root / name
        like = pq.read_schema(path)
        count = min(rows, 1_000_000)
        one = pa.table([equal_values(field, count) for field in like], schema=like)
        with pq.ParquetWriter(path, like, compression="zstd") as writer:
            for _ in range(rows // count):
                writer.write_table(one)
        forge(run)

    return spoil


def many_events(rows: int, *kinds: str, partitions: int = 64, from_ns: int = 0) -> Attack:
    """So many events that differ, of these kinds in turn: as honest ones would be."""

    def spoil(run: RunDirectory) -> None:
        place = np.arange(rows)
        given = {
            "kind": pa.array(kinds).take(pa.array(place % len(kinds))),
            "node": pa.array(["n1", "n2"]).take(pa.array(place // 64 % 2)),
            "at_ns": from_ns + place // 100,
            "wall_ns": place,
            "partition": place % partitions,
            "term": place // 64,
            "generation": place // 64,
            "text": pa.array(place).cast(pa.string()),
        }
        pq.write_table(rows_of(schema.EVENTS, rows, **given), run.events, compression="zstd")
        forge(run)

    return spoil


def summed_beside(run: RunDirectory, name: str) -> None:
    """Let the manifest name file ``name``, too."""
    forge(run, checksums=read_manifest(run).checksums | {name: ""})
    sums = {
        each: hashlib.sha256((run.root / each).read_bytes()).hexdigest()
        for each in read_manifest(run).checksums
        if (run.root / each).is_file()
    }
    sizes = {each: (run.root / each).stat().st_size for each in sums}
    forge(run, checksums=sums, sizes=sizes)


def many_states(rows: int, **given: object) -> Attack:
    """So many states of the replicas of 64 partitions, in a hundred generations."""

    def spoil(run: RunDirectory) -> None:
        place = np.arange(rows)
        told = {
            "asked_ns": place,
            "answered_ns": place + 1,
            "final": np.zeros(rows, np.bool_),
            "node": pa.array(["n1", "n2", "n3"]).take(pa.array(place % 3)),
            "boot": pa.array(place // 1000).cast(pa.string()),
            "partition": place % 64,
            "generation": place // max(1, rows // 100),
        }
        empty = {"life": "", "group": ""}
        zeros = {
            field.name: np.zeros(rows, np.int64).astype(field.type.to_pandas_dtype())
            for field in STATES
            if pa.types.is_integer(field.type) or pa.types.is_boolean(field.type)
        }
        texts = {name: pa.array([value] * rows) for name, value in empty.items()}
        states = rows_of(STATES, rows, **zeros | texts | told | given)
        pq.write_table(states, run.root / STATES_FILE, compression="zstd")
        summed_beside(run, STATES_FILE)

    return spoil


def many_faults(rows: int, kind: str, *, lasting_ns: int = 5) -> Attack:
    """So many faults of a kind, which may name its number, on one node, begun one after another."""

    def spoil(run: RunDirectory) -> None:
        at_ns = np.arange(rows) * 1000
        steps = ("planned", "injecting", "injected", "effective", "healing", "healed")
        times = {f"{step}_ns": at_ns + place for place, step in enumerate(steps)}
        times["healed_ns"] = at_ns + lasting_ns
        told = {"kind": kind, "target": "n1", "state": "healed"}
        texts = {
            name: pa.array([value.format(row) for row in range(rows)])
            for name, value in told.items()
        }
        faults = rows_of(
            schema.FAULTS, rows, fault=np.arange(rows), nodes=[["n1"]] * rows, **times | texts
        )
        pq.write_table(faults, run.faults, compression="zstd")
        forge(run)

    return spoil


def every(*attacks: Attack) -> Attack:
    """All of them, one after the other."""

    def spoil(run: RunDirectory) -> None:
        for attack in attacks:
            attack(run)

    return spoil


def unsealed(spoil: Callable[[Path], None]) -> Attack:
    """A run that nobody sealed, whose chunks are spoilt."""

    def do(run: RunDirectory) -> None:
        again = sound_run(run.root.with_name("again"), sealed=False)
        for path in sorted(run.root.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        run.root.rmdir()
        again.root.rename(run.root)
        spoil(run.chunks)

    return do


def lost_writes(count: int) -> Attack:
    """A history of so many acknowledged writes, of which the last reads show none."""
    keys = 200

    def spoil(chunks: Path) -> None:
        run = RunDirectory(chunks.parent)
        shutil.rmtree(chunks)
        writer = ChunkWriter(chunks, reserve_bytes=0, run_id=read_manifest(run).run_id)
        writer.append(PhaseMark(name="drive", at_ns=0))
        for n in range(count + keys):
            reads = n >= count
            asked = MicroOp("r", n - count, None) if reads else MicroOp("append", n % keys, n + 1)
            done = MicroOp("r", n - count, ()) if reads else asked
            begun = Invoke(
                index=2 * n,
                process=n,
                kind="read-write",
                node="n1",
                at_ns=100 * n + 100,
                intended_ns=0,
                wall_ns=0,
                ops=(asked,),
            )
            writer.append(begun)
            ended = {"process": n, "at_ns": 100 * n + 150, "type": OpType.OK, "ops": (done,)}
            writer.append(Complete(index=2 * n + 1, invoke=2 * n, **ended))
        for place, name in enumerate(("heal", "final-reads", "seal")):
            writer.append(PhaseMark(name=name, at_ns=100 * (count + keys + 1) + place))
        writer.close()
        seal(run, partition_of=None, splits=1)
        forge(run)

    return unsealed(spoil)


def around_resets(
    resets: int,
    operations: Callable[[], Iterable[Operation]],
    *,
    workload: str = "list-append",
    **told: object,
) -> Attack:
    """A history of two partitions, of which the first is reset so many times."""

    def spoil(chunks: Path) -> None:
        run = written(chunks, operations(), lambda key: key % 2)
        add_resets(run, resets, **told)
        forge(run, workload=workload, checkers=(workload, *read_manifest(run).checkers[1:]))

    return unsealed(spoil)


CROWDED: dict[str, tuple[Attack, tuple[int, ...]]] = {
    "99,000 equal faults": (many_rows("faults.parquet", 99_000), REFUSED),
    "500,000 leases": (many_events(500_000, "lease-granted", "leader-elected"), VALID),
    "more events than any run has": (many_events(750_001, "lease-granted"), REFUSED),
    "50,000 resets": (many_events(50_000, "partition-reset"), VIOLATION),
    "50,000 resets of as many partitions": (
        many_events(50_000, "partition-reset", partitions=50_000),
        VIOLATION,
    ),
    "100,000 exits and starts": (many_events(100_000, "node-exited", "node-started"), VIOLATION),
    "9,000 resets and 300,000 states": (
        every(many_events(9_000, "partition-reset"), many_states(300_000)),
        VIOLATION,
    ),
    "states of which none says when": (
        many_states(1_000, asked_ns=pa.nulls(1_000, pa.int64())),
        REFUSED,
    ),
    "50,000 exits under 300 faults": (
        every(many_events(50_000, "node-exited"), many_faults(300, "disk-full")),
        VIOLATION,
    ),
    "20,000 lost writes under 100 faults": (
        every(lost_writes(20_000), many_faults(100, "kill", lasting_ns=10**9)),
        VIOLATION,
    ),
    "100 restarts at once, and 10,000 resets": (
        every(
            many_events(10_000, "partition-reset"),
            many_faults(100, "rolling-restart", lasting_ns=10**9),
        ),
        VIOLATION,
    ),
    "3,000 lost writes between 5,000 resets and as many starts": (
        every(lost_writes(3_000), many_events(10_000, "node-started", "partition-reset")),
        VIOLATION,
    ),
    "50,000 exits under 9,900 faults": (
        every(many_events(50_000, "node-exited"), many_faults(9_900, "disk-full")),
        VIOLATION,
    ),
    "5,000 faults at once, each of its own kind": (
        many_faults(5_000, "kind-{}", lasting_ns=10**9),
        JUDGED,
    ),
    "100 restarts at once, of 20,000 steps": (
        every(
            many_events(20_000, "step-begun", "step-down", "step-up", "step-over", from_ns=10**6),
            many_faults(100, "rolling-restart", lasting_ns=10**9),
        ),
        JUDGED,
    ),
    "5,000 lost writes under 500 faults": (
        every(lost_writes(5_000), many_faults(500, "kill", lasting_ns=10**9)),
        VIOLATION,
    ),
    "lists of 100 keys amid 5,000 resets": (
        around_resets(5_000, partial(lists, 100, 20)),
        JUDGED,
    ),
    "one long list amid 1,000 resets": (
        around_resets(1_000, partial(lists, 1, 1_000)),
        JUDGED,
    ),
    "lists that lose half again and again, amid 1,000 resets": (
        around_resets(1_000, partial(lists, 10, 300, halved_every=7)),
        VIOLATION,
    ),
    "lists amid 1,000 resets that each begin a branch": (
        around_resets(1_000, partial(lists, 50, 20), previous=np.arange(1_000) // 2),
        VIOLATION,
    ),
    "lists amid 300 resets that all restore": (
        around_resets(300, partial(lists, 10, 100), restores=True),
        JUDGED,
    ),
    "registers of 100 keys amid 5,000 resets": (
        around_resets(5_000, partial(registers, 100, 20), workload="register"),
        VIOLATION,
    ),
    "one register amid 1,000 resets": (
        around_resets(1_000, partial(registers, 1, 2_000), workload="register"),
        VIOLATION,
    ),
    "accounts amid 5,000 resets": (
        around_resets(5_000, partial(accounts, 10, 2_000), workload="bank"),
        JUDGED,
    ),
    "5,000 transactions that resets may have cut off": (
        around_resets(5, partial(given_up, 5_000, 10)),
        JUDGED,
    ),
    "3,000 transactions that any of 3,000 resets may have cut off": (
        around_resets(3_000, partial(given_up, 3_000, 100)),
        JUDGED,
    ),
    "more exits than any run has": (many_events(50_001, "node-exited"), REFUSED),
}
