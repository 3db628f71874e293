"""What is lost on the way between a client and its node, tried in processes, where there is a
network that a relay can stand in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import msgspec
import pytest
from conform_kit import NEEDS_NETWORK, Other, broken, in_processes, pebble, same, with_client

from harness.conform.bench import Mark
from harness.protocols.client import Committed, StoreError
from harness.protocols.fail_or_info import Certainty


def test_a_program_that_walks_around_the_links_is_found(tmp_path: Path) -> None:
    def around(system: Any) -> Other:
        def program(node: str, cluster: Any) -> Any:
            links = {link: cluster.bind[link[1]] for link in cluster.peer}
            return system.program(node, attrs.evolve(cluster, peer=links))

        return Other(system, program=program)

    checks = ("program", "partition bites")
    found = in_processes(tmp_path, around, *checks, nodes=2)

    assert "no link can be cut" in broken(found, "program")
    assert "does not take the links that are cut" in broken(found, "partition bites")


def certain_of_what_is_lost(system: Any) -> Other:
    row = msgspec.structs.replace(system.errors["LOST"], at_commit=Certainty.DEFINITE)
    return Other(system, errors=system.errors | {"LOST": row})


class Retrying:
    """A connection that dials again, as drivers of databases like to do."""

    def __init__(self, system: Any, cluster: Any, node: str, again: bool) -> None:
        self.dial = lambda: system.connect(cluster, node, 0)
        self.again = again

    async def begin(self, kind: str, deadline_s: float) -> Any:
        self.client = await self.dial()
        self.asked: list[tuple[int, int]] = []
        return Other(self, server_txn=None)

    async def read(self, key: int) -> Any:
        self.tx = await self.client.begin("read-write", asyncio.get_running_loop().time() + 5)
        return await self.tx.read(key)

    async def append(self, key: int, element: int) -> None:
        self.asked.append((key, element))
        self.tx = await self.client.begin("read-write", asyncio.get_running_loop().time() + 5)
        await self.tx.append(key, element)

    async def commit(self) -> Committed:
        try:
            return await self.tx.commit()
        except StoreError:
            return await self.once_more()

    async def once_more(self) -> Committed:
        self.client = await self.dial()
        if not self.again:
            return Committed()
        tx = await self.client.begin("read-write", asyncio.get_running_loop().time() + 5)
        for key, element in self.asked:
            await tx.append(key, element)
        return await tx.commit()

    async def close(self) -> None:
        await self.client.close()


def retrying(*, again: bool) -> Callable[[Any], Any]:
    def change(system: Any) -> Other:
        async def connect(cluster: Any, node: str, process: int) -> Any:
            return Retrying(system, cluster, node, again)

        return Other(system, connect=connect)

    return change


class Denying(Retrying):
    """It dials again, and calls what it did under that connection undone. ``beside``: it dials
    where the node listens, whatever address it was given.
    """

    def __init__(self, system: Any, cluster: Any, node: str, beside: bool) -> None:
        super().__init__(system, cluster, node, True)
        around = attrs.evolve(cluster, client=cluster.bind) if beside else cluster
        self.elsewhere = lambda: system.connect(around, node, 0)

    async def once_more(self) -> Committed:
        self.dial = self.elsewhere
        await super().once_more()
        raise StoreError("BUSY", "definite, and done")


def denying(*, beside: bool) -> Callable[[Any], Any]:
    def change(system: Any) -> Other:
        async def connect(cluster: Any, node: str, process: int) -> Any:
            return Denying(system, cluster, node, beside)

        return Other(system, connect=connect)

    return change


class Resuming(Retrying):
    """It dials again where a step finds the connection gone, and goes on in a new transaction."""

    async def begin(self, kind: str, deadline_s: float) -> Any:
        self.client = await self.dial()
        self.tx = await self.client.begin(kind, deadline_s)
        return Other(self, server_txn=None)

    async def append(self, key: int, element: int) -> None:
        try:
            await self.tx.append(key, element)
        except StoreError:
            tx = await self.begin("read-write", asyncio.get_running_loop().time() + 5)
            await tx.tx.append(key, element)

    async def commit(self) -> Committed:
        return await self.tx.commit()


def resuming(system: Any) -> Other:
    async def connect(cluster: Any, node: str, process: int) -> Any:
        return Resuming(system, cluster, node, True)

    return Other(system, connect=connect)


@pytest.mark.parametrize(
    ("change", "check", "text"),
    [
        (resuming, "lost connection", "a step and commit() returned after the connection had been"),
        (certain_of_what_is_lost, "lost answer", "fail at commit (LOST"),
        (denying(beside=False), "lost connection", "dialed 1 more times after the reset"),
        (denying(beside=True), "lost connection", "and under another connection it left (1,)"),
        (retrying(again=True), "lost answer", "a hidden retry"),
        (retrying(again=True), "lost connection", "under another connection"),
        (retrying(again=False), "lost connection", "and the append is lost"),
    ],
)
def test_a_wrong_answer_to_a_lost_one_is_found(
    tmp_path: Path, change: Any, check: str, text: str
) -> None:
    assert text in broken(in_processes(tmp_path, change, check), check)


def stumbling(system: Any) -> Other:
    """Of its connections the first breaks before anything is lost on the way."""
    dialed: list[int] = []

    async def connect(cluster: Any, node: str, process: int) -> Any:
        client = await system.connect(cluster, node, process)
        dialed.append(process)
        if len(dialed) > 1:
            return client

        async def begin(kind: str, deadline_s: float) -> Any:
            raise StoreError("LOST", "the connection ended")

        return Other(client, begin=begin)

    return Other(system, connect=connect)


@pytest.mark.parametrize("check", ["lost answer", "lost connection", "deadlines"])
def test_a_connection_that_breaks_before_anything_is_lost_is_dialed_again(
    tmp_path: Path, check: str
) -> None:
    found = in_processes(tmp_path, stumbling, check)

    assert found[check].mark is Mark.HOLDS, found[check]


class Deciding:
    """What passes on takes a connection that ended before the answer for one that never was."""

    def __init__(self, original: Any) -> None:
        self.original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)

    async def commit(self) -> Committed:
        try:
            done: Committed = await self.original.commit()
        except StoreError as error:
            raise StoreError("NO-HOLDER", "the holder is gone") from error
        return done


def certain_of_the_second_hop(system: Any) -> Other:
    async def connect(cluster: Any, node: str, process: int) -> Any:
        client = await system.connect(cluster, node, process)
        return client if node == cluster.nodes[0] else through_another(client)

    def through_another(client: Any) -> Other:
        async def begin(kind: str, deadline_s: float) -> Any:
            return Deciding(await client.begin(kind, deadline_s))

        return Other(client, begin=begin)

    return Other(system, connect=connect)


def test_a_definite_error_of_the_next_node_is_found_where_that_had_done_it(tmp_path: Path) -> None:
    checks = ("lost answer", "lost further on")
    found = in_processes(tmp_path, certain_of_the_second_hop, *checks, nodes=2)

    assert found["lost answer"].mark is Mark.HOLDS
    text = broken(found, "lost further on")
    assert "ended as fail at commit (NO-HOLDER" in text
    assert "which is definite, and" in text


def never_giving_up(client: Any) -> Other:
    async def begin(kind: str, deadline_s: float) -> Any:
        work = asyncio.ensure_future(client.begin(kind, deadline_s))
        while not work.done():
            try:
                await asyncio.shield(work)
            except asyncio.CancelledError:
                if asyncio.get_running_loop().time() > deadline_s + 3:
                    raise
        return work.result()

    return Other(client, begin=begin)


def closing_politely(client: Any) -> Other:
    async def close() -> None:
        await client.ask("rollback") if client._usable else await asyncio.sleep(5)
        await client.close()

    return Other(client, close=close)


@pytest.mark.parametrize(
    ("mistake", "text"),
    [(never_giving_up, "begin() went on"), (closing_politely, "it waits for the store")],
)
def test_a_client_that_does_not_let_go_is_found(tmp_path: Path, mistake: Any, text: str) -> None:
    found = in_processes(tmp_path, lambda system: with_client(system, mistake), "deadlines")

    assert text in broken(found, "deadlines")


def test_the_example_conforms_where_clients_dial_over_a_network(tmp_path: Path) -> None:
    assert pebble.Pebble.name == "pebble"

    checks = (*NEEDS_NETWORK, "roles", "transactions", "codes")
    found = in_processes(tmp_path, same, *checks, nodes=2)

    assert {result.mark for result in found.values()} == {Mark.HOLDS}, found
