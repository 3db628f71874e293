"""Drawing of a cycle of transactions: their order, edge by edge, and its contradiction.

Up to four transactions stand in a row, the contradiction below them leads back; more run around a
ring, above from left to right and below from right to left. The last edge closes the cycle: it is
the one that the words call "yet".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
from markupsafe import Markup

from harness.protocols.finding import Dependency
from results.drawing.operation_texts import MicroOpFormat
from results.drawing.svg import arrow_head, clipped, path, picture, tag, text

WIDTH = 1000.0
ROW_MAX = 4  # boxes side by side before they go around
SHOWN_MAX = 12  # transactions; of a longer cycle the beginning and the end
HEAD, TAIL = 6, 5  # that many, around a box that stands for the rest
LINES_MAX = 4  # micro-operations in a box
LINE_PX, PAD_PX, TITLE_PX = 14.0, 8.0, 34.0
BOX_MAX_PX = 300.0
BACK_PX = 44.0  # below the row, for the way back
BETWEEN_PX = 64.0  # between the two rows of a ring
WIDE_MAX = 8  # transactions in a cycle whose boxes have room for more than one element
LIST_ELEMENTS = 3  # of a list in a box: its end

Row = Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Box:
    """A transaction (or ``rest`` of them) as drawn at (``x``, ``y``)."""

    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """The height at which edges to the side begin."""
        return self.y + self.height / 2

    @property
    def centre(self) -> float:
        """The place where edges up and down begin."""
        return self.x + self.width / 2


def closed(edges: Sequence[Dependency]) -> bool:
    """Tell whether ``edges`` are a cycle: a verdict from elsewhere, or cut, may hold anything."""
    after = (*edges[1:], *edges[:1])
    return len(edges) > 1 and all(e.target == f.source for e, f in zip(edges, after, strict=True))


def draw(
    edges: Sequence[Dependency], operations: Mapping[int, Row], telling: MicroOpFormat
) -> Markup:
    """Draw the cycle as an SVG; ``operations`` are the transactions as ``RunData`` gives them."""
    rest = len(edges) - HEAD - TAIL if len(edges) > SHOWN_MAX else 0
    places: list[int | None] = [edge.source for edge in edges]
    shown = list(edges)
    if rest:
        places = [*places[:HEAD], None, *places[-TAIL:]]
        # The box for the rest is left by the edge that leads to the first one behind it.
        shown = [*edges[:HEAD], edges[-TAIL - 1], *edges[-TAIL:]]
    contents = [_lines(txn, edges, operations, telling) for txn in places]
    boxes, height = _layout(len(places), max(map(len, contents)))
    label = "Cycle: " + " ".join(f"T{edge.source} {edge.kind}" for edge in shown[:SHOWN_MAX])
    drawn = [
        _edge(edge, place, boxes, telling, operations, last=place == len(shown) - 1)
        for place, edge in enumerate(shown)
    ]
    drawn += [
        _rest(box, rest) if txn is None else _box(box, txn, lines, operations)
        for box, txn, lines in zip(boxes, places, contents, strict=True)
    ]
    return picture(WIDTH, height, label, drawn)


def _layout(count: int, lines: int) -> tuple[list[Box], float]:
    """Place the boxes in the order of the cycle; return them and the height of the picture."""
    height = TITLE_PX + lines * LINE_PX + PAD_PX
    ring = count > ROW_MAX
    above = -(-count // 2) if ring else count
    gap = 94.0 if ring else 150.0
    width = min(BOX_MAX_PX, (WIDTH - gap * (above - 1) - 4) / above)
    left = (WIDTH - above * width - (above - 1) * gap) / 2
    step = width + gap
    boxes = [Box(x=left + i * step, y=2.0, width=width, height=height) for i in range(above)]
    if not ring:
        return boxes, height + BACK_PX + 4
    below = count - above
    lower = 2.0 + height + BETWEEN_PX
    # Both ends of the rows stand above each other; in between the fewer have wider gaps.
    last = left + (above - 1) * step
    far = (last - left) / (below - 1) if below > 1 else 0.0
    for i in range(below):
        boxes.append(Box(x=last - i * far, y=lower, width=width, height=height))
    return boxes, lower + height + 4


def _lines(
    txn: int | None,
    edges: Sequence[Dependency],
    operations: Mapping[int, Row],
    telling: MicroOpFormat,
) -> list[str]:
    """Format the micro-operations of ``txn`` on the keys of its two edges."""
    if txn is None or txn not in operations:
        return []
    keys = {edge.key for edge in edges if txn in (edge.source, edge.target)}
    ops = operations[txn]["ops"]
    chosen = [step for step in ops if step["key"] in keys] or ops
    elements_max = 1 if len(edges) > WIDE_MAX else LIST_ELEMENTS
    found = [telling.brief(step, elements_max) for step in chosen[:LINES_MAX]]
    more = len(ops) - len(found)
    return (
        [*found[: LINES_MAX - 1], f"+ {more + len(found[LINES_MAX - 1 :])} more"] if more else found
    )


def _box(box: Box, txn: int, lines: Sequence[str], operations: Mapping[int, Row]) -> Markup:
    row = operations.get(txn)
    kind = row["type"] if row else "ok"
    room = box.width - PAD_PX - 2
    x = box.x + PAD_PX
    parts = [
        tag("rect", x=box.x, y=box.y, width=box.width, height=box.height, rx=4, class_="g-box"),
        tag("rect", x=box.x, y=box.y, width=4, height=box.height, class_=f"g-{kind}"),
        text(f"T{txn}", x, box.y + 16, "g-title"),
    ]
    if row:
        who = f"process {row['process']}, {kind}"
        parts.append(text(clipped(who, room * 1.25), x, box.y + 29, "g-soft"))
    for place, line in enumerate(lines):
        y = box.y + TITLE_PX + 10 + place * LINE_PX
        parts.append(text(clipped(line, room), x, y, "g-mono"))
    return tag("g", *parts)


def _rest(box: Box, count: int) -> Markup:
    return tag(
        "g",
        tag("rect", x=box.x, y=box.y, width=box.width, height=box.height, rx=4, class_="g-rest"),
        text("…", box.centre, box.middle - 4, "g-title", text_anchor="middle"),
        text(f"{count} more", box.centre, box.middle + 12, "g-soft", text_anchor="middle"),
    )


def _edge(
    edge: Dependency,
    place: int,
    boxes: Sequence[Box],
    telling: MicroOpFormat,
    operations: Mapping[int, Row],
    *,
    last: bool,
) -> Markup:
    source, target = boxes[place], boxes[(place + 1) % len(boxes)]
    class_ = "g-edge g-yet" if last else "g-edge"
    tip = "g-tip g-tip-yet" if last else "g-tip"
    words = _words(edge, telling, operations)
    if source.y != target.y:
        return _upright(source, target, class_, tip, words)
    if len(boxes) <= ROW_MAX and last:
        return _way_back(source, target, class_, tip, words)
    right = target.x > source.x
    start = source.x + source.width if right else source.x
    end = target.x if right else target.x + target.width
    centre, room = (start + end) / 2, abs(end - start) - 6
    return tag(
        "g",
        path([(start, source.middle), (end, source.middle)], class_),
        arrow_head(end, source.middle, (1 if right else -1, 0), tip),
        text(words[0], centre, source.middle - 7, "g-kind", text_anchor="middle"),
        *_under(words[1:], centre, source.middle + 15, room),
    )


def _upright(source: Box, target: Box, class_: str, tip: str, words: Sequence[str]) -> Markup:
    """Draw an edge between the rows of a ring: down on the right, up on the left."""
    down = target.y > source.y
    x = target.centre
    start, end = (
        (source.y + source.height, target.y) if down else (source.y, target.y + target.height)
    )
    middle = (start + end) / 2
    line = path([(x, start), (x, end)], class_)
    head = arrow_head(x, end, (0, 1 if down else -1), tip)
    said = ", ".join(words[1:])
    room = WIDTH / 2
    anchor, at = ("end", x - 10) if down else ("start", x + 10)
    return tag(
        "g", line, head,
        text(words[0], at, middle - 2, "g-kind", text_anchor=anchor),
        text(clipped(said, room), at, middle + 12, "g-mono", text_anchor=anchor),
    )  # fmt: skip


def _way_back(source: Box, target: Box, class_: str, tip: str, words: Sequence[str]) -> Markup:
    floor = source.y + source.height
    y = floor + BACK_PX - 14
    corners = [
        (source.centre, floor),
        (source.centre, y),
        (target.centre, y),
        (target.centre, floor),
    ]
    centre = (source.centre + target.centre) / 2
    said = f"{', '.join(words[1:])}"
    return tag(
        "g",
        path(corners, class_),
        arrow_head(target.centre, floor, (0, -1), tip),
        text(f"{words[0]}, a contradiction", centre, y - 5, "g-kind g-kind-yet",
             text_anchor="middle"),
        text(said, centre, y + 13, "g-mono", text_anchor="middle"),
    )  # fmt: skip


def _under(lines: Sequence[str], x: float, y: float, room: float) -> list[Markup]:
    return [
        text(clipped(line, room), x, y + i * LINE_PX, "g-mono", text_anchor="middle")
        for i, line in enumerate(lines)
    ]


def _words(
    edge: Dependency, telling: MicroOpFormat, operations: Mapping[int, Row]
) -> tuple[str, ...]:
    """Name the kind of an edge, its key and its element."""
    if edge.key is None:
        if edge.kind == "process" and edge.source in operations:
            return "process", f"{operations[edge.source]['process']} ran it first"
        return edge.kind, "ended before" if edge.kind == "realtime" else ""
    key = f"key {telling.key(edge.key)}"
    element = _only_append(edge, operations) if edge.element is None else edge.element
    told = {
        "ww": "appended later" if element is None else f"{element} after it",
        "wr": "seen" if element is None else f"{element} seen",
        "rw": "not seen" if element is None else f"{element} not seen",
    }
    return edge.kind, key, told.get(edge.kind, "" if element is None else str(element))


def _only_append(edge: Dependency, operations: Mapping[int, Row]) -> int | None:
    """Return the element that the source of a wr edge appended, where it appended exactly one."""
    if edge.kind != "wr" or edge.source not in operations:
        return None
    steps = operations[edge.source]["ops"]
    found = [s["value"] for s in steps if s["f"] == "append" and s["key"] == edge.key]
    return found[0] if len(found) == 1 else None
