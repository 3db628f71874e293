"""Tables that come and go while a simulated cluster runs, and tables without data nodes."""

from __future__ import annotations

import asyncio

import pytest
from zoned_lab import Lab, columns, now_s

from clusters.providers.sim.loop import simulate
from clusters.reference.client import Stored
from clusters.reference.node.tx import in_doubt
from clusters.reference.node.tx.outcome_sender import OutcomeSender
from clusters.reference.node.wire import error_table as codes
from clusters.reference.node.wire.messages import TxnId
from harness.protocols.client import READ_WRITE, StoreError

TOPOLOGY = "SELECT NODE_NAME FROM SYSTEM.LOGICAL_TOPOLOGY"
DATA = "SELECT NODE_NAME FROM SYSTEM.DATA_NODES"
PARTITIONS = 4
KEYS = range(12)  # over all partitions


async def begun(lab: Lab, filter_: str = "$..*") -> None:
    await lab.provision()
    await lab.start("a", "b", "c", "d")
    await lab.until_rows(TOPOLOGY, columns("a b c d"))
    await lab.done(
        f"CREATE ZONE z WITH PARTITIONS = {PARTITIONS}, REPLICAS = 3, DATA_NODES_FILTER = "
        f"'{filter_}'"
    )
    await lab.done("CREATE TABLE t WITH PRIMARY_ZONE = z")


async def put(lab: Lab, table: str, value: int, node: str = "d") -> None:
    client = await lab.dial(node, table)
    tx = await client.begin(READ_WRITE, now_s() + 5.0)
    for key in KEYS:
        await tx.write(key, value)
    await tx.commit()
    await client.close()


async def held(lab: Lab, table: str, node: str = "b") -> set[Stored | None]:
    client = await lab.dial(node, table)
    tx = await client.begin(READ_WRITE, now_s() + 5.0)
    found = {await tx.read(key) for key in KEYS}
    await client.close()
    return found


async def refused(lab: Lab, table: str, node: str = "c") -> StoreError:
    with pytest.raises(StoreError) as error:
        await held(lab, table, node)
    return error.value


def test_a_table_that_is_dropped_and_created_again_is_empty_and_serves() -> None:
    async def scenario() -> None:
        lab = Lab()
        await begun(lab)
        await put(lab, "T", 1)
        assert await held(lab, "T") == {1}
        await lab.done("DROP TABLE t")
        assert (await refused(lab, "T")).code == codes.NO_TABLE
        await lab.done("CREATE TABLE t WITH PRIMARY_ZONE = z")
        assert await held(lab, "T") == {None}
        await put(lab, "T", 2)
        assert await held(lab, "T") == {2}
        # The numbers of the dropped one were not given again, and its replicas are gone.
        deadline_s = now_s() + 5.0
        while True:
            report = await lab.report("a")
            if {group.partition for group in report.groups} <= {None, 4, 5, 6, 7}:
                break
            assert now_s() < deadline_s, report
            await asyncio.sleep(0.1)
        assert report.tables == (("T", PARTITIONS, PARTITIONS),)
        await lab.provider.teardown()

    simulate(scenario())


def test_tables_keep_their_keys_apart_and_one_is_not_moved_by_another_that_goes() -> None:
    async def scenario() -> None:
        lab = Lab(2)
        await begun(lab)
        await lab.done("CREATE TABLE u WITH PRIMARY_ZONE = z")
        await put(lab, "T", 1)
        await put(lab, "U", 2)
        await lab.done("DROP TABLE t")
        await lab.done("CREATE TABLE v WITH PRIMARY_ZONE = z")
        await put(lab, "V", 3)
        assert (await held(lab, "U"), await held(lab, "V")) == ({2}, {3})
        await lab.provider.teardown()

    simulate(scenario())


def test_a_filter_that_no_node_matches_refuses_operations_by_name_and_keeps_the_data() -> None:
    async def scenario() -> None:
        lab = Lab(3)
        await begun(lab)
        await put(lab, "T", 1)
        altered = await lab.sql("ALTER TABLE GROUP z SET DATA_NODES_FILTER = '\"nowhere\"'")
        assert altered.warnings == (
            "zone 'Z': no node matches the filter '\"nowhere\"', its data nodes are empty, and "
            "operations on its tables are refused",
        )
        await lab.until_rows(DATA, set())
        before_s = now_s()
        error = await refused(lab, "T")
        assert now_s() - before_s < 0.5  # at once, and not after a wait for a primary
        assert error.code == codes.NO_DATA_NODES
        assert "'\"nowhere\"' of zone 'Z'" in str(error)
        await lab.done("ALTER ZONE z SET DATA_NODES_FILTER = '$..*'")
        await lab.until_rows(DATA, columns("a b c d"))
        assert await held(lab, "T") == {1}
        await lab.provider.teardown()

    simulate(scenario())


def test_a_new_table_without_data_nodes_serves_once_it_has_some() -> None:
    async def scenario() -> None:
        lab = Lab(4)
        await begun(lab, '"e"')
        assert (await refused(lab, "T")).code == codes.NO_DATA_NODES
        assert await lab.done("SELECT * FROM SYSTEM.ASSIGNMENTS") == ()
        await lab.start("e")
        await lab.until_rows(DATA, columns("e"))
        await put(lab, "T", 1)
        assert await held(lab, "T") == {1}
        await lab.provider.teardown()

    simulate(scenario())


def test_a_profile_that_no_node_has_is_told_and_refused() -> None:
    async def scenario() -> None:
        lab = Lab(5)
        await begun(lab)
        await lab.done("CREATE ZONE y WITH PARTITIONS = 1, STORAGE_PROFILES = 'fast,default'")
        created = await lab.sql("CREATE TABLE u WITH PRIMARY_ZONE = y")
        assert created.warnings == (
            "table 'U': no node of zone 'Y' has the storage profile 'fast', its data nodes are "
            "empty, and operations on it are refused",
        )
        error = await refused(lab, "U")
        assert (error.code, "profile 'fast'" in str(error)) == (codes.NO_DATA_NODES, True)
        await lab.provider.teardown()

    simulate(scenario())


def test_a_table_that_a_node_does_not_know_yet_is_waited_for() -> None:
    async def scenario() -> None:
        lab = Lab(6)
        await begun(lab)
        waiting = asyncio.ensure_future(put(lab, "U", 1))
        await asyncio.sleep(0.5)
        await lab.done("CREATE TABLE u WITH PRIMARY_ZONE = z")
        await waiting
        assert await held(lab, "U") == {1}
        await lab.provider.teardown()

    simulate(scenario())


@pytest.mark.parametrize("dropped", ["T", "U"])
def test_a_commit_over_two_tables_is_whole_in_the_one_that_stays(
    dropped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``T`` is home of the commit, ``U`` a participant: neither may go before the other is done."""
    late = [True]
    finish, rows = OutcomeSender._finish_participants, dict[int, OutcomeSender]()

    async def delayed(sender: OutcomeSender, txn: TxnId) -> None:
        rows[id(sender)] = sender
        while late[0]:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.05)
        await finish(sender, txn)

    monkeypatch.setattr(OutcomeSender, "_finish_participants", delayed)
    # Else the participant finds the outcome out by itself before the table is gone.
    monkeypatch.setattr(in_doubt, "RECOVER_AFTER_S", 4.0)

    async def scenario() -> None:
        lab = Lab(7)
        await begun(lab)
        await lab.done("CREATE TABLE u WITH PRIMARY_ZONE = z")
        client = await lab.dial("d", "T")
        client.table_of = lambda key: "T" if key == 0 else "U"
        tx = await client.begin(READ_WRITE, now_s() + 5.0)
        await tx.write(0, 1)
        await tx.write(1, 2)
        await tx.commit()
        await lab.done(f"DROP TABLE {dropped}")
        await asyncio.sleep(1.0)
        late[0] = False
        kept, key, value = ("U", 1, 2) if dropped == "T" else ("T", 0, 1)
        deadline_s = now_s() + 10.0
        while True:
            groups = {g.partition for node in "abcd" for g in (await lab.report(node)).groups}
            if len(groups) == 1 + PARTITIONS:
                break
            assert now_s() < deadline_s, groups
            await asyncio.sleep(0.1)
        reader = await lab.dial("b", kept)
        found = await (await reader.begin(READ_WRITE, now_s() + 5.0)).read(key)
        assert found == value
        assert all(
            not any(o.ts for o in sender._partition.outcomes.rows.values())
            for sender in rows.values()
        )
        await lab.provider.teardown()

    simulate(scenario())


def test_a_table_whose_only_node_was_wiped_before_it_was_created_serves() -> None:
    async def scenario() -> None:
        lab = Lab(8)
        await lab.provision()
        await lab.start("a", "b", "c", "d")
        await lab.until_rows(TOPOLOGY, columns("a b c d"))
        await lab.done(
            "CREATE ZONE z WITH PARTITIONS = 4, REPLICAS = 1, "
            "DATA_NODES_FILTER = '\"d\"', DATA_NODES_AUTO_ADJUST_SCALE_DOWN = 300"
        )
        await lab.until_rows(DATA, set())  # no table yet
        await lab.provider.kill("d")
        await lab.provider.wipe("d")
        await lab.done("CREATE TABLE t WITH PRIMARY_ZONE = z")
        await asyncio.sleep(3.0)
        await lab.start("d")
        await lab.until_rows(TOPOLOGY, columns("a b c d"))
        await put(lab, "T", 1, "a")
        assert await held(lab, "T") == {1}
        # A directory that is lost once the table has served is not replaced by an empty one.
        await lab.provider.kill("d")
        await lab.provider.wipe("d")
        await lab.start("d")
        await asyncio.sleep(5.0)
        assert (await refused(lab, "T")).code in codes.NOT_SERVED
        await lab.provider.teardown()

    simulate(scenario())
