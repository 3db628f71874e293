"""Selection of the runs that may be removed: pure functions over records of the runs."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

import attrs

ID_TIME_CHARS = len("YYYYMMDD-HHMMSS")


@attrs.frozen(kw_only=True)
class RunRecord:
    """The record of one run: its identifier, its outcome where it was judged, and why it must stay
    under any rule (it is driven, or its cluster is up); empty where nothing holds it.
    """

    run_id: str
    outcome: str | None
    held: str = ""


@attrs.frozen(kw_only=True)
class Rule:
    """The runs to remove: all but the newest ``keep_last``, of those the ones begun at least
    ``older_than_s`` ago; with ``keep_failed`` none whose outcome is in ``failed``.
    """

    keep_last: int | None = None
    older_than_s: float | None = None
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
    return tuple(
        run
        for place, run in enumerate(ordered)
        if place < newest
        and not run.held
        # Without a verdict a run may have failed: it counts as one that did.
        and not (rule.keep_failed and (run.outcome is None or run.outcome in rule.failed))
        and _old_enough(run, rule, now)
    )


def _old_enough(run: RunRecord, rule: Rule, now: datetime) -> bool:
    if rule.older_than_s is None:
        return True
    begun = begun_at(run.run_id)
    # Without a time in its name a run has no known age, and stays.
    return begun is not None and (now - begun).total_seconds() >= rule.older_than_s
