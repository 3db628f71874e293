"""Data nodes against a timer algebra: what the nodes of a zone should be, from the waits that it
has, the nodes that pass its filter and when these came and went (IEP-101, "DATA_NODES_AUTO_ADJUST
rules").

* A join starts the scale-up timer anew, a leave the scale-down timer; the joint timer both.
* A timer that is due adds, or removes, what still is so.
* Another filter applies at once, and no timer survives it. Other waits leave timers their start.
  What applies at once is owed as a timer is that is due.
* Changes of nodes that are handled together are one: what a leader that went down with the whole
  cluster had not handled is compared with what is there once the cluster is back.

The algebra is written from the rules, and shares nothing with any store. A store handles a change a
moment after it was written, and may have switched data nodes meanwhile: so a switch is right if it
follows from the changes up to it, or from those up to a moment before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, groupby
from operator import itemgetter
from typing import Any

import attrs

from checkers.explain.words import of_texts
from checkers.promises.fault_free_windows import (
    HANDLED_S,
    Punctuality,
    calm_of,
    punctuality,
)
from harness.clock import NS_PER_S
from harness.exit_codes import Outcome
from harness.protocols.changes import TopologyKind
from harness.protocols.checker import Kernel, Lookup, Part, Tables
from harness.protocols.setting import Setting
from harness.text import seconds

Row = dict[str, Any]
Nodes = frozenset[str]

EARLY_S = 0.3  # times are those at which nodes have applied a revision
LATE_S = 1.5  # a switch is one write of a leader that serves


@attrs.frozen(kw_only=True)
class Timer:
    """A timer that began at some time from ``since_ns`` to ``latest_ns``."""

    since_ns: int
    latest_ns: int
    joined: Nodes = frozenset()
    left: Nodes = frozenset()


@attrs.frozen(kw_only=True)
class Zone:
    """A zone as the algebra has it. ``data`` is ``None`` before the first data nodes; ``at_once``:
    they are to become the eligible ones without a wait, since the filter became another at
    ``owed_ns`` (``None``: they were those already).
    """

    up_s: float | None = None
    down_s: float | None = None
    joint_s: float | None = None
    filter: str = ""
    eligible: Nodes = frozenset()
    data: Nodes | None = None
    at_once: bool = True
    owed_ns: int | None = None
    up: Timer | None = None
    down: Timer | None = None
    joint: Timer | None = None

    def running(self) -> Iterator[tuple[str, Timer, float]]:
        """The timers that run, with their names and waits in seconds."""
        for name in ("up", "down", "joint"):
            timer, wait_s = getattr(self, name), getattr(self, f"{name}_s")
            if timer is not None and wait_s is not None:
                yield name, timer, wait_s


@attrs.frozen(kw_only=True)
class Input:
    """What one revision wrote about a zone, apart from its data nodes."""

    at_ns: int
    zone: Row | None = None
    eligible: Row | None = None
    restart: bool = False


@attrs.frozen
class DataNodesChecker:
    """Judges data nodes; not asked where a run has none of their changes."""

    name: str = "data-nodes"
    kernels: tuple[Kernel, ...] = ()

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Return every switch that is wrong, early or late, and each that never came."""
        rows = tables["topology"].to_pylist()
        if any(row["kind"] == TopologyKind.GAP for row in rows):
            reason = "not every change of the topology was reported: data nodes were not judged"
            return Part(outcome=Outcome.UNKNOWN, reasons=(reason,))
        calm = calm_of(tables["faults"], setting, tables["events"])
        clock = punctuality(calm, tables["states"], tables["events"])
        texts: dict[str, list[str]] = defaultdict(list)
        switches = 0
        for zone in sorted({row["zone"] for row in rows if row["zone"]}):
            of_zone = [row for row in rows if row["zone"] == zone or _of_all(row)]
            switches += sum(row["kind"] == TopologyKind.DATA_NODES for row in of_zone)
            for name, text in judged(zone, of_zone, clock):
                texts[name].append(text)
        return Part(
            anomalies={name: of_texts(found) for name, found in texts.items()},
            statistics={"data-nodes": {"switches": switches}},
        )


def judged(zone: str, rows: Sequence[Row], clock: Punctuality) -> Iterator[tuple[str, str]]:
    """Yield the name and the sentence of each wrong switch of ``zone``. After one that follows from
    nothing the zone is judged no further.
    """
    state, waiting = Zone(), list[Input]()
    for inputs, switch in _revisions(rows):
        if inputs is not None:
            if clock.told:
                yield from _late(zone, state, waiting, inputs.at_ns, clock)
            waiting.append(inputs)
        if switch is None:
            continue
        if clock.told:
            yield from _late(zone, state, waiting, switch["at_ns"], clock)
        after, early = _explained(state, waiting, switch, clock)
        if after is None:
            expected = applied(state, waiting)
            yield (
                "wrong-data-nodes",
                f"wrong data nodes: those of {zone} became {_names(switch['nodes'])} at "
                f"{seconds(switch['at_ns'])} (revision {switch['revision']}), which follows from "
                f"nothing: they were {_names(expected.data or ())}, {_names(expected.eligible)} "
                f"pass the filter, {_waiting(expected)}",
            )
            return
        if early:
            yield (
                "early-data-nodes",
                f"early data nodes: those of {zone} became {_names(switch['nodes'])} at "
                f"{seconds(switch['at_ns'])} (revision {switch['revision']}), {early:.1f} s before "
                f"the wait was over",
            )
        state, waiting = after, []
    if clock.told:
        yield from _late(zone, state, waiting, clock.calm.end_ns, clock)


def applied(state: Zone, inputs: Iterable[Input]) -> Zone:
    """``state`` after ``inputs``, one by one."""
    for each in inputs:
        filter_before = state.filter
        if each.zone is not None:
            state = _altered(state, each.zone)
        if each.eligible is not None:
            state = _moved(state, each.eligible, each.at_ns)
        # Only now: the revision of another filter has the nodes that pass it.
        if state.filter != filter_before:
            owed = state.data is not None and state.data != state.eligible
            state = attrs.evolve(state, owed_ns=each.at_ns if owed else None)
        if each.restart:
            state = _restarted(state, each.at_ns)
    return state


def _altered(state: Zone, row: Row) -> Zone:
    waits = {name: row[name] for name in ("up_s", "down_s", "joint_s")}
    if all(wait is None for wait in waits.values()):
        return Zone(eligible=state.eligible)  # it was dropped: nothing is owed to it
    if row["text"] != state.filter:
        state = attrs.evolve(
            state, filter=row["text"], at_once=True, up=None, down=None, joint=None
        )
    elif waits["joint_s"] is None and state.joint is not None:
        joint = state.joint
        up = _timer(attrs.evolve(joint, left=frozenset()))
        down = _timer(attrs.evolve(joint, joined=frozenset()))
        state = attrs.evolve(state, up=up, down=down, joint=None)
    elif waits["joint_s"] is not None and (state.up or state.down):
        both = [timer for timer in (state.up, state.down) if timer is not None]
        joint = Timer(
            since_ns=max(timer.since_ns for timer in both),
            latest_ns=max(timer.latest_ns for timer in both),
            joined=frozenset().union(*(timer.joined for timer in both)),
            left=frozenset().union(*(timer.left for timer in both)),
        )
        state = attrs.evolve(state, up=None, down=None, joint=joint)
    return attrs.evolve(state, **waits)


def _moved(state: Zone, row: Row, at_ns: int) -> Zone:
    """The state after other nodes passed the filter, since they came or went."""
    before, now = state.eligible, frozenset(row["nodes"])
    state = attrs.evolve(state, eligible=now)
    if state.data is None or state.at_once:
        return state
    others = frozenset(row["text"].split())
    joined, absent = (now - before) | others, state.data - now
    if state.joint_s is not None:
        again = now != before or bool(others)
        joint = _anew(state.joint, at_ns, again=again, joined=joined, left=absent, now=now)
        return attrs.evolve(state, joint=joint)
    gone = absent - (frozenset() if state.down is None else state.down.left)
    up = _anew(state.up, at_ns, again=bool(joined), joined=joined, left=frozenset(), now=now)
    down = _anew(state.down, at_ns, again=bool(gone), joined=frozenset(), left=absent, now=now)
    return attrs.evolve(state, up=up, down=down)


def _anew(
    timer: Timer | None, at_ns: int, *, again: bool, joined: Nodes, left: Nodes, now: Nodes
) -> Timer | None:
    kept = frozenset() if timer is None else timer.joined & now
    if timer is None or again:
        return _timer(Timer(since_ns=at_ns, latest_ns=at_ns, joined=kept | joined, left=left))
    return _timer(attrs.evolve(timer, joined=kept | joined, left=left))


def _timer(timer: Timer) -> Timer | None:
    return timer if timer.joined or timer.left else None


def _restarted(state: Zone, at_ns: int) -> Zone:
    """The whole cluster was down: timers wait longer by as much, which is not told."""

    def later(timer: Timer | None) -> Timer | None:
        if timer is None:
            return None
        return attrs.evolve(timer, latest_ns=max(timer.latest_ns, at_ns))

    return attrs.evolve(state, up=later(state.up), down=later(state.down), joint=later(state.joint))


def _explained(
    state: Zone, waiting: Sequence[Input], switch: Row, clock: Punctuality
) -> tuple[Zone | None, float]:
    """The state after ``switch``, and by how many seconds it was early; ``None`` where it follows
    from nothing.
    """
    at_ns, told = switch["at_ns"], frozenset(switch["nodes"])
    early: tuple[Zone | None, float] = None, 0.0
    for seen, unseen in _orders(waiting, at_ns, clock):
        before = applied(state, seen)
        if before.at_once or before.data is None:
            if told == before.eligible:
                switched = attrs.evolve(before, data=told, at_once=False, owed_ns=None)
                return applied(switched, unseen), 0.0
            continue
        for timers in _subsets(list(before.running())):
            if _fired(before.data, timers) != told:
                continue
            after = applied(_without(before, told, {name for name, *_ in timers}), unseen)
            ahead_s = max(
                ((timer.since_ns - at_ns) / NS_PER_S + wait_s for _, timer, wait_s in timers),
                default=0.0,
            )
            if not clock.told or ahead_s <= EARLY_S:
                return after, 0.0
            if early[0] is None or ahead_s < early[1]:
                early = after, ahead_s
        # Written again as they were, as for a node that was away: nothing has changed.
        if told == before.data:
            return applied(before, unseen), 0.0
    return early


def _without(state: Zone, data: Nodes, fired: set[str]) -> Zone:
    return attrs.evolve(
        state,
        data=data,
        up=None if "up" in fired else state.up,
        down=None if "down" in fired else state.down,
        joint=None if "joint" in fired else state.joint,
    )


def _orders(
    waiting: Sequence[Input], at_ns: int, clock: Punctuality
) -> Iterator[tuple[Sequence[Input], Sequence[Input]]]:
    """Yield what a switch at ``at_ns`` may have seen, and what it may not: changes of nodes that
    come one after the other may be handled as one.
    """
    since_ns = clock.unseen_since(at_ns)
    for number in range(len(waiting), -1, -1):
        if number < len(waiting) and waiting[number].at_ns < since_ns:
            return
        seen, unseen = waiting[:number], waiting[number:]
        yield seen, unseen
        as_one = _as_one(seen)
        if len(as_one) < len(seen):
            yield as_one, unseen
        for known in _over_restarts(seen, clock):
            yield _as_one(known), unseen


def _as_one(inputs: Sequence[Input]) -> list[Input]:
    found: list[Input] = []
    for each in inputs:
        before = found[-1] if found else None
        if (
            before is not None
            and each.eligible is not None
            and before.eligible is not None
            and before.zone is None
            and each.zone is None
            and each.at_ns - before.at_ns < HANDLED_S * NS_PER_S
        ):
            found.pop()
        found.append(each)
    return found


def _over_restarts(inputs: Sequence[Input], clock: Punctuality) -> Iterator[list[Input]]:
    """Yield ``inputs`` without the last one, two and so on of those changes of nodes that no leader
    may have handled before the whole cluster went down: the next one finds what is there by then.
    """
    moves = [n for n, each in enumerate(inputs) if each.eligible is not None and each.zone is None]
    restarts_ns = [each.at_ns for each in inputs if each.restart]
    if not moves or not restarts_ns or inputs[moves[-1]].at_ns < restarts_ns[-1]:
        return
    since_ns = clock.unseen_since(restarts_ns[-1])
    before = [n for n in moves if since_ns <= inputs[n].at_ns < restarts_ns[-1]]
    for first in reversed(before):
        yield [each for n, each in enumerate(inputs) if n not in before or n < first]


def _subsets(
    timers: Sequence[tuple[str, Timer, float]],
) -> Iterator[tuple[tuple[str, Timer, float], ...]]:
    for count in range(len(timers), 0, -1):
        yield from combinations(timers, count)


def _fired(data: Nodes, timers: Iterable[tuple[str, Timer, float]]) -> Nodes:
    for _, timer, _ in timers:
        data = (data | timer.joined) - timer.left
    return data


def _late(
    zone: str, state: Zone, waiting: Sequence[Input], until_ns: int, clock: Punctuality
) -> Iterator[tuple[str, str]]:
    """Yield one sentence for each timer that was due long before ``until_ns``, and for a filter
    that has been another for as long, of the changes that were known by then.
    """
    # What was said before this change or switch is not said again with the next.
    before_ns = waiting[-1].at_ns if waiting else 0

    def late(due_ns: int) -> bool:
        late_ns = due_ns + int(LATE_S * NS_PER_S)
        return before_ns <= late_ns < until_ns and clock.holds(due_ns, late_ns)

    now = applied(state, waiting)
    for name, timer, wait_s in now.running():
        due_ns = timer.latest_ns + int(min(wait_s, 1e9) * NS_PER_S)
        if late(due_ns):
            yield (
                "late-data-nodes",
                f"late data nodes: of {zone} a timer ({name}) was due at {seconds(due_ns)}, that "
                f"adds {_names(timer.joined) or 'none'} and removes "
                f"{_names(timer.left) or 'none'}, and had not switched them {LATE_S:g} s later",
            )
    if now.owed_ns is not None and now.data not in (None, now.eligible) and late(now.owed_ns):
        yield (
            "late-data-nodes",
            f"late data nodes: {zone} has had the filter {now.filter!r} since "
            f"{seconds(now.owed_ns)}, which {_names(now.eligible) or 'none'} pass, and "
            f"{LATE_S:g} s later its data nodes were still {_names(now.data or ()) or 'none'}",
        )


def _revisions(rows: Sequence[Row]) -> Iterator[tuple[Input | None, Row | None]]:
    """Yield what each revision wrote: first what is given, then the data nodes."""
    ordered = sorted(rows, key=itemgetter("revision"))
    for _, group in groupby(ordered, key=itemgetter("revision")):
        written = {row["kind"]: row for row in group}
        given = [k for k in (TopologyKind.ZONE, TopologyKind.ELIGIBLE) if k in written]
        restart = TopologyKind.RESTART in written
        inputs = None
        if given or restart:
            inputs = Input(
                at_ns=min(row["at_ns"] for row in written.values()),
                zone=written.get(TopologyKind.ZONE),
                eligible=written.get(TopologyKind.ELIGIBLE),
                restart=restart,
            )
        switch = written.get(TopologyKind.DATA_NODES)
        if inputs is not None or switch is not None:
            yield inputs, switch


def _of_all(row: Row) -> bool:
    return bool(row["kind"] == TopologyKind.RESTART)


def _waiting(state: Zone) -> str:
    return (
        "; ".join(
            f"a timer ({name}) adds {_names(timer.joined) or 'none'} and removes "
            f"{_names(timer.left) or 'none'} at "
            f"{seconds(timer.since_ns + int(min(wait_s, 1e9) * NS_PER_S))}"
            for name, timer, wait_s in state.running()
        )
        or "no timer runs"
    )


def _names(nodes: Iterable[str]) -> str:
    return " ".join(sorted(nodes))


CHECKER = DataNodesChecker()
