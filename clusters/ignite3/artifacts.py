"""The parts of a release on this machine: jars by Maven, a Java runtime by jlink, our driver by
javac; kept in the user's cache by a hash of their sources.

Blocking; meant for set-up, not for a run.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import attrs

from clusters.ignite3.jars import known, require_known
from clusters.ignite3.options import RELEASE
from harness.errors import HarnessError, UsageError

HERE = Path(__file__).resolve().parent
POM, JAVA = HERE / "pom.xml", HERE / "java"
NODE, CLIENT = "node", "client"  # profiles of the POM
NEEDED = ("ignite-runner", "slf4j-jdk14")  # without which no node starts, or says anything
CLIENT_JAR = re.compile(r"ignite-client-\d.*\.jar", re.ASCII)
SUMS = "SHA256SUMS"
TRAINER = HERE / "train.py"
TRAIN_LIMIT_S = 240
MAVEN_LIMIT_S, JLINK_LIMIT_S, JAVAC_LIMIT_S = 600, 180, 120
PARTIAL, PARTIAL_LIMIT_S = ".partial", 3600.0  # longer than any set-up takes
OLDEST_JAVA = "11"
# All that Java SE has, and what the store reaches below it: its own choice is not published.
MODULES = "java.se,jdk.unsupported,jdk.management,jdk.crypto.ec,jdk.zipfs,jdk.naming.dns,jdk.attach"
DRIVER_JVM = (
    *("-Xms32m", "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    "-XX:+ExitOnOutOfMemoryError",
    # Of the threads of one connection, which opens selectors for each: by itself twice the CPUs.
    "-Dio.netty.eventLoopThreads=1",
)
JDK = "install a JDK (Debian: apt-get install openjdk-17-jdk-headless)"
REMEDIES = {
    "mvn": "install Maven (Debian: apt-get install maven)",
    "javac": JDK,
    "java": JDK,
    "jlink": JDK,
}

log = logging.getLogger("firedrill.ignite3")


class NotPrepared(UsageError):
    """Something that a run needs has not been made on this machine."""

    def __init__(self, what: str, release: str = RELEASE) -> None:
        option = "" if release == RELEASE else f" --release {release}"
        super().__init__(f"ignite3: {what} is missing; scripts/prepare-ignite{option} makes it")


def remedies(tools: Iterable[str]) -> str:
    """How to get ``tools``, each way once."""
    return "; ".join(dict.fromkeys(REMEDIES[tool] for tool in tools))


@attrs.frozen
class Artifacts:
    """The parts of one ``release``: a number that Maven knows, or the name under which a directory
    of jars was adopted. Everything of a release lies in one directory, so that several can be there
    side by side.
    """

    release: str = RELEASE

    @property
    def root(self) -> Path:
        """Where the parts are kept."""
        cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
        return Path(cache, "firedrill", "ignite3", self.release)

    @property
    def adopted(self) -> Path:
        """The directory of adopted jars, which a user brought; where it exists, they replace
        Maven's.
        """
        return self.root / "adopted"

    @property
    def library(self) -> Path:
        """The directory of the node's jars, whether they are there or not."""
        return self.adopted if self.adopted.is_dir() else self.root / _of_pom(NODE)

    @property
    def origin(self) -> str:
        """A text that tells the node's jars from those of every other: the sums of adopted jars,
        the coordinates of Maven's.
        """
        if self.adopted.is_dir():
            return (self.adopted / SUMS).read_text()
        return f"{self.release} {POM.read_text()}"

    @property
    def client_library(self) -> Path:
        """The directory of the client's jars, whether they are there or not: with those that were
        brought, if it is among them.
        """
        brought = any(CLIENT_JAR.fullmatch(path.name) for path in self.adopted.glob("*.jar"))
        return self.adopted if brought else self.root / _of_pom(CLIENT)

    @property
    def lacking(self) -> tuple[str, ...]:
        """The tools that set-up would need of this release and that are not installed here."""
        needless = {"mvn"} if self.client_library == self.adopted else set[str]()
        return tuple(t for t in REMEDIES if t not in needless and shutil.which(t) is None)

    def jars(self) -> Path:
        """The directory of the node's jars, fetched if need be, each as it was then, and as it is
        known where its sum is checked in.
        """
        if not self.adopted.is_dir():
            self.made(_of_pom(NODE), partial(_fetch, NODE, self.release))
            _recognize(self.library, NODE, self.release)
        verify(self.library)
        return self.library

    def adopt(self, jars: Path) -> None:
        """Take the node's jars from the directory ``jars``. Raises ``UsageError`` where there are
        none that start a node, and where other jars have the release's name.
        """
        found = sorted(jars.glob("*.jar"))
        for needed in NEEDED:
            if not any(path.name.startswith(f"{needed}-") for path in found):
                raise UsageError(f"ignite3: {jars}: expected {needed}-*.jar among its jars")
        sums = _sums(found)
        if self.adopted.is_dir() and (self.adopted / SUMS).read_text() != sums:
            taken = f"has other jars in {self.adopted}"
            raise UsageError(f"ignite3: {self.release} {taken}: remove that, or choose a name")

        def copy(into: Path) -> None:
            into.mkdir()
            for path in found:
                shutil.copyfile(path, into / path.name)
            (into / SUMS).write_text(sums)

        self.made(self.adopted.name, copy)
        verify(self.adopted)

    def runtime(self) -> Path:
        """A Java runtime for nodes, cut out of the JDK that is installed here."""
        # /usr/bin/javac is a chain of links into the JDK, where the file of its release lies.
        release = Path(os.path.realpath(_tool("javac"))).parents[1] / "release"
        text = release.read_bytes() if release.is_file() else b""
        return self.made(f"jre-{digest(text + MODULES.encode())}", _link)

    def driver(self) -> Path:
        """The directory of the compiled driver, whose jars are as they were fetched: the release's
        own client, or where jars were brought without one, that of the release we know.
        """
        library = self.client_library
        if library != self.adopted:
            release = RELEASE if self.adopted.is_dir() else self.release
            self.made(library.name, partial(_fetch, CLIENT, release))
            _recognize(library, CLIENT, release)
        verify(library)
        return self.made(f"driver-{driver_digest()}", partial(_compile, library))

    def driver_command(self) -> tuple[str, ...]:
        """The command that starts the driver. Raises ``NotPrepared`` where set-up has not been
        run.
        """
        classes, library = self.root / f"driver-{driver_digest()}", self.client_library
        # First what set-up makes: it names every tool that is lacking at once.
        if not classes.is_dir() or not library.is_dir():
            raise NotPrepared("the driver of clients", self.release)
        return (_tool("java"), *DRIVER_JVM, "-cp", f"{classes}:{library}/*", "Driver")

    def made(self, name: str, make: Callable[[Path], None]) -> Path:
        """``root / name``, there at once and whole: made beside it and renamed."""
        target = self.root / name
        if target.is_dir():
            return target
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            self._forget_partials()
            # Beside the target: a rename is one step only within a file system.
            beside = Path(tempfile.mkdtemp(prefix=f"{name}.", suffix=PARTIAL, dir=self.root))
        except OSError as error:
            raise HarnessError(f"{self.root}: {error.strerror or error}") from error
        try:
            # Below the new directory: jlink refuses a target that exists already.
            make(beside / "made")
            (beside / "made").rename(target)
        except OSError as error:
            if not target.is_dir():  # another set-up was quicker
                raise HarnessError(f"{target}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(beside, ignore_errors=True)
        return target

    def _forget_partials(self) -> None:
        """Remove the partial results of set-ups that were killed."""
        for path in self.root.glob(f"*{PARTIAL}"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > PARTIAL_LIMIT_S:
                    shutil.rmtree(path, ignore_errors=True)


def driver_digest() -> str:
    """A digest that tells this driver from every other: of its source and of what it is built
    on.
    """
    return digest(b"".join(path.read_bytes() for path in _sources()) + POM.read_bytes())


def _of_pom(profile: str) -> str:
    return f"{profile}-{digest(POM.read_bytes())}"


def _sources() -> list[Path]:
    return sorted(JAVA.glob("*.java"))


def verify(directory: Path) -> None:
    """Raises ``HarnessError`` for a file of ``directory`` that differs from the fetched one, and
    for a jar that was not fetched: Java loads every jar of the directory.
    """
    sums = _told(directory / SUMS)
    if more := sorted({path.name for path in directory.glob("*.jar")} - {name for _, name in sums}):
        raise HarnessError(f"{directory / more[0]}: was not fetched; remove {directory}")
    for expected, name in sums:
        path = directory / name
        found = _sha256(path) if path.is_file() else "no file"
        if found != expected:
            raise HarnessError(f"{path}: expected {expected} (got {found}); remove {directory}")


def _told(path: Path) -> list[tuple[str, str]]:
    """Sums and names that a file of sums tells. Raises ``HarnessError``."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise HarnessError(f"{path}: can't be read; remove {path.parent}") from error
    rows = [line.partition("  ") for line in lines]
    if wrong := next((line for line, row in zip(lines, rows, strict=True) if not row[2]), None):
        raise HarnessError(f"{path}: no sum and name in {wrong[:60]!r}; remove {path.parent}")
    return [(found, name) for found, _, name in rows]


def _fetch(profile: str, release: str, into: Path) -> None:
    run(
        MAVEN_LIMIT_S,
        # By default Maven only warns of a wrong checksum.
        *(_tool("mvn"), "--batch-mode", "--quiet", "--strict-checksums", "--file", str(POM)),
        *("--activate-profiles", profile, f"-Drelease={release}"),
        "dependency:copy-dependencies",
        *("-DincludeScope=runtime", f"-DoutputDirectory={into}"),
    )
    (into / SUMS).write_text(_sums(sorted(into.glob("*.jar"))))
    if known(release, profile) is None:
        log.warning(
            "ignite3: no sums of %s are checked in: its jars are taken as they came", release
        )
    _recognize(into, profile, release)


def _recognize(library: Path, profile: str, release: str) -> None:
    """Raises ``HarnessError`` where the jars that were fetched are not those that we know."""
    if (expected := known(release, profile)) is not None:
        require_known(library, _told(library / SUMS), expected)


def _sums(jars: Iterable[Path]) -> str:
    return "".join(f"{_sha256(path)}  {path.name}\n" for path in jars)


def _link(into: Path) -> None:
    strip = ("--strip-debug", "--no-header-files", "--no-man-pages")
    run(JLINK_LIMIT_S, _tool("jlink"), "--add-modules", MODULES, *strip, "--output", str(into))
    # The archive of our classes is a layer upon that of the runtime's own.
    run(JLINK_LIMIT_S, str(into / "bin" / "java"), "-XX:+UseSerialGC", "-Xshare:dump")


def _compile(library: Path, into: Path) -> None:
    into.mkdir()
    wanted = ("--release", OLDEST_JAVA, "-Xlint:all", "-cp", f"{library}/*", "-d", str(into))
    run(JAVAC_LIMIT_S, _tool("javac"), *wanted, *map(str, _sources()))


def _tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise UsageError(f"ignite3: {name} is not installed; {REMEDIES[name]}")
    return found


def run(limit_s: int, *argv: str) -> None:
    """Run a command to its end. Raises ``HarnessError`` with its output."""
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise HarnessError(f"{argv[0]} took longer than {limit_s} s") from error
    if done.returncode != 0:
        said = done.stdout.decode("utf-8", "replace").strip()[-600:]
        raise HarnessError(f"{argv[0]} exited with {done.returncode} and said: {said}")


def digest(content: bytes) -> str:
    """A digest that tells ``content`` from every other, short enough for a name."""
    return hashlib.sha256(content).hexdigest()[:12]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
