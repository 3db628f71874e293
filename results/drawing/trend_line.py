"""A series over months as one small picture: its nights, its levels, and where they change."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from markupsafe import Markup

from results.drawing.svg import path, picture, text

WIDTH, HEIGHT = 640.0, 96.0
LEFT, RIGHT, TOP, BOTTOM = 4.0, 84.0, 18.0, 14.0
AIR = 0.06  # of the height, above and below


def trend_line(
    title: str,
    nights: Sequence[date],
    values: Sequence[float],
    turns: Sequence[tuple[date, date, float, float, bool]],
    unit: str,
) -> Markup:
    """Draw ``values`` by night; ``turns`` are (begin, end, level before, level behind, worse), in
    their order. Empty without nights.
    """
    if not nights:
        return Markup()
    low, high = min(values), max(values)
    air = AIR * (high - low) or abs(high) * AIR or 1.0
    low, high = max(0.0, low - air) if low >= 0 else low - air, high + air
    first, days = nights[0], max(1, (nights[-1] - nights[0]).days)

    def x(day: date) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (day - first).days / days

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)

    floor, ceiling = HEIGHT - BOTTOM, TOP
    parts = [
        text(title, LEFT, 11.0, "g-lane"),
        path([(x(nights[0]), floor), (x(nights[-1]), floor)], "g-axis"),
        path([(x(day), y(value)) for day, value in zip(nights, values, strict=True)], "g-axis"),
    ]
    for number, (at, until, before, after, worse) in enumerate(turns):
        since = turns[number - 1][1] if number else nights[0]
        upto = turns[number + 1][0] if number + 1 < len(turns) else nights[-1]
        if not number:
            parts.append(path([(x(since), y(before)), (x(at), y(before))], "g-edge"))
        line = [(x(at), y(before)), (x(until), y(after)), (x(upto), y(after))]
        parts.append(path(line, "g-edge g-yet" if worse else "g-edge"))
        parts.append(path([(x(at), floor), (x(at), ceiling)], "g-line"))
        parts.append(text(at.isoformat(), x(at) + 2, floor + 11, "g-soft"))
    for value, at_y in ((high - air, y(high - air)), (low + air, y(low + air))):
        parts.append(text(f"{value:,.4g} {unit}".rstrip(), WIDTH - RIGHT + 6, at_y + 3, "g-soft"))
    return picture(WIDTH, HEIGHT, f"{title} from {nights[0]} to {nights[-1]}", parts)
