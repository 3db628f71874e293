"""This machine's readiness for drills of Apache Ignite 3."""

from __future__ import annotations

from collections.abc import Callable

from clusters.ignite3 import artifacts, image, local
from harness.errors import FiredrillError
from harness.protocols.cluster import Requirement

PREPARE = "scripts/prepare-ignite"


def diagnose() -> tuple[Requirement, ...]:
    """The tools for building, and the parts built with them; never raises."""
    usual = artifacts.Artifacts()
    lacking = usual.lacking
    tools = Requirement(
        name="ignite3: tools",
        ok=not lacking,
        found=f"{', '.join(lacking)} missing" if lacking else "a JDK and Maven",
        remedy=artifacts.remedies(lacking),
    )
    return (
        tools,
        _prepared("ignite3: client", lambda: usual.driver_command()[0]),
        _prepared("ignite3: image", lambda: image.check(usual)),
        _prepared("ignite3: local nodes", lambda: str(local.home(usual))),
    )


def _prepared(name: str, look: Callable[[], str]) -> Requirement:
    try:
        return Requirement(name=name, ok=True, found=look())
    except FiredrillError as error:
        return Requirement(name=name, ok=False, found=str(error), remedy=PREPARE)
