"""The loop that keeps the data nodes of every zone up to date, at the leader of metastorage: after
each change of catalog or topology, and whenever a timer is due.

The state of timers is in metastorage, so a new leader arms them by reading it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from clusters.reference.node import events
from clusters.reference.node.bugs import planted
from clusters.reference.node.catalog import catalog as catalogs
from clusters.reference.node.catalog.catalog import Catalog
from clusters.reference.node.catalog.options import timer_warnings
from clusters.reference.node.catalog.statements import (
    AlterTable,
    AlterTableGroup,
    AlterZone,
    CreateTable,
    CreateZone,
    Ddl,
)
from clusters.reference.node.markers import reached
from clusters.reference.node.metastorage.metastorage import (
    Change,
    Group,
    Invoke,
    InvokeResult,
    encode_invoke,
)
from clusters.reference.node.runtime.hybrid_clock import COUNTER_BITS, TICK, Hlc, span
from clusters.reference.node.zones import data_nodes, manager
from clusters.reference.node.zones.data_nodes import Topology

WRITE_TIMEOUT_S = 1.0
RETAINED_S = 600.0  # of a history: much longer than any transaction may be open


class ZoneDriver:
    """Drives ``zones.manager`` while this node leads metastorage."""

    def __init__(
        self,
        *,
        view: manager.History,
        group: Group,
        clock: Hlc,
        topology: Callable[[], Topology],
        settled: Callable[[], bool],
        event_log: events.EventLog,
    ) -> None:
        """``settled``: whether this leader knows that timers need no pause any more."""
        self._view, self._group, self._clock = view, group, clock
        self._topology, self._settled, self._events = topology, settled, event_log
        self._drives = False
        self._news = asyncio.Event()

    def observed(self, change: Change) -> None:
        """A revision of metastorage was applied."""
        watched = (catalogs.KEY, "topology/", manager.TIMERS)
        if any(key.startswith(watched) for key in change.entries):
            self._news.set()

    def tick(self) -> None:
        """Look whether this node drives; once a tick."""
        before, self._drives = self._drives, self._group.serving and self._settled()
        if self._drives and not before and not planted("timer-not-rearmed"):
            self._news.set()

    def resume(self, down_since: int) -> tuple[Invoke, ...]:
        """The invokes by which timers go on after the whole cluster was down."""
        return manager.resume(self._view, down_since, self._clock.physical())

    async def run(self) -> None:
        """Write what has changed or is due, while this node leads, until cancelled."""
        while True:
            await self._wait()
            self._news.clear()
            if self._drives and self._group.serving:
                await self._step()
            else:
                # Until a tick finds it leading again, a timer that is due is not waited for.
                self._drives = False

    async def _wait(self) -> None:
        """Return when there is news, or when the next timer is due."""
        due = manager.next_due(self._view) if self._drives else None
        if due is None:
            await self._news.wait()
            return
        # Rounded up: woken within the millisecond before, it would find nothing due, and spin.
        left_ms = (due - self._clock.physical() + TICK - 1) >> COUNTER_BITS
        try:
            async with asyncio.timeout(max(left_ms, 0) / 1000):
                await self._news.wait()
        except TimeoutError:
            reached("timer of a zone due")

    def _now(self) -> int:
        """A timestamp above all that zones hold: an earlier leader's clock may have been ahead."""
        for zone in catalogs.read(self._view.get).zones.values():
            if (state := manager.read(self._view, zone.id)) is not None:
                self._clock.observe(state.history[-1].ts)
        return self._clock.now()

    async def _step(self) -> None:
        catalog, ts = catalogs.read(self._view.get), self._now()
        invokes = manager.step(
            self._view,
            catalog,
            self._topology(),
            ts,
            # Not by timestamps, which jump forward as a node starts: see ``data_nodes``.
            physical=self._clock.physical(),
            oldest=ts - span(RETAINED_S),
        )
        for invoke in invokes:
            done = await self._group.propose(encode_invoke(invoke), WRITE_TIMEOUT_S)
            if not (isinstance(done, InvokeResult) and done.success):
                reached("state of a zone written by another leader")
                self._drives = False  # looked at again with the next tick
                return
            self._report(catalog, invoke)

    def _report(self, catalog: Catalog, invoke: Invoke) -> None:
        keys = {operation.key for operation in invoke.success if operation.value is not None}
        for name, zone in catalog.zones.items():
            if f"{manager.HISTORY}{zone.id}" in keys:
                state = manager.read(self._view, zone.id)
                names = [] if state is None else [node.name for node in state.latest]
                text = f"zone {name}: data nodes {' '.join(names) or 'none'}"
                self._events.add(events.DATA_NODES_CHANGED, text)


def warnings(catalog: Catalog, statement: Ddl, topology: Topology) -> tuple[str, ...]:
    """What to tell of the zone or the table that ``statement`` has made or altered in ``catalog``:
    see ``data_nodes.warning`` and ``options.timer_warnings``.
    """
    name = statement.name.full
    told: str | None = None
    timers: tuple[str, ...] = ()
    if isinstance(statement, CreateTable | AlterTable):
        table = catalog.tables.get(name)
        if table is not None:
            told = data_nodes.warning(catalog.zones[table.zone], topology, table)
    elif isinstance(statement, CreateZone | AlterZone | AlterTableGroup) and name in catalog.zones:
        told = data_nodes.warning(catalog.zones[name], topology)
        timers = timer_warnings(catalog.zones[name])
    return (*(() if told is None else (told,)), *timers)
