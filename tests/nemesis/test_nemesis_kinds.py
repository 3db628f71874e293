"""Every kind of fault: what it does to a world, that the proof sees it, that nothing is left."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any

import attrs
import msgspec
import pytest
from nemesis_world import EVERY_FAULT, NODES, Stage, World, in_virtual_time

from harness.errors import HarnessError, MissingCapability, PlanError
from harness.history.records import FaultState
from harness.protocols.cluster import Capability, Link, NodeStatus, Roles
from harness.protocols.faults import PlannedFault, Victims
from nemesis import majority_guard, node_faults
from nemesis.runner import refuse_missing

WHOLE_LIFE = ["planned", "injecting", "injected", "effective", "healing", "healed"]
# The verb without which a kind has no effect, and what its proof says when it has.
KINDS = {
    "kill": ("kill", "n2 does not run"),
    "restart": ("stop", "n2 does not run"),
    "pause": ("pause", "n2 is paused (pid 7); no answer from n2"),
    "freeze": ("freeze", "n2 is frozen; no answer from n2"),
    "host-loss": ("lose", "n2 does not run; no answer from n2"),
    "partition": ("cut", "all 8 links drop what is sent"),
    "one-way": ("cut", "all 4 links drop what is sent"),
    "one-way-in": ("cut", "all 4 links drop what is sent"),
    "bridge": ("cut", "all 8 links drop what is sent"),
    "majorities-ring": ("cut", "all 10 links drop what is sent"),
    "loss": ("shape", "8 of 8 links measure spoiled (n1 to n2: 30.0% lost)"),
    "delay": ("shape", "8 of 8 links measure spoiled (n1 to n2: there and back in 201 ms)"),
}
STATE = ("running", "paused", "frozen", "lost", "cuts", "shapes")


def fault(kind: str, target: str | None = None, at_s: float = 1.0, hold_s: float = 5.0):
    aim = target or (EVERY_FAULT[kind].kind.aims or ("n2",))[0]
    return PlannedFault(at_s=at_s, kind=kind, target=aim, hold_s=hold_s)


def test_the_table_above_has_every_kind() -> None:
    assert sorted(KINDS) == sorted(EVERY_FAULT)


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_is_proven_effective_and_proven_healed(kind: str) -> None:
    async def scenario() -> None:
        stage = Stage(fault(kind))
        before = {name: copy.copy(getattr(stage.world, name)) for name in STATE}

        await stage.run()

        assert stage.states() == WHOLE_LIFE
        assert stage.last(0, FaultState.EFFECTIVE).text == KINDS[kind][1]
        assert (stage.nemesis.trouble, stage.nemesis.active()) == ((), ())
        assert {name: getattr(stage.world, name) for name in STATE} == before
        assert any(verb == KINDS[kind][0] for verb, _ in stage.world.calls)

    in_virtual_time(scenario)


def test_the_proof_of_a_kill_does_not_quote_the_log_as_if_it_told_the_cause() -> None:
    words = "Caused by: LockException: TX-4"
    look = NodeStatus(node="n3", running=False, exit_text="ended", last_words=words)

    assert node_faults.down(look).text == "n3 does not run (ended)"
    assert look.end == f"ended; its log's last line: '{words}'"


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_whose_verb_does_nothing_is_unproven(kind: str) -> None:
    async def scenario() -> None:
        stage = Stage(fault(kind))
        stage.world.deaf.append(KINDS[kind][0])

        await stage.run()

        assert "effective" not in stage.states()
        assert "no effect:" in stage.nemesis.trouble[0]

    in_virtual_time(scenario)


@pytest.mark.parametrize(
    ("kind", "verb"),
    [("kill", "start"), ("restart", "start"), ("pause", "resume"), ("freeze", "thaw"),
     ("host-loss", "start")],
)  # fmt: skip
def test_a_heal_that_does_nothing_is_unproven_until_it_does(kind: str, verb: str) -> None:
    async def scenario() -> None:
        stage = Stage(fault(kind))
        stage.world.deaf.append(verb)

        await stage.run()
        assert stage.states() == WHOLE_LIFE[:-1]
        await stage.heal_all()
        assert "not healed:" in stage.nemesis.trouble[0]

        stage.world.deaf.clear()
        await stage.heal_all()
        assert stage.states()[-1] == "healed"
        assert stage.nemesis.trouble == ()

    in_virtual_time(scenario)


@pytest.mark.parametrize("kind", ["pause", "freeze", "host-loss"])
def test_a_node_that_goes_on_answering_is_no_proof(kind: str) -> None:
    async def scenario() -> None:
        stage = Stage(fault(kind))

        async def always(cluster: object) -> Roles:
            return stage.world.told

        stage.world.roles = always  # type: ignore[method-assign]
        await stage.run()

        assert "unproven" in stage.states()
        assert "n2 still answers" in stage.nemesis.trouble[0]

    in_virtual_time(scenario)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_kind_needs_is_refused_by_name_where_it_is_absent(kind: str) -> None:
    schedule, needs = (fault(kind),), EVERY_FAULT[kind].kind.needs

    with pytest.raises(MissingCapability, match=f"fault '{kind}' needs") as refusal:
        refuse_missing(schedule, EVERY_FAULT, frozenset(Capability) - needs)
    assert refusal.value.capability in needs
    refuse_missing(schedule, EVERY_FAULT, needs)


@pytest.mark.parametrize("kind", KINDS)
def test_a_strength_is_taken_only_where_there_is_one(kind: str) -> None:
    units = {"loss": "%", "delay": "ms"}
    for unit in ("%", "ms"):
        target = f"{(EVERY_FAULT[kind].kind.aims or ('one',))[0]} at 40 {unit}"
        if units.get(kind) == unit:
            EVERY_FAULT[kind].check(target, NODES, 8, "target")
            continue
        with pytest.raises(PlanError, match=r"plan: target:"):
            EVERY_FAULT[kind].check(target, NODES, 8, "target")


@pytest.mark.parametrize(
    ("target", "nodes", "says"),
    [("n1", NODES, "takes target 'all' only"), ("all", NODES[:3], "at least 4 nodes")],
)
def test_a_ring_takes_all_of_at_least_four(target: str, nodes: tuple[str, ...], says: str) -> None:
    ring = EVERY_FAULT["majorities-ring"]

    with pytest.raises(PlanError, match=says):
        ring.check(target, nodes, 8, "target")
    ring.check(" all", NODES[:4], 8, "target")


def test_a_strength_is_what_the_links_get() -> None:
    async def scenario() -> None:
        stage = Stage(fault("loss", "n1 at 50 %"), fault("delay", "n3 at 40 ms"))
        run = asyncio.ensure_future(stage.run())
        await stage.until(lambda: stage.states(0)[-1:] == stage.states(1)[-1:] == ["effective"])

        assert stage.world.shapes["n1", "n2"].loss == 0.5
        assert stage.world.shapes["n2", "n3"].delay_s == 0.04
        # Both act on the link between their nodes.
        both = stage.world.shapes["n3", "n1"]
        assert (both.loss, both.delay_s) == (0.5, 0.04)
        await run
        assert stage.states(0) == stage.states(1) == WHOLE_LIFE
        assert stage.world.shapes == {}

    in_virtual_time(scenario)


@pytest.mark.parametrize("other", ["freeze", "host-loss"])
@pytest.mark.parametrize("kind", ["partition", "loss", "one-way"])
def test_a_link_fault_begins_and_ends_while_another_machine_is_silent(
    kind: str, other: str
) -> None:
    async def scenario() -> None:
        stage = Stage(fault(other, "n4", at_s=0, hold_s=40), fault(kind, "n1", at_s=5, hold_s=3))

        await stage.run()

        assert stage.states(0) == stage.states(1) == WHOLE_LIFE
        healed = stage.last(1, FaultState.HEALED).at_ns
        assert healed < stage.last(0, FaultState.HEALING).at_ns
        assert stage.nemesis.trouble == ()

    in_virtual_time(scenario)


def test_links_that_another_fault_cuts_are_not_measured() -> None:
    async def scenario() -> None:
        stage = Stage(
            fault("partition", "n1", at_s=0, hold_s=30), fault("delay", "n2", at_s=3, hold_s=3)
        )

        await stage.run()

        assert stage.states(0) == stage.states(1) == WHOLE_LIFE
        assert stage.last(1, FaultState.EFFECTIVE).text.startswith("6 of 6 links")
        healed = stage.last(1, FaultState.HEALED).at_ns
        assert healed < stage.last(0, FaultState.HEALING).at_ns

    in_virtual_time(scenario)


def test_a_random_target_avoids_the_nodes_of_another_fault() -> None:
    async def scenario() -> None:
        stage = Stage(
            fault("pause", "n1,n2,n3,n4", at_s=0, hold_s=60), fault("kill", "one", at_s=3)
        )

        await stage.run()

        assert stage.states(1) == WHOLE_LIFE
        assert stage.last(1, FaultState.HEALED).nodes == ("n5",)

    in_virtual_time(scenario)


@pytest.mark.parametrize("step", range(40))
def test_any_mix_cancelled_at_any_moment_is_healed(step: int) -> None:
    async def scenario() -> None:
        kinds = ("pause", "freeze", "host-loss", "loss", "one-way")
        stage = Stage(
            *(
                fault(kind, node, at_s=0.1, hold_s=0.3)
                for kind, node in zip(kinds, NODES, strict=True)
            )
        )
        run = asyncio.ensure_future(stage.run())
        await asyncio.sleep(0.017 * step)
        run.cancel()
        await asyncio.wait({run})

        await stage.heal_all()

        world = stage.world
        assert all(world.running.values())
        assert not any([*world.paused.values(), *world.frozen.values(), *world.lost.values()])
        assert (world.cuts, world.shapes) == ((), {})
        assert (stage.nemesis.active(), stage.nemesis.trouble) == ((), ())

    in_virtual_time(scenario)


class OneFails(World):
    """The verbs on n1 fail at once, those on n2 take their time."""

    async def _verb(self, verb: str, about: str, act: Callable[[], None]) -> None:
        acting = verb in ("kill", "stop", "pause", "freeze", "lose")
        if acting and about == "n1":
            raise HarnessError(f"{verb} of n1 is broken")
        if acting and about == "n2":
            await asyncio.sleep(3)
        await super()._verb(verb, about, act)


@pytest.mark.parametrize("kind", ["kill", "restart", "pause", "freeze", "host-loss"])
def test_what_fails_on_one_node_is_healed_only_when_it_is_over_on_the_others(kind: str) -> None:
    async def scenario() -> None:
        stage = Stage(fault(kind, "n1,n2"), world=OneFails())
        before = {name: copy.copy(getattr(stage.world, name)) for name in STATE}

        await stage.run()
        await asyncio.sleep(10)

        assert {name: getattr(stage.world, name) for name in STATE} == before
        assert stage.states()[-1] == "healed"
        assert "n1 is broken" in stage.nemesis.trouble[0]

    in_virtual_time(scenario)


class Undead(World):
    """What is started is the boot that was there before."""

    def _status(self, node: str) -> NodeStatus:
        return msgspec.structs.replace(super()._status(node), boot=f"{node} for ever")


@pytest.mark.parametrize("kind", ["kill", "restart", "host-loss"])
def test_a_boot_that_was_seen_dead_is_no_proof_of_a_start(kind: str) -> None:
    async def scenario() -> None:
        stage = Stage(fault(kind), world=Undead())

        await stage.run()
        await stage.heal_all()

        assert stage.states()[-1] == "unproven"
        assert "n2 runs as the boot that was seen dead (n2 for ever)" in stage.nemesis.trouble[0]

    in_virtual_time(scenario)


@pytest.mark.parametrize("kind", ["pause", "freeze"])
def test_what_was_only_held_goes_on_as_the_boot_it_was(kind: str) -> None:
    async def scenario() -> None:
        stage = Stage(fault(kind), world=Undead())

        await stage.run()

        assert stage.states() == WHOLE_LIFE

    in_virtual_time(scenario)


class Unasked(World):
    """Links of n1 can't be asked while it is ``mute``."""

    mute = True

    async def probe_links(self, links: tuple[Link, ...]) -> dict[Link, bool]:
        seen = await super().probe_links(links)
        return {a: carries for a, carries in seen.items() if not (self.mute and "n1" in a)}


LINK_KINDS = ("partition", "loss", "delay", "one-way")


@pytest.mark.parametrize("kind", LINK_KINDS)
def test_links_that_cannot_be_asked_show_no_effect_and_no_heal(kind: str) -> None:
    async def scenario() -> None:
        stage = Stage(fault(kind, "n1"), world=Unasked())

        await stage.run()
        await stage.heal_all()

        assert "effective" not in stage.states()
        assert "healed" not in stage.states()
        assert "effect can't be shown: no" in stage.nemesis.trouble[0]
        assert "heal can't be shown: no" in stage.nemesis.trouble[1]

    in_virtual_time(scenario)


@pytest.mark.parametrize("kind", LINK_KINDS)
def test_an_effect_is_shown_by_the_links_that_answer_and_a_heal_by_all(kind: str) -> None:
    async def scenario() -> None:
        stage = Stage(fault(kind, "n2"), world=Unasked())

        await stage.run()

        assert stage.states() == WHOLE_LIFE[:-1]
        stage.world.mute = False  # type: ignore[attr-defined]
        await stage.heal_all()
        assert stage.states()[-1] == "healed"
        assert stage.nemesis.trouble == ()

    in_virtual_time(scenario)


@pytest.mark.parametrize(
    ("voters", "why"),
    [
        (("n1",), "of metastorage only nobody would be left"),
        # Without a leader it is not known who votes: it may be the victim alone.
        ((), "nobody tells who votes in metastorage"),
        (("n1", "n2", "n3"), ""),
    ],
)
def test_a_node_keeps_its_data_where_metastorage_might_lose_its_majority(
    voters: tuple[str, ...], why: str
) -> None:
    class Store:
        metastorage = ("n1",)

        async def roles(self, cluster: object) -> Roles:
            return Roles(voters={0: ("n2", "n3")}, metastorage_voters=voters)

    async def scenario() -> None:
        stage = Stage()
        system: Any = Store()
        scene = attrs.evolve(stage.scene, system=system)
        assert await majority_guard.endangered(scene, Victims(nodes=("n1",), roles=())) == why

    in_virtual_time(scenario)
