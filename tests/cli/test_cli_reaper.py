"""The reaper: it waits for its controller, and tries until nothing is left."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from docker.errors import APIError
from requests.exceptions import ReadTimeout

from cli.reaping import reaper
from cli.reaping.guard import ReaperGuard
from clusters.providers.docker import cleanup
from clusters.providers.docker.daemon import DaemonError, doing
from harness.errors import HarnessError, NotRemoved
from harness.history.run_directory import RunDirectory, directory_mark

AT_ONCE = reaper.Patience(looks=2, pause_s=0.0, expected_s=60.0)


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

    return reaper.Remains(remove)


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


def test_what_appears_without_end_is_given_up_and_not_called_clean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reaper, "REAP_LIMIT_S", 0.0)

    failure = reaper.reap(answers(["container a"]), lambda _: None, AT_ONCE)

    assert failure == "given up after 0 s: more kept appearing"


def test_of_a_plug_ins_provider_it_removes_nothing_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "undo").mkdir()
    (tmp_path / "undo" / "processes.json").write_text("the plug-in's own")
    words = [sys.executable, "-m", "cli.reaping.reaper", "r", str(tmp_path), "of-a-plug-in", "1"]

    done = subprocess.run(words, stdin=subprocess.DEVNULL, timeout=30)

    assert done.returncode == 1
    log = (tmp_path / "reaper.log").read_text()
    assert "only provider 'of-a-plug-in' knows what it made; remove it by hand" in log
    assert "nothing is left" not in log


def test_what_was_asked_for_is_waited_for_until_it_appears() -> None:
    said: list[str] = []
    awaited = {"container a"}

    def expected() -> tuple[str, ...]:
        return tuple(awaited)

    def remove() -> list[str]:
        moments.append("look")
        if len(moments) < 7:
            return []
        return [awaited.pop()] if awaited else []

    moments: list[str] = []
    assert reaper.reap(reaper.Remains(remove, expected), said.append, AT_ONCE) == ""

    assert said == ["removed container a"]
    assert len(moments) == 7 + AT_ONCE.looks


def test_what_was_asked_for_and_never_came_is_told_and_not_waited_for_again() -> None:
    said: list[str] = []
    awaited = {"container a"}
    brief = AT_ONCE._replace(expected_s=0.05)
    remains = reaper.Remains(list, lambda: tuple(awaited), awaited.discard)

    assert reaper.reap(remains, said.append, brief) == ""
    assert said == ["container a did not appear within 0.05 s"]

    assert reaper.reap(remains, said.append, AT_ONCE) == ""
    assert said == said[:1]


def test_a_request_is_announced_while_it_is_under_way_and_settled_by_what_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "r"
    (root / "undo").mkdir(parents=True)
    left = [_container("a", directory_mark(root))]
    monkeypatch.setattr(cleanup, "connect", lambda: None)
    monkeypatch.setattr(cleanup, "leftovers", lambda _: list(left))
    monkeypatch.setattr(cleanup, "remove_container", lambda _, name: _take(left, name))
    remains = reaper.remains_of("r", root, "docker", None)
    assert remains is not None
    requests = cleanup.Requests(root / "undo")

    with requests.announced("a"), requests.announced("b"):
        assert remains.expected() == ("a", "b")
        assert remains.remove() == ["container a of run r"]
        assert remains.expected() == ("b",)

    assert remains.expected() == ()
    assert list((root / "undo").iterdir()) == []


@pytest.mark.parametrize("definite", [True, False])
def test_only_an_answer_of_the_daemon_settles_a_request(definite: bool, tmp_path: Path) -> None:
    answer = APIError("no") if definite else ReadTimeout("no answer within 20 s")
    announced = cleanup.Requests(tmp_path)

    with pytest.raises(DaemonError), announced.announced("a"), doing("making a"):
        raise answer

    assert announced.open() == (() if definite else ("a",))


def test_no_guard_is_released_while_the_daemon_may_still_make_something(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.undo.mkdir()
    requests = cleanup.Requests(run.undo)
    guard = ReaperGuard.start(run, "docker")
    try:
        with pytest.raises(DaemonError), requests.announced("a"), doing("making a"):
            raise ReadTimeout("no answer within 20 s")
        guard.release()
        assert not guard.released
    finally:
        requests.settle("a")
        guard.release()
    assert guard.released


def test_where_it_can_not_be_told_what_is_expected_that_is_tried_again() -> None:
    said: list[str] = []
    answers = [PermissionError("undo: permission denied")]

    def expected() -> tuple[str, ...]:
        if answers:
            raise answers.pop()
        return ()

    assert reaper.reap(reaper.Remains(list, expected), said.append, AT_ONCE) == ""
    assert said == ["will be tried again: PermissionError: undo: permission denied"]


def test_what_is_handed_over_by_a_controller_that_lives_is_not_called_an_orphan(
    tmp_path: Path,
) -> None:
    words = [
        sys.executable,
        "-m",
        "cli.reaping.reaper",
        "r",
        str(tmp_path),
        "process",
        str(os.getpid()),
    ]

    subprocess.run(words, stdin=subprocess.DEVNULL, timeout=30)

    log = (tmp_path / "reaper.log").read_text()
    assert "the controller hands the rest over: removing what it left" in log
    assert "the controller is gone" not in log


def test_while_its_controller_lives_more_is_expected(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as controller:
        remains = reaper.remains_of("r", tmp_path, "docker", reaper.handle(controller.pid))
        assert remains is not None
        assert remains.expected() == ("what the controller makes",)
        controller.communicate(b"\n")

        assert remains.expected() == ()


def test_it_acts_for_the_directory_of_its_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = tmp_path / "own" / "r", tmp_path / "other" / "r"
    for root in (own, other):
        root.mkdir(parents=True)
    left = [_container(name, directory_mark(root)) for name, root in (("a", own), ("b", other))]
    left.append(_container("c", ""))  # of a version without the label
    monkeypatch.setattr(cleanup, "connect", lambda: None)
    monkeypatch.setattr(cleanup, "leftovers", lambda _: list(left))
    monkeypatch.setattr(cleanup, "remove_container", lambda _, name: _take(left, name))
    remains = reaper.remains_of("r", own, "docker", None)
    own.rename(tmp_path / "own" / "moved")

    assert remains is not None
    assert remains.remove() == ["container a of run r", "container c of run r"]
    assert [item.name for item in left] == ["b"]


def _container(name: str, directory: str) -> cleanup.Leftover:
    return cleanup.Leftover(
        kind="container", name=name, run_id="r", owner=None, directory=directory
    )


def _take(left: list[cleanup.Leftover], name: str) -> None:
    left[:] = [item for item in left if item.name != name]


def test_a_controller_that_says_so_lets_it_go() -> None:
    read, write = os.pipe()
    os.write(write, reaper.RELEASE)

    assert reaper.released(read, reaper.handle(os.getpid()))

    os.close(read)
    os.close(write)


def test_the_end_of_the_pipe_is_the_end_of_the_controller() -> None:
    read, write = os.pipe()
    os.write(write, reaper.RELEASE[:3])  # it died within the word
    os.close(write)

    assert not reaper.released(read, reaper.handle(os.getpid()))

    os.close(read)


def test_a_dead_controller_is_noticed_though_a_child_of_it_holds_the_pipe_open() -> None:
    read, write = os.pipe()
    with subprocess.Popen([sys.executable, "-c", ""]) as controller:
        assert not reaper.released(read, reaper.handle(controller.pid))
    # It was gone before there was a handle: its number says nothing any more.
    assert not reaper.released(read, None)

    os.close(read)
    os.close(write)


@pytest.mark.parametrize("healed", [True, False])
def test_the_watchdog_acts_unless_the_reaper_left_nothing(healed: bool, tmp_path: Path) -> None:
    (tmp_path / "undo").mkdir()
    if healed:
        reaper.healed(tmp_path).touch()
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait(30)
    words = [sys.executable, "-m", "cli.reaping.watchdog", "r", str(tmp_path), "docker"]
    log = tmp_path / "reaper.log"

    with subprocess.Popen(
        [*words, str(gone.pid), str(gone.pid)],
        stdin=subprocess.DEVNULL,
        env=os.environ | {"DOCKER_HOST": f"unix://{tmp_path}/none"},
    ) as watchdog:
        try:
            ends_s = time.monotonic() + 30
            while watchdog.poll() is None and not log.exists() and time.monotonic() < ends_s:
                time.sleep(0.05)  # another process acts: there is nothing to wait on
            assert watchdog.poll() == (0 if healed else None)
            assert log.exists() != healed
        finally:
            watchdog.kill()


def test_the_watchdog_leaves_no_addresses_of_nodes_that_are_gone(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.undo.mkdir()
    run.addresses.write_text("{}")
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait(30)
    words = [sys.executable, "-m", "cli.reaping.watchdog", "r", str(tmp_path), "process"]

    done = subprocess.run(
        [*words, str(gone.pid), str(gone.pid)], stdin=subprocess.DEVNULL, timeout=60, check=False
    )

    assert done.returncode == 0
    assert not run.addresses.exists()


def test_the_log_goes_to_no_file_that_a_link_leads_to_and_waits_for_no_pipe(
    tmp_path: Path,
) -> None:
    precious = tmp_path / "precious"
    precious.write_text("kept")
    for place, plant in (
        ("link", lambda path: path.symlink_to(precious)),
        ("hanging", lambda path: path.symlink_to(tmp_path / "nothing")),
        ("pipe", os.mkfifo),
    ):
        root = tmp_path / place
        root.mkdir()
        plant(root / reaper.LOG_FILE)

        reaper.teller(root)("nothing is left")

    assert precious.read_text() == "kept"
    assert not (tmp_path / "nothing").exists()

    for _ in range(2):
        reaper.teller(tmp_path)("nothing is left")
    lines = (tmp_path / reaper.LOG_FILE).read_text().splitlines()
    assert [line.split(" ", 1)[1] for line in lines] == ["nothing is left"] * 2
