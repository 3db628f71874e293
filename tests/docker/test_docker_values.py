"""The parts of the docker provider that are functions of values."""

from __future__ import annotations

import io
import tarfile
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from clusters.providers.docker import daemon_tasks, images, machines, subnets
from clusters.providers.docker.daemon import NoDaemon, connect
from clusters.providers.docker.doctor import diagnose
from clusters.providers.docker.machines import usage_of
from clusters.providers.docker.provider import build
from clusters.providers.remote import delays, install, links, packet_rules, program, ssh_session
from clusters.providers.remote.requirements import Interpreter
from harness.errors import PlanError, UsageError
from harness.protocols.cluster import LinkShape, PortSpec, PythonTree
from harness.protocols.resource_usage import NodeUsage

ADDRESSES = {"n1": "198.18.7.10", "n2": "198.18.7.11", "n3": "198.18.7.12"}
STAT = "24 (a) b) {state} 1 24 24 0 -1 4194560 1 0 0 0 1 2 0 0 20 0 1 0 {ticks} 100 5"


def test_a_cut_is_a_chain_that_drops_by_source_and_spares_the_control_port() -> None:
    grudge = (("n1", "n3"), ("n2", "n1"), ("n2", "n3"))

    at_n3 = packet_rules.drops_at("n3", grudge, (), ADDRESSES)
    assert at_n3 == (packet_rules.Drop("198.18.7.10"), packet_rules.Drop("198.18.7.11"))
    assert packet_rules.chain(packet_rules.drops_at("n1", grudge, (), ADDRESSES), 22) == (
        "*filter\n"
        ":FIREDRILL - [0:0]\n"
        "-A FIREDRILL -p tcp -m tcp --dport 22 -j RETURN\n"
        "-A FIREDRILL -p tcp -m tcp --sport 22 -j RETURN\n"
        "-A FIREDRILL -s 198.18.7.11/32 -j DROP\n"
        "COMMIT\n"
    )
    assert packet_rules.drops_at("n1", (), (), ADDRESSES) == ()


@pytest.mark.parametrize("chunk_bytes", [1, 700, 1 << 20])
@pytest.mark.parametrize(
    ("content", "left_out", "kept"),
    [
        (b"early, late", 7, b"late"),
        (b"late", 0, b"late"),
        (b"", 0, b""),
        (b"\0" * 5000 + b"te", 5000, b"te"),
        (b"early\0\0a\0b", 7, b"a\0b"),
    ],
)
def test_the_end_of_a_log_is_copied_without_the_hole_before_it(
    content: bytes, left_out: int, kept: bytes, chunk_bytes: int
) -> None:
    packed, copied = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        about = tarfile.TarInfo("node.log")
        about.size = len(content)
        tar.addfile(about, io.BytesIO(content))
    sent = packed.getvalue()
    chunks = (sent[i : i + chunk_bytes] for i in range(0, len(sent), chunk_bytes))

    assert machines.copy_tail(chunks, 4, copied) == left_out
    assert copied.getvalue() == kept


def test_a_loss_is_a_chance_in_the_chain_behind_the_cuts() -> None:
    shapes = (
        LinkShape(link=("n2", "n1"), loss=0.25, delay_s=0.1),
        LinkShape(link=("n1", "n2"), loss=0.5),
        LinkShape(link=("n3", "n2"), delay_s=0.1),
    )
    at_n1 = packet_rules.drops_at("n1", (("n3", "n1"),), shapes, ADDRESSES)

    assert packet_rules.chain(at_n1, 22).splitlines()[4:6] == [
        "-A FIREDRILL -s 198.18.7.12/32 -j DROP",
        "-A FIREDRILL -s 198.18.7.11/32 -m statistic --mode random --probability 0.250000 -j DROP",
    ]
    assert packet_rules.drops_at("n2", (), shapes, ADDRESSES) == (
        packet_rules.Drop("198.18.7.10", 0.5),
    )


def test_a_delay_is_a_branch_for_each_peer_and_nothing_without_one() -> None:
    shapes = (
        LinkShape(link=("n1", "n3"), delay_s=0.1),
        LinkShape(link=("n1", "n2"), delay_s=0.0025),
        LinkShape(link=("n2", "n1"), loss=0.5),
    )

    assert delays.tree(delays.delays_at("n1", shapes, ADDRESSES)).splitlines() == [
        "qdisc add dev DEVICE root handle 1: htb",
        "class add dev DEVICE parent 1: classid 1:1 htb rate 10gbit quantum 60000",
        "qdisc add dev DEVICE parent 1:1 netem delay 2.5ms limit 10000",
        "filter add dev DEVICE parent 1: protocol ip u32 match ip dst 198.18.7.11/32 flowid 1:1",
        "class add dev DEVICE parent 1: classid 1:2 htb rate 10gbit quantum 60000",
        "qdisc add dev DEVICE parent 1:2 netem delay 100ms limit 10000",
        "filter add dev DEVICE parent 1: protocol ip u32 match ip dst 198.18.7.12/32 flowid 1:2",
    ]
    assert delays.tree(delays.delays_at("n2", shapes, ADDRESSES)) == ""


def test_every_free_subnet_is_tried_once_and_no_taken_one() -> None:
    taken = (IPv4Network("198.18.1.0/24"), IPv4Network("198.19.0.0/17"), IPv4Network("10.0.0.0/8"))

    tried = list(subnets.candidates("some run", taken))

    assert len(tried) == len(set(tried)) == 512 - 1 - 128
    assert not any(subnet.overlaps(other) for subnet in tried for other in taken)
    assert next(subnets.candidates("another run", taken)) != tried[0]


def test_routes_of_the_host_are_taken_and_the_default_route_is_not(tmp_path: Path) -> None:
    table = tmp_path / "route"
    table.write_text(
        "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n"
        "eth0\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0\n"
        "docker0\t000112C6\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
    )

    assert subnets.routed(table) == (IPv4Network("198.18.1.0/24"),)
    assert subnets.routed(tmp_path / "none") == ()


def test_nodes_get_fixed_addresses_in_their_order() -> None:
    assert subnets.addresses(IPv4Network("198.18.7.0/24"), ("n1", "n2", "n3")) == ADDRESSES


@pytest.mark.parametrize(
    ("text", "mirror"),
    [
        ("deb http://mirror.example/debian bookworm main", "http://mirror.example/debian"),
        ("deb [signed-by=/k] https://m.example/debian/ sid main", "https://m.example/debian"),
        ("Types: deb\nURIs: http://m.example/debian\nSuites: trixie", "http://m.example/debian"),
        ("# deb http://old.example/debian bookworm main", None),
        ("deb http://m.example/debian-security bookworm main", None),
        ("deb http://archive.example/ubuntu noble main", None),
    ],
)
def test_the_mirror_comes_from_the_hosts_own_lists(text: str, mirror: str | None) -> None:
    assert images.mirror_of([text]) == mirror


def test_the_image_s_name_follows_from_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    before = images.tag()
    assert images.tag() == before

    monkeypatch.setattr(images, "PACKAGES", (*images.PACKAGES, "strace"))

    assert images.tag() != before


@pytest.mark.parametrize("state", ["R", "S", "D", "T"])
def test_a_live_process_is_read_from_proc_whatever_its_name(state: str) -> None:
    me = program.Process(pid=24, ticks=777)

    seen = program.status("n1", me, STAT.format(state=state, ticks=777))

    assert (seen.running, seen.paused, seen.pid) == (True, state == "T", 24)
    assert seen.boot == me.boot


@pytest.mark.parametrize(
    "text", [STAT.format(state="Z", ticks=777), STAT.format(state="S", ticks=778), "", "24 (x"]
)
def test_a_zombie_another_process_of_the_pid_or_nothing_is_not_running(text: str) -> None:
    me = program.Process(pid=24, ticks=777)

    seen = program.status("n1", me, text, exit_text="gone")

    assert (seen.running, seen.exit_text) == (False, "gone")


def test_a_tree_is_importable_by_its_name_and_leaves_caches_behind(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "x.pyc").write_bytes(b"old")
    (tmp_path / "__init__.py").write_text("")
    (tmp_path / "core.py").write_text("x = 1")

    data = install.archive(
        install.python_trees((PythonTree(source=str(tmp_path), package="a.b.c"),))
    )

    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames() == [
            "a/__init__.py",
            "a/b/__init__.py",
            "a/b/c/__init__.py",
            "a/b/c/core.py",
        ]
    with pytest.raises(UsageError, match="no directory"):
        install.python_trees((PythonTree(source=str(tmp_path / "none"), package="a"),))


@pytest.mark.parametrize(
    ("log", "said"),
    [
        (b"", ""),
        (b"rtial line\nTraceback\n  KeyError: 'x'\n\n", "KeyError: 'x'"),
        (b"x" * 121, "x" * 120 + "..."),
        (
            b"began\nLockException: held\n\tat a.B.c(B.java:1)\n\t... 57 more\n",
            "LockException: held",
        ),
        (b"Lock.java:9)\n\tat a.B.c(B.java:1)\n\t... 5 more\n", "Lock.java:9)"),
        (b"\xff\x1b[31m", "\ufffd\x1b[31m"),
    ],
)
def test_of_a_log_the_last_line_that_says_something_is_told(log: bytes, said: str) -> None:
    assert daemon_tasks.last_words(log) == said


@pytest.mark.parametrize("path", ["../etc/passwd", "/etc/passwd", "a/../../b", ""])
def test_a_file_outside_the_work_directory_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="below its work directory"):
        install.archive({path: (b"", 0o644)})


def test_wheels_are_chosen_for_the_machine_and_not_for_the_controller() -> None:
    options = Interpreter(
        path="/usr/bin/python3", version=(3, 11), machine="aarch64", glibc_minor=18
    ).pip_options

    assert options[:3] == (
        "--platform=manylinux_2_18_aarch64",
        "--platform=manylinux_2_17_aarch64",
        "--platform=manylinux2014_aarch64",
    )
    assert "--abi=cp311" in options


def test_a_key_never_shows_in_a_text() -> None:
    key = ssh_session.generate_key()

    assert key.private_text not in repr(key)
    assert key.public_line.startswith("ssh-ed25519 ")
    assert ssh_session.generate_key() != key


def test_an_option_that_is_not_known_is_refused_by_name() -> None:
    with pytest.raises(PlanError, match=r"cluster\.options\.memroy_mib: unknown key"):
        build("r", {"memroy_mib": 1}, Path("unused"))


def test_without_a_daemon_one_sentence_says_where_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")

    with pytest.raises(NoDaemon) as caught:
        connect()

    text = str(caught.value)
    assert "none.sock" in text
    assert "No such file" in text
    assert "--provider process" in text
    assert "\n" not in text
    first = diagnose()[0]
    assert (first.name, first.ok, first.remedy) == ("docker daemon", False, "scripts/start-docker")


@pytest.mark.parametrize(
    ("loss", "rounds"), [(0.0, 3), (0.01, 3), (0.3, 12), (0.9, 132), (0.97, None), (1.0, None)]
)
def test_the_more_a_link_loses_the_more_is_sent_over_it(loss: float, rounds: int | None) -> None:
    assert links.rounds_against(loss) == rounds


def test_nodes_are_dialled_from_the_bridge_only_where_it_is_this_machines() -> None:
    subnet = IPv4Network("198.18.7.0/24")

    assert subnets.source_in(subnet, lambda address: address == "198.18.7.1") == "198.18.7.1"
    assert subnets.source_in(subnet, lambda address: False) == ""


def test_only_the_controller_dials_from_the_bridge() -> None:
    ports = (PortSpec(name="peer", between_nodes=True),)

    cluster = subnets.cluster_at(ADDRESSES, ports, "/work", "198.18.7.1")

    assert {at["peer"].source for at in cluster.client.values()} == {"198.18.7.1"}
    assert {at["peer"].source for at in (*cluster.bind.values(), *cluster.peer.values())} == {""}


def test_a_disk_that_the_kernel_does_not_count_is_not_told() -> None:
    stats: dict[str, Any] = {
        "cpu_stats": {"cpu_usage": {"total_usage": 2_000_000_000}},
        "memory_stats": {"usage": 300, "stats": {"inactive_file": 100}},
        "networks": {"eth0": {"rx_bytes": 5, "tx_bytes": 7}},
        "blkio_stats": {"io_service_bytes_recursive": []},
    }
    rows = [{"op": "Read", "value": 1}, {"op": "Write", "value": 2}, {"op": "write", "value": 3}]

    untold = usage_of(stats)
    told = usage_of(stats | {"blkio_stats": {"io_service_bytes_recursive": rows}})

    assert untold == NodeUsage(cpu_s=2.0, memory_bytes=200, received_bytes=5, sent_bytes=7)
    assert told is not None
    assert (told.read_bytes, told.written_bytes) == (1, 5)
    assert usage_of({"cpu_stats": {}}) is None
