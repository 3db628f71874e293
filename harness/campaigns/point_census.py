"""The crash points of a reference execution, and the runs that try them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs
import msgspec

from harness.campaigns.cell import CellResult
from harness.clock import substream
from harness.errors import MalformedHistory
from harness.exit_codes import Outcome
from harness.history.run_directory import RunDirectory
from harness.protocols.crash_points import CrashPoint, MessageClass, Operation, When

POINTS_FILE = "points.json"  # beside a simulated node's log, in the run that counted them
_counts = msgspec.json.Decoder(dict[str, int])


@attrs.frozen(kw_only=True)
class NodePoint:
    """One crash point of one node."""

    node: str
    point: CrashPoint

    @property
    def kind(self) -> str:
        """What it counts as in the sums: every number and node alike."""
        of = "" if self.point.messages is None else f" of {self.point.messages.value}"
        return f"{self.point.when.value} {self.point.at.value}{of}"


def read_points(run: RunDirectory, nodes: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return by node how many points of each kind it came to. Raises ``MalformedHistory``."""
    found = {}
    for node in nodes:
        path = run.node(node) / POINTS_FILE
        try:
            found[node] = _counts.decode(path.read_bytes())
        except (OSError, msgspec.DecodeError) as error:
            raise MalformedHistory(str(path), "counts of points", str(error)) from error
    return found


def every_point(counts: Mapping[str, Mapping[str, int]]) -> list[NodePoint]:
    """Return every point: before, in the middle of and after each operation that was counted."""
    return [
        NodePoint(node=node, point=_point(kind, when, nth))
        for node in sorted(counts)
        for kind in sorted(counts[node])
        for when in When
        for nth in range(1, counts[node][kind] + 1)
    ]


def _point(kind: str, when: When, nth: int) -> CrashPoint:
    operation, _, messages = kind.partition(" ")
    of = MessageClass(messages) if messages else None
    return CrashPoint(at=Operation(operation), when=when, nth=nth, messages=of)


def sampled(points: Sequence[NodePoint], most: int, seed: int) -> list[NodePoint]:
    """Return at most ``most`` of ``points``, drawn by ``seed``: of each kind as many as of any
    other, as far as there are, since a rare kind is worth as much as a common one.
    """
    stream = substream(seed, "crash-points")
    bags: dict[str, list[NodePoint]] = {}
    for point in points:
        bags.setdefault(point.kind, []).append(point)
    for bag in bags.values():
        stream.shuffle(bag)
    chosen: list[NodePoint] = []
    while len(chosen) < most and bags:
        for kind in sorted(bags):
            chosen.append(bags[kind].pop())
            if not bags[kind]:
                del bags[kind]
    return chosen[:most]  # the last round may have gone beyond


_COLUMNS = (Outcome.VALID, Outcome.VIOLATION, Outcome.UNKNOWN, Outcome.HARNESS_ERROR)


def point_totals(
    tried: Sequence[tuple[NodePoint, CellResult]], there: Sequence[NodePoint]
) -> Iterator[str]:
    """Yield a table: of each kind how many points there were, were tried, and how they ended."""
    all_of = Counter(point.kind for point in there)
    ends: dict[str, Counter[Outcome]] = {kind: Counter() for kind in all_of}
    for point, result in tried:
        ends[point.kind][result.outcome] += 1
    width = max(map(len, (*all_of, "point")), default=0)
    heads = ("points", "tried", *(outcome.value for outcome in _COLUMNS))
    yield f"{'point':{width}}  {'  '.join(f'{head:>6}' for head in heads)}"
    for kind in sorted(all_of):
        yield _row(kind, width, heads, all_of[kind], ends[kind])
    yield _row("all", width, heads, len(there), sum(ends.values(), Counter()))


def _row(kind: str, width: int, heads: Sequence[str], there: int, ends: Counter[Outcome]) -> str:
    figures = (there, ends.total(), *(ends[outcome] for outcome in _COLUMNS))
    cells = (f"{n:>{max(6, len(head))}}" for n, head in zip(figures, heads, strict=True))
    return f"{kind:{width}}  {'  '.join(cells)}"
