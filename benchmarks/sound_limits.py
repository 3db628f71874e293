"""Does a limit accuse a sound store? Limits at twice its measured figures, on fresh seeds.

    python benchmarks/sound_limits.py [--measure 10] [--judge 10] [--jobs 2] [--seed 1]
        [--setting NAME ...] [--out DIR]

Each setting is a simulated drill of 20 s of the reference store. Its figures are the worst of
``--measure`` seeds, each limit is twice its figure, for the whole drive and while each kind of the
setting's faults is in force; then ``--judge`` other seeds are judged by these limits. A line for
each setting, one for each run that was accused, with what accused it; exit 1 where one was. The
runs stay in DIR, so that what was accused can be looked into.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from calibrator import calibrate

from cli.cells import simulation_pool
from harness.campaigns.cell import Cell, CellResult
from harness.campaigns.ledger import Ledger
from harness.campaigns.pool import in_turn
from harness.exit_codes import Outcome
from harness.history.run_directory import RunDirectory
from harness.plan.plan import Plan, load
from harness.protocols.consistency_models import OF_LIMITS
from harness.protocols.verdict import LimitState, Verdict, read_verdict

DRILL: dict[str, object] = {
    "cluster.provider": "sim",
    "cluster.nodes": 3,
    "check.executor": "local",
    "drive.duration_s": 20.0,
    "drive.rate_per_s": 30.0,
    "drive.concurrency": 20,
    "drive.op_deadline_s": 2.0,
    "system.partitions": 4,
}
# The loss lasts longer than twice what it takes to serve again, or that could not be tested.
APART: dict[str, object] = {
    "drive.duration_s": 26.0,
    "cluster.nodes": 5,
    "system.replicas": 3,
    "system.system_nodes": 1,
    "system.system_apart": True,
}


def drill(*faults: str, **more: object) -> dict[str, object]:
    """The same faults on the same roles under every seed: what is measured of one drill says
    nothing about another one, whose faults hit other roles.
    """
    keys = {key.replace("__", "."): value for key, value in more.items()}
    return {"nemesis.schedule": [scheduled(fault) for fault in faults], **keys}


def scheduled(fault: str) -> dict[str, object]:
    """A fault of a schedule, from how a command line writes it."""
    at_s, kind, target, hold_s = fault.split(":")
    return {"at_s": float(at_s), "kind": kind, "target": target, "hold_s": float(hold_s)}


SETTINGS: dict[str, dict[str, Any]] = {
    "append": drill("4:kill:primary of partition 0:3"),
    "append-restart": drill("4:restart:primary of partition 0:3"),
    "append-paused": drill("4:pause:primary of partition 0:3"),
    "all-killed": drill("4:kill:all:3"),
    # Nothing is served until some time after the heal, and a second of that many operations says
    # whether the rate is back: a recovery that takes a while.
    "closed": drill("4:kill:all:3", drive__rate_per_s=None, drive__concurrency=10),
    "bank": drill("4:kill:primary of partition 0:3", workload__name="bank"),
    "bank-cut": drill("4:partition:primary of partition 0:3", workload__name="bank"),
    "register": drill("4:host-loss:primary of partition 0:3", workload__name="register"),
    "slow": drill("4:delay:primary of partition 0 at 60 ms:4", "4:loss:n1 at 20 %:4"),
    "five-nodes": drill("4:one-way:primary of partition 0:3", cluster__nodes=5),
    "majority-sc": drill("4:kill:majority of partition 0:10") | APART,
    "majority-ha": drill("4:kill:majority of partition 0:10")
    | APART
    | {"system.mode": "HA", "system.reset_timeout_s": 1},
}
# What a run of these asks for: no limit breaks by being measured, but that of recovery has to be
# shorter than the quiet after a fault to be tested at all.
MEASURING: dict[str, float] = {
    "longest_gap_s": 10.0,
    "p99_ms": 1e6,
    "indefinite_share": 0.99,
    "recovered_within_s": 3.0,
}
# Shorter than the loss is, from when each is timed on.
MAJORITY: dict[str, float] = {"refused_within_s": 3.0, "serves_within_s": 6.0}
IN_FORCE = ("longest_gap_s",)  # of a drill that short the others have too few transactions
TIMES = 2.0
DECIDED = (LimitState.KEPT, LimitState.BROKEN)
CELL_LIMIT_S = 900.0  # beside others


def kinds(setting: Mapping[str, Any]) -> tuple[str, ...]:
    """The kinds of faults of a setting."""
    schedule = setting["nemesis.schedule"]
    return tuple(dict.fromkeys(fault["kind"] for fault in schedule))


def below_deadline(setting: Mapping[str, Any]) -> float:
    """The highest limit of a latency that is not refused: of a closed loop no acknowledged
    transaction takes as long as its deadline.
    """
    drive = DRILL | setting
    deadline_s = drive["drive.op_deadline_s"]
    return MEASURING["p99_ms"] if drive["drive.rate_per_s"] else 999.0 * float(str(deadline_s))


def measuring(setting: Mapping[str, Any]) -> dict[str, float]:
    """The limits, by path, that have every figure of ``setting`` measured."""
    whole = MEASURING | (MAJORITY if "system.replicas" in setting else {})
    whole["p99_ms"] = below_deadline(setting)
    of_kinds = {
        f"promise.{kind}.{key}": MEASURING[key] for kind in kinds(setting) for key in IN_FORCE
    }
    return {f"promise.{key}": limit for key, limit in whole.items()} | of_kinds


def plan_of(name: str, seed: int, limits: Mapping[str, float]) -> Plan:
    """The drill of a setting under ``seed`` and ``limits``."""
    given = {**DRILL, **SETTINGS[name], **limits, "seed": seed, "name": f"{name}-{seed}"}
    return load(None, {key: value for key, value in given.items() if value is not None})


def verdict_of(result: CellResult) -> Verdict:
    """The verdict of a run that was judged."""
    verdict = read_verdict(RunDirectory(Path(result.run))) if result.run else None
    if verdict is None:
        raise click.ClickException(f"seed {result.seed} was not judged: {result.reasons}")
    return verdict


def figures(results: Iterable[CellResult]) -> dict[str, list[float]]:
    """What was measured, by the limit's path."""
    found: dict[str, list[float]] = {}
    for result in results:
        for limit in verdict_of(result).limits:
            if limit.measured is not None:
                found.setdefault(limit.name, []).append(limit.measured)
    if not found:
        raise click.ClickException("no run has a figure: no limit would be judged")
    return found


def twice(measured: Mapping[str, Sequence[float]], most: Mapping[str, float]) -> dict[str, float]:
    """The limits of which the worst of what was measured is half, or ``most`` by the end of their
    path; none where that is nothing.
    """
    limits = {path: TIMES * max(values) for path, values in measured.items() if max(values)}
    return {
        path: min([limit, *(high for end, high in most.items() if path.endswith(end))])
        for path, limit in limits.items()
    }


def accusations(result: CellResult) -> list[str]:
    """What a limit said against the run, a line each."""
    verdict = verdict_of(result)
    return [
        example.text
        for name, anomaly in verdict.anomalies.items()
        if name in OF_LIMITS
        for example in anomaly.examples
    ]


def doubts(result: CellResult) -> list[str]:
    """What a limit left open of the run, a line each."""
    open_ = (LimitState.UNDECIDED, LimitState.NOT_TESTED)
    limits = verdict_of(result).limits
    return [f"{each.name} {each.state}: {each.reason}" for each in limits if each.state in open_]


@click.command()
@click.option("--measure", type=click.IntRange(1), default=10, show_default=True)
@click.option("--judge", type=click.IntRange(1), default=10, show_default=True)
@click.option("--seed", type=click.IntRange(0), default=1, show_default=True, help="The first.")
@click.option("--jobs", type=click.IntRange(1), default=2, show_default=True)
@click.option("--setting", "names", multiple=True, type=click.Choice(sorted(SETTINGS)))
@click.option("--out", type=click.Path(path_type=Path), help="Where the runs stay.")
def main(
    measure: int, judge: int, seed: int, jobs: int, names: tuple[str, ...], out: Path | None
) -> None:
    """Print a line for each setting, and one for each accused run."""
    print(f"calibrator {calibrate().cpu_s:.3f} s")
    root = out or Path(tempfile.mkdtemp(prefix="firedrill-limits-"))
    pool = simulation_pool(root, keep=True, jobs=jobs)
    accused = judged = judged_limits = 0
    for name in names or SETTINGS:
        ask = measuring(SETTINGS[name])
        seeds = range(seed, seed + measure)
        first = (Cell(plan=plan_of(name, each, ask), limit_s=CELL_LIMIT_S) for each in seeds)
        most = {"p99_ms": below_deadline(SETTINGS[name]), "share": 0.99}
        limits = twice(figures(pool.results(in_turn(first), Ledger())), most)
        others = range(seed + measure, seed + measure + judge)
        then = (Cell(plan=plan_of(name, each, limits), limit_s=CELL_LIMIT_S) for each in others)
        results = list(pool.results(in_turn(then), Ledger()))
        outcomes = {outcome: sum(r.outcome is outcome for r in results) for outcome in Outcome}
        told = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items() if count)
        judged_limits += sum(
            limit.state in DECIDED for result in results for limit in verdict_of(result).limits
        )
        print(f"{name}: {told}; " + ", ".join(f"{k[8:]} {v:.3g}" for k, v in limits.items()))
        for result in results:
            lines = accusations(result)
            judged, accused = judged + 1, accused + bool(lines)
            for line in (*lines, *doubts(result)):
                print(f"  seed {result.seed} ({result.run}): {line}")
        sys.stdout.flush()
    print(
        f"{accused} of {judged} runs were accused, in which {judged_limits} limits were decided; "
        f"the runs are in {root}"
    )
    sys.exit(1 if accused else 0)


if __name__ == "__main__":
    main()
