"""One run of a store in a line: what it was, how it ended, and what holds it."""

from __future__ import annotations

from datetime import datetime

import msgspec

from cli.run_state import ON, held_by
from harness.errors import MalformedHistory
from harness.history.manifest import PREFIX, RUNNING, SEALED
from harness.protocols.verdict import read_outcome
from harness.run.directory import RunDirectory, require_plain
from results.store.run_entry import RecordedFinding, RunEntry, entry_of

_UNJUDGED = {RUNNING: "not sealed", SEALED: "not judged", PREFIX: "not judged", "": "no history"}


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the list. ``state`` is the outcome, or the reason why there is none; ``held``
    says why the run can't be removed. ``begun`` is a time in UTC, ``duration_s`` the length of the
    drive phase, ``faults`` the number of those planned, ``kinds`` theirs; all else is as in
    ``RunEntry``. What can't be read is ``None``, or empty.
    """

    run: str
    state: str
    outcome: str | None
    workload: str
    nodes: int | None
    size_bytes: int
    held: str
    begun: datetime | None = None
    seed: int | None = None
    duration_s: float | None = None
    faults: int | None = None
    system: str = ""
    release: str = ""
    commit: str = ""
    branch: str = ""
    mode: str = ""
    provider: str = ""
    kinds: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    ok: int | None = None
    fail: int | None = None
    info: int | None = None
    longest_gap_s: float | None = None
    findings: tuple[RecordedFinding, ...] = ()


def summary(run: RunDirectory) -> Summary:
    """Summarize the run for the list; unreadable parts are absent, not raised."""
    return summarized(entry_of(run), held_by(run))


def described(run: RunDirectory) -> Summary:
    """As ``summary``, but without the size, for which the whole directory is walked."""
    return summarized(entry_of(run, sized=False), held_by(run))


def summarized(entry: RunEntry, held: str) -> Summary:
    """Summarize an entry of the index; ``held`` is why the run can't be removed."""
    # The outcome says nothing yet while the run is driven.
    unjudged = f"refused: {entry.refused}" if entry.refused else _UNJUDGED[entry.state]
    state = ON if held == ON else entry.outcome or unjudged
    return Summary(
        run=entry.run,
        state=f"{state}, {held}" if held not in ("", ON) else state,
        outcome=entry.outcome,
        workload=entry.workload,
        nodes=entry.nodes,
        size_bytes=entry.size_bytes,
        held=held,
        begun=entry.begun,
        seed=entry.seed,
        duration_s=entry.duration_s,
        faults=entry.planned_faults,
        system=entry.system,
        release=entry.release,
        commit=entry.commit,
        branch=entry.branch,
        mode=entry.mode,
        provider=entry.provider,
        kinds=entry.faults,
        tags=entry.tags,
        ok=entry.ok,
        fail=entry.fail,
        info=entry.info,
        longest_gap_s=entry.longest_gap_s,
        findings=entry.findings,
    )


def outcome_of(run: RunDirectory) -> str | None:
    """Return the outcome of the run's verdict; ``None`` where there is no readable one."""
    try:
        require_plain(run)
        found = read_outcome(run)
    except MalformedHistory:
        return None
    return found.value if found else None
