"""The results of a campaign of seeds, in lines for the user."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence

from cli.campaigns.seeds import SeedResult
from harness.outcome import Outcome
from harness.protocols.roles import COVERED

# More seeds than this share that show nothing, and the campaign as a whole shows nothing.
MAX_UNKNOWN_SHARE = 0.02


def overall(results: Sequence[SeedResult], max_unknown: float = MAX_UNKNOWN_SHARE) -> Outcome:
    """Return the outcome of all seeds together: a few ``unknown`` ones, up to a share of
    ``max_unknown``, are no reason to doubt the rest.
    """
    counts = Counter(result.outcome for result in results)
    for outcome in (Outcome.VIOLATION, Outcome.HARNESS_ERROR):
        if counts[outcome]:
            return outcome
    if not results or counts[Outcome.UNKNOWN] > max_unknown * len(results):
        return Outcome.UNKNOWN
    return Outcome.VALID


def totals(results: Sequence[SeedResult], wall_s: float) -> Iterator[str]:
    """Yield the sums of ``results``; ``wall_s`` is the time of this command."""
    if not results:
        return
    counts = Counter(result.outcome for result in results)
    shown = ", ".join(
        f"{outcome.value} {counts[outcome]}" for outcome in Outcome if counts[outcome]
    )
    yield f"{len(results)} seeds: {shown}"
    whole = [result for result in results if result.outcome is not Outcome.HARNESS_ERROR]
    if whole:
        yield from _operations(whole)
        yield from _roles(whole)
    simulated_s = sum(result.simulated_s for result in results)
    computed_s = sum(result.cpu_s for result in results)
    yield (
        f"time: {simulated_s:.0f} s simulated with {computed_s:.0f} s of a core "
        f"({simulated_s / (computed_s or 1.0):.1f} a second); this command took {wall_s:.0f} s"
    )


def _operations(results: Sequence[SeedResult]) -> Iterator[str]:
    sizes = [result.ok + result.fail + result.info for result in results]
    shares = sorted(result.ok_share for result in results)
    yield (
        f"operations: {sum(sizes)}, median {statistics.median(sizes):.0f} a seed; "
        f"ok: median {statistics.median(shares):.0%}, least {shares[0]:.0%}"
    )
    moved = sum(1 for result in results if result.changes)
    under_load = sum(1 for result in results if result.open_changes)
    yield (
        f"seeds with a change of primary: {moved / len(results):.0%}, "
        f"under open transactions: {under_load / len(results):.0%}"
    )


def _roles(results: Sequence[SeedResult]) -> Iterator[str]:
    """Yield the table fault x role: the number of proven faults by role; then its empty cells."""
    hits: dict[str, Counter[str]] = {kind: Counter() for r in results for kind in r.tried}
    for result in results:
        for kind, hit in result.hits.items():
            hits.setdefault(kind, Counter()).update(hit)
    if not hits:
        return
    width = max(map(len, (*hits, "fault")))
    found = dict.fromkeys(role for counts in hits.values() for role in counts)
    columns = (*COVERED, *sorted(role for role in found if role not in COVERED))
    yield f"{'fault':{width}}  {'  '.join(columns)}"
    for kind in sorted(hits):
        cells = (f"{hits[kind][role]:>{len(role)}}" for role in columns)
        yield f"{kind:{width}}  {'  '.join(cells)}"
    empty = [
        f"{kind} of {role}" for kind in sorted(hits) for role in COVERED if not hits[kind][role]
    ]
    yield f"empty cells: {', '.join(empty) or 'none'}"


CONFIDENCE = 0.95
METHOD = f"Clopper-Pearson, {CONFIDENCE:.0%} confidence"


def between(found: int, times: int) -> str:
    """Return the confidence interval of the share, given ``found`` of ``times`` independent
    repetitions.
    """
    from scipy.stats import binomtest  # half a second to import

    bounds = binomtest(found, times).proportion_ci(CONFIDENCE, method="exact")
    return f"between {bounds.low:.0%} and {bounds.high:.0%}"
