"""The results of a campaign as one outcome, and in lines for the user."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from harness.campaigns.cell import CellResult, RunStats
from harness.exit_codes import FAILED, Outcome
from harness.protocols.roles import COVERED

# More seeds than this share that show nothing, and the campaign as a whole shows nothing.
MAX_UNKNOWN_SHARE = 0.02
# With less than these a run shows nothing of data that moves under load.
MOVING_CHANGES, MOVING_OK = 3, 200


def outcome_counts(results: Iterable[CellResult]) -> dict[Outcome, int]:
    """Return the number of results by outcome, the worst first; no zeros."""
    counts = Counter(result.outcome for result in results)
    return {outcome: counts[outcome] for outcome in Outcome if counts[outcome]}


def overall(results: Sequence[CellResult], max_unknown: float = MAX_UNKNOWN_SHARE) -> Outcome:
    """Return the outcome of all seeds together: a few ``unknown`` ones, up to a share of
    ``max_unknown``, are no reason to doubt the rest.
    """
    counts = outcome_counts(results)
    for outcome in FAILED:
        if outcome in counts:
            return outcome
    if not results or counts.get(Outcome.UNKNOWN, 0) > max_unknown * len(results):
        return Outcome.UNKNOWN
    return Outcome.VALID


def totals(results: Sequence[CellResult], wall_s: float, unit: str = "seed") -> Iterator[str]:
    """Yield the sums of ``results``, each of a ``unit``; ``wall_s`` is the time of this command."""
    if not results:
        return
    shown = ", ".join(f"{outcome.value} {n}" for outcome, n in outcome_counts(results).items())
    yield f"{len(results)} {unit}s: {shown}"
    # What has no figures is not counted so: zeros would say that nothing was done.
    whole = [result.stats for result in results if result.judged and result.stats != RunStats()]
    if whole:
        yield from _operations(whole, unit)
        yield from _rebalances(whole, unit)
        yield from _resets(whole, unit)
        yield from _starts(whole)
        yield from _roles(whole)
    simulated_s = sum(result.stats.simulated_s for result in results)
    took = f"this command took {wall_s:.0f} s"
    if not simulated_s:
        yield f"time: {took}"
        return
    computed_s = sum(result.cpu_s for result in results if result.stats.simulated_s)
    yield (
        f"time: {simulated_s:.0f} s simulated with {computed_s:.0f} s of a core "
        f"({simulated_s / (computed_s or 1.0):.1f} a second); {took}"
    )


def _operations(runs: Sequence[RunStats], unit: str) -> Iterator[str]:
    sizes = [run.operations for run in runs]
    shares = sorted(run.ok_share for run in runs)
    yield (
        f"operations: {sum(sizes)}, median {statistics.median(sizes):.0f} a {unit}; "
        f"ok: median {statistics.median(shares):.0%}, least {shares[0]:.0%}"
    )
    moved = sum(1 for run in runs if run.changes)
    under_load = sum(1 for run in runs if run.open_changes)
    yield (
        f"{unit}s with a change of primary: {moved / len(runs):.0%}, "
        f"under open transactions: {under_load / len(runs):.0%}"
    )


def _rebalances(runs: Sequence[RunStats], unit: str) -> Iterator[str]:
    """Yield what the rebalances of runs that had any came to, by kind."""
    counts: Counter[str] = Counter()
    for run in runs:
        counts.update(run.rebalances)
    moved = sum(1 for run in runs if run.rebalances.get("completed"))
    if any(counts.values()):
        named = ", ".join(f"{kind} {count}" for kind, count in counts.items())
        yield f"rebalances: {named}; {moved} {unit}s with a completed one"
        sizes = [run.topology_changes for run in runs]
        moving = sum(1 for run in runs if _data_moved_under_load(run))
        yield (
            f"changes of members or zones: {sum(sizes)}, "
            f"median {statistics.median(sizes):.0f} a {unit}; "
            f"{moving / len(runs):.0%} of {unit}s with {MOVING_CHANGES} of them, "
            f"a completed rebalance and {MOVING_OK} ok"
        )


def _data_moved_under_load(run: RunStats) -> bool:
    """Whether ``run`` shows anything of rebalances: a few changes, and data that moved for one,
    while clients were served.
    """
    completed = run.rebalances.get("completed", 0)
    return run.topology_changes >= MOVING_CHANGES and completed > 0 and run.ok >= MOVING_OK


def _resets(runs: Sequence[RunStats], unit: str) -> Iterator[str]:
    """Yield how many runs had forced resets, and lost writes by them."""
    if any(run.resets for run in runs):
        reset = sum(1 for run in runs if run.resets)
        lost = sum(1 for run in runs if run.lost_by_resets)
        yield (
            f"resets: {sum(run.resets for run in runs)}, in {reset / len(runs):.0%} of {unit}s; "
            f"writes lost inside their envelopes: {sum(run.lost_by_resets for run in runs)}, in "
            f"{lost / len(runs):.0%} of {unit}s"
        )


def _starts(runs: Sequence[RunStats]) -> Iterator[str]:
    """Yield what full restarts met, and what nodes decided on their copies as they started."""
    restarts, chained = (
        sum(run.full_restarts for run in runs),
        sum(run.chained_restarts for run in runs),
    )
    if restarts:
        yield (
            f"full restarts: {restarts}, of which {chained} ({chained / restarts:.0%}) began while "
            "the chain of a partition had several links"
        )
    decisions: Counter[str] = Counter()
    for run in runs:
        decisions.update(run.start_decisions)
    if decisions:
        named = "; ".join(f"{outcome} ({count})" for outcome, count in decisions.most_common())
        yield f"start decisions: {named}"


def _roles(runs: Sequence[RunStats]) -> Iterator[str]:
    """Yield the table fault x role: the number of proven faults by role; then its empty cells."""
    # Also the kinds that were tried and hit nothing: their cells are the empty ones.
    hits: dict[str, Counter[str]] = {kind: Counter() for run in runs for kind in run.tried}
    for run in runs:
        for kind, hit in run.hits.items():
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
