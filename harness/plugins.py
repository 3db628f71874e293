"""Plugins by name, through entry points: a user's own workload or system is a package with one
line.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from harness.errors import HarnessError, UnknownPlugin

GROUPS = ("workloads", "faults", "checkers", "providers", "systems", "doctors")


def names(group: str) -> tuple[str, ...]:
    """Every installed plugin of ``group`` (one of ``GROUPS``), sorted."""
    return tuple(sorted({point.name for point in _points(group)}))


def load(group: str, name: str) -> Any:  # noqa: ANN401 (each group has its own protocol)
    """The factory that the plugin's entry point names. Raises ``UnknownPlugin``."""
    for point in _points(group):
        if point.name == name:
            return point.load()
    raise UnknownPlugin(group.removesuffix("s"), name, names(group))


def own_version() -> str:
    """The version of firedrill itself: of the distribution that brings the command, since the name
    of a distribution is the registry's business (there, ``firedrill`` is another's).
    """
    for command in entry_points(group="console_scripts", name="firedrill"):
        if command.value.startswith("harness.") and command.dist is not None:
            return command.dist.version
    raise HarnessError("firedrill is not installed in this environment: expected its command")


@cache
def _points(group: str) -> tuple[EntryPoint, ...]:
    """What is installed does not change while we run, and each look reads every package's files."""
    return tuple(entry_points(group=f"firedrill.{group}"))
