"""The adapter's pure parts: options, roles, what is missing, the error table."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from reference_kit import loopback_cluster

from clusters.reference import client
from clusters.reference.client import encode_key
from clusters.reference.cluster_readiness import missing, roles_of
from clusters.reference.node import events
from clusters.reference.node.config import Config, ConfigError, loads
from clusters.reference.node.placement.partitioning import partition_of
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.reports import (
    GroupStatus,
    NodeReport,
    PrimaryStatus,
)
from clusters.reference.system import REQUIREMENTS, build, source_hash
from harness.errors import PlanError
from harness.history.records import EventKind, OpType, StartDecision
from harness.protocols.cluster import Roles
from harness.protocols.fail_or_info import Certainty, classify

NODES = ("n1", "n2", "n3")


@pytest.mark.parametrize(
    ("options", "path", "text"),
    [
        ({"partitons": 4}, "system.partitons", "partitions"),
        ({"partitions": 0}, "system.partitions", r">= 1 \(got 0\)"),
        ({"replicas": 4}, "system.replicas", r"cluster\.nodes \(got 4\)"),
        ({"replicas": "3"}, "system.replicas", "int"),
        ({"bugs": ["no-such"]}, "system.bugs", "'no-such' is not one of .*ack-before-quorum"),
        ({"tick_ms": 0}, "system.tick_ms", "at least 1|>= 1"),
        ({"election_ticks": 1}, "system.election_ticks", "at least 4|>= 4"),
    ],
)
def test_a_wrong_option_is_refused_with_its_path(
    options: dict[str, object], path: str, text: str
) -> None:
    with pytest.raises(PlanError, match=text) as caught:
        build(options, NODES, 1)

    assert caught.value.path == path


@pytest.mark.parametrize(("nodes", "replicas"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_a_small_cluster_has_as_many_replicas_as_nodes_unless_told(
    tmp_path: Path, nodes: int, replicas: int
) -> None:
    names = tuple(f"n{i + 1}" for i in range(nodes))

    program = build({}, names, 1).program("n1", loopback_cluster(tmp_path, names))

    assert loads(program.files["node.json"]).replicas == replicas
    with pytest.raises(PlanError, match=rf"1 to {nodes}, which is cluster\.nodes \(got 6\)"):
        build({"replicas": 6}, names, 1)


def test_the_program_is_a_configuration_that_the_node_accepts(tmp_path: Path) -> None:
    system = build({"partitions": 4, "bugs": ["no-fsync"]}, NODES, 1)

    program = system.program("n2", loopback_cluster(tmp_path, NODES))

    config = loads(program.files["node.json"])
    assert config.node == "n2"
    assert config.members == NODES
    assert (config.partitions, config.bugs) == (4, ("no-fsync",))
    assert program.argv[0] == "python3"
    assert Path(program.python[0].source).name == "node"
    assert REQUIREMENTS.is_file()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"unknown": 1}, "unknown"),
        ({"node": "n2"}, "not among the peers"),
        ({"replicas": 3}, r"replicas: 1 to 2 \(got 3\)"),
        ({"bugs": ["x"]}, "bug 'x' is not one of"),
    ],
)
def test_a_node_refuses_a_wrong_configuration(change: dict[str, object], text: str) -> None:
    endpoint = {"host": "127.0.0.1", "port": 1}
    good: dict[str, object] = {
        "node": "n1",
        "peer_bind": endpoint,
        "client_bind": endpoint,
        "peers": {"n2": endpoint},
        "replicas": 2,
    }
    assert isinstance(loads(msgspec.json.encode(good)), Config)

    with pytest.raises(ConfigError, match=text):
        loads(msgspec.json.encode(good | change))


def test_the_adapter_and_the_node_hash_keys_alike() -> None:
    system = build({"partitions": 5}, NODES, 1)

    for key in (0, 1, -1, 2**62, -(2**63)):
        assert system.partition_of(key) == partition_of(encode_key(key), 5)


def test_versions_change_with_the_source(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    before = source_hash(tmp_path)
    (tmp_path / "a.py").write_text("x = 2\n")

    assert source_hash(tmp_path) != before
    assert "reference-bugs" not in build({}, NODES, 1).versions()
    assert build({"bugs": ["no-fsync"]}, NODES, 1).versions()["reference-bugs"] == "no-fsync"


def group(
    partition: int | None, role: str, term: int, commit: int = 5, applied: int = 5
) -> GroupStatus:
    return GroupStatus(
        group="metastorage" if partition is None else f"p{partition}",
        partition=partition,
        role=role,
        serving=role == "leader",
        term=term,
        leader=None,
        voters=NODES,
        last_index=commit,
        commit_index=commit,
        applied_index=applied,
        members=tuple(f"{node}@i" for node in NODES),
    )


def primary(partition: int, *, epoch: int = 1, serving: bool = True) -> PrimaryStatus:
    return PrimaryStatus(
        partition=partition,
        primary="n1",
        epoch=epoch,
        serving=serving,
        locks=0,
        waiting=0,
        open=0,
        prepared=(),
        outcomes=0,
        keys=0,
        versions=0,
        max_ts=0,
        counters={},
    )


def report(node: str, *groups: GroupStatus) -> NodeReport:
    return NodeReport(
        node=node,
        incarnation="i",
        boot="b",
        wall_ns=0,
        revision=1,
        partitions=1,
        replicas=3,
        members=NODES,
        assignments={0: NODES},
        groups=groups,
        primaries=tuple(
            primary(g.partition) for g in groups if g.serving and g.partition is not None
        ),
        lease_s=1.0,
        clock=0,
        reachable=(),
        log_bytes=0,
        bugs=(),
    )


def with_primaries(told: NodeReport, *primaries: PrimaryStatus) -> NodeReport:
    return msgspec.structs.replace(told, primaries=primaries)


def test_of_two_who_say_that_they_lead_the_higher_term_is_believed() -> None:
    reports = {
        "n1": report("n1", group(0, "leader", 4), group(None, "leader", 2)),
        "n2": report("n2", group(0, "leader", 5), group(None, "follower", 2)),
        "n3": report("n3", group(0, "follower", 5), group(None, "follower", 2)),
    }

    told = roles_of(reports)

    assert told.leaders == {0: "n2"}
    assert told.metastorage_leader == "n1"
    assert told.voters == {0: NODES}


def test_the_primary_is_who_serves_under_the_newest_lease_whoever_leads() -> None:
    reports = {
        "n1": with_primaries(report("n1", group(0, "leader", 5)), primary(0, serving=False)),
        "n2": with_primaries(report("n2", group(0, "follower", 5)), primary(0, epoch=3)),
        "n3": with_primaries(report("n3", group(0, "follower", 5)), primary(0, epoch=2)),
    }

    assert roles_of(reports) == Roles(leaders={0: "n1"}, primaries={0: "n2"}, voters={0: NODES})
    assert roles_of({"n1": reports["n1"]}).primaries == {}
    assert roles_of({}) == Roles()


def test_a_partition_that_nobody_leads_is_absent() -> None:
    reports = {n: report(n, group(0, "follower", 4)) for n in NODES}

    assert roles_of(reports) == Roles(primaries={}, voters={0: NODES})


def with_metastorage(reports: dict[str, NodeReport]) -> dict[str, NodeReport]:
    """``reports`` with a metastorage group that lacks nothing."""
    return {
        node: msgspec.structs.replace(
            told, groups=(group(None, "leader" if node == "n1" else "follower", 2), *told.groups)
        )
        for node, told in reports.items()
    }


def lacks(reports: dict[str, NodeReport], partitions: int) -> list[str]:
    return missing(with_metastorage(reports), NODES, partitions, {})


def test_the_goal_is_what_was_committed_when_the_leader_was_first_seen() -> None:
    goals: dict[int, int] = {}
    behind = {
        "n1": report("n1", group(0, "leader", 4, commit=9, applied=9)),
        "n2": report("n2", group(0, "follower", 4, applied=8)),
        "n3": report("n3", group(0, "follower", 4, applied=9)),
    }
    assert missing(with_metastorage(behind), NODES, 1, goals) == [
        "partition 0 on n2 has not caught up"
    ]

    moved = {
        "n1": report("n1", group(0, "leader", 4, commit=20, applied=20)),
        "n2": report("n2", group(0, "follower", 4, applied=9)),
        "n3": report("n3", group(0, "follower", 4, applied=15)),
    }
    assert missing(with_metastorage(moved), NODES, 1, goals) == []


def test_a_whole_cluster_misses_nothing_and_each_lack_is_named() -> None:
    leader = report("n1", group(0, "leader", 4))
    follower = group(0, "follower", 4)
    whole = {"n1": leader, "n2": report("n2", follower), "n3": report("n3", follower)}
    assert lacks(whole, 1) == []

    assert lacks(whole, 2) == ["partition 1 is not assigned"]
    assert lacks({n: whole[n] for n in ("n1", "n2")}, 1) == ["n3 does not answer"]
    assert lacks(whole | {"n1": report("n1", follower)}, 1) == [
        "partition 0 has no leader",
        "partition 0 has no primary",
    ]
    without_lease = msgspec.structs.replace(leader, primaries=())
    assert lacks(whole | {"n1": without_lease}, 1) == ["partition 0 has no primary"]
    for lagging in (group(0, "follower", 4, applied=4), group(0, "follower", 3)):
        assert lacks(whole | {"n3": report("n3", lagging)}, 1) == [
            "partition 0 on n3 has not caught up"
        ]
    assert lacks(whole | {"n3": report("n3")}, 1) == ["partition 0 on n3 has not caught up"]


def test_a_change_of_members_that_goes_on_and_a_former_life_are_lacks() -> None:
    leader, follower = group(0, "leader", 4), group(0, "follower", 4)
    whole = {"n1": report("n1", leader), **{n: report(n, follower) for n in ("n2", "n3")}}
    joint = msgspec.structs.replace(leader, stage="joint")
    assert lacks(whole | {"n1": report("n1", joint)}, 1) == [
        "partition 0 changes its members (joint)"
    ]

    wiped = msgspec.structs.replace(whole["n3"], incarnation="another")
    assert lacks(whole | {"n3": wiped}, 1) == [
        "metastorage has not taken n3 in",
        "partition 0 has not taken n3 in",
    ]


def strings_of(module: object) -> set[str]:
    return {v for k, v in vars(module).items() if k.isupper() and isinstance(v, str)}


def test_every_code_and_event_of_the_node_is_known_to_the_harness() -> None:
    own = {client.CONNECT_FAILED, client.CONNECTION_LOST, client.BAD_ANSWER}
    # What refuses statements on partitions answers no transaction.
    assert strings_of(codes) - set(codes.OF_RECOVERY) | own == set(client.ERRORS)
    assert set(codes.OF_RECOVERY) < strings_of(codes)
    doubtful = {c for c, row in client.ERRORS.items() if row.at_commit is Certainty.INDEFINITE}
    assert doubtful == {
        codes.LEASE_LOST, codes.LEADER_LOST, codes.PEER_LOST, codes.COMMIT_TIMEOUT,
        client.CONNECTION_LOST, client.BAD_ANSWER,
    }  # fmt: skip
    assert all(len(meaning.reason) > 20 for meaning in client.ERRORS.values())
    decisions = {events.STARTS, events.ERASES}
    assert strings_of(events) - decisions <= {str(kind) for kind in EventKind}
    assert decisions == set(StartDecision)


def test_every_code_of_the_node_says_whether_to_try_again() -> None:
    assert set(codes.RETRY) == strings_of(codes)
    doubtful = {code for code, retry in codes.RETRY.items() if retry is codes.Retry.IN_DOUBT}
    # What may have happened is not to be done twice, and what did not happen is in no doubt.
    assert doubtful == strings_of(codes) - codes.DEFINITE - set(codes.OF_RECOVERY)
    later = {code for code, retry in codes.RETRY.items() if retry is codes.Retry.LATER}
    assert {codes.NO_MAJORITY, codes.PARTITION_LOST, codes.RESET_WAITS} < later
    never = {code for code, retry in codes.RETRY.items() if retry is codes.Retry.NEVER}
    assert never == {
        codes.NO_TRANSACTION, codes.KIND, codes.READ_ONLY, codes.TOO_LARGE, codes.NO_TABLE,
        codes.NO_PARTITION, codes.NO_REPLICA, codes.MAJORITY_LIVES, codes.NO_COPY,
    }  # fmt: skip
    # The client goes on elsewhere by itself only where that is said to help.
    assert codes.RETRY[codes.NODE_STOPPING] is codes.Retry.AT_ONCE


def test_only_what_was_certainly_not_proposed_is_a_failure_at_commit() -> None:
    definite = {c for c, m in client.ERRORS.items() if m.at_commit is Certainty.DEFINITE}

    assert not definite & {"LEADER-LOST", "PEER-LOST", "COMMIT-TIMEOUT", "CONNECTION-LOST"}
    assert classify("commit", "TX-CONFLICT", client.ERRORS) is OpType.FAIL
    assert classify("commit", "PEER-LOST", client.ERRORS) is OpType.INFO
    assert classify("commit", "never heard of", client.ERRORS) is OpType.INFO
    assert classify("step", "PEER-LOST", client.ERRORS) is OpType.FAIL
