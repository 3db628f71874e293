"""Containers as machines: each fault is seen by another way than the one that made it."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import docker
import pytest
from docker_runs import NODES, PORTS, Run, named, owned, running

from clusters.ignite3 import rest
from clusters.ignite3.client import unroutable
from clusters.providers.docker.cleanup import cleanup
from clusters.providers.docker.container import CAPABILITIES, Limits
from clusters.providers.docker.container_shell import log
from clusters.providers.docker.doctor import _netem, _statistic
from clusters.providers.docker.provider import build
from clusters.providers.remote import program
from clusters.providers.remote.ssh_session import Unreachable
from clusters.reference.node.runtime import ConnectionLost
from clusters.reference.node.runtime.real import TcpNetwork
from harness.errors import HarnessError, PlanError, UsageError
from harness.protocols.cluster import Capability, Program

pytestmark = pytest.mark.docker


def test_a_container_can_be_killed_paused_cut_and_lost(docker_daemon: docker.APIClient) -> None:
    async def story() -> frozenset[Capability]:
        async with running(named("able"), ("n1",)) as run:
            return await run.provider.capabilities()

    assert asyncio.run(story()) == {
        Capability.KILL,
        Capability.PAUSE,
        Capability.PARTITION,
        Capability.ONE_WAY_PARTITION,
        Capability.HOST_LOSS,
        Capability.FREEZE,
        Capability.WIPE,
        Capability.COMMANDS,
        *_kernel_offers(),
    }
    assert owned(docker_daemon, named("able")) == []


def _kernel_offers() -> set[Capability]:
    """What depends on the kernel's modules, tried in another way than the provider's."""
    offers = {Capability.PACKET_LOSS: _statistic(), Capability.DELAY: _netem()}
    return {able for able, finding in offers.items() if finding.ok}


def test_a_killed_program_is_gone_and_comes_back_as_another_boot(
    docker_daemon: docker.APIClient,
) -> None:
    async def story(run: Run) -> None:
        await run.start_all()
        first = await run.provider.probe("n1")
        assert first.running
        assert await run.asked("n2", "n1") == "ok"

        killed = await run.provider.kill("n1")

        assert not killed.running
        seen = await run.provider.probe("n1")
        assert (seen.running, seen.boot) == (False, first.boot)
        assert seen.exit_text == "ended"
        assert "talker listens on" in seen.last_words
        assert await run.asked("n2", "n1") == "reset"
        assert (await run.provider.probe("n2")).running

        again = await run.provider.start("n1")
        await run.ready("n1")

        assert again.running
        assert again.boot not in (None, first.boot)
        assert await run.asked("n2", "n1") == "ok"

    _with_run(named("kill"), story)


def test_a_kill_that_nobody_awaits_any_longer_lands_before_the_next_start(
    docker_daemon: docker.APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, real = threading.Event(), program.act

    def slow(*given: Any) -> str:
        go.wait(5)
        return real(*given)

    async def story(run: Run) -> None:
        await run.install("n1")
        before = await run.provider.start("n1")
        monkeypatch.setattr(program, "act", slow)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await run.provider.kill("n1")
        asyncio.get_running_loop().call_later(0.5, go.set)

        after = await run.provider.start("n1")

        assert after.running
        assert after.boot != before.boot

    _with_run(named("order"), story, ("n1",))


def test_a_freeze_that_nobody_awaits_any_longer_lands_before_the_thaw_that_heals_it(
    docker_daemon: docker.APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go, landed = threading.Event(), threading.Event(), threading.Event()
    real = docker.APIClient.pause

    def slow(*given: Any) -> None:
        entered.set()
        go.wait(5)
        real(*given)
        landed.set()

    async def story(run: Run) -> None:
        monkeypatch.setattr(docker.APIClient, "pause", slow)
        freeze = asyncio.ensure_future(run.provider.freeze("n1"))
        assert await asyncio.to_thread(entered.wait, 20)
        freeze.cancel()
        await asyncio.wait({freeze})
        asyncio.get_running_loop().call_later(0.5, go.set)

        thawed = await run.provider.thaw("n1")

        assert landed.is_set()
        assert not thawed.frozen

    _with_run(named("lane"), story, ("n1",))


def test_a_paused_program_answers_nobody_until_it_is_resumed(
    docker_daemon: docker.APIClient,
) -> None:
    async def story(run: Run) -> None:
        await run.start_all()
        before = await run.provider.probe("n3")

        await run.provider.pause("n3")

        paused = await run.provider.probe("n3")
        assert (paused.running, paused.paused, paused.boot) == (True, True, before.boot)
        assert await run.asked("n1", "n3") == "timeout"
        assert not (await run.provider.probe("n2")).paused

        await run.provider.resume("n3")

        assert await run.provider.probe("n3") == before

    _with_run(named("pause"), story)


def test_starting_twice_leaves_the_program_as_it_is_and_stopping_ends_it(
    docker_daemon: docker.APIClient,
) -> None:
    async def story(run: Run) -> None:
        await run.install("n1")
        first = await run.provider.start("n1")

        assert await run.provider.start("n1") == first
        assert not (await run.provider.stop("n1")).running
        assert not (await run.provider.stop("n1")).running
        assert not (await run.provider.probe("n1")).running

    _with_run(named("stop"), story, ("n1",))


def test_a_program_that_ignores_sigterm_is_stopped_all_the_same(
    docker_daemon: docker.APIClient,
) -> None:
    deaf = "import signal, threading; signal.signal(15, signal.SIG_IGN); threading.Event().wait()"

    async def story(run: Run) -> None:
        await run.provider.install("n1", Program(argv=("python3", "-c", deaf)))
        assert (await run.provider.start("n1")).running

        assert not (await run.provider.stop("n1")).running
        assert not (await run.provider.probe("n1")).running

    _with_run(named("deaf"), story, ("n1",))


def test_a_one_way_cut_drops_one_direction_only_also_of_open_connections(
    docker_daemon: docker.APIClient,
) -> None:
    async def story(run: Run) -> None:
        await run.start_all()
        assert await run.asked("n1", "n2") == "ok"

        await run.provider.cut((("n1", "n2"),))

        every = tuple((a, b) for a in NODES for b in NODES if a != b)
        arrived = await run.provider.probe_links(every)
        assert [link for link, passed in arrived.items() if not passed] == [("n1", "n2")]
        assert await run.asked("n1", "n2") == "timeout"
        assert await run.asked("n1", "n3") == "ok"

        await run.provider.cut(())

        assert all((await run.provider.probe_links(every)).values())

    _with_run(named("oneway"), story)


def test_a_cut_both_ways_lets_no_new_connection_through_and_heals(
    docker_daemon: docker.APIClient,
) -> None:
    async def story(run: Run) -> None:
        await run.start_all()
        links = (("n1", "n3"), ("n3", "n1"))

        await run.provider.cut(links)
        await run.provider.cut(links)

        assert await run.provider.probe_links(links) == dict.fromkeys(links, False)
        assert await run.asked("n1", "n3") == "timeout"
        assert await run.asked("n3", "n1") == "timeout"
        assert await run.asked("n2", "n3") == "ok"

        await run.provider.cut(())

        assert await run.provider.probe_links(links) == dict.fromkeys(links, True)
        assert await run.asked("n1", "n3") == "ok"

    _with_run(named("bothways"), story)


def test_nobody_hears_a_reset_of_a_lost_machine_and_it_returns_with_disk_and_cut(
    docker_daemon: docker.APIClient,
) -> None:
    async def story(run: Run) -> None:
        await run.start_all()
        assert await run.asked("n1", "n3") == "ok"

        before = await run.provider.probe("n3")

        await run.provider.lose("n3")
        await run.provider.lose("n3")

        assert await run.asked("n1", "n3") == "timeout"
        seen = await run.provider.probe("n3")
        assert (seen.running, seen.boot) == (False, before.boot)
        await run.provider.cut((("n2", "n3"),))
        assert await run.provider.probe_links((("n1", "n3"), ("n1", "n2"))) == {("n1", "n2"): True}

        assert not (await run.provider.restore("n3")).running
        assert not (await run.provider.restore("n3")).running
        again = await run.provider.start("n3")
        assert (again.running, again.boot == before.boot) == (True, False)
        await run.ready("n3")

        assert await run.provider.probe_links((("n1", "n3"), ("n2", "n3"))) == {
            ("n1", "n3"): True,
            ("n2", "n3"): False,
        }
        content = await _collected(run, "n3")
        assert content.count("talker listens on") == 2

    _with_run(named("lose"), story)


async def _collected(run: Run, node: str) -> str:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as into:
        await run.provider.collect(node, Path(into) / "logs")
        assert "Server listening" in (Path(into) / "logs" / "container.log").read_text()
        return (Path(into) / "logs" / "node.log").read_text()


def test_logs_of_a_lost_machine_are_collected_too(docker_daemon: docker.APIClient) -> None:
    async def story(run: Run) -> None:
        await run.start_all()
        await run.provider.lose("n1")

        assert "talker listens on" in await _collected(run, "n1")

    _with_run(named("collect"), story, ("n1",))


def test_files_and_environment_reach_the_program_and_its_end_is_told(
    docker_daemon: docker.APIClient,
) -> None:
    code = "import os; print(open('conf/a.txt').read(), os.environ['COLOUR']); raise SystemExit(3)"
    program = Program(
        argv=("python3", "-c", code), env={"COLOUR": "$red; 'x'"}, files={"conf/a.txt": b"hello"}
    )

    async def story(run: Run) -> None:
        await run.provider.install("n1", program)
        await run.provider.start("n1")
        async with asyncio.timeout(5):
            while (seen := await run.provider.probe("n1")).running:
                pass

        assert "hello $red; 'x'" in seen.last_words

    _with_run(named("files"), story, ("n1",))


def test_a_program_that_the_kernel_killed_for_memory_ends_with_that_in_its_text(
    docker_daemon: docker.APIClient,
) -> None:
    greedy = Program(argv=("python3", "-c", "held = b'x' * (2 << 30)"))

    async def story(run: Run) -> None:
        await run.provider.install("n1", greedy)
        await run.provider.start("n1")
        async with asyncio.timeout(60):
            while (seen := await run.provider.probe("n1")).running:
                pass

        assert "after the kernel killed 1 process there for memory" in seen.exit_text

    _with_run(named("memory"), story, ("n1",))


def test_a_log_that_grows_without_end_keeps_its_end_and_its_offsets(
    docker_daemon: docker.APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusters.providers.remote.program.LOG_KEPT_BYTES", 1 << 20)
    monkeypatch.setattr("clusters.providers.remote.program.LOG_LOOK_S", 1)
    code = "print('x' * 8_000_000, flush=True); print('the end', flush=True); input()"
    flood = Program(argv=("sh", "-c", 'sleep 60 | python3 -c "$0"', code))
    size = 8_000_000 + len("\nthe end\n")

    async def story(run: Run) -> None:
        await run.provider.install("n1", flood)
        await run.provider.start("n1")
        container = f"firedrill-{named('flood')}-n1"
        made = ["stat", "--format=%s %b", "/var/lib/firedrill/node.log"]
        async with asyncio.timeout(20):
            blocks = size
            while not 0 < blocks * 512 < 2 << 20:
                asked = await asyncio.to_thread(docker_daemon.exec_create, container, made)
                said = await asyncio.to_thread(docker_daemon.exec_start, asked["Id"])
                apparent, blocks = map(int, said.split())
        piece = await run.provider.read_log("n1", size - 9, 100)

        assert apparent == size
        assert piece.content == b"\nthe end\n"
        shown = await asyncio.to_thread(
            lambda: b"".join(log(named("flood"), "n1", "", follow=False))
        )
        assert shown.endswith(b"xxx\nthe end\n")
        assert b"\0" not in shown
        assert (await _collected(run, "n1")).endswith("xxx\nthe end\n")

    _with_run(named("flood"), story, ("n1",))


def test_the_lost_beginning_of_a_log_is_counted(
    docker_daemon: docker.APIClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusters.providers.docker.daemon_tasks.NODE_LOG_BYTES", 1000)
    code = "print('x' * 5000, flush=True); print('the end', flush=True); input()"
    chatty = Program(argv=("sh", "-c", 'sleep 60 | python3 -c "$0"', code))

    async def story(run: Run) -> None:
        await run.provider.install("n1", chatty)
        await run.provider.start("n1")
        async with asyncio.timeout(20):
            while not (await run.provider.read_log("n1", 0, 9000)).content.endswith(b"end\n"):
                pass

        left_out = await run.provider.collect("n1", tmp_path)

        assert left_out == {"node.log": 4009}
        assert (tmp_path / "node.log").read_bytes() == b"x" * 991 + b"\nthe end\n"

    _with_run(named("chatty"), story, ("n1",))


def test_where_a_file_system_makes_no_holes_the_dropped_parts_of_a_log_are_counted(
    docker_daemon: docker.APIClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusters.providers.remote.program.LOG_KEPT_BYTES", 1000)
    monkeypatch.setattr("clusters.providers.remote.program.LOG_LOOK_S", 1)
    code = (
        "import os, time\n"
        "print('x' * 5000, flush=True)\n"
        "while not os.path.exists('/run/firedrill-log-dropped'): time.sleep(0.1)\n"
        "print('the end', flush=True); input()"
    )
    flood = Program(argv=("sh", "-c", 'sleep 60 | python3 -c "$0"', code))

    async def story(run: Run) -> None:
        container = f"firedrill-{named('no-holes')}-n1"
        refuse = ["ln", "-sf", "/bin/false", "/usr/bin/fallocate"]
        made = await asyncio.to_thread(docker_daemon.exec_create, container, refuse)
        await asyncio.to_thread(docker_daemon.exec_start, made["Id"])
        await run.provider.install("n1", flood)
        await run.provider.start("n1")
        async with asyncio.timeout(30):
            while (await run.provider.read_log("n1", 0, 9000)).content != b"the end\n":
                pass

        assert await run.provider.collect("n1", tmp_path) == {"node.log": 5001}
        assert (tmp_path / "node.log").read_bytes() == b"the end\n"

    _with_run(named("no-holes"), story, ("n1",))


def test_a_disk_that_refuses_collected_logs_is_named(
    docker_daemon: docker.APIClient, tmp_path: Path
) -> None:
    (tmp_path / "into").write_text("a file")

    async def story(run: Run) -> None:
        with pytest.raises(HarnessError, match=r"cannot collect logs into .*File exists"):
            await run.provider.collect("n1", tmp_path / "into")

    _with_run(named("refused"), story, ("n1",))


def test_libraries_of_a_lock_file_are_importable_on_the_node(
    docker_daemon: docker.APIClient,
) -> None:
    lock = Path(__file__).resolve().parents[2] / "requirements" / "node.lock"
    code = "import msgspec, lark, jsonpath; print(msgspec.json.encode([1]))"

    async def story(run: Run) -> None:
        await run.provider.install(
            "n1", Program(argv=("python3", "-c", code), requirements=str(lock))
        )
        await run.provider.start("n1")
        async with asyncio.timeout(10):
            while (seen := await run.provider.probe("n1")).running:
                pass

        assert "b'[1]'" in seen.last_words

    _with_run(named("libraries"), story, ("n1",))


def test_a_frozen_machine_delays_neither_others_nor_teardown(
    docker_daemon: docker.APIClient,
) -> None:
    async def story() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        async with running(named("frozen")) as run:
            await run.start_all()
            await asyncio.to_thread(docker_daemon.pause, f"firedrill-{named('frozen')}-n1")
            stuck = [asyncio.ensure_future(run.provider.kill("n1")) for _ in range(6)]
            began = loop.time()
            assert not (await run.provider.kill("n2")).running
            assert not (await run.provider.probe("n2")).running
            other_s = loop.time() - began
            assert not any(task.done() for task in stuck)
            began = loop.time()
        for task in stuck:
            task.cancel()
        await asyncio.gather(*stuck, return_exceptions=True)
        return other_s, loop.time() - began

    other_s, teardown_s = asyncio.run(story())

    assert other_s < 10  # a fraction of a second on an idle machine; the stuck calls take 20
    assert teardown_s < 30
    assert owned(docker_daemon, named("frozen")) == []


def test_two_runs_at_once_have_networks_of_their_own(docker_daemon: docker.APIClient) -> None:
    async def story() -> None:
        async with (
            running(named("one"), ("n1", "n2")) as one,
            running(named("two"), ("n1", "n2")) as two,
        ):
            await asyncio.gather(one.start_all(), two.start_all())
            hosts = [run.cluster.bind["n1"]["talk"].host for run in (one, two)]
            assert hosts[0].rsplit(".", 1)[0] != hosts[1].rsplit(".", 1)[0]

            await one.provider.cut((("n1", "n2"),))
            await one.provider.kill("n2")

            assert (await two.provider.probe("n2")).running
            assert await two.provider.probe_links((("n1", "n2"),)) == {("n1", "n2"): True}
            await one.provider.teardown()
            assert await two.asked("n1", "n2") == "ok"

    asyncio.run(story())
    assert owned(docker_daemon, named("one")) + owned(docker_daemon, named("two")) == []


def test_a_run_cancelled_while_it_provisions_leaves_nothing(
    docker_daemon: docker.APIClient,
) -> None:
    async def story() -> None:
        async with running(named("cancel")):
            pass

    async def cancelled(after_s: float) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(after_s):
                await story()

    for after_s in (0.05, 0.2, 0.4):
        asyncio.run(cancelled(after_s))

        assert owned(docker_daemon, named("cancel")) == []


@pytest.mark.parametrize("call", ["create_network", "create_container"])
def test_teardown_waits_for_what_a_cancelled_call_still_makes(
    docker_daemon: docker.APIClient, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    entered, go, made = threading.Event(), threading.Event(), threading.Event()
    real = getattr(docker.APIClient, call)

    def slow(*given: object, **named: object) -> object:
        entered.set()
        go.wait(3)
        try:
            return real(*given, **named)
        finally:
            made.set()

    monkeypatch.setattr(docker.APIClient, call, slow)

    async def story() -> None:
        provider = build(named("late"), {}, Path("unused"))
        provision = asyncio.ensure_future(provider.provision(("n1",), PORTS))
        assert await asyncio.to_thread(entered.wait, 20)
        provision.cancel()
        await asyncio.wait({provision})
        asyncio.get_running_loop().call_later(0.5, go.set)

        await provider.teardown()

        assert made.is_set()
        assert owned(docker_daemon, named("late")) == []

    asyncio.run(story())


@pytest.mark.parametrize("command", ["yes", "yes | head -c 2000000"])
def test_a_command_that_floods_its_output_is_cut_off_with_its_name(
    docker_daemon: docker.APIClient, command: str
) -> None:
    async def story() -> None:
        async with running(named("flood"), ("n1",)) as run:
            machines = run.provider._ours
            with pytest.raises(HarnessError, match="n1: sh wrote more than 1048576 bytes"):
                await asyncio.to_thread(machines.execute, "n1", ["sh", "-c", command])
            argv = ["sh", "-c", "yes | head -c 2000000; exit 3"]
            code, said = await asyncio.to_thread(machines.execute, "n1", argv, 2_000_000)
            assert (code, len(said)) == (3, 2_000_000)

    asyncio.run(story())


RAW_SOCKET = "import socket; socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_RAW)"


def test_a_machine_forges_no_packets_and_takes_no_more_than_its_share(
    docker_daemon: docker.APIClient,
) -> None:
    async def story() -> None:
        async with running(named("bounded"), ("n1",)) as run:
            forge = ["python3", "-I", "-c", RAW_SOCKET]
            code, said = await asyncio.to_thread(run.provider._ours.execute, "n1", forge)
            assert code == 1
            assert b"PermissionError" in said
            asked = ["cat", "/proc/1/status"]
            status = (await asyncio.to_thread(run.provider._ours.execute, "n1", asked))[1].decode()
            told = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
            assert bin(int(told["CapBnd"], 16)).count("1") == len(CAPABILITIES)
            assert told["NoNewPrivs"] == "1"
            set_up = docker_daemon.inspect_container(f"firedrill-{named('bounded')}-n1")
            limits = set_up["HostConfig"]
            assert limits["Memory"] == limits["MemorySwap"] == Limits().memory_mib << 20
            assert limits["PidsLimit"] == Limits().processes
            assert not limits["Privileged"]
            assert not limits["Binds"]

    asyncio.run(story())


def test_once_the_network_is_gone_nothing_is_dialled_elsewhere(
    docker_daemon: docker.APIClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packets to its addresses would take the default route, to a gateway that may answer."""
    # Else the lease is dialling meanwhile, and no second call of the session dials beside it.
    monkeypatch.setattr("clusters.providers.remote.fault_lease.RENEW_S", 1000.0)

    async def story() -> None:
        async with running(named("vanished"), ("n1",)) as run:
            await run.start_all()
            at = run.cluster.client["n1"]["talk"]
            client = await TcpNetwork().dial(at.host, at.port, 5.0, at.source)
            client.close()
            assert not unroutable(at)
            await asyncio.to_thread(cleanup, named("vanished"), force=True)

            with pytest.raises(ConnectionLost, match=r"(?i)cannot assign requested address"):
                await TcpNetwork().dial(at.host, at.port, 5.0, at.source)
            with pytest.raises(OSError, match=r"(?i)cannot assign requested address"):
                await rest._call(at, "GET", "/node/state", b"", 5.0)
            assert "its network is gone" in unroutable(at)
            session = run.provider._nodes["n1"].session
            session.drop()
            with pytest.raises(Unreachable, match=r"(?i)cannot assign requested address"):
                await asyncio.to_thread(session.connect, 0.2)

    asyncio.run(story())


def test_a_node_that_is_not_there_is_named(docker_daemon: docker.APIClient) -> None:
    async def story(run: Run) -> None:
        with pytest.raises(UsageError, match=r"no node 'n9' in this run \(there are: n1\)"):
            await run.provider.kill("n9")
        with pytest.raises(UsageError, match="n9"):
            await run.provider.cut((("n1", "n9"),))

    _with_run(named("unknown"), story, ("n1",))


def test_an_image_that_is_not_there_fails_with_its_name(docker_daemon: docker.APIClient) -> None:
    async def story() -> None:
        provider = build(named("image"), {"image": "firedrill-nothing:none"}, Path("unused"))
        try:
            with pytest.raises(PlanError, match="firedrill-nothing"):
                await provider.provision(("n1",), ())
        finally:
            await provider.teardown()

    asyncio.run(story())
    assert owned(docker_daemon, named("image")) == []


def test_a_frozen_machine_stands_still_and_goes_on_with_the_cut_of_then(
    docker_daemon: docker.APIClient,
) -> None:
    every = tuple((a, b) for a in NODES for b in NODES if a != b)

    async def story(run: Run) -> None:
        await run.start_all()
        before = await run.provider.probe("n3")

        assert (await run.provider.freeze("n3")).frozen
        assert (await run.provider.freeze("n3")).frozen

        seen = await run.provider.probe("n3")
        assert (seen.running, seen.frozen, seen.boot) == (True, True, before.boot)
        assert await run.asked("n1", "n3") == "timeout"
        assert await run.asked("n1", "n2") == "ok"
        await run.provider.cut((("n1", "n3"),))
        carried = await run.provider.probe_links(every)
        assert carried == {("n1", "n2"): True, ("n2", "n1"): True}

        assert not (await run.provider.thaw("n3")).frozen
        assert not (await run.provider.thaw("n3")).frozen

        assert await run.provider.probe("n3") == before
        carried = await run.provider.probe_links(every)
        assert [link for link in every if not carried[link]] == [("n1", "n3")]

    _with_run(named("freeze"), story)


def _with_run(run_id: str, story, nodes: tuple[str, ...] = NODES) -> None:
    async def whole() -> None:
        async with running(run_id, nodes) as run:
            await story(run)

    asyncio.run(whole())
