"""Schedules: drawing one from a seed, and checking one that a person wrote."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType

from harness.clock import substream
from harness.errors import PlanError
from harness.protocols.fault_kinds import FaultKind
from harness.protocols.faults import Fault, PlannedFault, configured
from nemesis.aims import check_aim
from nemesis.exclusion import on_any_targets

PATH = "nemesis.schedule"
# A schedule longer than this is a slip of the pen: the recorder and the report hold every fault.
FAULTS_LIMIT = 10_000
# The targets of a random mix, for a store that reports its leaders and for one that does not.
LEADER_TARGET = "leader of any partition"
COUNTED_TARGETS = ("minority", "one", "half")
# Of few nodes these are none at all.
_NONE_OF: Mapping[int, frozenset[str]] = {
    1: frozenset({"minority", "half"}),
    2: frozenset({"minority"}),
}
# A hold varies by this share, and the start with it, so that faults don't fall into step with the
# store's own timers.
_JITTER = 0.25
# Of nodes that break each for itself it varies more: nothing else moves them against each other.
_HOLD_MOST = 1.5


def materialise(
    *,
    mix: Sequence[str],
    seed: int,
    duration_s: float,
    first_s: float,
    hold_s: float,
    quiet_s: float,
    partitions: int | None,
    overlap: int = 1,
    among: tuple[str, ...] = (),
    kinds: Mapping[str, FaultKind] = MappingProxyType({}),
    nodes: int = 3,
) -> tuple[PlannedFault, ...]:
    """A random schedule of the kinds in ``mix``, equal for equal arguments.

    Up to ``overlap`` faults come together, the first at ``first_s``; each lasts at most ``hold_s``,
    and at least ``quiet_s`` without any fault follow, also before ``duration_s`` ends. The kinds
    occur equally often, give or take one. Where the store reports ``partitions`` the first fault of
    a kind is for a leader: a short drill would else miss the most important targets. ``kinds`` tell
    the aims of those that don't take the usual targets, and which can't come together: one that
    takes all nodes leaves none to another of its mechanisms. Each node of ``among`` has a sequence
    of faults of its own, and no other node has any. Of few ``nodes`` no target is drawn that is
    none of them. Raises ``PlanError`` where not even one fault fits.
    """
    if not mix:
        return ()
    _check_times(duration_s, first_s, hold_s, quiet_s)
    if among:
        # The least that always fits: the longest hold, a pause before it and one behind it.
        _check_times(duration_s, first_s, hold_s * _HOLD_MOST, quiet_s * 2)
        return _each_for_itself(tuple(mix), seed, duration_s, first_s, hold_s, quiet_s, among)
    stream = substream(seed, "nemesis")
    # Sorted: the order in which a plan names its kinds must change no draw.
    every = tuple(sorted(dict.fromkeys(mix)))
    drawn = _bag(every, stream)
    usual = (LEADER_TARGET, *COUNTED_TARGETS) if partitions else COUNTED_TARGETS
    aims = {kind: (kinds[kind].aims if kind in kinds else ()) or usual for kind in every}
    none = _NONE_OF.get(nodes, frozenset())
    own = {kind: tuple(aim for aim in of if aim not in none) for kind, of in aims.items()}
    aim = {kind: _bag(own[kind], stream, first=LEADER_TARGET) for kind in every}
    groups = _groups(drawn, overlap, kinds)
    faults: list[PlannedFault] = []
    for number in range(_how_many(duration_s, first_s, hold_s + quiet_s)):
        for kind in next(groups):
            # Only shorter, and shifted within its slot: the pause behind it never shrinks.
            this_hold_s = round(hold_s * stream.uniform(1 - _JITTER, 1), 3)
            slack_s = stream.uniform(0, hold_s - this_hold_s) if faults else 0.0
            at_s = round(first_s + number * (hold_s + quiet_s) + slack_s, 3)
            target = next(aim[kind])
            faults.append(PlannedFault(at_s=at_s, kind=kind, target=target, hold_s=this_hold_s))
    return _all_of(faults)


def _each_for_itself(
    mix: tuple[str, ...],
    seed: int,
    duration_s: float,
    first_s: float,
    hold_s: float,
    quiet_s: float,
    among: tuple[str, ...],
) -> tuple[PlannedFault, ...]:
    """Faults for each node of ``among``, independent of the other nodes': from ``first_s`` on the
    node is well for about ``quiet_s`` and broken for about ``hold_s``, each up to half longer or
    shorter. All nodes are well for ``quiet_s`` before ``duration_s`` ends. A node's faults stay the
    same when another node joins ``among``.
    """
    faults: list[PlannedFault] = []
    for node in dict.fromkeys(among):
        stream = substream(seed, "nemesis", node)
        kinds = _bag(tuple(sorted(dict.fromkeys(mix))), stream)
        at_s = first_s + stream.uniform(0, quiet_s)
        while True:
            this_hold_s = round(hold_s * stream.uniform(2 - _HOLD_MOST, _HOLD_MOST), 3)
            if at_s + this_hold_s > duration_s - quiet_s:
                break
            kind = next(kinds)
            fault = PlannedFault(at_s=round(at_s, 3), kind=kind, target=node, hold_s=this_hold_s)
            faults.append(fault)
            at_s += this_hold_s + quiet_s * stream.uniform(2 - _HOLD_MOST, _HOLD_MOST)
    return _all_of(sorted(faults, key=lambda fault: (fault.at_s, fault.target)))


def _all_of(faults: Sequence[PlannedFault]) -> tuple[PlannedFault, ...]:
    """``faults``. Raises ``PlanError`` for more than a plan holds: cut short, they would leave the
    rest of a night quiet.
    """
    if len(faults) > FAULTS_LIMIT:
        many = f"at most {FAULTS_LIMIT} faults fit into a plan (got {len(faults)})"
        raise PlanError("drive.duration_s", f"{many}; drive shorter, hold or pause longer")
    return tuple(faults)


def check_schedule(
    schedule: Sequence[PlannedFault],
    *,
    faults: Mapping[str, Fault],
    nodes: tuple[str, ...],
    duration_s: float,
    partitions: int | None,
    spares: tuple[str, ...] = (),
    path: str = PATH,
) -> None:
    """Refuse a schedule that can't be applied. Raises ``PlanError`` with the place below
    ``path``. A target may name one of the ``spares``, which is somebody once it has joined.
    """
    nodes = (*nodes, *spares)
    if len(schedule) > FAULTS_LIMIT:
        raise PlanError(path, f"at most {FAULTS_LIMIT} faults (got {len(schedule)})")
    for number, fault in enumerate(schedule):
        with about_fault(number, path) as here:
            _check_fault(fault, faults, nodes, duration_s, partitions, here)


@contextmanager
def about_fault(number: int, path: str = PATH) -> Iterator[str]:
    """Let each ``PlanError`` of the block say that it is about that fault of the schedule at
    ``path``; yields the path of the fault.
    """
    try:
        yield f"{path}[{number}]"
    except PlanError as error:
        error.fault = number
        raise


def _check_fault(
    fault: PlannedFault,
    faults: Mapping[str, Fault],
    nodes: tuple[str, ...],
    duration_s: float,
    partitions: int | None,
    here: str,
) -> None:
    if fault.kind not in faults:
        installed = ", ".join(sorted(faults)) or "none"
        raise PlanError(f"{here}.kind", f"unknown fault {fault.kind!r} (installed: {installed})")
    if not 0 <= fault.at_s < duration_s:
        raise PlanError(
            f"{here}.at_s",
            f"must be from 0 to below drive.duration_s, {duration_s:g} s (got {fault.at_s:g})",
        )
    if not (math.isfinite(fault.hold_s) and fault.hold_s > 0):
        raise PlanError(f"{here}.hold_s", f"must be above 0 s (got {fault.hold_s:g})")
    target = check_aim(fault, nodes, partitions, duration_s, here)
    end_s = fault.at_s + fault.hold_s + (fault.after_s or 0.0)
    if end_s > duration_s:
        raise PlanError(
            f"{here}.hold_s",
            f"would end at {end_s:g} s, after drive.duration_s, {duration_s:g} s: drive for "
            f"more than {end_s:g} s, or hold shorter (got {fault.hold_s:g})",
        )
    kind = configured(faults[fault.kind], fault, partitions, f"{here}.options")
    kind.check(target, nodes, partitions, f"{here}.target")


def _check_times(duration_s: float, first_s: float, hold_s: float, quiet_s: float) -> None:
    given = {"first_s": first_s, "hold_s": hold_s, "quiet_s": quiet_s}
    for name, value in given.items():
        if not (math.isfinite(value) and value >= 0):
            raise PlanError(f"nemesis.{name}", f"must be at least 0 s (got {value:g})")
    if hold_s == 0:
        raise PlanError("nemesis.hold_s", "must be above 0 s (got 0)")
    least_s = first_s + hold_s + quiet_s
    if least_s > duration_s:
        raise PlanError(
            "nemesis",
            f"one fault needs {least_s:g} s (first_s {first_s:g} + hold_s {hold_s:g} + "
            f"quiet_s {quiet_s:g}), but drive.duration_s is {duration_s:g}",
        )


def _how_many(duration_s: float, first_s: float, period_s: float) -> int:
    """How many periods fit; a quotient that only rounding keeps from a whole number counts as
    whole.
    """
    return int((duration_s - first_s) / period_s + 1e-9)


def _bag(items: tuple[str, ...], stream: random.Random, first: str = "") -> Iterator[str]:
    """``items`` in random order, over and over: random, yet no item is left out for long. ``first``
    begins, where it is one of them.
    """
    drawn = stream.sample(items, len(items))
    # A stable sort by a bool: ``first`` comes to the front, the others stay as drawn.
    yield from sorted(drawn, key=lambda item: item != first)
    while True:
        yield from stream.sample(items, len(items))


def _groups(
    drawn: Iterator[str], overlap: int, kinds: Mapping[str, FaultKind]
) -> Iterator[tuple[str, ...]]:
    """``drawn`` in groups of ``overlap`` that come together; fewer where the next would wait for
    one that takes all nodes, or take all nodes itself.
    """
    group: list[str] = []
    for kind in drawn:
        if any(on_any_targets(kinds.get(kind), kinds.get(other)) for other in group):
            yield tuple(group)
            group = []
        group.append(kind)
        if len(group) == overlap:
            yield tuple(group)
            group = []
