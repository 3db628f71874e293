"""The base image of every node: there, or made here once and kept.

Where ``debian:bookworm-slim`` is there or can be pulled, the recipe is built on it; else
``debootstrap`` makes it from the host's own Debian mirror, about 45 s.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import logging
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import attrs
import docker
import requests.exceptions
from docker.errors import DockerException, ImageNotFound

from clusters.providers.docker import image_contents
from clusters.providers.docker.daemon import DaemonError, connect, doing
from clusters.providers.remote.requirements import cache_root
from harness.errors import FiredrillError, HarnessError, UsageError
from harness.exit_codes import EXIT_USAGE

PULL_LIMIT_S = 120
BUILD_LIMIT_S = 420  # the longest of building, debootstrap and import
WAIT_LIMIT_S = 2 * BUILD_LIMIT_S  # for another run that is making the image
MAKE_COMMAND = "sudo .venv/bin/python -m clusters.providers.docker.images"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")

log = logging.getLogger("firedrill.docker")
SUITE = "bookworm"
PARENT = f"debian:{SUITE}-slim"
PACKAGES = (
    "iproute2",
    "iptables",
    "nftables",
    "openssh-server",
    "procps",
    "python3",
    "tini",
)
# Runs inside the new root: sshd wants its directory; host keys come from the controller, per run.
FINISH = (
    "mkdir -p /run/sshd /etc/firedrill /opt/firedrill /var/lib/firedrill"
    " && rm -rf /etc/ssh/ssh_host_* /var/lib/apt/lists/* /var/cache/apt/archives/*.deb"
    " /var/cache/apt/*.bin /usr/share/doc /usr/share/man"
)
REPOSITORY = "firedrill-base"
APT_LISTS = ("/etc/apt/sources.list", "/etc/apt/sources.list.d")


class NoBaseImage(UsageError):
    """The base image is not there and can't be made on this machine."""

    def __init__(self, reasons: str) -> None:
        super().__init__(f"the base image {tag()} is missing and can't be made: {reasons}")


@attrs.frozen
class Obstacle:
    """Something that keeps the image from being made here, and the command that adds it."""

    text: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.text} ({self.remedy})"


def obstacles() -> tuple[Obstacle, ...]:
    """The obstacles that keep ``debootstrap`` from making the image here."""
    found = []
    if os.geteuid() != 0:
        found.append(
            Obstacle(
                "debootstrap needs root",
                MAKE_COMMAND,
            )
        )
    if shutil.which("debootstrap") is None:
        found.append(Obstacle("debootstrap is not installed", "apt-get install debootstrap"))
    if not KEYRING.exists():
        found.append(
            Obstacle("Debian's keys are not installed", "apt-get install debian-archive-keyring")
        )
    return tuple(found)


def present(client: docker.APIClient, image: str) -> bool:
    """Whether the daemon has ``image``."""
    with doing(f"looking for image {image}"):
        try:
            client.inspect_image(image)  # type: ignore[no-untyped-call]
        except ImageNotFound:
            return False
    return True


def ensure_base(client: docker.APIClient) -> str:
    """The name of the base image, made if it is missing. Blocking, up to several minutes.

    Raises ``NoBaseImage`` with every reason and its remedy.
    """
    image = tag()
    if present(client, image):
        return image
    with _only_one_builder():
        # Again, under the lock: the run that held it may have made the image.
        if not present(client, image):
            log.info("making the base image %s (once, about a minute)", image)
            _make(client, image)
    return image


def _make(client: docker.APIClient, image: str) -> None:
    try:
        _build_on_debian(client, image)
    except (DaemonError, DockerException, requests.exceptions.RequestException) as error:
        first = str(error)
    else:
        return
    blocked = obstacles()
    if blocked:
        raise NoBaseImage("; ".join([first, *map(str, blocked)]))
    try:
        _bootstrap(client, image)
    except HarnessError as error:
        raise NoBaseImage(f"{first}; {error}") from error


def _build_on_debian(client: docker.APIClient, image: str) -> None:
    # A client of its own: the usual limit of a call is far below what a build takes.
    patient = connect(BUILD_LIMIT_S)
    if not present(client, PARENT):
        repository, _, tag = PARENT.partition(":")
        with doing(f"pulling {PARENT}"):
            connect(PULL_LIMIT_S).pull(repository, tag=tag)
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        parent = _parent(client)
        content = dockerfile(parent).encode()
        entry = tarfile.TarInfo("Dockerfile")
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))
    context.seek(0)
    last = ""
    with doing(f"building {image}"):
        for line in patient.build(
            fileobj=context,
            custom_context=True,
            tag=image,
            rm=True,
            forcerm=True,
            decode=True,
            labels={image_contents.BASE: parent},
        ):
            last = str(line.get("error", last))
    # The image is the proof: a build that fails says so only in a line of its stream.
    if not present(client, image):
        raise DaemonError(f"building {image} on {PARENT}", last or "no image came of it")


def _parent(client: docker.APIClient) -> str:
    """The image behind ``PARENT`` now: its digest in the registry it came from, or its
    id.
    """
    with doing(f"looking at image {PARENT}"):
        found = client.inspect_image(PARENT)  # type: ignore[no-untyped-call]
    return str((found.get("RepoDigests") or [found["Id"]])[0])


def _bootstrap(client: docker.APIClient, image: str) -> None:
    """Make the root file system with debootstrap and import it."""
    parent = cache_root() / "base"
    parent.mkdir(parents=True, exist_ok=True)
    for stale in parent.glob("*.partial"):  # of a builder that was killed: we hold the lock
        shutil.rmtree(stale, ignore_errors=True)
    root = Path(tempfile.mkdtemp(suffix=".partial", dir=parent))
    try:
        # mkdtemp made it 0700, which would become the mode of / in the image.
        root.chmod(0o755)
        _command(
            "debootstrap",
            "--variant=minbase",
            "--force-check-gpg",
            f"--keyring={KEYRING}",
            f"--include={','.join(PACKAGES)}",
            SUITE,
            str(root),
            *filter(None, [host_mirror()]),
        )
        _command("chroot", str(root), "sh", "-c", FINISH)
        _import(client, root, image)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _command(*argv: str) -> None:
    """Run ``argv`` so that nothing of it, process or mount, outlives this process."""
    caged = ["setpriv", "--pdeathsig=KILL", "unshare", "--mount", "--pid", "--fork"]
    caged += ["--kill-child", *argv]
    try:
        done = subprocess.run(
            caged,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=BUILD_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise HarnessError(f"{argv[0]} took longer than {BUILD_LIMIT_S} s") from error
    except OSError as error:
        raise HarnessError(f"{caged[0]}: {error.strerror or error}") from error
    if done.returncode != 0:
        said = done.stdout.decode("utf-8", "replace").strip()[-400:]
        raise HarnessError(f"{argv[0]} exited with {done.returncode} and said: {said}")


def _import(client: docker.APIClient, root: Path, image: str) -> None:
    repository, _, tag = image.partition(":")
    status = (root / image_contents.STATUS.lstrip("/")).read_text("utf-8", "replace")
    made_of = image_contents.digest(image_contents.installed(status))
    label = f'LABEL {image_contents.BASE}="debootstrap {SUITE}: {made_of}"'
    packer = subprocess.Popen(
        # Owners by number: the names of the host's users are not those of the image.
        ["tar", "--create", "--numeric-owner", "--one-file-system", f"--directory={root}", "."],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        with doing(f"importing {image}"):
            connect(BUILD_LIMIT_S).import_image_from_stream(
                packer.stdout, repository=repository, tag=tag, changes=[label]
            )
        if packer.wait(timeout=BUILD_LIMIT_S) != 0 or not present(client, image):
            raise HarnessError(f"docker: importing {image} left no image")
    finally:
        # After a failed import tar hangs on a full pipe.
        packer.kill()
        packer.wait(timeout=BUILD_LIMIT_S)


@contextmanager
def _only_one_builder() -> Iterator[None]:
    """Hold the cache's lock: of several runs that miss the image, one makes it."""
    cache_root().mkdir(parents=True, exist_ok=True)
    ends = time.monotonic() + WAIT_LIMIT_S
    with (cache_root() / "base.lock").open("w") as lock:
        while True:
            try:
                # Polled, since a blocking flock has no deadline.
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > ends:
                    raise HarnessError(
                        f"another process has been making the base image for {WAIT_LIMIT_S} s"
                    ) from None
                time.sleep(0.5)
        yield


def main() -> int:
    """Make the base image now, so that the first run need not: for set-up scripts."""
    logging.basicConfig(format="%(message)s", level=logging.INFO)
    try:
        print(ensure_base(connect()))
    except FiredrillError as error:
        print(error, file=sys.stderr)
        return EXIT_USAGE
    return 0


def tag() -> str:
    """The base image's name; another recipe, another name."""
    recipe = "\n".join([SUITE, *PACKAGES, FINISH])
    return f"{REPOSITORY}:{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def dockerfile(parent: str) -> str:
    """The recipe on top of ``parent``, which ``PARENT`` leads to, by its digest or id."""
    packages = " ".join(PACKAGES)
    return (
        f"FROM {parent}\n"
        "RUN apt-get update -qq"
        " && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends"
        f" {packages}"
        f" && {FINISH}\n"
    )


def mirror_of(sources: Iterable[str]) -> str | None:
    """The first Debian archive in apt's own lists (both formats)."""
    for text in sources:
        for line in text.splitlines():
            if line.lstrip().startswith("#"):
                continue
            found = re.search(r"https?://[^\s\]]+/debian/?(?=\s|$)", line)
            if found:
                return found.group().rstrip("/")
    return None


def host_mirror(places: Iterable[str] = APT_LISTS) -> str | None:
    """The Debian archive that this host installs from; without one, debootstrap has a default."""
    texts = []
    for place in map(Path, places):
        files = sorted(place.iterdir()) if place.is_dir() else [place]
        texts += [
            f.read_text(errors="replace")
            for f in files
            if f.suffix in (".list", ".sources") and f.is_file()
        ]
    return mirror_of(texts)


if __name__ == "__main__":
    sys.exit(main())
