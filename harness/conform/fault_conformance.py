"""Whether faults take effect, whether the store survives them, and whether the cluster is whole
afterwards.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from harness.conform.append_ledger import Ledger, load
from harness.conform.bench import OP_LIMIT_S, READ, WRITE, Bench, CheckFailure, NotTried
from harness.errors import MissingCapability
from harness.history.records import MicroOp
from harness.protocols.client import Client, StoreError, node_of
from harness.protocols.cluster import Roles
from harness.protocols.roles import LEADS, held_by
from harness.tasks import Late, together, within

SHORT_S = 2.0  # for an operation that is to fail
HOLD_S = 3.0
BEFORE_S, AFTER_S = 1.5, 2.0
USED = ("kill", "pause", "partition")


async def roles(bench: Bench) -> str:
    """Roles name nodes and partitions of this cluster, and every node answers by itself."""
    lacking: list[str] = []

    async def look() -> str:
        lacking[:] = _wrong(bench, await bench.roles())
        for node in bench.cluster.nodes:
            if await bench.roles(node) == Roles():
                lacking.append(f"{node} tells nothing when it is asked alone")
        return "; ".join(lacking)

    await bench.until(look, "roles()")
    told = await bench.roles()
    leaders = f"{len(told.leaders)} leaders" if told.leaders else "no leaders"
    primaries = f", {len(told.primaries)} primaries" if told.primaries else ""
    return f"{leaders}{primaries}, voters of {len(told.voters)} partitions"


def _wrong(bench: Bench, told: Roles) -> list[str]:
    count, nodes = bench.system.partitions, bench.cluster.nodes
    named: list[tuple[int, tuple[str, ...]]] = [(p, (node,)) for p, node in told.leaders.items()]
    named += [(partition, (node,)) for partition, node in (told.primaries or {}).items()]
    named += [*told.voters.items(), *told.learners.items()]
    wrong = [
        f"partition {p} of {'an unknown number' if count is None else count}"
        for p, _ in named
        if p < 0 or (count is not None and p >= count)
    ]
    wrong += [f"{n}, which is no node" for _, held in named for n in held if n not in nodes]
    alone = (told.metastorage_leader, told.management_leader, *told.others)
    wrong += [
        f"{node}, which is no node" for node in alone if node is not None and node not in nodes
    ]
    if not told.voters:
        wrong.append("no voters of any partition")
    for partition, leader in told.leaders.items():
        # Where the voters are not known, nothing speaks against the leader.
        if leader not in told.voters.get(partition, (leader,)):
            wrong.append(f"{leader} leads partition {partition} and has no vote in it")
    return wrong


async def kill(bench: Bench) -> str:
    """A killed node answers no client, not even over an old connection; a client may go on at
    another node.
    """
    return await _silenced(bench, "kill")


async def pause(bench: Bench) -> str:
    """A paused node acknowledges nothing, and does not delay clients of the other nodes."""
    return await _silenced(bench, "pause")


async def _silenced(bench: Bench, kind: str) -> str:
    bench.kind(kind)
    victim = bench.cluster.nodes[-1]
    key = bench.number()
    client = await _open(bench, victim, key)
    async with bench.broken(kind, victim):
        for held in (client, None):
            step = MicroOp(WRITE, key, bench.number())
            done = await bench.transact(victim, step, client=held, limit_s=SHORT_S)
            if done.ok and (held is None or node_of(held) in (None, victim)):
                raise CheckFailure(
                    f"a write through {victim} was acknowledged under the fault {kind!r}"
                )
        if await bench.roles(victim) != Roles():
            raise CheckFailure(f"{victim} tells roles under the fault {kind!r}")
        # Of all nodes: the silent one must not make it late, or raise.
        await bench.roles()
        if bench.kind(kind).kind.ends_program:
            await _succeeded(bench, victim)
        await bench.close(client)
    await bench.mend()
    await bench.acknowledged(victim, MicroOp(WRITE, key, bench.number()))
    return f"nothing through {victim} while it held; it serves again after the heal"


async def _succeeded(bench: Bench, dead: str) -> None:
    """Wait until no node reports ``dead`` as a leader: a fault aimed at a role has to hit the
    present holder.
    """

    async def look() -> str:
        told = await bench.roles()
        named = [str(role) for role in held_by((dead,), told) if role.kind in LEADS]
        return f"{dead}, which was killed, is called {', '.join(named)}" if named else ""

    await bench.until(look, "roles()")


async def _open(bench: Bench, node: str, key: int) -> Client:
    """A connection that has completed an operation."""
    client = await bench.connect(node)
    done = await bench.transact(node, MicroOp(WRITE, key, bench.number()), client=client)
    if not done.ok:
        raise CheckFailure(f"a whole cluster does not write through {node}: {done}")
    return client


async def partition(bench: Bench) -> str:
    """A value written on one side of a cut is not read on the other."""
    nodes = bench.cluster.nodes
    bench.kind("partition")
    if len(nodes) < 2:
        raise NotTried("one node has no links")
    crossed = 0
    for victim in (nodes[-1], nodes[0]):
        inside = next(node for node in nodes if node != victim)
        key, value = bench.number(), bench.number()
        async with bench.broken("partition", victim):
            written = await _written(bench, inside, key, value)
            read = await bench.transact(victim, MicroOp(READ, key), limit_s=SHORT_S)
            if read.ok and read.values == (value,):
                raise CheckFailure(
                    f"{victim} is cut off from all others, and what was written through {inside} "
                    "was read through it: the store's traffic does not take the links that are cut"
                )
            crossed += written
        await bench.mend()
        await bench.acknowledged(victim, MicroOp(READ, key))
    return f"{nodes[-1]}, then {nodes[0]} cut off; {crossed} of 2 writes beside it acknowledged"


async def _written(bench: Bench, node: str, key: int, value: int) -> bool:
    """Whether a write through ``node`` is acknowledged within ``settle_s``."""
    ends_s = asyncio.get_running_loop().time() + bench.settle_s
    while asyncio.get_running_loop().time() < ends_s:
        if (await bench.transact(node, MicroOp(WRITE, key, value))).ok:
            return True
        await asyncio.sleep(0.2)
    return False


async def under_faults(bench: Bench) -> str:
    """While nodes are killed, paused and cut off: no operation that failed has an effect, none
    takes effect twice, and no acknowledged operation is lost.
    """
    usable = [kind for kind in USED if _usable(bench, kind)]
    if not usable:
        raise NotTried(f"provider {bench.provider.name} has none of {', '.join(USED)}")
    ledger = Ledger(bench)

    async def break_it() -> None:
        for turn, kind in enumerate(usable):
            await asyncio.sleep(BEFORE_S)
            victim = bench.cluster.nodes[turn % len(bench.cluster.nodes)]
            async with bench.broken(kind, victim):
                await asyncio.sleep(HOLD_S)
            await asyncio.sleep(AFTER_S)

    breaking = asyncio.ensure_future(break_it())
    try:
        # In short turns, since nothing tells how long the faults will take to be proven.
        while not breaking.done():
            await load(ledger, seconds=1.0, clients=6, keys=3, limit_s=OP_LIMIT_S)
        await breaking
    finally:
        breaking.cancel()
        # The first failure is on its way already: one of the ended faults must not replace it.
        with suppress(asyncio.CancelledError, CheckFailure):
            await breaking
    await bench.mend()
    return f"{', '.join(usable)}: {await ledger.audit(bench.cluster.nodes[0])}"


def _usable(bench: Bench, kind: str) -> bool:
    try:
        bench.kind(kind)
    except NotTried:
        return False
    return kind != "partition" or len(bench.cluster.nodes) > 1


async def recover(bench: Bench) -> str:
    """``recover`` starts stopped nodes and resumes paused ones, and then every node serves."""
    nodes = bench.cluster.nodes
    down = nodes[-1]
    await bench.provider.kill(down)
    paused = await _paused(bench, nodes[0]) if len(nodes) > 1 else "no other to pause"
    began_s = asyncio.get_running_loop().time()
    await bench.mend()
    took_s = asyncio.get_running_loop().time() - began_s
    looks = await together(bench.provider.probe(node) for node in nodes)
    left = [f"{look.node} is down" for look in looks if not look.running]
    left += [f"{look.node} is paused" for look in looks if look.paused]
    if left:
        raise CheckFailure(f"recover() returned, and {', '.join(left)}")
    for node in nodes:
        done = await bench.transact(node, MicroOp(WRITE, bench.number(), 1))
        if not done.ok:
            raise CheckFailure(f"recover() returned, and a write through {node} ended as {done}")
    return f"{down} killed, {paused}: every node serves after {took_s:.1f} s"


async def _paused(bench: Bench, node: str) -> str:
    """Pause the node, and return whether that was possible."""
    try:
        await bench.provider.pause(node)
    except MissingCapability:
        return f"{node} not paused, which provider {bench.provider.name} can't"
    return f"{node} paused"


async def refused(bench: Bench) -> str:
    """Dialing a node that is down raises an error of the store's table, at once."""
    victim = bench.cluster.nodes[-1]
    await bench.provider.kill(victim)
    try:
        client = await within(OP_LIMIT_S, bench.connect(victim))
    except StoreError as error:
        ended = bench.judged("connect", error)
    except Late:
        raise CheckFailure(
            f"connect() to a dead program took longer than {OP_LIMIT_S:g} s"
        ) from None
    except Exception as error:
        name = type(error).__name__
        raise CheckFailure(f"connect() raised {name} ({error}), which is no StoreError") from error
    else:
        await bench.close(client)
        # A client may dial as late as its first operation: then that has to fail.
        begun = await bench.transact(victim, MicroOp(READ, bench.number()), limit_s=SHORT_S)
        if begun.ok:
            raise CheckFailure(
                f"{victim} was killed, and a read through it was acknowledged"
            ) from None
        ended = begun
    finally:
        await bench.mend()
    return f"{ended.error} at {ended.phase}"
