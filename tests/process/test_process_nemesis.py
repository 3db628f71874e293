"""The nemesis at work on real processes and real links."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from process_programs import Line, bring_up

from harness import plugins
from harness.clock import RunClock
from harness.errors import MissingCapability
from harness.history.records import FaultState, FaultTransition, Record
from harness.protocols.cluster import Cluster, Roles
from harness.protocols.cluster_membership import Membership
from harness.protocols.fault_kinds import PROCEDURES
from harness.protocols.faults import Fault, PlannedFault, Scene
from nemesis.node_faults import kill as kill_fault
from nemesis.partition_faults import partition as partition_fault
from nemesis.runner import Nemesis, refuse_missing

ANSWER_LIMIT_S = 0.5
ONLY_SIMULATED = {
    *("disk-slow", "disk-full", "disk-error", "bit-flip"),
    *("clock-jump", "clock-fast", "clock-slow"),
    *("ddl", "join", "leave", "replace", "attributes"),  # of a store that has them
    "command",  # where the environment does not allow it
    *("crash", "drop-messages", "hold-messages", "double-messages", "reorder-messages"),
}
# They look at what a store tells of its groups: ``test_process_members.py``.
OF_STORES = {"wipe"}
# Its usual one is of the voters of a partition, of which these nodes tell none.
AIMS = {"cut": "n1>n2", "successive-loss": "all"}
LIFE = ["planned", "injecting", "injected", "effective", "healing", "healed"]


class EchoSystem:
    """Every node that answers says that it leads the partition of its number."""

    name = "echo"

    async def roles(self, cluster: Cluster) -> Roles:
        leaders = {}
        for node in cluster.nodes:
            try:
                line = await Line.dial(cluster.client[node]["client"])
                line.say("who")
                if await line.hear(ANSWER_LIMIT_S) == f"{node}:who":
                    leaders[int(node[1:])] = node
                line.close()
            except OSError:  # a paused node's kernel answers, the node does not
                continue
        return Roles(leaders=leaders)


def states(records: list[Record], fault: int) -> list[str]:
    mine = (r for r in records if isinstance(r, FaultTransition) and r.fault == fault)
    return [r.state.value for r in mine]


def test_kills_and_partitions_of_real_processes_are_proven_and_undone(tmp_path: Path) -> None:
    records: list[Record] = []
    faults = {"kill": kill_fault(), "partition": partition_fault()}
    schedule = (
        PlannedFault(at_s=0.0, kind="kill", target="leader of partition 2", hold_s=0.5),
        PlannedFault(at_s=0.2, kind="partition", target="n1", hold_s=1.5),
    )

    async def scenario() -> None:
        provider, cluster = await bring_up(tmp_path, "n1", "n2", "n3")
        refuse_missing(schedule, faults, await provider.capabilities())
        system: Any = EchoSystem()
        clock = RunClock(asyncio.get_running_loop())
        scene = Scene(provider=provider, system=system, membership=Membership(cluster), clock=clock)
        nemesis = Nemesis(
            schedule=schedule,
            faults=faults,
            seed=1,
            write=records.append,
        )
        try:
            before = await provider.probe("n2")
            await nemesis.run(scene, clock.now_ns())
            await nemesis.heal_all(scene)

            assert nemesis.trouble == ()
            assert (await provider.probe("n2")).boot != before.boot
            line = await Line.dial(cluster.peer["n1", "n3"]["peer"])
            assert await line.ask("hi") == "n3:hi"
            line.close()
        finally:
            await provider.teardown()

    asyncio.run(scenario())

    assert states(records, 0) == LIFE
    assert states(records, 1) == LIFE
    proofs = [
        r.text
        for r in records
        if isinstance(r, FaultTransition) and r.state is FaultState.EFFECTIVE
    ]
    assert sorted(proofs) == [
        "all 4 links drop what is sent",
        "n2 does not run (killed by SIGKILL)",
    ]


def test_faults_of_two_mechanisms_meet_on_one_real_process(tmp_path: Path) -> None:
    records: list[Record] = []
    meetings = (
        (("partition", "n1", 0.0, 2.0), ("kill", "n1", 0.3, 0.3)),
        (("pause", "n2", 0.0, 2.4), ("delay", "n2 at 60 ms", 0.3, 1.6)),
        (("majorities-ring", "all", 3.5, 2.0), ("kill", "n3", 4.0, 0.3)),
    )
    schedule = tuple(
        PlannedFault(kind=kind, target=target, at_s=at_s, hold_s=hold_s)
        for pair in meetings
        for kind, target, at_s, hold_s in pair
    )
    faults: dict[str, Fault] = {p.kind: plugins.load("faults", p.kind)() for p in schedule}

    async def scenario() -> None:
        provider, cluster = await bring_up(tmp_path, "n1", "n2", "n3", "n4")
        system: Any = EchoSystem()
        clock = RunClock(asyncio.get_running_loop())
        scene = Scene(provider=provider, system=system, membership=Membership(cluster), clock=clock)
        nemesis = Nemesis(schedule=schedule, faults=faults, seed=1, write=records.append)
        try:
            await nemesis.run(scene, clock.now_ns())
            await nemesis.heal_all(scene)
            assert nemesis.trouble == ()
        finally:
            await provider.teardown()

    asyncio.run(scenario())

    assert {fault: states(records, fault) for fault in range(6)} == dict.fromkeys(range(6), LIFE)
    at_ns = {(r.fault, r.state): r.at_ns for r in records if isinstance(r, FaultTransition)}
    for first, second in ((0, 1), (2, 3), (4, 5)):
        begun = max(at_ns[fault, FaultState.INJECTED] for fault in (first, second))
        assert begun < min(at_ns[fault, FaultState.HEALING] for fault in (first, second))


def test_a_cancelled_nemesis_heals_real_processes_and_links(tmp_path: Path) -> None:
    records: list[Record] = []
    schedule = (
        PlannedFault(at_s=0.0, kind="kill", target="n2", hold_s=600),
        PlannedFault(at_s=0.0, kind="partition", target="n1", hold_s=600),
    )

    async def scenario() -> None:
        provider, cluster = await bring_up(tmp_path, "n1", "n2", "n3")
        system: Any = EchoSystem()
        clock = RunClock(asyncio.get_running_loop())
        scene = Scene(provider=provider, system=system, membership=Membership(cluster), clock=clock)
        nemesis = Nemesis(
            schedule=schedule,
            faults={"kill": kill_fault(), "partition": partition_fault()},
            seed=1,
            write=records.append,
        )
        try:
            run = asyncio.ensure_future(nemesis.run(scene, clock.now_ns()))
            async with asyncio.timeout(20):
                while states(records, 1)[-1:] != ["effective"]:  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            run.cancel()
            await asyncio.wait({run})

            await nemesis.heal_all(scene)

            assert nemesis.trouble == ()
            assert all([(await provider.probe(node)).running for node in cluster.nodes])
        finally:
            await provider.teardown()

    asyncio.run(scenario())

    assert states(records, 0) == states(records, 1) == LIFE


@pytest.mark.slow
def test_every_kind_that_can_be_done_is_proven_effective_and_proven_healed(tmp_path: Path) -> None:
    faults: dict[str, Fault] = {
        kind: plugins.load("faults", kind)()
        for kind in plugins.names("faults")
        if kind not in OF_STORES
    }
    records: list[Record] = []
    refused = []

    async def scenario() -> None:
        provider, cluster = await bring_up(tmp_path, "n1", "n2", "n3", "n4")
        able = await provider.capabilities()
        system: Any = EchoSystem()
        clock = RunClock(asyncio.get_running_loop())
        scene = Scene(provider=provider, system=system, membership=Membership(cluster), clock=clock)
        try:
            for number, kind in enumerate(sorted(faults)):
                usual = (f"primary of partition {number % 4 + 1}",)
                aim = AIMS.get(kind, (faults[kind].kind.aims or usual)[0])
                # Of a procedure it bounds all steps together.
                hold_s = 60.0 if kind in PROCEDURES else 0.1
                schedule = (PlannedFault(at_s=0.0, kind=kind, target=aim, hold_s=hold_s),)
                if not faults[kind].kind.needs <= able:
                    with pytest.raises(MissingCapability, match=f"fault '{kind}' needs"):
                        refuse_missing(schedule, faults, able)
                    refused.append(kind)
                    continue
                nemesis = Nemesis(
                    schedule=schedule,
                    faults=faults,
                    seed=number,
                    write=records.append,
                )
                await nemesis.run(scene, clock.now_ns())
                await nemesis.heal_all(scene)
                assert nemesis.trouble == ()
            line = await Line.dial(cluster.peer["n1", "n3"]["peer"])
            assert await line.ask("hi") == "n3:hi"
            line.close()
        finally:
            await provider.teardown()

    asyncio.run(scenario())

    seen: dict[str, list[str]] = {}
    for record in records:
        if isinstance(record, FaultTransition):
            seen.setdefault(record.kind, []).append(record.state.value)
    assert refused == sorted({"freeze", "host-loss", "loss"} | ONLY_SIMULATED)
    assert seen == {kind: LIFE for kind in sorted(faults) if kind not in refused}
