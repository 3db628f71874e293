"""Coverage of a simulated run: what it holds, and that nobody in the simulation notices."""

from __future__ import annotations

from pathlib import Path

from cli.cells import digest
from cli.wiring import run_plan
from harness.campaigns.coverage_log import CoverageLog
from harness.history.records import FaultState, FaultTransition
from harness.plan.plan import Plan, load
from harness.run.progress import Silent
from harness.run.stop import Stop


def small(**more: object) -> Plan:
    given: dict[str, object] = {
        "seed": 3,
        "cluster.provider": "sim",
        "cluster.nodes": 3,
        "check.executor": "local",
        "system.partitions": 2,
        "drive.duration_s": 6.0,
        "drive.rate_per_s": 30.0,
        "nemesis.schedule": [
            {"at_s": 1.0, "kind": "kill", "target": "leader of partition 0", "hold_s": 1.0},
            {"at_s": 1.2, "kind": "delay", "target": "n2 at 20 ms", "hold_s": 1.5},
        ],
    }
    return load(None, given | more)


def simulated(plan: Plan, into: Path, coverage: CoverageLog | None = None) -> str:
    return digest(run_plan(plan, into, Silent(), Stop(), coverage=coverage))


def test_a_run_that_is_covered_is_the_same_run_and_reaches_the_same(tmp_path: Path) -> None:
    first, second = CoverageLog(), CoverageLog()
    bare = simulated(small(), tmp_path)

    assert simulated(small(), tmp_path, first) == bare
    assert simulated(small(), tmp_path, second) == bare
    assert first.encoded() == second.encoded()


def test_events_come_with_the_state_of_their_receiver_and_the_faults_in_force(
    tmp_path: Path,
) -> None:
    coverage = CoverageLog()
    simulated(small(), tmp_path, coverage)
    found = {tuple(feature.split(" | ")) for feature in coverage.features()}
    events = {event for event, _, _ in found}

    assert {"Lock", "Prepare", "LockReply", "moment leader-elected"} <= events
    assert any(event.startswith("partition Append next") for event in events)
    assert any(event.startswith("marker ") for event in events)
    # A leader was killed, in calm; messages came to a node behind slow links, and elsewhere then.
    [killed] = [state for event, state, _ in found if event == "fault kill"]
    assert "leader" in killed.split()
    faults = {fault.removesuffix(" x10") for *_, fault in found}
    assert faults == {"", "elsewhere", "ends-program", "degrades-links"}
    states = {state for event, state, _ in found if event.startswith("partition AppendReply")}
    assert all("leader" in state.split() for state in states if "old" not in state)


def test_a_fault_counts_until_its_heal_is_proven_and_by_its_effects_on_the_node() -> None:
    log = CoverageLog()
    log.strike(lambda node: f"state of {node}")

    def enter(state: FaultState, fault: int, kind: str, *nodes: str) -> None:
        log.changed(
            FaultTransition(fault=fault, kind=kind, target="one", state=state, at_ns=0, nodes=nodes)
        )

    log.came("a", "s", "n1")
    enter(FaultState.INJECTING, 0, "kill", "n1")
    enter(FaultState.INJECTING, 1, "own-kind", "n1", "n2")
    log.came("b", "s", "n1")
    log.came("b", "s", "n2")
    log.came("b", "s", "n3")
    enter(FaultState.HEALING, 0, "kill", "n1")
    log.came("c", "s", "n1")
    enter(FaultState.HEALED, 0, "kill", "n1")
    for _ in range(10):
        log.came("d", "s", "n1")

    assert log.features() == {
        "a | s | ",
        "fault kill | state of n1 | ",
        "fault own-kind | state of n1 | ends-program",
        "fault own-kind | state of n2 | elsewhere",
        "b | s | ends-program",
        "b | s | own-kind",
        "b | s | elsewhere",
        "c | s | ends-program",
        "c | s | own-kind",
        "d | s | own-kind",
        "d | s | own-kind x10",
    }


def test_without_oracles_the_history_is_the_same_and_no_claim_is_judged(tmp_path: Path) -> None:
    judged = run_plan(small(), tmp_path, Silent(), Stop())
    plain = run_plan(small(**{"cluster.options.oracles": False}), tmp_path, Silent(), Stop())

    for name in ("transactions.parquet", "events.parquet"):
        both = [next(run.root.rglob(name)).read_bytes() for run in (judged, plain)]
        assert both[0] == both[1]
    assert list(judged.root.rglob("claims*.parquet"))
    assert not list(plain.root.rglob("claims*.parquet"))
