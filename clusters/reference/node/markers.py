"""Markers: named places of the code that few runs reach. A simulation counts them, so that what no
test ever reached is known by name; on a real machine a marker is one look at a variable.

``reached`` stands where the rare path is certain to be taken, with a text that occurs once in the
node: a path that no run takes is a path that no run tests.
"""

from __future__ import annotations

import contextvars

Counts = dict[str, int]

# By context as planted bugs are: nodes of one process count each for itself.
_counts: contextvars.ContextVar[Counts | None] = contextvars.ContextVar("markers", default=None)


def reached(marker: str) -> None:
    """Count ``marker``, where something counts."""
    counts = _counts.get()
    if counts is not None:
        counts[marker] = counts.get(marker, 0) + 1


def count_into(counts: Counts) -> None:
    """From here on, in the running task and those that it starts, ``reached`` counts there."""
    _counts.set(counts)
