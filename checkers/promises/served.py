"""What the clients of a run got, as the limits of the service are judged by it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from checkers.engine.arrays import INFO, OK, TYPES, Ints, codes, ints
from checkers.explain.attribution import windows
from checkers.promises.liveness import STEP_NS, TRIES
from harness.protocols.checker import Setting, Tables
from harness.protocols.conflicts import conflicts

WIDEST = 100  # gaps that are looked at: a limit of a millisecond must not cost a night
# A silence ends where nobody asked for this share of the time that is allowed.
UNASKED_SHARE = 0.5


@attrs.frozen(kw_only=True)
class Stretch:
    """A part of the drive in which a limit holds; ``fault`` is its window, if it is one's."""

    start_ns: int
    end_ns: int
    fault: Mapping[str, Any] | None = None


@attrs.frozen(kw_only=True)
class Broken:
    """One breach: from when to when it showed, its figure in the unit of its limit, and the
    transactions that show it.
    """

    name: str
    text: str
    start_ns: int
    end_ns: int
    measured: float
    txns: tuple[int, ...] = ()
    partition: int | None = None


@attrs.frozen(kw_only=True)
class Figure:
    """What was measured for one limit, in its unit, and its breaches. ``remarks`` say what of it
    could not be tested.
    """

    measured: float
    broken: tuple[Broken, ...] = ()
    remarks: tuple[str, ...] = ()


class Untested(Exception):
    """A limit that this run could not test; the text says what was missing."""


@attrs.frozen(kw_only=True)
class Tries:
    """The tries of one partition, or of the store as a whole: when each began and ended. ``acks``
    are the ends of those that were acknowledged, ascending. Tries that took the same steps of time
    count as one, since they look like the operations of a single transaction.
    """

    begun: Ints
    ended: Ints
    acks: Ints


@attrs.frozen(kw_only=True)
class Served:
    """The transactions without those that gave way to another, by column. ``by_partition`` is
    empty where partitions are not known; ``windows`` are those of the faults. ``rate_per_s`` is the
    rate that an open loop was asked for.
    """

    txn: Ints
    intended: Ints
    begun: Ints
    ended: Ints
    type_: Ints
    by_partition: Mapping[int, Tries]
    drive: Stretch
    windows: Sequence[Mapping[str, Any]]
    rate_per_s: float | None

    @property
    def whole(self) -> Tries:
        """All transactions."""
        return Tries(begun=self.begun, ended=self.ended, acks=np.sort(self.ended[self.ok]))

    @property
    def ok(self) -> Any:  # noqa: ANN401 (a mask)
        """Which transactions were acknowledged."""
        return self.type_ == OK

    @property
    def unknown(self) -> Any:  # noqa: ANN401 (a mask)
        """Of which transactions the outcome is not known."""
        return self.type_ == INFO

    def without(self, periods: Sequence[tuple[int, int]]) -> Served:
        """Leave out the transactions that were open at some time of ``periods``."""
        keep = np.ones(len(self.txn), dtype=bool)
        for start_ns, end_ns in periods:
            keep &= (self.ended < start_ns) | (self.begun > end_ns)
        columns = ("txn", "intended", "begun", "ended", "type_")
        return attrs.evolve(self, **{name: getattr(self, name)[keep] for name in columns})


def served(tables: Tables, setting: Setting, marks: Mapping[str, int]) -> Served:
    """Return what clients got while the run drove, which begins at the mark ``drive``."""
    table = tables["transactions"]
    yielded = np.asarray(conflicts(setting.declaration, table))
    table = table.filter(pa.array(~yielded))
    ended, type_ = ints(table, "complete_ns"), codes(table, "type", TYPES).astype(np.int64)
    last_ns = int(ended.max(initial=marks["drive"]))
    return Served(
        txn=ints(table, "txn"),
        intended=ints(table, "intended_ns"),
        begun=ints(table, "invoke_ns"),
        ended=ended,
        type_=type_,
        by_partition=_by_partition(tables.get(TRIES)),
        # A prefix has no mark of its end.
        drive=Stretch(start_ns=marks["drive"], end_ns=marks.get("heal", last_ns)),
        windows=windows(tables["faults"]),
        rate_per_s=setting.rate_per_s,
    )


def _by_partition(tries: pa.Table | None) -> dict[int, Tries]:
    """Bounds that hold for certain: what a step shows began by its end, and ended from its begin
    on.
    """
    if tries is None:
        return {}
    partition, ok = ints(tries, "partition"), np.asarray(tries.column("ok"))
    begun, ended = (ints(tries, "begun") + 1) * STEP_NS, ints(tries, "ended") * STEP_NS
    found = {}
    for number in np.unique(partition).tolist():
        here = partition == number
        # A transaction that reads and writes is in the table twice.
        once = np.unique(np.stack([begun[here], ended[here]]), axis=1)
        found[number] = Tries(begun=once[0], ended=once[1], acks=np.unique(ended[here & ok]))
    return found


def silences(
    tries: Tries, stretch: Stretch, last_ns: int, allowed_ns: int, *, least: int = 1
) -> Iterator[tuple[int, int]]:
    """Yield times that begin in ``stretch``, and in which clients asked all the while and nothing
    was acknowledged: all that are longer than ``allowed_ns``, and the longest. ``least`` tries at
    least must show one. After ``last_ns`` no client asks.
    """
    acks = tries.acks
    low = int(np.searchsorted(acks, stretch.start_ns, side="right"))
    high = int(np.searchsorted(acks, stretch.end_ns, side="left"))
    # The last one ends with the first acknowledgement behind the stretch.
    close = min(int(acks[high]), last_ns) if high < len(acks) else last_ns
    points = np.concatenate([[stretch.start_ns], acks[low:high], [max(close, stretch.start_ns)]])
    widths = np.diff(points)
    longest_ns = 0
    for at in np.argsort(-widths, kind="stable")[:WIDEST].tolist():
        if widths[at] <= min(longest_ns, allowed_ns):
            return  # all that follow are shorter
        for found in _asked(tries, int(points[at]), int(points[at + 1]), allowed_ns, least):
            longest_ns = max(longest_ns, found[1] - found[0])
            yield found


def _asked(
    tries: Tries, start_ns: int, end_ns: int, allowed_ns: int, least: int
) -> Iterator[tuple[int, int]]:
    """Yield the parts of the time without an acknowledgement in which clients asked all the while:
    a try was open, or the next one followed within a share of what is allowed.
    """
    inside = (tries.ended > start_ns) & (tries.begun < end_ns)
    begun, ended = tries.begun[inside], tries.ended[inside]
    order = np.argsort(begun, kind="stable")
    begun = np.maximum(begun[order], start_ns)
    # Counted in steps, a try may have ended before it began.
    until = np.maximum.accumulate(np.minimum(np.maximum(ended[order], begun), end_ns))
    # Without a client that asks no store can acknowledge.
    breaks = np.flatnonzero(begun[1:] - until[:-1] > UNASKED_SHARE * allowed_ns) + 1
    cuts = [0, *breaks.tolist(), len(begun)]
    for low, high in pairwise(cuts):
        if high - low >= least:
            yield int(begun[low]), int(until[high - 1])


def named(window: Mapping[str, Any]) -> str:
    """Name the fault of ``window``: its kind, and what it hit."""
    return f"{window['kind']} of {', '.join(window['nodes'] or ()) or window['target']}"
