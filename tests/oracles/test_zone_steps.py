"""What is written of a zone's timers follows from what they were, by the rules of IEP-101."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from clusters.reference.claims.zone_steps import ZoneSteps
from clusters.reference.node.catalog import catalog as catalogs
from clusters.reference.node.catalog.catalog import Catalog
from clusters.reference.node.catalog.grammar import parse
from clusters.reference.node.catalog.nodes import Node
from clusters.reference.node.catalog.statements import Ddl
from clusters.reference.node.metastorage.metastorage import (
    Change,
    Invoke,
    Metastorage,
    Operation,
    encode_invoke,
)
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.runtime.hybrid_clock import span
from clusters.reference.node.topology import logical
from clusters.reference.node.topology.logical import LOGICAL, RESUMED, Member
from clusters.reference.node.zones import manager
from clusters.reference.node.zones.data_nodes import DataNodes, Timer
from harness.protocols.claims import StateStep

UP, DOWN = "DATA_NODES_AUTO_ADJUST_SCALE_UP", "DATA_NODES_AUTO_ADJUST_SCALE_DOWN"
JOINT, FILTER = "DATA_NODES_AUTO_ADJUST", "DATA_NODES_FILTER"


class Lab:
    """A zone of a store that keeps the rules, and what is claimed of its steps."""

    def __init__(
        self, options: str = f"{UP}=3, {DOWN}=5", *, max_history: int | None = None
    ) -> None:
        self.store, self.catalog = Metastorage(max_history), Catalog()
        self.steps = ZoneSteps(self.store)
        self.problems: list[str] = []
        self.judged = 0
        self.at_s = 1000.0
        self.store.observe("", self._observe)
        self.ddl(f"CREATE ZONE Z WITH PARTITIONS=1, {options}")

    def _observe(self, change: Change) -> None:
        found: list[StateStep] = list(self.steps.changed(change))
        self.judged += len(found)
        self.problems += [step.problem for step in found if step.problem]

    def write(self, operations: Iterable[Operation]) -> None:
        data = encode_invoke(Invoke((), tuple(operations)))
        self.store.apply(Entry(term=1, index=self.store.revision + 1, data=data))

    def ddl(self, text: str) -> None:
        statement = parse(text)
        assert isinstance(statement, Ddl)
        self.catalog = self.catalog.apply(statement)
        self.write([Operation(catalogs.KEY, msgspec.json.encode(self.catalog))])

    def there(self, *nodes: str | Node) -> None:
        members = tuple(
            Member(
                node=Node(name=node) if isinstance(node, str) else node, origin="o", incarnation="a"
            )
            for node in nodes
        )
        self.write([Operation(LOGICAL, msgspec.msgpack.encode(members))])

    def passes(self, seconds: float) -> None:
        self.at_s += seconds

    def driven(self) -> None:
        """The store's driver has its turn."""
        topology, now = logical.topology(self.store), span(self.at_s)
        # A clock that has seen another one's is ahead of this machine's time.
        ts = now + span(0.5)
        for invoke in manager.step(self.store, self.catalog, topology, ts, physical=now):
            self.write(invoke.success)

    def resumed(self, down_s: float) -> None:
        began = span(self.at_s)
        self.passes(down_s)
        invokes = manager.resume(self.store, began, span(self.at_s))
        marker = Operation(RESUMED, msgspec.msgpack.encode(("n1~2",)))
        self.write([marker, *(each for invoke in invokes for each in invoke.success)])

    def state(self) -> DataNodes:
        found = manager.read(self.store, self._id)
        assert found is not None
        return found

    @property
    def _id(self) -> int:
        return self.catalog.zones["Z"].id

    def put(self, state: DataNodes, *, switched: bool = False) -> None:
        """Another ``state`` than the store's own."""
        rest = msgspec.structs.replace(state, history=())
        key = str(self._id)
        history = Operation(f"{manager.HISTORY}{key}", msgspec.msgpack.encode(state.history))
        timers = Operation(f"{manager.TIMERS}{key}", msgspec.msgpack.encode(rest))
        self.write([timers, history] if switched else [timers])


ALL = ("n1", "n2", "n3", "n4")
TAGGED = Node(name="n4", attributes={"ssd": None})
ALTERED = (
    f"{UP}=0, {DOWN}=2",
    f"{UP}=4",
    f"{DOWN}=OFF",
    f"{JOINT}=3",
    f"{JOINT}=1",
    f"{FILTER}='!\"n2\"'",
    f"{FILTER}='$..*'",
    f'{FILTER}=\'"ssd", "n1", "n3"\'',
)


@settings(max_examples=120, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.sets(st.sampled_from((*ALL, "tagged"))),
            st.sampled_from(ALTERED),
            st.floats(0.0, 4.0),
            st.just("resumed"),
            st.just("driven"),
        ),
        max_size=25,
    )
)
@example([f"{FILTER}='!\"n2\"'", f"{UP}=0, {DOWN}=2", f"{FILTER}='$..*'"])
@example([set(), f"{UP}=0", "driven", {"n1"}, f"{UP}=4", f"{UP}=0", set()])
def test_a_store_that_keeps_the_rules_is_never_accused(moves: list[object]) -> None:
    lab = Lab()
    lab.there("n1", "n2", "n3")
    lab.driven()
    for move in moves:
        if isinstance(move, set | frozenset):
            nodes = sorted(name for name in move if name != "tagged" and name != "n4")
            lab.there(*nodes, *((TAGGED,) if "tagged" in move else ("n4",) if "n4" in move else ()))
        elif isinstance(move, float):
            lab.passes(move)
            lab.driven()
        elif move == "resumed":
            lab.resumed(2.0)
        elif move == "driven":
            lab.driven()
        else:
            lab.ddl(f"ALTER ZONE Z SET {move}")
        lab.passes(0.1)
    lab.driven()
    assert lab.problems == []


def waiting() -> Lab:
    """n4 joined and n3 left two seconds later; neither timer is due."""
    lab = Lab()
    lab.there("n1", "n2", "n3")
    lab.driven()
    lab.there(*ALL)
    lab.driven()
    lab.passes(2.0)
    lab.there("n1", "n2", "n4")
    lab.driven()
    assert (lab.problems, lab.judged) == ([], 2)
    return lab


def test_a_topology_that_did_not_last_is_followed_too_or_unknown_to_a_compacted_history() -> None:
    for merged in (True, False):
        lab = Lab()
        lab.there("n1", "n2", "n3")
        lab.driven()
        lab.there("n1", "n2")
        lab.driven()
        lab.passes(2)
        lab.there("n1")
        lab.there("n1", "n2")
        newest = logical.topology(lab.store)
        if merged:
            lab.put(msgspec.structs.replace(lab.state(), topology=newest))
        else:
            lab.driven()
        assert lab.problems == []
        # Once it is followed it starts no timer any more.
        down = Timer(span(lab.at_s), (), ("n3",))
        lab.put(
            msgspec.structs.replace(
                lab.state(), down=msgspec.structs.replace(down, since=down.since + span(1))
            )
        )
        assert lab.problems


def test_two_waits_that_become_one_begin_with_the_later_timer() -> None:
    lab = waiting()
    lab.ddl(f"ALTER ZONE Z SET {JOINT}=9")
    before = lab.state()
    assert before.up is not None
    assert before.down is not None
    zone = lab.catalog.zones["Z"]

    joint = Timer(before.up.since, before.up.joined, before.down.left)
    lab.put(msgspec.structs.replace(before, waits=zone.waits, up=None, down=None, joint=joint))

    assert len(lab.problems) == 1
    assert f"joint since {before.up.since} adds n4 removes n3" in lab.problems[0]
    assert f"which gives [joint since {before.down.since} adds n4 removes n3" in lab.problems[0]


def test_a_node_with_other_attributes_joins() -> None:
    lab = Lab()
    lab.there("n1", "n4")
    lab.driven()
    lab.there("n1", TAGGED)
    state, topology = lab.state(), logical.topology(lab.store)

    lab.put(msgspec.structs.replace(state, topology=topology))

    assert len(lab.problems) == 1
    assert "adds n4" in lab.problems[0]


def test_an_event_of_another_node_leaves_the_timer_of_a_leave_alone() -> None:
    lab = waiting()
    lab.passes(1.0)
    lab.there("n1", "n2", "n4", "n5")
    state, topology = lab.state(), logical.topology(lab.store)
    assert state.up is not None
    assert state.down is not None
    up = Timer(span(lab.at_s), (*state.up.joined, Node(name="n5")))

    lab.put(msgspec.structs.replace(state, topology=topology, up=up))
    assert lab.problems == []

    lab.there("n1", "n2", "n4", "n5", "n6")
    topology = logical.topology(lab.store)
    up = Timer(span(lab.at_s), (*up.joined, Node(name="n6")))
    down = Timer(span(lab.at_s), (), state.down.left)
    lab.put(msgspec.structs.replace(state, topology=topology, up=up, down=down))
    assert len(lab.problems) == 1


def test_a_timer_adds_no_node_that_is_gone() -> None:
    lab = waiting()
    lab.there("n1", "n2")
    state, topology = lab.state(), logical.topology(lab.store)

    lab.put(msgspec.structs.replace(state, topology=topology))  # up still adds n4

    assert len(lab.problems) == 1
    assert "up since" in lab.problems[0]


def test_a_timer_fires_at_its_time_and_switches_once() -> None:
    lab = waiting()
    state = lab.state()
    assert state.up is not None
    nodes = (*state.latest, *state.up.joined)
    entry = msgspec.structs.replace(state.history[-1], nodes=nodes)
    early = msgspec.structs.replace(entry, ts=state.up.since + span(2.9))
    fired = msgspec.structs.replace(state, up=None, history=(*state.history, early))
    due = msgspec.structs.replace(entry, ts=state.up.since + span(3.0))
    in_time = msgspec.structs.replace(state, up=None, history=(*state.history, due))

    lab.put(fired, switched=True)
    assert len(lab.problems) == 1
    lab.put(state, switched=True)
    lab.problems.clear()

    lab.put(in_time, switched=True)
    assert lab.problems == []
    # And never without what it was to add, or without a switch that partitions follow.
    lab.put(state, switched=True)
    lab.problems.clear()
    lab.put(msgspec.structs.replace(state, up=None))
    assert len(lab.problems) == 1


def test_what_a_state_has_followed_is_there_and_never_older_than_before() -> None:
    lab = waiting()
    state = lab.state()
    other = msgspec.structs.replace(state.topology, nodes=state.topology.nodes[:1])
    lab.put(msgspec.structs.replace(state, topology=other))
    assert lab.problems == [f"the topology of revision {other.revision} is another one"]

    lab = waiting()
    lab.put(msgspec.structs.replace(lab.state(), filter='"n1"'))
    assert lab.problems == ["it follows a statement that is none, or an older one than before"]


def test_timers_begin_later_by_one_time_where_the_cluster_goes_on() -> None:
    lab = waiting()
    lab.resumed(7.0)
    assert lab.problems == []

    lab = waiting()
    state = lab.state()
    assert state.up is not None
    up = msgspec.structs.replace(state.up, since=state.up.since + span(7.0))
    marker = Operation(RESUMED, msgspec.msgpack.encode(("n1~2",)))
    rest = msgspec.msgpack.encode(msgspec.structs.replace(state, up=up, history=()))
    number = lab.catalog.zones["Z"].id
    lab.write([marker, Operation(f"{manager.TIMERS}{number}", rest)])
    assert len(lab.problems) == 1


def names(state: DataNodes) -> str:
    return " ".join(node.name for node in state.latest)


def late(*moves: str | tuple[str, ...], max_history: int | None = None) -> Lab:
    """Statements and topologies that are to be followed together, of a zone whose nodes go at once
    as they leave.
    """
    lab = Lab(f"{UP}=3, {DOWN}=0", max_history=max_history)
    lab.there("n1", "n2", "n3")
    lab.driven()
    for move in moves:
        lab.passes(0.1)
        if isinstance(move, str):
            lab.ddl(f"ALTER ZONE Z SET {move}")
        else:
            lab.there(*move)
    return lab


@pytest.mark.parametrize("max_history", [None, 1], ids=["history", "compacted"])
def test_a_wait_that_is_altered_before_a_leave_holds_for_it(max_history: int | None) -> None:
    lab = late(f"{DOWN}=5", ("n1", "n2"), max_history=max_history)
    lab.driven()

    state = lab.state()
    assert names(state) == "n1 n2 n3"
    assert state.down == Timer(span(lab.at_s), (), ("n3",))
    assert (lab.problems, lab.judged) == ([], 1)
    lab.passes(5.0)
    lab.driven()
    assert names(lab.state()) == "n1 n2"
    assert lab.problems == []


def test_a_wait_that_is_altered_after_a_leave_comes_too_late_for_it() -> None:
    lab = late(("n1", "n2"), f"{DOWN}=5")
    lab.driven()
    assert names(lab.state()) == "n1 n2"
    assert lab.problems == []


def test_of_two_leaves_the_one_after_the_statement_waits() -> None:
    lab = late(("n1", "n2"), f"{DOWN}=5", ("n1",))
    lab.driven()
    state = lab.state()
    assert names(state) == "n1 n2"
    assert state.down is not None
    assert state.down.left == ("n2",)
    assert lab.problems == []


def test_a_node_that_joins_after_the_filter_was_altered_waits() -> None:
    lab = late(f"{FILTER}='!\"n2\"'", ("n1", "n2", "n3", "n4"))
    lab.driven()
    state = lab.state()
    assert names(state) == "n1 n3"
    assert state.up is not None
    assert [node.name for node in state.up.joined] == ["n4"]
    assert lab.problems == []


@pytest.mark.parametrize("max_history", [None, 1], ids=["history", "compacted"])
def test_a_filter_that_is_altered_there_and_back_applies_at_once_and_once(
    max_history: int | None,
) -> None:
    lab = Lab(f"{UP}=3, {DOWN}=5", max_history=max_history)
    for there in (("n1", "n2", "n3"), ("n1", "n2")):
        lab.there(*there)
        lab.driven()
    before = lab.state()
    assert before.down is not None
    for text in ('!"n2"', "$..*"):
        lab.ddl(f"ALTER ZONE Z SET {FILTER}='{text}'")
    lab.passes(1.0)
    lab.driven()

    state = lab.state()
    # A store whose history is compacted can't know of it.
    assert names(state) == ("n1 n2" if max_history is None else "n1 n2 n3")
    assert state.down == (None if max_history is None else before.down)
    assert lab.problems == []
    lab.there("n1")
    lab.driven()
    assert lab.problems == []
    lab.put(msgspec.structs.replace(lab.state(), up=None, down=None), switched=True)
    assert lab.problems


def test_a_leave_behind_a_filter_that_went_there_and_back_waits() -> None:
    lab = Lab(f"{UP}=3, {DOWN}=5")
    lab.there("n1", "n2", "n3")
    lab.driven()
    for text in ('!"n2"', "$..*"):
        lab.ddl(f"ALTER ZONE Z SET {FILTER}='{text}'")
    lab.there("n1", "n2")
    lab.passes(1.0)
    lab.driven()

    state = lab.state()
    assert (names(state), state.down is not None) == ("n1 n2 n3", True)
    assert (lab.problems, lab.judged) == ([], 1)


def test_a_leave_that_goes_by_the_wait_of_before_its_statement_is_told() -> None:
    lab = late(f"{DOWN}=5", ("n1", "n2"))
    state, topology = lab.state(), logical.topology(lab.store)
    waits = lab.catalog.zones["Z"].waits
    entry = msgspec.structs.replace(state.history[-1], ts=span(lab.at_s), nodes=state.latest[:2])
    history = (*state.history, entry)

    at_once = msgspec.structs.replace(state, topology=topology, waits=waits, history=history)
    lab.put(at_once, switched=True)

    assert len(lab.problems) == 1
    assert "by a topology and other waits" in lab.problems[0]
