"""The protocol of fault kinds and of the nemesis that applies them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Protocol, runtime_checkable

import attrs
import msgspec
from msgspec import Meta

from harness.clock import RunClock
from harness.errors import PlanError
from harness.history.records import StoreEvent
from harness.protocols.cluster import (
    Cluster,
    Grudge,
    LinkShape,
    Program,
    Provider,
    Roles,
    System,
)
from harness.protocols.cluster_membership import Membership
from harness.protocols.fault_kinds import FaultKind, Mechanism
from harness.protocols.moments import Moment
from harness.protocols.roles import Role

MAX_DURATION_S = 7 * 86_400.0  # of a drive, and of a fault: a week's soak
MAX_NTH = 10_000  # such moments that one fault may let pass
ITS_NODE = "its node"  # as a target: the node at which the moment came


class PlannedFault(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault of a materialised schedule.

    ``target`` is a role (``leader of partition 3``, ``minority``, ``n1``), resolved and recorded
    just before the injection.

    With ``on`` it waits, from ``at_s`` on, for the ``nth`` such moment ``by`` a node in that role,
    and comes ``after_s`` later; its target may then be ``its node``, or speak of ``its partition``.
    With ``aimed`` the row has the offset at which it came.
    """

    at_s: Annotated[
        float,
        Meta(
            ge=0,
            lt=MAX_DURATION_S,
            description="When it comes, from the begin of the drive on; with `on` the earliest "
            "time, and 0 where it is not given.",
        ),
    ]
    kind: Annotated[str, Meta(description="The kind of fault.")]
    target: Annotated[str, Meta(description="Which nodes, found when the fault begins.")]
    hold_s: Annotated[
        float,
        Meta(gt=0, le=MAX_DURATION_S, description="How long it holds; healing starts then."),
    ] = 5.0
    on: Annotated[Moment | None, Meta(description="The moment of the store that it waits for.")] = (
        None
    )
    by: Annotated[
        str | None, Meta(description="With `on`: the node of the moment, as a target.")
    ] = None
    after_s: Annotated[
        Annotated[float, Meta(ge=0, lt=MAX_DURATION_S)] | None,
        Meta(description="With `on`: how long after the moment it comes."),
    ] = None
    nth: Annotated[
        Annotated[int, Meta(ge=1, le=MAX_NTH)] | None,
        Meta(description="With `on`: the how manyth such moment; else the first."),
    ] = None
    options: Annotated[dict[str, Any] | None, Meta(description="The kind's own keys.")] = None
    aimed: Annotated[
        str | None,
        Meta(description="Written by a run: the moment that it met. No plan needs to say it."),
    ] = None


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an independent observation: ``holds`` or not, and the sentence that says so.

    ``holds`` is ``None`` where the observed thing could not be asked, which is evidence for
    neither. ``boots``: by node, the boot that was seen dead; the heal's proof shows another one.
    ``gone``, of a heal that does not hold: the fault itself is gone, and the rest is the system's
    to do.
    """

    holds: bool | None
    text: str
    boots: dict[str, str] = {}
    gone: bool = False


@attrs.frozen(kw_only=True)
class Scene:
    """Everything that a fault may observe and act through. ``damaged`` returns the nodes whose data
    other active faults than the one being injected destroy at that moment, ``burdens`` the
    mechanisms through which others act on a node: what those hide or show says nothing about the
    fault at hand. ``altered`` is what becomes of a program before it is installed. For a majority
    that has to be whole an injection may wait ``patience_s`` longer than usual.
    """

    provider: Provider
    system: System
    membership: Membership
    clock: RunClock
    damaged: Callable[[], tuple[str, ...]] = tuple
    burdens: Callable[[str], frozenset[Mechanism]] = lambda node: frozenset()
    altered: Callable[[Program], Program] = lambda program: program
    patience_s: float = 0.0

    @property
    def cluster(self) -> Cluster:
        """The cluster with the members that it has now."""
        return self.membership.cluster


@attrs.frozen(kw_only=True)
class Victims:
    """A resolved target. ``grudge`` and ``shapes`` are empty for faults that act on nodes alone;
    ``strength`` and ``draw`` are for faults with a strength or a random choice of their own;
    ``boots`` are those of the proof of the effect, once there is one; ``refused`` is what the
    system would not do as the fault was injected, where the plan allows it to refuse that.
    """

    nodes: tuple[str, ...]
    roles: tuple[Role, ...]
    grudge: Grudge = ()
    shapes: tuple[LinkShape, ...] = ()
    strength: float = 0.0
    draw: int = 0
    boots: Mapping[str, str] = attrs.field(factory=dict)
    refused: tuple[str, ...] = ()


class Fault(Protocol):
    """One kind of fault: its facts as a value, and its verbs. Stateless: all state is in the
    arguments.

    The nemesis calls, each with a deadline: resolve, inject, prove, ..., heal,
    prove_healed. Network faults do not cut or shape links themselves: they return a grudge or
    shapes from ``resolve``, and the nemesis keeps the union of all active ones in force, so that
    faults overlap without undoing each other. Of kinds that lose data one is injected at a time:
    such a fault finds by observation which replicas it must spare, and ``Scene.damaged`` names the
    nodes that others destroy.
    """

    @property
    def kind(self) -> FaultKind:
        """The facts of the kind."""

    def check(self, target: str, nodes: tuple[str, ...], partitions: int | None, path: str) -> None:
        """Refuse a target that can never be resolved in this cluster. Raises ``PlanError`` at
        ``path``.
        """

    def resolve(
        self, target: str, roles: Roles, nodes: tuple[str, ...], draw: int
    ) -> Victims | None:
        """Return the nodes and links that the fault hits, or ``None`` where the target can't be
        resolved now. ``draw`` determines every random choice.
        """

    async def inject(self, scene: Scene, victims: Victims) -> Victims | None:
        """Put the fault in force. Return the victims as the later verbs are to be given them, where
        that is not as they were.
        """

    async def prove(self, scene: Scene, victims: Victims) -> Proof:
        """Show by another way than ``inject`` used that the fault is in force."""

    async def heal(self, scene: Scene, victims: Victims) -> None:
        """Undo the fault. Idempotent."""

    async def prove_healed(self, scene: Scene, victims: Victims) -> Proof:
        """Show by another way than ``heal`` used that the fault is gone."""


@runtime_checkable
class HasOptions(Protocol):
    """A ``Fault`` with options of its own."""

    def with_options(self, options: Mapping[str, Any], partitions: int | None, path: str) -> Fault:
        """Return the fault with ``options``. Raises ``PlanError`` below ``path``."""


@runtime_checkable
class WaitsForPoint(Protocol):
    """A ``Fault`` that strikes one of its nodes in the middle of an operation."""

    async def await_point(
        self, scene: Scene, victims: Victims, claim: Callable[[str], bool]
    ) -> None:
        """Return once a node has come to the point, and was struck there. ``claim`` is asked for
        the node at that instant: it makes the fault active, or refuses.
        """


@runtime_checkable
class AimsAtSpares(Protocol):
    """A ``Fault`` whose victims are nodes that are no members, or such nodes too."""

    def resolve_among(
        self, target: str, roles: Roles, cluster: Cluster, draw: int
    ) -> Victims | None:
        """See ``Fault.resolve``, among all machines of ``cluster``."""


def resolved(
    fault: Fault, target: str, roles: Roles, cluster: Cluster, draw: int
) -> Victims | None:
    """Return the victims of ``fault`` in ``cluster`` as its members are now; ``None`` where the
    target can't be resolved.
    """
    if isinstance(fault, AimsAtSpares):
        return fault.resolve_among(target, roles, cluster, draw)
    return fault.resolve(target, roles, cluster.nodes, draw)


@runtime_checkable
class ChecksSystem(Protocol):
    """A ``Fault`` that only some systems can have."""

    def check_system(self, system: System, path: str) -> None:
        """Refuse a system that can't have it, or not with these options. Raises ``PlanError`` below
        ``path``, and ``MissingCapability``.
        """


@runtime_checkable
class EndsByItself(Protocol):
    """A ``Fault`` that heals itself ``lease_s`` after its injection, without a controller."""

    @property
    def lease_s(self) -> float:
        """Seconds; more than any fault of the kind may hold."""


def configured(fault: Fault, planned: PlannedFault, partitions: int | None, path: str) -> Fault:
    """Return ``fault`` with the options of ``planned``. Raises ``PlanError`` for options that the
    kind does not have.
    """
    if isinstance(fault, HasOptions):
        return fault.with_options(planned.options or {}, partitions, path)
    if planned.options is not None:
        raise PlanError(path, f"expected none: fault {planned.kind!r} has no options")
    return fault


class Nemesis(Protocol):
    """Applies a schedule. The command line builds it; the run's life cycle sees only this protocol.

    ``trouble`` collects sentences on what the nemesis could not do or prove.
    """

    @property
    def trouble(self) -> tuple[str, ...]:
        """The reasons why the run is inconclusive, a sentence each."""

    async def run(self, scene: Scene, started_ns: int) -> None:
        """Apply the whole schedule, offsets counted from ``started_ns``; returns when it is
        over.
        """

    async def heal_all(self, scene: Scene) -> None:
        """Heal every active fault and prove it. Idempotent, also after cancellation of ``run``."""

    @property
    def schedule(self) -> tuple[PlannedFault, ...]:
        """The schedule as it came: with the offsets of those faults that waited for a moment."""

    def heard(self, event: StoreEvent) -> None:
        """Take in an event of the store, which may be the moment that a fault waits for."""

    def active(self) -> tuple[str, ...]:
        """Short names of the faults in force, for display."""
