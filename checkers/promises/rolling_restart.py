"""The promise of a rolling restart: clients hardly notice it.

==================== ==============================================================================
``restart-silence``  a partition was asked for longer than ``silence_s`` and acknowledged nothing
``restart-latency``  the p99 of what was acknowledged meanwhile was more than ``p99_times`` that of
                     the calm time before
``restart-failures`` a larger share than ``failed_share`` failed or has an unknown outcome, or with
                     what took long than ``slow_share``
``restart-reset``    a partition was reset meanwhile, although one node at a time was down
==================== ==============================================================================

The limits are options of the fault (``harness.protocols.procedures``). What its transactions lost
is found by the checker of the workload; here it is counted. A limit that is only the usual one, and
that too few transactions test, decides nothing; one that the plan gives leaves the run
inconclusive. A restart that was broken off is judged by the resets during its steps alone. Only
what is certain counts: silences are known to steps of 50 ms and rounded down, and need several
tries that follow one another. What happened while another fault was in force, or within the time
that the store has to recover from it, is not the restart's, and counts for nothing. Neither does
what a stall of the controller explains: what is broken only with that is undecided.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import msgspec
import numpy as np
import pyarrow as pa

from checkers.engine.arrays import OK, Bools, Ints, ints
from checkers.engine.spans import FOREVER_NS, Overlaps, OwnedSpans, Spans
from checkers.limits.client_outcomes import ClientOutcomes, Scope, client_outcomes
from checkers.limits.gaps import silences
from checkers.limits.stalls import NO_STALLS, Stalls
from checkers.promises import liveness
from checkers.promises.liveness import MIN_TRIES, STEP_NS
from harness.clock import NS_PER_S
from harness.errors import PlanError
from harness.exit_codes import Outcome
from harness.history.records import EventKind, FaultState
from harness.history.store_events import resets_in, rows_of
from harness.plan.plan import options as convert
from harness.protocols.checker import EXAMPLES_MAX, Kernel, Lookup, Part, Tables
from harness.protocols.consistency_models import (
    RESTART_FAILURES,
    RESTART_LATENCY,
    RESTART_RESET,
    RESTART_SILENCE,
)
from harness.protocols.fault_kinds import ROLLING_RESTART
from harness.protocols.fault_spans import FaultSpan, fault_spans
from harness.protocols.finding import Finding
from harness.protocols.latency import MIN_SAMPLES, percentiles
from harness.protocols.procedures import (
    SLOW_S,
    NodeStep,
    RollingRestartOptions,
    StepEvents,
    limits,
)
from harness.protocols.setting import Setting
from harness.protocols.verdict import Anomaly
from harness.text import seconds

BEFORE_NS = 10 * NS_PER_S
SETTLED_NS = 5 * NS_PER_S  # of a store that declares no bound for its recovery
LOST = "lost-write.lost"


@attrs.frozen(kw_only=True, eq=False)
class FaultTimes:
    """When each fault may have shown: from its begin until the store has had the time to recover
    from it. ``in_force``: until it was healed.
    """

    spans: OwnedSpans
    overlaps: Overlaps
    in_force: Spans

    @classmethod
    def of(cls, faults: Sequence[FaultSpan], settled_ns: int) -> FaultTimes:
        """Those of ``faults``, which the store recovers from in ``settled_ns``."""
        shown = [
            (
                fault.begin_ns,
                FOREVER_NS if fault.healed_ns is None else fault.healed_ns + settled_ns,
            )
            for fault in faults
        ]
        return cls(
            spans=OwnedSpans.of((place, *span) for place, span in enumerate(shown)),
            overlaps=Overlaps.of(shown),
            in_force=Spans.of((fault.begin_ns, fault.healed_ns) for fault in faults),
        )

    def single(self, moments: Ints) -> Ints:
        """Return, ascending, those of ``moments`` at which one fault at most may have shown: what
        happened at another is no restart's.
        """
        found: Ints = np.sort(moments[~self.spans.several_at(moments)])
        return found


@attrs.frozen(kw_only=True)
class Restart:
    """A rolling restart that was carried out: its options, its time, and its nodes' steps."""

    fault: int
    options: RollingRestartOptions
    start_ns: int
    end_ns: int
    calm_ns: int
    steps: tuple[NodeStep, ...]
    nodes: int
    among: FaultTimes
    place: int
    """Which of the faults ``among`` all it is."""

    def alone(self, start_ns: Ints, end_ns: Ints) -> Bools:
        """Tell for each stretch of time whether no other fault may have shown meanwhile, of those
        that may have shown while the restart went on.
        """
        by_ns, until_ns = np.minimum(end_ns, self.end_ns), np.maximum(start_ns, self.start_ns)
        found: Bools = ~self.among.spans.others_from_to(self.place, by_ns, until_ns)
        return found

    @property
    def shared_ns(self) -> int:
        """How long other faults may have shown, of its time."""
        # It is itself one of those that may show then.
        return self.among.overlaps.between_ns(self.start_ns, self.end_ns)

    @property
    def complete(self) -> bool:
        """Whether every node had its turn, and what the next one waits for came."""
        return len(self.steps) == self.nodes and all(s.over_ns is not None for s in self.steps)

    @property
    def name(self) -> str:
        """How verdict and report call it."""
        return f"fault {self.fault}, {self.options.by} of {len(self.steps)} nodes"


@attrs.frozen(kw_only=True)
class Breach:
    """One limit that a restart broke, by its key among the options; none of a reset."""

    name: str
    limit: str = ""
    text: str
    figures: Mapping[str, Any]
    txns: tuple[int, ...] = ()


@attrs.frozen
class RollingRestarts:
    """Judges every run in which a rolling restart was carried out."""

    name: str = ROLLING_RESTART.name
    # The tries by partition, which liveness counts.
    kernels: tuple[Kernel, ...] = liveness.CHECKER.kernels

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Return an anomaly for each kind of limit that was broken; ``statistics`` has the figures
        of each restart.
        """
        marks = dict(setting.phases)
        kinds = {span.kind for span in fault_spans(tables["faults"].to_pylist())}
        if "drive" not in marks or ROLLING_RESTART.name not in kinds:
            return Part()
        got = client_outcomes(tables, setting, marks)
        figures: dict[str, dict[str, Any]] = {}
        found: dict[str, list[tuple[Restart, Breach]]] = {}
        doubts, remarks = list[str](), list[str]()
        stalls = Stalls.of(tables, setting, lookup)
        among = FaultTimes.of(got.faults, _settled_ns(setting))
        moments = {"resets": among.single(_reset_times(tables["events"]))}
        if LOST in tables:
            moments["lost"] = among.single(ints(tables[LOST], "ack_ns"))
        for restart in _restarts(tables, setting, got, among):
            own = _served_by(restart, got)
            measured = _measured(restart, own, moments)
            figures[restart.name] = measured
            doubts += _untested(restart, measured)
            remarks += _shared(restart)
            if restart.complete:
                remarks += _usual_untested(restart, measured)
                beyond = _beyond(restart, own, moments, stalls) if stalls else measured
                for breach in _breaches(restart, measured, own):
                    if breach.limit in _broken(restart, beyond):
                        found.setdefault(breach.name, []).append((restart, breach))
                    else:
                        near = [(restart.calm_ns, restart.end_ns)]
                        doubts.append(
                            f"undecided: {breach.name} was seen, but {stalls.reason(near)}"
                        )
            else:
                doubts.append(f"{restart.name} was broken off, and is judged by none of its limits")
            for breach in _of_resets(measured):
                found.setdefault(breach.name, []).append((restart, breach))
        return Part(
            outcome=Outcome.UNKNOWN if doubts else Outcome.VALID,
            anomalies={name: _anomaly(rows, lookup) for name, rows in found.items()},
            reasons=(*doubts, *remarks),
            statistics={"restarts": figures} if figures else {},
        )


def _restarts(
    tables: Tables, setting: Setting, got: ClientOutcomes, among: FaultTimes
) -> Iterator[Restart]:
    steps = StepEvents.in_table(tables["events"]).by_procedure(got.faults, FOREVER_NS)
    for place, fault in enumerate(got.faults):
        number, planned = fault.fault, None
        if fault.kind != ROLLING_RESTART.name or fault.healed_ns is None:
            continue
        if fault.state != FaultState.HEALED:
            continue
        if 0 <= number < len(setting.schedule):
            planned = setting.schedule[number]
        given = planned.options if planned is not None else None
        try:
            options = convert(RollingRestartOptions, given or {}, "options")
        except PlanError:  # of another version
            options = RollingRestartOptions()
        start_ns, end_ns = fault.begin_ns, fault.healed_ns
        yield Restart(
            fault=number,
            options=options,
            start_ns=start_ns,
            end_ns=end_ns,
            calm_ns=_calm_since(got, among, start_ns),
            steps=steps.get(number, ()),
            nodes=len(fault.nodes),
            among=among,
            place=place,
        )


def _settled_ns(setting: Setting) -> int:
    """How long after a heal its fault may still show: the bound that the store declares."""
    bound_s = setting.declaration.liveness_s
    return SETTLED_NS if isinstance(bound_s, msgspec.UnsetType) else round(bound_s * NS_PER_S)


def _served_by(restart: Restart, got: ClientOutcomes) -> ClientOutcomes:
    """Return what clients got while ``restart`` went on and in the calm before it, without what was
    open while another fault may have shown.
    """
    near = (got.intended >= restart.calm_ns) & (got.intended <= restart.end_ns)
    rows = np.flatnonzero(near)
    return got.at(rows[restart.alone(got.begun[rows], got.ended[rows])])


def _shared(restart: Restart) -> Iterator[str]:
    """Yield a remark where other faults may have shown during the restart."""
    if restart.shared_ns:
        yield (
            f"{restart.name}: {seconds(restart.shared_ns)} of its "
            f"{seconds(restart.end_ns - restart.start_ns)} lay under other faults, or soon after "
            "one, and count for nothing"
        )


def _calm_since(got: ClientOutcomes, among: FaultTimes, start_ns: int) -> int:
    """Since when no fault was in force before ``start_ns``: some seconds at most."""
    since_ns = max(got.drive.start_ns, start_ns - BEFORE_NS)
    healed_ns = among.in_force.latest_end_before(start_ns)
    return since_ns if healed_ns is None else max(since_ns, min(healed_ns, start_ns))


def _beyond(
    restart: Restart, got: ClientOutcomes, moments: Mapping[str, Ints], stalls: Stalls
) -> dict[str, Any]:
    """Return the figures of ``restart`` without what ``stalls`` explain; none of a run whose
    controller was overloaded.
    """
    if stalls.overload:
        return {}
    return _measured(restart, got.without(stalls.periods), moments, stalls)


def _measured(
    restart: Restart,
    got: ClientOutcomes,
    moments: Mapping[str, Ints],
    stalls: Stalls = NO_STALLS,
) -> dict[str, Any]:
    """Return the figures of one restart. A figure that too few transactions tell is absent.

    ``moments`` are those of resets, and of the acknowledgements of what was lost, under one fault
    at most. A silence is shorter by what ``stalls`` explain of it.
    """
    begun = (got.intended >= restart.start_ns) & (got.intended <= restart.end_ns)
    before = (got.intended >= restart.calm_ns) & (got.intended < restart.start_ns) & got.ok
    took = got.ended - got.intended
    total, failed = int(begun.sum()), int((begun & ~got.ok).sum())
    slow = int((begun & (~got.ok | (took > SLOW_S * NS_PER_S))).sum())
    figures: dict[str, Any] = {
        "nodes": len(restart.steps),
        "took_s": round((restart.end_ns - restart.start_ns) / NS_PER_S, 3),
        "transactions": total,
        "failed": failed,
    }
    if total >= MIN_SAMPLES:
        figures["failed_share"] = round(failed / total, 6)
        figures["slow_share"] = round(slow / total, 6)
    ok = begun & got.ok
    if int(ok.sum()) >= MIN_SAMPLES:
        figures["p99_ms"] = _p99_ms(took[ok])
    if int(before.sum()) >= MIN_SAMPLES:
        figures["p99_before_ms"] = _p99_ms(took[before])
    if "p99_ms" in figures and figures.get("p99_before_ms"):
        figures["p99_times"] = round(figures["p99_ms"] / figures["p99_before_ms"], 3)
    if got.by_partition:
        figures["silence_s"] = 0.0
    if silent := _longest_silence(restart, got, stalls):
        partition, from_ns, length_ns = silent
        figures["silence_s"] = round(length_ns / NS_PER_S, 3)
        figures |= {"silent_partition": partition, "silent_from_s": round(from_ns / NS_PER_S, 3)}
    if restart.shared_ns:
        figures["shared_s"] = round(restart.shared_ns / NS_PER_S, 3)
    figures["resets"] = _resets(_within(moments["resets"], restart), restart)
    if "lost" in moments:
        figures["lost"] = len(_within(moments["lost"], restart))
    return figures


def _p99_ms(took: Ints) -> float:
    return round(float(percentiles(took, [99])[0]) / 1e6, 3)


def _within(moments: Ints, restart: Restart) -> Ints:
    """Return those of the ascending ``moments`` in the time of ``restart`` that are its own."""
    low = np.searchsorted(moments, restart.start_ns, side="left")
    high = np.searchsorted(moments, restart.end_ns, side="right")
    inside = moments[low:high]
    return inside[restart.alone(inside, inside)]


def _longest_silence(
    restart: Restart, got: ClientOutcomes, stalls: Stalls
) -> tuple[int, int, int] | None:
    """Return the partition that was asked longest without an acknowledgement, from when on, and how
    long; ``None`` where none ever was.
    """
    during = Scope(start_ns=restart.start_ns, end_ns=restart.end_ns)
    allowed_ns = int(limits(restart.options)["silence_s"] * NS_PER_S)
    found = list[tuple[int, int, int]]()
    for number, tries in sorted(got.by_partition.items()):
        starts, ends = silences(tries, during, got.drive.end_ns, allowed_ns, least=MIN_TRIES)
        own = restart.alone(starts, ends)
        # What a step shows as acknowledged may have been so until the step's end.
        starts, ends = np.minimum(starts[own] + STEP_NS, ends[own]), ends[own]
        if len(starts):
            lengths = ends - starts - (stalls.explained_ns(starts, ends) if stalls else 0)
            at = int(lengths.argmax())
            found.append((number, int(starts[at]), max(0, int(lengths[at]))))
    return max(found, key=lambda silence: silence[2], default=None)


def _reset_times(events: pa.Table) -> Ints:
    """Return when resets began, those of no told partition too."""
    times = [reset.earliest_ns for reset in resets_in(events)]
    told = rows_of(events, (EventKind.RESET,), ("at_ns", "partition"))
    times += [row["at_ns"] for row in told if row["partition"] is None]
    return np.array(times, np.int64)


def _resets(moments: Ints, restart: Restart) -> int:
    """Return how many of the ``moments`` of resets count: of a restart that was broken off, those
    during its steps.
    """
    counts = np.zeros(len(moments), dtype=np.bool_)
    for start_ns, end_ns in _spans(restart):
        counts |= (start_ns <= moments) & (moments <= end_ns)
    return int(counts.sum())


def _spans(restart: Restart) -> Iterator[tuple[int, int]]:
    """Yield the times in which ``restart`` kept one node down at most."""
    if restart.complete:
        yield restart.start_ns, restart.end_ns
        return
    until = [*(step.begun_ns for step in restart.steps[1:]), restart.end_ns]
    for step, until_ns in zip(restart.steps, until, strict=False):
        yield step.begun_ns, until_ns if step.over_ns is None else step.over_ns
        if step.over_ns is None:
            return  # its node may still be down in later ones


def _untested(restart: Restart, measured: Mapping[str, Any]) -> Iterator[str]:
    """Yield a reason for each limit of the plan that nothing tested."""
    for key in limits(restart.options):
        if getattr(restart.options, key) is not None and key not in measured:
            yield f"{restart.name}: {key} was not tested: too few transactions tell it"


def _usual_untested(restart: Restart, measured: Mapping[str, Any]) -> Iterator[str]:
    """Yield a remark for each limit that holds though the plan gives none, and that nothing
    tested.
    """
    for key, limit in limits(restart.options).items():
        if getattr(restart.options, key) is None and key not in measured:
            yield (
                f"{restart.name}: the usual limit {key} = {limit:g} was not tested: too few "
                "transactions tell it"
            )


def _broken(restart: Restart, measured: Mapping[str, Any]) -> dict[str, float]:
    allowed = limits(restart.options)
    return {key: limit for key, limit in allowed.items() if measured.get(key, limit) > limit}


def _breaches(
    restart: Restart, measured: Mapping[str, Any], got: ClientOutcomes
) -> Iterator[Breach]:
    for key, limit in _broken(restart, measured).items():
        figures = {"limit": f"{key} = {limit:g}", "measured": measured[key]}
        match key:
            case "silence_s":
                partition, from_s = measured["silent_partition"], measured["silent_from_s"]
                text = (
                    f"partition {partition} acknowledged nothing for "
                    f"{seconds(measured[key] * NS_PER_S)} from {seconds(from_s * NS_PER_S)} on, "
                    "though clients asked"
                )
                figures["partition"] = partition
                yield Breach(name=RESTART_SILENCE, limit=key, text=text, figures=figures)
            case "p99_times":
                text = (
                    f"1 in 100 took longer than {measured['p99_ms']:.1f} ms, "
                    f"{measured[key]:.1f} times as long as before "
                    f"({measured['p99_before_ms']:.1f} ms)"
                )
                slowest = _slowest(restart, got)
                yield Breach(
                    name=RESTART_LATENCY, limit=key, text=text, figures=figures, txns=slowest
                )
            case _:
                what = "failed or took longer than 0.5 s" if key == "slow_share" else "failed"
                text = f"{measured[key]:.2%} of {measured['transactions']} transactions {what}"
                failed = _failed(restart, got)
                yield Breach(
                    name=RESTART_FAILURES, limit=key, text=text, figures=figures, txns=failed
                )


def _of_resets(measured: Mapping[str, Any]) -> Iterator[Breach]:
    if measured["resets"]:
        text = f"{measured['resets']} times a partition was reset"
        yield Breach(name=RESTART_RESET, text=text, figures={"resets": measured["resets"]})


def _slowest(restart: Restart, got: ClientOutcomes) -> tuple[int, ...]:
    inside = (got.intended >= restart.start_ns) & (got.intended <= restart.end_ns) & got.ok
    took = (got.ended - got.intended)[inside]
    return tuple(sorted(got.txn[inside][np.argsort(-took, kind="stable")[:EXAMPLES_MAX]].tolist()))


def _failed(restart: Restart, got: ClientOutcomes) -> tuple[int, ...]:
    inside = (got.intended >= restart.start_ns) & (got.intended <= restart.end_ns)
    return tuple(got.txn[inside & (got.type_ != OK)][:EXAMPLES_MAX].tolist())


def _anomaly(rows: Sequence[tuple[Restart, Breach]], lookup: Lookup) -> Anomaly:
    shown = tuple(_finding(restart, breach, lookup) for restart, breach in rows[:EXAMPLES_MAX])
    return Anomaly(count=len(rows), examples=shown)


def _finding(restart: Restart, breach: Breach, lookup: Lookup) -> Finding:
    operations = lookup.operations(breach.txns) if breach.txns else {}
    limit = f"; the limit is {breach.figures['limit']}" if "limit" in breach.figures else ""
    when = f"from {seconds(restart.start_ns)} to {seconds(restart.end_ns)}"
    return Finding(
        text=f"rolling restart ({restart.name}, {when}): {breach.text}{limit}",
        txns=breach.txns,
        keys=(),
        operations=tuple(operations[txn] for txn in breach.txns if txn in operations),
        at_ns=restart.start_ns,
        details={"fault": restart.fault, **breach.figures},
    )


CHECKER = RollingRestarts()
