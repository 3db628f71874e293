"""How long each partition acknowledged no write, fault by fault; decides nothing.

Where a majority is lost the partitions of a store come back one by one: a gap of the whole store
says nothing about the last of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from checkers.columns import Ints, ints
from checkers.liveness import STEP_NS

PARTITIONS_MAX = 64  # a store of more has no table that a person would read


def partition_gaps(tries: pa.Table, found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``partitions`` with a row for each fault of ``found`` (``fault``, ``kind``, ``start_ns``,
    ``end_ns``): of each partition the longest time within without an acknowledged write. Times are
    counted in steps of ``STEP_NS``. Empty where partitions are not known, or too many.
    """
    partition = ints(tries, "partition")
    known = np.unique(partition)
    if not len(known) or len(known) > PARTITIONS_MAX or not found:
        return {}
    served = np.asarray(tries.column("ok")) & np.asarray(tries.column("writes"))
    ended = ints(tries, "ended") * STEP_NS
    done = [np.unique(ended[served & (partition == number)]) for number in known.tolist()]
    return {
        "partitions": {
            "partition": known.tolist(),
            "windows": [
                {
                    "fault": window["fault"],
                    "kind": window["kind"],
                    "longest_gap_ns": [
                        _longest(times, window["start_ns"], window["end_ns"]) for times in done
                    ],
                }
                for window in found
            ],
        }
    }


def _longest(done: Ints, start_ns: int, end_ns: int | None) -> int | None:
    """The longest time without one of ``done`` that touches the window: it begins and may end
    outside. ``None`` where nothing was done before or nothing after it.
    """
    last_ns = int(done[-1]) if len(done) else start_ns
    low = int(np.searchsorted(done, start_ns, side="right")) - 1
    high = int(np.searchsorted(done, last_ns if end_ns is None else end_ns, side="left"))
    if low < 0 or high >= len(done):
        return None
    inner = done[low : high + 1]
    return int(np.max(np.diff(inner))) if len(inner) > 1 else 0
