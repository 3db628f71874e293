"""The limits of a plan as a run kept them: rows of the report, a line of the terminal."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from harness.clock import NS_PER_S
from harness.protocols.verdict import JudgedLimit, LimitState, Verdict
from harness.text import in_seconds, inert, significant
from results.report.tabulate import DASH

LIMITS_MAX = 200  # a stranger's plan may name any number of kinds
DIGITS = 4  # of a figure
GAP_LIMIT, RECOVERY_LIMIT = "longest_gap_s", "recovered_within_s"
METER_PX, ALLOWED_PX = 90.0, 60.0  # of a meter: its width, and where what is allowed ends
UNITS = {"_ms": "ms", "_s": "s"}  # by the end of a limit's name; a share has none


@attrs.frozen(kw_only=True)
class LimitRow:
    """One limit as text. ``met_px`` is how far its meter is filled, ``None`` without a figure.
    ``start_s`` and ``end_s`` are the window of the figure on the axis of the plot, ``proof`` the
    anchor of the finding that shows a breach.
    """

    name: str
    state: str
    measured: str
    allowed: str
    met_px: float | None
    broken: bool
    certain: bool
    window: str
    start_s: float | None
    end_s: float | None
    reason: str
    proof: str


def limit_rows(verdict: Verdict | None, proofs: Mapping[str, str]) -> tuple[LimitRow, ...]:
    """Return the rows of the first ``LIMITS_MAX`` limits; ``proofs`` are the anchors of findings on
    the page, by the name of the limit that they show broken.
    """
    limits = verdict.limits if verdict else ()
    return tuple(_row(limit, proofs.get(limit.name, "")) for limit in limits[:LIMITS_MAX])


def _row(limit: JudgedLimit, proof: str) -> LimitRow:
    times = f" {limit.broken} times" if limit.broken > 1 else ""
    return LimitRow(
        name=short_name(limit),
        state=f"{limit.state.value}{times}",
        measured=DASH if limit.measured is None else with_unit(limit.name, limit.measured),
        allowed=with_unit(limit.name, limit.allowed),
        met_px=_met_px(limit),
        broken=limit.state is LimitState.BROKEN,
        certain=limit.state in (LimitState.KEPT, LimitState.BROKEN),
        window=_window(limit),
        start_s=None if limit.start_ns is None else limit.start_ns / NS_PER_S,
        end_s=None if limit.end_ns is None else limit.end_ns / NS_PER_S,
        reason=limit.reason,
        proof=proof,
    )


def _met_px(limit: JudgedLimit) -> float | None:
    if limit.measured is None:
        return None
    if limit.measured <= 0:
        return 0.0
    # Of a limit of zero everything is too much.
    share = limit.measured / limit.allowed if limit.allowed > 0 else METER_PX / ALLOWED_PX
    return round(min(METER_PX, ALLOWED_PX * share), 1)


def _window(limit: JudgedLimit) -> str:
    if limit.start_ns is None or limit.end_ns is None:
        return ""
    start, end = in_seconds(limit.start_ns), in_seconds(limit.end_ns)
    times = f"at {start} s" if start == end else f"{start} to {end} s"
    return times if limit.partition is None else f"{times}, partition {limit.partition}"


def shortest_gap_s(verdict: Verdict | None) -> float | None:
    """Return the shortest time without an acknowledgement that a limit of the plan allows."""
    limits = verdict.limits if verdict else ()
    return min((x.allowed for x in limits if short_name(x).endswith(GAP_LIMIT)), default=None)


def in_words(limit: JudgedLimit) -> str:
    """What was measured of a limit, and what it allows: ``1.2 s of at most 0.5 s, BROKEN``."""
    if limit.measured is None:
        return limit.state.value
    states = {LimitState.BROKEN: ", BROKEN", LimitState.UNDECIDED: ", undecided"}
    state = states.get(limit.state, "")
    measured, allowed = (with_unit(limit.name, each) for each in (limit.measured, limit.allowed))
    return f"{measured} of at most {allowed}{state}"


def short_name(limit: JudgedLimit) -> str:
    """The limit's path in ``[promise]``: ``kill.longest_gap_s``."""
    return inert(limit.name.removeprefix("promise."))


def with_unit(name: str, value: float) -> str:
    """A figure of the limit ``name`` with its unit; a share has none."""
    unit = next((unit for end, unit in UNITS.items() if name.endswith(end)), "")
    return f"{significant(value, DIGITS)} {unit}".rstrip()
