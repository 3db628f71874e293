"""Runs of a store that may lose writes by resets, with more resets than any run has."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from stranger_kit import DECLARED, forge, rows_of

from harness.history import schema
from harness.history.chunks import ChunkWriter
from harness.history.manifest import read_manifest
from harness.history.records import Complete, Invoke, MicroOp, OpType, PhaseMark
from harness.history.run_directory import RunDirectory
from harness.history.seal import seal

STEP_NS = 100
HA = msgspec.structs.replace(DECLARED, mode="HA")
Operation = tuple[int, int, Sequence[MicroOp]]
"""When it begins and ends, and what it did."""


def written(
    chunks: Path, operations: Iterable[Operation], partition_of: Callable[[int], int | None]
) -> RunDirectory:
    """A sealed run of these operations in the place of the one that ``chunks`` are of."""
    run = RunDirectory(chunks.parent)
    shutil.rmtree(chunks)
    writer = ChunkWriter(chunks, reserve_bytes=0, run_id=read_manifest(run).run_id)
    writer.append(PhaseMark(name="drive", at_ns=0))
    moments = []
    for process, (begin_ns, end_ns, ops) in enumerate(operations):
        moments += [(begin_ns, 0, process, ops), (end_ns, 1, process, ops)]
    begun: dict[int, int] = {}
    for index, (at_ns, ends, process, ops) in enumerate(sorted(moments, key=lambda m: m[:3])):
        if ends:
            told = {"process": process, "at_ns": at_ns, "type": OpType.OK, "ops": tuple(ops)}
            writer.append(Complete(index=index, invoke=begun[process], **told))
            continue
        begun[process] = index
        asked = tuple(MicroOp("r", op.key, None) if op.f == "r" else op for op in ops)
        about = {"process": process, "kind": "read-write", "node": "n1", "ops": asked}
        writer.append(Invoke(index=index, at_ns=at_ns, intended_ns=0, wall_ns=0, **about))
    last_ns = max(at_ns for at_ns, *_ in moments)
    for place, name in enumerate(("heal", "final-reads", "seal"), start=1):
        writer.append(PhaseMark(name=name, at_ns=last_ns + place))
    writer.close()
    seal(run, partition_of=partition_of, splits=1)
    return run


def add_resets(
    run: RunDirectory, count: int, *, previous: object = None, restores: bool = False
) -> None:
    """So many resets of partition 0, over the time of the run; the declaration permits losses."""
    place, last_ns = np.arange(count), dict(read_manifest(run).phases)["heal"]
    told = {
        "kind": pa.array(["partition-reset"] * count),
        "node": pa.array(["n1"] * count),
        "at_ns": (place + 1) * last_ns // (count + 1),
        "wall_ns": place,
        "partition": np.zeros(count, np.int32),
        "generation": place + 1,
        "text": pa.array([""] * count),
        "survivors": pa.array([["n1"]] * count),
    }
    if previous is not None:
        told["previous_generation"] = previous
    events = rows_of(schema.EVENTS, count, **told)
    if restores:
        kind = events.schema.field("kind")
        restored = pa.array(["restored"] * count).cast(kind.type)
        events = pa.concat_tables([events, events.set_column(0, kind, restored)])
    pq.write_table(events, run.events, compression="zstd")
    forge(run, declaration=HA)


def lists(keys: int, rounds: int, *, halved_every: int = 0) -> Iterator[Operation]:
    """Appends to each key and reads of it in turn; every so often a list loses its second half."""
    held: dict[int, tuple[int, ...]] = dict.fromkeys(range(keys), ())
    for number in range(keys * rounds):
        turn, key = divmod(number, keys)
        if halved_every and turn % halved_every == 0:
            held[key] = held[key][: len(held[key]) // 2]
        op = MicroOp("r", key, held[key]) if turn % 2 else MicroOp("append", key, number + 1)
        if op.f == "append":
            held[key] += (number + 1,)
        yield number * STEP_NS, number * STEP_NS + STEP_NS // 2, (op,)


def given_up(count: int, keys: int) -> Iterator[Operation]:
    """Transactions that append to a key of each of two partitions, and that no read shows."""
    for number in range(count):
        each = (MicroOp("append", 2 * (number % keys) + half, number + 1) for half in (0, 1))
        yield number * STEP_NS, number * STEP_NS + STEP_NS // 2, tuple(each)
    for key in range(2 * keys):
        at_ns = (2 * count + key) * STEP_NS
        yield at_ns, at_ns + STEP_NS // 2, (MicroOp("r", key, ()),)


def registers(keys: int, rounds: int, *, back_every: int = 5) -> Iterator[Operation]:
    """Writes of each register and reads of it in turn, which every so often find what it held
    before.
    """
    held: dict[int, list[int | None]] = {key: [None] for key in range(keys)}
    for number in range(keys * rounds):
        turn, key = divmod(number, keys)
        if turn % 2 == 0:
            held[key].append(number + 1)
            op = MicroOp("w", key, number + 1)
        else:
            if turn % back_every == 0:
                held[key].pop()
            op = MicroOp("r", key, held[key][-1])
        yield number * STEP_NS, number * STEP_NS + STEP_NS // 2, (op,)


def accounts(keys: int, count: int) -> Iterator[Operation]:
    """Transfers between accounts of one partition, and reads of all of them."""
    held = dict.fromkeys(range(0, 2 * keys, 2), 100)
    yield 0, STEP_NS // 2, tuple(MicroOp("w", key, balance) for key, balance in held.items())
    for number in range(1, count):
        if number % 3 == 0:
            ops = [MicroOp("r", key, balance) for key, balance in held.items()]
        else:
            giver, taker = 2 * (number % keys), 2 * ((number + 1) % keys)
            ops = [MicroOp("r", key, held[key]) for key in (giver, taker)]
            ops += [MicroOp("add", giver, -1), MicroOp("add", taker, 1)]
            held[giver] -= 1
            held[taker] += 1
        yield number * STEP_NS, number * STEP_NS + STEP_NS // 2, tuple(ops)
