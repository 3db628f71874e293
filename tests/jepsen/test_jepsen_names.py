"""Keys that are no integers keep the names of their file in what is said of them, and values that
are no integers are refused with their line.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from checkers.engine.analyze import analyze
from harness.errors import MalformedHistory
from harness.history.run_directory import RunDirectory
from harness.importers.jepsen.imported_history import import_run
from harness.protocols.verdict import Verdict


def edn(*operations: tuple[str, str, str, str]) -> str:
    """One process after the other: f, what is invoked, how it ends, with which value."""
    lines = []
    for f, asked, type_, done in operations:
        for kind, value in (("invoke", asked), (type_, done)):
            at = len(lines)
            lines.append(f"{{:type :{kind}, :process 0, :f :{f}, :value {value}, :index {at}}}")
    return "\n".join(lines)


def judged(text: str, root: Path, *, workload: str | None = None) -> Verdict:
    path = root / "history.edn"
    root.mkdir(exist_ok=True)
    path.write_text(text)
    run = RunDirectory(root / "run")
    import_run(path, run, workload=workload)
    return analyze(run, executor="local")


def texts(verdict: Verdict) -> dict[str, str]:
    return {name: found.examples[0].text for name, found in verdict.anomalies.items()}


@pytest.mark.parametrize(
    ("key", "name"), [(":account", ":account"), ('"account"', "account"), ('":a"', '":a"')]
)
def test_lost_writes_and_cycles_name_the_key_as_the_file_does(
    key: str, name: str, tmp_path: Path
) -> None:
    history = edn(
        ("txn", f"[[:append {key} 1]]", "ok", f"[[:append {key} 1]]"),
        ("txn", f"[[:append {key} 2]]", "ok", f"[[:append {key} 2]]"),
        ("txn", f"[[:r {key} nil]]", "ok", f"[[:r {key} [1]]]"),
    )

    told = texts(judged(history, tmp_path))

    assert f"append to key {name} (value 2)" in told["lost-write"]
    assert f"T2 read key {name} without T1's append" in told["G-single-item-process"]
    assert "key 0" not in " ".join(told.values())


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('#uuid "a"', '"a"'),
        ('#uuid "a"', '#inst "a"'),
        ('#uuid "a"', '"#uuid \\"a\\""'),
        ("#my/key 5", "5"),
        ("#my/key :a", ":a"),
        ("#my/key :a", "#my/key a"),
        ("#my/key :a", '#my/key "a"'),
        ("#a #b 5", "#b #a 5"),
        ('"5"', "5"),
    ],
)
def test_unlike_keys_are_two_keys_and_named_apart(one: str, other: str, tmp_path: Path) -> None:
    history = edn(
        ("txn", f"[[:append {one} 1]]", "ok", f"[[:append {one} 1]]"),
        ("txn", f"[[:append {other} 1]]", "ok", f"[[:append {other} 1]]"),
        ("txn", f"[[:r {one} nil]]", "ok", f"[[:r {one} [9]]]"),
        ("txn", f"[[:r {other} nil]]", "ok", f"[[:r {other} [9]]]"),
    )

    verdict = judged(history, tmp_path)

    found = verdict.anomalies["garbage-read"].examples
    assert len({re.sub("^.* in key ", "", each.text) for each in found}) == 2


def test_a_tagged_integer_is_no_integer(tmp_path: Path) -> None:
    with pytest.raises(MalformedHistory, match="value of append, found '#my/int 5'"):
        judged(edn(("txn", "[[:append 1 #my/int 5]]", "ok", "[[:append 1 5]]")), tmp_path)


def test_findings_of_one_key_name_it(tmp_path: Path) -> None:
    history = edn(
        ("txn", "[[:append 5 1]]", "ok", "[[:append 5 1]]"),
        ("txn", "[[:append :x 1]]", "fail", "[[:append :x 1]]"),
        ("txn", "[[:r :x nil] [:r 5 nil]]", "ok", "[[:r :x [1]] [:r 5 [1 9]]]"),
    )

    told = texts(judged(history, tmp_path))

    assert "T2 read 1 in key :x, which T1 appended and then failed" in told["G1a"]
    assert "T2 read 9 in key 5, which nobody appended" in told["garbage-read"]


def test_findings_of_registers_name_them(tmp_path: Path) -> None:
    history = edn(
        ("write", '["limit" 1]', "ok", '["limit" 1]'),
        ("write", '["limit" 2]', "ok", '["limit" 2]'),
        ("read", '["limit" nil]', "ok", '["limit" 1]'),
        ("read", "[:other nil]", "ok", "[:other 7]"),
    )

    told = texts(judged(history, tmp_path))

    assert "register limit must have held" in told["nonlinearizable"]
    assert "found 7 in register :other, which nobody wrote" in told["garbage-read"]


def test_findings_of_a_bank_name_its_accounts(tmp_path: Path) -> None:
    history = edn(
        ("read", "nil", "ok", "{:alice 50 :bob 50}"),
        ("transfer", "{:from :alice :to :bob :amount 60}", "ok",
         "{:from :alice :to :bob :amount 60}"),
        ("read", "nil", "ok", "{:alice -10 :bob 50}"),
    )  # fmt: skip

    told = texts(judged(history, tmp_path))

    assert "read -10 in account :alice" in told["negative-balance"]
    assert "read 50 in account :bob" in told["wrong-balance"]


@pytest.mark.parametrize(
    ("f", "value", "found"),
    [
        ("txn", '[[:append 1 "one"]]', "the value of append, found 'one'"),
        ("txn", "[[:append 1 :one]]", "the value of append, found 'one'"),
        ("txn", '[[:r 1 ["one" "two"]]]', "an element of a list, found 'one'"),
        ("txn", "[[:w 1 :one]]", "the value of w, found 'one'"),
        ("write", '"one"', "the value of write, found 'one'"),
        ("write", '["x" "one"]', "the value of write, found 'one'"),
        ("read", ":one", "the value of read, found 'one'"),
        ("cas", '["one" "two"]', "a value of cas, found 'one'"),
        ("transfer", '{:from :a :to :b :amount "5"}', "the amount of a transfer, found '5'"),
    ],
)
def test_a_value_that_is_no_integer_is_refused_with_its_line(
    f: str, value: str, found: str, tmp_path: Path
) -> None:
    sound = edn(("write", "1", "ok", "1"))
    history = f"{sound}\n{edn((f, value, 'ok', value))}".replace(":index", ":i")

    with pytest.raises(MalformedHistory, match="line 3") as refused:
        judged(history, tmp_path)

    assert f"expected an integer of 64 bits for {found}" in str(refused.value)


def test_an_element_that_is_appended_twice_is_refused_with_the_name_of_its_key(
    tmp_path: Path,
) -> None:
    once = ("txn", '[[:append "x" 1]]', "ok", '[[:append "x" 1]]')

    with pytest.raises(MalformedHistory, match="element 1 is appended to key x again"):
        judged(edn(once, once), tmp_path)


@pytest.mark.parametrize(
    ("f", "value"),
    [
        ("txn", "[[:r 1 #my/seen [1]]]"),
        ("txn", "[[:r 1 #my.Seen [1]]]"),
        ("txn", "#my/steps [[:r 1 [1]]]"),
        ("txn", "[#my/step [:r 1 [1]]]"),
        ("txn", "[[:r #my/key [1] [1]]]"),
        ("read", "#my/tuple [1 5]"),
        ("read", "#my/balances {0 50}"),
        ("read", "#a #my.Balances {0 50}"),
        ("transfer", "#my/transfer {:from 0 :to 1 :amount 5}"),
    ],
)
def test_a_collection_behind_a_tag_is_another_value(f: str, value: str, tmp_path: Path) -> None:
    tag = re.escape(value[value.index("#") :].split()[0])
    asked = {"txn": "[[:r 1 nil]]", "read": "nil", "transfer": "{:from 0 :to 1 :amount 5}"}[f]
    with pytest.raises(MalformedHistory, match=f"expected .*found .*{tag}"):
        judged(edn((f, asked, "ok", value)), tmp_path)


def test_a_record_is_its_fields(tmp_path: Path) -> None:
    plain = edn(
        ("read", "nil", "ok", "{0 50, 1 50}"),
        ("transfer", "{:from 0 :to 1 :amount 60}", "ok", "{:from 0 :to 1 :amount 60}"),
        ("read", "nil", "ok", "{0 -10, 1 50}"),
    )
    records = plain.replace("{:type", "#jepsen.history.Op {:type").replace(
        "{:from", "#bank.core.Transfer{:from"
    )
    assert records.count("#bank") == 2
    assert records.count("#jepsen") == plain.count("{:type") > 0

    assert texts(judged(records, tmp_path / "records")) == texts(judged(plain, tmp_path / "plain"))


def test_an_operation_behind_a_tag_that_names_no_record_is_refused(tmp_path: Path) -> None:
    history = "#my/op " + edn(("txn", "[[:r 1 nil]]", "ok", "[[:r 1 []]]")).lstrip()
    with pytest.raises(MalformedHistory, match="expected an operation, which is a map, found"):
        judged(history, tmp_path)


def test_tags_of_an_error_and_of_a_nemesis_are_read_and_decide_nothing(tmp_path: Path) -> None:
    tags = " ".join(["#a"] * 60)
    deep = f"{tags} [" * 60 + "]" * 60
    history = "\n".join(
        [
            f"{{:type :info :process :nemesis :f :start :value {deep}}}",
            f"{{:type :info :process :nemesis :f :start :value {{{deep} #x [1]}}}}",
            "{:type :invoke :process 0 :f :txn :value [[:append 1 1]]}",
            f"{{:type :info :process 0 :f :txn :value [[:append 1 1]] :error {deep}}}",
        ]
    )
    assert judged(history, tmp_path).outcome.value in ("valid", "unknown")
