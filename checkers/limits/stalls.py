"""The stalls of the controller's loop, and how much of what clients got they can explain.

A client that waits for a loop that stands still sees a silence as long as that, which is none of
the store's. So a breach is in doubt as far as a stall that may have lain in its evidence explains
it, and no further: a silence of ten seconds is none of three tenths of a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import attrs
import numpy as np

from checkers.engine.arrays import Ints, ints
from checkers.engine.spans import FOREVER_NS
from checkers.limits.client_outcomes import Interval
from checkers.promises import controller_overload
from harness.protocols.checker import Lookup, Tables
from harness.protocols.setting import Setting
from harness.text import seconds


@attrs.frozen(kw_only=True, eq=False)
class Stalls:
    """The ``periods`` in which a loop stood still at some time, ascending, and for how long; falsy
    without any. ``overload`` is why the controller as a whole was starved, if it was: a row of
    its load tells the longest of its stalls alone, and where they are so many, or so long, none
    is known to explain no more than that.
    """

    periods: tuple[Interval, ...] = ()
    lengths_ns: tuple[int, ...] = ()
    overload: str = ""

    @classmethod
    def of(cls, tables: Tables, setting: Setting, lookup: Lookup) -> Stalls:
        """Those in the rows of the controller's load."""
        if "controller" not in tables:
            return cls()
        reasons = controller_overload.CHECKER.judge(tables, setting, lookup).reasons
        rows = tables["controller"]
        at, length, late = (ints(rows, name) for name in ("at_ns", "length_ns", "late_ns"))
        # What a driver process tells late stands a row later.
        starts, ends = at - length - late, at + length
        order = np.argsort(starts, kind="stable")
        order = order[late[order] >= controller_overload.LATE_NS]
        return cls(
            periods=tuple(zip(starts[order].tolist(), ends[order].tolist(), strict=True)),
            lengths_ns=tuple(late[order].tolist()),
            overload=reasons[0] if reasons else "",
        )

    def __bool__(self) -> bool:
        return bool(self.periods)

    def explained_ns(self, starts: Ints, ends: Ints) -> Ints:
        """Return of each of these times how much the stalls that may lie in it explain: for ever,
        where the controller was starved.
        """
        begun = np.searchsorted(self._begins, ends, side="right")
        over = np.searchsorted(self._ends[0], starts, side="left")
        if self.overload:
            return np.where(begun > over, FOREVER_NS, 0).astype(np.int64)
        return np.asarray(self._begun_ns[begun] - self._ends[1][over], np.int64)

    def explained_of(self, periods: Sequence[Interval]) -> int:
        """As ``explained_ns``, of the ``periods`` together."""
        starts, ends = (np.asarray(side, np.int64) for side in zip(*periods, strict=True))
        explained: list[int] = self.explained_ns(starts, ends).tolist()
        return min(FOREVER_NS, sum(explained))

    def reason(self, near: Sequence[Interval]) -> str:
        """Tell why what was measured in the times ``near`` is in doubt."""
        if self.overload:
            return self.overload
        found = [
            (length_ns, start_ns)
            for (start_ns, end_ns), length_ns in zip(self.periods, self.lengths_ns, strict=True)
            if any(start_ns <= until_ns and end_ns >= from_ns for from_ns, until_ns in near)
        ]
        if not found:
            return "too little is left without the times in which the controller's loop stood still"
        longest_ns, at_ns = max(found)
        return (
            f"the controller's loop stood still for {seconds(longest_ns)} soon after "
            f"{seconds(at_ns)}, which can explain it"
        )

    @cached_property
    def _begins(self) -> Ints:
        return np.asarray([start_ns for start_ns, _ in self.periods], np.int64)

    @cached_property
    def _begun_ns(self) -> Ints:
        """How long the first so many stood still together."""
        return np.concatenate([[0], np.cumsum(np.asarray(self.lengths_ns, np.int64))])

    @cached_property
    def _ends(self) -> tuple[Ints, Ints]:
        """When each period is over, ascending, and how long the first so many stood still."""
        ends = np.asarray([end_ns for _, end_ns in self.periods], np.int64)
        order = np.argsort(ends, kind="stable")
        lengths = np.asarray(self.lengths_ns, np.int64)[order]
        return ends[order], np.concatenate([[0], np.cumsum(lengths)])


NO_STALLS = Stalls()
