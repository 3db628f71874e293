"""A page over the runs of a store: ``index.html`` beside them, written after each run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import attrs

from harness.history.durable_files import write_atomically
from harness.history.regular_files import open_regular
from results.report.html import MARKS, rendered

INDEX = "index.html"
RUNS_MAX = 500  # the newest
TITLE = b"<title>firedrill: "
HEAD_BYTES = 2048  # of a page, in which its title stands


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


def write_index(root: Path, rows: Sequence[IndexRow], more: int = 0) -> Path | None:
    """Write the page about ``rows``, the oldest first, into ``root``; return its path, or ``None``
    where a page of that name is there that is not ours, which stays as it is. ``more`` older
    runs are not among them. Raises ``HarnessError``.
    """
    counts = Counter(row.outcome or row.state for row in rows)
    page = rendered(
        "index.html", rows=list(reversed(rows)), more=more, counts=sorted(counts.items())
    )
    path = root / INDEX
    if not _is_ours(path):
        return None
    write_atomically(path, page.encode("utf-8", "backslashreplace"))
    return path


def _is_ours(path: Path) -> bool:
    """Whether ``path`` may be written: it is not there, or has such a page's title."""
    try:
        with open_regular(path) as page:
            return TITLE in page.read(HEAD_BYTES)
    except FileNotFoundError:
        return True
    except OSError:
        return path.is_dir()  # which can't be written over: the attempt says so
