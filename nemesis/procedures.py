"""Procedures: rolling restart, full restart, and the loss of nodes one by one.

A procedure takes its nodes in steps. Each step is proven before the next begins, and recorded as
events of its node (``harness.protocols.procedures``). A step that can't be proven ends the
procedure: the run is inconclusive, and the heal starts every node that is down.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

import attrs

from harness.errors import HarnessBug, MissingCapability, PlanError
from harness.history.records import EventKind
from harness.plan.plan import options as convert
from harness.protocols import targets
from harness.protocols.cluster import Capability, Readmits, Roles, System
from harness.protocols.cluster_membership import ChangesMembers
from harness.protocols.fault_kinds import (
    FULL_RESTART,
    ROLLING_RESTART,
    SUCCESSIVE_LOSS,
    FaultKind,
)
from harness.protocols.faults import Fault, Proof, Scene, Victims
from harness.protocols.hardware import Replicas
from harness.protocols.procedures import (
    FullRestartOptions,
    ProcedureOptions,
    RollingRestartOptions,
)
from harness.tasks import together
from nemesis import node_faults, resolution
from nemesis.waits import CutOff, Failed, Limits, call, until

READMIT_EVERY_S = 5.0
WHOLE_LOOK_S = 2.0  # of one look whether the cluster is whole: its nodes are asked again and again

Record = Callable[[EventKind, str, str], None]
"""Records that a node came to a stage of its step, with the proof in words."""


@runtime_checkable
class Procedure(Protocol):
    """A ``Fault`` that takes its nodes in steps. Its row's ``hold_s`` bounds all of them together;
    it is healed as soon as they are over, unless it ``holds``: then after ``hold_s``.
    """

    holds: bool

    async def carry_out(self, scene: Scene, victims: Victims, steps: Steps) -> None:
        """Take all steps. Raises ``Failed`` for the first one that is not proven in time."""


@attrs.frozen(kw_only=True)
class Steps:
    """The verbs of one procedure under way: each is bounded, proven and recorded, and goes on to
    its end within ``uncut``.

    ``boots`` holds the boots that were seen dead, by node, for the proof that another one runs;
    ``unanswered`` the nodes whose end was asked for, until the verb has ended.
    """

    scene: Scene
    limits: Limits
    record: Record
    uncut: Callable[[], AbstractContextManager[None]] = nullcontext
    boots: dict[str, str] = attrs.field(factory=dict)
    unanswered: list[str] = attrs.field(factory=list)

    async def end(self, node: str, by: str) -> None:
        """End the program of ``node``, and prove it. Raises ``Failed``."""
        provider = self.scene.provider
        self.record(EventKind.STEP_BEGUN, node, f"{by} {node}")
        verb = provider.kill if by == "kill" else provider.stop
        self.unanswered.append(node)
        with self.uncut():
            try:
                await call(f"{by} of {node}", verb(node), self.limits.inject_s)
            except CutOff:
                raise
            except Failed:
                self.unanswered.remove(node)
                raise
        self.unanswered.remove(node)
        proof = await self._proven(lambda: self._down(node))
        self.boots.update(proof.boots)
        self.record(EventKind.STEP_DOWN, node, proof.text)

    async def begin(self, node: str) -> None:
        """Start the program of ``node``, and prove that it runs as another boot and answers.
        Raises ``Failed``.
        """
        start = node_faults.start_stopped(self.scene.provider, node)
        with self.uncut():
            await call(f"start of {node}", start, self.limits.verb_s)
        alone = Victims(nodes=(node,), roles=(), boots=self.boots)
        proof = await self._proven(
            lambda: node_faults.prove_runs(self.scene, alone), self.limits.healed_s
        )
        self.record(EventKind.STEP_UP, node, proof.text)

    async def over(self, node: str, look: Callable[[], Awaitable[Proof]] | None) -> None:
        """Wait until ``look`` shows what the next step waits for, however long that takes: the
        procedure as a whole is bounded.
        """
        text, system = "waits for nothing else", self.scene.system
        loop = asyncio.get_running_loop()
        mend_s = loop.time() + READMIT_EVERY_S
        while look is not None:
            try:
                proof = await call("a look", look(), self.limits.look_s)
            except Failed:
                proof = Proof(holds=None, text="")
            if proof.holds:
                text = proof.text
                break
            if isinstance(system, Readmits) and loop.time() >= mend_s:
                # A store that threw the node out meanwhile would never be whole again.
                back = system.readmit(self.scene.cluster, self.scene.provider, (node,))
                await call(f"readmission of {node}", back, self.limits.readmit_s)
                mend_s = loop.time() + READMIT_EVERY_S
            await asyncio.sleep(self.limits.poll_s)
        self.record(EventKind.STEP_OVER, node, text)

    async def _down(self, node: str) -> Proof:
        (look,) = await node_faults.probe(self.scene, Victims(nodes=(node,), roles=()))
        shown = node_faults.down(look)
        boots = {node: look.boot} if shown.holds and look.boot else {}
        return Proof(holds=shown.holds, text=shown.text, boots=boots)

    async def _proven(
        self, look: Callable[[], Awaitable[Proof]], limit_s: float | None = None
    ) -> Proof:
        proof = await until(look, limit_s or self.limits.proof_s, self.limits)
        if not proof.holds:
            raise Failed(proof.text)
        return proof


class Plan(Protocol):
    """The steps of a kind of procedure."""

    async def __call__(
        self, scene: Scene, victims: Victims, steps: Steps, options: ProcedureOptions
    ) -> None:
        """Take them. Raises ``Failed``."""


@attrs.frozen(kw_only=True)
class ProcedureFault:
    """A ``Fault`` and ``Procedure`` that takes its nodes by the steps of ``plan``."""

    kind: FaultKind
    plan: Plan
    options_type: type[ProcedureOptions] = ProcedureOptions
    options: ProcedureOptions | None = None
    holds: bool = False

    def with_options(self, options: Mapping[str, Any], partitions: int | None, path: str) -> Fault:
        """The procedure with ``options``."""
        return attrs.evolve(self, options=convert(self.options_type, options, path))

    def check(self, target: str, nodes: tuple[str, ...], partitions: int | None, path: str) -> None:
        """Refuse a text that is no target here, and an order that can't be that of its nodes."""
        parsed = targets.checked(target, self.kind.strength, nodes, partitions, path)
        order = self._given.order
        if isinstance(order, str):
            return
        at = f"{path.removesuffix('.target')}.options.order"
        if len(set(order)) < len(order):
            raise PlanError(at, f"expected each name once (got {', '.join(order)})")
        named = {targets.Form.NAMED: parsed.nodes, targets.Form.ALL: nodes}.get(parsed.form)
        if named is None:
            raise PlanError(at, f"names are the order of named nodes or of all (got {target!r})")
        if set(order) != set(named):
            expected = ", ".join(sorted(named))
            raise PlanError(at, f"expected the nodes of the target, {expected} ({order!r:.200})")

    def check_system(self, system: System, path: str) -> None:
        """Refuse to wait for what the store does not tell."""
        wait = self._given.wait if isinstance(self._given, RollingRestartOptions) else ""
        what, instead = f"fault {self.kind.name!r}", 'wait = "time" waits for pause_s alone'
        if wait == "whole" and not isinstance(system, Replicas):
            why = f"system {system.name!r} does not tell when it is whole; {instead}"
            raise PlanError(f"{path}.wait", why)
        if wait == "rebalance" and not isinstance(system, ChangesMembers):
            why = f"system {system.name!r} does not tell whether data moves; {instead}"
            raise MissingCapability(what, Capability.MEMBERS, why)

    def resolve(
        self, target: str, roles: Roles, nodes: tuple[str, ...], draw: int
    ) -> Victims | None:
        """The nodes that ``target`` means now, ascending: their order is found step by step."""
        hit = resolution.resolve(targets.parse(target), roles, nodes, draw)
        return None if hit is None else Victims(nodes=hit.nodes, roles=hit.roles, draw=draw)

    async def carry_out(self, scene: Scene, victims: Victims, steps: Steps) -> None:
        """See ``Procedure``."""
        await self.plan(scene, victims, steps, self._given)

    async def inject(self, scene: Scene, victims: Victims) -> None:
        """Nothing: the steps do it."""

    async def prove(self, scene: Scene, victims: Victims) -> Proof:
        """Nothing is left to prove: each step was."""
        return Proof(holds=True, text="each step was proven")

    async def heal(self, scene: Scene, victims: Victims) -> None:
        """Start what is down."""
        await together(node_faults.start_stopped(scene.provider, node) for node in victims.nodes)

    async def prove_healed(self, scene: Scene, victims: Victims) -> Proof:
        """Every node runs, as another boot than those that were seen dead, and answers."""
        return await node_faults.prove_runs(scene, victims)

    @property
    def _given(self) -> ProcedureOptions:
        return self.options if self.options is not None else self.options_type()


def rolling_restart() -> ProcedureFault:
    """Each target in turn ends and starts again; the next waits until the cluster is whole, until
    no data moves, or for a time. `hold_s` bounds all of it.
    """
    return ProcedureFault(kind=ROLLING_RESTART, plan=_roll, options_type=RollingRestartOptions)


async def _roll(scene: Scene, victims: Victims, steps: Steps, options: ProcedureOptions) -> None:
    if not isinstance(options, RollingRestartOptions):
        raise HarnessBug(f"options of a rolling restart: got {options!r:.200}")
    turns = _Turns(scene, victims, options.order)
    while (node := await turns.next()) is not None:
        await steps.end(node, options.by)
        await asyncio.sleep(options.down_s)
        await steps.begin(node)
        await steps.over(node, _waits_for(scene, options.wait, victims))
        await asyncio.sleep(options.pause_s if turns.left else 0.0)


def full_restart() -> ProcedureFault:
    """All targets end together, then start again one after the other. `hold_s` bounds all of it."""
    return ProcedureFault(kind=FULL_RESTART, plan=_restart_all, options_type=FullRestartOptions)


async def _restart_all(
    scene: Scene, victims: Victims, steps: Steps, options: ProcedureOptions
) -> None:
    turns = _Turns(scene, victims, options.order)
    # Who leads is known only before all are down.
    order = [node async for node in turns]
    await together(steps.end(node, options.by) for node in order)
    await asyncio.sleep(options.down_s if isinstance(options, FullRestartOptions) else 0.0)
    for number, node in enumerate(order):
        if number:
            await asyncio.sleep(options.pause_s)
        # Not proven one by one: a node answers once a majority of all runs.
        await call(
            f"start of {node}",
            node_faults.start_stopped(scene.provider, node),
            steps.limits.verb_s,
        )
    await together(steps.begin(node) for node in order)
    await together(steps.over(node, _whole_if_told(scene)) for node in order)


def successive_loss() -> ProcedureFault:
    """The targets end one after the other, `pause_s` apart, and stay down; healing starts them
    again.
    """
    return ProcedureFault(kind=SUCCESSIVE_LOSS, plan=_lose, holds=True)


async def _lose(scene: Scene, victims: Victims, steps: Steps, options: ProcedureOptions) -> None:
    turns = _Turns(scene, victims, options.order)
    while (node := await turns.next()) is not None:
        await steps.end(node, options.by)
        await asyncio.sleep(options.pause_s if turns.left else 0.0)


class _Turns:
    """Whose turn is next among the victims, in the order that a plan asks for."""

    def __init__(self, scene: Scene, victims: Victims, order: str | Sequence[str]) -> None:
        self.left = sorted(victims.nodes)
        self._scene, self._order = scene, order
        random.Random(victims.draw).shuffle(self.left)  # what is equal otherwise is drawn
        if order == "by-name":
            self.left.sort(key=_natural)
        elif not isinstance(order, str):
            # Of a fault that a moment chose some may be absent.
            self.left.sort(key=lambda node: list(order).index(node) if node in order else -1)

    async def next(self) -> str | None:
        """Return the node whose turn it is, and take it off; ``None`` after the last."""
        if not self.left:
            return None
        if self._order == "leader-last":
            self.left.sort(key=_leads(await self._scene.system.roles(self._scene.cluster)))
        return self.left.pop(0)

    def __aiter__(self) -> _Turns:
        return self

    async def __anext__(self) -> str:
        node = await self.next()
        if node is None:
            raise StopAsyncIteration
        return node


def _leads(roles: Roles) -> Callable[[str], tuple[bool, int]]:
    """How much a node leads: metastorage before any number of partitions."""
    holders = [*roles.leaders.values(), *(roles.primaries or {}).values()]
    return lambda node: (
        node in (roles.metastorage_leader, roles.management_leader),
        holders.count(node),
    )


def _natural(name: str) -> tuple[str, int]:
    """``n2`` before ``n10``."""
    stem = name.rstrip("0123456789")
    return stem, int(name[len(stem) :] or 0)


def _waits_for(scene: Scene, wait: str, victims: Victims) -> Callable[[], Awaitable[Proof]] | None:
    if wait == "time":
        return None
    return (lambda: _settled(scene, victims)) if wait == "rebalance" else _whole_if_told(scene)


def _whole_if_told(scene: Scene) -> Callable[[], Awaitable[Proof]] | None:
    system = scene.system
    if not isinstance(system, Replicas):
        return None

    async def look() -> Proof:
        lacking = await system.lacking(scene.cluster, WHOLE_LOOK_S)
        return Proof(holds=not lacking, text="; ".join(lacking) or "every replica has everything")

    return look


async def _settled(scene: Scene, victims: Victims) -> Proof:
    whole = _whole_if_told(scene)
    shown = Proof(holds=True, text="") if whole is None else await whole()
    system = scene.system
    if not shown.holds or not isinstance(system, ChangesMembers):
        return shown
    moving = await system.unsettled(scene.cluster, victims.nodes)
    return Proof(holds=not moving, text="; ".join(moving) or "whole, and no data moves")
