"""The table of faults: their targets, their effects on open transactions and roles, and their
proofs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs

from harness.history.due_faults import due_ns
from harness.history.records import FaultState
from harness.protocols.fault_spans import fault_spans
from harness.protocols.verdict import FaultWindow, Takeover
from results.drawing.node_roles import briefly
from results.report import harness_actions
from results.report.finding_cards import seconds
from results.report.run_data import RunData
from results.report.tabulate import DASH, cell

FAULTS_MAX = 300
NOBODY = "nobody"


@attrs.frozen(kw_only=True)
class FaultRow:
    """A fault as the table shows it. ``met``: the least number of transactions open at its
    injection; ``taken_over``: the time when the last of the roles that its targets held had a new
    node.
    """

    number: int
    kind: str
    target: str
    hit: str
    roles: str
    state: str
    proven: bool
    planned: str
    begun: str
    effective: str
    healing: str
    healed: str
    met: str
    taken_over: str
    proofs: tuple[tuple[str, str], ...]


def rows(run_data: RunData) -> tuple[FaultRow, ...]:
    """Return a row a fault, ``FAULTS_MAX`` at most. A fault was planned for an offset into the
    drive phase; faults count from 0 in the order of the schedule.
    """
    schedule = run_data.planned_faults
    effects, besides = _effects(run_data), harness_actions.of_faults(run_data)
    begun = {span.fault: span for span in fault_spans(run_data.faults)}
    found = []
    for row in run_data.faults[:FAULTS_MAX]:
        number = row["fault"]
        planned_ns = due_ns(run_data.manifest, schedule, number)
        effect, done = effects.get(number), besides.get(number, "")
        span = begun.get(number)
        begun_ns = None if span is None else span.begin_ns
        tell = seconds if run_data.scale.timed else _untimed
        found.append(_row(row, seconds(planned_ns), begun_ns, effect, done, tell))
    return tuple(found)


def _effects(run_data: RunData) -> dict[int, FaultWindow]:
    """Return the verdict's figures of each fault that was injected, by its number."""
    windows = run_data.verdict.availability.windows if run_data.verdict else None
    return {window.fault: window for window in windows or ()}


def _row(
    row: dict[str, Any],
    planned: str,
    begun_ns: int | None,
    effect: FaultWindow | None,
    done: str,
    tell: Callable[[int | None], str],
) -> FaultRow:
    takeovers = effect.takeovers if effect else ()
    proofs = (
        ("effect", row["proof"]),
        ("healing", row["heal_proof"]),
        (f"{harness_actions.HARNESS} noted", done),
        ("reason", row["reason"]),
        ("taken over", "; ".join(_told(takeovers))),
    )
    return FaultRow(
        number=row["fault"],
        kind=row["kind"],
        target=row["target"],
        hit=", ".join(row["nodes"] or ()),
        roles=briefly(row["roles"] or ()),
        state=row["state"],
        proven=row["state"] == FaultState.HEALED,
        planned=planned,
        begun=tell(begun_ns),
        effective=tell(row["effective_ns"]),
        healing=tell(row["healing_ns"]),
        healed=tell(row["healed_ns"]),
        met=cell("open", effect.open_at_injection if effect else None),
        taken_over=_last(takeovers),
        proofs=tuple((name, text) for name, text in proofs if text),
    )


def _untimed(_at_ns: int | None) -> str:
    """Return a dash, for a history without times: its nanoseconds are only an order."""
    return DASH


def _told(takeovers: Sequence[Takeover]) -> Iterator[str]:
    """Yield a clause for each node that took a role over, then one for the roles without a new
    node.
    """
    takers = dict.fromkeys(takeover.node or "" for takeover in takeovers)
    for taker in sorted(takers, key=lambda name: (not name, name)):
        mine = [takeover for takeover in takeovers if (takeover.node or "") == taker]
        roles = briefly([takeover.role for takeover in mine]).replace("; ", " and ")
        if not taker:
            yield f"{roles} by {NOBODY} while it was in force"
            continue
        most = "at most " if len(mine) > 1 else ""
        yield f"{roles} by {taker} after {most}{_last(mine)} s"


def _last(takeovers: Sequence[Takeover]) -> str:
    if not takeovers:
        return DASH
    known = [takeover.after_ns for takeover in takeovers if takeover.after_ns is not None]
    # With one role that was never taken over there is no time for all of them.
    return cell("after_ns", max(known)) if len(known) == len(takeovers) else NOBODY
