"""Durations and sizes in the notation of the command line."""

from __future__ import annotations

import math
import re

import click

_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_UNITS_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SIZE_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_FORM = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")


def seconds(_context: click.Context, _option: click.Parameter, value: str | None) -> float | None:
    """Parse ``90``, ``90s``, ``30m``, ``8h`` or ``14d`` as seconds: the callback of an option.

    Raises ``click.BadParameter`` for any other text, and for zero or less.
    """
    if value is None:
        return None
    found = _FORM.fullmatch(value.strip())
    seconds = float(found[1]) * _UNITS_S[found[2] or "s"] if found else 0.0
    if seconds <= 0:
        raise click.BadParameter(f"expected a time like 90s, 30m, 8h or 14d (got {value!r})")
    return seconds


def size_bytes(_context: click.Context, _option: click.Parameter, value: str | None) -> int | None:
    """Parse ``1000``, ``500M`` or ``20G`` (of 1,024 each) as bytes: the callback of an option.

    Raises ``click.BadParameter`` for any other text.
    """
    if value is None:
        return None
    found = _SIZE_FORM.fullmatch(value.strip())
    if not found:
        raise click.BadParameter(f"expected a size like 500M or 20G (got {value!r})")
    return int(float(found[1]) * _UNITS_BYTES[found[2].upper()])


class Range(click.FloatRange):
    """The numbers of a range. NaN, which is neither less nor more than its ends, is none."""

    def convert(
        self, value: float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """See ``click.ParamType``."""
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"expected a number (got {value!r})", param, ctx)
        return found
