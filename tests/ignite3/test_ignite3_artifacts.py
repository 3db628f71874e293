"""What set-up made on this machine is found again, checked, and named where it is missing."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import docker
import pytest
from click.testing import CliRunner

from clusters.ignite3 import artifacts, doctor, image, local, settings
from clusters.ignite3.artifacts import Artifacts, NotPrepared
from clusters.ignite3.system import build
from harness import plugins
from harness.errors import HarnessError, PlanError, UsageError

USUAL = Artifacts()


def test_a_machine_that_was_not_prepared_is_told_what_prepares_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    with pytest.raises(NotPrepared, match="driver of clients is missing; scripts/prepare-ignite"):
        USUAL.driver_command()


def test_a_machine_without_tools_is_told_each_and_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))

    asked = CliRunner().invoke(image.main, [])

    assert asked.exit_code == 254
    assert "mvn, javac, java, jlink missing: install Maven" in asked.stderr
    assert "apt-get install openjdk" in asked.stderr


def brought(directory: Path, *names: str) -> Path:
    """A directory of jars of these names, each with its name in it."""
    directory.mkdir()
    for name in names:
        (directory / f"{name}.jar").write_text(name)
    return directory


NODE = ("ignite-runner-3.2.0", "slf4j-jdk14-2.0.17", "ignite-client-common-3.2.0")


def test_jars_that_somebody_brought_stand_in_the_place_of_mavens_under_a_name_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mine = Artifacts("3.2.0-mine")
    by_maven = image.tag(mine), local._name(mine)

    mine.adopt(brought(tmp_path / "jars", *NODE))

    assert {path.stem for path in mine.jars().glob("*.jar")} == set(NODE)
    assert image.alias(mine) == "firedrill-ignite3:3.2.0-mine"
    assert (image.tag(mine), local._name(mine)) != by_maven
    assert image.tag(USUAL) != image.tag(mine), "both may be there"
    assert mine.client_library != mine.adopted, "common parts of a client are no client"


def test_a_name_is_not_taken_twice_for_different_jars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mine = Artifacts("3.2.0-mine")
    jars = brought(tmp_path / "jars", *NODE)
    mine.adopt(jars)
    mine.adopt(jars)
    (jars / "more.jar").write_text("more")

    with pytest.raises(UsageError, match=r"3\.2\.0-mine has other jars in .*/adopted: remove that"):
        mine.adopt(jars)


def test_jars_that_start_no_node_are_refused_by_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    jars = brought(tmp_path / "jars", "slf4j-jdk14-2.0.17")

    with pytest.raises(UsageError, match=r"jars: expected ignite-runner-\*\.jar among its jars"):
        Artifacts("3.2.0-mine").adopt(jars)


def test_who_brings_a_client_too_needs_no_maven(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    mine = Artifacts("3.2.0-mine")
    assert "mvn" in mine.lacking

    mine.adopt(brought(tmp_path / "jars", *NODE, "ignite-client-3.2.0"))

    assert mine.lacking == ("javac", "java", "jlink")
    assert mine.client_library == mine.adopted


@pytest.mark.parametrize("name", ["", "..", "3.1", "mine", "3.1.0/mine", "3.1.0-"])
def test_a_release_without_its_number_is_refused(name: str) -> None:
    asked = CliRunner().invoke(image.main, ["--release", name])

    assert asked.exit_code == 254
    assert "expected a name like 3.1.0-mine" in asked.stderr
    with pytest.raises(PlanError, match=r"system\.release"):
        build({"release": name}, ("n1",), 1)


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


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "can't be read"), (b"\xff", "can't be read"), (b"sums\n", "no sum and name in 'sums'")],
)
def test_sums_that_are_not_there_or_are_none_say_what_to_remove(
    content: bytes | None, said: str, tmp_path: Path
) -> None:
    if content is not None:
        (tmp_path / artifacts.SUMS).write_bytes(content)

    with pytest.raises(HarnessError, match=rf"SHA256SUMS: {said}.*remove {tmp_path}"):
        artifacts.verify(tmp_path)


def test_a_cache_that_is_no_directory_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))

    with pytest.raises(HarnessError, match=r"file/firedrill/ignite3/3\.1\.0: Not a directory"):
        USUAL.made("x", lambda into: into.mkdir())


def test_what_a_set_up_that_was_killed_left_is_removed_by_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    old, young = USUAL.root / "node-1.a.partial", USUAL.root / "node-1.b.partial"
    for path in (old, young):
        (path / "made").mkdir(parents=True)
    os.utime(old, (0, 0))

    USUAL.made("x", lambda into: into.mkdir())

    assert not old.exists()
    assert young.exists(), "somebody may be at it"


def test_another_recipe_is_another_image(monkeypatch: pytest.MonkeyPatch) -> None:
    before = image.tag(USUAL)
    monkeypatch.setattr(settings, "JVM", (*settings.JVM, "-XX:+UseParallelGC"))

    assert image.tag(USUAL) != before
    assert image.tag(USUAL).startswith(f"{image.alias(USUAL)}-")


@pytest.mark.parametrize("name", ["JVM", "_OPENED", "MAIN", "LOGGING"])
def test_another_recipe_is_another_home_of_local_nodes(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, value = local._name(USUAL), getattr(settings, name)
    monkeypatch.setattr(settings, name, value + (("x",) if isinstance(value, tuple) else "x"))

    assert local._name(USUAL) != before


def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    """A home of local nodes made by ``script`` in the place of the trainer."""
    library = tmp_path / "library"
    library.mkdir()
    (library / artifacts.SUMS).write_text("")
    (tmp_path / "train.py").write_text(script)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(Artifacts, "jars", lambda usual: library)
    monkeypatch.setattr(Artifacts, "runtime", lambda usual: library)
    monkeypatch.setattr(artifacts, "TRAINER", tmp_path / "train.py")
    return local.ensure(USUAL)


WORK = "import os, sys; os.mkdir(sys.argv[sys.argv.index('--work-dir') + 1])"
ARCHIVE = "[open(a.split('=')[1], 'w').write('x') for a in sys.argv if 'ArchiveClasses' in a]"


def test_a_home_without_its_archive_of_classes_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(HarnessError, match=r"classes\.jsa was not written"):
        trained(tmp_path, monkeypatch, WORK)
    with pytest.raises(NotPrepared, match="home of nodes on this machine"):
        local.home(USUAL)


def test_a_home_has_its_archive_and_nothing_of_what_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trained(tmp_path, monkeypatch, f"{WORK}; {ARCHIVE}")

    wanted = {"classes.jsa", "jre", "logging.properties", "options", "training.conf"}
    assert {path.name for path in made.iterdir()} == wanted
    assert local.home(USUAL) == made


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("open('HOME/classes.jsa', 'w').write('x')", 0, ""),
        ("pass", 1, "classes.jsa was not written"),
        ("open('HOME/classes.jsa', 'w')", 1, "classes.jsa was not written"),
        ("raise SystemExit(7)", 7, ""),
    ],
)
def test_an_image_is_committed_only_with_an_archive_in_it(
    tmp_path: Path, script: str, code: int, said: str
) -> None:
    (tmp_path / "train.py").write_text(script.replace("HOME", str(tmp_path)))
    (tmp_path / "work").mkdir()

    done = subprocess.run(
        ("sh", "-c", image.training_script(str(tmp_path), str(tmp_path / "work")), "sh", "java"),
        capture_output=True,
        text=True,
        timeout=30,
    )

    assert (done.returncode, said in done.stdout) == (code, True)
    assert (tmp_path / "work").exists() == (code != 0)


class Images:
    """A daemon's images, by name."""

    def __init__(self, **known: str) -> None:
        self.known = {"made": image.tag(USUAL), "alias": image.alias(USUAL)}
        self.identities = {self.known[name]: identity for name, identity in known.items()}

    def inspect_image(self, name: str) -> dict[str, str]:
        if name not in self.identities:
            raise docker.errors.ImageNotFound(name)
        return {"Id": self.identities[name]}


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ({}, "image firedrill-ignite3:.* is missing"),
        ({"alias": "sha256:a"}, "image firedrill-ignite3:.* is missing"),
        ({"made": "sha256:a"}, "leads nowhere"),
        ({"made": "sha256:a", "alias": "sha256:b"}, r"leads to sha256:b\) is missing; scripts/"),
    ],
)
def test_a_name_that_leads_to_another_recipes_image_is_refused(
    known: dict[str, str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(image, "connect", lambda limit_s: Images(**known))

    with pytest.raises(NotPrepared, match=text):
        image.check(USUAL)


def test_a_name_that_leads_to_this_recipes_image_is_what_plans_are_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(image, "connect", lambda limit_s: Images(made="sha256:a", alias="sha256:a"))

    assert image.check(USUAL) == image.alias(USUAL)


def test_the_doctor_is_told_what_is_missing_and_the_command_that_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")

    tools, client, node_image, home = doctor.diagnose()

    assert [finding.ok for finding in (tools, client, node_image, home)] == [False] * 4
    assert tools.found == "mvn, javac, java, jlink missing"
    assert tools.remedy.count("openjdk") == 1
    assert client.remedy == node_image.remedy == home.remedy == "scripts/prepare-ignite"
    assert "nobody.sock" in node_image.found
    assert "home of nodes on this machine is missing" in home.found


def test_the_doctor_asks_whatever_plugin_has_something_to_say() -> None:
    assert plugins.load("doctors", "ignite3") is doctor.diagnose
