"""Recovery of a run whose controller died before sealing it."""

from __future__ import annotations

from harness.history.manifest import read_manifest
from harness.history.seal import SPLITS, seal_chunks
from harness.history.tables import PartitionOf
from harness.rundir import Manifest, RunDirectory


def recover(run: RunDirectory, *, partition_of: PartitionOf | None = None) -> Manifest:
    """Seal the readable prefix of a run that nobody sealed; returns the manifest.

    The manifest's state becomes ``prefix``, ``cut_ns`` the time up to which the prefix is whole,
    and ``trouble`` says where and why it stops. Operations without a recorded outcome stay info:
    a prefix accuses nobody of what its end cut off. A run that is sealed, or recovered, stays as
    it is.

    Raises ``MalformedHistory`` where there is no manifest or no chunk to read, ``UsageError`` while
    the run is still going on, ``HarnessError`` where the disk refuses.
    """
    splits = read_manifest(run).splits or SPLITS
    return seal_chunks(run, partition_of=partition_of, splits=splits, ended=False)
