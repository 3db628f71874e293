"""Strings from nodes can't act on a terminal or a page."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from harness.text import LIMIT_CHARS, inert


def test_plain_text_stays_as_it_is() -> None:
    assert inert("lease lost: n3, größer als 5 µs") == "lease lost: n3, größer als 5 µs"


def test_escapes_and_direction_marks_become_visible() -> None:
    assert inert("\x1b[2Jok\u202evalid\0") == "\\x1b[2Jok\\u202evalid\\x00"


def test_a_text_stays_on_one_line_and_says_what_was_cut() -> None:
    assert inert("a\r\n::error::b") == "a  ::error::b"
    assert inert("x" * 500, limit=10) == "xxxxxxxxxx… (490 more characters)"


@given(st.text(max_size=LIMIT_CHARS))
def test_whatever_comes_in_only_printable_characters_come_out(text: str) -> None:
    assert inert(text).isprintable()
