"""Partitions of a simulated cluster that move under load, with their data."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest
from zoned_lab import Lab, columns, now_s

from clusters.providers.sim.loop import simulate
from clusters.reference.node.events import REBALANCE_STAGE, EventLog
from clusters.reference.node.groups.group import Group
from clusters.reference.node.metastorage.metastorage import (
    Change,
    Invoke,
    Metastorage,
    Operation,
    Versioned,
    encode_invoke,
)
from clusters.reference.node.raft import (
    ChangeBusy,
    ChangeRefused,
    Configuration,
    Entry,
    NotLeader,
    StaleRevision,
    StaleTerm,
)
from clusters.reference.node.raft import Stage as RaftStage
from clusters.reference.node.rebalance import partition_driver
from clusters.reference.node.rebalance.decisions import CancelChange, ChangePeers
from clusters.reference.node.rebalance.driver import Numbers
from clusters.reference.node.rebalance.failover import ReconfigurationError, Retries
from clusters.reference.node.rebalance.keys import (
    STABLE,
    PartitionId,
    PartitionState,
    assignments,
    encode,
)
from clusters.reference.node.rebalance.partition_driver import Led, PartitionDriver
from clusters.reference.node.rebalance.transitions import Variant, planned_moved
from clusters.reference.node.runtime.concurrency import Failure, Tasks
from clusters.reference.node.topology.logical import LOGICAL
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import Failed, InvokeReply, MemberReply
from harness.protocols.client import READ_WRITE, StoreError

TOPOLOGY = "SELECT NODE_NAME FROM SYSTEM.LOGICAL_TOPOLOGY"
KINDS = "SELECT PARTITION_ID, KIND, NODES FROM SYSTEM.ASSIGNMENTS"
PARTITIONS = 4
KEYS = 8


class Load:
    """Clients that append, each acknowledged element kept."""

    @property
    def count(self) -> int:
        """How many were acknowledged."""
        return sum(map(len, self.acknowledged.values()))

    def __init__(self, lab: Lab, seed: int) -> None:
        self.lab, self.random = lab, random.Random(seed)
        self.acknowledged: dict[int, list[int]] = {key: [] for key in range(KEYS)}
        self.next_element = 0
        self.over = False

    async def client(self, node: str) -> None:
        while not self.over:
            self.next_element += 1
            element, key = self.next_element, self.random.randrange(KEYS)
            try:
                client = await self.lab.dial(node)
                tx = await client.begin(READ_WRITE, now_s() + 2.0)
                await tx.append(key, element)
                await tx.commit()
                self.acknowledged[key].append(element)
                await client.close()
            except StoreError:
                await asyncio.sleep(0.02)

    async def read(self, node: str, key: int) -> tuple[int, ...]:
        for _ in range(100):
            try:
                client = await self.lab.dial(node)
                tx = await client.begin(READ_WRITE, now_s() + 2.0)
                found = await tx.read(key)
                await client.close()
                return found if isinstance(found, tuple) else ()
            except StoreError:
                await asyncio.sleep(0.05)
        raise AssertionError(f"key {key} can't be read")


def alone(
    view: Metastorage,
    *,
    variant: Variant = Variant.BASE,
    ask: object = None,
    host: object = None,
    leader: object = None,
    changes: object = None,
) -> PartitionDriver:
    """The driver of node a, for what it decides by ``view`` alone."""
    nothing = cast(Any, None)
    return PartitionDriver(
        node="a",
        variant=variant,
        view=view,
        leader=cast(Any, leader),
        lives=lambda: {name: f"{name}@1" for name in "abc"},
        numbers=lambda: Numbers(((7, 0, 1),)),
        grants=lambda number: None,
        host=cast(Any, host),
        replicas=nothing,
        assignments={},
        ask=cast(Any, ask),
        event_log=EventLog(boot="boot", wall_ns=lambda: 7),
        change_log=cast(Any, changes),
        tasks=Tasks(Failure()),
    )


class Recorded:
    """What is recorded of changes of peers."""

    def __init__(self) -> None:
        self.lines: list[tuple[object, ...]] = []

    def accepted(self, number: int, nodes: tuple[str, ...], **of: int) -> None:
        self.lines.append(("accepted", number, nodes, of["asked"], of["term"], of["revision"]))

    def failed(self, number: int, error: str, **of: int) -> None:
        self.lines.append(("failed", number, error, of["term"], of["revision"]))

    def cancelled(self, number: int, done: bool, **of: int) -> None:
        self.lines.append(("cancelled", number, done, of["term"], of["revision"]))


def led_by(
    voters: str = "a@1 b@1", stage: RaftStage = RaftStage.STABLE, **fields: object
) -> tuple[Group, Led]:
    """A group that node a leads, in term 4, and what it knows of it."""
    config = Configuration(tuple(voters.split()))
    raft = SimpleNamespace(node="a@1", term=4, stage=stage, configuration=config, **fields)
    return cast(Group, SimpleNamespace(raft=raft)), Led(4, Retries())


async def settled(lab: Lab, node: str = "a", limit_s: float = 30.0) -> dict[int, set[str]]:
    """The nodes of each partition, once nothing is pending and groups are as it is stable."""
    deadline_s = now_s() + limit_s
    while True:
        rows = await lab.done(KINDS, node)
        stable = {int(str(p)): set(str(n).split(",")) for p, kind, n in rows if kind == "stable"}
        if len(rows) == len(stable) == PARTITIONS and await running(lab) == stable:
            return stable
        assert now_s() < deadline_s, (rows, await running(lab))
        await asyncio.sleep(0.1)


async def running(lab: Lab) -> dict[int, set[str]]:
    """The nodes that run a raft node of each partition, where all agree on the voters."""
    found: dict[int, set[str]] = {}
    for node in lab.nodes:
        if (await lab.provider.probe(node)).running:
            for group in (await lab.report(node)).groups:
                if group.partition is not None:
                    found.setdefault(group.partition, set()).add(node)
    return found


async def begun(
    lab: Lab, replicas: int, settings: Mapping[str, object] | None = None, **common: object
) -> None:
    await lab.provision(common, settings=settings)
    await lab.start(*lab.nodes)
    await lab.until_rows(TOPOLOGY, columns(" ".join(lab.nodes)))
    await lab.done(
        f"CREATE ZONE z WITH PARTITIONS = {PARTITIONS}, REPLICAS = {replicas}, "
        'DATA_NODES_FILTER = \'"a", "b", "c"\''
    )
    await lab.done("CREATE TABLE t WITH PRIMARY_ZONE = z")
    await settled(lab)


@pytest.mark.parametrize("seed", range(3))
def test_partitions_move_to_other_nodes_under_load_and_lose_nothing(seed: int) -> None:
    async def scenario() -> None:
        lab = Lab(seed)
        await begun(lab, 3)
        load = Load(lab, seed)
        clients = [asyncio.ensure_future(load.client(node)) for node in ("a", "d", "f")]
        await asyncio.sleep(2.0)
        await lab.done('ALTER ZONE z SET DATA_NODES_FILTER = \'"d", "e", "f"\'')
        moved = await settled(lab)
        assert set().union(*moved.values()) == {"d", "e", "f"}
        await lab.done("ALTER ZONE z SET REPLICAS = 1")
        await asyncio.sleep(1.0)
        assert {len(nodes) for nodes in (await settled(lab)).values()} == {1}
        await lab.done('ALTER ZONE z SET REPLICAS = 3, DATA_NODES_FILTER = \'"a", "b", "c"\'')
        await asyncio.sleep(1.0)
        back = await settled(lab)
        assert set().union(*back.values()) == {"a", "b", "c"}
        load.over = True
        await asyncio.gather(*clients)
        assert sum(map(len, load.acknowledged.values())) > 100
        for key, elements in load.acknowledged.items():
            final = await load.read("e", key)
            assert len(frozenset(final)) == len(final)
            assert frozenset(elements) <= frozenset(final)
        assert any([await lab.events(node, REBALANCE_STAGE) for node in lab.nodes])
        await lab.provider.teardown()

    simulate(scenario())


def test_a_calm_cluster_does_not_search_metastorage_every_tick(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched, prefixed = list[str](), Metastorage.prefixed

    def counted(store: Metastorage, prefix: str) -> dict[str, Versioned]:
        searched.append(prefix)
        return prefixed(store, prefix)

    async def scenario() -> None:
        lab = Lab(6)
        await begun(lab, 3)
        await asyncio.sleep(1.0)
        monkeypatch.setattr(Metastorage, "prefixed", counted)
        await asyncio.sleep(2.0)
        assert searched == []
        await lab.provider.teardown()

    simulate(scenario())


def test_a_leader_tidies_by_the_revision_that_made_its_nodes_stable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not by that of its last answered invoke: the answer to the last one may have been lost."""
    asked = list[ChangePeers]()

    async def change(
        driver: PartitionDriver, number: int, led: Led, group: Group, act: ChangePeers, **_: bool
    ) -> None:
        asked.append(act)

    monkeypatch.setattr(PartitionDriver, "_change", change)

    async def scenario() -> None:
        view, partition = Metastorage(), PartitionId(7, 0)
        for index, nodes in enumerate(("a b", "a b c"), 1):
            stable = Operation(partition.key(STABLE), encode(assignments(nodes.split())))
            view.apply(Entry(1, index, encode_invoke(Invoke((), (stable,)))))
        driver = alone(view)
        led, raft = Led(1, Retries()), SimpleNamespace(node="a@1", is_there=lambda member: False)
        led.revision = 1
        raft.configuration = Configuration(("a@1", "b@1", "c@1"))
        group = cast(Group, SimpleNamespace(raft=raft))
        driver._tidy(0, partition, led, group)
        await asyncio.sleep(0)
        assert [act.revision for act in asked] == [2]

    simulate(scenario())


@pytest.mark.parametrize(
    ("nodes", "answers", "found"),
    [
        ("abc", {n: MemberReply(f"{n}@1") for n in "abc"}, ("a@1", "b@1", "c@1")),
        # What a node runs only the node knows.
        ("ab", {"a": MemberReply("a@1"), "b": MemberReply("b@2")}, ("a@1", "b@2")),
        # A voter that does not answer, or has none just now, stays what it is.
        ("ab", {"a": MemberReply("a@1")}, ("a@1", "b@1")),
        ("ab", {"a": MemberReply("a@1"), "b": MemberReply(None)}, ("a@1", "b@1")),
        ("ac", {"a": MemberReply("a@1")}, ReconfigurationError.UNREACHABLE),
        ("ac", {"a": MemberReply("a@1"), "c": MemberReply(None)}, ReconfigurationError.NOT_STARTED),
        # No node of that name was ever there: it is not asked.
        ("ax", {"a": MemberReply("a@1"), "x": MemberReply("x@1")}, "unreachable"),
    ],
)
def test_a_change_leads_to_the_members_that_the_nodes_name(
    nodes: str, answers: dict[str, MemberReply], found: tuple[str, ...] | str
) -> None:
    changed, record = list[object](), Recorded()
    host = SimpleNamespace(
        change_peers=lambda group, members, **of: changed.append((members, of["adjust"]))
    )

    async def ask(node: str, body: object, limit_s: float) -> object:
        return answers.get(node, Failed(codes.UNREACHABLE, "silent"))

    async def scenario() -> None:
        for variant in Variant:
            driver = alone(Metastorage(), variant=variant, ask=ask, host=host, changes=record)
            group, led = led_by("a@1 b@1")
            act = ChangePeers(tuple(nodes), 4, 20)
            await driver._change(0, led, group, act, confirm=False)
            assert led.may_try(20) == (not isinstance(found, str))

    simulate(scenario())
    # Voters that they are already need no change.
    same = found == ("a@1", "b@1")
    if isinstance(found, str):
        assert (changed, record.lines) == ([], [("failed", 0, found, 4, 20)] * 3)
    elif same:
        assert (changed, record.lines) == ([], [])
    else:
        assert changed == [(found, variant is Variant.LOCK) for variant in Variant]
        assert record.lines == [("accepted", 0, tuple(nodes), 4, 4, 20)] * 3


@pytest.mark.parametrize(
    ("stage", "learners", "asks"),
    [
        (RaftStage.STABLE, (), False),
        # A learner is to go, or a change that goes on to be turned back.
        (RaftStage.STABLE, ("c@1",), True),
        (RaftStage.CATCHING_UP, (), True),
    ],
)
def test_a_change_to_the_voters_is_asked_for_where_something_else_goes_on(
    stage: RaftStage, learners: tuple[str, ...], asks: bool
) -> None:
    asked = list[object]()
    host = SimpleNamespace(change_peers=lambda group, members, **_: asked.append(members))

    async def ask(node: str, body: object, limit_s: float) -> object:
        return MemberReply(f"{node}@1")

    async def scenario() -> None:
        driver = alone(Metastorage(), ask=ask, host=host, changes=Recorded())
        group, led = led_by(stage=stage)
        cast(Any, group.raft).configuration = Configuration(("a@1", "b@1"), learners=learners)
        await driver._change(0, led, group, ChangePeers(("a", "b"), 4, 20), confirm=False)

    simulate(scenario())
    assert bool(asked) == asks


def test_a_cancelled_change_behind_which_nothing_is_planned_is_followed_by_nothing() -> None:
    async def scenario() -> None:
        group, led = led_by(leads_since=lambda moment: True)
        led.cancelled = 17, None
        driver = alone(Metastorage())
        assert not driver._confirming(0, led, group)
        assert not driver._acting
        assert not driver._confirming(0, led, group)

    simulate(scenario())


@pytest.mark.parametrize(
    ("answer", "error", "again"),
    [
        (StaleTerm, ReconfigurationError.STALE_TERM, True),
        (StaleRevision, ReconfigurationError.STALE_REVISION, True),
        (ChangeBusy, ReconfigurationError.BUSY, False),
        (ChangeRefused, ReconfigurationError.BUSY, False),
        (NotLeader, ReconfigurationError.STEPPED_DOWN, True),
    ],
)
def test_a_change_that_raft_refuses_is_recorded_and_retried_where_nobody_else_does_it(
    answer: type[Exception], error: ReconfigurationError, again: bool
) -> None:
    record = Recorded()

    def refuse(*_: object, **__: object) -> None:
        raise answer(None) if answer is NotLeader else answer()

    async def ask(node: str, body: object, limit_s: float) -> object:
        return MemberReply(f"{node}@1")

    async def scenario() -> None:
        host = SimpleNamespace(change_peers=refuse)
        driver = alone(Metastorage(), ask=ask, host=host, changes=record)
        group, led = led_by()
        act = ChangePeers(("a", "c"), 4, 20)
        await driver._change(0, led, group, act, confirm=False)
        assert led.may_try(20) == again

    simulate(scenario())
    assert record.lines == [("failed", 0, error, 4, 20)]


@pytest.mark.parametrize(
    ("stage", "cancels", "done"),
    [
        (RaftStage.CATCHING_UP, True, True),
        (RaftStage.STABLE, False, True),  # nothing goes on that is to be cancelled
        (RaftStage.JOINT, False, False),
    ],
)
def test_what_is_planned_moves_once_a_majority_confirms_the_leader_that_has_cancelled(
    stage: RaftStage, cancels: bool, done: bool
) -> None:
    view, partition, record = Metastorage(), PartitionId(7, 0), Recorded()
    state = PartitionState(
        partition=partition,
        planned=assignments("ab"),
        pending_revision=20,
        planned_revision=30,
    )
    moved, asked = planned_moved(state), list[Invoke]()
    assert moved is not None

    async def invoke(body: Invoke) -> InvokeReply:
        asked.append(body)
        return InvokeReply(True, 31)

    async def scenario() -> None:
        confirmed = list[int]()
        group, led = led_by(
            stage=stage,
            now=17,
            cancel_change=lambda: cancels,
            leads_since=lambda moment: moment in confirmed,
        )
        leader = SimpleNamespace(invoke=invoke)
        driver = alone(view, leader=leader, changes=record)
        driver._cancel(0, led, group, CancelChange(4, moved), state)
        # Of a cancel in vain it is asked no more for the same set.
        assert led.refused == (0 if done else 30)
        assert driver._confirming(0, led, group) == done
        await asyncio.sleep(0.1)
        assert asked == []
        confirmed.append(17)
        assert driver._confirming(0, led, group) == done
        await asyncio.sleep(0.1)
        assert asked == ([moved.invoke] if done else [])
        assert led.revision == (31 if done else None)
        assert not driver._confirming(0, led, group)

    simulate(scenario())
    assert record.lines == [("cancelled", 0, done, 4, 20)]


def test_a_replica_that_was_wiped_is_a_voter_again_as_another_member() -> None:
    async def scenario() -> None:
        lab = Lab(8, ("a", "b", "c", "d", "e"))
        await lab.provision({"system_nodes": ("a", "d", "e")})
        await lab.start(*lab.nodes)
        await lab.until_rows(TOPOLOGY, columns(" ".join(lab.nodes)))
        zone = f'PARTITIONS = {PARTITIONS}, REPLICAS = 3, DATA_NODES_FILTER = \'"a", "b", "c"\''
        await lab.done(f"CREATE ZONE z WITH {zone}")
        await lab.done("CREATE TABLE t WITH PRIMARY_ZONE = z")
        await settled(lab)
        load = Load(lab, 8)
        work = asyncio.ensure_future(load.client("a"))
        await asyncio.sleep(1.0)
        await lab.provider.kill("c")
        await lab.provider.wipe("c")
        await lab.start("c")
        await asyncio.sleep(6.0)
        # The life of its directory that voted is gone for good: it is needed in its new one now.
        await lab.provider.kill("b")
        await asyncio.sleep(4.0)
        before = load.count
        await asyncio.sleep(2.0)
        assert load.count > before
        load.over = True
        await work
        for key, elements in load.acknowledged.items():
            assert frozenset(elements) <= frozenset(await load.read("a", key))
        await lab.provider.teardown()

    simulate(scenario())


def test_retries_are_resumed_as_nodes_come_and_go() -> None:
    async def scenario() -> None:
        driver = alone(Metastorage())
        given_up = Retries(revision=4, failures=11, given_up=True)
        led = driver._led[0] = Led(1, Retries())
        led.retries, led.wait_until_s = given_up, 1e9
        driver.observed(Change(revision=5, entries={"topology/physical": b""}))
        assert (led.retries, led.wait_until_s) == (given_up, 1e9)
        driver.observed(Change(revision=6, entries={LOGICAL: b""}))
        assert led.wait_until_s == 0.0
        assert led.may_try(4)
        assert not led.retries.given_up

    simulate(scenario())


def test_the_replicas_of_a_dropped_table_are_erased_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(partition_driver, "MAX_REMOVALS", 2)
    remove, at_once, most = PartitionDriver._remove, dict[int, int](), list[int]()

    async def counted(driver: PartitionDriver, *rest: Any) -> None:
        at_once[id(driver)] = at_once.get(id(driver), 0) + 1
        most.append(at_once[id(driver)])
        await remove(driver, *rest)
        at_once[id(driver)] -= 1

    monkeypatch.setattr(PartitionDriver, "_remove", counted)

    async def scenario() -> None:
        lab = Lab(5)
        await begun(lab, 3)
        await lab.done("DROP TABLE t")
        deadline_s = now_s() + 30.0
        while await running(lab):
            assert now_s() < deadline_s
            await asyncio.sleep(0.1)
        await lab.provider.teardown()

    simulate(scenario())
    assert len(most) >= 3 * PARTITIONS
    assert max(most) == 2
