"""The work that steps of a member leave to its caller, until the next ``Ready`` takes it."""

from __future__ import annotations

from clusters.reference.node.raft.types import (
    Chunk,
    Entry,
    HardState,
    Mark,
    Message,
    RaftEvent,
    Ready,
)


class Outbox:
    """Messages, chunks and events in the order in which steps left them. ``hard_state`` and
    ``installed`` are present where they are to be written.
    """

    def __init__(self) -> None:
        self.hard_state: HardState | None = None
        self.installed: Mark | None = None
        self.send_now: list[tuple[str, Message]] = []
        self.send_durable: list[tuple[str, Message]] = []
        self.send_chunks: list[tuple[str, Chunk]] = []
        self.chunks: list[Chunk] = []
        self.events: list[RaftEvent] = []

    def __bool__(self) -> bool:
        # The most likely reason comes first: this is asked at every turn.
        return bool(
            self.send_durable
            or self.send_now
            or self.hard_state is not None
            or self.send_chunks
            or self.chunks
            or self.installed is not None
            or self.events
        )

    def take(self, entries: tuple[Entry, ...], committed: tuple[Entry, ...]) -> Ready:
        """Everything, with ``entries`` to write and ``committed`` ones to apply."""
        ready = Ready(
            hard_state=self.hard_state,
            entries=entries,
            send_now=tuple(self.send_now),
            send_durable=tuple(self.send_durable),
            committed=committed,
            installed=self.installed,
            send_chunks=tuple(self.send_chunks),
            chunks=tuple(self.chunks),
            events=tuple(self.events),
        )
        self.hard_state = self.installed = None
        for taken in (self.send_now, self.send_durable, self.send_chunks, self.chunks, self.events):
            taken.clear()
        return ready
