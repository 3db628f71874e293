"""Whether every executor gives the same bytes of verdict.

    python benchmarks/executors_agree.py [--histories 200]

Writes small runs of every workload, with and without anomalies, and has one ``firedrill check``
judge them all in this process, one on Spark here (``local[2]``), one on a standalone cluster of two
workers, and one from HDFS. Prints how many ended how, and ends with an error where any verdict.json
is other bytes than this process's.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from calibrator import calibrate

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "checkers"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from every_executor import compared


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--histories", type=int, default=200)
    options = parser.parse_args()
    print(calibrate(), flush=True)
    differing = 0
    with tempfile.TemporaryDirectory(prefix="firedrill-benchmark-") as scratch:
        begun_s = time.monotonic()
        found = compared(Path(scratch), options.histories)
        here = next(found)
        outcomes = ", ".join(f"{n} {outcome}" for outcome, n in sorted(here.outcomes().items()))
        print(f"{here.executor}: {len(here.verdicts)} runs: {outcomes}", flush=True)
        for other in found:
            names = other.differing(here)
            differing += len(names)
            took_s = time.monotonic() - begun_s
            told = f": {', '.join(names)}" if names else ""
            print(f"{other.executor}: {len(names)} differ{told} ({took_s:.0f} s)", flush=True)
    if differing:
        sys.exit(f"{differing} verdicts are not those of this process")


if __name__ == "__main__":
    main()
