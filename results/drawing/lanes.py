"""The operations of an anomaly on a timeline: a lane a process, faults above, the store's events.

A bar reaches from the invocation to the completion. An ok operation is filled, a failed one hollow
and crossed, one of unknown outcome open to the right: the outcomes differ without colours.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
from markupsafe import Markup

from harness.history.records import OpType
from harness.importers.jepsen.imported_tables import UNKNOWN_NODE
from results.drawing.axis import Axis, Scale, Segment, axis_of, in_lanes, without
from results.drawing.operation_texts import MicroOpFormat
from results.drawing.svg import clipped, hatching, path, picture, tag, text, width_px

WIDTH, LEFT, RIGHT = 1000.0, 112.0, 990.0
FAULT_PX, EVENTS_PX, ROW_PX, AXIS_PX = 18.0, 20.0, 34.0, 20.0
BAR_PX, BAR_MIN_PX = 11.0, 3.0
FAULT_LANES_MAX = 4
FAULTS_MAX = 24
TICK_PX = 13.0  # between the numbers of two events
TEXT_STEPS = 4  # micro-operations beside a bar
TEXT_ELEMENTS = 6  # of a list beside a bar: its end
TEXT_MAX_PX = 560.0
LABEL_MIN_PX = 60.0  # of a fault; what has less room in its bar stands beside it

Row = Mapping[str, Any]


@attrs.frozen(kw_only=True)
class Window:
    """A fault: its name, the begin and end of its time in force, and the stretches of that time in
    which this is ``unsure`` (see ``harness.protocols.fault_spans``).
    """

    number: int
    label: str
    start: int
    end: int
    unsure: tuple[tuple[int, int], ...] = ()


@attrs.frozen(kw_only=True)
class Tick:
    """An event of the store; ``number`` is its row in the table below the drawing."""

    at: int
    number: int | None


@attrs.frozen(kw_only=True)
class Bar:
    """An operation as drawn: its lane, its row in there, and the text above it."""

    row: Row
    left: float
    right: float
    said: str
    text_x: float


@attrs.frozen(kw_only=True)
class Stage:
    """Everything that is drawn. ``begin`` and ``end`` name the columns of positions."""

    operations: Sequence[Row]
    faults: Sequence[Window]
    ticks: Sequence[Tick]
    telling: MicroOpFormat
    scale: Scale
    explained_by: int | None = None

    def begins(self, row: Row) -> int:
        """Return the position of an operation's invocation."""
        return int(row["invoke_ns" if self.scale.timed else "invoke_index"])

    def ends(self, row: Row) -> int:
        """Return the position of its completion."""
        return int(row["complete_ns" if self.scale.timed else "complete_index"])


def draw(stage: Stage) -> Markup:
    """The timeline of at least one operation as an SVG."""
    axis = axis_of(_busy(stage), LEFT, RIGHT)
    faults = _in_force(stage, axis)
    lanes = _lanes(stage, axis)
    top = FAULT_PX * (max((lane for _, lane in faults), default=-1) + 1) + 4
    events = EVENTS_PX if stage.ticks else 0.0
    bottom = top + events + ROW_PX * sum(len(rows) for _, rows in lanes)
    drawn = [
        *_shades(axis, faults, bottom),
        *_cuts(axis, stage.scale, top, bottom),
        *(_ticks(axis, stage.ticks, top) if stage.ticks else ()),
        *_drawn_lanes(lanes, top + events),
        *_drawn_axis(axis, stage.scale, bottom),
    ]
    label = f"Timeline of {len(stage.operations)} operations by process, with faults and events"
    return picture(WIDTH, bottom + AXIS_PX, label, drawn)


def _busy(stage: Stage) -> Iterator[tuple[int, int]]:
    """Yield the stretches that the axis must show: the operations, and the fault that explains
    them.
    """
    known = [stage.ends(r) for r in stage.operations if r["type"] != OpType.INFO]
    # Where no outcome is known, the ends are all that shows how long anything took.
    last = max(known or map(stage.ends, stage.operations))
    for row in stage.operations:
        start, end = stage.begins(row), stage.ends(row)
        # Its end is when the client gave up, maybe long after: it must not stretch the axis.
        unknown = row["type"] == OpType.INFO
        yield start, max(start, min(end, last)) if unknown else end
    for fault in stage.faults:
        if fault.number == stage.explained_by:
            # Its ends alone: what lies between may be idle, and is cut then.
            yield fault.start, fault.start
            yield fault.end, fault.end


def _in_force(stage: Stage, axis: Axis) -> list[tuple[Window, int]]:
    """Return the faults within the axis, each with its lane above the operations."""
    within = [f for f in stage.faults if f.end >= axis.start and f.start <= axis.end][:FAULTS_MAX]
    return list(
        zip(within, in_lanes([(f.start, f.end) for f in within], FAULT_LANES_MAX), strict=True)
    )


def _lanes(stage: Stage, axis: Axis) -> list[tuple[Row, list[list[Bar]]]]:
    """Return for each process (in the order of its first operation) rows of bars whose texts don't
    collide.
    """
    lanes: dict[int, tuple[Row, list[list[Bar]]]] = {}
    for row in sorted(stage.operations, key=lambda r: (stage.begins(r), r["txn"])):
        bar = _bar(row, stage, axis)
        rows = lanes.setdefault(row["process"], (row, []))[1]
        # Bars come in the order of their beginnings: the last one of a row decides.
        free = next((r for r in rows if _extent(r[-1])[1] + 8 < _extent(bar)[0]), None)
        if free is None:
            rows.append([bar])
        else:
            free.append(bar)
    return list(lanes.values())


def _extent(bar: Bar) -> tuple[float, float]:
    return min(bar.left, bar.text_x), max(bar.right, bar.text_x + width_px(bar.said))


def _bar(row: Row, stage: Stage, axis: Axis) -> Bar:
    left = axis.x(stage.begins(row))
    # Open to the right: what has an unknown outcome may take effect at any later time.
    right = RIGHT if row["type"] == OpType.INFO else axis.x(stage.ends(row))
    right = max(right, left + BAR_MIN_PX)
    said = clipped(f"T{row['txn']}  {_said(row, stage.telling)}", TEXT_MAX_PX)
    return Bar(
        row=row, left=left, right=right, said=said,
        # Words of a bar near the right edge begin before it, so that they end within the picture.
        text_x=max(LEFT, min(left, RIGHT - width_px(said))),
    )  # fmt: skip


def _said(row: Row, telling: MicroOpFormat) -> str:
    ops = row["ops"]
    hot = [step for step in ops if step["key"] in telling.keys] or list(ops)
    said = ", ".join(telling.brief(step, TEXT_ELEMENTS) for step in hot[:TEXT_STEPS])
    more = len(ops) - len(hot[:TEXT_STEPS])
    return f"{said}, + {more} more" if more else said


def _shades(axis: Axis, faults: Sequence[tuple[Window, int]], bottom: float) -> Iterator[Markup]:
    for fault, lane in faults:
        left, right = axis.x(fault.start), axis.x(fault.end)
        right = max(right, left + BAR_MIN_PX)
        y = lane * FAULT_PX + 2
        yield tag(
            "rect", x=left, y=y, width=right - left, height=bottom - y, class_="g-shade"
        )  # fmt: skip
        yield tag(
            "rect", x=left, y=y, width=right - left, height=FAULT_PX - 4, class_="g-fault"
        )  # fmt: skip
        for begin, end in fault.unsure:
            yield hatching(axis.x(begin), axis.x(end), y, y + FAULT_PX - 4, "g-hatch")
        others = [f for f, other in faults if other == lane]
        room = _Room(
            bar=(left, right),
            # Beside its hatching, on which no word can be read.
            parts=tuple(
                (axis.x(start), axis.x(end))
                for start, end in without([(fault.start, fault.end)], fault.unsure)
            ),
            before=max((axis.x(f.end) for f in others if f.start < fault.start), default=LEFT),
            after=min((axis.x(f.start) for f in others if f.start > fault.start), default=RIGHT),
        )
        yield from _fault_label(fault, room, y + 11)
    if faults:
        yield text("faults", LEFT - 10, 13, "g-soft", text_anchor="end")


@attrs.frozen(kw_only=True)
class _Room:
    """Where a fault may be named: from left to right its ``bar``, the ``parts`` of that without
    hatching, and the ends of the bars ``before`` and ``after`` it.
    """

    bar: tuple[float, float]
    parts: tuple[tuple[float, float], ...]
    before: float
    after: float


def _fault_label(fault: Window, room: _Room, y: float) -> Iterator[Markup]:
    """Name a fault in its bar where that is not hatched, else beside it where other bars leave
    room, else over its hatching; or give its number alone.
    """
    label, number = f"{fault.number} {fault.label}", str(fault.number)
    left, right = room.bar
    width = width_px(label)
    free = max(room.parts, key=lambda part: part[1] - part[0], default=(left, left))
    inside, whole = free[1] - free[0] - 8, right - left - 8
    if width <= inside or inside > LABEL_MIN_PX:
        yield text(clipped(label, inside), free[0] + 4, y, "g-fault-text")
    elif room.after - right > width + 8:
        yield text(label, right + 4, y, "g-soft")
    elif left - room.before > width + 8:
        yield text(label, left - 4, y, "g-soft", text_anchor="end")
    elif width <= whole or whole > LABEL_MIN_PX:
        said = clipped(label, whole)
        box = {"x": left + 2, "y": y - 11, "width": width_px(said) + 4, "height": FAULT_PX - 4}
        yield tag("rect", class_="g-fault", **box)
        yield text(said, left + 4, y, "g-fault-text")
    elif room.after - right > width_px(number) + 4:
        yield text(number, right + 2, y, "g-soft")


def _cuts(axis: Axis, scale: Scale, top: float, bottom: float) -> Iterator[Markup]:
    """Draw the cuts as white bands with their lengths."""
    for segment in axis.segments:
        if not segment.cut:
            continue
        width = segment.right - segment.left
        yield tag(
            "rect", x=segment.left, y=top, width=width, height=bottom - top, class_="g-cut"
        )  # fmt: skip
        centre = (segment.left + segment.right) / 2
        yield text(
            scale.span(segment.end - segment.start), centre, bottom + 14, "g-soft g-left-out",
            text_anchor="middle",
        )  # fmt: skip


def _ticks(axis: Axis, ticks: Sequence[Tick], top: float) -> Iterator[Markup]:
    """Draw events as marks on a line of their own; numbers where the table has rows."""
    yield text("store", LEFT - 10, top + 14, "g-soft", text_anchor="end")
    near: list[tuple[float, list[int]]] = []
    for tick in ticks:
        x = axis.x(tick.at)
        yield path([(x, top + 12), (x, top + 18)], "g-event")
        if tick.number is None:
            continue
        # Numbers that would overlap become a range.
        if near and x < near[-1][0] + TICK_PX * 2:
            near[-1][1].append(tick.number)
        else:
            near.append((x, [tick.number]))
    for x, numbers in near:
        said = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"
        yield text(said, x, top + 10, "g-number", text_anchor="middle")


def _drawn_lanes(lanes: Sequence[tuple[Row, list[list[Bar]]]], top: float) -> Iterator[Markup]:
    y = top
    for first, rows in lanes:
        yield path([(4.0, y), (RIGHT, y)], "g-line")
        name = f"process {first['process']}"
        if width_px(name) > LEFT - 14:
            name = str(first["process"])
        yield text(name, LEFT - 10, y + 15, "g-lane", text_anchor="end")
        # Importers put a placeholder where their history names no node.
        names = (str(bar.row["node"]) for row in rows for bar in row)
        nodes = dict.fromkeys(name for name in names if name != UNKNOWN_NODE)
        shown = clipped(" ".join(nodes), LEFT - 16)
        yield text(shown, LEFT - 10, y + 28, "g-soft", text_anchor="end")
        for row in rows:
            for bar in row:
                yield _drawn_bar(bar, y)
            y += ROW_PX


def _drawn_bar(bar: Bar, y: float) -> Markup:
    kind = bar.row["type"]
    top, width = y + 18, bar.right - bar.left
    parts = [text(bar.said, bar.text_x, y + 13, "g-mono")]
    if kind == OpType.INFO:
        middle = top + BAR_PX / 2
        edge = [(bar.right - 6, top), (bar.left, top), (bar.left, top + BAR_PX)]
        parts.append(tag("rect", x=bar.left, y=top, width=width, height=BAR_PX, class_="g-open"))
        parts.append(path([*edge, (bar.right - 6, top + BAR_PX)], "g-open-edge"))
        parts.append(text("?", bar.right - 12, middle + 4, "g-open-text"))
    else:
        parts.append(
            tag("rect", x=bar.left, y=top, width=width, height=BAR_PX, class_=f"g-bar-{kind}")
        )
    if kind == OpType.FAIL:
        x = bar.right + 6
        for a, b in ((top + 1, top + BAR_PX - 1), (top + BAR_PX - 1, top + 1)):
            parts.append(path([(x - 4, a), (x + 4, b)], "g-cross"))
    return tag("g", *parts)


def _drawn_axis(axis: Axis, scale: Scale, bottom: float) -> Iterator[Markup]:
    yield path([(LEFT, bottom), (RIGHT, bottom)], "g-axis")
    for segment in axis.segments:
        if not segment.cut:
            yield from _segment_ticks(segment, scale, bottom)


def _segment_ticks(segment: Segment[int], scale: Scale, bottom: float) -> Iterator[Markup]:
    """Yield the begin of a stretch, then steps from there, as many as there is room for."""
    begin = f"{scale.at(segment.start)}{f' {scale.unit}' if scale.timed else ''}"
    yield path([(segment.left, bottom), (segment.left, bottom + 4)], "g-axis")
    yield text(begin, segment.left, bottom + 14, "g-soft", text_anchor="start")
    length, width = segment.end - segment.start, segment.right - segment.left
    step = _round_step(length, int((width - width_px(begin)) // 80))
    if step is None:
        return
    for place in range(1, length // step + 1):
        x = segment.left + place * step / length * width
        told = f"+{scale.span(place * step)}"
        yield path([(x, bottom), (x, bottom + 4)], "g-axis")
        clear = x - segment.left > width_px(begin) + width_px(told) / 2 + 6
        if clear and x + width_px(told) / 2 < segment.right + 4:
            yield text(told, x, bottom + 14, "g-soft", text_anchor="middle")


def _round_step(length: int, count: int) -> int | None:
    """Return a step of 1, 2 or 5 times a power of ten that goes at most ``count`` times into
    ``length``.
    """
    if count < 1:
        return None
    step = 1
    while True:
        for factor in (1, 2, 5):
            if length <= step * factor * count:
                return step * factor
        step *= 10
