"""The limits that a plan sets for the service: ``[promise]``, and ``[promise.KIND]`` while a fault
of that kind is in force.

==================== ==============================================================================
``longest-gap``      clients asked for longer than ``longest_gap_s``, and nothing was acknowledged:
                     by the store, or by one partition
``p99``              1 in 100 of the acknowledged transactions took longer than ``p99_ms``
``recovery``         ``recovered_within_s`` after a heal less than 90 % of the rate before the fault
                     was served, or a partition acknowledged nothing that was asked of it
``indefinite-share`` a larger share of the transactions had an unknown outcome
==================== ==============================================================================

A figure is broken only where it is for certain: gaps of partitions are counted in whole steps of
time, a rate may lie below its share by what chance explains, and a heal that another fault follows
too soon shows nothing. A limit that a run could not test leaves it inconclusive, and so does a
broken one where the controller was starved, whose delays can't be told from the store's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from checkers.engine.arrays import INFO, OK, TYPES, Ints, codes, ints
from checkers.explain.attribution import windows
from checkers.promises import controller, liveness
from checkers.promises.liveness import MIN_TRIES, STEP_NS, TRIES, gave_way
from harness.clock import NS_PER_S
from harness.exit_codes import Outcome
from harness.plan.plan import ServiceLimits
from harness.protocols.checker import EXAMPLES_MAX, Kernel, Lookup, Part, Setting, Tables
from harness.protocols.finding import Finding
from harness.protocols.models import INDEFINITE, LONGEST_GAP, P99, RECOVERY
from harness.protocols.verdict import Anomaly
from harness.text import seconds

MIN_SAMPLES = 100  # below this the 99th percentile is the slowest transaction of all
WIDEST = 100  # gaps that are looked at: a limit of a millisecond must not cost a night
RATE_SHARE = 0.9
MIN_CALM_NS = NS_PER_S  # of the time before a fault: a shorter one tells no rate
BEFORE_NS = 5 * NS_PER_S
# A rate is counted over as long as 200 acknowledgements take, one second at least.
COUNTED, MIN_COUNT_NS, MAX_COUNT_NS = 200, NS_PER_S, 5 * NS_PER_S
MIN_BEFORE = 20
# Standard deviations by which a count may lie below what the count before lets expect: a night
# asks thousands of times, and transactions come in bursts, not each by itself.
CHANCE = 4.0


@attrs.frozen(kw_only=True)
class Stretch:
    """A part of the drive in which a limit holds; ``fault`` is its window, if it is one's."""

    start_ns: int
    end_ns: int
    fault: Mapping[str, Any] | None = None


@attrs.frozen(kw_only=True)
class Broken:
    """One breach: from when to when it showed, and the transactions that show it."""

    name: str
    text: str
    start_ns: int
    end_ns: int
    measured: float
    txns: tuple[int, ...] = ()
    partition: int | None = None


class Untested(Exception):
    """A limit that this run could not test; the text says what was missing."""


@attrs.frozen(kw_only=True)
class Served:
    """What clients got: transactions without those that gave way to another, by column; acks
    ascend. ``tries`` is ``liveness.TRIES``.
    """

    txn: Ints
    intended: Ints
    begun: Ints
    ended: Ints
    type_: Ints
    acks: Ints
    tries: pa.Table | None
    drive: Stretch
    windows: Sequence[Mapping[str, Any]]


@attrs.frozen
class Limits:
    """Judges every run whose plan has limits."""

    name: str = "limits"
    # The tries by partition, which liveness counts.
    kernels: tuple[Kernel, ...] = liveness.CHECKER.kernels

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Return an anomaly for each kind of limit that is broken; ``unknown`` for untested ones.

        ``statistics`` has for each limit how often it was broken.
        """
        sections = setting.limits.sections
        marks = dict(setting.phases)
        if not sections or "drive" not in marks:
            return Part()
        served = _served(tables, setting, marks)
        broken: list[tuple[str, float, Broken]] = []
        untested: list[str] = []
        counts: dict[str, dict[str, int]] = {}
        for path, limits in sections.items():
            for key, allowed in limits.given.items():
                try:
                    found = tuple(_broken(key, allowed, served, _stretches(path, limits, served)))
                except Untested as reason:
                    untested.append(f"{path}.{key} was not tested: {reason}")
                    continue
                counts[f"{path}.{key}"] = {"broken": len(found)}
                broken += [(f"{path}.{key}", allowed, one) for one in found]
        starved = _starved(tables, setting, lookup) if broken else ()
        if starved:
            names = ", ".join(dict.fromkeys(path for path, _, _ in broken))
            why = f"undecided: {names} looks broken, but {starved[0]}"
            return Part(outcome=Outcome.UNKNOWN, reasons=(why, *untested))
        return Part(
            outcome=Outcome.UNKNOWN if untested else Outcome.VALID,
            anomalies=_anomalies(broken, served, lookup),
            reasons=tuple(untested),
            statistics={"limits": counts},
        )


def _served(tables: Tables, setting: Setting, marks: Mapping[str, int]) -> Served:
    table = tables["transactions"]
    yielded = np.asarray(gave_way(table, setting.declaration.conflicts))
    table = table.filter(pa.array(~yielded))
    ended, type_ = ints(table, "complete_ns"), codes(table, "type", TYPES).astype(np.int64)
    last_ns = int(ended.max(initial=marks["drive"]))
    return Served(
        txn=ints(table, "txn"),
        intended=ints(table, "intended_ns"),
        begun=ints(table, "invoke_ns"),
        ended=ended,
        type_=type_,
        acks=np.sort(ended[type_ == OK]),
        tries=tables.get(TRIES),
        # A prefix has no mark of its end.
        drive=Stretch(start_ns=marks["drive"], end_ns=marks.get("heal", last_ns)),
        windows=windows(tables["faults"]),
    )


def _starved(tables: Tables, setting: Setting, lookup: Lookup) -> tuple[str, ...]:
    if "controller" not in tables:
        return ()
    return controller.CHECKER.judge(tables, setting, lookup).reasons


def _stretches(path: str, limits: ServiceLimits, served: Served) -> tuple[Stretch, ...]:
    """The whole drive, or the time of each fault of the kind that the path names."""
    _, _, kind = path.partition(".")
    if not kind:
        return (served.drive,)
    drive = served.drive
    return tuple(
        Stretch(
            start_ns=max(window["start_ns"], drive.start_ns),
            end_ns=drive.end_ns if window["end_ns"] is None else window["end_ns"],
            fault=window,
        )
        for window in served.windows
        if window["kind"] == kind
    )


def _broken(
    key: str, allowed: float, served: Served, stretches: tuple[Stretch, ...]
) -> Iterator[Broken]:
    """Yield the breaches of one limit. Raises ``Untested``."""
    if not stretches:
        raise Untested("no fault of that kind came into force")
    match key:
        case "longest_gap_s":
            for stretch in stretches:
                yield from _gaps(served, stretch, int(allowed * NS_PER_S))
        case "p99_ms":
            yield from _slow(served, stretches, allowed)
        case "recovered_within_s":
            yield from _unrecovered(served, stretches, int(allowed * NS_PER_S))
        case _:
            yield from _indefinite(served, stretches, allowed)


def _gaps(served: Served, stretch: Stretch, allowed_ns: int) -> Iterator[Broken]:
    for start_ns, end_ns in _silences(
        served.begun, served.ended, served.acks, stretch, served.drive.end_ns, allowed_ns
    ):
        around = served.txn[
            (served.type_ == OK) & ((served.ended == start_ns) | (served.ended == end_ns))
        ]
        yield _gap("nothing was acknowledged", start_ns, end_ns, txns=tuple(around.tolist()[:2]))
    tries = served.tries
    if tries is None:
        return
    partition, ok = ints(tries, "partition"), np.asarray(tries.column("ok"))
    # Bounds that hold for certain: what a step shows began by its end, and ended from its begin on.
    begun, ended = (ints(tries, "begun") + 1) * STEP_NS, ints(tries, "ended") * STEP_NS
    for number in np.unique(partition).tolist():
        here = partition == number
        acked = np.unique(ended[here & ok])
        for start_ns, end_ns in _silences(
            begun[here], ended[here], acked, stretch, served.drive.end_ns, allowed_ns + STEP_NS
        ):
            what = f"partition {number} acknowledged nothing"
            yield _gap(what, min(start_ns + STEP_NS, end_ns), end_ns, partition=number)


def _gap(what: str, start_ns: int, end_ns: int, **more: Any) -> Broken:  # noqa: ANN401
    length_ns = end_ns - start_ns
    return Broken(
        name=LONGEST_GAP,
        text=f"longest gap: {what} from {seconds(start_ns)} to {seconds(end_ns)}, for "
        f"{seconds(length_ns)}, though clients asked",
        start_ns=start_ns,
        end_ns=end_ns,
        measured=length_ns / NS_PER_S,
        **more,
    )


def _silences(
    begun: Ints, ended: Ints, acks: Ints, stretch: Stretch, last_ns: int, allowed_ns: int
) -> Iterator[tuple[int, int]]:
    """Yield the times longer than ``allowed_ns`` that begin in ``stretch``, and in which clients
    asked and nothing was acknowledged; the longest first. ``acks`` ascend. After ``last_ns`` no
    client asks.
    """
    low = int(np.searchsorted(acks, stretch.start_ns, side="right"))
    high = int(np.searchsorted(acks, stretch.end_ns, side="left"))
    # The last one ends with the first acknowledgement behind the stretch.
    close = min(int(acks[high]), last_ns) if high < len(acks) else last_ns
    points = np.concatenate([[stretch.start_ns], acks[low:high], [max(close, stretch.start_ns)]])
    widths = np.diff(points)
    for at in np.argsort(-widths, kind="stable")[:WIDEST].tolist():
        if widths[at] <= allowed_ns:
            return
        start_ns, end_ns = int(points[at]), int(points[at + 1])
        asked = begun[(ended > start_ns) & (begun < end_ns)]
        # Without a client that asks no store can acknowledge.
        from_ns = max(start_ns, int(asked.min())) if len(asked) else end_ns
        if end_ns - from_ns > allowed_ns:
            yield from_ns, end_ns


def _within(served: Served, stretches: Sequence[Stretch]) -> Any:  # noqa: ANN401 (a mask)
    """Which transactions ended in one of ``stretches``."""
    inside = np.zeros(len(served.ended), dtype=bool)
    for stretch in stretches:
        inside |= (served.ended >= stretch.start_ns) & (served.ended <= stretch.end_ns)
    return inside


def _fullest(stretches: Sequence[Stretch], at_ns: Ints) -> Stretch:
    """The one of ``stretches`` in which most of ``at_ns`` lie; of several the first."""
    return max(stretches, key=lambda s: int(((at_ns >= s.start_ns) & (at_ns <= s.end_ns)).sum()))


def _slow(served: Served, stretches: tuple[Stretch, ...], allowed_ms: float) -> Iterator[Broken]:
    """All stretches together: one alone holds too few transactions to tell a percentile."""
    inside = _within(served, stretches) & (served.type_ == OK)
    took = (served.ended - served.intended)[inside]
    if len(took) < MIN_SAMPLES:
        raise Untested(f"{len(took)} transactions were acknowledged, of {MIN_SAMPLES} at least")
    p99_ms = float(np.percentile(took, 99)) / 1e6
    if p99_ms <= allowed_ms:
        return
    slowest = served.txn[inside][np.argsort(-took, kind="stable")[:EXAMPLES_MAX]]
    # Where several faults are taken together, the window is that with most of the slow ones.
    worst = _fullest(stretches, served.ended[inside][took > allowed_ms * 1e6])
    yield Broken(
        name=P99,
        text=f"p99: 1 in 100 of {len(took)} acknowledged transactions took longer than "
        f"{p99_ms:.1f} ms, from {seconds(worst.start_ns)} to {seconds(worst.end_ns)}",
        start_ns=worst.start_ns,
        end_ns=worst.end_ns,
        measured=p99_ms,
        txns=tuple(sorted(slowest.tolist())),
    )


def _indefinite(served: Served, stretches: tuple[Stretch, ...], allowed: float) -> Iterator[Broken]:
    inside = _within(served, stretches)
    unknown = inside & (served.type_ == INFO)
    total = int(inside.sum())
    if total < MIN_SAMPLES:
        raise Untested(f"{total} transactions ended, of {MIN_SAMPLES} at least")
    share = int(unknown.sum()) / total
    if share <= allowed:
        return
    worst = _fullest(stretches, served.ended[unknown])
    yield Broken(
        name=INDEFINITE,
        text=f"indefinite share: the outcome of {int(unknown.sum())} of {total} transactions "
        f"({share:.2%}) is not known, from {seconds(worst.start_ns)} to {seconds(worst.end_ns)}",
        start_ns=worst.start_ns,
        end_ns=worst.end_ns,
        measured=share,
        txns=tuple(served.txn[unknown].tolist()[:EXAMPLES_MAX]),
    )


def _unrecovered(
    served: Served, stretches: tuple[Stretch, ...], allowed_ns: int
) -> Iterator[Broken]:
    faults = [s.fault for s in stretches] if stretches[0].fault else served.windows
    tested = False
    for window in faults:
        if window is None or window["end_ns"] is None:
            continue
        calm_ns = _calm_until(served, window)
        if calm_ns < window["end_ns"] + allowed_ns:
            continue
        for test in (_rate_missing, _partitions_missing):
            found = test(served, window, allowed_ns, calm_ns)
            if found is not None:
                tested = True
                yield from found
    if not tested:
        raise Untested("no heal was followed by so long a time without a fault, and with clients")


def _calm_until(served: Served, window: Mapping[str, Any]) -> int:
    """Until when no other fault is in force after ``window``; its own end where one is then."""
    end_ns, until_ns = int(window["end_ns"]), served.drive.end_ns
    for other in served.windows:
        if other["fault"] == window["fault"]:
            continue
        if other["start_ns"] <= end_ns and (other["end_ns"] is None or other["end_ns"] > end_ns):
            return end_ns
        if other["start_ns"] > end_ns:
            until_ns = min(until_ns, int(other["start_ns"]))
    return until_ns


def _rate_before(served: Served, window: Mapping[str, Any]) -> tuple[float, int] | None:
    """Acknowledgements in a nanosecond, over the last seconds without a fault before ``window``,
    and how many these were; ``None`` where they are too few to tell.
    """
    clear_ns, stretches = served.drive.start_ns, list[tuple[int, int]]()
    for other in served.windows:
        start_ns, end_ns = int(other["start_ns"]), other["end_ns"]
        if start_ns > window["start_ns"]:
            break
        if start_ns - clear_ns >= MIN_CALM_NS:
            stretches.append((clear_ns, start_ns))
        clear_ns = max(clear_ns, served.drive.end_ns if end_ns is None else int(end_ns))
    if not stretches:
        return None
    start_ns, end_ns = stretches[-1]
    start_ns = max(start_ns, end_ns - BEFORE_NS)
    low, high = np.searchsorted(served.acks, [start_ns, end_ns])
    count = int(high - low)
    return (count / (end_ns - start_ns), count) if count >= MIN_BEFORE else None


def _rate_missing(
    served: Served, window: Mapping[str, Any], allowed_ns: int, calm_ns: int
) -> tuple[Broken, ...] | None:
    """The breach where the rate did not return; ``None`` where that can't be told."""
    before = _rate_before(served, window)
    if before is None:
        return None
    rate, counted = before
    span_ns = int(min(MAX_COUNT_NS, max(MIN_COUNT_NS, COUNTED / rate)))
    healed_ns = int(window["end_ns"])
    due_ns = healed_ns + allowed_ns
    if due_ns + span_ns > calm_ns:
        return None
    expected = rate * span_ns
    # Of the count itself, and of the rate that it is held against: both are counts of a while.
    deviation = math.sqrt(expected + expected**2 / counted)
    least = RATE_SHARE * expected - CHANCE * deviation
    acks = served.acks
    # Most are counted from an acknowledgement on.
    starts = np.append(acks[(acks >= healed_ns) & (acks <= due_ns)], [healed_ns, due_ns])
    counts = np.searchsorted(acks, starts + span_ns, side="right") - np.searchsorted(acks, starts)
    most = int(counts.max())
    if most >= least:
        return ()
    per_s = NS_PER_S / span_ns
    text = (
        f"recovery: of {rate * NS_PER_S:.1f} transactions a second before {_named(window)} at most "
        f"{most * per_s:.1f} were acknowledged again, from {seconds(healed_ns)}, when it was "
        f"healed, to {seconds(due_ns)}"
    )
    measured = most / expected
    return (Broken(name=RECOVERY, text=text, start_ns=healed_ns, end_ns=due_ns, measured=measured),)


def _partitions_missing(
    served: Served, window: Mapping[str, Any], allowed_ns: int, calm_ns: int
) -> tuple[Broken, ...] | None:
    """A breach for each partition that acknowledged nothing in time; ``None`` where partitions are
    not known.
    """
    tries = served.tries
    if tries is None or not tries.num_rows:
        return None
    healed_ns = int(window["end_ns"])
    due_ns = healed_ns + allowed_ns
    partition, ok = ints(tries, "partition"), np.asarray(tries.column("ok"))
    begun, ended = ints(tries, "begun") * STEP_NS, ints(tries, "ended") * STEP_NS
    # In whole steps: what may have ended within the time counts.
    acked = ok & (ended >= healed_ns - STEP_NS) & (ended <= due_ns)
    refused = ~ok & (begun >= healed_ns) & (ended <= due_ns)
    found = []
    for number in np.unique(partition[refused]).tolist():
        here = partition == number
        asked = int((refused & here).sum())
        if asked >= MIN_TRIES and not np.any(acked & here):
            text = (
                f"recovery: partition {number} acknowledged nothing from {seconds(healed_ns)}, "
                f"when {_named(window)} was healed, to {seconds(due_ns)}, though it was asked "
                f"{asked} times"
            )
            found.append(
                Broken(
                    name=RECOVERY,
                    text=text,
                    start_ns=healed_ns,
                    end_ns=due_ns,
                    measured=0.0,
                    partition=number,
                )
            )
    return tuple(found)


def _named(window: Mapping[str, Any]) -> str:
    return f"{window['kind']} of {', '.join(window['nodes'] or ()) or window['target']}"


def _anomalies(
    broken: Sequence[tuple[str, float, Broken]], served: Served, lookup: Lookup
) -> dict[str, Anomaly]:
    found: dict[str, list[tuple[str, float, Broken]]] = {}
    for path, allowed, one in broken:
        found.setdefault(one.name, []).append((path, allowed, one))
    return {
        name: Anomaly(
            count=len(rows),
            examples=tuple(
                _finding(path, allowed, one, served, lookup)
                for path, allowed, one in rows[:EXAMPLES_MAX]
            ),
        )
        for name, rows in found.items()
    }


def _finding(path: str, allowed: float, one: Broken, served: Served, lookup: Lookup) -> Finding:
    operations = lookup.operations(one.txns) if one.txns else {}
    within = [
        f"{_named(w)} from {seconds(w['start_ns'])}"
        + (f" to {seconds(w['end_ns'])}" if w["end_ns"] is not None else " on")
        for w in served.windows
        if w["start_ns"] <= one.end_ns and (w["end_ns"] is None or w["end_ns"] >= one.start_ns)
    ]
    more = f" and {len(within) - EXAMPLES_MAX} more" if len(within) > EXAMPLES_MAX else ""
    force = f"; in force: {', '.join(within[:EXAMPLES_MAX])}{more}" if within else "; no fault was"
    figures = {"limit": f"{path} = {allowed:g}", "measured": round(one.measured, 6)}
    of = {} if one.partition is None else {"partition": one.partition}
    return Finding(
        text=f"{one.text}; {path} is {allowed:g}{force}",
        txns=one.txns,
        keys=(),
        operations=tuple(operations[txn] for txn in one.txns if txn in operations),
        at_ns=one.start_ns,
        details={**figures, **of, "window_start_ns": one.start_ns, "window_end_ns": one.end_ns},
    )


CHECKER = Limits()
