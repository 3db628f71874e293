"""What can't have happened is refused with its line; what can is kept, on one axis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jepsen_files import Op, edn_lines, generated, json_lines, register, small, timed, txn, write

from checkers.engine.analyze import checkers_named, judge
from checkers.engine.source import Source
from harness.errors import MalformedHistory, UsageError
from harness.exit_codes import Outcome
from harness.importers.jepsen.imported_history import ImportedHistory, read_jepsen
from harness.importers.jepsen.imported_tables import axis
from harness.importers.jepsen.pairing import Pairing
from harness.protocols.setting import Setting

APPEND = [["append", 1, 1]]
OTHER = [["append", 1, 2]]
READ = [["r", 1, None]]
SEEN = [["r", 1, [1]]]
WRITE = [["w", 1, 2]]
BOTH = [["append", 1, 1], ["r", 2, None]]


def read(tmp_path: Path, ops: list[Op]) -> ImportedHistory:
    return read_jepsen(write(tmp_path, json_lines(ops)))


def invoke(process: int, value: Any = READ, **more: Any) -> Op:
    return txn("invoke", process, value, **more)


def ok(process: int, value: Any = SEEN, **more: Any) -> Op:
    return txn("ok", process, value, **more)


def info(process: int, value: Any = READ) -> Op:
    return txn("info", process, value)


@pytest.mark.parametrize(
    ("ops", "line", "reason"),
    [
        ([invoke(0), ok(1)], 2, "process 1 completes an operation (ok), but has invoked none"),
        ([invoke(0), ok(0), ok(0)], 3, "but has invoked none"),
        ([invoke(0), invoke(0)], 2, "before the one invoked on line 1 has completed"),
        ([invoke(0), info(0), invoke(0)], 3, "is used again after its operation on line 2"),
        ([invoke(0), register("ok", 0, "read", 1)], 2, "completes read; it invoked txn on line 1"),
        ([invoke(0), ok(0, None)], 2, "does not say what it did"),
        ([invoke(0, index=3), ok(0, index=3)], 2, "expected an index after 3, found 3"),
        ([invoke(0, index=3), ok(0)], 2, "expected an index after 3, found none"),
        ([invoke(0), ok(0, index=3)], 2, "index 3, but the operations before have none"),
        (
            [invoke(0, APPEND), ok(0, APPEND), invoke(1, APPEND)],
            3,
            "element 1 is appended to key 1 again (first on line 1)",
        ),
        (
            [invoke(0, APPEND), ok(0, APPEND), invoke(0, WRITE), ok(0, WRITE)],
            4,
            "reads and writes of registers, but appends and reads of lists are on line 2",
        ),
        ([invoke(0), ok(0, [["r", 1, 5]]), invoke(0), ok(0)], 4, "appends and reads of lists, but"),
    ],
)
def test_a_history_that_contradicts_itself_is_refused(
    tmp_path: Path, ops: list[Op], line: int, reason: str
) -> None:
    for layout in (json_lines, edn_lines):
        with pytest.raises(MalformedHistory) as refused:
            read_jepsen(write(tmp_path, layout(ops)))

        assert refused.value.where == f"line {line}"
        assert reason in refused.value.reason


@pytest.mark.parametrize(
    "ops",
    [
        [invoke(0), invoke(1), ok(1), ok(0)],
        [invoke(0), info(0), invoke(5)],
        [invoke(0, APPEND), invoke(1, OTHER), ok(0, APPEND), ok(1, OTHER)],
        [invoke(0, APPEND), ok(0, APPEND), invoke(0, [["append", 2, 1]])],
        [invoke(0, index=3), ok(0, index=7)],
        [invoke(0, []), ok(0, [])],
    ],
)
def test_its_mutations_that_can_have_happened_are_read(tmp_path: Path, ops: list[Op]) -> None:
    assert read(tmp_path, ops).operations == len(ops)


@pytest.mark.parametrize(
    ("asked", "done"),
    [
        (APPEND, []),
        (APPEND, [["append", 1, 7]]),
        (APPEND, [["append", 5, 1]]),
        (APPEND, [["append", ":x", 1]]),
        (APPEND, [*APPEND, ["append", 1, 2]]),
        (APPEND, SEEN),
        (READ, APPEND),
        (READ, [["r", 2, [1]]]),
        (BOTH, BOTH[::-1]),
        (WRITE, [["w", 1, 3]]),
    ],
)
@pytest.mark.parametrize("ended", ["ok", "fail", "info"])
def test_a_completion_of_something_else_than_was_invoked_is_refused_with_both_lines(
    tmp_path: Path, asked: Any, done: Any, ended: str
) -> None:
    if not done and ended != "ok":
        return  # what did not succeed need not tell its steps
    ops = [invoke(3), ok(3, [["r", 1, None]]), invoke(0, asked), txn(ended, 0, done)]
    for layout in (json_lines, edn_lines):
        with pytest.raises(MalformedHistory) as refused:
            read_jepsen(write(tmp_path, layout(ops)))

        assert refused.value.where == "line 4"
        assert refused.value.reason.startswith("process 0 completes [")
        assert refused.value.reason.endswith("on line 3")


def test_a_contradiction_names_what_was_completed_and_what_was_invoked(tmp_path: Path) -> None:
    asked = [["append", "x", 1], *([f, key, None] for f, key in [("r", 2)] * 5)]

    with pytest.raises(MalformedHistory, match=r"completes \[\[append x 7\]\]; it invoked "):
        read(tmp_path, [invoke(0, asked), ok(0, [["append", "x", 7]])])
    with pytest.raises(MalformedHistory, match=r"r 2 nil\]\] and 2 more steps on line 1"):
        read(tmp_path, [invoke(0, asked), ok(0, [["append", "x", 7]])])


@pytest.mark.parametrize(
    ("asked", "ended", "done"),
    [
        (BOTH, "ok", [["append", 1, 1], ["r", 2, [3, 4]]]),
        (BOTH, "ok", BOTH),
        *((BOTH, ended, done) for ended in ("fail", "info") for done in (BOTH, BOTH[:1], [], None)),
        ([["r", 1, [9]]], "ok", SEEN),
        (WRITE, "info", None),
    ],
)
def test_what_clients_tell_of_the_operation_that_they_were_given_is_read(
    tmp_path: Path, asked: Any, ended: str, done: Any
) -> None:
    workload = "register" if asked == WRITE else "list-append"
    for layout in (json_lines, edn_lines):
        file = write(tmp_path, layout([invoke(0, asked), txn(ended, 0, done)]))
        history = read_jepsen(file, workload=workload)

        assert history.micro_ops().num_rows == len(asked)


@pytest.mark.parametrize(
    ("f", "asked", "done", "fine"),
    [
        ("write", 3, 3, True),
        ("write", 3, None, True),
        ("write", 3, 4, False),
        ("write", [7, 3], [7, 3], True),
        ("write", [7, 3], [8, 3], False),
        ("cas", [1, 2], [1, 2], True),
        ("cas", [1, 2], [1, 3], False),
        ("read", None, 3, True),
        ("read", [7, None], [7, 3], True),
        ("read", [7, None], [8, 3], False),
    ],
)
def test_operations_on_registers_complete_as_they_were_invoked(
    tmp_path: Path, f: str, asked: Any, done: Any, fine: bool
) -> None:
    ops = [register("invoke", 0, f, asked), register("ok", 0, f, done)]
    if fine:
        assert read(tmp_path, ops).micro_ops().num_rows == 1
        return
    with pytest.raises(MalformedHistory, match=r"it invoked \[\[.*\]\] on line 1"):
        read(tmp_path, ops)


@pytest.mark.parametrize("f", ["txn", "write", "cas"])
def test_an_invocation_that_does_not_say_what_it_asks_for_is_refused(
    tmp_path: Path, f: str
) -> None:
    with pytest.raises(MalformedHistory, match=f"an invoked {f} does not say what it asks for"):
        read(tmp_path, [register("invoke", 0, f, None), register("info", 0, f, None)])


def test_a_register_found_empty_was_read(tmp_path: Path) -> None:
    def history(seen: int | None) -> ImportedHistory:
        ops = [register(t, 0, "write", 3) for t in ("invoke", "ok")]
        ops += [register("invoke", 1, "read", None), register("ok", 1, "read", seen)]
        return read(tmp_path, timed(ops))

    assert verdict_of(history(3)).outcome is Outcome.VALID
    assert verdict_of(history(None)).outcome is Outcome.VIOLATION


def test_a_set_is_not_taken_for_the_list_that_a_read_saw(tmp_path: Path) -> None:
    text = "{{:type :invoke :f :txn :process 0 :value [[:append 1 2] [:r 1 nil]]}}\n"
    text += "{{:type :ok :f :txn :process 0 :value [[:append 1 2] [:r 1 {}]]}}\n"

    assert read_jepsen(write(tmp_path, text.format("[2]"))).operations == 2
    assert read_jepsen(write(tmp_path, text.format("(2)"))).operations == 2
    with pytest.raises(MalformedHistory, match="a set, which has no order") as refused:
        read_jepsen(write(tmp_path, text.format("#{2}")))
    assert refused.value.where == "line 2"
    for steps in ("#{[:r 1 nil]}", "[#{:r 1 nil}]"):
        with pytest.raises(MalformedHistory, match=r"expected a .*#\{"):
            read_jepsen(write(tmp_path, "{:type :invoke :f :txn :process 0 :value " + steps + "}"))


def test_what_a_failed_completion_does_not_tell_its_invocation_does(tmp_path: Path) -> None:
    ops = [
        invoke(0, [["append", 1, 1], ["r", 1, None], ["append", 1, 2]]),
        txn("fail", 0, None),
        invoke(1, [["append", 1, 3], ["append", 1, 4]]),
        info(1, [["append", 1, 3]]),
    ]
    steps = read(tmp_path, ops).micro_ops().sort_by([("txn", "ascending"), ("pos", "ascending")])

    assert steps["value"].to_pylist() == [1, None, 2, 3, 4]
    assert steps["elements"].to_pylist() == [None] * 5


@given(st.lists(st.integers(-5, 20), min_size=1, max_size=30), st.booleans())
def test_the_order_of_times_is_the_order_of_the_file(times: list[int], ascending: bool) -> None:
    pairing = Pairing("history")
    pairing.times.extend(sorted(times) if ascending else times)
    pairing.operations, pairing.incomplete = len(times), 2
    found = axis(pairing)

    assert len(found.at_ns) == len(times) + 2
    assert np.all(np.diff(found.at_ns) > 0)
    assert found.real == (times == sorted(times) or ascending)
    if found.real:
        assert np.all(found.at_ns[:-2] >= sorted(times))


def test_times_that_tie_move_apart_by_a_nanosecond_and_others_stay(tmp_path: Path) -> None:
    ops = [invoke(0, time=50), ok(0, time=50), invoke(0, time=90), ok(0, time=700)]
    history = read(tmp_path, ops)

    assert history.transactions()["invoke_ns"].to_pylist() == [50, 90]
    assert history.transactions()["complete_ns"].to_pylist() == [51, 700]
    assert history.real_time


def test_times_that_go_back_are_not_believed(tmp_path: Path) -> None:
    ops = [invoke(0, time=50), ok(0, time=20), invoke(0, time=90), ok(0, time=700)]
    history = read(tmp_path, ops)

    assert history.transactions()["complete_ns"].to_pylist() == [1_000_000, 3_000_000]
    assert not history.real_time


def test_keys_that_are_no_integers_are_numbered_and_named(tmp_path: Path) -> None:
    steps = '[[:append :x 1] [:append "x" 1] [:append ":x" 1] [:append x 1] [:append %s 1]]'
    for number, first in ((5, 6), (-5, 0), ('"y"', 0)):
        text = "{:type :invoke :f :txn :process 0 :value " + steps % number + "}"
        history = read_jepsen(write(tmp_path, text))
        names = {row["key"]: row["name"] for row in history.keys.to_pylist()}

        assert [names[first + i] for i in range(4)] == [":x", "x", '":x"', "'x"]
        assert len(set(history.micro_ops()["key"].to_pylist())) == 5


def verdict_of(history: ImportedHistory) -> Any:
    splits = [history.micro_ops(number) for number in range(history.manifest.splits)]
    return judge(
        Source.of_tables(history.transactions(), *splits),
        setting=Setting(
            model="strict-serializable",
            declaration=history.manifest.declaration,
            min_ok=1,
        ),
        checkers=checkers_named(history.manifest.checkers),
        faults=history.faults(),
        events=history.events(),
    ).verdict


def test_a_strict_history_is_valid_and_one_that_lost_a_write_is_not(tmp_path: Path) -> None:
    ops = generated(400)
    assert verdict_of(read(tmp_path, ops)).outcome is Outcome.VALID

    lost = [
        *(invoke(0, APPEND), ok(0, APPEND), invoke(0, OTHER), ok(0, OTHER)),
        *(invoke(0), ok(0, [["r", 1, [2]]])),
    ]
    verdict = verdict_of(read(tmp_path, timed(lost)))
    assert verdict.outcome is Outcome.VIOLATION
    assert "lost-write" in verdict.anomalies


def test_registers_are_judged_as_those_recorded_here(tmp_path: Path) -> None:
    def wrote(process: int, f: str, value: Any, seen: Any = None) -> list[Op]:
        done = value if seen is None else seen
        return [register("invoke", process, f, value), register("ok", process, f, done)]

    fine = [*wrote(0, "write", 3), *wrote(1, "cas", [3, 4]), *wrote(2, "read", None, 4)]
    stale = [*wrote(0, "write", 3), *wrote(1, "cas", [3, 4]), *wrote(2, "read", None, 3)]

    assert verdict_of(read(tmp_path, timed(fine))).outcome is Outcome.VALID
    assert verdict_of(read(tmp_path, timed(stale))).outcome is Outcome.VIOLATION


def test_transactions_on_registers_are_judged_as_such_and_not_as_single_operations(
    tmp_path: Path,
) -> None:
    def ran(process: int, *steps: list[Any]) -> list[Op]:
        asked = [[f, key, value if f == "w" else None] for f, key, value in steps]
        return [invoke(process, asked), ok(process, list(steps))]

    fine = [*ran(0, ["w", "x", 1], ["w", "y", 1]), *ran(1, ["r", "x", 1], ["r", "y", 1])]
    skew = [*ran(0, ["w", "x", 1], ["w", "y", 1]), *ran(1, ["r", "x", 1], ["r", "y", None])]

    history = read(tmp_path, timed(fine))
    assert history.manifest.workload == "rw-register"
    assert verdict_of(history).outcome is Outcome.VALID
    found = verdict_of(read(tmp_path, timed(skew)))
    assert found.outcome is Outcome.VIOLATION
    assert "register 0" in found.anomalies["G-single-item"].examples[0].text
    with pytest.raises(UsageError, match="found transactions of up to 2: judge it as rw-register"):
        read_jepsen(write(tmp_path, json_lines(timed(fine))), workload="register")


@pytest.mark.parametrize("process", [1.5, "0", None])
def test_a_transaction_of_no_process_is_not_taken_for_the_nemesis(
    tmp_path: Path, process: object
) -> None:
    with pytest.raises(MalformedHistory, match="expected the process of a txn to be an integer"):
        read(tmp_path, [invoke(0), {**ok(0), "process": process}])


def test_what_is_concurrent_by_index_may_be_seen_in_either_order(tmp_path: Path) -> None:
    concurrent = [invoke(0, APPEND), invoke(1), ok(0, APPEND), ok(1, [["r", 1, []]])]
    later = [invoke(0, APPEND), ok(0, APPEND), invoke(1), ok(1, [["r", 1, []]])]
    rest = [invoke(2), ok(2)]

    same_time = [op | {"time": 7} for op in concurrent + rest]
    assert verdict_of(read(tmp_path, same_time)).outcome is Outcome.VALID
    same_time = [op | {"time": 7} for op in later + rest]
    assert verdict_of(read(tmp_path, same_time)).outcome is Outcome.VIOLATION


def test_the_small_history_is_what_both_formats_make_of_it(tmp_path: Path) -> None:
    assert verdict_of(read(tmp_path, small())).outcome is Outcome.VALID


@pytest.mark.parametrize("kind", ["info", "fail"])
@pytest.mark.parametrize("f", ["write", "read", "cas"])
def test_a_client_may_say_in_the_value_why_it_does_not_know_the_outcome(
    tmp_path: Path, f: str, kind: str
) -> None:
    asked = {"write": 2, "read": None, "cas": [1, 2]}[f]
    begun = [register("invoke", 0, "write", 1), register("ok", 0, "write", 1)]
    told = [*begun, register("invoke", 0, f, asked), register(kind, 0, f, "timed-out")]
    plain = [*begun, register("invoke", 0, f, asked), register(kind, 0, f, asked)]

    ours = read(tmp_path, told).micro_ops()
    assert ours.equals(read(tmp_path, plain).micro_ops())


def test_a_transaction_without_a_known_outcome_asked_what_its_invocation_did(
    tmp_path: Path,
) -> None:
    history = read(tmp_path, [invoke(0), info(0, "timed-out")])
    assert history.micro_ops()["f"].to_pylist() == [step[0] for step in READ]
