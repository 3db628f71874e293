"""Checkers that judge every run of this harness: no workload can leave them out."""

from __future__ import annotations

import pyarrow as pa

from checkers.limits import checker as limits
from checkers.promises import (
    controller_overload,
    fault_coverage,
    liveness,
    rolling_restart,
    stays_up,
)
from harness.history.load import History
from harness.history.parquet import read_summed
from harness.protocols.checker import Checker
from harness.run.controller_health import read_controller_health
from harness.run.log_lines import LINES_FILE, LOG_LINES

CHECKERS: tuple[Checker, ...] = (
    stays_up.CHECKER,
    liveness.CHECKER,
    limits.CHECKER,
    rolling_restart.CHECKER,
    fault_coverage.CHECKER,
    controller_overload.CHECKER,
)


def tables(history: History) -> dict[str, pa.Table]:
    """Return the tables that ``CHECKERS`` read beside the history: ``log_lines`` and
    ``controller``.
    """
    manifest = history.manifest
    return {
        "log_lines": log_lines(history),
        "controller": read_controller_health(history.run, manifest.checksums),
    }


def log_lines(history: History) -> pa.Table:
    """Return the lines of the nodes' logs that count; of a run that was exported and imported
    again, which has no logs, those that were exported.
    """
    sums = history.manifest.checksums
    if LINES_FILE in sums:
        return next(iter(read_summed(history.run.root, sums, {LINES_FILE: LOG_LINES}).values()))
    patterns = stays_up.patterns_of(history.manifest.declaration) or ()
    return stays_up.scan(history, patterns)
