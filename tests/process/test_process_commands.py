"""Shell commands of a plan as faults of local processes: allowed by the environment alone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from process_programs import Line, bring_up

from clusters.providers.process.cleanup import cleanup
from harness.clock import RunClock
from harness.errors import DeadlineExceeded, MissingCapability, PlanError
from harness.history.records import FaultState, FaultTransition, Record
from harness.protocols.cluster import Capability, Cluster, Roles
from harness.protocols.cluster_membership import Membership
from harness.protocols.faults import PlannedFault, Scene
from nemesis.command_faults import CommandFault, command
from nemesis.runner import Nemesis, refuse_missing
from nemesis.waits import Limits

LIFE = ["planned", "injecting", "injected", "effective", "healing", "healed"]
STOPPED: dict[str, Any] = {
    "inject": 'kill -STOP "$FIREDRILL_PID"; echo stopped "$FIREDRILL_NODE"',
    "heal": 'kill -CONT "$FIREDRILL_PID"',
    "proof": 'grep -q "^State:.T" "/proc/$FIREDRILL_PID/status" && echo it stands still',
}
MARKED: dict[str, Any] = {"inject": "touch broken", "heal": "rm -f broken; echo mended >> told"}
MARKED |= {"proof": "test -e broken"}


class EchoSystem:
    """Every node that answers says that it leads the partition of its number."""

    name = "echo"

    async def roles(self, cluster: Cluster) -> Roles:
        leaders = {}
        for node in cluster.nodes:
            line = await Line.dial(cluster.client[node]["client"])
            line.say("who")
            if await line.hear(0.5) == f"{node}:who":
                leaders[int(node[1:])] = node
            line.close()
        return Roles(leaders=leaders)


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIREDRILL_COMMANDS", "1")


def applied(
    root: Path, options: dict[str, Any], *, hold_s: float = 0.3, cancel_s: float | None = None
) -> tuple[list[FaultTransition], tuple[str, ...]]:
    """The life of one such fault on n2, and the nemesis's trouble."""
    records: list[Record] = []
    schedule = (
        PlannedFault(at_s=0.0, kind="command", target="n2", hold_s=hold_s, options=options),
    )

    async def scenario() -> tuple[str, ...]:
        provider, cluster = await bring_up(root, "n1", "n2")
        system: Any = EchoSystem()
        clock = RunClock(asyncio.get_running_loop())
        scene = Scene(provider=provider, system=system, membership=Membership(cluster), clock=clock)
        nemesis = Nemesis(
            schedule=schedule, faults={"command": command()}, seed=1, write=records.append
        )
        try:
            refuse_missing(schedule, {"command": command()}, await provider.capabilities())
            run = asyncio.ensure_future(nemesis.run(scene, clock.now_ns()))
            await asyncio.wait((run,), timeout=cancel_s)
            run.cancel()
            await asyncio.wait((run,))
            await nemesis.heal_all(scene)
            return nemesis.trouble
        finally:
            await provider.teardown()

    trouble = asyncio.run(scenario())
    return [record for record in records if isinstance(record, FaultTransition)], trouble


@pytest.mark.parametrize("options", [STOPPED, MARKED], ids=["stops", "marks"])
def test_commands_break_and_mend_a_process_and_their_proofs_are_told(
    allowed: None, tmp_path: Path, options: dict[str, Any]
) -> None:
    records, trouble = applied(tmp_path, options)

    assert trouble == ()
    assert [record.state.value for record in records] == LIFE
    told = {record.state: record.text for record in records}
    assert told[FaultState.EFFECTIVE].startswith("n2: the proof exited with 0")
    assert "n2: the proof exited with 1; n2 runs" in told[FaultState.HEALED]


def test_an_interrupted_run_undoes_what_a_command_broke(allowed: None, tmp_path: Path) -> None:
    records, trouble = applied(tmp_path, MARKED, hold_s=600.0, cancel_s=3.0)

    assert trouble == ()
    assert records[-1].state is FaultState.HEALED
    assert (tmp_path / "nodes" / "n2" / "work" / "told").read_text() == "mended\n"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (MARKED | {"inject": "echo no; exit 3"}, "'inject' exited with 3 and said: no"),
        (MARKED | {"inject": "true"}, "no effect: n2: the proof exited with 1"),
        (MARKED | {"proof": "no-such-command"}, "the proof could not be run"),
    ],
)
def test_a_command_that_does_not_do_its_work_leaves_the_run_inconclusive(
    allowed: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    reason: str,
) -> None:
    quick = Limits(proof_s=0.5, healed_s=0.5, wait_s=0.1)
    monkeypatch.setattr("nemesis.runner.Limits", lambda: quick)

    _, trouble = applied(tmp_path, options)

    assert any(reason in text for text in trouble)


def test_without_leave_from_the_environment_no_command_of_a_plan_is_run(tmp_path: Path) -> None:
    with pytest.raises(MissingCapability, match="fault 'command' needs 'commands'"):
        applied(tmp_path, MARKED)

    async def scenario() -> None:
        provider, _ = await bring_up(tmp_path / "other", "n1")
        try:
            assert Capability.COMMANDS not in await provider.capabilities()
            with pytest.raises(MissingCapability):
                await provider.run_command("n1", "touch ran", 5.0)
        finally:
            await provider.teardown()

    asyncio.run(scenario())
    assert not (tmp_path / "other" / "nodes" / "n1" / "work" / "ran").exists()


def test_a_command_that_hangs_is_ended_and_one_that_leaves_something_running_is_not_waited_for(
    allowed: None, tmp_path: Path
) -> None:
    async def scenario() -> None:
        provider, _ = await bring_up(tmp_path, "n1")
        try:
            with pytest.raises(DeadlineExceeded):
                await provider.run_command("n1", "sleep 600", 0.3)
            left = await provider.run_command("n1", "sleep 600 & echo $!", 10.0)
            assert _runs(left.output)
        finally:
            await provider.teardown()
        # It carries the run's mark, by which teardown ends what is left.
        assert not _runs(left.output)

    asyncio.run(scenario())


def _runs(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid.strip()}/stat").read_text().rpartition(") ")[2]
    except FileNotFoundError:
        return False
    return not state.startswith("Z")


CONTROLLER = """
import asyncio, os, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from process_programs import bring_up
from harness.protocols.faults import Scene, Victims
from nemesis.command_faults import command
OPTIONS = {"inject": "touch broken", "heal": "rm -f broken", "proof": "test -e broken"}

async def main():
    provider, cluster = await bring_up(Path(sys.argv[1]), "n1")
    scene = Scene(provider=provider, system=None, membership=None, clock=None)
    fault = command().with_options(OPTIONS, None, "options")
    await fault.inject(scene, Victims(nodes=("n1",), roles=(), draw=os.getpid()))
    print("broken", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_what_a_dead_controller_left_broken_mends_itself(allowed: None, tmp_path: Path) -> None:
    here = Path(__file__).parent
    argv = [sys.executable, "-c", CONTROLLER, str(tmp_path), str(here), str(here.parents[1])]
    controller = subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=here.parents[1])
    broken = tmp_path / "nodes" / "n1" / "work" / "broken"
    try:
        assert controller.stdout is not None
        assert controller.stdout.readline() == b"broken\n"
        assert broken.exists()
    finally:
        controller.send_signal(signal.SIGKILL)
        controller.communicate()

    try:
        ends_s = time.monotonic() + 30
        while broken.exists() and time.monotonic() < ends_s:
            os.sched_yield()
        assert not broken.exists()
    finally:
        cleanup(tmp_path / "undo")  # its node lives on


@pytest.mark.parametrize("key", ["inject", "heal", "proof"])
def test_a_fault_by_commands_needs_all_of_them(key: str) -> None:
    options = {name: text for name, text in MARKED.items() if name != key}

    with pytest.raises(PlanError, match=key):
        CommandFault().with_options(options, None, "options")
