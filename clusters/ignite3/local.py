"""Nodes as processes of this machine: the contents of the image, in the user's cache.

Java checks the archive of classes against the paths of its jars, so the archive is made in the
directory in which it is used.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from clusters.ignite3 import artifacts, settings
from clusters.ignite3.artifacts import Artifacts, NotPrepared
from clusters.ignite3.options import Options
from harness.errors import HarnessError

CONFIG, WORK = "training.conf", "training"


def home(of: Artifacts) -> Path:
    """The directory of jars, runtime and archive. Raises ``NotPrepared`` where there is none."""
    found = of.root / _name(of)
    if not found.is_dir():
        raise NotPrepared("the home of nodes on this machine", of.release)
    return found


def ensure(of: Artifacts) -> Path:
    """``home``, made if it is missing. Blocking, up to a minute or so."""
    library, runtime = of.jars(), of.runtime()

    def make(into: Path) -> None:
        into.mkdir()
        for name, text in _texts(library).items():
            (into / name).write_text(text)
        (into / "jre").symlink_to(runtime, target_is_directory=True)
        trainer = (sys.executable, str(artifacts.TRAINER), str(artifacts.TRAIN_LIMIT_S))
        artifacts.run(artifacts.TRAIN_LIMIT_S + 30, *trainer, *_training(into))
        archive = into / settings.ARCHIVE_FILE
        if not archive.is_file():  # Java itself says nothing then, and nodes start twice as long
            raise HarnessError(f"ignite3: {archive} was not written")
        shutil.rmtree(into / WORK)

    return of.made(_name(of), make)


def _texts(library: Path) -> dict[str, str]:
    """The files that are written into a home, by name."""
    jars = tuple(sorted(path.name for path in library.glob("*.jar")))
    return {
        "options": settings.options_file(jars, str(library)),
        "logging.properties": settings.LOGGING,
        CONFIG: settings.training_config(),
    }


def _training(home: Path) -> tuple[str, ...]:
    """The command and the statements of the node that the archive is made with."""
    java = settings.command(
        Options().heap_mib,
        f"-XX:ArchiveClassesAtExit={home / settings.ARCHIVE_FILE}",
        str(home / CONFIG),
        str(home / WORK),
        "n1",
        "127.0.0.1",
        str(home),
    )
    return (*java, "--", *settings.training_statements())


def _name(of: Artifacts) -> str:
    """The home's name, another one for every recipe: a digest of all that is written into it, and
    of its sources. The list of jars follows from their coordinates.
    """
    made = (of.origin, artifacts.MODULES, artifacts.TRAINER.read_text())
    written = (*_texts(of.root).values(), *_training(of.root))
    return f"home-{artifacts.digest('|'.join((*made, *written)).encode())}"
