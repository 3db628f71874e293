"""Changes of members that are meant to stay, and were made by half, are finished by their heals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sim_lab import drill
from test_sim_members import fault, plan_with

from clusters.providers.sim.provider import SimProvider
from harness.errors import HarnessError
from harness.history.load import load as load_run
from harness.history.run_directory import Manifest
from harness.protocols.cluster import NodeStatus
from harness.protocols.faults import PlannedFault, Proof
from nemesis.member_faults import Change, Join


def failing_once(patch: pytest.MonkeyPatch, verb: str, node: str, after: int) -> None:
    """Let ``verb`` fail once on ``node``, after so many calls that do not."""
    original, calls = getattr(SimProvider, verb), list[str]()

    async def fails_once(self: SimProvider, called: str, *more: Any) -> Any:
        if called == node:
            calls.append(called)
            if len(calls) == after + 1:
                raise HarnessError(f"{verb} of {node} broke off")
        return await original(self, called, *more)

    patch.setattr(SimProvider, verb, fails_once)


def drilled(change: PlannedFault, root: Path) -> tuple[dict[str, Any], Manifest]:
    run, manifest = drill(plan_with(change, duration_s=9.0), root)
    (row,) = load_run(run).faults().to_pylist()
    return row, manifest


@pytest.mark.parametrize(
    ("verb", "change", "shows"),
    [
        # It counts as no member any more, and still runs.
        ("stop", fault(1.5, "leave", "n3", 0.5, stays=True), "n3 left; members are n1, n2, n4"),
        # The spare is there before the member is gone.
        ("stop", fault(1.5, "replace", "n3", 0.5, stays=True), "n3 left; members are n1, n2, n4, "),
        ("start", fault(1.5, "join", "n5,n6", 0.5, stays=True), "n5, n6 joined"),
        # Stopped, told of other attributes, and not started.
        (
            "start",
            fault(1.5, "attributes", "n3", 0.5, stays=True, attributes=["gone"]),
            "announced by n3 (gone)",
        ),
    ],
)  # fmt: skip
def test_a_change_that_broke_off_is_finished(
    verb: str, change: PlannedFault, shows: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = "n6" if change.kind == "join" else "n3"
    # Only members were started at set-up.
    after = 1 if change.kind == "attributes" else 0
    failing_once(monkeypatch, verb, node, after)
    row, manifest = drilled(change, tmp_path / "run")

    assert row["state"] == "healed"
    assert row["heal_proof"].startswith(shows), row["heal_proof"]
    # What it was meant to show was not shown all the same.
    (trouble,) = manifest.trouble
    assert f"{verb} of {node} broke off" in trouble


def test_a_node_that_ends_after_it_has_joined_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, died = Join.effective, list[str]()

    async def then_dies(self: Join, change: Change) -> Proof:
        proof = await original(self, change)
        if proof.holds and not died:
            died.append("n5")
            await change.scene.provider.kill("n5")
        return proof

    monkeypatch.setattr(Join, "effective", then_dies)
    row, manifest = drilled(fault(1.5, "join", "n5", 0.5, stays=True), tmp_path / "run")

    assert (died, row["state"], manifest.trouble) == (["n5"], "healed", ())
    assert row["heal_proof"].startswith("n5 joined")


def test_a_change_that_can_not_be_finished_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = SimProvider.start

    async def never(self: SimProvider, node: str) -> NodeStatus:
        if node == "n6":
            raise HarnessError("n6 can't be started")
        return await original(self, node)

    monkeypatch.setattr(SimProvider, "start", never)
    row, manifest = drilled(fault(1.5, "join", "n5,n6", 0.5, stays=True), tmp_path / "run")

    assert row["state"] == "healed"
    assert row["heal_proof"].startswith("n5, n6 left; members are n1, n2, n3, n4")
    assert "n6 can't be started" in manifest.trouble[0]
