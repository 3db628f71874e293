"""The timers of zones once more, from metastorage's log: whether each state that is written of a
zone follows from the one before it (IEP-101, "DATA_NODES_AUTO_ADJUST rules").

A state names the topology, the waits and the filter that it has followed, so that a step is judged
by itself, whether a switch ever shows it or not. What a step does not say is the time at which it
was made: any time is allowed that explains the whole of it, which every timer that it starts and
each timer that it fires or leaves must share. Nothing of the node's own algebra is used; filters
are evaluated as the node does it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from itertools import product

import attrs
import msgspec

from clusters.reference.node.catalog import catalog as catalogs
from clusters.reference.node.catalog import filters
from clusters.reference.node.catalog.nodes import Node
from clusters.reference.node.catalog.options import Joint, Separate
from clusters.reference.node.metastorage.metastorage import Change, Metastorage
from clusters.reference.node.runtime.hybrid_clock import span
from clusters.reference.node.topology.logical import LOGICAL, RESUMED, decode_members
from clusters.reference.node.zones.data_nodes import DataNodes, Topology
from clusters.reference.node.zones.manager import HISTORY, TIMERS, decode_history, decode_rest
from harness.protocols.claims import StateStep

Waits = Separate | Joint
Nodes = Mapping[str, Node]

MOST_TOPOLOGIES = 256  # a zone that follows an older one is judged no more


@attrs.frozen
class _Timer:
    since: int
    joined: Nodes
    left: frozenset[str]


@attrs.frozen
class _State:
    """A zone's state as the rules see it: the timers that run by name, and the data nodes."""

    timers: Mapping[str, _Timer]
    data: Nodes
    switched: bool = False  # its data nodes were written, be they the same


@attrs.frozen
class _Statement:
    """What a statement made of a zone."""

    revision: int
    waits: Waits
    filter: str

    def made(self, state: DataNodes) -> bool:
        """Whether ``state`` has these options."""
        return (self.waits, self.filter) == (state.waits, state.filter)


@attrs.define
class _Zone:
    """What is known of a zone: its state as it was written last, and what statements have said."""

    said: list[_Statement]
    state: DataNodes | None = None
    data: Nodes = attrs.field(factory=dict)
    place: int = 0  # of the statement that the state has followed

    def back_again(self, before: DataNodes, after: DataNodes) -> list[_Statement]:
        """The statements ``after`` may have followed that gave the zone the filter of ``before``
        again, behind one that had given it another.
        """
        if after.filter != before.filter:
            return []
        since = self.said[self.place :]
        away = next((n for n, each in enumerate(since) if each.filter != before.filter), len(since))
        return [each for each in since[away:] if each.made(after)]


class ZoneSteps:
    """Follows the states of zones, revision by revision; ``state`` is metastorage's."""

    def __init__(self, state: Metastorage) -> None:
        self._state = state
        self._zones: dict[int, _Zone] = {}
        self._topologies: OrderedDict[int, tuple[Node, ...]] = OrderedDict({0: ()})
        self._said_last = 0  # the revision of the last statement, on whatever it was

    def changed(self, change: Change) -> Iterator[StateStep]:
        """Yield what the revision does to zones; metastorage has applied it."""
        entries = change.entries
        if (members := entries.get(LOGICAL)) is not None:
            nodes = tuple(member.node for member in decode_members(members))
            self._topologies[change.revision] = nodes
            while len(self._topologies) > MOST_TOPOLOGIES:
                self._topologies.popitem(last=False)
        if catalogs.KEY in entries:
            self._said_last = change.revision
            self._altered(change.revision)
        for key, value in entries.items():
            if not key.startswith(TIMERS):
                continue
            number = int(key.removeprefix(TIMERS))
            zone = self._zones.get(number)
            if value is None:
                self._zones.pop(number, None)
            elif zone is not None:
                history = entries.get(f"{HISTORY}{number}")
                problem = self._step(zone, decode_rest(value), history, RESUMED in entries)
                if problem is not None:
                    yield StateStep(f"the timers of zone {number}", problem)

    def _altered(self, revision: int) -> None:
        for zone in catalogs.read(self._state.get).zones.values():
            said = _Statement(revision, zone.waits, zone.filter)
            known = self._zones.setdefault(zone.id, _Zone(said=[said]))
            last = known.said[-1]
            if (last.waits, last.filter) != (said.waits, said.filter):
                known.said.append(said)

    def _step(
        self, zone: _Zone, after: DataNodes, history: bytes | None, resumed: bool
    ) -> str | None:
        """Why ``after`` does not follow; empty where it does, ``None`` where that is not known."""
        before, data = zone.state, zone.data
        zone.state, ts = after, 0
        if history is not None:
            newest = decode_history(history)[-1]
            zone.data, ts = {node.name: node for node in newest.nodes}, newest.ts
        topology = self._topologies.get(after.topology.revision)
        if topology is not None and topology != after.topology.nodes:
            return f"the topology of revision {after.topology.revision} is another one"
        followed = [each for each in zone.said[zone.place :] if each.made(after)]
        if not followed:
            return "it follows a statement that is none, or an older one than before"
        back_again = [] if before is None else zone.back_again(before, after)
        zone.place = zone.said.index(followed[0], zone.place)
        if before is None or topology is None:
            return None
        if after.topology.revision < before.topology.revision:
            return f"it goes back to the topology of revision {after.topology.revision}"
        found = _State(_timers(after), zone.data, history is not None)
        began = _State(_timers(before), data)
        if resumed:
            return _resumed(began, found)
        # The same words may have been said several times: any of these statements may be it.
        met = [
            there
            for each in followed
            for there in (
                *((after.topology,) if each.made(before) else ()),
                *self._found_by(each, before, after),
            )
        ]
        ways = self._ways(before, after)
        for physical, there, way in product(_times(before, after, found), met, ways):
            expected = _followed(before, after, there, way, began, physical)
            if expected == found and (not ts or _fired_by(before, began, found, physical) <= ts):
                return ""
        for back in back_again:
            met_again = self._found_by(back, before, after)
            for physical, there, way in product(_times(before, after, found), met_again, ways):
                expected = _followed(before, after, there, way, began, physical, altered=True)
                if expected == found:
                    zone.place = zone.said.index(back, zone.place)
                    return ""
        return _difference(before, after, met[0], ways[0], began, found)

    def _ways(self, before: DataNodes, after: DataNodes) -> tuple[tuple[Topology, ...], ...]:
        """The topologies that the step may have followed, one by one: each may start timers, also
        one that did not last; and the last alone, as a node does whose history is compacted, which
        it may be by a snapshot. That a timer was started too late for it switches show.
        """
        first, last = before.topology, after.topology
        each = tuple(
            Topology(revision=revision, nodes=nodes)
            for revision, nodes in self._topologies.items()
            if first.revision < revision <= last.revision
        )
        return each, (last,)

    def _found_by(
        self, statement: _Statement, before: DataNodes, after: DataNodes
    ) -> tuple[Topology, ...]:
        """The topology that ``statement`` found, of those that the step has followed, and what else
        a node may take for it whose history is compacted: it knows of the last statement alone
        whether that was before the last change of the topology.
        """
        first, last = before.topology, after.topology
        if first.revision == last.revision:
            return (last,)
        at = max(statement.revision, first.revision)
        found = max((r for r in self._topologies if r <= at), default=first.revision)
        if found >= last.revision:
            return (last,)
        if found > first.revision:
            return (Topology(revision=found, nodes=self._topologies[found]), first, last)
        return (first, last) if self._said_last > last.revision else (first,)


def _timers(state: DataNodes) -> dict[str, _Timer]:
    told = {"up": state.up, "down": state.down, "joint": state.joint}
    return {
        name: _Timer(timer.since, {node.name: node for node in timer.joined}, frozenset(timer.left))
        for name, timer in told.items()
        if timer is not None
    }


def _waits(waits: Waits) -> dict[str, int | None]:
    if isinstance(waits, Joint):
        return {"joint": waits.wait_s}
    return {"up": waits.up_s, "down": waits.down_s}


def _due(timers: Mapping[str, _Timer], waits: Waits) -> dict[str, int]:
    return {
        name: timers[name].since + span(wait_s)
        for name, wait_s in _waits(waits).items()
        if wait_s is not None and name in timers
    }


def _times(before: DataNodes, after: DataNodes, found: _State) -> Iterator[int]:
    """Times at which the step may have been made: any other does the same as one of these."""
    began = _timers(before)
    both = [timer.since for timer in (*began.values(), *found.timers.values())]
    ends = {
        since + span(wait_s)
        for since in both
        for waits in (before.waits, after.waits)
        for wait_s in _waits(waits).values()
        if wait_s is not None
    }
    # Just before any is due, at each start that is known, and just as each is due.
    yield from sorted({min(ends, default=0) - 1, *both, *ends}, reverse=True)


def _followed(
    before: DataNodes,
    after: DataNodes,
    there: Topology,
    way: tuple[Topology, ...],
    state: _State,
    physical: int,
    *,
    altered: bool = False,
) -> _State:
    """The state at ``physical``, with what ``after`` has followed: on its ``way`` up to the
    topology that was ``there`` as the statement came by the waits and the filter of before, then
    the statement, then by its own what came later. ``altered``: there was another filter meanwhile.
    """
    if there.revision > before.topology.revision:
        earlier = [each for each in way if each.revision < there.revision]
        state = _moved_by(before, (*earlier, there), state, physical)
        state = _fired(state, before.waits, physical)
    if altered or after.filter != before.filter:
        # At once, and no timer survives it.
        state = _State({}, _passing(after.filter, there), switched=True)
    elif after.waits != before.waits:
        state = attrs.evolve(state, timers=_converted(state.timers, after.waits))
    if after.topology.revision > there.revision:
        stated = msgspec.structs.replace(
            before, topology=there, waits=after.waits, filter=after.filter
        )
        later = [each for each in way if each.revision > there.revision]
        state = _moved_by(stated, later, state, physical)
    return _fired(state, after.waits, physical)


def _passing(text: str, topology: Topology) -> dict[str, Node]:
    return {node.name: node for node in filters.filtered(text, topology.nodes)}


def _moved_by(
    before: DataNodes, topologies: Iterable[Topology], state: _State, physical: int
) -> _State:
    for topology in topologies:
        state = _moved(before, topology, state, physical)
        before = msgspec.structs.replace(before, topology=topology)
    return state


def _moved(before: DataNodes, topology: Topology, state: _State, physical: int) -> _State:
    was, now = _passing(before.filter, before.topology), _passing(before.filter, topology)
    # A node with other attributes is another node: it joins.
    came = {name: node for name, node in now.items() if was.get(name) != node}
    absent = frozenset(name for name in state.data if name not in now)

    def timer(name: str, *, again: bool, joined: Nodes, left: frozenset[str]) -> _Timer | None:
        running = state.timers.get(name)
        waiting = {} if running is None else running.joined
        kept = {name: node for name, node in waiting.items() if now.get(name) == node}
        adds = {**kept, **joined} if name != "down" else {}
        if not adds and not left:
            return None
        since = physical if again or running is None else running.since
        return _Timer(since, adds, left)

    if isinstance(before.waits, Joint):
        # Any join or leave starts the one timer anew (SEEDS 2).
        told = {"joint": timer("joint", again=was != now, joined=came, left=absent)}
    else:
        down = state.timers.get("down")
        gone = absent - (frozenset() if down is None else down.left)
        told = {
            "up": timer("up", again=bool(came), joined=came, left=frozenset()),
            "down": timer("down", again=bool(gone), joined={}, left=absent),
        }
    runs = {name: each for name, each in told.items() if each is not None}
    return attrs.evolve(state, timers=runs)


def _converted(timers: Mapping[str, _Timer], waits: Waits) -> Mapping[str, _Timer]:
    """The ``timers`` where one wait takes the place of two, or two that of one (SEEDS 4): they keep
    their nodes and their start, of two the later one, since any event would have started it anew.
    """
    joint = timers.get("joint")
    if isinstance(waits, Separate) and joint is not None:
        two = {
            "up": _Timer(joint.since, joint.joined, frozenset()),
            "down": _Timer(joint.since, {}, joint.left),
        }
        return {name: each for name, each in two.items() if each.joined or each.left}
    if isinstance(waits, Joint) and joint is None and timers:
        return {
            "joint": _Timer(
                max(each.since for each in timers.values()),
                {name: node for each in timers.values() for name, node in each.joined.items()},
                frozenset(name for each in timers.values() for name in each.left),
            )
        }
    return timers


def _fired(state: _State, waits: Waits, physical: int) -> _State:
    """The state once all timers that are due have fired, as one switch."""
    due = [name for name, end in _due(state.timers, waits).items() if end <= physical]
    if not due:
        return state
    data = dict(state.data)
    for name in due:
        data.update(state.timers[name].joined)
        for node in state.timers[name].left:
            data.pop(node, None)
    left = {name: each for name, each in state.timers.items() if name not in due}
    return _State(left, data, switched=True)


def _fired_by(before: DataNodes, began: _State, found: _State, physical: int) -> int:
    """When the last timer was due that the step at ``physical`` has fired: no later than what its
    switch is dated.
    """
    gone = {name: each for name, each in began.timers.items() if name not in found.timers}
    ends = _due(gone, before.waits).values()
    return max((end for end in ends if end <= physical), default=0)


def _resumed(began: _State, found: _State) -> str:
    """The cluster goes on: all timers begin later by the same time, and nothing else changes."""
    shifts = {
        name: found.timers[name].since - each.since
        for name, each in began.timers.items()
        if name in found.timers
    }
    later = min(shifts.values(), default=0)
    timers = {n: attrs.evolve(each, since=each.since + later) for n, each in began.timers.items()}
    if later >= 0 and attrs.evolve(began, timers=timers) == found:
        return ""
    return f"as the cluster goes on {_told(found)} takes the place of {_told(began)}"


def _difference(
    before: DataNodes,
    after: DataNodes,
    there: Topology,
    way: tuple[Topology, ...],
    began: _State,
    found: _State,
) -> str:
    """What the rules expect at the time that comes closest, and what there is."""
    each = [_followed(before, after, there, way, began, at) for at in _times(before, after, found)]
    expected = min(each, key=lambda one: (one.switched != found.switched, one.data != found.data))
    changed = [
        text
        for text, differs in (
            ("a topology", after.topology.revision != before.topology.revision),
            ("other waits", after.waits != before.waits),
            ("another filter", after.filter != before.filter),
        )
        if differs
    ]
    why = " and ".join(changed) or "time alone"
    return f"{_told(found)} follows on {_told(began)} by {why}, which gives {_told(expected)}"


def _told(state: _State) -> str:
    timers = "; ".join(
        f"{name} since {each.since} adds {' '.join(sorted(each.joined)) or 'none'} removes "
        f"{' '.join(sorted(each.left)) or 'none'}"
        for name, each in sorted(state.timers.items())
    )
    data = " ".join(sorted(state.data)) or "none"
    return f"[{timers or 'no timer'}; data nodes {data}{', switched' if state.switched else ''}]"
