"""The nodes that each fault takes: chosen from its target just before it acts, and reserved from
then until its heal is proven.

A fault gets no node on which another one acts through the same mechanism (``nemesis.exclusion``):
it tries again for a while, and is skipped then. A change for good is a step of a procedure, and
waits for the steps before it; where one of these did not come about it is skipped, since it would
rest on nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import attrs

from harness.clock import NS_PER_S, substream
from harness.history.records import FaultState
from harness.protocols.cluster import Roles
from harness.protocols.faults import (
    Fault,
    PlannedFault,
    Scene,
    Victims,
    WaitsForPoint,
    configured,
    resolved,
)
from harness.protocols.moments import WatchesMoments
from nemesis import active_faults, aims, exclusion
from nemesis.active_faults import Active
from nemesis.waits import Failed, Limits, call, reason


@attrs.frozen(kw_only=True)
class NotReserved:
    """A fault gets no nodes, and is over: ``state`` is how that is recorded, ``text`` why.
    ``shows_little``: without it the run shows too little to be judged.
    """

    state: FaultState
    text: str
    shows_little: bool = False


class Reservations:
    """The reservations of one schedule. No await stands between the check for busy nodes and the
    reservation: no other fault can take a node in between.
    """

    def __init__(
        self,
        schedule: Sequence[PlannedFault],
        faults: Mapping[str, Fault],
        seed: int,
        *,
        limits: Limits,
        duration_s: float | None,
        overtime_s: float,
    ) -> None:
        self._faults, self._seed, self._limits = faults, seed, limits
        self._duration_s, self._overtime_s = duration_s, overtime_s
        # For the whole schedule at once: equal rows are told apart by their count so far.
        self._streams = _streams(schedule, seed)
        self._active: dict[int, Active] = {}
        # Steps of procedures that wait for those before them, and such as did not come about: what
        # was to come after these rests on nothing.
        self._waiting_steps: set[int] = set()
        self._failed_steps: dict[int, str] = {}

    @property
    def active(self) -> Mapping[int, Active]:
        """The faults that have nodes, by number: a view."""
        return MappingProxyType(self._active)

    def every(self) -> Iterable[Active]:
        """The same without the numbers, as it is at each look."""
        return self._active.values()

    def release(self, active: Active) -> None:
        """The heal of ``active`` is proven: its nodes are free."""
        del self._active[active.number]

    def step_failed(self, number: int, text: str) -> None:
        """The change for good of that fault did not come about: later ones must not begin."""
        self._failed_steps[number] = text

    def met(self, number: int, planned: PlannedFault) -> None:
        """The moment of a fault has come, which has an offset now."""
        # Anew: the key of a stream holds the offset, which is known only now.
        self._streams[number] = _stream(self._seed, planned)

    async def reserve(
        self, scene: Scene, number: int, planned: PlannedFault, started_ns: int
    ) -> Active | NotReserved:
        """Choose the nodes of the fault and reserve them, once they are free and its turn has come.
        A fault that waits for a point of its nodes has struck there by then.
        """
        fault = configured(self._faults[planned.kind], planned, None, "options")
        if isinstance(fault, WaitsForPoint):
            return await self._at_point(scene, number, planned, fault, started_ns)
        if active_faults.for_good(fault) is None:
            return await self._once_free(scene, number, planned, fault)
        return await self._in_turn(scene, number, planned, fault, started_ns)

    async def _at_point(
        self,
        scene: Scene,
        number: int,
        planned: PlannedFault,
        fault: WaitsForPoint,
        started_ns: int,
    ) -> Active | NotReserved:
        """Wait until a node of the target has come to the fault's point, and was struck there."""
        # Without asking, where that is possible: from the offset on each operation counts.
        roles = _roles_now(scene) or await self._roles(scene)
        draw = self._streams[number].getrandbits(63)
        whole = configured(self._faults[planned.kind], planned, None, "options")
        meant = resolved(whole, planned.target, roles, scene.cluster, draw)
        if meant is None:
            return NotReserved(
                state=FaultState.SKIPPED, text=f"target {planned.target!r} is nobody"
            )

        # Called in the middle of a node's step: it can't await, and has to reserve at once.
        def claim(node: str) -> bool:
            now = _roles_now(scene) or roles
            victims = resolved(whole, node, now, scene.cluster, draw)
            if victims is None or exclusion.in_the_way(whole.kind, victims, self.every()):
                return False
            self._active[number] = Active(
                number=number, planned=planned, fault=whole, victims=victims
            )
            return True

        last_s = aims.last_s(scene.clock, planned, self._duration_s, started_ns)
        try:
            async with asyncio.timeout_at(last_s):
                await fault.await_point(scene, meant, claim)
        except TimeoutError:
            text = f"{', '.join(meant.nodes)} did not come to {fault} while it could still come"
            return NotReserved(state=FaultState.MISSED, text=text)
        return self._active[number]

    async def _in_turn(
        self, scene: Scene, number: int, planned: PlannedFault, fault: Fault, started_ns: int
    ) -> Active | NotReserved:
        """Reserve the nodes of a change for good, once the steps before it are over."""
        self._waiting_steps.add(number)
        try:
            why = await self._await_steps(scene, number, planned, started_ns)
            if why:
                # Of a procedure that lacks a step little is shown.
                found: Active | NotReserved = NotReserved(
                    state=FaultState.SKIPPED, text=why, shows_little=True
                )
            else:
                found = await self._once_free(scene, number, planned, fault)
        finally:
            self._waiting_steps.discard(number)
        if isinstance(found, NotReserved):
            self.step_failed(number, f"the step before it, {planned.kind}, was skipped")
        return found

    async def _await_steps(
        self, scene: Scene, number: int, planned: PlannedFault, started_ns: int
    ) -> str:
        """Wait until the changes of members and placement before this one, which is for good, are
        over. Returns why it must not begin: one of them failed, or the drive would end first.
        """
        last_ns = scene.clock.now_ns() + int(self._limits.wait_s * NS_PER_S)
        if self._duration_s is not None:
            give_up_s = aims.give_up_s(planned, self._duration_s + self._overtime_s)
            last_ns = max(last_ns, started_ns + int(give_up_s * NS_PER_S))
        while True:
            failed = [text for other, text in self._failed_steps.items() if other < number]
            if failed:
                return failed[0]
            before = [
                active_faults.short(active)
                for other, active in sorted(self._active.items())
                if other < number and active.fault.kind.moves_data
            ]
            if not before and not any(other < number for other in self._waiting_steps):
                return ""
            if scene.clock.now_ns() >= last_ns:
                return f"{before[0] if before else 'a step before it'} was not over in time"
            await asyncio.sleep(self._limits.poll_s)

    async def _once_free(
        self, scene: Scene, number: int, planned: PlannedFault, fault: Fault
    ) -> Active | NotReserved:
        # A leader may be missing for a moment, or a node be busy with the fault before.
        wait_s = self._limits.wait_s + (self._overtime_s if planned.aimed is None else 0.0)
        until_ns = scene.clock.now_ns() + int(wait_s * NS_PER_S)
        # At a moment there is no time to ask: the store would be past it.
        known = _roles_now(scene) if planned.aimed is not None else None
        while True:
            roles = await self._roles(scene) if known is None else known
            victims, why = self._choose(scene, number, planned, fault, roles)
            if victims is not None:
                active = Active(number=number, planned=planned, fault=fault, victims=victims)
                self._active[number] = active
                return active
            if known is not None:
                known = None  # some roles can only be asked for
                continue
            if scene.clock.now_ns() >= until_ns:
                # A moment that comes to a node which can't be struck is as good as none.
                state = FaultState.SKIPPED if planned.aimed is None else FaultState.MISSED
                return NotReserved(state=state, text=f"{why} for {wait_s:g} s")
            await asyncio.sleep(self._limits.poll_s)

    def _choose(
        self, scene: Scene, number: int, planned: PlannedFault, fault: Fault, roles: Roles
    ) -> tuple[Victims | None, str]:
        """Victims of which no other active fault holds the mechanisms, or why there are none."""
        # A draw of its own for every try: a target that hit a busy node may hit a free one next.
        draw = self._streams[number].getrandbits(63)
        try:
            victims = resolved(fault, planned.target, roles, scene.cluster, draw)
        # A kind may be a plugin's: its error skips this row, and must not end the others.
        except (Exception, SystemExit) as error:
            return None, f"resolving {planned.target!r} failed: {reason(error)}"
        if victims is None:
            return None, f"target {planned.target!r} is nobody"
        why = exclusion.in_the_way(fault.kind, victims, self.every())
        return (None, why) if why else (victims, "")

    async def _roles(self, scene: Scene) -> Roles:
        """The roles that the store reports; none where it does not answer in time."""
        try:
            return await call("roles", scene.system.roles(scene.cluster), self._limits.roles_s)
        except Failed:
            return Roles()


def _roles_now(scene: Scene) -> Roles | None:
    """The roles without asking any node, where the provider sees into them."""
    provider = scene.provider
    return provider.roles_now() if isinstance(provider, WatchesMoments) else None


def _streams(schedule: Sequence[PlannedFault], seed: int) -> list[random.Random]:
    """The random streams that decide targets. Keyed by the fault, not by its place in the schedule:
    removing a fault leaves the draws of the others alone.
    """
    seen: dict[tuple[str, str, str], int] = {}
    streams = []
    for planned in schedule:
        again = 0
        # One that aims has its offset later: it must not count among those that have theirs.
        if planned.on is None and planned.aimed is None:
            key = (planned.kind, planned.target, repr(planned.at_s))
            again = seen[key] = seen.get(key, -1) + 1
        streams.append(_stream(seed, planned, again))
    return streams


def _stream(seed: int, planned: PlannedFault, again: int = 0) -> random.Random:
    # ``repr`` is exact: two offsets that print alike stay two keys.
    key = (planned.kind, planned.target, repr(planned.at_s))
    return substream(seed, "nemesis target", *key, again)
