"""Three real node processes on loopback, through the adapter that the harness uses."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import attrs
import pytest
from reference_bank import Bank
from reference_kit import ROOT, Store, eventually, store

from clusters.reference.client import ReferenceTx, encode_key
from clusters.reference.node.admin import ask
from clusters.reference.node.runtime.real import TcpNetwork
from clusters.reference.node.wire.frames import encode
from clusters.reference.node.wire.reports import AskStatus, NodeReport
from harness.clock import RunClock
from harness.history.records import EventKind, OpType, Phase
from harness.protocols.client import READ_WRITE, StoreError
from harness.protocols.fail_or_info import classify

LIMIT_S = 3.0
REFUSED_S = 0.05  # how long a client that was refused waits for another one to get through


def keys_of(running: Store, partition: int, count: int = 1) -> list[int]:
    every = (k for k in range(10_000) if running.system.partition_of(k) == partition)
    return [next(every) for _ in range(count)]


READ_LIMIT_S = 10.0


async def begin(running: Store, node: str, limit_s: float = LIMIT_S) -> ReferenceTx:
    client = await running.system.connect(running.cluster, node, 0)
    return await client.begin(READ_WRITE, asyncio.get_running_loop().time() + limit_s)


async def append(running: Store, node: str, key: int, element: int) -> None:
    tx = await begin(running, node)
    await tx.append(key, element)
    await tx.commit()


async def read(running: Store, node: str, key: int) -> tuple[int, ...]:
    """What ``node`` reads at ``key``. A refusal is tried again for a while: primaries may move."""
    seen: list[object] = []

    async def answered() -> bool:
        try:
            tx = await begin(running, node)
            value = await tx.read(key)
            await tx.commit()
        except StoreError:
            return False
        seen.append(value)
        return True

    await eventually(answered, f"{node} reads key {key}", READ_LIMIT_S)
    value = seen[0]
    assert value is None or isinstance(value, tuple)
    return value or ()


async def failing(call: Awaitable[object]) -> StoreError:
    with pytest.raises(StoreError) as caught:
        await call
    return caught.value


def run(
    directory: Path,
    scenario: Callable[[Store], Awaitable[None]],
    *,
    nodes: int = 3,
    **options: object,
) -> None:
    async def body() -> None:
        async with asyncio.timeout(60), store(directory, nodes, **options) as running:
            await scenario(running)

    asyncio.run(body())


def test_transactions_from_every_node_see_each_other_and_conflicts_abort(tmp_path: Path) -> None:
    async def scenario(running: Store) -> None:
        for element, node in enumerate(running.cluster.nodes):
            await append(running, node, 7, element)
            assert await read(running, "n1", 7) == tuple(range(element + 1))

        await repeatable_reads_and_own_writes(running)
        await of_two_writers_the_younger_dies(running)
        await an_older_transaction_waits_for_a_younger_one(running)
        await keys_of_several_partitions_change_together(running)
        await snapshots_see_one_moment_and_stop_nobody(running)
        await a_one_shot_is_one_round_trip_to_the_same_end(running)
        await a_dropped_connection_rolls_back(running)
        await misuse_is_answered(running)
        await strangers_are_dropped(running)

    run(tmp_path, scenario)


async def repeatable_reads_and_own_writes(running: Store) -> None:
    tx = await begin(running, "n1")
    assert await tx.read(7) == (0, 1, 2)
    younger = await failing(append(running, "n2", 7, 3))
    assert (younger.code, "older" in younger.message) == ("TX-CONFLICT", True)
    assert await tx.read(7) == (0, 1, 2)
    await tx.append(7, 4)
    assert await tx.read(7) == (0, 1, 2, 4)
    await tx.commit()
    assert await read(running, "n3", 7) == (0, 1, 2, 4)


async def of_two_writers_the_younger_dies(running: Store) -> None:
    first, second = await begin(running, "n1"), await begin(running, "n2")
    await first.append(8, 1)
    # At its first step, not at its commit: an append says that it will write what it reads.
    assert (await failing(second.append(8, 2))).code == "TX-CONFLICT"
    third = await begin(running, "n3")
    assert await third.read(14) is None
    await third.write(8, 3)  # of which only the next step tells
    assert (await failing(third.commit())).code == "TX-CONFLICT"
    assert (await failing(third.commit())).code == "TX-NONE"
    fourth = await begin(running, "n3")
    assert await fourth.read(14) is None
    await fourth.write(8, 4)
    await fourth.rollback()  # what it did not hear of is over with it
    await first.commit()
    assert await read(running, "n3", 8) == (1,)


async def an_older_transaction_waits_for_a_younger_one(running: Store) -> None:
    older, younger = await begin(running, "n1"), await begin(running, "n1")
    assert await older.read(11) is None  # a transaction is as old as its first step
    await younger.write(12, 1)
    waiting = asyncio.ensure_future(older.read(12))

    async def queued() -> bool:
        told = await Bank(running.system, running.cluster).statuses(running.cluster.nodes)
        return sum(status.waiting for status in told) == 1

    await eventually(queued, "the older one waits")
    assert not waiting.done()
    await younger.commit()
    assert await waiting == 1
    await older.commit()


async def keys_of_several_partitions_change_together(running: Store) -> None:
    keys = [keys_of(running, partition, 20)[18] for partition in range(4)]
    tx = await begin(running, "n2")
    assert await tx.read(keys[0]) is None
    for key in keys[1:]:
        await tx.append(key, 1)
    done = await tx.commit()
    for node in running.cluster.nodes:
        seen = await begin(running, node)
        assert [await seen.read(key) for key in keys] == [None, (1,), (1,), (1,)]
        assert ((await seen.commit()).commit_ts or 0) > (done.commit_ts or 0) > 0

    given_up = await begin(running, "n1")
    for key in keys:
        await given_up.append(key, 2)
    await given_up.rollback()
    assert await read(running, "n3", keys[1]) == (1,)


async def snapshots_see_one_moment_and_stop_nobody(running: Store) -> None:
    one, other = keys_of(running, 0, 20)[19], keys_of(running, 1, 20)[19]
    await write_both(running, one, other, 1)
    client = await running.system.connect(running.cluster, "n3", 0)
    deadline_s = asyncio.get_running_loop().time() + LIMIT_S
    snapshot = await client.begin("snapshot", deadline_s)
    assert await snapshot.read(one) == 1
    await write_both(running, one, other, 2)
    assert await snapshot.read(other) == 1
    assert (await failing(snapshot.write(one, 3))).code == "TX-READ-ONLY"
    later = await client.begin("snapshot", deadline_s)
    assert [await later.read(one), await later.read(other)] == [2, 2]
    await later.commit()


async def write_both(running: Store, one: int, other: int, value: int) -> None:
    tx = await begin(running, "n1")
    await tx.write(one, value)
    await tx.write(other, value)
    await tx.commit()


async def a_one_shot_is_one_round_trip_to_the_same_end(running: Store) -> None:
    here, there = keys_of(running, 2, 20)[17], keys_of(running, 3, 20)[17]
    client = await running.system.connect(running.cluster, "n1", 0)
    deadline_s = asyncio.get_running_loop().time() + LIMIT_S
    first = await client.one_shot([(here + 10**6, None), (here + 10**6, 5)], deadline_s)
    assert first.values == (None,)
    both = [(here, 6), (there, 7), (here, None), (there, None)]
    second = await client.one_shot(both, deadline_s)
    assert second.values == (6, 7)
    assert second.commit_ts > first.commit_ts
    with pytest.raises(StoreError, match="TX-TOO-LARGE"):
        await client.one_shot([(here, tuple(range(2**18, 2**19)))], deadline_s)


async def a_dropped_connection_rolls_back(running: Store) -> None:
    client = await running.system.connect(running.cluster, "n1", 0)
    tx = await client.begin(READ_WRITE, asyncio.get_running_loop().time() + LIMIT_S)
    await tx.append(9, 1)
    await client.close()
    assert (await failing(tx.commit())).code == "CONNECTION-LOST"

    async def unlocked() -> bool:
        try:
            return await read(running, "n1", 9) == ()
        except StoreError:
            return False

    await eventually(unlocked, "the lock is free, and nothing was written", limit_s=1.0)


async def misuse_is_answered(running: Store) -> None:
    client = await running.system.connect(running.cluster, "n1", 0)
    deadline_s = asyncio.get_running_loop().time() + LIMIT_S
    assert (await failing(client.begin("no-such", deadline_s))).code == "TX-KIND"
    tx = await client.begin(READ_WRITE, deadline_s)
    await tx.write(10, 2**40)
    assert await tx.read(10) == 2**40
    await tx.rollback()
    short = await begin(running, "n1", limit_s=0.05)

    async def until_refused() -> StoreError:
        while True:
            try:
                # Of no key before: a rollback does not wait for its locks to go.
                await short.read(15)
            except StoreError as error:
                return error

    async with asyncio.timeout(LIMIT_S):
        assert (await until_refused()).code == "TX-EXPIRED"


async def strangers_are_dropped(running: Store) -> None:
    for port in running.cluster.bind["n1"].values():
        for noise in (b"GET / HTTP/1.1\r\n\r\n", encode(b"\xc1"), encode(b"\x92" * 100_000)):
            reader, writer = await asyncio.open_connection(port.host, port.port)
            writer.write(noise)
            assert await reader.read() == b""
            writer.close()
    assert "Traceback" not in running.processes.log("n1")
    assert "dropping client" in running.processes.log("n1")
    await append(running, "n1", 11, 1)


@attrs.define
class Load:
    """Clients that append unique elements; what was acknowledged, and what nobody knows."""

    running: Store
    acknowledged: dict[int, list[int]] = attrs.field(factory=dict)
    refused: dict[int, list[int]] = attrs.field(factory=dict)
    next_element: int = 0
    through: asyncio.Event = attrs.field(factory=asyncio.Event)  # somebody is

    over: bool = False

    async def more(self, count: int) -> None:
        """Return when ``count`` more commits are acknowledged."""
        goal = self.total + count

        async def reached() -> bool:
            return self.total >= goal

        await eventually(reached, f"{count} more commits")

    @property
    def total(self) -> int:
        return sum(map(len, self.acknowledged.values()))

    async def client(self, slot: int) -> None:
        nodes = self.running.cluster.nodes
        while not self.over:
            self.next_element += 1
            slot += 1
            await self.one(nodes[slot % len(nodes)], slot % 16, self.next_element)

    async def one(self, node: str, key: int, element: int) -> None:
        phase: Phase = "connect"
        client = None
        try:
            client = await self.running.system.connect(self.running.cluster, node, 0)
            tx = await client.begin(READ_WRITE, asyncio.get_running_loop().time() + LIMIT_S)
            phase = "step"
            await tx.append(key, element)
            phase = "commit"
            await tx.commit()
        except StoreError as error:
            if classify(phase, error.code, self.running.system.errors) is OpType.FAIL:
                self.refused.setdefault(key, []).append(element)
            await self.somebody_through()
        else:
            self.acknowledged.setdefault(key, []).append(element)
            self.through.set()
        finally:
            if client is not None:
                await client.close()

    async def somebody_through(self) -> None:
        """Wait until somebody gets through, and not for long: all may have been refused."""
        self.through.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(REFUSED_S):
                await self.through.wait()


def test_no_acknowledged_write_is_lost_when_leaders_are_killed_under_load(tmp_path: Path) -> None:
    async def scenario(running: Store) -> None:
        load = Load(running)
        clients = [asyncio.ensure_future(load.client(slot)) for slot in range(6)]
        for partition in (0, 1):
            await load.more(100)
            leader = (await running.system.roles(running.cluster)).leaders[partition]
            await running.processes.kill(leader)
            await load.more(100)
            await running.processes.start(leader)
            await running.whole()
        load.over = True
        await asyncio.gather(*clients)
        await running.whole()

        for key in range(16):
            final = await read(running, "n2", key)
            assert len(set(final)) == len(final)
            assert set(load.acknowledged.get(key, [])) <= set(final)
            assert not set(load.refused.get(key, [])) & set(final)

    run(tmp_path, scenario)


async def commit_without_followers(running: Store) -> tuple[int, StoreError | None]:
    """Kill both followers of a leader, let it commit at once, kill it, and heal."""
    leader = (await running.system.roles(running.cluster)).leaders[0]
    followers = [n for n in running.cluster.nodes if n != leader]
    [key] = keys_of(running, 0)
    await append(running, leader, key, 1)

    async def applied() -> bool:
        return await read(running, leader, key) == (1,)

    await eventually(applied, "the first element is applied, acknowledged early or not")
    tx = await begin(running, leader)
    await tx.append(key, 2)
    await asyncio.gather(*(running.processes.kill(n) for n in followers))
    error: StoreError | None = None
    try:
        await tx.commit()
    except StoreError as caught:
        error = caught
    await running.processes.kill(leader)
    await asyncio.gather(*(running.processes.start(n) for n in followers))

    async def elected() -> bool:
        return (await running.system.roles(running.cluster)).leaders.get(0) in followers

    await eventually(elected, "the followers elect one of themselves, without the old log")
    await running.whole()
    return key, error


def test_a_leader_without_a_quorum_does_not_acknowledge(tmp_path: Path) -> None:
    async def scenario(running: Store) -> None:
        key, error = await commit_without_followers(running)

        assert error is not None
        assert error.code in ("LEADER-LOST", "COMMIT-TIMEOUT")
        assert await read(running, "n1", key) == (1,)

    run(tmp_path, scenario)


def test_the_planted_bug_ack_before_quorum_loses_an_acknowledged_write(tmp_path: Path) -> None:
    async def scenario(running: Store) -> None:
        key, error = await commit_without_followers(running)

        assert error is None  # acknowledged
        assert await read(running, "n1", key) == (1,)  # and lost
        events = await running.system.events(running.cluster, RunClock(asyncio.get_running_loop()))
        assert [e for e in events if e.kind is EventKind.LOG_TRUNCATED and e.partition == 0]

    run(tmp_path, scenario, bugs=["ack-before-quorum"])


@pytest.mark.parametrize(("nodes", "replicas"), [(1, 1), (5, 3), (4, 1)])
def test_every_node_serves_every_partition_whether_it_holds_it_or_not(
    tmp_path: Path, nodes: int, replicas: int
) -> None:
    async def scenario(running: Store) -> None:
        for partition in (0, 1):
            [key] = keys_of(running, partition)
            for element, node in enumerate(running.cluster.nodes):
                await append(running, node, key, element)
            assert await read(running, "n1", key) == tuple(range(nodes))
        voters = (await running.system.roles(running.cluster)).voters
        assert [len(voters[p]) for p in (0, 1)] == [replicas, replicas]

    run(tmp_path, scenario, nodes=nodes, replicas=replicas, partitions=2)


def test_events_come_once_and_a_restart_begins_a_new_boot(tmp_path: Path) -> None:
    async def scenario(running: Store) -> None:
        clock = RunClock(asyncio.get_running_loop())
        first = await running.system.events(running.cluster, clock)
        kinds = [event.kind for event in first]
        assert kinds.count(EventKind.NODE_STARTED) == 3
        assert kinds.count(EventKind.START_DECISION) == 2 * 3
        led = {e.partition for e in first if e.kind is EventKind.LEADER_ELECTED}
        assert led == {None, 0, 1}
        assert all(0 <= event.uncertainty_ns < 1_000_000_000 for event in first)

        await running.processes.kill("n2")
        await running.whole()
        second = await running.system.events(running.cluster, clock)

        started = [e for e in second if e.kind is EventKind.NODE_STARTED]
        assert [e.node for e in started] == ["n2"]
        assert started[0].boot not in {e.boot for e in first}
        assert not {(e.node, e.boot, e.at_ns) for e in first} & {
            (e.node, e.boot, e.at_ns) for e in second
        }

    run(tmp_path, scenario, partitions=2)


def test_the_admin_command_prints_a_node_for_a_person(tmp_path: Path) -> None:
    async def scenario(running: Store) -> None:
        code, text = await admin(str(running.cluster.client["n1"]["client"]))
        assert code == 0
        assert "2 partitions x 3 replicas" in text
        assert [line.split()[0] for line in text.splitlines()[6:9]] == ["metastorage", "p0", "p1"]
        assert "node-started: n1 started" in text
        await admin_shows_a_key_and_who_holds_it(running)

        await running.processes.kill("n1")
        code, text = await admin(str(running.cluster.client["n1"]["client"]))
        assert code == 1
        assert "does not answer" in text
        assert "Traceback" not in text

    run(tmp_path, scenario, partitions=2)


async def admin_shows_a_key_and_who_holds_it(running: Store) -> None:
    key = keys_of(running, 0)[0]
    primaries = (await running.system.roles(running.cluster)).primaries
    assert primaries is not None
    primary = primaries[0]
    for element in (1, 2):
        await append(running, "n1", key, element)
    tx = await begin(running, "n1", limit_s=20.0)
    await tx.write(key, 3)

    address = str(running.cluster.client[primary]["client"])
    code, text = await admin(address, "--key", encode_key(key).hex())
    title, lock, *versions = text.splitlines()
    assert (code, title) == (0, f"key {encode_key(key).hex()} in partition 0")
    assert lock == f"  locked exclusively by {tx.server_txn}"
    assert [line.split()[1:3] for line in versions] == [["3", "bytes"], ["2", "bytes"]]
    assert versions[0] > versions[1]

    row = partition_row((await admin(address))[1], "p0")
    assert (row["primary"], row["serving"], row["locks"], row["open"]) == (primary, "yes", "1", "1")
    assert (row["keys"], row["versions"]) == ("1", "2")
    await tx.rollback()


def partition_row(text: str, name: str) -> dict[str, str]:
    """The line of a partition in the table of primaries."""
    lines = text.splitlines()
    title = next(i for i, line in enumerate(lines) if line.startswith("p  "))
    row = next(line for line in lines[title + 1 :] if line.split()[0] == name)
    return dict(zip(lines[title].split(), row.split(), strict=False))


async def admin(address: str, *options: str) -> tuple[int | None, str]:
    command = (sys.executable, "-m", "clusters.reference.node.admin", address, *options)
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, stdout=pipe, stderr=asyncio.subprocess.STDOUT
    )
    out, _ = await child.communicate()
    return child.returncode, out.decode()


def test_every_node_in_turn_is_wiped_under_load_and_comes_back_as_a_voter(tmp_path: Path) -> None:
    async def scenario(running: Store) -> None:
        load = Load(running)
        clients = [asyncio.ensure_future(load.client(slot)) for slot in range(4)]
        for node in running.cluster.nodes:
            await load.more(100)
            before = (await status(running, node)).incarnation
            await running.processes.kill(node)
            shutil.rmtree(tmp_path / node / "data")
            await running.whole()
            after = (await status(running, node)).incarnation
            assert after != before
            for report in [await status(running, n) for n in running.cluster.nodes]:
                for group in report.groups:
                    assert f"{node}@{after}" in group.members
                    assert f"{node}@{before}" not in group.members
        load.over = True
        await asyncio.gather(*clients)
        await running.whole()
        for key in range(16):
            final = await read(running, "n2", key)
            assert len(set(final)) == len(final)
            assert set(load.acknowledged.get(key, [])) <= set(final)
            assert not set(load.refused.get(key, [])) & set(final)

    run(tmp_path, scenario, partitions=3, snapshot_bytes=100_000)


async def status(running: Store, node: str) -> NodeReport:
    address = running.cluster.client[node]["client"]
    report = await ask(TcpNetwork(), address.host, address.port, AskStatus(), LIMIT_S)
    assert isinstance(report, NodeReport)
    return report


def test_a_node_ends_with_a_code_that_says_why(tmp_path: Path) -> None:
    async def scenario(running: Store) -> None:
        processes, directory = running.processes, tmp_path / "n1"
        assert await processes.signal("n1", signal.SIGTERM) == 0
        assert "node-stopped" in processes.log("n1")

        log_file = directory / "data" / "log-00000001"
        whole = log_file.read_bytes()
        log_file.write_bytes(whole + whole[16:40])  # a record that was begun and not finished
        await processes.start("n1")
        await running.whole()
        assert "torn-tail" in processes.log("n1")
        await processes.kill("n1")

        whole = log_file.read_bytes()
        damaged = bytearray(whole)
        damaged[40] ^= 1
        log_file.write_bytes(damaged)
        assert await ends(running, "n1") == 3
        assert "log-00000001 at byte 16" in processes.log("n1")

        log_file.write_bytes(whole)
        config = directory / "node.json"
        good = config.read_bytes()
        config.write_bytes(good.replace(b'"partitions": 1', b'"partitions": 2'))
        assert await ends(running, "n1") == 1
        assert "the configuration says Zone(partitions=2" in running.processes.log("n1")
        taken = str(running.cluster.client["n2"]["client"].port).encode()
        mine = str(running.cluster.client["n1"]["client"].port).encode()
        config.write_bytes(good.replace(mine, taken))
        assert await ends(running, "n1") == 4
        assert "address already in use" in processes.log("n1")
        config.write_bytes(good.replace(b'"tick_ms"', b'"tick"'))
        assert await ends(running, "n1") == 2
        assert "unknown field `tick`" in processes.log("n1")
        assert "Traceback" not in processes.log("n1")

    run(tmp_path, scenario, partitions=1)


def test_a_node_whose_disk_is_full_stops_and_goes_on_once_there_is_room(tmp_path: Path) -> None:
    async def scenario(running: Store) -> None:
        await running.processes.kill("n1")
        await running.processes.start("n1", "bash", "-c", 'ulimit -f 40; exec "$@"', "bash")
        await running.whole()
        load = Load(running)
        clients = [asyncio.ensure_future(load.client(slot)) for slot in range(6)]
        async with asyncio.timeout(30):
            assert await running.processes.children["n1"].wait() == 3
        load.over = True
        await asyncio.gather(*clients)
        assert "storage-error" in running.processes.log("n1")
        assert "cannot append to" in running.processes.log("n1")

        await running.whole()
        assert "torn-tail" in running.processes.log("n1")
        for key in range(16):
            assert set(load.acknowledged.get(key, [])) <= set(await read(running, "n1", key))

    run(tmp_path, scenario, partitions=1)


async def ends(running: Store, node: str) -> int:
    await running.processes.start(node)
    async with asyncio.timeout(10):
        return await running.processes.children[node].wait()
