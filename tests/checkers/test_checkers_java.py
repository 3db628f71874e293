"""Which Java Spark gets: found by trying."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkers.engine.spark import java
from harness.errors import HarnessError


def fake_java(home: Path, version: str) -> Path:
    """A ``java`` that tells ``version`` the way a JVM does, and its arguments otherwise."""
    binary = home / "bin" / "java"
    binary.parent.mkdir(parents=True)
    binary.write_text(
        '#!/bin/sh\nif [ "$1" = -version ]; then\n'
        f"  echo 'openjdk version \"{version}\" 2025-04-15' >&2\n"
        'else\n  for argument do echo "$argument"; done\nfi\n'
    )
    binary.chmod(0o755)
    return home


@pytest.mark.parametrize(
    ("version", "accepted"), [("17.0.15", 17), ("21", 21), ("25.0.2", 25), ("1.8.0_402", None)]
)
def test_a_runtime_is_taken_from_17_on(
    version: str, accepted: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "_candidates", lambda: [("JAVA_HOME", fake_java(tmp_path, version))])

    choice = java.find_java()

    assert choice.version == accepted
    assert (choice.home == tmp_path) == (accepted is not None)
    assert ("is Java 8" in choice.reason) == (accepted is None)


def test_java_home_comes_before_what_is_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "mine", "21.0.1")))
    monkeypatch.setenv("PATH", str(fake_java(tmp_path / "other", "17.0.1") / "bin"))

    assert java.find_java().origin == "JAVA_HOME"


def test_without_any_java_the_error_says_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(java, "_candidates", lambda: [("JAVA_HOME", tmp_path)])

    with pytest.raises(
        HarnessError, match=r"no Java 17 or newer .*firedrill-lab\[jre\].*--executor"
    ):
        java.java_binary(java.find_java())
    assert java.main() == 1
