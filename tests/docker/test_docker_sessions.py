"""A session never waits without end, and speaks only to the machine whose key is pinned."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import docker
import pytest
from docker_runs import named

from clusters.providers.docker import subnets
from clusters.providers.docker.container import Limits
from clusters.providers.docker.images import ensure_base
from clusters.providers.docker.machines import Machines
from clusters.providers.remote import ssh_session
from clusters.providers.remote.node_threads import Lane, together
from clusters.providers.remote.ssh_session import (
    GRACE_S,
    Endpoint,
    RemoteError,
    Session,
    Unreachable,
)
from harness.errors import DeadlineExceeded, HarnessError, UsageError

RUN_ID = named("session")


@pytest.fixture(scope="module")
def endpoint(docker_daemon: docker.APIClient) -> Iterator[Endpoint]:
    """A real sshd, in a container."""
    machines = Machines(docker_daemon, RUN_ID, ensure_base(docker_daemon), Limits())
    key, host_key = ssh_session.generate_key(), ssh_session.generate_key()
    try:
        address = subnets.addresses(machines.make_network(), ("n1",))["n1"]
        files = {
            "authorized_keys": key.public_line.encode(),
            "host_key": host_key.private_text.encode(),
        }
        machines.create("n1", address, files)
        yield Endpoint(host=address, user="root", key=key, host_key_line=host_key.public_line)
    finally:
        for name in machines.owned():
            machines.remove(name)
        machines.remove_network()


@pytest.fixture
def session(endpoint: Endpoint) -> Iterator[Session]:
    made = Session("n1", endpoint)
    made.connect(20)
    yield made
    made.close()


@contextmanager
def server(behave) -> Iterator[int]:
    """A TCP server on loopback that treats every connection as ``behave`` does."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        kept = []

        def accept() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                kept.append(connection)
                behave(connection)

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        for connection in kept:
            connection.close()
    thread.join(timeout=5)


def local(port: int) -> Session:
    host_key = ssh_session.generate_key().public_line
    return Session(
        "n1",
        Endpoint(
            host="127.0.0.1",
            port=port,
            user="root",
            key=ssh_session.generate_key(),
            host_key_line=host_key,
        ),
    )


@pytest.mark.docker
def test_arguments_arrive_as_they_are(session: Session) -> None:
    hostile = ["a b", "$(id)", "; ls", "-n", "it's", "new\nline", '"', ""]

    said = session.run(["printf", "%s\\0", *hostile], limit_s=5)

    assert said.decode().split("\0")[:-1] == hostile


@pytest.mark.docker
def test_a_command_that_fails_says_who_what_and_why(session: Session) -> None:
    with pytest.raises(RemoteError, match="n1: sh exited with 7 and said: no luck"):
        session.run(["sh", "-c", "echo no luck >&2; exit 7"], limit_s=5)


@pytest.mark.docker
def test_a_command_that_hangs_ends_there_and_here(session: Session) -> None:
    with pytest.raises(DeadlineExceeded, match="n1: sleep"):
        session.run(["sleep", "987"], limit_s=0.2)

    with pytest.raises(RemoteError, match="exited with 1"):
        session.run(["pgrep", "--full", "^sleep 987"], limit_s=5)


@pytest.mark.docker
def test_output_without_end_is_cut_off_by_name(session: Session) -> None:
    with pytest.raises(HarnessError, match="yes wrote more than 1048576 bytes"):
        session.run(["yes"], limit_s=5)

    assert session.run(["echo", "still here"], limit_s=5) == b"still here\n"


@pytest.mark.docker
def test_input_of_megabytes_arrives_whole(session: Session) -> None:
    data = bytes(range(256)) * 20_000

    assert session.run(["wc", "--bytes"], limit_s=10, stdin=data).split() == [b"5120000"]


@pytest.mark.docker
def test_a_machine_with_another_host_key_is_refused_at_once(endpoint: Endpoint) -> None:
    stranger = attrs.evolve(endpoint, host_key_line=ssh_session.generate_key().public_line)

    with pytest.raises(Unreachable, match="does not match"):
        Session("n1", stranger).connect(20)


@pytest.mark.docker
def test_another_key_does_not_get_in(endpoint: Endpoint) -> None:
    with pytest.raises(Unreachable, match="Authentication failed"):
        Session("n1", attrs.evolve(endpoint, key=ssh_session.generate_key())).connect(20)


@pytest.mark.docker
def test_a_session_that_was_dropped_connects_anew(session: Session) -> None:
    session.drop()

    assert session.run(["echo", "again"], limit_s=5) == b"again\n"


@pytest.mark.docker
def test_a_session_whose_sshd_child_died_connects_anew(session: Session) -> None:
    with pytest.raises(HarnessError):
        session.run(["sh", "-c", "kill -s KILL $(ps -o ppid= -p $PPID)"], limit_s=5)

    assert session.run(["echo", "again"], limit_s=5) == b"again\n"


@pytest.mark.parametrize(
    ("name", "behave"),
    [
        ("says nothing", lambda connection: None),
        ("stops in the banner", lambda connection: connection.send(b"SSH-2.0-Op")),
        ("stops after the banner", lambda connection: connection.send(b"SSH-2.0-OpenSSH_9\r\n")),
        ("hangs up", lambda connection: connection.close()),
        ("says something else", lambda connection: connection.send(b"HTTP/1.1 400\r\n" * 99)),
    ],
)
def test_a_server_that_is_no_sshd_is_given_up_in_time(name: str, behave) -> None:
    async def story(port: int) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(Unreachable, match=r"n1: no SSH session to 127\.0\.0\.1"):
            await Lane("n1").call("connecting", 20, local(port).connect, 0.3)
        return loop.time() - began

    with server(behave) as port:
        assert asyncio.run(story(port)) < 0.3 + GRACE_S


def test_a_session_that_was_closed_for_good_stops_trying() -> None:
    async def story(port: int) -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        session, lane = local(port), Lane("n1")
        trying = asyncio.ensure_future(lane.call("connecting", 40, session.connect, 30))
        await asyncio.sleep(0)
        await lane.call("closing", 5, session.close)
        with pytest.raises(Unreachable):
            await trying
        return loop.time() - began

    with server(lambda connection: connection.close()) as port:
        assert asyncio.run(story(port)) < 15


def test_a_port_where_nothing_listens_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

    with pytest.raises(Unreachable, match=r"127\.0\.0\.1"):
        local(port).connect(0.2)


def test_a_timeout_of_the_work_itself_is_not_said_to_be_the_lanes_limit() -> None:
    def refused() -> None:
        raise TimeoutError("the socket waited 5 s")

    with pytest.raises(HarnessError, match="n1: reading: the socket waited 5 s") as raised:
        asyncio.run(Lane("n1").call("reading", 100, refused))
    assert not isinstance(raised.value, DeadlineExceeded)


def test_a_lane_gives_up_in_time_and_leaves_the_others_alone() -> None:
    release = threading.Event()

    async def story() -> None:
        stuck, free = Lane("n1"), Lane("n2")
        calls = [stuck.call("frozen", 0.05, release.wait, 10) for _ in range(8)]
        with pytest.raises(HarnessError, match=r"n1: frozen did not answer within 0.05 s; n1"):
            await together([*calls, free.call("fine", 5, int)])
        assert await free.call("fine", 5, int, "7") == 7

    try:
        asyncio.run(story())
    finally:
        release.set()


def test_one_failure_of_several_calls_stays_what_it_is() -> None:
    async def bad() -> int:
        raise UsageError("no")

    async def good() -> int:
        return 1

    async def story() -> None:
        assert await together([good(), good()]) == [1, 1]
        with pytest.raises(UsageError, match=r"^no$"):
            await together([bad(), good()])

    asyncio.run(story())
