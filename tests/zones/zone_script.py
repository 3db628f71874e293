"""Scenario scripts with golden output: prose, then ``SECOND command``, ``----``, what came of it.

Every command runs on a metastorage of its own through ``zones.manager``, as the node's loop does:
before a command each timer that is due by then fires at its second. What is shown is each new entry
of a history, at its second, then the timers that run.

``python tests/zones/zone_script.py`` writes the output of every script anew; read the difference.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from clusters.reference.node.catalog.catalog import Catalog
from clusters.reference.node.catalog.grammar import parse
from clusters.reference.node.catalog.nodes import Node
from clusters.reference.node.catalog.sql_errors import SqlError
from clusters.reference.node.catalog.statements import Describe, Select
from clusters.reference.node.metastorage.metastorage import Invoke, Metastorage, encode_invoke
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.runtime.hybrid_clock import span
from clusters.reference.node.zones import data_nodes, manager
from clusters.reference.node.zones.data_nodes import DataNodes, Timer, Topology

SCRIPTS = Path(__file__).parent / "scripts"
RULE = "----"
OFFSET_S = 1000  # scripts begin before 0


def at(second: int) -> int:
    return span(second + OFFSET_S)


def second_of(ts: int) -> int:
    return ts // span(1) - OFFSET_S


def named(nodes: tuple[Node, ...]) -> str:
    return " ".join("+".join((node.name, *node.attributes)) for node in nodes) or "none"


class Script:
    """A cluster's zones, that commands act on."""

    def __init__(self) -> None:
        self.store = Metastorage()
        self.catalog = Catalog()
        self.topology = Topology(revision=0, nodes=())
        self.told: dict[tuple[int, int], tuple[Node, ...]] = {}
        self.commands: dict[str, Callable[[int, list[str]], str]] = {
            "start": self.join,
            "join": self.join,
            "leave": self.leave,
            "leap": self.leap,
            "sql": self.sql,
            "wait": lambda second, words: "",
            "down": self.down,
            "resume": self.resume,
        }
        self.down_since = 0
        self.up = True

    def do(self, line: str) -> str:
        """The output of one command."""
        when, verb, *words = line.split()
        second = int(when)
        self._fire_until(at(second))
        said = self.commands[verb](second, words)
        self._step(at(second))
        return "\n".join([*filter(None, [said]), *self._entries(), *self._timers()]) or "ok"

    def join(self, second: int, words: list[str]) -> str:
        nodes = {node.name: node for node in self.topology.nodes}
        for word in words:
            name, *tags = word.split("+")
            nodes[name] = Node(name=name, attributes=dict.fromkeys(tags))
        self._topology(nodes)
        return ""

    def leave(self, second: int, words: list[str]) -> str:
        self._topology({n.name: n for n in self.topology.nodes if n.name not in words})
        return ""

    def leap(self, second: int, words: list[str]) -> str:
        """Several events that are seen as one: ``-C +D``."""
        gone = {word[1:] for word in words if word[0] == "-"}
        nodes = {n.name: n for n in self.topology.nodes if n.name not in gone}
        nodes.update({w[1:]: Node(name=w[1:]) for w in words if w[0] == "+"})
        self._topology(nodes)
        return ""

    def sql(self, second: int, words: list[str]) -> str:
        statement = parse(" ".join(words))
        assert not isinstance(statement, (Describe, Select))
        try:
            self.catalog = self.catalog.apply(statement)
        except SqlError as error:
            return f"{type(error).__name__}: {error}"
        zone = self.catalog.zones.get(statement.name.full)
        return "" if zone is None else data_nodes.warning(zone, self.topology) or ""

    def down(self, second: int, words: list[str]) -> str:
        """The whole cluster stops."""
        self.down_since, self.up = at(second), False
        return ""

    def resume(self, second: int, words: list[str]) -> str:
        """It starts again, with these nodes at first."""
        self.up = True
        for invoke in manager.resume(self.store, self.down_since, at(second)):
            self._do(invoke)
        self._topology({node.name: node for node in self.topology.nodes if node.name in words})
        return ""

    def state(self, zone: str = "Z") -> DataNodes:
        state = manager.read(self.store, self.catalog.zones[zone].id)
        assert state is not None
        return state

    def _topology(self, nodes: dict[str, Node]) -> None:
        self.topology = Topology(
            revision=self.topology.revision + 1,
            nodes=tuple(nodes[name] for name in sorted(nodes)),
        )

    def _fire_until(self, ts: int) -> None:
        while self.up and (due := manager.next_due(self.store)) is not None and due < ts:
            self._step(due)

    def _step(self, ts: int) -> None:
        if not self.up:
            return
        for invoke in manager.step(self.store, self.catalog, self.topology, ts):
            assert self._do(invoke)
        assert manager.step(self.store, self.catalog, self.topology, ts) == ()

    def _do(self, invoke: Invoke) -> bool:
        return self.store.apply(Entry(1, 1, encode_invoke(invoke))).success

    def _entries(self) -> list[str]:
        lines = []
        for name in sorted(self.catalog.zones):
            zone = self.catalog.zones[name]
            state = manager.read(self.store, zone.id)
            for entry in () if state is None else state.history:
                if self.told.get((zone.id, entry.ts)) != entry.nodes:
                    self.told[zone.id, entry.ts] = entry.nodes
                    lines.append(f"{second_of(entry.ts)} {name}: {named(entry.nodes)}")
        return lines

    def _timers(self) -> list[str]:
        lines = []
        for name in sorted(self.catalog.zones):
            state = manager.read(self.store, self.catalog.zones[name].id)
            if state is not None:
                kinds = (("up", state.up), ("down", state.down), ("joint", state.joint))
                lines += [f"  {name} {kind} {drawn(timer)}" for kind, timer in kinds if timer]
        return lines


def drawn(timer: Timer) -> str:
    joined = "".join(f" +{node.name}" for node in timer.joined)
    left = "".join(f" -{name}" for name in timer.left)
    return f"since {second_of(timer.since)}:{joined}{left}"


def played(text: str) -> str:
    """``text`` with the output of its commands as it is now."""
    script, blocks = Script(), []
    for block in text.rstrip("\n").split("\n\n"):
        command, rule, _ = f"{block}\n".partition(f"\n{RULE}\n")
        blocks.append(f"{command}\n{RULE}\n{script.do(command)}" if rule else block)
    return "\n\n".join(blocks) + "\n"


if __name__ == "__main__":
    for path in sorted(SCRIPTS.glob("*.txt")):
        path.write_text(played(path.read_text()))
