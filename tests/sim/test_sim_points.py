"""Crashes in the middle of an operation, and messages that are chosen one by one."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace
from sim_lab import digest, drill

from clusters.providers.sim.adversary import Adversary
from clusters.providers.sim.disk import Platter, SimDisk
from clusters.providers.sim.loop import simulate
from clusters.providers.sim.network import SimConnection
from clusters.reference.node.raft.types import Append, VoteRequest
from clusters.reference.node.runtime import DiskError
from clusters.reference.node.wire.messages import Codec, RaftBatch, encode
from harness.errors import MissingCapability, PlanError
from harness.history.load import load
from harness.history.records import EventKind
from harness.history.run_directory import Manifest, RunDirectory
from harness.plan.plan import Plan, loads
from harness.protocols.cluster import Capability
from harness.protocols.crash_points import Action, Choice, MessageClass, Operation, When
from harness.protocols.faults import Fault, PlannedFault
from harness.protocols.moments import Moment
from nemesis.crash_faults import crash
from nemesis.message_faults import double, drop, hold, reorder
from nemesis.runner import refuse_missing
from nemesis.schedule import check_schedule

PLAN = """
seed = 4
[cluster]
provider = "sim"
nodes = 3
[system]
partitions = 2
[workload]
min_length = 2
max_length = 3
key_count = 12
[drive]
duration_s = 6
concurrency = 6
rate_per_s = 40
[check]
min_ok = 1
"""
FAULTS: dict[str, Fault] = {
    "crash": crash(),
    "drop-messages": drop(),
    "hold-messages": hold(),
    "double-messages": double(),
    "reorder-messages": reorder(),
}


def fault(kind: str, target: str = "n1", **options: Any) -> PlannedFault:
    return PlannedFault(at_s=0.5, kind=kind, target=target, hold_s=1.5, options=options)


def planned(*faults: PlannedFault) -> Plan:
    plan = loads(PLAN)
    return replace(plan, nemesis=replace(plan.nemesis, mix=(), schedule=faults))


def ran(root: Path, *faults: PlannedFault) -> tuple[RunDirectory, Manifest, list[dict[str, Any]]]:
    run, manifest = drill(planned(*faults), root)
    return run, manifest, load(run).faults().to_pylist()


POINTS = [
    {"at": "sync", "when": "instead", "nth": 30},
    {"at": "sync", "when": "after", "nth": 30},
    {"at": "send", "when": "before", "nth": 20, "messages": "appends"},
    {"at": "send", "when": "instead", "nth": 5, "messages": "prepares"},
    {"at": "receive", "when": "after", "nth": 5, "messages": "locks"},
]


@pytest.mark.parametrize("options", POINTS, ids=lambda o: "-".join(map(str, o.values())))
def test_a_node_crashes_at_its_point_and_does_so_again(
    options: dict[str, Any], tmp_path: Path
) -> None:
    run, manifest, (found,) = ran(tmp_path / "first", fault("crash", **options))

    assert manifest.trouble == ()
    assert (found["state"], found["nodes"]) == ("healed", ["n1"])
    assert found["proof"].startswith(f"{options['when']} {options['at']} {options['nth']}")
    # It was told to end: its exit is no promise broken.
    events = load(run).events().to_pylist()
    assert EventKind.NODE_EXITED not in {event["kind"] for event in events}
    again, _ = drill(loads(run.plan.read_text()), tmp_path / "again")
    assert digest(again) == digest(run)


def test_the_next_operation_is_a_later_crash(tmp_path: Path) -> None:
    times = []
    for nth in (10, 11, 60):
        _, _, (row,) = ran(tmp_path / str(nth), fault("crash", at="sync", when="after", nth=nth))
        times.append(row["injecting_ns"])

    assert times == sorted(set(times))


@pytest.mark.parametrize(
    ("when", "left"),
    [(When.BEFORE, {b"old"}), (When.INSTEAD, {b"old", b"new"}), (When.AFTER, {b"new"})],
)
def test_a_crash_around_a_rename_leaves_the_old_file_or_the_new_one(
    when: When, left: set[bytes]
) -> None:
    async def replaced(seed: int) -> bytes:
        platter = Platter(random.Random(seed))
        disk = SimDisk(platter)
        await disk.replace("file", b"old")

        def gate(operation: Operation, place: When, effect: Callable[[], None]) -> None:
            if (operation, place) == (Operation.RENAME, when):
                effect()
                platter.crash()
                disk.die()

        platter.gate = gate
        with pytest.raises(DiskError, match="was killed"):
            await disk.replace("file", b"new")
        return await SimDisk(platter).read("file")

    assert {simulate(replaced(seed)) for seed in range(20)} == left


def test_a_point_that_does_not_come_is_no_fault_and_no_trouble(tmp_path: Path) -> None:
    _, manifest, (row,) = ran(tmp_path / "run", fault("crash", at="sync", nth=1_000_000))

    assert (row["state"], manifest.trouble) == ("missed", ())
    assert "n1 did not come to instead sync 1000000" in row["reason"]


def test_a_node_that_is_cut_off_from_votes_does_not_lead(tmp_path: Path) -> None:
    """Its requests for votes are lost, and nothing else: the others elect, and it follows."""
    votes = fault("drop-messages", "n1", messages="votes", way="both")
    cut = PlannedFault(at_s=0.8, kind="pause", target="n2", hold_s=1.5)
    run, manifest, rows = ran(tmp_path / "run", replace(votes, hold_s=3.0), cut)

    assert manifest.trouble == ()
    assert [row["state"] for row in rows] == ["healed", "healed"]
    begun, ended = rows[0]["injected_ns"], rows[0]["healing_ns"]
    elected = {
        event["node"]
        for event in load(run).events().to_pylist()
        if event["kind"] == EventKind.LEADER_ELECTED and begun < event["at_ns"] < ended
    }
    assert "n1" not in elected


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("drop-messages", {"messages": "appends", "of": 0, "count": 20}),
        ("drop-messages", {"messages": "appends", "of": "metastorage", "way": "to"}),
        ("drop-messages", {"messages": "appends", "share": 0.4}),
        ("drop-messages", {"messages": "commits", "count": 2}),
        ("hold-messages", {"messages": "finishes"}),
        ("hold-messages", {"messages": "appends", "count": 1, "until": "prepare-logged"}),
        ("reorder-messages", {"messages": "appends"}),
        ("double-messages", {"messages": "renewals"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_chosen_messages_are_proven_chosen_and_let_go_and_the_store_survives_it(
    kind: str, options: dict[str, Any], tmp_path: Path
) -> None:
    run, manifest, (row,) = ran(tmp_path / "first", fault(kind, "n1", **options))

    assert manifest.trouble == ()
    assert row["state"] == "healed"
    assert f"a message of {options['messages']} that is tried is chosen" in row["proof"]
    assert row["heal_proof"].endswith("passes, 0 are held")
    again, _ = drill(loads(run.plan.read_text()), tmp_path / "again")
    assert digest(again) == digest(run)


class Wire:
    """A connection from n1 to n2, as far as the adversary sees it."""

    link, alive = ("n1", "n2"), True

    def by_itself(self, payload: bytes) -> Callable[[], None]:
        return lambda: None


def test_a_share_of_the_messages_is_lost_one_by_one() -> None:
    """The others of the same frame go on, and so do all of another class."""
    adversary = Adversary(1, lambda node: None)
    links = (("n1", "n2"),)
    adversary.choose(
        Choice(action=Action.DROP, links=links, messages=MessageClass.APPENDS, share=0.4)
    )
    append = Append("n1@a", 1, 0, 0, 0, 0, ())
    vote = VoteRequest(sender="n1@a", term=1, last_index=0, last_term=0, pre=False)
    frame = encode(RaftBatch((("p0", append), ("p0", vote), ("p1", append))))

    left = [adversary.sending(cast(SimConnection, Wire()), frame) for _ in range(300)]

    passed = [message for sent in left if sent is not None for message in messages(sent)]
    assert sum(isinstance(message, VoteRequest) for message in passed) == 300
    assert 0.5 < sum(isinstance(message, Append) for message in passed) / 600 < 0.7


@pytest.mark.parametrize(("metastorage", "left"), [(True, ["p0"]), (False, [])])
def test_messages_of_metastorage_are_chosen_alone(metastorage: bool, left: list[str]) -> None:
    adversary, appends = Adversary(1, lambda node: None), MessageClass.APPENDS
    choice = Choice(
        action=Action.DROP, links=(("n1", "n2"),), messages=appends, metastorage=metastorage
    )
    adversary.choose(choice)
    append = Append("n1@a", 1, 0, 0, 0, 0, ())
    frame = encode(RaftBatch((("metastorage", append), ("p0", append))))

    sent = adversary.sending(cast(SimConnection, Wire()), frame)

    assert [group for group, _ in batch_of(sent)] == left
    assert adversary.look(choice).chosen


def batch_of(frame: bytes | None) -> tuple[tuple[str, object], ...]:
    batch = RaftBatch(()) if frame is None else Codec.peer.decode(frame)
    assert isinstance(batch, RaftBatch)
    return batch.messages


def messages(frame: bytes) -> list[object]:
    return [message for _, message in batch_of(frame)]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        (fault("crash", at="lunch"), r"\[0\].options.at: .*'sync'.*'lunch'"),
        (fault("crash", nth=0), r"\[0\].options.nth: expected an integer >= 1"),
        (fault("crash", at="sync", messages="votes"), r"\[0\].options.messages: expected 'send'"),
        (fault("crash", house=1), r"\[0\].options.house: unknown key"),
        (fault("drop-messages"), r"\[0\].options.messages: required"),
        (fault("drop-messages", messages="votes", of=2), r"\[0\].options.of: must be below 2"),
        (fault("drop-messages", messages="votes", share=1.0), r"\[0\].options.share: expected"),
        (fault("double-messages", messages="locks"), r"\[0\].options.messages: expected one of"),
        (fault("reorder-messages", messages="commits"), r"\[0\].options.messages: expected one of"),
    ],
    ids=lambda value: value.kind if isinstance(value, PlannedFault) else None,
)
def test_options_that_can_never_be_met_are_refused_with_their_place(
    row: PlannedFault, says: str
) -> None:
    with pytest.raises(PlanError, match=says):
        check_schedule(
            [row], faults=FAULTS, nodes=("n1", "n2", "n3"), duration_s=10.0, partitions=2
        )


def test_options_of_a_kind_that_has_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"\[0\].options: expected none: fault 'kill' has no opt"):
        ran(tmp_path / "run", fault("kill", nth=1))


def test_real_nodes_refuse_points_and_choices_by_name() -> None:
    able = frozenset(Capability) - {Capability.CRASH_POINTS, Capability.MESSAGES}
    for kind, needs in (("crash", "crash-points"), ("drop-messages", "messages")):
        row = fault(kind, messages=MessageClass.VOTES.value)
        with pytest.raises(MissingCapability, match=rf"fault '{kind}' needs '{needs}'"):
            refuse_missing([row], FAULTS, able)


def test_a_crash_can_wait_for_a_moment_first(tmp_path: Path) -> None:
    row = replace(fault("crash", "its node", at="sync", nth=1), on=Moment.PREPARE_LOGGED)
    run, manifest, (found,) = ran(tmp_path / "first", row)

    assert (manifest.trouble, found["state"]) == ((), "healed")
    assert found["proof"].startswith("prepare-logged (n")
    again, _ = drill(loads(run.plan.read_text()), tmp_path / "again")
    assert digest(again) == digest(run)
