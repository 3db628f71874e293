"""Markers that the nodes of a campaign reached: named places of the system's code that few runs
come by. What a campaign never reached it never tested.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import msgspec

from harness.campaigns.rates import bounds
from harness.errors import MalformedHistory, UsageError
from harness.history.run_directory import RunDirectory

MARKERS_FILE = "markers.json"  # beside a simulated node's log
_counts = msgspec.json.Decoder(dict[str, int])
_SEEDS = "# seeds: "


def dumps(markers: Mapping[str, int]) -> str:
    """Return the text of a node's ``MARKERS_FILE``."""
    return msgspec.json.format(msgspec.json.encode(dict(sorted(markers.items())))).decode()


def read_markers(run: RunDirectory) -> dict[str, int]:
    """Return how often the nodes of ``run`` reached each marker; empty where they count none.
    Raises ``MalformedHistory``.
    """
    total: Counter[str] = Counter()
    for path in sorted((run.root / "nodes").glob(f"*/{MARKERS_FILE}")):
        try:
            total.update(_counts.decode(path.read_bytes()))
        except msgspec.DecodeError as error:
            raise MalformedHistory(str(path), "counts of markers", str(error)) from error
    return dict(sorted(total.items()))


def seeds_reaching(runs: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Return by marker in how many of ``runs`` it was reached."""
    return Counter(marker for markers in runs for marker in markers)


def table(runs: Sequence[Mapping[str, int]], known: Collection[str]) -> Iterator[str]:
    """Yield the sums of the markers of ``runs``: how many of those ``known`` were reached, the rare
    ones with the number of runs, and those never reached.
    """
    seeds = seeds_reaching(runs)
    here = [marker for marker in sorted(known) if seeds[marker]]
    yield f"markers: {len(here)} of {len(known)} reached"
    rare = [marker for marker in here if seeds[marker] <= len(runs) / 20]
    if rare:
        # By name: what one seed in twenty reaches is the first to be lost.
        yield f"in few seeds: {', '.join(f'{marker} ({seeds[marker]})' for marker in rare)}"
    never = [marker for marker in sorted(known) if not seeds[marker]]
    yield f"never reached: {', '.join(never) or 'none'}"


@attrs.frozen(kw_only=True)
class MustReach:
    """The markers that any ``seeds`` seeds of a campaign reach, but for a chance that may be
    neglected.
    """

    seeds: int
    markers: tuple[str, ...]

    def lacking(self, runs: Sequence[Mapping[str, int]]) -> tuple[str, ...] | None:
        """Return those that ``runs`` did not reach; ``None`` where there are too few to tell."""
        if len(runs) < self.seeds:
            return None
        found = seeds_reaching(runs)
        return tuple(marker for marker in self.markers if not found[marker])


def always_reached(runs: Sequence[Mapping[str, int]], seeds: int, chance: float) -> tuple[str, ...]:
    """Return the markers that ``seeds`` other seeds like ``runs`` fail to reach with a probability
    below ``chance`` each, ascending: the share of seeds that reach one is taken as the least that
    the count of ``runs`` allows.
    """
    counts = seeds_reaching(runs)
    return tuple(
        marker
        for marker in sorted(counts)
        if (1 - bounds(counts[marker], len(runs))[0]) ** seeds < chance
    )


def load_must_reach(path: Path, known: Collection[str]) -> MustReach:
    """Read a list of markers, one a line behind ``# seeds: N``; other lines with ``#`` are remarks.
    Raises ``UsageError``, also for a marker that is not ``known``: it was renamed, or its place is
    gone.
    """
    try:
        lines = [line.strip() for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--must-reach: can't read {path}: {error}") from error
    told = [line.removeprefix(_SEEDS) for line in lines if line.startswith(_SEEDS)]
    if len(told) != 1 or not told[0].isdecimal():
        raise UsageError(f"{path}: expected one line '{_SEEDS}N' (got {told})")
    markers = tuple(line for line in lines if line and not line.startswith("#"))
    for marker in markers:
        if marker not in known:
            raise UsageError(f"{path}: the node has no marker {marker!r}")
    return MustReach(seeds=int(told[0]), markers=markers)
