"""Physical and logical topology, kept in metastorage by its leader (IEP-101, "join/validation").

The physical topology is the nodes that the leader is connected to; the logical one those of them
that were validated. Both are keys of metastorage, so that each change has a revision, and several
at once are one (a leap). A node enters the logical topology by a request of its own, and leaves it
as it stops in order, or ``detection_s`` after the last renewal of its lease.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import msgspec

from clusters.reference.node import events
from clusters.reference.node.catalog.nodes import Node
from clusters.reference.node.config import Zoned
from clusters.reference.node.markers import reached
from clusters.reference.node.metastorage.metastorage import (
    Change,
    Condition,
    Group,
    Invoke,
    InvokeResult,
    Operation,
    View,
    encode_invoke,
    unchanged,
)
from clusters.reference.node.placement.lease_expiry import (
    CEILING_S,
    LEASE,
    LeaseTable,
    decode_lease,
)
from clusters.reference.node.raft.configuration import majority
from clusters.reference.node.runtime.hybrid_clock import span
from clusters.reference.node.storage.identity import member_of
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import (
    Failed,
    Join,
    JoinReply,
    Leave,
    PeerAnswer,
    PeerBody,
)
from clusters.reference.node.zones.data_nodes import Topology

PHYSICAL, LOGICAL = "topology/physical", "topology/logical"
LIVES = "topology/lives/"  # and a node's name: the life of its directory that joined last
# The ceiling of the last renewal by a start that was in the topology: new starts take leases up,
# and a snapshot holds the last one of each node alone.
ALIVE = "topology/alive"
RESUMED = "topology/resumed"  # the starts with which the whole cluster last started again
WRITE_TIMEOUT_S = 1.0
# Of a time without a tick no more counts as silence of others: this node stood still itself, and
# took in no renewal.
STOOD_STILL_S = 0.5
JOIN_TIMEOUT_S = 1.5
JOIN_EVERY_S = 0.2
LEAVE_TIMEOUT_S = 0.3
MAX_ALIVE = 1024  # starts of nodes whose last renewal is remembered
TellTime = Callable[[], float]

log = logging.getLogger("node.topology")


class Member(msgspec.Struct, frozen=True, array_like=True):
    """A node in the logical topology: the start that joined, and the life of its directory."""

    node: Node
    origin: str
    incarnation: str

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name

    @property
    def member(self) -> str:
        """The node's name in raft groups, in this life of its directory."""
        return member_of(self.node.name, self.incarnation)


_encode = msgspec.msgpack.Encoder().encode
decode_members = msgspec.msgpack.Decoder(tuple[Member, ...]).decode
decode_names = msgspec.msgpack.Decoder(tuple[str, ...]).decode


def logical(view: View) -> tuple[Member, ...]:
    """The logical topology, sorted by name; empty before the first node has joined."""
    held = view.get(LOGICAL)
    return () if held is None else decode_members(held.value)


def physical(view: View) -> tuple[str, ...]:
    """The names in the physical topology, sorted."""
    held = view.get(PHYSICAL)
    return () if held is None else decode_names(held.value)


def topology(view: View) -> Topology:
    """The logical topology as zones see it; its revision is that of its last change."""
    held = view.get(LOGICAL)
    nodes = tuple(member.node for member in logical(view))
    return Topology(revision=0 if held is None else held.revision, nodes=nodes)


def lives(view: View) -> dict[str, str]:
    """The member that each node is in the life of its directory that joined last, by name, also of
    nodes that have left.
    """
    held = view.prefixed(LIVES)
    return {key.removeprefix(LIVES): value.value.decode() for key, value in held.items()}


def refusal(join: Join, zoned: Zoned, names: Sequence[str]) -> str | None:
    """Why a node can't be of the cluster of ``zoned``, whose nodes may have ``names``."""
    name = join.node.name
    if name not in names:
        return f"node {name!r}: expected one of {', '.join(names)}"
    if join.cluster_tag != zoned.tag:
        return f"node {name!r}: the cluster's tag is {zoned.tag!r} (got {join.cluster_tag!r})"
    if join.version != zoned.version:
        return f"node {name!r}: the cluster's version is {zoned.version!r} (got {join.version!r})"
    return None


def changed(
    before: Sequence[Member], joined: Iterable[Member], left: Iterable[Member]
) -> tuple[Member, ...]:
    """The topology after ``left`` went and ``joined`` came, sorted by name. Of one name the start
    that joined last is there; a start that left can't take a later one with it.
    """
    gone = list(left)
    there = {member.name: member for member in before if member not in gone}
    there.update({member.name: member for member in joined})
    return tuple(there[name] for name in sorted(there))


# The invokes by which the state of zones goes on after the cluster was down since a timestamp.
Resume = Callable[[int], tuple[Invoke, ...]]
# And those by which the nodes with these names are the ones that are there since.
Restart = Callable[[tuple[str, ...]], tuple[Invoke, ...]]


class TopologyService:
    """Keeps the topology while this node leads metastorage; serves ``Join`` and ``Leave``.

    A new leader first finds out whether the whole cluster has started again: it has if a majority
    of the nodes that vote ask to join as new starts, and none that was there before renews its
    lease, for which those that do not ask have ``detection_s``. Then, once, timers are told of the
    time in which the cluster was down. Until it knows, nothing joins and nothing is out.
    """

    def __init__(
        self,
        *,
        node: str,
        zoned: Zoned,
        names: Sequence[str],
        view: View,
        group: Group,
        voters: Callable[[], tuple[str, ...]],
        leases: LeaseTable,
        connected: Callable[[], tuple[str, ...]],
        resume: Resume,
        restart: Restart = lambda names: (),
        event_log: events.EventLog,
        monotonic_s: TellTime,
    ) -> None:
        """``names``: of the nodes that may join; ``voters``: those that
        vote in metastorage, as this node knows; ``connected``: those that it reaches."""
        self._node, self._zoned, self._names = node, zoned, tuple(names)
        self._view, self._group, self._leases = view, group, leases
        self._voters = voters
        self._connected, self._resume, self._restart = connected, resume, restart
        self._events, self._monotonic_s = event_log, monotonic_s
        self.settled = False
        self._since_s: float | None = None  # when this node began to lead
        self._ticked_s = float("-inf")
        self._joining: dict[str, Member] = {}
        self._leaving: dict[str, Member] = {}
        # How long each start in the topology has renewed no lease, since which renewal of its node.
        self._silent: dict[str, tuple[float | None, float]] = {}
        self._linked_s: dict[str, float] = {}  # when a node was last connected
        self._alive: dict[str, int] = {}  # start -> the ceiling of its last renewal
        self._lock = asyncio.Lock()
        self._news = asyncio.Event()

    def observed(self, change: Change) -> None:
        """A revision of metastorage was applied."""
        for key, value in change.entries.items():
            if key.startswith(LEASE) and value is not None:
                lease = decode_lease(value)
                # Taken out first, so that it moves to the end: the oldest are dropped.
                self._alive.pop(lease.origin, None)
                self._alive[lease.origin] = lease.ceiling
                while len(self._alive) > MAX_ALIVE:
                    del self._alive[next(iter(self._alive))]

    def tick(self) -> None:
        """Look at leases and links; once a tick."""
        if not self._group.serving:
            self._since_s, self.settled = None, False
            # These nodes ask the next leader by themselves (``Joiner``).
            self._joining.clear()
            self._leaving.clear()
            return
        now_s = self._monotonic_s()
        passed_s, self._ticked_s = now_s - self._ticked_s, now_s
        if self._since_s is None:
            self._since_s = now_s
            self._silent.clear()
            # As if just connected: a new leader must not drop nodes before it could reach them.
            self._linked_s = dict.fromkeys(physical(self._view), now_s)
        self._linked_s.update(dict.fromkeys((self._node, *self._connected()), now_s))
        if passed_s > STOOD_STILL_S:
            reached("leader of metastorage stood still")
        self._listen(min(passed_s, STOOD_STILL_S))
        self._news.set()

    def _listen(self, passed_s: float) -> None:
        before, self._silent = self._silent, {}
        for member in logical(self._view):
            seen = self._leases.seen.get(member.name)
            last_s = None if seen is None else seen.at_s
            known_s, silent_s = before.get(member.origin, (None, 0.0))
            # A node that joins again has its lease to take up again, too.
            goes_on = member.origin in before and known_s == last_s
            self._silent[member.origin] = last_s, silent_s + passed_s if goes_on else 0.0

    async def run(self) -> None:
        """Write what has changed, while this node leads, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            if self._group.serving and self._since_s is not None:
                await self._write()

    async def serve(self, body: Join | Leave) -> PeerAnswer:
        """Answer as the leader, or refuse."""
        if not self._group.serving:
            text = f"{self._node} does not lead metastorage"
            return Failed(codes.NOT_LEADER, text, self._group.leader)
        if isinstance(body, Leave):
            return await self._left(body)
        why = refusal(body, self._zoned, self._names)
        if why is not None:
            reached("join refused")
            log.warning("refused: %s", why)
            return JoinReply(why)
        member = Member(body.node, body.origin, body.incarnation)
        if member in logical(self._view):
            return JoinReply()
        self._joining[member.name] = member
        if self.settled:
            await self._write()
        else:
            self._news.set()
        if member in logical(self._view):
            return JoinReply()
        return Failed(codes.OVERLOADED, f"{self._node} has not written the topology yet")

    async def _left(self, body: Leave) -> PeerAnswer:
        asked = self._joining.get(body.node)
        if asked is not None and asked.origin == body.origin:
            del self._joining[body.node]
        # Behind a write that may have it join yet.
        async with self._lock:
            members = logical(self._view)
            if any(m.name == body.node and m.origin != body.origin for m in members):
                reached("a start left whose node has joined again")
            self._leaving.update({m.name: m for m in members if m.origin == body.origin})
        await self._write()
        return JoinReply()

    async def _write(self) -> None:
        # One at a time: of what comes meanwhile the next one makes one change.
        async with self._lock:
            if not self.settled:
                await self._settle()
            if self.settled:
                await self._write_logical()
                await self._write_physical()

    async def _settle(self) -> None:
        """Find out whether the whole cluster has started again, and write that once."""
        since_s = self._since_s
        if since_s is None:
            return
        marker = self._view.get(RESUMED)
        known = {member.name: {member.origin} for member in logical(self._view)}
        for origin in () if marker is None else decode_names(marker.value):
            known.setdefault(origin.rpartition("~")[0], set()).add(origin)
        if not known or self._goes_on(known, since_s):
            self.settled = True
            return
        alive = await self._last_alive([o for origins in known.values() for o in origins])
        if self._goes_on(known, since_s):
            # Its renewal was in the log before that write, or came with it.
            reached("cluster goes on with a start that renews late")
            self.settled = True
            return
        voters = self._voters()
        asking = [
            member
            for name, member in self._joining.items()
            if member.origin not in known.get(name, ())
        ]
        fresh = [member for member in asking if member.name in voters]
        if len(fresh) < majority(voters):
            return
        # A voter alone is a majority of one, and hears of the others' leases only after a while.
        silent = sorted(known.keys() - {member.name for member in asking})
        if silent and self._monotonic_s() < since_s + self._zoned.detection_s:
            return
        reached("whole cluster started again")
        starts = tuple(sorted(member.origin for member in fresh))
        # A renewal that is in the log before this write says that its node has run all the while.
        unheard = tuple(unchanged(f"{LEASE}{n}", self._view.get(f"{LEASE}{n}")) for n in silent)
        self.settled = await self._resumed(starts, alive, (unchanged(RESUMED, marker), *unheard))

    def _goes_on(self, known: Mapping[str, set[str]], since_s: float) -> bool:
        """Whether one of the starts that are ``known`` by node has renewed its lease since."""
        return any(
            (seen := self._leases.seen.get(name)) is not None
            and seen.lease.origin in origins
            and seen.at_s > since_s
            for name, origins in known.items()
        )

    async def _last_alive(self, earlier: Sequence[str]) -> int | None:
        """The ceiling of the last renewal by one of the starts that were there ``earlier``, written
        before it may be forgotten: this leader may be lost, too, before it knows.
        """
        held = self._view.get(ALIVE)
        written = None if held is None else int.from_bytes(held.value, "big")
        ceilings = [self._alive[origin] for origin in earlier if origin in self._alive]
        last = max(ceilings, default=written)
        if last is not None and (written is None or last > written):
            operation = Operation(ALIVE, last.to_bytes(8, "big"))
            await self._propose(Invoke((unchanged(ALIVE, held),), (operation,)))
        return last if written is None or last is None else max(last, written)

    async def _resumed(
        self, starts: tuple[str, ...], alive: int | None, conditions: tuple[Condition, ...]
    ) -> bool:
        """Write that the cluster goes on with ``starts``, on ``conditions``; ``alive``: the ceiling
        of the last renewal before.
        """
        # A ceiling lies CEILING_S ahead of its renewal: so this is when the last one was sent.
        invokes = () if alive is None else self._resume(alive - span(CEILING_S))
        invokes += self._restart(tuple(origin.rpartition("~")[0] for origin in starts))
        invoke = Invoke(
            # One revision for all zones and the marker: another leader does all of it or nothing.
            (*conditions, *(c for each in invokes for c in each.conditions)),
            (Operation(RESUMED, _encode(starts)), *(o for each in invokes for o in each.success)),
        )
        return await self._propose(invoke)

    async def _write_logical(self) -> None:
        before = logical(self._view)
        joining, leaving = dict(self._joining), dict(self._leaving)
        out = {m.name: m for m in before if self._is_out(m) and m.name not in joining}
        after = changed(before, joining.values(), (leaving | out).values())
        if after == before:
            self._done(joining, leaving)
            return
        held = self._view.get(LOGICAL)
        known = lives(self._view)
        operations = (
            Operation(LOGICAL, _encode(after)),
            *(
                Operation(f"{LIVES}{m.name}", m.member.encode())
                for m in after
                if known.get(m.name) != m.member
            ),
        )
        # A renewal that is in the log before this write says that its node is there.
        renewals = (f"{LEASE}{name}" for name in sorted(out))
        silent = (unchanged(key, self._view.get(key)) for key in renewals)
        if await self._propose(Invoke((unchanged(LOGICAL, held), *silent), operations)):
            self._done(joining, leaving)
            for member in after:
                if member not in before:
                    # A start that was out is counted anew, though it may be back within a tick.
                    self._silent.pop(member.origin, None)
            came = [m.name for m in after if m not in before]
            went = [m.name for m in before if m not in after]
            text = f"logical topology: joined {_listed(came)}, left {_listed(went)}"
            self._events.add(events.TOPOLOGY_CHANGED, text)
        elif out:
            reached("node taken for gone kept in the topology")

    def _done(self, joined: Mapping[str, Member], left: Mapping[str, Member]) -> None:
        for waiting, done in ((self._joining, joined), (self._leaving, left)):
            for name, member in done.items():
                # A later start of the node may have asked meanwhile.
                if waiting.get(name) == member:
                    del waiting[name]

    def _is_out(self, member: Member) -> bool:
        """Whether the lease of ``member`` was not renewed for too long, by this node's clock."""
        seen = self._leases.seen.get(member.name)
        last_s, silent_s = self._silent.get(member.origin, (None, 0.0))
        renewed = seen is not None and seen.at_s != last_s
        late = silent_s >= self._zoned.detection_s
        return member.name != self._node and late and not renewed

    async def _write_physical(self) -> None:
        now_s, held = self._monotonic_s(), self._view.get(PHYSICAL)
        oldest_s = now_s - self._zoned.detection_s
        names = tuple(sorted(n for n, at_s in self._linked_s.items() if at_s > oldest_s))
        if names != physical(self._view):
            operation = Operation(PHYSICAL, _encode(names))
            await self._propose(Invoke((unchanged(PHYSICAL, held),), (operation,)))

    async def _propose(self, invoke: Invoke) -> bool:
        done = await self._group.propose(encode_invoke(invoke), WRITE_TIMEOUT_S)
        return isinstance(done, InvokeResult) and done.success


class Ask(Protocol):
    """The request router's."""

    async def __call__(self, node: str, body: PeerBody, limit_s: float) -> PeerAnswer:
        """The answer of ``node``."""


class JoinRefused(Exception):
    """The cluster does not take this node; the text says why."""


class Joiner:
    """Keeps this node in the logical topology: asks to join at the start, and again whenever it was
    taken for lost; and leaves as it stops.
    """

    def __init__(
        self,
        *,
        join: Join,
        view: View,
        leases: LeaseTable,
        leader: Callable[[], str | None],
        connected: Callable[[], tuple[str, ...]],
        ask: Ask,
    ) -> None:
        """``leader`` of metastorage, where this node knows it; else a node of ``connected`` is
        asked, in turn.
        """
        self._join, self._view, self._leases = join, view, leases
        self._leader, self._connected, self._ask = leader, connected, ask
        self._hint: str | None = None
        self._refusing: str | None = None  # the node that said last that it does not lead
        self._turn = 0
        self._leaves = False
        self._trying: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Join, and stay in, until cancelled. Raises ``JoinRefused``."""
        while True:
            if not (self._leaves or self._joined()):
                trying = self._trying = asyncio.ensure_future(self._try())
                try:
                    await asyncio.wait((trying,))
                finally:
                    trying.cancel()
                if not trying.cancelled():
                    trying.result()
            await asyncio.sleep(JOIN_EVERY_S)

    def _joined(self) -> bool:
        """Whether this start is in the topology as far as this node can know: what it applied may
        be old once its lease has run out.
        """
        there = any(member.origin == self._join.origin for member in logical(self._view))
        return there and self._leases.holds()

    async def _try(self) -> None:
        node = self._someone()
        answer = await self._ask(node, self._join, JOIN_TIMEOUT_S)
        if isinstance(answer, JoinReply) and answer.refused:
            raise JoinRefused(answer.refused)
        self._refusing = node if isinstance(answer, Failed) else None
        self._hint = answer.leader if isinstance(answer, Failed) else node

    def _someone(self) -> str:
        me, others = self._join.node.name, self._connected()
        for known in (self._hint, self._leader()):
            # A node that was cut off follows a leader that may have been deposed since, and no one
            # else sends it metastorage's log before it has joined again.
            if known != self._refusing and (known == me or known in others):
                return known
        self._turn += 1
        return others[self._turn % len(others)] if others else me

    async def leave(self) -> None:
        """Leave the topology for good: this node stops. As far as a leader answers in time."""
        self._leaves = True
        if self._trying is not None:
            self._trying.cancel()
        node = self._someone()
        await self._ask(node, Leave(self._join.node.name, self._join.origin), LEAVE_TIMEOUT_S)


def _listed(names: Sequence[str]) -> str:
    return " ".join(names) or "none"
