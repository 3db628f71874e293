"""A node's part in resets and in starts behind them: which of its copies start, wait or go, and the
generations that it begins.

A copy that was on the disk when the node started waits, with phase 2, while other copies may be the
better ones: until the group lives elsewhere, or the leader of metastorage has unwound the chain
(IEP-131, "Start of the node"). A copy whose log is not that of its group's generation is erased.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial

from clusters.reference.node import events
from clusters.reference.node.availability import chain_unwind
from clusters.reference.node.bugs import planted, switch_on
from clusters.reference.node.groups.host import RaftHost
from clusters.reference.node.markers import reached
from clusters.reference.node.metastorage.metastorage import View
from clusters.reference.node.raft import ChangeRefused, Diverged
from clusters.reference.node.rebalance import decisions, keys
from clusters.reference.node.rebalance.keys import PartitionId, PartitionState
from clusters.reference.node.replicas.manager import ReplicaManager
from clusters.reference.node.runtime.concurrency import all_of
from clusters.reference.node.tx.primary_client import Ask
from clusters.reference.node.wire.messages import AskStart, StartReply
from clusters.reference.node.wire.reports import ResetReport

ASK_EVERY_S = 0.5  # whether a partition is alive, of a copy whose start is not decided
ASK_TIMEOUT_S = 0.5

# Begins work for a partition, unless other work for it goes on; whether it has begun.
Begin = Callable[[int, Callable[[], Coroutine[None, None, object]]], bool]

log = logging.getLogger("node.availability")


class StartDecisions:
    """The decisions about the copies of one node."""

    def __init__(
        self,
        *,
        node: str,
        phase2: bool,
        view: View,
        lives: Callable[[], Mapping[str, str]],
        host: RaftHost,
        replicas: ReplicaManager,
        ask: Ask,
        event_log: events.EventLog,
        begin: Begin,
        place: Callable[[int, PartitionId], object],
    ) -> None:
        """``place`` starts a replica that is to run, and is called once that is decided."""
        self._node, self._phase2, self._view, self._lives = node, phase2, view, lives
        self._host, self._replicas, self._ask = host, replicas, ask
        self._events, self._begin, self._place = event_log, begin, place
        self._copies: dict[int, None] | None = None  # on the disk when this node started
        self._waiting: dict[int, PartitionId] = {}  # copies of which the start is not decided
        self._asked_s: dict[int, float] = {}
        self._diverged: dict[int, Diverged] = {}
        self._forced: dict[int, PartitionId] = {}  # that a reset has given to this node alone
        self._of_later_links: dict[int, PartitionId] = {}  # copies that are to be erased

    def waits(self, number: int) -> bool:
        """Whether the copy here may neither start nor go yet."""
        return number in self._waiting or number in self._of_later_links

    def undecided(self, number: int, partition: PartitionId, state: PartitionState) -> bool:
        """Whether the copy here is from before this node's start, and other copies may be better:
        until that is known it neither starts nor goes.
        """
        if self._copies is None:
            self._copies = dict.fromkeys(self._replicas.left_behind())
            if planted("erased-at-every-start"):
                for left in self._copies:
                    self._begin(left, partial(self._replicas.erase, left))
        if number in self._of_later_links:
            return True
        several = state.chain is not None and len(state.chain.links) > 1
        if not self._phase2 or number not in self._copies:
            return False
        # A reset has decided for the nodes that it gave the partition to.
        pending = state.pending
        given = pending is not None and pending.force and self._node in pending.nodes
        if several and not given:
            if number not in self._waiting:
                reached("start of a copy behind several links")
            self._waiting[number] = partition
            return True
        del self._copies[number]
        waited = self._waiting.pop(number, None) is not None
        # This node may be told of the chain only once it was unwound.
        before = self._replicas.start_of(number).generation < state.generation
        single = state.chain is not None and not several
        if single and state.stable is not None and (waited or before):
            self._unwound(number, partition, state)
        return number in self._of_later_links

    def _unwound(self, number: int, partition: PartitionId, state: PartitionState) -> None:
        """The chain was unwound to one link: the copy here is of it, or goes."""
        nodes = () if state.stable is None else state.stable.nodes
        # One that a change leads to may have a vote in it by now.
        here = self._node in decisions.wanted(state) | frozenset(nodes)
        decision = events.STARTS if here else events.ERASES
        self._events.add(
            events.START_DECISION,
            f"{decision} its replica: the chain was unwound, to the link of {' '.join(nodes)}",
            partition=number,
            generation=state.generation,
            decision=decision,
        )
        if here:
            reached("copy of the link that was found starts")
        else:
            reached("copy of a later link erased")
            self._of_later_links[number] = partition

    def placed(self, number: int, partition: PartitionId, state: PartitionState) -> None:
        """``state`` is what metastorage says of the partition now."""
        if state.pending is not None and state.pending.force and self._node in state.pending.nodes:
            self._forced[number] = partition
        else:
            self._forced.pop(number, None)

    def diverged(self, number: int, event: Diverged) -> None:
        """The replica's data is not of its group's log."""
        if not planted("diverged-kept"):
            self._diverged[number] = event

    def tick(self) -> None:
        """Go on with what is not decided or done yet; once a tick."""
        now_s = asyncio.get_running_loop().time()
        for number, waits in list(self._waiting.items()):
            due = now_s >= self._asked_s.get(number, 0.0)
            if due and self._begin(number, partial(self._ask_aliveness, number, waits)):
                self._asked_s[number] = now_s + ASK_EVERY_S
        for number, forced in list(self._forced.items()):
            self._begin_generation(number, forced)
        for number, late in list(self._of_later_links.items()):
            # Not dropped where other work goes on: the copy would start as what it was.
            self._begin(number, partial(self._erase_of_later_link, number, late))
        for number, event in list(self._diverged.items()):
            if self._begin(number, partial(self._erase_diverged, number, event)):
                del self._diverged[number]

    async def _ask_aliveness(self, number: int, partition: PartitionId) -> None:
        """Start as usual if one of stable or of pending lives and a majority of that set is there:
        the group has what counts, and was not restarted. The leader of metastorage counts alike,
        and unwinds nothing then. Each node is asked once, and the first answers that tell are
        enough.
        """
        state, lives = keys.read(self._view, partition), self._lives()
        replies: dict[str, StartReply] = {}

        async def one(node: str) -> bool:
            answer = await self._ask(node, AskStart(number), ASK_TIMEOUT_S)
            if isinstance(answer, StartReply):
                replies[node] = answer
            return chain_unwind.living(state, replies, self._node) is not None

        sets = (state.stable, state.pending)
        nodes = sorted({node for held in sets if held is not None for node in held.nodes})
        others = [node for node in nodes if node != self._node and node in lives]
        await all_of([one(node) for node in others], enough=bool)
        living = chain_unwind.living(state, replies, self._node)
        if living is None or number not in self._waiting:
            return
        reached("start of a copy as usual")
        del self._waiting[number]
        if self._copies is not None:
            self._copies.pop(number, None)
        text = f"starts as usual: a majority lives, of {' '.join(living)}"
        self._events.add(events.START_DECISION, text, partition=number, decision=events.STARTS)
        self._place(number, partition)

    def _begin_generation(self, number: int, partition: PartitionId) -> None:
        """Begin the generation that a reset has given to this node alone."""
        replica, state = self._replicas.replicas.get(number), keys.read(self._view, partition)
        pending = state.pending
        if replica is None or pending is None or state.generation <= replica.group.generation:
            return
        group = replica.group
        if pending.member and pending.member != group.raft.node:
            # What was asked for its log was another copy: this one would begin without what that
            # had. The leader of metastorage gives the partition to the next one.
            reached("generation not begun by a later copy")
            return
        try:
            begun = self._host.begin_generation(group, state.generation)
        except ChangeRefused as error:
            # Tried again with the next tick, until the reset is another one's.
            reached("forced generation to be tried again")
            log.debug("partition %d: not now: %s", number, error)
            return
        text = f"generation {begun.number} begins behind entry {begun.base_index}"
        self._events.add(
            events.PARTITION_RESET,
            f"{text}, of the copies on {' '.join(pending.survivors)}",
            partition=number,
            term=group.raft.term,
            generation=begun.number,
            reset=ResetReport(
                begun.number, begun.previous, begun.base_index, begun.base_term, pending.survivors
            ),
        )
        if pending.manual:
            # Told here as well as by the leader of metastorage, which may be lost with its events.
            text = f"an operator has asked for the reset to {self._node}"
            self._events.add(
                events.RESET_ASKED, text, partition=number, generation=state.generation
            )

    async def _erase_of_later_link(self, number: int, partition: PartitionId) -> None:
        if number in self._of_later_links:
            await self._replicas.erase(number)
            del self._of_later_links[number]
            self._place(number, partition)

    async def _erase_diverged(self, number: int, event: Diverged) -> None:
        """Erase a replica whose data is not of the group's log: it begins anew, as another
        member.
        """
        reached("diverged replica erased")
        if planted("erased-copy-votes"):
            switch_on(("destroyed-replica-votes",))  # in this task alone
        await self._replicas.erase(number)
        text = (
            "erases its replica: it is not of the group's log, whose generation "
            f"{event.generation} lacks entries {event.shared_index + 1} to {event.applied_index}"
        )
        self._events.add(
            events.START_DECISION,
            text,
            partition=number,
            generation=event.generation,
            decision=events.ERASES,
        )
