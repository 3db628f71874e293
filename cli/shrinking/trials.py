"""Tries plans until one shows the wanted failure: the oracle of shrinking.

Simulated plans are tried on all cores, and yet the answer never depends on which of them ended
first: the lowest place that fails counts, and it counts only once all before it are known.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import closing

import attrs
import msgspec

from cli.environment import SIMULATED
from cli.session import say
from harness.clock import substream
from harness.errors import FiredrillError, UsageError
from harness.outcome import Outcome
from harness.plan.plan import MAX_SEED, Plan
from results.store.store import RunStore

Found = tuple[int, Collection[str]]
"""The place of a plan, and the anomalies that decided against its run."""


class OutOfTime(Exception):
    """The time is over; the results so far stand."""


@attrs.frozen(kw_only=True)
class Trials:
    """A run fails if it has an anomaly of ``names``. ``ends_s`` is on the machine's monotonic
    clock.

    Each candidate is tried ``tries`` times at most: a simulated one under as many seeds, its own
    first (a fault that is left out shifts all that follows, and then the same seed may miss the
    failure that another one still hits), a real one under its own, since no two of its runs are the
    same. ``made`` counts runs; ``known`` keeps the results of simulated plans.
    """

    names: frozenset[str]
    tries: int
    store: RunStore
    ends_s: float
    jobs: int | None = None
    made: list[str] = attrs.field(factory=list)
    known: dict[str, bool] = attrs.field(factory=dict)

    def first(
        self, candidates: Sequence[Plan], *, tries: int | None = None
    ) -> tuple[int, Plan] | None:
        """Return the place of the first candidate that fails, and the plan with the seed that did
        it.

        Raises ``OutOfTime``.
        """
        for turn in range((tries or self.tries) if candidates else 0):
            plans = [reseeded(plan, turn) for plan in candidates]
            place = self._first_failing(plans)
            if place is not None:
                return place, plans[place]
        return None

    def times(self, plan: Plan, times: int) -> int:
        """Return how often ``plan`` fails in so many runs; known results don't count."""
        fresh = [attrs.evolve(self, tries=1, ends_s=float("inf"), known={}) for _ in range(times)]
        return sum(trials.first([plan]) is not None for trials in fresh)

    def _first_failing(self, plans: Sequence[Plan]) -> int | None:
        if time.monotonic() >= self.ends_s:
            raise OutOfTime
        if plans[0].cluster.provider == SIMULATED:
            return self._simulated(plans)
        return next((at for at, names in self._real(plans) if self.names & frozenset(names)), None)

    def _simulated(self, plans: Sequence[Plan]) -> int | None:
        """Run the plans without a known result, and decide by the order of places, not by that of
        ends.
        """
        from cli.campaigns.engine import SEED_LIMIT_S, campaign
        from cli.campaigns.seeds import plan_key

        keys = [plan_key(plan) for plan in plans]
        if (place := self._decided(keys)) is not None:
            return place if place < len(keys) else None
        new = {key: plan for key, plan in zip(keys, plans, strict=True) if key not in self.known}
        limit_s = min(SEED_LIMIT_S, max(1.0, self.ends_s - time.monotonic()))
        work = campaign(new.values(), self.store.root, seed_limit_s=limit_s, jobs=self.jobs)
        with closing(work) as results:  # type: ignore[type-var]
            for result in results:
                if result.outcome is Outcome.HARNESS_ERROR:
                    self._count_for_nothing(result.reasons)
                self.made.append(result.key)
                self.known[result.key] = bool(self.names & frozenset(result.anomalies))
                if (place := self._decided(keys)) is not None:
                    return place if place < len(keys) else None
        return None

    def _decided(self, keys: Sequence[str]) -> int | None:
        """Return the first place that fails, or one past the last where none does; ``None`` while
        some place before that is not known.
        """
        for place, key in enumerate(keys):
            if key not in self.known:
                return None
            if self.known[key]:
                return place
        return len(keys)

    def _count_for_nothing(self, reasons: Sequence[str]) -> None:
        if time.monotonic() >= self.ends_s:
            raise OutOfTime
        say(f"a trial came to nothing: {'; '.join(reasons)}")

    def _real(self, plans: Sequence[Plan]) -> Iterator[Found]:
        from cli import judging
        from cli.wiring import run_plan
        from harness.run.progress import Silent
        from harness.run.stop import Stop

        for place, plan in enumerate(plans):
            if time.monotonic() >= self.ends_s:
                raise OutOfTime
            self.made.append(plan.name)
            try:
                run = run_plan(plan, self.store.root, Silent(), Stop())
                yield place, judging.judge(run, None, report=False).verdict.anomalies
            except UsageError:
                raise
            except FiredrillError as error:
                say(f"a trial came to nothing: {error}")
                yield place, ()


def reseeded(plan: Plan, turn: int) -> Plan:
    """Return ``plan`` as it is on turn 0, later, where it is simulated, under seeds that follow
    from its own.
    """
    if turn == 0 or plan.cluster.provider != SIMULATED:
        return plan
    seed = substream(plan.seed, "shrink", turn).randrange(MAX_SEED)
    return msgspec.structs.replace(plan, seed=seed)
