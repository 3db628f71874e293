"""The picture of a run: faults, latency and rate over one time axis, as an inline SVG.

matplotlib is imported when a plot is drawn: the command line starts without it.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from harness.history.records import OpType
from harness.text import inert
from results.drawing import partitions, placement_lanes, resources, role_lanes, series
from results.drawing.assignments_over_time import Placement
from results.drawing.axis import SECONDS, Scale, bars, in_lanes, without
from results.drawing.node_roles import RolesOverTime
from results.drawing.series import Outcomes
from results.drawing.svg import inline

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart without red and green, and by shape as well.
COLOURS = {OpType.OK: "#0072B2", OpType.INFO: "#E69F00", OpType.FAIL: "#CC79A7"}
MARKERS = {OpType.OK: ".", OpType.INFO: "^", OpType.FAIL: "x"}
FAULT_COLOURS = ("#5B6770", "#8C6D46", "#4E7A6B", "#6F5C8C", "#8C4F4F", "#4C6E91")
QUANTILE_STYLES = {0.5: "-", 0.95: "--", 0.99: ":"}
INK, FAINT, GRID = "#1B1F23", "#6A737D", "#E3E6E9"
PALE, BROKEN = "#FFFFFF", "#C4501B"

POINTS_MAX = 30_000  # drawn of each type; past it every n-th, which the page notes
MARKS_MAX = 400  # of one type drawn large; more are a cloud
VECTOR_POINTS_MAX = 1_500  # as vectors; more become one picture inside the SVG
FAULTS_VECTOR_MAX = 150  # as vectors, like points; a night has thousands
LANES_MAX = 4  # bars above each other in the strip of faults
BREACH_LEAST = 1 / 120  # of the axis: less than a few pixels would be a hair beside long bars
BREACH_IN, BREACH_LANES_MAX = 0.17, 8  # of broken limits: a plan has six, and six a kind of fault
WIDTH_IN, DOTS_PER_IN = 11.0, 144
SALT = "firedrill"  # identifiers in the SVG follow from it: equal runs draw equal bytes
LABEL_CHARS = 40
MILLISECONDS = Scale("ms", 1_000_000)
UNIT_NAMES = {"s": "second", "ms": "millisecond", "µs": "microsecond", "ns": "nanosecond"}
MAX_PHASES = 32  # a run has seven; each line of a plot costs as much as thousands of points
CHARS_ACROSS = 105  # about how many characters of a label in a wide font fit over the whole width
LABEL_PT, STEP_PT = 8, 5
HATCHED_CHARS = 6  # of a bar's hatching are left beside a label over it


@attrs.frozen(kw_only=True)
class StepWindow:
    """A step of a procedure: its node is down from ``start_s`` to ``up_s``, and waited for until
    ``end_s``.
    """

    node: str
    start_s: float
    up_s: float
    end_s: float


@attrs.frozen(kw_only=True)
class FaultWindow:
    """A fault as the plot shows it; ``number`` is its row in the table. In the stretches
    ``unsure`` its effect or its healing was not proven yet; ``steps`` are those of a procedure.
    """

    number: int
    kind: str
    label: str
    start_s: float
    end_s: float
    unsure: tuple[tuple[float, float], ...] = ()
    steps: tuple[StepWindow, ...] = ()


@attrs.frozen(kw_only=True)
class Breach:
    """A time in which a limit of the plan was broken; ``label`` names the limit."""

    label: str
    start_s: float
    end_s: float

    def bar(self, span_s: float) -> tuple[float, float]:
        """Begin and width of its bar on an axis of ``span_s``."""
        return self.start_s, max(self.end_s - self.start_s, BREACH_LEAST * span_s)


@attrs.frozen(kw_only=True)
class Picture:
    """An SVG for the page, and the notes beside it. ``left`` and ``right`` are the shares of its
    width at which the times ``start_s`` and ``end_s`` are.
    """

    svg: str
    notes: tuple[str, ...] = ()
    left: float = 0.0
    right: float = 1.0
    start_s: float = 0.0
    end_s: float = 1.0


@attrs.frozen(kw_only=True)
class Scene:
    """The content of the plot: operations by type, fault windows, and (name, start)
    of the phases. ``conflicts`` are operations that gave way to another, and of no type;
    ``allowed_gap_s`` is the shortest time without an acknowledgement that a limit allows.
    """

    operations: Mapping[OpType, Outcomes]
    faults: tuple[FaultWindow, ...]
    phases: tuple[tuple[str, float], ...]
    scale: Scale = SECONDS
    since: str = "the run began"
    roles: RolesOverTime | None = None
    touches: partitions.Touches | None = None
    conflicts: Outcomes | None = None
    placement: Placement | None = None
    resources: tuple[resources.Panel, ...] = ()
    breaches: tuple[Breach, ...] = ()
    allowed_gap_s: float | None = None

    @property
    def per_s(self) -> float:
        """Units of the time axis in a second."""
        return SECONDS.per_unit / self.scale.per_unit

    def span_s(self) -> tuple[float, float]:
        """Return the time from the first operation or fault to the last, with a little air."""
        every = [*self.operations.values(), *([] if self.conflicts is None else [self.conflicts])]
        starts = [o.invoke_s.min() for o in every if o.invoke_s.size]
        ends = [o.complete_s.max() for o in every if o.complete_s.size]
        starts += [fault.start_s for fault in self.faults]
        ends += [fault.end_s for fault in self.faults]
        starts += [at_s for name, at_s in self.phases if name == "drive"]
        start, end = float(min(starts, default=0.0)), float(max(ends, default=1.0))
        return start, max(end, start + 1.0 / self.per_s)


@attrs.frozen
class _PointStyle:
    """How the points of one kind are drawn; ``front``: as large marks where they are few."""

    name: str
    marker: str
    colour: str
    front: bool = True


CONFLICT = _PointStyle("conflict", "+", "#8A949E")


def latency_scale(scale: Scale) -> Scale:
    """Return the unit of latencies: milliseconds, or less where the history's times are less."""
    return scale if scale.per_unit < MILLISECONDS.per_unit else MILLISECONDS


def draw(scene: Scene) -> Picture:
    """Faults, latency and rate over the run's time."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    lanes = in_lanes([(f.start_s, f.end_s) for f in scene.faults], LANES_MAX)
    strip_in = 0.2 + 0.2 * max(1, max(lanes, default=0) + 1)
    with matplotlib.rc_context(_style()):
        start, end = scene.span_s()
        served: tuple[partitions.Lane, ...] = ()
        if scene.touches is not None:
            served = partitions.lanes(scene.touches, start, end, scene.allowed_gap_s)
        broken = min(len({breach.label for breach in scene.breaches}), BREACH_LANES_MAX)
        heights = [strip_in, *([BREACH_IN * (broken + 1)] if broken else []), 3.2, 2.0]
        if served:
            heights.append(partitions.height_in(served))
        roles = scene.roles if scene.roles is not None and scene.roles.known else None
        if roles is not None:
            heights.append(role_lanes.height_in(roles))
        placed = scene.placement
        placement = placed if placed is not None and placed.known else None
        if placement is not None:
            heights.append(placement_lanes.height_in(placement))
        heights += [resources.HEIGHT_IN] * len(scene.resources)
        size = (WIDTH_IN, sum(heights) + 0.4)
        figure = Figure(figsize=size, dpi=DOTS_PER_IN, layout="constrained")
        # Not by pyplot, which keeps every figure in a state of the whole process.
        FigureCanvasSVG(figure)
        strip, *others = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
        if broken:
            _draw_breaches(others.pop(0), scene.breaches, end - start)
        latency, rate, *others = others
        lowest = others[-1] if others else rate
        for axes in (latency, rate):
            _shade(axes, scene.faults, end - start)
        _draw_strip(strip, scene, lanes, start, end)
        notes = _draw_latency(latency, scene, start, end)
        _draw_rate(rate, scene, start, end)
        _mark_phases((latency, rate), scene.phases, start, end)
        named = ["Faults", "latency", "rate"]
        if served:
            least_s = partitions.shortest_shown_s(end - start, scene.allowed_gap_s)
            notes += partitions.draw(others.pop(0), served, end - start, least_s)
            named.append("the partitions' availability")
        if roles is not None:
            notes += role_lanes.draw(others.pop(0), roles, start, end)
            named.append("the nodes' roles")
        if placement is not None:
            notes += placement_lanes.draw(others.pop(0), placement, start, end)
            named.append("assignments and data nodes")
        if scene.resources:
            for axes in others:
                _shade(axes, scene.faults, end - start)
            notes += resources.draw(others, scene.resources)
            named.append("the nodes' resources")
        lowest.set_xlim(start - 0.01 * (end - start), end + 0.01 * (end - start))
        lowest.xaxis.set_major_formatter(lambda value, _: f"{value * scene.per_s:,.10g}")
        lowest.set_xlabel(f"{UNIT_NAMES[scene.scale.unit]}s since {scene.since}")
        svg = _svg(figure, f"{', '.join(named[:-1])} and {named[-1]} over time")
        box, (first, last) = lowest.get_position(), lowest.get_xlim()
        return Picture(svg=svg, notes=notes, left=box.x0, right=box.x1, start_s=first, end_s=last)


def _style() -> Any:  # noqa: ANN401 (matplotlib's stubs name three hundred literal keys)
    return {
        # Text stays text, in the page's font, and can be searched.
        "svg.fonttype": "none",
        "figure.facecolor": "none",  # the page's own shows through, in any theme
        "axes.facecolor": "none",
        "svg.hashsalt": SALT,
        "text.parse_math": False,  # a dollar sign in a node's name is a dollar sign
        "font.size": 9,
        "axes.edgecolor": FAINT,
        "axes.labelcolor": INK,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.linewidth": 0.6,
        "xtick.color": FAINT,
        "ytick.color": FAINT,
        "text.color": INK,
        "grid.color": GRID,
        "grid.linewidth": 0.6,
        "axes.axisbelow": True,
        "legend.frameon": False,
    }


def _svg(figure: Figure, label: str) -> str:
    buffer = io.StringIO()
    # Neither date nor versions: an equal run draws equal bytes.
    # A run of some nanoseconds has axes of no length, which are drawn as well as any.
    with np.errstate(divide="ignore", invalid="ignore"):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return inline(buffer.getvalue(), label)


def _colours(faults: Sequence[FaultWindow]) -> dict[str, str]:
    kinds = sorted({fault.kind for fault in faults})
    return {kind: FAULT_COLOURS[i % len(FAULT_COLOURS)] for i, kind in enumerate(kinds)}


def _by_colour(faults: Sequence[FaultWindow]) -> dict[str, list[FaultWindow]]:
    """Return the faults by the colour of their kind: a stranger's run may name thousands."""
    colours, found = _colours(faults), dict[str, list[FaultWindow]]()
    for fault in faults:
        found.setdefault(colours[fault.kind], []).append(fault)
    return found


def _shade(axes: Axes, faults: Sequence[FaultWindow], span_s: float) -> None:
    """Draw one collection for each colour: a night has thousands of faults."""
    for colour, these in _by_colour(faults).items():
        whole = [(fault.start_s, fault.end_s) for fault in these]
        # Over the shade of the whole procedure, so that each node's turn is a band of its own.
        downs = [(step.start_s, step.up_s) for fault in these for step in fault.steps]
        for stretches, alpha in ((whole, 0.13), (downs, 0.2)):
            if not stretches:
                continue
            axes.broken_barh(
                bars(stretches, span_s),
                (0.0, 1.0),
                transform=axes.get_xaxis_transform(),
                color=colour,
                alpha=alpha,
                linewidth=0,
                zorder=0,
                rasterized=max(len(faults), len(stretches)) > FAULTS_VECTOR_MAX,
            )


@attrs.define
class _Labels:
    """The texts in the strip of faults: none is written over another."""

    axes: Axes
    span_s: float
    _taken_s: dict[float, float] = attrs.field(factory=dict)  # by their height, until when

    def room(self, start_s: float, end_s: float, y: float, size_pt: float = LABEL_PT) -> int:
        """Return how many characters have room in the middle of that time."""
        half_s = (end_s - start_s) / 2
        free_s = min(half_s, start_s + half_s - self._taken_s.get(y, start_s))
        return int(CHARS_ACROSS * LABEL_PT / size_pt * 2 * free_s / self.span_s)

    def write(self, said: str, start_s: float, end_s: float, y: float, **style: Any) -> None:  # noqa: ANN401
        """Write ``said`` in the middle of that time."""
        middle_s = (start_s + end_s) / 2
        size_pt = style["fontsize"]
        half_s = self.span_s * max(1, len(said)) * size_pt / LABEL_PT / CHARS_ACROSS / 2
        self._taken_s[y] = middle_s + half_s
        style |= {"ha": "center", "va": "center_baseline", "clip_on": True}
        self.axes.text(middle_s, y, said, **style)

    def name(self, fault: FaultWindow, end_s: float, next_s: float, y: float, colour: str) -> None:
        """Write the name of a fault, or its kind, where there is room: its bar ends at ``end_s``,
        the next one in its lane begins at ``next_s``. Else write its number.
        """
        bar, number = (fault.start_s, end_s), f"{fault.number}"
        sure = _longest(without([bar], fault.unsure))
        for name in (fault.label, fault.kind):
            if self._wrote(f"{number} {inert(name, LABEL_CHARS)}", fault, bar, next_s, y, colour):
                return
        if len(number) <= self.room(*(sure or bar), y):
            self.write(number, *(sure or bar), y, color="white", fontsize=LABEL_PT)

    def _wrote(
        self, label: str, fault: FaultWindow, bar: tuple[float, float], next_s: float, y: float,
        colour: str,
    ) -> bool:  # fmt: skip
        """Write ``label`` where the bar is not hatched, else behind it, else over a part of its
        hatching, if some of that is left on both sides; tell whether any had room.
        """
        sure, unsure = _longest(without([bar], fault.unsure)), _longest(fault.unsure)
        wide_s = self.span_s * (len(label) + 1) / CHARS_ACROSS
        behind = bar[1], bar[1] + wide_s
        if sure and len(label) <= self.room(*sure, y):
            self.write(label, *sure, y, color="white", fontsize=LABEL_PT)
        elif behind[1] <= next_s and len(label) <= self.room(*behind, y):
            self.write(label, *behind, y, color=INK, fontsize=LABEL_PT)
        elif unsure and len(label) + HATCHED_CHARS <= self.room(*unsure, y):
            plate = (sum(unsure) - wide_s) / 2, wide_s
            self.axes.broken_barh([plate], (y - 0.42, 0.84), color=colour, linewidth=0, zorder=2)
            self.write(label, *unsure, y, color="white", fontsize=LABEL_PT)
        else:
            return False
        return True


def _longest(stretches: Sequence[tuple[float, float]]) -> tuple[float, float] | None:
    return max(stretches, key=lambda stretch: stretch[1] - stretch[0], default=None)


def _draw_strip(axes: Axes, scene: Scene, lanes: list[int], start: float, end: float) -> None:
    colours, span_s = _colours(scene.faults), end - start
    labels = _Labels(axes, span_s)
    in_force: dict[tuple[str, int], list[tuple[float, float]]] = {}
    unsure: dict[int, list[tuple[float, float]]] = {}
    named: dict[int, list[tuple[FaultWindow, float]]] = {}
    for fault, lane in zip(scene.faults, lanes, strict=True):
        # A short fault of a long run would be less than a pixel.
        end_s = max(fault.end_s, fault.start_s + span_s / 400)
        in_force.setdefault((colours[fault.kind], lane), []).append((fault.start_s, end_s))
        unsure.setdefault(lane, []).extend(fault.unsure)
        named.setdefault(lane, []).append((fault, end_s))
    for lane, these in named.items():
        nexts_s = [fault.start_s for fault, _ in these[1:]] + [end]
        for (fault, end_s), next_s in zip(these, nexts_s, strict=True):
            labels.name(fault, end_s, next_s, -lane, colours[fault.kind])
    many = len(scene.faults) > FAULTS_VECTOR_MAX
    for (colour, lane), stretches in in_force.items():
        height = (-lane - 0.42, 0.84)
        shown = bars(stretches, span_s)
        axes.broken_barh(shown, height, color=colour, linewidth=0, rasterized=many)
    for lane, stretches in unsure.items():
        if stretches:
            axes.broken_barh(
                bars(stretches, span_s), (-lane - 0.42, 0.84), facecolor="none", edgecolor=PALE,
                alpha=0.6, hatch="//////", linewidth=0, rasterized=many,
            )  # fmt: skip
    _draw_steps(axes, scene.faults, lanes, labels)
    axes.set_ylim(-max(lanes, default=0) - 0.6, 0.6)
    _strip_frame(axes)
    if not scene.faults:
        axes.text(0.5, 0.5, "no faults", color=FAINT, ha="center", transform=axes.transAxes)


def _strip_frame(axes: Axes) -> None:
    axes.set_ylabel("faults", rotation=0, ha="right", va="center")
    axes.set_yticks([])
    axes.tick_params(axis="x", length=0, labelbottom=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _draw_breaches(axes: Axes, breaches: Sequence[Breach], span_s: float) -> None:
    """Draw when limits were broken, a lane a limit; the last takes those for which none is left."""
    names = list(dict.fromkeys(breach.label for breach in breaches))
    lanes = {name: min(lane, BREACH_LANES_MAX - 1) for lane, name in enumerate(names)}
    for breach in breaches:
        height = (-lanes[breach.label] - 0.4, 0.8)
        axes.broken_barh([breach.bar(span_s)], height, color=BROKEN, alpha=0.8, linewidth=0)
    shown = [inert(name, LABEL_CHARS) for name in names[:BREACH_LANES_MAX]]
    if len(names) > BREACH_LANES_MAX:
        shown[-1] = f"{len(names) - BREACH_LANES_MAX + 1} more limits"
    axes.set_yticks([-lane for lane in range(len(shown))], shown, fontsize=7, color=BROKEN)
    axes.set_ylim(0.4 - len(shown), 0.6)
    axes.tick_params(length=0, labelbottom=False)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _draw_steps(
    axes: Axes, faults: Sequence[FaultWindow], lanes: Sequence[int], labels: _Labels
) -> None:
    """Draw the steps of procedures in the lower part of their bars: pale while a node is down, half
    so while it is waited for; its name where there is room.
    """
    in_lane: dict[int, list[StepWindow]] = {}
    for fault, lane in zip(faults, lanes, strict=True):
        in_lane.setdefault(lane, []).extend(fault.steps)
    for lane, steps in in_lane.items():
        low, height = -lane - 0.42, 0.2
        down = [(step.start_s, step.up_s) for step in steps]
        after = [(step.up_s, step.end_s) for step in steps]
        many = len(steps) > FAULTS_VECTOR_MAX
        for stretches, alpha in ((down, 0.9), (after, 0.4)):
            if stretches:
                shown = bars(stretches, labels.span_s)
                axes.broken_barh(
                    shown, (low, height), color=PALE, alpha=alpha, linewidth=0, rasterized=many
                )
        for step in sorted(steps, key=lambda step: step.start_s + step.end_s):
            times = step.start_s, step.end_s, low + height / 2
            if (room := labels.room(*times, STEP_PT)) and len(step.node) <= room:
                labels.write(inert(step.node, LABEL_CHARS), *times, color=INK, fontsize=STEP_PT)


def _draw_latency(axes: Axes, scene: Scene, start: float, end: float) -> tuple[str, ...]:
    """Draw raw points by type, and quantile lines of ok operations; return notes on
    omitted points.
    """
    axes.set_yscale("log")
    scale = latency_scale(scene.scale)
    per_s = SECONDS.per_unit / scale.per_unit
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")  # 1, 10, 100: not powers of ten
    axes.yaxis.set_minor_formatter(lambda _value, _: "")
    axes.set_ylabel(f"latency ({scale.unit})")
    axes.grid(axis="y")
    total = sum(outcomes.invoke_s.size for outcomes in scene.operations.values())
    ok = scene.operations[OpType.OK]
    notes = list[str]()
    conflicts = series.NO_OUTCOMES if scene.conflicts is None else scene.conflicts
    *by_type, refused = series.from_foot([*scene.operations.values(), conflicts])
    for kind, outcomes in zip(scene.operations, by_type, strict=True):
        point = _PointStyle(kind.value, MARKERS[kind], COLOURS[kind], front=kind is not OpType.OK)
        notes += _points(axes, point, outcomes, per_s, rasterized=total > VECTOR_POINTS_MAX)
    if refused.invoke_s.size:
        total += refused.invoke_s.size
        notes += _points(axes, CONFLICT, refused, per_s, rasterized=total > VECTOR_POINTS_MAX)
    for quantile, line in series.quantiles(ok, start, end).items():
        style = QUANTILE_STYLES[quantile]
        label = f"p{quantile * 100:g} of ok"
        axes.plot(line.at_s, line.value * per_s, style, color=INK, linewidth=1.0, label=label)
    if total:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, markerscale=1.6)
    else:
        axes.text(0.5, 0.5, "no operations", color=FAINT, ha="center", transform=axes.transAxes)
    return tuple(notes)


def _points(
    axes: Axes, style: _PointStyle, outcomes: Outcomes, per_s: float, *, rasterized: bool
) -> list[str]:
    """Draw smaller and paler points where there are many, so that one type does not bury the
    others; return a note on omitted points.
    """
    size = outcomes.invoke_s.size
    every = max(1, -(-size // POINTS_MAX))
    few = size <= MARKS_MAX
    large, small = (4.5, 2.4) if style.front else (2.6, 2.6)
    axes.plot(
        outcomes.invoke_s[::every],
        outcomes.latency_s[::every] * per_s,
        style.marker,
        color=style.colour,
        markersize=large if few else small,
        markeredgewidth=(0.8 if few else 0.5) if style.front else 0.0,
        alpha=0.9 if few else 0.5,
        label=f"{style.name} ({size:,})",
        rasterized=rasterized,
        zorder=3 if style.front and few else 2,
    )
    if every == 1:
        return []
    return [f"Of the {style.name} operations one in {every} is drawn; the lines count all."]


def _draw_rate(axes: Axes, scene: Scene, start: float, end: float) -> None:
    for kind in (OpType.OK, OpType.FAIL, OpType.INFO):
        line = series.rate(scene.operations[kind], start, end)
        if kind is OpType.OK:
            axes.fill_between(
                line.at_s,
                line.value / scene.per_s,
                step="mid",
                color=COLOURS[kind],
                alpha=0.15,
                linewidth=0,
            )
        if np.any(line.value):
            axes.step(
                line.at_s, line.value / scene.per_s, where="mid", color=COLOURS[kind],
                linewidth=1.2, label=kind.value,
            )  # fmt: skip
    if scene.conflicts is not None and scene.conflicts.invoke_s.size:
        line = series.rate(scene.conflicts, start, end)
        axes.step(
            line.at_s, line.value / scene.per_s, where="mid", color=CONFLICT.colour,
            linewidth=0.9, label=CONFLICT.name,
        )  # fmt: skip
    axes.set_ylabel(f"completions per {UNIT_NAMES[scene.scale.unit]}")
    top = axes.get_ylim()[1]
    axes.set_ylim(0, top if top > 0 else 1)  # of a history of a moment the rate is nothing
    axes.grid(axis="y")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), fontsize=8, markerscale=1.6)


def _mark_phases(
    every: Sequence[Axes], phases: Sequence[tuple[str, float]], start: float, end: float
) -> None:
    """Mark the begin of each phase, with its name where the next one leaves room."""
    inside = [(name, at_s) for name, at_s in phases if start - 1e-3 <= at_s <= end][:MAX_PHASES]
    nexts = [at_s for _, at_s in inside[1:]] + [end]
    for (name, at_s), next_s in zip(inside, nexts, strict=False):  # maybe there is no phase at all
        for axes in every:
            axes.axvline(at_s, color=FAINT, linewidth=0.6, linestyle=(0, (2, 2)), zorder=1)
        if len(name) <= CHARS_ACROSS * (next_s - at_s) / (end - start):
            every[-1].annotate(
                inert(name, LABEL_CHARS), (at_s, 1.0), (3, -2), color=FAINT, fontsize=7.5,
                xycoords=("data", "axes fraction"), textcoords="offset points", va="top",
            )  # fmt: skip
