"""Markers of a campaign: what was reached, what never was, and what must be."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.campaigns.marker_counts import (
    MARKERS_FILE,
    MustReach,
    always_reached,
    dumps,
    load_must_reach,
    read_markers,
    table,
)
from harness.errors import MalformedHistory, UsageError
from harness.history.run_directory import RunDirectory

KNOWN = ("log cut", "snapshot sent", "vote lost")


def listed(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "must-reach"
    path.write_text(text)
    return path


def test_the_markers_of_all_nodes_of_a_run_are_added_up(tmp_path: Path) -> None:
    for node, counts in (("n1", {"log cut": 2}), ("n2", {"log cut": 1, "vote lost": 4})):
        directory = tmp_path / "nodes" / node
        directory.mkdir(parents=True)
        (directory / MARKERS_FILE).write_text(dumps(counts))

    assert read_markers(RunDirectory(tmp_path)) == {"log cut": 3, "vote lost": 4}


def test_a_run_whose_nodes_count_nothing_has_no_markers(tmp_path: Path) -> None:
    assert read_markers(RunDirectory(tmp_path)) == {}


def test_counts_that_are_none_are_named(tmp_path: Path) -> None:
    directory = tmp_path / "nodes" / "n1"
    directory.mkdir(parents=True)
    (directory / MARKERS_FILE).write_text('{"log cut": "often"}')

    with pytest.raises(MalformedHistory, match=r"markers\.json"):
        read_markers(RunDirectory(tmp_path))


def test_the_table_names_what_no_seed_and_what_few_seeds_reached() -> None:
    runs = [{"log cut": 1}] * 39 + [{"log cut": 5, "vote lost": 1}]

    assert list(table(runs, KNOWN)) == [
        "markers: 2 of 3 reached",
        "in few seeds: vote lost (1)",
        "never reached: snapshot sent",
    ]


def test_a_marker_that_must_be_reached_and_is_not_is_lacking() -> None:
    must = MustReach(seeds=2, markers=("log cut", "vote lost"))

    assert must.lacking([{"log cut": 1}, {}]) == ("vote lost",)
    assert must.lacking([{"log cut": 1}, {"vote lost": 1}]) == ()


def test_too_few_seeds_lack_nothing_that_can_be_told() -> None:
    assert MustReach(seeds=3, markers=("log cut",)).lacking([{}, {}]) is None


def test_only_what_nearly_every_seed_reaches_is_asked_of_others() -> None:
    runs = [{"log cut": 1, "vote lost": 1}] * 60 + [{"log cut": 1}] * 60 + [{}] * 2
    often = always_reached(runs, 24, 1e-5)

    assert often == ("log cut", "vote lost")
    assert always_reached(runs, 10, 1e-5) == ("log cut",)
    assert always_reached(runs[:2], 24, 1e-5) == ()  # two seeds tell too little of the next ones


def test_a_list_says_how_many_seeds_it_is_for(tmp_path: Path) -> None:
    path = listed(tmp_path, "# what CI asks for\n# seeds: 24\n\nlog cut\nvote lost\n")

    assert load_must_reach(path, KNOWN) == MustReach(seeds=24, markers=("log cut", "vote lost"))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("log cut\n", "expected one line '# seeds: N'"),
        ("# seeds: many\nlog cut\n", "expected one line '# seeds: N'"),
        ("# seeds: 3\nlog cutt\n", "no marker 'log cutt'"),
    ],
    ids=["no seeds", "no number", "unknown marker"],
)
def test_a_list_that_can_not_be_meant_is_refused(tmp_path: Path, text: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        load_must_reach(listed(tmp_path, text), KNOWN)


def test_a_list_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="can't read"):
        load_must_reach(tmp_path / "nowhere", KNOWN)
