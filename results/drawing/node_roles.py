"""The roles of each node over the time of a run: from the store's events and the faults.

Events are in mapped time and a node that dies takes the last of its own with it: drawings from them
explain, and prove nothing.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import pyarrow as pa

from harness.clock import NS_PER_S
from harness.history.records import EventKind
from harness.history.store_events import of_kinds, rows_of
from harness.protocols.fault_kinds import BUILT_IN, FaultKind
from harness.protocols.fault_spans import fault_spans
from harness.protocols.roles import Role, RoleKind, parse

DOWN, PAUSED, OTHER = "down", "paused or frozen", "under another fault"
PIECE_ROWS = 10_000  # of a table that may have a million, as objects of Python at once
_COLUMNS = ("kind", "node", "at_ns", "partition")
_LIFE = (EventKind.NODE_STARTED, EventKind.NODE_EXITED)
_KINDS = (
    *_LIFE,
    EventKind.LEASE_GRANTED,
    EventKind.LEASE_LOST,
    EventKind.LEADER_ELECTED,
    EventKind.LEADER_LOST,
)

Row = Mapping[str, Any]


@attrs.frozen(kw_only=True)
class StateSpan:
    """A time in which a node was in ``state``; ``unsure`` where that was not proven yet, or its
    healing was under way.
    """

    start_s: float
    end_s: float
    state: str
    unsure: bool = False


@attrs.frozen(kw_only=True)
class NodeRoles:
    """One node: from each of ``at_s`` on it held as many partitions as ``held`` says; ``leads`` are
    the times in which it led the metastorage.
    """

    node: str
    at_s: tuple[float, ...]
    held: tuple[int, ...]
    leads: tuple[tuple[float, float], ...]
    stretches: tuple[StateSpan, ...]

    @property
    def most(self) -> int:
        """The most partitions that it held at once."""
        return max(self.held, default=0)


@attrs.frozen(kw_only=True)
class RolesOverTime:
    """Every node, by name. ``role`` is the nodes' role in the counted partitions."""

    nodes: tuple[NodeRoles, ...]
    role: str

    @property
    def known(self) -> bool:
        """Whether there is anything to draw."""
        return any(lane.most or lane.leads or lane.stretches for lane in self.nodes)


def roles_over_time(
    events: pa.Table,
    faults: Iterable[Row],
    nodes: Iterable[str],
    end_ns: int,
    kinds: Mapping[str, FaultKind] = BUILT_IN,
) -> RolesOverTime:
    """Return primaries per node, where the store reports leases, else leaders of partitions.

    ``nodes`` are the nodes to show; ``end_ns`` is the end of the run; ``kinds`` tell what the
    faults do.
    """
    told = of_kinds(events.select(list(_COLUMNS)), _KINDS).sort_by("at_ns")
    granted = of_kinds(told, (EventKind.LEASE_GRANTED,))
    leased = granted["partition"].null_count < granted.num_rows
    stretches = _stretches(rows_of(told, _LIFE), faults, end_ns, kinds)
    holding = _Holding(EventKind.LEASE_GRANTED if leased else EventKind.LEADER_ELECTED)
    starts = [
        (int(s.start_s * NS_PER_S), n)
        for n, ss in stretches.items()
        for s in ss
        if s.state == DOWN and not s.unsure
    ]
    falls = deque(sorted(starts, key=lambda start: start[0]))
    for row in _in_pieces(told):
        # At one moment the fall comes before what is reported.
        while falls and falls[0][0] <= row["at_ns"]:
            at_ns, node = falls.popleft()
            holding.fall(node, at_ns)
        holding.take(row)
    for at_ns, node in falls:
        holding.fall(node, at_ns)
    holding.close(end_ns)
    return RolesOverTime(
        nodes=tuple(_lane(node, holding, stretches.get(node, [])) for node in nodes),
        role="primary" if leased else "leader",
    )


def briefly(roles: Iterable[str]) -> str:
    """Format roles as a fault recorded them, those of many partitions together: ``leader of
    partitions 1, 2; metastorage leader``.
    """
    of: dict[RoleKind | str, list[Role]] = {}
    for text in roles:
        role = parse(text)
        of.setdefault(role.kind if role else text, []).extend([role] if role else [])
    return "; ".join(
        f"{what} of partitions {', '.join(str(role.partition) for role in held)}"
        if len(held) > 1 and held[0].partition is not None
        else str(held[0] if held else what)
        for what, held in of.items()
    )


def _in_pieces(told: pa.Table) -> Iterator[Row]:
    for piece in told.to_batches(max_chunksize=PIECE_ROWS):
        yield from piece.to_pylist()


class _Holding:
    """The present holder of each partition, and the history of holders so far."""

    def __init__(self, gained: EventKind) -> None:
        self._gained = gained
        self._lost = (
            EventKind.LEASE_LOST if gained is EventKind.LEASE_GRANTED else EventKind.LEADER_LOST
        )
        self._holder: dict[int, str] = {}
        self._held: defaultdict[str, set[int]] = defaultdict(set)  # the same, by node
        self._asleep: set[str] = set()  # their own lease ran out
        self._leader: tuple[str, int] | None = None
        self.steps: dict[str, list[tuple[int, int]]] = {}
        self.leads: dict[str, list[tuple[int, int]]] = {}

    def take(self, row: Row) -> None:
        """Apply the next event."""
        kind, node, partition, at_ns = row["kind"], row["node"], row["partition"], row["at_ns"]
        if kind == EventKind.NODE_STARTED:
            # A start shows that what the node's last life held is gone, where no event told its
            # end.
            self.fall(node, at_ns)
        elif partition is None:
            self._of_node(kind, node, at_ns)
        elif kind == self._gained:
            before = self._holder.get(partition)
            self._held[before or node].discard(partition)
            self._holder[partition] = node
            self._held[node].add(partition)
            self._asleep.discard(node)
            self._note(at_ns, node, *([before] if before else []))
        # The report of a loss may come after another node has gained the partition.
        elif kind == self._lost and self._holder.get(partition) == node:
            del self._holder[partition]
            self._held[node].discard(partition)
            self._note(at_ns, node)

    def _of_node(self, kind: str, node: str, at_ns: int) -> None:
        if kind == EventKind.LEADER_ELECTED:
            self._lead(node, at_ns)
        elif kind == EventKind.LEADER_LOST and self._leader and self._leader[0] == node:
            self._lead(None, at_ns)
        elif kind == EventKind.LEASE_LOST:
            self._asleep.add(node)
            self._note(at_ns, node)
        elif kind == EventKind.LEASE_GRANTED and node in self._asleep:
            self._asleep.discard(node)
            self._note(at_ns, node)

    def fall(self, node: str, at_ns: int) -> None:
        """Mark the node as down: it holds nothing."""
        for partition in self._held.pop(node, ()):
            del self._holder[partition]
        self._note(at_ns, node)
        if self._leader and self._leader[0] == node:
            self._lead(None, at_ns)

    def close(self, at_ns: int) -> None:
        """Close the open stretches at the end of the run."""
        self._lead(None, at_ns)

    def _lead(self, node: str | None, at_ns: int) -> None:
        if self._leader:
            before, since_ns = self._leader
            self.leads.setdefault(before, []).append((since_ns, at_ns))
        self._leader = (node, at_ns) if node else None

    def _note(self, at_ns: int, *nodes: str) -> None:
        for node in dict.fromkeys(nodes):
            count = 0 if node in self._asleep else len(self._held[node])
            steps = self.steps.setdefault(node, [])
            # Most events leave the count as it is: only changes are drawn.
            if not steps or steps[-1][1] != count:
                steps.append((at_ns, count))


def _stretches(
    rows: Sequence[Row], faults: Iterable[Row], end_ns: int, kinds: Mapping[str, FaultKind]
) -> dict[str, list[StateSpan]]:
    """Return by node the times when it was down, paused or under another fault."""
    found: dict[str, list[StateSpan]] = {}
    for span in fault_spans(faults):
        # Without an effect it is not known that the node was in any state but its usual one.
        if span.effective_ns is None:
            continue
        state, sure = _state(kinds.get(span.kind)), span.in_force(end_ns)
        told = [_stretch(*times, state, unsure=True) for times in span.unsure(end_ns)]
        told += [_stretch(*sure, state)] if sure else []
        for node in span.nodes:
            found.setdefault(node, []).extend(told)
    for node, at_ns, until_ns in _exits(rows, end_ns):
        found.setdefault(node, []).append(_stretch(at_ns, until_ns, DOWN))
    return found


def _state(kind: FaultKind | None) -> str:
    """Return the state of a node while a fault of ``kind`` is in force on it."""
    if kind is None:
        return OTHER
    return DOWN if kind.ends_program else PAUSED if kind.silences_program else OTHER


def _exits(rows: Sequence[Row], end_ns: int) -> Iterator[tuple[str, int, int]]:
    """Return (node, since, until) of every exit that no verb of the run requested. ``rows``
    ascend.
    """
    started: dict[str, int] = {}  # by node its next start
    found: list[tuple[str, int, int]] = []
    for row in reversed(rows):
        node, at_ns = row["node"], row["at_ns"]
        if row["kind"] == EventKind.NODE_STARTED:
            started[node] = at_ns
        elif row["kind"] == EventKind.NODE_EXITED:
            # Events are in mapped time: one may lie behind the end of the run.
            found.append((node, at_ns, started.get(node, max(end_ns, at_ns))))
    return reversed(found)


def _stretch(start_ns: int, end_ns: int, state: str, *, unsure: bool = False) -> StateSpan:
    # No stretch ends before it begins, also where events were mapped out of order.
    end_s = max(start_ns, end_ns) / NS_PER_S
    return StateSpan(start_s=start_ns / NS_PER_S, end_s=end_s, state=state, unsure=unsure)


def _lane(node: str, holding: _Holding, stretches: list[StateSpan]) -> NodeRoles:
    steps = holding.steps.get(node, [])
    return NodeRoles(
        node=node,
        at_s=tuple(at_ns / NS_PER_S for at_ns, _ in steps),
        held=tuple(count for _, count in steps),
        leads=tuple((a / NS_PER_S, b / NS_PER_S) for a, b in holding.leads.get(node, [])),
        stretches=tuple(sorted(stretches, key=lambda stretch: stretch.start_s)),
    )
