"""What a plan's options make of a node, its cluster and its tables; and how a heal tells who was
thrown out.
"""

from __future__ import annotations

import asyncio
import tomllib
from pathlib import Path

import msgspec
import pytest

from cli.main import execute
from clusters.ignite3 import error_table, rest, settings, system, waiting
from clusters.ignite3.artifacts import Artifacts, NotPrepared, driver_digest
from clusters.ignite3.options import RELEASE, Options, blocking, data_nodes, quorums, statements
from harness.errors import HarnessError, PlanError
from harness.exit_codes import EXIT_USAGE
from harness.history.records import OpType
from harness.plan.plan import load
from harness.protocols.cluster import Address, Cluster, Readmits
from harness.protocols.fail_or_info import classify

ROOT = Path(__file__).resolve().parents[2]
FIVE = ("n1", "n2", "n3", "n4", "n5")


def at(port: int) -> Address:
    return Address(host="198.18.0.10", port=port)


def config(options: Options, *, data: bool = True) -> str:
    return settings.node_config(
        options, peer=at(1), client=at(2), rest=at(3), seeds=(at(1), at(9)), data=data
    )


def test_a_node_listens_at_one_address_and_seeks_all_others() -> None:
    text = config(Options())

    assert 'listenAddresses = ["198.18.0.10"]' in text
    assert 'netClusterNodes = ["198.18.0.10:1", "198.18.0.10:9"]' in text


def test_no_port_of_a_node_listens_on_every_interface() -> None:
    """Seen with ss on a node of 3.1.0: with these, all three ports are on the one address."""
    text = config(Options())
    argv = settings.command(512, "-Xshare:auto", "c", "w", "n1", "198.18.0.10")

    assert text.count('listenAddresses = ["198.18.0.10"]') == 2
    assert "-Dmicronaut.server.host=198.18.0.10" in argv[: argv.index(settings.MAIN)]


def test_what_a_plan_sets_reaches_the_node() -> None:
    options = Options(fsync=True, failure_handler="stopOrHalt", ping_ms=750, storage_mib=64)
    text = config(msgspec.structs.replace(options, raft_retry_ms=60_000))

    assert "raft.retryTimeoutMillis = 60000" in text
    assert "raft.fsync = true" in text
    assert "handler.type = stopOrHalt" in text
    assert "failurePingIntervalMillis = 750" in text
    assert f"sizeBytes = {64 << 20}" in text
    assert "raft.fsync = false" in config(Options())
    assert "retryTimeout" not in config(Options())


def test_the_cluster_is_told_how_long_to_wait_and_when_to_force_a_partition() -> None:
    text = settings.cluster_config(Options(reset_timeout_s=5, rpc_timeout_ms=9_000))

    assert 'partitionDistributionResetTimeout = "5"' in text
    assert "rpcTimeoutMillis = 9000" in text


def test_the_mode_and_the_quorum_of_a_zone_are_the_plans() -> None:
    zone = statements(Options(mode="HA", quorum=2))[0]

    assert "CONSISTENCY MODE 'HIGH_AVAILABILITY'" in zone
    assert "QUORUM SIZE 2, " in zone
    assert "QUORUM" not in statements(Options())[0]


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        (Options(), FIVE),
        (Options(system_nodes=1, system_apart=True), ("n2", "n3", "n4", "n5")),
        (Options(system_nodes=1, system_apart=True, gateway_nodes=1), ("n2", "n3", "n4")),
        (Options(gateway_nodes=2), ("n1", "n2", "n3")),
    ],
)
def test_nodes_apart_and_gateways_hold_no_data(options: Options, nodes: tuple[str, ...]) -> None:
    assert data_nodes(options, FIVE) == nodes


def test_a_highly_available_zone_may_forget_once_its_majority_is_out() -> None:
    highly = system.build({"mode": "HA", "replicas": 3}, FIVE, 1).declaration
    strongly = system.build({"replicas": 3}, FIVE, 1).declaration

    assert (highly.mode, highly.forgets_without, highly.keepers) == ("HA", 2, FIVE)
    assert strongly.forgets_without is msgspec.UNSET


@pytest.mark.parametrize(
    ("options", "nodes"),
    [
        (Options(replicas=1), 1),
        (Options(replicas=2), 1),
        (Options(replicas=3), 2),
        (Options(replicas=4), 2),  # three voters and a learner
        (Options(replicas=5), 3),
        (Options(replicas=7), 3),  # five voters and two learners
        (Options(replicas=7, quorum=4), 4),
    ],
)
def test_a_majority_is_one_of_voters(options: Options, nodes: int) -> None:
    assert blocking(options) == nodes


def test_only_nodes_that_hold_data_carry_what_the_zone_asks_for() -> None:
    assert "holds = data" in config(Options())
    assert "holds = nothing" in config(Options(), data=False)
    assert '(@.holds == "data")' in statements(Options())[0]


def test_scale_down_is_off_unless_a_plan_gives_seconds() -> None:
    assert "AUTO SCALE DOWN OFF" in statements(Options())[0]
    assert "AUTO SCALE DOWN 5)" in statements(Options(scale_down_s=5))[0]


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"system_nodes": 6}, "system.system_nodes"),
        ({"replicas": 6}, "system.replicas"),
        ({"replicas": 3, "system_apart": True}, "system.replicas"),
        ({"release": "2.0"}, "system.release"),
        ({"gateway_nodes": 7}, "system.gateway_nodes"),
        ({"gateway_nodes": 3, "system_nodes": 3}, "system.gateway_nodes"),
        ({"replicas": 3, "quorum": 1}, "system.quorum"),
        ({"replicas": 3, "quorum": 3}, "system.quorum"),
        ({"reset_timeout_s": 2**31}, "system.reset_timeout_s"),
        ({"scale_down_s": -1}, "system.scale_down_s"),
        ({"partitionz": 3}, "system.partitionz"),
    ],
)
def test_a_plan_that_can_not_be_is_refused_by_its_key(
    options: dict[str, object], path: str
) -> None:
    with pytest.raises(PlanError) as caught:
        system.build(options, FIVE, 1)

    assert caught.value.path == path


def test_only_nodes_that_hold_data_may_be_a_majority() -> None:
    apart = {"mode": "HA", "system_nodes": 1, "system_apart": True, "gateway_nodes": 1}

    assert system.build(apart, FIVE, 1).declaration.keepers == ("n2", "n3", "n4")


@pytest.mark.parametrize(
    ("replicas", "bounds"), [(1, (1, 1)), (2, (2, 2)), (3, (2, 2)), (5, (2, 3)), (7, (2, 4))]
)
def test_the_release_bounds_the_quorum_by_the_replicas(
    replicas: int, bounds: tuple[int, int]
) -> None:
    assert quorums(replicas) == bounds


@pytest.mark.parametrize(("nodes", "replicas", "managing"), [(1, 1, 1), (2, 2, 1), (5, 3, 3)])
def test_a_small_cluster_has_as_many_replicas_and_system_nodes_as_it_can(
    nodes: int, replicas: int, managing: int
) -> None:
    chosen = system.build({}, FIVE[:nodes], 1)._options

    assert (chosen.replicas, chosen.system_nodes) == (replicas, managing)


def test_local_nodes_need_what_set_up_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    local = {name: Address(host="127.0.0.1", port=7) for name in ("peer", "client", "rest")}
    cluster = Cluster(
        nodes=("n1",), bind={"n1": local}, peer={}, client={"n1": local}, work_dir={"n1": "/x"}
    )

    with pytest.raises(NotPrepared, match="home of nodes on this machine is missing"):
        system.build({}, ("n1",), 1).program("n1", cluster)


@pytest.mark.parametrize("kind", ["partition", "one-way", "delay"])
def test_a_cut_that_local_nodes_would_walk_around_is_refused_by_name(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("run", "--system", "ignite3", "--provider", "process", "--nodes", "3")
    fault = ("--schedule", f"1:{kind}:n1:1", "--duration", "9", "--executor", "local")

    code = execute((*words, *fault, "--runs-dir", str(tmp_path)))

    assert code == EXIT_USAGE
    assert f"{kind!r}" in (said := capsys.readouterr().err)
    assert "not available here; nodes of ignite3 walk around what provider process does" in said
    assert not [path for path in tmp_path.iterdir() if path.is_dir() and not path.is_symlink()]


@pytest.mark.parametrize(
    ("java", "made", "said"),
    [
        (False, True, "java is not installed; install a JDK"),
        (False, False, "the driver of clients is missing"),
        (True, False, "the driver of clients is missing"),
    ],
)
def test_a_run_that_lacks_what_set_up_makes_is_refused_before_a_node_is_made(
    java: bool,
    made: bool,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("run", "--system", "ignite3", "--provider", "process", "--nodes", "3")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    if made:
        usual = Artifacts()
        for directory in (usual.client_library, usual.root / f"driver-{driver_digest()}"):
            directory.mkdir(parents=True)
    if java:
        (tmp_path / "bin" / "java").write_text("")
        (tmp_path / "bin" / "java").chmod(0o755)

    fault = ("--schedule", "1:kill:n1:1", "--duration", "9", "--executor", "local")
    code = execute((*words, *fault, "--runs-dir", str(tmp_path / "runs")))

    assert code == EXIT_USAGE
    assert said in (told := capsys.readouterr().err)
    assert "provision" not in told
    assert not [p for p in (tmp_path / "runs").iterdir() if p.is_dir() and not p.is_symlink()]


@pytest.mark.parametrize(
    ("given", "liveness_s"),
    [({}, 20.0), ({"suspicion": 4}, 23.0), ({"lease_ms": 60_000, "ping_ms": 1_000}, 78.0)],
)
def test_a_partition_may_stand_still_as_long_as_detection_and_lease_of_the_plan_take(
    given: dict[str, object], liveness_s: float
) -> None:
    assert system.build(given, FIVE, 1).declaration.liveness_s == liveness_s


def test_the_system_takes_back_whom_it_threw_out() -> None:
    assert isinstance(system.build({}, FIVE, 1), Readmits)


def test_a_lock_that_was_not_granted_is_definite_and_a_lost_connection_is_not() -> None:
    assert classify("commit", "TX-4", error_table.ERRORS) is OpType.FAIL
    assert classify("commit", error_table.CONNECTION_LOST, error_table.ERRORS) is OpType.INFO
    assert classify("step", error_table.CONNECTION_LOST, error_table.ERRORS) is OpType.FAIL


def test_a_code_in_no_row_is_indefinite_at_commit() -> None:
    assert classify("commit", "TX-99", error_table.ERRORS) is OpType.INFO


def test_a_node_that_nobody_reaches_tells_nothing() -> None:
    nobody = Address(host="127.0.0.1", port=1)

    assert asyncio.run(rest.node_state(nobody)) is None
    assert asyncio.run(rest.logical_topology(nobody)) is None


def test_a_wait_ends_with_what_was_lacking() -> None:
    async def lacking() -> list[str]:
        return ["n3 is not in the topology"]

    async def wait() -> None:
        await waiting.Ends(asyncio.get_running_loop().time() - 1).until(lacking)

    with pytest.raises(HarnessError, match="n3 is not in the topology"):
        asyncio.run(wait())


def test_every_scenario_is_a_plan_for_the_prepared_image() -> None:
    found = sorted((ROOT / "scenarios" / "ignite3").glob("*.toml"))

    assert found
    for path in found:
        plan = load(path, seed=1)
        assert plan.system.name == "ignite3"
        assert system.build(plan.system.options, FIVE[: plan.cluster.nodes], 1)
        image = tomllib.loads(path.read_text())["cluster"]["options"]["image"]
        assert image == f"firedrill-ignite3:{RELEASE}"


@pytest.mark.parametrize(
    ("state", "members", "seen", "out"),
    [
        ("STARTED", {"n1", "n2"}, {"n1", "n2"}, False),
        ("STARTED", {"n1"}, {"n1", "n2"}, True),
        ("STARTED", {"n1"}, {"n1"}, True),
        ("STARTING", {"n1"}, {"n1", "n2"}, False),  # on its way in
        ("STARTING", {"n1"}, {"n1"}, True),  # thrown out on its way
        ("STARTING", {"n1"}, set(), False),  # nobody tells
        ("STARTED", set(), {"n1"}, False),  # no cluster yet
    ],
)
def test_a_node_that_the_others_do_not_see_was_thrown_out(
    state: str, members: set[str], seen: set[str], out: bool
) -> None:
    assert waiting.is_out("n2", state, frozenset(members), frozenset(seen)) is out


def test_the_topology_is_what_the_most_nodes_tell() -> None:
    alone, others = frozenset({"n3"}), frozenset({"n1", "n2"})

    assert waiting.most_told((alone, others, others, None)) == others
    assert waiting.most_told((None, None)) == frozenset()


def test_who_waits_mends_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "MEND_EVERY_S", 0.0)
    monkeypatch.setattr(waiting, "POLL_S", 0.0)
    lacking = ["n3 is not in the topology"]

    async def look() -> list[str]:
        return lacking

    async def mend() -> None:
        lacking.clear()

    async def wait() -> None:
        await waiting.Ends(asyncio.get_running_loop().time() + 30).until(look, mend)

    asyncio.run(wait())
    assert not lacking


def test_a_node_that_refuses_a_member_while_it_starts_never_comes_in() -> None:
    members, seen = frozenset({"n1", "n2"}), frozenset({"n1", "n2", "n3"})

    assert waiting.is_out("n3", "STARTING", members, seen, frozenset({"n2", "n3"}))
    assert not waiting.is_out("n3", "STARTING", members, seen, seen)
    assert not waiting.is_out("n2", "STARTED", members, seen, frozenset({"n2"}))


def test_before_there_is_a_cluster_those_start_again_that_one_before_them_does_not_see() -> None:
    everyone, nodes = frozenset(FIVE), FIVE
    alone = frozenset({"n3"})

    assert waiting.unseen_nodes(nodes, dict.fromkeys(nodes, everyone)) == ()
    assert waiting.unseen_nodes(nodes, dict.fromkeys(nodes, everyone) | {"n3": alone}) == ("n3",)
    assert waiting.unseen_nodes(nodes, dict.fromkeys(nodes, everyone) | {"n4": None}) == ()
    without = everyone - {"n5"}
    assert waiting.unseen_nodes(nodes, dict.fromkeys(nodes, everyone) | {"n1": without}) == ("n5",)
