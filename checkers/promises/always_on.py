"""Checkers that judge every run of this harness: no workload can leave them out."""

from __future__ import annotations

import pyarrow as pa

from checkers.promises import controller, coverage, liveness, stays_up
from harness.history.load import History
from harness.protocols.checker import Checker
from harness.run.controller_health import read_controller_health

CHECKERS: tuple[Checker, ...] = (
    stays_up.CHECKER,
    liveness.CHECKER,
    coverage.CHECKER,
    controller.CHECKER,
)


def tables(history: History) -> dict[str, pa.Table]:
    """Return the tables that ``CHECKERS`` read beside the history: ``log_lines`` and
    ``controller``.
    """
    manifest = history.manifest
    patterns = stays_up.patterns_of(manifest.declaration) or ()
    return {
        "log_lines": stays_up.scan(history, patterns),
        "controller": read_controller_health(history.run, manifest.checksums),
    }
