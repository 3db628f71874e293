"""Recovery of a run whose controller died before sealing it."""

from __future__ import annotations

from harness.history.checksums import require_checksums
from harness.history.manifest import RUNNING, read_manifest
from harness.history.seal import SPLITS, seal_chunks
from harness.history.tables import PartitionOf
from harness.rundir import Manifest, RunDirectory


def recover(run: RunDirectory, *, partition_of: PartitionOf | None = None) -> Manifest:
    """Seal the readable prefix of a run that nobody sealed; returns the manifest.

    The manifest's state becomes ``prefix``, ``cut_ns`` the time up to which the prefix is whole,
    and ``trouble`` says where and why it stops. Operations without a recorded outcome stay info:
    a prefix accuses nobody of what its end cut off. A run that is sealed, or recovered, stays as
    it is.

    Raises ``MalformedHistory`` where there is no manifest or no chunk to read, or the plan is not
    the one that it began with, ``UsageError`` while
    the run is still going on, ``HarnessError`` where the disk refuses.
    """
    manifest = read_manifest(run)
    if manifest.state == RUNNING:  # what a damaged plan or state says must not be made a table
        require_checksums(run, manifest)
    splits = manifest.splits or SPLITS
    return seal_chunks(run, partition_of=partition_of, splits=splits, ended=False)
