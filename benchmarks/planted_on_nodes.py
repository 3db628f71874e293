"""Which planted bugs are found on real nodes, in drills of a minute?

    python benchmarks/planted_on_nodes.py [--provider process|docker] [--tries 3] [--bug NAME ...]
        [--out planted.jsonl]

Each drill is a run of a plan made of the bug's simulated hunt (the same workload and
faults), stretched to a minute, at a rate that processes of one machine bear. What is found counts
as in ``firedrill selftest``: a checker of histories or of replicas names it; that a node ended does
not count. With ``--out`` every result is kept, and known ones are not tried again. Bugs that only a
disk or a clock shows are left out: killing a process does not lose what the system has cached, and
no clock of this machine is moved.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import click
from calibrator import calibrate

from cli.cells import code_digest, run_on_nodes
from cli.selftest import anomalies_naming
from cli.wiring import machine
from clusters.reference.node.bugs import KNOWN
from clusters.reference.planted_bug_drills import overrides
from harness.campaigns.campaign_summary import outcome_counts
from harness.campaigns.cell import Cell, CellResult
from harness.campaigns.ledger import Ledger
from harness.campaigns.pool import Pool, in_turn
from harness.plan.plan import Plan, load

BUGS = (
    "ack-before-quorum",
    "conflict-ignored",
    "locks-not-rebuilt",
    "lock-timeout-ignored",
    "pending-ignored",
    "prepared-forgotten",
    "read-lock-skipped",
    "reader-joins-writer",
    "refusal-ignored",
    "released-before-durable",
    "snapshot-reads-newest",
    "upgrade-unchecked",
)
# What a simulated hunt does not need. A key stays locked until its commit is applied: many keys, so
# that more than one append is lost with a leader that is cut off.
OWN: dict[str, dict[str, object]] = {
    "ack-before-quorum": {
        "workload.key_count": 100,
        "workload.key_choice": "uniform",
        "workload.max_length": 1,
        "nemesis.mix": ["partition", "kill"],
    },
}
DURATION_S = 60.0
MOST_PER_S = 60.0  # transactions: five processes and their driver share the cores
HOLD_S, QUIET_S = 3.0, 4.0  # real elections and restarts take longer than simulated ones
RUN_LIMIT_S = 300.0


def plan_of(bug: str, seed: int, provider: str) -> Plan:
    """The minute's drill for ``bug``."""
    given = overrides(bug)
    rate = min(MOST_PER_S, float(str(given["drive.rate_per_s"])))
    given |= {
        "name": f"planted-{bug}"[:40],
        "seed": seed,
        "cluster.provider": provider,
        "system.bugs": [bug],
        "drive.duration_s": DURATION_S,
        "drive.rate_per_s": rate,
        "nemesis.first_s": 3.0,
        "nemesis.hold_s": HOLD_S,
        "nemesis.quiet_s": QUIET_S,
    }
    given |= OWN.get(bug, {})
    if "nemesis.schedule" in given:
        raise click.UsageError(f"{bug}: its hunt has a schedule of its own")
    return load(None, given)


def row(bug: str, results: list[CellResult]) -> str:
    """One line of the table."""
    named = [anomalies_naming(bug, result) for result in results]
    names: dict[str, int] = {}
    for name in sorted(name for each in named for name in each):
        names[name] = names.get(name, 0) + 1
    told = " ".join(f"{name}({count})" for name, count in names.items())
    missed = [result for result, each in zip(results, named, strict=True) if not each]
    others = ", ".join(outcome_counts(missed))
    found = len(results) - len(missed)
    return f"{bug:<24} {found}/{len(results)}  {told or '-'}" + (f"  [{others}]" if others else "")


@click.command()
@click.option("--provider", default="process", show_default=True)
@click.option("--tries", type=click.IntRange(1), default=3, show_default=True)
@click.option("--bug", "bugs", multiple=True, type=click.Choice(sorted(KNOWN)))
@click.option("--out", type=click.Path(path_type=Path), help="A ledger of the results; it grows.")
def main(provider: str, tries: int, bugs: tuple[str, ...], out: Path | None) -> None:
    """Drill every bug so many times and print found / tries and what each was reported as."""
    about, loop_s = machine(), round(calibrate().cpu_s, 3)
    print(f"machine: {about}; {about['cores']} cores, calibrator {loop_s} s")
    ledger = Ledger.read(out, code_digest()) if out else Ledger()
    with tempfile.TemporaryDirectory(prefix="firedrill-planted-") as scratch:
        # One at a time: the nodes of two runs would take each other's cores, and miss deadlines.
        pool = Pool(work=partial(run_on_nodes, runs_dir=Path(scratch)), workers=1)
        for bug in bugs or BUGS:
            plans = (plan_of(bug, seed, provider) for seed in range(1, tries + 1))
            cells = in_turn(Cell(plan=plan, limit_s=RUN_LIMIT_S) for plan in plans)
            print(row(bug, list(pool.results(cells, ledger))), flush=True)


if __name__ == "__main__":
    main()
