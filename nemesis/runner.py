"""The nemesis: applies a schedule of faults, and heals each of them.

Every fault passes through one life cycle: planned, resolved, injected, proven
effective, held, healed, proven healed. Faults overlap, on one node as well, unless they act through
the same mechanism there; each proof looks at its own. A network fault only states the links that it
cuts, and the provider is given the union of all that are in force.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import attrs

from harness.clock import NS_PER_S
from harness.errors import MissingCapability
from harness.history.records import (
    EventKind,
    FaultState,
    FaultTransition,
    Note,
    Record,
    StoreEvent,
)
from harness.protocols.cluster import Capability, Readmits
from harness.protocols.faults import (
    Fault,
    PlannedFault,
    Proof,
    Scene,
    Victims,
)
from harness.protocols.moments import Happening, RolesHeard, WatchesMoments, moment_of
from harness.tasks import together
from nemesis import active_faults, aims
from nemesis.active_faults import Active
from nemesis.procedures import Procedure, Steps
from nemesis.reservations import Reservations
from nemesis.waits import CutOff, Failed, FaultTasks, Limits, call, reason, until

# Its nodes are taken until a heal is proven: on a busy machine a late proof is no reason to leave
# them out of all that is still to come.
MEND_TRIES = 4


def refuse_missing(
    schedule: Sequence[PlannedFault],
    faults: Mapping[str, Fault],
    capabilities: Collection[Capability],
    why: Mapping[Capability, str] = MappingProxyType({}),
) -> None:
    """Raise ``MissingCapability`` for the first fault of ``schedule`` that this provider can't
    inject; ``why`` gives the obstacle of some capabilities.
    """
    for kind in dict.fromkeys(planned.kind for planned in schedule):
        # Sorted, so that every run of a plan is refused with the same sentence.
        for capability in sorted(faults[kind].kind.needs):
            if capability not in capabilities:
                remedy = "leave it out or choose another provider"
                told = f"{why[capability]}; {remedy}" if capability in why else remedy
                raise MissingCapability(f"fault {kind!r}", capability.value, told)


class Nemesis:
    """``harness.protocols.faults.Nemesis`` for a materialised schedule.

    It never raises for a failure of a fault, the provider or the store: the failure is recorded,
    and added to ``trouble`` where it makes the run inconclusive. ``heal_all`` tries a heal again
    that is not proven in time.
    """

    def __init__(
        self,
        *,
        schedule: Sequence[PlannedFault],
        faults: Mapping[str, Fault],
        seed: int,
        write: Callable[[Record], None],
        limits: Limits | None = None,
        duration_s: float | None = None,
        overtime_s: float = 0.0,
    ) -> None:
        """``faults`` holds every kind in ``schedule``; ``write`` appends to the history. A fault
        whose moment does not come in time to end within ``duration_s`` is skipped. A wait
        for other faults or for the store may last ``overtime_s`` longer than usual.
        """
        self._schedule = list(schedule)
        self._duration_s, self._overtime_s = duration_s, overtime_s
        self._aims, self._heard = aims.Aims(), RolesHeard()
        self._write = write
        self._limits = limits or Limits()
        self._reservations = Reservations(
            schedule,
            faults,
            seed,
            limits=self._limits,
            duration_s=duration_s,
            overtime_s=overtime_s,
        )
        self._active = self._reservations.active
        # Two: a destroying fault may wait seconds for whole replicas, and no cut may wait with it.
        self._cutting, self._destroying = asyncio.Lock(), asyncio.Lock()
        # By fault and phase: a heal that is proven later takes back its own reason, and no other's.
        self._trouble: dict[tuple[int, str], str] = {}
        self._tasks = FaultTasks()

    @property
    def trouble(self) -> tuple[str, ...]:
        """The reasons that make the run inconclusive, a sentence each, by fault."""
        return tuple(text for _, text in sorted(self._trouble.items()))

    @property
    def schedule(self) -> tuple[PlannedFault, ...]:
        """The schedule, with the offsets of those faults whose moments have come."""
        return tuple(self._schedule)

    def heard(self, event: StoreEvent) -> None:
        """Take in an event of the store, as late as it was fetched."""
        if (moment := moment_of(event)) is not None:
            came = Happening(moment=moment, node=event.node, partition=event.partition)
            self._heard.take(came)
            self._aims.happened(came, lambda: self._heard.roles(frozenset((came.node,))))

    def active(self) -> tuple[str, ...]:
        """Short names of the faults in force, in schedule order."""
        return tuple(active_faults.short(active) for _, active in sorted(self._active.items()))

    async def run(self, scene: Scene, started_ns: int) -> None:
        """Apply the whole schedule, offsets counted from ``started_ns``; return when it is over.

        After cancellation ``heal_all`` heals the faults left in force. Raises ``HarnessError``
        where the history takes no more records.
        """
        for number, planned in enumerate(self._schedule):
            self._record(scene, number, planned, FaultState.PLANNED)
        if isinstance(scene.provider, WatchesMoments):
            roles_now = scene.provider.roles_now
            scene.provider.watch(lambda came: self._aims.happened(came, roles_now))
        await self._tasks.run(
            self._apply(scene, number, planned, started_ns)
            for number, planned in enumerate(self._schedule)
        )

    async def heal_all(self, scene: Scene) -> None:
        """Heal every fault in force and prove it; not to be called while ``run`` goes on.
        Idempotent: the next call tries a heal again that could not be proven.
        """
        await self._tasks.settle(self._limits.inject_s)
        # A copy: each heal takes its fault out of the mapping.
        left = [active for _, active in sorted(self._active.items())]
        # Side by side: the life cycle grants the limits of one heal for all of them.
        await together(self._mend(scene, active, final=True) for active in left)

    async def _apply(
        self, scene: Scene, number: int, planned: PlannedFault, started_ns: int
    ) -> None:
        due = await self._await_due(scene, number, planned, started_ns)
        active = None if due is None else await self._reserve(scene, number, due, started_ns)
        if active is None:
            return
        planned = active.planned
        # The hold counts from the begin of the injection, however long its proof takes.
        begun_ns = scene.clock.now_ns()
        until_ns = begun_ns + int(planned.hold_s * NS_PER_S)
        if isinstance(active.fault, Procedure):
            in_force = await self._carry_out(scene, active, active.fault, until_ns)
            in_force = in_force and active.fault.holds
        else:
            in_force = await self._break(scene, active)
        if in_force:
            await scene.clock.sleep_until(until_ns)
        # Also a fault without an effect: what was tried may still take effect later.
        for _ in range(MEND_TRIES):
            if await self._mend(scene, active, final=False):
                return
            await asyncio.sleep(self._limits.wait_s)

    async def _await_due(
        self, scene: Scene, number: int, planned: PlannedFault, started_ns: int
    ) -> PlannedFault | None:
        """Return the fault at its offset, or at its moment as a fault with an offset; ``None`` once
        it was recorded as missed, since its moment did not come.
        """
        if planned.aimed is None:
            await scene.clock.sleep_until(started_ns + int(planned.at_s * NS_PER_S))
        if planned.on is not None:
            came = await self._moment(scene, planned, started_ns)
            if came is None:
                by = f" by {planned.by}" if planned.by else ""
                text = f"too few {planned.on.value}{by} while it could still come"
                self._record(scene, number, planned, FaultState.MISSED, text=text)
                return None
            planned = aims.materialised(planned, came, scene.clock.now_ns() - started_ns)
            # The record then holds the offset that it met: a replay strikes at the same instant.
            self._schedule[number] = planned
            self._reservations.met(number, planned)
        if planned.aimed is not None:
            await _wake(scene.clock.loop_time(started_ns + int(planned.at_s * NS_PER_S)))
        return planned

    async def _moment(
        self, scene: Scene, planned: PlannedFault, started_ns: int
    ) -> Happening | None:
        try:
            last_s = aims.last_s(scene.clock, planned, self._duration_s, started_ns)
            async with asyncio.timeout_at(last_s):
                return await self._aims.wait(planned)
        except TimeoutError:
            return None

    async def _reserve(
        self, scene: Scene, number: int, planned: PlannedFault, started_ns: int
    ) -> Active | None:
        """Reserve the fault's nodes; ``None`` once the fault was recorded as skipped or missed."""
        found = await self._reservations.reserve(scene, number, planned, started_ns)
        if isinstance(found, Active):
            return found
        self._record(scene, number, planned, found.state, text=found.text)
        if found.shows_little:
            text = f"fault {number} ({planned.kind}) skipped: {found.text}"
            self._trouble[number, "effect"] = text
        return None

    async def _break(self, scene: Scene, active: Active) -> bool:
        """Inject and prove; whether the fault is proven effective."""
        # First: from here on the fault may act; reports shade the time up to its proof.
        self._note(scene, active, FaultState.INJECTING)
        try:
            await self._inject(scene, active)
        except Failed as failure:
            active.cut_off = isinstance(failure, CutOff)
            return self._unproven(scene, active, "effect", f"not injected: {failure}")
        except asyncio.CancelledError:
            self._settled(scene, active, under_way=active.struck)
            raise
        self._note(scene, active, FaultState.INJECTED)
        proof = await until(
            # Taken anew at every look: other faults begin and end between two of them.
            lambda: active.fault.prove(
                self._among(scene, active), active_faults.observable(active, self._active.values())
            ),
            self._limits.proof_s,
            self._limits,
        )
        if not proof.holds:
            lacking = "effect can't be shown" if proof.holds is None else "no effect"
            return self._unproven(scene, active, "effect", f"{lacking}: {proof.text}")
        # The heal is proven by another boot than those that the fault met.
        active.victims = attrs.evolve(active.victims, boots=proof.boots)
        met = active.planned.aimed
        self._note(
            scene, active, FaultState.EFFECTIVE, f"{met}: {proof.text}" if met else proof.text
        )
        return True

    async def _carry_out(
        self, scene: Scene, active: Active, procedure: Procedure, until_ns: int
    ) -> bool:
        """Take the steps of a procedure until ``until_ns`` at the latest; whether all are proven.
        Its effect is proven with its first node.
        """
        clock, shown = scene.clock, False

        def record(stage: EventKind, node: str, text: str) -> None:
            nonlocal shown
            if stage is EventKind.STEP_DOWN and not shown:
                shown = True
                self._note(scene, active, FaultState.INJECTED)
                self._note(scene, active, FaultState.EFFECTIVE, text)
            now_ns, of = clock.now_ns(), f"fault {active.number}"
            self._write(
                StoreEvent(
                    kind=stage,
                    node=node,
                    wall_ns=clock.wall_ns(),
                    boot="",
                    at_ns=now_ns,
                    uncertainty_ns=0,
                    text=f"{of}: {text}",
                )
            )

        self._note(scene, active, FaultState.INJECTING)
        active.struck = True
        beside, uncut = self._among(scene, active), self._tasks.uncut
        steps = Steps(scene=beside, limits=self._limits, record=record, uncut=uncut)
        problem = ""
        try:
            async with asyncio.timeout_at(clock.loop_time(until_ns)) as bound:
                await procedure.carry_out(steps.scene, active.victims, steps)
        except Failed as failure:
            problem = str(failure)
        # A kind may be a plugin's, as in ``call``: its error must not keep it from being healed.
        except (Exception, SystemExit) as error:
            over = isinstance(error, TimeoutError) and bound.expired()
            late = f"not over within hold_s, {active.planned.hold_s:g} s"
            problem = late if over else reason(error)
        except asyncio.CancelledError:
            self._settled(scene, active, under_way=bool(steps.unanswered))
            raise
        # The heal is proven by other boots than those that the steps have ended.
        active.victims = attrs.evolve(active.victims, boots=steps.boots)
        active.cut_off = bool(steps.unanswered)
        return not problem or self._unproven(scene, active, "effect", f"a step failed: {problem}")

    def _settled(self, scene: Scene, active: Active, *, under_way: bool) -> None:
        """Note a fault whose verb, ``under_way``, was waited for behind the drive, in vain."""
        if under_way:
            active.cut_off = True
            self._unproven(scene, active, "effect", "not injected: it had not ended when all heals")

    async def _inject(self, scene: Scene, active: Active) -> None:
        with self._tasks.uncut():
            await self._enforce(scene, active.victims)
        limit_s = self._limits.inject_s + self._overtime_s
        await call("inject", self._strike(scene, active), limit_s)

    async def _strike(self, scene: Scene, active: Active) -> None:
        """Inject, one at a time of those that take replicas away: two at once would each find the
        other's victims whole.
        """
        async with (
            self._destroying if active.fault.kind.takes_replicas else contextlib.nullcontext()
        ):
            # Before the call: an injection that fails half-way may have destroyed data, too.
            active.struck = True
            with self._tasks.uncut():
                told = await active.fault.inject(self._among(scene, active), active.victims)
                if isinstance(told, Victims):
                    active.victims = told

    def _among(self, scene: Scene, active: Active) -> Scene:
        """``scene`` as ``active`` is to see it, beside the other faults."""
        every = self._active.values()  # a view: as it is when the fault asks
        return attrs.evolve(
            scene,
            patience_s=self._overtime_s,
            damaged=partial(active_faults.damaged, active, every),
            burdens=partial(active_faults.burdens, active, every),
        )

    async def _mend(self, scene: Scene, active: Active, *, final: bool) -> bool:
        """Heal the fault and prove it; whether that worked. After a failure the fault stays active
        for the next try. The last try is that of ``heal_all``: its failure is recorded as unproven,
        and the fault stays active so that a person can try once more. So does, until the last try,
        a fault whose injection was cut off.
        """
        # Once a row: further tries belong to the same healing, which begins with the first.
        if final or not active.mending:
            self._note(scene, active, FaultState.HEALING)
        # From here on the union of cuts no longer holds this fault's links.
        active.mending = True
        try:
            await self._enforce(scene, active.victims)
            burdens = partial(active_faults.burdens, active, self._active.values())
            work = active.fault.heal(attrs.evolve(scene, burdens=burdens), active.victims)
            await call("heal", work, self._limits.verb_s)
            await self._readmit(scene, active)
            proof = await until(
                lambda: self._look_healed(scene, active), self._limits.healed_s, self._limits
            )
            if proof.holds:
                await self._judge_step(scene, active)
        except Failed as failure:
            proof = Proof(holds=False, text=str(failure))
        if proof.holds and active.cut_off and not final:
            # Its nodes stay taken: what may still act would act within the fault that comes next.
            behind = "its injection was cut off, may still act, and is healed again"
            self._remark(scene, active, f"not healed for good: {behind} ({proof.text})")
            return False
        if proof.holds:
            self._close(scene, active, proof)
        elif final:
            lacking = "heal can't be shown" if proof.holds is None else "not healed"
            if active.gone_ns is not None:
                # The fault is gone: that a node still does not serve is no effect of it.
                self._note(scene, active, FaultState.HEALED, proof.text, active.gone_ns)
            self._unproven(scene, active, "heal", f"{lacking}: {proof.text}")
        else:
            self._remark(scene, active, f"not healed yet: {proof.text}")
        return bool(proof.holds)

    async def _look_healed(self, scene: Scene, active: Active) -> Proof:
        victims = active_faults.healable(active, self._active.values())
        proof = await active.fault.prove_healed(self._among(scene, active), victims)
        if not proof.gone:
            # It showed again: the end that is recorded is that of its last disappearance.
            active.gone_ns = None
        elif active.gone_ns is None:
            active.gone_ns = scene.clock.now_ns()
        return proof

    async def _judge_step(self, scene: Scene, active: Active) -> None:
        """Remember a change for good that was taken back in place of being made."""
        step = active_faults.for_good(active.fault)
        # One that was proven effective was made, and what follows on it may be under way.
        if step is not None and (active.number, "effect") in self._trouble:
            work = step.came_about(scene, active.victims)
            if not await call("a look", work, self._limits.look_s):
                text = f"the step before it, {active_faults.short(active)}, did not come about"
                self._reservations.step_failed(active.number, text)

    async def _readmit(self, scene: Scene, active: Active) -> None:
        """Let the system readmit the nodes that it removed, where it does not do so by itself. A
        node under another fault waits for the heal of that one.
        """
        system, seen = scene.system, self._among(scene, active)
        nodes = tuple(node for node in active.victims.nodes if not seen.burdens(node))
        if nodes and isinstance(system, Readmits):
            work = system.readmit(scene.cluster, scene.provider, nodes)
            if back := await call("readmit", work, self._limits.readmit_s):
                self._remark(scene, active, f"{', '.join(back)} had been thrown out, restarted")

    def _remark(self, scene: Scene, active: Active, text: str) -> None:
        self._write(Note(at_ns=scene.clock.now_ns(), fault=active.number, text=text))

    def _close(self, scene: Scene, active: Active, proof: Proof) -> None:
        """The heal is proven: record it, and free the nodes."""
        self._note(scene, active, FaultState.HEALED, proof.text)
        self._reservations.release(active)
        # A later ``heal_all`` proved what an earlier one could not: the run is conclusive again.
        self._trouble.pop((active.number, "heal"), None)

    async def _enforce(self, scene: Scene, changed: Victims) -> None:
        """Give the provider the union of the cuts and shapes in force now, as far as ``changed``
        has a part in it. Raises ``Failed``.
        """
        if changed.grudge:
            await call("cut", self._cut(scene), self._limits.verb_s)
        if changed.shapes:
            await call("shape", self._shape(scene), self._limits.verb_s)

    async def _cut(self, scene: Scene) -> None:
        """One call at a time: a cut with an older union that is still under way must not land after
        this one.
        """
        async with self._cutting:
            await scene.provider.cut(active_faults.grudge(self._active.values()))

    async def _shape(self, scene: Scene) -> None:
        """As ``_cut``, for shapes."""
        async with self._cutting:
            await scene.provider.shape(active_faults.shapes(self._active.values()))

    def _unproven(self, scene: Scene, active: Active, what: str, text: str) -> bool:
        self._note(scene, active, FaultState.UNPROVEN, text)
        self._trouble[active.number, what] = (
            f"fault {active.number} ({active_faults.short(active)}): {text}"
        )
        return False

    def _note(
        self,
        scene: Scene,
        active: Active,
        state: FaultState,
        text: str = "",
        at_ns: int | None = None,
    ) -> None:
        self._record(scene, active.number, active.planned, state, active.victims, text, at_ns)

    def _record(
        self,
        scene: Scene,
        number: int,
        planned: PlannedFault,
        state: FaultState,
        victims: Victims | None = None,
        text: str = "",
        at_ns: int | None = None,
    ) -> None:
        self._write(
            FaultTransition(
                fault=number,
                kind=planned.kind,
                target=planned.target,
                state=state,
                at_ns=scene.clock.now_ns() if at_ns is None else at_ns,
                nodes=victims.nodes if victims else (),
                roles=tuple(map(str, victims.roles)) if victims else (),
                text=text,
            )
        )


async def _wake(at_s: float) -> None:
    """Return at the loop's ``at_s``, exactly: a delay from now would be rounded otherwise in a
    replay, which begins to wait earlier.
    """
    loop = asyncio.get_running_loop()
    due = loop.create_future()
    timer = loop.call_at(at_s, due.set_result, None)
    try:
        await due
    finally:
        timer.cancel()
