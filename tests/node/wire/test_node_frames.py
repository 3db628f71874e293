"""Frames on a byte stream."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.reference.node.wire import frames
from clusters.reference.node.wire.frames import HEADER_BYTES, Decoder, FrameError, encode


def feed_in_parts(stream: bytes, cuts: list[int]) -> list[bytes]:
    decoder = Decoder()
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    return [
        payload
        for start, end in itertools.pairwise(edges)
        for payload in decoder.feed(stream[start:end])
    ]


@given(st.lists(st.binary(max_size=50), max_size=6), st.lists(st.integers(0, 300), max_size=8))
def test_payloads_come_out_as_they_went_in_however_the_stream_is_cut(
    payloads: list[bytes], cuts: list[int]
) -> None:
    assert feed_in_parts(b"".join(map(encode, payloads)), cuts) == payloads


def test_no_flipped_bit_ever_yields_another_payload() -> None:
    stream = encode(b"a payload of some bytes")

    for bit in range(len(stream) * 8):
        damaged = bytearray(stream)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            assert Decoder().feed(bytes(damaged)) == []  # a longer length: it waits for more
        except FrameError:
            continue


def test_a_frame_that_breaks_the_format_is_named() -> None:
    stream = bytearray(encode(b"x"))
    wrong_version, wrong_length, wrong_content = bytearray(stream), bytearray(stream), stream
    wrong_version[4] = 9
    wrong_length[0] = 0xFF
    wrong_content[HEADER_BYTES] ^= 1

    with pytest.raises(FrameError, match=r"frame version: expected 1 \(got 9\)"):
        Decoder().feed(bytes(wrong_version))
    with pytest.raises(FrameError, match="frame length: at most 16777216 bytes"):
        Decoder().feed(bytes(wrong_length))
    with pytest.raises(FrameError, match="frame CRC"):
        Decoder().feed(bytes(wrong_content))


def test_the_size_cap_holds_at_the_limit_and_refuses_one_byte_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "MAX_PAYLOAD_BYTES", 10)

    assert Decoder().feed(encode(b"x" * 10)) == [b"x" * 10]
    with pytest.raises(FrameError, match="at most 10 bytes \\(got 11\\)"):
        encode(b"x" * 11)
