"""What a leader knows of one follower, and how fast it may send to it."""

from __future__ import annotations

from collections import deque


class Progress:
    """One follower's replication, seen by a leader.

    While ``probing`` is off, appends are sent ahead of their answers (pipelined) up to the limit
    in flight, and ``next_index`` runs ahead. A refusal turns probing on: one message at a time
    until the logs are found to match.
    """

    __slots__ = ("heard_tick", "inflight", "match_index", "next_index", "probing", "waiting")

    def __init__(self, next_index: int) -> None:
        self.match_index = 0
        self.next_index = next_index
        self.probing = False
        self.waiting = False
        self.inflight: deque[int] = deque()
        self.heard_tick = -1

    def may_send(self, max_inflight: int) -> bool:
        """Whether another message with entries may leave now."""
        return not self.waiting if self.probing else len(self.inflight) < max_inflight

    def sent(self, last_index: int) -> None:
        """A message with entries up to ``last_index`` was sent."""
        if self.probing:
            self.waiting = True
            return
        self.inflight.append(last_index)
        self.next_index = last_index + 1

    def accepted(self, match_index: int) -> None:
        """The follower has everything up to ``match_index`` on its disk."""
        self.match_index = max(self.match_index, match_index)
        while self.inflight and self.inflight[0] <= match_index:
            self.inflight.popleft()
        if match_index >= self.next_index - 1:
            self.next_index = match_index + 1
            self.probing = self.waiting = False

    def refused(self, previous_index: int, hint_index: int) -> None:
        """The follower has no such entry at ``previous_index``; go back to ``hint_index``."""
        stale = (
            previous_index != self.next_index - 1
            if self.probing
            else previous_index <= self.match_index
        )
        if stale:
            return
        self.next_index = max(min(hint_index + 1, previous_index), self.match_index + 1)
        self.probing, self.waiting = True, False
        self.inflight.clear()
