"""Nodes that are provisioned and not started: nothing of a drill counts on them."""

from __future__ import annotations

from pathlib import Path

import pytest
from sim_lab import drill

from checkers.engine.analyze import analyze
from cli.plan_plugins import build_system
from cli.plan_schedule import schedule_of
from clusters.reference.cluster_readiness import missing, roles_of
from clusters.reference.node.wire.reports import GroupStatus, NodeReport
from harness.errors import PlanError
from harness.exit_codes import Outcome
from harness.history.load import load as load_run
from harness.plan.plan import loads

PLAN = """
seed = 3
[cluster]
provider = "sim"
nodes = 4
spares = 2
[system]
partitions = 2
system_nodes = 3
attributes.n6 = ["late"]
[drive]
duration_s = 8
concurrency = 8
rate_per_s = 40
[nemesis]
mix = []
[[nemesis.schedule]]
at_s = 1.0
kind = "kill"
target = "minority"
hold_s = 1.0
[[nemesis.schedule]]
at_s = 4.0
kind = "kill"
target = "all"
hold_s = 1.0
"""


def test_nothing_counts_on_a_spare(tmp_path: Path) -> None:
    run, manifest = drill(loads(PLAN), tmp_path / "run")

    assert manifest.trouble == ()
    result = analyze(run, executor="local")
    assert result.outcome is Outcome.VALID, result
    recorded = load_run(run)
    few, every = recorded.faults().to_pylist()
    assert len(few["nodes"]) == 1
    assert every["nodes"] == ["n1", "n2", "n3", "n4"]
    assert {row["node"] for row in recorded.transactions().to_pylist()} <= {*every["nodes"]}
    for spare in ("n5", "n6"):
        assert (run.node(spare) / "node.log").read_text() == ""


def test_a_target_may_name_a_spare_which_is_nobody_before_it_joins(tmp_path: Path) -> None:
    plan = loads(PLAN.replace('target = "minority"', 'target = "n5"'))
    run, _ = drill(plan, tmp_path / "run")
    first = load_run(run).faults().to_pylist()[0]
    assert (first["state"], first["nodes"]) == ("skipped", [])

    with pytest.raises(PlanError, match="must name nodes of this cluster"):
        schedule_of(loads(PLAN.replace('target = "minority"', 'target = "n7"')))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("spares = 2", "spares = 61", "cluster.spares: expected at most 64 machines"),
        ("spares = 2", "spares = -1", "cluster.spares: expected an integer >= 0"),
        ("system_nodes = 3\nattributes.n6 = [\"late\"]\n", "",
         "cluster.spares: expected 0 .*distribution zones"),
        ("attributes.n6", "attributes.n7", "expected nodes among n1, n2, n3, n4, n5, n6"),
        ("system_nodes = 3", "system_nodes = 5", "expected 1 to 4, which is cluster.nodes"),
    ],
)  # fmt: skip
def test_spares_that_can_not_be_are_refused(old: str, new: str, says: str) -> None:
    assert old in PLAN
    with pytest.raises(PlanError, match=says):
        build_system(loads(PLAN.replace(old, new)))


def test_a_system_that_no_node_joins_takes_no_spares() -> None:
    plan = loads('seed = 1\n[cluster]\nnodes = 3\nspares = 1\n[system]\nname = "ignite3"\n')
    with pytest.raises(PlanError, match="no node joins system 'ignite3' while it serves"):
        build_system(plan)


def group(role: str = "follower", **fields: object) -> GroupStatus:
    given: dict[str, object] = {
        **{"group": "p0", "partition": 0, "role": role, "serving": role == "leader", "term": 2},
        **{"leader": "n1", "voters": ("n1", "n2", "n3"), "last_index": 5, "commit_index": 5},
        **{"applied_index": 5, "members": ("n1@a", "n2@a", "n3@a"), **fields},
    }
    return GroupStatus(**given)  # type: ignore[arg-type]


def report(node: str, revision: int, holders: tuple[str, ...], *groups: GroupStatus) -> NodeReport:
    return NodeReport(
        **{"node": node, "incarnation": "a", "boot": "b", "wall_ns": 0, "revision": revision},
        **{"partitions": 1, "replicas": 3, "members": ("n1", "n2", "n3", "n4")},
        **{"assignments": {0: holders}, "groups": groups, "primaries": (), "lease_s": 1.0},
        **{"clock": 0, "reachable": (), "log_bytes": 0, "bugs": ()},
    )  # type: ignore[arg-type]


def test_voters_are_those_of_the_newest_assignment_that_a_node_has_applied() -> None:
    old, new = ("n1", "n2", "n3"), ("n1", "n2", "n4")
    reports = {"n1": report("n1", 9, new), "n3": report("n3", 4, old)}
    assert roles_of(reports).voters == {0: new}


def test_a_voter_that_catches_up_is_a_learner_and_metastorages_voters_are_its_leaders() -> None:
    leader = group("leader", learners=("n4",))
    store = group("leader", partition=None, group="meta", voters=("n1", "n2"))
    late = group(partition=None, group="meta", voters=("n3",))
    reports = {
        "n1": report("n1", 1, ("n1",), leader, store),
        "n2": report("n2", 1, ("n1",), group(learners=("n9",)), late),
    }
    found = roles_of(reports)
    assert found.learners == {0: ("n4",)}
    assert found.metastorage_voters == ("n1", "n2")


def test_what_is_assigned_to_a_node_that_left_is_not_missed() -> None:
    holders = ("n1", "n2", "n4")
    reports = {
        node: report(
            node,
            1,
            holders,
            group("leader" if node == "n1" else "follower", partition=None, group="meta"),
            group("leader" if node == "n1" else "follower"),
        )
        for node in ("n1", "n2")
    }
    told = missing(reports, ("n1", "n2"), 1, {})
    assert told == ["partition 0 has no primary"]
    assert "n4 does not answer" in missing(reports, ("n1", "n2", "n4"), 1, {})
