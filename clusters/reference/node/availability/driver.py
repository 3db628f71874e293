"""The loop that resets partitions of highly available zones, at the leader of metastorage: it keeps
their timers, and once one has fired begins the next generation of each partition that has lost its
majority (IEP-131, "Algorithm for phase 1").
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from clusters.reference.node import events
from clusters.reference.node.availability import intents, manager, survivors, unwind
from clusters.reference.node.availability.intents import ZoneResets
from clusters.reference.node.catalog import catalog as catalogs
from clusters.reference.node.catalog.options import Zone
from clusters.reference.node.markers import reached
from clusters.reference.node.metastorage.metastorage import (
    Change,
    Condition,
    Group,
    Invoke,
    InvokeResult,
    Operation,
    Versioned,
    View,
    encode_invoke,
    unchanged,
)
from clusters.reference.node.placement.lease_expiry import LEASE, PRIMARY, LeaseTable, encode
from clusters.reference.node.placement.lease_manager import released
from clusters.reference.node.rebalance import transitions
from clusters.reference.node.rebalance.driver import numbers
from clusters.reference.node.rebalance.keys import PartitionState
from clusters.reference.node.rebalance.transitions import Variant
from clusters.reference.node.runtime.hybrid_clock import COUNTER_BITS, TICK, Hlc, span
from clusters.reference.node.runtime.tasks import all_of
from clusters.reference.node.topology.logical import LOGICAL
from clusters.reference.node.tx.primary_client import Ask
from clusters.reference.node.wire.messages import AskLog, AskStart, LogReply, StartReply
from clusters.reference.node.zones.data_nodes import Topology

WRITE_TIMEOUT_S = 1.0
ASK_TIMEOUT_S = 0.5  # for a holder to tell of its log
ASKED_TIMES = 4  # before a reset goes on without a holder that is there and does not answer
AGAIN_S = 0.1
LOOK_EVERY_S = 1.0  # for partitions that wait for their start


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
        settled: Callable[[], bool],
        event_log: events.EventLog,
        phase2: bool = False,
    ) -> None:
        """``settled``: see ``zones.driver``. ``phase2``: whether chains are unwound."""
        self._phase2 = phase2
        self._view, self._group, self._variant = view, group, variant
        self._clock, self._leases, self._topology = clock, leases, topology
        self._settled, self._events = settled, event_log
        self._drives = False
        self._news = asyncio.Event()
        self._silent: dict[tuple[int, int, str], int] = {}

    def connect(self, ask: Ask) -> None:
        """``ask`` reaches other nodes, and this one. To be called once, before ``run``."""
        self._ask = ask

    def observed(self, change: Change) -> None:
        """A revision of metastorage was applied."""
        watched = (catalogs.KEY, "topology/", intents.INTENT)
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
        """Write what has changed, and reset what is due, until cancelled."""
        while True:
            await self._wait()
            self._news.clear()
            if not (self._drives and self._group.serving):
                self._drives = False
            elif not await self._step():
                reached("resets to be tried again")
                await asyncio.sleep(AGAIN_S)
                self._news.set()

    async def _wait(self) -> None:
        catalog = catalogs.read(self._view.get)
        due = manager.next_due(self._view, catalog) if self._drives else None
        if self._phase2 and self._drives:
            # A partition that waits for its start tells nobody: it is looked for.
            look = self._clock.physical() + span(LOOK_EVERY_S)
            due = look if due is None else min(due, look)
        if due is None:
            await self._news.wait()
            return
        left_ms = (due - self._clock.physical() + TICK - 1) >> COUNTER_BITS
        try:
            async with asyncio.timeout(max(left_ms, 0) / 1000):
                await self._news.wait()
        except TimeoutError:
            reached("reset timer of a zone due")

    async def _step(self) -> bool:
        """Whether all of it was done."""
        catalog = catalogs.read(self._view.get)
        physical = self._clock.physical()
        for invoke in manager.step(self._view, catalog, self._topology(), physical):
            if not await self._propose(invoke):
                return False
        whole = True
        for zone, state in list(manager.due(self._view, catalog, physical)):
            whole = await self._fire(zone, state) and whole
        if self._phase2:
            for name in sorted(catalog.zones):
                if catalog.zones[name].highly_available:
                    for each in list(manager.states(self._view, catalog, catalog.zones[name])):
                        await self._unwind(each)
        return whole

    async def _unwind(self, state: PartitionState) -> None:
        """Start a partition that serves nowhere from the last link of its chain with user inputs:
        one invoke makes that link's copies stable, and the others follow.
        """
        number, chain = numbers(self._view).of(state.partition), state.chain
        fence = None if number is None else self._fence(number)
        forced = state.pending is not None and state.pending.force
        # Where a lease holds, or a reset is under way, it is served.
        if number is None or chain is None or len(chain.links) < 2 or fence is None or forced:
            return
        there, held = set(self._alive()), self._view.get(LOGICAL)
        nodes = sorted({node for link in chain.links for node in link.nodes} & there)

        async def one(node: str) -> object:
            return await self._ask(node, AskStart(number), ASK_TIMEOUT_S)

        answers = await all_of(one(node) for node in nodes)
        replies = {n: a for n, a in zip(nodes, answers, strict=True) if isinstance(a, StartReply)}
        alive = {node for node, reply in replies.items() if reply.alive}
        lives = [held for held in (state.stable, state.pending) if held is not None]
        for each in lives:
            told = [node for node in each.nodes if node in replies]
            # Where one lives the others that are there start as usual, each by itself.
            if alive & set(told) and len(told) >= 1 + len(each.nodes) // 2:
                return
        start = unwind.found(chain, replies)
        if start is None or not start.majority:
            reached("chain unwind waits for nodes")
            return
        logs = [(n, LogReply(r.generation, r.term, r.index, r.whole)) for n, r in replies.items()]
        chosen = survivors.chosen((n, log) for n, log in logs if n in start.answered)
        if chosen is None:
            return
        conditions, operations = fence
        if start.place == len(chain.links) - 1 and state.stable is not None:
            # Nothing is restored: its copies go on in their generation.
            kept = transitions.unwound_to_stable(
                state, conditions=(unchanged(LOGICAL, held), *conditions)
            )
            if await self._propose(kept.invoke):
                reached("chain kept to its last link")
            return
        transition = transitions.unwound(
            self._variant,
            state,
            chosen=chosen,
            nodes=start.nodes,
            everybody=tuple(replies),
            conditions=(unchanged(LOGICAL, held), *conditions),
            operations=operations,
        )
        if await self._propose(transition.invoke):
            reached("chain unwound")
            text = (
                f"starts from link {start.place} of {len(chain.links)}, {' '.join(start.nodes)}, "
                f"at {chosen}: no later one has user inputs"
            )
            self._events.add(
                events.RESTORED, text, partition=number, generation=state.generation + 1
            )

    async def _fire(self, zone: Zone, state: ZoneResets) -> bool:
        """onPartitionDistributionResetTimeout: whether nothing is left to do for this timer."""
        catalog, newest = catalogs.read(self._view.get), self._alive()
        judged = self._view.get(LOGICAL)
        intent = state.intent
        if intent is None:
            return True
        lacking = list(manager.lost(self._view, catalog, zone, intent.alive, newest))
        # In turn where many have lost theirs: each asks a few nodes, and is done in milliseconds.
        done = [await self._reset(partition, newest, judged) for partition in lacking]
        if not all(done):
            return False
        # Not over a timer that was started anew meanwhile.
        held = intents.read(self._view, zone.id)
        if held is not None and held.intent == intent:
            return await self._propose(manager.replaced(self._view, zone.id, intents.done(held)))
        return True

    def _alive(self) -> tuple[str, ...]:
        return tuple(node.name for node in self._topology().nodes)

    async def _reset(
        self, state: PartitionState, alive: tuple[str, ...], judged: Versioned | None
    ) -> bool:
        """Begin the next generation of a partition that has lost its majority by the topology
        ``judged``, of the nodes ``alive``; whether nothing is left to do about it.
        """
        number = numbers(self._view).of(state.partition)
        holders = survivors.holders(state, alive)
        forced = state.pending.nodes if state.pending and state.pending.force else ()
        # One that was given to a node that is there goes on by itself.
        if number is None or any(node in holders for node in forced):
            return True
        fence = self._fence(number)
        if fence is None:
            reached("reset waits for the end of a lease")
            return False
        logs = await self._logs(number, state, holders)
        chosen = None if logs is None else survivors.chosen(logs)
        if logs is None or chosen is None:
            return False
        conditions, operations = fence
        transition = transitions.reset(
            self._variant,
            state,
            chosen=chosen,
            survivors=tuple(sorted(node for node, _ in logs)),
            # The majority is judged by this topology, and no node has come back since.
            conditions=(unchanged(LOGICAL, judged), *conditions),
            operations=operations,
        )
        if not await self._propose(transition.invoke):
            return False
        reached("partition reset")
        text = f"reset to {chosen}, of {' '.join(node for node, _ in logs)}"
        self._events.add(
            events.REBALANCE_STAGE, text, partition=number, generation=state.generation + 1
        )
        return True

    def _fence(self, number: int) -> tuple[tuple[Condition, ...], tuple[Operation, ...]] | None:
        """What keeps the primary before from acting: its lease is over, its grant ends with the
        reset, and it has not renewed meanwhile. ``None`` while its lease may hold.
        """
        held = self._leases.grants.get(number)
        if held is None or held.released:
            return (), ()
        if not self._leases.expired(held.node, held.origin):
            return None
        key, lease = f"{PRIMARY}{number}", f"{LEASE}{held.node}"
        conditions = [Condition(key, "value", value=encode(held))]
        seen = self._leases.seen.get(held.node)
        if seen is not None and not self._leases.superseded(held.node, held.origin):
            conditions.append(Condition(lease, "revision", revision=seen.revision))
        return tuple(conditions), (Operation(key, encode(released(held))),)

    async def _logs(
        self, number: int, state: PartitionState, holders: tuple[str, ...]
    ) -> list[tuple[str, LogReply]] | None:
        """The logs of ``holders``; ``None`` while one that may answer yet has not."""

        async def one(node: str) -> object:
            return await self._ask(node, AskLog(number), ASK_TIMEOUT_S)

        answers = await all_of(one(node) for node in holders)
        found = [(n, a) for n, a in zip(holders, answers, strict=True) if isinstance(a, LogReply)]
        told = {node for node, _ in found}
        for node in holders:
            asked = (number, state.generation, node)
            self._silent[asked] = 0 if node in told else self._silent.get(asked, 0) + 1
            if 0 < self._silent[asked] < ASKED_TIMES:
                return None
        # A copy that is blank, or behind in its generation, is no holder.
        return [(node, log) for node, log in found if log.whole]

    async def _propose(self, invoke: Invoke) -> bool:
        done = await self._group.propose(encode_invoke(invoke), WRITE_TIMEOUT_S)
        return isinstance(done, InvokeResult) and done.success
