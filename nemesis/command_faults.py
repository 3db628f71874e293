"""A fault by a person's own shell commands, which stand in the plan.

``inject`` and ``heal`` run on each target, by the provider, where its node runs. ``proof`` is the
independent look: it succeeds while the fault is in force, and fails once it is gone. What a command
does is not known, so such a fault shares its nodes with no other, and a target's exit breaks no
promise. A guard on the machine runs ``heal`` by itself once the fault's own lease is over, or once
it sees that the controller is gone: its process, or on another machine the lease that it renews.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Annotated, Any

import attrs
import msgspec
from msgspec import Meta

from harness.errors import HarnessBug, HarnessError
from harness.plan.plan import options as convert
from harness.protocols import targets
from harness.protocols.cluster import CommandResult, Roles, RunsCommands
from harness.protocols.fault_kinds import COMMAND, FaultKind
from harness.protocols.faults import Fault, Proof, Scene, Victims
from harness.tasks import together
from nemesis import resolution
from nemesis.node_faults import prove_runs, start_stopped

COMMAND_CHARS = 4_000
MAX_LEASE_S = 86_400.0
# Less than the nemesis grants a verb, and a look of a proof: the command is named in the reason.
COMMAND_LIMIT_S, PROOF_LIMIT_S = 12.0, 8.0
SAID_CHARS = 160  # of a command's output, in a sentence
# The shell found no such command, may not run it, or a signal ended it: no answer to the question.
_NO_ANSWER = 126

# The file is the lease: what removes it heals. It is made anew, so that nothing is written through
# a link that another user of the machine laid there: its name can be foreseen. The guard carries no
# mark of the run, by which it would be killed with what else is left of the run, before it heals.
_GUARDED = """
lease="${{TMPDIR:-/tmp}}/firedrill-fault-{token}"
rm -f "$lease"
(set -C; : > "$lease") || exit 125
env -u FIREDRILL_DIRECTORY setsid sh -c '
n=0
while [ -e "$0" ] && [ "$n" -lt {lease_s} ] && kill -0 "${{FIREDRILL_CONTROLLER:-$$}}" 2>/dev/null \
  && [ -e "${{FIREDRILL_LEASE_HELD:-$0}}" ]
do sleep 1; n=$((n + 1)); done
rm "$0" 2>/dev/null || exit 0
'{heal} "$lease" > /dev/null 2>&1 < /dev/null &
{inject}
"""
_HEALED = """
rm -f "${{TMPDIR:-/tmp}}/firedrill-fault-{token}"
{heal}
"""

_Command = Annotated[str, Meta(min_length=1, max_length=COMMAND_CHARS)]


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ``options`` of a fault of kind ``command``."""

    inject: Annotated[_Command, Meta(description="Breaks a target; run by `sh` on each of them.")]
    heal: Annotated[
        _Command, Meta(description="Undoes it. It may run twice, and where nothing was broken.")
    ]
    proof: Annotated[
        _Command,
        Meta(description="Succeeds while the fault is in force, and fails once it is gone."),
    ]
    lease_s: Annotated[
        float,
        Meta(
            gt=0,
            le=MAX_LEASE_S,
            description="So long after the injection the target heals itself, whatever happened to "
            "the controller.",
        ),
    ] = 600.0


def command() -> CommandFault:
    """Shell commands from the plan: `inject`, `heal`, and a `proof` that it is in force."""
    return CommandFault()


@attrs.frozen(kw_only=True)
class CommandFault:
    """A ``Fault`` whose commands are its options."""

    kind: FaultKind = COMMAND
    options: Options | None = None

    def with_options(self, options: Mapping[str, Any], partitions: int | None, path: str) -> Fault:
        """The fault with the commands of ``options``."""
        return attrs.evolve(self, options=convert(Options, options, path))

    @property
    def lease_s(self) -> float:
        """Seconds from the injection to the heal by the target itself."""
        return self._given.lease_s

    @property
    def _given(self) -> Options:
        if self.options is None:
            raise HarnessBug("a fault of kind 'command' was used without its options")
        return self.options

    def check(self, target: str, nodes: tuple[str, ...], partitions: int | None, path: str) -> None:
        """Refuse a text that is no target here."""
        targets.checked(target, self.kind.strength, nodes, partitions, path)

    def resolve(
        self, target: str, roles: Roles, nodes: tuple[str, ...], draw: int
    ) -> Victims | None:
        """The nodes that ``target`` means now."""
        hit = resolution.resolve(targets.parse(target), roles, nodes, draw)
        return None if hit is None else Victims(nodes=hit.nodes, roles=hit.roles, draw=draw)

    async def inject(self, scene: Scene, victims: Victims) -> None:
        """Run ``inject`` on all targets, each under the guard of its lease. Raises
        ``HarnessError`` where it fails.
        """
        given = self._given

        async def inject(node: str) -> None:
            script = _GUARDED.format(
                token=_token(victims, node),
                lease_s=max(1, round(given.lease_s)),
                heal=shlex.quote(given.heal),
                inject=given.inject,
            )
            _require(
                node, "inject", await _runner(scene).run_command(node, script, COMMAND_LIMIT_S)
            )

        await together(inject(node) for node in victims.nodes)

    async def prove(self, scene: Scene, victims: Victims) -> Proof:
        """``proof`` succeeds on every target."""
        looks = await self._looks(scene, victims)
        if any(look is None for look in looks.values()):
            return Proof(holds=None, text=_told(looks))
        holds = all(look is not None and look.status == 0 for look in looks.values())
        return Proof(holds=holds, text=_told(looks))

    async def heal(self, scene: Scene, victims: Victims) -> None:
        """Run ``heal`` on all targets, and start a program that the fault ended. Raises
        ``HarnessError`` where it fails.
        """
        given = self._given

        async def heal(node: str) -> None:
            script = _HEALED.format(token=_token(victims, node), heal=given.heal)
            _require(node, "heal", await _runner(scene).run_command(node, script, COMMAND_LIMIT_S))
            await start_stopped(scene.provider, node)

        await together(heal(node) for node in victims.nodes)

    async def prove_healed(self, scene: Scene, victims: Victims) -> Proof:
        """``proof`` fails on every target, and every target serves."""
        looks = await self._looks(scene, victims)
        if any(look is None for look in looks.values()):
            return Proof(holds=None, text=_told(looks))
        if not all(look and look.status for look in looks.values()):
            return Proof(holds=False, text=_told(looks))
        served = await prove_runs(scene, victims)
        return Proof(holds=served.holds, text=f"{_told(looks)}; {served.text}", gone=served.gone)

    async def _looks(self, scene: Scene, victims: Victims) -> dict[str, CommandResult | None]:
        """How ``proof`` ended on each target; ``None`` where it gave no answer."""

        async def look(node: str) -> CommandResult | None:
            found = await _runner(scene).run_command(node, self._given.proof, PROOF_LIMIT_S)
            return None if found.status >= _NO_ANSWER else found

        found = await together(look(node) for node in victims.nodes)
        return dict(zip(victims.nodes, found, strict=True))


def _runner(scene: Scene) -> RunsCommands:
    if not isinstance(scene.provider, RunsCommands):
        raise HarnessError(f"provider {scene.provider.name} runs no commands")
    return scene.provider


def _token(victims: Victims, node: str) -> str:
    """What names a lease: one of the fault, and of the node, since nodes may share a machine."""
    return f"{victims.draw:016x}-{node}"


def _require(node: str, what: str, result: CommandResult) -> None:
    if result.status:
        said = result.output.strip()[-SAID_CHARS:] or "nothing"
        raise HarnessError(f"{node}: {what!r} exited with {result.status} and said: {said}")


def _told(looks: Mapping[str, CommandResult | None]) -> str:
    return "; ".join(
        f"{node}: the proof could not be run"
        if look is None
        else f"{node}: the proof exited with {look.status}"
        + (f" and said: {said}" if (said := look.output.strip()[-SAID_CHARS:]) else "")
        for node, look in looks.items()
    )
