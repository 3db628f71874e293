"""Faults of chosen messages: of one class or partition, the first few, until a moment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import attrs
import msgspec
from msgspec import Meta

from harness.errors import MissingCapability, PlanError
from harness.plan.plan import options as convert
from harness.protocols import targets
from harness.protocols.cluster import Link, Roles
from harness.protocols.crash_points import (
    DATAGRAMS,
    METASTORAGE,
    Action,
    Choice,
    ChoosesMessages,
    MessageClass,
    Way,
)
from harness.protocols.fault_kinds import (
    DOUBLE_MESSAGES,
    DROP_MESSAGES,
    HOLD_MESSAGES,
    REORDER_MESSAGES,
    FaultKind,
)
from harness.protocols.faults import Fault, Proof, Scene, Victims
from harness.protocols.moments import Moment
from nemesis import grudges, resolution

_APART = (Action.DOUBLE, Action.REORDER)  # frames of a stream come once, in their order
MAX_PARTITION = 1_000_000


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of these kinds."""

    messages: Annotated[MessageClass, Meta(description="The class of the messages.")]
    of: Annotated[
        Annotated[int, Meta(ge=0, le=MAX_PARTITION)] | Literal["metastorage"] | None,
        Meta(description="Only messages of this partition, or of the group of metastorage."),
    ] = None
    way: Annotated[
        Way, Meta(description="Messages from the targets to the other nodes, to them, or both.")
    ] = Way.FROM
    share: Annotated[
        Annotated[float, Meta(gt=0, lt=1)] | None,
        Meta(description="Only this share of them, each by chance."),
    ] = None
    count: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Only the first so many.")
    ] = None
    until: Annotated[Moment | None, Meta(description="Until this moment comes, on any node.")] = (
        None
    )


@attrs.frozen(kw_only=True)
class MessageFault:
    """A ``Fault`` that does ``action`` to the messages of its options between the targets and the
    rest.
    """

    kind: FaultKind
    action: Action
    options: Options | None = None

    def with_options(self, options: Mapping[str, Any], partitions: int | None, path: str) -> Fault:
        """The fault for the messages of ``options``."""
        chosen = convert(Options, options, path)
        if self.action in _APART and chosen.messages not in DATAGRAMS:
            known = ", ".join(sorted(DATAGRAMS))
            why = "others are frames of a stream, which come once and in their order"
            got = chosen.messages.value
            raise PlanError(f"{path}.messages", f"expected one of {known}: {why} (got {got!r})")
        if isinstance(chosen.of, int) and partitions is not None and chosen.of >= partitions:
            raise PlanError(f"{path}.of", f"must be below {partitions} (got {chosen.of})")
        return attrs.evolve(self, options=chosen)

    def check(self, target: str, nodes: tuple[str, ...], partitions: int | None, path: str) -> None:
        """Refuse a text that is no target here."""
        targets.checked(target, self.kind.strength, nodes, partitions, path)

    def resolve(
        self, target: str, roles: Roles, nodes: tuple[str, ...], draw: int
    ) -> Victims | None:
        """The nodes that ``target`` means now, unless those are all."""
        hit = resolution.resolve(targets.parse(target), roles, nodes, draw)
        if hit is None or not grudges.rest(hit.nodes, nodes):
            return None
        return Victims(nodes=hit.nodes, roles=hit.roles)

    async def inject(self, scene: Scene, victims: Victims) -> None:
        """Put the choice in force."""
        await self._provider(scene).choose(self._choice(scene, victims))

    async def prove(self, scene: Scene, victims: Victims) -> Proof:
        """A message that is tried is chosen."""
        look = await self._provider(scene).try_choice(self._choice(scene, victims))
        chosen = "is chosen" if look.chosen else "passes"
        text = f"a message of {self._messages} that is tried {chosen}; {look.taken} were"
        return Proof(holds=look.chosen, text=text)

    async def heal(self, scene: Scene, victims: Victims) -> None:
        """Take it out of force, and let go what it held."""
        await self._provider(scene).unchoose(self._choice(scene, victims))

    async def prove_healed(self, scene: Scene, victims: Victims) -> Proof:
        """A message that is tried passes, and none is held."""
        look = await self._provider(scene).try_choice(self._choice(scene, victims))
        passes = "is chosen still" if look.chosen else "passes"
        text = f"a message of {self._messages} that is tried {passes}, {look.held} are held"
        return Proof(holds=not look.chosen and not look.held, text=text)

    @property
    def _messages(self) -> str:
        return self._given.messages.value

    @property
    def _given(self) -> Options:
        if self.options is None:
            raise PlanError("options", f"fault {self.kind.name!r} needs options: which messages")
        return self.options

    def _choice(self, scene: Scene, victims: Victims) -> Choice:
        options = self._given
        # Of all machines: members may join and leave before the heal, which has to name the same.
        machines = tuple(sorted(scene.cluster.machines))
        return Choice(
            action=self.action,
            links=_links(options.way, victims.nodes, machines),
            messages=options.messages,
            partition=options.of if isinstance(options.of, int) else None,
            metastorage=options.of == METASTORAGE,
            share=options.share,
            count=options.count,
            until=options.until,
        )

    def _provider(self, scene: Scene) -> ChoosesMessages:
        if not isinstance(scene.provider, ChoosesMessages):
            raise MissingCapability(f"fault {self.kind.name!r}", min(self.kind.needs))
        return scene.provider


def _links(way: Way, hit: tuple[str, ...], nodes: tuple[str, ...]) -> tuple[Link, ...]:
    rest = grudges.rest(hit, nodes)
    out, into = grudges.one_way(hit, rest), grudges.one_way(rest, hit)
    return {Way.FROM: out, Way.TO: into, Way.BOTH: grudges.union((out, into))}[way]


def drop() -> MessageFault:
    """Lose the chosen messages; of a stream, its connection with them."""
    return MessageFault(kind=DROP_MESSAGES, action=Action.DROP)


def hold() -> MessageFault:
    """Hold the chosen messages back, on a stream with all behind them, until the heal or a
    moment.
    """
    return MessageFault(kind=HOLD_MESSAGES, action=Action.HOLD)


def double() -> MessageFault:
    """Deliver the chosen messages twice, the second time late."""
    return MessageFault(kind=DOUBLE_MESSAGES, action=Action.DOUBLE)


def reorder() -> MessageFault:
    """Deliver each of the chosen messages late by itself, behind others."""
    return MessageFault(kind=REORDER_MESSAGES, action=Action.REORDER)
