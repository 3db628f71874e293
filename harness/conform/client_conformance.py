"""Clients on a whole cluster: sessions, kinds of transactions, lost answers, deadlines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from harness.conform.append_ledger import Ledger, load
from harness.conform.bench import (
    APPEND,
    CANCEL_LIMIT_S,
    OP_LIMIT_S,
    POLL_S,
    READ,
    WRITE,
    Bench,
    CheckFailure,
    NotTried,
    on_time,
    perform,
)
from harness.conform.relay import Relay, relayed
from harness.errors import HarnessError
from harness.history.records import MicroOp, OpType
from harness.protocols.client import READ_WRITE, Client, Committed, StoreError, Tx
from harness.protocols.cluster import NodeStatus, Provider
from harness.protocols.conflicts import conflict_codes
from harness.tasks import Late, within

SOON_S = 2.0  # a deadline that can't be met
ON_ITS_WAY_S = 0.7  # for a request through the relay to be served
SECOND_THOUGHTS_S = 1.0  # in which a client might dial again
CONTENTION_S = 4.0

T = TypeVar("T")


class StartsNothing:
    """A provider whose nodes never come up."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    def __getattr__(self, name: str) -> object:
        return getattr(self._provider, name)

    async def start(self, node: str) -> NodeStatus:
        """Start nothing, and say so."""
        return NodeStatus(node=node, running=False, exit_text="it was not started")


async def set_up_deadline(bench: Bench) -> str:
    """``set_up`` fails at its deadline and names what is missing."""
    return await _gives_up(bench, "set_up")


async def recover_deadline(bench: Bench) -> str:
    """``recover`` fails at its deadline where a node is down for good."""
    victim = bench.cluster.nodes[-1]
    await bench.provider.kill(victim)
    try:
        return await _gives_up(bench, "recover")
    finally:
        await bench.mend()


async def _gives_up(bench: Bench, verb: str) -> str:
    nothing: Provider = StartsNothing(bench.provider)  # type: ignore[assignment]
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    work = getattr(bench.system, verb)(bench.cluster, nothing, began_s + SOON_S)
    try:
        await on_time(verb, work, began_s + SOON_S)
    except HarnessError as error:
        return f"{loop.time() - began_s:.1f} s for {SOON_S:g} s: {error}"
    raise CheckFailure(f"{verb}() returned though no node could be started")


async def serves(bench: Bench) -> str:
    """A value committed through each node is read through every other."""
    written: dict[int, int] = {}
    for node in bench.cluster.nodes:
        key, value = bench.number(), bench.number()
        await bench.acknowledged(node, MicroOp(WRITE, key, value))
        written[key] = value
    for node in bench.cluster.nodes:
        for key, value in written.items():
            read = await bench.acknowledged(node, MicroOp(READ, key))
            if read.values != (value,):
                raise CheckFailure(f"{node} reads {read.values[0]} where {value} was acknowledged")
    return f"each of {len(written)} nodes read what was written through all"


async def transactions(bench: Bench) -> str:
    """A transaction sees its own writes; rolled-back and abandoned writes stay invisible; a
    connection serves several transactions.
    """
    ends_s = asyncio.get_running_loop().time() + bench.settle_s
    while True:
        try:
            return await _transactions(bench)
        except StoreError as error:  # locks may stand a moment longer than their transaction
            known = conflict_codes(bench.system.declaration)
            if error.code not in known or asyncio.get_running_loop().time() > ends_s:
                raise CheckFailure(
                    f"on a whole cluster, with nobody else there: {error}"
                ) from error
        await asyncio.sleep(POLL_S)


async def _transactions(bench: Bench) -> str:
    node = bench.cluster.nodes[0]
    client = await bench.connect(node)
    try:
        key, other = bench.number(), bench.number()
        await _expect(await _begun(bench, client), "a key that nobody wrote", key, None)
        tx = await _begun(bench, client)
        await perform(tx, (MicroOp(APPEND, key, 1), MicroOp(APPEND, key, 2)))
        await perform(tx, (MicroOp(WRITE, other, 7),))
        await _sees(tx, "its own appends", key, (1, 2))
        await _expect(tx, "its own write", other, 7)
        await _expect(await _begun(bench, client), "a committed list", key, (1, 2))
        tx = await _begun(bench, client)
        await perform(tx, (MicroOp(WRITE, other, 8),))
        await tx.rollback()
        await _expect(await _begun(bench, client), "a write that was rolled back", other, 7)
        tx = await _begun(bench, client)
        await perform(tx, (MicroOp(WRITE, other, 9),))
    finally:
        await bench.close(client)
    # With a write, which also shows that no lock of the abandoned one is left.
    read = await bench.acknowledged(node, MicroOp(READ, other), MicroOp(WRITE, other, 10))
    if read.values != (7,):
        raise CheckFailure(
            f"a closed connection's open write was read: {read.values[0]} instead of 7"
        )
    return "own writes seen; nothing of rolled back or abandoned ones, and their keys are free"


async def _begun(bench: Bench, client: Client) -> Tx:
    return await client.begin(READ_WRITE, asyncio.get_running_loop().time() + OP_LIMIT_S)


async def _sees(tx: Tx, what: str, key: int, expected: object) -> None:
    found = await tx.read(key)
    if found != expected or type(found) is not type(expected):
        raise CheckFailure(f"a transaction read {what} as {found!r} instead of {expected!r}")


async def _expect(tx: Tx, what: str, key: int, expected: object) -> None:
    await _sees(tx, what, key, expected)
    done = await tx.commit()
    if not isinstance(done, Committed):
        raise CheckFailure(f"commit() returned {done!r}, which is no Committed")


async def identity(bench: Bench) -> str:
    """Identifiers of transactions are unique; commit timestamps grow from one to the next."""
    node, key = bench.cluster.nodes[0], bench.number()
    client = await bench.connect(node)
    names, stamps = [], []
    try:
        for value in (1, 2):
            tx = await _begun(bench, client)
            await tx.write(key, value)
            names.append(tx.server_txn)
            stamps.append((await tx.commit()).commit_ts)
    finally:
        await bench.close(client)
    if names[0] is not None and names[0] == names[1]:
        raise CheckFailure(f"two transactions are both called {names[0]!r}")
    first, second = stamps
    if first is not None and second is not None and second <= first:
        raise CheckFailure(
            f"commit timestamp {second} follows {first} of an earlier write of its key"
        )
    told = [name for name, known in (("name", names[0]), ("timestamp", first)) if known is not None]
    return f"tells of a transaction: {', '.join(told) or 'nothing'}"


async def kinds(bench: Bench) -> str:
    """Each promised kind of transaction works, and a read is no staler than its declaration
    allows.
    """
    promises = [p for p in bench.system.declaration.promises if p.kind != READ_WRITE]
    if not promises:
        return "none but read-write"
    nodes = bench.cluster.nodes
    for promise in promises:
        key, value = bench.number(), bench.number()
        await bench.acknowledged(nodes[0], MicroOp(WRITE, key, value))
        # A read may be that stale by right.
        await asyncio.sleep(promise.staleness_s or 0.0)
        for node in nodes:
            read = await bench.acknowledged(node, MicroOp(READ, key), kind=promise.kind)
            if read.values != (value,):
                raise CheckFailure(
                    f"kind {promise.kind!r} through {node} read {read.values[0]}: {value} had been "
                    f"acknowledged for {promise.staleness_s or 0:g} s"
                )
    return f"{', '.join(p.kind for p in promises)}: nothing staler than promised"


async def contention(bench: Bench) -> str:
    """Of conflicting appends none that failed takes effect, and none takes effect twice."""
    ledger = Ledger(bench)
    await load(ledger, seconds=CONTENTION_S, clients=8, keys=2, limit_s=OP_LIMIT_S)
    found = await ledger.audit(bench.cluster.nodes[0])
    if not any(done.ok for held in ledger.done.values() for done in held.values()):
        raise CheckFailure(f"8 clients on 2 keys had no append acknowledged: {found}")
    return found


async def lost_answer(bench: Bench) -> str:
    """A commit whose answer is lost is uncertain, and the client does not retry it."""
    _needs_network(bench)
    node, key, element = bench.cluster.nodes[0], bench.number(), bench.number()
    async with relayed(bench.cluster, node) as relay:
        client, tx = await _prepared(bench, relay, node, _appended(bench, key, element))
        before = relay.accepted
        relay.mute()
        # The request passes, and only its answer is lost: the commit may well be done.
        commit = asyncio.ensure_future(tx.commit())
        await asyncio.sleep(ON_ITS_WAY_S)
        relay.cut()
        done = await asyncio.wait({commit}, timeout=OP_LIMIT_S)
        await asyncio.sleep(SECOND_THOUGHTS_S)
        again = relay.accepted - before
        commit.cancel()
        await bench.close(client)
    if again:
        raise CheckFailure(
            f"commit() dialed {again} more times when its answer was lost: a hidden retry"
        )
    if not done[0]:
        raise CheckFailure(f"commit() did not end {OP_LIMIT_S:g} s after its connection was reset")
    error = commit.exception()
    if error is None:
        raise CheckFailure("commit() returned though its answer never came")
    if not isinstance(error, Exception):
        raise error
    ended = bench.judged("commit", error)
    if ended.type is not OpType.INFO:
        raise CheckFailure(f"a commit whose answer was lost ended as {ended}: that is not known")
    held = (await bench.acknowledged(node, MicroOp(READ, key))).values[0]
    if held not in (None, (), (element,)):
        raise CheckFailure(f"one append of {element} left {held}")
    return f"{ended.error}; the append {'was' if held else 'was not'} done, once, nobody dialed"


async def lost_connection(bench: Bench) -> str:
    """A transaction whose connection was reset never commits, under any new connection, whether the
    reset came before its end or between two of its steps.
    """
    _needs_network(bench)
    told = [await _reset(bench, between_steps=between_steps) for between_steps in (False, True)]
    return f"{' and '.join(dict.fromkeys(told))}, and nothing was done"


async def _reset(bench: Bench, *, between_steps: bool) -> str:
    """The result of a transaction after its connection was reset. Raises ``CheckFailure``."""
    node, key, later = bench.cluster.nodes[0], bench.number(), bench.number()
    what = "a step and commit()" if between_steps else "commit()"
    async with relayed(bench.cluster, node) as relay:
        client, tx = await _prepared(bench, relay, node, _appended(bench, key, 1))
        before = relay.accepted
        relay.cut()
        try:
            if between_steps:
                await within(OP_LIMIT_S, tx.append(later, 1))
            await within(OP_LIMIT_S, tx.commit())
        except Late:
            raise CheckFailure(f"{what} did not end {OP_LIMIT_S:g} s after the reset") from None
        except Exception as error:
            ended = bench.judged("commit", error)
        else:
            held = (await bench.acknowledged(node, MicroOp(READ, key))).values[0]
            lost = "and the append is lost" if not held else "under another connection"
            raise CheckFailure(f"{what} returned after the connection had been reset, {lost}")
        await asyncio.sleep(SECOND_THOUGHTS_S)
        again = relay.accepted - before
        await bench.close(client)
    # A step may find its connection gone and dial another before it fails: what is promised is that
    # nothing of the transaction is done there.
    if again and not between_steps:
        raise CheckFailure(f"{what} dialed {again} more times after the reset: a hidden retry")
    read = await bench.acknowledged(node, MicroOp(READ, key), MicroOp(READ, later))
    if left := [value for value in read.values if value not in (None, ())]:
        raise CheckFailure(
            f"{what} ended as {ended}, and under another connection it left {left[0]}"
        )
    return f"{what} ended as {ended.error}"


async def deadlines(bench: Bench) -> str:
    """Calls without an answer end when they are cancelled, and ``close`` never waits."""
    _needs_network(bench)
    node = bench.cluster.nodes[0]
    for name in ("begin()", "read()", "commit()"):
        async with relayed(bench.cluster, node) as relay:
            if name == "begin()":
                client, _ = await _prepared(bench, relay, node, _nothing)
                relay.mute()
                await _cancelled(bench, name, _begun(bench, client))
            else:  # of an empty one a client may know the end by itself
                appended = _appended(bench, bench.number(), 1)
                client, tx = await _prepared(bench, relay, node, appended)
                relay.mute()
                key = bench.number()
                await _cancelled(bench, name, tx.commit() if name == "commit()" else tx.read(key))
            await bench.close(client)
    async with relayed(bench.cluster, node) as relay:
        relay.mute()
        await _cancelled(bench, "connect()", bench.connect(node, relay.cluster))
    return "begin, read, commit and connect end when cancelled; close does not wait"


async def _cancelled(bench: Bench, name: str, work: Awaitable[object]) -> None:
    """Cancel a call that gets no answer. Raises ``CheckFailure`` where the call continues, or
    returned.
    """
    call = asyncio.ensure_future(work)
    await asyncio.wait({call}, timeout=CANCEL_LIMIT_S)
    call.cancel()
    done, _ = await asyncio.wait({call}, timeout=CANCEL_LIMIT_S)
    if not done:
        raise CheckFailure(f"{name} went on for {CANCEL_LIMIT_S:g} s after it was cancelled")
    if call.cancelled():
        return
    error = call.exception()
    if isinstance(error, Exception):
        bench.judged("connect" if name == "connect()" else "step", error)
    elif name not in ("connect()", "begin()"):  # both may be lazy, and send nothing before a step
        raise CheckFailure(f"{name} returned though no answer came")


async def _prepared(
    bench: Bench, relay: Relay, node: str, prepare: Callable[[Client], Awaitable[T]]
) -> tuple[Client, T]:
    """A connection through ``relay``, and what ``prepare`` returned on it. Before commit is sent an
    error is definite, so it is tried on another connection, as a drill would. Raises the last
    ``StoreError`` after ``settle_s``.
    """
    ends_s = asyncio.get_running_loop().time() + bench.settle_s
    while True:
        client = None
        try:
            client = await bench.connect(node, relay.cluster)
            return client, await prepare(client)
        except StoreError as error:
            bench.judged("step" if client else "connect", error)
            if client is not None:
                await bench.close(client)
            if asyncio.get_running_loop().time() >= ends_s:
                raise
        await asyncio.sleep(POLL_S)


def _appended(bench: Bench, key: int, element: int) -> Callable[[Client], Awaitable[Tx]]:
    """What opens a transaction that has appended ``element``."""

    async def prepare(client: Client) -> Tx:
        tx = await _begun(bench, client)
        await tx.append(key, element)
        return tx

    return prepare


async def _nothing(_: Client) -> None:
    """The connection alone is needed."""


def _needs_network(bench: Bench) -> None:
    if not bench.real_network:
        raise NotTried(f"provider {bench.provider.name} has no network that a relay could stand in")
    if len(bench.cluster.nodes) != len(bench.cluster.client):
        raise NotTried("not every node has addresses for clients")
