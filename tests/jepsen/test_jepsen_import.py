"""A history of Jepsen's becomes the tables that the same operations make when recorded here."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest
from jepsen_files import (
    LAYOUTS,
    Op,
    edn_lines,
    generated,
    json_lines,
    register,
    small,
    timed,
    txn,
    write,
)

from harness.errors import MalformedHistory, UsageError
from harness.history import schema
from harness.history.parquet import ROWS_ALWAYS
from harness.history.run_directory import RunDirectory
from harness.importers.jepsen.imported_history import ImportedHistory, import_run, read_jepsen


def read(tmp_path: Path, ops: list[Op]) -> ImportedHistory:
    return read_jepsen(write(tmp_path, json_lines(ops)))


def refusal(tmp_path: Path, text: str) -> tuple[str, str]:
    with pytest.raises(MalformedHistory) as refused:
        read_jepsen(write(tmp_path, text))
    return refused.value.where, refused.value.reason


def rows(history: ImportedHistory) -> list[tuple[object, ...]]:
    steps = history.micro_ops().sort_by([("txn", "ascending"), ("pos", "ascending")]).to_pylist()
    return [(s["txn"], s["f"], s["key"], s["value"], s["elements"], s["type"]) for s in steps]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_gives_the_same_tables(
    tmp_path: Path, layout: Callable[[list[Op]], str]
) -> None:
    for ops in (small(), generated(300)):
        expected = read(tmp_path, ops)
        found = read_jepsen(write(tmp_path, layout(ops), "other"))

        assert found.transactions().equals(expected.transactions())
        assert found.micro_ops().equals(expected.micro_ops())


def test_a_small_history_is_what_it_says(tmp_path: Path) -> None:
    history = read(tmp_path, small())

    assert rows(history) == [
        (0, "append", 3, 1, None, "ok"),
        (0, "r", 4, None, [], "ok"),
        (1, "append", 3, 2, None, "fail"),
        (2, "r", 3, None, None, "info"),
        (2, "append", 4, 7, None, "info"),
        (3, "r", 3, None, [1], "ok"),
    ]
    told = history.transactions().select(["process", "type", "invoke_index", "complete_index"])
    assert [tuple(row.values()) for row in told.to_pylist()] == [
        (0, "ok", 0, 2),
        (1, "fail", 1, 3),
        (1, "info", 4, 6),
        (0, "ok", 5, 7),
    ]
    assert history.transactions()["error"].to_pylist() == [None, "conflict", "timeout", None]
    assert history.transactions().schema.equals(schema.TRANSACTIONS, check_metadata=True)
    assert history.micro_ops().schema.equals(schema.MICRO_OPS, check_metadata=True)
    assert history.manifest.workload == "list-append"
    assert history.manifest.declaration.promises[0].model == "strict-serializable"


def test_a_compressed_history_reads_as_the_plain_one(tmp_path: Path) -> None:
    path = tmp_path / "history.edn.gz"
    path.write_bytes(gzip.compress(edn_lines(generated(50)).encode()))

    assert read_jepsen(path).micro_ops().equals(read(tmp_path, generated(50)).micro_ops())


def test_each_split_holds_its_keys_and_is_sorted(tmp_path: Path) -> None:
    history = read(tmp_path, generated(500))

    for number in range(history.manifest.splits):
        table = history.micro_ops(number)
        keys = table["key"].to_numpy()
        assert set(schema.splits_of(keys, history.manifest.splits)) <= {number}
        assert table.equals(table.sort_by([("txn", "ascending"), ("pos", "ascending")]))


def test_an_operation_without_a_completion_may_have_happened(tmp_path: Path) -> None:
    history = read(tmp_path, timed([txn("invoke", 0, [["append", 1, 1], ["r", 2, None]])]))

    (row,) = history.transactions().to_pylist()
    assert (row["type"], row["error"], row["complete_index"]) == ("info", "no-completion", 1)
    assert rows(history) == [(0, "append", 1, 1, None, "info"), (0, "r", 2, None, None, "info")]
    assert history.incomplete == 1


def test_what_the_nemesis_did_is_noted_and_counted(tmp_path: Path) -> None:
    ops = small()
    ops.insert(2, {"type": "info", "f": "kill", "process": "nemesis", "value": ["n1", 0.5]})
    history = read_jepsen(write(tmp_path, json_lines(timed(ops))))

    assert history.remarks == 1
    (note,) = history.notes().to_pylist()
    assert note["text"] == "nemesis info kill [n1 0.5]"
    invoked = history.transactions()["invoke_ns"].to_pylist()
    assert invoked[1] < note["at_ns"] < history.transactions()["complete_ns"][0].as_py()


def test_an_imported_run_is_a_sealed_run(tmp_path: Path) -> None:
    ops = generated(200)
    run = RunDirectory(tmp_path / "run")
    loaded = import_run(write(tmp_path, json_lines(ops)), run)

    assert loaded.transactions().equals(read(tmp_path, ops).transactions())
    assert loaded.micro_ops(1).equals(read(tmp_path, ops).micro_ops(1))
    with pytest.raises(UsageError, match="found a run"):
        import_run(tmp_path / "history", run)


def test_registers_become_reads_writes_and_cas(tmp_path: Path) -> None:
    ops = timed(
        [
            register("invoke", 0, "write", [7, 1]),
            register("ok", 0, "write", [7, 1]),
            register("invoke", 0, "cas", [7, [1, 2]]),
            register("fail", 0, "cas", [7, [1, 2]]),
            register("invoke", 0, "read", [7, None]),
            register("ok", 0, "read", [7, 1]),
            register("invoke", 0, "read", [8, None]),
            register("ok", 0, "read", [8, None]),
        ]
    )
    history = read(tmp_path, ops)

    assert rows(history) == [
        (0, "w", 7, 1, None, "ok"),
        (1, "cas", 7, None, [1, 2], "fail"),
        (2, "r", 7, 1, None, "ok"),
        (3, "r", 8, None, [], "ok"),
    ]
    assert history.manifest.workload == "register"


def test_refusals_name_the_line(tmp_path: Path) -> None:
    ops = small()
    del ops[0]
    where, reason = refusal(tmp_path, json_lines(ops))

    assert where == "line 2"
    assert "has invoked none" in reason


def test_a_path_that_can_not_be_read_is_refused(tmp_path: Path) -> None:
    for path, why in ((tmp_path / "absent", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(MalformedHistory, match=why):
            read_jepsen(path)


@pytest.mark.parametrize(
    ("value", "key"), [("[nil 1]", 0), ("[5 [nil 1]]", 5), ("[0 1]", 0), ("[5 [0 1]]", 5)]
)
def test_a_compare_and_set_holds_the_old_value_unless_that_is_nil(
    tmp_path: Path, value: str, key: int
) -> None:
    line = "{:type %s, :f :cas, :value " + value + ", :process 0, :index %d}\n"
    path = write(tmp_path, line % (":invoke", 0) + line % (":ok", 1))

    held = [1] if "nil" in value else [0, 1]
    assert rows(read_jepsen(path)) == [(0, "cas", key, None, held, "ok")]


@pytest.mark.parametrize("time", ["", " :time 1{at:05}000000"])
def test_a_long_history_of_operations_that_all_look_alike_is_imported(
    tmp_path: Path, time: str
) -> None:
    """Its table of transactions takes less than any other: two bits a row."""
    count = ROWS_ALWAYS + 10_000
    line = f"{{{{:type :{{}} :process 0 :f :txn :value [[:r 1 {{}}]]{time}}}}}\n"
    lines = (
        line.format(type_, value, at=2 * number + place)
        for number in range(count)
        for place, (type_, value) in enumerate((("invoke", "nil"), ("ok", "[]")))
    )
    path = tmp_path / "history.edn"
    path.write_text("".join(lines))

    history = import_run(path, RunDirectory(tmp_path / "run"))

    assert history.transactions().num_rows == count
    assert history.transactions_file.stat().st_size * 4 < count
