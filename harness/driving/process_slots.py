"""The slots of a driver's logical processes: idle slots, their nodes, their connections."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Callable, Iterable

import attrs

from harness.protocols.client import Client, node_of

CLOSE_LIMIT_S = 1.0
BACKOFF_FIRST_S = 0.05  # a node that refuses connections must not fill the history with refusals
BACKOFF_MOST_S = 1.0  # a node that is back has its clients again within this time


@attrs.define(eq=False)
class Slot:
    """A place for logical processes, one after the other: an ``info`` ends ``process``.

    ``node`` is the one that the process connects to; empty before its first connection.
    ``losses`` counts connections lost in a row; ``stuck`` counts calls that were cancelled and have
    not ended yet; ``parked``: the slot is out of service until one of them ends.
    """

    number: int
    process: int
    node: str = ""
    client: Client | None = None
    losses: int = 0
    stuck: int = 0
    parked: bool = False


class Slots:
    """The slots of one driver. Used on one running loop."""

    def __init__(
        self,
        numbers: Iterable[int],
        *,
        concurrency: int,
        nodes: tuple[str, ...],
        note: Callable[[Slot, str], None],
    ) -> None:
        """``concurrency`` counts the slots of the whole run, of which ``numbers`` (ascending) are
        here. ``nodes``, which may change, are those that clients connect to. ``note`` receives the
        exceptions that clients raise when they are closed.
        """
        self._concurrency, self.nodes, self._note = concurrency, nodes, note
        self._slots = {number: Slot(number=number, process=number) for number in numbers}
        # Side by side, ascending by number: asked for at every operation.
        self._idle_numbers = list(self._slots)
        self._idle_processes = list(self._slots)
        self._closing: dict[int, asyncio.Task[None]] = {}
        self._next_closing = 0

    @property
    def any_idle(self) -> bool:
        """Whether ``idle`` is not empty."""
        return bool(self._idle_numbers)

    @property
    def idle(self) -> tuple[int, ...]:
        """The processes that may begin an operation, ascending by slot."""
        return tuple(self._idle_processes)

    def take(self, process: int) -> Slot | None:
        """The slot of ``process``, no longer idle; ``None`` where it is not idle."""
        number = process % self._concurrency
        place = bisect_left(self._idle_numbers, number)
        # Not the number alone: a process that has ended may have an idle successor in its slot.
        if place == len(self._idle_processes) or self._idle_processes[place] != process:
            return None
        del self._idle_numbers[place]
        del self._idle_processes[place]
        return self._slots[number]

    def release(self, slot: Slot) -> None:
        """Mark ``slot`` idle again."""
        place = bisect_left(self._idle_numbers, slot.number)
        self._idle_numbers.insert(place, slot.number)
        self._idle_processes.insert(place, slot.process)

    def node(self, slot: Slot) -> str:
        """The node of the slot's process: every new process of a slot connects to the next of
        ``nodes``, and so does one whose connection is gone and whose node is none of them any more.
        A client that has moved to another node stays there.
        """
        self._follow(slot)
        if not slot.node or (slot.client is None and slot.node not in self.nodes):
            # Neighbouring slots begin at different nodes, and one slot gets around all of them.
            incarnation = slot.process // self._concurrency
            slot.node = self.nodes[(slot.number + incarnation) % len(self.nodes)]
        return slot.node

    def _follow(self, slot: Slot) -> None:
        """Set the slot's node to the one that its client has moved to, if it has."""
        if slot.client is not None and (node := node_of(slot.client)) is not None:
            slot.node = node

    def lost(self, slot: Slot) -> float:
        """Count one more lost connection of ``slot``; seconds to wait before the next."""
        delay_s = min(BACKOFF_FIRST_S * 2.0**slot.losses, BACKOFF_MOST_S)
        # Bounded, so that the power stays a number.
        slot.losses = min(slot.losses + 1, 16)
        return delay_s

    def end_process(self, slot: Slot) -> None:
        """A new process takes the place of the slot's, with a connection of its own."""
        # By the slots of the whole run: ``process % concurrency`` stays the slot's number, and no
        # other driver process comes to the same one.
        slot.process += self._concurrency
        self._follow(slot)
        # By number alone, the successor of a client that has moved could come to the very node that
        # its predecessor was at as it went.
        if slot.node in self.nodes:
            slot.node = self.nodes[(self.nodes.index(slot.node) + 1) % len(self.nodes)]
        else:
            slot.node = ""
        self.disconnect(slot)

    def disconnect(self, slot: Slot) -> None:
        """Close the slot's connection, if it has one, without waiting for it."""
        client, slot.client = slot.client, None
        if client is not None:
            number = self._next_closing
            self._next_closing += 1
            task = asyncio.get_running_loop().create_task(self._close(slot, client))
            # The loop itself holds its tasks weakly: without this one could be collected half-way.
            self._closing[number] = task
            task.add_done_callback(lambda _: self._closing.pop(number))

    def disconnect_all(self) -> list[asyncio.Task[None]]:
        """Close every connection; the tasks that close them."""
        for slot in self._slots.values():
            self.disconnect(slot)
        return list(self._closing.values())

    async def _close(self, slot: Slot, client: Client) -> None:
        try:
            async with asyncio.timeout(CLOSE_LIMIT_S):
                await client.close()
        except Exception as error:
            self._note(slot, f"close raised {type(error).__name__}: {error}")
