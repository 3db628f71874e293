"""Raft members wired together in memory: disks that lose what was not finished, messages as a bag.

Every change is checked against the four safety properties of the paper's figure 3, so that a
scenario fails where the promise breaks and not where somebody notices.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from itertools import pairwise

import msgspec

from clusters.reference.node.raft import (
    Chunk,
    Configuration,
    Entry,
    HardState,
    Mark,
    Message,
    Raft,
    RaftConfig,
    RaftEvent,
    Ready,
    Role,
)
from clusters.reference.node.raft.configuration import invariants as broken_configuration

ROUNDS_LIMIT = 2000
CHUNKS = 3  # a snapshot travels in about so many


class Saved(msgspec.Struct, frozen=True):
    """A snapshot of the state machine, which is the list of all that was applied."""

    mark: Mark
    data: bytes


class Member:
    """One member with its disk. ``raft`` is ``None`` while it is down."""

    def __init__(self, config: RaftConfig, seed: int) -> None:
        self.config = config
        self.random = random.Random(seed)
        self.hard_state = HardState()
        self.base = Mark(0, 0, Configuration(config.voters))
        self.saved: Saved | None = None
        self.disk: list[Entry] = []
        self.writes: deque[tuple[Ready, Saved | None]] = deque()
        self.applied: list[Entry] = []
        self.events: list[RaftEvent] = []
        self.incoming: tuple[Mark, bytes] | None = None
        self.received: Saved | None = None
        self.raft: Raft | None = None
        self.start()

    def start(self) -> None:
        self.applied = entries_of(self.saved.data) if self.saved else []
        self.incoming = self.received = None
        self.raft = Raft(
            config=self.config,
            hard_state=self.hard_state,
            entries=tuple(self.disk),
            random=self.random,
            base=self.base,
            snapshot=self.saved.mark if self.saved else None,
        )

    def store(self, hard_state: HardState | None, entries: tuple[Entry, ...]) -> None:
        if hard_state is not None:
            self.hard_state = hard_state
        if entries:
            del self.disk[entries[0].index - self.base.index - 1 :]
            self.disk.extend(entries)

    def install(self, saved: Saved) -> None:
        self.saved, self.base, self.disk = saved, saved.mark, []

    def compact(self, index: int) -> None:
        """Save what is applied, and cut the log at ``index``."""
        raft = self.raft
        if raft is None or any(ready.installed for ready, _ in self.writes):
            return
        mark, base = raft.mark(len(self.applied)), raft.mark(max(index, self.base.index))
        self.saved = Saved(mark, msgspec.msgpack.encode(self.applied))
        del self.disk[: base.index - self.base.index]
        self.base = base
        raft.compacted(base.index, mark)


def entries_of(data: bytes) -> list[Entry]:
    return msgspec.msgpack.decode(data, type=list[Entry])


class Net:
    """A group. Writes finish at once unless the member's name is in ``slow_disks``."""

    def __init__(self, size: int = 3, *, seed: int = 1, **settings: object) -> None:
        self.names = tuple(f"n{i + 1}" for i in range(size))
        self.settings, self.seed, self.lives = settings, seed, 0
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
        member, ready = self.members[name], self.raft(name).ready()
        self._send(name, ready.send_now)
        member.events += ready.events
        for to, chunk in ready.send_chunks:
            self._send_piece(name, to, chunk)
        member.writes.append((ready, member.received if ready.installed else None))
        for chunk in ready.chunks:
            self._receive(name, chunk)

    def _send_piece(self, name: str, to: str, chunk: Chunk) -> None:
        saved = self.members[name].saved
        if saved is not None and saved.mark == chunk.mark:
            end = chunk.offset + max(len(saved.data) // CHUNKS, 1)
            filled = msgspec.structs.replace(
                chunk, data=saved.data[chunk.offset : end], last=end >= len(saved.data)
            )
            self._send(name, ((to, filled),))

    def _receive(self, name: str, chunk: Chunk) -> None:
        member = self.members[name]
        mark, data = member.incoming or (chunk.mark, b"")
        if mark != chunk.mark:
            data = b""
        if chunk.offset == len(data):
            data += chunk.data
            if chunk.last:
                member.incoming = None
                if self.raft(name).install(chunk):
                    member.received = Saved(chunk.mark, data)
                    member.applied = entries_of(data)
                    for entry in member.applied:
                        self._agree(name, entry)
                return
        member.incoming = (chunk.mark, data)
        self.raft(name).chunk_stored(chunk, len(data))

    def finish_write(self, name: str) -> None:
        """The oldest write is durable: send what waited for it, and apply."""
        member = self.members[name]
        ready, saved = member.writes.popleft()
        if saved is not None:
            member.install(saved)
        member.store(ready.hard_state, ready.entries)
        self._send(name, ready.send_durable)
        if ready.hard_state is not None:
            self.raft(name).vote_persisted(ready.hard_state)
        if ready.entries:
            self.raft(name).persisted(ready.entries[-1].index, ready.entries[-1].term)
        for entry in ready.committed:
            self._apply(name, entry)

    def _send(self, name: str, messages: tuple[tuple[str, Message], ...]) -> None:
        self.wire.extend((name, to, message) for to, message in messages)

    def deliver(self, position: int) -> None:
        source, to, message = self.wire.pop(position)
        member = self.members[to].raft if to in self.members else None
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
        # A round that has just begun would go before that of a lesser name.
        self.tick(*(n for n in self.up() if self.raft(n).role is Role.PRE_CANDIDATE))
        for other in self.up():
            self.raft(other).ready()
        for _ in range(6 * patience):
            if self.raft(name).role is not Role.LEADER:
                self.run(1, name)
        assert self.raft(name).role is Role.LEADER, self.raft(name).status()

    def crash(self, name: str, *, landed: int = 0) -> None:
        """Kill: of the oldest unfinished write the first ``landed`` entries are on the disk."""
        member = self.members[name]
        if member.writes and landed:
            first, saved = member.writes[0]
            if saved is not None:
                member.install(saved)
            member.store(first.hard_state, first.entries[:landed])
        member.writes.clear()
        member.raft = None

    def restart(self, name: str) -> None:
        self.members[name].start()
        self.check()

    def join(self, name: str) -> None:
        """A member that knows nothing comes, and waits to be taken in."""
        self.lives += 1
        config = RaftConfig(node=name, **self.settings)
        self.members[name] = Member(config, self.seed * 89 + self.lives)
        self.names = (*self.names, name)

    def wipe(self, name: str) -> str:
        """``name`` loses its disk, and is another member from now on."""
        del self.members[name]
        self.names = tuple(other for other in self.names if other != name)
        new = name.rstrip("'") + "'" * (name.count("'") + 1)
        self.join(new)
        return new

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
        """What ``name`` applied of clients' entries."""
        applied = self.members[name].applied
        return [entry.data for entry in applied if entry.data and not entry.config]

    # -- checking

    def _apply(self, name: str, entry: Entry) -> None:
        member = self.members[name]
        assert entry.index == len(member.applied) + 1, f"{name} skips to entry {entry.index}"
        on_disk = member.disk[entry.index - member.base.index - 1]
        assert on_disk == entry, f"{name} applies what its disk lacks: {entry}"
        member.applied.append(entry)
        self._agree(name, entry)

    def _agree(self, name: str, entry: Entry) -> None:
        known, _ = self.committed.setdefault(entry.index, (entry, self.raft(name).term))
        assert known == entry, f"state machine safety: {name} applies {entry}, another {known}"

    def check(self) -> None:
        """Figure 3: election safety, log matching, leader completeness; and each one's own."""
        logs: dict[str, dict[int, Entry]] = {}
        for name in self.up():
            raft = self.raft(name)
            assert raft.invariants() is None, f"{name}: {raft.invariants()}"
            assert broken_configuration(raft.configuration) is None, raft.configuration
            logs[name] = {entry.index: entry for entry in raft.entries_from(raft.base_index + 1)}
            if raft.role is Role.LEADER:
                self._check_leader(name, raft, logs[name])
        self._check_matching(logs)

    def _check_leader(self, name: str, raft: Raft, log: dict[int, Entry]) -> None:
        known = self.leaders.setdefault(raft.term, name)
        assert known == name, f"election safety: {known} and {name} both lead term {raft.term}"
        for index, (entry, term) in self.committed.items():
            if raft.term > term and index > raft.base_index:
                assert log.get(index) == entry, f"leader completeness: {name}, {entry}"

    def _check_matching(self, logs: dict[str, dict[int, Entry]]) -> None:
        names = sorted(logs)
        for a, b in pairwise(names):
            both = sorted(logs[a].keys() & logs[b].keys())
            same = [i for i in both if logs[a][i].term == logs[b][i].term]
            upto = same[-1] if same else 0
            for index in both:
                if index <= upto:
                    assert logs[a][index] == logs[b][index], f"log matching: {a} and {b}"
