"""Effects of each fault on open transactions and on leadership; decides nothing.

A kill between two transactions shows little, and one that no election answered shows nothing about
elections: these figures tell such faults apart. Elections are the store's own reports, in mapped
time.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import Ints, ints
from harness.history.records import EventKind
from harness.history.store_events import of_kinds
from harness.protocols.fault_spans import FaultSpan, fault_spans
from harness.protocols.roles import RoleKind, parsed
from harness.protocols.verdict import Takeover

# The event of a role's takeover; one of the metastorage has no partition.
_ANSWER = {
    RoleKind.LEADER: EventKind.LEADER_ELECTED,
    RoleKind.PRIMARY: EventKind.LEASE_GRANTED,
    RoleKind.METASTORAGE_LEADER: EventKind.LEADER_ELECTED,
}


@attrs.frozen(kw_only=True)
class Effect:
    """The effect of one injected fault.

    ``open``: the least number of transactions that were invoked and not yet complete, over all
    moments of its injection. ``takeovers``: one for each role of one node that its targets held.
    """

    fault: int
    kind: str
    open: int
    takeovers: tuple[Takeover, ...]

    @property
    def answered(self) -> bool:
        """Whether a node took over every role that the fault's targets held."""
        return all(each.node is not None for each in self.takeovers)


def effects(
    transactions: Iterable[pa.Table], faults: pa.Table, events: pa.Table
) -> tuple[Effect, ...]:
    """Return the effect of every injected fault, in the order of their begin;
    ``transactions`` are all of them, in parts of any size.
    """
    rows = faults.to_pylist()
    found = fault_spans(rows)
    injected = {row["fault"]: row["injected_ns"] for row in rows}
    taken = _Takings(events)
    opened = [_Open(window.begin_ns, injected[window.fault]) for window in found]
    for piece in transactions if found else ():
        invoked, completed = (ints(piece, name) for name in ("invoke_ns", "complete_ns"))
        for each in opened:
            each.add(invoked, completed)
    return tuple(
        Effect(
            fault=window.fault,
            kind=window.kind,
            open=each.least(),
            takeovers=tuple(_takeovers(window, taken)),
        )
        for window, each in zip(found, opened, strict=True)
    )


def least_open(spans: Iterable[tuple[Ints, Ints]], start_ns: int, end_ns: int | None) -> int:
    """Return the fewest transactions that were open at one moment from ``start_ns`` to ``end_ns``,
    both included; at ``start_ns`` alone where there is no end. ``spans`` are the invocations and
    completions of all, in parts.
    """
    open_ = _Open(start_ns, end_ns)
    for invoked, completed in spans:
        open_.add(invoked, completed)
    return open_.least()


@attrs.define
class _Open:
    """How many transactions are open at ``start_ns``, and what begins and ends until ``end_ns``."""

    start_ns: int
    end_ns: int | None
    _at_start: int = 0
    _begun: list[Ints] = attrs.field(factory=list)
    _ended: list[Ints] = attrs.field(factory=list)

    def add(self, invoked: Ints, completed: Ints) -> None:
        """Count these transactions as well."""
        end_ns = self.start_ns if self.end_ns is None else self.end_ns
        # One that is invoked or completes at the very moment is open then.
        self._at_start += int((invoked <= self.start_ns).sum() - (completed < self.start_ns).sum())
        self._begun.append(invoked[(invoked > self.start_ns) & (invoked < end_ns)])
        self._ended.append(completed[(completed >= self.start_ns) & (completed < end_ns)])

    def least(self) -> int:
        """Return the fewest that are open at one moment."""
        begun, ended = (
            np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))
            for parts in (self._begun, self._ended)
        )
        # Between two ends it can only grow: the fewest are open right after one of them.
        more = np.searchsorted(begun, ended, side="right") - np.arange(1, len(ended) + 1)
        return self._at_start + int(more.min(initial=0))


def summary(found: Sequence[Effect]) -> dict[str, int | None]:
    """Summarize the effects of all faults; empty where none was injected."""
    if not found:
        return {}
    led = [effect for effect in found if effect.takeovers]
    waits = [t.after_ns for effect in led for t in effect.takeovers if t.after_ns is not None]
    return {
        "faults": len(found),
        "fewest_open_at_injection": min(effect.open for effect in found),
        "faults_on_leaders": len(led),
        "of_these_with_every_role_taken_over": sum(effect.answered for effect in led),
        "slowest_takeover_ns": max(waits, default=None),
    }


class _Takings:
    """The takeovers of each role, by kind of event and partition, as arrays that ascend in time: a
    store may tell of a million.
    """

    def __init__(self, events: pa.Table) -> None:
        columns = ["kind", "partition", "at_ns", "node"]
        order = [("at_ns", "ascending"), ("node", "ascending")]
        self._told = of_kinds(events.select(columns), _ANSWER.values()).sort_by(order)
        self.of = functools.cache(self._of)

    def _of(self, kind: EventKind, partition: int | None) -> tuple[Ints, pa.ChunkedArray]:
        """When nodes took the role, and which."""
        told = of_kinds(self._told, (kind,))
        its = told["partition"]
        here = pc.is_null(its) if partition is None else pc.equal(its, partition)
        told = told.filter(here)
        return ints(told, "at_ns"), told["node"]


def _takeovers(window: FaultSpan, taken: _Takings) -> Iterator[Takeover]:
    for role in parsed(window.roles):
        if role.kind not in _ANSWER:
            continue
        times, nodes = taken.of(_ANSWER[role.kind], role.partition)
        place = int(np.searchsorted(times, window.begin_ns))
        # An election after the heal is not proven to answer this fault.
        end_ns = window.healed_ns
        found = place < len(times) and (end_ns is None or times[place] <= end_ns)
        node = nodes[place].as_py() if found else None
        after_ns = int(times[place]) - window.begin_ns if found else None
        yield Takeover(role=str(role), node=node, after_ns=after_ns)
