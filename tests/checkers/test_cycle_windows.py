"""A stretch of time without a place to cut, judged by windows, holds the cycles that it holds as a
whole, and no task holds more than a window or what is accused together.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from pathlib import Path

import attrs
import pyarrow as pa
import pytest
from checker_histories import Txn, a, ok, r, setting, source
from test_cycle_stretches import KERNELS, overlapping

from checkers.cycles.kernel import ByWindows
from checkers.engine import stages
from checkers.engine.analyze import judge
from checkers.engine.shuffle_files import ShuffleFiles
from checkers.engine.source import Source
from checkers.engine.spark import executor
from checkers.engine.spark.options import SparkOptions
from checkers.engine.spark.session import session
from checkers.engine.stretches import Grid
from checkers.lists.checker import CHECKER
from checkers.promises.lost_write import CHECKER as LOST_WRITE
from harness.history import schema
from harness.protocols.checker import Tables
from harness.protocols.promise import Declaration, Promise
from harness.protocols.setting import Setting
from harness.protocols.verdict import Verdict, encode
from harness.protocols.windows import MEMBERS, Window

UNTIMED, SESSION = "untimed", "session"
DECLARED = Declaration(
    system="paper",
    mode="SC",
    promises=(
        Promise(kind="read-write"),
        Promise(kind=UNTIMED, model="serializable", staleness_s=1.0),
        Promise(kind=SESSION, model="strong-session-serializable", staleness_s=1.0),
    ),
    transaction_scope="cluster",
)
KINDS = (("read-write",), ("read-write",) * 3 + (UNTIMED, SESSION), ("read-write", SESSION))
HISTORIES = int(os.environ.get("FIREDRILL_WINDOWED_HISTORIES", "24"))


def mixed(seed: int) -> list[Txn]:
    """Many open at once: of several kinds, some of unknown outcome, a few or many reads stale."""
    draw = random.Random(seed)
    clients, keys, size = draw.choice([3, 8, 25]), draw.choice([2, 5, 20]), draw.choice([60, 150])
    stale, unknown = draw.choice([0, 0.005, 0.03, 0.1]), draw.choice([0, 0.05, 0.2])
    kinds, longest = draw.choice(KINDS), draw.choice([12, 40])
    lists: dict[int, list[int]] = {key: [] for key in range(keys)}
    free, process = [0] * clients, list(range(clients))
    txns, now = [], 0
    for number in range(size):
        client = draw.randrange(clients)
        now = max(now + draw.randint(0, 3), free[client])
        finish = now + draw.randint(1, longest if draw.random() < 0.9 else 5 * longest)
        free[client] = finish + draw.choice([0, 1])
        kind, ops = draw.choice(kinds), []
        for key in draw.sample(range(keys), draw.randint(1, 2)):
            if draw.random() < 0.5 and kind == "read-write":
                lists[key].append(number)
                ops.append(a(key, number))
            else:
                late = draw.random() < (stale if kind == "read-write" else 0.3)
                ops.append(r(key, *lists[key][: len(lists[key]) - late * draw.randint(1, 4)]))
        type_ = "info" if draw.random() < unknown else "ok"
        txns.append(Txn(type_, ops, process[client], now, finish, kind=kind))
        process[client] += 1000 * (type_ == "info")
    return sorted(txns, key=lambda txn: txn.start or 0)


def verdict_of(
    history: Source, executor: str = "local", options: SparkOptions | None = None
) -> Verdict:
    return judge(
        history,
        setting=setting(declaration=DECLARED),
        checkers=(CHECKER, LOST_WRITE),
        faults=schema.FAULTS.empty_table(),
        events=schema.EVENTS.empty_table(),
        executor=executor,
        spark=options or SparkOptions(),
    ).verdict


def by_windows(monkeypatch: pytest.MonkeyPatch, stretch: int) -> None:
    """Have both executors judge all that is longer than ``stretch`` by windows."""

    def made(directory: Path, **_: object) -> ShuffleFiles:
        return ShuffleFiles(directory=directory, grid=Grid(length=stretch, most=stretch))

    for made_by in (stages, executor):
        monkeypatch.setattr(made_by, "ShuffleFiles", made)


def stages_of(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each stage was gone through from now on."""
    seen: Counter[str] = Counter()
    whole = stages._stage

    def counting(*given: object) -> object:
        seen[str(given[-1])] += 1
        return whole(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(stages, "_stage", counting)
    return seen


@pytest.mark.parametrize("stretch", [3, 20])
def test_windows_lose_and_make_no_cycle(stretch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    without = several = 0
    for seed in range(30):
        history = source(mixed(seed), splits=1 + seed % 3)
        with monkeypatch.context() as patch:
            whole = verdict_of(history)
            by_windows(patch, stretch)
            seen = stages_of(patch)
            assert encode(verdict_of(history)) == encode(whole), seed
        without += seen["CONTRACT"] > 0 and seen["WINDOW"] == 0
        several += seen["COMPONENT"]
    assert several > 10
    assert without


def test_no_step_is_given_more_than_a_window_where_nothing_is_accused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[int] = []
    draw = random.Random(5)
    txns = [txn for txn in overlapping(2, size=400, clients=30) if txn.type == "ok"]
    # Effects in an order that each interval allows, and not in that of invocations.
    effects = [draw.uniform(txn.start or 0, txn.finish or 0) for txn in txns]
    shown: dict[int, list[int]] = {key: [] for key in range(3)}
    for n in sorted(range(len(txns)), key=effects.__getitem__):
        ops = []
        for f, key, value in txns[n].ops:
            shown[key] += [value] if f == "append" else []
            ops.append((f, key, value if f == "append" else list(shown[key])))
        txns[n] = attrs.evolve(txns[n], ops=ops)

    @attrs.frozen
    class Watched(ByWindows):
        def contract(self, tables: Tables, setting: Setting, window: Window) -> dict[str, pa.Table]:
            given.append(tables["transactions"].num_rows)
            return super().contract(tables, setting, window)

    *others, cycles = KERNELS
    chain = (*others, attrs.evolve(cycles, windows=Watched()))
    # As if nothing could be cut: a healthy history that is short has places enough.
    monkeypatch.setattr(Grid, "_cuts", lambda *_: [])
    seen = stages_of(monkeypatch)
    found = stages.run_in_process(chain, source(txns), setting(), stretch=25)

    assert not found.broken
    assert len(given) == -(-len(txns) // 25)
    assert max(given) == 25
    assert seen["WINDOW"] == seen["COMPONENT"] == 0
    assert found.tables["cycles.counts"].num_rows == 0


def test_a_cycle_over_distant_windows_is_found_and_judged_without_what_lies_between(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    stale = ok(r(1), start=1000, finish=1001, process=9)
    long = ok(a(3, 0), start=0, finish=2000, process=7)
    txns = [long, ok(a(1, 1), start=1, finish=2, process=8)]
    for n in range(1, 90):
        txns.append(ok(a(2, n), r(1, 1), start=10 * n, finish=10 * n + 5, process=n % 3))
    txns += [stale, ok(r(2, *range(1, 90)), r(3, 0), start=1100, finish=2100, process=3)]
    *others, cycles = KERNELS

    def counting(tables: Tables, asked: Setting) -> Tables:
        sizes.append(tables["transactions"].num_rows)
        return cycles.run(tables, asked)

    chain = (*others, attrs.evolve(cycles, run=counting))
    found = stages.run_in_process(chain, source(txns), setting(), stretch=5)

    # Reads that show the append are before the stale one in time, and so is the append.
    assert dict(zip(*found.tables["cycles.counts"].to_pydict().values(), strict=True)) == {
        "G-single-item-realtime": 1
    }
    assert 2 <= max(sizes) <= 92
    assert MEMBERS not in found.tables


@pytest.mark.spark
def test_windows_on_spark_give_the_bytes_of_one_process(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = SparkOptions(master="local[2]")
    violations = 0
    with session(options, tmp_path):
        seen = stages_of(monkeypatch)
        for seed in range(HISTORIES):
            history = source(mixed(seed), splits=1 + seed % 3)
            whole = encode(verdict_of(history))
            with monkeypatch.context() as patch:
                by_windows(patch, 1 + seed % 40)
                assert encode(verdict_of(history)) == whole, seed
                assert encode(verdict_of(history, "spark", options)) == whole, seed
            violations += b'"violation"' in whole
    assert seen["COMPONENT"] > HISTORIES // 2
    assert HISTORIES // 4 < violations < HISTORIES
