"""Patterns of users: what ``re`` says, at a cost that is counted and bounded."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.reference.node.catalog.patterns import (
    MAX_PATTERN,
    MAX_STEPS,
    Pattern,
    PatternError,
    Steps,
    TooManySteps,
)

ATOMS = st.sampled_from(
    [
        "a",
        "b",
        "-",
        ".",
        "[ab]",
        "[^a]",
        "[a-c]",
        r"\d",
        r"\W",
        r"\.",
        "[]a]",
        "[a-]",
        "^",
        "$",
        r"[\d-]",
    ]
)
COUNTS = st.sampled_from(["*", "+", "?", "{2}", "{1,}", "{0,2}", "{0}"])


def repeated(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    groups = st.tuples(inner, COUNTS).map(lambda parts: f"(?:{parts[0]}){parts[1]}")
    return st.one_of(
        groups,
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join).map("({})".format),
    )


PATTERNS = st.recursive(ATOMS, repeated, max_leaves=6)
TEXTS = st.text(alphabet="abc-.1 ", max_size=8)


@given(pattern=PATTERNS, text=TEXTS)
def test_a_pattern_matches_what_the_machines_own_does(pattern: str, text: str) -> None:
    ours, theirs = Pattern(pattern), re.compile(pattern.replace("$", r"\Z"))

    assert ours.search(text, Steps()) is bool(theirs.search(text))
    assert ours.fullmatch(text, Steps()) is bool(theirs.fullmatch(text))


def steps(pattern: str, text: str) -> int:
    counted = Steps()
    assert not Pattern(pattern).fullmatch(text, counted)
    return MAX_STEPS - counted.left


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*", "(a?){25}a{25}", "(.*)(.*)(.*)(.*)b"])
def test_what_makes_a_backtracking_matcher_explode_is_linear_here(pattern: str) -> None:
    once, twice = steps(pattern, "a" * 100 + "!"), steps(pattern, "a" * 200 + "!")

    assert twice < 2.1 * once


def test_a_decision_that_uses_its_steps_up_ends() -> None:
    with pytest.raises(TooManySteps):
        Pattern("(a?){100}c").search("a" * 1000, Steps(1000))


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("(a", "'(' without ')'"),
        ("a)", "')' without '('"),
        ("[a", "it ends too early"),
        ("a\\", "it ends too early"),
        ("*a", "'*' repeats nothing"),
        ("a**", "a repetition of a repetition"),
        ("a{", "'{' without a number"),
        ("a{1", "'{' without '}'"),
        ("a{3,2}", "at least 3 times and at most 2"),
        ("a{99999}", "over 9999 times"),
        ("[z-a]", "the range z-a is empty"),
        (r"(a)\1", r"'\1' is not supported"),
        (r"\bx", r"'\b' is not supported"),
        ("(?=a)", "look-around"),
        ("(" * 33 + ")" * 33, "over 32 groups"),
        ("((a{30}){30}){30}", "unfolds to over 512 states"),
        ("a" * (MAX_PATTERN + 1), "at most 256 characters"),
    ],
)
def test_what_is_no_pattern_is_refused_with_the_reason(pattern: str, what: str) -> None:
    with pytest.raises(PatternError, match=re.escape(what)):
        Pattern(pattern)


@given(st.text(alphabet="ab()[]{}|*+?^$.\\-0,:", max_size=40))
def test_any_text_is_a_pattern_or_is_refused(text: str) -> None:
    try:
        pattern = Pattern(text)
    except PatternError:
        return
    pattern.search("ab" * 20, Steps())
