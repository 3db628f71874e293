"""The nodes' roles as lanes of a plot: the number of partitions of each, and its times of being
down.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from harness.text import inert
from results.drawing.axis import bars
from results.drawing.node_roles import DOWN, OTHER, PAUSED, NodeRoles, RolesOverTime

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NODES_MAX = 24  # drawn; of a larger cluster the first
LANE_IN, AROUND_IN = 0.32, 0.25
FILL = 0.8  # of a lane's height, for the most that any node held
STEPS_MAX = 20_000  # of one lane, and of the times in which a node led
STEPS_VECTOR_MAX = 300  # of one lane as vectors; more become a picture
STRETCHES_MAX = 150  # as vectors, of all nodes; more become one picture
LABEL_CHARS = 16
HELD, LEADS, INK, FAINT = "#0072B2", "#D55E00", "#1B1F23", "#6A737D"
COLOURS = {DOWN: "#3B4046", PAUSED: "#E69F00", OTHER: "#9AA3AB"}
ALPHAS = {DOWN: 0.85, PAUSED: 0.75, OTHER: 0.35}
# The drawing order: the stretches of a node that is down cover its roles; a node that is only cut
# off may go on holding them.
LAYERS = {DOWN: 3, PAUSED: 3, OTHER: 0.5}


def height_in(roles: RolesOverTime) -> float:
    """Return the height of the lanes."""
    return AROUND_IN + LANE_IN * min(len(roles.nodes), NODES_MAX)


def draw(axes: Axes, roles: RolesOverTime, start_s: float, end_s: float) -> tuple[str, ...]:
    """Draw a lane a node, the first at the top; return notes on omitted parts."""
    shown = roles.nodes[:NODES_MAX]
    most = max((lane.most for lane in shown), default=0)
    many = sum(len(lane.stretches) for lane in shown) > STRETCHES_MAX
    left_out = 0
    for place, lane in enumerate(shown):
        scale = max(1, most), start_s, end_s
        left_out += _draw_lane(axes, lane, -place, *scale, rasterized=many)
    axes.set_ylim(-len(shown) + 0.4, 0.7)
    axes.set_yticks([-place for place in range(len(shown))])
    axes.set_yticklabels([inert(lane.node, LABEL_CHARS) for lane in shown], color=INK)
    axes.tick_params(axis="y", length=0)
    axes.set_xlim(start_s, end_s)
    for place in range(len(shown)):
        axes.axhline(-place - 0.44, color=FAINT, linewidth=0.4, alpha=0.5, zorder=0)
    _legend(axes, roles, most)
    return tuple(_notes(len(roles.nodes) - len(shown), left_out))


def _draw_lane(
    axes: Axes,
    lane: NodeRoles,
    centre: float,
    most: int,
    start_s: float,
    end_s: float,
    *,
    rasterized: bool,
) -> int:
    """Draw one node; return the number of changes of its roles that are too many to draw."""
    floor = centre - 0.43
    every = max(1, -(-len(lane.at_s) // STEPS_MAX))
    # The last value holds to the end: a step goes on only to a further point.
    at = np.array([*lane.at_s[::every], end_s])
    held = np.array([*lane.held[::every], lane.held[-1] if lane.held else 0])
    if lane.held:
        top = floor + FILL * held / most
        dense = len(at) > STEPS_VECTOR_MAX
        axes.fill_between(
            at, floor, top, step="post", color=HELD, alpha=0.3, linewidth=0, rasterized=dense
        )
        # nan: a node that holds nothing gets no line along the floor of its lane.
        line = np.where(held > 0, top, np.nan)
        axes.step(at, line, where="post", color=HELD, linewidth=1.0, rasterized=dense)
    for state in (DOWN, PAUSED, OTHER):
        here = [s for s in lane.stretches if s.state == state]
        sure = [(s.start_s, s.end_s) for s in here if not s.unsure]
        axes.broken_barh(
            bars(sure, end_s - start_s), (floor, 0.86), color=COLOURS[state], alpha=ALPHAS[state],
            linewidth=0, rasterized=rasterized, zorder=LAYERS[state],
        )  # fmt: skip
        if unsure := [(s.start_s, s.end_s) for s in here if s.unsure]:
            axes.broken_barh(
                bars(unsure, end_s - start_s), (floor, 0.86), facecolor="none",
                edgecolor=COLOURS[state], hatch="//////", linewidth=0, rasterized=rasterized,
                zorder=LAYERS[state],
            )  # fmt: skip
    leads = lane.leads[:STEPS_MAX]
    axes.hlines(
        [centre + 0.4] * len(leads), [since for since, _ in leads], [until for _, until in leads],
        color=LEADS, linewidth=2.0, zorder=4, rasterized=len(leads) > STEPS_VECTOR_MAX,
    )  # fmt: skip
    return len(lane.at_s) - len(lane.at_s[::every])


def _legend(axes: Axes, roles: RolesOverTime, most: int) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Patch | Line2D] = []
    if most:
        what = "primary" if roles.role == "primary" else "leader"
        handles.append(
            Patch(color=HELD, alpha=0.4, label=f"{what} of so many partitions: 0 to {most}")
        )
    if any(lane.leads for lane in roles.nodes):
        handles.append(Line2D([], [], color=LEADS, linewidth=2.0, label="leads the metastorage"))
    states = {stretch.state for lane in roles.nodes for stretch in lane.stretches}
    handles += [
        Patch(color=COLOURS[state], alpha=ALPHAS[state], label=state)
        for state in (DOWN, PAUSED, OTHER)
        if state in states
    ]
    if handles:
        axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8)


def _notes(nodes: int, steps: int) -> list[str]:
    notes = [f"Of the nodes' roles {nodes} more nodes are not drawn."] if nodes > 0 else []
    return notes + (["Not every change of who holds what is drawn."] if steps else [])
