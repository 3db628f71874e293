"""What nodes walk around counts as what can't be done, by that provider alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from harness.protocols.cluster import Capability, felt

ABLE = frozenset({Capability.KILL, Capability.PARTITION})


class Around:
    def unfelt(self, provider: str) -> frozenset[Capability]:
        return frozenset({Capability.PARTITION}) if provider == "proxies" else frozenset()


def by(name: str, system: object) -> frozenset[Capability]:
    provider: Any = SimpleNamespace(name=name)
    chosen: Any = system
    return felt(ABLE, chosen, provider)


def test_a_fault_that_nodes_walk_around_is_none() -> None:
    assert by("proxies", Around()) == {Capability.KILL}
    assert by("machines", Around()) == ABLE
    assert by("proxies", object()) == ABLE
