"""What a partition without its majority owes its clients: a refusal in SC, service again in HA."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from controller_load import stalled

from checkers.engine.analyze import judge
from checkers.engine.source import Source
from checkers.limits.checker import CHECKER
from harness.exit_codes import Outcome
from harness.history import schema
from harness.plan.plan import PromisePlan
from harness.protocols.consistency_models import REFUSAL, SERVICE
from harness.protocols.promise import Declaration
from harness.protocols.setting import Setting
from harness.protocols.verdict import LimitState, Verdict
from harness.run import controller_health
from harness.run.state_log import STATES

S = 1_000_000_000
END_S = 40.0
KILLED_S, HEALED_S = 10.0, 20.0
KILL = (KILLED_S, HEALED_S, "kill", "majority of partition 0", ("n1", "n2"))
ALL_VOTE = ("n1", "n2", "n3", "n4", "n5")
VOTERS = {0: ("n1", "n2", "n3"), 1: ("n3", "n4", "n5")}
REFUSED, SERVES = PromisePlan(refused_within_s=1.0), PromisePlan(serves_within_s=6.0)

Fault = tuple[float, float, str, str, tuple[str, ...]]
Op = tuple[float, float, tuple[int, ...], str, str] | tuple[Any, ...]
"""Begin and end in seconds, partitions, how it ended, the node that was asked, and what it did
where that was no append.
"""


def ops(
    begin_s: float,
    end_s: float,
    type_: str,
    *,
    took_s: float = 0.01,
    partitions: tuple[int, ...] = (0,),
    node: str = "n3",
) -> list[Op]:
    """Transactions of one kind, one begun each tenth of a second."""
    count = round((end_s - begin_s) * 10)
    starts = [begin_s + number / 10 for number in range(count)]
    return [(at, at + took_s, partitions, type_, node) for at in starts]


def states(
    voters: dict[int, tuple[str, ...]], metastorage: tuple[str, ...] = ("n3", "n4", "n5")
) -> pa.Table:
    """Each replica's state, told a second before the kill."""
    groups = {f"p{number}": (number, nodes) for number, nodes in voters.items()}
    groups["metastorage"] = (None, metastorage)
    rows = [
        dict.fromkeys(STATES.names, None)
        | {"group": group, "partition": partition, "node": node, "voter": True}
        | {"voters": len(nodes), "asked_ns": round(9 * S), "answered_ns": round(9 * S)}
        for group, (partition, nodes) in groups.items()
        for node in nodes
    ]
    return pa.Table.from_pylist(rows, schema=STATES)


def verdict(
    done: list[Op],
    limits: PromisePlan,
    *,
    mode: str,
    faults: tuple[Fault, ...] = (KILL,),
    told: pa.Table | None = None,
    late_at_s: float | None = None,
    load: pa.Table | None = None,
) -> Verdict:
    done = sorted(done)
    rows = [
        {
            **dict.fromkeys(("process", "attempt", "wall_ns"), 0),
            **{"txn": txn, "kind": "rw", "type": type_, "error": None, "node": node},
            "intended_ns": round(begin_s * S),
            "invoke_ns": round(begin_s * S),
            "complete_ns": round(end_s * S),
            "invoke_index": 2 * txn,
            "complete_index": 2 * txn + 1,
        }
        for txn, (begin_s, end_s, _, type_, node, *_) in enumerate(done)
    ]
    steps = [
        {"txn": txn, "pos": pos, "f": (*does, "append")[0], "key": partition}
        | {"partition": partition, "value": None if does else txn, "type": type_}
        for txn, (_, _, partitions, type_, _, *does) in enumerate(done)
        for pos, partition in enumerate(partitions)
    ]
    table = [
        {
            **{"fault": number, "kind": kind, "target": target, "nodes": nodes, "roles": []},
            "injecting_ns": round(start_s * S),
            "effective_ns": round(start_s * S),
            "healing_ns": round(healed_s * S),
            "healed_ns": round(healed_s * S),
            "state": "healed",
        }
        for number, (start_s, healed_s, kind, target, nodes) in enumerate(faults)
    ]
    late = {"at_ns": round((late_at_s or 1.0) * S), "length_ns": S}
    late["late_ns"] = 0 if late_at_s is None else 3 * S
    if load is None:
        load = pa.Table.from_pylist([late], schema=controller_health.SCHEMA)
    beside = {"controller": load, "states": states(VOTERS) if told is None else told}
    return judge(
        Source.of_tables(
            pa.Table.from_pylist(rows, schema=schema.TRANSACTIONS),
            pa.Table.from_pylist(steps, schema=schema.MICRO_OPS),
        ),
        setting=Setting(
            model="strict-serializable",
            declaration=Declaration(system="s", mode=mode, promises=()),
            phases=(("drive", 0), ("heal", round(END_S * S))),
            limits=limits,
        ),
        checkers=(CHECKER,),
        faults=pa.Table.from_pylist(table, schema=schema.FAULTS),
        events=schema.EVENTS.empty_table(),
        beside=beside,
    ).verdict


def measured(found: Verdict, limit: str) -> float:
    (figure,) = (each.measured for each in found.limits if each.name == f"promise.{limit}")
    assert figure is not None
    return figure


CALM = ops(0, 10, "ok") + ops(20, 40, "ok")
PROMPT = CALM + ops(10, 20, "fail")
HANGING = CALM + ops(10, 14, "fail") + ops(14, 15, "info", took_s=2.5)


# -- in SC


def test_refusals_in_time_are_kept_and_shown() -> None:
    found = verdict(PROMPT, REFUSED, mode="SC")

    assert found.outcome is Outcome.VALID
    assert measured(found, "refused_within_s") == pytest.approx(0.01)


def test_a_request_that_hangs_without_a_majority_is_a_violation_with_its_window() -> None:
    found = verdict(HANGING, REFUSED, mode="SC")

    assert found.outcome is Outcome.VIOLATION
    assert found.anomalies[REFUSAL].count == 1
    [example] = found.anomalies[REFUSAL].examples
    assert "partition 0 had lost n1, n2 of its 3 voters" in example.text
    assert "10 of 20 requests to it alone were not refused in time" in example.text
    assert example.details["partition"] == 0
    assert (example.details["window_start_ns"], example.details["measured"]) == (14 * S, 2.5)
    assert len(example.txns) == 5


def test_what_hangs_until_the_majority_is_back_was_not_refused_either() -> None:
    late = CALM + ops(17, 18, "ok", took_s=4.0)

    assert list(verdict(late, REFUSED, mode="SC").anomalies) == [REFUSAL]


@pytest.mark.parametrize(
    "more",
    [
        ops(10, 12, "info", took_s=2.5),  # before a store can know
        ops(19.2, 20, "info", took_s=2.5),  # healed before the time is over
        ops(14, 15, "info", took_s=2.5, partitions=(0, 1)),  # partition 1 may be what it waits for
        ops(14, 15, "info", took_s=2.5, partitions=(1,)),  # which has its majority
        ops(14, 15, "info", took_s=2.5, node="n1"),  # that is out
    ],
    ids=["at once", "healed", "two partitions", "another", "asked of a killed node"],
)
def test_what_may_have_another_cause_accuses_nothing(more: list[Op]) -> None:
    assert verdict(PROMPT + more, REFUSED, mode="SC").outcome is Outcome.VALID


def test_where_metastorage_lost_its_majority_too_that_is_why_no_partition_is_judged() -> None:
    everything = (KILLED_S, HEALED_S, "kill", "majority", ("n1", "n2", "n3"))

    for found in (
        verdict(PROMPT, REFUSED, mode="SC", faults=(everything,), told=states(VOTERS, ALL_VOTE)),
        verdict(PROMPT, SERVES, mode="HA", faults=(everything,), told=states(VOTERS, ALL_VOTE)),
    ):
        (limit,) = found.limits
        assert limit.state is LimitState.NOT_TESTED
        assert "metastorage had lost its majority by 10.000 s" in limit.reason
        assert limit.reason.endswith(
            "aim at `n1,n2`, most voters of partition 0, which leave metastorage its own"
        )


def test_the_advice_names_a_majority_that_metastorage_can_do_without_where_there_is_one() -> None:
    """Of partition 0 every majority has two of metastorage's three voters."""
    everything = (KILLED_S, HEALED_S, "kill", "majority", ("n1", "n2", "n3"))
    same, other = ("n1", "n2", "n3"), ("n3", "n4", "n5")

    def advice(voters: dict[int, tuple[str, ...]]) -> str:
        told = states(voters, ("n1", "n2", "n3"))
        (limit,) = verdict(PROMPT, REFUSED, mode="SC", faults=(everything,), told=told).limits
        return limit.reason.partition("is judged: ")[2]

    assert advice({0: same, 1: other}).startswith("aim at `n4,n5`, most voters of partition 1")
    assert advice({0: same}).startswith("more nodes (cluster.nodes) leave it one")


REFUTED = HANGING + ops(17, 18, "ok")


def test_a_partition_that_served_all_along_had_not_lost_its_majority() -> None:
    """Two of ten seconds' requests were slow, and the others were acknowledged."""
    served = CALM + ops(10, 20, "ok") + ops(14, 16, "info", took_s=2.5)

    found = verdict(served, REFUSED, mode="SC")

    assert (found.outcome, found.anomalies) == (Outcome.UNKNOWN, {})
    (limit,) = found.limits
    assert limit.state is LimitState.UNDECIDED
    assert "partition 0 had lost n1, n2 of its 3 voters by 10.000 s, and acknowledged a write" in (
        limit.reason
    )
    assert "that was begun at 13.000 s, though 20 of 20 requests were late" in limit.reason


def test_refusals_of_a_partition_that_also_serves_prove_nothing_for_it() -> None:
    found = verdict(PROMPT + ops(17, 18, "ok"), REFUSED, mode="SC")

    (limit,) = found.limits
    assert (found.outcome, limit.state) == (Outcome.UNKNOWN, LimitState.NOT_TESTED)
    assert "acknowledged a write that was begun at 17.000 s: it was not judged" in limit.reason


def test_a_loss_that_is_refuted_excuses_no_other() -> None:
    """Partition 0 serves in spite of it; partition 1, lost as well, lets its clients wait."""
    both = states({0: ("n1", "n2", "n3"), 1: ("n1", "n2", "n4")})
    of_other = ops(14, 15, "info", took_s=2.5, partitions=(1,))

    found = verdict(REFUTED + of_other, REFUSED, mode="SC", told=both)

    (example,) = found.anomalies[REFUSAL].examples
    assert example.details["partition"] == 1
    (limit,) = found.limits
    assert "partition 0 had lost n1, n2 of its 3 voters" in limit.reason


@pytest.mark.parametrize(
    "acknowledged",
    [
        ops(10, 12.9, "ok"),  # before a store can know
        ops(19.9, 20, "ok", took_s=0.2),  # ended after the heal
        ops(17, 18, "ok", partitions=(1,)),  # of a partition with its majority
        [(*op, "r") for op in ops(17, 18, "ok")],  # under the lease from before
    ],
    ids=["at once", "healed", "another", "reads"],
)
def test_what_a_partition_without_its_majority_may_answer_does_not_refute_the_loss(
    acknowledged: list[Op],
) -> None:
    assert list(verdict(HANGING + acknowledged, REFUSED, mode="SC").anomalies) == [REFUSAL]


def test_two_partitions_without_a_majority_refuse_together() -> None:
    both = states({0: ("n1", "n2", "n3"), 1: ("n1", "n2", "n4")})
    hanging = PROMPT + ops(14, 15, "info", took_s=2.5, partitions=(0, 1))

    found = verdict(hanging, REFUSED, mode="SC", told=both).anomalies[REFUSAL]

    assert sorted(example.details["partition"] for example in found.examples) == [0, 1]


def test_a_store_that_tells_no_states_is_judged_where_the_fault_was_aimed() -> None:
    silent = STATES.empty_table()
    named = (KILLED_S, HEALED_S, "kill", "n1,n2", ("n1", "n2"))

    for target in ("majority", "all", "all but one"):
        aimed = (KILLED_S, HEALED_S, "kill", f"{target} of  partition 0", ("n1", "n2"))
        found = verdict(HANGING, REFUSED, mode="SC", told=silent, faults=(aimed,))
        assert list(found.anomalies) == [REFUSAL], target
    for target in ("minority of partition 0", "majority of any partition", "n1 > n2"):
        other = (KILLED_S, HEALED_S, "kill", target, ("n1", "n2"))
        found = verdict(HANGING, REFUSED, mode="SC", told=silent, faults=(other,))
        assert found.outcome is Outcome.UNKNOWN, target
    unsure = verdict(HANGING, REFUSED, mode="SC", told=silent, faults=(named,))
    assert unsure.outcome is Outcome.UNKNOWN
    assert "no partition certainly lost the majority" in unsure.reasons[0]


@pytest.mark.parametrize(
    "faults",
    [
        ((KILLED_S, HEALED_S, "kill", "n1", ("n1",)),),
        ((KILLED_S, HEALED_S, "partition", "n1,n2", ("n1", "n2")),),
        ((KILLED_S, HEALED_S, "kill", "n1,n2,n4,n5", ("n1", "n2", "n4", "n5")),),
        (KILL, (12.0, 19.0, "partition", "n3", ("n3",))),
    ],
    ids=["one voter", "links alone", "metastorage too", "another fault joins in"],
)
def test_no_loss_is_told_that_is_not_certain(faults: tuple[Fault, ...]) -> None:
    assert verdict(HANGING, REFUSED, mode="SC", faults=faults).outcome is Outcome.UNKNOWN


def test_groups_that_share_a_partitions_number_are_not_taken_for_one_another() -> None:
    """Neither two of one partition, nor metastorage and another group of none."""
    rows = states(VOTERS).to_pylist()
    more = [row | {"group": "q0", "node": n} for row, n in zip(rows[:3], ALL_VOTE, strict=False)]
    lost = [row | {"group": "management", "node": n} for row, n in zip(rows[-3:], ALL_VOTE,
            strict=False)]  # fmt: skip
    two, managed = (pa.Table.from_pylist([*rows, *of], schema=STATES) for of in (more, lost))

    assert list(verdict(HANGING, REFUSED, mode="SC").anomalies) == [REFUSAL]
    for told in (two, managed):
        assert verdict(HANGING, REFUSED, mode="SC", told=told).anomalies == {}


def test_two_faults_may_take_a_majority_together() -> None:
    one_by_one = (
        (8.0, 21.0, "kill", "n1", ("n1",)),
        (KILLED_S, HEALED_S, "pause", "n2", ("n2",)),
    )
    in_time = verdict(PROMPT, REFUSED, mode="SC", faults=one_by_one)

    assert list(verdict(HANGING, REFUSED, mode="SC", faults=one_by_one).anomalies) == [REFUSAL]
    assert in_time.outcome is Outcome.VALID


# -- in HA


SERVED = CALM + ops(10, 14, "fail") + ops(14, 20, "ok")
UNSERVED = CALM + ops(10, 17.5, "fail") + ops(17.5, 20, "ok")


def test_the_first_write_after_the_loss_is_timed() -> None:
    found = verdict(SERVED, SERVES, mode="HA")

    assert found.outcome is Outcome.VALID
    assert measured(found, "serves_within_s") == pytest.approx(4.0, abs=0.06)


def test_of_two_faults_in_one_moment_one_takes_the_majority() -> None:
    at_once = (
        (KILLED_S, HEALED_S, "kill", "n1", ("n1",)),
        (KILLED_S, HEALED_S, "kill", "n2", ("n2",)),
    )

    found = verdict(UNSERVED, SERVES, mode="HA", faults=at_once)

    assert found.anomalies[SERVICE].count == 1


def test_a_partition_that_does_not_go_on_is_a_violation_with_its_window() -> None:
    found = verdict(UNSERVED, SERVES, mode="HA")

    [example] = found.anomalies[SERVICE].examples
    assert "acknowledged no write from 10.000 s to 17.5" in example.text
    assert "though clients asked and n3 lived" in example.text
    assert example.details["partition"] == 0


def test_what_was_begun_before_the_loss_does_not_show_that_it_goes_on() -> None:
    answered = [*UNSERVED, (9.9, 10.4, (0,), "ok", "n3")]

    assert list(verdict(answered, SERVES, mode="HA").anomalies) == [SERVICE]


def test_a_partition_without_any_voter_owes_nothing() -> None:
    whole = (KILLED_S, HEALED_S, "kill", "n1,n2,n6", ("n1", "n2", "n6"))
    told = states({0: ("n1", "n2", "n6")})

    assert verdict(UNSERVED, SERVES, mode="HA", faults=(whole,), told=told).anomalies == {}


def test_what_another_lost_partition_may_have_let_fail_accuses_nothing() -> None:
    late = CALM + ops(17.5, 20, "ok")
    beside_lost = late + ops(10, 17.5, "fail", partitions=(0, 1))
    beside_whole = late + ops(10, 17.5, "fail", partitions=(0, 2))
    of_the_dead = late + ops(10, 17.5, "fail", node="n1")
    told = states({0: VOTERS[0], 1: ("n1", "n2", "n6"), 2: VOTERS[1]})

    def found(done: list[Op]) -> list[str]:
        return list(verdict(done, SERVES, mode="HA", told=told).anomalies)

    assert found(beside_lost) == []
    assert found(of_the_dead) == []
    assert found(beside_whole) == [SERVICE]
    # Once the other one serves, it hinders no longer.
    assert found(beside_lost + ops(13, 14, "ok", partitions=(1,))) == []
    assert found(beside_lost + ops(10.1, 10.2, "ok", partitions=(1,))) == [SERVICE]


def test_a_partition_that_nothing_was_asked_of_is_not_tested() -> None:
    assert verdict(CALM, SERVES, mode="HA").outcome is Outcome.UNKNOWN


def test_each_mode_is_judged_by_what_it_promises() -> None:
    both = PromisePlan(refused_within_s=1.0, serves_within_s=6.0)

    assert verdict(PROMPT, both, mode="SC").anomalies == {}
    assert list(verdict(UNSERVED + HANGING[-10:], both, mode="HA").anomalies) == [SERVICE]
    assert list(verdict(HANGING, both, mode="SC").anomalies) == [REFUSAL]


@pytest.mark.parametrize(
    ("done", "limits", "mode"), [(HANGING, REFUSED, "SC"), (UNSERVED, SERVES, "HA")]
)
def test_what_came_late_while_the_controller_starved_accuses_nothing(
    done: list[Op], limits: PromisePlan, mode: str
) -> None:
    starved = verdict(done, limits, mode=mode, late_at_s=15.0)
    elsewhere = verdict(done, limits, mode=mode, late_at_s=30.0)

    assert starved.outcome is Outcome.UNKNOWN
    assert elsewhere.outcome is Outcome.VIOLATION


@pytest.mark.parametrize("stall_s", [1.2, 1.9])
def test_a_request_that_waits_for_the_controller_is_no_late_refusal(stall_s: float) -> None:
    waiting = [(14.9, 14.95 + stall_s, (0,), "fail", "n3")]
    done = CALM + ops(10, 14.9, "fail") + waiting + ops(15 + stall_s, 20, "fail")

    found = verdict(done, REFUSED, mode="SC", load=stalled(stall_s, 14.95, END_S))
    elsewhere = verdict(done, REFUSED, mode="SC", load=stalled(stall_s, 30.0, END_S))

    assert found.outcome is Outcome.UNKNOWN
    assert elsewhere.outcome is Outcome.VIOLATION


@pytest.mark.parametrize(
    ("done", "limits", "mode"), [(HANGING, REFUSED, "SC"), (UNSERVED, SERVES, "HA")]
)
def test_a_stall_within_what_came_late_excuses_no_more_than_it_explains(
    done: list[Op], limits: PromisePlan, mode: str
) -> None:
    short = verdict(done, limits, mode=mode, load=stalled(0.3, 15.0, END_S))
    explains = verdict(done, limits, mode=mode, load=stalled(1.9, 15.0, END_S))

    assert short.outcome is Outcome.VIOLATION
    assert explains.outcome is Outcome.UNKNOWN
