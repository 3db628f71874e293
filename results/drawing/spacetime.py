"""The space-time diagram of a traced run: a lane a node, an arrow a message, a mark a disk sync.

Time runs to the right. Lamport's picture (1978), as papers on replication draw it: faults are
shaded, events of the store are flagged, and the operations that prove a failure are marked on the
lane of the clients.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
from markupsafe import Markup

from harness.text import inert
from results.drawing.axis import GAP_PX, Segment, laid_out
from results.drawing.svg import Value, tag

# A row of a trace: ``at_s``, ``from_s``, ``node``, ``did``, ``what``, ``to``, ``error``.
Row = Mapping[str, Any]
WATCH = "observer"
PING = "ping"
DISK = "disk"
_WATCHED = ("AskStatus", "NodeReport", "AskEvents", "EventBatch", "AskStates", "StateReport")
USUAL = ("client", "lease", "transaction", "vote", "raft", DISK)
MAX_DRAWN = 3000  # messages and disk operations; a browser is slow with more
LABELLED_MAX = 45  # arrows of a span that are all named; of more only what is rare
LEFT_PX, WIDTH_PX, RIGHT_PX = 92, 1500, 20
TOP_PX, LANE_PX, FOOT_PX = 118, 112, 78
LABEL_CHARS, TITLE_CHARS, OPERATION_CHARS = 160, 175, 60
CHAR_PX = 5.4  # of a label's font, about: where another one has room
LOST_SHARE = 0.3  # of the way, drawn of a message that never came
_LOST, _SYNC, _ERROR, _FAULT, _PROOF = "#cc0000", "#3b4046", "#cc0000", "#f6d5c3", "#fff3b0"
CLIENTS = "clients"
# Arrows must not make words unreadable.
_HALO: dict[str, Value] = {"paint_order": "stroke", "stroke": "white", "stroke_width": 3}


@attrs.frozen
class Family:
    """Messages of one colour. ``starts`` are the beginnings of their names."""

    name: str
    colour: str
    starts: tuple[str, ...] = ()
    named: bool = False  # each of them, however many there are


# The first that fits; colours that also the colour-blind tell apart (Okabe and Ito).
FAMILIES = (
    Family(PING, "#9aa3ab", ("Ping", "Pong", "Hello", "an empty batch")),
    Family(WATCH, "#c9ced3", tuple(f"client {body}" for body in _WATCHED)),
    Family("client", "#d55e00", ("client ",)),
    Family("lease", "#b8860b", ("PeerRequest Renew", "PeerRequest Meta", "PeerReply Invoked")),
    Family("transaction", "#009e73", ("PeerRequest", "PeerReply")),
    Family("vote", "#cc79a7", (), named=True),
    Family("raft", "#0072b2"),
)


CHOICES = (*(family.name for family in FAMILIES), DISK)


def family_of(row: Row) -> Family:
    """Return the family of a row of a trace."""
    if not row.get("to"):
        return Family(DISK, "#3b4046")
    what = row.get("what", "")
    for family in FAMILIES:
        if any(what.startswith(start) for start in family.starts):
            return family
    return FAMILIES[-2] if "Vote" in what else FAMILIES[-1]


@attrs.frozen(kw_only=True)
class FaultBand:
    """A fault: its time and its nodes; in its stretches ``unsure`` nothing was proven (see
    ``harness.protocols.fault_spans``).
    """

    start_s: float
    end_s: float
    nodes: tuple[str, ...]
    text: str
    unsure: tuple[tuple[float, float], ...] = ()


@attrs.frozen(kw_only=True)
class Operation:
    """A transaction of a client that is part of the proof."""

    start_s: float
    end_s: float
    node: str
    text: str


@attrs.frozen(kw_only=True)
class Happening:
    """An event that the store reported; the lower its ``rank``, the more it
    explains of a failure.
    """

    at_s: float
    node: str
    text: str
    rank: int = 0


@attrs.frozen(kw_only=True)
class Story:
    """The content beside the trace; ``title`` are lines."""

    title: tuple[str, ...] = ()
    faults: tuple[FaultBand, ...] = ()
    operations: tuple[Operation, ...] = ()
    happenings: tuple[Happening, ...] = ()
    controller: str = ""  # the name that clients have in the trace


@attrs.frozen
class _Figure:
    """The geometry of the figure. ``taken`` are the places of labels: x, y, width."""

    spans: tuple[Segment[float], ...]
    lanes: tuple[str, ...]
    story: Story
    taken: list[tuple[float, float, float]] = attrs.field(factory=list)

    @property
    def bottom(self) -> float:
        return TOP_PX + LANE_PX * len(self.lanes)

    def lane(self, node: str) -> str:
        return CLIENTS if node == self.story.controller else node

    def y(self, node: str) -> float:
        return TOP_PX + LANE_PX * (self.lanes.index(self.lane(node)) + 0.62)

    def room(self, x: float, y: float, text: str) -> bool:
        """Reserve a place for a label; return whether it was free."""
        width = len(text) * CHAR_PX + 4
        for other_x, other_y, other_width in self.taken:
            if abs(other_y - y) < 10 and x < other_x + other_width and other_x < x + width:
                return False
        self.taken.append((x, y, width))
        return True


def draw(
    rows: Iterable[Row],
    story: Story,
    stretches: Sequence[tuple[float, float]],
    *,
    nodes: Sequence[str] = (),
    show: Sequence[str] = USUAL,
) -> tuple[str, int]:
    """Draw the diagram of ``stretches`` (in order, apart) as SVG; return also how many rows of them
    had no room. ``nodes`` leaves other lanes out, ``show`` other families of messages.
    """
    spans = laid_out(stretches, LEFT_PX, WIDTH_PX)
    # The trace is read once, line by line: only what lies in the stretches is kept.
    within = [row for row in rows if any(s.touches(row["from_s"], row["at_s"]) for s in spans)]
    hosts = {host for row in within for host in (row["node"], row.get("to")) if host}
    # A node that is down sends nothing: its fault alone gives it a lane.
    hosts |= {node for fault in story.faults for node in fault.nodes}
    lanes = sorted(host for host in hosts - {story.controller} if not nodes or host in nodes)
    figure = _Figure(spans, (CLIENTS, *lanes), story)
    known = [row for row in within if _on_lanes(figure, row)]
    hidden = Counter(name for row in known if (name := family_of(row).name) not in show)
    shown = [row for row in known if family_of(row).name in show]
    # What comes later covers what is drawn before it, and labels that come first get the room.
    parts = [
        *_ground(figure),
        *(part for span in spans for part in _faults(figure, span)),
        *(part for span in spans for part in _operations(figure, span)),
        *(part for span in spans for part in _fault_names(figure, span)),
        *_lanes(figure),
        *(_rows(figure, span, shown[:MAX_DRAWN]) for span in spans),
        *(part for span in spans for part in _happenings(figure, span)),
        *_legend(figure, show, hidden),
    ]
    return _document(figure, parts), max(0, len(shown) - MAX_DRAWN)


def _on_lanes(figure: _Figure, row: Row) -> bool:
    hosts = (row["node"], row["to"]) if row.get("to") else (row["node"],)
    return all(figure.lane(host) in figure.lanes for host in hosts)


def _document(figure: _Figure, parts: Iterable[Markup]) -> str:
    width, height = LEFT_PX + WIDTH_PX + RIGHT_PX, round(figure.bottom + FOOT_PX)
    high = figure.bottom - TOP_PX + 20
    clips = (
        tag(
            "clipPath",
            _box(span.left, TOP_PX - 20, span.right - span.left, high),
            id=f"span{number}",
        )
        for number, span in enumerate(figure.spans)
    )
    unsure = tag(
        "pattern", _box(0, 0, 3, 6, "white"), id="unsure", width=6, height=6,
        patternUnits="userSpaceOnUse", patternTransform="rotate(45)",
    )  # fmt: skip
    whole = tag(
        "svg",
        tag("defs", *clips, *map(_arrow_head, FAMILIES), unsure),
        _box(0, 0, width, height, "white"),
        *(Markup("\n") + part for part in parts),
        xmlns="http://www.w3.org/2000/svg", viewBox=f"0 0 {width} {height}",
        width=width, height=height, font_family="Helvetica, Arial, sans-serif", font_size=11,
    )  # fmt: skip
    return f"{whole}\n"


def _arrow_head(family: Family) -> Markup:
    return tag(
        "marker", tag("path", d="M0,0 L8,4 L0,8 z", fill=family.colour), id=f"to-{family.name}",
        viewBox="0 0 8 8", refX=8, refY=4, markerWidth=6, markerHeight=6, orient="auto",
    )  # fmt: skip


def _box(
    x: float, y: float, width: float, height: float, fill: str = "black", title: str = "",
    **more: Value,
) -> Markup:  # fmt: skip
    told = (_title(title),) if title else ()
    return tag("rect", *told, x=x, y=y, width=width, height=height, fill=fill, **more)


def _line(x1: float, y1: float, x2: float, y2: float, stroke: str, **more: Value) -> Markup:
    return tag("line", x1=x1, y1=y1, x2=x2, y2=y2, stroke=stroke, **more)


def _title(content: str) -> Markup:
    """The words that a pointer over an element shows."""
    return tag("title", Markup.escape(_cut(content, LABEL_CHARS)))


def _text(
    x: float, y: float, text: str, most: int = LABEL_CHARS, *, halo: bool = False, **more: Value
) -> Markup:
    drawn = more | (_HALO if halo else {})
    return tag("text", Markup.escape(_cut(text, most)), x=x, y=y, **drawn)


def _cut(text: str, most: int) -> str:
    """Return ``text`` without control characters, shortened to the room."""
    whole = inert(text, 4 * TITLE_CHARS)
    return whole if len(whole) <= most else f"{whole[: most - 1].rstrip()}…"


def _ground(figure: _Figure) -> Iterator[Markup]:
    """Draw title, ticks, and the breaks of the axis."""
    for number, line in enumerate(figure.story.title[:3]):
        weight = "bold" if number == 0 else "normal"
        yield _text(10, 20 + 18 * number, line, TITLE_CHARS, font_weight=weight, font_size="14")
    for before, span in zip((None, *figure.spans), figure.spans, strict=False):
        for at_s, text in span.ticks():
            x = span.x(at_s)
            yield _line(x, TOP_PX, x, figure.bottom, "#eceef0")
            if span.left + 12 <= x <= span.right - 12:
                yield _text(x, TOP_PX - 26, f"{text} s", text_anchor="middle", fill="#57606a")
        if before is not None:
            x = before.right + GAP_PX / 2
            skipped_s = span.start - before.end
            yield _text(x, TOP_PX - 8, f"{skipped_s:.3g} s", text_anchor="middle", fill="#8c959f",
                        font_size="9")  # fmt: skip
            for side in (-3, 3):
                yield _line(
                    x + side, TOP_PX, x + side, figure.bottom, "#b1bac4", stroke_dasharray="3 3"
                )


def _lanes(figure: _Figure) -> Iterator[Markup]:
    for node in figure.lanes:
        y = figure.y(node)
        yield _text(10, y + 4, node, 16, font_size="13", font_weight="bold")
        for span in figure.spans:
            yield _line(span.left, y, span.right, y, "#57606a", stroke_width=1.2)


def _faults(figure: _Figure, span: Segment[float]) -> Iterator[Markup]:
    """Shade the faults on their nodes for the time in force."""
    for fault, node, left, right in _in_force(figure, span):
        top = figure.y(node) - 0.56 * LANE_PX
        yield _box(left, top, max(1.0, right - left), LANE_PX - 8, _FAULT, fault.text)
        for start_s, end_s in fault.unsure:
            if span.touches(start_s, end_s):
                left, right = span.clipped(start_s), span.clipped(end_s)
                yield _box(left, top, max(1.0, right - left), LANE_PX - 8, "url(#unsure)")


def _fault_names(figure: _Figure, span: Segment[float]) -> Iterator[Markup]:
    """Name the shaded faults below the lane; in brackets where they began before."""
    for fault, node, left, right in _in_force(figure, span):
        begins = span.start <= fault.start_s <= span.end
        fits = int((right - left) / CHAR_PX)
        text = _cut(fault.text if begins else f"({fault.text})", fits)
        y = figure.y(node) + 0.44 * LANE_PX - 14
        if fits >= 8 and figure.room(left + 3, y, text):
            yield _text(left + 3, y, text, fill="#9a3412")


def _in_force(
    figure: _Figure, span: Segment[float]
) -> Iterator[tuple[FaultBand, str, float, float]]:
    for fault in figure.story.faults:
        if span.touches(fault.start_s, fault.end_s):
            for node in fault.nodes:
                if node in figure.lanes:
                    left, right = span.clipped(fault.start_s), span.clipped(fault.end_s)
                    yield fault, node, left, right


def _operations(figure: _Figure, span: Segment[float]) -> Iterator[Markup]:
    """Draw the operations that prove the failure: a bar on the clients' lane, a band over all."""
    for operation in figure.story.operations:
        if not span.touches(operation.start_s, operation.end_s):
            continue
        left, right = span.clipped(operation.start_s), span.clipped(operation.end_s)
        width, y = max(3.0, right - left), figure.y(CLIENTS)
        height = figure.bottom - TOP_PX
        yield _box(left, TOP_PX, width, height, _PROOF, operation.text, fill_opacity=0.6)
        yield _box(left, y - 5, width, 10, "#111111", operation.text, rx=3)
        for level in range(3):
            at = y - 14 - 12 * level
            text = _cut(operation.text, OPERATION_CHARS)
            # Bold words are wider than ``CHAR_PX`` says.
            x = min(left, LEFT_PX + WIDTH_PX - len(text) * CHAR_PX * 1.1)
            if figure.room(x, at, text):
                yield _text(x, at, text, font_weight="bold", halo=True)
                break


def _happenings(figure: _Figure, span: Segment[float]) -> Iterator[Markup]:
    """Draw flags above the lane, each with its words where there is room."""
    for happening in figure.story.happenings:
        if not span.touches(happening.at_s, happening.at_s) or happening.node not in figure.lanes:
            continue
        x, y = span.x(happening.at_s), figure.y(happening.node)
        yield tag(
            "path",
            _title(f"{happening.at_s:.4f} s: {happening.text}"),
            d=f"M{x:.1f},{y:.1f} L{x - 4:.1f},{y - 8:.1f} L{x + 4:.1f},{y - 8:.1f} z",
            fill="#6f42c1",
        )
        text = _cut(happening.text, OPERATION_CHARS)
        left = min(x + 6, LEFT_PX + WIDTH_PX - len(text) * CHAR_PX)
        for level in range(4):
            at = y - 9 - 11 * level
            if figure.room(left, at, text):
                yield _text(left, at, text, fill="#6f42c1", font_size="10", halo=True)
                break


def _rows(figure: _Figure, span: Segment[float], rows: Sequence[Row]) -> Markup:
    inside = [row for row in rows if span.touches(row["from_s"], row["at_s"])]
    few = sum(bool(row.get("to")) for row in inside) <= LABELLED_MAX
    drawn: list[Markup] = []
    for row in inside:
        if row.get("to"):
            drawn += _message(figure, span, row, few)
        else:
            drawn.append(_disk(figure, span, row))
    # A message that began before the stretch, or ends after it, must not be drawn into the next
    # one.
    return tag("g", *drawn, clip_path=f"url(#span{figure.spans.index(span)})")


def _message(figure: _Figure, span: Segment[float], row: Row, few: bool) -> Iterator[Markup]:
    family, lost = family_of(row), row["did"] not in ("message", "copy")
    x1, y1 = span.x(row["from_s"]), figure.y(row["node"])
    x2, y2 = span.x(row["at_s"]), figure.y(row["to"])
    title = _title(_said(row))
    drawn: dict[str, Value] = {"stroke": family.colour, "stroke_width": 1.3}
    if lost:  # a piece of the way, and a cross
        # It has no time of arrival: how steep it is means nothing.
        x2, y2 = x1 + 14, y1 + (y2 - y1) * LOST_SHARE
        drawn |= {"stroke": _LOST, "stroke_dasharray": "3 2"}
    else:
        drawn["marker_end"] = f"url(#to-{family.name})"
    yield tag("line", title, x1=x1, y1=y1, x2=x2, y2=y2, **drawn)
    if lost:
        cross = f"M{x2 - 3:.1f},{y2 - 3:.1f} l6,6 m0,-6 l-6,6"
        yield tag("path", title, d=cross, stroke=_LOST, stroke_width=1.5)
    name = _short(row.get("what") or row["did"])  # a reset carries nothing
    x, y = round((x1 + x2) / 2 + 3, 1), round((y1 + y2) / 2, 1)
    if (few or family.named) and span.left <= x <= span.right and figure.room(x, y, name):
        yield _text(x, y, name, fill=_LOST if lost else family.colour, font_size="9", halo=True)


def _disk(figure: _Figure, span: Segment[float], row: Row) -> Markup:
    x, y = span.x(row["from_s"]), figure.y(row["node"])
    width, height = max(1.5, span.x(row["at_s"]) - x), 8 if row["did"] == "sync" else 4
    colour = _ERROR if row.get("error") else _SYNC
    return _box(x, y - height / 2, width, height, colour, _said(row), opacity=0.75)


def _legend(figure: _Figure, show: Sequence[str], hidden: Mapping[str, int]) -> Iterator[Markup]:
    x, y = float(LEFT_PX), figure.bottom + 24
    for family in FAMILIES:
        if family.name in show:
            arrow: dict[str, Value] = {"marker_end": f"url(#to-{family.name})"}
            yield _line(x, y - 4, x + 26, y - 4, family.colour, stroke_width=1.5, **arrow)
            yield _text(x + 32, y, family.name)
            x += 46 + 6.5 * len(family.name)
    fault = _box(0, -6, 16, 12, _FAULT)
    marks = (
        (_line(0, 0, 22, 0, _LOST, stroke_dasharray="3 2"), "lost"),
        (_box(0, -4, 10, 8, _SYNC, opacity=0.75), "disk, synced"),
        (fault, "fault in force"),
        (fault + _box(0, -6, 16, 12, "url(#unsure)"), "not proven yet"),
        (_box(0, -6, 16, 12, _PROOF), "operation that proves it"),
        (tag("path", d="M5,4 L1,-4 L9,-4 z", fill="#6f42c1"), "what the store said"),
    )
    for mark, text in marks:
        yield tag("g", mark, transform=f"translate({x:.0f},{y - 4:.0f})")
        yield _text(round(x + 28), y, text)
        x += 42 + 6.2 * len(text)
    told = ", ".join(f"{count} of {name}" for name, count in sorted(hidden.items()))
    if told:
        yield _text(LEFT_PX, y + 24, f"not drawn: {told}", fill="#57606a")


def _short(what: str) -> str:
    """Return a message's name without the part that its colour shows already."""
    for start in ("client ", "PeerRequest ", "PeerReply "):
        what = what.removeprefix(start)
    return _cut(what, 24)


def _said(row: Row) -> str:
    between = f"{row['node']} to {row['to']}: " if row.get("to") else f"{row['node']}: "
    took_ms = (row["at_s"] - row["from_s"]) * 1000
    size = f", {row['size_bytes']} bytes" if row.get("size_bytes") else ""
    error = f", {row['error']}" if row.get("error") else ""
    return (
        f"{between}{row['did']} {row.get('what', '')}{size}, "
        f"at {row['from_s']:.6f} s, took {took_ms:.3f} ms{error}"
    )
