"""Times and figures as text; strings from nodes can't act on a terminal or a page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.text import LIMIT_CHARS, duration, inert, long_duration, significant, uncommanded_bytes


def test_plain_text_stays_as_it_is() -> None:
    assert inert("lease lost: n3, größer als 5 µs") == "lease lost: n3, größer als 5 µs"


def test_escapes_and_direction_marks_become_visible() -> None:
    assert inert("\x1b[2Jok\u202evalid\0") == "\\x1b[2Jok\\u202evalid\\x00"


@pytest.mark.parametrize("blank", [b"", b" \t", "\xa0\u2003".encode(), b"logged\r", b"a\r \r "])
def test_no_line_of_bytes_is_a_command_where_readers_of_lines_see_one(blank: bytes) -> None:
    # A runner ends lines at a carriage return, and drops blanks of Unicode before it looks.
    assert uncommanded_bytes(blank + b"::error::x\n") == blank + b"\\x3a:error::x\n"
    assert uncommanded_bytes(b"a ::b #[c]\n") == b"a ::b #[c]\n"
    assert uncommanded_bytes(b"\r" * 100_000 + b" " * 100_000) == b"\r" * 100_000 + b" " * 100_000


def test_a_text_stays_on_one_line_and_says_what_was_cut() -> None:
    assert inert("a\r\n::error::b") == "a  ::error::b"
    assert inert("x" * 500, limit=10) == "xxxxxxxxxx… (490 more characters)"


@given(st.text(max_size=LIMIT_CHARS))
def test_whatever_comes_in_only_printable_characters_come_out(text: str) -> None:
    assert inert(text).isprintable()


@pytest.mark.parametrize(
    ("length_ns", "told"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (400_000, "400 µs"),
        (-3_000_000, "-3 ms"),
        (999_400_000, "999 ms"),
        (999_600_000, "1 s"),
        (999_999, "1 ms"),
        (12_340_000_000, "12.3 s"),
        (86_399_600_000_000, "86400 s"),
    ],
)
def test_a_length_of_time_has_three_digits_and_the_unit_of_what_is_shown(
    length_ns: int, told: str
) -> None:
    assert duration(length_ns) == told


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (0.0, "0"), (0.00004123, "0.0000412"), (-0.0004, "-0.0004"), (1e-9, "0.000000001"),
        (99.97, "100"), (123456.0, "123456"), (2.5, "2.5"), (1e15, "1000000000000000"),
    ],
)  # fmt: skip
def test_a_figure_has_no_exponent_and_keeps_what_stands_before_its_point(
    value: float, told: str
) -> None:
    assert significant(value, 3) == told


@pytest.mark.parametrize(
    ("length_s", "told"),
    [
        (0.00001, "10 µs"),
        (0.5, "500 ms"),
        (45, "45 s"),
        (60, "1 min"),
        (90, "90 s"),
        (1_800, "30 min"),
        (3_599, "1 h"),
        (7_199.9, "2 h"),
        (9_000, "2.5 h"),
        (14 * 86_400, "14 d"),
        (999.9 * 86_400, "1000 d"),
    ],
)
def test_long_durations_are_told_as_people_plan_them(length_s: float, told: str) -> None:
    assert long_duration(length_s) == told


@pytest.mark.parametrize("more", range(1, 40))
def test_a_text_is_not_cut_for_less_than_it_takes_to_say_so(more: int) -> None:
    text = "x" * (30 + more)
    shown = inert(text, 30)

    told = f"… ({more} more characters)"
    assert shown == (text if more <= len(told) else "x" * 30 + told)
    assert len(shown) <= 30 + len(told)
