"""The limit ``longest_gap_s``: how long clients asked, and nothing was acknowledged.

A silence counts as far as clients asked all the while: the time between two acknowledgements is cut
where none asked for more than ``UNASKED_SHARE`` of it, and so are its parts, until none is left to
cut. So what is measured depends on no limit, and a limit is broken where a part is longer than it
allows. Those of one partition are counted in whole steps of time, downwards, and several tries must
show one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from checkers.engine.arrays import Bools, Ints
from checkers.engine.spans import FOREVER_NS
from checkers.limits.client_outcomes import (
    Breach,
    ClientOutcomes,
    Figure,
    Interval,
    Scope,
    Span,
    Tries,
)
from checkers.limits.stalls import NO_STALLS, Stalls
from checkers.promises.liveness import MIN_TRIES, STEP_NS
from harness.clock import NS_PER_S
from harness.protocols.checker import EXAMPLES_MAX
from harness.protocols.consistency_models import LONGEST_GAP
from harness.text import seconds

# Of a silence at most this share may pass without a client that asks: the store may have served
# again since the last of them, which no one can tell from the next, that it serves.
UNASKED_SHARE = 0.25
# Times between acknowledgements are cut in rounds, the widest first, until no wider one is left
# than the longest silence: of a night most are never looked at, and no round takes much memory.
FIRST_ROUND, ROUNDS_GROW, ROUND_MAX = 1024, 4, 1 << 20


@attrs.frozen(kw_only=True, eq=False)
class _Silences:
    """Silences of the store or of one ``partition``: how long each lasted for certain, up to its
    end, and which of them are breaches.
    """

    starts: Ints
    ends: Ints
    is_breach: Bools
    partition: int | None = None

    @property
    def longest(self) -> tuple[Span, ...]:
        """The longest of them; none of none."""
        if not len(self.starts):
            return ()
        at = int((self.ends - self.starts).argmax())
        start_ns, end_ns = int(self.starts[at]), int(self.ends[at])
        length_ns = end_ns - start_ns
        return (
            Span(length_ns=length_ns, start_ns=start_ns, end_ns=end_ns, partition=self.partition),
        )

    def apart_from(self, earlier: Sequence[_Silences]) -> _Silences:
        """Return those that are no part of one of ``earlier``."""
        is_new = np.ones(len(self.starts), dtype=bool)
        for other in earlier:
            if len(other.starts):
                starts = np.sort(other.starts)
                ends = other.ends[np.argsort(other.starts)]
                at = np.searchsorted(starts, self.starts, side="right") - 1
                is_new &= (at < 0) | (ends[at] <= self.starts)
        return attrs.evolve(
            self,
            starts=self.starts[is_new],
            ends=self.ends[is_new],
            is_breach=self.is_breach[is_new],
        )

    def breaches(self, got: ClientOutcomes) -> Iterator[Breach]:
        """Yield the longest of the breaches, as many as are shown."""
        found = np.flatnonzero(self.is_breach)
        order = np.argsort(self.starts[found] - self.ends[found], kind="stable")[:EXAMPLES_MAX]
        for at in found[order].tolist():
            yield _breach(got, int(self.starts[at]), int(self.ends[at]), self.partition)


def longest_gaps(
    got: ClientOutcomes,
    scopes: tuple[Scope, ...],
    allowed_ns: int,
    stalls: Stalls = NO_STALLS,
) -> Figure:
    """Measure the silences of the store, and of each partition, that begin in ``scopes``. One is
    a breach where it, less what ``stalls`` explain, or a part of it that touches none of them, is
    longer than allowed; the longest are told, of equal ones that of the store first. One that goes
    on into another scope counts once.
    """
    found, before = list[_Silences](), dict[int | None, list[_Silences]]()
    for scope in sorted(scopes, key=lambda each: (each.start_ns, each.end_ns)):
        for each in _of_scope(got, scope, allowed_ns, stalls):
            earlier = before.setdefault(each.partition, [])
            found.append(each.apart_from(earlier))
            earlier.append(found[-1])
    breaches = [breach for each in found for breach in each.breaches(got)]
    breaches.sort(key=lambda one: (-one.measured, one.partition is not None))
    shown = breaches[:EXAMPLES_MAX]
    count = sum(int(each.is_breach.sum()) for each in found)
    figure = Figure.of_longest([span for each in found for span in each.longest], shown, scopes)
    return attrs.evolve(figure, untold=count - len(shown))


def _of_scope(
    got: ClientOutcomes, scope: Scope, allowed_ns: int, stalls: Stalls
) -> Iterator[_Silences]:
    def of(tries: Tries, partition: int | None, least: int, step_ns: int) -> _Silences:
        starts, ends = silences(tries, scope, got.drive.end_ns, allowed_ns, least=least)
        # A step shows that something ended in it, and not when.
        starts = np.minimum(starts + step_ns, ends)
        is_breach = ends - starts > allowed_ns
        is_breach[is_breach] = (
            _beyond(tries, starts[is_breach], ends[is_breach], stalls, least) > allowed_ns
        )
        return _Silences(starts=starts, ends=ends, is_breach=is_breach, partition=partition)

    yield of(got.whole, None, 1, 0)
    for number, tries in got.by_partition.items():
        yield of(tries, number, MIN_TRIES, STEP_NS)


def _breach(got: ClientOutcomes, start_ns: int, end_ns: int, partition: int | None) -> Breach:
    what, txns = "nothing was acknowledged", tuple[int, ...]()
    if partition is not None:
        what = f"partition {partition} acknowledged nothing"
    else:
        around = got.ok & ((got.ended == start_ns) | (got.ended == end_ns))
        txns = tuple(got.txn[around].tolist()[:2])
    length_ns = end_ns - start_ns
    return Breach(
        name=LONGEST_GAP,
        text=f"longest gap: {what} from {seconds(start_ns)} to {seconds(end_ns)}, for "
        f"{seconds(length_ns)}, though clients asked",
        start_ns=start_ns,
        end_ns=end_ns,
        measured=length_ns / NS_PER_S,
        txns=txns,
        partition=partition,
    )


def _beyond(tries: Tries, starts: Ints, ends: Ints, stalls: Stalls, least: int) -> Ints:
    """Return how long each of these silences is for all that ``stalls`` explain."""
    if not stalls:
        return ends - starts
    left = ends - starts - stalls.explained_ns(starts, ends)
    parts = _undisturbed(tries, starts, ends, stalls.periods, least)
    return np.asarray(np.maximum(left, parts), np.int64)


def _undisturbed(
    tries: Tries, starts: Ints, ends: Ints, late: Sequence[Interval], least: int
) -> Ints:
    """Return how long the longest silence is within each of these times that touches none of
    ``late``.
    """
    if not late or not len(starts):
        return ends - starts
    rows = np.asarray(sorted(late), dtype=np.int64)
    # Between what ended last so far and the next begin; of overlapping ones less than nothing.
    opens = np.concatenate([[-FOREVER_NS], np.maximum.accumulate(rows[:, 1])])
    closes = np.concatenate([rows[:, 0], [FOREVER_NS]])
    first = np.searchsorted(opens[1:], starts, side="right")
    counts = np.maximum(np.searchsorted(closes[:-1], ends) - first, 0) + 1
    time, at = _expanded(first, counts)
    begins, until = np.maximum(opens[at], starts[time]), np.minimum(closes[at], ends[time])
    is_left = until > begins
    asked = _asked(tries, begins[is_left], until[is_left], least)
    longest = np.zeros(len(starts), dtype=np.int64)
    np.maximum.at(longest, time[is_left][asked.time], asked.ends - asked.starts)
    return longest


def _expanded(first: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Return, for runs of so many consecutive numbers from ``first`` on, the run of each number
    and the number itself.
    """
    of = np.repeat(np.arange(len(counts)), counts)
    return of, np.arange(len(of)) + np.repeat(first - (np.cumsum(counts) - counts), counts)


def silences(
    tries: Tries, scope: Scope, last_ns: int, allowed_ns: int, *, least: int = 1
) -> tuple[Ints, Ints]:
    """Return begins and ends of the times that begin in ``scope``, and in which clients asked all
    the while and nothing was acknowledged: all that are longer than ``allowed_ns``, and the
    longest. ``least`` tries at least must show one. After ``last_ns`` no client asks.
    """
    acks = tries.acks
    low = int(np.searchsorted(acks, scope.start_ns, side="right"))
    high = int(np.searchsorted(acks, min(scope.end_ns, last_ns), side="left"))
    # The last one ends with the first acknowledgement behind the scope.
    close = min(int(acks[high]), last_ns) if high < len(acks) else last_ns
    points = np.concatenate([[scope.start_ns], acks[low:high], [max(close, scope.start_ns)]])
    widths = np.diff(points)
    order = np.argsort(-widths, kind="stable")
    found = [(np.zeros(0, dtype=np.int64),) * 2]
    longest_ns, begin, size = 0, 0, FIRST_ROUND
    # All that follow are shorter than those that are wanted: none can hold one.
    while begin < len(order) and widths[order[begin]] > min(longest_ns, allowed_ns):
        at = np.sort(order[begin : begin + size])
        asked = _asked(tries, points[at], points[at + 1], least)
        longest_ns = max(longest_ns, int((asked.ends - asked.starts).max(initial=0)))
        found.append((asked.starts, asked.ends))
        begin, size = begin + size, min(size * ROUNDS_GROW, ROUND_MAX)
    starts, ends = (np.concatenate(columns) for columns in zip(*found, strict=True))
    wanted = ends - starts >= min(longest_ns, allowed_ns + 1)
    return starts[wanted], ends[wanted]


@attrs.frozen(kw_only=True, eq=False)
class _AskedParts:
    """Parts of given times, ascending, in which clients asked all the while, and the number of the
    ``time`` that each is of.
    """

    time: Ints
    starts: Ints
    ends: Ints


def _asked(tries: Tries, starts: Ints, ends: Ints, least: int) -> _AskedParts:
    """Return the parts of times without an acknowledgement, ascending, in which clients asked all
    the while, by ``least`` tries at least.
    """
    # What is open as a time begins counts from there on, as one entry.
    before = np.searchsorted(tries.begun, starts, side="right")
    reach = tries.latest_end(before)
    of, at = _expanded(before, np.maximum(np.searchsorted(tries.begun, ends) - before, 0))
    counts = tries.open_at(starts) if least > 1 else np.ones(len(starts), dtype=np.int64)
    # Counted in steps, a try may have ended before it began.
    follows, inside = tries.ended[at] > starts[of], reach > starts
    of, at = of[follows], at[follows]
    time = np.concatenate([np.flatnonzero(inside), of])
    begun = np.concatenate([starts[inside], tries.begun[at]])
    until = np.concatenate([reach[inside], np.maximum(tries.ended[at], tries.begun[at])])
    count = np.concatenate([counts[inside], np.ones(len(at), dtype=np.int64)])
    order = np.argsort(time, kind="stable")
    if not len(order):
        return _AskedParts(time=time, starts=begun, ends=until)
    time, begun, count = time[order], begun[order], count[order]
    # No try reaches into the next time, so that one running maximum is that of each time.
    until = np.maximum.accumulate(np.minimum(until[order], ends[time]))
    first = _first_of_parts(time, begun, until)
    last = np.append(first[1:], len(time)) - 1
    enough = np.add.reduceat(count, first) >= least
    first, last = first[enough], last[enough]
    return _AskedParts(time=time[first], starts=begun[first], ends=until[last])


def _first_of_parts(time: Ints, begun: Ints, until: Ints) -> Ints:
    """Return the row of the first try of each part, of tries of one ``time`` after another that
    show until when clients had asked. A part that holds a wider time without a client that asks
    than its share is cut there: no shorter part can hold it.
    """
    unasked = np.concatenate([[0], begun[1:] - until[:-1]])
    is_first = np.concatenate([[True], time[1:] != time[:-1]])
    while True:
        first = np.flatnonzero(is_first)
        last = np.append(first[1:], len(time)) - 1
        allowed = np.repeat(UNASKED_SHARE * (until[last] - begun[first]), last - first + 1)
        is_cut = (unasked > allowed) & ~is_first
        if not is_cut.any():
            return first
        is_first |= is_cut
