"""Scenario scripts with golden output: prose, then ``command``, ``----`` and what came of it.

``python tests/raft/raft_script.py`` writes the output of every script anew; read the difference.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from raft_net import Net

from clusters.reference.node.raft import Message, RaftError, RaftEvent, Role

SCRIPTS = Path(__file__).parent / "scripts"
RULE = "----"


class Script:
    """One group that commands act on."""

    def __init__(self) -> None:
        self.net = Net(0)
        self.commands: dict[str, Callable[..., object]] = {
            "group": self.group,
            "join": lambda name: self.net.join(name),
            "wipe": lambda name: self.net.wipe(name),
            "crash": lambda name: self.net.crash(name),
            "restart": lambda name: self.net.restart(name),
            "cut-off": lambda *names: self.net.isolate(*names),
            "heal": lambda: self.net.heal(),
            "elect": lambda name: self.net.elect(name),
            "tick": lambda *names: self.net.tick(*names),
            "run": lambda ticks, *names: self.net.run(int(ticks), *names),
            "propose": self.propose,
            "load": self.load,
            "compact": lambda name, index: self.net.members[name].compact(int(index)),
            "change": lambda name, *voters: self.net.raft(name).change_peers(voters),
            "cancel": lambda name: f"cancelled: {self.net.raft(name).cancel_change()}",
            "hand-over": lambda name, to: self.net.raft(name).hand_over(to),
            "events": self.events,
            "show": self.show,
            "step": self.step,
        }

    def do(self, line: str) -> str:
        """The output of one command."""
        verb, *words = line.split()
        try:
            said = self.commands[verb](*words)
        except RaftError as error:
            return f"{type(error).__name__}: {error}"
        return str(said) if isinstance(said, str) else "ok"

    def group(self, size: str) -> str:
        self.net = Net(int(size), max_append_entries=4)
        self.net.elect("n1")
        self.net.run(1)
        return self.show()

    def propose(self, name: str, count: str) -> None:
        for number in range(int(count)):
            self.net.raft(name).propose(b"%d" % number)

    def load(self, name: str, count: str, ticks: str) -> None:
        """Propose ``count`` entries each tick, and let each message travel for half of one."""
        for _ in range(int(ticks)):
            self.propose(name, count)
            self.net.tick(*self.net.up())
            self.step()
            self.step()

    def step(self) -> str:
        """Write everything, deliver every message that is on the way, and say which."""
        net = self.net
        for name in net.up():
            if net.raft(name).has_ready():
                net.take(name)
            while net.members[name].writes:
                net.finish_write(name)
        said = [f"{source}->{to} {brief(m)}" for source, to, m in net.wire]
        for _ in range(len(net.wire)):
            net.deliver(0)
        return "\n".join(said) or "nothing is on the way"

    def show(self) -> str:
        return "\n".join(self.line(name) for name in self.net.names)

    def events(self, name: str) -> str:
        """What ``name`` told since it was asked last."""
        told = self.net.members[name].events
        lines = [told_as(event) for event in told]
        told.clear()
        return "\n".join(lines) or "none"

    def line(self, name: str) -> str:
        member = self.net.members[name].raft
        if member is None:
            return f"{name} down"
        at = member.status()
        lead = "LEADS" if at.role is Role.LEADER else str(at.role)
        log = f"{at.base_index + 1}-{at.last_index} commit {at.commit_index}"
        return f"{name} {lead} log {log} {at.configuration} {at.stage}"


def told_as(event: RaftEvent) -> str:
    values = [f"{n}={getattr(event, n)}" for n in event.__struct_fields__]
    return f"{type(event).__name__} {' '.join(values)}"


def brief(message: Message) -> str:
    """A message without what differs from run to run of nothing that matters."""
    hidden = ["sender", "context", "data", "entries", "mark"]
    # Of the first generation there is nothing to tell.
    hidden += [n for n in ("generation", "lineage") if not getattr(message, n, None)]
    parts = [f"{n}={getattr(message, n)}" for n in message.__struct_fields__ if n not in hidden]
    if entries := getattr(message, "entries", ()):
        parts.append(f"entries={entries[0].index}-{entries[-1].index}")
    if mark := getattr(message, "mark", None):
        parts.append(f"mark={mark.index}")
    return f"{type(message).__name__} {' '.join(parts)}"


def played(text: str) -> str:
    """``text`` with the output that its commands have now."""
    script, lines, output = Script(), text.splitlines(), []
    position = 0
    while position < len(lines):
        line = lines[position]
        output.append(line)
        position += 1
        if position < len(lines) and lines[position] == RULE:
            output += [RULE, *script.do(line).splitlines()]
            while position < len(lines) and lines[position]:
                position += 1
    return "\n".join(output) + "\n"


if __name__ == "__main__":
    for path in sorted(SCRIPTS.glob("*.txt")):
        path.write_text(played(path.read_text()))
