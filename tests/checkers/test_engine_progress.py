"""How far an analysis is, as a terminal is told."""

from __future__ import annotations

import re
from contextvars import copy_context
from pathlib import Path

import pytest
from checker_histories import a, ok, r, write_run

from checkers.engine.analyze import analyze
from checkers.engine.kernel_output import PROGRESS
from checkers.engine.progress import StageProgress

FAR = re.compile(r"KEY, (\d) of 4 tasks done(?:, [\d,]+ transactions/s, about [\d.]+ \S+ left)?$")


def test_a_stage_tells_its_rate_and_the_time_that_is_left() -> None:
    stage = StageProgress(name="KEY", tasks=8, transactions=80_000, weight=lambda _task: 1)

    assert stage.sentence(2, 0.25, 10.0) == (
        "KEY, 2 of 8 tasks done, 2,000 transactions/s, about 30 s left"
    )
    assert stage.sentence(0, 0.0, 10.0) == "KEY, 0 of 8 tasks done"
    assert stage.sentence(8, 1.0, 10.0) == "KEY, 8 of 8 tasks done"


def test_a_task_counts_by_its_weight() -> None:
    told: list[str] = []

    def done(*numbers: int) -> None:
        PROGRESS.set(told.append)
        stage = StageProgress(
            name="STRETCH", tasks=3, transactions=100, weight=(10, 30, 60).__getitem__
        )
        # As long ago as a second, to the clock's last digit.
        stage._begun_s -= 1.0
        for number in numbers:
            stage.one_done(number)

    copy_context().run(done, 2, 0, 1)

    assert [text.split(",")[1] for text in told] == [f" {n} of 3 tasks done" for n in (1, 2, 3)]
    assert re.search(r" (5\d|60) transactions/s, about (6\d\d|7\d\d) ms left$", told[0])
    assert told[2] == "STRETCH, 3 of 3 tasks done"


@pytest.mark.parametrize("long", [1, 1 << 40], ids=["side by side", "one after the other"])
def test_each_task_in_process_is_told(
    long: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checkers.engine.stages.LONG", long)
    history = [ok(a(key, 1), start=key, finish=key + 1) for key in range(64)]
    history += [ok(r(key, 1), start=key + 100, finish=key + 101) for key in range(64)]
    run = write_run(tmp_path / "run", history, splits=4)
    told: list[str] = []

    def judged() -> None:
        PROGRESS.set(told.append)
        assert analyze(run, executor="local").outcome == "valid"

    copy_context().run(judged)

    found = [match[1] for text in told if (match := FAR.match(text))]
    assert found[:5] == ["0", "1", "2", "3", "4"]
