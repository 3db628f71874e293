"""Stretches of time: where a history may be cut, so that each part is judged alone.

Transactions are numbered in the order of invocation. Where nothing leads back over a number, no
cycle passes it, so the history is cut there, and a stretch is judged by a task. What is told to
decide where, is a few hundred bytes for each split and ``STRETCH`` numbers.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import attrs
import numpy as np
import pyarrow as pa

from checkers.engine.arrays import OK, TYPES, Bools, Ints, codes, ints
from harness.protocols.windows import Window

# The least number of transactions of a stretch: their graph has a few million numbers.
STRETCH = 100_000
# A stretch begins at the first possible place of this many, or goes on: 512 bytes tell of them.
WINDOW = 4096

# By split: bits of the places of all windows over which something leads back, and of the stretches
# in which anything does.
BACK = pa.schema([("over", pa.binary()), ("within", pa.binary())])
BACK_TABLE = "stretches.back"


@attrs.frozen(kw_only=True)
class Grid:
    """The least length of a stretch, ``length``, and the most that one task judges."""

    length: int = STRETCH
    most: int = attrs.field(default=attrs.Factory(lambda self: 2 * self.length, takes_self=True))

    def back(self, high: Ints, low: Ints) -> pa.Table:
        """Return ``BACK`` of what leads back from each of ``high`` to its ``low``."""
        order = np.argsort(low, kind="stable")
        low, high = low[order], high[order]
        reach = np.maximum.accumulate(high) if len(high) else high
        stretches = int(reach[-1]) // self.length + 1 if len(reach) else 0
        places = self.places(stretches)
        # The farthest that anything which begins before a place leads back from.
        at = np.searchsorted(low, places, side="left") - 1
        over = (at >= 0) & (reach[np.maximum(at, 0)] >= places) if len(reach) else at >= 0
        steps = np.zeros(stretches + 1, dtype=np.int64)
        np.add.at(steps, low // self.length, 1)
        np.add.at(steps, high // self.length + 1, -1)
        within = np.cumsum(steps)[:-1] > 0
        bits = [np.packbits(marks).tobytes() for marks in (over, within)]
        return pa.table({"over": [bits[0]], "within": [bits[1]]}, schema=BACK)

    def places(self, stretches: int) -> Ints:
        """Return the numbers before which the first ``stretches`` may be cut."""
        window = min(WINDOW, self.length)
        grid = np.arange(stretches) * self.length
        return np.asarray((grid[:, None] + np.arange(window)).ravel(), dtype=np.int64)

    def stretches(self, back: pa.Table, count: int, whole: bool) -> list[tuple[int, int]]:
        """Return the stretches of ``count`` transactions in which anything leads back: the first
        transaction and the one after the last. ``whole``: all of them, if any does.
        """
        most = -(-count // self.length)
        over, within = np.zeros(len(self.places(most)), np.bool_), np.zeros(most, np.bool_)
        for row in back.to_batches():
            for name, marks in (("over", over), ("within", within)):
                for told in row.column(name).to_pylist():
                    found = np.unpackbits(np.frombuffer(told, np.uint8))[: len(marks)]
                    marks[: len(found)] |= found.astype(np.bool_)
        cuts = [] if whole else self._cuts(over, count)
        bounds = zip([0, *cuts], [*cuts, count], strict=True)
        return [
            (low, high)
            for low, high in bounds
            if within[low // self.length : (high - 1) // self.length + 1].any()
        ]

    def windows(self, stretches: Sequence[tuple[int, int]], begins: Ints) -> tuple[Window, ...]:
        """Return the windows of ``stretches``, whose borders are on the grid; ``begins`` are the
        invocations of the transactions there.
        """
        found: list[Window] = []
        for low, high in stretches:
            grid = range((low // self.length + 1) * self.length, high, self.length)
            for begin, end in itertools.pairwise((low, *grid, high)):
                found.append(
                    Window(
                        place=len(found),
                        low=begin,
                        high=end,
                        begin_ns=int(begins[begin // self.length]),
                        end_ns=None if end == high else int(begins[end // self.length]),
                    )
                )
        return tuple(found)

    def _cuts(self, over: Bools, count: int) -> list[int]:
        window = min(WINDOW, self.length)
        rows = over.reshape(-1, window)
        first = np.argmin(rows, axis=1)  # the first place that nothing leads back over
        free = ~rows[np.arange(len(rows)), first] if len(rows) else first > 0
        cuts = np.arange(len(rows)) * self.length + first
        return [int(cut) for cut in cuts[free] if 0 < cut < count]


IN_ORDER = ("type", "invoke_ns", "complete_ns")


def begins_in_order(pieces: Iterable[pa.Table], length: int) -> Ints | None:
    """Return when every ``length``-th transaction was invoked, from ``IN_ORDER`` of all; ``None``
    where real time or processes lead from higher numbers to lower ones.
    """
    last, number = None, 0
    begins = [np.zeros(0, dtype=np.int64)]
    for piece in pieces:
        start, finish = (ints(piece, name) for name in ("invoke_ns", "complete_ns"))
        sound = (finish >= start) | (codes(piece, "type", TYPES) != OK)
        if not (np.all(start[1:] >= start[:-1]) and sound.all()):
            return None
        if len(start):
            if last is not None and start[0] < last:
                return None
            last = int(start[-1])
        # A view would keep all of the piece.
        begins.append(start[-number % length :: length].copy())
        number += len(start)
    return np.concatenate(begins)
