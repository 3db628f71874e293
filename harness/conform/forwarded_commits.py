"""Commits that pass through one node to another, and answers that are lost between the two."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

import attrs

from harness.conform.append_ledger import Ledger
from harness.conform.bench import OP_LIMIT_S, POLL_S, AttemptResult, Bench, NotTried
from harness.conform.relay import LOOPBACK, Relay, relayed_links
from harness.history.records import OpType
from harness.protocols.client import READ_WRITE, Client, StoreError, Tx
from harness.protocols.fail_or_info import DEADLINE, unanswered
from harness.tasks import together

IN_FLIGHT = 4  # commits whose answers are lost at once
OPEN_LIMIT_S = 1.0  # for another transaction beside those that are open: some stores take only one
ON_ITS_WAY_S = 0.7  # for a commit to be done where it leads
TRIED_KEYS = 64  # to find those of one node


@attrs.frozen(kw_only=True)
class _Open:
    """An append to ``key`` that lacks only its commit."""

    client: Client
    tx: Tx
    key: int
    element: int


async def lost_further_on(bench: Bench) -> str:
    """A commit whose answer is lost between two nodes is uncertain and takes effect at most once,
    whether the second node lives on or is killed.
    """
    passing = await _passing(bench)
    ledger, lost = Ledger(bench), 0
    async with relayed_links(bench.cluster, passing) as relay:
        try:
            await _restarted(bench, passing, relay)
            for ends in (False, True):
                lost += await _lose(bench, relay, passing, ledger, ends=ends)
        finally:
            relay.cut()
            await _restarted(bench, passing, None)
    told = await ledger.audit(passing)
    if not lost:
        raise NotTried(f"no commit through {passing} waits for an answer over its links: {told}")
    return f"{lost} answers to {passing} lost: {told}"


async def _passing(bench: Bench) -> str:
    """The node that leads the fewest partitions. Raises ``NotTried`` where no answer can be lost
    behind it.
    """
    bench.kind("kill")
    nodes, peer = bench.cluster.nodes, bench.cluster.peer
    if len(nodes) < 2:
        raise NotTried("one node has no links")
    hosts = {address.host for ports in peer.values() for address in ports.values()}
    # The relay listens on this machine's loopback, which nodes elsewhere do not reach.
    if not bench.real_network or hosts != {LOOPBACK}:
        raise NotTried(f"provider {bench.provider.name} has no links that a relay could stand in")
    count = Counter((await _leading(bench)).values())
    # The fewest partitions: most of what it is asked it has to pass on.
    return min(reversed(nodes), key=lambda node: count[node])


async def _leading(bench: Bench) -> Mapping[int, str]:
    """The acknowledging node by partition. Raises ``NotTried`` where no node reports one."""
    ends_s = asyncio.get_running_loop().time() + bench.settle_s
    while asyncio.get_running_loop().time() < ends_s:
        told = await bench.roles()
        if found := told.leaders if told.primaries is None else told.primaries:
            return found
        await asyncio.sleep(POLL_S)
    raise NotTried("roles() names no leader")


async def _restarted(bench: Bench, node: str, relay: Relay | None) -> None:
    """Restart ``node``, with its links through ``relay``, or direct without one."""
    await bench.provider.kill(node)
    program = bench.system.program(node, relay.cluster if relay else bench.cluster)
    await bench.provider.install(node, program)
    await bench.mend()


async def _lose(bench: Bench, relay: Relay, passing: str, ledger: Ledger, *, ends: bool) -> int:
    """Lose the answers to commits through ``passing``, by killing the leader of the written
    partitions (``ends``), or by resetting the connections alone; returns how many were lost.
    """
    leads = await _leading(bench)
    others = Counter(node for node in leads.values() if node != passing)
    if not others:
        raise NotTried(f"{passing} leads everything: nothing is passed on by it")
    [(leader, _)] = others.most_common(1)
    found = await _opened(bench, passing, leads, leader)
    relay.mute()
    work = [asyncio.ensure_future(_committed(bench, one.tx)) for one in found]
    try:
        await asyncio.sleep(ON_ITS_WAY_S)
        # What was done by now did not wait for the other node: nothing of it was lost.
        lost = sum(not one.done() for one in work)
        if ends:
            await bench.provider.kill(leader)
        relay.cut()
        done = await together(work)
    finally:
        for one in work:
            one.cancel()
    for opened, ended in zip(found, done, strict=True):
        ledger.enter(opened.key, opened.element, ended)
        await bench.close(opened.client)
    if ends:
        await bench.mend()
    return lost


async def _opened(
    bench: Bench, node: str, leads: Mapping[int, str], leader: str
) -> tuple[_Open, ...]:
    """Open transactions through ``node`` on keys that ``leader`` leads. Raises ``NotTried`` where
    that is impossible.
    """
    ends_s = asyncio.get_running_loop().time() + bench.settle_s
    found: list[_Open] = []
    for _ in range(TRIED_KEYS):
        key = bench.number()
        partition = bench.system.partition_of(key)
        if partition is not None and leads.get(partition) != leader:
            continue
        one = await _one(bench, node, key)
        found += [one] if one else []
        over = asyncio.get_running_loop().time() >= ends_s
        # A store may take no more beside those that are open: then they have to do.
        if len(found) == IN_FLIGHT or (found and not one) or over:
            break
    if not found:
        raise NotTried(f"{node} opens no transaction on keys that {leader} leads")
    return tuple(found)


async def _one(bench: Bench, node: str, key: int) -> _Open | None:
    element, client = bench.number(), None
    try:
        client = await bench.give_up(bench.connect(node), OPEN_LIMIT_S)
        if client is not None:
            tx = await bench.give_up(_appended(client, key, element), OPEN_LIMIT_S)
            if tx is not None:
                return _Open(client=client, tx=tx, key=key, element=element)
    except StoreError as error:
        bench.judged("step" if client else "connect", error)
    if client is not None:
        await bench.close(client)
    return None


async def _appended(client: Client, key: int, element: int) -> Tx:
    tx = await client.begin(READ_WRITE, asyncio.get_running_loop().time() + OP_LIMIT_S)
    await tx.append(key, element)
    return tx


async def _committed(bench: Bench, tx: Tx) -> AttemptResult:
    """The result of the commit, cancelled at the limit of an operation."""

    async def commit() -> AttemptResult:
        try:
            await tx.commit()
        except Exception as error:
            return bench.judged("commit", error)
        return AttemptResult(type=OpType.OK, phase="commit")

    done = await bench.give_up(commit(), OP_LIMIT_S)
    return done or AttemptResult(type=unanswered("commit"), phase="commit", error=DEADLINE)
