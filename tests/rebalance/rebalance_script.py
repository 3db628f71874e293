"""Scenario scripts with golden output: prose, then ``command``, ``----`` and what came of it.

One partition, its raft group and the loop of its leader (``group_model.Model``). ``loop`` does what
there is to do without waiting, as the node's loop does. What is shown are the keys after a command.

``python tests/rebalance/rebalance_script.py`` writes the output of every script anew; read the
difference.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from group_model import Model

from clusters.reference.node.rebalance.decisions import CancelChange, ChangePeers, wanted
from clusters.reference.node.rebalance.transitions import Variant

SCRIPTS = Path(__file__).parent / "scripts"
RULE = "----"


class Script:
    """One partition that commands act on."""

    def __init__(self) -> None:
        self.model = Model(Variant.BASE, tuple("abc"))
        self.commands: dict[str, Callable[..., object]] = {
            "group": self.group,
            "trigger": lambda nodes: self.model.trigger(tuple(nodes)),
            "loop": self.loop,
            "lose": lambda: (self.model.refresh(-1), self.model.act(-1, lose=True)),
            "caught-up": lambda: self.model.caught_up(-1),
            "committed": lambda: self.model.committed(),
            "failed": lambda: self.model.failed(-1),
            "leave": lambda node: self.model.leave(node),
            "join": lambda node: self.model.join(node),
            "elect": lambda: self.model.elect(),
            "late": lambda: self.model.deliver(0),
        }

    def do(self, line: str) -> str:
        """The output of one command."""
        verb, *words = line.split()
        before = len(self.model.outcomes)
        said = self.commands[verb](*words)
        self.model.check()
        outcomes = [str(outcome) for outcome in self.model.outcomes[before:]]
        acts = said if isinstance(said, list) else []
        return "\n".join([*filter(None, [", ".join([*outcomes, *acts])]), self.show()])

    def group(self, variant: str, nodes: str) -> None:
        self.model = Model(Variant(variant), tuple(nodes))

    def loop(self) -> list[str]:
        """Read and act until there is nothing more to do."""
        acts = []
        for _ in range(10):
            self.model.refresh(-1)
            act = self.model.act(-1)
            if act is None:
                break
            if isinstance(act, ChangePeers):
                acts.append(f"changePeers({''.join(act.nodes)}, term {act.term})")
            elif isinstance(act, CancelChange):
                acts.append("cancelChangePeers")
        return acts

    def show(self) -> str:
        state, leader = self.model.read(), self.model.leader
        sets = (("stable", state.stable), ("pending", state.pending), ("planned", state.planned))
        keys = [f"{name} {''.join(held.nodes)}" for name, held in sets if held is not None]
        if state.lock is not None:
            keys.append(f"lock {''.join(state.lock.nodes)} of term {state.lock.term}")
        raft = f"raft {''.join(self.model.voters)} {leader.stage}"
        going = f" to {''.join(leader.target)}" if leader.target else ""
        runs = f"runs {''.join(sorted(wanted(state)))}"
        return f"{', '.join(keys)}; {raft}{going}; {runs}"


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
