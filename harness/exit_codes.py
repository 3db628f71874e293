"""The outcomes of a run, worst first, and the exit code of each."""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable

EXIT_USAGE = 254
EXIT_INTERRUPTED = 130  # 128 and SIGINT, as shells show it
EXIT_NO_READER = 141  # what a shell shows for a process that SIGPIPE ended


class Outcome(enum.StrEnum):
    """The outcomes of a run or of an analysis; ``worst`` orders them."""

    VIOLATION = "violation"
    HARNESS_ERROR = "harness error"
    UNKNOWN = "unknown"
    REGRESSION = "regression"
    VALID = "valid"

    @property
    def exit_code(self) -> int:
        """The process exit code that stands for this outcome."""
        return _EXIT_CODES[self]

    @property
    def meaning(self) -> str:
        """One clause for the last line that a person reads."""
        return _MEANINGS[self]


# What Python and click exit with by themselves (1, 2) says nothing of a store: the command line
# catches both, and exits with 255 and 254 instead.
_EXIT_CODES = {
    Outcome.VIOLATION: 1,
    Outcome.HARNESS_ERROR: 255,
    Outcome.UNKNOWN: 2,
    Outcome.REGRESSION: 3,
    Outcome.VALID: 0,
}
_MEANINGS = {
    Outcome.VIOLATION: "a promise of the store was broken",
    Outcome.HARNESS_ERROR: "firedrill or its environment failed; nothing is said about the store",
    Outcome.UNKNOWN: "the run can't tell: vacuous, incomplete or a fault was not proven",
    Outcome.REGRESSION: "every promise was kept, but it got worse than the baseline",
    Outcome.VALID: "every promise that was tested was kept",
}
_WORST_FIRST = tuple(Outcome)
FAILED = (Outcome.VIOLATION, Outcome.HARNESS_ERROR)


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    """The worst of ``outcomes``; without any it is ``unknown``, never a pass."""
    return min(outcomes, key=_WORST_FIRST.index, default=Outcome.UNKNOWN)


def exit_code(
    outcome: Outcome,
    *,
    interrupted: bool,
    outweighed_by: Collection[Outcome] = (Outcome.VIOLATION,),
) -> int:
    """The exit code of a command that came to ``outcome``, and perhaps not to its end: an
    interruption outweighs every outcome but ``outweighed_by``.
    """
    return EXIT_INTERRUPTED if interrupted and outcome not in outweighed_by else outcome.exit_code
