"""What the node is asked while its archive of classes is made, as the release's protocol has it."""

from __future__ import annotations

import msgspec
import pytest

from clusters.ignite3 import settings, train


def test_a_request_is_messagepack_one_value_after_the_other() -> None:
    values = (3, 0, 127, 128, 65_535, None, b"\x00", "", "SELECT 'ü'")

    packed = train.packed(*values)

    assert msgspec.msgpack.decode(bytes([0x90 + len(values)]) + packed) == list(values)


@pytest.mark.parametrize("value", [-1, 1 << 16])
def test_a_number_that_no_request_has_is_refused(value: int) -> None:
    with pytest.raises(OverflowError):
        train.packed(value)


def test_tables_are_made_written_and_read() -> None:
    asked = " ".join(settings.training_statements())

    for what in ("CREATE ZONE", "CREATE TABLE", "INSERT", "UPDATE", "SELECT"):
        assert what in asked
    assert "REPLICAS 1" in asked  # one node makes the archive
