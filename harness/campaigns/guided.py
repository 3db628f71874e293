"""Guided search: runs whose plans are chosen by what the runs before them reached.

A plan that reached something new is kept, and children are made of it, how often its energy says
(``power_schedule``); the rest are random plans, as a campaign without guidance would have them.
What is chosen depends on the seed, the corpus at the beginning and the
results in their order alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random

import attrs
from msgspec.structs import replace

from harness.campaigns.cell import Cell, CellResult, simulated_cell
from harness.campaigns.corpus import Corpus, Entry, reach_counts
from harness.campaigns.coverage_log import decode
from harness.campaigns.power_schedule import Parent, energy, moment_weight
from harness.campaigns.variation import Variation
from harness.clock import substream
from harness.errors import PlanError
from harness.exit_codes import Outcome
from harness.plan.plan import Plan
from harness.protocols.coverage import Features

COVERED = "coverage"  # the option of a cell whose result has its coverage
# Cells chosen before the first of them has its result: few, since choices learn from results.
GUIDED_AHEAD = 8
FRESH_SHARE = 0.15  # of random plans among the choices
FIRST_FRESH = 4  # random plans, where the corpus is empty
FRESH_TRIES = 100  # for a random plan that can be drawn
OPERATION_S = 0.03  # what an operation costs, in simulated seconds
NAME_DIGITS = 10
CHILD = rf"explore-[0-9a-f]{{{NAME_DIGITS}}}"  # matches the name of a child


@attrs.define(kw_only=True)
class Guided:
    """One search of ``runs`` runs, endless where that is ``None``: ``choose`` returns the next
    cell, ``take`` gets each result, in the order of the cells. ``fresh`` returns the random plan of
    a number, ``parents`` are the plans of ``corpus`` to begin with. A cell may take ``limit_s`` of
    a core. ``refused`` counts the numbers whose plan can't be drawn, ``refusal`` is why the last
    could not.
    """

    seed: int
    fresh: Callable[[int], Plan]
    variation: Variation
    corpus: Corpus
    parents: Sequence[Entry] = ()
    runs: int | None = None
    limit_s: float
    added: int = attrs.field(init=False, default=0)
    refused: int = attrs.field(init=False, default=0)
    refusal: str = attrs.field(init=False, default="")
    reached: dict[str, int] = attrs.field(init=False)  # by feature: runs that reached it
    _open: list[Parent] = attrs.field(init=False)
    _kept: set[str] = attrs.field(init=False)  # the features of all parents
    _begun: int = attrs.field(init=False, default=0)
    _drawn: int = attrs.field(init=False, default=0)
    _taken: int = attrs.field(init=False)
    _plans: dict[str, Plan] = attrs.field(init=False, factory=dict)  # of cells not yet taken

    def __attrs_post_init__(self) -> None:
        self._open = [Parent(entry) for entry in self.parents]
        self.reached = dict(reach_counts(self.parents))
        self._kept = set(self.reached)
        self._taken = len(self.parents)

    def choose(self) -> Cell | None:
        """Return the next cell; ``None`` where there are enough, or no plan can be drawn."""
        if self.runs is not None and self._begun >= self.runs:
            return None
        draw = substream(self.seed, "explore", self._begun)
        self._begun += 1
        plan = self._child(draw) or self._fresh()
        if plan is None:
            return None
        cell = simulated_cell(plan, options={COVERED: "told"}, limit_s=self.limit_s)
        self._plans[cell.key] = plan
        return cell

    def take(self, result: CellResult) -> Features:
        """Take in the next result, and return what no run had reached before it."""
        # An equal cell may have been taken before, with its plan.
        plan = self._plans.pop(result.key, None)
        try:
            features = decode(result.coverage)
        except ValueError:
            features = frozenset()
        new = frozenset(feature for feature in features if feature not in self.reached)
        self._taken += 1
        for feature in features:
            self.reached[feature] = self.reached.get(feature, 0) + 1
        # What breaks a promise is told and shrunk, and what shows nothing is no parent: what such a
        # run was the first to reach is still to be kept with the next that is valid.
        if features - self._kept and plan is not None and result.outcome is Outcome.VALID:
            self._kept |= features
            entry = Entry(plan=plan, features=features, cost_s=_cost_s(result))
            self.corpus.add(entry)
            self._open.append(Parent(entry))
            self.added += 1
        return new

    def _fresh(self) -> Plan | None:
        for _ in range(FRESH_TRIES):
            self._drawn += 1
            if (plan := self._plan_of(self._drawn - 1)) is not None:
                return plan
        return None

    def _plan_of(self, number: int) -> Plan | None:
        """The random plan of ``number``; ``None`` where its draws and what is given don't agree."""
        try:
            return self.fresh(number)
        except PlanError as error:
            self.refused += 1
            self.refusal = str(error)
            return None

    def _child(self, draw: Random) -> Plan | None:
        if not self._open or (self._taken < FIRST_FRESH) or draw.random() < FRESH_SHARE:
            return None
        parent = self._chosen(draw)
        child = self.variation.child(
            draw, parent.entry.plan, lambda: self._other(draw), partial(moment_weight, self.reached)
        )
        # Also where no child was made: a plan that can't have any must not be drawn for ever.
        parent.children += 1
        return None if child is None else _named(child)

    def _other(self, draw: Random) -> Plan:
        if draw.random() < 0.5:
            # Not by the next number: which plans ``_fresh`` returns must not depend on crossings.
            fresh = self._plan_of(draw.randrange(1 << 30))
            if fresh is not None:
                return fresh
        return self._chosen(draw).entry.plan

    def _chosen(self, draw: Random) -> Parent:
        weights = [energy(parent, self.reached, self._taken) for parent in self._open]
        return draw.choices(self._open, weights=weights)[0]


def _named(plan: Plan) -> Plan:
    """Return ``plan`` under the name that equal children have, too."""
    same = replace(plan, name="explore")
    return replace(plan, name=f"explore-{Cell(plan=same).key[:NAME_DIGITS]}")


def _cost_s(result: CellResult) -> float:
    stats = result.stats
    return round(max(1.0, stats.simulated_s + OPERATION_S * stats.operations), 3)


def rarest(reached: Mapping[str, int], features: Iterable[str], most: int) -> list[str]:
    """Return at most so many of ``features``, those that the fewest runs reached first."""
    return sorted(features, key=lambda feature: (reached.get(feature, 0), feature))[:most]
