"""Statements that move data: which nodes are asked to carry them out."""

from __future__ import annotations

from typing import Any

import pytest
from nemesis_world import NODES, Stage, World, in_virtual_time

from harness.errors import PlanError
from harness.protocols.cluster import Cluster
from harness.protocols.faults import Fault, PlannedFault, Victims
from harness.protocols.statement_language import StatementAnswer
from nemesis.active_faults import MayStay
from nemesis.node_faults import pause
from nemesis.placement_faults import DdlFault, ddl

FAULTS: dict[str, Fault] = {fault.kind.name: fault for fault in (ddl(), pause())}
TO, BACK = "ALTER ZONE Z SET REPLICAS = 3", "ALTER ZONE Z SET REPLICAS = 1"


class StatementWorld(World):
    """A world whose nodes take statements; one that was told last is what a query shows."""

    def fixed(self) -> str:
        return ""

    def check_alteration(self, text: str) -> str:
        return ""

    async def statement(
        self, cluster: Cluster, node: str, text: str, limit_s: float
    ) -> StatementAnswer:
        self.calls.append(("statement", f"{node}: {text}"))
        return StatementAnswer()

    async def differing(self, cluster: Cluster, text: str) -> list[str]:
        told = [text for kind, text in self.calls if kind == "statement"]
        return [] if told and told[-1].endswith(text) else [f"not {text}"]

    async def unplaced(self, cluster: Cluster) -> list[str]:
        return []


OPTIONS: dict[str, Any] = {"statements": [TO], "back": [BACK]}
ALTERED = PlannedFault(at_s=3.0, kind="ddl", target="all", hold_s=2.0, options=OPTIONS)
MOST_PAUSED = PlannedFault(at_s=1.0, kind="pause", target=",".join(NODES[1:]), hold_s=20.0)


def asked(*schedule: PlannedFault, seed: int) -> list[str]:
    """What nodes are asked where the last fault of ``schedule`` alters where data lies."""
    world = StatementWorld()

    async def work() -> None:
        stage = Stage(*schedule, world=world, faults=FAULTS, seed=seed)
        await stage.run()
        assert stage.states(len(schedule) - 1)[-1] == "healed"

    in_virtual_time(work)
    return [text for kind, text in world.calls if kind == "statement"]


def test_no_node_under_another_fault_is_asked_where_there_is_one_that_is_not() -> None:
    # What it is asked it might carry out as it goes on, behind the statement that leads back.
    for seed in range(8):
        told = asked(MOST_PAUSED, ALTERED, seed=seed)
        assert told == [f"{NODES[0]}: {TO}", f"{NODES[0]}: {BACK}"]


def test_where_no_node_is_burdened_any_of_them_is_asked_first() -> None:
    first = {asked(ALTERED, seed=seed)[0].partition(":")[0] for seed in range(20)}

    assert len(first) > 1


class RefusingWorld(StatementWorld):
    """A store that refuses every statement, with a word on whether to try again, or is silent, or
    accepts it and does nothing.
    """

    def __init__(self, answer: StatementAnswer) -> None:
        super().__init__()
        self.answer = answer

    async def statement(
        self, cluster: Cluster, node: str, text: str, limit_s: float
    ) -> StatementAnswer:
        return self.answer


def refusal(retry: str, *, doubtful: bool = False) -> StatementAnswer:
    return StatementAnswer(
        problem="MAJORITY-LIVES: nothing is lost", retry=retry, doubtful=doubtful
    )


@pytest.mark.parametrize(
    ("answer", "refusable", "state"),
    [
        (refusal("never"), [TO], "effective"),
        (refusal("later"), [TO], "effective"),
        (refusal("later"), [TO.replace(" ", "\n ")], "effective"),
        (refusal("never"), [], "unproven"),
        (refusal(""), [TO], "unproven"),  # it did not say so itself
        (refusal("at once"), [TO], "unproven"),  # a node for itself: it knows no leader
        (refusal("in doubt"), [TO], "unproven"),
        (refusal("later", doubtful=True), [TO], "unproven"),
        (StatementAnswer(), [TO], "unproven"),  # it was taken, and is not in force
    ],
)
def test_a_statement_may_be_refused_where_the_plan_says_so(
    answer: StatementAnswer, refusable: list[str], state: str
) -> None:
    options = {"statements": [TO], "may_be_refused": refusable}
    planned = PlannedFault(at_s=3.0, kind="ddl", target="all", hold_s=2.0, options=options)

    async def work() -> None:
        stage = Stage(planned, world=RefusingWorld(answer), faults=FAULTS)
        await stage.run()
        assert stage.states(0)[-3:] == [state, "healing", "healed"]
        if state == "effective":
            (told,) = (each.text for each in stage.transitions(0) if each.state == state)
            assert told == f"refused, as it may be: {TO}"

    in_virtual_time(work)


def test_a_change_that_was_refused_did_not_come_about() -> None:
    options = {"statements": [TO], "may_be_refused": [TO]}
    fault = DdlFault().with_options(options, None, "options")

    async def work() -> None:
        scene = Stage(world=RefusingWorld(refusal("never")), faults=FAULTS).scene
        told = await fault.inject(scene, Victims(nodes=NODES, roles=()))
        assert told is not None
        assert told.refused == (TO,)
        assert (await fault.prove(scene, told)).holds
        assert isinstance(fault, MayStay)
        assert not await fault.came_about(scene, told)

    in_virtual_time(work)


def test_only_what_is_asked_for_may_be_refused() -> None:
    with pytest.raises(PlanError, match=r"may_be_refused\[0\]: expected one of statements"):
        ddl().with_options({"statements": [TO], "may_be_refused": [BACK]}, None, "options")
