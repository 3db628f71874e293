"""What is told of all transactions does not depend on how many of them are looked at together."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from checker_histories import Fault, Txn, a, r, write_run

from checkers.engine import source as source_module
from checkers.engine.analyze import analyze
from checkers.engine.source import Source
from harness.history.run_directory import RunDirectory
from harness.protocols.checker import KEY_COLUMNS
from harness.protocols.verdict import Verdict, encode

MS = 1_000_000
CHECKERS = ("list-append", "lost-write", "statistics", "availability", "evidence")


def drawn(seed: int) -> tuple[list[Txn], list[Fault]]:
    """Some transactions of three or more clients, and some faults around them."""
    draw = random.Random(seed)
    clients, now = draw.randint(1, 6), 0
    free, processes = [0] * clients, list(range(clients))
    txns, values = [], list[int]()
    for number in range(draw.randint(0, 60)):
        client = draw.randrange(clients)
        now = max(now + draw.choice([0, 1, 1, 9]) * MS, free[client])
        finish = now + draw.choice([0, 1, 5, 40]) * MS
        free[client] = finish + 1
        type_ = draw.choices(["ok", "fail", "info"], [8, 2, 1])[0]
        error = None if type_ == "ok" else draw.choice(["TX-LOCK-CONFLICT", "client-bug: X", None])
        if type_ == "ok":
            values.append(number)
        op = a(1, number) if draw.random() < 0.7 else r(1, *values[: draw.randint(0, len(values))])
        txns.append(Txn(type_, [op], processes[client], now, finish, error=error))
        processes[client] += 100 * (type_ == "info")
    faults = []
    for _ in range(draw.randint(0, 3)):
        start = draw.randint(0, 200) * MS
        length = draw.randint(1, 80) * MS
        finish = start + length if draw.random() < 0.7 else None
        faults.append(Fault("kill", "n1", start, finish, effective=draw.random() < 0.9))
    return txns, faults


def verdict(run: RunDirectory) -> Verdict:
    return analyze(run, executor="local")


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_parts_of_any_size_give_the_same_bytes(
    rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = 0
    for seed in range(25):
        txns, faults = drawn(seed)
        run = write_run(tmp_path / f"{rows}-{seed}", txns, faults, checkers=CHECKERS)
        with monkeypatch.context() as patch:
            whole = verdict(run)
            patch.setattr(source_module, "PIECE_ROWS", rows)
            assert encode(verdict(run)) == encode(whole), seed
        told += len(whole.availability.windows)
    assert told > 10


def test_the_longest_gap_is_what_looking_at_all_completions_gives(tmp_path: Path) -> None:
    compared = 0
    for seed in range(25):
        txns, faults = drawn(seed)
        run = write_run(tmp_path / str(seed), txns, faults, checkers=CHECKERS)
        done = sorted(txn.finish for txn in txns if txn.type == "ok" and txn.finish is not None)
        found = verdict(run).availability
        for window in found.windows:
            inside = [at for at in done if window.start_ns < at <= window.end_ns]
            after = [at for at in done if at > window.end_ns]
            points = [window.start_ns, *inside, after[0] if after else window.end_ns]
            widths = [end - begin for begin, end in itertools.pairwise(points)]
            assert window.ok == len(inside)
            assert window.longest_gap_ns == max(widths)
            assert window.longest_gap_at_ns == points[widths.index(max(widths))]
            compared += 1
    assert compared > 10


def test_no_checker_of_every_run_asks_for_all_transactions_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    txns, faults = drawn(3)
    run = write_run(tmp_path / "run", txns, faults, checkers=CHECKERS)

    def asked(_self: Source) -> pa.Table:
        raise AssertionError("all transactions were read")

    monkeypatch.setattr(Source, "transactions", property(asked))
    found = verdict(run)

    assert [reason for reason in found.reasons if "all transactions were read" in reason] == []


def test_a_history_out_of_order_is_judged_all_the_same(tmp_path: Path) -> None:
    txns, _ = drawn(5)
    run = write_run(tmp_path / "run", txns, [], checkers=CHECKERS)
    (file,) = run.root.rglob("transactions.parquet")
    table = pq.read_table(file)

    def pieces(_self: object, columns: tuple[str, ...] = KEY_COLUMNS) -> Iterator[pa.Table]:
        # The same rows, in another order: as an import without times might have them.
        for at in reversed(range(0, table.num_rows, 4)):
            yield table.slice(at, 4).select(columns)

    with pytest.MonkeyPatch.context() as patch:
        expected = verdict(run).availability
        patch.setattr(Source, "pieces", pieces)
        assert verdict(run).availability == expected
