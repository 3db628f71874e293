"""A step that comes late: statements and topologies since the one before, in their order."""

from __future__ import annotations

import pytest
from zone_script import at, drawn, named, second_of
from zone_store import DOWN, FILTER, UP, ZoneStore, alter

from clusters.reference.node.metastorage.metastorage import Invoke
from clusters.reference.node.zones import manager


class Late(ZoneStore):
    """Zones whose driver looks at them when it is told to: Z of A, B and C, and another one."""

    def __init__(self, options: str, max_history: int | None = None) -> None:
        super().__init__(max_history)
        self.does("ABC", f"CREATE ZONE z WITH {options}", f"CREATE ZONE y WITH {FILTER}='\"Y\"'")
        self.looks(0)

    def looks(self, second: int) -> None:
        """Step, so that nothing is left to do."""
        for invoke in self.step(second):
            assert self.apply(invoke).success
        assert self.step(second) == ()

    def step(self, second: int) -> tuple[Invoke, ...]:
        return manager.step(self.store, self.catalog, self.topology(), at(second))

    def shown(self) -> list[str]:
        """Each entry of the history of Z, each timer with its start."""
        state = self.state()
        entries = [f"{second_of(entry.ts)} {named(entry.nodes)}" for entry in state.history]
        return entries + [drawn(timer) for timer, _ in state.running()]


# Z waits 10 s for nodes that join, and not for those that leave.
@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        # What a statement finds goes by the waits of before it, what comes behind it by its own.
        (("AB", alter(f"{DOWN}=100")), ["0 A B C", "5 A B"]),
        ((alter(f"{DOWN}=100"), "AB"), ["0 A B C", "since 5: -C"]),
        (("AB", alter(f"{DOWN}=100"), "A"), ["0 A B C", "5 A B", "since 5: -B"]),
        (
            (alter(f"{DOWN}=100"), "AB", alter(f"{DOWN}=50"), "A"),
            ["0 A B C", "5 A B", "since 5: -B"],
        ),
        # A filter takes what it finds, and no timer survives it.
        (("ABCD", alter(f"{FILTER}='!\"A\"'")), ["0 A B C", "5 B C D"]),
        ((alter(f"{FILTER}='!\"A\"'"), "ABCD"), ["0 A B C", "5 B C", "since 5: +D"]),
        # A statement that leaves the waits and the filter is none, nor is one on another zone: all
        # topologies are followed as one, so that nothing is moved off a node that is back.
        (("AB", "ABC"), ["0 A B C", "since 5: +C"]),
        (("AB", alter("REPLICAS=2"), "ABC"), ["0 A B C", "since 5: +C"]),
        (("AB", alter(f"{DOWN}=100", "y"), "ABC"), ["0 A B C", "since 5: +C"]),
        (("ABCD", alter("REPLICAS=2", "y")), ["0 A B C", "since 5: +D"]),
        # A filter that went there and back is one that was altered, whatever was said before it.
        (
            ("ABCD", alter("REPLICAS=2"), alter(f"{FILTER}='\"A\"'"), alter(f"{FILTER}='$..*'")),
            ["0 A B C", "5 A B C D"],
        ),
    ],
)
def test_a_step_follows_statements_and_topologies_in_their_order(
    moves: tuple[str, ...], expected: list[str]
) -> None:
    late = Late(f"{UP}=10, {DOWN}=0")
    late.does(*moves)
    late.looks(5)

    assert late.shown() == expected


def test_topologies_before_several_statements_are_followed_once() -> None:
    late = Late(f"{UP}=10, {DOWN}=10")
    late.does("ABCD")
    late.looks(2)
    late.does("ABD", alter(f"{DOWN}=20"), "AD", alter(f"{DOWN}=30"), alter(f"{DOWN}=40"))
    late.looks(5)

    # B and C left, and D, which joined before, waits no longer for that.
    assert late.shown() == ["0 A B C", "since 2: +D", "since 5: -B -C"]


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        (("AB", alter(f"{DOWN}=100")), ["0 A B C", "5 A B"]),
        ((alter(f"{DOWN}=100"), "AB"), ["0 A B C", "since 5: -C"]),
        ((alter("REPLICAS=2"), "AB"), ["0 A B C", "5 A B"]),
        ((alter(f"{FILTER}='!\"A\"'"), "ABCD"), ["0 A B C", "5 B C", "since 5: +D"]),
    ],
)
def test_where_the_history_is_lost_the_last_statement_and_topology_keep_their_order(
    moves: tuple[str, ...], expected: list[str]
) -> None:
    late = Late(f"{UP}=10, {DOWN}=0", max_history=1)
    late.does(*moves)
    late.looks(5)

    assert late.shown() == expected


def test_zones_without_a_timer_need_no_invoke_to_resume() -> None:
    late = Late(f"{UP}=10, {DOWN}=10")
    assert manager.resume(late.store, at(1), at(100)) == ()
    late.does("AB")
    late.looks(2)

    (resumed,) = manager.resume(late.store, at(3), at(100))
    assert late.apply(resumed).success
    assert late.shown() == ["0 A B C", "since 99: -C"]
    assert manager.resume(late.store, at(101), at(101)) == ()
