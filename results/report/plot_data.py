"""The figures behind the plot, for the page's script: numbers and names of ours, as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec
from markupsafe import Markup

from harness.history.records import OpType
from harness.text import inert
from results.drawing import plots, series
from results.drawing.axis import SECONDS

DIGITS = 4
FAULTS_MAX = 300
LABEL_CHARS = 60


def notes(scene: plots.Scene) -> tuple[str, ...]:
    """Say what the figures leave out of what is drawn."""
    more = len(scene.faults) - FAULTS_MAX
    if more <= 0:
        return ()
    return (f"Under the pointer are the first {FAULTS_MAX} faults; {more:,} more are drawn alone.",)


def of(scene: plots.Scene, drawn: plots.Picture) -> Markup:
    """Return the lines of the plot in windows of ``step`` from ``first`` on, the spans of the
    faults, and where on the drawing the time axis lies.
    """
    start, end = scene.span_s()
    scale = plots.latency_scale(scene.scale)
    per_unit = SECONDS.per_unit / scale.per_unit
    lines: list[tuple[str, list[float | None], str]] = []
    for kind in (OpType.OK, OpType.FAIL, OpType.INFO):
        rate = series.rate(scene.operations[kind], start, end).value / scene.per_s
        lines.append((kind.value, _rounded(rate), f"/{scene.scale.unit}"))
    if scene.conflicts is not None and scene.conflicts.invoke_s.size:
        rate = series.rate(scene.conflicts, start, end).value / scene.per_s
        lines.append((plots.CONFLICT.name, _rounded(rate), f"/{scene.scale.unit}"))
    for quantile, line in series.quantiles(scene.operations[OpType.OK], start, end).items():
        name = f"p{quantile * 100:g}"
        lines.append((name, _rounded(line.value * per_unit), f" {scale.unit}"))
    data = {
        "left": float(drawn.left),
        "right": float(drawn.right),
        "start": float(drawn.start_s),
        "end": float(drawn.end_s),
        "first": float(start),
        "step": float(series.window_s(end - start)),
        "per_s": scene.per_s,
        "unit": scene.scale.unit,
        "lines": lines,
        "faults": [
            (inert(f"{fault.number} {fault.label}", LABEL_CHARS), fault.start_s, fault.end_s)
            for fault in scene.faults[:FAULTS_MAX]
        ],
    }
    encoded = msgspec.json.encode(data).decode()
    # A name that ends the element must not: as an escape it is the same text.
    return Markup(encoded.replace("<", "\\u003c").replace("&", "\\u0026"))  # noqa: S704


def _rounded(values: Iterable[float]) -> list[float | None]:
    """Return ``values`` to a few digits; ``None`` for a window without any."""
    return [None if math.isnan(v) else float(f"{v:.{DIGITS}g}") for v in map(float, values)]
