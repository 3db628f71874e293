"""The driver of zones, step by step, on a metastorage that does what it proposes at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest
from zone_store import DOWN, FILTER, UP, ZoneStore, alter

from clusters.providers.sim.loop import simulate
from clusters.reference.node.catalog.grammar import parse
from clusters.reference.node.catalog.statements import Ddl
from clusters.reference.node.events import EventLog
from clusters.reference.node.metastorage.metastorage import InvokeResult
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.runtime.hybrid_clock import Hlc, span
from clusters.reference.node.topology.logical import LOGICAL
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import Failed
from clusters.reference.node.zones import manager
from clusters.reference.node.zones.data_nodes import Topology
from clusters.reference.node.zones.driver import RETAINED_S, ZoneDriver, warnings

MAX_LOOKS = 50  # far more than any test causes: a driver that spins looks without an end


class Driven(ZoneStore):
    """A node that leads metastorage, of which the nodes A and B are, and a zone Z of them."""

    def __init__(self, options: str) -> None:
        super().__init__()
        self.does("AB", f"CREATE ZONE z WITH {options}")
        self.serving, self.settled = True, True
        self.proposed, self.looks = 0, 0
        self.refusals: list[object] = []  # the outcomes of the next proposals, which are not done
        self.meanwhile: Callable[[], None] = lambda: None  # happens as a proposal is done
        loop = asyncio.get_running_loop()
        self.clock = Hlc(wall_ns=lambda: 10**18, monotonic_s=loop.time)
        self.events = EventLog(boot="boot", wall_ns=lambda: 0)
        self.driver = ZoneDriver(
            view=self.store,
            group=self,
            clock=self.clock,
            topology=self._looked,
            settled=lambda: self.settled,
            event_log=self.events,
        )
        self.store.observe("", self.driver.observed)
        self._running = asyncio.ensure_future(self.driver.run())

    @property
    def leader(self) -> str | None:
        return "A"

    async def propose(self, data: bytes, limit_s: float) -> object:
        self.proposed += 1
        if self.refusals:
            return self.refusals.pop(0)
        done = self.store.apply(Entry(1, 1, data))
        self.meanwhile()
        await asyncio.sleep(0)
        return done

    def _looked(self) -> Topology:
        self.looks += 1
        assert self.looks < MAX_LOOKS, "it spins"
        return self.topology()

    async def tick(self) -> None:
        """A tick of the node's, and what comes of it."""
        self.driver.tick()
        await self.passes(0.001)

    async def passes(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        if self._running.done():
            self._running.result()

    def told(self) -> list[str]:
        return [event.text for event in self.events.since("boot", 0).events]

    def names(self) -> list[str]:
        """The data nodes of each entry of the history of Z."""
        return ["".join(node.name for node in entry.nodes) for entry in self.state().history]


def driven(scenario: Callable[[Driven], Coroutine[None, None, None]], options: str = "") -> None:
    """Play ``scenario`` on a driver that nothing has ticked yet."""

    async def played() -> None:
        driven = Driven(options or f"{UP}=5, {DOWN}=5")
        await scenario(driven)
        await driven.passes(0.001)
        running = driven._running
        running.cancel()
        await asyncio.wait([running])

    simulate(played())


@pytest.mark.parametrize(
    ("serving", "settled", "drives"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
def test_only_a_leader_that_is_settled_drives(serving: bool, settled: bool, drives: bool) -> None:
    async def scenario(node: Driven) -> None:
        node.serving, node.settled = serving, settled
        await node.tick()
        node.does("ABC")
        await node.passes(10.0)
        assert (node.proposed > 0) == drives
        # What it has not done it does once it leads.
        node.serving = node.settled = True
        await node.tick()
        await node.passes(10.0)
        assert node.names()[-1] == "ABC"

    driven(scenario)


def test_a_leader_that_is_deposed_between_ticks_leaves_changes_and_timers_to_the_next() -> None:
    async def scenario(node: Driven) -> None:
        await node.tick()
        node.does("ABC")
        await node.passes(1.0)
        node.serving, proposed = False, node.proposed
        await node.passes(10.0)  # the timer is due meanwhile
        node.does("ABCD")
        await node.passes(1.0)
        await node.tick()
        assert node.proposed == proposed
        node.serving = True
        await node.tick()
        assert node.proposed > proposed
        await node.passes(5.0)
        assert node.names() == ["AB", "ABCD"]

    driven(scenario)


def test_a_change_is_followed_at_once_and_a_timer_fires_as_it_is_due() -> None:
    async def scenario(node: Driven) -> None:
        await node.tick()
        assert node.names() == ["AB"]
        joined = node.clock.physical()
        node.does("ABC")
        await node.passes(4.9)
        assert node.names() == ["AB"]
        await node.passes(0.2)
        assert node.names() == ["AB", "ABC"]
        assert node.state().history[-1].ts == joined + span(5)
        node.does(alter(f"{FILTER}='\"A\"'"))
        await node.passes(0.001)
        assert node.names() == ["AB", "ABC", "A"]
        assert node.told() == [f"zone Z: data nodes {names}" for names in ("A B", "A B C", "A")]

    driven(scenario)


def test_it_looks_at_what_a_revision_changed_of_catalog_and_topology_and_at_no_other() -> None:
    async def scenario(node: Driven) -> None:
        await node.tick()
        looks = node.looks
        node.put(("lease/A", b"1"), ("partition/1", b"2"))
        await node.passes(1.0)
        assert node.looks == looks
        held = node.store.get(LOGICAL)
        assert held is not None
        node.put(("partition/1", b"3"), (LOGICAL, held.value))
        await node.passes(1.0)
        assert node.looks > looks

    driven(scenario)


def test_a_statement_that_comes_while_a_step_writes_is_followed_behind_it() -> None:
    async def scenario(node: Driven) -> None:
        def said() -> None:
            node.meanwhile = lambda: None
            node.does(alter(f"{FILTER}='\"A\"'"))

        node.meanwhile = said
        await node.tick()
        assert node.names()[-1] == "A"

    driven(scenario)


@pytest.mark.parametrize(
    "refusal", [Failed(codes.NOT_LEADER), InvokeResult(success=False, revision=9)]
)
def test_what_is_refused_ends_the_step_and_is_looked_at_again_with_the_next_tick(
    refusal: object,
) -> None:
    async def scenario(node: Driven) -> None:
        node.does("CREATE ZONE y")
        node.refusals = [refusal]
        await node.tick()
        assert (node.proposed, node.told()) == (1, [])
        await node.tick()
        assert node.told() == ["zone Z: data nodes A B", "zone Y: data nodes A B"]

    driven(scenario)


def test_a_switch_of_one_zone_is_reported_once_and_not_that_of_another() -> None:
    async def scenario(node: Driven) -> None:
        node.does(f"CREATE ZONE y WITH {FILTER}='\"nowhere\"'")
        await node.tick()
        assert node.told() == ["zone Z: data nodes A B", "zone Y: data nodes none"]
        node.does("ABC")  # starts a timer, and switches nothing
        await node.passes(1.0)
        node.does("DROP ZONE y")
        await node.passes(1.0)
        assert node.told()[2:] == []
        await node.passes(5.0)
        assert node.told()[2:] == ["zone Z: data nodes A B C"]

    driven(scenario)


def test_a_zone_that_is_removed_before_its_switch_is_reported_ends_no_driver() -> None:
    async def scenario(node: Driven) -> None:
        def removed() -> None:
            node.meanwhile = lambda: None
            zone = node.catalog.zones["Z"].id
            node.put((f"{manager.TIMERS}{zone}", None), (f"{manager.HISTORY}{zone}", None))

        node.meanwhile = removed
        await node.tick()
        # The catalog still has it here: another leader may be ahead.
        assert node.told() == ["zone Z: data nodes none", "zone Z: data nodes A B"]

    driven(scenario)


def test_switches_are_dated_above_those_of_a_leader_whose_clock_was_ahead() -> None:
    async def scenario(node: Driven) -> None:
        ahead = node.clock.physical() + span(60)
        for invoke in manager.step(node.store, node.catalog, node.topology(), ahead):
            assert node.apply(invoke).success
        node.does(alter(f"{FILTER}='\"A\"'"))
        await node.tick()
        assert node.names() == ["AB", "A"]
        assert node.state().history[-1].ts > ahead

    driven(scenario)


def test_a_history_keeps_what_may_still_be_read_and_no_more() -> None:
    async def scenario(node: Driven) -> None:
        await node.tick()
        for names in ("ABC", "ABCD"):
            node.does(names)
            await node.passes(1.0)
        assert node.names() == ["AB", "ABC", "ABCD"]
        await node.passes(RETAINED_S - 1.5)
        node.does("ABCDE")
        await node.passes(1.0)
        assert node.names() == ["ABC", "ABCD", "ABCDE"]

    driven(scenario, f"{UP}=0")


@pytest.mark.parametrize(
    ("statement", "told"),
    [
        ("CREATE TABLE t WITH PRIMARY_ZONE = z", ["table 'T': no node of zone 'Z' has"]),
        ("ALTER TABLE t SET PRIMARY_ZONE = z", ["table 'T': no node of zone 'Z' has"]),
        ("CREATE TABLE u WITH PRIMARY_ZONE = y", []),
        ("ALTER TABLE IF EXISTS v SET PRIMARY_ZONE = z", []),
        ("ALTER ZONE z SET REPLICAS = 2", []),
    ],
)
def test_a_statement_on_a_table_warns_where_no_node_can_hold_it(
    statement: str, told: list[str]
) -> None:
    store = ZoneStore()
    store.does(
        "A",
        "CREATE ZONE y",
        "CREATE ZONE z WITH STORAGE_PROFILES = 'fast'",
        "CREATE TABLE t WITH PRIMARY_ZONE = z",
        "CREATE TABLE u WITH PRIMARY_ZONE = y",
    )
    ddl = parse(statement)
    assert isinstance(ddl, Ddl)
    found = warnings(store.catalog, ddl, store.topology())
    assert [text[: len(start)] for text, start in zip(found, told, strict=True)] == told
