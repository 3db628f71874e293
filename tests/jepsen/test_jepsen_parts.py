"""A file that is read in parts, side by side, gives what it gives when it is read as one."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jepsen_files import Op, edn_lines, generated, json_lines, register, small, timed, txn, write

from harness.errors import HarnessError, MalformedHistory, UsageError
from harness.history.layout import KEYS_FILE
from harness.history.run_directory import RunDirectory
from harness.importers.jepsen import imported_history, parallel_reader
from harness.importers.jepsen.imported_history import ImportedHistory, read_jepsen
from harness.importers.jepsen.pairing import Pairing

LAYOUTS = (json_lines, edn_lines)
NEMESIS: Op = {"type": "info", "f": "start-partition", "value": None, "process": "nemesis"}


class Taken:
    """Counts the parts that are taken."""

    def __init__(self) -> None:
        self.count = 0


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    found, take = Taken(), Pairing.take

    def counted(pairing: Pairing, *args: Any) -> bool:
        done = take(pairing, *args)
        found.count += done
        return done

    monkeypatch.setattr(Pairing, "take", counted)
    # What was looked at, to tell the format, is behind no cut: as if it were a line.
    monkeypatch.setattr("harness.importers.jepsen.reader.BLOCK_BYTES", 128)
    return found


def told(path: Path, cores: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """All that the history in ``path`` comes to, or how it is refused."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(cores)))
    monkeypatch.setattr(parallel_reader, "LEAST_BYTES", 128)
    try:
        history = read_jepsen(path)
    except (MalformedHistory, UsageError) as error:
        return str(error)
    return contents(history)


def contents(history: ImportedHistory) -> dict[str, Any]:
    tables = {
        name: getattr(history, name)().to_pylist()
        for name in ("transactions", "micro_ops", "notes", "faults")
    }
    counts = {n: getattr(history, n) for n in ("operations", "remarks", "incomplete", "real_time")}
    return {**tables, **counts, "keys": history.keys.to_pylist(), "manifest": history.manifest}


def same(path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What two to five cores, and one, make of ``path``."""
    whole = told(path, 1, monkeypatch)
    for cores in range(2, 6):
        assert told(path, cores, monkeypatch) == whole, cores
    return whole


def banks(count: int) -> list[Op]:
    moved = {"from": 1, "to": 0, "amount": 3}
    found: list[Op] = []
    for number in range(count):
        balances = {"0": 10 + 3 * number, "1": 90 - 3 * number}
        found += [
            {"type": "invoke", "f": "transfer", "value": moved, "process": 1},
            {"type": "invoke", "f": "read", "value": None, "process": 2},
            {"type": "ok", "f": "read", "value": balances, "process": 2},
            {"type": "ok", "f": "transfer", "value": moved, "process": 1},
        ]
    return found


def registers(count: int) -> list[Op]:
    found: list[Op] = []
    for number in range(count):
        found += [
            register("invoke", 1, "write", number),
            register("invoke", 0, "read", None),
            register("ok", 1, "write", number),
            register("ok", 0, "read", number),
        ]
    return found


def with_names(ops: list[Op]) -> list[Op]:
    """Every third key is a word, others come first in later parts."""
    for op in ops:
        op["value"] = [[f, f"k{key}" if key % 3 == 0 else key, v] for f, key, v in op["value"]]
    return ops


def with_nemesis(ops: list[Op]) -> list[Op]:
    for place in range(0, len(ops), 11):
        ops.insert(place, dict(NEMESIS))
    return ops


HISTORIES: dict[str, Callable[[], list[Op]]] = {
    "lists": lambda: generated(60),
    "lists without indices": lambda: [
        {k: v for k, v in op.items() if k not in ("index", "time")} for op in generated(60)
    ],
    "named keys": lambda: with_names(generated(60)),
    "a nemesis": lambda: timed(with_nemesis(generated(60))),
    "open to the end": lambda: [txn("invoke", 99, [["append", 77, 1]]), *generated(30)][:-7],
    "errors": lambda: [
        op | ({"error": f"code {n % 5}"} if op["type"] == "fail" else {})
        for n, op in enumerate(generated(60))
    ],
    "registers": lambda: registers(20),
    "a bank": lambda: banks(12),
}


@pytest.mark.parametrize("name", HISTORIES)
def test_any_number_of_parts_is_the_whole(
    name: str, taken: Taken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = HISTORIES[name]()
    if name == "open to the end":
        ops = timed(ops)
    layouts = LAYOUTS if name != "a bank" else (json_lines,)  # the names of accounts are texts
    for layout in layouts:
        found = same(write(tmp_path, layout(ops)), monkeypatch)

        assert isinstance(found, dict), found
    # One part, and two, three and four, each of which follows from those before it.
    assert taken.count == len(layouts) * (1 + 2 + 3 + 4)


NO_UTF8 = "\udcff"


def damaged(lines: list[str], at: int, draw: random.Random) -> list[str]:
    """``lines`` of which number ``at`` is gone, comes twice, or says something else."""
    what = draw.choice(("gone", "twice", "process", "type", "index", "text", "register", "byte"))
    line = lines[at]
    other = {
        "gone": [],
        "twice": [line, line],
        "process": [line.replace('"process": ', '"process": 1').replace(":process ", ":process 1")],
        "type": [line.replace("ok", "fail") if "ok" in line else line.replace("invoke", "ok")],
        "index": [line.replace('"index": ', '"index": 9').replace(":index ", ":index 9")],
        "text": [line[: len(line) // 2]],
        "register": [line.replace('"append"', '"w"').replace(":append", ":w")],
        "byte": [line[: len(line) // 2] + NO_UTF8 + line[len(line) // 2 :]],
    }[what]
    return [*lines[:at], *other, *lines[at + 1 :]]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_wrong_is_refused_in_the_same_words(
    layout: Callable[[list[Op]], str],
    taken: Taken,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Some of what was added is turned into columns before the end, as of a long file.
    monkeypatch.setattr("harness.importers.jepsen.pairing.STAGED_OPERATIONS", 8)
    draw, refused = random.Random(5), set()
    for number in range(120):
        lines = layout(generated(25)).splitlines(keepends=True)
        last = draw.randrange(len(lines))
        lines = damaged(lines, last, draw)
        # Every other file has a second mistake before it.
        if number % 2:
            lines = damaged(lines, max(0, last - draw.randint(1, 12)), draw)
        path = tmp_path / "history"
        path.write_bytes("".join(lines).encode(errors="surrogateescape"))
        whole = told(path, 1, monkeypatch)
        for cores in (2, 3, 4):
            assert told(path, cores, monkeypatch) == whole
        if isinstance(whole, str):
            refused.add(whole)
    assert len(refused) > 30
    assert taken.count > 100


def test_an_element_appended_again_and_again_is_told_by_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first invocation completes last: in no part is its completion where its line is."""
    again = [["append", 1007, 5]]
    ops = [{k: v for k, v in op.items() if k not in ("index", "time")} for op in generated(60)]
    for process, place in ((91, 70), (92, 40)):
        ops[place:place] = [txn("invoke", process, again), txn("ok", process, again)]
    ops = [txn("invoke", 90, again), *ops, txn("ok", 90, again)]
    at = [n for n, op in enumerate(ops, 1) if op["value"] == again and op["type"] == "invoke"]

    found = same(write(tmp_path, json_lines(ops)), monkeypatch)

    assert f"line {at[1]}: element 5 is appended to key 1007 again (first on line {at[0]})" in found


def test_a_machine_without_another_process_reads_the_file_alone(
    taken: Taken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, json_lines(generated(60)))
    whole, forks = told(path, 1, monkeypatch), iter((True, False, False, False))
    fork = os.fork

    def refused() -> int:
        if next(forks):
            return fork()
        raise BlockingIOError(11, os.strerror(11))

    monkeypatch.setattr(os, "fork", refused)

    assert told(path, 4, monkeypatch) == whole
    assert taken.count == 1


def test_an_operation_of_several_lines_is_never_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.importers.jepsen.reader.BLOCK_BYTES", 128)
    lines = edn_lines(generated(30)).replace(", ", ",\n  ").splitlines(keepends=True)
    for before in (["; a word\n"], [], ["#_\n"]):
        path = write(tmp_path, "".join([*lines[: len(lines) // 2], *before, *lines]))
        same(path, monkeypatch)
    same(write(tmp_path, "".join(lines)), monkeypatch)


def test_a_vector_and_a_preface_have_no_parts(
    taken: Taken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = edn_lines(generated(30))
    for whole in (f"[{text}]", f"({text})", f"; of the night\n{text}"):
        assert isinstance(same(write(tmp_path, whole), monkeypatch), dict)
    assert taken.count == 0


def test_a_worker_that_dies_is_done_without(
    taken: Taken, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, json_lines(generated(40)))
    whole = told(path, 1, monkeypatch)
    monkeypatch.setattr(parallel_reader, "_read", lambda *_: os.kill(os.getpid(), signal.SIGKILL))

    assert told(path, 3, monkeypatch) == whole
    assert taken.count == 0


def test_a_small_file_starts_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(64)))
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a process for a few bytes"))

    assert read_jepsen(write(tmp_path, json_lines(small()))).operations == len(small())


def test_a_part_whose_reader_hangs_is_read_without_it(
    tmp_path: Path, taken: Taken, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, json_lines(generated(60)))
    whole = told(path, 1, monkeypatch)
    monkeypatch.setattr(parallel_reader, "_read", lambda *_: signal.pause())
    monkeypatch.setattr(parallel_reader, "LIMIT_S", 0.1)

    assert told(path, 2, monkeypatch) == whole
    assert taken.count == 0


def test_names_of_keys_are_written_into_the_run_whatever_its_directory_becomes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that is planted between the making of the file and the writing into it."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = RunDirectory(tmp_path / "run")
    write_table = imported_history.pq.write_table

    def planted(table: Any, where: object, **options: Any) -> None:
        run.history.rename(tmp_path / "moved")
        run.history.symlink_to(elsewhere)
        write_table(table, where, **options)

    monkeypatch.setattr(imported_history.pq, "write_table", planted)
    path = write(tmp_path, json_lines(with_names(generated(10))))
    with pytest.raises((HarnessError, MalformedHistory)):
        imported_history.import_run(path, run)

    assert list(elsewhere.iterdir()) == []
    assert (tmp_path / "moved" / KEYS_FILE).is_file()
