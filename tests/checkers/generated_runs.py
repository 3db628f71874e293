"""Small runs of every workload, with and without anomalies, each of a seed, and their verdicts by
every executor.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import attrs
import msgspec
from checker_generator import generate
from checker_histories import STRICT, Txn, ok, write_run
from register_transactions import generate as register_transactions
from reset_generator import generated as with_resets
from reset_histories import HA, MS, ResetHistory
from test_bank_generations import SET_UP, read, steps
from test_cycle_stretches import overlapping
from test_register_oracle import any_operations, transaction, unique_writes
from test_rw_register import mixed
from test_snapshot_reads import DECLARED, random_history

from harness.history.records import EventKind, PartitionReset, StoreEvent
from harness.protocols.promise import Declaration, Promise

FIREDRILL = Path(sys.executable).with_name("firedrill")
LIMIT_S = 3600
MODELS = (
    "strict-serializable",
    "serializable",
    "snapshot-isolation",
    "repeatable-read",
    "read-committed",
)
BESIDE = ("statistics", "availability", "evidence")


@attrs.frozen
class Made:
    """What a run is written of."""

    workload: str
    checkers: tuple[str, ...]
    txns: list[Txn]
    declaration: Declaration
    events: tuple[StoreEvent, ...] = ()


@attrs.frozen
class Judged:
    """The verdicts of all runs by one executor, by the names of the runs."""

    executor: str
    verdicts: dict[str, bytes]

    def differing(self, others: Judged) -> list[str]:
        """The runs whose verdict is not, byte for byte, that of ``others``."""
        names = sorted({*self.verdicts, *others.verdicts})
        return [name for name in names if self.verdicts.get(name) != others.verdicts.get(name)]

    def outcomes(self) -> Counter[str]:
        """How many runs have each outcome."""
        return Counter(msgspec.json.decode(each)["outcome"] for each in self.verdicts.values())


def write_runs(root: Path, count: int) -> None:
    """Write ``count`` runs into ``root``, of every family in turn."""
    families: tuple[Callable[[int], Made], ...] = (
        _lists,
        _registers,
        _register_transactions,
        _banks,
        _long_lists,
        _resets,
        _snapshots,
        _long_registers,
    )
    for seed in range(count):
        made = families[seed % len(families)](seed)
        write_run(
            root / f"{seed:03}-{made.workload}",
            made.txns,
            splits=1 + seed % 4,
            workload=made.workload,
            checkers=made.checkers,
            declaration=made.declaration,
            events=made.events,
        )


def judged(executor: str, runs: Path, *options: str, there: str = "") -> Judged:
    """Have one command judge all of ``runs``, or their copies at the address ``there``."""
    names = sorted(run.name for run in runs.iterdir())
    paths = [f"{there or runs}/{name}" for name in names]
    done = subprocess.run(
        [FIREDRILL, "check", *paths, "--no-report", *options],
        cwd=runs.parent,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    _require_on(done.stderr, names, "local" if "local" in options else "spark")
    if there:
        from checkers.engine.spark.hadoop import remote_store

        with remote_store(there) as remote:
            for name in names:
                shutil.rmtree(runs / name)
                remote.fetch(f"{there}/{name}", runs / name)
    return Judged(
        executor, {name: (runs / name / "analysis/verdict.json").read_bytes() for name in names}
    )


def _require_on(told: str, names: Sequence[str], executor: str) -> None:
    """One that falls back on another executor would show nothing."""
    on = [line for line in told.splitlines() if f" ({executor}" in line]
    assert len(on) == len(names), told[-3000:]
    assert "again" not in told, told[-3000:]


def _model(seed: int) -> Declaration:
    model = MODELS[seed // 8 % len(MODELS)]
    promises = (Promise(kind="read-write", model=model),)
    return msgspec.structs.replace(STRICT, promises=promises)


def _of_lists(txns: list[Txn], seed: int) -> Made:
    return Made("list-append", ("list-append", "lost-write", *BESIDE), txns, _model(seed))


def _lists(seed: int) -> Made:
    return _of_lists(generate(seed), seed)


def _long_lists(seed: int) -> Made:
    return _of_lists(overlapping(seed, size=120), seed)


def _register_transactions(seed: int) -> Made:
    txns = register_transactions(seed)
    # A run's clock begins with it.
    first = min(txn.start or 0 for txn in txns)
    later = [
        attrs.evolve(txn, start=(txn.start or 0) - first, finish=(txn.finish or 0) - first)
        for txn in txns
    ]
    return Made("rw-register", ("rw-register", *BESIDE), _each_its_process(later), _model(seed))


def _long_registers(seed: int) -> Made:
    return Made("rw-register", ("rw-register", *BESIDE), mixed(seed), _model(seed))


def _registers(seed: int) -> Made:
    draw = random.Random(seed)
    make = draw.choice((unique_writes, any_operations))
    txns = [transaction(key, op) for key in range(3) for op in make(draw)]
    return Made("register", ("register", *BESIDE), txns, STRICT)


def _banks(seed: int) -> Made:
    """Transfers one after another; of every second bank one write is lost."""
    draw = random.Random(seed)
    held, txns, lost = {1: 50, 2: 50, 3: 50}, [SET_UP], draw.randint(0, 9) if seed % 16 > 7 else -1
    for number, at in enumerate(range(10, 130, 12)):
        payer, payee = draw.sample((1, 2, 3), 2)
        amount = draw.randint(1, 5)
        ops = steps(amount, (held[payer], held[payee]), payer, payee)
        txns.append(ok(*ops, start=at, finish=at + 3))
        held[payer] -= amount
        held[payee] += 0 if number == lost else amount
        if draw.random() < 0.4:
            txns.append(read(at + 5, *held.values()))
    txns.append(read(140, *held.values()))
    return Made("bank", ("bank", *BESIDE), txns, STRICT)


def _snapshots(seed: int) -> Made:
    checkers = ("list-append", "lost-write", *BESIDE)
    # One of each eight seeds is of this family: among those both kinds come.
    return Made("list-append", checkers, random_history(seed // 8), DECLARED)


def _resets(seed: int) -> Made:
    history = with_resets(seed // 8)
    txns = _each_its_process(history.timed)
    events = tuple(_events(history))
    checkers = ("list-append", "lost-write", *BESIDE)
    return Made("list-append", checkers, txns, HA, events)


def _events(history: ResetHistory) -> list[StoreEvent]:
    found = []
    for event in history.resets:
        previous = event.generation - 1 if event.previous is None else event.previous
        reset = StoreEvent(
            kind=EventKind.PARTITION_RESET,
            node="n1",
            wall_ns=0,
            boot="1",
            at_ns=(event.since + event.until) * MS // 2,
            uncertainty_ns=(event.until - event.since) * MS // 2,
            partition=event.partition,
            text="reset",
            generation=event.generation,
            reset=PartitionReset(
                generation=event.generation,
                previous_generation=previous,
                base_index=event.base or 0,
                base_term=event.base_term,
                survivors=event.survivors or ("n1",),
            ),
        )
        found.append(reset)
        if event.restores:
            found.append(msgspec.structs.replace(reset, kind=EventKind.RESTORED))
    return found


def _each_its_process(txns: Sequence[Txn]) -> list[Txn]:
    """A process has one transaction at a time, whatever the generator drew."""
    return [attrs.evolve(txn, process=number) for number, txn in enumerate(txns)]
