"""How many seconds a core simulates in one: ``python benchmarks/sim_speed.py [--runs 3]``.

Five nodes, eight partitions, 20 clients, 25 transactions a (virtual) second for a (virtual) minute,
with leaders killed and cut off meanwhile; from the plan to the sealed history. First a calibrator,
so that figures of different machines can be read beside each other. On a machine that does other
things, too, the figure by CPU time is the one that stays.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import click
from calibrator import calibrate

from cli.wiring import run_plan
from harness.history.load import load as load_history
from harness.plan.plan import Plan, load
from harness.run.progress import Silent
from harness.run.stop import Stop

BAR, GOAL = 5.0, 12.0
PLAN: dict[str, object] = {
    "name": "sim-speed",
    "cluster.provider": "sim",
    "cluster.nodes": 5,
    "check.executor": "local",
    "system.partitions": 8,
    "drive.duration_s": 60.0,
    "drive.concurrency": 20,
    "drive.rate_per_s": 25.0,
    "nemesis.mix": ["kill", "partition"],
}


@click.command()
@click.option("--runs", default=3, show_default=True, help="Seeds; the median counts.")
def main(runs: int) -> None:
    """Measure and compare with the bar."""
    click.echo(calibrate())
    by_wall, by_cpu = [], []
    for seed in range(runs + 1):
        simulated_s, wall_s, cpu_s, operations = measured(load(None, PLAN | {"seed": seed}))
        if seed == 0:
            continue  # it paid for the imports
        by_wall.append(simulated_s / wall_s)
        by_cpu.append(simulated_s / cpu_s)
        click.echo(
            f"seed {seed}: {simulated_s:.1f} s with {operations} operations in {wall_s:.1f} s "
            f"({by_wall[-1]:.1f} a second), {cpu_s:.1f} s of CPU ({by_cpu[-1]:.1f} a second)"
        )
    wall, cpu = statistics.median(by_wall), statistics.median(by_cpu)
    click.echo(f"median: {wall:.1f} simulated seconds a second, {cpu:.1f} a second of CPU")
    click.echo(f"bar {BAR:g}: {'met' if wall >= BAR else 'missed'}; goal {GOAL:g}")
    raise SystemExit(0 if wall >= BAR else 1)


def measured(plan: Plan) -> tuple[float, float, float, int]:
    """Simulated seconds, wall seconds and CPU seconds of a run, and its operations."""
    with tempfile.TemporaryDirectory() as scratch:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        run = run_plan(plan, Path(scratch), Silent(), Stop())
        wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
        history = load_history(run)
        simulated_s = max(at_ns for _, at_ns in history.manifest.phases) / 1e9
        return simulated_s, wall_s, cpu_s, history.transactions().num_rows


if __name__ == "__main__":
    main()
