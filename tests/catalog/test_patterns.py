"""Patterns of users: what ``re`` says, at a cost that is counted and bounded."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.reference.node.catalog.patterns import (
    MAX_GROUPS,
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


@pytest.mark.parametrize(
    ("pattern", "matched", "other"),
    [
        (".", "n", "\n"),
        (r"\d", "7", "a"),
        (r"\D", "a", "7"),
        (r"\w", "_", "-"),
        (r"\w", "7", " "),
        (r"\W", "-", "_"),
        (r"\s", "\t", "t"),
        (r"\S", "t", "\t"),
        (r"\n\t\r", "\n\t\r", "ntr"),
        (r"\.", ".", "a"),
        ("[b-d]", "b", "a"),
        ("[b-d]", "d", "e"),
        ("[b-b]", "b", "a"),
        ("[^b-d]", "a", "b"),
        (r"[\]]", "]", "\\"),
        (r"[\d-]", "-", "d"),
        (r"[^\d]", "d", "7"),
        (r"[\D]", "d", "7"),
        (r"[\n-\r]", "\r", "n"),
        (r"[+\--0]", ".", ","),
        ("[a-]", "-", "b"),
        ("[]a]", "]", "b"),
        ("a?", "a", "aa"),
        ("a*", "aaa", "b"),
        ("a+", "aaa", ""),
        ("a{0}", "", "a"),
        ("a{2}", "aa", "aaa"),
        ("a{2}", "aa", "a"),
        ("a{2,}", "aaa", "a"),
        ("a{1,3}", "aaa", "aaaa"),
        ("a{0012}", "a" * 12, "a" * 11),
        ("a|b|cd", "cd", "ad"),
        ("(ab)+(?:c|d){2}", "ababcd", "abac"),
        ("^a$", "a", "b"),
    ],
)
def test_each_construct_matches_what_it_does_in_re(pattern: str, matched: str, other: str) -> None:
    ours, theirs = Pattern(pattern), re.compile(pattern)

    for text in (matched, other):
        assert ours.fullmatch(text, Steps()) is bool(theirs.fullmatch(text))
        assert ours.search(text, Steps()) is bool(theirs.search(text))
    assert not ours.fullmatch(other, Steps())


def test_a_pattern_may_be_as_large_as_the_limits_say() -> None:
    deepest = "(" * MAX_GROUPS + "a" + ")" * MAX_GROUPS

    assert Pattern("(a{254})").fullmatch("a" * 254, Steps())  # unfolds to 512 states
    assert Pattern(f"[{'-' * (MAX_PATTERN - 2)}]").fullmatch("-", Steps())
    assert Pattern(deepest).fullmatch("a", Steps())
    # Not in one another.
    assert Pattern("(a)" * (MAX_GROUPS + 1)).fullmatch("a" * (MAX_GROUPS + 1), Steps())


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


def test_all_of_its_steps_may_be_spent_and_not_one_more() -> None:
    counted = Steps(2)
    counted.spend(2)

    with pytest.raises(TooManySteps):
        counted.spend()


def test_a_character_costs_a_step_even_where_the_pattern_has_failed_before() -> None:
    with pytest.raises(TooManySteps):
        Pattern("a").fullmatch("b" * 100, Steps(100))


def test_each_state_that_is_passed_without_reading_costs_a_step() -> None:
    with pytest.raises(TooManySteps):
        Pattern("(a?){100}").fullmatch("", Steps(100))


@pytest.mark.parametrize(
    ("pattern", "what"),
    [
        ("(a", "character 3: '(' without ')'"),
        ("a)", "character 2: ')' without '('"),
        ("[a", "character 3: it ends too early"),
        ("a\\", "it ends too early"),
        ("*a", "character 2: '*' repeats nothing"),
        ("a**", "character 4: a repetition of a repetition"),
        ("a{", "'{' without a number"),
        ("a{1", "character 4: '{' without '}'"),
        ("a{3,2}", "at least 3 times and at most 2"),
        ("a{99999}", "over 9999 times"),
        ("[z-a]", "the range z-a is empty"),
        (r"(a)\1", r"'\1' is not supported"),
        (r"\bx", r"'\b' is not supported"),
        ("(?=a)", "look-around"),
        ("(" * 33 + ")" * 33, "over 32 groups"),
        ("((a{30}){30}){30}", "unfolds to over 512 states"),
        ("a{255}", "unfolds to over 512 states"),
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
