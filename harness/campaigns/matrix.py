"""The matrix of a campaign: axes, each with its values, and the cells between them.

A campaign file is TOML: ``plan`` is the file of the plan that all cells share (by default the short
drill), ``seeds`` how many seeds each cell is run under, from ``seed`` on, and ``[matrix]`` names
the axes: short names (``system``, ``mode``, ``workload``, ``faults``, ``provider``, ``release``) or
any dotted key of a plan. ``[[exclude]]`` leaves cells out, ``[[quarantine]]`` runs cells whose
findings do not count until a day, for a reason; ``[night]`` is for ``firedrill nightly``.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import attrs
import msgspec
from msgspec import Meta

from harness.clock import substream
from harness.errors import PlanError
from harness.plan import planfile
from harness.plan.plan import MAX_SEED, NAME_FORM, NAME_PATTERN

AXES = {
    "system": "system.name",
    "release": "system.release",
    "mode": "system.mode",
    "workload": "workload.name",
    "faults": "nemesis.mix",
    "provider": "cluster.provider",
}
"""The keys of plans that the short names of axes stand for."""
MAX_CELLS = 10_000
MAX_REPEATS = 100
MAX_ARTIFACTS = 100
_Value = str | int | float | bool


class Quarantine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cells ``where`` all these axes have these values: their findings do not count up to and with
    the day ``until``, for a ``reason``.
    """

    where: dict[str, _Value]
    until: date
    reason: Annotated[str, Meta(min_length=1)]


class Exclusion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Cells that are not run."""

    where: dict[str, _Value]


class NightRules(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``firedrill nightly`` goes by. ``seeds``: the ``same`` every night, so that nights can
    be compared pair by pair, or ``fresh`` ones, which find more in simulation. ``compare``: what
    of the comparison with the night before counts, ``all`` of it or new ``findings`` alone; few
    runs a night tell nothing about figures. Runs of nights that are more than ``keep_nights`` days
    ago go, but for the last that proves a finding; those that failed are kept for
    ``keep_failed_nights``. ``artifacts``: how many runs that failed are packed as files, each at
    most ``artifact_mib``.
    """

    seeds: Literal["same", "fresh"] = "same"
    compare: Literal["all", "findings", "nothing"] = "all"
    keep_nights: Annotated[int, Meta(ge=1)] = 30
    keep_failed_nights: Annotated[int, Meta(ge=1)] = 180
    artifacts: Annotated[int, Meta(ge=0, le=MAX_ARTIFACTS)] = 5
    artifact_mib: Annotated[float, Meta(gt=0)] = 50.0


class CampaignFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A campaign file. ``repeats``: how often a cell that failed is run again, to say whether it
    does every time; ``time_budget_s``: no cell is begun after that.
    """

    name: Annotated[str, Meta(pattern=NAME_PATTERN, extra=NAME_FORM)] = "campaign"
    plan: str | None = None
    seeds: Annotated[int, Meta(ge=1, le=MAX_CELLS)] = 1
    seed: Annotated[int, Meta(ge=0, le=MAX_SEED)] = 0
    repeats: Annotated[int, Meta(ge=0, le=MAX_REPEATS)] = 2
    time_budget_s: Annotated[float, Meta(gt=0)] | None = None
    matrix: dict[str, list[_Value]] = {}
    exclude: list[Exclusion] = []
    quarantine: list[Quarantine] = []
    night: NightRules = NightRules()


def axes_text(values: Iterable[tuple[str, _Value]]) -> str:
    """Return the values of axes in words: ``workload=bank mode=SC``."""
    return " ".join(f"{axis}={value}" for axis, value in values) or "all"


@attrs.frozen(kw_only=True)
class Place:
    """A cell's place in the matrix: a value for each axis, and the seed."""

    values: tuple[tuple[str, _Value], ...]
    seed: int

    @property
    def axes(self) -> str:
        """The values without the seed, for a table: ``workload=bank mode=SC``."""
        return axes_text(self.values)

    def overrides(self) -> dict[str, object]:
        """The keys of a plan that make it this cell's."""
        given: dict[str, object] = {"seed": self.seed}
        for axis, value in self.values:
            key = AXES.get(axis, axis)
            # Kinds of a mix are one value of the axis, so that a cell may have several.
            given[key] = str(value).split(",") if axis == "faults" else value
        return given


def read(path: Path) -> CampaignFile:
    """Read the campaign file ``path``. Raises ``PlanError``."""
    table = planfile.read_table(path)
    try:
        campaign = planfile.convert(CampaignFile, table, "")
        found = places(campaign)
    except PlanError as error:
        raise PlanError(error.path, error.problem, str(path)) from error
    known = set(campaign.matrix)
    for axis, values in campaign.matrix.items():
        if not values:
            raise PlanError(f"matrix.{axis}", "expected a value at least", str(path))
        if len(set(map(repr, values))) < len(values):
            raise PlanError(f"matrix.{axis}", "expected each value once", str(path))
        if axis not in AXES and "." not in axis:
            hint = planfile.nearest(axis, tuple(AXES))
            raise PlanError(f"matrix.{axis}", f"expected a key of a plan{hint}", str(path))
    keys = [AXES.get(axis, axis) for axis in campaign.matrix]
    for key in keys:
        if keys.count(key) > 1:
            raise PlanError(f"matrix.{key}", "expected one axis of it, found two", str(path))
    for name, rules in (("exclude", campaign.exclude), ("quarantine", campaign.quarantine)):
        for rule in rules:
            _require_places(name, rule.where, known, campaign.matrix, str(path))
    if not found:
        raise PlanError("exclude", "expected a cell that is left to run", str(path))
    return campaign


def places(campaign: CampaignFile) -> list[Place]:
    """Return the places of all cells, in the order of the axes. Raises ``PlanError`` for too many.

    Seeds are the same in every cell, so that cells can be compared pair by pair.
    """
    count = campaign.seeds
    for every in campaign.matrix.values():
        count *= len(every)
    if count > MAX_CELLS:
        raise PlanError("matrix", f"expected at most {MAX_CELLS} cells, found {count}")
    seeds = [_seed(campaign.seed, number) for number in range(campaign.seeds)]
    found = []
    for combination in itertools.product(*campaign.matrix.values()):
        at = tuple(zip(campaign.matrix, combination, strict=True))
        if any(_within(at, rule.where) for rule in campaign.exclude):
            continue
        found += [Place(values=at, seed=seed) for seed in seeds]
    return found


def quarantined(campaign: CampaignFile, place: Place, today: date) -> Quarantine | None:
    """Return the quarantine that ``place`` is under ``today``; ``None`` where it counts."""
    for rule in campaign.quarantine:
        if today <= rule.until and _within(place.values, rule.where):
            return rule
    return None


def shard(sized: Sequence[tuple[Place, float]], number: int, of: int) -> list[Place]:
    """Return the places of shard ``number`` (from 1) of ``of``: the longest first, each to the
    shard that has least to do (Graham, 1969). ``sized`` gives each place its expected seconds; the
    same input gives the same shards on every machine.
    """
    load = [0.0] * of
    mine = []
    numbered = sorted(enumerate(sized), key=lambda each: (-each[1][1], each[0]))
    for _, (place, length_s) in numbered:
        least = min(range(of), key=lambda each: (load[each], each))
        load[least] += length_s
        if least == number - 1:
            mine.append(place)
    return mine


@attrs.frozen(kw_only=True)
class Past:
    """What earlier campaigns say of the cells at the axes' values of a place: how often they were
    run, whether any of their seeds failed or showed nothing the last time, whether the code changed
    since, and which roles each kind of fault has met there (``covered``).
    """

    runs: int = 0
    red: bool = False
    changed: bool = False
    covered: frozenset[tuple[str, str]] = frozenset()

    def behind(self, earlier: Past) -> Past:
        """Return what these results say together with ``earlier`` ones."""
        return attrs.evolve(
            self, runs=earlier.runs + self.runs, covered=earlier.covered | self.covered
        )


def by_risk(found: Iterable[Place], past: Mapping[str, Past]) -> list[Place]:
    """Sort places by what is likely to be found there: never run, then changed since, then red the
    last time, then where faults have met the fewest roles, then the least often run; the first seed
    of every cell before the second of any. ``past`` is by ``Place.axes``.
    """
    numbers: dict[str, int] = {}

    def risk(place: Place) -> tuple[object, ...]:
        known = past.get(place.axes, Past())
        number = numbers[place.axes] = numbers.get(place.axes, -1) + 1
        covered = len(known.covered)
        return number, known.runs > 0, not known.changed, not known.red, covered, known.runs

    ranked = [(risk(place), at, place) for at, place in enumerate(found)]
    return [place for _, _, place in sorted(ranked, key=lambda each: each[:2])]


def _seed(first: int, number: int) -> int:
    return first if number == 0 else substream(first, "campaign", number).randrange(MAX_SEED)


def _within(values: Iterable[tuple[str, _Value]], where: Mapping[str, Any]) -> bool:
    given = dict(values)
    return all(given.get(axis) == value for axis, value in where.items())


def _require_places(
    name: str,
    where: Mapping[str, _Value],
    known: set[str],
    matrix: Mapping[str, Sequence[_Value]],
    source: str,
) -> None:
    for axis, value in where.items():
        if axis not in known:
            raise PlanError(f"{name}.where", f"expected an axis of the matrix (got {axis})", source)
        if value not in matrix[axis]:
            problem = f"expected a value of the axis {axis} (got {planfile.shown(value)})"
            raise PlanError(f"{name}.where", problem, source)
