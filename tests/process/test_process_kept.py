"""A cluster that is left up serves on without its controller, links and all, until cleaned up."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from process_programs import PORTS, bring_up

from clusters.providers.process import process_shell
from clusters.providers.process.cleanup import cleanup, kept
from clusters.providers.process.ports import Claims
from clusters.providers.process.provider import build
from harness.errors import UsageError
from harness.protocols.cluster import Address, Cluster


def asked(address: Address, text: bytes) -> bytes:
    with socket.create_connection((address.host, address.port), timeout=10) as line:
        line.sendall(text + b"\n")
        return line.makefile("rb").readline()


@pytest.fixture
def left(tmp_path: Path):
    """The run directory and the cluster of a run whose loop is over."""

    async def scenario() -> Cluster:
        provider, cluster = await bring_up(tmp_path, "n1", "n2")
        await provider.cut((("n1", "n2"),))
        await provider.cut(())
        await provider.leave()
        return cluster

    try:
        yield tmp_path, asyncio.run(scenario())
    finally:
        cleanup(tmp_path / "undo")


def test_nodes_and_links_serve_on_until_they_are_cleaned_up(left: tuple[Path, Cluster]) -> None:
    root, cluster = left

    assert asked(cluster.client["n1"]["client"], b"hi") == b"n1:hi\n"
    assert asked(cluster.peer["n1", "n2"]["peer"], b"hi") == b"n2:hi\n"
    assert kept(root / "undo")

    done = cleanup(root / "undo")

    assert [line.rsplit(" ", 1)[1] for line in done] == ["links", "n1", "n2"]
    assert not kept(root / "undo")
    for address in (cluster.client["n1"]["client"], cluster.peer["n1", "n2"]["peer"]):
        with pytest.raises(ConnectionRefusedError):
            asked(address, b"hi")


def test_a_person_works_where_the_node_does_with_what_it_sees(
    left: tuple[Path, Cluster], capfd: pytest.CaptureFixture[str]
) -> None:
    root, _ = left

    code = process_shell.shell(root / "undo", "n2", ["sh", "-c", 'pwd; echo "$NODE"; exit 7'])

    assert code == 7
    assert capfd.readouterr().out == f"{root.resolve()}/nodes/n2/work\nn2\n"
    with pytest.raises(UsageError, match="node 'n3': nothing of it runs"):
        process_shell.shell(root / "undo", "n3", [])
    with pytest.raises(UsageError, match="can't run 'no-such-command'"):
        process_shell.shell(root / "undo", "n1", ["no-such-command"])


def test_runs_side_by_side_never_share_a_port_though_no_node_uses_it_yet(tmp_path: Path) -> None:
    async def ports_of(provider) -> set[int]:
        cluster = await provider.provision(("n1", "n2"), PORTS)
        return {a.port for node in cluster.bind.values() for a in node.values()}

    async def scenario() -> None:
        first = build("same-name", {}, tmp_path / "a" / "undo")
        again = build("same-name", {}, tmp_path / "b" / "undo")
        wanted, other = await ports_of(first), await ports_of(again)
        assert not wanted & other
        await first.teardown()
        third = build("same-name", {}, tmp_path / "c" / "undo")
        assert await ports_of(third) == wanted
        await third.teardown()
        await again.teardown()

    asyncio.run(scenario())


def test_a_claim_is_refused_while_it_holds_and_granted_after() -> None:
    mine, theirs = Claims(), Claims()

    assert mine.take(7)
    assert not theirs.take(7)
    mine.let_go()
    assert theirs.take(7)
    theirs.let_go()
