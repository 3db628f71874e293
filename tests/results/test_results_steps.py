"""The steps of a procedure are bands within the bar of its fault."""

from __future__ import annotations

import re

import numpy as np

from harness.history.records import OpType
from results.drawing import plots
from results.drawing.plots import FaultWindow, StepWindow
from results.drawing.series import Outcomes

NAMES = r">\s*(n\d)\s*<"


def drawn(steps: tuple[StepWindow, ...]) -> str:
    some = np.array([1.0, 30.0])
    none = Outcomes(invoke_s=some, complete_s=some + 0.01, latency_s=np.array([0.01, 0.01]))
    window = FaultWindow(
        number=0, kind="rolling-restart", label="all", start_s=5.0, end_s=25.0, steps=steps
    )
    scene = plots.Scene(
        operations=dict.fromkeys(OpType, none), faults=(window,), phases=(("drive", 0.0),)
    )
    return plots.draw(scene).svg


def test_each_step_has_the_name_of_its_node_and_a_band_of_its_own() -> None:
    steps = tuple(
        StepWindow(
            node=f"n{number}",
            start_s=5.0 + 4 * number,
            up_s=7.0 + 4 * number,
            end_s=9.0 + 4 * number,
        )
        for number in range(5)
    )
    with_steps, without = drawn(steps), drawn(())

    assert re.findall(NAMES, with_steps) == ["n0", "n1", "n2", "n3", "n4"]
    assert not re.findall(NAMES, without)
    assert len(with_steps) > len(without) + 1_000


def test_a_fault_whose_name_has_room_nowhere_has_its_kind_behind_its_bar() -> None:
    """A bar that is hatched but for two seconds, and another fault six seconds behind it."""
    some = np.array([0.0, 48.9])
    few = Outcomes(invoke_s=some, complete_s=some + 0.01, latency_s=np.array([0.01, 0.01]))
    cut, later = (
        FaultWindow(
            number=number, kind=kind, label=f"{kind} n5", start_s=start_s, end_s=start_s + 7.0,
            unsure=((start_s, start_s + 2.0), (start_s + 4.0, start_s + 7.0)),
        )
        for number, kind, start_s in ((1, "partition", 18.0), (2, "pause", 30.9))
    )  # fmt: skip
    scene = plots.Scene(operations=dict.fromkeys(OpType, few), faults=(cut, later), phases=())

    said = re.findall(r">\s*([12](?: [a-z]+)?(?: n5)?)\s*</text>", plots.draw(scene).svg)

    assert said[:2] == ["1 partition", "2 pause n5"]
