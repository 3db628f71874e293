"""A store that is not the reference store, as far as a judge sees it: lines on disks, lines as
messages.

A line of its log is ``GROUP INDEX TERM COMMAND``, ``GROUP term TERM VOTE`` or ``GROUP members
A,B,C``. A message is ``told GROUP TERM [VOTE]``, ``holds GROUP TERM INDEX``, ``leads GROUP TERM
INDEX:TERM,...``, ``committed GROUP TERM INDEX`` or ``done COMMAND@GROUP,...``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from clusters.providers.sim.disk import Platter, SimDisk
from clusters.providers.sim.loop import simulate
from clusters.providers.sim.oracles.judge import Judge
from harness.clock import substream
from harness.protocols.claims import (
    Acknowledged,
    Base,
    ClaimBroken,
    ClaimsReport,
    Command,
    CommitTold,
    Fact,
    Logged,
    LogHeld,
    LogTold,
    LogUpdate,
    Member,
    Members,
    Said,
    TermTold,
    mark_of,
)

LOG = "log"


class ToyDisk:
    def read(self, name: str, start: int, data: bytes) -> tuple[int, list[Fact]]:
        if name != LOG:
            return start, []
        whole = data.rpartition(b"\n")[0].decode()
        facts = [fact for line in whole.splitlines() if (fact := _logged(line)) is not None]
        return start + (len(whole) + 1 if whole else 0), facts


def _logged(line: str) -> Fact | None:
    words = line.split()
    match words:
        case ["member", name]:
            return Member(name)
        case [group, "members", names]:
            return LogUpdate(group, base=Base(0, 0, Members(tuple(names.split(",")))))
        case [group, "term", term, *vote]:
            return LogUpdate(group, int(term), vote[0] if vote else None)
        case [group, "cut", index, term, file, size]:
            base = Base(int(index), int(term), Members(("n1", "n2", "n3")), file, int(size))
            return LogUpdate(group, base=base)
        case [group, index, term, command]:
            entry = Logged(int(index), mark_of(int(term), 0), (Command(command),))
            return LogUpdate(group, entries=(entry,))
    return None


def _said(text: str) -> Fact:
    match text.split():
        case ["told", group, term, *vote]:
            return TermTold(group, int(term), vote[0] if vote else None)
        case ["holds", group, term, index]:
            return LogHeld(group, int(term), int(index))
        case ["leads", group, term, first, *terms]:
            return LogTold(group, int(term), int(first), tuple(mark_of(int(t), 0) for t in terms))
        case ["committed", group, term, index]:
            return CommitTold(group, int(term), int(index))
        case ["done", *commands]:
            pairs = (command.split("@") for command in commands)
            return Acknowledged("T1", tuple((group, name) for name, group in pairs))
    raise ValueError(text)


class ToyClaims:
    def disk(self) -> ToyDisk:
        return ToyDisk()

    def between(self, source: str, to: str, connection: int, payload: bytes) -> Iterable[Said]:
        return self.answered(connection, payload)

    def asked(self, connection: int, payload: bytes) -> None:
        """Clients promise nothing."""

    def answered(self, connection: int, payload: bytes) -> Iterable[Said]:
        text = payload.decode()
        return [(text.split()[0], _said(text))]


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

    async def begin(self) -> None:
        for node in self.platters:
            await self.write(node, f"member {node}", "p members n1,n2,n3")

    async def write(self, node: str, *lines: str, sync: bool = True, file: str = LOG) -> None:
        data = "".join(f"{line}\n" for line in lines).encode()
        await SimDisk(self.platters[node]).append(file, data, sync=sync)

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
