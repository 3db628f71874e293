"""Which link of a chain of assignments a partition starts from after a restart (IEP-131, phase 2).

A chain has a link for the last graceful change and one for each reset since then. After all of its
last link was down, the copies of an earlier link may be the better ones: those of a reset without
writes after it hold nothing of the user's that the others lack. What decides is the last link
with user inputs: what clients wrote in the generation that the link's reset began.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from clusters.reference.node.raft.configuration import majority
from clusters.reference.node.rebalance.keys import Chain, PartitionState
from clusters.reference.node.wire.messages import StartReply


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Start from the link at ``place``, with the copies of ``nodes``: those of no later link.
    ``answered`` are those of them that are there, with the data of the link.
    """

    place: int
    nodes: tuple[str, ...]
    answered: tuple[str, ...]

    @property
    def majority(self) -> bool:
        """Whether enough of them are there to begin."""
        return len(self.answered) >= majority(self.nodes)


def nodes_of(chain: Chain, place: int) -> tuple[str, ...]:
    """The nodes whose last link is the one at ``place``."""
    return tuple(node for node in chain.links[place].nodes if chain.last_link(node) == place)


def has_user_inputs(chain: Chain, place: int, reply: StartReply) -> bool:
    """Whether the copy of ``reply`` holds what clients wrote since the reset of the link."""
    return reply.user_index > 0 and reply.user_generation >= chain.links[place].generation


def is_alive(state: PartitionState, reply: StartReply) -> bool:
    """Whether the copy of ``reply`` lives: its replica runs as a voter, and is not of before the
    stable assignments.
    """
    link = state.chain.links[-1] if state.chain is not None and state.chain.links else None
    behind = link is not None and (reply.generation, reply.index) < (link.generation, link.index)
    return reply.alive and not behind


def living(
    state: PartitionState, replies: Mapping[str, StartReply], here: str | None = None
) -> tuple[str, ...] | None:
    """The nodes of stable, or of pending, where one of them lives and a majority of that set is
    there, with ``here``, the node that asks, if it is of it: the partition goes on by them.
    """
    for held in (state.stable, state.pending):
        nodes = () if held is None else held.nodes
        told = [replies[node] for node in nodes if node in replies]
        there = len(told) + (here in nodes)
        if any(is_alive(state, reply) for reply in told) and there >= majority(nodes):
            return nodes
    return None


def found(chain: Chain, replies: Mapping[str, StartReply]) -> Start | None:
    """The link to start from, by what the nodes of the chain have answered; ``None`` while one
    that may know better has not. A first link, which no reset began, needs no inputs.
    """
    for place in range(len(chain.links) - 1, 0, -1):
        nodes = nodes_of(chain, place)
        told = [replies[node] for node in nodes if node in replies]
        if any(has_user_inputs(chain, place, reply) for reply in told):
            return _start(chain, place, replies)
        # An unreachable one is unknown, not a no.
        if len(told) < len(nodes):
            return None
    # Copies that were erased meanwhile, as those of an earlier link are once a later one serves,
    # hold nothing: then the first link of which enough are whole.
    for place in range(len(chain.links)):
        start = _start(chain, place, replies)
        missing = [node for node in start.nodes if node not in replies]
        if start.nodes and (start.majority or missing):
            return start
    return None


def _start(chain: Chain, place: int, replies: Mapping[str, StartReply]) -> Start:
    nodes, link = nodes_of(chain, place), chain.links[place]
    whole = tuple(
        node
        for node in nodes
        if node in replies
        and replies[node].whole
        and (replies[node].generation, replies[node].index) >= (link.generation, link.index)
    )
    return Start(place=place, nodes=nodes, answered=whole)
