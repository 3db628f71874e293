"""From the key of a table to the partition that holds it, by its flat number in the cluster."""

from __future__ import annotations

import asyncio
from typing import Protocol

from clusters.reference.node.markers import reached
from clusters.reference.node.placement.partitioning import partition_of
from clusters.reference.node.tx.limits import ROUTING_TIMEOUT_S, Row, TxError
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import Failed

CATALOG_POLL_S = 0.05


class Routes(Protocol):
    """The tables of a cluster, as far as this node knows them."""

    def number(self, table: str, key: bytes) -> int | Failed:
        """The flat number of the partition of ``key`` in ``table``, or why there is none."""

    def tables(self) -> tuple[tuple[str, int, int], ...]:
        """Each table's full name, its first flat number, and how many partitions it has."""

    def dropped(self, number: int) -> bool:
        """Whether the table of partition ``number`` was dropped: nothing new may begin there, and
        its replicas serve only until what has begun is finished.
        """

    def removed(self, number: int) -> bool:
        """Whether a dropped partition has finished everything, and is gone for good: what was
        prepared there was ended by its outcome, and what committed there is applied everywhere.
        """


class FixedRoutes:
    """The routes of a cluster without distribution zones: it is one table, which has no name."""

    def __init__(self, partitions: int) -> None:
        self._partitions = partitions

    def number(self, table: str, key: bytes) -> int | Failed:
        """See ``Routes``."""
        if table:
            return Failed(codes.NO_TABLE, f"there is no table {table!r}: the cluster has no zones")
        return partition_of(key, self._partitions)

    def tables(self) -> tuple[tuple[str, int, int], ...]:
        """See ``Routes``."""
        return ()

    def dropped(self, number: int) -> bool:
        """See ``Routes``."""
        return False

    def removed(self, number: int) -> bool:
        """See ``Routes``."""
        return False


async def located(routes: Routes, table: str, key: bytes, limit_s: float) -> Row:
    """Where ``key`` of ``table`` is. A table that this node does not know is waited for up to
    ``limit_s``: it may have been created by way of a node that is ahead. Raises ``TxError``.
    """
    number = routes.number(table, key)
    if isinstance(number, int):
        return number, key
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + min(limit_s, ROUTING_TIMEOUT_S)
    while isinstance(number, Failed):
        if number.code != codes.NO_TABLE or not table or loop.time() >= give_up_s:
            raise TxError(number)
        reached("table not known here yet")
        await asyncio.sleep(CATALOG_POLL_S)
        number = routes.number(table, key)
    return number, key
