"""Faults that wait for a moment of the store, as far as a nemesis goes; see also tests/sim."""

from __future__ import annotations

import asyncio
import tomllib

import pytest
from msgspec.structs import replace
from nemesis_world import EVERY_FAULT, NODES, Stage, World, in_virtual_time

from harness.errors import MissingCapability, PlanError
from harness.history.records import EventKind, FaultState, StoreEvent
from harness.plan.plan import dumps, loads
from harness.protocols.cluster import Roles
from harness.protocols.faults import PlannedFault
from harness.protocols.moments import Happening, Moment, moment_of
from harness.protocols.targets import parse
from nemesis.aims import concrete, matches, materialised, refuse_untold
from nemesis.schedule import check_schedule

ROLES = Roles(leaders={0: "n2", 3: "n4"}, primaries={0: "n2", 3: "n3"}, metastorage_leader="n1")
AIMED = PlannedFault(
    at_s=1.0,
    kind="kill",
    target="its node",
    hold_s=2.0,
    on=Moment.LEADER_ELECTED,
    by="leader of partition 3",
    after_s=0.5,
)


def event(kind: EventKind, node: str, partition: int | None, at_s: float = 0.0) -> StoreEvent:
    return StoreEvent(
        kind=kind,
        node=node,
        wall_ns=0,
        boot="b",
        at_ns=int(at_s * 1e9),
        uncertainty_ns=0,
        partition=partition,
    )


def came(node: str, partition: int | None, moment: Moment = Moment.PREPARE_LOGGED) -> Happening:
    return Happening(moment=moment, node=node, partition=partition)


@pytest.mark.parametrize(
    ("by", "happening", "is_it"),
    [
        ("n1,n2", came("n2", 5), True),
        ("n1", came("n2", 5), False),
        ("leader of partition 3", came("n4", 3), True),
        ("leader of partition 3", came("n4", 0), False),
        ("leader of partition 3", came("n4", None), True),
        ("leader of any partition", came("n4", 3), True),
        ("leader of any partition", came("n4", 0), False),
        ("leader of any partition", came("n3", None), False),
        ("primary of partition 3", came("n3", 3), True),
        ("primary of partition 3", came("n4", 3), False),
        ("follower of partition 3", came("n1", 3), True),
        ("follower of partition 3", came("n4", 3), False),
        ("follower of any partition", came("n4", None), False),
        ("metastorage leader", came("n1", None), True),
        ("metastorage leader", came("n2", None), False),
    ],
)
def test_a_moment_counts_by_the_role_of_its_node_and_its_partition(
    by: str, happening: Happening, is_it: bool
) -> None:
    assert matches(parse(by), happening, ROLES) is is_it


def test_a_target_speaks_of_the_moment_that_it_waits_for() -> None:
    happening = came("n3", 2)

    assert concrete("its node", happening) == "n3"
    assert concrete("other voter of its partition", happening) == "other voter of partition 2"
    assert concrete("its node at 30 %", happening) == "n3 at 30 %"
    assert concrete("leader of its partition", came("n3", None)) == "leader of any partition"
    assert concrete("minority", happening) == "minority"


def test_a_fault_that_has_come_is_a_row_with_an_offset_that_a_plan_holds() -> None:
    row = materialised(AIMED, came("n4", 3, Moment.LEADER_ELECTED), since_ns=1_234_567_891)

    assert row == PlannedFault(
        at_s=1.734568,
        kind="kill",
        target="n4",
        hold_s=2.0,
        aimed="leader-elected (n4, partition 3)",
    )
    plan = loads("seed = 1\n[nemesis]\nschedule = []")
    whole = replace(plan, nemesis=replace(plan.nemesis, schedule=(row, AIMED)))
    assert loads(dumps(whole)) == whole


def test_a_plan_without_aims_has_no_word_of_them() -> None:
    plan = loads('seed = 1\n[[nemesis.schedule]]\nat_s = 1.0\nkind = "kill"\ntarget = "n1"')

    (row,) = tomllib.loads(dumps(plan))["nemesis"]["schedule"]
    assert row == {"at_s": 1.0, "kind": "kill", "target": "n1", "hold_s": 5.0}


def test_a_fault_on_a_moment_needs_no_offset_and_any_other_does() -> None:
    aimed = '[[nemesis.schedule]]\non = "leader-elected"\nkind = "kill"\ntarget = "its node"'

    assert loads(f"seed = 1\n{aimed}").nemesis.schedule[0].at_s == 0.0
    with pytest.raises(PlanError, match=r"nemesis.schedule\[0\].at_s: required"):
        loads('seed = 1\n[[nemesis.schedule]]\nkind = "kill"\ntarget = "n1"')


def test_a_moment_that_is_none_is_refused_with_the_list() -> None:
    with pytest.raises(PlanError, match=r"nemesis.schedule\[0\].on: .*'prepare-logged'.*'lunch'"):
        loads('seed = 1\n[[nemesis.schedule]]\non = "lunch"\nkind = "kill"\ntarget = "n1"')


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"on": None}, r"\[0\].by: expected 'on' beside it"),
        ({"on": None, "by": None}, r"\[0\].after_s: expected 'on' beside it"),
        (
            {"on": None, "by": None, "after_s": None},
            r"\[0\].target: 'its node' is that of a moment",
        ),
        ({"aimed": "x"}, r"\[0\].on: expected no moment"),
        ({"after_s": -1.0}, r"\[0\].after_s: must be from 0"),
        ({"after_s": float("nan")}, r"\[0\].after_s: must be from 0"),
        ({"by": "half"}, r"\[0\].by: must be one of: a node, leader"),
        ({"by": "n9"}, r"\[0\].by: target must name nodes"),
        ({"by": "leader of partition 9"}, r"\[0\].by: target partition must be below 4"),
        ({"target": "its house"}, r"\[0\].target: target must be one of"),
        ({"hold_s": 18.6}, r"\[0\].hold_s: would end at 20.1 s"),
    ],
)
def test_an_aim_that_cannot_be_met_is_refused_with_its_place(
    changes: dict[str, object], says: str
) -> None:
    def check(fault: PlannedFault) -> None:
        check_schedule([fault], faults=EVERY_FAULT, nodes=NODES, duration_s=20.0, partitions=4)

    check(AIMED)
    with pytest.raises(PlanError, match=says):
        check(replace(AIMED, **changes))


def test_moments_that_the_nodes_do_not_tell_are_refused_by_name() -> None:
    prepared = replace(AIMED, on=Moment.PREPARE_LOGGED)
    told = {Moment.LEADER_ELECTED, Moment.PRIMARY_GRANTED}

    refuse_untold([AIMED], told, "nodes of reference on process")
    with pytest.raises(MissingCapability, match=r"'kill' needs 'on prepare-logged'.*nodes of ref"):
        refuse_untold([AIMED, prepared], told, "nodes of reference on process")


def test_only_the_grant_of_a_partition_is_one_of_a_primary() -> None:
    assert moment_of(event(EventKind.LEASE_GRANTED, "n1", 2)) is Moment.PRIMARY_GRANTED
    assert moment_of(event(EventKind.LEASE_GRANTED, "n1", None)) is None
    assert moment_of(event(EventKind.TORN_TAIL, "n1", None)) is None


def test_on_real_nodes_a_fault_comes_with_the_event_that_tells_its_moment() -> None:
    async def scenario() -> None:
        stage = Stage(replace(AIMED, by=None, nth=2), world=World(ROLES))
        work = asyncio.ensure_future(stage.run())
        await asyncio.sleep(0.5)
        stage.nemesis.heard(event(EventKind.LEADER_ELECTED, "n5", 1))  # before at_s
        await asyncio.sleep(1.0)
        stage.nemesis.heard(event(EventKind.LEADER_LOST, "n2", 0))
        stage.nemesis.heard(event(EventKind.LEADER_ELECTED, "n2", 0))
        await asyncio.sleep(1.0)
        assert stage.states() == ["planned"]
        stage.nemesis.heard(event(EventKind.LEADER_ELECTED, "n4", 3))
        await work

        assert stage.states()[1:3] == ["injecting", "injected"]
        begun = stage.last(0, FaultState.INJECTING)
        assert (begun.target, begun.nodes) == ("n4", ("n4",))
        assert 3.0 <= begun.at_ns / 1e9 < 3.1  # half a second after the event
        assert stage.last(0, FaultState.EFFECTIVE).text.startswith(
            "leader-elected (n4, partition 3): "
        )
        (row,) = stage.nemesis.schedule
        assert (row.on, row.target, row.aimed) == (None, "n4", "leader-elected (n4, partition 3)")
        assert stage.nemesis.trouble == ()

    in_virtual_time(scenario)


def test_a_moment_that_comes_to_a_node_under_the_same_mechanism_is_missed() -> None:
    async def scenario() -> None:
        paused = PlannedFault(at_s=0.5, kind="pause", target="n4", hold_s=30.0)
        stage = Stage(paused, AIMED, world=World(ROLES), duration_s=60.0)
        work = asyncio.ensure_future(stage.run())
        await asyncio.sleep(2.0)
        stage.nemesis.heard(event(EventKind.LEADER_ELECTED, "n4", 3))
        await work

        assert stage.states(1) == ["planned", "missed"]
        assert stage.last(1, FaultState.MISSED).text == "n4 is under pause n4 for 5 s"
        assert stage.nemesis.trouble == ()

    in_virtual_time(scenario)


def test_a_fault_whose_moment_does_not_come_in_time_is_missed_and_stays_as_planned() -> None:
    async def scenario() -> None:
        stage = Stage(AIMED, world=World(ROLES), duration_s=10.0)
        work = asyncio.ensure_future(stage.run())
        await asyncio.sleep(2.0)
        stage.nemesis.heard(event(EventKind.LEADER_ELECTED, "n2", 0))  # of another partition
        await work

        assert stage.states() == ["planned", "missed"]
        skipped = stage.last(0, FaultState.MISSED)
        assert "leader-elected by leader of partition 3" in skipped.text
        assert 5.4 < skipped.at_ns / 1e9 < 5.6  # later it would not end within the drive
        assert stage.nemesis.schedule == (AIMED,)
        assert (stage.nemesis.trouble, stage.world.running["n2"]) == ((), True)

    in_virtual_time(scenario)
