"""Raft members wired together in memory: disks that lose what was not finished, messages as a bag.

Every change is checked against the four safety properties of the paper's figure 3, so that a
scenario fails where the promise breaks and not where somebody notices.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from itertools import pairwise

from clusters.reference.node.raft import (
    Entry,
    HardState,
    Message,
    Raft,
    RaftConfig,
    Ready,
    Role,
)

ROUNDS_LIMIT = 2000


class Member:
    """One member with its disk. ``raft`` is ``None`` while it is down."""

    def __init__(self, config: RaftConfig, seed: int) -> None:
        self.config = config
        self.random = random.Random(seed)
        self.hard_state = HardState()
        self.disk: list[Entry] = []
        self.writes: deque[Ready] = deque()
        self.applied: list[Entry] = []
        self.raft: Raft | None = None
        self.start()

    def start(self) -> None:
        self.applied = []
        self.raft = Raft(
            config=self.config,
            hard_state=self.hard_state,
            entries=tuple(self.disk),
            random=self.random,
        )

    def store(self, hard_state: HardState | None, entries: tuple[Entry, ...]) -> None:
        if hard_state is not None:
            self.hard_state = hard_state
        if entries:
            del self.disk[entries[0].index - 1 :]
            self.disk.extend(entries)


class Net:
    """A group. Writes finish at once unless the member's name is in ``slow_disks``."""

    def __init__(self, size: int = 3, *, seed: int = 1, **settings: object) -> None:
        self.names = tuple(f"n{i + 1}" for i in range(size))
        self.members = {
            name: Member(RaftConfig(node=name, voters=self.names, **settings), seed * 97 + i)
            for i, name in enumerate(self.names)
        }
        self.wire: list[tuple[str, str, Message]] = []
        self.cuts: set[tuple[str, str]] = set()
        self.loses: Callable[[Message], bool] = lambda _message: False
        self.slow_disks: set[str] = set()
        self.leaders: dict[int, str] = {}
        self.committed: dict[int, tuple[Entry, int]] = {}

    # -- acting

    def raft(self, name: str) -> Raft:
        member = self.members[name].raft
        assert member is not None, f"{name} is down"
        return member

    def up(self) -> list[str]:
        return [name for name in self.names if self.members[name].raft is not None]

    def take(self, name: str) -> None:
        """Take a ready and begin its write; what may leave at once leaves."""
        ready = self.raft(name).ready()
        self._send(name, ready.send_now)
        self.members[name].writes.append(ready)

    def finish_write(self, name: str) -> None:
        """The oldest write is durable: send what waited for it, and apply."""
        member = self.members[name]
        ready = member.writes.popleft()
        member.store(ready.hard_state, ready.entries)
        self._send(name, ready.send_durable)
        if ready.entries:
            self.raft(name).persisted(ready.entries[-1].index, ready.entries[-1].term)
        for entry in ready.committed:
            self._apply(name, entry)

    def _send(self, name: str, messages: tuple[tuple[str, Message], ...]) -> None:
        self.wire.extend((name, to, message) for to, message in messages)

    def deliver(self, position: int) -> None:
        source, to, message = self.wire.pop(position)
        member = self.members[to].raft
        if member is not None and (source, to) not in self.cuts and not self.loses(message):
            member.step(message)
            self.check()

    def tick(self, *names: str) -> None:
        for name in names:
            self.raft(name).tick()
            self.check()

    def settle(self) -> None:
        """Finish writes and deliver messages, in order, until nothing moves."""
        for _ in range(ROUNDS_LIMIT):
            moved = False
            for name in self.up():
                if self.raft(name).has_ready():
                    self.take(name)
                    moved = True
                while self.members[name].writes and name not in self.slow_disks:
                    self.finish_write(name)
                    moved = True
            while self.wire:
                self.deliver(0)
                moved = True
            self.check()
            if not moved:
                return
        raise AssertionError(f"the group did not settle in {ROUNDS_LIMIT} rounds")

    def run(self, ticks: int, *names: str) -> None:
        """Let time pass: each tick, then everything that follows from it."""
        for _ in range(ticks):
            self.tick(*(names or self.up()))
            self.settle()

    def elect(self, name: str) -> None:
        """Make ``name`` lead: silence for all the others, then only it loses its patience."""
        patience = self.members[name].config.election_ticks
        for _ in range(patience):
            self.tick(*(other for other in self.up() if other != name))
            for other in self.up():
                self.raft(other).ready()  # it is heard by no one, and holds nothing to store
        for _ in range(6 * patience):
            if self.raft(name).role is not Role.LEADER:
                self.run(1, name)
        assert self.raft(name).role is Role.LEADER, self.raft(name).status()

    def crash(self, name: str, *, landed: int = 0) -> None:
        """Kill: of the oldest unfinished write the first ``landed`` entries are on the disk."""
        member = self.members[name]
        if member.writes and landed:
            first = member.writes[0]
            member.store(first.hard_state, first.entries[:landed])
        member.writes.clear()
        member.raft = None

    def restart(self, name: str) -> None:
        self.members[name].start()
        self.check()

    def isolate(self, *names: str) -> None:
        """Cut every link between ``names`` and the others."""
        inside = set(names)
        self.cuts = {
            (a, b) for a in self.names for b in self.names if (a in inside) != (b in inside)
        }

    def heal(self) -> None:
        self.cuts = set()

    def leader(self) -> str:
        """The one leader of the newest term."""
        leading = [n for n in self.up() if self.raft(n).role is Role.LEADER]
        return max(leading, key=lambda n: self.raft(n).term)

    def data(self, name: str) -> list[bytes]:
        """What ``name`` applied, without the leaders' empty entries."""
        return [entry.data for entry in self.members[name].applied if entry.data]

    # -- checking

    def _apply(self, name: str, entry: Entry) -> None:
        member = self.members[name]
        assert entry.index == len(member.applied) + 1, f"{name} skips to entry {entry.index}"
        assert member.disk[entry.index - 1] == entry, f"{name} applies what its disk lacks: {entry}"
        member.applied.append(entry)
        known, _ = self.committed.setdefault(entry.index, (entry, self.raft(name).term))
        assert known == entry, f"state machine safety: {name} applies {entry}, another {known}"

    def check(self) -> None:
        """Figure 3: election safety, log matching, leader completeness; and each one's own."""
        logs = {}
        for name in self.up():
            raft = self.raft(name)
            assert raft.invariants() is None, f"{name}: {raft.invariants()}"
            logs[name] = raft.entries_from(1)
            if raft.role is Role.LEADER:
                self._check_leader(name, raft, logs[name])
        self._check_matching(logs)

    def _check_leader(self, name: str, raft: Raft, log: tuple[Entry, ...]) -> None:
        known = self.leaders.setdefault(raft.term, name)
        assert known == name, f"election safety: {known} and {name} both lead term {raft.term}"
        for index, (entry, term) in self.committed.items():
            if raft.term > term:
                assert log[index - 1 : index] == (entry,), f"leader completeness: {name}, {entry}"

    def _check_matching(self, logs: dict[str, tuple[Entry, ...]]) -> None:
        names = sorted(logs)
        for a, b in pairwise(names):
            same = [
                i
                for i, (x, y) in enumerate(zip(logs[a], logs[b], strict=False))
                if x.term == y.term
            ]
            if same:
                upto = same[-1] + 1
                assert logs[a][:upto] == logs[b][:upto], f"log matching: {a} and {b}"
