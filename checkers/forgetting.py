"""Stores that may forget: those that go on without a majority, and without what it knew.

Which writes a store may lose then is a question of its own. Until it is answered, what such a run
shows decides nothing; without the loss of a majority everything counts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec
import pyarrow as pa

from checkers.attribution import windows
from checkers.models import OF_NODES, OF_SERVICE
from checkers.words import seconds
from harness.promise import Declaration

STILL_COUNTS = OF_NODES | OF_SERVICE
"""What no loss of a majority excuses."""


def excuse(declaration: Declaration, faults: pa.Table) -> str:
    """Why this store may have forgotten in this run, in words; empty where it may not."""
    least = declaration.forgets_without
    if isinstance(least, msgspec.UnsetType):
        return ""
    found = _first_out(faults, least)
    if found is None:
        return ""
    at_ns, nodes = found
    return (
        f"{', '.join(nodes)} were out together from {seconds(at_ns)} on, and in mode "
        f"{declaration.mode} what they had acknowledged may be lost then; how much of it is not "
        "judged yet"
    )


def excused(names: Iterable[str], why: str) -> frozenset[str]:
    """Those of the anomalies ``names`` that decide nothing because of ``why``."""
    return frozenset(names) - STILL_COUNTS if why else frozenset()


def _only_learns(roles: Collection[str]) -> bool:
    """Whether who was hit had no vote anywhere, as far as its roles were known."""
    return bool(roles) and all(role.startswith("learner of ") for role in roles)


def _first_out(faults: pa.Table, least: int) -> tuple[int, tuple[str, ...]] | None:
    """The first moment at which ``least`` nodes that vote were under faults together, and which."""
    known = [window for window in windows(faults) if not _only_learns(window["roles"] or ())]
    for now in known:
        at_ns = now["start_ns"]
        out = {
            node
            for window in known
            if window["start_ns"] <= at_ns
            and (window["end_ns"] is None or at_ns < window["end_ns"])
            for node in window["nodes"] or ()
        }
        if len(out) >= least:
            return at_ns, tuple(sorted(out))
    return None
