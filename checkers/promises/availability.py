"""The longest times without a successful operation, fault by fault, and each fault's effects;
decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np
import pyarrow as pa

from checkers.engine.arrays import OK, TYPES, Bools, Ints, codes, ints
from checkers.engine.spans import FOREVER_NS
from checkers.explain.fault_effects import Effect, effects, summary
from checkers.promises.liveness import STEP_NS, TRIES
from harness.errors import InvariantError
from harness.protocols.checker import Kernel, Lookup, Part, Tables
from harness.protocols.fault_spans import FaultSpan, fault_spans
from harness.protocols.setting import Setting
from harness.protocols.verdict import (
    Availability,
    FaultWindow,
    PartitionGaps,
    PartitionWindow,
    Window,
)


@attrs.frozen
class GapChecker:
    """Gaps between ok completions, overall and in every fault's window."""

    name: str = "availability"
    kernels: tuple[Kernel, ...] = ()

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Return ``availability`` with a window per injected fault; where partitions are known
        also ``partitions``.
        """
        span, marks = _span(lookup), dict(setting.phases)
        spans = lookup.pieces(("invoke_ns", "complete_ns"))
        found = effects(spans, tables["faults"], tables["events"])
        faults = fault_spans(tables["faults"].to_pylist())
        asked_ns = marks.get("heal", FOREVER_NS)  # a prefix has no mark of its end
        # The drive phase is told by its marks, or by the operations themselves.
        last_ns = span.first_ns if span.done_ns is None else span.done_ns
        drive = _Gaps(marks.get("drive", span.first_ns), marks.get("heal", last_ns), asked_ns)
        within = [_Gaps(fault.begin_ns, _end(fault, span.done_ns), asked_ns) for fault in faults]
        for done in _completions(lookup, span):
            for gaps in (drive, *within):
                gaps.add(done)
        rows = zip(faults, within, found, strict=True)
        return Part(
            availability=Availability(
                drive=Window(start_ns=drive.start_ns, end_ns=drive.end_ns, **drive.longest()),
                windows=tuple(_window(*row) for row in rows),
                effects=summary(found),
                partitions=partition_gaps(tables[TRIES], faults) if TRIES in tables else None,
            )
        )


@attrs.frozen(kw_only=True)
class _Span:
    """The first invocation (0 of none), and the last ok completion. ``ordered``: transactions are
    in the order of invocations, and none that is ok was complete before its own.
    """

    first_ns: int
    done_ns: int | None
    ordered: bool


def _span(lookup: Lookup) -> _Span:
    first: int | None = None
    done: int | None = None
    before, ordered = 0, True
    for invoked, completed, ok in _times(lookup):
        if len(invoked):
            least = int(invoked.min())
            ordered &= first is None or int(invoked[0]) >= before
            ordered &= bool(np.all(invoked[1:] >= invoked[:-1]))
            first, before = least if first is None else min(first, least), int(invoked[-1])
        if ok.any():
            ordered &= bool(np.all(completed[ok] >= invoked[ok]))
            latest = int(completed[ok].max())
            done = latest if done is None else max(done, latest)
    return _Span(first_ns=first or 0, done_ns=done, ordered=ordered)


def _times(lookup: Lookup) -> Iterator[tuple[Ints, Ints, Bools]]:
    """Yield invocations, completions, and which are ok, of a part of the transactions at a time."""
    for piece in lookup.pieces(("type", "invoke_ns", "complete_ns")):
        ok = codes(piece, "type", TYPES) == OK
        yield ints(piece, "invoke_ns"), ints(piece, "complete_ns"), ok


def _completions(lookup: Lookup, span: _Span) -> Iterator[Ints]:
    """Yield the ok completions in ascending order, in parts. What lies before the invocation of a
    part's first transaction is before all that follow: no more is kept than is open at one time.
    """
    kept = np.zeros(0, dtype=np.int64)
    for invoked, completed, ok in _times(lookup):
        if span.ordered and len(invoked):
            low = int(np.searchsorted(kept, invoked[0]))
            yield kept[:low]
            kept = kept[low:]
        kept = np.sort(np.concatenate([kept, completed[ok]]))
    yield kept


@attrs.define
class _Gaps:
    """The longest time without an ok completion that touches [start, end], and the number of ok
    completions; a gap ends at the first completion, even when that lies beyond the end, but at the
    latest at ``asked_ns``, after which no client asks.
    """

    start_ns: int
    end_ns: int
    asked_ns: int
    ok: int = 0
    after_start_ns: int | None = None
    after_end_ns: int | None = None
    _longest: tuple[int, int] | None = None
    _before: int | None = None

    def add(self, done: Ints) -> None:
        """Take the completions that follow those so far."""
        low, high = np.searchsorted(done, [self.start_ns, self.end_ns], side="right").tolist()
        self.ok += high - low
        if self.after_start_ns is None and low < len(done):
            self.after_start_ns = int(done[low]) - self.start_ns
        if self.after_end_ns is not None:
            return
        self._pass(done[low:high])
        if high < len(done):
            self.after_end_ns = int(done[high]) - self.end_ns
            self._pass(done[high : high + 1])

    def longest(self) -> dict[str, int]:
        """Return the figures, once all were added."""
        if self.after_end_ns is None:
            self._pass(np.asarray([max(self.end_ns, self.start_ns)]))
        if self._longest is None:
            raise InvariantError("a window without a gap: its end is one")
        width, at = self._longest
        return {"ok": self.ok, "longest_gap_ns": width, "longest_gap_at_ns": at}

    def _pass(self, points: Ints) -> None:
        if not len(points):
            return
        before = self.start_ns if self._before is None else self._before
        # What began after the drive phase has no gap; no gap is negative.
        points = np.minimum(np.append(before, points), max(self.asked_ns, self.start_ns))
        widths = np.diff(points)
        at = int(np.argmax(widths))
        if self._longest is None or widths[at] > self._longest[0]:
            self._longest = int(widths[at]), int(points[at])
        self._before = int(points[-1])


def _end(fault: FaultSpan, done_ns: int | None) -> int:
    return fault.end_ns(fault.begin_ns if done_ns is None else done_ns)


def _window(fault: FaultSpan, gaps: _Gaps, effect: Effect) -> FaultWindow:
    longest = gaps.longest()
    return FaultWindow(
        fault=fault.fault,
        kind=fault.kind,
        target=fault.target,
        nodes=fault.nodes,
        roles=fault.roles,
        start_ns=fault.begin_ns,
        end_ns=gaps.end_ns,
        **longest,
        first_ok_after_inject_ns=gaps.after_start_ns,
        first_ok_after_heal_ns=None if fault.healed_ns is None else gaps.after_end_ns,
        open_at_injection=effect.open,
        takeovers=effect.takeovers,
    )


CHECKER = GapChecker()


PARTITIONS_MAX = 64  # a table of more is too wide to read


def partition_gaps(tries: pa.Table, found: Sequence[FaultSpan]) -> PartitionGaps | None:
    """Return for each fault of ``found`` and each partition the longest time within without an
    acknowledged write. Times are counted in steps of ``STEP_NS``. ``None`` where partitions are not
    known, or too many.
    """
    partition = ints(tries, "partition")
    known = np.unique(partition)
    if not len(known) or len(known) > PARTITIONS_MAX or not found:
        return None
    served = np.asarray(tries.column("ok")) & np.asarray(tries.column("writes"))
    ended = ints(tries, "ended") * STEP_NS
    done = [np.unique(ended[served & (partition == number)]) for number in known.tolist()]
    return PartitionGaps(
        partition=tuple(known.tolist()),
        windows=tuple(
            PartitionWindow(
                fault=window.fault,
                kind=window.kind,
                longest_gap_ns=tuple(
                    _longest(times, window.begin_ns, window.healed_ns) for times in done
                ),
            )
            for window in found
        ),
    )


def _longest(done: Ints, start_ns: int, end_ns: int | None) -> int | None:
    """Return the longest time without one of ``done`` that touches the window: the gap begins
    before or in it, and may end after it. ``None`` where no completion precedes it or none follows
    it.
    """
    last_ns = int(done[-1]) if len(done) else start_ns
    low = int(np.searchsorted(done, start_ns, side="right")) - 1
    high = int(np.searchsorted(done, last_ns if end_ns is None else end_ns, side="left"))
    if low < 0 or high >= len(done):
        return None
    inner = done[low : high + 1]
    return int(np.max(np.diff(inner))) if len(inner) > 1 else 0
