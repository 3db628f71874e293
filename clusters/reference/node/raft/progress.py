"""What a leader knows of one follower, and how fast it may send to it."""

from __future__ import annotations

from collections import deque

from clusters.reference.node.bugs import planted
from clusters.reference.node.raft.types import Mark


class Transfer:
    """A snapshot on its way to a follower: one chunk at a time, each answered by where to go on."""

    __slots__ = ("mark", "offset", "sent_tick")

    def __init__(self, mark: Mark) -> None:
        self.mark, self.offset = mark, 0
        self.sent_tick: int | None = None  # of the chunk that waits for its answer

    def due(self, now: int, patience_ticks: int) -> bool:
        """Whether to send the chunk at ``offset``: it was not yet, or no answer came."""
        return self.sent_tick is None or now - self.sent_tick >= patience_ticks

    def answered(self, offset: int) -> None:
        """The follower has the bytes before ``offset``: fewer than before if it lost them."""
        if offset != self.offset:
            self.offset, self.sent_tick = offset, None


class Progress:
    """One follower's replication, seen by a leader.

    While ``probing`` is off, appends are sent ahead of their answers (pipelined) up to the limit
    in flight, and ``next_index`` runs ahead. A refusal turns probing on: one message at a time
    until the logs are found to match. With a ``transfer`` no entries are sent at all.

    ``answers``: it has answered this leader since its node was last out of reach. ``paired``: its
    node vouches for it, so that a follower with nothing to learn is sent nothing. ``lost``: how
    often in a row it said that it lacks what it had said to have: it is sent that never again,
    since who forgets what counted may have voted on it, too.
    """

    __slots__ = (
        "answers",
        "commit_index",
        "heard_tick",
        "inflight",
        "lost",
        "match_index",
        "next_index",
        "paired",
        "probing",
        "transfer",
        "waiting",
    )

    def __init__(self, next_index: int) -> None:
        self.match_index = self.commit_index = self.lost = 0
        self.answers = self.paired = False
        self.next_index = next_index
        self.probing = False
        self.waiting = False
        self.inflight: deque[int] = deque()
        self.heard_tick = -1
        self.transfer: Transfer | None = None

    def settled(self, last_index: int, commit: int) -> bool:
        """Whether it has everything, and knows what of it is committed."""
        done = self.match_index == last_index and self.commit_index >= commit
        return done and self.transfer is None

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
        self.lost = 0
        while self.inflight and self.inflight[0] <= match_index:
            self.inflight.popleft()
        if match_index >= self.next_index - 1:
            self.next_index = match_index + 1
            self.probing = self.waiting = False
            self.transfer = None

    def refused(self, previous_index: int, hint_index: int) -> None:
        """The follower has no such entry at ``previous_index``; go back to ``hint_index``."""
        if hint_index < self.match_index:
            self.lost += 1  # once it may be late: said before what was accepted since
        stale = (
            previous_index != self.next_index - 1
            if self.probing
            else previous_index <= self.match_index
        )
        if stale or self.transfer is not None or planted("laggard-left-behind"):
            return
        asked = self.next_index if self.probing else None
        self.next_index = max(min(hint_index + 1, previous_index), self.match_index + 1)
        # With nothing lower to try the next heartbeat asks again. To answer each answer would never
        # end, and every heartbeat would begin one more such exchange.
        self.probing, self.waiting = True, self.next_index == asked
        self.inflight.clear()

    def begin_transfer(self, mark: Mark) -> None:
        """The log no longer has what the follower lacks: send the snapshot at ``mark``."""
        if self.transfer is None or self.transfer.mark.index < mark.index:
            self.transfer = Transfer(mark)
            self.probing, self.waiting = True, False
            self.inflight.clear()
