"""What set-up made on this machine is found again, checked, and named where it is missing."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from clusters.ignite3 import artifacts, doctor, image, settings
from clusters.ignite3.artifacts import NotPrepared
from harness import plugins
from harness.errors import HarnessError


def test_a_machine_that_was_not_prepared_is_told_what_prepares_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    with pytest.raises(NotPrepared, match="driver of clients is missing; scripts/prepare-ignite"):
        artifacts.driver_command()


def test_a_machine_without_tools_is_told_each_and_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert [line.split(":")[0] for line in artifacts.lacking_tools()] == ["mvn", "javac", "jlink"]
    assert "apt-get install maven" in artifacts.lacking_tools()[0]


def test_a_jar_that_changed_since_it_was_fetched_is_named(tmp_path: Path) -> None:
    jar = tmp_path / "a.jar"
    jar.write_bytes(b"as fetched")
    sums = f"{hashlib.sha256(b'as fetched').hexdigest()}  a.jar\n"
    (tmp_path / artifacts.SUMS).write_text(sums)

    artifacts.verify(tmp_path)
    jar.write_bytes(b"changed")

    with pytest.raises(HarnessError, match=r"a\.jar: expected .* \(got "):
        artifacts.verify(tmp_path)


def test_a_jar_that_was_not_fetched_is_named(tmp_path: Path) -> None:
    (tmp_path / artifacts.SUMS).write_text("")
    artifacts.verify(tmp_path)
    (tmp_path / "other.jar").write_bytes(b"")

    with pytest.raises(HarnessError, match=r"other\.jar: was not fetched"):
        artifacts.verify(tmp_path)


def test_another_recipe_is_another_image(monkeypatch: pytest.MonkeyPatch) -> None:
    before = image.tag()
    monkeypatch.setattr(settings, "JVM", (*settings.JVM, "-XX:+UseParallelGC"))

    assert image.tag() != before
    assert image.tag().startswith(f"{image.alias()}-")


def test_the_doctor_is_told_what_is_missing_and_the_command_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")

    tools, client, node_image, home = doctor.diagnose()

    assert [finding.ok for finding in (tools, client, node_image, home)] == [False] * 4
    assert tools.found == "mvn, javac, jlink missing"
    assert tools.remedy.count("openjdk") == 1
    assert client.remedy == node_image.remedy == home.remedy == "scripts/prepare-ignite"
    assert "nobody.sock" in node_image.found
    assert "home of nodes on this machine is missing" in home.found


def test_the_doctor_asks_whatever_plugin_has_something_to_say() -> None:
    assert plugins.load("doctors", "ignite3") is doctor.diagnose
