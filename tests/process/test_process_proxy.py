"""Links between local nodes: cut, mended, delayed and throttled, each direction alone."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from process_programs import Line, bring_up

from clusters.providers.process import proxy
from clusters.providers.process.link_lanes import HELD_LIMIT_BYTES, Lane
from clusters.providers.process.proxy import Mesh
from harness.errors import HarnessError, UsageError
from harness.protocols.cluster import Address

AB, BA = ("a", "b"), ("b", "a")
NODES = ("a", "b")


class Net:
    """Two nodes of this process: what dials ``b`` through the mesh, and the echo that ``b`` is."""

    def __init__(self) -> None:
        self.mesh = Mesh(NODES)
        self.heard: list[bytes] = []
        self.ends: list[str] = []
        self.taken: list[asyncio.StreamWriter] = []
        self.answer = b"echo "
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def serve(self) -> Address:
        """Where ``a`` dials to reach ``b``."""
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self.server.sockets[0].getsockname()
        there = {"b": {"peer": Address(host=host, port=port)}}
        there["a"] = there["b"]
        return self.mesh.serve(["peer"], there)[AB]["peer"]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.taken.append(writer)
        try:
            while line := await reader.readline():
                self.heard.append(line)
                writer.write(self.answer + line)
            self.ends.append("end")
            await self.may_end.wait()
            writer.write(b"bye\n")
        except ConnectionError:
            self.ends.append("reset")
        writer.close()

    def close(self) -> None:
        self.mesh.close()
        self.server.close()


def on_a_net(scenario: Callable[[Net, Address], Awaitable[None]]) -> None:
    async def run() -> None:
        net = Net()
        address = await net.serve()
        try:
            await scenario(net, address)
        finally:
            net.close()

    asyncio.run(run())


async def eventually(what: Callable[[], bool], limit_s: float = 5.0) -> None:
    async with asyncio.timeout(limit_s):
        while not what():  # noqa: ASYNC110 (sockets tell nobody that they arrived)
            await asyncio.sleep(0.005)


def test_an_open_link_carries_both_directions() -> None:
    async def scenario(net: Net, address: Address) -> None:
        line = await Line.dial(address)
        assert await line.ask("hi") == "echo hi"
        assert await net.mesh.probe((AB, BA)) == {AB: True, BA: True}
        line.close()
        await eventually(lambda: net.ends == ["end"])

    on_a_net(scenario)


def test_a_cut_link_drops_one_direction_and_heals_without_a_gap() -> None:
    async def scenario(net: Net, address: Address) -> None:
        line = await Line.dial(address)
        await line.ask("before")

        net.mesh.cut((AB,))
        line.say("during")
        net.taken[0].write(b"unasked\n")
        assert await line.hear() == "unasked"  # b to a still passes
        assert await line.silent()
        assert net.heard == [b"before\n"]

        net.mesh.cut(())
        assert await line.hear() == "echo during"
        line.close()

    on_a_net(scenario)


def test_a_cut_of_the_way_back_holds_only_the_answers() -> None:
    async def scenario(net: Net, address: Address) -> None:
        line = await Line.dial(address)
        await line.ask("before")

        net.mesh.cut((BA,))
        line.say("during")
        assert await line.silent()
        assert net.heard == [b"before\n", b"during\n"]

        net.mesh.cut(())
        assert await line.hear() == "echo during"
        line.close()

    on_a_net(scenario)


@pytest.mark.parametrize("cut", [AB, BA])
def test_an_end_that_is_sent_over_a_cut_link_vanishes_until_it_heals(cut: tuple[str, str]) -> None:
    async def scenario(net: Net, address: Address) -> None:
        line = await Line.dial(address)
        await line.ask("before")

        net.mesh.cut((cut,))
        if cut == AB:
            line.writer.close()
            with pytest.raises(TimeoutError):
                await eventually(lambda: bool(net.ends), limit_s=0.2)
            net.mesh.cut(())
            await eventually(lambda: net.ends == ["end"])
        else:
            net.taken[0].transport.abort()
            assert await line.silent()
            net.mesh.cut(())
            assert await line.hear() == ""
            line.close()

    on_a_net(scenario)


@pytest.mark.parametrize("grudge", [(AB,), (BA,), (AB, BA)])
def test_a_new_connection_hangs_while_either_direction_is_cut(grudge: tuple[str, ...]) -> None:
    async def scenario(net: Net, address: Address) -> None:
        net.mesh.cut(grudge)  # type: ignore[arg-type]
        line = await Line.dial(address)  # the one that the kernel always queues
        line.say("hello?")
        assert await line.silent()
        more = [asyncio.ensure_future(Line.dial(address)) for _ in range(4)]
        _, hanging = await asyncio.wait(more, timeout=0.3)
        assert hanging
        assert net.taken == []

        net.mesh.cut(())
        assert await line.hear() == "echo hello?"
        for one in (line, *await asyncio.gather(*more)):
            one.close()

    on_a_net(scenario)


def test_a_dial_that_hung_gets_through_once_the_cut_is_healed() -> None:
    async def scenario(net: Net, address: Address) -> None:
        net.mesh.cut((AB, BA))
        dials = [asyncio.ensure_future(Line.dial(address)) for _ in range(6)]
        _, waiting = await asyncio.wait(dials, timeout=0.3)
        assert waiting

        net.mesh.cut(())
        lines = await asyncio.wait_for(
            asyncio.gather(*dials), 10
        )  # SYN is sent again after 1 s, 3 s
        for line in lines:
            assert await line.ask("here") == "echo here"
            line.close()

    on_a_net(scenario)


def test_other_links_are_left_alone_and_a_grudge_replaces_the_one_before() -> None:
    async def scenario() -> None:
        mesh = Mesh(("a", "b", "c"))
        links = [(x, y) for x in "abc" for y in "abc" if x != y]

        async def dead() -> list[tuple[str, str]]:
            return [link for link, ok in (await mesh.probe(tuple(links))).items() if not ok]

        assert await dead() == []
        mesh.cut((("a", "b"), ("c", "a")))
        assert await dead() == [("a", "b"), ("c", "a")]
        mesh.cut((("b", "c"),))
        mesh.cut((("b", "c"),))
        assert await dead() == [("b", "c")]
        mesh.cut(())
        assert await dead() == []
        with pytest.raises(UsageError, match="no such link"):
            mesh.cut((("a", "z"),))
        mesh.close()

    asyncio.run(scenario())


def test_a_probe_looks_at_bytes_and_not_at_the_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        mesh = Mesh(NODES)
        monkeypatch.setattr("clusters.providers.process.link_lanes.Lane.plain", True)
        mesh.cut((AB,))
        # A cut that sets its flag and stops nothing: the bytes that were on their way pass.
        monkeypatch.setattr("clusters.providers.process.link_lanes.Side.read", lambda *_: None)
        assert await mesh.probe((AB,)) == {AB: True}

    asyncio.run(scenario())


def test_silence_proves_nothing_where_an_uncut_link_is_silent_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("clusters.providers.process.link_lanes.Pipe.carry", lambda *_: None)

    async def scenario() -> None:
        with pytest.raises(HarnessError, match="even uncut"):
            await Mesh(NODES).probe((AB,))

    asyncio.run(scenario())


def test_a_node_that_is_not_there_resets_who_dials_it() -> None:
    async def scenario(net: Net, address: Address) -> None:
        net.server.close()
        await net.server.wait_closed()
        line = await Line.dial(address)
        with pytest.raises(ConnectionResetError):
            await line.hear()

    on_a_net(scenario)


def test_a_reset_is_passed_on_as_a_reset() -> None:
    async def scenario(net: Net, address: Address) -> None:
        line = await Line.dial(address)
        await line.ask("before")
        sock = line.writer.get_extra_info("socket")
        proxy.reset_on_close(sock._sock if hasattr(sock, "_sock") else sock)
        line.writer.transport.abort()
        await eventually(lambda: net.ends == ["reset"])

    on_a_net(scenario)


def test_a_half_closed_connection_still_answers() -> None:
    async def scenario(net: Net, address: Address) -> None:
        net.answer = b"x" * 300_000
        line = await Line.dial(address)
        line.say("last words")
        line.writer.write_eof()
        async with asyncio.timeout(5):
            assert len(await line.reader.read(-1)) == 300_000 + len("last words\nbye\n")
        line.close()

    on_a_net(scenario)


def test_a_half_closed_connection_outlives_a_cut() -> None:
    async def scenario(net: Net, address: Address) -> None:
        net.may_end.clear()
        line = await Line.dial(address)
        line.writer.write_eof()
        await eventually(lambda: net.ends == ["end"])

        net.mesh.cut((AB, BA))
        net.mesh.cut(())
        assert await line.silent()
        net.may_end.set()
        assert await line.hear() == "bye"
        line.close()

    on_a_net(scenario)


def kernel_holds_bytes() -> int:
    """More than the kernel buffers of a connection from the sender to the proxy ever take."""
    largest = [Path(f"/proc/sys/net/ipv4/tcp_{way}mem").read_text().split()[2] for way in "rw"]
    return sum(map(int, largest))


def test_a_slow_reader_holds_the_sender_and_loses_nothing() -> None:
    async def scenario(net: Net, address: Address) -> None:
        line = await Line.dial(address)
        await line.ask("before")
        net.answer = b""
        written, sent_bytes = hashlib.sha256(), 0

        async def send(size_bytes: int) -> None:
            nonlocal sent_bytes
            ends = sent_bytes + size_bytes
            while sent_bytes < ends:
                block = b"%065535d\n" % sent_bytes
                written.update(block)
                sent_bytes += len(block)
                line.writer.write(block)
                await line.writer.drain()

        net.mesh.cut((AB,))
        filling = asyncio.ensure_future(send(2 * kernel_holds_bytes()))
        before = -1
        while before < sent_bytes:  # until the sender stands still, or is through
            before = sent_bytes
            await asyncio.wait([filling], timeout=0.3)
        assert not filling.done()

        net.mesh.cut(())
        read, read_bytes = hashlib.sha256(), 0
        async with asyncio.timeout(60):
            while not filling.done() or read_bytes < sent_bytes:
                some = await line.reader.read(1 << 20)
                read.update(some)
                read_bytes += len(some)
        assert read.digest() == written.digest()
        line.close()

    on_a_net(scenario)


def _add_reader_of_3_11_2(self, descriptor, callback, *args) -> None:
    """What Debian 12's Python does when a transport starts to read, paused or not."""
    if not self._closing:
        self._loop._add_reader(descriptor, callback, *args)


@pytest.mark.parametrize("python", ["this Python", "Python 3.11.2"])
def test_a_connection_made_into_a_cut_holds_its_sender(
    python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if python == "Python 3.11.2":
        transport = asyncio.selector_events._SelectorTransport
        monkeypatch.setattr(transport, "_add_reader", _add_reader_of_3_11_2)

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        there, back = Lane(), Lane()
        there.change(cut=True)
        async with proxy._joined(there, back) as (sender, receiver):
            sent = bytes(2 * HELD_LIMIT_BYTES)  # a pair of Unix sockets buffers far less
            sending = asyncio.ensure_future(loop.sock_sendall(sender, sent))
            await asyncio.wait([sending], timeout=0.3)
            assert not sending.done()

            there.change(cut=False)
            read_bytes = 0
            async with asyncio.timeout(30):
                while read_bytes < len(sent):
                    read_bytes += len(await loop.sock_recv(receiver, 1 << 20))
                await sending

    asyncio.run(scenario())


def test_a_delay_is_per_direction_and_not_per_message() -> None:
    async def scenario(net: Net, address: Address) -> None:
        loop = asyncio.get_running_loop()
        line = await Line.dial(address)
        await line.ask("before")
        net.mesh.delay({AB: 0.2})

        began = loop.time()
        for n in range(20):
            line.say(str(n))
        assert [await line.hear() for _ in range(20)] == [f"echo {n}" for n in range(20)]
        assert 0.2 <= loop.time() - began < 1.0

        line.say("slow")
        await asyncio.sleep(0.05)
        net.mesh.delay({})
        line.say("fast")
        assert [await line.hear(), await line.hear()] == ["echo slow", "echo fast"]
        began = loop.time()
        await line.ask("after")
        assert loop.time() - began < 0.2
        line.close()

    on_a_net(scenario)


def test_a_delay_below_zero_is_refused() -> None:
    async def scenario() -> None:
        with pytest.raises(UsageError, match=r"delay of at least 0 \(got -1 s\)"):
            Mesh(NODES).delay({AB: -1.0})

    asyncio.run(scenario())


def test_what_is_held_by_a_delay_has_a_limit() -> None:
    async def scenario(net: Net, address: Address) -> None:
        net.mesh.delay({AB: 30})
        sender = socket.create_connection((address.host, address.port))
        sender.setblocking(False)
        loop = asyncio.get_running_loop()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await loop.sock_sendall(sender, b"." * (4 * HELD_LIMIT_BYTES + (16 << 20)))
        sender.close()

    on_a_net(scenario)


def test_connections_beyond_the_limit_wait_until_one_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "CONNECTIONS_LIMIT", 2)

    async def scenario(net: Net, address: Address) -> None:
        lines = [await Line.dial(address) for _ in range(3)]
        assert [await line.ask("in") for line in lines[:2]] == ["echo in", "echo in"]
        lines[2].say("in")
        assert await lines[2].silent()
        lines[0].close()
        assert await lines[2].hear() == "echo in"
        for line in lines:
            line.close()

    on_a_net(scenario)


def test_nodes_reach_each_other_only_through_the_proxy(tmp_path: Path) -> None:
    async def scenario() -> None:
        provider, cluster = await bring_up(tmp_path, "n1", "n2")
        try:
            line = await Line.dial(cluster.peer["n1", "n2"]["peer"])
            assert await line.ask("hi") == "n2:hi"
            await provider.cut((("n1", "n2"), ("n2", "n1")))
            assert await provider.probe_links((("n1", "n2"), ("n2", "n1"))) == {
                ("n1", "n2"): False,
                ("n2", "n1"): False,
            }
            line.say("hi")
            assert await line.silent()
            await provider.kill("n2")
            assert await line.silent()  # nobody hears a node die behind a cut

            await provider.cut(())
            assert all((await provider.probe_links((("n1", "n2"), ("n2", "n1")))).values())
            assert await line.end() in {"end", "reset"}
        finally:
            await provider.teardown()

    asyncio.run(scenario())
