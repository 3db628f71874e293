"""The loop that resets partitions of highly available zones, at the leader of metastorage: it keeps
their timers, and once one has fired begins the next generation of each partition that has lost its
majority (IEP-131, "Algorithm for phase 1").
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

from clusters.reference.node import events
from clusters.reference.node.availability import manager, reset_intents
from clusters.reference.node.availability.reset_intents import ZoneResets
from clusters.reference.node.availability.resets import AGAIN_S, Resets
from clusters.reference.node.availability.unwind_driver import UnwindDriver
from clusters.reference.node.catalog import catalog as catalogs
from clusters.reference.node.catalog.catalog import Catalog
from clusters.reference.node.catalog.options import Zone
from clusters.reference.node.markers import reached
from clusters.reference.node.metastorage.metastorage import (
    Change,
    Group,
    Invoke,
    InvokeResult,
    View,
    encode_invoke,
)
from clusters.reference.node.placement.lease_expiry import LeaseTable
from clusters.reference.node.rebalance.transitions import Variant
from clusters.reference.node.runtime.concurrency import side_by_side, together
from clusters.reference.node.runtime.hybrid_clock import COUNTER_BITS, TICK, Hlc
from clusters.reference.node.topology.logical import LOGICAL
from clusters.reference.node.tx.primary_client import Ask
from clusters.reference.node.zones.data_nodes import Topology

WRITE_TIMEOUT_S = 1.0
LOOK_EVERY_S = 1.0  # for partitions that wait for their start
MAX_AT_ONCE = 32  # partitions of which the copies are asked


class ResetDriver:
    """Drives ``availability.manager`` while this node leads metastorage."""

    def __init__(
        self,
        *,
        view: View,
        group: Group,
        variant: Variant,
        clock: Hlc,
        leases: LeaseTable,
        topology: Callable[[], Topology],
        connected: Callable[[], tuple[str, ...]],
        settled: Callable[[], bool],
        ask: Ask,
        event_log: events.EventLog,
        phase2: bool = False,
    ) -> None:
        """``connected``: the nodes that this one reaches; ``settled``: see ``zones.driver``;
        ``ask`` reaches other nodes, and this one; ``phase2``: whether chains are unwound.
        """
        self._phase2 = phase2
        self._view, self._group, self._clock = view, group, clock
        self._topology, self._settled = topology, settled
        self._new_resets = partial(
            Resets,
            view=view,
            variant=variant,
            leases=leases,
            connected=connected,
            ask=ask,
            propose=self._propose,
            event_log=event_log,
        )
        self._resets = self._new_resets()
        self._unwind = UnwindDriver(
            view=view,
            variant=variant,
            leases=leases,
            ask=ask,
            propose=self._propose,
            event_log=event_log,
        )
        self._drives = False
        self._news, self._changed = asyncio.Event(), asyncio.Event()

    def of_operators(self) -> Resets:
        """What resets partitions where an operator asks for it, with tries of its own."""
        return self._new_resets()

    def observed(self, change: Change) -> None:
        """A revision of metastorage was applied."""
        if LOGICAL in change.entries:
            self._resets.topology_changed()
            self._changed.set()
        watched = (catalogs.KEY, "topology/", reset_intents.INTENT)
        if any(key.startswith(watched) for key in change.entries):
            self._news.set()

    def tick(self) -> None:
        """Look whether this node drives; once a tick."""
        before, self._drives = self._drives, self._group.serving and self._settled()
        if self._drives and not before:
            self._news.set()

    def restart(self, names: tuple[str, ...]) -> tuple[Invoke, ...]:
        """The invokes by which timers go on after the whole cluster has started with ``names``."""
        return manager.restart(self._view, names)

    async def run(self) -> None:
        """Write what has changed, reset what is due and start what waits, until cancelled."""
        loops = [self._run_resets()]
        if self._phase2:
            loops.append(self._run_starts())
        await together(*loops)

    async def _run_resets(self) -> None:
        whole = True
        while True:
            await self._wait(None if whole else AGAIN_S)
            self._news.clear()
            whole = True
            if not (self._drives and self._group.serving):
                self._drives = False
            elif not await self._step():
                reached("resets to be tried again")
                whole = False

    async def _wait(self, limit_s: float | None) -> None:
        if limit_s is None:
            due = manager.next_due(self._view, self._catalog()) if self._drives else None
            if due is None:
                await self._news.wait()
                return
            limit_s = max((due - self._clock.physical() + TICK - 1) >> COUNTER_BITS, 0) / 1000
        try:
            async with asyncio.timeout(limit_s):
                await self._news.wait()
        except TimeoutError:
            reached("reset timer of a zone due")

    def _catalog(self) -> Catalog:
        return catalogs.read(self._view.get)

    async def _step(self) -> bool:
        """Whether all of it was done."""
        catalog = self._catalog()
        physical = self._clock.physical()
        for invoke in manager.step(self._view, catalog, self._topology(), physical):
            if not await self._propose(invoke):
                return False
        whole = True
        for zone, state in list(manager.due(self._view, catalog, physical)):
            whole = await self._fire(zone, state) and whole
        return whole

    async def _fire(self, zone: Zone, state: ZoneResets) -> bool:
        """onPartitionDistributionResetTimeout: whether nothing is left to do for this timer."""
        newest, judged = self._alive(), self._view.get(LOGICAL)
        intent = state.intent
        if intent is None:
            return True
        lacking = manager.lost(self._view, self._catalog(), zone, intent.alive, newest)
        acts = [partial(self._resets.reset, each, newest, judged) for each in lacking]
        if not all(await side_by_side(acts, MAX_AT_ONCE)):
            return False
        # Not over a timer that was started anew meanwhile.
        held = reset_intents.read(self._view, zone.id)
        if held is not None and held.intent == intent:
            return await self._propose(
                manager.replaced(self._view, zone.id, reset_intents.done(held))
            )
        return True

    async def _run_starts(self) -> None:
        """Look for partitions that wait for their start, which send no sign of it."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._changed.wait()
            self._changed.clear()
            if not (self._drives and self._group.serving):
                continue
            catalog, alive = self._catalog(), self._alive()
            acts = [
                partial(self._unwind.unwind, state, alive)
                for name in sorted(catalog.zones)
                if catalog.zones[name].highly_available
                for state in manager.states(self._view, catalog, catalog.zones[name])
                if self._unwind.may_wait(state)
            ]
            await side_by_side(acts, MAX_AT_ONCE)

    def _alive(self) -> tuple[str, ...]:
        return tuple(node.name for node in self._topology().nodes)

    async def _propose(self, invoke: Invoke) -> bool:
        done = await self._group.propose(encode_invoke(invoke), WRITE_TIMEOUT_S)
        return isinstance(done, InvokeResult) and done.success
