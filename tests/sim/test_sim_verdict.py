"""A simulated drill is judged like any other: the sound store passes, planted bugs are found."""

from __future__ import annotations

from pathlib import Path

import pytest
from sim_lab import drill

from checkers.engine.analyze import analyze
from harness.exit_codes import Outcome
from harness.plan.plan import loads
from harness.protocols.verdict import Verdict

PLAN = """
seed = 11
[cluster]
provider = "sim"
nodes = 3
[system]
partitions = 1
bugs = [BUGS]
[drive]
duration_s = 16
concurrency = 5
rate_per_s = 80
"""
CUTS = "".join(
    f"""
[[nemesis.schedule]]
kind = "partition"
target = "leader of partition 0"
at_s = {at_s}
hold_s = 3.0
"""
    for at_s in (1.0, 6.0, 11.0)
)


def verdict(root: Path, bugs: str) -> Verdict:
    run, manifest = drill(loads((PLAN + CUTS).replace("BUGS", bugs)), root)
    assert manifest.trouble == ()
    return analyze(run, executor="local")


def test_the_sound_store_keeps_its_promises_while_its_leader_is_cut_off(tmp_path: Path) -> None:
    found = verdict(tmp_path / "run", "")

    assert (found.outcome, dict(found.anomalies)) == (Outcome.VALID, {})
    effects = found.availability.effects
    assert effects["faults_on_leaders"] == effects["of_these_with_every_role_taken_over"] == 3
    assert 0 < effects["slowest_takeover_ns"] < 3_000_000_000
    for window in found.availability.windows:
        roles = [taken.role for taken in window.takeovers]
        assert roles[:2] == ["primary of partition 0", "leader of partition 0"]
        assert not {taken.node for taken in window.takeovers[:2]} & {*window.nodes}


@pytest.mark.parametrize("bug", ["ack-before-quorum", "commit-before-quorum"])
def test_a_leader_that_does_not_wait_for_its_quorum_loses_acknowledged_writes(
    bug: str, tmp_path: Path
) -> None:
    found = verdict(tmp_path / "run", f'"{bug}"')

    assert found.outcome is Outcome.VIOLATION
    assert found.anomalies["lost-write"].count > 0
