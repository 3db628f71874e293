"""The contents of an image, for the record of a run: its id, its parent, and its Debian packages.

A name of an image may lead elsewhere tomorrow; its id is its content.
"""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import attrs
import docker
from docker.errors import NotFound

from clusters.providers.docker.cleanup import Requests
from clusters.providers.docker.daemon import doing
from clusters.providers.remote.requirements import cache_root
from harness.errors import HarnessError
from harness.history.durable_files import write_atomically

# A label of an image that was made here: the digest of what it was made on.
BASE = "firedrill.base"
STATUS = "/var/lib/dpkg/status"
STATUS_LIMIT_BYTES = 32 << 20  # a node's has a hundred packages and 100 KB


@attrs.frozen(order=True)
class Package:
    """A Debian package that is installed."""

    name: str
    version: str
    architecture: str

    def __str__(self) -> str:
        return f"{self.name} {self.version} {self.architecture}"


@attrs.frozen(kw_only=True)
class Contents:
    """An image: ``name`` as it was asked for; ``base`` and ``packages`` are empty where they are
    not known.
    """

    name: str
    identity: str
    base: str
    packages: tuple[Package, ...]

    def versions(self) -> dict[str, str]:
        """The entries for a manifest."""
        told = {"image": self.name, "image-id": self.identity}
        if self.base:
            told["image-base"] = self.base
        if self.packages:
            told["image-packages"] = digest(self.packages)
        return told


@attrs.frozen(kw_only=True)
class Probe:
    """The container that is made, for a moment, to look into an image; it never runs.
    ``requests``: where it is announced, under its ``name``.
    """

    name: str | None = None
    labels: Mapping[str, str] = {}
    requests: Requests = attrs.field(factory=lambda: Requests(None))


def contents(client: docker.APIClient, image: str, probe: Probe | None = None) -> Contents:
    """The present contents of ``image``. Raises ``DaemonError``, also where there is no such
    image.
    """
    with doing(f"looking at image {image}"):
        found = client.inspect_image(image)  # type: ignore[no-untyped-call]
    return Contents(
        name=image,
        identity=str(found["Id"]),
        base=str((found["Config"].get("Labels") or {}).get(BASE, "")),
        packages=_packages(client, str(found["Id"]), probe or Probe()),
    )


def digest(packages: Iterable[Package]) -> str:
    """A digest that tells one set of packages from every other."""
    lines = [f"{package}\n" for package in sorted(packages)]
    return f"{len(lines)} packages sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


def installed(status: str) -> Iterator[Package]:
    """The packages that ``status``, dpkg's own list, calls installed."""
    for stanza in status.split("\n\n"):
        fields = dict(re.findall(r"(?m)^(Package|Status|Version|Architecture): (.*)$", stanza))
        if fields.get("Status", "").endswith(" installed"):
            yield Package(fields["Package"], fields["Version"], fields["Architecture"])


def _packages(client: docker.APIClient, identity: str, probe: Probe) -> tuple[Package, ...]:
    """The packages of the image with that id, read once: they never change."""
    kept = cache_root() / "packages" / f"{identity.removeprefix('sha256:')}.txt"
    try:
        lines = kept.read_text().splitlines()
    except OSError:
        found = tuple(sorted(installed(_status(client, identity, probe))))
        _keep(kept, found)
        return found
    return tuple(Package(*line.split(" ")) for line in lines)


def _keep(kept: Path, packages: Iterable[Package]) -> None:
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HarnessError(f"{kept.parent}: {error.strerror or error}") from error
    write_atomically(kept, "".join(f"{package}\n" for package in packages).encode())


def _status(client: docker.APIClient, identity: str, probe: Probe) -> str:
    """dpkg's list in the image; empty where there is none. Nothing of the image is run."""
    what, announced = probe.name or "a container", probe.requests.announced
    with announced(what), doing(f"reading the packages of image {identity}"):
        made = client.create_container(
            identity,
            command=["true"],
            name=probe.name,
            network_disabled=True,
            labels=dict(probe.labels),
        )["Id"]
        try:
            stream, _ = client.get_archive(made, STATUS)
            packed = bytearray()
            for chunk in stream:
                packed += chunk
                if len(packed) > STATUS_LIMIT_BYTES:
                    raise HarnessError(f"{STATUS} is above {STATUS_LIMIT_BYTES} bytes")
        except NotFound:
            return ""
        finally:
            client.remove_container(made, v=True, force=True)
            probe.requests.settle(what)  # also where it could not be read in time
    with tarfile.open(fileobj=io.BytesIO(bytes(packed))) as tar:
        member = tar.extractfile(tar.getmembers()[0])
        return member.read().decode("utf-8", "replace") if member else ""
