"""Tries mutants in drills: which drill comes next, and what the results say of a mutant.

Every mutant is tried in one drill after the other until one kills it: of the drills that execute
its lines first those that execute them most and kill most for their time, kills of mutants of the
same module above all. A store's own tests of its module come last. Which cells are chosen depends
on their results alone, in their order, so that a campaign that goes on from its ledger makes the
same choices.
"""

from __future__ import annotations

import enum
import math
from collections import Counter, deque
from collections.abc import Mapping, Sequence

import attrs
import msgspec

from harness.campaigns.cell import Cell, CellResult, Failure
from harness.exit_codes import Outcome
from harness.mutation.line_coverage import Lines
from harness.mutation.loading import MUTANT
from harness.mutation.rules import Mutant
from harness.mutation.suites import Suite
from harness.plan.plan import Plan
from harness.protocols.consistency_models import OF_NODES

# A sound drill takes a few; storms of messages and endless loops take all. Not less than so many
# times what the sound store takes: a mutant that does everything twice does not hang.
HANG_CPU_S, HANG_TIMES = 15.0, 5.0
# Wall time of a cell, whose CPU time is limited: only a machine that stands still takes so long.
WALL_LIMIT_S = 600.0
# Under a tenth of a drill the figures of its CPU time are noise.
_LEAST_COST_S = 0.1
# So many times what a suite of tests takes on the sound store is kept for it, at most this share
# of a mutant's time.
_KEPT_TIMES, _KEPT_SHARE = 1.5, 1 / 3
PASSED, CUT_SHORT = "passed", "cut short"  # what tests that killed nothing came to
# What a result says of mutants of the same module, beside what it says of all.
_OF_MODULE = 4


class Fate(enum.StrEnum):
    """What became of a mutant. A *crash* is a run without a verdict; a *hang* used up its time. A
    store's own tests tell that it does something else, not that it breaks a promise.
    """

    VERDICT = "killed by verdict"
    CRASH = "killed by crash"
    HANG = "killed by hang"
    TESTS = "killed by tests"
    SURVIVED = "survived"
    UNREACHED = "not reached"
    EQUIVALENT = "equivalent"

    @property
    def killed(self) -> bool:
        """Whether a drill or a test told it from the sound store."""
        return self in (Fate.VERDICT, Fate.CRASH, Fate.HANG, Fate.TESTS)


class MutantResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one mutant.

    ``drill`` is the one that killed it; ``tried`` counts all that it was in but tests, ``unlike``
    those of them whose history was not the sound one's, ``unknown`` those without a verdict on
    promises.
    ``exit_only``: no promise but that nodes stay up was broken. ``run`` is the directory of the
    kill, where it was kept. ``tests`` says what became of the store's own: empty where none was
    asked, ``PASSED`` or ``CUT_SHORT``.
    """

    key: str
    fate: Fate
    drill: str = ""
    anomalies: tuple[str, ...] = ()
    reason: str = ""
    exit_only: bool = False
    tried: int = 0
    unlike: int = 0
    unknown: int = 0
    cpu_s: float = 0.0
    run: str = ""
    tests: str = ""


@attrs.frozen(kw_only=True)
class Drill:
    """A drill that is valid on the sound store: its plan, the lines that it executes (``None``:
    unknown, so it may be any), its CPU time, and the digest of its history. Of a ``suite`` of tests
    the plan is a name alone. ``limit_s`` is the wall time that a mutant may take in it.
    """

    name: str
    plan: Plan
    lines: Lines | None = None
    cost_s: float = _LEAST_COST_S
    digest: str = ""
    suite: Suite | None = None
    options: Mapping[str, str] = {}  # of its cells
    limit_s: float = WALL_LIMIT_S

    def times(self, mutant: Mutant) -> int:
        """How often it executes a line of the statement of ``mutant``; 1 where that is unknown."""
        if self.lines is None:
            return 1
        first, last = mutant.lines
        counts = self.lines.get(mutant.module, {})
        return max((counts.get(line, 0) for line in range(first, last + 1)), default=0)

    def reaches(self, mutant: Mutant) -> bool:
        """Whether it executes a line of the statement of ``mutant``; tests of other modules are
        not asked.
        """
        meant = self.suite is None or self.suite.covers(mutant.module)
        return meant and self.times(mutant) > 0


def fate_of(result: CellResult) -> Fate | None:
    """Return how the cell's mutant was killed; ``None`` where it was not."""
    if result.failure is Failure.CPU:
        return Fate.HANG
    if not counts(result):
        return None
    if result.outcome is Outcome.HARNESS_ERROR:
        return Fate.CRASH
    return Fate.VERDICT if result.outcome is Outcome.VIOLATION else None


def counts(result: CellResult) -> bool:
    """Return whether the result of a mutant's drill stands, though it may be no verdict. A virtual
    clock is late only where the machine had other work to do.
    """
    return result.failure not in (Failure.LATE, Failure.STALE) and not result.interrupted


@attrs.define
class _Trial:
    """A mutant on its way through the drills."""

    mutant: Mutant
    drills: list[Drill]
    drill: Drill | None = None
    may_hang: bool = True  # and is not only cut short by what is left of its time
    tried: int = 0
    unlike: int = 0
    unknown: int = 0
    cpu_s: float = 0.0
    tests: str = ""
    in_tests: bool = False
    reached: bool = False


class Trials:
    """The trials of ``mutants`` in ``drills``: ``choose`` returns the next cell, ``take`` gets each
    result, in the order of the cells.
    """

    def __init__(
        self,
        mutants: Sequence[Mutant],
        drills: Sequence[Drill],
        *,
        abreast: int,
        limit_cpu_s: float,
    ) -> None:
        """So many mutants ``abreast`` are tried at a time, each in one drill; a mutant gets no
        drill that would take it over ``limit_cpu_s`` of a core.
        """
        self._waiting = deque(mutants)
        self._drills, self._abreast, self._limit_cpu_s = tuple(drills), abreast, limit_cpu_s
        self._open: deque[_Trial] = deque()  # begun, in no cell
        self._by_cell: dict[str, _Trial] = {}
        # By drill, and by drill and module of the mutant.
        self._tries: Counter[tuple[str, ...]] = Counter()
        self._kills: Counter[tuple[str, ...]] = Counter()
        self.results: list[MutantResult] = []

    def choose(self) -> Cell | None:
        """Return the next cell; ``None`` where none can be chosen before a result is taken."""
        while True:
            if self._open:
                trial = self._open.popleft()
            elif self._waiting and len(self._by_cell) < self._abreast:
                trial = self._begin(self._waiting.popleft())
            else:
                return None
            drill = self._next_drill(trial)
            if drill is not None:
                return self._enter(trial, drill)
            self._end(trial, Fate.SURVIVED if trial.reached else Fate.UNREACHED)

    def take(self, result: CellResult) -> MutantResult | None:
        """Return the result of a mutant, if that of its cell decides it."""
        trial = self._by_cell.pop(result.key)
        drill = trial.drill
        if drill is None:
            return None
        trial.cpu_s += result.cpu_s or result.wall_s  # on real nodes the time is that of the drill
        fate = fate_of(result)
        if fate is Fate.HANG and not trial.may_hang:
            fate = None
        if drill.suite is None:
            trial.tried += 1
            trial.unlike += result.digest != drill.digest
            trial.unknown += result.outcome is Outcome.UNKNOWN
        # Tests that wait for what never comes use no time of a core.
        elif fate is not None or result.failure is Failure.LATE:
            fate = Fate.TESTS
        elif trial.tests != CUT_SHORT:
            trial.tests = CUT_SHORT if result.failure is Failure.CPU else PASSED
        for key in ((drill.name,), (drill.name, trial.mutant.module)):
            self._tries[key] += 1
            self._kills[key] += fate is not None
        if fate is None:
            # Ahead of mutants that wait, so no more than ``abreast`` are ever under way.
            self._open.append(trial)
            return None
        return self._end(trial, fate, result)

    def kills(self) -> dict[str, tuple[int, int]]:
        """Return kills and tries of each drill, most kills first."""
        order = sorted(self._drills, key=lambda drill: -self._kills[drill.name,])
        return {each.name: (self._kills[each.name,], self._tries[each.name,]) for each in order}

    def _begin(self, mutant: Mutant) -> _Trial:
        drills = [drill for drill in self._drills if drill.reaches(mutant)]
        return _Trial(mutant, drills, reached=bool(drills))

    def _next_drill(self, trial: _Trial) -> Drill | None:
        left = self._limit_cpu_s - trial.cpu_s
        # Tests come behind all drills, but their time is kept: a mutant takes longer than the sound
        # store in some.
        suites = [drill for drill in trial.drills if drill.suite is not None]
        kept_s = min(
            _KEPT_TIMES * sum(drill.cost_s for drill in suites),
            _KEPT_SHARE * self._limit_cpu_s,
        )
        fitting = [
            drill
            for drill in trial.drills
            if drill.suite is None and drill.cost_s <= left - kept_s and not trial.in_tests
        ] or [drill for drill in suites if left > 0]
        if not fitting:
            return None
        # Of equals the first in the list.
        best = max(fitting, key=lambda drill: self._promise(drill, trial.mutant))
        trial.drills.remove(best)
        return best

    def _promise(self, drill: Drill, mutant: Mutant) -> float:
        """Kills of ``mutant`` that a second of a core is likely to bring; a drill that was not
        tried is worth half a kill. The more often it executes the statement, the likelier one of
        these times matters.
        """
        every, same = (drill.name,), (drill.name, mutant.module)
        kills = self._kills[every] + _OF_MODULE * self._kills[same]
        tries = self._tries[every] + _OF_MODULE * self._tries[same]
        share = (kills + 0.5) / (tries + 1) * math.log2(1 + drill.times(mutant))
        return share / max(drill.cost_s, _LEAST_COST_S)

    def _enter(self, trial: _Trial, drill: Drill) -> Cell:
        hang_s = max(HANG_CPU_S, HANG_TIMES * drill.cost_s)
        # At least one: the kernel counts the CPU time of a limit in whole seconds.
        limit_s = max(1.0, min(hang_s, self._limit_cpu_s - trial.cpu_s))
        options = {MUTANT: trial.mutant.key, **drill.options}
        cell = Cell(plan=drill.plan, options=options, limit_s=drill.limit_s, limit_cpu_s=limit_s)
        trial.drill, trial.may_hang = drill, limit_s >= hang_s
        trial.in_tests |= drill.suite is not None
        self._by_cell[cell.key] = trial
        return cell

    def _end(self, trial: _Trial, fate: Fate, by: CellResult | None = None) -> MutantResult:
        anomalies = tuple(sorted(by.anomalies)) if by else ()
        found = MutantResult(
            key=trial.mutant.key,
            fate=fate,
            drill=trial.drill.name if by and trial.drill else "",
            anomalies=anomalies,
            reason=by.reasons[0] if by and by.reasons else "",
            exit_only=bool(anomalies) and set(anomalies) <= OF_NODES,
            tried=trial.tried,
            unlike=trial.unlike,
            unknown=trial.unknown,
            cpu_s=round(trial.cpu_s, 3),
            run=by.run if by else "",
            tests=trial.tests,
        )
        self.results.append(found)
        return found


def score(results: Sequence[MutantResult], reviewed: Mapping[str, object]) -> tuple[int, int]:
    """Return how many mutants were killed, of how many that no review calls equivalent."""
    killed = sum(result.fate.killed for result in results)
    spared = sum(not each.fate.killed and each.key in reviewed for each in results)
    return killed, len(results) - spared
