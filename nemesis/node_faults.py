"""The common part of node faults; a kind adds no more than its ``Verbs``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol

import attrs
import msgspec

from harness import plugins
from harness.errors import FiredrillError, HarnessError
from harness.protocols import targets
from harness.protocols.cluster import NodeStatus, Provider, Roles
from harness.protocols.fault_kinds import (
    FREEZE,
    HOST_LOSS,
    KILL,
    PAUSE,
    RESTART,
    FaultKind,
    Mechanism,
)
from harness.protocols.faults import Proof, Scene, Victims
from harness.tasks import together
from nemesis import resolution

LOOK_LIMIT_S = 3.0  # before a strike, which has to come in time all the same
BESIDE = "is under another fault"


class Verbs(Protocol):
    """A kind of node fault: the provider's verb that injects it, its undo, and the observation that
    proves it.
    """

    async def inject(self, provider: Provider, node: str) -> object:
        """Break ``node``."""

    async def heal(self, provider: Provider, node: str) -> None:
        """Mend ``node``. Idempotent."""

    def effective(self, look: NodeStatus) -> Proof:
        """Whether ``look`` shows the node broken."""


@attrs.frozen(kw_only=True)
class NodeFault:
    """A ``Fault`` that acts on all its target nodes at once: one after the other would let the
    store react in between.

    Where the kind silences programs the proof of the effect also asks the targets, and none may
    answer. A kind that ends programs has no effect where none ran.
    """

    kind: FaultKind
    verbs: Verbs

    def check(self, target: str, nodes: tuple[str, ...], partitions: int | None, path: str) -> None:
        """Refuse a text that is no target here, and one with a strength: these kinds have none."""
        targets.checked(target, self.kind.strength, nodes, partitions, path)

    def resolve(
        self, target: str, roles: Roles, nodes: tuple[str, ...], draw: int
    ) -> Victims | None:
        """The nodes that ``target`` means now."""
        hit = resolution.resolve(targets.parse(target), roles, nodes, draw)
        return None if hit is None else Victims(nodes=hit.nodes, roles=hit.roles)

    async def inject(self, scene: Scene, victims: Victims) -> None:
        """Break all targets. Raises ``HarnessError`` where the kind ends programs and one had
        ended before.
        """
        dead: list[str] = []
        if self.kind.ends_program:
            # All are looked at before the first is struck: they are struck together.
            dead = await together(_dead(scene.provider, node) for node in victims.nodes)
        await together(_acted(self.verbs.inject, scene, node) for node in victims.nodes)
        if any(dead):
            raise HarnessError("; ".join(filter(None, dead)))

    async def prove(self, scene: Scene, victims: Victims) -> Proof:
        """A probe shows every target broken, and none answers where the kind silences."""
        looks = await probe(scene, victims)
        shown = _all(map(self.verbs.effective, looks))
        if shown.holds and self.kind.silences_program:
            shown = _all((shown, await _prove_silent(scene, victims)))
        # Only of programs seen down: a paused or frozen one goes on as the same boot.
        boots = {look.node: look.boot for look in looks if look.boot and not look.running}
        return msgspec.structs.replace(shown, boots=boots)

    async def heal(self, scene: Scene, victims: Victims) -> None:
        """Mend all targets."""
        await together(_acted(self.verbs.heal, scene, node) for node in victims.nodes)

    async def prove_healed(self, scene: Scene, victims: Victims) -> Proof:
        """Every target runs, as another boot than one that was seen dead, is neither paused nor
        frozen, and answers.
        """
        return await prove_runs(scene, victims)


async def _acted(
    verb: Callable[[Provider, str], Awaitable[object]], scene: Scene, node: str
) -> None:
    """Call ``verb``, which may be a plug-in's. Raises ``HarnessError`` where it leaves by
    ``sys.exit``: in a task of its own that would end the loop.
    """
    try:
        await verb(scene.provider, node)
    except SystemExit as error:
        raise HarnessError(plugins.told(error)) from error


async def prove_runs(scene: Scene, victims: Victims) -> Proof:
    """Whether every target runs, as another boot than one that was seen dead, is neither paused nor
    frozen, and answers. Not asked: whether a program runs that another fault holds, and whether a
    node under any other fault answers.
    """
    looks = await probe(scene, victims)
    ours = [look for look in looks if Mechanism.PROGRAM not in scene.burdens(look.node)]
    held = [why for look in ours if (why := _why_not(look, victims.boots.get(look.node)))]
    if held:
        return Proof(holds=False, text="; ".join(held))
    free = tuple(look.node for look in ours if not scene.burdens(look.node))
    if silent := await _silent(scene, free):
        text = f"{', '.join(silent)} runs but tells no roles"
        # ``gone``: it runs again, so what it still recovers from is no effect of the fault.
        return Proof(holds=False, text=text, gone=True)
    told = [
        f"{look.node} runs (boot {look.boot}) and "
        + ("tells roles" if look.node in free else BESIDE)
        for look in ours
    ]
    told += [f"{look.node} {BESIDE}" for look in looks if look not in ours]
    return Proof(holds=True, text="; ".join(told))


def down(look: NodeStatus) -> Proof:
    """Whether no program runs on the node. The proof leaves out the last line of the node's log: a
    killed program did not end because of a line that it wrote before.
    """
    if look.running:
        return Proof(holds=False, text=f"{look.node} still runs (pid {look.pid})")
    ended = f" ({look.exit_text})" if look.exit_text else ""
    return Proof(holds=True, text=f"{look.node} does not run{ended}")


async def start_stopped(provider: Provider, node: str) -> None:
    """Start the program unless it runs."""
    if not (await provider.probe(node)).running:
        await provider.start(node)


async def _dead(provider: Provider, node: str) -> str:
    """A sentence that the program of ``node`` does not run; empty where it runs, or the probe
    fails.
    """
    try:
        async with asyncio.timeout(LOOK_LIMIT_S):
            look = await provider.probe(node)
    # A look that fails must not hold up the strike: the proof of the effect looks again.
    except (TimeoutError, FiredrillError):
        return ""
    return "" if look.running else f"{node} was dead before {look.end}".rstrip()


async def probe(scene: Scene, victims: Victims) -> list[NodeStatus]:
    """The provider's status of every victim, in their order."""
    return await together(scene.provider.probe(node) for node in victims.nodes)


def _all(proofs: Iterable[Proof]) -> Proof:
    """One proof of several: it holds where all hold, else its text is that of those that don't."""
    every = tuple(proofs)
    wrong = tuple(proof for proof in every if not proof.holds)
    return Proof(holds=not wrong, text="; ".join(proof.text for proof in wrong or every))


async def _prove_silent(scene: Scene, victims: Victims) -> Proof:
    """Whether no victim answers."""
    silent = await _silent(scene, victims.nodes)
    talking = [node for node in victims.nodes if node not in silent]
    if talking:
        return Proof(holds=False, text=f"{', '.join(talking)} still answers")
    return Proof(holds=True, text=f"no answer from {', '.join(silent)}")


def _why_not(look: NodeStatus, dead: str | None) -> str:
    """Why the node can't serve; empty where nothing hinders it. Boot ``dead`` was seen dead, so it
    can't.
    """
    if not look.running:
        return f"{look.node} does not run {look.end}".rstrip()
    if dead is not None and look.boot == dead:
        return f"{look.node} runs as the boot that was seen dead ({dead})"
    if look.frozen:
        return f"{look.node} is frozen"
    return f"{look.node} {_paused(look)}" if look.paused else ""


def _paused(look: NodeStatus) -> str:
    # A simulated program has no process.
    return "is paused" if look.pid is None else f"is paused (pid {look.pid})"


async def _silent(scene: Scene, nodes: tuple[str, ...]) -> list[str]:
    answers = await together(_answers(scene, node) for node in nodes)
    return [node for node, told in zip(nodes, answers, strict=True) if not told]


async def _answers(scene: Scene, node: str) -> bool:
    """Whether ``node`` itself reports any role: it is asked as if it were the whole cluster."""
    alone = attrs.evolve(scene.cluster, nodes=(node,))
    return await scene.system.roles(alone) != Roles()


def kill() -> NodeFault:
    """SIGKILL the program on the targets; healing starts it again."""
    return NodeFault(kind=KILL, verbs=Kill())


class Kill:
    """``nemesis.node_faults.Verbs``."""

    async def inject(self, provider: Provider, node: str) -> object:
        """SIGKILL."""
        return await provider.kill(node)

    async def heal(self, provider: Provider, node: str) -> None:
        """Start it."""
        await start_stopped(provider, node)

    def effective(self, look: NodeStatus) -> Proof:
        """Whether it is down."""
        return down(look)


def pause() -> NodeFault:
    """SIGSTOP the program on the targets; healing sends SIGCONT."""
    return NodeFault(kind=PAUSE, verbs=Pause())


class Pause:
    """``nemesis.node_faults.Verbs``."""

    async def inject(self, provider: Provider, node: str) -> object:
        """SIGSTOP."""
        return await provider.pause(node)

    async def heal(self, provider: Provider, node: str) -> None:
        """SIGCONT, where it is paused."""
        # A program that died meanwhile can't be resumed: ``prove_healed`` reports that it is down.
        if (await provider.probe(node)).paused:
            await provider.resume(node)

    def effective(self, look: NodeStatus) -> Proof:
        """Whether the program is stopped by a signal."""
        paused = _paused(look) if look.paused else "is not paused"
        return Proof(holds=look.paused, text=f"{look.node} {paused}")


def restart() -> NodeFault:
    """SIGTERM the program on the targets and wait for its end; healing starts it again.

    It stays down for as long as the fault holds.
    """
    return NodeFault(kind=RESTART, verbs=Restart())


class Restart:
    """``nemesis.node_faults.Verbs``."""

    async def inject(self, provider: Provider, node: str) -> object:
        """SIGTERM, and the end."""
        return await provider.stop(node)

    async def heal(self, provider: Provider, node: str) -> None:
        """Start it."""
        await start_stopped(provider, node)

    def effective(self, look: NodeStatus) -> Proof:
        """Whether it is down."""
        return down(look)


def freeze() -> NodeFault:
    """Freeze the targets' machines; healing lets them go on."""
    return NodeFault(kind=FREEZE, verbs=Freeze())


class Freeze:
    """``nemesis.node_faults.Verbs``."""

    async def inject(self, provider: Provider, node: str) -> object:
        """Freeze the machine."""
        return await provider.freeze(node)

    async def heal(self, provider: Provider, node: str) -> None:
        """Let the machine go on."""
        await provider.thaw(node)

    def effective(self, look: NodeStatus) -> Proof:
        """Whether the machine stands still."""
        frozen = "is frozen" if look.frozen else "is not frozen"
        return Proof(holds=look.frozen, text=f"{look.node} {frozen}")


def host_loss() -> NodeFault:
    """Take the targets' machines away; healing brings them back, disks as they were, and starts the
    program.
    """
    return NodeFault(kind=HOST_LOSS, verbs=HostLoss())


class HostLoss:
    """``nemesis.node_faults.Verbs``."""

    async def inject(self, provider: Provider, node: str) -> object:
        """Take the machine away."""
        return await provider.lose(node)

    async def heal(self, provider: Provider, node: str) -> None:
        """Bring the machine back, then start the program unless it runs."""
        await provider.restore(node)
        await start_stopped(provider, node)

    def effective(self, look: NodeStatus) -> Proof:
        """Whether nothing runs there."""
        return down(look)
