"""What a store owes its partitions while it moves them, shown and broken by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from change_tables import fault, names, ns, setting, state, tables, topology, wrote

from checkers.promises.assignments import CHECKER
from checkers.promises.legal_transitions import Assigned, still_asked, transition
from checkers.promises.rebalance_targets import rendezvous
from clusters.reference.node.placement.rendezvous import holders
from harness.exit_codes import Outcome
from harness.history.schema import EVENTS
from harness.protocols.checker import Part
from harness.protocols.consistency_models import OF_PLACEMENT
from harness.protocols.generations import Reset
from harness.protocols.promise import Affinity

BEGUN = wrote(2, 0.5, stable="abc", trigger=1)
ASKED = wrote(5, 1.0, pending="abd", planned=None, trigger=4)
DONE = wrote(7, 2.0, stable="abd", pending=None, planned=None)
QUEUED = wrote(6, 1.5, planned="abe", trigger=5)
SOUND = [*BEGUN, *ASKED, *DONE]


def judged(changes: list[Any], end_s: float = 40.0, variant: str = "base", **more: Any) -> Part:
    return CHECKER.judge(tables(changes, **more), setting(end_s, variant), None)  # type: ignore[arg-type]


def assigned(text: str) -> Assigned:
    sets = (None if each == "-" else frozenset(each) for each in text.split())
    return Assigned(*sets)


@pytest.mark.parametrize(
    ("variants", "before", "after", "event", "name"),
    [
        ("base lock cancel", "- - - -", "a - - -", True, "created"),
        ("base lock cancel", "a - b -", "a - - -", True, "equals-stable"),
        ("base lock cancel", "a - - -", "a b - -", True, "started"),
        ("base lock cancel", "a b c -", "a b - -", True, "equals-pending"),
        ("base cancel", "a b c -", "a b d -", True, "planned"),
        ("lock", "a b - -", "a b c -", True, None),
        ("lock", "a b - b", "a b c b", True, "planned"),
        ("lock", "a b - -", "a c - -", True, "retargeted"),
        ("base cancel", "a b - -", "a c - -", True, None),
        ("base cancel", "a b - -", "b - - -", False, "completed"),
        ("base cancel", "a b b -", "b - - -", False, "completed"),
        ("base cancel", "a b c -", "b c - -", False, "continued"),
        # What was planned is lost.
        ("base lock cancel", "a b c -", "b - - -", False, None),
        # As it was: the group has come to the same nodes once more.
        ("base lock cancel", "a - - -", "a - - -", False, "restated"),
        ("base lock cancel", "a b c -", "a b c -", False, "restated"),
        # What no pending set has asked for.
        ("base lock cancel", "a b - -", "c b - -", False, None),
        ("base lock cancel", "a - - -", "b - - -", False, None),
        ("base cancel", "a b - -", "a - - -", False, None),
        ("lock", "a b - -", "a b - b", False, "locked"),
        ("lock", "a b - -", "a b - c", False, None),
        ("lock", "a b - b", "a b - -", False, "unlocked"),
        ("lock", "a b c b", "a c - -", False, "moved"),
        # A lock outlives what it was for.
        ("lock", "a b - b", "b - - b", False, None),
        ("lock", "a b - b", "b - - -", False, "completed"),
        ("lock", "a b b b", "b - - -", False, "completed"),
        ("lock", "a b c b", "b c - -", False, "continued"),
        # Without the lock, or under one for something else, no change goes on.
        ("lock", "a b - -", "b - - -", False, None),
        ("lock", "a b - c", "b - - -", False, None),
        ("lock", "a b c c", "b c - -", False, None),
        ("lock", "b b - -", "b - - -", False, "completed"),
        ("lock", "b b c -", "b c - -", False, "continued"),
        ("cancel", "a b c -", "a c - -", False, "moved"),
        ("base", "a b c -", "a c - -", False, None),
    ],
)
def test_a_transition_is_one_of_its_variants_table(
    variants: str, before: str, after: str, event: bool, name: str | None
) -> None:
    for variant in variants.split():
        found = transition(variant, assigned(before), assigned(after), event=event)
        assert found == name, variant


@pytest.mark.parametrize(
    ("variant", "before", "there", "name"),
    [
        ("base", "a b c -", "a c", "overtaken"),
        # The node is there: what is pending comes first.
        ("base", "a b c -", "a b c", None),
        # It is stable already, and holds up nothing.
        ("base", "ab b c -", "a c", None),
        ("cancel", "a b c -", "a c", "moved"),
        ("lock", "a b c -", "a c", None),
    ],
)
def test_planned_overtakes_what_waits_for_a_node_that_has_left(
    variant: str, before: str, there: str, name: str | None
) -> None:
    nodes = frozenset(there.split())
    after = assigned(f"{before.split()[0]} c - -")

    assert transition(variant, assigned(before), after, event=False, there=nodes) == name


@pytest.mark.parametrize(("left", "found"), [("abc", []), ("abcd", ["illegal-transition"])])
def test_the_topology_of_a_revision_decides_whether_planned_may_overtake(
    left: str, found: list[str]
) -> None:
    changes = [
        *wrote(2, 0.5, stable="abc", trigger=2),
        *wrote(4, 1.0, pending="abd", trigger=4),
        *wrote(6, 2.0, planned="abc", trigger=6),
        *wrote(8, 3.0, pending="abc", planned=None),
        *wrote(10, 4.0, stable="abc", pending=None),
    ]
    rows = [topology(1, 0.4, "logical", "abcd"), topology(7, 2.5, "logical", left)]
    rows.append(topology(9, 3.5, "logical", "abc"))
    part = CHECKER.judge(tables(changes, rows), setting(40.0, "base"), None)  # type: ignore[arg-type]

    assert names(part) == found


def walked(variant: str, *states: str) -> list[str | None]:
    """The names of the steps between ``states``; "!" before the state that answers an event."""
    held, asked = Assigned(), tuple[frozenset[str], ...]()
    found = []
    for text in states:
        after = assigned(text.removeprefix("!"))
        event = text.startswith("!")
        found.append(transition(variant, held, after, event=event, asked=asked))
        asked, held = still_asked(asked, held, after), after
    return found[1:]


@pytest.mark.parametrize(
    ("variant", "states", "found"),
    [
        # The group came to what pending asked for first, and then to what it asks for now.
        (
            "cancel",
            ("!a - - -", "!a b - -", "!a b c -", "a c - -", "b c - -", "c - - -"),
            ["started", "planned", "moved", "applied-another", "completed"],
        ),
        # Under the lock a group comes to nothing that pending no longer asks for.
        (
            "lock",
            ("!a - - -", "!a b - -", "!a c - -", "b c - -"),
            ["started", "retargeted", None],
        ),
        # Never back to what it has passed.
        (
            "lock",
            ("!a - - -", "!a b - -", "!a c - -", "a c - c", "c - - -", "b - - -"),
            ["started", "retargeted", "locked", "completed", None],
        ),
        ("base", ("!a - - -", "!a b - -", "b - - -", "a - - -"), ["started", "completed", None]),
        ("base", ("!a - - -", "!a b c -", "d b c -"), [None, None]),
    ],
)
def test_stable_becomes_only_what_pending_has_asked_for(
    variant: str, states: tuple[str, ...], found: list[str | None]
) -> None:
    assert walked(variant, *states) == found


def test_a_stable_set_that_nothing_asked_for_is_named() -> None:
    strange = [*SOUND, *wrote(9, 3.0, stable="abe")]

    assert "illegal-transition" in names(judged(strange))


# By the definition: of the digests of 0/na ... 0/ne those of ne, nd and nc are the highest.
RENDEZVOUS = "cde"
AFFINE = Affinity(table="T", function="rendezvous")
ZONE = [topology(1, 0.4, "zone", replicas=3), topology(1, 0.4, "data-nodes", "abcde")]


def targeted(target: str, *, affinity: Affinity = AFFINE, rows: list[Any] = ZONE) -> list[str]:
    changes = wrote(2, 0.5, stable=target, trigger=1)
    return names(CHECKER.judge(tables(changes, rows), setting(40.0, "base", (affinity,)), None))  # type: ignore[arg-type]


def test_what_an_event_asks_for_is_what_the_declared_affinity_gives() -> None:
    assert targeted(RENDEZVOUS) == []
    # As many of the data nodes, but others; too few; one that is none.
    others = "".join(sorted(set("abcde") - set(RENDEZVOUS))) + RENDEZVOUS[0]
    for wrong in (others, RENDEZVOUS[:2], RENDEZVOUS[:2] + "x"):
        assert targeted(wrong) == ["wrong-target"], wrong
    assert "wrong-target" in OF_PLACEMENT
    # Data nodes and replicas are those of the event's revision.
    later = [*ZONE, topology(3, 0.6, "data-nodes", "ab"), topology(4, 0.7, "zone", replicas=1)]
    assert "wrong-target" not in targeted(RENDEZVOUS, rows=later)
    # A node without the table's profile holds none of it.
    barred = Affinity(table="T", function="rendezvous", barred=(f"n{RENDEZVOUS[0]}",))
    assert targeted(RENDEZVOUS, affinity=barred) == ["wrong-target"]
    # Of a function that is not known here only its size and its members are judged.
    own = Affinity(table="T", function="of-my-own")
    assert targeted("abc", affinity=own) == []
    assert targeted("ab", affinity=own) == targeted("abx", affinity=own) == ["wrong-target"]


def test_a_table_that_moves_to_another_zone_is_aimed_by_either_meanwhile() -> None:
    other = [topology(1, 0.4, "zone", zone="Y", replicas=2)]
    other += [topology(1, 0.4, "data-nodes", "de", zone="Y")]
    rows = [*ZONE, *other]
    moved = wrote(6, 1.0, pending="de", planned=None, trigger=5)
    late = wrote(6, 1.0, planned=None, trigger=5)
    for row in (*moved, *late):
        row["zone"] = "Y"
    first = wrote(2, 0.5, stable=RENDEZVOUS, trigger=1)
    for answer in (moved, late):
        part = CHECKER.judge(tables([*first, *answer], rows), setting(1.5, "base", (AFFINE,)), None)  # type: ignore[arg-type]
        assert "wrong-target" not in names(part)


def test_the_checkers_rendezvous_agrees_with_the_stores() -> None:
    members = [f"n{number}" for number in range(1, 9)]
    for partition in range(64):
        for replicas in (1, 3, 5, 9):
            told = frozenset(holders(partition, members, replicas))
            assert rendezvous(partition, members, replicas) == told


def test_a_rebalance_that_ends_is_sound_and_counted() -> None:
    part = judged(SOUND)

    assert (part.outcome, names(part)) == (Outcome.VALID, [])
    counts = part.statistics["rebalance"]
    assert (counts["started"], counts["completed"], counts["superseded"]) == (1, 1, 0)


@pytest.mark.parametrize(
    ("name", "rows", "variant"),
    [
        ("illegal-transition", [*BEGUN, *ASKED, *QUEUED, *DONE], "base"),
        ("repeated-trigger", [*SOUND, *wrote(9, 3.0, planned=None, trigger=4)], "base"),
        ("unfinished-rebalance", [*BEGUN, *ASKED], "base"),
        ("wrong-stable", [*SOUND, *wrote(9, 3.0, stable="abc")], "base"),
        ("diverged-assignments", [*SOUND, {**BEGUN[0], "node": "nb", "nodes": ["nx"]}], "base"),
        (
            "stale-term",
            [*BEGUN, *ASKED, *wrote(6, 1.2, lock=("abd", 4)), *wrote(8, 1.4, lock=("abd", 3))],
            "lock",
        ),
        (
            "stale-term",
            [*SOUND, {**wrote(5, 1.1, **{"change-peers": "abd"})[0], "term": 2, "number": 3}],
            "base",
        ),
    ],
)
def test_each_broken_promise_of_assignments_is_named(
    name: str, rows: list[Any], variant: str
) -> None:
    assert name in names(judged(rows, variant=variant))
    assert name in OF_PLACEMENT


def test_an_event_that_was_never_handled_is_named() -> None:
    zone = topology(12, 5.0, "zone", replicas=2)
    data = topology(3, 0.6, "data-nodes", "abcd")

    assert names(judged(SOUND, rows=[data, zone])) == ["event-not-handled"]
    handled = [*SOUND, *wrote(13, 5.1, planned=None, trigger=12)]
    assert names(judged(handled, rows=[data, zone])) == []
    # Without data nodes there is nowhere to go.
    empty = topology(11, 4.0, "data-nodes", "")
    assert names(judged(SOUND, rows=[data, empty, zone])) == []


def test_what_is_unfinished_soon_after_the_last_heal_is_unknown() -> None:
    healed = [fault(5.0, 20.0, "kill", "nb")]
    part = judged([*BEGUN, *ASKED], faults=healed)

    assert (part.outcome, names(part)) == (Outcome.UNKNOWN, [])
    assert "20 s after the last heal or the last event" in part.reasons[0]
    assert names(judged([*BEGUN, *ASKED], end_s=50.1, faults=healed)) == ["unfinished-rebalance"]
    # Nor does it count against the store what an event asked for late: a timer of a zone, say.
    zone = topology(4, 15.0, "data-nodes", "abd")
    assert names(judged([*BEGUN, *ASKED], rows=[zone])) == []
    assert names(judged([*BEGUN, *ASKED], rows=[zone], end_s=45.1)) == ["unfinished-rebalance"]
    # A fault that only asked for the move does not end with it.
    moving = fault(0.9, None, "ddl")
    moving["healing_ns"] = ns(1.5)
    assert names(judged([*BEGUN, *ASKED], faults=[moving])) == ["unfinished-rebalance"]


@pytest.mark.parametrize(
    ("at_s", "node", "faults", "found"),
    [
        (20.0, "nc", [], ["redundant-replica"]),
        (6.0, "nc", [], []),  # within the grace of its erasure
        (20.0, "nd", [], []),
        (20.0, "nc", [fault(9.0, 12.0, "partition", "nc")], []),
        (30.0, "nc", [fault(9.0, 12.0, "partition", "nc")], ["redundant-replica"]),
    ],
)
def test_a_replica_runs_nowhere_but_where_it_is_assigned(
    at_s: float, node: str, faults: list[Any], found: list[str]
) -> None:
    part = judged(SOUND, end_s=60.0, states=[state(at_s, node)], faults=faults)

    assert names(part) == found


def test_nodes_that_are_up_run_what_they_are_to_hold() -> None:
    up = [state(20.0, node, None) for node in ("na", "nb", "nd")]
    one = [*up, state(20.0, "na")]

    assert names(judged(SOUND, states=one)) == ["quorum-not-running"]
    assert names(judged(SOUND, states=[*one, state(20.0, "nb")])) == []
    # With a majority down it is not the store's doing.
    assert names(judged(SOUND, states=[up[0], state(20.0, "na")])) == []


def starts(at_s: float, decision: str = "starts", node: str = "nb") -> Any:
    row = dict.fromkeys(EVENTS.names)
    row |= {"kind": "start-decision", "node": node, "boot": "b", "decision": decision}
    return row | {"at_ns": ns(at_s), "wall_ns": 0, "uncertainty_ns": ns(0.1), "partition": 0}


@pytest.mark.parametrize(
    ("event", "found"),
    [
        (starts(19.9), []),
        (starts(20.5), []),
        (starts(25.05), []),
        (starts(25.2), ["quorum-not-running"]),
        (starts(14.8), ["quorum-not-running"]),
        (starts(20.5, "erases"), ["quorum-not-running"]),
        (starts(20.5, node="nc"), ["quorum-not-running"]),
    ],
)
def test_a_replica_that_is_being_restarted_counts_as_running(event: Any, found: list[str]) -> None:
    up = [state(20.0, node, None) for node in ("na", "nb", "nd")]

    assert names(judged(SOUND, states=[*up, state(20.0, "na")], events=[event])) == found


def test_a_run_that_misses_changes_can_not_be_judged() -> None:
    part = judged([*BEGUN, *ASKED], rows=[topology(4, 1.0, "gap")])

    assert (part.outcome, names(part)) == (Outcome.UNKNOWN, [])


def reset(node: str = "a", at_s: float = 2.1, *, generation: int = 1) -> Reset:
    """A reset that began on node n``node``."""
    return Reset(
        partition=0,
        generation=generation,
        previous=generation - 1,
        earliest_ns=ns(at_s),
        latest_ns=ns(at_s),
        node=f"n{node}",
    )


def asked_for(generation: int, at_s: float = 2.0, kind: str = "rebalance-stage") -> dict[str, Any]:
    """The event of a reset that was asked for, and may have begun nowhere."""
    when = {"node": "nm", "wall_ns": 1, "boot": "1", "at_ns": ns(at_s), "uncertainty_ns": 0}
    return {"kind": kind, "partition": 0, "text": "", "generation": generation, **when}


def available(
    changes: list[Any],
    *resets: Reset,
    mode: str = "HA",
    variant: str = "base",
    affinities: tuple[Affinity, ...] | None = None,
    **more: Any,
) -> list[str]:
    """What is said of a run whose partitions may be reset."""
    told = setting(40.0, variant, affinities)
    declaration = msgspec.structs.replace(told.declaration, mode=mode)
    told = msgspec.structs.replace(told, declaration=declaration, resets=resets)
    return names(CHECKER.judge(tables(changes, **more), told, None))  # type: ignore[arg-type]


ILLEGAL = "illegal-transition"
FORCED = wrote(9, 2.0, pending="a", planned=None, lock=None)
ALONE = wrote(11, 2.2, stable="a", pending=None, planned=None)


@pytest.mark.parametrize("variant", ["base", "lock", "cancel"])
def test_a_reset_that_was_told_forces_pending_without_an_event(variant: str) -> None:
    lock = ("a", 0) if variant == "lock" else None
    forced = wrote(9, 2.0, pending="a", planned="ab", lock=lock)
    free = {"lock": None} if variant == "lock" else {}
    both = wrote(11, 2.2, stable="a", pending="ab", planned=None, **free)
    held = wrote(12, 2.3, lock=("ab", 3)) if variant == "lock" else []
    done = wrote(13, 2.4, stable="ab", pending=None, planned=None, **free)
    changes = [*BEGUN, *forced, *both, *held, *done]

    assert available(changes, reset(), variant=variant) == []
    assert available(changes, variant=variant) == ["illegal-transition", "wrong-stable"]
    assert "illegal-transition" in available(changes, reset(), mode="SC", variant=variant)
    # Whatever was under way.
    moving = wrote(5, 1.0, pending="abd", planned=None, trigger=4)
    locked = wrote(6, 1.2, lock=("abd", 3)) if variant == "lock" else []
    assert (
        available(
            [*BEGUN, *moving, *locked, *forced, *both, *held, *done], reset(), variant=variant
        )
        == []
    )


@pytest.mark.parametrize(
    ("forced", "resets"),
    [
        (FORCED, [reset("b")]),  # another node began
        (FORCED, [reset(at_s=-4.0)]),  # it was over long before
        (wrote(9, 2.0, pending="d", planned=None, lock=None), [reset("d")]),  # it has no copy
        (wrote(9, 2.0, pending="ab", planned=None, lock=None), [reset()]),  # not one node
        (wrote(9, 2.0, pending="a", planned="bc", lock=None), [reset()]),  # without the chosen one
        (wrote(9, 2.0, pending="a", planned="abd", lock=None), [reset()]),  # nd has no copy
        (wrote(9, 2.0, stable="ab", pending="a", planned=None, lock=None), [reset()]),
    ],
)
def test_a_reset_explains_no_other_step(forced: list[Any], resets: list[Reset]) -> None:
    assert "illegal-transition" in available([*BEGUN, *forced], *resets)


def test_a_reset_that_an_operator_asked_for_may_bring_other_nodes_in_and_is_legal_in_sc() -> None:
    forced = wrote(9, 2.0, pending="a", planned="abd", lock=None)
    anew = wrote(9, 2.0, pending="d", planned=None, lock=None)  # of which no copy is left
    asked = [msgspec.structs.replace(reset(), asked=True)]

    for mode in ("SC", "HA"):
        assert ILLEGAL not in available([*BEGUN, *forced], *asked, mode=mode)
        begun = [msgspec.structs.replace(reset("d"), asked=True)]
        assert ILLEGAL not in available([*BEGUN, *anew], *begun, mode=mode)
        # The node that it was given to was lost before it had told of it.
        row = asked_for(1, kind="reset-asked")
        assert ILLEGAL not in available([*BEGUN, *forced], mode=mode, events=[row])
    elsewhere = wrote(9, 2.0, pending="b", planned="abd", lock=None)
    assert ILLEGAL in available([*BEGUN, *elsewhere], *asked)


def test_each_reset_explains_one_step() -> None:
    grown = [
        *wrote(13, 3.0, pending="ab", planned=None, trigger=12),
        *wrote(14, 3.1, stable="ab", pending=None),
    ]
    again = [*wrote(15, 4.0, pending="a", planned=None), *wrote(16, 4.1, stable="a", pending=None)]
    changes = [*BEGUN, *FORCED, *ALONE, *grown, *again]

    assert available(changes, reset(), reset(at_s=4.0, generation=2)) == []
    assert available(changes, reset()) == ["illegal-transition", "wrong-stable"]
    # Asked for, and begun nowhere: the node that it was given to may be gone.
    assert available(changes, reset(), events=[asked_for(1), asked_for(2, 4.0)]) == []
    assert "illegal-transition" in available(changes, events=[asked_for(1)])


def test_a_lock_after_a_reset_is_of_another_leader() -> None:
    locked = [*ASKED, *wrote(6, 1.2, lock=("abd", 4))]
    forced = wrote(9, 2.0, pending="a", planned=None, lock=("a", 0))
    done = wrote(11, 2.2, stable="a", pending=None, lock=None)

    assert available([*BEGUN, *locked, *forced, *done], reset(), variant="lock") == []


def test_a_leader_that_locks_one_node_is_no_reset_to_it() -> None:
    moved = [
        *wrote(13, 3.0, pending="d", planned=None, trigger=12),
        *wrote(14, 3.1, lock=("d", 4)),
        *wrote(15, 3.2, stable="d", pending=None, planned=None, lock=None),
    ]
    # Long after it, and to the same node.
    forced = [
        *wrote(19, 6.0, pending="d", planned=None, lock=("d", 0)),
        *wrote(20, 6.2, stable="d", pending=None, lock=None),
    ]
    two = [
        *wrote(16, 4.0, pending="de", planned=None, trigger=15),
        *wrote(17, 4.1, lock=("de", 4)),
        *wrote(18, 4.2, stable="de", pending=None, planned=None, lock=None),
    ]
    changes = [*BEGUN, *moved, *two, *forced]

    assert available(changes, reset("d", 6.1), variant="lock") == []


def test_what_a_reset_has_overtaken_may_become_stable_behind_it() -> None:
    first = wrote(9, 2.0, pending="a", planned=None, lock=("a", 0))
    again = wrote(10, 2.3, pending="b", planned=None, lock=("b", 0))
    late, done = wrote(11, 2.4, stable="a"), wrote(12, 2.5, stable="b", pending=None, lock=None)
    told = (reset(), reset("b", 2.4, generation=2))

    assert available([*BEGUN, *first, *again, *late, *done], *told, variant="lock") == []
    # Only what pending has asked for, and not once what the reset asked for is stable.
    strange = wrote(11, 2.4, stable="c")
    assert ILLEGAL in available([*BEGUN, *first, *again, *strange], *told, variant="lock")
    assert ILLEGAL in available(
        [*BEGUN, *first, *again, *done, *wrote(13, 2.6, stable="a")], *told, variant="lock"
    )
    # No leader's lock gives way to another's.
    other = [*ASKED, *wrote(6, 1.2, lock=("abd", 4)), *wrote(7, 1.3, pending="abe", trigger=6)]
    assert ILLEGAL in available([*BEGUN, *other, *wrote(8, 1.4, stable="abd")], variant="lock")


def test_an_unwind_goes_back_to_nodes_that_were_stable() -> None:
    back = msgspec.structs.replace(reset("b", 3.0, generation=2), restores=True)
    unwound = wrote(13, 3.0, stable="bc", pending="b", planned="abc")
    done = [
        *wrote(15, 3.2, stable="b", pending="abc", planned=None),
        *wrote(17, 3.4, stable="abc", pending=None),
    ]
    changes = [*BEGUN, *FORCED, *ALONE, *unwound, *done]

    assert available(changes, reset(), back) == []
    plain = msgspec.structs.replace(back, restores=False)
    assert "illegal-transition" in available(changes, reset(), plain)
    strange = [*BEGUN, *FORCED, *ALONE, *wrote(13, 3.0, stable="bd", pending="b", planned=None)]
    assert "illegal-transition" in available(strange, reset(), back)


def test_who_is_away_is_no_target_where_partitions_are_highly_available() -> None:
    # ne goes at revision 4, and is back at revision 14.
    rows = [
        *ZONE,
        topology(1, 0.3, "logical", "abcde"),
        topology(4, 0.7, "logical", "abcd"),
        topology(7, 1.0, "data-nodes", "abcde"),
    ]
    begun = wrote(2, 0.5, stable="cde", trigger=1)
    forced = [*wrote(5, 0.8, pending="c", planned=None), *wrote(6, 0.9, stable="c", pending=None)]

    def answered(target: str, *, mode: str = "HA", more: tuple[Any, ...] = ()) -> bool:
        answer = wrote(9, 1.1, pending=target, planned=None, trigger=7)
        told = available(
            [*begun, *forced, *answer],
            reset("c", 0.8),
            mode=mode,
            affinities=(AFFINE,),
            rows=[*rows, *more],
        )
        return "wrong-target" not in told

    assert answered("cd")
    assert not answered("cd", mode="SC")
    # With one that is away; without one that is there; with one that is no target.
    assert not answered("cde")
    assert not answered("ac")
    assert not answered("acd")
    # It came back meanwhile: the answer may have been decided before or after.
    back = (topology(8, 1.05, "logical", "abcde"),)
    assert answered("cd", more=back)
    assert answered("cde", more=back)
    # What is stable stays a target, though it is away.
    away = [*begun, *wrote(9, 1.1, planned=None, trigger=7)]
    assert "wrong-target" not in available(away, affinities=(AFFINE,), rows=rows)
    short = [*begun, *wrote(9, 1.1, pending="cd", planned=None, trigger=7)]
    assert "wrong-target" in available(short, affinities=(AFFINE,), rows=rows)
    # The first assignments are whole.
    late = [*rows, topology(10, 1.2, "data-nodes", "abcde")]
    first = wrote(12, 1.5, stable="cd", trigger=10)
    assert "wrong-target" in available(first, affinities=(AFFINE,), rows=late)
    own = Affinity(table="T", function="of-my-own")
    short_of_one = [*begun, *forced, *wrote(9, 1.1, pending="cd", planned=None, trigger=7)]
    short_of_two = [*begun, *forced, *wrote(9, 1.1, planned=None, trigger=7)]
    for changes, legal in ((short_of_one, True), (short_of_two, False)):
        told = available(changes, reset("c", 0.8), affinities=(own,), rows=rows)
        assert ("wrong-target" not in told) is legal
