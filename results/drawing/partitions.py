"""Which partitions served when: a strip for each, over the axis of a run.

In each window of time a partition *served* where a transaction that touches it was acknowledged,
was *silent* where one on it was refused, or was open all the while, and none was acknowledged, and
is left blank where no client asked it anything. A transaction that gave way to another was served
as well as one can be, and is none of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

import attrs
import numpy as np
import numpy.typing as npt

from results.drawing.series import window_s

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PARTITIONS_MAX = 32  # drawn; of more the first
LANE_IN, AROUND_IN = 0.15, 0.3
VECTOR_MAX = 600  # stretches as vectors; more become one picture
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


@attrs.frozen(kw_only=True)
class Lane:
    """One partition: its stretches as (start, end) in seconds."""

    partition: int
    served: tuple[tuple[float, float], ...]
    silent: tuple[tuple[float, float], ...]


def lanes(touches: Touches, start_s: float, end_s: float) -> tuple[Lane, ...]:
    """Return a lane for each partition that was touched, in windows of the rate line."""
    width = window_s(end_s - start_s)
    # What ended before, or began after: set-up and final reads are no availability of the drive.
    inside = (touches.ended_s >= start_s) & (touches.begun_s <= end_s)
    touches = attrs.evolve(
        touches,
        **{name: getattr(touches, name)[inside] for name in attrs.fields_dict(Touches)},
    )
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
    return tuple(
        Lane(
            partition=int(number),
            served=tuple(_stretches(served[row], start_s, width)),
            silent=tuple(_stretches(silent[row], start_s, width)),
        )
        for row, number in enumerate(known)
    )


def _stretches(
    held: npt.NDArray[np.bool_], start_s: float, width: float
) -> Iterator[tuple[float, float]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], held.astype(np.int8), [0]])))
    for low, high in list(pairwise(edges.tolist()))[::2]:
        yield start_s + low * width, start_s + high * width


def height_in(found: Iterable[Lane]) -> float:
    """Return the height of the strips."""
    return AROUND_IN + LANE_IN * min(len(tuple(found)), PARTITIONS_MAX)


def draw(axes: Axes, found: tuple[Lane, ...]) -> tuple[str, ...]:
    """Draw a strip a partition, the first at the top; return notes on omitted ones."""
    from matplotlib.patches import Patch

    shown = found[:PARTITIONS_MAX]
    many = sum(len(lane.served) + len(lane.silent) for lane in shown) > VECTOR_MAX
    for place, lane in enumerate(shown):
        for stretches, colour, alpha in ((lane.served, SERVED, 0.35), (lane.silent, SILENT, 0.9)):
            axes.broken_barh(
                [(start, end - start) for start, end in stretches],
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
        Patch(color=SILENT, alpha=0.9, label="asked, acknowledged nothing"),
    ]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
    left_out = len(found) - len(shown)
    return (f"{left_out} more partitions are not drawn.",) if left_out else ()
