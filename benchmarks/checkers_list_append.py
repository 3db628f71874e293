"""How long the list-append analysis takes on a sealed run of a strict store.

    python benchmarks/checkers_list_append.py [--txns 1000000] [--executor local|spark] [--lag 0]
        [--copies 1] [--clients 20] [--hot] [--splits 4] [--planted] [--large]

Generates Elle's usual history (10 live keys, 32 appends a key, 20 processes, 1 to 4 steps), seals
it, and prints seconds and peak memory of each stage after the machine's own figure; and how long
the whole takes beside the least that any checker does, which is to read the files and compare every
element of every list with the longest list of its key. ``--lag`` lets half of the transactions only
read, a consistent state that is that many transactions old: one component as large as the history.
``--copies`` puts that many such histories one after another. ``--clients`` that overlap: of some
hundred there is no place to cut a history. ``--hot`` gives half of all appends to one key, which is
read twenty times. ``--planted`` puts ten anomalies of known kinds before the last copy, and ends
with an error unless the verdict names and shows each of them. ``--large`` leaves out what holds the
whole history in this process: baseline and stages. ``--splits`` is the number of files of steps.
Memory is told of this process, and of it with all that it has started. On Spark the session is
started before the clock is, and a second judgement follows the first.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from calibrator import calibrate
from memory_peak import MemoryPeak
from planted_anomalies import EXPECTED, planted

from checkers.cycles.kernel import CYCLES
from checkers.engine.analyze import judge
from checkers.engine.arrays import keep_freed_memory
from checkers.engine.source import Source
from checkers.engine.spark.options import SparkOptions
from checkers.engine.stages import run_in_process
from checkers.lists.checker import CHECKER, INFERENCE
from checkers.lists.list_ops import list_ops
from checkers.lists.versions import versions_of
from checkers.promises.lost_write import CHECKER as LOST_WRITE
from harness.history import schema
from harness.history.parquet import writer
from harness.history.tables import BATCH_ROWS
from harness.protocols.promise import Declaration, Promise
from harness.protocols.setting import Setting
from harness.protocols.verdict import Verdict, encode

KEYS, APPENDS_A_KEY, CLIENTS, SPLITS = 10, 32, 20, 4
HOT, HOT_READS = 10**8, 20
Columns = dict[str, Any]


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--txns", type=int, default=1_000_000)
    parser.add_argument("--executor", choices=("local", "spark"), default="local")
    parser.add_argument("--lag", type=int, default=0)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--clients", type=int, default=CLIENTS)
    parser.add_argument("--hot", action="store_true")
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    print(calibrate(), flush=True)
    keep_freed_memory()  # as a process does that judges, and ends
    with tempfile.TemporaryDirectory(prefix="firedrill-benchmark-") as scratch:
        source = history(Path(scratch), options)
        baseline = None
        if not options.large:
            with timed("baseline: read, compare elements") as baseline:
                compare_elements(source)
            stages(source) if options.executor == "local" else None
        with started(options.executor, Path(scratch)):
            with timed(f"whole analysis, {options.executor}") as whole:
                verdict = analysis_of(source, options.executor)
            if options.executor == "spark" and not options.large:
                with timed("the same again"):
                    analysis_of(source, options.executor)
    if baseline:
        print(f"whole analysis / baseline = {whole[0] / baseline[0]:.1f}")
    found = {**verdict.anomalies, **verdict.observed}
    print(f"verdict: {verdict.outcome}, {len(encode(verdict))} bytes, not {verdict.not_}")
    for name, anomaly in sorted(found.items()):
        steps = [len(e.cycle) for e in anomaly.examples]
        print(f"  {name}: {anomaly.count}, steps of the cycles shown: {steps}")
    if options.planted and (missed := EXPECTED - {n for n, a in found.items() if a.examples}):
        sys.exit(f"planted and not shown: {', '.join(sorted(missed))}")


def history(directory: Path, options: argparse.Namespace) -> Source:
    """The history that ``options`` describe, written into ``directory``."""
    with timed("generate and write"):
        # By a process of its own, or the peak of this one would be that of the generator.
        maker = multiprocessing.get_context("spawn").Process(target=made, args=(directory, options))
        maker.start()
        maker.join()
    if maker.exitcode:
        sys.exit("the history could not be made")
    return source_in(directory, options.splits)


def made(directory: Path, options: argparse.Namespace) -> None:
    """Write the history that ``options`` describe into ``directory``."""
    columns = simulate(options.txns, options.lag, clients=options.clients, hot=options.hot)
    history = pa.table(columns[0]), pa.table(columns[1])
    del columns
    blocks = [history] * options.copies
    if options.planted:
        blocks.insert(options.copies - 1, tuple(map(pa.table, planted())))
    write(directory, blocks, options.splits)


def source_in(directory: Path, splits: int) -> Source:
    """The history in ``directory``."""
    files = tuple(directory / f"micro_ops-{number:04}.parquet" for number in range(splits))
    return Source.of_files(directory / "transactions.parquet", files)


def analysis_of(source: Source, executor: str, spark: SparkOptions | None = None) -> Verdict:
    """The verdict of the checkers that list-append runs are judged by."""
    return judge(
        source,
        setting=setting(),
        checkers=(CHECKER, LOST_WRITE),
        faults=schema.FAULTS.empty_table(),
        events=schema.EVENTS.empty_table(),
        executor=executor,
        spark=spark or SparkOptions(),
    ).verdict


@contextmanager
def started(executor: str, scratch: Path) -> Iterator[None]:
    """A Spark session for the analysis to find, where it needs one."""
    if executor == "local":
        yield
        return
    from checkers.engine.spark.session import session

    (scratch / "session").mkdir()
    with timed("start the session"):
        manager = session(SparkOptions(), scratch / "session")
        # By hand: the start alone is timed, and the session outlives it.
        manager.__enter__()
    try:
        yield
    finally:
        manager.__exit__(None, None, None)


def compare_elements(source: Source) -> None:
    """Read everything, and compare each element read with the longest list of its key."""
    for split in range(source.splits):
        versions_of(
            list_ops(
                {"transactions": source.transactions, "micro_ops": source.micro_ops(split)},
                setting(),
            )
        )


def setting() -> Setting:
    """Strict serializability, with no system behind it."""
    promise = Declaration(system="paper", mode="SC", promises=(Promise(kind="read-write"),))
    return Setting(model="strict-serializable", declaration=promise)


def stages(source: Source) -> None:
    """The main path taken apart; the whole analysis repeats it."""
    with timed("read all splits"):
        tables = [source.micro_ops(split) for split in range(source.splits)]
    del tables
    with timed("inference (with reading)"):
        given = run_in_process([INFERENCE], source, setting())
    del given
    with timed("the same, with the graph by stretches"):
        run_in_process([INFERENCE, CYCLES], source, setting())


@contextmanager
def timed(what: str) -> Iterator[list[float]]:
    """Print how long the body took, the process's peak memory so far, and the peak of it and all
    that it has started meanwhile; the seconds are also put into the list given.
    """
    begun = time.perf_counter()
    seconds: list[float] = []
    with MemoryPeak() as peak:
        yield seconds
    seconds.append(time.perf_counter() - begun)
    own_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    all_mb = peak.all_bytes >> 20
    print(f"{what:34} {seconds[0]:8.2f} s   peak {own_mb:6,} MB, all processes {all_mb:6,} MB")
    sys.stdout.flush()


def write(directory: Path, blocks: Sequence[tuple[pa.Table, pa.Table]], splits: int) -> None:
    """Write ``blocks`` one after the other as sealed files: serial effects, each somewhere within
    its interval.
    """
    ready = {id(block): by_invocation(*block) for block in blocks}
    path = directory / "transactions.parquet"
    files = [directory / f"micro_ops-{number:04}.parquet" for number in range(splits)]
    like = ready[id(blocks[0])]
    with contextlib.ExitStack() as stack:
        sink = stack.enter_context(writer(path, like[0].schema))
        sinks = [stack.enter_context(writer(file, schema.SPLIT)) for file in files]
        at = Offset()
        for place, block in enumerate(blocks):
            transactions, steps = ready[id(block)]
            # In groups as sealing writes them, or a stretch could not be read alone.
            sink.write_table(at.applied(transactions), row_group_size=BATCH_ROWS)
            rows = at.applied(
                schema.of_split(steps.select(schema.MICRO_OPS.names), transactions)
            ).set_column(3, schema.SPLIT.field("key"), pc.add(steps["key"], 10**9 * place))
            split = schema.splits_of(rows.column("key").to_numpy(), splits)
            for number, of_split in enumerate(sinks):
                of_split.write_table(
                    rows.filter(pa.array(split == number)), row_group_size=BATCH_ROWS
                )
            at = at.after(transactions)


@attrs.frozen(kw_only=True)
class Offset:
    """Where a block of a history begins: beyond the last transaction, record and completion of the
    one before.
    """

    txn: int = 0
    record: int = 0
    time_ns: int = 0

    def applied(self, table: pa.Table) -> pa.Table:
        """``table`` of a block that begins at 0, from here on."""
        apart = {"txn": self.txn, "invoke_index": self.record, "complete_index": self.record}
        apart |= {"invoke_ns": self.time_ns, "complete_ns": self.time_ns}
        for name, distance in apart.items():
            if name in table.column_names:
                place = table.column_names.index(name)
                moved = pc.add(table.column(name), distance)
                table = table.set_column(place, table.schema.field(place), moved)
        return table

    def after(self, transactions: pa.Table) -> Offset:
        """Where the block after ``transactions`` begins."""
        last_ns = pc.max(transactions["complete_ns"]).as_py()
        return Offset(
            txn=self.txn + transactions.num_rows,
            record=self.record + 2 * transactions.num_rows,
            time_ns=self.time_ns + last_ns + 10**6,
        )


def by_invocation(transactions: pa.Table, steps: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The same, numbered and sorted as sealing does it."""
    order = np.argsort(transactions.column("invoke_ns").to_numpy(), kind="stable")
    number = np.empty(len(order), dtype=np.int64)
    number[order] = np.arange(len(order))
    transactions = transactions.take(pa.array(order))
    transactions = transactions.set_column(0, "txn", pa.array(np.arange(len(order))))
    txn = number[steps.column("txn").to_numpy()]
    steps = steps.set_column(0, "txn", pa.array(txn))
    return transactions, steps.take(pa.array(np.argsort(txn, kind="stable")))


def simulate(
    txns: int, lag: int = 0, *, clients: int = CLIENTS, hot: bool = False
) -> tuple[Columns, Columns]:
    """Columns of transactions and micro-operations."""
    draw = random.Random(7)
    lists: dict[int, list[int]] = {key: [] for key in (HOT, *range(KEYS))}
    live, fresh = list(range(KEYS)), KEYS
    columns: dict[str, list[Any]] = {n: [] for n in ("txn", "pos", "f", "key", "value")}
    offsets, elements = [0], []
    history: dict[int, list[int]] = {key: [] for key in (HOT, *range(KEYS))}
    for txn in range(txns):
        stale = lag > 0 and draw.random() < 0.5
        for pos in range(draw.randint(1, 4)):
            slot = min(int(draw.expovariate(0.7)), KEYS - 1)
            key = live[slot]
            value = None
            appends = not stale and draw.random() >= 0.5
            if hot and appends and draw.random() < 0.5:
                key = HOT
            if hot and txn % (txns // HOT_READS) == 0:
                key, appends = HOT, False
            if not appends:
                seen = len(lists[key])
                while stale and seen and history[key][seen - 1] > txn - lag:
                    seen -= 1
                elements.extend(lists[key][:seen])
            else:
                value = len(lists[key]) + 1
                lists[key].append(value)
                history[key].append(txn)
                if value >= APPENDS_A_KEY and key != HOT:
                    live[slot], fresh = fresh, fresh + 1
                    lists[live[slot]], history[live[slot]] = [], []
            for name, cell in zip(columns, (txn, pos, "r", key, value), strict=True):
                columns[name].append(cell)
            columns["f"][-1] = "r" if value is None else "append"
            offsets.append(len(elements))
    return timeline(txns, clients), with_lists(columns, offsets, elements)


def timeline(txns: int, clients: int) -> Columns:
    """``clients``, each one transaction after another, effects in the order of number."""
    draw = np.random.default_rng(7)
    effect = np.arange(txns) * 1000
    busy = np.arange(txns) % clients
    # On each side less than half of what lies between two of one process: they never overlap.
    half = clients * 1000 // 2 - 1
    invoke = effect - draw.integers(1, half, txns)
    complete = effect + draw.integers(1, half, txns)
    # Of an order the order is the rank: the place of each record in the history.
    order = np.argsort(np.argsort(np.concatenate([invoke, complete])))
    return {
        "txn": np.arange(txns),
        "process": busy,
        "kind": pa.array(["read-write"]).take(pa.array(np.zeros(txns, dtype=np.int64))),
        "type": pa.array(["ok"]).take(pa.array(np.zeros(txns, dtype=np.int64))),
        "node": pa.array(["n1"]).take(pa.array(np.zeros(txns, dtype=np.int64))),
        "invoke_ns": invoke,
        "complete_ns": complete,
        "invoke_index": order[:txns],
        "complete_index": order[txns:],
        "error": pa.nulls(txns, pa.string()),
    }


def with_lists(columns: dict[str, list[Any]], offsets: list[int], elements: list[int]) -> Columns:
    """Micro-operations as Arrow columns; an append has no list."""
    is_append = np.asarray(columns["f"]) == "append"
    lists = pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(elements, pa.int64()), mask=pa.array(is_append)
    )
    return {
        "txn": pa.array(columns["txn"], pa.int64()),
        "pos": pa.array(columns["pos"], pa.int32()),
        "f": pa.array(columns["f"]),
        "key": pa.array(columns["key"], pa.int64()),
        "partition": pa.nulls(len(is_append), pa.int32()),
        "value": pa.array(columns["value"], pa.int64()),
        "elements": lists,
        "type": pa.array(["ok"] * len(is_append)),
    }


if __name__ == "__main__":
    main()
