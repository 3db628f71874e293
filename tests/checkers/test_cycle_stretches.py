"""A history cut into stretches holds the cycles that it holds as a whole."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import attrs
import numpy as np
import pyarrow as pa
import pytest
from checker_generator import generate
from checker_histories import Txn, a, info, ok, r, setting, source

from checkers.cycles.backward_edges import leads_back, readers_before
from checkers.cycles.dependencies import EDGES, TAILS
from checkers.cycles.graph import tails_of
from checkers.engine import kernel_output, stages
from checkers.engine.arrays import Ints
from checkers.engine.kernel_output import SIDE_BY_SIDE, KernelOutput
from checkers.engine.shuffle_files import ShuffleFiles
from checkers.engine.stretches import BACK_TABLE, WINDOW, Grid, begins_in_order
from checkers.engine.work import Work
from checkers.lists.checker import CHECKER
from checkers.promises.statistics import CHECKER as STATISTICS
from harness.errors import HarnessError
from harness.protocols.checker import Exchange, Kernel, Tables
from harness.protocols.setting import Setting
from harness.protocols.verdict import Anomaly

KERNELS = tuple(k for k in CHECKER.kernels if k.exchange is not Exchange.ONE_PLACE)


def overlapping(seed: int, size: int = 60, clients: int = 8) -> list[Txn]:
    """Many open at once on few keys: executions of a store with stale or reordered reads."""
    draw = random.Random(seed)
    lists: dict[int, list[int]] = {key: [] for key in range(3)}
    free = [0] * clients
    txns, now = [], 0
    for number in range(size):
        client = draw.randrange(clients)
        now = max(now + draw.randint(0, 3), free[client])
        finish = now + draw.randint(1, 12 if draw.random() < 0.9 else 60)
        free[client] = finish + 1
        ops = []
        for key in draw.sample(range(3), draw.randint(1, 2)):
            if draw.random() < 0.5:
                lists[key].append(number)
                ops.append(a(key, number))
            else:
                back = draw.randint(1, 4) if draw.random() < 0.1 else 0
                ops.append(r(key, *lists[key][: max(0, len(lists[key]) - back)]))
        type_ = "info" if draw.random() < 0.05 else "ok"
        txn = Txn(type_, ops, process=client, start=now, finish=finish)
        txns.append(attrs.evolve(txn, process=100 + number) if type_ == "info" else txn)
    return sorted(txns, key=lambda txn: txn.start or 0)


def judged(txns: list[Txn], stretch: int, splits: int = 3) -> tuple[dict[str, Anomaly], int]:
    """The anomalies, and in how many stretches they were looked for."""
    searched = 0

    def counting(tables: Tables, asked: Setting) -> Tables:
        nonlocal searched
        searched += tables["transactions"].num_rows > 0
        return cycles.run(tables, asked)

    *others, cycles = KERNELS
    chain = (*others, attrs.evolve(cycles, run=counting))
    history = source(txns, splits=splits)
    given = stages.run_in_process(chain, history, setting(), stretch=stretch)
    assert not given.broken
    tables = {"transactions": history.transactions, **given.tables}
    tables |= {"faults": pa.table({}), "events": pa.table({})}
    last = kernel_output.apply(
        kernel_output.of(CHECKER.kernels, Exchange.ONE_PLACE), tables, setting()
    )
    no_faults = {"faults": pa.table({"fault": pa.array([], pa.int64())})}
    part = CHECKER.judge({**tables, **last.tables, **no_faults}, setting(), history)
    return dict(part.anomalies), searched


@pytest.mark.parametrize("stretch", [1, 2, 7])
def test_no_cycle_is_lost_or_made_by_cutting(stretch: int) -> None:
    cyclic = cut = 0
    for seed in range(60):
        txns = generate(seed) if seed % 2 else overlapping(seed)
        whole, _ = judged(txns, 10**6)
        parts, searched = judged(txns, stretch)
        assert parts == whole, seed
        cyclic += any(finding.cycle for found in whole.values() for finding in found.examples)
        cut += searched > 1
    assert cyclic > 20
    assert cut > 10


def test_a_stretch_whose_order_nothing_contradicts_is_not_searched() -> None:
    serial = [ok(a(1, n), start=10 * n, finish=10 * n + 5) for n in range(1, 9)]
    serial.append(ok(r(1, *range(1, 9)), start=100, finish=105))
    assert judged(serial, 2)[1] == 0
    # The last append is shown by a read that ended before it began.
    wrong = [ok(r(1, *range(1, 9)), start=70, finish=75), *serial[7:]]
    anomalies, searched = judged([*serial[:6], *wrong], 2)
    assert anomalies
    assert searched == 1


@pytest.mark.parametrize("kernels", [KERNELS, (*KERNELS, *STATISTICS.kernels)])
def test_splits_and_stretches_side_by_side_give_the_same(
    monkeypatch: pytest.MonkeyPatch, kernels: tuple[Kernel, ...]
) -> None:
    entered: list[str] = []
    threads: set[int] = set()

    def told(work: Work, number: int) -> KernelOutput:
        threads.add(threading.get_ident())
        return work(number)

    monkeypatch.setattr(stages, "_told", told)
    token = kernel_output.ENTERING.set(entered.append)
    try:
        history = source(overlapping(4, size=400), splits=7)
        alone = stages.run_in_process(kernels, history, setting(), stretch=20)
        assert threads == {threading.get_ident()}
        by_name, here = Counter(entered), threads.copy()
        entered.clear()
        monkeypatch.setattr(stages, "LONG", 0)
        together = stages.run_in_process(kernels, history, setting(), stretch=20)
    finally:
        kernel_output.ENTERING.reset(token)
    assert threads - here
    assert alone.tables.keys() == together.tables.keys()
    for name, table_ in alone.tables.items():
        assert together.tables[name].equals(table_), name
    # Which of several it is can't be told.
    of_key = [k.name for k in kernels if k.exchange is Exchange.KEY]
    assert SIDE_BY_SIDE in entered if len(of_key) > 1 else Counter(entered) == by_name
    assert len(of_key) == 1 or not set(of_key) & set(entered)


def test_what_lacks_memory_beside_another_is_judged_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    here = threading.get_ident()

    def run(tables: Tables, setting: Setting) -> Tables:
        if threading.get_ident() != here:
            raise MemoryError
        return {"own.rows": pa.table({"n": [1]})}

    monkeypatch.setattr(stages, "LONG", 0)
    hungry = Kernel(name="own", exchange=Exchange.KEY, run=run)
    found = stages.run_in_process((hungry,), source(overlapping(4, size=40), splits=2), setting())

    assert found.broken == {}
    assert found.tables["own.rows"].num_rows == 2


def test_what_lacks_memory_as_it_looks_where_to_cut_is_judged_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = threading.get_ident()

    def made(tables: Tables, setting: Setting) -> Tables:
        return {"own.edges": pa.table({"source": pa.array([3, 7]), "target": pa.array([1, 8])})}

    def leads_back(tables: Tables) -> tuple[Ints, Ints]:
        if threading.get_ident() != here:
            raise MemoryError
        return np.array([3]), np.array([1])

    def judged(tables: Tables, setting: Setting) -> Tables:
        return {"own.rows": tables["own.edges"]}

    monkeypatch.setattr(stages, "LONG", 0)
    takes = {"own.edges": ("source", "target")}
    kernels = (
        Kernel(name="own", exchange=Exchange.KEY, run=made),
        Kernel(
            name="hungry", exchange=Exchange.STRETCH, run=judged, takes=takes, leads_back=leads_back
        ),
    )
    found = stages.run_in_process(kernels, source(overlapping(4, size=40), splits=2), setting())

    assert found.broken == {}
    assert found.tables["own.rows"].num_rows == 4


def table(rows: list[tuple[int, int]]) -> pa.Table:
    columns = [[0] * len(rows), *map(list, zip(*rows, strict=True))] if rows else [[], [], []]
    arrays = [*columns, [1] * len(rows), [1] * len(rows), [True] * len(rows)]
    return pa.table([pa.array(c, f.type) for c, f in zip(arrays, EDGES, strict=True)], schema=EDGES)


def kernel() -> Kernel:
    return KERNELS[-1]


def test_rows_come_back_by_stretch_from_all_splits(tmp_path: Path) -> None:
    draw = random.Random(3)
    files = ShuffleFiles(directory=tmp_path, grid=Grid(length=10))
    rows = [[(draw.randrange(95), draw.randrange(95)) for _ in range(80)] for _ in range(3)]
    for split, some in enumerate(rows):
        files.write(
            [kernel()], split, {"lists.edges": table(some), "lists.tails": TAILS.empty_table()}
        )
    for low, high in ((0, 95), (0, 10), (17, 42), (90, 95), (5, 6), (0, 0)):
        found = files.read("lists.edges", low, high, ("source", "target"))
        assert found is not None
        pairs = zip(found["source"].to_pylist(), found["target"].to_pylist(), strict=True)
        inside = [
            (s - low, t - low)
            for some in rows
            for s, t in some
            if low <= s < high and low <= t < high
        ]
        assert sorted(pairs) == sorted(inside)
        assert found.schema == EDGES
    assert files.read("nothing", 0, 95, ("txn",)) is None


def test_a_table_whose_name_begins_as_another_does_is_another(tmp_path: Path) -> None:
    files = ShuffleFiles(directory=tmp_path, grid=Grid(length=10))
    columns = {"source": ("source",)}
    for name, numbers in (("own.edges", [1, 2]), ("own.edges-weak", [3])):
        maker = Kernel(
            name=name, exchange=Exchange.STRETCH, run=dict, takes={name: columns["source"]}
        )
        files.write([maker], 0, {name: pa.table({"source": pa.array(numbers, pa.int64())})})

    found = files.read("own.edges", 0, 10, columns["source"])

    assert found is not None
    assert found["source"].to_pylist() == [1, 2]


def test_an_edge_of_which_time_is_not_known_may_span_windows() -> None:
    told = table([(5, 95), (6, 96)])
    at = told.column_names.index("untimed")
    told = told.set_column(at, EDGES.field("untimed"), pa.array([None, False], pa.bool_()))
    windows = kernel().windows
    assert windows is not None

    found = windows.spanning({"lists.edges": told, "lists.tails": TAILS.empty_table()}, 10, 0)

    assert list(zip(*(found[name].to_pylist() for name in ("source", "target")), strict=True)) == [
        (5, 95)
    ]


def test_a_directory_of_another_machine_is_refused_and_not_read_as_empty(tmp_path: Path) -> None:
    files = ShuffleFiles(directory=tmp_path / "elsewhere", grid=Grid(length=10))
    with pytest.raises(HarnessError, match="keeps the edges of its graph, is not there"):
        files.write([kernel()], 0, {"lists.edges": table([]), "lists.tails": TAILS.empty_table()})
    with pytest.raises(HarnessError, match=str(tmp_path)):
        files.read("lists.edges", 0, 10, ("source", "target"))


def test_cuts_lie_where_nothing_leads_back_over_in_any_split(tmp_path: Path) -> None:
    searched = uncut = 0
    for seed in range(80):
        draw = random.Random(seed)
        count, stretch = draw.randint(1, 90), draw.randint(1, 20)
        files = ShuffleFiles(directory=tmp_path, grid=Grid(length=stretch))
        splits = []
        for _ in range(3):
            rows = []
            for _ in range(draw.randint(0, count // 4)):
                low = draw.randrange(count)
                rows.append((min(count - 1, low + draw.randint(0, 5)), low))
            splits.append(rows)
        told = [
            files.write(
                [kernel()], n, {"lists.edges": table(s), "lists.tails": TAILS.empty_table()}
            )
            for n, s in enumerate(splits)
        ]
        back = pa.concat_tables([given.tables[BACK_TABLE] for given in told])
        stretches = files.grid.stretches(back, count, whole=False)
        every = [(s, t) for rows in splits for s, t in rows if s > t]
        for source_, target in every:
            assert any(low <= target and source_ < high for low, high in stretches), seed
        for (_, high), (low, _) in itertools.pairwise(stretches):
            assert high <= low
        assert not every or files.grid.stretches(back, count, whole=True) == [(0, count)]
        searched += len(stretches)
        uncut += stretches == [(0, count)]
    assert searched > 200
    assert 0 < uncut < 70
    assert WINDOW < 100_000


def whole(columns: dict[str, list[object]]) -> Iterator[pa.Table]:
    """The rows one by one, as pieces of a long table."""
    table = pa.table(columns)
    yield from (table.slice(at, 1) for at in range(table.num_rows))


def test_a_history_that_is_not_in_the_order_of_time_is_not_cut() -> None:
    columns = {"invoke_ns": [1, 2, 3], "complete_ns": [4, 5, 6], "type": ["ok", "ok", "info"]}
    begins = begins_in_order(whole(columns), 2)
    assert begins is not None
    assert begins.tolist() == [1, 3]
    assert begins_in_order(whole(columns | {"invoke_ns": [1, 3, 2]}), 2) is None
    assert begins_in_order(whole(columns | {"complete_ns": [4, 1, 6]}), 2) is None
    assert begins_in_order(whole(columns | {"complete_ns": [4, 5, 1]}), 2) is not None


def test_a_reader_precedes_appenders_but_not_itself() -> None:
    committed = np.ones(9, dtype=np.bool_)
    tails = pa.table({"role": [0, 1], "txn": [3, 3], "key": [1, 1]})
    assert readers_before(tails_of(tails, committed, 0)) == 0
    tails = pa.table({"role": [0, 1, 1], "txn": [3, 3, 4], "key": [1, 1, 1]})
    assert readers_before(tails_of(tails, committed, 0)) == 1


def test_readers_of_a_last_version_lead_back_to_earlier_appenders_beyond_it() -> None:
    rows = {"role": [0, 0, 1, 1], "txn": [5, 2, 3, 4], "key": [1, 1, 1, 2], "element": [0, 0, 1, 1]}
    rows["untimed"] = [True] * 4
    tails = pa.table(rows, schema=TAILS)
    source_, target = leads_back({"lists.edges": EDGES.empty_table(), "lists.tails": tails})
    assert (source_.tolist(), target.tolist()) == ([5], [3])


@pytest.mark.parametrize("proven", [False, True])
def test_an_append_of_unknown_fate_that_no_read_shows_leaves_places_to_cut(proven: bool) -> None:
    # Every later reader of its key precedes it, up to the end of the history.
    crashed = info(a(1, 99), a(2, 99), start=0, finish=5, process=50)
    txns = [crashed]
    for n in range(1, 40):
        txns.append(ok(a(1, n), start=10 * n, finish=10 * n + 5))
        txns.append(ok(r(1, *range(1, n + 1)), start=10 * n + 6, finish=10 * n + 8))
    if proven:
        txns.append(ok(r(2, 99), start=500, finish=505))
    anomalies, searched = judged(txns, 4)
    assert anomalies == judged(txns, 10**6)[0]
    # One that is proven took effect, and each read that lacks its append is of before it.
    assert bool(searched) == proven
