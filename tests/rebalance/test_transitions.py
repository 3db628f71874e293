"""Each transition against its table: Ignite's for the base, others for lock and cancel."""

from __future__ import annotations

import pytest
from group_model import done
from msgspec import structs

from clusters.reference.node.metastorage.metastorage import (
    Invoke,
    Metastorage,
    Operation,
    encode_invoke,
)
from clusters.reference.node.raft.types import Entry
from clusters.reference.node.rebalance import transitions
from clusters.reference.node.rebalance.keys import (
    APPLIED,
    CHAIN,
    GENERATION,
    LOCK,
    PENDING,
    PLANNED,
    STABLE,
    TRIGGER,
    Assignments,
    Chain,
    Link,
    Lock,
    PartitionId,
    PartitionState,
    Position,
    assignments,
    encode,
    encode_number,
    read,
)
from clusters.reference.node.rebalance.transitions import Outcome, Variant

PARTITION = PartitionId(7, 3)
SETS = {name: assignments((name, f"{name}-2", f"{name}-3")) for name in ("a1", "a2", "a3", "a4")}
OLD, NEW = 1, 1000


def store(text: str, *, trigger: int | None = OLD, lock: str = "-", term: int = 1) -> Metastorage:
    """A metastorage with stable, pending and planned as ``a1 - a2`` says."""
    made = Metastorage()
    operations = [
        Operation(PARTITION.key(prefix), encode(SETS[name]))
        for prefix, name in zip((STABLE, PENDING, PLANNED), text.split(), strict=True)
        if name != "-"
    ]
    if trigger is not None:
        operations.append(Operation(PARTITION.key(TRIGGER), encode_number(trigger)))
    if lock != "-":
        held = Lock(SETS[lock].nodes, term)
        operations.append(Operation(PARTITION.key(LOCK), encode(held)))
    put(made, *operations)
    return made


def put(made: Metastorage, *operations: Operation) -> None:
    made.apply(Entry(1, 1, encode_invoke(Invoke((), operations))))


def shown(made: Metastorage) -> str:
    state = read(made, PARTITION)
    return " ".join(
        next((name for name, held in SETS.items() if held == value), "-")
        for value in (state.stable, state.pending, state.planned)
    )


def trigger_of(made: Metastorage) -> int | None:
    return read(made, PARTITION).trigger


# -- the trigger

BASE = [
    # Ignite's RebalanceUtilUpdateAssignmentsTest: target, what was configured, before, after
    ("a1", "a2", "- - -", "- a1 -", Outcome.PENDING_UPDATED),
    ("a1", "a1", "- - -", "- - -", Outcome.EQUALS_STABLE),
    ("a1", "a2", "- a3 -", "- a3 a1", Outcome.PLANNED_UPDATED),
    ("a1", "a2", "a3 - -", "a3 a1 -", Outcome.PENDING_UPDATED),
    ("a1", "a2", "a1 - -", "a1 - -", Outcome.EQUALS_STABLE),
    ("a1", "a2", "a2 - -", "a2 a1 -", Outcome.PENDING_UPDATED),
    ("a1", "a2", "a4 a3 -", "a4 a3 a1", Outcome.PLANNED_UPDATED),
    ("a1", "a1", "a3 a2 -", "a3 a2 a1", Outcome.PLANNED_UPDATED),
    ("a1", "a2", "a2 a3 -", "a2 a3 a1", Outcome.PLANNED_UPDATED),
    ("a1", "a1", "a1 a2 a3", "a1 a2 a1", Outcome.PLANNED_UPDATED),
    # and what the seed leaves behind: planned is forgotten when pending is what is asked for
    ("a2", "a1", "a1 a2 a3", "a1 a2 -", Outcome.EQUALS_PENDING),
    ("a2", "a1", "a1 a2 -", "a1 a2 -", Outcome.EQUALS_PENDING),
    ("a1", "a1", "a1 - a3", "a1 - -", Outcome.EQUALS_STABLE),
]


@pytest.mark.parametrize("variant", [Variant.BASE, Variant.CANCEL])
@pytest.mark.parametrize(("target", "configured", "before", "after", "outcome"), BASE)
@pytest.mark.parametrize("trigger", [OLD, None])
def test_the_trigger_of_the_base_follows_its_table(
    variant: Variant,
    target: str,
    configured: str,
    before: str,
    after: str,
    outcome: Outcome,
    trigger: int | None,
) -> None:
    made = store(before, trigger=trigger)
    aim = transitions.triggered(
        variant, PARTITION, target=SETS[target], revision=NEW, before=SETS[configured]
    )

    assert done(made, aim) is outcome
    assert (shown(made), trigger_of(made)) == (after, NEW)


LOCKS = [
    # target, lock, before, after: the pending set itself changes until it is locked
    ("a1", "-", "a2 - -", "a2 a1 -", Outcome.PENDING_UPDATED),
    ("a1", "-", "a1 - -", "a1 - -", Outcome.EQUALS_STABLE),
    ("a1", "-", "a2 a3 -", "a2 a1 -", Outcome.PENDING_UPDATED),
    ("a1", "-", "a2 a3 a4", "a2 a1 -", Outcome.PENDING_UPDATED),
    ("a2", "-", "a2 a3 -", "a2 a2 -", Outcome.PENDING_UPDATED),
    ("a1", "-", "a2 a1 a4", "a2 a1 -", Outcome.EQUALS_PENDING),
    ("a1", "a3", "a2 a3 -", "a2 a3 a1", Outcome.PLANNED_UPDATED),
    ("a1", "a3", "a2 a3 a4", "a2 a3 a1", Outcome.PLANNED_UPDATED),
    ("a3", "a3", "a2 a3 a4", "a2 a3 -", Outcome.EQUALS_PENDING),
]


@pytest.mark.parametrize(("target", "lock", "before", "after", "outcome"), LOCKS)
def test_the_trigger_of_the_lock_variant_follows_its_table(
    target: str, lock: str, before: str, after: str, outcome: Outcome
) -> None:
    made = store(before, lock=lock)
    aim = transitions.triggered(Variant.LOCK, PARTITION, target=SETS[target], revision=NEW)

    assert done(made, aim) is outcome
    assert (shown(made), trigger_of(made)) == (after, NEW)
    assert (read(made, PARTITION).lock is None) == (lock == "-")


@pytest.mark.parametrize("variant", list(Variant))
@pytest.mark.parametrize("revision", [NEW, NEW - 1, OLD])
def test_an_event_is_handled_once_and_an_older_one_not_at_all(
    variant: Variant, revision: int
) -> None:
    made = store("a1 - -", trigger=NEW)
    before = made.revision
    aim = transitions.triggered(variant, PARTITION, target=SETS["a2"], revision=revision)

    assert done(made, aim) is Outcome.OUTDATED
    assert (shown(made), trigger_of(made), made.revision) == ("a1 - -", NEW, before)


def test_revisions_compare_as_numbers() -> None:
    for old, new in ((9, 10), (255, 256), (65535, 65536), (1, 2**40)):
        made = store("a1 - -", trigger=old)
        assert (
            done(
                made,
                transitions.triggered(Variant.BASE, PARTITION, target=SETS["a2"], revision=new),
            )
            is Outcome.PENDING_UPDATED
        )
        assert (
            done(
                made,
                transitions.triggered(Variant.BASE, PARTITION, target=SETS["a3"], revision=old),
            )
            is Outcome.OUTDATED
        )


# -- the switch of stable


def switched(
    made: Metastorage,
    variant: Variant,
    applied: str,
    index: int,
    *,
    seen: PartitionState | None = None,
) -> Outcome:
    state = read(made, PARTITION) if seen is None else seen
    return done(
        made, transitions.stable_switched(variant, state, SETS[applied], Position(0, index))
    )


@pytest.mark.parametrize("variant", list(Variant))
@pytest.mark.parametrize(
    ("before", "after", "outcome"),
    [
        ("a1 a2 -", "a2 - -", Outcome.COMPLETED),
        ("a1 a2 a3", "a2 a3 -", Outcome.CONTINUED),
        ("a1 a2 a2", "a2 - -", Outcome.COMPLETED),
        ("a1 a2 a1", "a2 a1 -", Outcome.CONTINUED),
        ("a1 - -", "a2 - -", Outcome.COMPLETED),
        ("a1 a3 -", "a2 a3 -", Outcome.SUPERSEDED),
        ("a1 a3 a4", "a2 a3 a4", Outcome.SUPERSEDED),
    ],
)
def test_stable_becomes_what_was_applied_and_planned_begins(
    variant: Variant, before: str, after: str, outcome: Outcome
) -> None:
    made = store(before)

    assert switched(made, variant, "a2", 5) is outcome
    assert shown(made) == after
    assert read(made, PARTITION).applied == Position(0, 5)


def test_an_overtaken_switch_appends_what_is_new_to_the_chain_and_nothing_else() -> None:
    first = Link(SETS["a1"].nodes, 0, 3, 1)
    for applied, links in (("a1", (first,)), ("a2", (Link(SETS["a2"].nodes, 0, 5, 0),))):
        made = store("a1 a3 -")
        put(made, Operation(PARTITION.key(CHAIN), encode(Chain((first,)))))

        assert switched(made, Variant.BASE, applied, 5) is Outcome.SUPERSEDED
        assert read(made, PARTITION).chain == Chain(links)


FIRST, SECOND = Link(SETS["a1"].nodes, 0, 3, 1), Link(SETS["a4"].nodes, 1, 4, 1)


def written(made: Metastorage, prefix: str, value: Assignments | Chain) -> PartitionState:
    """What is read once ``value`` is there."""
    put(made, Operation(PARTITION.key(prefix), encode(value)))
    return read(made, PARTITION)


@pytest.mark.parametrize(
    ("pending", "generation", "kept"),
    [
        (Assignments(SETS["a2"].nodes), 1, ()),
        # Also where the group is in a later generation than the chain knows of.
        (Assignments(SETS["a2"].nodes), 2, ()),
        (Assignments(SETS["a2"].nodes, force=True), 2, (FIRST, SECOND)),
        (Assignments(SETS["a2"].nodes, from_reset=True), 1, (FIRST,)),
    ],
)
def test_the_chain_forgets_what_came_before_a_reset_at_a_graceful_change_alone(
    pending: Assignments, generation: int, kept: tuple[Link, ...]
) -> None:
    made = store("a4 - -")
    written(made, CHAIN, Chain((FIRST, SECOND)))
    seen = written(made, PENDING, pending)

    at = Position(generation, 5)
    step = transitions.stable_switched(Variant.BASE, seen, SETS["a2"], at, 2)
    assert done(made, step) is Outcome.COMPLETED
    after = read(made, PARTITION)
    last = Link(SETS["a2"].nodes, generation, 5, 2)
    assert (after.stable, after.pending, after.chain) == (SETS["a2"], None, Chain((*kept, last)))


def test_a_switch_completes_a_graceful_change_that_began_since_metastorage_was_read() -> None:
    made = store("a4 a3 -")
    seen = written(made, CHAIN, Chain((FIRST, SECOND)))
    written(made, PENDING, SETS["a2"])

    step = transitions.stable_switched(Variant.BASE, seen, SETS["a2"], Position(1, 5), 2)
    assert done(made, step) is Outcome.COMPLETED
    assert shown(made) == "a2 - -"
    assert read(made, PARTITION).chain == Chain((Link(SETS["a2"].nodes, 1, 5, 2),))


def test_a_switch_overwrites_no_link_that_was_added_since_metastorage_was_read() -> None:
    made = store("a1 a2 -")
    seen = written(made, CHAIN, Chain((FIRST,)))
    written(made, CHAIN, Chain((FIRST, SECOND)))

    assert switched(made, Variant.BASE, "a2", 5, seen=seen) is Outcome.CHANGED
    assert shown(made) == "a1 a2 -"
    assert read(made, PARTITION).chain == Chain((FIRST, SECOND))


def test_the_lock_ends_with_the_switch_that_it_was_for_and_with_no_other() -> None:
    made = store("a1 a2 a3", lock="a2")
    assert switched(made, Variant.LOCK, "a2", 5) is Outcome.CONTINUED
    assert read(made, PARTITION).lock is None

    made = store("a1 a2 -", lock="a2")
    assert switched(made, Variant.LOCK, "a4", 5) is Outcome.SUPERSEDED
    assert read(made, PARTITION).lock == Lock(SETS["a2"].nodes, 1)


def test_a_report_that_comes_late_puts_no_earlier_configuration_back() -> None:
    made = store("a1 a2 -")
    early = read(made, PARTITION)
    assert switched(made, Variant.BASE, "a2", 5) is Outcome.COMPLETED
    put(made, Operation(PARTITION.key(PENDING), encode(SETS["a3"])))
    assert switched(made, Variant.BASE, "a3", 9) is Outcome.COMPLETED
    revision = made.revision

    assert switched(made, Variant.BASE, "a2", 5, seen=early) is Outcome.CHANGED
    assert switched(made, Variant.BASE, "a2", 5) is Outcome.CHANGED
    assert (shown(made), made.revision) == ("a3 - -", revision)


def test_a_report_twice_is_one_switch() -> None:
    made = store("a1 a2 a3")
    early = read(made, PARTITION)
    assert switched(made, Variant.BASE, "a2", 5) is Outcome.CONTINUED

    assert switched(made, Variant.BASE, "a2", 5, seen=early) is Outcome.CHANGED
    assert shown(made) == "a2 a3 -"


def test_a_later_generation_is_later_at_any_index() -> None:
    made = store("a1 - -")
    put(made, Operation(PARTITION.key(APPLIED), Position(1, 2).encode()))

    state = read(made, PARTITION)
    for position, outcome in (
        (Position(0, 900), Outcome.CHANGED),
        (Position(1, 1), Outcome.CHANGED),
        (Position(2, 1), Outcome.COMPLETED),
    ):
        aim = transitions.stable_switched(Variant.BASE, state, SETS["a2"], position)
        assert done(made, aim) is outcome


def test_a_planned_set_that_changes_meanwhile_is_not_lost() -> None:
    made = store("a1 a2 a3")
    seen = read(made, PARTITION)
    aim = transitions.triggered(Variant.BASE, PARTITION, target=SETS["a4"], revision=NEW)
    assert done(made, aim) is Outcome.PLANNED_UPDATED

    assert switched(made, Variant.BASE, "a2", 5, seen=seen) is Outcome.CHANGED
    assert switched(made, Variant.BASE, "a2", 5) is Outcome.CONTINUED
    assert shown(made) == "a2 a4 -"


def test_the_target_that_is_stable_already_is_completed_by_the_same_configuration() -> None:
    made = store("a1 a2 -")
    put(made, Operation(PARTITION.key(APPLIED), Position(0, 5).encode()))
    aim = transitions.triggered(Variant.LOCK, PARTITION, target=SETS["a1"], revision=NEW)
    assert done(made, aim) is Outcome.PENDING_UPDATED

    assert switched(made, Variant.LOCK, "a1", 5) is Outcome.COMPLETED
    assert shown(made) == "a1 - -"


# -- approach 1: tryCatchUpFinish(peers)


@pytest.mark.parametrize(
    ("pending", "lock", "lock_term", "term", "outcome"),
    [
        ("a2", "-", 0, 4, Outcome.LOCKED),
        ("a3", "-", 0, 4, Outcome.REFUSED),
        ("-", "-", 0, 4, Outcome.REFUSED),
        ("a2", "a2", 4, 4, Outcome.LOCKED),  # the same peers again: true
        ("a2", "a2", 3, 4, Outcome.LOCKED),  # a leader that was lost had it
        ("a2", "a2", 5, 4, Outcome.REFUSED),  # a later leader has it
        ("a2", "a3", 3, 4, Outcome.REFUSED),
        ("a3", "a2", 4, 4, Outcome.REFUSED),
    ],
)
def test_the_lock_is_for_one_set_and_one_term(
    pending: str, lock: str, lock_term: int, term: int, outcome: Outcome
) -> None:
    made = store(f"a1 {pending} -", lock=lock, term=lock_term)
    before = read(made, PARTITION).lock

    got = done(made, transitions.catch_up_finished(read(made, PARTITION), SETS["a2"], term))

    assert got is outcome
    expected = Lock(SETS["a2"].nodes, term) if outcome is Outcome.LOCKED else before
    assert read(made, PARTITION).lock == expected


def test_the_lock_is_refused_where_pending_has_changed_and_come_back() -> None:
    made = store("a1 a2 -")
    seen = read(made, PARTITION)
    for revision, target in ((NEW, "a3"), (NEW + 1, "a2")):
        aim = transitions.triggered(Variant.LOCK, PARTITION, target=SETS[target], revision=revision)
        assert done(made, aim) is Outcome.PENDING_UPDATED

    stale = transitions.catch_up_finished(seen, SETS["a2"], 4)
    assert done(made, stale) is Outcome.REFUSED
    assert read(made, PARTITION).lock is None
    fresh = transitions.catch_up_finished(read(made, PARTITION), SETS["a2"], 4)
    assert done(made, fresh) is Outcome.LOCKED


def test_what_follows_a_reset_is_locked_as_any_other_set() -> None:
    made = store("a1 - -")
    seen = written(made, PENDING, structs.replace(SETS["a2"], from_reset=True))

    assert done(made, transitions.catch_up_finished(seen, SETS["a2"], 4)) is Outcome.LOCKED
    assert read(made, PARTITION).lock == Lock(SETS["a2"].nodes, 4)


def test_an_unlock_takes_planned_with_it_and_no_later_lock() -> None:
    made = store("a1 a2 a3", lock="a2", term=4)
    unlock = transitions.unlocked(read(made, PARTITION), 4)
    assert unlock is not None
    assert transitions.unlocked(read(made, PARTITION), 3) is None
    assert done(made, transitions.catch_up_finished(read(made, PARTITION), SETS["a2"], 4)) is (
        Outcome.LOCKED
    )

    # An unlock whose answer was lost finds the lock taken anew, and lets it be.
    assert done(made, unlock) is Outcome.CHANGED
    again = transitions.unlocked(read(made, PARTITION), 4)
    assert again is not None
    assert done(made, again) is Outcome.MOVED
    assert (shown(made), read(made, PARTITION).lock) == ("a1 a3 -", None)
    assert transitions.unlocked(read(made, PARTITION), 4) is None


# -- approach 2: planned to pending


@pytest.mark.parametrize("before", ["a1 a2 a3", "a1 - a3"])
def test_planned_moves_to_pending_once(before: str) -> None:
    made = store(before)
    move = transitions.planned_moved(read(made, PARTITION))
    assert move is not None

    assert done(made, move) is Outcome.MOVED
    assert done(made, move) is Outcome.CHANGED
    assert shown(made) == "a1 a3 -"
    assert transitions.planned_moved(read(made, PARTITION)) is None


@pytest.mark.parametrize("prefix", [PENDING, PLANNED])
def test_planned_moves_over_nothing_that_was_written_since_though_it_is_equal(prefix: str) -> None:
    made = store("a1 a2 a3")
    move = transitions.planned_moved(read(made, PARTITION))
    assert move is not None
    name = "a2" if prefix == PENDING else "a3"
    put(made, Operation(PARTITION.key(prefix), encode(SETS[name])))

    assert done(made, move) is Outcome.CHANGED
    assert shown(made) == "a1 a2 a3"


# -- the first and the last


def test_the_first_assignments_are_written_once() -> None:
    made = Metastorage()

    assert done(made, transitions.created(PARTITION, SETS["a1"], 5)) is Outcome.CREATED
    assert done(made, transitions.created(PARTITION, SETS["a2"], 6)) is Outcome.OUTDATED
    assert (shown(made), trigger_of(made)) == ("a1 - -", 5)


@pytest.mark.parametrize(
    ("chained", "chain"), [(False, None), (True, Chain((Link(SETS["a1"].nodes),)))]
)
def test_a_chain_begins_with_the_first_assignments_in_a_zone_that_is_highly_available(
    chained: bool, chain: Chain | None
) -> None:
    made = Metastorage()

    first = transitions.created(PARTITION, SETS["a1"], 5, chained=chained)
    assert done(made, first) is Outcome.CREATED
    assert read(made, PARTITION).chain == chain


def test_a_partition_of_a_dropped_table_leaves_nothing() -> None:
    made = store("a1 a2 a3", lock="a2")
    switched(made, Variant.BASE, "a4", 5)
    put(made, *transitions.removed(PARTITION))

    assert made.prefixed("") == {}


@pytest.mark.parametrize("variant", list(Variant))
@pytest.mark.parametrize("before", ["a1 - -", "a1 a2 -", "a1 a2 a3", "a1 a3 -"])
def test_a_report_that_comes_after_the_table_was_dropped_brings_no_key_back(
    variant: Variant, before: str
) -> None:
    made = store(before)
    seen = read(made, PARTITION)
    put(made, *transitions.removed(PARTITION))

    assert switched(made, variant, "a2", 5, seen=seen) is Outcome.CHANGED
    assert switched(made, variant, "a2", 5) is Outcome.CHANGED
    assert made.prefixed("") == {}


# -- resets


@pytest.mark.parametrize("variant", Variant)
def test_a_reset_overwrites_what_was_pending_planned_and_locked(variant: Variant) -> None:
    made = store("a1 a2 a3", lock="a2")
    for generation, chosen, members in ((1, "x", ("x", "y")), (2, "y", ("y",))):
        before = read(made, PARTITION)
        step = transitions.reset(
            variant, before, chosen=chosen, survivors=members, members=members, member=f"{chosen}@1"
        )
        assert done(made, step) is Outcome.RESET
        # What was read before it is not what there is any more.
        assert done(made, step) is Outcome.CHANGED
        after = read(made, PARTITION)
        assert (after.stable, after.generation) == (before.stable, generation)
        forced = Assignments((chosen,), force=True, survivors=members, member=f"{chosen}@1")
        assert after.pending == forced
        planned = Assignments(members, from_reset=True) if members != (chosen,) else None
        assert after.planned == planned
        held = Lock((chosen,), 0) if variant is Variant.LOCK else None
        assert after.lock == held


@pytest.mark.parametrize("variant", Variant)
def test_a_target_that_the_second_phase_of_a_reset_leads_to_is_not_planned_again(
    variant: Variant,
) -> None:
    made = store("a1 - a3", trigger=OLD)
    target = SETS["a2"]
    second = structs.replace(target, from_reset=True)
    put(made, Operation(PARTITION.key(PENDING), encode(second)))

    step = transitions.triggered(variant, PARTITION, target=target, revision=NEW)

    assert done(made, step) is Outcome.EQUALS_PENDING
    after = read(made, PARTITION)
    assert (after.pending, after.planned, after.trigger) == (second, None, NEW)


# -- the chain


def test_the_chain_of_an_altered_zone_begins_once_with_what_is_stable() -> None:
    made = store("a1 a2 -")
    put(made, Operation(PARTITION.key(GENERATION), encode_number(3)))
    begin = transitions.chained(read(made, PARTITION))

    assert done(made, begin) is Outcome.CREATED
    assert read(made, PARTITION).chain == Chain((Link(SETS["a1"].nodes, 3),))
    assert done(made, begin) is Outcome.CHANGED
    again = transitions.chained(read(made, PARTITION))
    assert done(made, again) is Outcome.CHANGED


def test_a_switch_that_knows_no_chain_is_read_again_where_one_has_begun() -> None:
    made = store("a1 a2 -")
    before = read(made, PARTITION)
    done(made, transitions.chained(before))  # the zone was altered to be highly available

    late = transitions.stable_switched(Variant.BASE, before, SETS["a2"], Position(0, 5), 2)
    assert done(made, late) is Outcome.CHANGED

    again = transitions.stable_switched(
        Variant.BASE, read(made, PARTITION), SETS["a2"], Position(0, 5), 2
    )
    assert done(made, again) is Outcome.COMPLETED
    after = read(made, PARTITION)
    assert after.stable == SETS["a2"]
    assert after.chain is not None
    assert after.chain.links[-1].nodes == SETS["a2"].nodes


@pytest.mark.parametrize("prefix", [STABLE, PENDING, CHAIN])
def test_a_chain_is_cut_to_its_last_link_unless_something_has_changed_since(prefix: str) -> None:
    for changed in (True, False):
        made = store("a4 a2 -")
        cut = transitions.unwound_to_stable(
            written(made, CHAIN, Chain((FIRST, SECOND))), conditions=()
        )
        if changed:
            value = Chain((FIRST, SECOND)) if prefix == CHAIN else SETS["a3"]
            written(made, prefix, value)
        assert (done(made, cut) is Outcome.CHANGED) == changed
        links = (FIRST, SECOND) if changed else (SECOND,)
        assert read(made, PARTITION).chain == Chain(links)
