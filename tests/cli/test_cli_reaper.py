"""The reaper: it waits for its controller, and tries until nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from cli import reaper
from harness.errors import HarnessError, NotRemoved

AT_ONCE = reaper.Patience(looks=2, pause_s=0.0)


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

    each = answers(away, away, ["container a"], [], ["network b"])
    failure = reaper.reap(each, said.append, AT_ONCE)

    assert failure == ""
    assert said == [
        "will be tried again: HarnessError: nobody answers",
        "removed container a",
        "removed network b",
    ]


def test_what_went_is_told_though_something_else_did_not() -> None:
    said: list[str] = []
    partly = NotRemoved(["container b"], {"container a": "timed out"})

    failure = reaper.reap(answers(partly, partly, ["container a"]), said.append, AT_ONCE)

    assert failure == ""
    again = "could not be removed, unlike the rest: container a: timed out"
    assert said[0] == "removed container b"
    assert said[1] == f"will be tried again: NotRemoved: {again}"
    assert said[-1] == "removed container a"


def test_it_gives_up_at_its_limit_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "REAP_LIMIT_S", 0.0)

    away = answers(*[HarnessError("nobody answers")] * 9)
    failure = reaper.reap(away, lambda _: None, AT_ONCE)

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
