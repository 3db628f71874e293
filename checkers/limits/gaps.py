"""The limit ``longest_gap_s``: how long clients asked, and nothing was acknowledged.

A silence counts as far as clients asked all the while. Those of one partition are counted in whole
steps of time, downwards, and several tries must show one.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from checkers.limits.served import Broken, Figure, Served, Span, Stretch, Tries
from checkers.promises.liveness import MIN_TRIES, STEP_NS
from harness.clock import NS_PER_S
from harness.protocols.models import LONGEST_GAP
from harness.text import seconds

WIDEST = 100  # gaps that are looked at: a limit of a millisecond must not cost a night
# A silence ends where nobody asked for this share of the time that is allowed.
UNASKED_SHARE = 0.5


def longest_gaps(got: Served, stretches: tuple[Stretch, ...], allowed_ns: int) -> Figure:
    """Measure the silences of the store, and of each partition, that begin in ``stretches``."""
    spans, broken = list[Span](), list[Broken]()
    for stretch in stretches:
        for start_ns, end_ns in silences(got.whole, stretch, got.drive.end_ns, allowed_ns):
            spans.append(Span(length_ns=end_ns - start_ns, start_ns=start_ns, end_ns=end_ns))
            if end_ns - start_ns > allowed_ns:
                around = got.ok & ((got.ended == start_ns) | (got.ended == end_ns))
                txns = tuple(got.txn[around].tolist()[:2])
                broken.append(_gap("nothing was acknowledged", start_ns, end_ns, txns=txns))
        for number, tries in got.by_partition.items():
            what = f"partition {number} acknowledged nothing"
            for start_ns, end_ns in silences(
                tries, stretch, got.drive.end_ns, allowed_ns, least=MIN_TRIES
            ):
                # A step shows that something ended in it, and not when.
                begin_ns = min(start_ns + STEP_NS, end_ns)
                length_ns = end_ns - begin_ns
                spans.append(
                    Span(length_ns=length_ns, start_ns=begin_ns, end_ns=end_ns, partition=number)
                )
                if end_ns - start_ns > allowed_ns + STEP_NS:
                    broken.append(_gap(what, begin_ns, end_ns, partition=number))
    return Figure.of_longest(spans, broken, stretches)


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
    begun, ended = tries.open_within(start_ns, end_ns)
    begun = np.maximum(begun, start_ns)
    # Counted in steps, a try may have ended before it began.
    until = np.maximum.accumulate(np.minimum(np.maximum(ended, begun), end_ns))
    # Without a client that asks no store can acknowledge.
    breaks = np.flatnonzero(begun[1:] - until[:-1] > UNASKED_SHARE * allowed_ns) + 1
    cuts = [0, *breaks.tolist(), len(begun)]
    for low, high in pairwise(cuts):
        if high - low >= least:
            yield int(begun[low]), int(until[high - 1])
