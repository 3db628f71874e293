"""Tables of few bytes and few rows that unpack to more than any honest one: refused unread."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stranger_kit import forge, sound_run

from harness.errors import MalformedHistory
from harness.history.load import load
from harness.history.parquet import UNCOMPRESSED_ALWAYS_BYTES, VALUES_ALWAYS, require_plausible


def list_of(count: int) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array([0, count], pa.int32()), np.zeros(count, np.int64))


def test_one_list_of_millions_of_elements_is_refused_and_one_fewer_is_not(tmp_path: Path) -> None:
    for more in (0, 1):
        path = tmp_path / f"{more}.parquet"
        pq.write_table(pa.table({"x": list_of(VALUES_ALWAYS + more)}), path, compression="zstd")
        assert path.stat().st_size < 10_000
        if more:
            with pytest.raises(MalformedHistory, match="10,000,000 values in a column"):
                require_plausible(path)
        else:
            assert require_plausible(path).names == ["x"]


def test_a_text_that_unpacks_to_more_than_its_bytes_allow_is_refused(tmp_path: Path) -> None:
    for size, refused in ((UNCOMPRESSED_ALWAYS_BYTES // 2, False), (100 << 20, True)):
        path = tmp_path / f"{size}.parquet"
        table = pa.table({"x": ["y" * size]})
        pq.write_table(
            table, path, compression="zstd", use_dictionary=False, write_statistics=False
        )
        assert path.stat().st_size < 100_000
        if refused:
            with pytest.raises(MalformedHistory, match="bytes once decompressed"):
                require_plausible(path)
        else:
            require_plausible(path)


@pytest.mark.parametrize("in_lists", [False, True])
def test_a_text_that_stands_once_and_is_repeated_by_each_row_is_counted_each_time(
    tmp_path: Path, in_lists: bool
) -> None:
    size_bytes = 1 << 20
    # Of two texts a mean would say half.
    texts = pa.array(["y" * size_bytes, "n"])
    for rows, refused in ((50, False), (200, True)):
        column: pa.Array = pa.DictionaryArray.from_arrays(np.arange(rows) // rows, texts)
        if in_lists:
            column = pa.ListArray.from_arrays(np.arange(rows + 1, dtype=np.int32), column)
        path = tmp_path / f"{rows}.parquet"
        with pq.ParquetWriter(
            path, pa.schema([("x", column.type)]), compression="zstd", write_statistics=False
        ) as writer:
            writer.write_table(pa.table({"x": column}))
        assert path.stat().st_size < 10_000
        if refused:
            with pytest.raises(MalformedHistory, match="bytes of texts"):
                require_plausible(path)
        else:
            require_plausible(path)


def test_texts_that_begin_as_the_one_before_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "delta.parquet"
    pq.write_table(
        pa.table({"x": ["y" * 10_000] * 1000}),
        path,
        use_dictionary=False,
        column_encoding={"x": "DELTA_BYTE_ARRAY"},
    )
    with pytest.raises(MalformedHistory, match="texts in encoding 7"):
        require_plausible(path)


def test_a_run_with_such_a_list_is_refused_by_the_name_of_its_file(tmp_path: Path) -> None:
    run = sound_run(tmp_path / "20261122-060000-stranger-0001")
    load(run)
    path = run.root / "history/micro_ops-0000.parquet"
    table = pq.read_table(path)
    place = table.schema.get_field_index("elements")
    field = table.schema.field(place)
    count = VALUES_ALWAYS + 1
    offsets = pa.array([0, 0, 0, count], pa.int32())
    lists = pa.ListArray.from_arrays(offsets, np.zeros(count, np.int64)).cast(field.type)
    pq.write_table(table.set_column(place, field, lists), path, compression="zstd")
    forge(run)

    with pytest.raises(MalformedHistory, match=r"micro_ops-0000\.parquet.*values in a column"):
        load(run)


def varint(value: int) -> bytes:
    """``value`` as Thrift's compact protocol writes it."""
    left, found = value << 1, b""
    while left >= 0x80:
        found, left = found + bytes([left & 0x7F | 0x80]), left >> 7
    return found + bytes([left])


def with_footer(path: Path, told: int, instead: int) -> None:
    """Have the footer alone tell another number, of as many bytes."""
    content = path.read_bytes()
    begin = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    old, new = varint(told), varint(instead)
    assert len(old) == len(new)
    assert old in content[begin:]
    path.write_bytes(content[:begin] + content[begin:].replace(old, new))


@pytest.mark.parametrize("claimed", [1 << 20, VALUES_ALWAYS])
def test_a_footer_that_tells_of_fewer_values_than_its_pages_hold_is_refused(
    tmp_path: Path, claimed: int
) -> None:
    path, held = tmp_path / "x.parquet", VALUES_ALWAYS + 5
    pq.write_table(pa.table({"x": list_of(held)}), path, compression="zstd")
    with_footer(path, held, claimed)

    with pytest.raises(MalformedHistory, match="expected pages as its footer tells of them"):
        require_plausible(path)


def test_a_footer_that_tells_of_smaller_pages_than_there_are_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    table = pa.table({"x": ["y" * (90 << 20)]})
    pq.write_table(table, path, compression="zstd", use_dictionary=False, write_statistics=False)
    whole = pq.ParquetFile(path).metadata.row_group(0).column(0).total_uncompressed_size
    with_footer(path, whole, UNCOMPRESSED_ALWAYS_BYTES - 1)

    with pytest.raises(MalformedHistory, match=r"found pages of \d+ bytes and 1 values"):
        require_plausible(path)


def test_pages_are_read_within_the_file_and_their_headers_within_their_bounds(
    tmp_path: Path,
) -> None:
    """Every byte of the first page's header once as another one: refused by name, or as good."""
    path = tmp_path / "x.parquet"
    table = pa.table({"x": pa.array(range(100)), "y": [["a"], []] * 50, "z": ["b", None] * 50})
    pq.write_table(table, path, compression="zstd")
    content = path.read_bytes()
    require_plausible(path)

    for place in range(4, 40):
        for value in (0, 0x1C, 0x7F, 0xFF):
            damaged = bytearray(content)
            damaged[place] = value
            path.write_bytes(damaged)
            with contextlib.suppress(MalformedHistory):
                require_plausible(path)


def test_a_file_of_every_kind_of_run_has_the_pages_of_its_footer() -> None:
    runs = Path(__file__).parents[1] / "evidence" / "runs"
    files = sorted(runs.rglob("*.parquet"))

    assert len(files) > 10
    for path in files:
        require_plausible(path)
