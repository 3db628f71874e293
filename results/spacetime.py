"""The space-time diagram of a traced run: a lane a node, a line a message, a mark a disk operation.

Time runs to the right. Lamport's picture (1978), as TLA+ and Jepsen people draw it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape, quoteattr

import attrs

from harness.text import inert

MAX_DRAWN = 3000  # messages and disk operations; a browser is slow with more
LANE_PX, LEFT_PX, TOP_PX, WIDTH_PX = 90, 110, 50, 1800
TICKS = 10
LABEL_CHARS = 120
_COLOURS = {
    "raft": "#0072b2",
    "Peer": "#009e73",
    "Ping": "#9aa3ab",
    "Pong": "#9aa3ab",
    "client": "#d55e00",
}
_LOST = "#cc0000"
_FAULT = "#fbe3d6"
_DISK = {"sync": "#3b4046", "append": "#9aa3ab"}

Row = Mapping[str, Any]
"""A row of a trace: ``at_s``, ``from_s``, ``node``, ``did``, ``what``, ``to``, ``error``."""


@attrs.frozen(kw_only=True)
class Stretch:
    """Something that lasted, over all lanes or some: a fault."""

    start_s: float
    end_s: float
    nodes: tuple[str, ...]
    text: str


@attrs.frozen(kw_only=True)
class Diagram:
    """The part of a trace from ``start_s`` to ``end_s``."""

    start_s: float
    end_s: float
    nodes: tuple[str, ...]

    def x(self, at_s: float) -> float:
        """Where a moment is."""
        share = (at_s - self.start_s) / (self.end_s - self.start_s)
        return round(LEFT_PX + share * WIDTH_PX, 2)

    def y(self, node: str) -> float:
        """Where a lane is."""
        return TOP_PX + LANE_PX * (self.nodes.index(node) + 0.5)


def draw(
    rows: Iterable[Row], faults: Sequence[Stretch], *, start_s: float, end_s: float
) -> tuple[str, int]:
    """The diagram as SVG, and how many rows of the stretch there was no room for."""
    shown = [row for row in rows if row["at_s"] >= start_s and row["from_s"] <= end_s]
    left_out = max(0, len(shown) - MAX_DRAWN)
    shown = shown[:MAX_DRAWN]
    hosts = {row["node"] for row in shown} | {row["to"] for row in shown if row.get("to")}
    diagram = Diagram(start_s=start_s, end_s=end_s, nodes=tuple(sorted(hosts)))
    parts = [
        *_lanes(diagram),
        *(part for fault in faults for part in _fault(diagram, fault)),
        *(_row(diagram, row) for row in shown),
    ]
    height = TOP_PX + LANE_PX * len(diagram.nodes) + TOP_PX
    width = LEFT_PX + WIDTH_PX + 20
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="sans-serif" font-size="12">'
    )
    ground = f'<rect width="{width}" height="{height}" fill="white"/>'
    return "\n".join([head, ground, *parts, "</svg>\n"]), left_out


def _lanes(diagram: Diagram) -> Iterable[str]:
    for node in diagram.nodes:
        y = diagram.y(node)
        yield (
            f'<line x1="{LEFT_PX}" y1="{y}" x2="{LEFT_PX + WIDTH_PX}" y2="{y}" stroke="#c9ced3"/>'
        )
        yield f'<text x="10" y="{y + 4}">{escape(inert(node, 16))}</text>'
    for tick in range(TICKS + 1):
        at_s = diagram.start_s + (diagram.end_s - diagram.start_s) * tick / TICKS
        yield f'<text x="{diagram.x(at_s)}" y="20" text-anchor="middle">{at_s:.3f} s</text>'


def _fault(diagram: Diagram, fault: Stretch) -> Iterable[str]:
    start_s, end_s = max(fault.start_s, diagram.start_s), min(fault.end_s, diagram.end_s)
    if start_s >= end_s:
        return
    for node in fault.nodes:
        if node in diagram.nodes:
            x, y = diagram.x(start_s), diagram.y(node) - LANE_PX / 2 + 4
            width = round(diagram.x(end_s) - x, 2)
            yield (
                f'<rect x="{x}" y="{y}" width="{width}" height="{LANE_PX - 8}" fill="{_FAULT}">'
                f"<title>{escape(inert(fault.text, LABEL_CHARS))}</title></rect>"
            )
            label = escape(inert(fault.text, LABEL_CHARS))
            yield f'<text x="{x + 4}" y="{y + 12}" fill="#a0522d">{label}</text>'


def _row(diagram: Diagram, row: Row) -> str:
    title = f"<title>{escape(inert(_said(row), LABEL_CHARS))}</title>"
    x1, y1 = diagram.x(row["from_s"]), diagram.y(row["node"])
    if row.get("to"):
        lost = row["did"] not in ("message", "copy")
        colour = _LOST if lost else _colour(row.get("what", ""))
        dashes = ' stroke-dasharray="4 3"' if lost else ""
        return (
            f'<line x1="{x1}" y1="{y1}" x2="{diagram.x(row["at_s"])}" y2="{diagram.y(row["to"])}" '
            f"stroke={quoteattr(colour)}{dashes}>{title}</line>"
        )
    colour = _LOST if row.get("error") else _DISK.get(row["did"], "#b8a000")
    width = max(1.5, diagram.x(row["at_s"]) - x1)
    return (
        f'<rect x="{x1}" y="{y1 - 5}" width="{width:.2f}" height="10" fill={quoteattr(colour)} '
        f'opacity="0.7">{title}</rect>'
    )


def _colour(what: str) -> str:
    return next((c for start, c in _COLOURS.items() if what.startswith(start)), _COLOURS["raft"])


def _said(row: Row) -> str:
    between = f"{row['node']} to {row['to']}: " if row.get("to") else f"{row['node']}: "
    took_ms = (row["at_s"] - row["from_s"]) * 1000
    size = f", {row['size_bytes']} bytes" if row.get("size_bytes") else ""
    error = f", {row['error']}" if row.get("error") else ""
    return (
        f"{between}{row['did']} {row.get('what', '')}{size}, "
        f"at {row['from_s']:.6f} s, took {took_ms:.3f} ms{error}"
    )
