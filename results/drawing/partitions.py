"""Which partitions served when: a strip for each, over the axis of a run.

In each window of time a partition *served* where a transaction that touches it was acknowledged,
was *silent* where one on it was refused, or was open all the while, and none was acknowledged, and
is left blank where no client asked it anything. Silences within windows are drawn from their first
moment to their last, as short as ``shortest_shown_s`` says: a window that began and ended with an
acknowledgement may hide one that breaks a limit. A transaction that gave way to another was served
as well as one can be, and is none of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import attrs
import numpy as np
import numpy.typing as npt

from results.drawing.axis import DOTS_ACROSS, merged, without
from results.drawing.series import window_s

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTITIONS_MAX = 32  # drawn; of more the first
LANE_IN, AROUND_IN = 0.15, 0.3
DOTS_SEEN = 800  # over the width: a narrower stretch is not seen
VECTOR_MAX = 600  # stretches as vectors; more become one picture
NEAR_SHARE = 0.5  # of the time that a limit allows: a silence of so long is shown
SERVED, SILENT, FAINT, INK = "#0072B2", "#D55E00", "#6A737D", "#1B1F23"

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@attrs.frozen(kw_only=True, eq=False)
class Touches:
    """Transactions by the partitions that they touched, one row for each pair: when they began and
    ended, and whether they were acknowledged.
    """

    partition: Ints
    begun_s: Floats
    ended_s: Floats
    ok: npt.NDArray[np.bool_]

    def chosen(self, mask: npt.NDArray[np.bool_]) -> Touches:
        """Return those of ``mask``."""
        columns = {name: getattr(self, name)[mask] for name in attrs.fields_dict(Touches)}
        return attrs.evolve(self, **columns)


@attrs.frozen(kw_only=True)
class Lane:
    """One partition: its stretches as (start, end) in seconds."""

    partition: int
    served: tuple[tuple[float, float], ...]
    silent: tuple[tuple[float, float], ...]


def shortest_shown_s(span_s: float, allowed_s: float | None) -> float:
    """Return how long a silence lasts at least that is shown over ``span_s``: half of what a limit
    allows, or all of it where that half were less than a dot; half a window without a limit.
    """
    usual_s = window_s(span_s) / 2
    if allowed_s is None:
        return usual_s
    near_s = allowed_s * NEAR_SHARE
    return min(usual_s, near_s if near_s >= span_s / DOTS_ACROSS else allowed_s)


def lanes(
    touches: Touches, start_s: float, end_s: float, allowed_s: float | None = None
) -> tuple[Lane, ...]:
    """Return a lane for each partition that was touched, in windows of the rate line, with the
    silences within them. ``allowed_s`` is the shortest that a limit of the plan allows.
    """
    # What ended before, or began after: set-up and final reads are no availability of the drive.
    inside = (touches.ended_s >= start_s) & (touches.begun_s <= end_s)
    touches = touches.chosen(inside)
    known, served, silent = _windows(touches, start_s, end_s)
    width, least_s = window_s(end_s - start_s), shortest_shown_s(end_s - start_s, allowed_s)
    found = []
    for row, number in enumerate(known):
        gaps = _silences(touches.chosen(touches.partition == number), start_s, end_s, least_s)
        whole = merged([*_stretches(silent[row], start_s, width), *gaps], 0.0)
        lane = Lane(
            partition=int(number),
            served=tuple(without(_stretches(served[row], start_s, width), whole)),
            silent=tuple(whole),
        )
        found.append(lane)
    return tuple(found)


def _windows(
    touches: Touches, start_s: float, end_s: float
) -> tuple[Ints, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Return the partitions, and for each of them in which windows it served and was silent."""
    width = window_s(end_s - start_s)
    count = max(1, int(np.ceil((end_s - start_s) / width)))
    known, place = np.unique(touches.partition, return_inverse=True)
    first = np.clip((touches.begun_s - start_s) // width, 0, count - 1).astype(np.int64)
    last = np.clip((touches.ended_s - start_s) // width, 0, count - 1).astype(np.int64)
    served = np.zeros((len(known), count), np.bool_)
    in_time = touches.ok & (touches.ended_s <= end_s)
    served[place[in_time], last[in_time]] = True
    # One that was begun in time and acknowledged in a later window was asked for in the first one,
    # but not yet in vain.
    first = np.minimum(first + (touches.ok & (last > first)), last)
    # One more window, in which the last ones are over.
    change = np.zeros((len(known), count + 1), np.int64)
    np.add.at(change, (place, first), 1)
    np.add.at(change, (place, last + 1), -1)
    silent = (np.cumsum(change, axis=1)[:, :count] > 0) & ~served
    return known, served, silent


def _silences(
    touches: Touches, start_s: float, end_s: float, least_s: float
) -> Iterator[tuple[float, float]]:
    """Yield the times of ``least_s`` and more in which clients asked one partition all the while,
    and nothing was acknowledged.
    """
    order = np.argsort(touches.begun_s, kind="stable")
    begun = np.maximum(touches.begun_s[order], start_s)
    reach = np.maximum.accumulate(np.minimum(touches.ended_s[order], end_s))
    # A time in which they asked ends where none is open, and none follows soon.
    ends = np.flatnonzero(begun[1:] - reach[:-1] >= least_s)
    asked_from = begun[np.concatenate([[0], ends + 1])]
    asked_to = reach[np.concatenate([ends, [-1]])]
    acks = np.sort(touches.ended_s[touches.ok & (touches.ended_s <= end_s)])
    points = np.sort(np.concatenate([asked_from, acks, asked_to]))
    wide = np.flatnonzero(np.diff(points) >= least_s)
    for low, high in zip(points[wide], points[wide + 1], strict=True):
        # The time between two of asking is one as well.
        asking = int(np.searchsorted(asked_from, low, side="right")) - 1
        if asking < 0 or low >= asked_to[asking]:
            continue
        place = int(np.searchsorted(begun, low, side="right")) - 1
        # Where none is open after an acknowledgement, it begins with the next try.
        opens = low if reach[place] > low else begun[min(place + 1, len(begun) - 1)]
        if high - opens >= least_s:
            yield float(opens), float(high)


def _stretches(
    held: npt.NDArray[np.bool_], start_s: float, width: float
) -> Iterator[tuple[float, float]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], held.astype(np.int8), [0]])))
    for low, high in list(pairwise(edges.tolist()))[::2]:
        yield start_s + low * width, start_s + high * width


def height_in(found: Iterable[Lane]) -> float:
    """Return the height of the strips."""
    return AROUND_IN + LANE_IN * min(len(tuple(found)), PARTITIONS_MAX)


def draw(axes: Axes, found: tuple[Lane, ...], span_s: float, least_s: float) -> tuple[str, ...]:
    """Draw a strip a partition over ``span_s``, the first at the top; return notes on omitted ones.
    ``least_s`` is how long a silence lasts at least that is among them.
    """
    from matplotlib.patches import Patch

    shown = found[:PARTITIONS_MAX]
    many = sum(len(lane.served) + len(lane.silent) for lane in shown) > VECTOR_MAX
    for place, lane in enumerate(shown):
        for stretches, colour, alpha in ((lane.served, SERVED, 0.35), (lane.silent, SILENT, 0.9)):
            # A short one of a long run would be less than a pixel.
            axes.broken_barh(
                [(start, max(end - start, span_s / DOTS_SEEN)) for start, end in stretches],
                (-place - 0.4, 0.8), color=colour, alpha=alpha, linewidth=0, rasterized=many,
            )  # fmt: skip
    axes.set_ylim(-len(shown) + 0.4, 0.6)
    step = max(1, len(shown) // 8)
    axes.set_yticks([-place for place in range(0, len(shown), step)])
    axes.set_yticklabels([str(lane.partition) for lane in shown[::step]], color=INK)
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel("partition")
    handles = [
        Patch(color=SERVED, alpha=0.35, label="acknowledged something"),
        Patch(
            color=SILENT,
            alpha=0.9,
            label=f"asked, acknowledged nothing\n({least_s:.3g} s and longer)",
        ),
        Patch(facecolor="none", edgecolor=FAINT, linewidth=0.6, label="not asked"),
    ]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    left_out = len(found) - len(shown)
    return (f"{left_out} more partitions are not drawn.",) if left_out else ()
