"""What each fault cost: rate, latency and errors before it, while it was in force, and after it,
and the time to 90 % of the rate before.

All counts are of completions, so that anybody can repeat them from ``transactions.parquet``:

``before``  up to ``AROUND_S`` without a fault: the last that are long enough, which need not end
            with the fault's begin
``during``  from its begin to the proof of its healing
``after``   up to ``AROUND_S`` from there on, until the next fault begins

The rate has recovered at the first acknowledgement from which on 90 % of the rate before are
acknowledged, by the rule of ``harness.protocols.recovery``, which says over how long, and which the
limit ``recovered_within_s`` follows. What an open loop still owed from a fault is no part of a
rate, before or after. From a fault's begin on times are tried every ``STEP_S``, and none counts
before the rate was lower in one. Beside them on the page stand the gaps
that the verdict tells of each fault (``availability``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from harness.clock import NS_PER_S
from harness.history.records import OpType
from harness.history.run_directory import Manifest
from harness.plan.plan import asked_rate
from harness.protocols.conflicts import conflicts
from harness.protocols.fault_spans import FaultSpan, fault_spans
from harness.protocols.latency import percentiles
from harness.protocols.promise import Declaration
from harness.protocols.recovery import (
    BEFORE_NS,
    Acknowledgements,
    Arrivals,
    Calms,
    Rate,
    first_back,
    is_back,
    is_served,
)
from harness.protocols.verdict import Availability, FaultWindow, PartitionGaps, Window
from results.report import tabulate
from results.report.run_data import RunData
from results.report.tabulate import DASH, Grid, cell

AROUND_S = BEFORE_NS / NS_PER_S
STEP_S = 0.1
STEPS_MAX = 20_000  # half an hour; a history from elsewhere may have a gap of a century
SECOND_NS = NS_PER_S
RECOVERIES_MAX = 60
_COLUMNS = (
    "window", "hit", "from (s)", "to (s)", "ok", "longest without any ok (s)", "since (s)",
    "first ok after injection (s)", "after healing (s)",
)  # fmt: skip
ROWS_MAX = 100
SHOWN_MAX = 16  # partitions side by side

Ints = npt.NDArray[np.int64]


@attrs.frozen(kw_only=True)
class PhaseFigures:
    """What completed from ``start_ns`` to ``end_ns``: ``errors`` without conflicts, which are
    transactions that gave way to another. ``p99_ns`` is of ok transactions, from their intended
    start; ``None`` where there was none.
    """

    start_ns: int
    end_ns: int
    ok: int
    errors: int
    conflicts: int
    p99_ns: int | None

    @property
    def ok_per_s(self) -> float:
        """Acknowledged transactions a second."""
        return self.ok * NS_PER_S / max(1, self.end_ns - self.start_ns)


@attrs.frozen(kw_only=True)
class Recovery:
    """One fault. ``before`` is ``None`` where no time before it was free of faults for long enough,
    ``after`` where another fault leaves no room. ``lowest`` is the least number of acknowledgements
    in any second from its begin to the end of ``after``. ``from_begin_ns`` and ``from_end_ns`` are
    times until the rate was back, ``None`` where it was not until the next fault, or nothing is
    known of it; ``fell`` is whether it was lower at a time that began before the end of ``after``.
    Both are known where the rate before is, and the time that they are looked for in is long enough
    to count one: ``begin_known``, ``end_known``.
    """

    fault: int
    kind: str
    hit: str
    before: PhaseFigures | None
    during: PhaseFigures
    after: PhaseFigures | None
    lowest: int | None
    fell: bool
    begin_known: bool
    end_known: bool
    from_begin_ns: int | None
    from_end_ns: int | None


def recoveries(run_data: RunData) -> tuple[Recovery, ...]:
    """Return the figures of each fault that began in the drive phase, in the order of their begin;
    nothing of a history without times.
    """
    if not run_data.scale.timed:
        return ()
    asked = asked_rate(run_data.plan) if run_data.history.planned else None
    return recoveries_in(run_data.manifest, run_data.transactions, run_data.faults, asked)


def recoveries_in(
    manifest: Manifest,
    transactions: pa.Table,
    faults: Sequence[Mapping[str, Any]],
    asked_per_s: float | None,
) -> tuple[Recovery, ...]:
    """Return what ``recoveries`` does of a run with times of its own, from its tables; an open loop
    was asked for ``asked_per_s`` transactions a second.
    """
    marks = dict(manifest.phases)
    spans = fault_spans(faults)
    if not spans or not transactions.num_rows:
        return ()
    last_ns = int(pc.max(transactions["complete_ns"]).as_py() or 0)
    start_ns = marks.get("drive", int(pc.min(transactions["invoke_ns"]).as_py()))
    end_ns = marks.get("heal", max([last_ns, *marks.values()]))
    done = _Completions.of(transactions, manifest.declaration, asked_per_s, end_ns)
    driven = [span for span in spans if start_ns <= span.begin_ns < end_ns]
    around = Calms.of(spans, start_ns, end_ns)
    return tuple(_recovery(span, around, done) for span in driven)


@attrs.frozen(kw_only=True, eq=False)
class _Completions:
    """Sorted times of completion by how they ended; of the ok ones also their latencies, in the
    order of their completion.
    """

    ok: Acknowledgements
    latency_ns: Ints
    errors_ns: Ints
    conflicts_ns: Ints

    @classmethod
    def of(
        cls, table: pa.Table, declaration: Declaration, asked_per_s: float | None, over_ns: int
    ) -> _Completions:
        done = table["complete_ns"].to_numpy()
        ok = pc.equal(table["type"].cast(pa.string()), OpType.OK.value).to_numpy()
        gave_way = conflicts(declaration, table).to_numpy()
        intended = table["intended_ns"].to_numpy()
        arrivals = Arrivals.of(intended, asked_per_s, over_ns)
        found = Acknowledgements.of(done[ok], intended[ok], arrivals)
        return cls(
            ok=found,
            latency_ns=found.ended - found.intended,
            errors_ns=np.sort(done[~ok & ~gave_way]),
            conflicts_ns=np.sort(done[~ok & gave_way]),
        )

    def stretch(self, start_ns: int, end_ns: int) -> PhaseFigures:
        """Count what completed at or after ``start_ns`` and before ``end_ns``."""
        low, high = np.searchsorted(self.ok.ended, [start_ns, end_ns])
        inside = self.latency_ns[low:high]
        return PhaseFigures(
            start_ns=start_ns,
            end_ns=end_ns,
            ok=int(high - low),
            errors=_count(self.errors_ns, start_ns, end_ns),
            conflicts=_count(self.conflicts_ns, start_ns, end_ns),
            p99_ns=int(percentiles(inside, [99])[0]) if len(inside) else None,
        )


def _steps(window_ns: int, start_ns: int, end_ns: int) -> Ints:
    """Return the begins of the times of ``window_ns`` within, every ``STEP_S`` or, of more than
    ``STEPS_MAX``, further apart.
    """
    step = max(int(STEP_S * NS_PER_S), (end_ns - start_ns) // STEPS_MAX)
    return np.arange(start_ns, end_ns - window_ns + 1, step, dtype=np.int64)


def _count(times: Ints, start_ns: int, end_ns: int) -> int:
    low, high = np.searchsorted(times, [start_ns, end_ns])
    return int(high - low)


def _recovery(span: FaultSpan, calms: Calms, done: _Completions) -> Recovery:
    begin_ns = span.begin_ns
    end_ns = min(span.end_ns(calms.over_ns), calms.over_ns)
    calm, until_ns = calms.before.get(span.fault), calms.until(span, end_ns)
    # What falls later is not this fault's doing; what fell by then may be long in coming back.
    after_ns = min(until_ns, end_ns + int(AROUND_S * NS_PER_S))
    healed = span.healed_ns is not None and after_ns > end_ns
    seconds = done.ok.counts(_steps(SECOND_NS, begin_ns, after_ns), SECOND_NS)
    rate = None if calm is None else done.ok.rate(calms.clear_ns(calm), calm)
    # Of a stretch that is too short to count a rate in, nothing is known.
    begin_known = rate is not None and begin_ns + rate.counting_ns <= until_ns
    end_known = rate is not None and healed and end_ns + rate.counting_ns <= until_ns
    own_ns = done.ok.own(end_ns, begin_ns, until_ns)
    back_ns = first_back(own_ns, rate, end_ns, until_ns) if rate and end_known else None
    fell_ns = _fallen(own_ns, rate, begin_ns, after_ns, until_ns) if rate else None
    risen_ns = None
    if rate is not None and fell_ns is not None:
        risen_ns = _risen(own_ns, rate, fell_ns, until_ns)
        if fell_ns < end_ns and (risen_ns is None or risen_ns >= end_ns):
            risen_ns = back_ns if end_known else risen_ns
    return Recovery(
        fault=span.fault,
        kind=span.kind,
        hit=", ".join(span.nodes) or span.target,
        before=None if calm is None else done.stretch(*calm),
        during=done.stretch(begin_ns, end_ns),
        after=done.stretch(end_ns, after_ns) if healed else None,
        lowest=int(seconds.min()) if len(seconds) else None,
        fell=fell_ns is not None,
        begin_known=begin_known,
        end_known=end_known,
        from_begin_ns=None if risen_ns is None else risen_ns - begin_ns,
        from_end_ns=None if back_ns is None else back_ns - end_ns,
    )


def _fallen(ok_ns: Ints, rate: Rate, start_ns: int, near_ns: int, until_ns: int) -> int | None:
    """Return the begin of the first time from ``start_ns`` until ``near_ns`` in which less than the
    rate was acknowledged; ``None`` without any.
    """
    begins = _steps(rate.counting_ns, start_ns, until_ns)
    lower = begins[~is_served(ok_ns, begins, rate) & (begins < near_ns)]
    return int(lower[0]) if len(lower) else None


def _risen(ok_ns: Ints, rate: Rate, fell_ns: int, until_ns: int) -> int | None:
    """Return the first acknowledgement at which the rate is back after it fell, of those that
    follow next on a step; ``None`` without any.
    """
    at = np.searchsorted(ok_ns, _steps(rate.counting_ns, fell_ns, until_ns)[1:])
    starts = np.unique(ok_ns[at[at < len(ok_ns)]])
    starts = starts[starts + rate.counting_ns <= until_ns]
    back = starts[is_back(ok_ns, starts, rate)]
    return int(back[0]) if len(back) else None


# -- as texts for the page


@attrs.frozen(kw_only=True)
class RecoveryRow:
    """A fault's recovery as text: its stretches as (name, from, to, ok/s, p99, errors, conflicts),
    and the times to 90 % of the rate before.
    """

    name: str
    hit: str
    stretches: tuple[tuple[str, ...], ...]
    lowest: str
    from_begin: str
    from_end: str
    bad: bool


def recovery_rows(found: tuple[Recovery, ...]) -> tuple[RecoveryRow, ...]:
    """Return the rows of the first faults."""
    return tuple(_recovery_row(each) for each in found[:RECOVERIES_MAX])


def _recovery_row(each: Recovery) -> RecoveryRow:
    told = (("before", each.before), ("during", each.during), ("after", each.after))
    never = "never lower" if each.begin_known and not each.fell else DASH
    not_yet = "not in this time"
    return RecoveryRow(
        name=f"{each.fault} {each.kind}",
        hit=each.hit,
        stretches=tuple(_stretch_row(name, stretch) for name, stretch in told),
        lowest=DASH if each.lowest is None else f"{each.lowest:,}",
        from_begin=_again_text(each.from_begin_ns, not_yet if each.fell else never),
        # Of a stretch that is too short to count a rate in, nothing is known.
        from_end=_again_text(each.from_end_ns, not_yet if each.end_known else DASH),
        bad=each.end_known and each.from_end_ns is None,
    )


def _again_text(time_ns: int | None, otherwise: str) -> str:
    return otherwise if time_ns is None else f"{time_ns / 1e9:.1f}"


def _stretch_row(name: str, stretch: PhaseFigures | None) -> tuple[str, ...]:
    if stretch is None:
        return (name, *[DASH] * 6)
    return (
        name,
        cell("at_ns", stretch.start_ns),
        cell("at_ns", stretch.end_ns),
        f"{stretch.ok_per_s:,.1f}" if stretch.end_ns - stretch.start_ns >= SECOND_NS else DASH,
        DASH if stretch.p99_ns is None else f"{stretch.p99_ns / 1e6:,.1f}",
        f"{stretch.errors:,}",
        f"{stretch.conflicts:,}",
    )


def availability(part: Availability) -> tuple[Grid, ...]:
    """Return one table of the whole drive phase and every fault window, then those of partitions
    and of the faults' effects.
    """
    if part.windows is None:
        return ()
    rows = [
        _window_row(f"{window.fault} {window.kind}", window)
        for window in part.windows[: ROWS_MAX - (part.drive is not None)]
    ]
    count = len(part.windows)
    if part.drive is not None:
        rows.insert(0, _window_row("whole drive phase", part.drive))
        count += 1
    table = Grid(title="", columns=_COLUMNS, rows=tuple(rows), more=count - len(rows))
    effects = tabulate.grids({"effects": part.effects} if part.effects else {})
    return (table, *_by_partition(part.partitions), *effects)


def _by_partition(gaps: PartitionGaps | None) -> tuple[Grid, ...]:
    """Return the longest gap of each partition in every fault window, where they are known."""
    if gaps is None:
        return ()
    rows = tuple(
        (
            f"{window.fault} {window.kind}",
            *(cell("gap_ns", gap) for gap in window.longest_gap_ns[:SHOWN_MAX]),
        )
        for window in gaps.windows[:ROWS_MAX]
    )
    if all(gap == DASH for _, *row in rows for gap in row):
        return ()  # with too few writes no partition has a figure
    columns = ("window", *(f"partition {number}" for number in gaps.partition[:SHOWN_MAX]))
    title = "Longest time without an acknowledged write to a partition, asked for or not (s)"
    if (unseen := len(gaps.partition) - SHOWN_MAX) > 0:
        title += f", without {unseen} more that analysis/verdict.json has"
    more = len(gaps.windows) - len(rows)
    return (Grid(title=title, columns=columns, rows=rows, more=more),)


def _window_row(name: str, window: Window | FaultWindow) -> tuple[str, ...]:
    hit, first_ns, healed_ns = DASH, None, None
    if isinstance(window, FaultWindow):
        hit = ", ".join(window.nodes or ()) or window.target or DASH
        first_ns, healed_ns = window.first_ok_after_inject_ns, window.first_ok_after_heal_ns
    return (
        name,
        hit,
        cell("at_ns", window.start_ns),
        cell("at_ns", window.end_ns),
        cell("ok", window.ok),
        cell("gap_ns", window.longest_gap_ns),
        cell("at_ns", window.longest_gap_at_ns),
        cell("first_ns", first_ns),
        cell("first_ns", healed_ns),
    )
