"""Every check finds the mistake that it is there for: an adapter with that mistake is broken in it.

All of this is tried on the simulated reference store.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from conform_kit import NEEDS_NETWORK, Other, broken, same, simulated, with_client, with_tx

from clusters.providers.sim.provider import SimProvider
from harness.conform import declared
from harness.conform.bench import CheckFailure, Mark
from harness.conform.suite import SUITE
from harness.errors import MissingCapability
from harness.protocols.client import Committed, StoreError
from harness.protocols.cluster import Roles
from harness.protocols.promise import LogPattern, Promise

# -- what an adapter says of itself ----------------------------------------------------------------


def declaring(**changes: Any) -> Callable[[Any], Any]:
    def change(system: Any) -> Other:
        return Other(system, declaration=msgspec.structs.replace(system.declaration, **changes))

    return change


def matching(regex: str) -> Callable[[Any], Any]:
    return declaring(logs=(LogPattern(name="panic", regex=regex),))


def renamed_row(system: Any) -> Other:
    rows = dict(system.errors)
    return Other(system, errors=rows | {"WRONG": rows["TX-CONFLICT"]})


def placing_elsewhere(system: Any) -> Other:
    return Other(system, partition_of=lambda key: 7)


def fickle(system: Any) -> Other:
    numbers = itertools.count()

    def program(node: str, cluster: Any) -> Any:
        made = system.program(node, cluster)
        return msgspec.structs.replace(made, env={"TURN": str(next(numbers))})

    return Other(system, program=program)


@pytest.mark.parametrize(
    ("change", "check", "text"),
    [
        (declaring(promises=(Promise(kind="read-write", model="safe"),)), "declaration", "'safe'"),
        (declaring(promises=()), "declaration", "no promise of kind 'read-write'"),
        (declaring(conflicts=("TX-NOPE",)), "declaration", "TX-NOPE is in no row"),
        (matching("(?=a)a"), "declaration", "'panic' can't be used: Invalid regular expression"),
        (renamed_row, "errors", "row WRONG is of code TX-CONFLICT"),
        (placing_elsewhere, "partitions", "names partition 7 of 2"),
        (fickle, "program", "another one when it is asked for again"),
    ],
)
def test_a_wrong_word_about_itself_is_found(change: Any, check: str, text: str) -> None:
    assert text in broken(simulated(change, check), check)


def test_a_log_pattern_that_checkers_can_use_is_none_for_python_and_holds() -> None:
    found = simulated(matching(r"out of memory\z"), "declaration")

    assert found["declaration"].mark is Mark.HOLDS, found


def test_an_option_that_nobody_knows_and_that_is_taken_is_found() -> None:
    def careless(system: Any) -> Other:
        return Other(system, build=lambda options: system)

    with pytest.raises(CheckFailure, match="'no_such_option' was taken"):
        asyncio.run(declared.options(careless(None)))  # type: ignore[arg-type]


# -- clients ---------------------------------------------------------------------------------------


async def for_ever(*_: Any) -> None:
    await asyncio.get_running_loop().create_future()


def deaf_to_deadlines(system: Any) -> Other:
    return Other(system, set_up=for_ever)


def starting_and_gone(system: Any) -> Other:
    async def set_up(cluster: Any, provider: Any, deadline_s: float) -> None:
        for node in cluster.nodes:
            await provider.start(node)

    return Other(system, set_up=set_up)


@pytest.mark.parametrize(
    ("change", "text"),
    [(deaf_to_deadlines, "after its deadline"), (starting_and_gone, "no node could be started")],
)
def test_a_set_up_that_keeps_no_deadline_is_found(change: Any, text: str) -> None:
    assert text in broken(simulated(change, "set-up deadline"), "set-up deadline")


def test_where_set_up_hangs_there_is_a_line_and_nothing_else_is_tried() -> None:
    found = simulated(lambda s: Other(s, set_up=for_ever), "serves", "kinds")

    text = broken(found, "serves")
    assert text == "there is no cluster: set_up() went on 8 s after its deadline"
    assert found["kinds"].mark is Mark.NOT_TRIED


def test_where_recover_hangs_there_is_a_line_and_what_needs_a_whole_cluster_is_not_tried() -> None:
    found = simulated(lambda s: Other(s, recover=for_ever), "refused", "kill bites", "codes")

    assert "recover() went on 8 s after its deadline" in broken(found, "refused")
    assert found["kill bites"].mark is Mark.NOT_TRIED
    assert "could not be made whole: recover() went on" in found["kill bites"].text
    assert found["codes"].mark is Mark.HOLDS


async def timing_out(*_: Any) -> Any:
    raise TimeoutError("no answer")


@pytest.mark.parametrize(
    ("change", "check", "text"),
    [
        (lambda s: Other(s, roles=timing_out), "roles", "roles() raised TimeoutError: no answer"),
        (
            lambda s: Other(s, set_up=timing_out),
            "set-up deadline",
            "set_up() raised TimeoutError: no answer",
        ),
        (lambda s: Other(s, connect=timing_out), "refused", "connect() raised TimeoutError"),
        (
            lambda s: with_client(s, lambda client: Other(client, begin=timing_out)),
            "transactions",
            "the adapter raised TimeoutError: no answer",
        ),
    ],
)
def test_a_timeout_of_the_adapters_own_is_not_called_a_limit_of_ours(
    change: Any, check: str, text: str
) -> None:
    found = simulated(change, check)

    assert text in broken(found, check)
    assert "took longer" not in found[check].text


def reading_nothing(tx: Any) -> Other:
    async def read(key: int) -> None:
        return None

    return Other(tx, read=read)


def reading_lists(tx: Any) -> Other:
    async def read(key: int) -> Any:
        value = await tx.read(key)
        return list(value) if isinstance(value, tuple) else value

    return Other(tx, read=read)


def committing_in_any_case(tx: Any) -> Other:
    return Other(tx, rollback=tx.commit)


def nameless(tx: Any) -> Other:
    return Other(tx, server_txn="always the same")


def appending_twice(tx: Any) -> Other:
    async def append(key: int, element: int) -> None:
        await tx.append(key, element)
        await tx.append(key, element)

    return Other(tx, append=append)


def refusing_what_was_done(tx: Any) -> Other:
    async def commit_appends() -> Committed:
        await tx.commit()
        raise StoreError("TX-CONFLICT", "though it was committed")

    async def append(key: int, element: int) -> None:
        await tx.append(key, element)
        changed.commit = commit_appends

    changed = Other(tx, append=append)
    return changed


def acknowledging_what_was_not(tx: Any) -> Other:
    async def commit() -> Committed:
        await tx.rollback()
        return Committed()

    return Other(tx, commit=commit)


@pytest.mark.parametrize(
    ("mistake", "check", "text"),
    [
        (reading_nothing, "serves", "reads None where"),
        (reading_lists, "transactions", "[1, 2] instead of (1, 2)"),
        (committing_in_any_case, "transactions", "a write that was rolled back as 8"),
        (nameless, "identity", "both called 'always the same'"),
        (appending_twice, "contention", "is 2 times in key"),
        (refusing_what_was_done, "contention", "TX-CONFLICT: though it was committed), which is"),
        (acknowledging_what_was_not, "under faults", "was acknowledged, and key"),
    ],
)
def test_a_transaction_that_does_something_else_is_found(
    mistake: Any, check: str, text: str
) -> None:
    found = simulated(lambda system: with_tx(system, mistake), check)

    assert text in broken(found, check)


def test_a_kind_that_reads_what_is_staler_than_promised_is_found() -> None:
    def old(client: Any) -> Other:
        async def begin(kind: str, deadline_s: float) -> Any:
            tx = await client.begin(kind, deadline_s)
            return reading_nothing(tx) if kind == "snapshot" else tx

        return Other(client, begin=begin)

    found = simulated(lambda system: with_client(system, old), "kinds")

    assert "'snapshot' through n1 read None" in broken(found, "kinds")


def test_what_is_no_error_of_the_store_and_what_is_in_no_row_are_found() -> None:
    def raising(error: Exception) -> Any:
        async def commit() -> Committed:
            raise error

        return lambda tx: Other(tx, commit=commit)

    stray = simulated(lambda s: with_tx(s, raising(ValueError("x"))), "contention", "codes")
    unknown = simulated(lambda s: with_tx(s, raising(StoreError("TX-99"))), "contention", "codes")

    assert "ValueError in commit: x" in broken(stray, "codes")
    assert "in no row of the error table: TX-99 (at commit)" in broken(unknown, "codes")


def test_an_error_of_the_machine_where_one_of_the_store_is_due_is_found() -> None:
    def raw(system: Any) -> Other:
        async def connect(cluster: Any, node: str, process: int) -> Any:
            try:
                return await system.connect(cluster, node, process)
            except StoreError as error:
                raise ConnectionRefusedError("by the machine") from error

        return Other(system, connect=connect)

    assert "ConnectionRefusedError" in broken(simulated(raw, "refused"), "refused")


# -- faults ----------------------------------------------------------------------------------------


def asking_elsewhere(system: Any) -> Other:
    async def connect(cluster: Any, node: str, process: int) -> Any:
        return await system.connect(cluster, cluster.nodes[1], process)

    return Other(system, connect=connect)


@pytest.mark.parametrize(
    ("check", "text"),
    [
        ("kill bites", "acknowledged under the fault 'kill'"),
        ("pause bites", "acknowledged under the fault 'pause'"),
        ("partition bites", "was read through it"),
        ("refused", "was killed, and a read through it was acknowledged"),
    ],
)
def test_a_client_that_fails_over_by_itself_is_found(check: str, text: str) -> None:
    assert text in broken(simulated(asking_elsewhere, check), check)


def telling(roles: Roles) -> Callable[[Any], Any]:
    async def tell(cluster: Any) -> Roles:
        return roles

    return lambda system: Other(system, roles=tell)


@pytest.mark.parametrize(
    ("told", "text"),
    [
        (Roles(), "n1 tells nothing when it is asked alone"),
        (Roles(leaders={0: "n9"}, voters={0: ("n9",)}), "n9, which is no node"),
        (Roles(leaders={5: "n1"}, voters={0: ("n1",)}), "partition 5 of 2"),
        (Roles(leaders={-1: "n1"}, voters={0: ("n1",)}), "partition -1 of 2"),
        (Roles(leaders={0: "n1"}, voters={0: ("n2",)}), "has no vote in it"),
        (Roles(voters={0: ("n1",)}, learners={0: ("n9",)}), "n9, which is no node"),
        (Roles(voters={0: ("n1",)}, learners={7: ("n2",)}), "partition 7 of 2"),
        (Roles(voters={0: ("n1",)}, management_leader="n9"), "n9, which is no node"),
        (Roles(voters={0: ("n1",)}, others=("n9",)), "n9, which is no node"),
    ],
)
def test_roles_that_name_what_is_not_there_are_found(told: Roles, text: str) -> None:
    assert text in broken(simulated(telling(told), "roles"), "roles")


def test_a_dead_node_that_is_called_the_leader_for_good_is_found() -> None:
    def remembering(system: Any) -> Other:
        async def roles(cluster: Any) -> Roles:
            told: Roles = await system.roles(cluster)
            return msgspec.structs.replace(told, leaders=dict.fromkeys(told.voters, "n3"))

        return Other(system, roles=roles)

    text = broken(simulated(remembering, "kill bites"), "kill bites")

    assert "n3, which was killed, is called leader of partition 0, leader of partition 1" in text


def healing_nothing(system: Any) -> Other:
    async def recover(*_: Any) -> None:
        return None

    return Other(system, recover=recover)


def healing_in_haste(system: Any) -> Other:
    async def recover(cluster: Any, provider: Any, deadline_s: float) -> None:
        for node in cluster.nodes:
            await provider.resume(node)
            await provider.start(node)

    return Other(system, recover=recover)


def test_a_heal_that_leaves_something_broken_is_found() -> None:
    assert "n3 is down" in broken(simulated(healing_nothing, "recover"), "recover")


def test_what_recover_was_tried_on_is_what_could_be_done_to_the_nodes() -> None:
    async def impossible(node: str) -> None:
        raise MissingCapability("recover", "pause")

    def unpausing(provider: SimProvider) -> Other:
        return Other(provider, pause=impossible)

    whole = simulated(same, "recover")["recover"]
    unpaused = simulated(same, "recover", provided=unpausing)["recover"]
    alone = simulated(same, "recover", nodes=1)["recover"]

    assert "n3 killed, n1 paused: every node" in whole.text
    assert "n3 killed, n1 not paused, which provider sim can't: every node" in unpaused.text
    assert "n1 killed, no other to pause: every node" in alone.text


def test_a_heal_that_does_not_look_whether_it_helped_is_found() -> None:
    found = simulated(healing_in_haste, "recover deadline")

    assert "recover() returned" in broken(found, "recover deadline")


def retelling(**changes: Any) -> Callable[[Any], Any]:
    def change(system: Any) -> Other:
        kept: list[Any] = []

        async def events(cluster: Any, clock: Any) -> list[Any]:
            kept.extend(await system.events(cluster, clock))
            if not changes:
                return kept
            told, kept[:] = [msgspec.structs.replace(e, **changes) for e in kept], []
            return told

        return Other(system, events=events)

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (retelling(), "twice"),
        (retelling(node="n9"), "no node of this cluster"),
        (retelling(boot=""), "of no boot"),
        (retelling(at_ns=10**15), "into the future"),
        (retelling(partition=9), "of partition 9 of 2"),
    ],
)
def test_events_that_mislead_are_found(change: Any, text: str) -> None:
    assert text in broken(simulated(change, "kinds", "events"), "events")


async def deaf(*_: Any) -> None:
    try:
        await for_ever()
    except asyncio.CancelledError:
        await asyncio.sleep(3)


async def missing(*_: Any) -> None:
    raise KeyError("boot")


async def nothing(*_: Any) -> None:
    return None


@pytest.mark.parametrize(
    ("events", "checks", "text"),
    [
        (for_ever, ("events",), "events() took longer than 5 s"),
        (deaf, ("events",), "events() took longer than 5 s"),
        (missing, ("serves", "events", "codes"), "events() raised KeyError: 'boot'"),
        (nothing, ("events",), "events() raised TypeError"),
    ],
)
def test_events_that_hang_or_raise_are_found(
    events: Any, checks: tuple[str, ...], text: str
) -> None:
    found = simulated(lambda system: Other(system, events=events), *checks)

    assert text in broken(found, "events")
    assert [name for name, result in found.items() if result.mark is Mark.BROKEN] == ["events"]


# -- all of it -------------------------------------------------------------------------------------


def test_the_reference_store_conforms_in_a_simulation() -> None:
    found = simulated(same)

    assert list(found) == [check.name for check in SUITE]
    marks = {name: result.mark for name, result in found.items()}
    untried = {name for name, mark in marks.items() if mark is Mark.NOT_TRIED}
    assert untried == NEEDS_NETWORK
    assert not [found[name] for name, mark in marks.items() if mark is Mark.BROKEN]
