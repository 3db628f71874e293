"""Whatever the schedule and whatever fails meanwhile: the nemesis heals, and its records add up."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import product

from hypothesis import given, settings
from hypothesis import strategies as st
from nemesis_world import Stage, in_virtual_time

from harness.history.records import FaultState, FaultTransition, Record
from harness.protocols.fault_kinds import BUILT_IN, Mechanism
from harness.protocols.faults import PlannedFault

# What may follow what; a heal may be tried again, from HEALING, in HEALING.
FOLLOWS = {
    None: {FaultState.PLANNED},
    FaultState.PLANNED: {FaultState.INJECTING, FaultState.SKIPPED},
    FaultState.INJECTING: {FaultState.INJECTED, FaultState.UNPROVEN, FaultState.HEALING},
    FaultState.INJECTED: {FaultState.EFFECTIVE, FaultState.UNPROVEN, FaultState.HEALING},
    FaultState.EFFECTIVE: {FaultState.HEALING},
    FaultState.UNPROVEN: {FaultState.HEALING},
    FaultState.HEALING: {FaultState.HEALED, FaultState.UNPROVEN, FaultState.HEALING},
    FaultState.HEALED: {FaultState.UNPROVEN},  # it is gone, and who was hit does not serve
    FaultState.SKIPPED: set(),
}
faults = st.builds(
    PlannedFault,
    at_s=st.integers(0, 40).map(float),
    kind=st.sampled_from(["kill", "pause", "partition", "one-way"]),
    target=st.sampled_from(
        ["n1", "one", "minority", "half", "all", "leader of partition 3", "leader of partition 9"]
    ),
    hold_s=st.integers(1, 15).map(float),
)
troubles = st.tuples(
    st.sampled_from(["broken", "hung", "deaf"]),
    st.sampled_from(["kill", "start", "probe", "cut", "probe_links", "roles"]),
    st.integers(0, 40),
    st.integers(1, 40),
)


def illegal(records: Iterable[Record]) -> list[str]:
    """Steps that no life of a fault has."""
    now: dict[int, FaultState] = {}
    wrong = []
    for r in records:
        if isinstance(r, FaultTransition):
            if r.state not in FOLLOWS[now.get(r.fault)]:
                wrong.append(f"fault {r.fault}: {now.get(r.fault)} to {r.state}")
            now[r.fault] = r.state
    return wrong


def shared(records: Iterable[Record]) -> list[str]:
    """Mechanisms of nodes that two faults had at once."""
    held: dict[tuple[str, Mechanism], int] = {}
    twice = []
    for r in records:
        if isinstance(r, FaultTransition):
            for part in product(r.nodes, BUILT_IN[r.kind].mechanisms):
                if r.state is FaultState.INJECTING and held.setdefault(part, r.fault) != r.fault:
                    twice.append(f"{part}: faults {held[part]} and {r.fault}")
                if r.state is FaultState.HEALED:
                    held.pop(part, None)
    return twice


@settings(max_examples=60, deadline=None)
@given(
    schedule=st.lists(faults, max_size=6),
    trouble=st.lists(troubles, max_size=4),
    cancel_s=st.one_of(st.none(), st.floats(0, 60)),
)
def test_after_any_trouble_everything_is_healed_and_every_life_is_legal(
    schedule: list[PlannedFault],
    trouble: list[tuple[str, str, int, int]],
    cancel_s: float | None,
) -> None:
    async def scenario() -> None:
        stage = Stage(*schedule)

        async def spoil(how: str, verb: str, from_s: int, for_s: int) -> None:
            await asyncio.sleep(from_s)
            getattr(stage.world, how).append(verb)
            await asyncio.sleep(for_s)
            getattr(stage.world, how).remove(verb)

        spoiling = [asyncio.ensure_future(spoil(*one)) for one in trouble]
        run = asyncio.ensure_future(stage.run())
        await asyncio.wait({run}, timeout=cancel_s)
        run.cancel()
        await asyncio.wait({run, *spoiling})

        await stage.heal_all()

        assert run.cancelled() or run.exception() is None
        assert all(stage.world.running.values())
        assert stage.world.cuts == ()
        assert stage.nemesis.active() == ()
        assert illegal(stage.records) == []
        assert shared(stage.records) == []
        without_effect = [n for n in range(len(schedule)) if FaultState.UNPROVEN in stage.states(n)]
        assert len(stage.nemesis.trouble) == len(without_effect)

    in_virtual_time(scenario)


def test_the_properties_see_an_illegal_life_and_a_shared_mechanism() -> None:
    def step(fault: int, state: FaultState, kind: str = "kill") -> FaultTransition:
        return FaultTransition(
            fault=fault, kind=kind, target="n1", state=state, at_ns=0, nodes=("n1",)
        )

    assert illegal([step(0, FaultState.PLANNED), step(0, FaultState.HEALED)])
    assert shared([step(0, FaultState.INJECTING), step(1, FaultState.INJECTING)])
    cut = step(1, FaultState.INJECTING, "partition")
    assert not shared([step(0, FaultState.INJECTING), cut])
    assert not shared(
        [step(0, FaultState.INJECTING), step(0, FaultState.HEALED), step(1, FaultState.INJECTING)]
    )
