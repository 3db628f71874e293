"""The client over real pipes: to a process that plays the driver's part, and to the driver."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable

import pytest
from ignite3_thin import needs_java

from clusters.ignite3 import error_table
from clusters.ignite3.artifacts import Artifacts
from clusters.ignite3.bridge import Bridge
from clusters.ignite3.client import (
    AUTOCOMMIT,
    READ_ONLY,
    STALENESS_S,
    IgniteClient,
    Session,
    connect,
    decode,
    dial,
)
from clusters.ignite3.error_table import ERRORS, MISMATCH_ABORTED
from clusters.ignite3.system import build
from harness.errors import HarnessBug
from harness.protocols.client import READ_WRITE, StoreError, read_all
from harness.protocols.cluster import Address, Cluster
from harness.protocols.fail_or_info import Certainty
from harness.protocols.statement_language import StatementAnswer

NOWHERE = Address(host="127.0.0.1", port=1)
# Keeps values of all connections in one dictionary; key 13 is never answered, 14 is refused, 15
# ends the process, 16 is of a connection that it does not know; a commit after a put of 17 finds
# the transaction aborted.
DRIVER = """
import json, os, sys
held, open_key = {}, None
for line in sys.stdin:
    asked = json.loads(line)
    key, answer = asked.get("key"), {"id": asked["id"]}
    if key == 13:
        continue
    if key == 14:
        answer.update(code="TX-4", text="no lock")
    elif key == 15:
        os._exit(1)
    elif key == 16:
        answer.update(code="DRIVER-MISUSE", text="no connection")
    elif key == 17 and asked["op"] == "put":
        open_key = 17
    elif asked["op"] in ("put", "sql-put"):
        held[key] = asked["value"]
    elif asked["op"] in ("get", "sql-get"):
        answer["value"] = held.get(key)
    elif asked["op"] == "select":
        answer["values"] = [held.get(key) for key in asked["keys"]]
    elif asked["op"] == "query" and asked["text"] == "wrong":
        answer.update(code="SQL-4", text="no such statement")
    elif asked["op"] == "query" and asked["text"] == "end":
        os._exit(1)
    elif asked["op"] == "query":
        answer["rows"] = [["K", "V"], [7, "seven"], [8, None]] if "SELECT" in asked["text"] else []
    elif asked["op"] == "commit" and open_key == 17:
        answer.update(code="TX-3", text="Failed to change it [txId=7, txState=ABORTED]")
    print(json.dumps(answer), flush=True)
"""


def served(work: Callable[[IgniteClient], Awaitable[None]], session: Session | None = None) -> None:
    """Run ``work`` on a connection to the played driver."""

    async def run() -> None:
        bridge = Bridge((sys.executable, "-c", DRIVER))
        async with asyncio.timeout(10):
            await work(await connect(bridge, NOWHERE, "ITEMS", 5.0, session))

    asyncio.run(run())


def later() -> float:
    return asyncio.get_running_loop().time() + 5


def test_appends_are_read_back_in_their_order() -> None:
    async def work(client: IgniteClient) -> None:
        tx = await client.begin(READ_WRITE, later())
        assert await tx.read(1) is None
        await tx.append(1, 7)
        await tx.append(1, 8)
        await tx.write(2, 5)
        assert (await tx.read(1), await tx.read(2)) == ((7, 8), 5)
        await tx.commit()

    served(work)


def test_an_error_comes_with_the_code_of_the_store_and_leaves_the_connection() -> None:
    async def work(client: IgniteClient) -> None:
        tx = await client.begin(READ_WRITE, later())
        with pytest.raises(StoreError) as caught:
            await tx.read(14)
        assert (caught.value.code, caught.value.message) == ("TX-4", "no lock")
        await tx.rollback()
        await client.begin(READ_WRITE, later())

    served(work)


def test_a_call_that_was_given_up_ends_its_connection() -> None:
    async def work(client: IgniteClient) -> None:
        tx = await client.begin(READ_WRITE, later())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await tx.read(13)
        with pytest.raises(StoreError) as caught:
            await client.begin(READ_WRITE, later())
        assert caught.value.code == error_table.BROKEN

    served(work)


def test_a_connection_of_a_driver_that_ended_is_over_though_there_is_a_new_driver() -> None:
    async def work(client: IgniteClient) -> None:
        tx = await client.begin(READ_WRITE, later())
        with pytest.raises(StoreError):
            await tx.read(15)
        with pytest.raises(StoreError) as caught:
            await client.begin(READ_WRITE, later())
        assert caught.value.code == error_table.BROKEN
        again = await dial(client._bridge, NOWHERE, 5.0)
        await again.begin(READ_WRITE, later())

    served(work)


def test_a_driver_that_does_not_know_the_connection_ends_it() -> None:
    async def work(client: IgniteClient) -> None:
        with pytest.raises(StoreError) as refused:
            await client.ask("get", key=16)
        assert refused.value.code == error_table.MISUSE
        with pytest.raises(StoreError) as caught:
            await client.begin(READ_WRITE, later())
        assert caught.value.code == error_table.BROKEN

    served(work)


def test_calls_that_wait_learn_of_the_end_of_the_driver() -> None:
    async def work(client: IgniteClient) -> None:
        tx = await client.begin(READ_WRITE, later())
        with pytest.raises(StoreError) as caught:
            await tx.read(15)
        assert caught.value.code == error_table.CONNECTION_LOST

    served(work)


def test_what_is_no_value_is_an_error_that_shows_it() -> None:
    with pytest.raises(StoreError, match="key 3 holds 'xyz'"):
        decode(3, "xyz")
    assert decode(3, "[1,2]") == (1, 2)


def test_sql_and_rows_are_two_ways_to_the_same_values() -> None:
    async def work(client: IgniteClient) -> None:
        tx = await client.begin(READ_WRITE, later())
        await tx.append(1, 7)
        await tx.append(1, 8)
        assert await tx.read(1) == (7, 8)
        await tx.commit()

    served(work, Session(access="sql"))


def test_a_statement_reads_all_its_keys_at_once_and_a_snapshot_one_by_one() -> None:
    async def work(client: IgniteClient) -> None:
        tx = await client.begin(READ_WRITE, later())
        await tx.write(1, 5)
        await tx.commit()
        for kind in (AUTOCOMMIT, READ_ONLY):
            reading = await client.begin(kind, later())
            assert await read_all(reading, (2, 1)) == (None, 5)
            assert await reading.read(1) == 5
            await reading.commit()

    served(work)


def stated(text: str, *, driver: str = DRIVER) -> StatementAnswer:
    """The answer to a statement, by the way of the command line."""
    system = build({"replicas": 1}, ("n1",), 1)
    system._bridge = Bridge((sys.executable, "-c", driver))
    address = {"n1": {"client": NOWHERE}}
    cluster = Cluster(nodes=("n1",), bind={}, peer={}, client=address, work_dir={})
    return asyncio.run(system.statement(cluster, "n1", text, 5.0))


def test_a_statement_of_the_command_line_is_answered_by_its_rows() -> None:
    assert stated("SELECT * FROM items") == StatementAnswer(
        columns=("K", "V"), rows=((7, "seven"), (8, None))
    )
    assert stated("CREATE ZONE z") == StatementAnswer()


def test_a_statement_that_is_refused_is_no_doubtful_one_and_one_that_was_cut_off_is() -> None:
    assert stated("wrong") == StatementAnswer(problem="SQL-4: no such statement")
    ended = stated("end")
    assert (ended.doubtful, "has ended" in ended.problem) == (True, True)
    unstarted = stated("SELECT 1", driver="raise SystemExit('not today')")
    assert (unstarted.doubtful, "not today" in unstarted.problem) == (False, True)


def test_nothing_of_the_past_is_asked_to_write() -> None:
    async def work(client: IgniteClient) -> None:
        for kind in (AUTOCOMMIT, READ_ONLY):
            reading = await client.begin(kind, later())
            with pytest.raises(HarnessBug, match="asked to write key 1"):
                await reading.write(1, 2)
            with pytest.raises(HarnessBug, match="asked to append to key 1"):
                await reading.append(1, 2)

    served(work)


def test_a_process_that_dials_again_reads_no_snapshot_older_than_what_it_saw() -> None:
    async def run() -> tuple[float, float, float]:
        loop = asyncio.get_running_loop()
        system = build({}, ("n1", "n2", "n3"), 1)
        fresh = system._session(1)
        fresh.heard(loop.time())
        again, other = system._session(1), system._session(2)
        return again.not_before_s - loop.time(), other.not_before_s, fresh.not_before_s

    wait_s, other_s, fresh_s = asyncio.run(run())

    assert 0 < wait_s <= STALENESS_S
    assert (other_s, fresh_s) == (0.0, 0.0)


def test_a_commit_that_the_text_calls_aborted_is_definite() -> None:
    async def work(client: IgniteClient) -> None:
        tx = await client.begin(READ_WRITE, later())
        await tx.write(17, 1)
        with pytest.raises(StoreError) as caught:
            await tx.commit()
        assert caught.value.code == MISMATCH_ABORTED

    served(work)

    assert ERRORS[MISMATCH_ABORTED].at_commit is Certainty.DEFINITE
    assert ERRORS["TX-3"].at_commit is Certainty.INDEFINITE


@pytest.mark.slow
def test_the_driver_builds_and_tells_a_closed_port_from_a_request_that_can_not_be() -> None:
    needs_java()

    async def run() -> tuple[str, str]:
        bridge = Bridge(Artifacts().driver_command())
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            closed = Address(host="127.0.0.1", port=free.getsockname()[1])
            async with asyncio.timeout(60):
                with pytest.raises(StoreError) as dialed:
                    await dial(bridge, closed, 5.0)
                with pytest.raises(StoreError) as asked:
                    await bridge.ask("get", bridge.connection(), key=1)
        return dialed.value.code, asked.value.code

    assert asyncio.run(run()) == (error_table.CONNECTION_LOST, "DRIVER-MISUSE")


@pytest.mark.slow
def test_every_code_that_the_release_can_name_has_its_row_and_its_reason() -> None:
    needs_java()

    async def run() -> tuple[str | None, ...]:
        bridge = Bridge(Artifacts().driver_command())
        async with asyncio.timeout(60):
            return (await bridge.ask("codes", bridge.connection())).values

    named = [text.split()[0] for text in asyncio.run(run()) if text]

    assert len(named) > 100
    assert sorted(set(named) - set(ERRORS)) == []
    ours = {code for code in ERRORS if not code.startswith("DRIVER-")} - {MISMATCH_ABORTED}
    assert sorted(ours - set(named)) == []
    assert all(row.reason for row in ERRORS.values())
