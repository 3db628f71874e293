"""The scenarios of IEP-131, step by step, simulated and in containers: what metastorage says of the
partition, what it holds, and what nodes decide, against ``golden/``.

The seed's names are kept: A is the node with metastorage in the use case, and one more beside the
seven data nodes A to G in the examples.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path

import docker
import pytest
from container_lab import ContainerLab
from test_partition_resets import (
    KINDS,
    STABLE,
    append,
    cluster,
    kill,
    read,
    refused,
    settled_replicas,
)
from zoned_lab import LIMIT_S, Lab, now_s

from clusters.providers.sim.loop import simulate
from clusters.reference.node.events import (
    PARTITION_RESET,
    RESTORED,
    START_DECISION,
)
from clusters.reference.node.runtime import ConnectionLost

GOLDEN = Path(__file__).parent / "golden"
STATES = "SELECT STATE, GENERATION, NODES_LEFT FROM SYSTEM.PARTITION_STATES"
HA = "CONSISTENCY_MODE = HIGH_AVAILABILITY, PARTITION_DISTRIBUTION_RESET_TIMEOUT = 1"
DATA = "bcdefgh"
EXAMPLE = str.maketrans(DATA, "ABCDEFG")
SAME_FOR_S = 1.0
LATE = "is late"


class Told:
    """The lines of a scenario, with the seed's names of nodes."""

    def __init__(self, lab: Lab, names: dict[int, int]) -> None:
        self.lab, self.names, self.lines = lab, names, list[str]()

    async def step(self, text: str) -> None:
        """Tell where the partition stands after ``text``, once nothing moves."""
        stable, state, generation, left = await self._settled()
        found = f"{state.lower()} of {stable} left: {left or 'none'}, generation {generation}"
        if state == "MAJORITY":
            found += f", holds {' '.join(map(str, await read(self.lab))) or 'nothing'}"
        elif state == "MINORITY":
            await refused(self.lab)
            found += ", refuses"
        self.tell(f"{text}: {found}")

    def tell(self, line: str) -> None:
        self.lines.append(line)

    def named(self, nodes: str) -> str:
        return nodes.translate(self.names).replace(",", "")

    async def _settled(self) -> tuple[str, str, int, str]:
        deadline_s, since_s, last = now_s() + LIMIT_S, now_s(), None
        while True:
            try:
                kinds = {row[0] for row in await self.lab.done(KINDS)}
                ((nodes,),) = await self.lab.done(STABLE)
                ((state, generation, left),) = await self.lab.done(STATES)
            except (ConnectionLost, TimeoutError):
                kinds = set()
            else:
                now = self.named(str(nodes)), str(state), int(str(generation)), str(left)
                if now != last or kinds != {"stable"}:
                    since_s, last = now_s(), now
                elif now_s() - since_s >= SAME_FOR_S:
                    return (*now[:3], self.named(now[3]))
            assert now_s() < deadline_s, (last, kinds)
            await asyncio.sleep(0.05)

    async def decisions(self) -> None:
        """Tell what each node did with the copy that it had when it started.

        A node that is up late meets a group that lives: it starts as usual, and follows the group's
        generation with its log, one that was cut, or anew. The seed says nothing of it.
        """
        for node in DATA:
            name = self.named(node)
            texts = [e.text for e in await self.lab.events(node, START_DECISION)]
            if any(text.startswith("starts as usual: a majority lives, of ") for text in texts):
                self.tell(f"{name} {LATE}")
                continue
            assert any(" to the link of " in text for text in texts), (node, texts)
            gone = any(text.startswith("erases its replica: ") for text in texts)
            self.tell(f"{name} {'erases' if gone else 'starts'} its replica")


async def use_case(lab: Lab) -> list[str]:
    """A, with metastorage, is a here, and B, C and D are b, c and d."""
    told = Told(lab, str.maketrans("bcd", "BCD"))
    await cluster(lab, "bcd", f"{HA}, DATA_NODES_AUTO_ADJUST_SCALE_UP = 2", 3)
    await lab.provider.cut((("b", "c"), ("b", "d"), ("c", "b"), ("d", "b")))
    await append(lab, 1)
    await kill(lab, "cd")
    await lab.provider.cut(())
    await lab.until_rows(STABLE, {("b",)})
    await told.step("1. C and D are lost, with what they alone had")
    await append(lab, 2)
    await told.step("2. the user adds data to B")
    at_s = now_s()
    await lab.start("c", "d")
    await lab.until_rows(STABLE, {("b,c,d",)})
    assert now_s() - at_s >= 2.0  # of scale-up
    held = await settled_replicas(lab, "bcd")
    assert {r.generation for r in held.values()} == {1}
    assert len({r.content for r in held.values()}) == 1
    await told.step("3. C and D are back, with what B has")
    # Metastorage first: else it sees nodes leave, and a reset is due.
    for node in "adcb":
        await lab.provider.stop(node)
    told.tell("4. all nodes are stopped")
    await lab.start("a", "d")
    await asyncio.sleep(8.0)
    assert not await lab.events("d", PARTITION_RESET)
    await told.step("5. A and D are started")
    await lab.start("b", "c")
    await told.step("6. B and C are started")
    assert not [e for n in "bcd" for e in await lab.events(n, PARTITION_RESET)]
    return told.lines


async def example(
    lab: Lab, *, phase2: bool, inserted: int | None, late: str = "", late_s: float = 0.0
) -> list[str]:
    """A(10) to D(10), E(5) to G(5); resets to E, F, G and to G; all are lost and started, those of
    ``late`` ``late_s`` behind the others.
    """
    told = Told(lab, EXAMPLE)
    # A node that is late when the group starts is taken in by it.
    options = f"{HA}, DATA_NODES_AUTO_ADJUST_SCALE_UP = 5"
    await cluster(lab, DATA, options, 7, phase2=phase2)
    for number in range(1, 6):
        await append(lab, number)
    await settled_replicas(lab, DATA)
    sides = tuple(sorted((*product("bcde", "fgh"), *product("fgh", "bcde"))))
    await lab.provider.cut(sides)
    await asyncio.sleep(5.0)  # or what was sent before would arrive once the links are healed
    for number in range(6, 11):
        await append(lab, number)
    await told.step("4. E, F and G lag")
    await kill(lab, "bcde")
    await lab.provider.cut(())
    await lab.until_rows(STABLE, {("f,g,h",)})
    await told.step("7. A, B, C and D are lost")
    if inserted is not None:
        await append(lab, inserted)
        await told.step(f"8. {inserted} is inserted")
    await kill(lab, "fg")
    await lab.until_rows(STABLE, {("h",)})
    await told.step("11. E and F are lost")
    await lab.provider.kill("h")
    await lab.until_rows("SELECT STATE FROM SYSTEM.PARTITION_STATES", {("LOST",)})
    await told.step("12. G is lost")
    await lab.start(*sorted(set(DATA) - set(late)))
    await asyncio.sleep(late_s)
    await lab.start(*late)
    await lab.until_rows(STABLE, {(",".join(DATA),)})
    held = await settled_replicas(lab, DATA)
    assert len({replica.content for replica in held.values()}) == 1
    assert len(await lab.events("a", RESTORED)) == phase2
    await told.step("all are started")
    if phase2:
        await told.decisions()
    return told.lines


Scenario = Callable[[Lab], Awaitable[list[str]]]
SCENARIOS: dict[str, tuple[str, Scenario]] = {
    "use-case": ("abcd", use_case),
    "example-1": (f"a{DATA}", lambda lab: example(lab, phase2=True, inserted=None)),
    "example-1-without-phase-2": (
        f"a{DATA}",
        lambda lab: example(lab, phase2=False, inserted=None),
    ),
    "example-2": (f"a{DATA}", lambda lab: example(lab, phase2=True, inserted=100)),
}


def golden(name: str) -> list[str]:
    return (GOLDEN / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def golden_beside_late(name: str, told: list[str]) -> list[str]:
    """The golden lines, but for what the nodes that were late did with their copies."""
    late = {line.split()[0] for line in told if line.endswith(f" {LATE}")}
    lines = golden(name)
    decided = len(lines) - len(DATA)
    return lines[:decided] + [
        f"{line.split()[0]} {LATE}" if line.split()[0] in late else line for line in lines[decided:]
    ]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_of_the_seed_goes_as_it_says(name: str, seed: int) -> None:
    nodes, scenario = SCENARIOS[name]

    async def story() -> list[str]:
        return await scenario(Lab(seed, tuple(nodes)))

    assert simulate(story()) == golden(name)


@pytest.mark.parametrize(
    ("name", "late"),
    [
        *(("example-1", late) for late in ("b", "bc", "f", "fgh")),
        *(("example-2", late) for late in ("d", "bc", "f", "h", "deh")),
    ],
)
@pytest.mark.parametrize("late_s", [0.5, 1.0, 3.0, 8.0])
def test_nodes_that_start_late_give_up_and_keep_the_same_copies(
    name: str, late: str, late_s: float
) -> None:
    inserted = 100 if name == "example-2" else None

    async def story() -> list[str]:
        lab = Lab(1, tuple(f"a{DATA}"))
        return await example(lab, phase2=True, inserted=inserted, late=late, late_s=late_s)

    told = simulate(story())
    assert told == golden_beside_late(name, told)
    assert {line.split()[0] for line in told if line.endswith(LATE)} <= set(late.translate(EXAMPLE))


@asynccontextmanager
async def containers(name: str, nodes: str) -> AsyncIterator[Lab]:
    lab = ContainerLab(name, tuple(nodes))
    try:
        yield lab
    finally:
        await lab.containers.teardown()


@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_scenario_of_the_seed_goes_as_it_says_in_containers(
    name: str, docker_daemon: docker.APIClient
) -> None:
    nodes, scenario = SCENARIOS[name]

    async def story() -> list[str]:
        async with containers(name, nodes) as lab:
            return await scenario(lab)

    told = asyncio.run(story())
    assert told == golden_beside_late(name, told)
    assert sum(line.endswith(f" {LATE}") for line in told) < len(DATA)
