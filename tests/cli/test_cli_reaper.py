"""The reaper: it waits for its controller, and tries until nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from harness.cli import reaper
from harness.errors import HarnessError


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "RETRY_S", 0.0)


def answers(*each: object):
    """A removal that does ``each`` in turn, and finds nothing after that."""
    left = list(each)

    def remove() -> list[str]:
        answer = left.pop(0) if left else []
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, list)
        return answer

    return remove


def test_what_fails_is_tried_again_and_said_once() -> None:
    said: list[str] = []
    away = HarnessError("nobody answers")

    failure = reaper.reap(answers(away, away, ["container a"], [], ["network b"]), said.append)

    assert failure == ""
    assert said == [
        "will be tried again: HarnessError: nobody answers",
        "removed container a",
        "removed network b",
    ]


def test_it_gives_up_at_its_limit_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "REAP_LIMIT_S", 0.0)

    failure = reaper.reap(answers(*[HarnessError("nobody answers")] * 9), lambda _: None)

    assert failure == "given up after 0 s: HarnessError: nobody answers"


def test_a_controller_that_says_so_lets_it_go() -> None:
    read, write = os.pipe()
    os.write(write, reaper.RELEASE)

    assert reaper.released(read, os.getpid())

    os.close(read)
    os.close(write)


def test_the_end_of_the_pipe_is_the_end_of_the_controller() -> None:
    read, write = os.pipe()
    os.write(write, reaper.RELEASE[:3])  # it died within the word
    os.close(write)

    assert not reaper.released(read, os.getpid())

    os.close(read)


def test_a_dead_controller_is_noticed_though_a_child_of_it_holds_the_pipe_open() -> None:
    read, write = os.pipe()
    with subprocess.Popen([sys.executable, "-c", ""]) as controller:
        assert not reaper.released(read, controller.pid)

    os.close(read)
    os.close(write)
