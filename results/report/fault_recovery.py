"""What each fault cost: rate, latency and errors before it, while it was in force, and after it,
and the time to 90 % of the rate before.

All counts are of completions, so that anybody can repeat them from ``transactions.parquet``:

``before``  up to ``AROUND_S`` without a fault: the last that are long enough, which need not end
            with the fault's begin
``during``  from its begin to the proof of its healing
``after``   up to ``AROUND_S`` from there on, until the next fault begins

The rate has recovered at the first acknowledgement of the first time with at least 90 % of the rate
before, by the rule of ``harness.protocols.recovery``, which says how long such a time is. What an
open loop still owed from a fault is no part of a rate, before or after; times are tried every
``STEP_S``, and none counts before the rate was lower in one. Beside them on the page stand the gaps
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
from harness.plan.plan import asked_rate
from harness.protocols.conflicts import conflicts
from harness.protocols.fault_spans import FaultSpan, fault_spans
from harness.protocols.latency import percentiles
from harness.protocols.promise import Declaration
from harness.protocols.recovery import BEFORE_NS, SHARE, calms_before, counting_ns, rate_before
from harness.protocols.verdict import Availability, FaultWindow, PartitionGaps, Window
from harness.run.directory import Manifest
from results.report import tabulate
from results.report.run_data import RunData
from results.report.tabulate import DASH, Grid, cell

AROUND_S = BEFORE_NS / NS_PER_S
STEP_S = 0.1
STEPS_MAX = 20_000  # half an hour; a history from elsewhere may have a gap of a century
SECOND_NS = NS_PER_S
RECOVERIES_MAX = 60
_COLUMNS = (
    "window", "hit", "from (s)", "to (s)", "ok", "longest gap (s)", "gap at (s)",
    "first ok after injection (s)", "after healing (s)",
)  # fmt: skip
ROWS_MAX = 100
SHOWN_MAX = 16  # partitions side by side

Ints = npt.NDArray[np.int64]


@attrs.frozen(kw_only=True)
class Stretch:
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
    before: Stretch | None
    during: Stretch
    after: Stretch | None
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
    done = _Completions.of(transactions, manifest.declaration, asked_per_s)
    driven = [span for span in spans if start_ns <= span.begin_ns < end_ns]
    around = _Faults.of(spans, start_ns, end_ns)
    return tuple(_recovery(span, around, done) for span in driven)


@attrs.frozen(kw_only=True, eq=False)
class _Completions:
    """Sorted times of completion by how they ended, and the intended starts and latencies of the ok
    ones, in the order of their completion.
    """

    asked_per_s: float | None
    ok_ns: Ints
    intended_ns: Ints
    latency_ns: Ints
    errors_ns: Ints
    conflicts_ns: Ints

    @classmethod
    def of(
        cls, table: pa.Table, declaration: Declaration, asked_per_s: float | None
    ) -> _Completions:
        done = table["complete_ns"].to_numpy()
        ok = pc.equal(table["type"].cast(pa.string()), OpType.OK.value).to_numpy()
        gave_way = conflicts(declaration, table).to_numpy()
        order = np.argsort(done[ok], kind="stable")
        ok_ns, intended_ns = done[ok][order], table["intended_ns"].to_numpy()[ok][order]
        return cls(
            asked_per_s=asked_per_s,
            ok_ns=ok_ns,
            intended_ns=intended_ns,
            latency_ns=ok_ns - intended_ns,
            errors_ns=np.sort(done[~ok & ~gave_way]),
            conflicts_ns=np.sort(done[~ok & gave_way]),
        )

    def stretch(self, start_ns: int, end_ns: int) -> Stretch:
        """Count what completed at or after ``start_ns`` and before ``end_ns``."""
        low, high = np.searchsorted(self.ok_ns, [start_ns, end_ns])
        inside = self.latency_ns[low:high]
        return Stretch(
            start_ns=start_ns,
            end_ns=end_ns,
            ok=int(high - low),
            errors=_count(self.errors_ns, start_ns, end_ns),
            conflicts=_count(self.conflicts_ns, start_ns, end_ns),
            p99_ns=int(percentiles(inside, [99])[0]) if len(inside) else None,
        )

    def without_backlog(self, healed_ns: int, start_ns: int, end_ns: int) -> Ints:
        """Return the ``ok_ns`` from ``start_ns`` until ``end_ns``, without those that an open loop
        meant to begin before ``healed_ns`` and caught up with afterwards.
        """
        low, high = np.searchsorted(self.ok_ns, [start_ns, end_ns])
        ok_ns, intended_ns = self.ok_ns[low:high], self.intended_ns[low:high]
        if self.asked_per_s is None:
            return ok_ns
        return ok_ns[(ok_ns < healed_ns) | (intended_ns >= healed_ns)]

    def rate(self, clear_ns: int, start_ns: int, end_ns: int) -> float | None:
        """Return the acknowledgements a nanosecond of a time without faults, the last of which was
        over by ``clear_ns``, without what was owed from then; ``None`` where too few tell it.
        """
        own = self.without_backlog(clear_ns, start_ns, end_ns)
        return rate_before(len(own), end_ns - start_ns, self.asked_per_s)


def _each(ok_ns: Ints, window: int, start_ns: int, end_ns: int) -> tuple[Ints, Ints]:
    """Return the begins of the times of ``window`` ns within, every ``STEP_S`` or, of more than
    ``STEPS_MAX``, further apart, and how many of the sorted ``ok_ns`` are in each.
    """
    step = max(int(STEP_S * NS_PER_S), (end_ns - start_ns) // STEPS_MAX)
    begins = np.arange(start_ns, end_ns - window + 1, step, dtype=np.int64)
    counts = np.searchsorted(ok_ns, begins + window) - np.searchsorted(ok_ns, begins)
    return begins, counts.astype(np.int64)


def _count(times: Ints, start_ns: int, end_ns: int) -> int:
    low, high = np.searchsorted(times, [start_ns, end_ns])
    return int(high - low)


@attrs.frozen(kw_only=True, eq=False)
class _Faults:
    """The ``spans`` of a drive that begins at ``drive_ns`` and is over at ``over_ns``, in the order
    of their begin: when each began, by when it and all before it had ended, and when the rate
    before each is counted.
    """

    spans: Sequence[FaultSpan]
    over_ns: int
    begins: Ints
    ended: Ints
    calms: Mapping[int, tuple[int, int]]

    @classmethod
    def of(cls, spans: Sequence[FaultSpan], drive_ns: int, over_ns: int) -> _Faults:
        ends = [min(span.end_ns(over_ns), over_ns) for span in spans]
        return cls(
            spans=spans,
            over_ns=over_ns,
            begins=np.array([span.begin_ns for span in spans], np.int64),
            ended=np.maximum.accumulate(np.array(ends, np.int64)),
            calms=calms_before(spans, drive_ns, over_ns),
        )

    def alone_at(self, end_ns: int) -> bool:
        """Tell whether all faults that began before ``end_ns`` were over by then."""
        count = int(np.searchsorted(self.begins, end_ns))
        return not count or int(self.ended[count - 1]) <= end_ns

    def clear_ns(self, calm: tuple[int, int]) -> int:
        """Return by when all faults that began before ``calm`` had ended; 0 without any."""
        count = int(np.searchsorted(self.begins, calm[1]))
        return int(self.ended[count - 1]) if count else 0

    def next_ns(self, span: FaultSpan, end_ns: int) -> int:
        """Return when another fault than ``span`` begins, at ``end_ns`` or later, or the drive is
        over.
        """
        at = int(np.searchsorted(self.begins, end_ns))
        at += at < len(self.spans) and self.spans[at].fault == span.fault
        return min(self.over_ns, int(self.begins[at])) if at < len(self.spans) else self.over_ns


def _recovery(span: FaultSpan, faults: _Faults, done: _Completions) -> Recovery:
    begin_ns = span.begin_ns
    end_ns = min(span.end_ns(faults.over_ns), faults.over_ns)
    calm, alone = faults.calms.get(span.fault), faults.alone_at(end_ns)
    next_ns = faults.next_ns(span, end_ns)
    before = None if calm is None else done.stretch(*calm)
    after_ns = min(next_ns, end_ns + int(AROUND_S * NS_PER_S))
    healed = span.healed_ns is not None and alone and after_ns > end_ns
    # What falls later is not this fault's doing; what fell by then may be long in coming back.
    near_ns = after_ns if alone else end_ns
    _, seconds = _each(done.ok_ns, SECOND_NS, begin_ns, near_ns)
    rate = None if calm is None else done.rate(faults.clear_ns(calm), *calm)
    ok_ns = done.without_backlog(end_ns, begin_ns, next_ns)
    begins, enough = _enough(ok_ns, rate, begin_ns, next_ns if alone else end_ns)
    fell = not enough[begins < near_ns].all()
    healed_at, back = _enough(ok_ns, rate, end_ns, next_ns if healed else end_ns)
    return Recovery(
        fault=span.fault,
        kind=span.kind,
        hit=", ".join(span.nodes) or span.target,
        before=before,
        during=done.stretch(begin_ns, end_ns),
        after=done.stretch(end_ns, after_ns) if healed else None,
        lowest=int(seconds.min()) if len(seconds) else None,
        fell=fell,
        begin_known=len(enough) > 0,
        end_known=len(back) > 0,
        from_begin_ns=_first(ok_ns, begins[_risen(enough)], begin_ns) if fell else None,
        from_end_ns=_first(ok_ns, healed_at[back], end_ns),
    )


def _enough(
    ok_ns: Ints, rate: float | None, start_ns: int, end_ns: int
) -> tuple[Ints, npt.NDArray[np.bool_]]:
    """Return the begins of the times in which the rate is counted, and whether each has enough of
    ``rate``; none where that is not known, or the stretch is too short for one.
    """
    if rate is None:
        return np.zeros(0, np.int64), np.zeros(0, np.bool_)
    window = counting_ns(rate)
    begins, counts = _each(ok_ns, window, start_ns, end_ns)
    return begins, counts >= SHARE * rate * window


def _risen(enough: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Tell which times have enough after one without."""
    return enough & (np.arange(len(enough)) > np.argmin(enough))


def _first(ok_ns: Ints, begins: Ints, since_ns: int) -> int | None:
    """Return the time from ``since_ns`` to the first of ``begins``, or, where that begins with a
    silence, to the acknowledgement that ended it; ``None`` without any.
    """
    if not len(begins):
        return None
    return int(ok_ns[np.searchsorted(ok_ns, begins[0])]) - since_ns


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


def _stretch_row(name: str, stretch: Stretch | None) -> tuple[str, ...]:
    if stretch is None:
        return (name, *[DASH] * 6)
    return (
        name,
        cell("at_ns", stretch.start_ns),
        cell("at_ns", stretch.end_ns),
        f"{stretch.ok_per_s:,.1f}",
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
    title = "Longest time without an acknowledged write, by partition (s)"
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
