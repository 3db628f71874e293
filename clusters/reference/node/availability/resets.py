"""The reset of one partition by the leader of metastorage: of the copies that are left the most
advanced one goes on, in the next generation (IEP-131, resetPartition).

It is fenced by one invoke: the lease of the primary before is over and was not renewed, its grant
ends with the reset, no other was granted meanwhile, and no node has come back that would make a
majority.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from clusters.reference.node import events
from clusters.reference.node.availability import survivors
from clusters.reference.node.availability.majority import given_to_lost_copy
from clusters.reference.node.bugs import planted
from clusters.reference.node.markers import reached
from clusters.reference.node.metastorage.metastorage import (
    Condition,
    Invoke,
    Operation,
    Versioned,
    View,
    unchanged,
)
from clusters.reference.node.placement.lease_expiry import (
    PRIMARY,
    LeaseTable,
    encode,
    released,
    superseding,
)
from clusters.reference.node.rebalance import transitions
from clusters.reference.node.rebalance.driver import numbers
from clusters.reference.node.rebalance.keys import PartitionState
from clusters.reference.node.rebalance.transitions import Variant
from clusters.reference.node.runtime.concurrency import all_of
from clusters.reference.node.topology.logical import LOGICAL, lives
from clusters.reference.node.tx.primary_client import Ask
from clusters.reference.node.wire.messages import AskLog, LogReply

ASK_TIMEOUT_S = 0.5  # for a holder to tell of its log
ASKED_TIMES = 4  # before a reset goes on without a holder that this node does not reach
AGAIN_S = 0.1
AGAIN_MOST_S = 2.0

Propose = Callable[[Invoke], Awaitable[bool]]


class _Try:
    """What the tries to begin the generation behind ``generation`` have come to."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.silent: dict[str, int] = {}  # how often a holder has not answered in turn
        self.causes: dict[str, None] = {}  # that were told
        self.again_s, self.delay_s = 0.0, AGAIN_S


class Resets:
    """Resets partitions; a reset that can't be done yet is to be asked for again."""

    def __init__(
        self,
        *,
        view: View,
        variant: Variant,
        leases: LeaseTable,
        connected: Callable[[], tuple[str, ...]],
        ask: Ask,
        propose: Propose,
        event_log: events.EventLog,
    ) -> None:
        """``connected``: the nodes that this one reaches; ``ask`` reaches them, and this one."""
        self._view, self._variant, self._leases = view, variant, leases
        self._connected, self._ask = connected, ask
        self._propose, self._events = propose, event_log
        self._tries: dict[int, _Try] = {}

    def cause(self, number: int) -> str:
        """Why the last try to reset partition ``number`` came to nothing."""
        tries = self._tries.get(number)
        return next(reversed(tries.causes), "") if tries is not None else ""

    def topology_changed(self) -> None:
        """A node that has come may have what was missing."""
        for each in self._tries.values():
            each.again_s, each.delay_s = 0.0, AGAIN_S

    async def reset(
        self,
        state: PartitionState,
        alive: tuple[str, ...],
        judged: Versioned | None,
        *,
        fresh: tuple[str, ...] | None = None,
        anew: bool = False,
    ) -> bool:
        """Begin the next generation of a partition that has lost its majority by the topology
        ``judged``, of the nodes ``alive``; whether nothing is left to do about it. ``fresh``, of a
        reset that an operator asks for: the nodes that are to have the partition, too, and of which
        with ``anew`` the first begins it anew where no copy is left.
        """
        number = numbers(self._view).of(state.partition)
        holders = survivors.holders(state, alive)
        forced = state.pending.nodes if state.pending and state.pending.force else ()
        # One that was given to a copy that is there goes on by itself.
        goes_on = any(node in holders for node in forced)
        if number is None or (goes_on and not given_to_lost_copy(state, lives(self._view))):
            return True
        tries = self._tries.get(number)
        if tries is None or tries.generation != state.generation:
            tries = self._tries[number] = _Try(state.generation)
        if asyncio.get_running_loop().time() < tries.again_s:
            return False
        ended = fence(self._leases, number)
        if ended is None:
            reached("reset waits for the end of a lease")
            return False
        logs = await self._logs(number, tries, holders)
        if logs is None:
            return False
        # A copy that is blank, or behind in its generation, can't be compared.
        wholes = {node: log for node, log in logs.items() if log.whole}
        chosen = survivors.chosen(wholes.items())
        # Not where one that was passed over may have a copy.
        gone = len(logs) == len(holders) and all(log.is_blank for log in logs.values())
        if chosen is None and gone and anew and (*holders, *(fresh or ())):
            reached("partition without any copy begun anew")
            chosen = (*holders, *(fresh or ()))[0]
        if chosen is None:
            reached("reset waits for a whole copy")
            text = f"no copy on {' '.join(holders) or 'any node'} is whole"
            self._put_off(number, tries, text)
            return False
        conditions, operations = ended
        whole = tuple(sorted(wholes))
        transition = transitions.reset(
            self._variant,
            state,
            chosen=chosen,
            survivors=whole,
            members=tuple(
                sorted({chosen, *survivors.members(state, alive, whole), *(fresh or ())})
            ),
            member=wholes[chosen].member if chosen in wholes else "",
            manual=fresh is not None,
            # The majority is judged by this topology, and no node has come back since.
            conditions=(unchanged(LOGICAL, judged), *conditions),
            operations=operations,
        )
        if not await self._propose(transition.invoke):
            return False
        if fresh is None:
            reached("partition reset")
        else:
            reached("partition reset by an operator")
        self._tries.pop(number, None)
        text = f"reset to {chosen}, of {' '.join(whole) or 'no copy'}"
        generation = state.generation + 1
        kind = events.REBALANCE_STAGE if fresh is None else events.RESET_ASKED
        self._events.add(kind, text, partition=number, generation=generation)
        return True

    async def _logs(
        self, number: int, tries: _Try, holders: tuple[str, ...]
    ) -> dict[str, LogReply] | None:
        """The logs of ``holders``; ``None`` while one that may answer yet has not: a
        holder that is out of this node's reach is not alive.
        """

        async def one(node: str) -> object:
            return await self._ask(node, AskLog(number), ASK_TIMEOUT_S)

        answers = await all_of(one(node) for node in holders)
        found = {n: a for n, a in zip(holders, answers, strict=True) if isinstance(a, LogReply)}
        there = self._connected()
        for node in holders:
            tries.silent[node] = 0 if node in found else tries.silent.get(node, 0) + 1
        silent = [node for node in holders if tries.silent[node]]
        waited = [n for n in silent if n in there or tries.silent[n] < ASKED_TIMES]
        if any(tries.silent[node] >= ASKED_TIMES for node in waited):
            reached("reset waits for a holder in reach")
            text = f"{' '.join(waited)} may have more, and does not answer"
            self._put_off(number, tries, text)
        return None if waited else found

    def _put_off(self, number: int, tries: _Try, cause: str) -> None:
        """Try again later and later, and tell each cause once."""
        tries.again_s = asyncio.get_running_loop().time() + tries.delay_s
        tries.delay_s = min(2 * tries.delay_s, AGAIN_MOST_S)
        if cause not in tries.causes:
            tries.causes[cause] = None
            text, generation = f"reset waits: {cause}", tries.generation
            self._events.add(events.REBALANCE_STAGE, text, partition=number, generation=generation)


def fence(
    leases: LeaseTable, number: int
) -> tuple[tuple[Condition, ...], tuple[Operation, ...]] | None:
    """What keeps the primary of partition ``number`` from acting beside a reset: the conditions on
    it, and the operation that ends its grant. ``None`` while its lease may hold.
    """
    held = leases.grants.get(number)
    conditions = superseding(leases, number, held)
    if held is None or held.released:
        return conditions, ()
    if not leases.expired(held.node, held.origin) and not planted("reset-unfenced"):
        return None
    return conditions, (Operation(f"{PRIMARY}{number}", encode(released(held))),)
