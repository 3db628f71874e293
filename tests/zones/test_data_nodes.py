"""Data nodes as a value: the seed's timelines to the second, vectors, random histories."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from zone_script import Script, at, second_of

from clusters.reference.node.catalog import catalog as catalogs
from clusters.reference.node.catalog.catalog import Catalog, Table
from clusters.reference.node.catalog.grammar import parse
from clusters.reference.node.catalog.nodes import Node
from clusters.reference.node.catalog.options import Joint, Separate, Zone
from clusters.reference.node.metastorage.metastorage import (
    Invoke,
    Metastorage,
    Operation,
    encode_invoke,
)
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.runtime.hybrid_clock import span
from clusters.reference.node.topology.logical import LOGICAL, Member
from clusters.reference.node.zones import data_nodes, driver, manager
from clusters.reference.node.zones.data_nodes import (
    DataNodes,
    Timer,
    TimestampBehind,
    Topology,
    altered,
    compacted,
    created,
    due_at,
    fired,
    of_profile,
    resumed,
    topology_changed,
    warning,
)

CREATE_UP = "sql CREATE ZONE z WITH DATA_NODES_AUTO_ADJUST_SCALE_UP = 300"


def history(*lines: str) -> list[tuple[int, str]]:
    """The history of zone Z after a script: second and names of each entry."""
    script = Script()
    for line in lines:
        script.do(line)
    return seconds(script.state())


def seconds(state: DataNodes) -> list[tuple[int, str]]:
    return [(second_of(e.ts), "".join(n.name for n in e.nodes)) for e in state.history]


def nodes(names: str) -> tuple[Node, ...]:
    return tuple(Node(name=name) for name in names)


def topology(names: str, revision: int) -> Topology:
    return Topology(revision=revision, nodes=nodes(names))


def zone(**fields: object) -> Zone:
    return msgspec.convert({"id": 1, "name": "Z", **fields}, Zone)


def zone_of(waits: Separate | Joint) -> Zone:
    return Zone(id=1, name="Z", waits=waits)


def separate(up_s: int | None, down_s: int | None) -> Zone:
    return zone_of(Separate(up_s, down_s))


# -- the seed's timelines


def test_the_seeds_scale_up_timeline_to_the_second() -> None:
    start = ("-1 start A B C", f"-1 {CREATE_UP}", "0 join D", "250 join E")

    assert history(*start, "550 wait") == [(-1, "ABC"), (550, "ABCDE")]
    assert history(*start, "549 wait") == [(-1, "ABC")]
    assert history(*start, "600 join F", "899 wait") == [(-1, "ABC"), (550, "ABCDE")]
    assert history(*start, "600 join F", "901 wait")[-1] == (900, "ABCDEF")


def test_the_seeds_scale_up_and_scale_down_timeline_to_the_second() -> None:
    lines = (
        "-1 start A B C",
        f"-1 {CREATE_UP}, DATA_NODES_AUTO_ADJUST_SCALE_DOWN = 300_000",
        "0 join D",
        "100 leave C",
        "250 join E",
    )

    assert history(*lines, "300_099 wait") == [(-1, "ABC"), (550, "ABCDE")]
    assert history(*lines, "300_101 wait") == [(-1, "ABC"), (550, "ABCDE"), (300_100, "ABDE")]


def test_the_joint_timer_switches_once_where_the_others_switch_twice() -> None:
    lines = ("0 join D", "100 leave C", "250 join E", "2000 wait")
    start = ("-1 start A B C", "-1 sql CREATE ZONE z WITH DATA_NODES_AUTO_ADJUST")

    assert history(start[0], f"{start[1]} = 300", *lines) == [(-1, "ABC"), (550, "ABDE")]
    assert history(
        start[0], f"{start[1]}_SCALE_UP = 300, DATA_NODES_AUTO_ADJUST_SCALE_DOWN = 300", *lines
    ) == [(-1, "ABC"), (400, "AB"), (550, "ABDE")]


# -- vectors of Ignite 3: no waits, {A, B, C} at the start


@pytest.mark.parametrize(
    ("events", "names"),
    [
        ("+D -C", "ABD"),
        ("-C +D", "ABD"),
        ("+D -D", "ABC"),
        ("-C +C", "ABC"),
        ("+D -D +D", "ABCD"),
        ("-C +C -C", "AB"),
    ],
)
@pytest.mark.parametrize("waits", [Separate(0, 0), Joint(0)], ids=["separate", "joint"])
def test_events_without_waits_apply_at_once(
    events: str, names: str, waits: Separate | Joint
) -> None:
    state = created(zone_of(waits), topology("ABC", 1), at(0))
    there = set("ABC")
    for second, event in enumerate(events.split(), 1):
        there = there | {event[1]} if event[0] == "+" else there - {event[1]}
        state = topology_changed(state, topology("".join(sorted(there)), second + 1), at(second))
        assert "".join(node.name for node in state.latest) == "".join(sorted(there))

    assert seconds(state)[-1][1] == names
    assert due_at(state) is None


@pytest.mark.parametrize(
    ("waits", "changes", "expected"),
    [
        # two joins within one wait merge; two leaves too
        ((5, None), [(1, "ABCD"), (3, "ABCDE")], [(0, "ABC"), (8, "ABCDE")]),
        ((None, 5), [(1, "AB"), (3, "")], [(0, "ABC"), (8, "")]),
        # by default a join applies at once and a leave never
        ((0, None), [(1, "ABCD"), (3, "AB")], [(0, "ABC"), (1, "ABCD")]),
        ((None, 0), [(1, "ABCD"), (3, "AB")], [(0, "ABC"), (3, "AB")]),
        ((None, None), [(1, "ABCD"), (3, "A")], [(0, "ABC")]),
    ],
)
def test_waits_merge_what_falls_into_them(
    waits: tuple[int | None, int | None],
    changes: list[tuple[int, str]],
    expected: list[tuple[int, str]],
) -> None:
    state = created(separate(*waits), topology("ABC", 1), at(0))
    for revision, (second, names) in enumerate(changes, 2):
        state = topology_changed(state, topology(names, revision), at(second))
    while (due := due_at(state)) is not None:
        state = fired(state, due)

    assert seconds(state) == expected


def test_a_topology_that_is_not_newer_is_ignored() -> None:
    state = created(separate(0, 0), topology("ABC", 5), at(0))

    assert topology_changed(state, topology("A", 5), at(1)) is state
    assert topology_changed(state, topology("A", 4), at(1)) is state
    assert topology_changed(state, topology("A", 6), at(1)) is not state

    # Nor does it fire what is due: options that were altered meanwhile are followed before that.
    waiting = created(separate(5, 5), topology("AB", 1), at(0))
    waiting = topology_changed(waiting, topology("ABC", 2), at(1))
    assert topology_changed(waiting, topology("ABC", 2), at(6)) is waiting
    assert fired(waiting, at(6)) is not waiting


def test_a_wait_that_is_altered_applies_what_is_due_and_keeps_the_history() -> None:
    for waits, names in ((Separate(0, 100), "ABCD"), (Separate(100, 0), "AB")):
        state = created(separate(100, 100), topology("ABC", 1), at(0))
        state = topology_changed(state, topology("ABD", 2), at(10))
        state = fired(altered(state, zone_of(waits), at(20)), at(20))

        assert seconds(state) == [(0, "ABC"), (20, names)]
        assert due_at(state) == at(110)
        assert state.at(at(19)) == nodes("ABC")


@pytest.mark.parametrize(
    ("short", "long"),
    [(Separate(10, None), Separate(100, None)), (Joint(10), Joint(100))],
    ids=["separate", "joint"],
)
def test_a_wait_that_is_lengthened_counts_from_the_same_start(
    short: Separate | Joint, long: Separate | Joint
) -> None:
    state = created(zone_of(short), topology("A", 1), at(0))
    state = topology_changed(state, topology("AB", 2), at(5))
    state = altered(state, zone_of(long), at(10))

    assert due_at(state) == at(105)
    assert fired(state, at(15)) is state
    assert seconds(fired(state, at(105))) == [(0, "A"), (105, "AB")]


@pytest.mark.parametrize("names", ["ABCD", "BC"])
def test_one_timer_alone_becomes_the_joint_one_with_its_start(names: str) -> None:
    state = created(separate(100, 100), topology("ABC", 1), at(0))
    state = topology_changed(state, topology(names, 2), at(10))
    state = altered(state, zone_of(Joint(50)), at(20))

    assert (state.up, state.down, due_at(state)) == (None, None, at(60))
    assert seconds(fired(state, at(60))) == [(0, "ABC"), (60, names)]


def test_timers_that_are_due_at_once_switch_once_and_are_over() -> None:
    state = created(separate(10, 10), topology("ABC", 1), at(0))
    state = topology_changed(state, topology("ABD", 2), at(5))
    state = fired(state, at(15))

    assert seconds(state) == [(0, "ABC"), (15, "ABD")]
    assert (state.up, state.down) == (None, None)


def test_a_filter_that_is_altered_drops_both_timers_and_applies_at_once() -> None:
    state = created(separate(100, 100), topology("ABC", 1), at(0))
    state = topology_changed(state, topology("ABD", 2), at(10))
    assert state.up is not None
    assert state.down is not None

    after = altered(
        state,
        zone(waits={"type": "separate", "up_s": 100, "down_s": 100}, filter='"C", "D"'),
        at(20),
    )

    # C, which had left and was not removed yet, does not come back by the filter.
    assert seconds(after) == [(0, "ABC"), (20, "D")]
    assert (after.up, after.down, due_at(after)) == (None, None, None)


def test_a_node_that_joins_while_the_filter_is_altered_is_among_the_data_nodes() -> None:
    store, catalog = Metastorage(), Catalog(zones={"Z": separate(100, None)})
    run(store, catalog, topology("A", 1), 0)
    catalog = Catalog(zones={"Z": zone(waits={"type": "separate", "up_s": 100}, filter='!"X"')})

    run(store, catalog, topology("AB", 2), 10)

    assert seconds(read(store)) == [(0, "A"), (10, "AB")]


def test_the_history_answers_for_every_time_and_keeps_what_readers_need() -> None:
    state = created(separate(0, 0), topology("A", 1), at(0))
    for second, names in ((10, "AB"), (20, "B"), (30, "BC")):
        state = topology_changed(state, topology(names, second), at(second))

    assert state.at(at(0) - 1) is None
    assert [state.at(at(second)) for second in (0, 9, 10, 25, 99)] == [
        nodes(names) for names in ("A", "A", "AB", "B", "BC")
    ]
    for before, kept in ((-5, 4), (0, 4), (9, 4), (10, 3), (25, 2), (99, 1)):
        shorter = compacted(state, at(before))
        assert len(shorter.history) == kept
        assert shorter.at(at(max(before, 0))) == state.at(at(max(before, 0)))


def test_an_event_of_the_past_is_refused_and_one_of_the_same_time_is_merged() -> None:
    state = created(separate(0, 0), topology("A", 1), at(10))

    assert seconds(topology_changed(state, topology("AB", 2), at(10))) == [(10, "AB")]
    with pytest.raises(TimestampBehind):
        topology_changed(state, topology("AB", 2), at(9))


def test_of_a_tables_profile_are_the_data_nodes_that_have_it() -> None:
    fast = Node(name="A", profiles=("fast", "default"))
    slow = Node(name="B", profiles=("slow",))

    assert of_profile((fast, slow), "fast") == (fast,)
    assert of_profile((fast, slow), "slow") == (slow,)
    assert of_profile((fast, slow), "none") == ()


def test_a_filter_without_a_node_is_accepted_with_a_warning() -> None:
    nobody, everybody = zone(filter='"X"'), zone()

    assert created(nobody, topology("AB", 1), at(0)).latest == ()
    assert "no node matches the filter" in str(warning(nobody, topology("AB", 1)))
    assert warning(everybody, topology("AB", 1)) is None


def test_a_table_is_warned_of_where_no_node_of_its_zone_has_its_profile() -> None:
    node = Node(name="A", profiles=("fast",))
    outside = Node(name="B", profiles=("slow",))
    shape, there = zone(filter='"A"'), Topology(revision=1, nodes=(node, outside))

    def told(profile: str) -> str:
        return str(warning(shape, there, Table(id=2, name="T", zone="Z", profile=profile)))

    assert told("fast") == "None"
    assert "no node of zone 'Z' has the storage profile 'slow'" in told("slow")


def test_time_in_which_the_cluster_was_down_is_no_absence() -> None:
    state = created(separate(None, 60), topology("ABC", 1), at(0))
    state = topology_changed(state, topology("AB", 2), at(100))

    assert due_at(resumed(state, down_since=at(110), physical=at(5000))) == at(5050)
    assert resumed(state, down_since=at(110), physical=at(110)) == state


def test_timers_go_by_physical_time_and_not_by_timestamps_that_are_ahead_of_it() -> None:
    state = created(separate(None, 60), topology("ABC", 1), at(0))
    state = topology_changed(state, topology("AB", 2), at(130), physical=at(100))
    assert due_at(state) == at(160)

    # Timestamps are brought forward once more, and the wait is not over.
    assert fired(state, at(170), physical=at(159)) == state
    longer = altered(state, separate(None, 61), at(170))
    assert fired(longer, at(170), physical=at(159)).down == state.down
    assert seconds(fired(state, at(171), physical=at(160))) == [(0, "ABC"), (171, "AB")]


# -- driven on metastorage


def run(store: Metastorage, catalog: Catalog, there: Topology, second: int) -> int:
    invokes = manager.step(store, catalog, there, at(second))
    return sum(store.apply(Entry(1, 1, encode_invoke(invoke))).success for invoke in invokes)


def read(store: Metastorage) -> DataNodes:
    state = manager.read(store, 1)
    assert state is not None
    return state


def test_what_is_up_to_date_needs_no_invoke() -> None:
    store, catalog = Metastorage(), Catalog(zones={"Z": separate(10, 10)})

    assert run(store, catalog, topology("AB", 1), 0) == 1
    assert run(store, catalog, topology("AB", 1), 5) == 0
    assert run(store, catalog, topology("ABC", 2), 6) == 1
    assert manager.next_due(store) == at(16)
    assert run(store, catalog, topology("ABC", 2), 15) == 0
    assert run(store, catalog, topology("ABC", 2), 16) == 1
    assert manager.next_due(store) is None


def test_a_wait_that_was_lengthened_before_its_timer_was_looked_at_is_waited_for() -> None:
    store = Metastorage()
    run(store, Catalog(zones={"Z": separate(10, 10)}), topology("AB", 1), 0)
    run(store, Catalog(zones={"Z": separate(10, 10)}), topology("ABC", 2), 6)

    longer = Catalog(zones={"Z": separate(20, 10)})
    run(store, longer, topology("ABC", 2), 16)
    assert (seconds(read(store)), manager.next_due(store)) == ([(0, "AB")], at(26))
    run(store, longer, topology("ABC", 2), 26)
    assert seconds(read(store)) == [(0, "AB"), (26, "ABC")]


def test_a_filter_that_was_altered_there_and_back_before_it_was_looked_at_applies_at_once() -> None:
    store = Metastorage()
    options = {"waits": Separate(10, 10)}
    own, other = zone(filter='"A", "B", "C"', **options), zone(filter='"A"', **options)

    def say(said: Zone) -> Catalog:
        catalog = Catalog(zones={said.name: said})
        invoke = catalogs.written(store.get, catalog)
        assert store.apply(Entry(1, 1, encode_invoke(invoke))).success
        return catalog

    catalog = say(own)
    run(store, catalog, topology("ABC", 1), 0)
    run(store, catalog, topology("AB", 2), 5)
    assert read(store).down is not None
    for said in (other, own):
        catalog = say(said)

    assert run(store, catalog, topology("AB", 2), 7) == 1
    assert seconds(read(store)) == [(0, "ABC"), (7, "AB")]
    assert read(store).down is None
    assert run(store, catalog, topology("AB", 2), 8) == 0
    # What was followed is followed once.
    run(store, catalog, topology("A", 3), 9)
    assert read(store).down is not None
    assert run(store, catalog, topology("A", 3), 10) == 0


def test_of_several_zones_the_first_timer_is_due_next() -> None:
    late = Zone(id=2, name="Y", waits=Separate(70, 70))
    for zones in ({"Z": separate(10, 10), "Y": late}, {"Y": late, "Z": separate(10, 10)}):
        store = Metastorage()
        catalog = Catalog(zones=zones)
        run(store, catalog, topology("AB", 1), 0)
        run(store, catalog, topology("ABC", 2), 6)
        assert manager.next_due(store) == at(16)
        run(store, catalog, topology("ABC", 2), 16)
        assert manager.next_due(store) == at(76)


def test_a_statement_on_a_table_that_is_called_as_a_zone_warns_of_no_zone() -> None:
    nowhere = Zone(id=1, name="Z", filter='"nowhere"')
    catalog = Catalog(zones={"Z": nowhere})
    there = topology("AB", 1)
    assert driver.warnings(catalog, parse("ALTER ZONE z SET REPLICAS = 2"), there)
    assert driver.warnings(catalog, parse("DROP TABLE z"), there) == ()
    assert driver.warnings(catalog, parse("ALTER ZONE y SET REPLICAS = 2"), there) == ()


def test_a_topology_that_did_not_last_starts_its_timer_however_late_it_is_followed() -> None:
    store, catalog = Metastorage(), Catalog(zones={"Z": separate(10, 10)})
    run(store, catalog, members(store, "ABC"), 0)
    run(store, catalog, members(store, "AB"), 3)
    members(store, "A")
    back = members(store, "AB")

    # B was away, and is back, as the leader comes to look: what goes is C, and that later.
    run(store, catalog, back, 5)
    assert (read(store).down, due_at(read(store))) == (Timer(at(5), (), ("C",)), at(15))
    run(store, catalog, back, 15)
    assert seconds(read(store)) == [(0, "ABC"), (15, "AB")]


def members(store: Metastorage, names: str) -> Topology:
    """Write the logical topology; returns it."""
    there = tuple(Member(node=node, origin="1", incarnation="1") for node in nodes(names))
    invoke = Invoke((), (Operation(LOGICAL, msgspec.msgpack.encode(there)),))
    assert store.apply(Entry(1, 1, encode_invoke(invoke))).success
    return Topology(revision=store.revision, nodes=nodes(names))


def test_of_two_leaders_that_fire_one_timer_one_switches() -> None:
    store, catalog = Metastorage(), Catalog(zones={"Z": separate(10, 10)})
    run(store, catalog, topology("A", 1), 0)
    run(store, catalog, topology("AB", 2), 1)
    (first,) = manager.step(store, catalog, topology("AB", 2), at(11))
    (second,) = manager.step(store, catalog, topology("AB", 2), at(12))

    assert store.apply(Entry(1, 1, encode_invoke(first))).success
    assert not store.apply(Entry(1, 2, encode_invoke(second))).success
    assert seconds(read(store)) == [(0, "A"), (11, "AB")]


def test_the_key_of_the_history_is_written_when_there_is_a_switch_and_not_before() -> None:
    store, catalog = Metastorage(), Catalog(zones={"Z": separate(10, 10)})
    run(store, catalog, topology("A", 1), 0)
    key = f"{manager.HISTORY}1"
    created_at = store.prefixed(key)[key].revision
    run(store, catalog, topology("AB", 2), 1)
    started_at = store.prefixed(key)[key].revision
    run(store, catalog, topology("AB", 2), 11)

    assert started_at == created_at
    assert store.prefixed(key)[key].revision == store.revision > created_at


def test_a_zone_that_is_dropped_leaves_nothing() -> None:
    store = Metastorage()
    run(store, Catalog(zones={"Z": separate(10, 10)}), topology("A", 1), 0)
    run(store, Catalog(zones={"Z": separate(10, 10)}), topology("AB", 2), 1)

    assert run(store, Catalog(), topology("AB", 2), 2) == 1
    assert (store.prefixed(""), manager.next_due(store)) == ({}, None)


def test_a_history_that_changes_keeps_what_the_oldest_reader_needs() -> None:
    store, catalog = Metastorage(), Catalog(zones={"Z": separate(0, 0)})
    for second, names in enumerate(("A", "AB", "B", "BC"), 1):
        for invoke in manager.step(
            store, catalog, topology(names, second), at(second), oldest=at(2)
        ):
            store.apply(Entry(1, 1, encode_invoke(invoke)))

    assert seconds(read(store)) == [(2, "AB"), (3, "B"), (4, "BC")]


# -- random histories

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("topology"), st.sets(st.sampled_from("ABCDEX"))),
        st.tuples(st.just("waits"), st.tuples(*[st.sampled_from([0, 5, 20, None])] * 2)),
        st.tuples(st.just("joint"), st.sampled_from([0, 5, 20, None])),
        st.tuples(st.just("filter"), st.sampled_from(["$..*", '!"X"', '"A", "B"'])),
        st.tuples(st.just("wait"), st.none()),
    ),
    max_size=15,
)


def passing(text: str, names: set[str]) -> set[str]:
    return names & {"$..*": set("ABCDEX"), '!"X"': set("ABCDE"), '"A", "B"': set("AB")}[text]


@given(events=EVENTS, gaps=st.lists(st.integers(1, 30), min_size=15, max_size=15))
def test_random_events_keep_what_timers_promise(
    events: list[tuple[str, object]], gaps: list[int]
) -> None:
    there, shape, second = set("ABC"), zone(), 0
    state = created(shape, topology("ABC", 1), at(0))
    caused = {0}  # seconds at which an event alone may switch
    for revision, ((kind, value), gap) in enumerate(zip(events, gaps, strict=False), 2):
        second += gap
        while (due := due_at(state)) is not None and due <= at(second):
            before, state = state, fired(state, due)
            assert state is not before  # a timer that is due switches, once
            assert len(state.history) <= len(before.history) + 1
        if kind == "topology":
            assert isinstance(value, set)
            there = value
            after = topology_changed(state, topology("".join(sorted(there)), revision), at(second))
            check_timers(state, after, at(second), shape.filter)
            state = after
        elif kind in ("waits", "joint", "filter"):
            shape = changed(shape, kind, value)
            state = fired(altered(state, shape, at(second)), at(second))
        caused.add(second)
        state = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=DataNodes)  # a restart
        assert [e.ts for e in state.history] == sorted({e.ts for e in state.history})
        waits = shape.waits
        assert (
            (state.joint is None) if isinstance(waits, Separate) else not (state.up or state.down)
        )
    while (due := due_at(state)) is not None:
        state = fired(state, due)
    check_end(state, shape, passing(shape.filter, there))


def changed(shape: Zone, kind: str, value: object) -> Zone:
    if kind == "filter":
        return msgspec.structs.replace(shape, filter=value)
    waits = Separate(*value) if isinstance(value, tuple) else Joint(value)  # type: ignore[arg-type]
    return msgspec.structs.replace(shape, waits=waits)


def check_timers(before: DataNodes, after: DataNodes, ts: int, text: str) -> None:
    """A join alone moves the scale-up timer, a leave alone the scale-down timer."""
    old = passing(text, {n.name for n in before.topology.nodes})
    new = passing(text, {n.name for n in after.topology.nodes})
    if isinstance(after.waits, Joint):
        if after.joint is not None and old == new and before.joint is not None:
            assert after.joint.since == before.joint.since
        return
    if after.up is not None and not new - old:
        assert before.up is not None
        assert after.up.since == before.up.since
    if after.down is not None and not old - new:
        assert before.down is not None
        assert after.down.since == before.down.since
    if new - old and after.up is not None:
        assert after.up.since == ts


def check_end(state: DataNodes, shape: Zone, there: set[str]) -> None:
    """Once all timers have fired only what is never applied is not."""
    names = {node.name for node in state.latest}
    up, down = (
        (shape.waits.wait_s,) * 2
        if isinstance(shape.waits, Joint)
        else (shape.waits.up_s, shape.waits.down_s)
    )
    if up is not None:
        assert there <= names
    if down is not None:
        assert names <= there
    waiting = [node.name for timer, _ in state.running() for node in timer.joined]
    leaving = [name for timer, _ in state.running() for name in timer.left]
    assert (names | set(waiting)) - set(leaving) == there


def test_every_second_between_is_as_the_seed_says() -> None:
    """The second timeline once more, asked for every second around its switches."""
    state = created(separate(300, 300_000), topology("ABC", 1), at(-1))
    for second, names in ((0, "ABCD"), (100, "ABD"), (250, "ABDE")):
        state = topology_changed(state, topology(names, second + 2), at(second))
    for second in (*range(251, 560), *range(300_090, 300_110)):
        state = data_nodes.fired(state, at(second))
        expected = "ABC" if second < 550 else "ABCDE" if second < 300_100 else "ABDE"
        assert state.latest == nodes(expected)
    assert span(1) == at(1) - at(0)
