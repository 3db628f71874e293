"""Statements by which an operator resets partitions without a majority, and restarts replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from test_partition_resets import (
    HA,
    KINDS,
    STABLE,
    Writer,
    append,
    cluster,
    kill,
    read,
    refused,
    replicas,
    settled_replicas,
)
from zoned_lab import LIMIT_S, Lab, now_s

from clusters.providers.sim.loop import simulate
from clusters.reference.node.events import ERASES, PARTITION_RESET, RESET_ASKED, START_DECISION
from clusters.reference.node.wire.error_table import Retry

SC = "CONSISTENCY_MODE = STRONG_CONSISTENCY"
RESET, NAMED = "RESET PARTITIONS OF ZONE Z", "RESET PARTITIONS (0) OF ZONE Z"
STATES = "SELECT STATE, GENERATION, NODES_LEFT FROM SYSTEM.PARTITION_STATES"


async def wait_refused(lab: Lab, statement: str, kind: str, retry: str, limit_ms: int = 500) -> str:
    answer = await lab.sql(statement, limit_ms=limit_ms)
    assert answer.problem is not None
    assert (answer.problem.kind, answer.problem.retry) == (kind, retry), answer.problem
    assert not answer.problem.doubtful
    return answer.problem.message


async def begun(lab: Lab, nodes: Iterable[str]) -> list[tuple[int, tuple[str, ...]]]:
    """The generations that were begun on ``nodes``, each with its survivors."""
    told = [event for node in nodes for event in await lab.events(node, PARTITION_RESET)]
    return [(e.reset.generation, e.reset.survivors) for e in told if e.reset is not None]


@pytest.mark.parametrize("rebalance", ["base", "lock", "cancel"])
def test_sc_goes_on_with_what_is_left_once_an_operator_resets_it(rebalance: str) -> None:
    async def story() -> None:
        lab = Lab(21, ("a", *"bcdef"))
        await cluster(lab, "bcdef", SC, 5, rebalance=rebalance)
        await append(lab, 1)
        await kill(lab, "def")
        await lab.until_rows(STATES, {("MINORITY", 0, "b,c")})
        await refused(lab)
        assert await lab.done(RESET) == (("T", 0, 1),)
        await lab.until_rows(STABLE, {("b,c",)})
        await append(lab, 2)
        assert await begun(lab, "bc") == [(1, ("b", "c"))]
        for node in ("a", "b"):
            (event,) = await lab.events(node, RESET_ASKED)
            assert (event.partition, event.generation) == (0, 1)
        # Those that come back are of before: their votes count for nothing, and they follow.
        await lab.start("d", "e", "f")
        await lab.until_rows(STABLE, {("b,c,d,e,f",)})
        told = await settled_replicas(lab, "bcdef")
        assert {r.generation for r in told.values()} == {1}
        assert len({r.content for r in told.values()}) == 1
        assert await read(lab) == (1, 2)

    simulate(story())


def test_a_manual_reset_brings_the_number_of_replicas_back() -> None:
    async def story() -> None:
        lab = Lab(22, ("a", *"bcde"))
        await cluster(lab, "bcde", SC, 4)
        await lab.done("ALTER ZONE Z SET REPLICAS = 3")
        await asyncio.sleep(3.0)
        ((stable,),) = await lab.done(STABLE)
        held = str(stable).split(",")
        (spare,) = set("bcde") - set(held)
        await append(lab, 1)
        await kill(lab, held[1:])
        await lab.until_rows(STATES, {("MINORITY", 0, held[0])})
        await lab.done("RESET PARTITIONS (0) OF TABLE T")
        await lab.until_rows(STABLE, {(",".join(sorted((held[0], spare))),)})
        assert await read(lab) == (1,)

    simulate(story())


def test_a_manual_reset_of_a_highly_available_zone_does_not_wait_for_its_timer() -> None:
    async def story() -> None:
        lab = Lab(23, ("a", "b", "c", "d"))
        await cluster(lab, "bcd", HA.replace("TIMEOUT = 1", "TIMEOUT = 300"), 3)
        await append(lab, 1)
        await kill(lab, "cd")
        await lab.until_rows(STATES, {("MINORITY", 0, "b")})
        await asyncio.gather(*(lab.done(RESET) for _ in range(3)))
        await append(lab, 2)
        # One generation, however often it is asked for.
        assert await begun(lab, "b") == [(1, ("b",))]
        assert await read(lab) == (1, 2)

    simulate(story())


def test_a_partition_without_any_copy_begins_anew_where_an_operator_says_so() -> None:
    async def story() -> None:
        lab = Lab(24, ("a", *"bcde"))
        await cluster(lab, "bcde", SC, 4)
        await lab.done("ALTER ZONE Z SET REPLICAS = 3")
        await asyncio.sleep(3.0)
        ((stable,),) = await lab.done(STABLE)
        held = str(stable).split(",")
        (spare,) = set("bcde") - set(held)
        await append(lab, 1)
        await kill(lab, held)
        await lab.until_rows(STATES, {("LOST", 0, "")})
        await refused(lab, "PARTITION-LOST")
        text = await wait_refused(lab, RESET, "NO-COPY", Retry.NEVER)
        assert "named by its number" in text
        assert await lab.done(NAMED) == (("T", 0, 1),)
        await append(lab, 2)
        assert await begun(lab, spare) == [(1, ())]
        # What comes back is of another log, and gives way to this one.
        await lab.start(*held)
        await lab.until_rows(STABLE, {(stable,)})
        told = await settled_replicas(lab, str(stable).replace(",", ""))
        assert {r.generation for r in told.values()} == {1}
        assert await read(lab) == (2,)

    simulate(story())


def test_a_reset_that_could_only_cost_is_refused_by_a_code_that_says_so() -> None:
    async def story() -> None:
        lab = Lab(25, ("a", "b", "c", "d"))
        await cluster(lab, "bcd", SC, 3)
        for statement in (RESET, "RESET PARTITIONS (0) OF TABLE T"):
            await wait_refused(lab, statement, "MAJORITY-LIVES", Retry.NEVER)
        for what in ("ZONE Z", "TABLE T"):
            text = await wait_refused(
                lab, f"RESET PARTITIONS (0, 1) OF {what}", "NO-PARTITION", Retry.NEVER
            )
            assert "partitions 0 to 0 (got 1)" in text
        await wait_refused(lab, "RESET PARTITIONS OF ZONE Y", "NoSuchObject", "")
        await wait_refused(lab, "RESTART PARTITIONS OF TABLE U", "NoSuchObject", "")
        assert not await begun(lab, "bcd")

    simulate(story())


def test_a_reset_waits_for_a_copy_that_may_have_more_and_says_to_try_again() -> None:
    async def story() -> None:
        lab = Lab(26, ("a", "b", "c", "d"))
        await cluster(lab, "bcd", SC, 3)
        await append(lab, 1)
        await kill(lab, "cd")
        await lab.until_rows(STATES, {("MINORITY", 0, "b")})
        await lab.provider.cut((("a", "b"),))
        await wait_refused(lab, RESET, "RESET-WAITS", Retry.LATER, limit_ms=1200)
        await lab.provider.cut(())
        deadline_s = now_s() + LIMIT_S
        while (await lab.sql(RESET)).problem is not None:
            assert now_s() < deadline_s
        assert await read(lab) == (1,)
        assert await begun(lab, "b") == [(1, ("b",))]

    simulate(story())


def test_no_node_for_a_lost_partition_is_a_cause_to_wait() -> None:
    async def story() -> None:
        lab = Lab(27, ("a", "b", "c", "d"))
        await cluster(lab, "bcd", SC, 3)
        await kill(lab, "bcd")
        await lab.until_rows(STATES, {("LOST", 0, "")})
        text = await wait_refused(lab, NAMED, "RESET-WAITS", Retry.LATER)
        assert "no copy on any node is whole" in text

    simulate(story())


@pytest.mark.parametrize("on", ["", " ON 'c'"])
def test_replicas_start_again_from_their_disks_while_clients_go_on(on: str) -> None:
    async def story() -> None:
        lab = Lab(28, ("a", "b", "c", "d"))
        await cluster(lab, "bcd", SC, 3)
        writer = Writer(lab)
        work = asyncio.ensure_future(writer.run())
        await asyncio.sleep(2.0)
        nodes = "c" if on else "bcd"
        before = {node: len(await lab.events(node, START_DECISION)) for node in "bcd"}
        rows = await lab.done(f"RESTART PARTITIONS OF ZONE Z{on}")
        assert rows == tuple(("T", 0, node) for node in nodes)
        at_s = now_s()
        await asyncio.sleep(3.0)
        writer.over = True
        await work
        for node in "bcd":
            again = len(await lab.events(node, START_DECISION)) - before[node]
            assert again == (node in nodes), node
        assert writer.ok_after(at_s) <= 2.0
        assert set(writer.acknowledged) <= set(await read(lab))
        assert {row[0] for row in await lab.done(KINDS)} == {"stable"}
        assert not await begun(lab, "bcd")

    simulate(story())


def test_a_restart_of_what_is_not_there_is_refused() -> None:
    async def story() -> None:
        lab = Lab(29, ("a", "b", "c", "d"))
        await cluster(lab, "bcd", SC, 3)
        await kill(lab, "d")
        await lab.until_rows(STATES, {("MAJORITY", 0, "b,c")})
        restart = "RESTART PARTITIONS (0) OF TABLE T ON"
        await wait_refused(lab, f"{restart} 'a'", "NO-REPLICA", Retry.NEVER)
        await wait_refused(lab, f"{restart} 'd'", "UNREACHABLE", Retry.AT_ONCE)
        await wait_refused(lab, f"{restart} 'nowhere'", "UNREACHABLE", Retry.AT_ONCE)

    simulate(story())


CLEANUP = "RESTART PARTITIONS OF ZONE Z ON '{}' WITH CLEANUP"


async def members(lab: Lab, nodes: Iterable[str]) -> dict[str, str]:
    """The member that each node's replica is; a node without one is left out."""
    return {node: report.member for node, report in (await replicas(lab, nodes)).items()}


async def leader_of(lab: Lab, nodes: Iterable[str]) -> str:
    return next(n for n, r in (await replicas(lab, nodes)).items() if r.leading)


@pytest.mark.parametrize("options", [SC, HA])
@pytest.mark.parametrize("rebalance", ["base", "lock", "cancel"])
@pytest.mark.parametrize("led", [True, False])
def test_a_copy_that_is_cleaned_up_begins_anew_and_nothing_is_lost(
    options: str, rebalance: str, led: bool
) -> None:
    async def story() -> None:
        lab = Lab(30, ("a", "b", "c", "d"))
        await cluster(lab, "bcd", options, 3, rebalance=rebalance)
        writer = Writer(lab)
        work = asyncio.ensure_future(writer.run())
        await asyncio.sleep(2.0)
        leads = await leader_of(lab, "bcd")
        node = leads if led else next(other for other in "bcd" if other != leads)
        before, at_s = await members(lab, "bcd"), now_s()
        assert await lab.done(CLEANUP.format(node)) == (("T", 0, node),)
        await asyncio.sleep(3.0)
        writer.over = True
        await work
        told = await settled_replicas(lab, "bcd")
        after = {name: report.member for name, report in told.items()}
        assert {name for name in after if after[name] != before[name]} == {node}
        # It is a voter again, and has everything.
        assert all((report.voter, report.voters) == (True, 3) for report in told.values())
        assert len({report.content for report in told.values()}) == 1
        assert writer.ok_after(at_s) <= 2.0
        assert set(writer.acknowledged) <= set(await read(lab))
        assert not await begun(lab, "bcd")
        told = await lab.events(node, START_DECISION)
        asked = [event for event in told if "an operator asked for it" in event.text]
        assert [event.decision for event in asked] == [ERASES]

    simulate(story())


@pytest.mark.parametrize("options", [SC, HA])
@pytest.mark.parametrize("count", [1, 2])
def test_a_copy_without_which_there_is_no_majority_is_not_cleaned_up(
    options: str, count: int
) -> None:
    async def story() -> None:
        lab = Lab(31, ("a", *"bcd"[:count]))
        await cluster(lab, "bcd"[:count], options, count)
        await append(lab, 1)
        before = await members(lab, "bcd"[:count])
        await wait_refused(lab, CLEANUP.format("b"), "COPY-NEEDED", Retry.LATER, limit_ms=8000)
        await append(lab, 2)
        assert await members(lab, "bcd"[:count]) == before
        assert await read(lab) == (1, 2)

    simulate(story())


def test_a_copy_is_cleaned_up_only_once_most_others_have_all_that_it_has() -> None:
    async def story() -> None:
        lab = Lab(32, ("a", "b", "c", "d"))
        await cluster(lab, "bcd", SC, 3)
        # It is in the topology all the while, and lacks what the others acknowledge.
        await lab.provider.cut((("b", "d"), ("d", "b"), ("c", "d"), ("d", "c")))
        await append(lab, 1)
        before = await members(lab, "bcd")
        for node in "bc":
            text = await wait_refused(
                lab, CLEANUP.format(node), "COPY-NEEDED", Retry.LATER, limit_ms=8000
            )
            assert "the others do not hold" in text
        await append(lab, 2)
        assert await members(lab, "bcd") == before
        await lab.provider.cut(())
        deadline_s = now_s() + LIMIT_S
        while (await lab.sql(CLEANUP.format("c"))).problem is not None:
            assert now_s() < deadline_s
        await settled_replicas(lab, "bcd")
        assert await read(lab) == (1, 2)

    simulate(story())


def test_copies_that_are_cleaned_up_at_once_do_not_count_for_each_other() -> None:
    async def story(seed: int) -> None:
        lab = Lab(seed, ("a", "b", "c", "d"))
        await cluster(lab, "bcd", SC, 3)
        await append(lab, 1)
        asked = [f"RESTART PARTITIONS OF TABLE T ON '{node}' WITH CLEANUP" for node in "bcd"]
        answers = await asyncio.gather(*(lab.sql(statement) for statement in asked))
        assert sum(answer.problem is None for answer in answers) <= 1
        told = await settled_replicas(lab, "bcd")
        assert len({report.content for report in told.values()}) == 1
        assert await read(lab) == (1,)

    for seed in range(33, 43):
        simulate(story(seed))


def test_a_copy_that_was_cleaned_up_stays_so_when_all_nodes_start_again() -> None:
    async def story() -> None:
        lab = Lab(43, ("a", "b", "c", "d"))
        await cluster(lab, "bcd", HA, 3, phase2=True)
        await append(lab, 1)
        await lab.done(CLEANUP.format("c"))
        # At once: it may not have been taken in yet.
        await kill(lab, "bcda")
        await lab.start("a", "b", "c", "d")
        await append(lab, 2)
        told = await settled_replicas(lab, "bcd")
        assert told["c"].member.endswith(".2")
        assert await read(lab) == (1, 2)

    simulate(story())


def test_a_blank_copy_begins_anew_only_where_its_partition_is_named() -> None:
    async def story() -> None:
        lab = Lab(44, ("a", "b", "c", "d"))
        await cluster(lab, "bcd", SC, 3)
        await append(lab, 1)
        await lab.provider.cut(tuple((x, y) for x in "cd" for y in "b"))
        await lab.provider.kill("b")
        await lab.provider.wipe("b")
        await kill(lab, "cd")
        await lab.provider.cut(())
        await lab.start("b")
        await lab.until_rows(STATES, {("MINORITY", 0, "b")})
        text = await wait_refused(lab, RESET, "RESET-WAITS", Retry.LATER)
        assert "no copy on b is whole" in text
        assert await lab.done(NAMED) == (("T", 0, 1),)
        assert await read(lab) == ()

    simulate(story())
