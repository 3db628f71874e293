"""From which copies a partition starts that serves nowhere after a restart: the part of the leader
of metastorage, which asks each node of the chain once, for its aliveness and for user inputs
together (IEP-131, "Chain unwind").
"""

from __future__ import annotations

from collections.abc import Mapping

from clusters.reference.node import events
from clusters.reference.node.availability import chain_unwind, survivors
from clusters.reference.node.availability.chain_unwind import Start
from clusters.reference.node.availability.resets import Propose, fence
from clusters.reference.node.markers import reached
from clusters.reference.node.metastorage.metastorage import Condition, Operation, View, unchanged
from clusters.reference.node.placement.lease_expiry import LeaseTable
from clusters.reference.node.rebalance import transitions
from clusters.reference.node.rebalance.driver import numbers
from clusters.reference.node.rebalance.keys import PartitionState
from clusters.reference.node.rebalance.transitions import Variant
from clusters.reference.node.runtime.concurrency import all_of
from clusters.reference.node.topology.logical import LOGICAL
from clusters.reference.node.tx.primary_client import Ask
from clusters.reference.node.wire.messages import AskStart, LogReply, StartReply

ASK_TIMEOUT_S = 0.5

Fence = tuple[tuple[Condition, ...], tuple[Operation, ...]]


class UnwindDriver:
    """Unwinds the chains of partitions."""

    def __init__(
        self,
        *,
        view: View,
        variant: Variant,
        leases: LeaseTable,
        ask: Ask,
        propose: Propose,
        event_log: events.EventLog,
    ) -> None:
        """``ask`` reaches other nodes, and this one."""
        self._view, self._variant, self._leases = view, variant, leases
        self._ask, self._propose, self._events = ask, propose, event_log

    def may_wait(self, state: PartitionState) -> bool:
        """Whether the partition may wait for its start: it does not where its chain is one link, a
        reset is under way, or a lease holds.
        """
        forced = state.pending is not None and state.pending.force
        if forced or state.chain is None or len(state.chain.links) < 2:
            return False
        number = numbers(self._view).of(state.partition)
        return number is not None and fence(self._leases, number) is not None

    async def unwind(self, state: PartitionState, there: tuple[str, ...]) -> None:
        """Start a partition that serves nowhere from the last link of its chain with user inputs,
        by what the nodes that are ``there`` answer: one invoke makes that link's copies stable, and
        the others follow.
        """
        number, chain = numbers(self._view).of(state.partition), state.chain
        ended = None if number is None else fence(self._leases, number)
        if number is None or chain is None or ended is None:
            return
        judged = self._view.get(LOGICAL)
        nodes = sorted({node for link in chain.links for node in link.nodes if node in there})

        async def one(node: str) -> object:
            return await self._ask(node, AskStart(number), ASK_TIMEOUT_S)

        answers = await all_of(one(node) for node in nodes)
        replies = {n: a for n, a in zip(nodes, answers, strict=True) if isinstance(a, StartReply)}
        # Where one lives the others that are there start as usual, each by itself.
        if chain_unwind.living(state, replies) is not None:
            return
        start = chain_unwind.found(chain, replies)
        if start is None or not start.majority:
            reached("chain unwind waits for nodes")
            return
        conditions, operations = ended
        conditions = (unchanged(LOGICAL, judged), *conditions)
        if start.place == len(chain.links) - 1 and state.stable is not None:
            # Nothing is restored: its copies go on in their generation.
            kept = transitions.unwound_to_stable(state, conditions=conditions)
            if await self._propose(kept.invoke):
                reached("chain kept to its last link")
            return
        await self._restore(number, state, start, replies, (conditions, operations))

    async def _restore(
        self,
        number: int,
        state: PartitionState,
        start: Start,
        replies: Mapping[str, StartReply],
        ended: Fence,
    ) -> None:
        logs = [
            (node, LogReply(reply.generation, reply.term, reply.index, reply.whole, reply.member))
            for node, reply in replies.items()
            if node in start.answered
        ]
        chosen = survivors.chosen(logs)
        if chosen is None or state.chain is None:
            return
        conditions, operations = ended
        transition = transitions.unwound(
            self._variant,
            state,
            chosen=chosen,
            nodes=start.nodes,
            survivors=start.answered,
            members=tuple(replies),
            member=replies[chosen].member,
            conditions=conditions,
            operations=operations,
        )
        if await self._propose(transition.invoke):
            reached("chain unwound")
            text = (
                f"starts from link {start.place} of {len(state.chain.links)}, "
                f"{' '.join(start.nodes)}, at {chosen}: no later one has user inputs"
            )
            generation = state.generation + 1
            self._events.add(events.RESTORED, text, partition=number, generation=generation)
