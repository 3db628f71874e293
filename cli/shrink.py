"""``firedrill shrink``: the smallest plan with the same failure as a run."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from tempfile import TemporaryFile

import click

from cli import quantities
from cli.session import RunName, Session, runs_option
from cli.shrinking.shrink_run import REAL_REPETITIONS, SHRUNK, differences, failures, shrink_run
from harness.errors import UsageError
from harness.exit_codes import Outcome
from harness.history.manifest import read_manifest
from harness.text import long_duration
from results.store.store import RunStore

SHRINK_LIMIT = "10m"
TRIES = 3


@click.command()
@click.argument("name", type=RunName(), metavar="RUN", default="latest")
@runs_option
@click.option(
    "--tries",
    type=click.IntRange(1, 100),
    default=TRIES,
    show_default=True,
    help="Seeds (real nodes: repetitions) in one of which a candidate has to fail.",
)
@click.option(
    "--time-budget",
    callback=quantities.seconds,
    default=SHRINK_LIMIT,
    show_default=True,
    metavar="TIME",
    help="For all trials together: 90s, 10m.",
)
@click.option(
    "--repeat",
    type=click.IntRange(1, 1000),
    help=f"Runs of the result, to tell how often it fails (1; on real nodes {REAL_REPETITIONS}).",
)
@click.option(
    "--anomaly",
    "anomalies",
    multiple=True,
    help="What it must still fail with; repeatable: any of these. Any that RUN failed with, "
    "but for a node's end or a standstill beside others. One of them is in every step.",
)
@click.option("--jobs", type=click.IntRange(1), help="Simulated trials at once (as many as cores).")
@click.option("--out", type=click.Path(path_type=Path), help=f"The plan file ({SHRUNK} in RUN).")
@click.pass_obj
def shrink(
    session: Session,
    name: str,
    store: RunStore,
    tries: int,
    time_budget: float,
    repeat: int | None,
    anomalies: tuple[str, ...],
    jobs: int | None,
    out: Path | None,
) -> int:
    """Find the smallest plan that fails as RUN did: the fewest faults, then less work, fewer
    clients, a lower rate, fewer nodes and partitions, a shorter drive, shorter holds.

    Its output is a plan file. A simulated run is shrunk to the same file every time (as long as the
    time suffices), and that fails whenever it is run. A real cluster may not fail again, so the
    plan is repeated at the end, and how often it failed is told with its confidence.
    """
    run = store.resolve(name)
    session.run = run
    path = out or run.root / SHRUNK
    read_manifest(run)
    _refuse_unwritable(path)  # before the trials, not with their result
    names = failures(run, anomalies)
    found = shrink_run(
        run,
        names,
        budget_s=time_budget,
        tries=tries,
        times=repeat,
        jobs=jobs,
        store=store,
        path=path,
    )
    for line in differences(found.plan, found.small, found.names):
        click.echo(line)
    if gone := sorted(names - found.names):
        click.echo(f"no longer with {', '.join(gone)}: --anomaly NAME keeps one of its own")
    click.echo(f"{found.trials} trials in {long_duration(round(found.took_s))}; {found.counted}")
    click.echo(f"plan: {path}")
    return 0 if found.failed else Outcome.UNKNOWN.exit_code


def _refuse_unwritable(path: Path) -> None:
    """Raise ``UsageError`` where no file ``path`` can be written."""
    try:
        # A file can be made beside a directory, and yet not take its place in the end.
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        expected = "expected a file in a directory that can be written"
        raise UsageError(f"--out: {expected} (got {path}: {error.strerror})") from error
