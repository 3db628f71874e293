"""Faults that move data: statements that alter where it lies, while clients go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import attrs
import msgspec
from msgspec import Meta

from harness.errors import HarnessError, MissingCapability, PlanError
from harness.plan.plan import options as convert
from harness.protocols import targets
from harness.protocols.cluster import Capability, Roles, System
from harness.protocols.fault_kinds import DDL, FaultKind
from harness.protocols.faults import Fault, Proof, Scene, Victims
from harness.protocols.statement_language import AlteredByStatements

# A node without an answer leaves time for two others within the nemesis's limit of an injection.
STATEMENT_LIMIT_S = 4.0
MAX_STATEMENTS = 16
# Of ``StatementAnswer.retry``. A node that is overloaded, or whose clock is off, says "later" for
# itself, too.
NEVER_AGAIN, LATER = "never", "later"
MAX_CHARS = 4_096

Statement = Annotated[str, Meta(min_length=1, max_length=MAX_CHARS)]
Statements = Annotated[tuple[Statement, ...], Meta(max_length=MAX_STATEMENTS)]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of this kind."""

    statements: Annotated[
        tuple[Statement, ...],
        Meta(
            min_length=1,
            max_length=MAX_STATEMENTS,
            description="Statements that alter where data lies, in their order.",
        ),
    ]
    may_be_refused: Annotated[
        Statements,
        Meta(
            description="Those of `statements` that the store may refuse, since what they ask for "
            "depends on what is there then: its refusal, for now or for good, is proof enough that "
            "they were asked. Silence, or an answer in doubt, is none."
        ),
    ] = ()
    back: Annotated[
        Statements,
        Meta(
            description="Statements that undo it when the fault is healed; without them the "
            "change stays."
        ),
    ] = ()


@attrs.frozen(kw_only=True)
class DdlFault:
    """A ``Fault`` of the cluster as a whole: one of its nodes takes each statement.

    It is in force once queries show what the statements say, and healed once all data is where it
    should be: a change that stays is over when its rebalance is.
    """

    kind: FaultKind = DDL
    options: Options | None = None

    def with_options(self, options: Mapping[str, Any], partitions: int | None, path: str) -> Fault:
        """The fault with the statements of ``options``."""
        chosen = convert(Options, options, path)
        listed = set(map(_words, chosen.statements))
        for number, text in enumerate(chosen.may_be_refused):
            if _words(text) not in listed:
                raise PlanError(
                    f"{path}.may_be_refused[{number}]", f"expected one of statements (got {text!r})"
                )
        return attrs.evolve(self, options=chosen)

    def check_system(self, system: System, path: str) -> None:
        """Refuse a system that no statement alters, and statements that do not."""
        if not isinstance(system, AlteredByStatements):
            why = f"no statement moves data of system {system.name!r}"
            raise MissingCapability(f"fault {self.kind.name!r}", Capability.STATEMENTS, why)
        if why := system.fixed():
            raise MissingCapability(f"fault {self.kind.name!r}", Capability.STATEMENTS, why)
        for key, texts in (("statements", self._given.statements), ("back", self._given.back)):
            for number, text in enumerate(texts):
                if problem := system.check_alteration(text):
                    raise PlanError(f"{path}.{key}[{number}]", problem)

    def check(self, target: str, nodes: tuple[str, ...], partitions: int | None, path: str) -> None:
        """Refuse another target than the whole cluster."""
        targets.checked(target, self.kind.strength, nodes, partitions, path)
        if _words(target) not in self.kind.aims:
            accepted = ", ".join(self.kind.aims)
            raise PlanError(path, f"target of {self.kind.name} must be {accepted} (got {target!r})")

    @property
    def stays(self) -> bool:
        """Whether nothing leads back."""
        return not self._given.back

    async def came_about(self, scene: Scene, victims: Victims) -> bool:
        """Whether a query shows what the statements say. Raises ``HarnessError``."""
        return bool((await self._shown(scene, self._given.statements)).holds)

    def resolve(
        self, target: str, roles: Roles, nodes: tuple[str, ...], draw: int
    ) -> Victims | None:
        """All nodes; ``draw`` decides which of those is asked first that no other fault burdens."""
        return Victims(nodes=nodes, roles=(), draw=draw)

    async def inject(self, scene: Scene, victims: Victims) -> Victims:
        """Have the statements carried out, or refused as they may be. Raises ``HarnessError``."""
        refused = await self._carry_out(scene, victims, self._given.statements)
        return attrs.evolve(victims, refused=refused)

    async def prove(self, scene: Scene, victims: Victims) -> Proof:
        """A query shows what the statements say, but for those that the store has refused."""
        asked = [text for text in self._given.statements if text not in victims.refused]
        shown = await self._shown(scene, asked)
        if not (shown.holds and victims.refused):
            return shown
        refused = f"refused, as it may be: {'; '.join(victims.refused)}"
        return Proof(holds=True, text="; ".join((*asked, refused)))

    async def heal(self, scene: Scene, victims: Victims) -> None:
        """Have the statements carried out that lead back. Raises ``HarnessError``."""
        await self._carry_out(scene, victims, self._given.back)

    async def prove_healed(self, scene: Scene, victims: Victims) -> Proof:
        """All data is where it should be, and what leads back is in force."""
        back = await self._shown(scene, self._given.back)
        if not back.holds:
            return back
        unplaced = await self._system(scene).unplaced(scene.cluster)
        text = "; ".join(unplaced) or "all data is where it should be, nothing is pending"
        return Proof(holds=not unplaced, text=text)

    async def _carry_out(
        self, scene: Scene, victims: Victims, statements: Sequence[str]
    ) -> tuple[str, ...]:
        """Return those of ``statements`` that were refused, as they may be."""
        return tuple(
            [text for text in statements if not await self._carry_out_one(scene, victims, text)]
        )

    async def _carry_out_one(self, scene: Scene, victims: Victims, text: str) -> bool:
        """Whether it was carried out; otherwise it was refused, as it may be."""
        first = victims.draw % len(victims.nodes)
        problems, final, refused = [], False, False
        turns = [*victims.nodes[first:], *victims.nodes[:first]]
        # Last those under another fault: what one of them is asked for it may do once it is healed,
        # in place of a statement that came later.
        turns.sort(key=lambda node: bool(scene.burdens(node)))
        # It says what should be: one that was carried out already changes nothing.
        for node in turns:
            answer = await self._system(scene).statement(
                scene.cluster, node, text, STATEMENT_LIMIT_S
            )
            if not answer.problem:
                return True
            problems.append(f"{node}: {answer.problem}")
            final = final or answer.retry == NEVER_AGAIN
            clear = answer.retry in (NEVER_AGAIN, LATER) and not answer.doubtful
            refused = refused or clear
        if refused and _words(text) in map(_words, self._given.may_be_refused):
            return False
        # What a reset asks for may have come about by itself: then it is refused for good.
        if not (final and (await self._shown(scene, (text,))).holds):
            raise HarnessError(f"{text!r}: {'; '.join(dict.fromkeys(problems))}")
        return True

    async def _shown(self, scene: Scene, statements: Sequence[str]) -> Proof:
        wrong = [
            problem
            for text in statements
            for problem in await self._system(scene).differing(scene.cluster, text)
        ]
        return Proof(holds=not wrong, text="; ".join(wrong or statements))

    @property
    def _given(self) -> Options:
        if self.options is None:
            raise PlanError("options", f"fault {self.kind.name!r} needs options: which statements")
        return self.options

    def _system(self, scene: Scene) -> AlteredByStatements:
        if not isinstance(scene.system, AlteredByStatements):
            raise MissingCapability(f"fault {self.kind.name!r}", Capability.STATEMENTS)
        return scene.system


def _words(text: str) -> str:
    """``text`` as any layout of it is: what a plan may write over several lines."""
    return " ".join(text.split())


def ddl() -> DdlFault:
    """Alter where data lies, by statements of the plan; over once it has moved."""
    return DdlFault()
