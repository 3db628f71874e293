"""Tables of few bytes and few rows that unpack to more than any honest one: refused unread."""

from __future__ import annotations

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
