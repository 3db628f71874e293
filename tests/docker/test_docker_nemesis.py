"""Every kind of fault on containers: its effect and its healing are proven, one after the other."""

from __future__ import annotations

import asyncio
from typing import Any

import attrs
import docker
import pytest
from docker_runs import Run, named, owned, running, say

from harness import plugins
from harness.clock import RunClock
from harness.errors import MissingCapability
from harness.history.records import FaultState, FaultTransition, Record
from harness.protocols.cluster import Capability, Cluster, Roles
from harness.protocols.cluster_membership import Membership
from harness.protocols.fault_kinds import PROCEDURES
from harness.protocols.faults import Fault, PlannedFault, Scene
from nemesis.runner import Nemesis, refuse_missing

pytestmark = [pytest.mark.docker, pytest.mark.slow]

NODES = ("n1", "n2", "n3", "n4")
LIFE = ["planned", "injecting", "injected", "effective", "healing", "healed"]
FAULTS: dict[str, Fault] = {
    kind: plugins.load("faults", kind)()
    for kind in plugins.names("faults")
    if kind != "wipe"  # it looks at what a store tells of its groups: ``test_docker_members.py``
}
# Its usual one is of the voters of a partition, of which these nodes tell none.
AIMS = {"cut": "n1>n2", "successive-loss": "all"}
OPTIONS = {
    "command": {"inject": "touch /tmp/broken", "heal": "rm -f /tmp/broken"}
    | {"proof": "test -e /tmp/broken"}
}
ANSWER_LIMIT_S = 1.0


@attrs.frozen
class TalkerSystem:
    """Every node that answers says that it leads the partition of its number."""

    name = "talker"

    async def roles(self, cluster: Cluster) -> Roles:
        answers = await asyncio.gather(*(self._answers(cluster, node) for node in cluster.nodes))
        told = [node for node, answer in zip(cluster.nodes, answers, strict=True) if answer]
        return Roles(leaders={int(node[1:]): node for node in told})

    async def _answers(self, cluster: Cluster, node: str) -> bool:
        try:
            async with asyncio.timeout(ANSWER_LIMIT_S):
                return await say(cluster.client[node]["talk"], "echo here") == "here"
        except OSError:
            return False


def fault(number: int, kind: str) -> PlannedFault:
    usual = (f"leader of partition {number % len(NODES) + 1}",)
    aim = AIMS.get(kind, (FAULTS[kind].kind.aims or usual)[0])
    # Of a procedure it bounds all steps together.
    hold_s = 60.0 if kind in PROCEDURES else 0.2
    return PlannedFault(at_s=0.0, kind=kind, target=aim, hold_s=hold_s, options=OPTIONS.get(kind))


async def applied(run: Run, able: frozenset[Capability], records: list[Record]) -> tuple[str, ...]:
    """Apply every kind that can be done here, each by itself; the nemesis's trouble."""
    system: Any = TalkerSystem()
    clock = RunClock(asyncio.get_running_loop())
    scene = Scene(
        provider=run.provider, system=system, membership=Membership(run.cluster), clock=clock
    )
    trouble: list[str] = []
    for number, kind in enumerate(sorted(FAULTS)):
        schedule = (fault(number, kind),)
        if not FAULTS[kind].kind.needs <= able:
            with pytest.raises(MissingCapability, match=f"fault '{kind}' needs"):
                refuse_missing(schedule, FAULTS, able)
            continue
        nemesis = Nemesis(
            schedule=schedule,
            faults=FAULTS,
            seed=number,
            write=records.append,
        )
        await nemesis.run(scene, clock.now_ns())
        await nemesis.heal_all(scene)
        trouble += nemesis.trouble
    return tuple(trouble)


def test_every_kind_that_can_be_done_is_proven_effective_and_proven_healed(
    docker_daemon: docker.APIClient,
) -> None:
    records: list[Record] = []

    async def story() -> tuple[frozenset[Capability], tuple[str, ...]]:
        async with running(named("kinds"), NODES) as run:
            await run.start_all()
            able = await run.provider.capabilities()
            trouble = await applied(run, able, records)
            for source, destination in zip(NODES, (*NODES[1:], NODES[0]), strict=True):
                # The first question finds out that a kept connection died with a machine.
                await run.asked(source, destination)
                assert await run.asked(source, destination) == "ok"
            return able, trouble

    able, trouble = asyncio.run(story())

    assert trouble == ()
    seen: dict[str, list[str]] = {}
    for record in records:
        if isinstance(record, FaultTransition):
            seen.setdefault(record.kind, []).append(record.state.value)
            assert record.text or record.state not in (FaultState.EFFECTIVE, FaultState.HEALED)
    assert seen == {kind: LIFE for kind in sorted(FAULTS) if FAULTS[kind].kind.needs <= able}
    assert {"freeze", "host-loss", "pause", "restart", "bridge", "one-way"} <= seen.keys()
    assert owned(docker_daemon, named("kinds")) == []
