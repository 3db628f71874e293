"""What a watcher of a run sees, on a terminal and in a log."""

from __future__ import annotations

import asyncio
import io
import re
import types

import pytest
from rich.console import Console

from cli.display import LiveDisplay, LoopTime, PlainDisplay, Tally, choose
from harness.history.records import OpType


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def plain() -> tuple[PlainDisplay, Clock, io.StringIO]:
    clock, stream = Clock(), io.StringIO()
    return PlainDisplay(stream, 30.0, clock), clock, stream


def test_a_log_gets_one_line_a_phase_and_one_every_five_seconds() -> None:
    display, clock, stream = plain()

    display.phase("drive")
    for second in range(11):
        clock.now_s = 100.0 + second
        for _ in range(20):
            display.completed(OpType.OK, None)
        display.completed(OpType.FAIL, "NO-LEADER")
        display.completed(OpType.FAIL, "TX-CONFLICT", conflict=True)
        display.completed(OpType.FAIL, "TX-CONFLICT", conflict=True)
        display.tick()

    assert stream.getvalue().splitlines() == [
        "[   0.0 s] drive for 30 s",
        "[   5.0 s] drive: 24 ok/s; 120 ok, 12 refused by conflict, 6 fail, 0 info; "
        "errors: NO-LEADER 6",
        "[  10.0 s] drive: 20 ok/s; 220 ok, 22 refused by conflict, 11 fail, 0 info; "
        "errors: NO-LEADER 11",
    ]


def test_a_simulation_is_told_in_its_own_time() -> None:
    """A second of the machine is ten of the loop's here; half of the drive is over."""
    clock, stream, axis = Clock(), io.StringIO(), LoopTime()
    display = PlainDisplay(stream, 30.0, clock, axis)
    loop = types.SimpleNamespace(time=lambda: (clock.now_s - 100.0) * 10)

    async def driven() -> None:
        asyncio.get_running_loop().time = loop.time  # type: ignore[method-assign]
        display.phase("drive")
        for tenth in range(16):
            clock.now_s = 100.0 + tenth / 10
            for _ in range(20):
                display.completed(OpType.OK, None)

    asyncio.run(driven())

    tally = display.tally
    assert (tally.left_s, tally.unit) == (15.0, "simulated s")
    assert tally.rate_per_s() == pytest.approx(20.0, rel=0.1)
    assert tally.elapsed_s == pytest.approx(1.5)
    assert "drive for 30 simulated s" in stream.getvalue()


def test_the_length_of_a_phase_is_told_to_a_tenth_although_time_passes_before_it_is_read() -> None:
    clock, stream = Clock(), io.StringIO()

    def passing() -> float:
        clock.now_s += 0.000_005
        return clock.now_s

    PlainDisplay(stream, 10.0, passing).phase("drive")

    assert stream.getvalue().endswith("] drive for 10 s\n")


def test_a_change_of_faults_is_said_once() -> None:
    display, _, stream = plain()

    for active in ((), ("kill n3",), ("kill n3",), ("kill n3", "partition n1"), ()):
        display.faults(active)

    assert [line.partition("] ")[2] for line in stream.getvalue().splitlines()] == [
        "faults in force: kill n3",
        "faults in force: kill n3, partition n1",
        "faults in force: none",
    ]


def test_a_phase_that_takes_long_says_that_it_still_goes_on() -> None:
    display, clock, stream = plain()
    display.phase("provision")

    clock.now_s += 6
    display.tick()

    assert stream.getvalue().splitlines()[-1] == "[   6.0 s] provision: still at it"


def test_what_nodes_say_cannot_act_on_a_terminal() -> None:
    display, _, stream = plain()

    display.note("\x1b[2J\r\nVALID: all is well\x07")
    display.completed(OpType.FAIL, "\x1b[31mred")
    display.faults(("\x1b]0;title\x07",))

    assert "\x1b" not in stream.getvalue()
    assert "\x07" not in stream.getvalue()
    assert len(stream.getvalue().splitlines()) == 2


def test_a_stream_that_nobody_reads_does_not_end_the_run() -> None:
    display, _, stream = plain()
    stream.close()

    display.phase("drive")
    display.note("still there")


def test_the_panel_shows_phase_rate_errors_and_faults_and_is_gone_at_the_end() -> None:
    clock = Clock()
    console = Console(file=Terminal(), width=100, force_terminal=True, color_system=None)
    with LiveDisplay(console, 30.0, clock) as display:
        display.phase("drive")
        display.render()
        clock.now_s += 2
        for _ in range(400):
            display.completed(OpType.OK, None)
        display.completed(OpType.INFO, "[bold]TIMEOUT[/]")
        for _ in range(37):
            display.completed(OpType.FAIL, "TX-CONFLICT", conflict=True)
        display.faults(("kill n3",))
        display.note("\x1b[2Jprovider process")
        with console.capture() as captured:
            console.print(display.render())

    shown = captured.get()
    for part in ("drive", "2 s, 28 s left", "200 ok/s", "400", "[bold]TIMEOUT[/] 1", "kill n3"):
        assert part in shown
    assert re.search(r"refused by conflict +37\b", shown)
    assert re.search(r"fail +0\b", shown)
    assert "\x1b[2J" not in shown
    assert "\\x1b[2Jprovider process" in shown


def test_error_codes_are_counted_up_to_a_limit() -> None:
    tally = Tally(30.0, Clock())

    for number in range(1000):
        tally.count(OpType.FAIL, f"CODE-{number}")

    assert len(tally.errors) == 201
    assert tally.errors["other"] == 800
    assert (
        tally.ended().commonest_text(4) == "other 800, CODE-0 1, CODE-1 1, CODE-10 1 and 197 more"
    )


@pytest.mark.parametrize(
    ("environment", "stream", "kind"),
    [
        ({}, Terminal(), LiveDisplay),
        ({"CI": "true"}, Terminal(), PlainDisplay),
        ({"TERM": "dumb"}, Terminal(), PlainDisplay),
        ({}, io.StringIO(), PlainDisplay),
    ],
)
def test_a_terminal_gets_the_panel_and_everything_else_lines(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], stream: io.StringIO, kind: type
) -> None:
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert isinstance(choose(stream, 30.0), kind)
