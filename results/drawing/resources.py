"""What nodes used over a run's time: CPU, memory, disk and network, a line a node."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.clock import NS_PER_S
from harness.text import inert

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NODES_MAX = 8  # drawn; of a larger cluster the first
HEIGHT_IN = 0.85
LABEL_CHARS = 16
COLOURS = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#6A737D", "#8C6D46",
)  # fmt: skip
POINTS_MAX = 600  # of one line; of more the highest of every n, so that no peak is lost
MIB = 1 << 20

Floats = npt.NDArray[np.float64]


@attrs.frozen(kw_only=True, eq=False)
class Curve:
    """One node's line: seconds on the run's axis, and a value each."""

    node: str
    at_s: Floats
    value: Floats


@attrs.frozen(kw_only=True)
class Panel:
    """One resource: its name with the unit, and a curve a node, in the order of their numbers."""

    label: str
    curves: tuple[Curve, ...]


def panels(usage: pa.Table) -> tuple[Panel, ...]:
    """Return a panel for each resource that was measured: cores, MiB, and MiB a second on disk and
    network, both ways together.
    """
    nodes = sorted(pc.unique(usage["node"]).to_pylist(), key=_by_number)
    rows = {node: usage.filter(pc.equal(usage["node"], node)).sort_by("at_ns") for node in nodes}
    wanted = (
        ("CPU (cores)", ("cpu_s",), 1.0, True),
        ("memory (MiB)", ("memory_bytes",), MIB, False),
        ("disk (MiB/s)", ("read_bytes", "written_bytes"), MIB, True),
        ("network (MiB/s)", ("received_bytes", "sent_bytes"), MIB, True),
    )
    found = []
    for label, columns, unit, growing in wanted:
        curves = tuple(
            curve
            for node, table in rows.items()
            if (curve := _curve(node, table, columns, unit, growing=growing)) is not None
        )
        if curves:
            found.append(Panel(label=label, curves=curves))
    return tuple(found)


def _curve(
    node: str, table: pa.Table, columns: tuple[str, ...], unit: float, *, growing: bool
) -> Curve | None:
    """Return the values, or of sums that grow their growth a second; a restart, after which they
    are smaller, is a gap.
    """
    parts = [table[name].to_numpy(zero_copy_only=False).astype(np.float64) for name in columns]
    value = np.sum(parts, axis=0) / unit
    at_s = table["at_ns"].to_numpy() / NS_PER_S
    known = ~np.isnan(value)
    value, at_s = value[known], at_s[known]
    if growing:
        if len(value) < 2:
            return None
        length_s = np.diff(at_s)
        growth = np.diff(value) / np.maximum(length_s, 1e-3)
        value, at_s = np.where(growth < 0, np.nan, growth), at_s[1:]
    if not len(value):
        return None
    every = -(-len(value) // POINTS_MAX)
    starts = np.arange(0, len(value), every)
    return Curve(node=node, at_s=at_s[starts], value=np.fmax.reduceat(value, starts))


def _by_number(node: str) -> list[tuple[bool, int, str]]:
    """Sort key: ``n10`` comes after ``n9``."""
    parts = re.findall(r"[0-9]+|[^0-9]+", node)
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts]


def draw(every: list[Axes], found: tuple[Panel, ...]) -> tuple[str, ...]:
    """Draw each panel on axes of its own; the first has the legend. Return notes."""
    known = dict.fromkeys(curve.node for panel in found for curve in panel.curves)
    nodes = sorted(known, key=_by_number)[:NODES_MAX]
    colours = {node: COLOURS[place % len(COLOURS)] for place, node in enumerate(nodes)}
    for place, (axes, panel) in enumerate(zip(every, found, strict=True)):
        for curve in panel.curves:
            if curve.node not in colours:
                continue
            axes.plot(
                curve.at_s, curve.value, color=colours[curve.node], linewidth=0.9,
                label=inert(curve.node, LABEL_CHARS),
            )  # fmt: skip
        axes.set_ylabel(panel.label.replace(" (", "\n("), fontsize=8)
        axes.set_ylim(bottom=0)
        axes.grid(axis="y")
        if not place:
            axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, ncols=2)
    left_out = len(known) - len(nodes)
    return (f"What {left_out} more nodes used is not drawn.",) if left_out else ()
