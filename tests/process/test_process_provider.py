"""Local processes as nodes: started, killed, paused, found again, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest
from process_programs import PORTS, Echo, Line, bring_up, ended, recorded, serving

from clusters.providers.process import ports as port_choice
from clusters.providers.process import procfs
from clusters.providers.process.cleanup import cleanup, end_marked
from clusters.providers.process.provider import build
from harness.errors import HarnessError, MalformedHistory, MissingCapability, PlanError, UsageError
from harness.protocols.cluster import Capability, LinkShape, Program, PythonTree


def test_what_it_can_do_is_found_by_trying(tmp_path: Path) -> None:
    able = asyncio.run(build("run", {}, tmp_path / "undo").capabilities())

    assert {Capability.KILL, Capability.PAUSE, Capability.ONE_WAY_PARTITION} <= able
    assert Capability.HOST_LOSS not in able
    assert list(tmp_path.iterdir()) == []


def test_a_killed_node_is_gone_and_comes_back_as_another_boot(tmp_path: Path) -> None:
    async def scenario() -> None:
        provider, cluster = await bring_up(tmp_path, "n1", "n2")
        try:
            before = await provider.probe("n1")
            assert before.running
            assert (await Line.dial(cluster.client["n1"]["client"])) is not None

            killed = await provider.kill("n1")
            assert (killed.running, killed.exit_text) == (False, "killed by SIGKILL")
            assert not (await provider.probe("n1")).running
            with pytest.raises(ConnectionRefusedError):
                await Line.dial(cluster.client["n1"]["client"])

            await provider.start("n1")
            await serving(cluster.client["n1"]["client"])
            after = await provider.probe("n1")
            assert after.running
            assert after.boot != before.boot
            assert (tmp_path / "nodes" / "n1" / "work" / "started").read_text() == "xx"
            assert (await provider.probe("n2")).running
        finally:
            await provider.teardown()

    asyncio.run(scenario())


def test_what_ended_without_us_is_seen_and_explained(tmp_path: Path) -> None:
    async def scenario() -> None:
        provider, _ = await bring_up(tmp_path, "n1")
        try:
            pid = (await provider.probe("n1")).pid
            assert pid
            os.kill(pid, signal.SIGABRT)
            await ended(provider, "n1", "killed by SIGABRT")
        finally:
            await provider.teardown()

    asyncio.run(scenario())


def test_a_paused_node_is_alive_and_silent_until_it_is_resumed(tmp_path: Path) -> None:
    async def scenario() -> None:
        provider, cluster = await bring_up(tmp_path, "n1")
        try:
            line = await Line.dial(cluster.client["n1"]["client"])
            assert await line.ask("hi") == "n1:hi"

            assert (await provider.pause("n1")).paused
            line.say("anybody?")
            assert await line.silent()
            assert (await provider.probe("n1")).running

            assert not (await provider.resume("n1")).paused
            assert await line.hear() == "n1:anybody?"
            line.close()
        finally:
            await provider.teardown()

    asyncio.run(scenario())


def test_stop_ends_even_what_was_paused_and_what_does_not_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("clusters.providers.process.provider._STOP_LIMIT_S", 0.3)

    async def scenario() -> None:
        polite, _ = await bring_up(tmp_path / "polite", "n1")
        deaf, _ = await bring_up(tmp_path / "deaf", "n1", DEAF="yes")
        try:
            await polite.pause("n1")
            assert (await polite.stop("n1")).exit_text == "killed by SIGTERM"
            assert (await deaf.stop("n1")).exit_text == "killed by SIGKILL"
            assert not (await deaf.stop("n1")).running
        finally:
            await polite.teardown()
            await deaf.teardown()

    asyncio.run(scenario())


def test_teardown_leaves_no_process_and_can_be_repeated(tmp_path: Path) -> None:
    async def scenario() -> list[int]:
        provider, cluster = await bring_up(tmp_path, "n1", "n2", "n3")
        await provider.pause("n2")
        pids = [entry["pid"] for entry in recorded(tmp_path).values()]
        assert all(procfs.look(pid) for pid in pids)
        await provider.teardown()
        await provider.teardown()
        with pytest.raises(ConnectionRefusedError):
            await Line.dial(cluster.peer["n1", "n3"]["peer"])
        return pids

    pids = asyncio.run(scenario())

    assert len(pids) == 3
    assert not any(procfs.look(pid) for pid in pids)
    assert list((tmp_path / "undo").iterdir()) == []


def test_a_start_of_what_runs_changes_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        provider, _ = await bring_up(tmp_path, "n1")
        try:
            before = await provider.probe("n1")
            assert await provider.start("n1") == before
            assert recorded(tmp_path)["n1"]["pid"] == before.pid
        finally:
            await provider.teardown()

    asyncio.run(scenario())


def test_code_trees_are_importable_and_output_is_collected(tmp_path: Path) -> None:
    tree = tmp_path / "elsewhere" / "engine"
    tree.mkdir(parents=True)
    (tree / "__init__.py").write_text("NAME = 'engine of ' + __name__")

    async def scenario() -> None:
        provider = build("run", {}, tmp_path / "undo")
        cluster = await provider.provision(("n1",), ())
        program = Program(
            argv=("python3", "-c", "import store.node as n; print(n.NAME); open('d/f').read()"),
            python=(PythonTree(source=str(tree), package="store.node"),),
            files={"d/f": b"data"},
            log="store.log",
        )
        await provider.install("n1", program)
        await provider.install("n1", program)
        assert cluster.work_dir["n1"] == str(tmp_path / "nodes" / "n1" / "work")
        await provider.start("n1")
        await ended(provider, "n1", "exited with 0")
        await provider.collect("n1", tmp_path / "collected")
        await provider.collect("n1", tmp_path / "nodes" / "n1")
        await provider.teardown()

    asyncio.run(scenario())

    for place in ("collected", "nodes/n1"):
        assert (tmp_path / place / "store.log").read_text() == "engine of store.node\n"


def test_requirements_that_the_controller_lacks_are_named(tmp_path: Path) -> None:
    lock = tmp_path / "node.lock"
    lock.write_text("no-such-thing==1.0 \\\n    --hash=sha256:00\nmsgspec==0.0.1 \\\n    # why\n")

    async def scenario() -> None:
        provider = build("run", {}, tmp_path / "undo")
        await provider.provision(("n1",), ())
        program = Program(argv=("python3", "-c", ""), requirements=str(lock))
        with pytest.raises(HarnessError, match="n1: its program needs no-such-thing, which"):
            await provider.install("n1", program)
        lock.write_text("msgspec==0.0.1\n")
        await provider.install("n1", program)
        await provider.teardown()

    asyncio.run(scenario())


def test_a_program_that_is_not_there_is_told_in_its_log(tmp_path: Path) -> None:
    async def scenario() -> None:
        provider = build("run", {}, tmp_path / "undo")
        await provider.provision(("n1",), ())
        await provider.install("n1", Program(argv=("no-such-program",)))
        await provider.start("n1")
        await ended(provider, "n1", "exited with 127")
        await provider.teardown()

    asyncio.run(scenario())

    assert "cannot run no-such-program" in (tmp_path / "nodes" / "n1" / "node.log").read_text()


def two_free_ports() -> tuple[socket.socket, int]:
    """A listener, and its port, the next of which was free a moment ago."""
    for _ in range(100):
        taken = socket.create_server(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        try:
            socket.create_server(("127.0.0.1", port + 1)).close()
        except (OSError, OverflowError):
            taken.close()
            continue
        return taken, port
    raise AssertionError("no two neighbouring ports are free")


def test_the_first_port_of_a_plan_is_used_or_named_as_taken(tmp_path: Path) -> None:
    taken, port = two_free_ports()
    with taken:
        provider = build("run", {"first_port": port}, tmp_path / "undo")
        with pytest.raises(HarnessError, match=f"port {port} on 127.0.0.1 is taken"):
            asyncio.run(provider.provision(("n1",), PORTS))

    async def scenario() -> None:
        provider = build("run", {"first_port": port}, tmp_path / "undo")
        cluster = await provider.provision(("n1",), PORTS)
        assert cluster.bind["n1"]["peer"].port == port
        await provider.teardown()

    asyncio.run(scenario())


def test_ports_that_are_found_taken_are_passed_over(tmp_path: Path) -> None:
    async def scenario() -> None:
        first = build("same-name", {}, tmp_path / "a" / "undo")
        again = build("same-name", {}, tmp_path / "b" / "undo")
        wanted = (await first.provision(("n1",), PORTS)).bind["n1"]["peer"]
        with socket.create_server((wanted.host, wanted.port)):
            other = (await again.provision(("n1",), PORTS)).bind["n1"]["peer"]
            assert other.port != wanted.port
        await first.teardown()
        await again.teardown()

    asyncio.run(scenario())


def test_a_port_that_somebody_takes_while_the_node_is_down_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        provider, cluster = await bring_up(tmp_path, "n1")
        try:
            await provider.kill("n1")
            address = cluster.bind["n1"]["client"]
            taken = rf"n1: port {address} \(client\) is taken"
            with (
                socket.create_server((address.host, address.port)),
                pytest.raises(HarnessError, match=taken),
            ):
                await provider.start("n1")
            assert (await provider.start("n1")).running
        finally:
            await provider.teardown()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"first_prot": 1}, "first_prot"),
        ({"first_port": "x"}, "first_port"),
        ({"first_port": 99_999}, "<= 65535"),
    ],
)
def test_options_that_it_does_not_know_are_refused(
    options: dict[str, object], says: str, tmp_path: Path
) -> None:
    with pytest.raises(PlanError, match=says):
        build("run", options, tmp_path)


def test_misuse_is_named(tmp_path: Path) -> None:
    async def scenario() -> None:
        provider = build("run", {}, tmp_path / "undo")
        with pytest.raises(UsageError, match="none yet"):
            await provider.start("n1")
        cluster = await provider.provision(("n1",), PORTS)
        with pytest.raises(UsageError, match="none was installed"):
            await provider.start("n1")
        with pytest.raises(UsageError, match=r"'n7'.*n1"):
            await provider.probe("n7")
        with pytest.raises(MissingCapability, match="host-loss"):
            await provider.lose("n1")
        escaping = Echo().program("n1", cluster)
        for name in ("../out", "/etc/out", ""):
            with pytest.raises(UsageError, match="below the work directory"):
                await provider.install("n1", Program(argv=escaping.argv, files={name: b""}))
        assert not (await provider.kill("n1")).running
        await provider.teardown()

    asyncio.run(scenario())


def test_cleanup_of_a_run_that_owned_nothing_does_nothing(tmp_path: Path) -> None:
    assert cleanup(tmp_path / "undo") == []


def test_a_broken_list_is_named(tmp_path: Path) -> None:
    (tmp_path / "processes.json").write_text("[")

    with pytest.raises(MalformedHistory, match=r"processes\.json"):
        cleanup(tmp_path)


def test_processes_that_start_anew_without_end_are_named_and_not_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fork = procfs.Identity(pid=4711, start_ticks=1)
    monkeypatch.setattr(procfs, "marked", lambda _ours: [fork])
    monkeypatch.setattr(procfs, "kill_and_wait", lambda *_: True)

    with pytest.raises(HarnessError, match=r"as fast as they are ended \(now 4711\)"):
        end_marked("1:2:/run")


def test_cleanup_spares_a_process_that_was_given_the_same_id(tmp_path: Path) -> None:
    async def scenario() -> None:
        provider, _ = await bring_up(tmp_path, "n1")
        path = tmp_path / "undo" / "processes.json"
        entry = recorded(tmp_path)["n1"]
        with subprocess.Popen(["sleep", "300"], start_new_session=True) as other:  # noqa: ASYNC220
            try:
                kept = path.read_text().replace(str(entry["pid"]), str(other.pid))
                path.write_text(kept)

                assert await asyncio.to_thread(cleanup, tmp_path / "undo") == [
                    f"process {entry['pid']} of a program of the run"
                ]
                assert other.poll() is None
                assert not path.exists()
            finally:
                other.kill()
        assert not (await provider.probe("n1")).running
        await provider.teardown()

    asyncio.run(scenario())


def test_cleanup_spares_everybody_after_the_machine_was_booted_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        provider, _ = await bring_up(tmp_path, "n1")
        path = tmp_path / "undo" / "processes.json"
        path.write_text(path.read_text().replace(procfs.machine_boot(), "another-boot"))

        assert cleanup(tmp_path / "undo") == []
        assert (await provider.probe("n1")).running
        await provider.teardown()

    asyncio.run(scenario())


def test_a_link_is_delayed_in_one_direction_and_what_gets_lost_is_refused(tmp_path: Path) -> None:
    there, back, other = ("n1", "n2"), ("n2", "n1"), ("n1", "n3")

    async def scenario() -> None:
        provider, cluster = await bring_up(tmp_path, "n1", "n2", "n3")

        async def trips() -> list[float]:
            seen = await provider.measure_links((there, back, other))
            return [seen[link].round_trip_s or 9.0 for link in (there, back, other)]

        try:
            assert max(await trips()) < 0.2
            await provider.shape((LinkShape(link=there, delay_s=0.3),))

            measured = await trips()
            assert measured[2] < 0.2
            # The way there and back takes in the delayed direction once, whoever begins.
            assert min(measured[:2]) >= 0.3
            assert max(measured[:2]) < 0.55
            line = await Line.dial(cluster.peer["n1", "n2"]["peer"])
            line.say("hi")
            assert await line.silent(for_s=0.2)
            assert await line.hear() == "n2:hi"
            line.close()
            with pytest.raises(MissingCapability, match="losing packets from n2 to n1"):
                await provider.shape((LinkShape(link=back, loss=0.1),))

            await provider.shape(())

            assert max(await trips()) < 0.2
            await provider.cut((there,))
            seen = await provider.measure_links((there,))
            assert (seen[there].loss, seen[there].round_trip_s) == (1, None)
        finally:
            await provider.teardown()

    asyncio.run(scenario())


def test_a_first_port_that_leaves_too_few_names_the_key_and_how_many_are_needed(
    tmp_path: Path,
) -> None:
    provider = build("run", {"first_port": 65_533}, tmp_path / "undo")

    with pytest.raises(PlanError, match=r"at most 65532, since the nodes need 4 ports") as caught:
        asyncio.run(provider.provision(("n1", "n2"), PORTS))

    assert caught.value.path == "cluster.options.first_port"
    assert port_choice.given(65_535, 1, port_choice.Claims()) == (65_535,)
