"""Keys that are no integers keep the names of their file in what is said of them, and values that
are no integers are refused with their line.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from checkers.engine.analyze import analyze
from harness.errors import MalformedHistory
from harness.importers.jepsen.imported_history import import_run
from harness.protocols.verdict import Verdict
from harness.run.directory import RunDirectory


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
