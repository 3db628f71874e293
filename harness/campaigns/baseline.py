"""What a store serves in calm: measured over seeds, recorded, and compared later.

A store that refuses more than it did, or fails where it did not, breaks no promise: every history
is valid. So the shares of operations that succeed, conflict or fail otherwise in *calm* (no fault
in force, and the last one healed for a while) are compared with those of a recorded campaign of the
same setting. Faults would drown the difference: what they cost depends on the nodes that they hit.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from harness.campaigns.cell import CalmCounts, CellResult
from harness.errors import UsageError
from harness.history.durable_files import write_atomically
from harness.history.regular_files import read_small

MAX_BYTES = 64 << 20
SEEDS_MIN = 4  # of a workload: of fewer a mean says little
OPERATIONS_MIN = 10  # of a seed in calm, for its shares to count
# Of the means of two campaigns, in standard errors of their difference: with two figures for each
# of two workloads, about one sound campaign in ten thousand is further away.
ERRORS_MOST = 4.0
# What no user would feel, though thousands of seeds may show it.
CHANGE_LEAST = 0.01


class Share(msgspec.Struct, frozen=True, kw_only=True):
    """The mean of a share over seeds, and its standard deviation from seed to seed."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, shares: Sequence[float]) -> Share:
        """The figures of ``shares``, one a seed."""
        deviation = statistics.stdev(shares) if len(shares) > 1 else 0.0
        return cls(mean=round(statistics.fmean(shares), 6), deviation=round(deviation, 6))


class ServedShares(msgspec.Struct, frozen=True, kw_only=True):
    """The shares of a workload's operations in calm over ``seeds``: ``ok``, those that ended in a
    conflict with another, and all others, unknown outcomes among them.
    """

    seeds: int
    ok: Share
    conflicts: Share
    failures: Share


class Baseline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was served, by workload; ``setting`` names what the plans of all seeds have in common:
    figures of two settings are not compared.
    """

    setting: str
    workloads: dict[str, ServedShares]


class Worse(msgspec.Struct, frozen=True, kw_only=True):
    """A share of a workload that is worse than the baseline by more than ``tolerance``."""

    workload: str
    share: str
    now: float
    then: float
    tolerance: float

    @property
    def text(self) -> str:
        """One sentence."""
        return (
            f"{self.workload}: in calm {self.now:.1%} of the operations {self.share}, "
            f"{self.then:.1%} in the baseline (tolerance {self.tolerance:.1%})"
        )


def served(results: Iterable[CellResult]) -> dict[str, ServedShares]:
    """Return what each workload was served over those of ``results`` that were judged."""
    counts: dict[str, list[CalmCounts]] = {}
    for result in results:
        calm = result.stats.calm
        if result.judged and calm.operations >= OPERATIONS_MIN:
            counts.setdefault(result.workload, []).append(calm)
    return {
        workload: ServedShares(
            seeds=len(seeds),
            ok=Share.of([calm.ok / calm.operations for calm in seeds]),
            conflicts=Share.of([calm.conflicts / calm.operations for calm in seeds]),
            failures=Share.of([calm.failures / calm.operations for calm in seeds]),
        )
        for workload, seeds in sorted(counts.items())
    }


def worse(now: Mapping[str, ServedShares], then: Mapping[str, ServedShares]) -> list[Worse]:
    """Return the shares that are worse now: fewer that succeeded, more that failed and met no
    conflict. Workloads with fewer than ``SEEDS_MIN`` seeds on a side are passed over.
    """
    found = []
    for workload in now:
        one, other = now[workload], then.get(workload)
        if other is None or min(one.seeds, other.seeds) < SEEDS_MIN:
            continue
        for share, a, b, sign in (
            ("succeeded", one.ok, other.ok, -1),
            ("failed without a conflict", one.failures, other.failures, 1),
        ):
            tolerance = _tolerance((a, one.seeds), (b, other.seeds))
            if sign * (a.mean - b.mean) > tolerance:
                row = Worse(
                    workload=workload, share=share, now=a.mean, then=b.mean, tolerance=tolerance
                )
                found.append(row)
    return found


def _tolerance(one: tuple[Share, int], other: tuple[Share, int]) -> float:
    """Return how far two means may be apart by chance. The greater deviation counts on both sides:
    of few seeds the own one may be far too small.
    """
    deviation = max(one[0].deviation, other[0].deviation)
    error = deviation * math.sqrt(1 / one[1] + 1 / other[1])
    return max(CHANGE_LEAST, ERRORS_MOST * error)


def described(now: Mapping[str, ServedShares]) -> list[str]:
    """Return a line of figures for each workload."""
    return [
        f"in calm, {workload}: ok {s.ok.mean:.1%}, conflicts {s.conflicts.mean:.1%}, "
        f"other failures {s.failures.mean:.1%} (means of {s.seeds} seeds)"
        for workload, s in now.items()
    ]


def read(path: Path) -> Baseline:
    """Read a recorded baseline. Raises ``UsageError``."""
    try:
        return msgspec.json.decode(read_small(path, MAX_BYTES), type=Baseline)
    except OSError as error:
        raise UsageError(f"{path}: no baseline can be read: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{path}: expected a recorded baseline: {error}") from error


def write(path: Path, baseline: Baseline) -> None:
    """Write ``baseline`` for ``read``. Raises ``HarnessError``."""
    encoded = msgspec.json.format(msgspec.json.encode(baseline), indent=2)
    write_atomically(path, encoded + b"\n")
