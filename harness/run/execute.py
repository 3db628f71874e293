"""One run from its plan to its sealed manifest: what is written before, and after, its ``Life``."""

from __future__ import annotations

import contextlib
import shutil

import msgspec

from harness import plugins
from harness.errors import HarnessError
from harness.history.durable_files import write_atomically
from harness.history.manifest import RUNNING, write_manifest
from harness.history.regular_files import sha256
from harness.history.run_directory import SCHEMA_VERSION, Manifest, RunDirectory
from harness.history.seal import seal
from harness.plan.plan import Plan, dumps
from harness.protocols.cluster import TellsVersions
from harness.run.lifecycle import Life, Parts
from harness.run.progress import Progress
from harness.run.stop import Stop


async def execute(
    plan: Plan, run: RunDirectory, parts: Parts, progress: Progress, stop: Stop
) -> Manifest:
    """Run ``plan`` into ``run`` and return the sealed manifest.

    ``run.root`` exists and is empty. Raises ``HarnessError`` when the environment failed; the
    history up to then is sealed all the same, and the manifest names the failure.
    """
    manifest, life = _begin(plan, run, parts, progress, stop)
    with plugins.keeping_alive():
        try:
            return await _recorded(life, manifest, parts)
        except BaseException:
            life.broke_off = True
            raise
        finally:
            await life.leave_or_tear_down()


async def _recorded(life: Life, manifest: Manifest, parts: Parts) -> Manifest:
    """Run every phase, and seal the recorded history, also after a failure."""
    stop = life.stop
    try:
        with life.within_budget():
            await life.live()
    except BaseException as error:  # cancellation as well: the sealed run is then incomplete
        life.trouble.append(f"the run broke off: {str(error) or type(error).__name__}")
        raise
    finally:
        life.finish()
        if stop.cut_short and stop.reason:
            life.trouble.append(stop.reason)
        vouched = manifest.checksums | life.checksums | life.settle_plan()
        manifest = msgspec.structs.replace(manifest, checksums=vouched)
        manifest = msgspec.structs.replace(
            manifest,
            interrupted=stop.cut_short and not stop.reason,
            trouble=(*life.trouble, *life.nemesis.trouble),
            out_of_room=life.writer.out_of_room or msgspec.UNSET,
            logs_left_out=life.logs_left_out or msgspec.UNSET,
            explaining=life.explaining or msgspec.UNSET,
        )
        # On the disk before it is sealed: sealing reads it there, as a recovery would.
        write_manifest(life.run, manifest)
        manifest = seal(life.run, partition_of=parts.system.partition_of)
    return manifest


def _begin(
    plan: Plan, run: RunDirectory, parts: Parts, progress: Progress, stop: Stop
) -> tuple[Manifest, Life]:
    """Write plan and manifest and open the history, or leave none of them: a disk without room for
    these has none for a run.
    """
    try:
        write_atomically(run.plan, dumps(plan).encode())
        manifest = _first_manifest(plan, run, parts)
        write_manifest(run, manifest)
        life = Life(plan=plan, run=run, parts=parts, progress=progress, stop=stop)
    except HarnessError:
        with contextlib.suppress(OSError):
            shutil.rmtree(run.chunks, ignore_errors=True)
            run.manifest.unlink(missing_ok=True)
            run.plan.unlink(missing_ok=True)
        if parts.guard:
            parts.guard.release()
        raise
    return manifest, life


def _first_manifest(plan: Plan, run: RunDirectory, parts: Parts) -> Manifest:
    drivers = plan.drive.drivers
    provider = parts.provider
    machines = provider.versions() if isinstance(provider, TellsVersions) else {}
    return Manifest(
        schema_version=SCHEMA_VERSION,
        run_id=run.root.name,
        state=RUNNING,
        versions=parts.versions | machines | parts.system.versions(),
        machine=parts.machine,
        declaration=parts.system.declaration,
        workload=parts.workload.name,
        checkers=parts.workload.checkers,
        # A verdict depends on the plan (how much is enough): it is vouched for like a table.
        checksums={run.plan.name: sha256(run.plan)},
        arsenal=parts.fault_kinds,
        mix=parts.mix or msgspec.UNSET,
        streams=1 + drivers if drivers > 1 else 1,
    )
