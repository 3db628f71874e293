"""Effects of each fault on open transactions and on leadership; decides nothing.

A kill between two transactions shows little, and one that no election answered shows nothing about
elections: these figures tell such faults apart. Elections are the store's own reports, in mapped
time.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from checkers.engine.arrays import Ints, ints
from checkers.explain.attribution import windows
from harness.history.records import EventKind
from harness.history.store_events import of_kinds
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


def effects(transactions: pa.Table, faults: pa.Table, events: pa.Table) -> tuple[Effect, ...]:
    """Return the effect of every injected fault, in the order of ``attribution.windows``."""
    invoked = np.sort(ints(transactions, "invoke_ns"))
    completed = np.sort(ints(transactions, "complete_ns"))
    injected = {row["fault"]: row["injected_ns"] for row in faults.to_pylist()}
    taken = _Takings(events)
    return tuple(
        Effect(
            fault=window["fault"],
            kind=window["kind"],
            open=least_open(invoked, completed, window["start_ns"], injected[window["fault"]]),
            takeovers=tuple(_takeovers(window, taken)),
        )
        for window in windows(faults)
    )


def least_open(invoked: Ints, completed: Ints, start_ns: int, end_ns: int | None) -> int:
    """Return the fewest transactions that were open at one moment from ``start_ns`` to ``end_ns``,
    both included; at ``start_ns`` alone where there is no end. The arrays ascend.
    """
    # A transaction that is invoked or completes at the very moment is open then: hence the two
    # sides.
    low, high = np.searchsorted(completed, [start_ns, start_ns if end_ns is None else end_ns])
    at_start = np.searchsorted(invoked, start_ns, side="right") - low
    # Between two ends it can only grow: the fewest are open right after one of them.
    ends = completed[low:high]
    after = np.searchsorted(invoked, ends, side="right") - np.arange(low + 1, high + 1)
    return int(np.min(np.append(after, at_start)))


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


def _takeovers(window: Mapping[str, Any], taken: _Takings) -> Iterator[Takeover]:
    for role in parsed(window["roles"]):
        if role.kind not in _ANSWER:
            continue
        times, nodes = taken.of(_ANSWER[role.kind], role.partition)
        place = int(np.searchsorted(times, window["start_ns"]))
        # An election after the heal is not proven to answer this fault.
        end_ns = window["end_ns"]
        found = place < len(times) and (end_ns is None or times[place] <= end_ns)
        node = nodes[place].as_py() if found else None
        after_ns = int(times[place]) - window["start_ns"] if found else None
        yield Takeover(role=str(role), node=node, after_ns=after_ns)
