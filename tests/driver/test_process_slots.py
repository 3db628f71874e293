"""Which node a process connects to, and its successor after it."""

from __future__ import annotations

import asyncio

import attrs

from harness.driving.process_slots import Slot, Slots

NODES = ("n1", "n2", "n3", "n4", "n5")


@attrs.define
class Moving:
    """A client that goes on at other nodes, of which only that matters here."""

    node: str

    async def close(self) -> None:
        """Nothing is held."""


def slots(concurrency: int = 5) -> Slots:
    return Slots(range(concurrency), concurrency=concurrency, nodes=NODES, note=print)


def taken(found: Slots, process: int) -> Slot:
    slot = found.take(process)
    assert slot is not None
    return slot


def moved(slot: Slot, node: str) -> Slot:
    slot.client = Moving(node)  # type: ignore[assignment]
    return slot


def end_process(found: Slots, slot: Slot) -> None:
    async def end() -> None:
        found.end_process(slot)
        await asyncio.gather(*found.disconnect_all())

    asyncio.run(end())


def test_each_process_of_a_slot_connects_to_the_node_behind_its_predecessors() -> None:
    found = slots()
    slot = taken(found, 3)
    seen = list[str]()
    for _ in range(6):
        seen.append(found.node(slot))
        end_process(found, slot)
    assert seen == ["n4", "n5", "n1", "n2", "n3", "n4"]


def test_a_successor_never_comes_to_the_node_that_its_predecessor_had_moved_to() -> None:
    for node in NODES:
        found = slots()
        slot = taken(found, 0)
        assert found.node(slot) == "n1"
        # It moves in the midst of its last transaction, whose outcome is lost with that node.
        end_process(found, moved(slot, node))
        assert found.node(slot) == NODES[(NODES.index(node) + 1) % 5]


def test_the_successor_of_a_process_whose_node_left_goes_by_number() -> None:
    found = slots()
    slot = taken(found, 1)
    assert found.node(moved(slot, "n4")) == "n4"
    found.nodes = ("n1", "n2", "n3")
    end_process(found, slot)
    assert found.node(slot) == "n3"
