"""The adversary in the simulation: it sees every operation of disks and every message, and acts.

Crash points end a process in the middle of an operation. Choices take messages out of their way. A
message without an answer (raft, renewals of leases) is like a datagram: it may be lost, come
twice or late by itself. All others are frames of a stream: to drop one resets its connection, to
hold one holds all behind it.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from functools import partial

import attrs

from clusters.providers.sim.loop import later, true_loop
from clusters.providers.sim.message_classes import Part, joined, parts_of
from clusters.providers.sim.network import SimConnection
from clusters.providers.sim.simulated_links import AIMED_S
from harness.clock import substream
from harness.protocols.cluster import Link
from harness.protocols.crash_points import (
    Action,
    Choice,
    ChoiceLook,
    CrashPoint,
    Operation,
    When,
)
from harness.protocols.moments import Happening

LATE_S = (0.0, 0.5)  # how much later a copy, or a message that others overtake, comes
# Until what a program does at once is done, and past what an aimed kill takes back.
_BEHIND_S = 2 * AIMED_S
_KEPT = 50_000  # messages that a choice holds at most; beyond it they are lost, as by a full queue


# Equal by identity: two traps may wait for the same point.
@attrs.define(eq=False)
class _Trap:
    """A crash that waits for its point on one of ``nodes``."""

    nodes: tuple[str, ...]
    point: CrashPoint
    claim: Callable[[str], bool]
    hit: asyncio.Future[str]
    left: int


@attrs.define(eq=False)
class _Chosen:
    """A choice in force."""

    choice: Choice
    taken: int = 0
    over: bool = False  # its moment has come, or its count is full
    held: list[Callable[[], None]] = attrs.field(factory=list)
    blocked: dict[SimConnection, None] = attrs.field(factory=dict)

    def takes(self, link: Link, part: Part) -> bool:
        choice = self.choice
        return (
            not self.over
            and part.kind is choice.messages
            and link in choice.links
            and (choice.partition is None or part.partition == choice.partition)
            and (part.metastorage or not choice.metastorage)
        )


class Adversary:
    """All traps and choices of one simulation. ``crash`` ends the program of a node at once."""

    def __init__(self, seed: int, crash: Callable[[str], None]) -> None:
        self._crash = crash
        self._traps: list[_Trap] = []
        self._chosen: dict[Choice, _Chosen] = {}
        self._stream = substream(seed, "sim-chosen")
        self._census: dict[str, Counter[str]] | None = None  # by node
        self._census_until_s = 0.0

    @property
    def idle(self) -> bool:
        """Whether nothing waits for a message and nothing is chosen."""
        return not self._traps and not self._chosen and self._census is None

    # Crash points.

    async def crash_at(
        self, nodes: tuple[str, ...], point: CrashPoint, claim: Callable[[str], bool]
    ) -> str:
        """See ``harness.protocols.crash_points.CrashesAtPoints``."""
        hit: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        trap = _Trap(nodes=nodes, point=point, claim=claim, hit=hit, left=point.nth)
        self._traps.append(trap)
        try:
            return await hit
        finally:
            self._traps.remove(trap)

    def operation(
        self, node: str, operation: Operation, when: When, effect: Callable[[], None]
    ) -> None:
        """The disk of ``node`` is at ``when`` of ``operation``. Where its program ends here,
        ``effect`` happens before that.
        """
        if self._census is not None and when is When.BEFORE:
            self._count(node, operation, ())
        if self._traps and self._sprung(node, operation, when, ()):
            effect()
            self._crash(node)

    def _sprung(self, node: str, operation: Operation, when: When, parts: tuple[Part, ...]) -> bool:
        for trap in self._traps:
            point = trap.point
            if point.at is not operation or node not in trap.nodes or trap.hit.done():
                continue
            if point.messages is not None and all(p.kind is not point.messages for p in parts):
                continue
            # Each operation passes all three places, and counts once.
            if when is When.BEFORE and trap.left:
                trap.left -= 1
            if trap.left or point.when is not when:
                continue
            if not trap.claim(node):
                # It may not be struck now, as under another fault: the next that comes here may be.
                trap.left = 1
                continue
            trap.hit.set_result(node)
            return True
        return False

    # Messages.

    def sending(self, connection: SimConnection, payload: bytes) -> bytes | None:
        """``payload`` is to leave by ``connection``; return what of it goes its usual way. Where
        the sender's program ends here the connection is closed on return.
        """
        parts = parts_of(payload)
        here = connection.link[0]
        self._count(here, Operation.SEND, parts)
        if self._traps:
            if self._sprung(here, Operation.SEND, When.BEFORE, parts):
                self._crash(here)
                return None
            if self._sprung(here, Operation.SEND, When.INSTEAD, parts):
                connection.reset()
                self._crash(here)
                return None
            if self._sprung(here, Operation.SEND, When.AFTER, parts):
                # Behind the push of this frame, which the caller is about to do.
                later(_BEHIND_S, partial(self._crash, here))
        return self._sift(connection, payload, parts) if self._chosen else payload

    def receiving(self, connection: SimConnection, payload: bytes) -> bool:
        """``payload`` arrives at this end; whether it is given to the program."""
        parts = parts_of(payload)
        here = connection.link[0]
        self._count(here, Operation.RECEIVE, parts)
        if self._traps:
            if self._sprung(here, Operation.RECEIVE, When.BEFORE, parts):
                self._crash(here)
                return False
            if self._sprung(here, Operation.RECEIVE, When.INSTEAD, parts):
                connection.reset()
                self._crash(here)
                return False
            if self._sprung(here, Operation.RECEIVE, When.AFTER, parts):
                # The program takes it within this instant, and does at once what it does at once.
                later(_BEHIND_S, partial(self._crash, here))
        return True

    def _count(self, node: str, operation: Operation, parts: tuple[Part, ...]) -> None:
        if self._census is None or true_loop().true_time() > self._census_until_s:
            return
        found = self._census.setdefault(node, Counter())
        if not parts:
            found[operation.value] += 1
        for kind in sorted({part.kind for part in parts if part.kind is not None}):
            found[f"{operation.value} {kind.value}"] += 1

    def begin_census(self, span_s: float) -> None:
        """Count the points of every node from now on, for ``span_s``. Idempotent."""
        if self._census is None:
            self._census, self._census_until_s = {}, true_loop().true_time() + span_s

    def points(self, node: str) -> dict[str, int]:
        """How many points of each kind ``node`` has come to in the census."""
        return dict((self._census or {}).get(node, {}))

    def _sift(
        self, connection: SimConnection, payload: bytes, parts: tuple[Part, ...]
    ) -> bytes | None:
        kept: list[Part] = []
        for part in parts:
            if self._take(connection, part):
                kept.append(part)
        # To drop a frame of a stream has reset its connection: the rest goes nowhere either.
        if not connection.alive:
            return None
        return payload if len(kept) == len(parts) else joined(kept)

    def _take(self, connection: SimConnection, part: Part) -> bool:
        """Do what is chosen for ``part``; whether it goes on its usual way."""
        for chosen in self._chosen.values():
            if not chosen.takes(connection.link, part):
                continue
            choice = chosen.choice
            if choice.share is not None and self._stream.random() >= choice.share:
                continue
            chosen.taken += 1
            chosen.over = choice.count is not None and chosen.taken >= choice.count
            deliver = connection.by_itself(part.payload)
            match choice.action:
                case Action.DROP if not part.datagram:
                    connection.reset()
                case Action.DROP:
                    pass
                case Action.HOLD if not part.datagram:
                    connection.block()
                    chosen.blocked[connection] = None
                    return True
                case Action.HOLD:
                    if len(chosen.held) < _KEPT:
                        chosen.held.append(deliver)
                case Action.DOUBLE:
                    later(self._late_s(self._stream), deliver)
                    return True
                case Action.REORDER:
                    later(self._late_s(self._stream), deliver)
            return False
        return True

    @staticmethod
    def _late_s(stream: random.Random) -> float:
        return stream.uniform(*LATE_S)

    def choose(self, choice: Choice) -> None:
        """See ``harness.protocols.crash_points.ChoosesMessages``."""
        self._chosen.setdefault(choice, _Chosen(choice))

    def unchoose(self, choice: Choice) -> None:
        """See ``harness.protocols.crash_points.ChoosesMessages``."""
        chosen = self._chosen.pop(choice, None)
        if chosen is not None:
            _let_go(chosen)

    def look(self, choice: Choice) -> ChoiceLook:
        """See ``harness.protocols.crash_points.ChoosesMessages``."""
        chosen = self._chosen.get(choice)
        tried = Part(
            kind=choice.messages, partition=choice.partition, metastorage=choice.metastorage
        )
        if chosen is None:
            # Whatever is in force may choose it, not this choice alone.
            link = choice.links[0]
            others = any(other.takes(link, tried) for other in self._chosen.values())
            return ChoiceLook(chosen=others, taken=0, held=0)
        takes = all(chosen.takes(link, tried) for link in choice.links)
        held = len(chosen.held) + len(chosen.blocked)
        # With a count that is full, or after its moment, it has done all that it was to do.
        return ChoiceLook(chosen=takes or chosen.over, taken=chosen.taken, held=held)

    def happened(self, happening: Happening) -> None:
        """A moment has come: choices that waited for it are over, and let go what they hold."""
        for chosen in self._chosen.values():
            if chosen.choice.until is happening.moment and not chosen.over:
                chosen.over = True
                # As an event of the world: the node that came to the moment is in its step.
                later(AIMED_S, partial(_let_go, chosen))


def _let_go(chosen: _Chosen) -> None:
    held, chosen.held = chosen.held, []
    for deliver in held:
        deliver()
    blocked, chosen.blocked = chosen.blocked, {}
    for connection in blocked:
        connection.unblock()
