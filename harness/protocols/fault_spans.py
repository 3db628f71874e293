"""The time in which a fault was in force: one definition for texts, tables and charts.

::

    begin_ns        effective_ns          healing_ns        healed_ns
    injection       the effect is         healing           the healing
    begins          proven                begins            is proven
    |---- unsure ---|------ in force -----|---- unsure -----|

In an unsure interval the fault may or may not act. Explanations of lost operations count the fault
as in force from ``begin_ns`` to ``healed_ns``; charts hatch the unsure intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from harness.clock import NS_PER_S
from harness.history.records import FaultState

SETTLED_NS = 2 * NS_PER_S
"""What a fault leaves goes on so long after its heal: leases that ended, an election, a takeover.
"""

Ints = npt.NDArray[np.int64]


@attrs.frozen(kw_only=True)
class FaultSpan:
    """One injected fault. A time is ``None`` where that step was never proven, or never begun."""

    fault: int
    kind: str
    target: str
    nodes: tuple[str, ...]
    roles: tuple[str, ...]
    state: str
    begin_ns: int
    effective_ns: int | None
    healing_ns: int | None
    healed_ns: int | None

    def end_ns(self, last_ns: int) -> int:
        """The fault's end in a run that ended at ``last_ns``, which is the end of a fault never
        healed.
        """
        return max(self.begin_ns, last_ns) if self.healed_ns is None else self.healed_ns

    def touches(self, start_ns: int, end_ns: int) -> bool:
        """Tell whether it was in force at some moment from ``start_ns`` to ``end_ns``; to the end
        of the run, where its healing was never proven.
        """
        return self.begin_ns <= end_ns and (self.healed_ns is None or self.healed_ns >= start_ns)

    def in_force(self, last_ns: int) -> tuple[int, int] | None:
        """From the proof of the effect to the begin of the healing; ``None`` where no proof came
        before the healing.
        """
        end_ns = self.end_ns(last_ns)
        until_ns = end_ns if self.healing_ns is None else min(self.healing_ns, end_ns)
        if self.effective_ns is None or self.effective_ns >= until_ns:
            return None
        return self.effective_ns, until_ns

    def unsure(self, last_ns: int) -> tuple[tuple[int, int], ...]:
        """The rest of its time: from the begin to the proof, and from the begin to the proof of
        healing.
        """
        end_ns, sure = self.end_ns(last_ns), self.in_force(last_ns)
        around = [(self.begin_ns, end_ns)]
        if sure is not None:
            around = [(self.begin_ns, sure[0]), (sure[1], end_ns)]
        return tuple((start, end) for start, end in around if start < end)


def fault_spans(faults: Iterable[Mapping[str, Any]]) -> tuple[FaultSpan, ...]:
    """Return the injected faults of these rows (``schema.FAULTS``), in the order of their begin."""
    found = []
    for row in faults:
        begun = (row["injecting_ns"], row["injected_ns"], row["effective_ns"])
        begin_ns = next((at_ns for at_ns in begun if at_ns is not None), None)
        if begin_ns is None or row["state"] == FaultState.SKIPPED:
            continue
        found.append(
            FaultSpan(
                fault=row["fault"],
                kind=row["kind"],
                target=row["target"],
                nodes=tuple(row["nodes"] or ()),
                roles=tuple(row["roles"] or ()),
                state=row["state"],
                begin_ns=begin_ns,
                effective_ns=row["effective_ns"],
                healing_ns=row["healing_ns"],
                healed_ns=row["healed_ns"],
            )
        )
    return tuple(sorted(found, key=lambda span: (span.begin_ns, span.fault)))


def touched(
    begun_ns: Ints,
    ended_ns: Ints,
    spans: Sequence[FaultSpan],
    last_ns: int,
    settling_ns: int = 0,
) -> npt.NDArray[np.bool_]:
    """Tell which operations were open while one of ``spans``, in the order of their begin, was in
    force, or within ``settling_ns`` of its end; a fault never healed lasts until ``last_ns``.
    """
    if not spans:
        return np.zeros(len(begun_ns), dtype=np.bool_)
    begins = np.array([span.begin_ns for span in spans], dtype=np.int64)
    ends = np.array([span.end_ns(last_ns) + settling_ns for span in spans], dtype=np.int64)
    # Of all that began by an operation's end the one that ends last decides.
    latest = np.maximum.accumulate(ends)
    before = np.searchsorted(begins, ended_ns, side="right")
    found = (before > 0) & (latest[np.maximum(before - 1, 0)] > begun_ns)
    return np.asarray(found, dtype=np.bool_)


def in_calm(
    begun_ns: Ints, ended_ns: Ints, spans: Sequence[FaultSpan], marks: Mapping[str, int]
) -> npt.NDArray[np.bool_]:
    """Tell which operations of the drive, between its ``marks``, no fault can have touched, nor
    what one left; none of a run without both marks: the end of its last faults is not known.
    """
    if "drive" not in marks or "heal" not in marks:
        return np.zeros(len(begun_ns), dtype=np.bool_)
    inside = (begun_ns >= marks["drive"]) & (ended_ns < marks["heal"])
    calm = inside & ~touched(begun_ns, ended_ns, spans, marks["heal"], SETTLED_NS)
    return np.asarray(calm, dtype=np.bool_)
