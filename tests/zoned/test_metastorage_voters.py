"""Metastorage's own members change while clients write: removed, replaced, wiped, one at a time."""

from __future__ import annotations

import asyncio
import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from test_partition_driver import begun, settled
from test_rebalance_failover import Timed, ended
from zoned_lab import LIMIT_S, Lab, now_s

from clusters.providers.sim.loop import simulate
from clusters.providers.sim.provider import SimProvider
from clusters.reference.claims.claims_reader import ReferenceClaims
from clusters.reference.node.admin import ask
from clusters.reference.node.events import LEADER_ELECTED, EventLog
from clusters.reference.node.metastorage.metastorage import METASTORAGE
from clusters.reference.node.raft import CatchUpError, ChangeFailed, Configuration, Stage
from clusters.reference.node.rebalance import failover
from clusters.reference.node.runtime import ConnectionLost
from clusters.reference.node.topology.voters import MetastorageVoters
from clusters.reference.node.wire.reports import AskVoters, GroupStatus, VotersReport

LIMIT_MS = 10_000


async def changed(lab: Lab, voters: str, node: str = "f") -> VotersReport:
    address = lab.cluster.client[node]["client"]
    question = AskVoters(tuple(voters), LIMIT_MS)
    network = lab.provider.client_network
    answer = await ask(network, address.host, address.port, question, LIMIT_S)
    assert isinstance(answer, VotersReport)
    return answer


async def metastorage(lab: Lab) -> tuple[str, frozenset[str], frozenset[str]]:
    """The leader of metastorage, its voters by name and by member."""
    deadline_s = now_s() + LIMIT_S
    while now_s() < deadline_s:
        for node in lab.nodes:
            groups: tuple[GroupStatus, ...] = ()
            with contextlib.suppress(ConnectionLost):
                groups = (await lab.report(node)).groups
            for group in groups:
                if group.group == METASTORAGE and group.serving:
                    return node, frozenset(group.voters), frozenset(group.members)
        await asyncio.sleep(0.1)
    raise AssertionError("metastorage has no leader")


async def loaded(seed: int) -> tuple[Lab, Timed, list[asyncio.Future[None]]]:
    lab = Lab(seed)
    lab.provider = SimProvider(seed=seed, claims=ReferenceClaims())
    await begun(lab, 3)
    load = Timed(lab, seed)
    work = [asyncio.ensure_future(load.client(node)) for node in ("d", "e", "f")]
    work.append(asyncio.ensure_future(load.watch()))
    return lab, load, work


def test_members_of_metastorage_are_removed_and_replaced_its_leader_too() -> None:
    async def scenario() -> None:
        lab, load, work = await loaded(31)
        leader, voters, _ = await metastorage(lab)
        assert voters == frozenset("abc")
        other = min(voters - {leader})
        # A member is removed, another one takes its place, and then the leader's.
        for wanted in (
            voters - {other},
            voters - {other} | {"d"},
            voters - {other, leader} | set("de"),
        ):
            report = await changed(lab, "".join(sorted(wanted)))
            assert (report.problem, frozenset(report.voters)) == ("", wanted)
            now, there, _ = await metastorage(lab)
            assert (now in there, there) == (True, wanted)
        # Those that are not asked for any more follow, and go on with their partitions.
        await lab.done('ALTER ZONE z SET DATA_NODES_FILTER = \'"c", "d", "e"\'')
        await asyncio.sleep(0.5)
        moved = await settled(lab)
        assert set().union(*moved.values()) == {"c", "d", "e"}
        # A former member that is gone for good costs no majority: two of d, e and the third go on.
        await lab.provider.kill(leader)
        await lab.done("ALTER ZONE z SET REPLICAS = 2", "f")
        await lab.provider.start(leader)
        await asyncio.sleep(2.0)
        await settled(lab)
        await ended(lab, load, work)

    simulate(scenario())


@pytest.mark.parametrize("leads", [False, True])
def test_a_wiped_member_of_metastorage_comes_back_as_another_one(leads: bool) -> None:
    async def scenario() -> None:
        lab, load, work = await loaded(37)
        leader, voters, before = await metastorage(lab)
        victim = leader if leads else min(voters - {leader})
        await lab.provider.kill(victim)
        await lab.provider.wipe(victim)
        await asyncio.sleep(1.0)
        await lab.provider.start(victim)
        deadline_s = now_s() + LIMIT_S
        while True:
            _, there, members = await metastorage(lab)
            if there == voters and len(members - before) == 1:
                break
            assert now_s() < deadline_s, members
            await asyncio.sleep(0.1)
        (new,) = members - before
        assert new.startswith(f"{victim}@")
        await asyncio.sleep(2.0)  # the clients go on
        await ended(lab, load, work)

    simulate(scenario())


def test_a_leader_that_dies_during_the_change_leaves_it_to_the_next_one() -> None:
    async def scenario() -> None:
        lab, load, work = await loaded(41)
        leader, voters, _ = await metastorage(lab)
        wanted = voters - {min(voters - {leader})} | {"d"}
        change = asyncio.ensure_future(changed(lab, "".join(sorted(wanted))))
        await asyncio.sleep(0.02)
        await lab.provider.kill(leader)
        await asyncio.sleep(2.0)
        await lab.provider.start(leader)
        report = await change
        assert (report.problem, frozenset(report.voters)) == ("", wanted)
        assert (await metastorage(lab))[1] == wanted
        await asyncio.sleep(4.0)  # the clients go on
        await ended(lab, load, work)

    simulate(scenario())


@pytest.mark.parametrize(
    ("voters", "says"),
    [
        ("", "expected distinct nodes, one at least (got none)"),
        ("aab", "expected distinct nodes, one at least (got a a b)"),
        ("abx", "expected nodes of the logical topology: a, b, c, d, e, f (got 'x')"),
    ],
)
def test_what_can_not_vote_is_refused_and_says_why(voters: str, says: str) -> None:
    async def scenario() -> None:
        lab = Lab(43)
        await begun(lab, 3)
        assert (await changed(lab, voters)).problem == f"voters: {says}"
        assert (await metastorage(lab))[1] == frozenset("abc")
        await lab.provider.teardown()

    simulate(scenario())


def test_a_leader_that_stops_in_order_hands_over_and_no_group_waits_for_an_election() -> None:
    async def scenario() -> None:
        lab = Lab(47)
        await begun(lab, 3)
        leader, _, _ = await metastorage(lab)
        led = [g.group for g in (await lab.report(leader)).groups if g.serving]
        before = {n: len(await lab.events(n, LEADER_ELECTED)) for n in lab.nodes if n != leader}
        await lab.provider.stop(leader)
        # At the moment at which it is gone, and not an election timeout later.
        after = {n: len(await lab.events(n, LEADER_ELECTED)) for n in before}
        assert sum(after.values()) - sum(before.values()) == len(led) > 0
        await lab.provider.teardown()

    simulate(scenario())


def test_a_change_of_voters_that_fails_again_is_tried_ever_more_rarely() -> None:
    async def scenario() -> None:
        failed = [ChangeFailed(1, 0, CatchUpError.TIMED_OUT, None)]
        raft = SimpleNamespace(
            term=1, stage=Stage.JOINT, configuration=Configuration(("a@1",)), changing_to=None
        )
        group: Any = SimpleNamespace(raft=raft, take_events=lambda: failed)
        host: Any = None
        voters = MetastorageVoters(
            node="a",
            host=host,
            connected=dict,
            joined=dict,
            event_log=EventLog(boot="boot", wall_ns=lambda: 7),
        )
        delays = []
        for _ in range(60):
            voters.tick(group)
            delays.append(voters._wait_until_s - now_s())
        assert delays[:3] == [0.2, 0.4, 0.8]
        assert delays[-1] == failover.MAX_DELAY_S

    simulate(scenario())


def test_a_learner_that_is_taken_for_gone_goes_on_with_its_snapshot_while_it_is_connected() -> None:
    async def scenario() -> None:
        asked: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
        raft = SimpleNamespace(
            term=1,
            stage=Stage.STABLE,
            configuration=Configuration(("a@1",), learners=("b@1", "c@1", "d@1")),
            changing_to=None,
            change_peers=lambda voters, learners, term: asked.append((voters, learners)),
        )
        group: Any = SimpleNamespace(raft=raft, take_events=lambda: [], name="metastorage")
        host: Any = SimpleNamespace(mark_ready=lambda _: None)
        # Of those that are out b is there, c in another life of its directory, and d is not.
        connected = {"b": "b@1", "c": "c@2"}
        voters = MetastorageVoters(
            node="a",
            host=host,
            connected=lambda: connected,
            joined=lambda: {"a": "a@1"},
            event_log=EventLog(boot="boot", wall_ns=lambda: 7),
        )
        voters.tick(group)
        assert asked == [(("a@1",), ("b@1",))]

    simulate(scenario())
