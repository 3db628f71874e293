"""Do lost writes name the reset and the fault that took them? Against what the simulation knows.

    python benchmarks/reset_attribution.py [--seeds 40] [--seed 1] [--jobs 2] [--out DIR]

Each seed is one of ``firedrill sim --workload list-append --set system.mode=HA`` without phase 2,
so that writes are lost. Where the first disk begins a new generation, it is held against every
entry that was ever logged for the partition: which transactions it newly lacks, and which nodes'
disks have them. No event of the store and no time takes part in this. A lost write of the verdict
names the right reset where that one took its transaction, and a right fault where this had hit a
node whose disk had it, or every node that began the generation. Beside it the baseline, which
names the reset that is told next after the acknowledgement, in whatever partition, and the fault
that began last before that reset.

A line for each seed that lost a write, then the sums; exit 1 where less than 95 % of the losses
name both, or a seed without any reset lost a write.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs
import click
import msgspec
import pyarrow.parquet as pq
from calibrator import calibrate

from cli.campaign_plans import swarm_plans
from cli.cells import simulate, simulation_pool
from clusters.providers.sim.oracles import judge
from clusters.providers.sim.oracles.durability import Durability
from clusters.providers.sim.oracles.synced_disks import Lives, Place, SyncedDisk
from clusters.reference.claims.claims_reader import commit_name
from harness.campaigns.cell import Cell, CellResult
from harness.campaigns.ledger import Ledger
from harness.campaigns.pool import RunStarted, in_turn
from harness.history.load import load
from harness.history.records import EventKind
from harness.history.run_directory import RunDirectory
from harness.protocols.claims import NewGeneration

ASKED: dict[str, object] = {"system.mode": "HA", "system.phase2": False}
WORKLOAD = "list-append"
BAR = 0.95
TRUTH_FILE = "taken.json"
CELL_LIMIT_S = 900.0  # beside others


class Taken(msgspec.Struct, frozen=True):
    """What one generation of a partition newly lacks: of each transaction, and of each command by
    its name, the nodes whose disks have it; and ``survivor``, the node that was the first in the
    generation.
    """

    partition: int
    generation: int
    survivor: str
    nodes_of: dict[str, list[str]]


class Watched(Durability):
    """The judge's own view of the disks, which remembers what each generation took."""

    def __init__(self, lives: Lives) -> None:
        super().__init__(lives)
        self.taken: list[Taken] = []
        self._lacking: dict[str, frozenset[str]] = {}
        WATCHED.append(self)

    def began(self, disk: SyncedDisk, fact: NewGeneration) -> frozenset[str] | None:
        """As the judge does."""
        cut = super().began(disk, fact)
        if cut is not None:
            places = self._logged_places(fact.root)
            log = disk.log(fact.successor)
            lacking = {
                what: missed
                for what, each in places.items()
                if (missed := [(name, at) for name, at in each if not log.holds(*at)])
            }
            self._lacking[fact.successor] = frozenset(lacking)
            before = self._lacking.get(fact.group, frozenset())
            nodes_of = {
                what: self._holders(missed, disk)
                for what, missed in sorted(lacking.items())
                if what not in before
            }
            partition, _, generation = fact.successor.removeprefix("p").partition("@")
            self.taken.append(Taken(int(partition), int(generation), disk.node, nodes_of))
        return cut

    def _logged_places(self, root: str) -> dict[str, list[tuple[str, Place]]]:
        """Where each transaction, and each command by its name, was ever logged."""
        found: dict[str, list[tuple[str, Place]]] = {}
        for group, parts in self._parts.items():
            if self.root(group) == root:
                for place, txns in parts.items():
                    for txn in txns:
                        found.setdefault(txn, []).append((group, place))
        for (group, name), places in self._places.items():
            if self.root(group) == root:
                found.setdefault(name, []).extend((group, place) for place in places)
        return found

    def _holders(self, missed: Iterable[tuple[str, Place]], survivor: SyncedDisk) -> list[str]:
        disks = [disk for disk in self._lives.by_member.values() if disk is not survivor]
        return sorted(
            {disk.node for disk in disks for name, at in missed if disk.log(name).holds(*at)}
        )


WATCHED: list[Watched] = []  # that of the one run of this process


def simulated(cell: Cell, run_started: RunStarted, *, runs_dir: Path) -> CellResult:
    """Simulate ``cell``, and keep what its generations took beside its run."""
    setattr(judge, Durability.__name__, Watched)  # this process simulates one cell
    result = simulate(cell, run_started, runs_dir=runs_dir, keep=True)
    (Path(result.run) / TRUTH_FILE).write_bytes(msgspec.json.encode(WATCHED[-1].taken))
    return result


@attrs.frozen(kw_only=True)
class Named:
    """What an attribution names: a generation of a partition, and a fault by its number."""

    partition: int | None
    generation: int | None
    fault: int | None


@attrs.frozen(kw_only=True)
class Truth:
    """What generations took, and the nodes that each fault of the run hit."""

    taken: Mapping[tuple[int | None, int | None], Taken]
    hit: Mapping[int, frozenset[str]]

    @classmethod
    def of(cls, run: RunDirectory, faults: Iterable[Mapping[str, Any]]) -> Truth:
        """As ``simulated`` kept it."""
        taken = msgspec.json.decode((run.root / TRUTH_FILE).read_bytes(), type=list[Taken])
        hit = {row["fault"]: frozenset(row["nodes"] or ()) for row in faults}
        return cls(taken={(each.partition, each.generation): each for each in taken}, hit=hit)

    def reset_is_right(self, txn: str, named: Named) -> bool:
        """Whether the generation took the transaction."""
        took = self.taken.get((named.partition, named.generation))
        return took is not None and txn in took.nodes_of

    def fault_is_right(self, txn: str, named: Named) -> bool:
        """Whether the fault had hit a node that had the transaction, or the one that was left."""
        took = self.taken.get((named.partition, named.generation))
        if took is None or txn not in took.nodes_of or named.fault is None:
            return False
        return bool(self.hit[named.fault] & {*took.nodes_of[txn], took.survivor})


def counted(run: RunDirectory) -> Counter[str]:
    """What the losses of ``run`` name, held against the truth."""
    lost = pq.read_table(run.analysis / "lost_writes.parquet").to_pylist()
    found = Counter(lost=len(lost), resets=0)
    history = load(run)
    events = history.events(["kind", "partition", "generation", "at_ns"]).to_pylist()
    resets = sorted(
        (row for row in events if row["kind"] == EventKind.PARTITION_RESET),
        key=lambda row: row["at_ns"],
    )
    found["resets"] = len({(row["partition"], row["generation"]) for row in resets})
    if not lost:
        return found
    faults = history.faults().to_pylist()
    truth, transactions = Truth.of(run, faults), history.transactions()
    for row in lost:
        writer = transactions.slice(row["writer"], 1).to_pylist()[0]
        # A one-shot has no number of its own: its commit is known by its time.
        txn = writer["server_txn"] or commit_name(writer["commit_ts"])
        for who, named in (("", told(row, resets)), ("baseline ", nearest(row, resets, faults))):
            reset, fault = truth.reset_is_right(txn, named), truth.fault_is_right(txn, named)
            found += Counter({f"{who}reset": reset, f"{who}both": reset and fault})
        found["permitted"] += row["permitted_by"] is not None
        found["taken by a reset"] += any(txn in each.nodes_of for each in truth.taken.values())
    return found


def told(row: Mapping[str, Any], resets: Iterable[Mapping[str, Any]]) -> Named:
    """What the verdict explains the loss with."""
    generation = next(
        (
            reset["generation"]
            for reset in resets
            if (reset["partition"], reset["at_ns"]) == (row["permitted_in"], row["reset_ns"])
        ),
        None,
    )
    return Named(partition=row["permitted_in"], generation=generation, fault=row["fault"])


def nearest(
    row: Mapping[str, Any],
    resets: Iterable[Mapping[str, Any]],
    faults: Iterable[Mapping[str, Any]],
) -> Named:
    """What a reader names who only looks at the clock."""
    reset = next((reset for reset in resets if reset["at_ns"] >= row["ack_ns"]), None)
    if reset is None:
        return Named(partition=None, generation=None, fault=None)
    begun = [
        (fault["injecting_ns"], fault["fault"])
        for fault in faults
        if fault["injecting_ns"] is not None and fault["injecting_ns"] <= reset["at_ns"]
    ]
    last = max(begun)[1] if begun else None
    return Named(partition=reset["partition"], generation=reset["generation"], fault=last)


def shares(sums: Mapping[str, int]) -> str:
    """The shares of all losses, in words."""
    names = ("reset", "both", "baseline reset", "baseline both", "taken by a reset")
    return ", ".join(f"{name} {100 * sums[name] / sums['lost']:.1f} %" for name in names)


@click.command()
@click.option("--seeds", default=40, show_default=True)
@click.option("--seed", "first", default=1, show_default=True)
@click.option("--jobs", default=2, show_default=True)
@click.option("--out", type=click.Path(path_type=Path))
def main(seeds: int, first: int, jobs: int, out: Path | None) -> None:
    """Measure; see the module."""
    print(f"calibrator {calibrate().cpu_s:.3f} s")
    place = out or Path(tempfile.mkdtemp(prefix="firedrill-attribution-"))
    place.mkdir(parents=True, exist_ok=True)
    plans = swarm_plans(None, ASKED, (WORKLOAD,), range(first, first + seeds))
    pool = attrs.evolve(
        simulation_pool(place, keep=True, jobs=jobs),
        work=functools.partial(simulated, runs_dir=place),
    )
    sums, clean = Counter[str](), 0
    cells = [Cell(plan=plan, limit_s=CELL_LIMIT_S) for plan in plans]
    for result in pool.results(in_turn(cells), Ledger()):
        if not result.run or not result.judged:
            raise click.ClickException(f"seed {result.seed} was not judged: {result.reasons}")
        found = counted(RunDirectory(Path(result.run)))
        sums.update(found)
        clean += bool(found["lost"]) and not found["resets"]
        if found["lost"]:
            print(f"seed {result.seed}: {result.outcome.name} {dict(found)}", flush=True)
    print(f"{seeds} seeds, {sums['resets']} resets, {sums['lost']} lost writes; runs in {place}")
    if not sums["lost"]:
        raise click.ClickException("no write was lost: nothing was measured")
    print(shares(sums))
    sys.exit(sums["both"] < BAR * sums["lost"] or clean > 0)


if __name__ == "__main__":
    main()
