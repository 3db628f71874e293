"""What Ignite's clients were told over whole runs: each code with its row of the error table.

``python benchmarks/ignite3_errors.py RUN...``: sealed run directories of system ``ignite3``. Ends
with 1 where a code is in no row. The share of indefinite results is the figure at the end.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import click
import pyarrow.parquet as pq

from clusters.ignite3.error_table import ERRORS

OURS = ("deadline", "interrupted")  # of the driver, not of the store


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
def main(runs: tuple[Path, ...]) -> None:
    """Count and print."""
    types: Counter[str] = Counter()
    codes: Counter[tuple[str, str, str]] = Counter()
    for run in runs:
        if not (run / "history" / "transactions.parquet").is_file():
            raise click.UsageError(f"{run}: expected a run that has ended (it holds no history)")
        table = pq.read_table(run / "history" / "transactions.parquet")
        for row in table.select(["type", "error", "phase"]).to_pylist():
            types[row["type"]] += 1
            if row["error"] is not None:
                codes[row["error"], row["phase"] or "-", row["type"]] += 1
    unknown = sorted({code for code, _, _ in codes if code not in ERRORS and code not in OURS})
    for (code, phase, type_), count in sorted(codes.items()):
        why = "a limit of the harness" if code in OURS else "IN NO ROW OF THE TABLE"
        reason = ERRORS[code].reason if code in ERRORS else why
        print(f"{count:>7}  {type_:<5} at {phase:<8} {code:<24} {reason}")
    total = sum(types.values())
    told = ", ".join(f"{types[name]} {name}" for name in ("ok", "fail", "info"))
    share = 100 * types["info"] / total if total else 0.0
    print(f"{len(runs)} runs, {total} operations: {told}; indefinite: {share:.2f} %")
    if unknown:
        sys.exit(f"in no row of the table: {', '.join(unknown)}")


if __name__ == "__main__":
    main()
