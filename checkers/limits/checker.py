"""The limits that a plan sets for the service: ``[promise]``, and ``[promise.KIND]`` while a fault
of that kind is in force. A limit that the store's mode does not promise is not judged, and the
verdict says so.

==================== ==============================================================================
``longest-gap``      clients asked for longer than ``longest_gap_s``, and nothing was acknowledged:
                     by the store, or by one partition
``p99``              more than 1 in 100 of the acknowledged transactions took longer than
                     ``p99_ms``, beyond what chance explains
``recovery``         ``recovered_within_s`` after a heal less than 90 % of the rate before the fault
                     was served, or a partition acknowledged nothing that was asked of it
``indefinite-share`` a larger share of the transactions had an unknown outcome
``late-refusal``     a request to a partition without the majority of its voters was not refused
                     within ``refused_within_s`` (in any mode but HA)
``late-service``     a partition acknowledged no write within ``serves_within_s`` after it had lost
                     the majority of its voters (in mode HA)
==================== ==============================================================================

A figure is broken only where it is for certain: a silence counts as far as clients asked all the
while, gaps of partitions are counted in whole steps of time. A limit that a run could not test
leaves it inconclusive, and so does one that is broken only by what a stall of the controller
explains, whose delays can't be told from the store's (``stalls``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from checkers.limits import majority_loss, outcomes, recovery
from checkers.limits.client_outcomes import (
    Breach,
    ClientOutcomes,
    Figure,
    Interval,
    Scope,
    Untested,
    client_outcomes,
    named,
)
from checkers.limits.gaps import longest_gaps
from checkers.limits.majority_loss import MajorityLoss, majority_losses, metastorage_loss
from checkers.limits.stalls import Stalls
from checkers.promises import liveness
from harness.clock import NS_PER_S
from harness.errors import HarnessBug
from harness.exit_codes import Outcome
from harness.plan.plan import ServiceLimits
from harness.protocols.checker import EXAMPLES_MAX, Kernel, Lookup, Part, Tables
from harness.protocols.finding import Finding
from harness.protocols.promise import Declaration
from harness.protocols.setting import Setting
from harness.protocols.verdict import Anomaly, JudgedLimit, LimitState
from harness.text import seconds

DIGITS = 6  # of a figure behind the point: a share may be one in a million


@attrs.frozen(kw_only=True)
class _Limit:
    """One limit of the plan, where it holds."""

    path: str
    key: str
    allowed: float
    scopes: tuple[Scope, ...]

    @property
    def name(self) -> str:
        """Its dotted path."""
        return f"{self.path}.{self.key}"

    @property
    def allowed_ns(self) -> int:
        """What a limit in seconds allows."""
        return int(self.allowed * NS_PER_S)

    @property
    def rule(self) -> _Rule:
        """How it is judged."""
        if self.key not in RULES:
            raise HarnessBug(f"{self.name}: expected a limit with a rule ({', '.join(RULES)})")
        return RULES[self.key]

    def judged(self, state: LimitState, **found: Any) -> JudgedLimit:  # noqa: ANN401
        """Return it as the verdict has it, with what was ``found`` beside its state."""
        return JudgedLimit(name=self.name, allowed=self.allowed, state=state, **found)

    def figure(self, clients: _Clients) -> Figure:
        """Measure it. Raises ``Untested``."""
        if not self.scopes:
            raise Untested("no fault of that kind came into force")
        return self.rule.measure(self, clients)


@attrs.frozen
class Limits:
    """Judges every run whose plan has limits."""

    name: str = "limits"
    # The tries by partition, which liveness counts.
    kernels: tuple[Kernel, ...] = (*liveness.CHECKER.kernels, majority_loss.KERNEL)

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Return each limit as it came out, and an anomaly for each kind of limit that is broken;
        ``unknown`` for those that were not tested or can't be decided.
        """
        sections = setting.limits.sections
        marks = dict(setting.phases)
        if not sections or "drive" not in marks:
            return Part()
        got = client_outcomes(tables, setting, marks)
        stalls = Stalls.of(tables, setting, lookup)
        clients = _Clients(tables=tables, setting=setting, got=got)
        found = [_judged(limit, clients, stalls) for limit in _limits(sections, got)]
        doubts = [each.doubt for each in found if each.doubt]
        remarks = [remark for each in found for remark in each.remarks]
        return Part(
            outcome=Outcome.UNKNOWN if doubts else Outcome.VALID,
            anomalies=_anomalies([each for each in found if each.broken], got, lookup),
            reasons=(*doubts, *remarks),
            limits=tuple(each.judged for each in found),
        )


@attrs.frozen(kw_only=True)
class _Result:
    """How a limit came out: for the verdict, with the breaches that are certain, with the reason
    that leaves it open, and with what else is to be told.
    """

    limit: _Limit
    judged: JudgedLimit
    broken: tuple[Breach, ...] = ()
    doubt: str = ""
    remarks: tuple[str, ...] = ()


def _judged(limit: _Limit, clients: _Clients, stalls: Stalls) -> _Result:
    mode = clients.setting.declaration.mode
    if not limit.rule.promised(clients.setting.declaration):
        reason = f"not promised in mode {mode}"
        judged = limit.judged(LimitState.NOT_PROMISED, reason=reason)
        return _Result(limit=limit, judged=judged, remarks=(f"{limit.name} is {reason}",))
    try:
        figure = limit.figure(clients)
    except Untested as untested:
        judged = limit.judged(LimitState.NOT_TESTED, reason=str(untested))
        doubt = f"{limit.name} was not tested: {untested}"
        return _Result(limit=limit, judged=judged, doubt=doubt)
    sure, state, doubt, reason = figure, LimitState.KEPT, "", ""
    if stalls and figure.broken:
        sure = limit.rule.beyond_doubt(limit, figure, clients, stalls)
    if sure.broken:
        state = LimitState.BROKEN
    elif figure.broken:
        state, reason = LimitState.UNDECIDED, stalls.reason(_evidence(figure))
        doubt = f"undecided: {limit.name} looks broken, but {reason}"
    elif figure.doubts:
        state, reason = LimitState.UNDECIDED, _first_of(figure.doubts)
        doubt = f"undecided: {limit.name}: {reason}"
    judged = limit.judged(
        state,
        measured=round(figure.measured, DIGITS),
        broken=len(sure.broken) + sure.untold,
        start_ns=figure.start_ns,
        end_ns=figure.end_ns,
        partition=figure.partition,
        reason="; ".join(filter(None, (reason or figure.basis, *figure.remarks))),
    )
    remarks = tuple(f"{limit.name}: {remark}" for remark in figure.remarks)
    return _Result(limit=limit, judged=judged, broken=sure.broken, doubt=doubt, remarks=remarks)


def _evidence(figure: Figure) -> list[Interval]:
    return [period for one in figure.broken for period in one.rests_on]


def _first_of(doubts: Sequence[str]) -> str:
    more = len(doubts) - 1
    return doubts[0] + (f"; and {more} more like it" if more else "")


def _limits(sections: Mapping[str, ServiceLimits], got: ClientOutcomes) -> Iterator[_Limit]:
    for path, limits in sections.items():
        for key, allowed in limits.given.items():
            scopes = _scopes(path, got)
            yield _Limit(path=path, key=key, allowed=allowed, scopes=scopes)


def _scopes(path: str, got: ClientOutcomes) -> tuple[Scope, ...]:
    """The whole drive, or the time of each fault of the kind that the path names."""
    _, _, kind = path.partition(".")
    if not kind:
        return (got.drive,)
    drive = got.drive
    return tuple(
        Scope(
            start_ns=max(fault.begin_ns, drive.start_ns),
            end_ns=drive.end_ns if fault.healed_ns is None else fault.healed_ns,
            fault=fault,
        )
        for fault in got.faults
        if fault.kind == kind
    )


@attrs.frozen(kw_only=True)
class _Clients:
    """What clients got, by which limits are measured."""

    tables: Tables
    setting: Setting
    got: ClientOutcomes

    def without(self, periods: Sequence[Interval]) -> _Clients:
        return attrs.evolve(self, got=self.got.without(periods))

    def losses(self, limit: _Limit) -> tuple[MajorityLoss, ...]:
        """Return those that a fault of the limit's table took part in. Raises ``Untested``."""
        losses = majority_losses(self.tables, self.setting, self.got)
        found = tuple(loss for loss in losses if loss.of(limit.scopes))
        if not found:
            taken = metastorage_loss(self.tables, self.setting, self.got)
            if taken is not None:
                aim = "more nodes (cluster.nodes) leave it one beside a partition that has none"
                if taken.partition is not None:
                    aim = f"aim at `{','.join(taken.instead)}`, most voters of partition "
                    aim += f"{taken.partition}, which leave metastorage its own"
                raise Untested(
                    f"metastorage had lost its majority by {seconds(taken.at_ns)}, and without it "
                    f"no partition is judged: {aim}"
                )
            raise Untested("no partition certainly lost the majority of its voters")
        return found


# -- what each limit is


def _gaps(limit: _Limit, clients: _Clients) -> Figure:
    return longest_gaps(clients.got, limit.scopes, limit.allowed_ns)


def _p99(limit: _Limit, clients: _Clients) -> Figure:
    return outcomes.p99(clients.got, limit.scopes, limit.allowed)


def _recovered(limit: _Limit, clients: _Clients) -> Figure:
    return recovery.unrecovered(clients.got, limit.scopes, limit.allowed_ns)


def _indefinite(limit: _Limit, clients: _Clients) -> Figure:
    return outcomes.indefinite_share(clients.got, limit.scopes, limit.allowed)


def _refused(limit: _Limit, clients: _Clients) -> Figure:
    return majority_loss.refusals(clients.tables, clients.losses(limit), limit.allowed_ns)


def _serves(limit: _Limit, clients: _Clients) -> Figure:
    return majority_loss.first_served(clients.tables, clients.losses(limit), limit.allowed_ns)


def _gaps_beyond(limit: _Limit, _: Figure, clients: _Clients, stalls: Stalls) -> Figure:
    return longest_gaps(clients.got, limit.scopes, limit.allowed_ns, stalls)


def _refused_beyond(limit: _Limit, _: Figure, clients: _Clients, stalls: Stalls) -> Figure:
    losses = clients.losses(limit)
    return majority_loss.refusals(clients.tables, losses, limit.allowed_ns, stalls)


def _unexplained(_limit: _Limit, figure: Figure, _: _Clients, stalls: Stalls) -> Figure:
    broken = [one for one in figure.broken if stalls.explained_of(one.rests_on) <= one.spare_ns]
    return attrs.evolve(figure, broken=tuple(broken))


def _measured_without(limit: _Limit, figure: Figure, clients: _Clients, stalls: Stalls) -> Figure:
    try:
        return limit.rule.measure(limit, clients.without(stalls.periods))
    except Untested:
        return attrs.evolve(figure, broken=())


@attrs.frozen(kw_only=True)
class _Rule:
    """How a limit is measured, which of its breaches hold without what the controller's stalls
    explain, and in which of the store's modes it is promised. ``measure`` raises
    ``Untested``.
    """

    measure: Callable[[_Limit, _Clients], Figure]
    beyond_doubt: Callable[[_Limit, Figure, _Clients, Stalls], Figure]
    promised: Callable[[Declaration], bool] = lambda _: True


# A partition that has lost its majority goes on where writes may be lost, and refuses else.
RULES = {
    "longest_gap_s": _Rule(measure=_gaps, beyond_doubt=_gaps_beyond),
    "p99_ms": _Rule(measure=_p99, beyond_doubt=_measured_without),
    "recovered_within_s": _Rule(measure=_recovered, beyond_doubt=_unexplained),
    "indefinite_share": _Rule(measure=_indefinite, beyond_doubt=_measured_without),
    "refused_within_s": _Rule(
        measure=_refused,
        beyond_doubt=_refused_beyond,
        promised=lambda declared: not declared.may_lose,
    ),
    "serves_within_s": _Rule(
        measure=_serves, beyond_doubt=_unexplained, promised=lambda declared: declared.may_lose
    ),
}


def _anomalies(found: Sequence[_Result], got: ClientOutcomes, lookup: Lookup) -> dict[str, Anomaly]:
    """Return an anomaly for each name of breaches; its count has also those that are not told."""
    counts, shown = Counter[str](), dict[str, list[tuple[_Limit, Breach]]]()
    for each in found:
        counts[each.broken[0].name] += each.judged.broken
        shown.setdefault(each.broken[0].name, []).extend((each.limit, one) for one in each.broken)
    return {
        name: Anomaly(
            count=counts[name],
            examples=tuple(_finding(limit, one, got, lookup) for limit, one in _shown(rows)),
        )
        for name, rows in shown.items()
    }


def _shown(rows: Sequence[tuple[_Limit, Breach]]) -> list[tuple[_Limit, Breach]]:
    """Return as many of ``rows`` as are shown, in their order: of each limit one, before any has
    two of them.
    """
    turns, ranked = Counter[str](), list[tuple[int, int]]()
    for number, (limit, _) in enumerate(rows):
        ranked.append((turns[limit.name], number))
        turns[limit.name] += 1
    chosen = sorted(number for _, number in sorted(ranked)[:EXAMPLES_MAX])
    return [rows[number] for number in chosen]


def _finding(limit: _Limit, one: Breach, got: ClientOutcomes, lookup: Lookup) -> Finding:
    operations = lookup.operations(one.txns) if one.txns else {}
    within = [
        f"{named(fault)} from {seconds(fault.begin_ns)}"
        + (f" to {seconds(fault.healed_ns)}" if fault.healed_ns is not None else " on")
        for fault in got.faults
        if fault.touches(one.start_ns, one.end_ns)
    ]
    more = f" and {len(within) - EXAMPLES_MAX} more" if len(within) > EXAMPLES_MAX else ""
    force = (
        f"in force: {', '.join(within[:EXAMPLES_MAX])}{more}" if within else "no fault was in force"
    )
    figures = {"limit": limit.name, "allowed": limit.allowed}
    figures["measured"] = round(one.measured, DIGITS)
    of = {} if one.partition is None else {"partition": one.partition}
    return Finding(
        text=f"{one.text}; {limit.name} is {limit.allowed:g}; {force}",
        txns=one.txns,
        keys=(),
        operations=tuple(operations[txn] for txn in one.txns if txn in operations),
        at_ns=one.start_ns,
        details={**figures, **of, "window_start_ns": one.start_ns, "window_end_ns": one.end_ns},
    )


CHECKER = Limits()
