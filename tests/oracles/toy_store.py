"""A store that is not the reference store, as far as a judge sees it: lines on disks, lines as
messages.

A line of its log is ``GROUP INDEX TERM COMMAND``, ``GROUP term TERM VOTE``, ``GROUP members A,B``,
``GROUP joins INDEX TERM A,B``, which is an entry (joint with ``A,B&&C,D``), ``GROUP base INDEX TERM
A,B [whole]`` or ``GROUP begins SUCCESSOR``, its next generation. A message is ``told GROUP TERM
[VOTE]``, ``votes GROUP TERM LAST-TERM LAST-INDEX``, ``holds GROUP TERM INDEX``, ``leads GROUP TERM
INDEX TERM ...``, ``committed GROUP TERM INDEX``, ``learnt GROUP INDEX``, ``done COMMAND@GROUP ...``
or ``acts GROUP [EPOCH]``. In the log of ``p``, ``renew:HOLDER:MS`` and ``grant:GROUP:HOLDER:EPOCH``
are commands, the former with the time of its sending by the holder's wall clock; ``put:EPOCH``
writes a key, unless ``undo`` comes before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from clusters.providers.sim.disk import Platter, SimDisk
from clusters.providers.sim.loop import simulate
from clusters.providers.sim.machine import WALL_EPOCH_NS, Clocks
from clusters.providers.sim.oracles.judge import Judge
from harness.clock import substream
from harness.protocols.claims import (
    Acknowledgement,
    Base,
    ClaimBroken,
    ClaimsReport,
    Command,
    CommitClaim,
    CommitLearnt,
    Fact,
    LeaderLog,
    LeaseRenewal,
    LogEntry,
    LoggedWrites,
    LogMatch,
    LogUpdate,
    Member,
    Members,
    NewGeneration,
    PrimaryAct,
    PrimaryGrant,
    Statement,
    TermClaim,
    VoteClaim,
    mark_of,
)

LOG = "log"


class ToyDisk:
    def __init__(self, logged: dict[tuple[int, int], tuple[Fact, ...]]) -> None:
        self._all = logged

    def read(self, name: str, start: int, data: bytes) -> tuple[int, list[Fact]]:
        if name != LOG:
            return start, []
        whole = data.rpartition(b"\n")[0].decode()
        facts = [fact for line in whole.splitlines() if (fact := _logged(line)) is not None]
        for fact in facts:
            if isinstance(fact, LogUpdate) and fact.group == "p":
                self._all.update({(e.index, e.mark): e.says for e in fact.entries})
        return start + (len(whole) + 1 if whole else 0), facts

    def again(self) -> ToyDisk:
        return ToyDisk(self._all)


def _logged(line: str) -> Fact | None:
    words = line.split()
    match words:
        case ["member", name]:
            return Member(name)
        case [group, "members", names]:
            return LogUpdate(group, base=Base(0, 0, Members(tuple(names.split(",")))))
        case [group, "joins", index, term, names]:
            entry = LogEntry(int(index), mark_of(int(term), 0), (_members(names),))
            return LogUpdate(group, entries=(entry,))
        case [group, "base", index, term, names, *whole]:
            return LogUpdate(
                group, base=Base(int(index), int(term), _members(names), whole=bool(whole))
            )
        case [group, "begins", successor]:
            return NewGeneration("p", group, successor)
        case [group, "term", term, *vote]:
            return LogUpdate(group, int(term), vote[0] if vote else None)
        case [group, "cut", index, term, file, size]:
            base = Base(int(index), int(term), Members(("n1", "n2", "n3")), file, int(size))
            return LogUpdate(group, base=base)
        case [group, index, term, command]:
            says = (Command(command, f"T-{command}"), *_of_leases(command))
            entry = LogEntry(int(index), mark_of(int(term), 0), says)
            return LogUpdate(group, entries=(entry,))
    return None


def _members(names: str) -> Members:
    voters, _, outgoing = names.partition("&&")
    return Members(tuple(voters.split(",")), tuple(outgoing.split(",")) if outgoing else ())


def _of_leases(command: str) -> tuple[Fact, ...]:
    match command.split(":"):
        case ["renew", holder, ms]:
            return (LeaseRenewal(holder, WALL_EPOCH_NS + int(ms) * 1_000_000),)
        case ["grant", group, holder, epoch]:
            return (PrimaryGrant(group, holder, int(epoch)),)
        case ["put", epoch]:
            written = LoggedWrites("p", int(epoch), f"T-{command}", (b"k",), (), "undo")
            return (written,)
    return ()


def _said(text: str) -> Fact:
    match text.split():
        case ["told", group, term, *vote]:
            return TermClaim(group, int(term), vote[0] if vote else None)
        case ["holds", group, term, index]:
            return LogMatch(group, int(term), int(index))
        case ["leads", group, term, first, *terms]:
            return LeaderLog(group, int(term), int(first), tuple(mark_of(int(t), 0) for t in terms))
        case ["committed", group, term, index]:
            return CommitClaim(group, int(term), int(index))
        case ["votes", group, term, last_term, last_index]:
            return VoteClaim(group, int(term), int(last_term), int(last_index))
        case ["learnt", group, index]:
            return CommitLearnt(group, int(index))
        case ["acts", group, *epoch]:
            number = int(epoch[0]) if epoch else 0
            return PrimaryAct(group, number, logged="logged" in epoch)
        case ["done", *commands]:
            pairs = (command.split("@") for command in commands)
            return Acknowledgement("T1", tuple((group, name) for name, group in pairs))
    raise ValueError(text)


class ToyClaims:
    lease_s, drift = 1.0, 0.05

    def __init__(self) -> None:
        self._logged: dict[tuple[int, int], tuple[Fact, ...]] = {}

    def disk(self) -> ToyDisk:
        return ToyDisk(self._logged)

    def holder(self, node: str, boot: str) -> str:
        return boot

    def committed(self, group: str, index: int, mark: int) -> Iterable[Fact]:
        return self._logged.get((index, mark), ()) if group == "p" else ()

    def declared(self, node: str, event: object) -> Iterable[Statement]:
        return [(type(event).__name__, event)] if isinstance(event, Fact) else []

    def between(self, source: str, to: str, connection: int, payload: bytes) -> Iterable[Statement]:
        return self.answered(source, connection, payload)

    def configured(self, files: Mapping[str, bytes]) -> None:
        """Nothing of it is told by files."""

    def asked(self, node: str, connection: int, payload: bytes) -> Iterable[Statement]:
        return ()  # clients promise nothing

    def answered(self, node: str, connection: int, payload: bytes) -> Iterable[Statement]:
        text = payload.decode()
        return [(text.split()[0], _said(text))]

    def ended(self, node: str, connection: int) -> Iterable[Statement]:
        return ()


class Bench:
    """Three machines ``n1`` to ``n3`` and their judge; ``p`` is a group of all three."""

    def __init__(self) -> None:
        self.judge = Judge(ToyClaims())
        self.platters = {
            node: Platter(substream(1, "toy", node), node) for node in ("n1", "n2", "n3")
        }
        for platter in self.platters.values():
            platter.watcher = self.judge
            self.judge.inserted(platter)

        self.clocks = {node: Clocks(100.0) for node in self.platters}
        self.running = dict.fromkeys(self.platters, True)

    def start(self, node: str) -> None:
        """Its first start, whose name as a holder is that of the node."""
        self.judge.started(node, node, self.clocks[node], lambda: self.running[node], {})

    async def agree(self, *lines: str) -> None:
        """A leader has ``lines`` committed on all disks."""
        for node in self.platters:
            await self.write(node, *lines)
        places = [(int(line.split()[1]), line.split()[2]) for line in lines]
        self.send("n1", f"leads p 1 {places[0][0]} {' '.join(term for _, term in places)}")
        self.send("n1", f"committed p 1 {places[-1][0]}")

    async def begin(self) -> None:
        for node in self.platters:
            await self.write(node, f"member {node}", "p members n1,n2,n3")

    async def write(self, node: str, *lines: str, sync: bool = True, file: str = LOG) -> None:
        data = "".join(f"{line}\n" for line in lines).encode()
        await SimDisk(self.platters[node]).append(file, data, sync=sync)

    def declare(self, node: str, fact: Fact) -> None:
        self.judge.declared(node, fact)

    def send(self, node: str, text: str, to: str = "n3") -> None:
        self.judge.sent((node, to), 1, text.encode())


def judged(act: Callable[[Bench], object]) -> ClaimsReport:
    """What the judge says of ``act``, a coroutine function, on a bench that has begun."""

    async def main() -> ClaimsReport:
        bench = Bench()
        await bench.begin()
        await act(bench)  # type: ignore[misc]
        return bench.judge.report()

    return simulate(main())


def broken(act: Callable[[Bench], object]) -> list[tuple[str, str, str]]:
    """(claim, node, message) of each broken claim."""
    return [(b.claim.value, b.node, b.message) for b in judged(act).examples]


def details(act: Callable[[Bench], object]) -> list[ClaimBroken]:
    return list(judged(act).examples)
