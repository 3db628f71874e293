"""Selection of the runs that may be removed: pure functions over records of the runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import attrs

ID_TIME_CHARS = len("YYYYMMDD-HHMMSS")


@attrs.frozen(kw_only=True)
class RunRecord:
    """The record of one run: its identifier, its outcome where it was judged, and why it must stay
    under any rule (it is driven, or its cluster is up); empty where nothing holds it. ``findings``
    are the fingerprints of what it proves.
    """

    run_id: str
    outcome: str | None
    held: str = ""
    size_bytes: int = 0
    findings: frozenset[str] = frozenset()


@attrs.frozen(kw_only=True)
class Rule:
    """The runs to remove: all but the newest ``keep_last``, of those the ones begun at least
    ``older_than_s`` ago, and of those, oldest first, as many as all runs take more than
    ``max_bytes``; with ``keep_failed`` none whose outcome is in ``failed``. With ``keep_proofs``
    the newest run that proves a finding stays for each finding.
    """

    keep_last: int | None = None
    older_than_s: float | None = None
    max_bytes: int | None = None
    keep_proofs: bool = True
    keep_failed: bool = False
    failed: frozenset[str] = frozenset()


def begun_at(run_id: str) -> datetime | None:
    """Return the start time that this identifier states (UTC); ``None`` for no time at all (a month
    13).
    """
    try:
        return datetime.strptime(run_id[:ID_TIME_CHARS], "%Y%m%d-%H%M%S").replace(tzinfo=UTC)
    except ValueError:
        return None


def to_prune(runs: Iterable[RunRecord], rule: Rule, now: datetime) -> tuple[RunRecord, ...]:
    """Return the runs that ``rule`` removes, oldest first. Runs that are held are never removed,
    and count among the newest.
    """
    # An identifier begins with its time.
    ordered = sorted(runs, key=lambda run: run.run_id)
    newest = len(ordered) - (rule.keep_last or 0)
    proofs = _last_proofs(ordered) if rule.keep_proofs else frozenset()
    may_go = [
        run
        for place, run in enumerate(ordered)
        if place < newest
        and not run.held
        and run.run_id not in proofs
        # Without a verdict a run may have failed: it counts as one that did.
        and not (rule.keep_failed and (run.outcome is None or run.outcome in rule.failed))
        and _old_enough(run, rule, now)
    ]
    if rule.max_bytes is None:
        return tuple(may_go)
    over = sum(run.size_bytes for run in ordered) - rule.max_bytes
    gone = []
    for run in may_go:
        if over <= 0:
            break
        gone.append(run)
        over -= run.size_bytes
    return tuple(gone)


def _last_proofs(ordered: Sequence[RunRecord]) -> frozenset[str]:
    """Return the newest run of each finding."""
    last = {finding: run.run_id for run in ordered for finding in run.findings}
    return frozenset(last.values())


def _old_enough(run: RunRecord, rule: Rule, now: datetime) -> bool:
    if rule.older_than_s is None:
        return True
    begun = begun_at(run.run_id)
    # Without a time in its name a run has no known age, and stays.
    return begun is not None and (now - begun).total_seconds() >= rule.older_than_s
