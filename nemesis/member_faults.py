"""Faults that change a cluster's members while clients go on: nodes join, leave, take each other's
place, and come back with other attributes.

Without ``stays`` the heal undoes the change; with it the change is for good, and over once the data
that moves for it has moved: the heal finishes one that was made by half, or takes it back. Each
tells the run's ``Membership``, so that nothing counts on a node
before it has joined or after it has left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Protocol

import attrs
import msgspec
from msgspec import Meta

from harness.errors import HarnessError, MissingCapability, PlanError
from harness.plan.plan import options as convert
from harness.protocols import targets
from harness.protocols.cluster import Capability, Cluster, Roles, System
from harness.protocols.cluster_membership import AttributeValue, ChangesMembers
from harness.protocols.fault_kinds import ATTRIBUTES, JOIN, LEAVE, REPLACE, FaultKind
from harness.protocols.faults import Fault, Proof, Scene, Victims
from harness.tasks import together
from nemesis import majority_guard, node_faults, resolution

# Within the nemesis's limit of an injection: a start, an election of metastorage's, two tries.
# Where nodes share a few cores a start alone takes seconds.
JOIN_LIMIT_S = 13.0
POLL_S = 0.1
MAX_ATTRIBUTES = 16

Given = Mapping[str, AttributeValue] | None  # ``None``: the attributes of the plan
Text = Annotated[str, Meta(min_length=1, max_length=256)]
Values = Annotated[dict[Text, Text | bool | int | float], Meta(max_length=MAX_ATTRIBUTES)]
Names = Annotated[list[Text], Meta(max_length=MAX_ATTRIBUTES)]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a change of members."""

    stays: Annotated[
        bool,
        Meta(
            description="The change is for good: the heal leaves it, and is proven once the data "
            "that moves for it has moved."
        ),
    ] = False


class AttributesOptions(Options, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a change of attributes."""

    attributes: Annotated[
        Values | Names,
        Meta(
            description="They take the place of the node's own: values by name, or a list of "
            "attributes without value."
        ),
    ]

    by: Annotated[
        Literal["stop", "kill"],
        Meta(
            description="How they end: in order, and so out of the cluster first; or killed, and "
            "back before they are missed."
        ),
    ] = "stop"

    @property
    def by_name(self) -> dict[str, str | bool | int | float | None]:
        """The attributes with their values, ``None`` for those without one."""
        given = self.attributes
        return dict.fromkeys(given) if isinstance(given, list) else dict(given)


@attrs.frozen(kw_only=True)
class Change:
    """A change of members at hand: where it acts, its nodes, and its options."""

    scene: Scene
    system: ChangesMembers
    victims: Victims
    options: Options

    @property
    def nodes(self) -> tuple[str, ...]:
        """All of its nodes."""
        return self.victims.nodes

    async def bring_in(self, nodes: Sequence[str]) -> None:
        """Start ``nodes``, and count them among the members once they have joined. Raises
        ``HarnessError``.
        """
        provider = self.scene.provider
        await together(node_faults.start_stopped(provider, node) for node in nodes)
        missing = list(nodes)
        try:
            async with asyncio.timeout(JOIN_LIMIT_S):
                while missing:
                    joined = await self.system.announced(self.scene.cluster)
                    missing = [node for node in nodes if node not in joined]
                    await asyncio.sleep(POLL_S if missing else 0)
        except TimeoutError:
            raise HarnessError(f"{', '.join(missing)} did not join") from None
        for node in nodes:
            self.scene.membership.join(node)

    async def take_out(self, nodes: Sequence[str]) -> None:
        """Stop those of ``nodes`` that are members in order, as soon as a majority of every group
        is left without them, up and whole. Nothing counts on them from then on. Raises
        ``HarnessError``.
        """
        members = [node for node in nodes if node in self.scene.cluster.nodes]
        if members:
            leaving = attrs.evolve(self.victims, nodes=tuple(members))
            await majority_guard.spare_majorities(self.scene, leaving)
            for node in members:
                self.scene.membership.leave(node)
        # Also one that was started and never joined.
        await together(self.scene.provider.stop(node) for node in nodes)

    async def members(self, nodes: Sequence[str]) -> Proof:
        """Whether ``nodes`` run and have joined, by a probe and a query."""
        looks = await together(self.scene.provider.probe(node) for node in nodes)
        joined = await self.system.announced(self.scene.cluster)
        wrong = [
            f"{look.node} does not run {look.end}".rstrip() for look in looks if not look.running
        ]
        wrong += [f"{node} has not joined" for node in nodes if node not in joined]
        told = f"{', '.join(nodes)} joined; members are {', '.join(sorted(joined))}"
        return Proof(holds=not wrong, text="; ".join(wrong) or told)

    async def strangers(self, nodes: Sequence[str]) -> Proof:
        """Whether ``nodes`` do not run and have left, by a probe and a query."""
        looks = await together(self.scene.provider.probe(node) for node in nodes)
        joined = await self.system.announced(self.scene.cluster)
        wrong = [proof.text for proof in map(node_faults.down, looks) if not proof.holds]
        wrong += [f"{node} has not left" for node in nodes if node in joined]
        told = f"{', '.join(nodes)} left; members are {', '.join(sorted(joined))}"
        boots = {look.node: look.boot for look in looks if look.boot}
        return Proof(holds=not wrong, text="; ".join(wrong) or told, boots=boots)

    async def settled(self) -> Proof:
        """Whether all data has moved for the change."""
        wrong = await self.system.unsettled(self.scene.cluster, self.nodes)
        text = "; ".join(wrong) or "all data is where it should be, nothing is pending"
        return Proof(holds=not wrong, text=text)


class Verbs(Protocol):
    """The verbs of a kind."""

    async def inject(self, change: Change) -> None:
        """Make the change, or what is left of it. Idempotent. Raises ``HarnessError``."""

    async def effective(self, change: Change) -> Proof:
        """Whether a look shows it."""

    async def undo(self, change: Change) -> None:
        """Take it back. Idempotent. Raises ``HarnessError``."""

    async def undone(self, change: Change) -> Proof:
        """Whether a look shows that it was taken back."""


@attrs.frozen(kw_only=True)
class MemberFault:
    """A ``Fault`` that changes members by ``verbs``. ``takes_out``: a change that stays takes its
    targets away for good; ``with_spares``: as many spares take part as there are targets.
    """

    kind: FaultKind
    verbs: Verbs
    takes_out: bool = False
    with_spares: bool = False
    options_type: type[Options] = Options
    options: Options | None = None

    def with_options(self, options: Mapping[str, Any], partitions: int | None, path: str) -> Fault:
        """The fault with ``options``."""
        return attrs.evolve(self, options=convert(self.options_type, options, path))

    def check_system(self, system: System, path: str) -> None:
        """Refuse a system whose members don't change, and a change for good by which data would
        stay with a node that is gone.
        """
        what = f"fault {self.kind.name!r}"
        if not isinstance(system, ChangesMembers):
            raise MissingCapability(
                what, Capability.MEMBERS, f"members of system {system.name!r} stay"
            )
        if why := system.fixed_members():
            raise MissingCapability(what, Capability.MEMBERS, why)
        # Of a node that joined and is to leave again, too.
        spares = self.kind.of_spares
        away = not spares if self._given.stays else spares or self.with_spares
        if away and (why := system.keeps_members()):
            raise PlanError(path, f"a node would leave for good, and {why}")

    def check(self, target: str, nodes: tuple[str, ...], partitions: int | None, path: str) -> None:
        """Refuse a text that is no target here, one with a strength, and all nodes of a cluster."""
        parsed = targets.checked(
            target, self.kind.strength, nodes, partitions, path, of_spares=self.kind.of_spares
        )
        if not self.kind.of_spares and targets.is_majority(parsed, len(nodes)):
            why = "leave a majority of the nodes as they are"
            raise PlanError(path, f"target of {self.kind.name} must {why} (got {target!r})")

    def resolve(
        self, target: str, roles: Roles, nodes: tuple[str, ...], draw: int
    ) -> Victims | None:
        """The members that ``target`` means now; none of a kind that needs spares."""
        if self.kind.of_spares or self.with_spares:
            return None
        hit = resolution.resolve(targets.parse(target), roles, nodes, draw)
        if hit is None or self._irreplaceable(hit.nodes, roles):
            return None
        return Victims(nodes=hit.nodes, roles=hit.roles)

    def resolve_among(
        self, target: str, roles: Roles, cluster: Cluster, draw: int
    ) -> Victims | None:
        """The nodes that ``target`` means now, members or spares; members that are replaced come
        before the spares that take their place.
        """
        if self.kind.of_spares:
            hit = resolution.resolve(targets.parse(target), Roles(), cluster.spares, draw)
            return None if hit is None else Victims(nodes=hit.nodes, roles=())
        if not self.with_spares:
            return self.resolve(target, roles, cluster.nodes, draw)
        hit = resolution.resolve(targets.parse(target), roles, cluster.nodes, draw)
        if hit is None or self._irreplaceable(hit.nodes, roles):
            return None
        if len(cluster.spares) < len(hit.nodes):
            return None
        spares = cluster.spares[: len(hit.nodes)]
        return Victims(nodes=(*hit.nodes, *spares), roles=hit.roles)

    def _irreplaceable(self, nodes: Iterable[str], roles: Roles) -> bool:
        """Whether metastorage would lose its majority without ``nodes``, or one of its voters,
        which are those of the plan, for good.
        """
        voters = roles.metastorage_voters
        left = [node for node in voters if node not in nodes]
        lost = len(left) <= len(voters) // 2 or self._given.stays
        return self.takes_out and len(left) < len(voters) and lost

    async def inject(self, scene: Scene, victims: Victims) -> None:
        """Make the change. Raises ``HarnessError``."""
        await self.verbs.inject(self._change(scene, victims))

    async def prove(self, scene: Scene, victims: Victims) -> Proof:
        """A probe and a query show the change."""
        return await self.verbs.effective(self._change(scene, victims))

    @property
    def stays(self) -> bool:
        """Whether the options say so."""
        return self._given.stays

    async def came_about(self, scene: Scene, victims: Victims) -> bool:
        """Whether the change stays, and was made. Raises ``HarnessError``."""
        return await self._made(self._change(scene, victims))

    async def heal(self, scene: Scene, victims: Victims) -> None:
        """Take the change back. One that stays is made whole: it may have been made by half, or a
        node of it may have ended since; where that fails it is taken back, too. Raises
        ``HarnessError``.
        """
        change = self._change(scene, victims)
        if not self._given.stays:
            await self.verbs.undo(change)
            return
        try:
            await self.verbs.inject(change)
        except HarnessError:
            if await self._made(change):
                raise
            await self.verbs.undo(change)

    async def prove_healed(self, scene: Scene, victims: Victims) -> Proof:
        """All data has moved for the change, or for its end."""
        change = self._change(scene, victims)
        made = await self._made(change)
        shown = await (self.verbs.effective if made else self.verbs.undone)(change)
        if not shown.holds:
            return shown
        settled = await change.settled()
        both = f"{shown.text}; {settled.text}" if settled.holds else settled.text
        return msgspec.structs.replace(settled, text=both)

    async def _made(self, change: Change) -> bool:
        """Whether the change is one that stays, and was made."""
        if not self._given.stays:
            return False
        # Whom the harness counts on says it: the verbs tell only what has taken effect.
        members = frozenset(change.scene.cluster.nodes)
        nodes = change.nodes
        if self.kind.of_spares:
            return members.issuperset(nodes)
        if self.with_spares:
            half = len(nodes) // 2
            return members.isdisjoint(nodes[:half]) and members.issuperset(nodes[half:])
        if self.takes_out:
            return members.isdisjoint(nodes)
        return bool((await self.verbs.effective(change)).holds)

    def _change(self, scene: Scene, victims: Victims) -> Change:
        if not isinstance(scene.system, ChangesMembers):
            raise MissingCapability(f"fault {self.kind.name!r}", Capability.MEMBERS)
        return Change(scene=scene, system=scene.system, victims=victims, options=self._given)

    @property
    def _given(self) -> Options:
        if self.options is None:
            raise PlanError("options", f"fault {self.kind.name!r} is not configured")
        return self.options


def join() -> MemberFault:
    """Spares start and join; the heal lets them leave again."""
    return MemberFault(kind=JOIN, verbs=Join())


class Join:
    """``nemesis.member_faults.Verbs``."""

    async def inject(self, change: Change) -> None:
        """Start them, and wait until they have joined."""
        await change.bring_in(change.nodes)

    async def effective(self, change: Change) -> Proof:
        """They run, and are members."""
        return await change.members(change.nodes)

    async def undo(self, change: Change) -> None:
        """They leave."""
        await change.take_out(change.nodes)

    async def undone(self, change: Change) -> Proof:
        """They are gone."""
        return await change.strangers(change.nodes)


def leave() -> MemberFault:
    """Members stop in order: they hand over what they lead, and leave the logical topology; the
    heal starts them again.
    """
    return MemberFault(kind=LEAVE, verbs=Leave(), takes_out=True)


class Leave:
    """``nemesis.member_faults.Verbs``."""

    async def inject(self, change: Change) -> None:
        """Stop them in order."""
        await change.take_out(change.nodes)

    async def effective(self, change: Change) -> Proof:
        """They are gone."""
        return await change.strangers(change.nodes)

    async def undo(self, change: Change) -> None:
        """They come back."""
        await change.bring_in(change.nodes)

    async def undone(self, change: Change) -> Proof:
        """They run as another boot, answer, and are members."""
        runs = await node_faults.prove_runs(change.scene, change.victims)
        return await change.members(change.nodes) if runs.holds else runs


def replace() -> MemberFault:
    """For each member of the target a spare joins, and then it leaves; the heal exchanges them
    again.
    """
    return MemberFault(kind=REPLACE, verbs=Replace(), takes_out=True, with_spares=True)


class Replace:
    """``nemesis.member_faults.Verbs``."""

    async def inject(self, change: Change) -> None:
        """Spares join before members leave."""
        old, new = self._both(change)
        await self._exchange(change, old, new)

    async def effective(self, change: Change) -> Proof:
        """The ones are gone, the others are members."""
        old, new = self._both(change)
        return await self._exchanged(change, old, new)

    async def undo(self, change: Change) -> None:
        """The former members join before the spares leave."""
        old, new = self._both(change)
        await self._exchange(change, new, old)

    async def undone(self, change: Change) -> Proof:
        """As before."""
        old, new = self._both(change)
        return await self._exchanged(change, new, old)

    def _both(self, change: Change) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The members, and the spares that take their place."""
        half = len(change.nodes) // 2
        return change.nodes[:half], change.nodes[half:]

    async def _exchange(
        self, change: Change, leaving: tuple[str, ...], joining: tuple[str, ...]
    ) -> None:
        await change.bring_in(joining)
        await change.take_out(leaving)

    async def _exchanged(
        self, change: Change, left: tuple[str, ...], joined: tuple[str, ...]
    ) -> Proof:
        gone = await change.strangers(left)
        there = await change.members(joined)
        wrong = [proof.text for proof in (gone, there) if not proof.holds]
        text = "; ".join(wrong) or f"{gone.text}; {there.text}"
        return Proof(holds=not wrong, text=text, boots=gone.boots)


def attributes() -> MemberFault:
    """Members restart in order with other attributes, so that filters of zones match them or no
    longer do; the heal restarts them with those of the plan.
    """
    return MemberFault(kind=ATTRIBUTES, verbs=Announce(), options_type=AttributesOptions)


class Announce:
    """``nemesis.member_faults.Verbs``."""

    async def inject(self, change: Change) -> None:
        """Restart them with the attributes of the options."""
        await self._restart(change, self._given(change))

    async def effective(self, change: Change) -> Proof:
        """They announce them."""
        return await self._announced(change, self._given(change))

    async def undo(self, change: Change) -> None:
        """Restart them with the attributes of the plan."""
        await self._restart(change, None)

    async def undone(self, change: Change) -> Proof:
        """They announce these."""
        return await self._announced(change, None)

    async def _restart(self, change: Change, given: Given) -> None:
        wrong = await self._otherwise(change, given)
        await together(self._restart_one(change, node, given) for node in wrong)
        try:
            async with asyncio.timeout(JOIN_LIMIT_S):
                while wrong:
                    await asyncio.sleep(POLL_S)
                    wrong = await self._otherwise(change, given)
        except TimeoutError:
            raise HarnessError(f"{', '.join(wrong)} did not join again") from None

    async def _restart_one(self, change: Change, node: str, given: Given) -> None:
        scene = change.scene
        program = change.system.announcing(node, scene.cluster, given)
        options = change.options
        killed = isinstance(options, AttributesOptions) and options.by == "kill"
        await (scene.provider.kill if killed else scene.provider.stop)(node)
        await scene.provider.install(node, scene.altered(program))
        await scene.provider.start(node)

    async def _announced(self, change: Change, given: Given) -> Proof:
        runs = await node_faults.prove_runs(change.scene, change.victims)
        if not runs.holds:
            return runs
        wrong = await self._otherwise(change, given)
        what = ", ".join(
            f"{node} ({change.system.announcement(node, given) or 'no attributes'})"
            for node in wrong or change.nodes
        )
        said = "announced by" if not wrong else "not announced by"
        return Proof(holds=not wrong, text=f"{said} {what}")

    async def _otherwise(self, change: Change, given: Given) -> list[str]:
        """The nodes that have not joined with the attributes ``given``."""
        found = await change.system.announced(change.scene.cluster)
        expected = {node: change.system.announcement(node, given) for node in change.nodes}
        return [node for node in change.nodes if found.get(node) != expected[node]]

    def _given(self, change: Change) -> Given:
        given = change.options
        return given.by_name if isinstance(given, AttributesOptions) else None
