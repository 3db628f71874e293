"""The protocol of a STRETCH kernel that judges a stretch window by window, where there is no place
to cut it.

The stretch is divided into windows of a bounded number of transactions. What leads from one window
to another is *crossing*; each window is contracted to the steps between its ends of crossing steps.
The contracted windows and the crossing steps together are a small graph, which is solved in one
place and tells which of the ends lie on cycles through several windows. Each window then finds its
own transactions on these, and its own cycles; what lies on cycles through several windows is judged
together, without the rest of the stretch. So no task holds more than a window, or the transactions
that are accused together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs
import pyarrow as pa

from harness.protocols.setting import Setting

Tables = Mapping[str, pa.Table]
SPANNING = "windows.spanning"
OUTLASTING = "windows.outlasting"
CROSSING = "windows.crossing"
LATE = "windows.late"
STEPS = "windows.steps"
CYCLIC = "windows.cyclic"
LABELS = "windows.labels"
MEMBERS = "windows.members"


@attrs.frozen(kw_only=True)
class Window:
    """The transactions from ``low`` to before ``high``: window ``place`` of all. ``begin_ns`` is
    the invocation of its first one, ``end_ns`` that of the next window's, where the stretch has a
    next.
    """

    place: int
    low: int
    high: int
    begin_ns: int = 0
    end_ns: int | None = None


class Windows(Protocol):
    """The steps of a judgement by windows, in order. Tables of a window number its transactions
    from 0; ``CROSSING``, ``LATE`` and ``LABELS`` name vertices of the whole history.
    """

    def spanning(self, tables: Tables, length: int, split: int) -> pa.Table:
        """Return the steps that lead from one window of the grid of ``length`` to another, of what
        KEY kernels gave of a split.
        """

    def outlasting(self, transactions: pa.Table, setting: Setting, end_ns: int | None) -> pa.Table:
        """Return the rows of a window's transactions that later windows must know of."""

    def borders(
        self, spanning: pa.Table, outlasting: pa.Table, windows: Sequence[Window], setting: Setting
    ) -> Tables:
        """Return ``CROSSING`` and ``LATE`` of ``windows``."""

    def contract(self, tables: Tables, setting: Setting, window: Window) -> Tables:
        """Return ``STEPS`` between what crosses the borders of a window, and ``CYCLIC``: its place,
        where it has a cycle of its own.
        """

    def solve(self, tables: Tables, windows: Sequence[Window]) -> pa.Table:
        """Return ``LABELS``: the component of each end of a crossing step that lies on a cycle
        through several windows, from the ``STEPS`` of all windows, and the place of the window.
        """

    def judge(self, tables: Tables, setting: Setting, window: Window) -> Tables:
        """Return what the kernel gives of the window's own cycles, and ``MEMBERS``: its
        transactions on cycles through several windows, with their components.
        """
