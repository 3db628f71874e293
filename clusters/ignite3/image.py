"""The node's image: the base image, a Java runtime, the jars, and the archive of their classes.

Layers are shared by all containers and never written to. The archive is made in a container of
the image, where paths and times are those that a node will see.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
import sys
import tarfile
import tempfile
from pathlib import Path

import click
import docker

from clusters.ignite3 import artifacts, local, settings
from clusters.ignite3.artifacts import Artifacts, NotPrepared
from clusters.ignite3.options import RELEASE, RELEASE_NAME, Options
from clusters.providers.docker import images
from clusters.providers.docker.daemon import connect, doing
from harness.errors import FiredrillError, HarnessError, UsageError
from harness.exit_codes import EXIT_USAGE

REPOSITORY = "firedrill-ignite3"
LOOK_LIMIT_S = 10
BUILD_LIMIT_S = 420
TRAINING = "/opt/ignite-training"


def alias(of: Artifacts) -> str:
    """The image's name in plans, which leads to the newest recipe's."""
    return f"{REPOSITORY}:{of.release}"


def tag(of: Artifacts) -> str:
    """The image's name: another recipe, another name."""
    parts = [images.tag(), of.origin, artifacts.MODULES, *_texts(()).values()]
    parts += [artifacts.TRAINER.read_text(), *_training_command()]
    parts += settings.training_statements()
    digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
    return f"{alias(of)}-{digest}"


def ensure(of: Artifacts) -> str:
    """The name of the image for plans, made if it is missing. Blocking, up to some minutes."""
    client, image = connect(BUILD_LIMIT_S), tag(of)
    if not images.present(client, image):
        # By its id: the name may lead elsewhere before the build is through.
        base = _identity(client, images.ensure_base(client))
        plain = f"{image}-plain"
        _build(client, of, base, plain)
        _train(client, plain, image)
    client.tag(image, REPOSITORY, of.release)
    return alias(of)


def check(of: Artifacts) -> str:
    """The name of the image for plans. Raises ``NotPrepared`` where there is no image of this
    recipe, or where the name leads to another recipe's; ``NoDaemon`` where no daemon answers.
    """
    client, image, name = connect(LOOK_LIMIT_S), tag(of), alias(of)
    made, named = _identity(client, image), _identity(client, name)
    if not made:
        raise NotPrepared(f"image {image}", of.release)
    if named != made:
        other = f"leads to {named[:19]}" if named else "leads nowhere"
        raise NotPrepared(f"{image} under the name {name} (which {other})", of.release)
    return name


def _identity(client: docker.APIClient, name: str) -> str:
    """The id of the image of that name; empty where there is none."""
    if not images.present(client, name):
        return ""
    with doing(f"looking at image {name}"):
        return str(client.inspect_image(name)["Id"])  # type: ignore[no-untyped-call]


def _build(client: docker.APIClient, of: Artifacts, base: str, image: str) -> None:
    library, runtime = of.jars(), of.runtime()
    jars = tuple(sorted(path.name for path in library.glob("*.jar")))
    last = ""
    with tempfile.TemporaryFile() as context, doing(f"building {image}"):
        with tarfile.open(fileobj=context, mode="w") as tar:
            texts = {"Dockerfile": f"FROM {base}\nCOPY home {settings.HOME}\n"} | _texts(jars)
            for name, text in texts.items():
                content = text.encode()
                member = tarfile.TarInfo(name)
                member.size = len(content)
                tar.addfile(member, io.BytesIO(content))
            tar.add(artifacts.TRAINER, "home/train.py")
            tar.add(library, "home/lib")
            tar.add(runtime, "home/jre")
        context.seek(0)
        for line in client.build(
            fileobj=context, custom_context=True, tag=image, rm=True, forcerm=True, decode=True
        ):
            last = str(line.get("error", last))
    if last or not images.present(client, image):
        raise HarnessError(f"docker: building {image} failed: {last or 'no image came of it'}")


def _texts(jars: tuple[str, ...]) -> dict[str, str]:
    return {
        "home/options": settings.options_file(jars),
        "home/logging.properties": settings.LOGGING,
        "home/training.conf": settings.training_config(),
    }


def _training_command() -> tuple[str, ...]:
    return settings.command(
        Options().heap_mib,
        f"-XX:ArchiveClassesAtExit={settings.ARCHIVE}",
        f"{settings.HOME}/training.conf",
        TRAINING,
        "n1",
        "127.0.0.1",
    )


def training_script(home: str, work: str) -> str:
    """The shell's part of making the archive. Java itself reports nothing where it made no archive,
    and nodes would start without it, in twice the time.
    """
    archive = f"{home}/{settings.ARCHIVE_FILE}"
    return (
        f'python3 {home}/train.py {artifacts.TRAIN_LIMIT_S} "$@" || exit; '
        f"test -s {archive} || {{ echo {archive} was not written; exit 1; }}; rm -rf {work}"
    )


def _train(client: docker.APIClient, plain: str, image: str) -> None:
    java = (*_training_command(), "--", *settings.training_statements())
    with doing("making the archive of classes"):
        made = client.create_container(
            plain,
            command=["sh", "-c", training_script(settings.HOME, TRAINING), "sh", *java],
            hostname="localhost",  # without a network no other name would be known
            host_config=client.create_host_config(network_mode="none"),
        )["Id"]
        try:
            client.start(made)
            code = client.wait(made, timeout=artifacts.TRAIN_LIMIT_S + 30)["StatusCode"]
            if code != 0:
                said = client.logs(made, tail=20).decode("utf-8", "replace")
                raise HarnessError(f"ignite3: making the archive of classes failed: {said}")
            repository, _, version = image.partition(":")
            client.commit(made, repository=repository, tag=version, conf={"Cmd": ["true"]})
        finally:
            client.remove_container(made, v=True, force=True)
            client.remove_image(plain, noprune=True)


@click.command()
@click.option(
    "--release", default=RELEASE, show_default=True, help="a number, or a name for --jars"
)
@click.option(
    "--jars",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="directory of a node's jars, in the place of Maven's",
)
def main(release: str, jars: Path | None) -> None:
    """Make all that runs of a release need, once: for set-up scripts."""
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    try:
        print(_prepare(Artifacts(release), jars))
    except FiredrillError as error:
        print(error, file=sys.stderr)
        sys.exit(EXIT_USAGE)


def _prepare(of: Artifacts, jars: Path | None) -> str:
    if not re.fullmatch(RELEASE_NAME, of.release):
        raise UsageError(f"ignite3: release: expected a name like 3.1.0-mine (got {of.release!r})")
    if jars is not None:
        of.adopt(jars)
    if of.lacking:
        how = artifacts.remedies(of.lacking)
        raise UsageError(f"ignite3: {', '.join(of.lacking)} missing: {how}")
    of.driver()
    local.ensure(of)
    return ensure(of)


if __name__ == "__main__":
    main()
