"""A page over the runs of a store: ``index.html`` beside them, written after each run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import attrs

from harness.history.files import write_atomically
from results.report.html import MARKS, rendered

INDEX = "index.html"
RUNS_MAX = 500  # the newest


@attrs.frozen(kw_only=True)
class IndexRow:
    """A run as the page shows it; every field is text. ``report`` is empty where there is none."""

    run: str
    state: str
    outcome: str
    workload: str
    begun: str
    seed: str
    length: str
    faults: str
    report: str

    @property
    def mark(self) -> str:
        """The outcome's mark, which needs no colour."""
        known = {outcome.value: mark for outcome, mark in MARKS.items()}
        return known.get(self.outcome, "")


def write_index(root: Path, rows: Sequence[IndexRow], more: int = 0) -> Path:
    """Write the page about ``rows``, the oldest first, into ``root``; return its path. ``more``
    older runs are not among them. Raises ``HarnessError``.
    """
    counts = Counter(row.outcome or row.state for row in rows)
    page = rendered(
        "index.html", rows=list(reversed(rows)), more=more, counts=sorted(counts.items())
    )
    path = root / INDEX
    write_atomically(path, page.encode("utf-8", "backslashreplace"))
    return path
