"""Which planted bugs are found on real nodes, in drills of a minute?

    python benchmarks/planted_on_nodes.py [--provider process|docker] [--tries 3] [--bug NAME ...]
        [--out planted.json]

Each drill is ``firedrill run`` of a plan made of the bug's simulated hunt (the same workload and
faults), stretched to a minute, at a rate that processes of one machine bear. What is found counts
as in ``firedrill selftest``: a checker of histories or of replicas names it; that a node ended does
not count. With ``--out`` every result is kept, and known ones are not tried again. Bugs that only a
disk or a clock shows are left out: killing a process does not lose what the system has cached, and
no clock of this machine is moved.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import click
import msgspec
from calibrator import calibrate

from cli.wiring import machine
from clusters.reference.hunts import overrides
from clusters.reference.node.bugs import KNOWN
from harness.campaigns.cell import CRASHES
from harness.outcome import Outcome
from harness.plan.plan import Plan, dumps, load
from harness.protocols.verdict import Verdict
from harness.run.directory import RunDirectory

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


class Drill(msgspec.Struct, frozen=True, kw_only=True):
    """One drill: what came of it, and what was named."""

    bug: str
    seed: int
    provider: str
    outcome: str
    names: tuple[str, ...] = ()
    took_s: float = 0.0

    @property
    def found(self) -> bool:
        """Whether somebody would have noticed the bug, not only its noise."""
        return bool(set(self.names) - CRASHES)


class Results(msgspec.Struct, kw_only=True):
    """All drills, and the machine that they ran on; ``loop_s`` is the calibrator's CPU."""

    machine: dict[str, object]
    loop_s: float
    drills: list[Drill] = []


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


def drill(bug: str, seed: int, provider: str) -> Drill:
    """Make one run, as a user would, and read its verdict."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="firedrill-planted-") as scratch:
        plan = Path(scratch) / "plan.toml"
        plan.write_text(dumps(plan_of(bug, seed, provider)))
        firedrill = str(Path(sys.executable).with_name("firedrill"))
        command = [firedrill, "run", str(plan), "--no-report", "--runs-dir", scratch]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=RUN_LIMIT_S, check=False
        )
        path = RunDirectory(Path(scratch) / "latest").verdict
        if not path.exists():
            print(done.stderr[-2000:], file=sys.stderr)
            outcome, names = Outcome.HARNESS_ERROR, ()
        else:
            verdict = msgspec.json.decode(path.read_bytes(), type=Verdict)
            outcome, names = verdict.outcome, tuple(sorted(verdict.anomalies))
    return Drill(
        bug=bug,
        seed=seed,
        provider=provider,
        outcome=outcome.value,
        names=names,
        took_s=round(time.monotonic() - began_s, 1),
    )


def row(bug: str, drills: list[Drill]) -> str:
    """One line of the table."""
    found = sum(each.found for each in drills)
    names: dict[str, int] = {}
    for each in drills:
        for name in set(each.names) - CRASHES:
            names[name] = names.get(name, 0) + 1
    told = " ".join(f"{name}({count})" for name, count in sorted(names.items()))
    others = ", ".join(sorted({each.outcome for each in drills if not each.found}))
    return f"{bug:<24} {found}/{len(drills)}  {told or '-'}" + (f"  [{others}]" if others else "")


@click.command()
@click.option("--provider", default="process", show_default=True)
@click.option("--tries", type=click.IntRange(1), default=3, show_default=True)
@click.option("--bug", "bugs", multiple=True, type=click.Choice(sorted(KNOWN)))
@click.option("--out", type=click.Path(path_type=Path), help="Results, as JSON; grows.")
def main(provider: str, tries: int, bugs: tuple[str, ...], out: Path | None) -> None:
    """Drill every bug so many times and print found / tries and what each was reported as."""
    results = Results(machine=machine(), loop_s=round(calibrate().cpu_s, 3))
    if out and out.exists():
        results.drills = msgspec.json.decode(out.read_bytes(), type=Results).drills
    cores, loop_s = results.machine["cores"], results.loop_s
    print(f"machine: {results.machine}; {cores} cores, calibrator {loop_s} s")
    for bug in bugs or BUGS:
        for seed in range(1, tries + 1):
            if not any(
                (d.bug, d.seed, d.provider) == (bug, seed, provider) for d in results.drills
            ):
                results.drills.append(drill(bug, seed, provider))
            if out:
                out.write_bytes(msgspec.json.format(msgspec.json.encode(results)))
        mine = [d for d in results.drills if (d.bug, d.provider) == (bug, provider)]
        print(row(bug, mine), flush=True)


if __name__ == "__main__":
    main()
