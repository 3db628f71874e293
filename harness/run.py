"""The life of one run, from an empty directory to a sealed history.

plan -> provision -> set up -> drive and break -> heal -> quiesce -> final reads -> collect -> seal

Whatever happens on the way, what was recorded is sealed and what was brought up is removed: a
broken environment, the user's Ctrl-C and a frozen node end here with a readable run directory. What
could not be done is a sentence of the manifest's ``trouble``, and makes the verdict inconclusive.
"""

from __future__ import annotations

import contextlib
import shutil

import msgspec

from harness.cluster import TellsVersions
from harness.errors import HarnessError
from harness.history.files import sha256, write_atomically
from harness.history.manifest import RUNNING, write_manifest
from harness.history.seal import seal
from harness.life import Life
from harness.parts import Guard, Parts
from harness.plan import Plan, dumps
from harness.progress import Progress
from harness.rundir import SCHEMA_VERSION, Manifest, RunDirectory
from harness.stop import Stop

__all__ = ["Guard", "Parts", "Stop", "execute"]


async def execute(
    plan: Plan, run: RunDirectory, parts: Parts, progress: Progress, stop: Stop
) -> Manifest:
    """Run ``plan`` into ``run`` and return the sealed manifest.

    ``run.root`` exists and is empty. Raises ``HarnessError`` when the environment failed; the
    history up to then is sealed all the same, and the manifest says what went wrong.
    """
    manifest, life = _begin(plan, run, parts, progress, stop)
    try:
        return await _recorded(life, manifest, parts)
    except BaseException:
        life.broke_off = True
        raise
    finally:
        await life.leave_or_tear_down()


async def _recorded(life: Life, manifest: Manifest, parts: Parts) -> Manifest:
    """Live, and seal what was recorded, however that went."""
    stop = life.stop
    try:
        with life.within_budget():
            await life.live()
    except BaseException as error:  # cancelled as well: what is sealed then is no whole run
        life.trouble.append(f"the run broke off: {str(error) or type(error).__name__}")
        raise
    finally:
        life.finish()
        if stop.cut_short and stop.reason:
            life.trouble.append(stop.reason)
        vouched = manifest.checksums | life.checksums
        manifest = msgspec.structs.replace(manifest, checksums=vouched)
        manifest = msgspec.structs.replace(
            manifest,
            interrupted=stop.cut_short and not stop.reason,
            trouble=(*life.trouble, *life.nemesis.trouble),
            out_of_room=life.writer.out_of_room or msgspec.UNSET,
        )
        write_manifest(life.run, manifest)
        manifest = seal(life.run, partition_of=parts.system.partition_of)
    return manifest


def _begin(
    plan: Plan, run: RunDirectory, parts: Parts, progress: Progress, stop: Stop
) -> tuple[Manifest, Life]:
    """Plan, manifest and an open history, or nothing of them: a disk that has no room for these
    has none for a run.
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
        arsenal=parts.arsenal,
        streams=1 + drivers if drivers > 1 else 1,
    )
