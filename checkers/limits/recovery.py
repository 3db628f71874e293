"""The limit ``recovered_within_s``: after a heal the rate before the fault, and each partition.

What counts as the rate before and as back says ``harness.protocols.recovery``. After a heal the
limit is

==========  ======================================================================================
broken      where at no moment within it the rate of ``SHARE`` can have come back, or where in the
            calm behind it less was acknowledged: both by more than chance explains
            (``rate_in_calm``)
kept        where the rate came back within it, and enough for it was acknowledged from there on,
            until the calm ended or was ``BEFORE_NS`` longer than the limit
undecided   else; or not tested where another fault, or the end of the drive, came too soon to tell
==========  ======================================================================================
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import numpy as np

from checkers.engine.arrays import Ints
from checkers.limits.client_outcomes import (
    Breach,
    ClientOutcomes,
    Figure,
    Interval,
    Scope,
    Span,
    Tries,
    Untested,
    named,
)
from checkers.limits.rate_in_calm import CHANCE, RateBefore, RateSince, rate_since
from checkers.promises.liveness import MIN_TRIES, STEP_NS
from harness.clock import NS_PER_S
from harness.protocols.consistency_models import RECOVERY
from harness.protocols.fault_spans import FaultSpan
from harness.protocols.recovery import BEFORE_NS, PARTS, SHARE, Calms, deviation, first_back
from harness.text import seconds

MIN_HELD_NS = 5 * NS_PER_S  # of the calm behind a limit: less of it tells no lasting rate


@attrs.frozen(kw_only=True)
class _Heal:
    """A fault's heal, and how long no other fault follows it; ``before`` is when the rate before it
    is counted.
    """

    fault: FaultSpan
    before: Interval | None
    healed_ns: int
    due_ns: int
    calm_ns: int


@attrs.frozen(kw_only=True)
class _Tested:
    """How long it took to recover, and the breaches; on which ``partition``, where it is one's.
    ``doubt`` is why a rate was neither kept nor broken, ``since`` the rate that was counted.
    """

    took_ns: int
    since_ns: int
    partition: int | None = None
    broken: tuple[Breach, ...] = ()
    doubt: str = ""
    since: RateSince | None = None

    @property
    def span(self) -> Span:
        """The time from the heal on."""
        return Span(
            length_ns=self.took_ns,
            start_ns=self.since_ns,
            end_ns=self.since_ns + self.took_ns,
            partition=self.partition,
        )


class _Unmeasured(enum.StrEnum):
    """Why a fault tells nothing of the rate after it."""

    UNHEALED = "not seen to heal"
    CROWDED = "with another fault, or the end of the drive, too soon after the heal"
    NO_RATE = "with too little served, or too short a time without a fault, before it"


def unrecovered(got: ClientOutcomes, scopes: tuple[Scope, ...], allowed_ns: int) -> Figure:
    """Test each heal of the faults of ``scopes``, or of all. Raises ``Untested`` where the rate
    could be told after none, and no partition was silent for too long.
    """
    of_kind = [scope.fault for scope in scopes if scope.fault is not None]
    faults = of_kind or got.faults
    if not faults:
        raise Untested("no fault came into force")
    tested, unmeasured = list[_Tested](), Counter[_Unmeasured]()
    calms = Calms.of(got.faults, got.drive.start_ns, got.drive.end_ns)
    for fault in faults:
        if fault.healed_ns is None:
            unmeasured[_Unmeasured.UNHEALED] += 1
            continue
        heal = _Heal(
            fault=fault,
            before=calms.before.get(fault.fault),
            healed_ns=fault.healed_ns,
            due_ns=fault.healed_ns + allowed_ns,
            calm_ns=calms.until(fault, fault.healed_ns),
        )
        partitions = _partitions(got, heal)
        if heal.calm_ns < heal.due_ns and partitions.broken:
            # In the time that was left until another fault, none has broken anything.
            unmeasured[_Unmeasured.CROWDED] += 1
            continue
        tested.append(partitions)
        rate = _rate(got, heal, _rate_before(got, heal, calms))
        if isinstance(rate, _Tested):
            tested.append(rate)
        else:
            unmeasured[rate] += 1
    measured = len(faults) - unmeasured.total()
    why = ", ".join(f"{count} {reason}" for reason, count in sorted(unmeasured.items()))
    if not (measured or any(test.broken for test in tested)):
        raise Untested(f"the rate can be told after none of {_faults(len(faults))}: {why}")
    remark = f"the rate was tested after {measured} of {_faults(len(faults))}: {why}"
    figure = Figure.of_longest(
        [test.span for test in tested],
        [one for test in tested for one in test.broken],
        scopes,
        remarks=(remark,) if unmeasured else (),
    )
    counted = [test.since for test in tested if test.since is not None]
    least = min(counted, key=lambda since: since.share, default=None)
    return attrs.evolve(
        figure,
        basis="" if least is None else least.in_words,
        doubts=tuple(test.doubt for test in tested if test.doubt),
    )


def _faults(count: int) -> str:
    return f"{count} fault{'s' * (count != 1)}"


def _rate_before(got: ClientOutcomes, heal: _Heal, calms: Calms) -> RateBefore | None:
    """Return the rate in the calm before; ``None`` where too few were acknowledged to tell it."""
    calm = heal.before
    if calm is None:
        return None
    # What an open loop owed from the fault before that calm is a backlog, not the rate.
    clear_ns = calms.clear_ns(calm)
    rate = got.acknowledged.rate(clear_ns, calm)
    if rate is None:
        return None
    acks = got.acknowledged.own(clear_ns, *calm)
    return RateBefore(fault=heal.fault, rate=rate, acks=acks, period=calm)


def _rate(got: ClientOutcomes, heal: _Heal, before: RateBefore | None) -> _Tested | _Unmeasured:
    """Tell when the rate returned, or why that can't be told."""
    if before is None:
        return _Unmeasured.NO_RATE
    # The calm after the heal, without the backlog of an open loop.
    acks = got.acknowledged.own(heal.healed_ns, heal.healed_ns, heal.calm_ns)
    back_ns = first_back(acks, before.rate, heal.healed_ns, heal.calm_ns)
    in_time = back_ns is not None and back_ns <= heal.due_ns
    span_ns = before.rate.counting_ns
    is_over_soon = heal.due_ns + span_ns > heal.calm_ns
    if not in_time:
        most = _most_by_chance(acks, heal, before, span_ns)
        if most is not None:
            return _Unmeasured.CROWDED if is_over_soon else _never_back(heal, before, most, back_ns)
    end_ns = min(heal.calm_ns, heal.due_ns + BEFORE_NS)
    if end_ns - heal.due_ns >= MIN_HELD_NS:
        behind = rate_since(acks, before, (heal.due_ns, end_ns))
        if behind.is_below(SHARE):
            return _not_held(heal, behind)
    if back_ns is not None and in_time:
        since = rate_since(acks, before, (back_ns, end_ns))
        if since.is_enough:
            took_ns = back_ns - heal.healed_ns
            return _Tested(took_ns=took_ns, since_ns=heal.healed_ns, since=since)
    if is_over_soon:
        return _Unmeasured.CROWDED
    return _undecided(heal, rate_since(acks, before, (heal.due_ns, end_ns)), back_ns)


def _most_by_chance(acks: Ints, heal: _Heal, before: RateBefore, span_ns: int) -> float | None:
    """Return the highest rate a second that came back at a moment within the limit, in all of its
    ``PARTS``; ``None`` where at one of them chance explains what of it is missing.
    """
    last_ns = heal.calm_ns - span_ns
    starts = np.unique(np.append(acks, [heal.healed_ns, heal.due_ns, last_ns]))
    starts = starts[(starts >= heal.healed_ns) & (starts <= min(last_ns, heal.due_ns))]
    kept_per_ns = np.full(len(starts), np.inf)
    is_possible = np.ones(len(starts), dtype=np.bool_)
    for part in (*PARTS, 1):
        long_ns = span_ns // part
        within = np.searchsorted(acks, starts + long_ns, side="right")
        counts = within - np.searchsorted(acks, starts)
        expected = before.rate.per_ns * long_ns
        is_possible &= counts >= SHARE * expected - CHANCE * deviation(expected, before.rate.count)
        kept_per_ns = np.minimum(kept_per_ns, counts / long_ns)
    if is_possible.any():
        return None
    return float(kept_per_ns.max(initial=0.0)) * NS_PER_S


def _never_back(heal: _Heal, before: RateBefore, most_per_s: float, back_ns: int | None) -> _Tested:
    """A rate that at no moment within the limit can have come back."""
    took_ns = (heal.calm_ns if back_ns is None else back_ns) - heal.healed_ns
    back = (
        f"it did not return by {seconds(heal.calm_ns)}"
        if back_ns is None
        else f"it was again from {seconds(back_ns)} on"
    )
    text = (
        f"recovery: of {before.per_s:.1f} transactions a second before {named(heal.fault)} at most "
        f"{most_per_s:.1f} were acknowledged again, from {seconds(heal.healed_ns)}, when it was "
        f"healed, to {seconds(heal.due_ns)}; {back}"
    )
    counted = (before.period, (heal.healed_ns, heal.due_ns + before.rate.counting_ns))
    # Each time that is counted from within the limit on may have held a part of the stall.
    spare_ns = max(0, heal.healed_ns + took_ns - heal.due_ns - before.rate.counting_ns)
    breach = _breach(heal, text, took_ns, counted=counted, spare_ns=spare_ns)
    return _Tested(took_ns=took_ns, since_ns=heal.healed_ns, broken=(breach,))


def _not_held(heal: _Heal, behind: RateSince) -> _Tested:
    """A rate that was too low for all of the calm behind the limit."""
    took_ns = behind.period[1] - heal.healed_ns
    text = (
        f"recovery: {behind.in_words}, though it was healed at {seconds(heal.healed_ns)}: the rate "
        f"before did not return to stay by {seconds(behind.period[1])}"
    )
    counted = (behind.before.period, behind.period)
    breach = _breach(heal, text, took_ns, counted=counted, spare_ns=behind.spare_ns(SHARE))
    return _Tested(took_ns=took_ns, since_ns=heal.healed_ns, broken=(breach,), since=behind)


def _undecided(heal: _Heal, behind: RateSince, back_ns: int | None) -> _Tested:
    took_ns = (behind.period[1] if back_ns is None else back_ns) - heal.healed_ns
    back = (
        f"{SHARE:.0%} of it was not seen again by {seconds(heal.calm_ns)}"
        if back_ns is None
        else f"{SHARE:.0%} of it was first seen again from {seconds(back_ns)} on"
    )
    doubt = (
        f"{behind.in_words}; {back}: too little to call the rate back by {seconds(heal.due_ns)}, "
        "and too much to rule that chance explains what is missing"
    )
    return _Tested(took_ns=took_ns, since_ns=heal.healed_ns, doubt=doubt, since=behind)


def _breach(heal: _Heal, text: str, took_ns: int, **more: Any) -> Breach:  # noqa: ANN401
    return Breach(
        name=RECOVERY,
        text=text,
        start_ns=heal.healed_ns,
        end_ns=heal.due_ns,
        measured=took_ns / NS_PER_S,
        **more,
    )


def _partitions(got: ClientOutcomes, heal: _Heal) -> _Tested:
    """The partitions that acknowledged nothing in time, though they were asked."""
    found = list(_silent(got.by_partition, heal))
    took_ns, slowest = max(
        ((took_ns, number) for number, _, took_ns, _ in found), default=(0, None)
    )
    broken = []
    for number, asked, late_ns, in_time in found:
        if in_time:
            continue
        text = (
            f"recovery: partition {number} acknowledged nothing from {seconds(heal.healed_ns)}, "
            f"when {named(heal.fault)} was healed, to {seconds(heal.due_ns)}, though it was asked "
            f"{asked} times"
        )
        spare_ns = max(0, heal.healed_ns + late_ns - heal.due_ns)
        broken.append(_breach(heal, text, late_ns, partition=number, spare_ns=spare_ns))
    return _Tested(
        took_ns=took_ns, since_ns=heal.healed_ns, partition=slowest, broken=tuple(broken)
    )


def _silent(tries: Mapping[int, Tries], heal: _Heal) -> Iterator[tuple[int, int, int, bool]]:
    """Yield each partition that was asked in vain after the heal: its number, how often by the time
    that is allowed, how long it was until it acknowledged, and whether that was in time.
    """
    for number, of in tries.items():
        # In whole steps: what may have ended within the time counts.
        at = int(np.searchsorted(of.acks, heal.healed_ns - STEP_NS))
        ack_ns = int(of.acks[at]) if at < len(of.acks) else None
        first_ns = heal.calm_ns if ack_ns is None else min(ack_ns, heal.calm_ns)
        low = int(np.searchsorted(of.begun, heal.healed_ns + STEP_NS))
        # Counted in steps, a try may have ended a step before it began.
        high = int(np.searchsorted(of.begun, first_ns + STEP_NS))
        ended = of.ended[low:high]
        asked = int(((ended < first_ns) & (ended <= heal.due_ns)).sum())
        if asked >= MIN_TRIES:
            in_time = ack_ns is not None and ack_ns <= heal.due_ns
            yield number, asked, max(0, first_ns - heal.healed_ns), in_time
