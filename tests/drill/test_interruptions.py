"""A slice of ``interruptions.py``, which interrupts every command at forty moments."""

from __future__ import annotations

import signal
from pathlib import Path

import attrs
import pytest
from interruptions import COMMANDS, SIGNALS, Found, Trial, all_tried, moments, recording, wrong

CHECK_S = 4.0  # about what a check takes on a crowded machine
WELL = Found(
    trial=Trial(command="check", signal=signal.SIGKILL, after_s=1.0),
    code=-9,
    early=False,
    end_s=0.1,
    left_s=0.5,
    left=(),
    containers=(),
    said="",
)


def test_what_must_never_be_is_named() -> None:
    assert wrong(WELL) == ""
    assert wrong(attrs.evolve(WELL, code=None)) == "does not end"
    assert wrong(attrs.evolve(WELL, left_s=5.5, left=("java",))) == "left java for 5.5 s"
    assert wrong(attrs.evolve(WELL, containers=("n1",))) == "left n1"
    assert wrong(attrs.evolve(WELL, said="Traceback (most recent")) == "a traceback"


@pytest.mark.parametrize("command", COMMANDS)
def test_moments_are_spread_over_the_whole_time_and_over_the_signals(command: str) -> None:
    trials = moments(command, 20.0, 40, seed=1)

    assert sorted(int(trial.after_s * 2) for trial in trials) == list(range(40))
    assert {s: sum(t.signal == s for t in trials) for s in SIGNALS} == dict.fromkeys(SIGNALS, 10)
    assert moments(command, 20.0, 40, seed=2) != trials


@pytest.mark.slow
def test_a_check_that_is_interrupted_leaves_no_process(tmp_path: Path) -> None:
    trials = moments("check", CHECK_S, len(SIGNALS), seed=3)
    found = list(all_tried(trials, recording(tmp_path), tmp_path, jobs=2))

    assert len(found) == len(SIGNALS)
    assert [wrong(each) for each in found] == [""] * len(found)
