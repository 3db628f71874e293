"""Tries plans until one shows the wanted failure: the oracle of shrinking.

Simulated plans are tried on all cores, and yet the answer never depends on which of them ended
first: the lowest place that fails counts.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from functools import partial

import attrs
import msgspec

from cli.cells import run_on_nodes, simulation_pool
from cli.environment import SIMULATED
from cli.session import say
from harness.campaigns.cell import SIMULATED_WALL_S, Cell, CellResult, simulated_cell
from harness.campaigns.ledger import Ledger
from harness.campaigns.pool import Choose, in_this_process, in_turn
from harness.clock import substream
from harness.exit_codes import Outcome
from harness.plan.plan import MAX_SEED, Plan
from results.store.store import RunStore


class OutOfTime(Exception):
    """The time is over; the results so far stand."""


@attrs.frozen(kw_only=True)
class Failing:
    """A plan that failed, with the seed that did it; its ``place`` among the candidates; and the
    ``names`` of those that are looked for that it failed with.
    """

    place: int
    plan: Plan
    names: frozenset[str]


@attrs.frozen(kw_only=True)
class Trials:
    """A run fails if it has an anomaly of ``names``. ``ends_s`` is on the machine's monotonic
    clock.

    Each candidate is tried ``tries`` times at most: a simulated one under as many seeds, its own
    first (a fault that is left out shifts all that follows, and then the same seed may miss the
    failure that another one still hits), a real one under its own, since no two of its runs are the
    same. ``ledger`` keeps every run's result.
    """

    names: frozenset[str]
    tries: int
    store: RunStore
    ends_s: float
    jobs: int | None = None
    ledger: Ledger = attrs.field(factory=Ledger)

    def first(self, candidates: Sequence[Plan], *, tries: int | None = None) -> Failing | None:
        """Return the first candidate that fails. Raises ``OutOfTime``."""
        for turn in range((tries or self.tries) if candidates else 0):
            plans = [reseeded(plan, turn) for plan in candidates]
            found = self._first_failing(plans)
            if found is not None:
                return found
        return None

    def times(self, plan: Plan, times: int) -> int:
        """Return how often ``plan`` fails in so many runs; known results don't count."""
        cells = [Cell(plan=plan, repetition=number) for number in range(1, times + 1)]
        # The budget is for finding the plan: how often it fails is told in any case.
        fresh = attrs.evolve(self, ends_s=float("inf"), ledger=Ledger())
        return sum(fresh._fails(result) for result in fresh._run_cells(cells))

    def _first_failing(self, plans: Sequence[Plan]) -> Failing | None:
        if time.monotonic() >= self.ends_s:
            raise OutOfTime
        with closing(self._run_cells(self._cells(plans))) as results:
            for place, result in enumerate(results, start=1):
                if self._fails(result):
                    names = self.names.intersection(result.anomalies)
                    return Failing(place=place - 1, plan=plans[place - 1], names=names)
                # After the last candidate there is nothing left to cut short.
                if place < len(plans) and time.monotonic() >= self.ends_s:
                    raise OutOfTime
        return None

    def _cells(self, plans: Sequence[Plan]) -> list[Cell]:
        """Return a cell for each plan. Two runs of one plan on real nodes are two cells."""
        made = len(self.ledger.known)
        limit_s = min(SIMULATED_WALL_S, max(1.0, self.ends_s - time.monotonic()))
        return [
            attrs.evolve(simulated_cell(plan), limit_s=limit_s)
            if plan.cluster.provider == SIMULATED
            else Cell(plan=plan, repetition=made + number)  # no two of its runs are the same
            for number, plan in enumerate(plans)
        ]

    def _run_cells(self, cells: Sequence[Cell]) -> Generator[CellResult, None, None]:
        """Yield the results of ``cells``; raises ``OutOfTime`` for one that had too little time."""
        reported = frozenset(self.ledger.known)  # a known result comes again with each question
        simulated = cells[0].plan.cluster.provider == SIMULATED
        with closing(self._results(in_turn(cells), simulated)) as results:
            for result in results:
                if result.outcome is Outcome.HARNESS_ERROR and result.key not in reported:
                    if time.monotonic() >= self.ends_s:
                        raise OutOfTime
                    say(f"a trial came to nothing: {'; '.join(result.reasons)}")
                yield result

    def _results(self, choose: Choose, simulated: bool) -> Generator[CellResult, None, None]:
        if simulated:
            return simulation_pool(self.store.root, jobs=self.jobs).results(choose, self.ledger)
        return in_this_process(partial(run_on_nodes, runs_dir=self.store.root), choose, self.ledger)

    def _fails(self, result: CellResult) -> bool:
        return not self.names.isdisjoint(result.anomalies)


def reseeded(plan: Plan, turn: int) -> Plan:
    """Return ``plan`` as it is on turn 0, later, where it is simulated, under seeds that follow
    from its own.
    """
    if turn == 0 or plan.cluster.provider != SIMULATED:
        return plan
    seed = substream(plan.seed, "shrink", turn).randrange(MAX_SEED)
    return msgspec.structs.replace(plan, seed=seed)
