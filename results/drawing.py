"""SVG elements as markup: every text in them inert and escaped, nothing styled inline.

Colours and weights come from classes of the page's one style sheet, so that drawings stay small
and the page's policy has nothing to forbid. Numbers are pixels, rounded the same everywhere: equal
drawings are equal bytes.
"""

from __future__ import annotations

from collections.abc import Iterable

from markupsafe import Markup, escape

from harness.text import inert

CHAR_PX = 6.1  # of the fixed-width font at 10 px; what is laid out must not depend on a browser
TEXT_CHARS = 200
HATCH_PX = 5.0  # between two slanted lines

Value = str | int | float


def tag(name: str, *children: Markup, **attributes: Value) -> Markup:
    """An element; ``class_`` is ``class``, and underscores in names are dashes."""
    told = Markup("").join(
        Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), _shown(value))
        for key, value in attributes.items()
    )
    head = Markup("<{}{}").format(Markup(name), told)  # noqa: S704 (a name that we chose)
    if not children:
        return head + Markup("/>")
    inner = Markup("").join(children)
    return head + Markup(">") + inner + Markup("</{}>").format(Markup(name))  # noqa: S704


def text(content: str, x: float, y: float, class_: str = "", **attributes: Value) -> Markup:
    """A line of text whose baseline begins at (``x``, ``y``)."""
    named = {"class_": class_} if class_ else {}
    return tag("text", escape(inert(content, TEXT_CHARS)), x=x, y=y, **named, **attributes)


def path(points: Iterable[tuple[float, float]], class_: str) -> Markup:
    """A line through ``points``."""
    drawn = " ".join(f"{_shown(x)},{_shown(y)}" for x, y in points)
    return tag("polyline", points=drawn, class_=class_)


def hatching(left: float, right: float, top: float, bottom: float, class_: str) -> Markup:
    """Slanted lines over a box, none of them beyond it."""
    height, steps = bottom - top, []
    start = left - height + HATCH_PX / 2
    while start < right:
        a, b = max(start, left), min(start + height, right)
        steps.append(
            f"M{_shown(a)},{_shown(bottom - (a - start))}L{_shown(b)},{_shown(bottom - b + start)}"
        )
        start += HATCH_PX
    return tag("path", d="".join(steps), class_=class_)


def arrow_head(x: float, y: float, towards: tuple[int, int], class_: str) -> Markup:
    """The tip of an arrow at (``x``, ``y``); ``towards`` is a unit step: (1, 0) points right."""
    dx, dy = towards
    back_x, back_y = x - 8 * dx, y - 8 * dy
    corners = ((x, y), (back_x + 4 * dy, back_y + 4 * dx), (back_x - 4 * dy, back_y - 4 * dx))
    drawn = " ".join(f"{_shown(a)},{_shown(b)}" for a, b in corners)
    return tag("polygon", points=drawn, class_=class_)


def picture(width: float, height: float, label: str, children: Iterable[Markup]) -> Markup:
    """The ``svg`` element; ``label`` is what a screen reader says."""
    return tag(
        "svg",
        *children,
        viewBox=f"0 0 {_shown(width)} {_shown(height)}",
        width=width,
        height=height,
        role="img",
        aria_label=inert(label, TEXT_CHARS),
    )


def clipped(content: str, room_px: float) -> str:
    """``content``, or as much of it as ``room_px`` of the fixed-width font takes."""
    chars = max(1, int(room_px / CHAR_PX))
    shown = inert(content, TEXT_CHARS)
    return shown if len(shown) <= chars else shown[: chars - 1] + "…"


def width_px(content: str) -> float:
    """How much room ``content`` takes in the fixed-width font."""
    return len(inert(content, TEXT_CHARS)) * CHAR_PX


def _shown(value: Value) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)
