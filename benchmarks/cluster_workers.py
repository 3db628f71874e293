"""What a second worker is worth, and what the loss of one costs.

    python benchmarks/cluster_workers.py [--txns 10000000] [--splits 8] [--rounds 1]

Judges one list-append history, with ten anomalies planted in it, in this process, on a standalone
cluster of one worker with one core, and on one of two such; the session is up, and a judgement
before has sent the files and what tasks import. Then, in the middle of one more, a worker and its
executor are killed (-9). Prints seconds and memory of each beside the machine's own figure, the
ratio of two workers to one, beside what a second process is worth here without Spark, that of a
loss to none, and ends with an error where any verdict is other bytes than this process's. Workers
see no directory of the driver's, and have nothing of this package.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
from calibrator import calibrate, worth_of_two
from checkers_list_append import CLIENTS, analysis_of, history, timed

from checkers.engine.kernel_output import NOTE
from checkers.engine.source import Source
from checkers.engine.spark.options import SparkOptions
from checkers.engine.spark.session import session
from harness.protocols.verdict import encode

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "checkers"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from spark_cluster import Cluster, executors_of, standalone

MILLION = 1_000_000


@attrs.frozen
class Judged:
    """The bytes of a verdict, and how long it took."""

    verdict: bytes
    took_s: float


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--txns", type=int, default=10 * MILLION, help="Of whole millions.")
    parser.add_argument("--splits", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1, help="Judgements that are timed.")
    options = parser.parse_args()
    print(calibrate(), flush=True)
    print(f"two processes at once / one: {worth_of_two():.2f} on this machine, without Spark")
    with tempfile.TemporaryDirectory(prefix="firedrill-benchmark-") as name:
        scratch = Path(name)
        source = history(scratch, described(options.txns, options.splits))
        with timed("in process"):
            here = encode(analysis_of(source, "local"))
        with cluster(scratch / "one", workers=1) as (_, spark):
            one = judged(source, spark, "one worker", options.rounds)
        with cluster(scratch / "two", workers=2) as (workers, spark):
            two = judged(source, spark, "two workers", options.rounds)
            lost = judged_with_a_loss(source, spark, workers, after_s=two.took_s / 2)
    print(f"one worker / two workers = {one.took_s / two.took_s:.2f}")
    print(f"one of two workers lost / none = {lost.took_s / two.took_s:.2f}")
    for what, found in (("one worker", one), ("two workers", two), ("with a loss", lost)):
        if found.verdict != here:
            sys.exit(f"{what}: the verdict is not that of this process")
    print(f"all verdicts are the same {len(here)} bytes")


def described(txns: int, splits: int) -> argparse.Namespace:
    """The options of ``checkers_list_append`` for the history."""
    return argparse.Namespace(
        txns=min(txns, MILLION),
        lag=0,
        clients=CLIENTS,
        hot=False,
        copies=max(txns // MILLION, 1),
        planted=True,
        splits=splits,
    )


@contextmanager
def cluster(directory: Path, *, workers: int) -> Iterator[tuple[Cluster, SparkOptions]]:
    """A cluster with ``workers`` of one core each, and a session on it."""
    directory.mkdir()
    with standalone(directory, workers=workers) as found:
        spark = SparkOptions(
            master=found.master,
            environment=str(directory / "environment.tar.gz"),
            conf=(("spark.driver.host", "127.0.0.1"), ("spark.executor.memory", "1g")),
        )
        (directory / "session").mkdir()
        with session(spark, directory / "session"):
            yield found, spark


def judged(source: Source, spark: SparkOptions, what: str, rounds: int) -> Judged:
    """The verdict, and the median of ``rounds`` judgements behind a first one."""
    with timed(f"{what}, first"):
        analysis_of(source, "spark", spark)
    took: list[float] = []
    for _ in range(rounds):
        with timed(what) as seconds:
            verdict = encode(analysis_of(source, "spark", spark))
        took += seconds
    return Judged(verdict, statistics.median(took))


def judged_with_a_loss(
    source: Source, spark: SparkOptions, workers: Cluster, *, after_s: float
) -> Judged:
    """The verdict where a worker and its executor are killed ``after_s`` after its beginning."""
    notes: list[str] = []
    token = NOTE.set(notes.append)
    killer = threading.Timer(after_s, kill, args=(workers,))
    try:
        with timed("one of two workers lost") as seconds:
            killer.start()
            verdict = encode(analysis_of(source, "spark", spark))
    finally:
        killer.cancel()
        NOTE.reset(token)
    told = [note for note in notes if "lost executor" in note]
    if not told:
        sys.exit("that an executor was lost is not told")
    print(f"told: {told[0]}")
    return Judged(verdict, seconds[0])


def kill(workers: Cluster) -> None:
    """End a worker and its executor at once."""
    worker = workers.workers[0]
    for pid in (*executors_of(worker), worker.pid):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
