"""SVG elements as markup: every text in them inert and escaped, nothing styled inline.

Colours and weights come from classes of the page's one style sheet, so that drawings stay small
and need nothing that the page's policy forbids. Numbers are pixels, rounded the same everywhere:
equal drawings are equal bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from xml.etree import ElementTree as ET

from markupsafe import Markup, escape

from harness.text import inert

CHAR_PX = 6.1  # of the fixed-width font at 10 px; what is laid out must not depend on a browser
TEXT_CHARS = 200
HATCH_PX = 5.0  # between two slanted lines

Value = str | int | float
_NAME = re.compile(r"\{[^}]*\}")
_REFERENCE = re.compile(r"url\(#([^)]*)\)")
_FONT = re.compile(r"(?:\w+ )*?(?P<size>[\d.]+px)")
# Colours of the plots that follow the page's theme; data keeps its own in any light.
THEMED = {
    "#1b1f23": "var(--ink)",
    "#6a737d": "var(--soft)",
    "#e3e6e9": "var(--line)",
    "#3b4046": "var(--down)",
    "#0072b2": "var(--ok)",
}
_DROPPED = frozenset({"metadata", "style", "title"})


def tag(name: str, *children: Markup, **attributes: Value) -> Markup:
    """An element; ``class_`` is ``class``, and underscores in names are dashes."""
    # ``format`` of a Markup escapes what it inserts.
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
    """Return the ``svg`` element; ``label`` is its text for a screen reader."""
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
    """Return as much of ``content`` as ``room_px`` of the fixed-width font takes."""
    chars = max(1, int(room_px / CHAR_PX))
    shown = inert(content, TEXT_CHARS)
    return shown if len(shown) <= chars else shown[: chars - 1] + "…"


def width_px(content: str) -> float:
    """Return the width of ``content`` in the fixed-width font."""
    return len(inert(content, TEXT_CHARS)) * CHAR_PX


def _shown(value: Value) -> str:
    return f"{value:.1f}".removesuffix(".0") if isinstance(value, float) else str(value)


def inline(svg: str, label: str) -> str:
    """Return the ``<svg>`` element of ``svg`` without namespaces, styles or unused identifiers;
    ``label`` is its text for a screen reader.
    """
    root = ET.fromstring(svg)  # noqa: S314 (our own plot, made a moment ago)
    for element in root.iter():
        element.tag = _NAME.sub("", element.tag)
        element.attrib = _presentation(element.attrib)
    # A copy, since children are removed on the way.
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in _DROPPED]:
            parent.remove(child)
    _number_ids(root)
    # The page's style sheet sets the size.
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {
        "role": "img",
        "aria-label": label,
        "stroke-linejoin": "round",
        "stroke-linecap": "butt",
    }
    return ET.tostring(root, encoding="unicode", short_empty_elements=True)


def _presentation(attributes: dict[str, str]) -> dict[str, str]:
    return {name: THEMED.get(value, value) for name, value in _attributes(attributes).items()}


def _attributes(attributes: dict[str, str]) -> dict[str, str]:
    found = {_NAME.sub("", name): value for name, value in attributes.items() if name != "style"}
    # The page's policy forbids inline styles: each declaration becomes an attribute.
    for declaration in attributes.get("style", "").split(";"):
        name, colon, value = (part.strip() for part in declaration.partition(":"))
        if name == "font":  # a shorthand, which has no presentation attribute
            match = _FONT.match(value)
            found["font-size"] = match["size"] if match else value
        elif colon and name != "font-family":  # the page's own font is used
            found[name] = value
    return found


def _number_ids(root: ET.Element) -> None:
    """Number identifiers in their order, and remove the unused ones.

    Two plots in a page may not both have a ``figure_1``; and matplotlib's own are hashes of
    floating point numbers whose last digit varies with its layout.
    """
    used = set()
    for element in root.iter():
        used.update(_REFERENCE.findall(" ".join(element.attrib.values())))
        used.add(element.attrib.get("href", "").removeprefix("#"))
    names: dict[str, str] = {}
    for element in root.iter():
        found = element.attrib.pop("id", None)
        if found in used and found is not None:
            element.attrib["id"] = names.setdefault(found, f"plot-{len(names)}")
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == "href" and value.startswith("#"):
                element.attrib[name] = f"#{names.get(value[1:], value[1:])}"
            elif "url(#" in value:
                element.attrib[name] = _REFERENCE.sub(
                    lambda match: f"url(#{names.get(match[1], match[1])})", value
                )
