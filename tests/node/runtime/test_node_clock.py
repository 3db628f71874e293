"""The hybrid logical clock: above all it gave and saw, close to wall time, carried away by none."""

from __future__ import annotations

import contextvars

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from clusters.reference.node import bugs
from clusters.reference.node.runtime.hybrid_clock import COUNTER_BITS, MAX_AHEAD_S, Hlc, span

NS_PER_MS = 1_000_000
WALL_MS = 1_700_000_000_000


class World:
    """Wall and monotonic time of one machine."""

    def __init__(self, wall_ms: int = WALL_MS) -> None:
        self.wall_ms, self.monotonic_s = wall_ms, 100.0

    def clock(self) -> Hlc:
        return Hlc(wall_ns=lambda: self.wall_ms * NS_PER_MS, monotonic_s=lambda: self.monotonic_s)

    def pass_s(self, seconds: float) -> None:
        self.wall_ms += int(seconds * 1000)
        self.monotonic_s += seconds


def ms_of(ts: int) -> int:
    return ts >> COUNTER_BITS


def test_it_follows_wall_time_and_counts_within_a_millisecond() -> None:
    world = World()
    clock = world.clock()

    first, second = clock.now(), clock.now()
    world.pass_s(2.0)

    assert ms_of(first) == WALL_MS
    assert second == first + 1
    assert ms_of(clock.now()) == WALL_MS + 2000


def test_a_wall_clock_that_jumps_moves_nothing() -> None:
    world = World()
    clock = world.clock()
    clock.now()

    for jump_ms in (3_600_000, -7_200_000):
        world.wall_ms += jump_ms
        world.monotonic_s += 1.0

    assert ms_of(clock.now()) == WALL_MS + 2000


@pytest.mark.parametrize("off_ms", [20_000, -20_000])
def test_a_wall_clock_that_was_set_right_is_followed_once_it_is_read_anew(off_ms: int) -> None:
    world = World(WALL_MS + off_ms)
    clock = world.clock()
    given = clock.now()
    world.wall_ms = WALL_MS

    clock.read_wall()
    after = clock.now()
    world.pass_s(30.0)

    assert after > given
    assert ms_of(after) == WALL_MS + max(off_ms, 0)
    assert ms_of(clock.now()) == WALL_MS + 30_000


def test_a_peer_carries_it_on_unless_its_clock_is_broken() -> None:
    clock = World().clock()
    ahead = clock.now() + span(MAX_AHEAD_S) - 1

    assert clock.receive(ahead)
    assert clock.now() == ahead + 1
    assert not clock.receive(ahead + span(1.0))
    assert clock.now() == ahead + 2
    clock.observe(ahead + span(60.0))  # what the cluster has agreed on is followed anywhere
    assert clock.now() == ahead + span(60.0) + 1


PATIENT = settings(
    max_examples=1000,
    deadline=None,
    phases=[Phase.generate],  # a smaller example than the first is not needed
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


class ClockMachine(RuleBasedStateMachine):
    """Two nodes whose wall clocks differ exchange timestamps."""

    def __init__(self) -> None:
        super().__init__()
        self.worlds = World(), World(WALL_MS + 1500)
        self.clocks = tuple(world.clock() for world in self.worlds)
        self.given: tuple[list[int], list[int]] = ([], [])

    @rule(node=st.integers(0, 1), seconds=st.floats(0, 3))
    def time_passes(self, node: int, seconds: float) -> None:
        self.worlds[node].pass_s(seconds)

    @rule(node=st.integers(0, 1), jump_ms=st.integers(-10_000, 10_000))
    def wall_jumps(self, node: int, jump_ms: int) -> None:
        self.worlds[node].wall_ms += jump_ms

    @rule(node=st.integers(0, 1))
    def an_event(self, node: int) -> None:
        self.given[node].append(self.clocks[node].now())

    @rule(sender=st.integers(0, 1))
    def a_message(self, sender: int) -> None:
        sent = self.clocks[sender].now()
        self.given[sender].append(sent)
        receiver = 1 - sender
        if self.clocks[receiver].receive(sent):
            self.given[receiver].append(self.clocks[receiver].now())
            assert self.given[receiver][-1] > sent

    @invariant()
    def it_never_goes_back(self) -> None:
        for given in self.given:
            assert given == sorted(set(given))


TestClock = ClockMachine.TestCase


@pytest.mark.parametrize("bug", ["clock-not-advanced"])
def test_the_machine_finds_the_planted_bug(bug: str) -> None:
    def run() -> None:
        bugs.switch_on([bug])
        run_state_machine_as_test(ClockMachine, settings=PATIENT)

    with pytest.raises(AssertionError):
        contextvars.copy_context().run(run)
