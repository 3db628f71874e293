"""Banks as Jepsen records them: transfers, reads of a map of balances, what is wrong with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from jepsen_files import Op, json_lines, register, timed

from checkers.engine.analyze import analyze
from harness.errors import MalformedHistory, UsageError
from harness.history.run_directory import BankRules, RunDirectory
from harness.importers.jepsen.imported_history import import_run, read_jepsen
from harness.protocols.verdict import Verdict, encode


def transfer(process: int, payer: Any, payee: Any, amount: int, type_: str = "ok") -> list[Op]:
    value = {"from": payer, "to": payee, "amount": amount}
    begun = register("invoke", process, "transfer", value)
    return [begun, register(type_, process, "transfer", value)]


def read(process: int, balances: Any, type_: str = "ok") -> list[Op]:
    return [
        register("invoke", process, "read", None),
        register(type_, process, "read", balances),
    ]


def edn(value: Any) -> str:
    """As Jepsen prints it; words are keywords, and keys of maps are as they are."""
    match value:
        case None:
            return "nil"
        case str():
            return f":{value}"
        case list():
            return f"[{' '.join(map(edn, value))}]"
        case dict():
            return "{" + ", ".join(f"{edn(k)} {edn(v)}" for k, v in value.items()) + "}"
        case _:
            return str(value)


FIRST = read(0, {0: 50, 1: 50, 2: 0})
GOOD = [
    *FIRST,
    *transfer(0, 0, 1, 5),
    *read(1, {0: 45, 1: 55, 2: 0}),
    *transfer(1, 0, 2, 7, "fail"),
    *transfer(2, 1, 2, 10, "info"),
    *read(0, {0: 45, 1: 45, 2: 10}),
    *read(0, {0: 45, 1: 45, 2: 10}),
]


def judged(
    tmp_path: Path, ops: list[Op], *, bank: BankRules | None = None, model: str | None = None
) -> Verdict:
    file = tmp_path / "history.edn"
    file.write_text("\n".join(map(edn, timed(ops))) + "\n")
    run = RunDirectory(tmp_path / f"run-{len(list(tmp_path.iterdir()))}")
    import_run(file, run, bank=bank)
    return analyze(run, executor="local", model=model)


def names(found: Verdict) -> set[str]:
    return {*found.anomalies, *found.observed}


def text(found: Verdict, name: str) -> str:
    return {**found.anomalies, **found.observed}[name].examples[0].text


def test_a_bank_is_known_by_its_operations_and_judged_by_what_they_say(tmp_path: Path) -> None:
    found = judged(tmp_path, GOOD)

    assert found.outcome == "valid"
    assert names(found) == set()
    assert found.statistics["bank"] == {
        "banks": 1,
        "accounts": 3,
        "whole_reads": 4,
        "wrong_reads": 0,
        "transfers": 1,
    }
    total, claim = found.reasons
    assert total.startswith("the bank holds 100 together, as T0 read first")
    assert "that the store is strict-serializable is not claimed" in claim


def test_json_has_no_integers_as_keys_and_means_the_same(tmp_path: Path) -> None:
    file = tmp_path / "history.json"
    lines = [op | {"value": _as_json(op["value"])} for op in timed(GOOD)]
    file.write_text(json_lines(lines))
    in_edn = tmp_path / "history.edn"
    in_edn.write_text("\n".join(map(edn, timed(GOOD))))

    history, other = read_jepsen(file), read_jepsen(in_edn)

    assert history.manifest.workload == "bank"
    assert history.micro_ops().equals(other.micro_ops())
    steps = [(s["f"], s["key"], s["value"]) for s in history.micro_ops().to_pylist()]
    assert ("add", 0, -5) in steps
    assert ("add", 1, 5) in steps
    assert ("r", 2, 10) in steps


def _as_json(value: Any) -> Any:
    if isinstance(value, dict) and "from" not in value:
        return {str(key): part for key, part in value.items()}
    return value


WRONG: list[tuple[dict[Any, Any], set[str], str]] = [
    ({0: 45, 1: 45, 2: 9}, {"bank-total", "wrong-balance"}, "held 99 instead of 100"),
    ({0: 45, 1: 45, 2: None}, {"bank-total", "nil-balance"}, "nothing in 1 of 3 accounts"),
    ({0: 45, 1: 65, 2: -10}, {"negative-balance", "wrong-balance"}, "read -10 in account 2"),
    ({0: 45, 1: 45, 2: 10, 9: 0}, {"unexpected-key"}, "account 9, which was not in the first"),
    ({0: 50, 1: 50, 2: 0}, {"wrong-balance"}, "T6 read 50 in account 0, where T5 had read 45"),
    ({0: 99, 1: 1, 2: 0}, {"wrong-balance"}, "T6 read 99 in account 0"),
    ({}, {"bank-total", "nil-balance"}, "held 0 instead of 100"),
]


@pytest.mark.parametrize(("balances", "expected", "told"), WRONG)
def test_a_read_that_no_bank_can_show_is_named(
    tmp_path: Path, balances: dict[Any, Any], expected: set[str], told: str
) -> None:
    found = judged(tmp_path, [*GOOD[:-2], *read(0, balances)])

    assert found.outcome == "violation"
    assert names(found) == expected
    assert any(told in text(found, name) for name in expected)


def test_a_stale_read_is_one_only_if_it_began_after_the_transfer_was_acknowledged(
    tmp_path: Path,
) -> None:
    stale = [*FIRST, *transfer(0, 0, 1, 5), *read(1, {0: 50, 1: 50, 2: 0})]
    found = judged(tmp_path, stale)

    assert found.outcome == "violation"
    assert text(found, "wrong-balance") == (
        "wrong balance: T2 read 50 in account 0, where T0 had read 50 before it and 1 acknowledged "
        "transfer in between make 45"
    )
    beside = [*FIRST, stale[4], stale[2], stale[3], stale[5]]
    assert names(judged(tmp_path, beside)) == set()
    assert judged(tmp_path, stale, model="serializable").outcome == "valid"


def test_a_transfer_that_was_seen_too_early_or_never_ended_leaves_a_range(tmp_path: Path) -> None:
    begun, ended = transfer(0, 0, 1, 5)
    done = transfer(1, 2, 0, 0)
    for seen, count in ((50, 0), (45, 0), (44, 1)):
        after = read(2, {0: seen, 1: 100 - seen, 2: 0})
        found = judged(tmp_path, [*FIRST, *done, begun, *after, ended])
        assert len(found.anomalies) == count, seen
        crashed = judged(tmp_path, [*FIRST, *done, begun, *after])
        assert len(crashed.anomalies) == count, seen


def test_one_wrong_read_is_told_once_and_a_transfer_that_got_lost_too(tmp_path: Path) -> None:
    ops = [*GOOD, *read(0, {0: 44, 1: 46, 2: 10}), *GOOD[-2:], *GOOD[-2:]]

    found = judged(tmp_path, ops).anomalies["wrong-balance"]

    assert {example.txns for example in found.examples} == {(6, 7)}
    assert found.count == 2  # accounts


def test_what_the_history_does_not_tell_of_a_bank_can_be_said(tmp_path: Path) -> None:
    owing = [*FIRST, *transfer(0, 2, 0, 3), *read(1, {0: 53, 1: 50, 2: -3})]

    assert names(judged(tmp_path, owing)) == {"negative-balance"}
    allowed = judged(tmp_path, owing, bank=BankRules(negative_balances=True))
    assert allowed.outcome == "valid"
    other = judged(tmp_path, GOOD, bank=BankRules(total=99))
    assert other.anomalies["bank-total"].count == 4
    with pytest.raises(UsageError, match="found reads and writes of registers"):
        judged(tmp_path, read(0, 5), bank=BankRules(total=99))


def test_a_bank_in_which_nothing_moved_or_nothing_was_read_proves_nothing(tmp_path: Path) -> None:
    for ops, why in (
        (FIRST, "no transfer was acknowledged"),
        (transfer(0, 0, 1, 5), "never read"),
        ([*transfer(0, 0, 1, 5), *read(0, None)], "never read"),
    ):
        found = judged(tmp_path, ops)
        assert found.outcome == "unknown"
        assert any(why in reason for reason in found.reasons)


def test_a_client_may_say_in_the_value_why_it_refused_a_transfer(tmp_path: Path) -> None:
    begun, ended = transfer(0, 0, 1, 60, "fail")

    refused = [*FIRST, begun, ended | {"value": ["negative", 0, -10]}, *GOOD[2:]]

    assert judged(tmp_path, refused).outcome == "valid"
    with pytest.raises(MalformedHistory, match=r"expected \{from, to, amount\}"):
        judged(tmp_path, [*FIRST, begun, ended | {"type": "ok", "value": ["negative", 0, -10]}])


@pytest.mark.parametrize(
    ("ops", "why"),
    [
        (transfer(0, 0, 1, 1 << 60), "amount of a transfer of at most"),
        (read(0, {0: 5, 1: [3]}), "for a balance"),
        ([*FIRST, *read(0, 5)], "reads and writes of registers, but transfers"),
        ([register("invoke", 0, "transfer", None)], "does not say what it asks for"),
    ],
)
def test_what_is_no_bank_is_refused(tmp_path: Path, ops: list[Op], why: str) -> None:
    with pytest.raises(MalformedHistory, match=why):
        judged(tmp_path, ops)


def test_accounts_may_be_names_and_a_failed_read_names_none(tmp_path: Path) -> None:
    ops = [
        *read(0, None, "fail"),
        *read(0, {"a": 3, "b": 4}),
        *transfer(0, "a", "b", 2),
        *read(0, {"a": 1, "b": 6}),
    ]
    file = tmp_path / "history.edn"
    file.write_text("\n".join(map(edn, timed(ops))))

    history = read_jepsen(file)

    assert set(history.keys["name"].to_pylist()) == {":a", ":b"}
    assert set(history.micro_ops()["key"].to_pylist()) == set(history.keys["key"].to_pylist())
    assert judged(tmp_path, ops).outcome == "valid"


@pytest.mark.parametrize("splits", [1, 3])
def test_the_split_of_accounts_changes_nothing(tmp_path: Path, splits: int) -> None:
    from checkers.engine.analyze import checkers_named, judge
    from checkers.engine.source import Source
    from harness.protocols.setting import Setting

    file = tmp_path / "history.edn"
    file.write_text("\n".join(map(edn, timed([*GOOD, *read(0, {0: 99, 1: 1, 2: 0, 8: 1, 7: 2})]))))
    found = []
    for count in (splits, 4):
        history = read_jepsen(file, splits=count)
        source = Source.of_tables(
            history.transactions(), *(history.micro_ops(n) for n in range(count))
        )
        verdict = judge(
            source,
            setting=Setting(
                model="strict-serializable",
                declaration=history.manifest.declaration,
                planned=False,
            ),
            checkers=checkers_named(("bank",)),
            faults=history.faults(),
            events=history.events(),
        ).verdict
        found.append(encode(verdict))

    assert found[0] == found[1]
    assert b"account 7, which" in found[0]
