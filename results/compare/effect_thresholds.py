"""What is compared, and what counts as worse: the figures, and the smallest effects that matter."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import attrs

from harness.errors import UsageError
from harness.plan.planfile import nearest

LEVEL = 0.02
"""The chance that a comparison of two equal builds calls anything at all, before effects count: of
a hundred quiet nights two may."""


class Scale(enum.Enum):
    """How two values of a figure are compared: a time or a rate by its ratio; what may be zero by
    its difference.
    """

    RATIO = "ratio"
    DIFFERENCE = "difference"


@attrs.frozen(kw_only=True)
class Figure:
    """A figure of runs, by its field of ``RunFigures``. ``more_is_worse``: a rise is no gain.

    A change matters from ``relative`` of the base on (a share), and, of a difference, from
    ``absolute`` on, in the figure's unit.
    """

    name: str
    words: str
    unit: str
    scale: Scale
    relative: float
    absolute: float = 0.0
    more_is_worse: bool = True


def _from_zero(name: str, words: str, unit: str, absolute: float) -> Figure:
    """A figure that may be zero: a fifth more matters, where that is ``absolute`` at least."""
    return Figure(
        name=name,
        words=words,
        unit=unit,
        scale=Scale.DIFFERENCE,
        relative=0.2,
        absolute=absolute,
    )


FIGURES = (
    Figure(
        name="ok_per_s",
        words="throughput",
        unit="1/s",
        scale=Scale.RATIO,
        relative=0.05,
        more_is_worse=False,
    ),
    Figure(name="p50_ms", words="latency p50", unit="ms", scale=Scale.RATIO, relative=0.05),
    Figure(name="p99_ms", words="latency p99", unit="ms", scale=Scale.RATIO, relative=0.15),
    _from_zero("unavailable_s", "unavailable", "s", 0.3),
    _from_zero("recover_s", "time to recover", "s", 0.3),
    _from_zero("takeover_s", "time to take over", "s", 0.3),
    _from_zero("indefinite_share", "indefinite share", "", 0.005),
    _from_zero("lost_inside", "writes lost inside an envelope", "", 1.0),
)
BY_NAME: Mapping[str, Figure] = MappingProxyType({figure.name: figure for figure in FIGURES})


@attrs.frozen(kw_only=True)
class Rules:
    """The rules of a comparison: ``level`` bounds the chance of any false call; ``across`` names
    what cells of the two sides may differ in (``system``, ``mode``, ``provider`` ...). With too few
    runs to tell any change of a figure a comparison is ``unknown``, or, where ``findings_suffice``,
    what findings and faults make it. Findings ``known`` by their fingerprints are no news, also
    where the base has none of them.
    """

    figures: tuple[Figure, ...] = FIGURES
    level: float = LEVEL
    across: frozenset[str] = frozenset()
    findings_suffice: bool = False
    known: frozenset[str] = frozenset()


def with_effects(given: Iterable[str]) -> tuple[Figure, ...]:
    """Return the figures with smallest effects as ``given``, each ``NAME=SHARE``: ``p50_ms=0.1``.
    Raises ``UsageError``.
    """
    found = dict(BY_NAME)
    for text in given:
        name, _, value = text.partition("=")
        if name not in found:
            raise UsageError(f"effect {text!r}: no such figure{nearest(name, tuple(found))}")
        try:
            share = float(value)
        except ValueError:
            share = -1.0
        if not 0 <= share < 100:
            raise UsageError(f"effect {text!r}: expected a share, as in {name}=0.1")
        found[name] = attrs.evolve(found[name], relative=share)
    return tuple(found.values())
