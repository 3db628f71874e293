"""Whether all places that can judge a history say the same of it, to the byte.

    python benchmarks/executors_agree.py [--histories 200] [--seed 0]

Writes sealed runs of generated histories (list-append; half of up to ten transactions, half of 200
that overlap), most of them of a store with a defect. Each is judged by ``firedrill check`` in one
process, on Spark in this machine (``local[2]``), on a standalone cluster of two workers that have
nothing of this package, and where it lies on an HDFS; all of one place in one command. Prints how
many were violations and how long each place took beside the machine's own figure, and ends with an
error that names every run whose ``verdict.json`` is not the same everywhere.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec
from calibrator import calibrate
from checkers_list_append import timed

from checkers.engine.hadoop import remote_store

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "checkers"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "cli"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from checker_generator import generate
from checker_histories import write_run
from mini_hdfs import hdfs
from spark_cluster import standalone
from test_cycle_stretches import overlapping

FIREDRILL = Path(sys.executable).with_name("firedrill")
VERDICT = Path("analysis", "verdict.json")
JUDGED = (0, 1, 2)  # valid, violation, unknown: any other exit code is an error
LIMIT_S = 3600


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--histories", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="Of the first one.")
    options = parser.parse_args()
    print(calibrate(), flush=True)
    with tempfile.TemporaryDirectory(prefix="firedrill-benchmark-") as name:
        verdicts = verdicts_of(Path(name), range(options.seed, options.seed + options.histories))
    here = verdicts["in process"]
    outcomes = Counter(outcome_of(verdict) for verdict in here.values())
    print(", ".join(f"{outcome} {count}" for outcome, count in sorted(outcomes.items())))
    differ = [
        f"{run} {place}"
        for place, found in verdicts.items()
        for run in here
        if found.get(run) != here[run]
    ]
    if differ:
        sys.exit(f"not what this process says: {', '.join(differ)}")
    print(f"{len(here)} verdicts are the same bytes in {len(verdicts)} places")


def verdicts_of(scratch: Path, seeds: Sequence[int]) -> dict[str, dict[str, bytes]]:
    """What ``verdict.json`` of each run holds, by place and name of the run."""
    made = scratch / "made"
    for seed in seeds:
        txns = generate(seed, size=10) if seed % 2 else overlapping(seed, size=200)
        write_run(made / f"h{seed}", txns, splits=random.Random(seed).randint(1, 3))
    found: dict[str, dict[str, bytes]] = {}
    found["in process"] = judged_here(scratch, made, "in process", "--executor", "local")
    here = ("--executor", "spark", "--spark-master", "local[2]")
    found["local[2]"] = judged_here(scratch, made, "local[2]", *here)
    (scratch / "cluster").mkdir()
    with standalone(scratch / "cluster", workers=2) as cluster:
        of_cluster = (
            *("--executor", "spark", "--spark-master", cluster.master),
            *("--spark-environment", str(scratch / "environment.tar.gz")),
            *("--spark-conf", "spark.driver.host=127.0.0.1"),
            *("--spark-conf", "spark.executor.memory=1g"),
        )
        found["two workers"] = judged_here(scratch, made, "two workers", *of_cluster)
    (scratch / "hdfs").mkdir()
    with hdfs(scratch / "hdfs") as store:
        found["hdfs"] = judged_there(scratch, made, f"{store}/runs")
    return found


def judged_here(scratch: Path, made: Path, place: str, *options: str) -> dict[str, bytes]:
    """The verdicts on a copy of the runs in ``made``, by ``check`` with ``options``."""
    runs = scratch / place.replace(" ", "-")
    shutil.copytree(made, runs)
    names = sorted(path.name for path in made.iterdir())
    check(place, [*(str(runs / name) for name in names), *options])
    return {name: (runs / name / VERDICT).read_bytes() for name in names}


def judged_there(scratch: Path, made: Path, address: str) -> dict[str, bytes]:
    """The verdicts on the runs in ``made`` once they lie at ``address``."""
    names = sorted(path.name for path in made.iterdir())
    with remote_store(address) as remote:
        remote.put(made, address)
    check("hdfs", [*(f"{address}/{name}" for name in names), "--executor", "spark"])
    with remote_store(address) as remote:
        remote.fetch(address, scratch / "back")
    return {name: (scratch / "back" / name / VERDICT).read_bytes() for name in names}


def check(place: str, arguments: Sequence[str]) -> None:
    """Run ``firedrill check``, timed; an error ends this."""
    command = [str(FIREDRILL), "check", *arguments, "--no-report"]
    with timed(place):
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    if done.returncode not in JUDGED:
        sys.exit(f"{place}: exit code {done.returncode}: {done.stderr[-2000:]}")


def outcome_of(verdict: bytes) -> str:
    """What a stored verdict says."""
    return str(msgspec.json.decode(verdict)["outcome"])


if __name__ == "__main__":
    main()
