"""A whole drill on the virtual loop: what the command line wires, with nodes in memory."""

from __future__ import annotations

import hashlib
from pathlib import Path

from cli.environment import simulated_history
from cli.plan_plugins import build_fault, build_system, build_workload
from cli.plan_schedule import materialised
from clusters.providers.sim.loop import simulate
from clusters.providers.sim.machine import Body, wall_ns
from clusters.providers.sim.provider import SimProvider, reference_node
from harness.history.chunks import OpenHistory
from harness.history.run_directory import Manifest, RunDirectory
from harness.plan.plan import Plan, resolved
from harness.protocols.statement_language import of_system
from harness.run.execute import execute
from harness.run.lifecycle import Parts
from harness.run.progress import Silent
from harness.run.stop import Stop
from nemesis.runner import Nemesis, refuse_missing


def drill(
    plan: Plan,
    root: Path,
    body: Body = reference_node,
    open_history: OpenHistory = simulated_history,
) -> tuple[RunDirectory, Manifest]:
    """Run ``plan`` into the new directory ``root``; everything random follows from its seed.
    ``body`` is what nodes do.
    """
    root.mkdir(parents=True)
    run = RunDirectory(root)

    async def main() -> Manifest:
        provider = SimProvider(seed=plan.seed, body=body)
        system = build_system(plan, {"network": provider.client_network})
        kinds = sorted({*plan.nemesis.mix, *(fault.kind for fault in plan.nemesis.schedule)})
        faults = {kind: build_fault(kind) for kind in kinds}
        whole = resolved(plan, materialised(plan, system, faults))
        able = await provider.capabilities() | of_system(system)
        refuse_missing(whole.nemesis.schedule, faults, able)
        parts = Parts(
            provider=provider,
            system=system,
            workload=build_workload(whole, system),
            make_nemesis=lambda write: Nemesis(
                schedule=whole.nemesis.schedule,
                faults=faults,
                seed=whole.seed,
                write=write,
                duration_s=whole.drive.duration_s,
            ),
            versions={},
            machine={},
            wall_ns=wall_ns,
            open_history=open_history,
        )
        return await execute(whole, run, parts, Silent(), Stop())

    return run, simulate(main())


def digest(run: RunDirectory) -> str:
    """A hash over what the run recorded: operations, faults and events, byte for byte."""
    files = [*sorted(run.history.iterdir()), run.faults, run.events]
    whole = hashlib.sha256()
    for path in files:
        whole.update(path.name.encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()
