"""The pool: each cell in a process of its own, its end a result, the results in order."""

from __future__ import annotations

import ctypes
import itertools
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import attrs
import msgspec
import pytest

from harness.campaigns.cell import Cell, CellResult, result_of, simulated_cell
from harness.campaigns.ledger import Ledger
from harness.campaigns.pool import (
    RESULT_MAX_BYTES,
    Choose,
    Pool,
    RunStarted,
    in_this_process,
    in_turn,
)
from harness.clock import machine_s
from harness.errors import HarnessBug
from harness.exit_codes import Outcome
from harness.plan.plan import Plan

HANGS_S = 60.0
LIMIT_S = 30.0  # of what ends by itself: a machine with other work to do


def cell(seed: int, **more: object) -> Cell:
    plan = msgspec.convert({"seed": seed}, Plan)
    return Cell(plan=plan, **({"limit_s": LIMIT_S} | more))  # type: ignore[arg-type]


def cells(*seeds: int) -> list[Cell]:
    return [cell(seed) for seed in seeds]


def valid(given: Cell, _begun: RunStarted) -> CellResult:
    return result_of(given, Outcome.VALID)


def wait_for(path: Path) -> None:
    """Block until ``path`` exists, as a worker does that has to end after another one."""
    ends_s = time.monotonic() + LIMIT_S
    while not path.exists():
        assert time.monotonic() < ends_s
        select.select([], [], [], 0.005)


def seeds_of(results: Iterator[CellResult]) -> list[int]:
    return [result.seed for result in results]


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_results_come_in_the_order_of_the_cells_whichever_ends_first(
    workers: int, tmp_path: Path
) -> None:
    def backwards(given: Cell, _begun: RunStarted) -> CellResult:
        seed = given.plan.seed
        if workers > 1 and seed % 2 == 0:
            wait_for(tmp_path / str(seed + 1))
        return result_of(given, Outcome.VALID)

    ended: list[int] = []

    class Watched(Ledger):
        def add(self, result: CellResult) -> None:
            ended.append(result.seed)
            (tmp_path / str(result.seed)).touch()
            super().add(result)

    pool = Pool(work=backwards, workers=workers)
    found = seeds_of(pool.results(in_turn(cells(0, 1, 2, 3)), Watched()))

    assert found == [0, 1, 2, 3]
    assert sorted(ended) == found
    assert (ended == found) == (workers == 1)  # the ledger has each as soon as it has ended


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_search_that_chooses_from_results_chooses_the_same_whatever_the_number_of_workers(
    workers: int,
) -> None:
    heard: list[int] = []
    chosen: list[tuple[int, int]] = []

    def choose() -> Cell | None:
        if len(chosen) == 12:
            return None
        seed = 100 * len(chosen) + sum(heard) % 97
        chosen.append((seed, len(heard)))
        return cell(seed)

    pool = Pool(work=valid, workers=workers, ahead=3)
    for result in pool.results(choose):
        heard.append(result.seed)

    assert [known for _, known in chosen] == [0, 0, 0, *range(1, 10)]
    assert heard == [seed for seed, _ in chosen]


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_search_without_an_idea_is_asked_again_after_the_next_result_and_not_before(
    workers: int, tmp_path: Path
) -> None:
    ideas = [cell(1), cell(2), None, cell(3), None, None, cell(4)]
    answers = itertools.chain(ideas, itertools.repeat(None))
    asked: list[int] = []
    heard: list[int] = []

    def choose() -> Cell | None:
        asked.append(len(heard))
        return next(answers)

    def backwards(given: Cell, begun: RunStarted) -> CellResult:
        if workers > 1 and given.plan.seed == 1:
            wait_for(tmp_path / "2")
        return valid(given, begun)

    class Watched(Ledger):
        def add(self, result: CellResult) -> None:
            (tmp_path / str(result.seed)).touch()
            super().add(result)

    pool = Pool(work=backwards, workers=workers)
    for result in pool.results(choose, Watched()):
        heard.append(result.seed)

    assert heard == [1, 2, 3, 4]
    assert asked == [0, 0, 0, 1, 1, 2, 3, 3, 4]


def test_what_is_in_the_ledger_is_not_run_and_what_is_chosen_twice_is_run_once(
    tmp_path: Path,
) -> None:
    def marked(given: Cell, _begun: RunStarted) -> CellResult:
        with (tmp_path / "runs").open("a") as file:
            file.write(f"{given.plan.seed}\n")
        return result_of(given, Outcome.VALID)

    ledger = Ledger()
    ledger.add(result_of(cell(1), Outcome.VIOLATION, ("known",)))
    pool = Pool(work=marked, workers=2)
    found = list(pool.results(in_turn(cells(2, 1, 2, 3, 2)), ledger))

    assert [(r.seed, r.outcome) for r in found] == [
        (seed, Outcome.VIOLATION if seed == 1 else Outcome.VALID) for seed in (2, 1, 2, 3, 2)
    ]
    assert sorted((tmp_path / "runs").read_text().split()) == ["2", "3"]


def test_a_repetition_or_an_option_makes_another_cell_and_a_limit_does_not() -> None:
    keys = {
        cell(1).key,
        cell(2).key,
        cell(1, repetition=1).key,
        cell(1, options={"mutant": "7"}).key,
        cell(1, options={"mutant": "8"}).key,
    }

    assert len(keys) == 5
    assert cell(1, limit_s=3.0).key == cell(1).key


def dying(given: Cell, begun: RunStarted) -> CellResult:
    """Come to no good end, in the way that the seed says."""
    match given.plan.seed:
        case 1:
            os._exit(9)
        case 2:
            select.select([], [], [], HANGS_S)
        case 3:
            raise ValueError("no more")
        case 4:
            ctypes.string_at(0)
        case 5:
            os.write(2, b"out of luck\n")
            os.kill(os.getpid(), signal.SIGKILL)
        case 6:
            return result_of(given, Outcome.VALID, coverage=bytes(RESULT_MAX_BYTES))
        case 7:
            bytearray(1 << 40)
        case 8:
            sys.exit("of its own will")
    return result_of(given, Outcome.VALID)


def test_a_worker_that_dies_or_does_not_end_is_one_failed_cell_with_its_last_words(
    capfd: pytest.CaptureFixture[str],
) -> None:
    # More than this process may have by now, which a worker is a fork of.
    pool = Pool(work=dying, workers=3, memory_bytes=1 << 32)
    given = [cell(seed, limit_s=1.0 if seed == 2 else LIMIT_S) for seed in range(1, 10)]
    found = {result.seed: result for result in pool.results(in_turn(given))}

    assert found.pop(9).outcome is Outcome.VALID
    assert {result.outcome for result in found.values()} == {Outcome.HARNESS_ERROR}
    assert not any(result.judged for result in found.values())
    said = {seed: result.reasons[0] for seed, result in found.items()}
    assert said.pop(4).startswith("it died (signal 11): Fatal Python error: Segmentation fault")
    assert said == {
        1: "it died (exit code 9)",
        2: "no end within 1 s",
        3: "ValueError: no more",
        5: "it died (signal 9): out of luck",
        6: f"its result has more than {RESULT_MAX_BYTES} bytes",
        7: "it needs more memory than the 4096 MiB of a worker",
        8: "it died (exit code 1): SystemExit: of its own will",
    }
    assert "out of luck\n" in capfd.readouterr().err  # what workers say is shown, too


def warning(given: Cell, begun: RunStarted) -> CellResult:
    os.write(2, b"node: ")
    os.write(2, b"x\n:")
    os.write(2, b":stop-commands::t\n\nlast\r::error::")
    return result_of(given, Outcome.VALID)


def test_what_a_worker_says_is_no_command_to_a_ci(capfd: pytest.CaptureFixture[str]) -> None:
    (found,) = Pool(work=warning, workers=1).results(in_turn([cell(1)]))

    assert found.outcome is Outcome.VALID
    assert capfd.readouterr().err == "node: x\n\\x3a:stop-commands::t\n\nlast\r\\x3a:error::"


def spinning_or_waiting(given: Cell, begun: RunStarted) -> CellResult:
    if given.plan.seed == 1:
        while True:
            pass
    if given.plan.seed == 2:
        signal.pause()
    return result_of(given, Outcome.VALID)


def test_a_simulated_cell_may_take_seconds_of_a_core_and_wait_ten_times_as_long() -> None:
    waits = attrs.evolve(simulated_cell(cell(2).plan, limit_s=1.0), limit_s=0.5)
    given = [simulated_cell(cell(1).plan, limit_s=1.0), waits, simulated_cell(cell(3).plan)]
    spun, waited, usual = Pool(work=spinning_or_waiting, workers=1).results(in_turn(given))

    assert given[0].limit_s == 10.0
    assert spun.reasons == ("no end within 1 s of a core",)
    assert waited.reasons == ("no end within 0.5 s",)
    assert usual.outcome is Outcome.VALID


def test_a_worker_says_where_its_run_lies_also_when_it_dies(tmp_path: Path) -> None:
    def broken(given: Cell, begun: RunStarted) -> CellResult:
        run = tmp_path / str(given.plan.seed)
        if given.plan.seed < 3:
            run.mkdir()
        begun(run)
        if given.plan.seed == 1:
            os._exit(1)
        raise ValueError("no more")

    pool = Pool(work=broken, workers=2)
    found = [result.run for result in pool.results(in_turn(cells(1, 2, 3)))]

    assert found == [str(tmp_path / "1"), str(tmp_path / "2"), ""]  # the third was removed


def test_a_map_of_what_was_reached_comes_with_the_result() -> None:
    reached = bytes(range(256)) * 32

    def mapped(given: Cell, _begun: RunStarted) -> CellResult:
        return result_of(given, Outcome.VALID, coverage=reached)

    (found,) = Pool(work=mapped).results(in_turn(cells(1)))
    assert found.coverage == reached


def test_a_result_of_another_cell_is_a_bug_of_ours() -> None:
    pool = Pool(work=lambda _cell, begun: valid(cell(2), begun))

    with pytest.raises(HarnessBug, match=cell(1).key):
        list(pool.results(in_turn(cells(1))))


def test_no_cell_begins_after_the_time_is_over_and_known_ones_are_still_told() -> None:
    ledger = Ledger()
    ledger.add(result_of(cell(1), Outcome.VALID))
    pool = Pool(work=valid, workers=1)
    over = pool.results(in_turn(cells(2, 1, 3)), ledger, begin_until_s=machine_s())

    assert seeds_of(over) == [1]
    assert set(ledger.known) == {cell(1).key}


def hanging(pids: Path, given: Cell) -> CellResult:
    """Return at once for seed 0, otherwise hang; seed 2 does not listen to a request to end."""
    if given.plan.seed == 2:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    (pids / f"{given.plan.seed}.part").write_text(str(os.getpid()))
    (pids / f"{given.plan.seed}.part").rename(pids / str(given.plan.seed))
    if given.plan.seed:
        select.select([], [], [], HANGS_S)
    wait_for(pids / "2")
    return result_of(given, Outcome.VALID)


def gone(pids: Path) -> bool:
    for path in pids.iterdir():
        try:
            os.kill(int(path.read_text()), 0)
        except ProcessLookupError:
            continue
        return False
    return True


def test_closing_a_campaign_ends_its_workers_within_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.campaigns.pool.GRACE_S", 0.2)
    pool = Pool(work=lambda given, _: hanging(tmp_path, given), workers=3)
    with closing(pool.results(in_turn(cells(0, 1, 2)))) as found:
        assert next(found).seed == 0

    assert len(list(tmp_path.iterdir())) >= 2
    assert gone(tmp_path)


PROGRAM = """
    import os, signal, sys
    from pathlib import Path
    sys.path.insert(0, {tests!r})
    from test_pool import Pool, cells, hanging, in_turn

    def interrupt(number, frame):
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        for result in Pool(work=lambda c, _: hanging(Path({pids!r}), c), workers=2).results(
            in_turn(cells(1, 3, 5))
        ):
            pass
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_command_that_is_ended_leaves_no_worker(number: signal.Signals, tmp_path: Path) -> None:
    text = textwrap.dedent(PROGRAM).format(tests=str(Path(__file__).parent), pids=str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", text]) as command:
        wait_for(tmp_path / "1")
        wait_for(tmp_path / "3")
        workers = [os.pidfd_open(int((tmp_path / name).read_text())) for name in ("1", "3")]
        command.send_signal(number)
        assert command.wait(LIMIT_S) == (-9 if number == signal.SIGKILL else 130)

    for worker in workers:
        waiting = select.poll()
        waiting.register(worker, select.POLLIN)
        assert waiting.poll(LIMIT_S * 1000), "a worker lives on"
        os.close(worker)
    assert not (tmp_path / "5").exists()


def test_in_this_process_each_cell_is_chosen_when_the_one_before_was_told() -> None:
    told: list[str] = []

    def choose() -> Cell | None:
        told.append("choose")
        return cell(len(told)) if len(told) < 6 else None

    def work(given: Cell, begun: RunStarted) -> CellResult:
        told.append("work")
        return valid(given, begun)

    waiting: Choose = choose
    for _ in in_this_process(work, waiting):
        told.append("result")

    assert told == [*["choose", "work", "result"] * 2, "choose"]
