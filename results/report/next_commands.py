"""The commands that go on from a judged run: one list for the terminal and for the report."""

from __future__ import annotations

import shlex

import attrs

from harness.errors import MalformedHistory, PlanError
from harness.exit_codes import Outcome
from harness.history.manifest import plan_drove, read_manifest
from harness.history.run_directory import RunDirectory
from harness.plan import planfile
from harness.plan.plan import PromisePlan, planned_schedule, promise_of
from harness.protocols.faults import PlannedFault
from results.store.run_entry import RunEntry, cell_key, entry_of
from results.store.store import RunStore, is_run_id

SIMULATED = "sim"
LOOKED_BACK = 10  # runs: each costs the reading of its verdict


@attrs.frozen(kw_only=True)
class Command:
    """A line for a shell, and what it does."""

    does: str
    line: str


def next_commands(
    name: str,
    outcome: Outcome | None,
    *,
    provider: str | None,
    node: str | None = None,
    before: str | None = None,
) -> tuple[Command, ...]:
    """Return the commands for the run that a shell knows by ``name``, the most useful first.

    ``provider`` is that of its plan; ``None`` for a run without one, which can't be driven again.
    ``node`` is a node that its findings name, ``before`` the run to compare it with.
    """
    run = shlex.quote(name)
    same = "the same, byte for byte" if provider == SIMULATED else "the same faults, as they came"
    found = []
    if provider is not None:
        found.append(Command(does=f"drive it again: {same}", line=f"firedrill replay {run}"))
    if outcome is Outcome.VIOLATION:
        if provider is not None:
            does = "find the smallest plan that fails so"
            found.append(Command(does=does, line=f"firedrill shrink {run}"))
        if node is not None:
            line = f"firedrill logs {run} {shlex.quote(node)}"
            found.append(Command(does=f"read what {node} logged", line=line))
    if before is not None:
        line = f"firedrill compare {run} {shlex.quote(before)}"
        compared = Command(does="compare it with the run before", line=line)
        # What a violation needs first is its cause; of any other run, whether it was better before.
        found.insert(len(found) if outcome is Outcome.VIOLATION else 0, compared)
    found.append(Command(does="judge its history again", line=f"firedrill check {run}"))
    return tuple(found)


def run_before(run: RunDirectory) -> RunDirectory | None:
    """Return the newest run of the same store that is older than ``run``, was judged, and can be
    compared with it: both are of one cell, had the same faults where these were written down one by
    one, and were held against the same limits, since a limit that one of them did not have would be
    news. ``None`` where none of the last ``LOOKED_BACK`` is.
    """
    if not is_run_id(run.root.name):
        return None
    store = RunStore(run.root.parent)
    older = [each for each in store.runs() if each.root.name < run.root.name][-LOOKED_BACK:]
    if not older:
        return None
    entry = entry_of(run, sized=False)
    cell, given = cell_key(entry), _given(run, entry)
    for each in reversed(older):
        entry = entry_of(each, sized=False)
        if entry.outcome is not None and cell_key(entry) == cell and _given(each, entry) == given:
            return each
    return None


def _given(
    run: RunDirectory, entry: RunEntry
) -> tuple[PromisePlan, tuple[PlannedFault, ...] | None] | None:
    """The limits of a run's plan, and its faults where they were not drawn from a mix, which each
    seed does anew; ``None`` where no plan drove it, or its plan can't be read.
    """
    try:
        if not plan_drove(run, read_manifest(run)):
            return None
        table = planfile.read_table(run.plan)
        return promise_of(table), None if entry.mix else planned_schedule(table)
    except (MalformedHistory, PlanError):
        return None
