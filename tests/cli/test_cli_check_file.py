"""``firedrill check FILE``: histories that Jepsen recorded, judged from the command line."""

from __future__ import annotations

import gzip
import itertools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FIREDRILL = Path(sys.executable).with_name("firedrill")
RUNS = Path(__file__).parents[1] / "evidence" / "runs"
APPEND = "{:type %s, :f :txn, :value [[:append 3 1]], :process 0, :time %d, :index %d}"
READ = "{:type %s, :f :txn, :value [[:r 3 %s]], :process 1, :time %d, :index %d}"
SEEN = "[1]"
MISSED = "[]"
FRACTURED = """
{{:type :invoke, :f :txn, :value [[:append 1 1] [:append 2 1]], :process 0, :index 0}}
{{:type :invoke, :f :txn, :value [[:r 1 nil] [:r 2 nil]], :process 1, :index 1}}
{{:type :ok, :f :txn, :value [[:append 1 1] [:append 2 1]], :process 0, :index 2}}
{{:type :ok, :f :txn, :value [[:r 1 [1]] [:r 2 {second}]], :process 1, :index 3}}
"""
"""A transaction that wrote two keys, and one beside it that saw the first of them."""


def edn(read: str) -> str:
    """An append that was acknowledged before a read of its key began."""
    lines = [
        APPEND % (":invoke", 12, 0),
        APPEND % (":ok", 15, 1),
        READ % (":invoke", "nil", 22, 2),
        READ % (":ok", read, 25, 3),
    ]
    return "\n".join(lines) + "\n"


def as_json_lines(text: str) -> str:
    """The same in the other notation."""
    words = {"invoke": "invoke", "ok": "ok", "txn": "txn", "append": "append", "r": "r"}
    for word in ("type", "f", "value", "process", "time", "index"):
        text = text.replace(f":{word} ", f'"{word}": ')
    for word in words:
        text = text.replace(f":{word}", f'"{word}"')
    text = text.replace("nil", "null").replace('["append" 3 1]', '["append", 3, 1]')
    return text.replace('["r" 3 ', '["r", 3, ')


def check(path: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [FIREDRILL, "check", path, "--executor", "local", "--runs-dir", path.parent / "s", *flags],
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize("notation", [str, as_json_lines])
@pytest.mark.parametrize(("read", "code"), [(SEEN, 0), (MISSED, 1)])
def test_a_history_file_is_judged_by_what_it_holds(tmp_path, notation, read, code) -> None:
    path = tmp_path / "history.any"
    path.write_text(notation(edn(read)))

    done = check(path, "--json")

    assert done.returncode == code, done.stderr
    verdict = json.loads(done.stdout)
    assert ("lost-write" in verdict["anomalies"]) == bool(code)
    assert verdict["model"] == "strict-serializable"
    assert not (tmp_path / "s").exists(), "--json leaves nothing behind"


def test_what_breaks_no_promise_of_the_model_is_only_observed(tmp_path) -> None:
    path = tmp_path / "history.edn"
    path.write_text(edn(MISSED))

    verdict = json.loads(check(path, "--json", "--model", "serializable").stdout)

    assert verdict["outcome"] == "valid"
    assert verdict["anomalies"] == {}
    assert "lost-write" in verdict["observed"]


def test_an_imported_history_becomes_a_run_with_a_report(tmp_path) -> None:
    path = tmp_path / "history.edn.gz"
    path.write_bytes(gzip.compress(edn(MISSED).encode()))

    done = check(path)

    assert done.returncode == 1, done.stderr
    (run,) = (tmp_path / "s").glob("2*")
    assert "lost write" in (run / "report.html").read_text()
    again = check(run)
    assert again.returncode == 1, again.stderr


def test_a_file_that_is_no_history_is_refused_with_its_line(tmp_path) -> None:
    path = tmp_path / "history.edn"
    path.write_text(edn(SEEN).replace(":index 2", ":index 0"))

    done = check(path)

    assert done.returncode == 254
    assert "line 3" in done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "s").glob("2*")) == []


def test_an_unknown_workload_or_model_is_refused_by_name(tmp_path) -> None:
    path = tmp_path / "history.edn"
    path.write_text(edn(SEEN))

    for flags, named in ((("--workload", "lis"), "'lis'"), (("--model", "foo"), "'foo'")):
        done = check(path, "--no-report", *flags)
        assert done.returncode == 254
        assert named in done.stderr


@pytest.mark.parametrize("model", ["", "foo", "serialisable"])
def test_a_model_that_is_none_is_refused_before_the_history_is_read(tmp_path, model) -> None:
    path = tmp_path / "history.edn"
    path.write_text(edn(SEEN))

    done = check(path, "--model", model)

    assert done.returncode == 254
    assert f"unknown consistency model {model!r}" in done.stderr
    assert "imported" not in done.stderr
    assert not (tmp_path / "s").exists()


def test_a_model_that_anomalies_do_not_define_is_proven_by_a_stronger_one_or_unknown(
    tmp_path,
) -> None:
    path = tmp_path / "history.edn"
    model = "parallel-snapshot-isolation"

    path.write_text(FRACTURED.format(second="[1]"))
    assert check(path, "--json", "--model", model).returncode == 0
    path.write_text(FRACTURED.format(second="[]"))
    done = check(path, "--json", "--model", model)

    assert done.returncode == 2, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["outcome"] == "unknown"
    assert "G-single-item" in verdict["observed"]
    assert any("whether parallel-snapshot-isolation holds" in why for why in verdict["reasons"])


def test_findings_name_keys_as_their_file_does(tmp_path) -> None:
    path = tmp_path / "history.edn"
    for key, named in ((":account", ":account"), ('"account"', "account"), ("3", "3")):
        path.write_text(
            edn(MISSED).replace("[:append 3", f"[:append {key}").replace(":r 3", f":r {key}")
        )

        done = check(path, "--no-report")

        assert done.returncode == 1, done.stderr
        assert f"append to key {named} (value" in done.stdout
        assert "key 0" not in done.stdout


def test_a_history_in_which_nothing_could_go_wrong_is_unknown(tmp_path) -> None:
    path = tmp_path / "history.edn"
    for steps in ("", "[:r 1 nil]"):
        ends = ((":invoke", 0), (":ok", 0), (":invoke", 1), (":ok", 1))
        path.write_text(
            "".join(
                f"{{:type {end}, :f :txn, :value [{steps}], :process {who}}}\n" for end, who in ends
            )
        )

        done = check(path, "--json")

        assert done.returncode == 2, done.stdout
        assert "nothing was tested" in done.stdout


def test_a_small_history_is_judged_in_process_unless_spark_is_asked_for(tmp_path) -> None:
    path = tmp_path / "history.edn"
    path.write_text(edn(SEEN))

    done = check(path, "--json", "--executor", "auto")

    assert done.returncode == 0, done.stderr
    assert "(local: 2 transactions are few; --executor spark judges on Spark)" in done.stderr


@pytest.mark.spark
def test_a_run_whose_path_is_relative_is_judged_on_spark(tmp_path, monkeypatch) -> None:
    shutil.copytree(RUNS / "sim-valid", tmp_path / "run")
    monkeypatch.chdir(tmp_path)

    done = check(Path("run"), "--no-report", "--executor", "spark")

    assert done.returncode == 0, done.stderr
    assert "(spark)" in done.stderr
    assert "judging again" not in done.stderr


def crowd() -> str:
    """Compare-and-sets between any two of five values that are open together, of which every order
    must be tried, then reads that none explains.
    """
    swaps = [*enumerate(itertools.permutations(range(5), 2))]
    lines = ["{:type :invoke, :f :write, :value 0, :process 99}"]
    lines += ["{:type :ok, :f :write, :value 0, :process 99}"]
    for type_ in ("invoke", "ok"):
        lines += [
            f"{{:type :{type_}, :f :cas, :value [{old} {new}], :process {process}}}"
            for process, (old, new) in swaps
        ]
    for seen in (3, 1, 2, 0):
        lines += ["{:type :invoke, :f :read, :value nil, :process 99}"]
        lines += [f"{{:type :ok, :f :read, :value {seen}, :process 99}}"]
    return "\n".join(lines) + "\n"


def test_the_limit_of_the_search_can_be_raised_and_the_verdict_says_how(tmp_path) -> None:
    path = tmp_path / "history.edn"
    path.write_text(crowd())

    low = check(path, "--no-report", "--search-limit", "10")
    higher = check(path, "--no-report", "--search-limit", "20000")

    assert low.returncode == 2, low.stdout
    assert "more than 10 configurations" in low.stdout
    assert "--search-limit" in low.stdout
    assert "more than 20000 configurations" in higher.stdout


@pytest.mark.parametrize(("read", "code"), [(SEEN, 0), (MISSED, 1)])
def test_a_history_may_come_from_stdin(tmp_path, read, code) -> None:
    with subprocess.Popen(
        [FIREDRILL, "check", "-", "--no-report", "--executor", "local", "--runs-dir", tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        told, _ = process.communicate(gzip.compress(edn(read).encode()), timeout=60)

    assert process.returncode == code
    assert told.endswith(b": -\n")
    assert [*tmp_path.iterdir()] == []


def test_what_is_refused_of_stdin_is_told_as_stdin(tmp_path) -> None:
    done = subprocess.run(
        [FIREDRILL, "check", "-", "--no-report", "--runs-dir", tmp_path],
        input=edn(SEEN).replace(":index 2", ":index 0"),
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 254
    assert done.stderr.startswith("firedrill: - at line 3: ")


def test_a_history_is_judged_as_what_it_is_and_what_it_lacks_can_be_said(tmp_path) -> None:
    appends, bank = tmp_path / "appends.edn", tmp_path / "bank.edn"
    appends.write_text(edn(SEEN))
    operation = "{:type %s, :f %s, :value %s, :process 0}\n"
    moved = "{:from 0, :to 1, :amount 5}"
    bank.write_text(
        operation % (":invoke", ":transfer", moved)
        + operation % (":ok", ":transfer", moved)
        + operation % (":invoke", ":read", "nil")
        + operation % (":ok", ":read", "{0 -5, 1 5}")
    )

    as_register = check(appends, "--workload", "register")
    assert as_register.returncode == 254
    assert "found appends and reads of lists" in as_register.stderr
    assert check(appends, "--bank-total", "3").returncode == 254
    owing = check(bank, "--json")
    assert [*json.loads(owing.stdout)["anomalies"]] == ["negative-balance"]
    other = check(bank, "--json", "--negative-balances", "--bank-total", "7")
    assert [*json.loads(other.stdout)["anomalies"]] == ["bank-total"]
    assert check(bank, "--negative-balances", "--no-report").returncode == 0


def test_a_model_is_known_in_any_case_and_the_nearest_name_is_told(tmp_path) -> None:
    path = tmp_path / "history.edn"
    path.write_text(edn(SEEN))

    for model in ("Serializable", "linearizable"):
        done = check(path, "--no-report", "--model", model)
        assert done.returncode == 0, done.stderr
        assert done.stdout.endswith(f": {path}\n"), "not a directory that is gone"
    assert "did you mean 'serializable'?" in check(path, "--model", "serialisable").stderr


def test_a_history_is_parsed_in_the_process_that_has_limits(tmp_path) -> None:
    path = tmp_path / "history.edn"
    path.write_text(edn(SEEN))
    code = (
        "import sys\n"
        "from cli.main import execute\n"
        f"code = execute(['check', {str(path)!r}, '--json'])\n"
        "sys.exit(code or 'harness.importers.jepsen.edn' in sys.modules)"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["outcome"] == "valid"


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        (("--time-limit", "0.05s"), "it came to no end within 50 ms (--time-limit or "),
        (("--memory-mib", "60"), "its process ended with exit code"),
    ],
)
def test_what_can_not_be_imported_within_the_limits_is_refused_by_name_and_leaves_nothing(
    tmp_path, limit, why
) -> None:
    path = tmp_path / "history.edn"
    path.write_text(edn(SEEN))

    done = check(path, *limit)

    assert done.returncode == 254, done.stderr
    assert f"firedrill: {path}: it was not imported: {why}" in done.stderr
    assert list((tmp_path / "s").iterdir()) == []
    assert check(path, "--time-limit", "1h", "--memory-mib", "4000").returncode == 0


@pytest.mark.parametrize("flags", [("--time-limit", "0"), ("--memory-mib", "-1")])
def test_limits_that_are_none_are_misuse(tmp_path, flags) -> None:
    path = tmp_path / "history.edn"
    path.write_text(edn(SEEN))

    done = check(path, *flags)

    assert done.returncode == 254
    assert flags[0] in done.stderr


def test_the_terminal_says_what_a_history_held_beside_its_outcome(tmp_path) -> None:
    path = tmp_path / "history.edn"
    path.write_text(edn(MISSED))

    *_, driven, last = check(path, "--no-report").stdout.splitlines()

    assert driven.startswith("list-append, imported: 2 ok, 0 fail, 0 info; p50 3 ns, p99 3 ns")
    assert driven.endswith("; no faults")
    assert last.startswith("VIOLATION: ")


def test_the_operations_that_prove_an_anomaly_are_told_by_their_indices_in_the_file(
    tmp_path,
) -> None:
    path = tmp_path / "history.edn"
    path.write_text(edn(MISSED).replace(":index 3}", ":index 17}"))

    said = check(path, "--no-report").stdout

    assert "    in the file T0 is :index 0 and 1, T1 is :index 2 and 17\n" in said


@pytest.mark.parametrize("executor", ["local", pytest.param("spark", marks=pytest.mark.spark)])
def test_what_each_stage_took_is_told_on_demand(tmp_path: Path, executor: str) -> None:
    (tmp_path / "history.edn").write_text(edn("[5 7]"))

    plain = check(tmp_path / "history.edn", "--json", "--executor", executor)
    done = check(tmp_path / "history.edn", "--json", "--executor", executor, "--explain-cost")

    assert done.stdout == plain.stdout
    assert "cost of" not in plain.stderr
    told = [line for line in done.stderr.splitlines() if "cost of KEY" in line]
    assert len(told) == 1, done.stderr
    assert "ten times the history: about" in told[0]
