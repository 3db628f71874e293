"""What replicas owe each other: each promise kept by one table of states and broken by another."""

from __future__ import annotations

from typing import Any

import msgspec
import pyarrow as pa
import pytest

from checkers.engine.analyze import judge
from checkers.engine.source import Source
from checkers.promises.replicas import CHECKER
from harness.clock import NS_PER_S
from harness.history.schema import EVENTS, FAULTS
from harness.protocols.checker import Part
from harness.protocols.generations import Reset
from harness.protocols.promise import Declaration, Promise
from harness.protocols.setting import Setting
from harness.run.state_log import LOGS, QUIET_LIMIT_S, STATES

SETTING = Setting(
    model="strict-serializable",
    declaration=Declaration(
        system="test",
        mode="SC",
        promises=(Promise(kind="read-write", model="strict-serializable"),),
        transaction_scope="cluster",
    ),
    phases=(("drive", 0), ("final-reads", 900)),
)


def told(node: str, at: int, **more: Any) -> dict[str, Any]:
    """One answer of ``node``, asked at ``at`` and answered one later: a follower that is well."""
    return {
        "asked_ns": at,
        "answered_ns": at + 1,
        "final": False,
        "node": node,
        "life": f"{node}@1",
        "boot": f"{node}-1",
        "group": "p0",
        "partition": 0,
        "leading": False,
        "voter": True,
        "voters": 3,
        "term": 2,
        "vote": "n1@1",
        "applied_index": 10,
        "applied_term": 2,
        "commit_index": 10,
        "last_index": 10,
        "recovered_term": 0,
        "recovered_vote": None,
        "recovered_index": 0,
        "epoch": 0,
        "acting": False,
        "locks": 0,
        "prepared": 0,
        "content": None,
        "generation": 0,
    } | more


def last(node: str, **more: Any) -> dict[str, Any]:
    return told(node, 1000, final=True, content=7, **more)


def entry(node: str, index: int, term: int, digest: int) -> dict[str, Any]:
    whole = {"life": f"{node}@1", "group": "p0", "partition": 0, "generation": 0}
    return {"node": node, **whole, "index": index, "term": term, "digest": digest}


def elected(node: str, term: int, partition: int | None = 0) -> dict[str, Any]:
    when = {"wall_ns": 1, "boot": f"{node}-1", "at_ns": 1, "uncertainty_ns": 0}
    return {"kind": "leader-elected", "node": node, "partition": partition, "term": term,
            "text": "", **when}  # fmt: skip


def said(
    *states: dict[str, Any],
    logs: tuple[dict[str, Any], ...] = (),
    events: tuple[dict[str, Any], ...] = (),
    setting: Setting = SETTING,
    begun_ns: tuple[int, ...] = (),
    faults: tuple[dict[str, Any], ...] = (),
) -> Part:
    tables = {
        "faults": pa.Table.from_pylist(list(faults), schema=FAULTS),
        "states": pa.Table.from_pylist(list(states), schema=STATES),
        "logs": pa.Table.from_pylist(list(logs), schema=LOGS),
        "events": pa.Table.from_pylist(list(events), schema=EVENTS),
    }
    txns = {"txn": pa.array(range(len(begun_ns)), pa.int64())}
    source = Source.of_tables(pa.table(txns | {"invoke_ns": pa.array(begun_ns, pa.int64())}))
    return CHECKER.judge(tables, setting, source)


def names(part: Part) -> list[str]:
    return sorted(part.anomalies)


AFTER_ALL_NS = 60 * NS_PER_S
WHOLE = (last("n1", leading=True), last("n2"), last("n3"))


def test_replicas_that_agree_owe_nothing() -> None:
    logs = tuple(entry(node, i, 2, i) for node in ("n1", "n2", "n3") for i in (9, 10))

    part = said(told("n1", 5, leading=True), *WHOLE, logs=logs, events=(elected("n1", 2),))

    assert names(part) == []
    assert part.statistics["replicas"] == {"told": 4, "at_the_end": 3}


def test_equal_entries_applied_must_be_equal_contents() -> None:
    part = said(WHOLE[0], WHOLE[1], last("n3") | {"content": 8})

    assert names(part) == ["diverged-replicas"]
    assert "n1 and n2 and n3 hold different contents of p0" in _text(part)


def test_a_replica_that_has_applied_less_may_hold_less() -> None:
    behind = last("n3") | {"content": 8, "applied_index": 9}

    assert names(said(WHOLE[0], WHOLE[1], behind)) == []


@pytest.mark.parametrize("other", [entry("n2", 9, 2, 5), entry("n2", 9, 1, 9)])
def test_one_place_of_the_log_holds_one_entry(other: dict[str, Any]) -> None:
    part = said(*WHOLE, logs=(entry("n1", 9, 2, 9), other))

    assert names(part) == ["diverged-logs"]
    assert part.anomalies["diverged-logs"].count == 1


def test_what_was_applied_in_passing_counts_as_well() -> None:
    replaced = told("n2", 3, applied_index=10, applied_term=1)

    assert names(said(replaced, *WHOLE, logs=(entry("n1", 10, 2, 10),))) == ["diverged-logs"]


def test_a_term_has_one_leader_of_each_group() -> None:
    good = (elected("n1", 2), elected("n2", 3), elected("n2", 2, partition=None))

    assert names(said(*WHOLE, events=good)) == []
    assert names(said(*WHOLE, events=(*good, elected("n3", 3)))) == ["two-leaders"]


def test_a_leader_told_of_without_an_event_counts_as_well() -> None:
    part = said(told("n2", 3, leading=True), *WHOLE, events=(elected("n1", 2),))

    assert names(part) == ["two-leaders"]


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ({"recovered_term": 1}, "started in term 1 after it had told term 2"),
        ({"recovered_vote": None}, "it had voted for n1@1, and after a restart for nobody"),
        ({"recovered_index": 9}, "its log ended at 9 after a restart"),
    ],
)
def test_a_restart_forgets_nothing_that_was_durable(found: dict[str, Any], text: str) -> None:
    before = told("n2", 3)
    well = {"recovered_term": 2, "recovered_vote": "n1@1", "recovered_index": 10}
    after = told("n2", 50, boot="n2-2", **well)

    assert names(said(before, after)) == []
    part = said(before, after | found)
    assert names(part) == ["forgotten-state"]
    assert text in _text(part)


def test_a_vote_of_a_later_start_in_the_same_term_is_not_forgotten_either() -> None:
    first = told("n2", 3, vote=None)
    second = told("n2", 50, boot="n2-2", recovered_term=2, recovered_index=10)
    third = told("n2", 90, boot="n2-3", recovered_term=2, recovered_index=10)

    assert names(said(first, second, third | {"recovered_vote": "n1@1"})) == []
    part = said(first, second, third)
    assert names(part) == ["forgotten-state"]
    assert "it had voted for n1@1, and after a restart for nobody" in _text(part)


def missed(node: str, text: str, at_ns: int) -> dict[str, Any]:
    return elected(node, 3) | {"kind": "lost-log", "text": text, "at_ns": at_ns}


def struck(kind: str, at_ns: int) -> dict[str, Any]:
    times = {"planned_ns": at_ns, "injecting_ns": at_ns, "injected_ns": at_ns}
    return {"fault": 0, "kind": kind, "target": "one", "nodes": ["n4"], "roles": [],
            "state": "effective", "effective_ns": at_ns, **times}  # fmt: skip


def test_a_follower_that_lost_entries_which_it_had_acknowledged_is_a_broken_promise() -> None:
    """Though no sample of its state ever showed them."""
    event = missed("n1", "n4 has lost entries of p0 that it had: wipe it", 5 * NS_PER_S)

    part = said(*WHOLE, events=(event,))

    assert names(part) == ["forgotten-state"]
    assert _text(part) == (
        "forgotten state: n1 says that n4 has lost entries of p0 that it had: wipe it (at "
        "5.000 s), and no fault that destroys data had begun"
    )
    assert names(said(*WHOLE, events=(event | {"kind": "storage-error"},))) == []


@pytest.mark.parametrize(
    ("kind", "at_s", "accused"),
    [
        ("wipe", 4, False),
        ("bit-flip", 4, False),
        ("command", 4, False),  # may do anything
        ("wipe", 6, True),
        ("kill", 4, True),
    ],
)
def test_only_a_fault_before_it_that_destroys_data_explains_lost_entries(
    kind: str, at_s: int, accused: bool
) -> None:
    event = missed("n1", "n4 has lost entries of p0 that it had: wipe it", 5 * NS_PER_S)

    part = said(*WHOLE, events=(event,), faults=(struck(kind, at_s * NS_PER_S),))

    assert names(part) == ["forgotten-state"] * accused


@pytest.mark.parametrize(
    ("kind", "about", "accused"),
    [
        ("wipe", "n4", False),
        ("wipe", "n5", True),  # the fault was on n4
        ("command", "n5", False),  # may do anything, anywhere
        ("wipe", None, False),  # of versions that did not tell whom they speak of
    ],
)
def test_a_fault_that_destroys_data_explains_what_its_own_nodes_lost(
    kind: str, about: str | None, accused: bool
) -> None:
    event = missed("n1", "it has lost entries of p0 that it had: wipe it", 5 * NS_PER_S)

    part = said(*WHOLE, events=(event | {"about": about},), faults=(struck(kind, 4 * NS_PER_S),))

    assert names(part) == ["forgotten-state"] * accused


def test_a_wiped_node_is_somebody_else() -> None:
    assert names(said(told("n2", 3), told("n2", 50, boot="n2-2", life="n2@2"))) == []


@pytest.mark.parametrize("name", ["term", "commit_index", "applied_index"])
def test_nothing_falls_while_a_node_runs(name: str) -> None:
    before, after = told("n2", 3), told("n2", 50)

    part = said(before, after | {name: after[name] - 1, "applied_term": 0})

    assert names(part) == ["went-back"]
    assert names(said(before | {name: after[name] - 1, "applied_term": 0}, after)) == []


def test_what_is_not_durable_falls_with_a_start_of_the_replica_in_a_node_that_runs() -> None:
    before = told("n2", 3)
    after = told("n2", 50, applied_index=8, commit_index=8, applied_term=0)
    start = missed("n2", "starts its replica, log up to 10", 20) | {
        "kind": "start-decision",
        "partition": 0,
    }

    assert names(said(before, after)) == ["went-back"]
    assert names(said(before, after, events=(start,))) == []
    for other in ({"node": "n1"}, {"partition": 1}, {"at_ns": 90}):
        assert names(said(before, after, events=(start | other,))) == ["went-back"]
    assert names(said(before, after | {"recovered_index": 7})) == []
    assert names(said(before, after | {"term": before["term"] - 1}, events=(start,))) == [
        "went-back"
    ]


def test_a_majority_holds_at_the_end_what_was_applied() -> None:
    further = told("n3", 3, applied_index=12, last_index=12, life="n3@0")
    one, two = WHOLE[0] | {"last_index": 12}, WHOLE[1] | {"last_index": 12}

    assert names(said(further, one, two, WHOLE[2])) == []
    assert names(said(further, one, *WHOLE[1:])) == ["lost-entries"]


def test_what_was_applied_after_the_others_were_asked_need_not_be_in_their_logs() -> None:
    later = {"asked_ns": 1500, "answered_ns": 1501, "applied_index": 12, "last_index": 12}

    assert names(said(WHOLE[0] | later, *WHOLE[1:])) == []
    assert names(said(WHOLE[0] | later | {"answered_ns": 999}, *WHOLE[1:])) == ["lost-entries"]


def test_who_was_followed_as_primary_does_not_act_any_more() -> None:
    old = told("n1", 10, acting=True, epoch=4)
    new = told("n2", 20, acting=True, epoch=5)

    assert names(said(old, new)) == []
    late = old | {"asked_ns": 21, "answered_ns": 30}
    assert names(said(new, late)) == []  # asked in the moment that the other answered
    assert names(said(new, late | {"asked_ns": 22})) == ["stale-primary"]


def test_an_epoch_has_one_primary() -> None:
    part = said(told("n1", 10, acting=True, epoch=4), told("n2", 20, acting=True, epoch=4))

    assert names(part) == ["stale-primary"]


@pytest.mark.parametrize("held", ["locks", "prepared"])
def test_nothing_is_held_when_every_client_is_gone(held: str) -> None:
    holder = WHOLE[2] | {held: 1, "asked_ns": AFTER_ALL_NS}

    assert names(said(*WHOLE[:2], holder, begun_ns=(7, 5))) == ["lock-left"]


@pytest.mark.parametrize(
    ("trouble", "found"),
    [
        ("quiesce: metastorage has no leader", []),
        ("collect states: TimeoutError", []),
        ("collect events: TimeoutError", ["lock-left"]),
    ],
)
def test_a_cluster_that_may_not_be_at_rest_may_hold_locks(trouble: str, found: list[str]) -> None:
    setting = msgspec.structs.replace(SETTING, trouble=(trouble,))
    holder = WHOLE[2] | {"locks": 1, "asked_ns": AFTER_ALL_NS}

    assert names(said(*WHOLE[:2], holder, setting=setting, begun_ns=(7, 5))) == found


def test_a_lock_is_left_only_once_the_deadline_of_its_transaction_is_over() -> None:
    setting = msgspec.structs.replace(SETTING, op_deadline_s=2.0)
    due_ns = 40 + 2 * NS_PER_S + int(QUIET_LIMIT_S * NS_PER_S)

    def asked(at_ns: int) -> list[str]:
        holder = WHOLE[2] | {"locks": 1, "asked_ns": at_ns, "answered_ns": at_ns + 1}
        return names(said(*WHOLE[:2], holder, setting=setting, begun_ns=(3, 40, 9)))

    assert asked(due_ns) == ["lock-left"]
    assert asked(due_ns - 1) == []
    assert asked(41) == []  # a run that its time budget ended asks at once


def test_a_run_that_did_not_come_to_rest_may_hold_locks() -> None:
    for setting in (
        Setting(model=SETTING.model, declaration=SETTING.declaration),
        Setting(
            model=SETTING.model,
            declaration=SETTING.declaration,
            phases=SETTING.phases,
            trouble=("quiesce: not done within 10 s",),
        ),
    ):
        holder = WHOLE[2] | {"locks": 1, "asked_ns": AFTER_ALL_NS}
        assert names(said(*WHOLE[:2], holder, setting=setting)) == []


def test_what_replicas_owe_decides_whatever_model_was_asked_for() -> None:
    tables = {
        "states": pa.Table.from_pylist([*WHOLE[:2], WHOLE[2] | {"content": 8}], schema=STATES),
        "logs": LOGS.empty_table(),
    }
    nothing = pa.table({name: pa.array([], pa.int64()) for name in ("txn", "invoke_ns")})
    analysis = judge(
        Source.of_tables(nothing),
        setting=Setting(model="read-uncommitted", declaration=SETTING.declaration),
        checkers=(CHECKER,),
        faults=nothing,
        events=EVENTS.empty_table(),
        beside=tables,
    )

    assert str(analysis.verdict.outcome) == "violation"
    assert "breaks what replicas owe each other" in analysis.verdict.reasons[0]


def _text(part: Part) -> str:
    (anomaly,) = part.anomalies.values()
    return anomaly.examples[0].text


def reset_to(generation: int, base_index: int) -> Reset:
    return Reset(
        partition=0,
        generation=generation,
        previous=generation - 1,
        earliest_ns=20,
        latest_ns=21,
        node="n2",
        base_index=base_index,
        base_term=2,
        survivors=("n2",),
    )


RESET = msgspec.structs.replace(SETTING, resets=(reset_to(1, 8),))
OLD = told("n1", 5, applied_index=10, term=4, applied_term=2)


def test_entries_of_two_generations_are_no_divergence_and_those_of_one_are() -> None:
    new = told("n2", 30, generation=1, applied_index=10, applied_term=5, commit_index=10)
    logs = (entry("n1", 10, 2, 1), entry("n2", 10, 5, 7) | {"generation": 1})

    assert names(said(OLD, new, logs=logs, setting=RESET)) == []
    assert names(said(OLD, new | {"generation": 0}, logs=logs, setting=RESET)) == ["diverged-logs"]
    third = told("n3", 31, generation=1, applied_index=10, applied_term=6)
    assert names(said(OLD, new, third, setting=RESET)) == ["diverged-logs"]


def test_an_entry_of_one_term_is_the_same_in_a_generation_and_in_that_before() -> None:
    logs = (entry("n1", 8, 2, 1), entry("n2", 8, 2, 7) | {"generation": 1})

    assert names(said(OLD, logs=logs, setting=RESET)) == ["diverged-logs"]


def old(index: int, of_term: int, node: str = "n1", **more: Any) -> dict[str, Any]:
    """One of the majority before the reset, which has applied up to an entry of ``of_term``."""
    whole = {"applied_index": index, "commit_index": index, "applied_term": of_term}
    return told(node, 5, term=of_term) | whole | more


def new(node: str, index: int, term: int, generation: int = 1) -> dict[str, Any]:
    return told(node, 30, applied_index=index, term=5, applied_term=term, generation=generation)


@pytest.mark.parametrize(
    "before",
    [
        old(7, 3),  # a later leader has committed another entry in place of what the base is of
        old(7, 1, term=3),  # of an earlier term, but committed by a later leader
        old(9, 3),  # behind the base
    ],
)
def test_what_a_later_leader_committed_may_differ_below_the_base(before: dict[str, Any]) -> None:
    places = [new("n2", before["applied_index"], 2)]

    assert names(said(before, *places, setting=RESET)) == []
    assert names(said(before, places[0] | {"generation": 0}, setting=RESET)) == ["diverged-logs"]


@pytest.mark.parametrize(
    "before",
    [
        old(7, 1),  # committed before the leader of the base's term was elected
        old(7, 1, term=2),  # or by it
        old(6, 1, term=3),  # below an entry that both have
    ],
)
def test_what_was_committed_by_the_bases_term_is_in_the_new_generation(
    before: dict[str, Any],
) -> None:
    common = (old(7, 2, node="n3", term=4),) if before["applied_index"] == 6 else ()
    after = new("n2", before["applied_index"], 2)

    assert names(said(before, *common, after, setting=RESET)) == ["diverged-logs"]
    same = after | {"applied_term": before["applied_term"]}
    assert names(said(before, *common, same, setting=RESET)) == []


def test_copies_of_the_new_generation_are_alike_below_the_base_too() -> None:
    before = old(7, 3)

    assert names(said(before, new("n2", 7, 2), new("n4", 7, 2), setting=RESET)) == []
    part = said(before, new("n2", 7, 2), new("n4", 7, 3), setting=RESET)
    assert names(part) == ["diverged-logs"]
    assert "entry 7 of p0, generation 1, was applied" in _text(part)
    # The base itself was told with the reset.
    assert names(said(new("n4", 8, 2), setting=RESET)) == []
    assert names(said(new("n4", 8, 1), setting=RESET)) == ["diverged-logs"]


def test_a_generation_has_what_began_the_one_before() -> None:
    twice = msgspec.structs.replace(SETTING, resets=(reset_to(1, 8), reset_to(2, 12)))
    first, second = new("n2", 9, 3), new("n4", 9, 4, generation=2)

    assert names(said(first, second, setting=twice)) == ["diverged-logs"]
    assert names(said(first, second | {"applied_term": 3}, setting=twice)) == []
    # What followed on it may be another one.
    first, second = new("n2", 11, 3), new("n4", 11, 4, generation=2)
    assert names(said(first, second, setting=twice)) == []


def test_a_term_has_one_leader_in_each_generation() -> None:
    first, second = told("n1", 5, leading=True), told("n2", 30, leading=True, generation=1)

    assert names(said(first, second)) == []
    assert names(said(first, second | {"generation": 0})) == ["two-leaders"]
    event = elected("n3", 2) | {"generation": 1}
    part = said(first, second, events=(event,))
    assert names(part) == ["two-leaders"]
    assert "partition 0, generation 1, in term 2" in part.anomalies["two-leaders"].examples[0].text


def test_what_a_reset_took_back_was_not_forgotten() -> None:
    before = told("n2", 3, applied_index=12, commit_index=12, last_index=12)
    later = told("n2", 50, boot="n2-2", recovered_term=2, recovered_vote="n1@1", recovered_index=8)

    assert names(said(before, later | {"generation": 1})) == []
    assert names(said(before, later)) == ["forgotten-state"]


def test_indices_fall_with_a_generation_and_not_within_one() -> None:
    before = told("n2", 3, applied_index=12, commit_index=12, last_index=12, generation=1)
    after = told("n2", 50, applied_index=8, commit_index=8, applied_term=0, generation=2)

    assert names(said(before, after)) == []
    assert names(said(before, after | {"generation": 1})) == ["went-back"]


def test_contents_at_one_index_are_compared_within_a_generation() -> None:
    other = WHOLE[1] | {"content": 8}

    assert names(said(WHOLE[0], other)) == ["diverged-replicas"]
    assert names(said(WHOLE[0], other | {"generation": 1})) == []


@pytest.mark.parametrize("boot", ["n2-1", "n2-2"])
def test_terms_of_a_copy_that_waits_for_a_later_log_are_not_of_one(boot: str) -> None:
    setting = msgspec.structs.replace(SETTING, resets=(reset_to(1, 8),))
    early, late = (told("n2", at, term=term, vote=None) for at, term in ((1, 11), (60, 10)))
    late |= {"boot": boot, "recovered_term": 10, "recovered_vote": None, "recovered_index": 20}

    assert names(said(early, late, setting=setting)) == []
    fell = "went-back" if boot == early["boot"] else "forgotten-state"
    assert names(said(early, late)) == [fell]
    # Indices are those of the log that it has.
    lost = late | {"applied_index": 1, "commit_index": 1, "recovered_index": 1}
    assert names(said(early, lost, setting=setting)) == ([] if boot == early["boot"] else [fell])
    # Of the generation that has begun last nothing is forgiven.
    here = {"generation": 1}
    assert names(said(early | here, late | here, setting=setting)) == [fell]
