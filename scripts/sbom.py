"""Writes the bill of materials of firedrill and of what its drills run, as CycloneDX 1.6 JSON.

From what is locked and checked in: the Python packages by their locks, Ignite's jars by their sums;
and, where a Docker daemon has the base image of nodes, that image's Debian packages.

    make sbom      # dist/firedrill.cdx.json
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tomllib
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from cyclonedx.model import HashAlgorithm, HashType, Property
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from clusters.ignite3.artifacts import CLIENT, NODE
from clusters.ignite3.jars import Jar, known
from clusters.ignite3.options import RELEASE
from clusters.providers.docker import images
from clusters.providers.docker.daemon import NoDaemon, connect
from clusters.providers.docker.image_contents import Contents, contents
from clusters.providers.docker.images import present
from harness.errors import FiredrillError, HarnessBug

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ("run", "jre", "node", "build", "dev", "compile")
PIN = re.compile(
    r"(?m)^(?P<name>[\w.-]+)(?:\[[^\]]*\])?==(?P<version>[^\s;]+)(?P<rest>(?:.*\\\n)*.*)$"
)
SPEC = SchemaVersion.V1_6


def pinned(lock: str) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Name, version and SHA-256 sums of each package that the text of a lock pins."""
    for found in PIN.finditer(lock):
        yield found["name"], found["version"], tuple(re.findall(r"sha256:(\w{64})", found["rest"]))


def python_packages() -> Iterator[Component]:
    """Every locked package once, with the locks that name it."""
    rows: dict[tuple[str, str], tuple[set[str], set[str]]] = {}
    for name in LOCKS:
        for package, version, sums in pinned((ROOT / "requirements" / f"{name}.lock").read_text()):
            locks, sums_of_it = rows.setdefault((package, version), (set(), set()))
            locks.add(name)
            sums_of_it.update(sums)
    for (package, version), (locks, sums_of_it) in sorted(rows.items()):
        yield Component(
            name=package,
            version=version,
            bom_ref=f"python:{package}=={version}",
            purl=PackageURL("pypi", None, package, version),
            hashes=[_sha256(content) for content in sorted(sums_of_it)],
            properties=[Property(name="firedrill:lock", value=lock) for lock in sorted(locks)],
        )


def ignite_jars() -> Iterator[Component]:
    """Every jar of the usual release, as a node's or a client's."""
    profiles: dict[Jar, list[str]] = {}
    for profile in (NODE, CLIENT):
        for jar in known(RELEASE, profile) or ():
            profiles.setdefault(jar, []).append(profile)
    for jar, names in sorted(profiles.items(), key=lambda row: (row[0].group, row[0].file)):
        yield Component(
            group=jar.group,
            name=jar.artifact,
            version=jar.version,
            bom_ref=f"maven:{jar.group}:{jar.file}",
            purl=PackageURL("maven", jar.group, jar.artifact, jar.version),
            hashes=[_sha256(jar.sha256)],
            properties=[Property(name="firedrill:ignite3", value=name) for name in names],
        )


def debian_packages(image: Contents) -> Component:
    """The image of nodes, with the packages in it."""
    distro = {"distro": images.SUITE}
    packages = [
        Component(
            name=package.name,
            version=package.version,
            bom_ref=f"debian:{package.name}:{package.architecture}",
            purl=PackageURL(
                "deb",
                "debian",
                package.name,
                package.version,
                {**distro, "arch": package.architecture},
            ),
        )
        for package in image.packages
    ]
    return Component(
        type=ComponentType.CONTAINER,
        name=images.REPOSITORY,
        version=image.identity,
        bom_ref=f"image:{image.identity}",
        components=packages,
        properties=[Property(name=f"firedrill:{k}", value=v) for k, v in image.versions().items()],
    )


def node_image() -> Contents | None:
    """The base image of nodes; ``None`` where no daemon has it."""
    try:
        client = connect()
    except NoDaemon:
        return None
    return contents(client, images.tag()) if present(client, images.tag()) else None


def bill(image: Contents | None) -> str:
    """The bill as JSON. The same for the same contents: no time, and a serial
    number that follows from them.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    parts = [*python_packages(), *ignite_jars()]
    if image is not None:
        parts.append(debian_packages(image))
    bom = Bom(components=parts)
    bom.metadata.component = Component(
        type=ComponentType.APPLICATION,
        name=project["name"],
        version=project["version"],
        description=project["description"],
        bom_ref=project["name"],
        purl=PackageURL("pypi", None, project["name"], project["version"]),
    )
    bom.register_dependency(bom.metadata.component, parts)
    bom.serial_number = uuid.uuid5(uuid.NAMESPACE_URL, "\n".join(_names(parts)))
    document = json.loads(make_outputter(bom, OutputFormat.JSON, SPEC).output_as_string())
    del document["metadata"]["timestamp"]
    return json.dumps(document, indent=2) + "\n"


def require_valid(text: str) -> None:
    """Raises ``HarnessBug`` for a bill that does not fit the schema; takes some seconds."""
    if (wrong := JsonStrictValidator(SPEC).validate_str(text)) is not None:
        raise HarnessBug(f"the bill of materials does not fit its schema: {wrong}")


def _names(parts: Iterable[Component]) -> list[str]:
    return [f"{part.bom_ref.value} {sorted(map(str, part.hashes))}" for part in parts]


def _sha256(content: str) -> HashType:
    return HashType(alg=HashAlgorithm.SHA_256, content=content)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--output", type=Path, default=ROOT / "dist" / "firedrill.cdx.json")
    output: Path = parser.parse_args().output
    try:
        image = node_image()
        text = bill(image)
        require_valid(text)
    except FiredrillError as error:
        print(error, file=sys.stderr)
        return 255
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(text)
    if image is None:
        print("without the Debian packages of the nodes: no Docker daemon has their image")
    print(output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
