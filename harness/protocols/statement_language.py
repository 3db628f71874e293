"""A capability of systems: their nodes take statements of a language of their own, such as SQL."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec

from harness.protocols.cluster import Capability, Cluster, System
from harness.protocols.cluster_membership import ChangesMembers


class StatementAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a statement: the rows of a query. ``problem`` is empty where it was carried
    out; ``doubtful``: it may have been, though there is a problem. ``retry``: whether to try again
    (``never``: every try is refused alike), in the store's words, where it tells.
    """

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[int | str | None, ...], ...] = ()
    warnings: tuple[str, ...] = ()
    problem: str = ""
    doubtful: bool = False
    retry: str = ""


@runtime_checkable
class TakesStatements(Protocol):
    """A ``System`` whose nodes take statements."""

    async def statement(
        self, cluster: Cluster, node: str, text: str, limit_s: float
    ) -> StatementAnswer:
        """Return the answer of ``node`` to ``text``, within about ``limit_s``. Only the clients'
        addresses of ``cluster`` are used.
        """


@runtime_checkable
class AlteredByStatements(TakesStatements, Protocol):
    """A ``System`` of which statements alter, while it serves, where its data lies."""

    def fixed(self) -> str:
        """Return why no statement can do that in this cluster; empty where some can."""

    def check_alteration(self, text: str) -> str:
        """Return why ``text`` is not such a statement; empty where it is one."""

    async def differing(self, cluster: Cluster, text: str) -> list[str]:
        """Return in what the cluster's configuration, as a query shows it, differs from what
        ``text`` asked for. Raises ``HarnessError`` where no node answers.
        """

    async def unplaced(self, cluster: Cluster) -> list[str]:
        """Return which data is not yet where the configuration wants it, or still on its way.
        Raises ``HarnessError`` where no node answers.
        """


def of_system(system: System) -> frozenset[Capability]:
    """Return the capabilities that the system itself has."""
    able: set[Capability] = set()
    if isinstance(system, AlteredByStatements) and not system.fixed():
        able.add(Capability.STATEMENTS)
    if isinstance(system, ChangesMembers) and not system.fixed_members():
        able.add(Capability.MEMBERS)
    return frozenset(able)
