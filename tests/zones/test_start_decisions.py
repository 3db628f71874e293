"""Which copies start after a restart, and which partitions a reset timer is about: the two loops,
with metastorage's own state machine and answers of other nodes as values.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from clusters.providers.sim.loop import simulate
from clusters.reference.node.availability import driver as resets
from clusters.reference.node.availability import manager
from clusters.reference.node.availability.driver import ResetDriver
from clusters.reference.node.availability.intents import Intent, ZoneResets
from clusters.reference.node.metastorage.metastorage import (
    Invoke,
    Metastorage,
    Operation,
    encode_invoke,
)
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
    assignments,
    encode,
    encode_number,
)
from clusters.reference.node.rebalance.partition_driver import PartitionDriver
from clusters.reference.node.rebalance.transitions import Variant
from clusters.reference.node.runtime.tasks import Tasks
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
    driver._host = cast(Any, SimpleNamespace(begin_generation=refused))
    driver._place(0, FIRST)
    driver._replicas.replicas[0] = cast(Any, SimpleNamespace(group=SimpleNamespace(generation=1)))
    for _ in range(2):
        for number, forced in list(driver._forced.items()):
            driver._begin_forced(number, forced)
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
        await driver._ask_aliveness(0, FIRST)

    simulate(story())
    assert started == expected


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
    monkeypatch.setattr(resets, "numbers", lambda view: NUMBERS)
    nodes = lambda: SimpleNamespace(nodes=[SimpleNamespace(name=n) for n in alive])  # noqa: E731
    driver = ResetDriver(
        view=store.view,
        group=cast(Any, SimpleNamespace(propose=propose)),
        variant=Variant.BASE,
        clock=cast(Any, None),
        leases=cast(Any, SimpleNamespace(grants={})),
        topology=cast(Any, nodes),
        settled=lambda: True,
        event_log=cast(Any, SimpleNamespace(add=lambda *_, **__: None)),
    )
    driver.connect(cast(Any, ask))
    fired = ZoneResets(1, ("b",), Intent(1, 0, ("b",)))

    async def story() -> None:
        assert not await driver._fire(cast(Any, SimpleNamespace(name="Z", id=1)), fired)

    simulate(story())
    for partition in (FIRST, SECOND):
        assert store.view.get(partition.key(GENERATION)) is None
