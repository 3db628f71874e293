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

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from harness.history.records import FaultState


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
