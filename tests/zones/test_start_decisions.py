"""Which copies start after a restart, and which partitions a reset timer is about: the two loops,
with metastorage's own state machine and answers of other nodes as values.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from clusters.providers.sim.loop import simulate
from clusters.reference.node.availability import manager, resets, unwind_driver
from clusters.reference.node.availability.driver import ResetDriver
from clusters.reference.node.availability.reset_intents import Intent, ZoneResets
from clusters.reference.node.availability.resets import ASKED_TIMES, Resets
from clusters.reference.node.availability.start_decisions import StartDecisions
from clusters.reference.node.metastorage.metastorage import (
    Invoke,
    InvokeResult,
    Metastorage,
    Operation,
    encode_invoke,
)
from clusters.reference.node.placement.lease_expiry import PRIMARY, Grant, LeaseTable
from clusters.reference.node.placement.lease_expiry import encode as encode_grant
from clusters.reference.node.raft import ChangeRefused, Entry
from clusters.reference.node.rebalance import keys
from clusters.reference.node.rebalance.driver import Numbers
from clusters.reference.node.rebalance.keys import (
    CHAIN,
    GENERATION,
    PENDING,
    STABLE,
    Assignments,
    Chain,
    Link,
    PartitionId,
    PartitionState,
    assignments,
    encode,
    encode_number,
)
from clusters.reference.node.rebalance.partition_driver import PartitionDriver
from clusters.reference.node.rebalance.transitions import Variant
from clusters.reference.node.runtime.concurrency import Tasks
from clusters.reference.node.topology.logical import LOGICAL
from clusters.reference.node.wire.messages import LogReply, StartReply

NUMBERS = Numbers(((7, 0, 2),))
FIRST, SECOND = PartitionId(7, 0), PartitionId(7, 1)
TWO_LINKS = Chain((Link(tuple("abcde")), Link(tuple("abcd"), 1, 5, 2)))


class Store:
    """Metastorage's state machine, written to directly."""

    def __init__(self) -> None:
        self.view, self.index = Metastorage(), 0

    def put(self, key: str, value: bytes) -> None:
        self.apply(encode_invoke(Invoke((), (Operation(key, value),))))

    def apply(self, data: bytes) -> object:
        self.index += 1
        return self.view.apply(Entry(1, self.index, data))


def partition_driver(store: Store, node: str, ask: object, started: list[int]) -> PartitionDriver:
    """The part of ``node``, which has a copy of the first partition since before its start."""
    nothing = cast(Any, None)
    replicas = SimpleNamespace(
        left_behind=lambda: [0],
        start_of=lambda number: StartReply(False, 1, 1, 1, 0, 0, 0),
        replicas={},
        assigned=lambda number, assignment: started.append(number),
    )
    return PartitionDriver(
        node=node,
        variant=Variant.BASE,
        phase2=True,
        view=store.view,
        leader=nothing,
        lives=lambda: {name: f"{name}@1" for name in "abcde"},
        numbers=lambda: NUMBERS,
        grants=lambda number: None,
        host=nothing,
        replicas=cast(Any, replicas),
        assignments={},
        ask=cast(Any, ask),
        event_log=cast(Any, SimpleNamespace(add=lambda *_, **__: None)),
        change_log=nothing,
        tasks=Tasks(cast(Any, None)),
    )


async def ticked(copies: StartDecisions) -> None:
    copies.tick()


def test_a_node_that_a_reset_gave_the_partition_to_does_not_wait() -> None:
    store, started = Store(), list[int]()
    store.put(FIRST.key(STABLE), encode(assignments("abcd")))
    store.put(FIRST.key(CHAIN), encode(TWO_LINKS))
    store.put(FIRST.key(GENERATION), encode_number(2))
    store.put(FIRST.key(PENDING), encode(Assignments(("e",), force=True)))

    partition_driver(store, "a", None, started)._place(0, FIRST)
    assert started == []
    partition_driver(store, "e", None, started)._place(0, FIRST)
    assert started == [0]


def test_a_copy_that_waits_starts_once_the_chain_is_kept_to_its_last_link() -> None:
    store, started = Store(), list[int]()
    store.put(FIRST.key(STABLE), encode(assignments("abcd")))
    store.put(FIRST.key(CHAIN), encode(TWO_LINKS))
    driver = partition_driver(store, "a", None, started)
    driver._newest = 0
    driver._place(0, FIRST)
    assert started == []

    store.view.observe(CHAIN, driver.observed)
    store.put(FIRST.key(CHAIN), encode(Chain(TWO_LINKS.links[-1:])))
    assert started == [0]


def test_a_copy_of_a_later_link_is_erased_behind_what_goes_on_and_starts_no_sooner() -> None:
    store, done = Store(), list[object]()
    store.put(FIRST.key(STABLE), encode(assignments("abc")))
    store.put(FIRST.key(GENERATION), encode_number(2))
    store.put(FIRST.key(CHAIN), encode(Chain((Link(tuple("abc")),))))

    async def erase(number: int) -> None:
        done.append(f"erased {number}")

    async def story() -> None:
        driver = partition_driver(store, "e", None, cast(Any, done))
        copies = driver._start_decisions
        copies._replicas.erase = erase  # type: ignore[method-assign]
        driver._acting[0] = None  # as while it asks whether others live
        driver._place(0, FIRST)
        copies.tick()
        store.put(FIRST.key(PENDING), encode(assignments("abce")))
        driver._place(0, FIRST)
        await asyncio.sleep(0.1)
        assert (done, copies.waits(0)) == ([], True)
        del driver._acting[0]
        copies.tick()
        await asyncio.sleep(0.1)
        assert (done, copies.waits(0)) == (["erased 0", 0], False)

    simulate(story())


def test_a_generation_that_can_not_begin_yet_is_tried_again() -> None:
    store, tried = Store(), list[int]()
    store.put(FIRST.key(STABLE), encode(assignments("abcd")))
    store.put(FIRST.key(CHAIN), encode(TWO_LINKS))
    store.put(FIRST.key(GENERATION), encode_number(2))
    store.put(FIRST.key(PENDING), encode(Assignments(("e",), force=True)))

    def refused(group: object, number: int) -> None:
        tried.append(number)
        raise ChangeRefused("behind in its generation")

    driver = partition_driver(store, "e", None, [])
    copies = driver._start_decisions
    copies._host = cast(Any, SimpleNamespace(begin_generation=refused))
    driver._place(0, FIRST)
    copies._replicas.replicas[0] = cast(Any, SimpleNamespace(group=SimpleNamespace(generation=1)))
    for _ in range(2):
        simulate(ticked(copies))
    assert tried == [2, 2]


@pytest.mark.parametrize(("there", "expected"), [("abc", [0]), ("ab", [])])
def test_copies_start_as_usual_once_one_lives_and_a_majority_is_there(
    there: str, expected: list[int]
) -> None:
    store, started = Store(), list[int]()
    store.put(FIRST.key(STABLE), encode(assignments("abcd")))
    store.put(FIRST.key(CHAIN), encode(TWO_LINKS))

    async def ask(node: str, question: object, limit_s: float) -> object:
        return StartReply(node == "a", 1, 2, 5, 0, 0, 0) if node in there else None

    async def story() -> None:
        driver = partition_driver(store, "b", ask, started)
        driver._place(0, FIRST)
        assert started == []
        # The chain is as it was: to be placed again, the copy must count as decided.
        await driver._start_decisions._ask_aliveness(0, FIRST)

    simulate(story())
    assert started == expected


def test_a_copy_of_before_the_stable_assignments_is_not_alive() -> None:
    store, started = Store(), list[int]()
    store.put(FIRST.key(STABLE), encode(assignments("abcd")))
    store.put(FIRST.key(CHAIN), encode(TWO_LINKS))
    behind = {"a": StartReply(True, 0, 9, 9, 0, 0, 0), "c": StartReply(True, 1, 2, 4, 0, 0, 0)}

    async def ask(node: str, question: object, limit_s: float) -> object:
        return behind.get(node, StartReply(False, 1, 2, 5, 0, 0, 0))

    async def story() -> None:
        driver = partition_driver(store, "b", ask, started)
        driver._place(0, FIRST)
        await driver._start_decisions._ask_aliveness(0, FIRST)
        assert started == []
        behind["a"] = StartReply(True, 1, 2, 5, 0, 0, 0)
        await driver._start_decisions._ask_aliveness(0, FIRST)
        assert started == [0]

    simulate(story())


def test_a_node_is_asked_once_and_the_first_answers_that_tell_are_enough() -> None:
    store, asked = Store(), list[str]()
    store.put(FIRST.key(STABLE), encode(assignments("abc")))
    store.put(FIRST.key(PENDING), encode(assignments("abcd")))
    store.put(FIRST.key(CHAIN), encode(TWO_LINKS))

    async def ask(node: str, question: object, limit_s: float) -> object:
        asked.append(node)
        if node == "d":
            await asyncio.sleep(100.0)
        return StartReply(True, 1, 2, 5, 0, 0, 0)

    async def story() -> None:
        driver = partition_driver(store, "b", ask, [])
        driver._place(0, FIRST)
        async with asyncio.timeout(1.0):
            await driver._start_decisions._ask_aliveness(0, FIRST)

    simulate(story())
    assert asked == ["a", "c", "d"]


def leases() -> LeaseTable:
    """Those of a node that has heard of no lease."""
    return LeaseTable(
        node="a", origin="a~1", clock=cast(Any, None), monotonic_s=lambda: 0.0, held=lambda _: None
    )


class Asked:
    """A partition of b, c and d that has lost its majority, and what its copies answer."""

    def __init__(self, answers: dict[str, LogReply], connected: str = "") -> None:
        self.store, self.answers, self.told = Store(), answers, list[str]()
        self.store.put(LOGICAL, b"")
        self.store.put(FIRST.key(STABLE), encode(assignments("bcd")))
        self.leases, self.asked = leases(), 0
        self.before: Callable[[], None] = lambda: None
        log = SimpleNamespace(add=lambda kind, text, **_: self.told.append(text))
        self.resets = Resets(
            view=self.store.view,
            variant=Variant.BASE,
            leases=self.leases,
            connected=lambda: tuple(connected),
            ask=cast(Any, self._ask),
            propose=self._propose,
            event_log=cast(Any, log),
        )

    async def _ask(self, node: str, question: object, limit_s: float) -> object:
        self.asked += 1
        return self.answers.get(node)

    async def _propose(self, invoke: Invoke) -> bool:
        self.before()
        done = self.store.apply(encode_invoke(invoke))
        return isinstance(done, InvokeResult) and done.success

    async def reset(self, alive: str) -> bool:
        state = keys.read(self.store.view, FIRST)
        return await self.resets.reset(state, tuple(alive), self.store.view.get(LOGICAL))

    @property
    def state(self) -> PartitionState:
        return keys.read(self.store.view, FIRST)


@pytest.fixture(autouse=True)
def _numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (resets, unwind_driver):
        monkeypatch.setattr(module, "numbers", lambda view: NUMBERS)


@pytest.mark.parametrize("held", [None, Grant("d", "d~1", 3, released=True)])
def test_a_reset_and_a_new_grant_of_the_same_moment_do_not_both_pass(held: Grant | None) -> None:
    async def story() -> None:
        lab = Asked({"b": LogReply(0, 1, 1)})
        if held is not None:
            lab.leases.grants[0] = held
            lab.store.put(f"{PRIMARY}0", encode_grant(held))
        lab.before = lambda: lab.store.put(f"{PRIMARY}0", encode_grant(Grant("c", "c~1", 4)))
        assert not await lab.reset("b")
        assert lab.state.generation == 0
        # Without the other one it does.
        lab = Asked({"b": LogReply(0, 1, 1)})
        assert await lab.reset("b")
        assert lab.state.generation == 1

    simulate(story())


def test_all_that_are_left_are_members_behind_a_reset_and_those_compared_its_survivors() -> None:
    async def story() -> None:
        blank = LogReply(0, 0, 0, whole=False)
        lab = Asked({"b": LogReply(0, 1, 1), "c": blank})
        assert await lab.reset("bc")
        state = lab.state
        assert state.pending == Assignments(("b",), force=True, survivors=("b",))
        assert state.planned == Assignments(("b", "c"), from_reset=True)

    simulate(story())


def test_a_holder_in_reach_is_waited_for_and_one_out_of_reach_for_some_rounds() -> None:
    async def story() -> None:
        lab = Asked({"b": LogReply(0, 1, 1)}, connected="c")
        for _ in range(20):
            assert not await lab.reset("bc")
            await asyncio.sleep(2.0)
        assert lab.told == ["reset waits: c may have more, and does not answer"]
        lab.answers["c"] = LogReply(0, 2, 2)
        await asyncio.sleep(2.0)
        assert await lab.reset("bc")
        assert lab.state.pending == Assignments(("c",), force=True, survivors=("b", "c"))

        lab = Asked({"b": LogReply(0, 1, 1)})
        rounds = 1
        while not await lab.reset("bc"):
            rounds += 1
        assert rounds == ASKED_TIMES
        assert lab.state.pending == Assignments(("b",), force=True, survivors=("b",))

    simulate(story())


def test_a_reset_without_a_whole_copy_is_tried_less_and_less_often_and_told_once() -> None:
    async def story() -> None:
        lab = Asked({"b": LogReply(0, 0, 0, whole=False)})
        for _ in range(200):
            assert not await lab.reset("b")
            await asyncio.sleep(0.1)
        assert lab.told == ["reset waits: no copy on b is whole"]
        assert 10 <= lab.asked <= 20
        # A node that comes back may have one.
        lab.answers["c"] = LogReply(0, 1, 1)
        lab.resets.topology_changed()
        assert await lab.reset("bc")

    simulate(story())


def test_no_partition_is_reset_by_a_topology_that_it_was_not_judged_by(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Store()
    alive = ["b"]
    store.put(LOGICAL, b"without c and d")
    for partition in (FIRST, SECOND):
        store.put(partition.key(STABLE), encode(assignments("bcd")))

    async def ask(node: str, question: object, limit_s: float) -> object:
        # The others are back while the first partition's holder is asked.
        if alive == ["b"]:
            alive[:] = ["b", "c", "d"]
            store.put(LOGICAL, b"with c and d")
        return LogReply(0, 1, 1)

    async def propose(data: bytes, limit_s: float) -> object:
        return store.apply(data)

    both = [keys.read(store.view, partition) for partition in (FIRST, SECOND)]
    monkeypatch.setattr(manager, "states", lambda *_: iter(both))
    nodes = lambda: SimpleNamespace(nodes=[SimpleNamespace(name=n) for n in alive])  # noqa: E731
    driver = ResetDriver(
        view=store.view,
        group=cast(Any, SimpleNamespace(propose=propose)),
        variant=Variant.BASE,
        clock=cast(Any, None),
        leases=leases(),
        topology=cast(Any, nodes),
        connected=lambda: (),
        settled=lambda: True,
        ask=cast(Any, ask),
        event_log=cast(Any, SimpleNamespace(add=lambda *_, **__: None)),
    )
    fired = ZoneResets(1, ("b",), Intent(1, 0, ("b",)))

    async def story() -> None:
        assert not await driver._fire(cast(Any, SimpleNamespace(name="Z", id=1)), fired)

    simulate(story())
    for partition in (FIRST, SECOND):
        assert store.view.get(partition.key(GENERATION)) is None
