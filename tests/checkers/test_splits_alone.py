"""A split is judged by what it holds: the other transactions of the history change nothing."""

from __future__ import annotations

import random
from pathlib import Path

import attrs
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import register_histories
from checker_generator import generate
from checker_histories import Txn, a, info, ok, r, setting, source, write_run
from reset_generator import generated
from reset_histories import HA, events_of, tables_of

from checkers.bank.checker import CHECKER as BANK
from checkers.engine.analyze import judge
from checkers.engine.source import Source
from checkers.engine.split import named, split_of_steps
from checkers.engine.stages import run_in_process
from checkers.engine.transactions import NOBODY, OBSERVED, proven
from checkers.engine.work import on_split
from checkers.lists.checker import CHECKER as LISTS
from checkers.lists.checker import INFERENCE
from checkers.lists.given_up import CUT_OFF
from checkers.promises.liveness import CHECKER as LIVENESS
from checkers.promises.lost_write import CHECKER as LOST_WRITE
from checkers.promises.statistics import CHECKER as STATISTICS
from checkers.register.checker import CHECKER as REGISTER
from harness.history import schema
from harness.history.load import load
from harness.protocols.checker import Checker, Exchange, Kernel
from harness.protocols.generations import resets_of
from harness.protocols.setting import Setting
from harness.protocols.verdict import encode

BROKEN = [ok(a(1, 1)), ok(a(1, 1)), ok(r(2, 7)), ok(a(3, 1)), ok(r(3, 1)), ok(r(1, 1))]


def by_key(*checkers: Checker) -> tuple[Kernel, ...]:
    kernels = (k for checker in checkers for k in (*checker.kernels, CUT_OFF))
    return tuple(k for k in kernels if k.exchange in (Exchange.EARLY, Exchange.KEY))


def assert_told_alone(kernels: tuple[Kernel, ...], history: Source, asked: Setting) -> int:
    """Each kernel gives what it gives among all transactions; returns how many rows it gave."""
    among_all = [attrs.evolve(kernel, numbers=None) for kernel in kernels]
    alone, whole = (run_in_process(chain, history, asked) for chain in (kernels, among_all))
    assert alone.broken == whole.broken
    assert alone.tables.keys() == whole.tables.keys()
    for name, table in whole.tables.items():
        assert alone.tables[name].to_pylist() == table.to_pylist(), name
    return sum(table.num_rows for table in whole.tables.values())


def test_lists_are_told_alone_as_among_all() -> None:
    kernels = by_key(LISTS, STATISTICS, LIVENESS)
    rows = [assert_told_alone(kernels, source(generate(n), splits=3), setting()) for n in range(60)]
    assert sum(rows) > 1000


def test_lists_of_partitions_that_were_reset_are_told_alone_as_among_all() -> None:
    for seed in range(40):
        history = generated(seed)
        resets = resets_of(events_of(history).to_pylist())
        asked = msgspec.structs.replace(setting(declaration=HA), resets=resets)
        assert_told_alone(by_key(LISTS), tables_of(history, 3), asked)


@pytest.mark.parametrize("planned", [True, False])
def test_banks_are_told_alone_as_among_all(planned: bool) -> None:
    rows = 0
    for seed in range(30):
        draw = random.Random(seed)
        accounts = range(1, 4)
        txns = [Txn("ok", [("w", account, 5) for account in accounts])] if planned else []
        for _ in range(8):
            if draw.random() < 0.5:
                held = [("r", account, draw.randint(3, 7)) for account in accounts]
                txns.append(Txn("ok", held))
            else:
                payer, payee = draw.sample(accounts, 2)
                type_ = draw.choice(("ok", "ok", "info"))
                txns.append(Txn(type_, [("add", payer, -1), ("add", payee, 1)]))
        history = register_histories.source(txns, splits=3)
        rows += assert_told_alone(by_key(BANK), history, setting(planned=planned))
    assert rows > 100


def test_registers_are_told_alone_as_among_all() -> None:
    rows = 0
    for seed in range(30):
        draw = random.Random(seed)
        steps = [(draw.choice("rw"), draw.randint(1, 4), draw.randint(0, 3)) for _ in range(12)]
        txns = [Txn("ok", [step], start=10 * n, finish=10 * n + 25) for n, step in enumerate(steps)]
        history = register_histories.source(txns, splits=3)
        rows += assert_told_alone(by_key(REGISTER), history, setting())
    assert rows > 100


def test_the_words_of_a_broken_kernel_name_transactions_of_the_history() -> None:
    history = source([ok(a(key, 1)) for key in range(20)] + [ok(a(11, 1))], splits=4)
    (why,) = run_in_process([INFERENCE], history, setting()).broken.values()
    assert "by transactions 11 and 20" in why


def test_what_one_split_proves_is_proven_in_all() -> None:
    history = [info(a(1, 1), a(2, 1)), info(r(1, 1), a(3, 1)), info(r(3, 1), a(4, 1)), ok(r(4, 1))]
    for splits in (1, 2, 3, 4, 5):
        given = run_in_process(by_key(LISTS), source(history, splits=splits), setting())
        assert given.tables["lists.observed"]["writer"].to_pylist() == [0, 1, 2], splits


def test_proof_goes_on_from_reader_to_writer_and_to_no_other() -> None:
    rows = {"writer": [5, 3, 4, 8], "reader": [NOBODY, 5, 3, 9]}
    assert proven(pa.table(rows, schema=OBSERVED))["writer"].to_pylist() == [3, 4, 5]
    assert proven(OBSERVED.empty_table()).num_rows == 0


@pytest.mark.parametrize("gone", [True, False])
def test_a_task_reads_the_file_of_its_split_and_no_other(tmp_path: Path, gone: bool) -> None:
    run = write_run(tmp_path / "run", generate(5), splits=3)
    history = load(run)
    whole = Source.of_files(history.transactions_file, history.micro_op_files)
    expected = [on_split([INFERENCE], whole, n, setting(), {}) for n in range(whole.splits)]
    absent = tmp_path / "nowhere.parquet"
    if not gone:  # version 1 of the tables: the transactions are looked up
        for file in history.micro_op_files:
            pq.write_table(pq.read_table(file).select(schema.MICRO_OPS.names), file)
        absent = history.transactions_file
    alone = Source.of_files(absent, history.micro_op_files)
    for number, given in enumerate(expected):
        found = on_split([INFERENCE], alone, number, setting(), {})
        assert found.broken == given.broken == {}
        assert found.tables == given.tables


def test_transactions_of_a_stretch_are_read_from_the_row_groups_that_hold_them(
    tmp_path: Path,
) -> None:
    history = source(generate(5, 20))
    file = tmp_path / "transactions.parquet"
    pq.write_table(history.transactions, file, row_group_size=3)
    read = Source.of_files(file, ())
    for low, high in ((0, 20), (0, 3), (2, 4), (7, 19), (19, 20), (0, 0)):
        found, expected = (made.between(low, high) for made in (read, history))
        assert found.to_pylist() == expected.to_pylist()
        assert found["txn"].to_pylist() == [*range(high - low)]
        started = history.transactions["invoke_ns"].to_pylist()[low:high]
        assert found["invoke_ns"].to_pylist() == started


def test_numbers_of_a_split_become_those_of_the_history() -> None:
    number = np.asarray([4, 7, 9])
    lists = pa.array([[0, 2], None, [], [1]], pa.list_(pa.int64()))
    table = pa.table(
        {"txn": pa.array([2, None, -1, 0], pa.int32()), "txns": lists, "other": [0, 1, 2, 0]}
    )
    found = named(table, ("txn", "txns"), number)
    assert found.to_pylist() == [
        {"txn": 9, "txns": [4, 9], "other": 0},
        {"txn": None, "txns": None, "other": 1},
        {"txn": -1, "txns": [], "other": 2},
        {"txn": 4, "txns": [7], "other": 0},
    ]
    assert found.schema == table.schema


def test_a_split_without_rows_has_no_transactions() -> None:
    there = split_of_steps(schema.SPLIT.empty_table())
    assert (there.transactions.num_rows, there.micro_ops.num_rows) == (0, 0)
    found = named(pa.table({"txn": [-1]}), ("txn",), there.number)
    assert found["txn"].to_pylist() == [-1]


def test_no_checker_of_lists_has_all_transactions_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verdict_of(history: Source) -> bytes:
        found = judge(
            history,
            setting=setting(),
            checkers=(LISTS, LOST_WRITE),
            faults=schema.FAULTS.empty_table(),
            events=schema.EVENTS.empty_table(),
        )
        return encode(found.verdict)

    seen = 0
    for seed in range(12):
        history = source(generate(seed), splits=2)
        expected = verdict_of(history)
        directory = tmp_path / str(seed)
        directory.mkdir()
        with history.on_disk(directory) as on_disk:
            files = load_of(directory)
            again = Source.of_files(*files)
            with monkeypatch.context() as patched:
                patched.setattr(Source, "transactions", property(refused))
                assert verdict_of(again) == expected, seed
            assert on_disk.splits == again.splits
        seen += b'"anomalies":{}' not in expected
    assert seen > 6


def refused(_history: Source) -> pa.Table:
    raise AssertionError("all transactions were asked for")


def load_of(directory: Path) -> tuple[Path, tuple[Path, ...]]:
    """The files that ``Source.on_disk`` wrote, with what a split tells of its transactions."""
    transactions = pq.read_table(directory / "transactions.parquet")
    splits = sorted(directory.glob("micro_ops-*.parquet"))
    for path in splits:
        pq.write_table(schema.of_split(pq.read_table(path), transactions), path)
    return directory / "transactions.parquet", tuple(splits)
