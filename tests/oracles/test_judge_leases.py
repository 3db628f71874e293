"""The judge on leases: by the holder's own clock, from when a renewal was sent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from oracles.toy_store import LOG, Bench, broken, details

from clusters.providers.sim.disk import SimDisk
from harness.protocols.claims import Claim
from harness.protocols.hardware import ClockTrouble


def sent_ms() -> int:
    return int(asyncio.get_running_loop().time() * 1000)


async def led(bench: Bench) -> None:
    for node in ("n1", "n2"):
        bench.start(node)
    await bench.agree("p 1 1 term", f"p 2 1 renew:n1:{sent_ms()}", "p 3 1 grant:q:n1:1")


@pytest.mark.parametrize(("after_s", "held"), [(0.5, True), (0.99, True), (1.1, False)])
def test_a_primary_acts_within_a_lease_from_the_sending_of_its_renewal(
    after_s: float, held: bool
) -> None:
    async def act(bench: Bench) -> None:
        await led(bench)
        await asyncio.sleep(after_s)
        bench.send("n1", "acts q 1")

    assert broken(act) == ([] if held else [("lease-valid", "n1", "acts to n3")])


def test_a_clock_that_loses_time_makes_its_holder_act_longer() -> None:
    async def act(bench: Bench) -> None:
        bench.clocks["n1"].spoil(ClockTrouble(rate=0.9))
        await led(bench)
        await asyncio.sleep(1.05)
        bench.send("n1", "acts q 1")

    assert broken(act) == []


@pytest.mark.parametrize(("after_s", "held"), [(0.9, True), (1.1, False)])
def test_wall_time_that_is_read_anew_between_two_jumps_dates_renewals(
    after_s: float, held: bool
) -> None:
    async def act(bench: Bench) -> None:
        bench.clocks["n1"].spoil(ClockTrouble(jump_s=20.0))
        await led(bench)
        bench.clocks["n1"].spoil(ClockTrouble(jump_s=-20.0))
        # It reads its clock here, and stamps by that.
        bench.clocks["n1"].spoil(ClockTrouble(jump_s=20.0))
        await asyncio.sleep(2.0)
        await bench.agree(f"p 4 1 renew:n1:{sent_ms()}")
        await asyncio.sleep(after_s)
        bench.send("n1", "acts q 1")

    assert broken(act) == ([] if held else [("lease-valid", "n1", "acts to n3")])


def test_a_renewal_that_only_its_holder_has_prolongs_nothing() -> None:
    async def act(bench: Bench, *nodes: str) -> None:
        await led(bench)
        await asyncio.sleep(0.8)
        for node in nodes:
            await bench.write(node, f"p 4 1 renew:n1:{sent_ms()}")
        await asyncio.sleep(0.5)
        bench.send("n1", "acts q 1")

    async def alone(bench: Bench) -> None:
        await act(bench, "n1")

    async def with_another(bench: Bench) -> None:
        await act(bench, "n1", "n2")

    assert broken(alone) == [("lease-valid", "n1", "acts to n3")]
    assert broken(with_another) == []


def test_a_grant_waits_for_the_lease_before_it() -> None:
    async def act(bench: Bench, after_s: float, *, dies: bool = False) -> None:
        await led(bench)
        bench.running["n1"] = not dies
        await asyncio.sleep(after_s)
        await bench.agree("p 4 1 grant:q:n2:2")

    async def soon(bench: Bench) -> None:
        await act(bench, 0.7)

    async def late(bench: Bench) -> None:
        await act(bench, 1.1)

    async def the_holder_is_dead(bench: Bench) -> None:
        await act(bench, 0.7, dies=True)

    (found,) = details(soon)
    assert found.claim is Claim.ONE_PRIMARY
    assert found.detail.startswith("epoch 2 of q is granted to n2, and the lease of n1 holds for ")
    assert broken(late) == []
    # That it has died no other node can know.
    (found,) = details(the_holder_is_dead)
    assert "n2, which has waited for the lease of n1 for 0.7" in found.detail


@pytest.mark.parametrize(
    ("after_s", "taker_rate", "waits"),
    [(1.02, 1.0, False), (1.06, 1.0, True), (1.03, 1.05, True), (1.06, 0.95, False)],
)
def test_a_lease_is_waited_for_with_the_drift_that_clocks_may_have(
    after_s: float, taker_rate: float, waits: bool
) -> None:
    async def act(bench: Bench) -> None:
        bench.clocks["n2"].spoil(ClockTrouble(rate=taker_rate))
        await led(bench)
        await asyncio.sleep(after_s)
        await bench.agree("p 4 1 grant:q:n2:2")

    found = details(act)
    assert [each.claim for each in found] == ([] if waits else [Claim.ONE_PRIMARY])
    for each in found:
        assert each.detail.endswith("and a clock that drifts as it may asks for 1.050 s")


def test_a_node_that_starts_waits_from_its_start_and_for_no_start_that_is_over() -> None:
    async def act(bench: Bench, *nodes: str) -> None:
        await led(bench)
        await asyncio.sleep(0.8)
        for node in nodes:
            bench.judge.started(node, f"{node}~2", bench.clocks[node], lambda: True, {})
        if "n1" in nodes:
            bench.running["n1"] = False
            await bench.agree(f"p 4 1 renew:n1~2:{sent_ms()}")
        await asyncio.sleep(0.4)
        taker = "n2~2" if "n2" in nodes else "n2"
        index = 5 if "n1" in nodes else 4
        await bench.agree(f"p {index} 1 grant:q:{taker}:2")

    async def both_go_on(bench: Bench) -> None:
        await act(bench)

    async def the_taker_starts(bench: Bench) -> None:
        await act(bench, "n2")

    async def the_holder_starts(bench: Bench) -> None:
        await act(bench, "n1")

    assert broken(both_go_on) == []
    (found,) = details(the_taker_starts)
    assert "n2~2, which has waited for the lease of n1 for 0.4" in found.detail
    assert broken(the_holder_starts) == []


def test_a_disk_that_is_read_again_counts_once_towards_a_majority() -> None:
    async def act(bench: Bench, *, again: bool) -> None:
        await led(bench)
        await asyncio.sleep(0.7)
        grant = "p 4 1 grant:q:n2:2"
        await bench.write("n1", grant)
        size_bytes = len(bench.platters["n1"].files[LOG].data)
        await bench.write("n1", "p 5 1 a")
        await SimDisk(bench.platters["n1"]).truncate(LOG, size_bytes)
        if again:  # the grant is on two disks while the lease before it holds
            await bench.write("n2", grant)
        await asyncio.sleep(0.45)
        await bench.write("n3" if again else "n2", grant)
        bench.send("n1", "leads p 1 4 1")
        bench.send("n1", "committed p 1 4")

    async def on_one_disk(bench: Bench) -> None:
        await act(bench, again=False)

    async def on_two_disks(bench: Bench) -> None:
        await act(bench, again=True)

    # Whoever wrote it first, at 0.7 s, had not waited: that is another promise.
    (found,) = details(on_one_disk)
    assert "has waited for the lease of n1 for 0.7" in found.detail
    (found,) = details(on_two_disks)
    assert "the lease of n1 holds for another" in found.detail


def test_nobody_acts_in_an_epoch_that_another_has_left_behind() -> None:
    async def act(bench: Bench) -> None:
        await led(bench)
        bench.send("n2", "acts q 2")
        bench.send("n1", "acts q 1")

    assert ("one-primary", "n1", "acts to n3") in broken(act)


@pytest.mark.parametrize("between", [False, True])
def test_a_primary_answers_for_what_it_has_logged_under_an_earlier_epoch_of_its_own(
    between: bool,
) -> None:
    async def act(bench: Bench) -> None:
        await led(bench)
        bench.send("n1", "acts q 1")
        if between:
            bench.send("n2", "acts q 2")
        bench.send("n1", "acts q 3")
        bench.send("n1", "acts q 1 logged")

    def overtaken(act: Callable[[Bench], Awaitable[None]]) -> list[str]:
        return [each.detail for each in details(act) if each.claim is Claim.ONE_PRIMARY]

    assert overtaken(act) == []

    async def lock(bench: Bench) -> None:
        await act(bench)
        bench.send("n1", "acts q 1")

    assert overtaken(lock) == ["it acts for q in epoch 1, after n1 did in 3"]

    async def late(bench: Bench) -> None:
        await act(bench)
        bench.send("n2", "acts q 4")
        bench.send("n1", "acts q 1 logged")

    assert overtaken(late) == ["it acts for q in epoch 1, after n2 did in 4"]
