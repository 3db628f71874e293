"""matplotlib's SVG, made fit to stand inside a page that allows no inline styles.

A strict content security policy ignores ``style`` attributes, and a ``<style>`` element inside an
inline SVG would apply to the whole page. Both become presentation attributes here.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

_NAME = re.compile(r"\{[^}]*\}")
_REFERENCE = re.compile(r"url\(#([^)]*)\)")
_FONT = re.compile(r"(?:\w+ )*?(?P<size>[\d.]+px)")
THEMED = {
    "#1b1f23": "var(--ink)",
    "#6a737d": "var(--soft)",
    "#e3e6e9": "var(--line)",
    "#3b4046": "var(--down)",
    "#0072b2": "var(--ok)",
}
"""Colours of the plots that follow the page's theme; data keeps its own in any light."""
_DROPPED = frozenset({"metadata", "style", "title"})


def inline(svg: str, label: str) -> str:
    """The ``<svg>`` element of ``svg`` without namespaces, styles or identifiers that nothing
    refers to; ``label`` is what a screen reader says.
    """
    root = ET.fromstring(svg)  # noqa: S314 (our own plot, made a moment ago)
    for element in root.iter():
        element.tag = _NAME.sub("", element.tag)
        element.attrib = _presentation(element.attrib)
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag in _DROPPED]:
            parent.remove(child)
    _number_ids(root)
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
    for declaration in attributes.get("style", "").split(";"):
        name, colon, value = (part.strip() for part in declaration.partition(":"))
        if name == "font":  # a shorthand, which has no presentation attribute
            match = _FONT.match(value)
            found["font-size"] = match["size"] if match else value
        elif colon and name != "font-family":  # the page's own font is used
            found[name] = value
    return found


def _number_ids(root: ET.Element) -> None:
    """Identifiers by their order, and none that nothing refers to.

    Two plots in a page may not both have a ``figure_1``; and matplotlib's own are hashes of
    floating point numbers that its layout leaves to chance in the last digit.
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
