"""Assignments and data nodes as lanes of a plot, one a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from harness.text import inert
from results.drawing.assignments_over_time import NodePlacement, Placement
from results.drawing.role_lanes import (
    AROUND_IN,
    FAINT,
    FILL,
    INK,
    LABEL_CHARS,
    LANE_IN,
    NODES_MAX,
    STEPS_MAX,
    STEPS_VECTOR_MAX,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

STABLE, MOVING, DATA, JOINED = "#009E73", "#CC79A7", "#0072B2", "#9AA3AB"


def height_in(placement: Placement) -> float:
    """Return the height of the lanes."""
    return AROUND_IN + LANE_IN * min(len(placement.nodes), NODES_MAX)


def draw(axes: Axes, placement: Placement, start_s: float, end_s: float) -> tuple[str, ...]:
    """Draw a lane a node, the first at the top; return notes on omitted parts."""
    shown = placement.nodes[:NODES_MAX]
    most = max((lane.most for lane in shown), default=0)
    left_out = 0
    for place, lane in enumerate(shown):
        left_out += _draw_lane(axes, lane, -place, max(1, most), end_s)
        axes.axhline(-place - 0.44, color=FAINT, linewidth=0.4, alpha=0.5, zorder=0)
    axes.set_ylim(-len(shown) + 0.4, 0.7)
    axes.set_yticks([-place for place in range(len(shown))])
    axes.set_yticklabels([inert(lane.node, LABEL_CHARS) for lane in shown], color=INK)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(start_s, end_s)
    _legend(axes, placement, most)
    more = len(placement.nodes) - len(shown)
    notes = [f"Of the assignments {more} more nodes are not drawn."] if more > 0 else []
    return (*notes, *(["Not every change of assignments is drawn."] if left_out else []))


def _draw_lane(axes: Axes, lane: NodePlacement, centre: float, most: int, end_s: float) -> int:
    """Draw one node; return the number of changes that are too many to draw."""
    floor = centre - 0.43
    every = max(1, -(-len(lane.at_s) // STEPS_MAX))
    at = np.array([*lane.at_s[::every], end_s])
    dense = len(at) > STEPS_VECTOR_MAX
    if lane.at_s:
        for counts, colour, alpha in ((lane.stable, STABLE, 0.3), (lane.moving, MOVING, 0.45)):
            held = np.array([*counts[::every], counts[-1]])
            top = floor + FILL * held / most
            axes.fill_between(
                at, floor, top, step="post", color=colour, alpha=alpha, linewidth=0,
                rasterized=dense,
            )  # fmt: skip
            line = np.where(held > 0, top, np.nan)
            axes.step(at, line, where="post", color=colour, linewidth=1.0, rasterized=dense)
    for spans, colour, width in ((lane.joined, JOINED, 1.2), (lane.data, DATA, 2.4)):
        axes.hlines(
            [centre + 0.42] * len(spans), [since for since, _ in spans],
            [until for _, until in spans], color=colour, linewidth=width,
            rasterized=len(spans) > STEPS_VECTOR_MAX,
        )  # fmt: skip
    return len(lane.at_s) - len(lane.at_s[::every])


def _legend(axes: Axes, placement: Placement, most: int) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Patch | Line2D] = []
    if most:
        handles.append(Patch(color=STABLE, alpha=0.4, label=f"partitions on it: 0 to {most}"))
    if any(any(lane.moving) for lane in placement.nodes):
        handles.append(Patch(color=MOVING, alpha=0.5, label="partitions moving to or from it"))
    if any(lane.data for lane in placement.nodes):
        handles.append(Line2D([], [], color=DATA, linewidth=2.4, label="among the data nodes"))
    if any(lane.joined for lane in placement.nodes):
        handles.append(Line2D([], [], color=JOINED, linewidth=1.2, label="in the topology"))
    if handles:
        axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)
