"""Nodes as processes of this machine: what the image holds, in the user's cache.

Java checks the archive of classes against the paths of its jars, so that it is made where it is
used.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from clusters.ignite3 import artifacts, settings
from clusters.ignite3.artifacts import NotPrepared
from clusters.ignite3.options import Options


def home() -> Path:
    """The directory of jars, runtime and archive. Raises ``NotPrepared`` where there is none."""
    found = artifacts.root() / _name()
    if not found.is_dir():
        raise NotPrepared("the home of nodes on this machine")
    return found


def ensure() -> Path:
    """``home``, made if it is missing. Blocking, up to a minute or so."""
    library, runtime = artifacts.jars("node"), artifacts.runtime()
    artifacts.verify(library)

    def make(into: Path) -> None:
        into.mkdir()
        jars = tuple(sorted(path.name for path in library.glob("*.jar")))
        (into / "options").write_text(settings.options_file(jars, str(library)))
        (into / "logging.properties").write_text(settings.LOGGING)
        (into / "training.conf").write_text(settings.training_config())
        (into / "jre").symlink_to(runtime, target_is_directory=True)
        work = into / "training"
        java = settings.command(
            Options().heap_mib,
            f"-XX:ArchiveClassesAtExit={into / settings.ARCHIVE_FILE}",
            str(into / "training.conf"),
            str(work),
            "n1",
            str(into),
        )
        trainer = (sys.executable, str(artifacts.TRAINER), str(artifacts.TRAIN_LIMIT_S))
        asked = ("--", *settings.training_statements())
        artifacts.run(artifacts.TRAIN_LIMIT_S + 30, *trainer, *java, *asked)
        shutil.rmtree(work)

    return artifacts.made(_name(), make)


def _name() -> str:
    """Another recipe, another name."""
    texts = (artifacts.POM.read_text(), artifacts.MODULES, settings.LOGGING, *settings.JVM)
    trained = (artifacts.TRAINER.read_text(), settings.training_config(), str(artifacts.root()))
    asked = settings.training_statements()
    return f"home-{artifacts.digest('|'.join((*texts, *trained, *asked)).encode())}"
