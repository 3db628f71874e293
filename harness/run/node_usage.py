"""Records what nodes use while a run lives: CPU, memory, disk and network, every two seconds.

The samples explain, and prove nothing: ``usage.parquet`` is no part of any verdict, and damage of
it changes none (``Manifest.explaining``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pyarrow as pa

from harness import plugins
from harness.clock import RunClock
from harness.errors import HarnessError, MalformedHistory
from harness.history.parquet import read_summed, write_side_table
from harness.history.run_directory import USAGE_FILE, Manifest, RunDirectory
from harness.protocols.cluster import Cluster
from harness.protocols.resource_usage import NodeUsage, TellsUsage
from harness.tasks import together

SAMPLE_S = 2.0
# Of one run; a day of five nodes. Later samples are left out.
MAX_ROWS = 500_000
USAGE = pa.schema(
    [
        ("at_ns", pa.int64()),
        ("node", pa.string()),
        ("cpu_s", pa.float64()),
        ("memory_bytes", pa.int64()),
        ("read_bytes", pa.int64()),
        ("written_bytes", pa.int64()),
        ("received_bytes", pa.int64()),
        ("sent_bytes", pa.int64()),
    ]
)
"""One row a node and sample: the fields of ``NodeUsage``."""


class UsageLog:
    """Samples while a run lives; ``close`` is called once, on every path."""

    def __init__(self, run: RunDirectory, provider: TellsUsage, clock: RunClock) -> None:
        self._run, self._provider, self._clock = run, provider, clock
        self._pieces: list[pa.Table] = []

    async def run(self, cluster: Callable[[], Cluster]) -> None:
        """Ask for every node of ``cluster`` each ``SAMPLE_S``, until cancelled. A node that can't
        be asked has no row: a fault may hold it. Raises ``HarnessError`` for usage that no table
        takes; what was told before is kept.
        """
        loop = asyncio.get_running_loop()
        while len(self._pieces) < MAX_ROWS:
            due_s = loop.time() + SAMPLE_S
            await together(self._one(node) for node in cluster().nodes)
            await asyncio.sleep(max(0.0, due_s - loop.time()))

    async def _one(self, node: str) -> None:
        try:
            used = await self._provider.usage(node)
        except HarnessError:
            return
        if used is not None:
            row: dict[str, Any] = msgspec.structs.asdict(used)
            row = {"at_ns": self._clock.now_ns(), "node": node} | row
            try:
                self._pieces.append(pa.Table.from_pylist([row], schema=USAGE))
            except (pa.ArrowException, TypeError, ValueError) as error:
                why = f"{node}: what it used fits no table: {plugins.told(error)}"
                raise HarnessError(why) from error

    def close(self) -> dict[str, str]:
        """Write the samples; returns the checksum of the file. Raises ``HarnessError``."""
        if not self._pieces:
            return {}
        table = pa.concat_tables(self._pieces).combine_chunks()
        return write_side_table(self._run.root, USAGE_FILE, table, "what nodes used is missing")


def read_usage(run: RunDirectory, manifest: Manifest) -> pa.Table:
    """The samples of ``run``; empty where its manifest names none, and where the file is missing or
    differs: it decides nothing. Earlier versions let it decide: of their runs it raises
    ``MalformedHistory``.
    """
    if not isinstance(manifest.explaining, msgspec.UnsetType):
        with contextlib.suppress(MalformedHistory):
            return _read(run, manifest.explaining)
    return _read(run, manifest.checksums)


def _read(run: RunDirectory, checksums: Mapping[str, str]) -> pa.Table:
    return next(iter(read_summed(run.root, checksums, {USAGE_FILE: USAGE}).values()))


__all__ = ["USAGE", "USAGE_FILE", "NodeUsage", "UsageLog", "read_usage"]
