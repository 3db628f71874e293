"""Jars are what the project knows, or they are refused by name."""

from __future__ import annotations

import logging
import shlex
from pathlib import Path

import attrs
import pytest

from clusters.ignite3 import jars
from clusters.ignite3.artifacts import CLIENT, NEEDED, NODE, Artifacts
from clusters.ignite3.jars import Jar, known, require_known
from clusters.ignite3.options import RELEASE
from harness.errors import HarnessError


@pytest.mark.parametrize("profile", [NODE, CLIENT])
def test_every_jar_of_the_usual_release_is_known_once_by_its_name(profile: str) -> None:
    found = known(RELEASE, profile)

    assert found is not None
    assert len({jar.file for jar in found}) == len(found) > 30
    assert all(jar.file.startswith(f"{jar.artifact}-{jar.version}") for jar in found)


def test_what_starts_a_node_is_known_by_its_coordinates() -> None:
    coordinates = {(jar.group, jar.artifact) for jar in known(RELEASE, NODE) or ()}

    assert ("org.apache.ignite", NEEDED[0]) in coordinates
    assert ("org.slf4j", NEEDED[1]) in coordinates


def test_a_release_without_sums_is_not_known() -> None:
    assert known("3.2.0-mine", NODE) is None


def test_a_line_that_is_no_sum_of_a_jar_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"1-{NODE}.sha256").write_text(f"{'0' * 64}  ../a/b/c/d.jar\n")
    monkeypatch.setattr(jars, "SUMS_DIR", tmp_path)

    with pytest.raises(HarnessError, match=r"1-node\.sha256: expected a sum and a jar's path"):
        known("1", NODE)


ONE = Jar(group="a.b", artifact="one", version="1", file="one-1.jar", sha256="1" * 64)
TWO = attrs.evolve(ONE, artifact="two", file="two-1.jar", sha256="2" * 64)
ALL = [(ONE.sha256, ONE.file), (TWO.sha256, TWO.file)]


@pytest.mark.parametrize(
    ("sums", "said"),
    [
        ([*ALL[:1], ("3" * 64, TWO.file)], r"two-1\.jar: expected 2+ as checked in \(got 3+\)"),
        (ALL[1:], r"one-1\.jar: expected 1+ as checked in \(got no file\)"),
        ([*ALL, ("4" * 64, "x.jar")], r"x\.jar: expected no such jar as checked in \(got 4+\)"),
    ],
)
def test_a_jar_that_differs_is_missing_or_is_one_more_is_named(
    sums: list[tuple[str, str]], said: str, tmp_path: Path
) -> None:
    require_known(tmp_path, ALL, [TWO, ONE])

    with pytest.raises(HarnessError, match=said):
        require_known(tmp_path, sums, [ONE, TWO])


def maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Maven that brings one jar with the right name; where its arguments are kept."""
    said, tool = tmp_path / "said", tmp_path / "bin" / "mvn"
    tool.parent.mkdir()
    tool.write_text(
        f'#!/bin/sh\necho "$@" > {shlex.quote(str(said))}\n'
        "for into; do :; done; into=${into#-DoutputDirectory=}\n"
        'mkdir -p "$into" && echo forged > "$into/ignite-runner-3.1.0.jar"\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return said


def test_what_maven_brings_of_a_known_release_is_refused_where_it_differs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = maven(tmp_path, monkeypatch)

    with pytest.raises(HarnessError, match="as checked in"):
        Artifacts().jars()

    assert "--strict-checksums" in said.read_text()
    assert not Artifacts().library.exists()


def test_what_maven_brings_of_another_release_is_taken_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    maven(tmp_path, monkeypatch)
    other = Artifacts("3.2.0")

    with caplog.at_level(logging.WARNING):
        assert other.jars() == other.library

    assert "no sums of 3.2.0 are checked in" in caplog.text


def test_what_was_kept_before_its_sums_were_known_is_recognized_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maven(tmp_path, monkeypatch)
    kept = Artifacts("3.2.0").jars()
    kept.parent.rename(kept.parent.with_name(RELEASE))

    with pytest.raises(HarnessError, match="as checked in"):
        Artifacts().jars()
