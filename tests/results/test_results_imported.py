"""The report of a history that Jepsen recorded: what it is, its own times, its own keys."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_results_report import Elements, assert_inert

from checkers.engine.analyze import analyze
from harness.errors import MalformedHistory
from harness.history.run_directory import RunDirectory
from harness.importers.jepsen.imported_history import import_run
from harness.protocols.verdict import encode
from results.report.render import write_report

HISTORY = """\
{:type :invoke, :f :txn, :value [[:append KEY 1]], :process 0TIME12, :index 0}
{:type :ok, :f :txn, :value [[:append KEY 1]], :process 0TIME15, :index 1}
{:type :invoke, :f :txn, :value [[:r KEY nil]], :process 1TIME22, :index 2}
{:type :ok, :f :txn, :value [[:r KEY [SEEN]]], :process 1TIME25, :index 3}
{:type :info, :f :kill, :value nil, :process :nemesisTIME26, :index 4}
{:type :invoke, :f :txn, :value [[:append KEY 2]], :process 1TIME27, :index 5}
"""


def report(scratch: Path, *, key: str = "3", time: str = "", unit: str = "", seen: str = "") -> str:
    """The page about a history; ``unit`` is what stands behind the digits of its times."""
    text = HISTORY.replace("KEY", key).replace("SEEN", seen)
    lines = []
    for line in text.splitlines():
        head, _, tail = line.partition("TIME")
        digits, _, index = tail.partition(",")
        told = f", :time {digits}{unit}" if time else ""
        lines.append(f"{head}{told},{index}")
    path = scratch / "recorded.edn"
    path.write_text("\n".join(lines) + "\n")
    run = RunDirectory(scratch / "run")
    import_run(path, run)
    verdict = analyze(run, executor="local")
    run.verdict.write_bytes(encode(verdict))
    return write_report(run).read_text()


@pytest.mark.parametrize(
    ("unit", "told"), [("", "ns"), ("000", "µs"), ("000000", "ms"), ("000000000", "s")]
)
def test_times_are_told_in_the_unit_that_their_span_asks_for(tmp_path, unit, told) -> None:
    page = Elements(report(tmp_path, time="yes", unit=unit))

    assert f"invoked ({told})" in page.text
    assert "could not be drawn" not in page.text
    assert f"p50 ({told if told != 's' else 'ms'})" in page.text
    assert_inert(page)


def test_a_history_without_times_is_told_by_index_and_not_plotted(tmp_path) -> None:
    page = Elements(report(tmp_path))

    assert "invoked (index)" in page.text
    assert "there is nothing to plot" in page.text
    assert "what counts is the index" in page.text
    assert "0.000" not in page.text
    assert "0.00" not in page.text


def test_the_header_says_what_was_imported_and_offers_no_plan(tmp_path) -> None:
    page = Elements(report(tmp_path, time="yes"))

    assert (
        "list-append, recorded by Jepsen and imported from recorded.edn: 6 records, " in page.text
    )
    told = "1 of them without a completion, 1 of a nemesis or another that is no client."
    assert told in page.text
    for foreign in ("nodes (", "clients for", "the same plan", "No faults were", "Store events"):
        assert foreign not in page.text
    assert "firedrill check ./run" in page.text


def test_keys_that_were_no_integers_keep_their_names(tmp_path) -> None:
    page = Elements(report(tmp_path, key='"<b>7"', time="yes"))

    assert 'append "<b>7" 1' in page.text or "append <b>7 1" in page.text
    assert "in the file" in page.text
    assert_inert(page)


def test_integer_keys_need_no_names(tmp_path) -> None:
    assert "in the file" not in Elements(report(tmp_path, time="yes")).text


def test_a_valid_history_shows_no_anomaly(tmp_path) -> None:
    page = Elements(report(tmp_path, time="yes", seen="1"))

    assert page.named("header")[0]["class"] == "outcome-valid"
    assert "Anomalies" not in page.text


def test_names_that_are_not_what_was_sealed_are_refused(tmp_path) -> None:
    report(tmp_path, key=":x")
    run = RunDirectory(tmp_path / "run")
    (run.history / "keys.parquet").write_bytes(b"PAR1")

    with pytest.raises(MalformedHistory, match=r"keys\.parquet.*it is not what was sealed"):
        write_report(run)
