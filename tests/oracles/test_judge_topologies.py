"""The judge on nodes that are in the topology and out of it, on timers over a time in which all
were down, and on what a leader owes.
"""

from __future__ import annotations

import pytest
from oracles.toy_store import ToyClaims

from clusters.providers.sim.loop import simulate
from clusters.providers.sim.machine import Clocks
from clusters.providers.sim.oracles.duties import DutyList
from clusters.providers.sim.oracles.leases import Leases
from clusters.providers.sim.oracles.topologies import OUT_WITHIN_S, SteadyLeader, Topologies
from harness.protocols.claims import Duties, Duty, NodeDeparture, NodeJoined, TimersResumed


def topologies(*nodes: str, runs: bool = True, talking: bool = True) -> Topologies:
    """Each of ``nodes`` has started, as ``NODE~1``, and joined at 1 s."""

    async def main() -> Topologies:
        leases = Leases(ToyClaims(), lambda index, mark: True)
        found = Topologies(leases, 0.05, lambda one, other: talking)
        for node in nodes:
            leases.started(node, f"{node}~1", Clocks(100.0), lambda: runs)
            found.joined(1.0, NodeJoined(node, f"{node}~1", 2.0))
        return found

    return simulate(main())


def out(node: str, *, asked: bool = False) -> NodeDeparture:
    return NodeDeparture(node, f"{node}~1", asked)


def test_a_node_is_out_once_it_was_silent_and_not_before() -> None:
    silent, early, renewed = (topologies("n1", "n2") for _ in range(3))
    renewed.renewed(3.0, 3.0, "n2~1")

    assert silent.departed(3.0, "n1", out("n2")) == ""
    assert early.departed(2.0, "n1", out("n2")) == (
        "n2~1 is out, and was silent for 1.000 s, of 2 s that a node may be"
    )
    assert "silent for 0.500 s" in (renewed.departed(3.5, "n1", out("n2")) or "")


def test_a_node_that_asks_for_it_or_writes_it_itself_may_leave_at_any_time() -> None:
    assert topologies("n1", "n2").departed(1.1, "n1", out("n2", asked=True)) is None
    assert topologies("n1", "n2").departed(1.1, "n2", out("n2")) is None
    assert topologies("n1").departed(1.1, "n1", out("n2")) is None


def test_a_leaders_clock_may_be_fast_by_the_drift() -> None:
    assert topologies("n1", "n2").departed(1.0 + 2.0 / 1.05, "n1", out("n2")) == ""
    assert topologies("n1", "n2").departed(1.0 + 1.85, "n1", out("n2")) != ""


def test_a_leader_that_goes_on_takes_silent_nodes_out() -> None:
    found = topologies("n1", "n2")
    turns = int((2.0 * 1.05 + OUT_WITHIN_S) / 0.25)

    assert [text for _ in range(turns) for text in found.turn("n1", 0.25)] == []
    (text,) = found.turn("n1", 0.25)
    assert text.startswith("n2~1 is in the topology, and has renewed no lease for 6.2")
    assert list(found.turn("n1", 0.25)) == []  # it is told once


@pytest.mark.parametrize("what", ["renewed", "led by another", "not joined itself"])
def test_silence_counts_for_one_leader_that_is_there(what: str) -> None:
    found = topologies("n1", "n2")
    texts = []
    for turn in range(60):
        if what == "renewed" and not turn % 10:
            found.renewed(turn * 0.25, turn * 0.25, "n2~1")
        leader = "n3" if what == "not joined itself" else "n1"
        texts += found.turn(leader, -1.0 if what == "led by another" and not turn % 10 else 0.25)

    assert [text for text in texts if text.startswith("n2")] == []


def test_a_leaders_time_is_what_passes_between_its_commits() -> None:
    steady = SteadyLeader()

    assert steady.turn(1.0, "n1", 1) < 0
    assert steady.turn(1.1, "n1", 1) == pytest.approx(0.1)
    assert steady.turn(5.0, "n1", 1) == 0.25  # it stood still
    assert steady.turn(5.1, "n1", 2) < 0
    assert steady.turn(5.2, "n2", 2) < 0


@pytest.mark.parametrize(
    ("shift_s", "text"),
    [
        (10.0, ""),
        (9.0, ""),
        (11.0, ""),
        (
            0.0,
            "the down timer begins 0.0 s later as the cluster goes on, which was down for",
        ),
        (20.0, "the down timer begins 20.0 s later as the cluster goes on"),
    ],
)
def test_timers_begin_later_by_as_long_as_all_were_down(shift_s: float, text: str) -> None:
    found = topologies("n1", "n2", runs=False)
    found.renewed(5.0, 5.0, "n1~1")
    found.renewed(4.0, 4.0, "n2~1")
    fact = TimersResumed(("n1~1", "n2~1"), (("the down timer", shift_s),))

    told = found.resumed(15.0, "n1", fact)

    assert told is not None
    assert told.startswith(text) if text else told == ""
    assert found.resumed(15.0, "n1", TimersResumed(("n9~1",), fact.shifts)) is None
    assert found.resumed(15.0, "n1", TimersResumed(fact.earlier, ())) is None


def test_a_renewal_counts_from_its_writing_though_a_majority_gets_it_at_the_next_start() -> None:
    found = topologies("n1", "n2", runs=False)
    found.renewed(5.0, 14.5, "n1~1")

    fact = TimersResumed(("n1~1", "n2~1"), (("the down timer", 10.0),))

    assert found.resumed(15.0, "n1", fact) == ""


def test_a_cluster_of_which_a_start_runs_on_was_not_down() -> None:
    fact = TimersResumed(("n1~1", "n2~1"), ())

    assert topologies("n1", "n2").resumed(15.0, "n3", fact) == (
        "the cluster goes on as one that was down, and n1~1 has run all the while"
    )
    # The leader can't know of one that is cut off from it.
    assert topologies("n1", "n2", talking=False).resumed(15.0, "n3", fact) is None
    assert topologies("n1", "n2", runs=False).resumed(15.0, "n3", fact) is None


RESET = Duty("p is to be reset", 5.0, ("n1", "n2"), "p")


def overdue(turns: int, *, talking: bool = True, copy: bool = True, again: bool = False) -> int:
    duties = DutyList(lambda one, other: talking, lambda node, root: copy and node == "n2")
    duties.changed(Duties((RESET,)))
    texts = list[str]()
    for turn in range(turns):
        if again and turn == 15:
            duties.changed(Duties(()))
            duties.changed(Duties((RESET,)))
        texts += duties.turn("n1", 0.25)
    return len(texts)


def test_a_duty_is_overdue_once_its_leader_has_had_the_time() -> None:
    assert overdue(20) == 0
    assert overdue(40) == 1
    assert overdue(30, again=True) == 0
    assert overdue(40, talking=False) == 0
    assert overdue(40, copy=False) == 0


def test_another_leader_begins_with_its_duties_anew() -> None:
    duties = DutyList(lambda one, other: True, lambda node, root: True)
    duties.changed(Duties((RESET,)))

    texts = [t for turn in range(60) for t in duties.turn("n1", 0.25 if turn % 15 else -1.0)]

    assert texts == []
