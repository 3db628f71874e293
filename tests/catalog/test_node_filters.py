"""Node filters: the seed's examples, the vectors of Ignite 3, errors and bounds."""

from __future__ import annotations

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.reference.node.catalog.filters import (
    EVERYTHING,
    MAX_FILTER,
    filtered,
    matches,
    parse,
)
from clusters.reference.node.catalog.nodes import MAX_ATTRIBUTES, Node
from clusters.reference.node.catalog.sql_errors import FilterError, Place

# The seed's three nodes ("DATA_NODES_FILTER rule").
A = Node(name="Node A", attributes={"EU": None, "SSD": None})
B = Node(name="Node B", attributes={"COMPUTE_ONLY": None, "HDD": None})
C = Node(name="Node C", attributes={"US": None, "SSD": None})
# The same as attributes with values, as Ignite 3 has them.
VALUED = Node(name="n", attributes={"region": "US", "storage": "SSD", "dataRegionSize": 10})
WITHOUT_REGION = Node(name="n", attributes={"storage": "SSD", "dataRegionSize": 10})
BARE = Node(name="n")


def chosen(text: str) -> str:
    return "".join(node.name[-1] for node in filtered(text, (A, B, C)))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        # the two examples of the seed, as it writes them
        ("(“US” || “EU”) && “SSD”", "AC"),
        ("“Node B” || “Node C”", "BC"),
        ('"US"', "C"),
        ('"US", "EU"', "AC"),
        ('!"SSD"', "B"),
        ('!!"SSD"', "AC"),
        ('!("US" || "EU")', "B"),
        ('!"US", "EU"', "B"),
        ('"US" || "EU" && "HDD"', "C"),
        ('("US" || "EU") && "HDD"', ""),
        ('"US", "EU" && "SSD"', "AC"),
        ('contains("_ON")', "B"),
        ('contains("Node")', "ABC"),
        ('contains("node")', ""),
        ("/^S+D$/", "AC"),
        ("/S/", "AC"),
        ("/^S$/", ""),
        ("/Node [AB]/", "AB"),
        ('/Node [AB]/, "US"', "ABC"),
        (r'"a\"b" || "SSD"', "AC"),
        ("$..*", "ABC"),
        ("$.US", "C"),
        ("$[?@.name == 'Node B']", "B"),
    ],
)
def test_a_filter_chooses(text: str, names: str) -> None:
    assert chosen(text) == names


def test_words_match_names_tags_and_values_but_no_names_of_valued_attributes() -> None:
    node = Node(
        name="n1", attributes={"fast": None, "zone": "EU", "size": 10, "gpu": True, "hdd": False}
    )

    for word in ("n1", "fast", "EU", "10", "true", "false"):
        assert matches(parse(f'"{word}"'), node)
    for word in ("zone", "size", "True", "False", "E"):
        assert not matches(parse(f'"{word}"'), node)


@pytest.mark.parametrize(
    ("text", "node", "passes"),
    [
        ("$[?(@.dataRegionSize == 10)]", VALUED, True),
        ("$[?(@.region == 'US')]", VALUED, True),
        ("$[?(@.dataRegionSize == 10 && @.region == 'US')]", VALUED, True),
        ("$[?(@.dataRegionSize == 10 && @.region == 'US')]", WITHOUT_REGION, False),
        ("$[?(@.dataRegionSize == 10 && @.region == 'US')]", BARE, False),
        (EVERYTHING, VALUED, True),
        (EVERYTHING, BARE, True),
        ("$.[?(@.newValue == 100)]", VALUED, False),
        ("$.[?(@.newValue != 100)]", VALUED, True),
    ],
)
def test_jsonpath_decides_as_ignite_3_does(text: str, node: Node, passes: bool) -> None:
    assert matches(parse(text), node) is passes


@pytest.mark.parametrize(
    ("text", "passes"),
    [
        ("$[?search(@.storage, 'S')]", True),
        ("$[?match(@.storage, 'S')]", False),
        ("$[?match(@.storage, 'S+D')]", True),
        ("$[?(@.storage =~ /S+D/)]", True),
        ("$[?(@.storage =~ /S+/)]", False),
        ("$[?search(@.storage, '(')]", False),
        # A library's own would take a look behind.
        ("$[?search(@.storage, '(?<=S)D')]", False),
        ("$[?match(@.storage, '(?=S)SSD')]", False),
        ("$[?length(@.storage) == 3]", True),
        ("$[?@.dataRegionSize > 5]", True),
        ("$[?@.dataRegionSize > 15]", False),
        # What is no text, or no pattern, is no match, and what stands around it decides.
        ("$[?(@.dataRegionSize =~ /10/)]", False),
        ("$[?!(@.dataRegionSize =~ /10/)]", True),
        ("$[?!(@.storage =~ 'SSD')]", True),
        ("$[?!match(@.dataRegionSize, '10')]", True),
        ("$[?!match(@.storage, @.dataRegionSize)]", True),
        # What the library can't do with a type is no match at all.
        ("$[?(@.storage contains 10)]", False),
    ],
)
def test_patterns_in_jsonpath_are_ours(text: str, passes: bool) -> None:
    assert matches(parse(text), VALUED) is passes


@pytest.mark.parametrize(
    ("text", "token", "place", "expected"),
    [
        ('"US" "EU"', '"EU"', Place(1, 6), ("'&&'", "','", "'||'", "the end")),
        ('"US" ?', "?", Place(1, 6), ("'&&'", "','", "'||'", "the end")),
        ('("US"', "", Place(1, 6), ("')'",)),
        (
            '"US" &&\n  US',
            "US",
            Place(2, 3),
            ("'!'", "'('", "/a pattern/", "CONTAINS", "a quoted word"),
        ),
        ("", "", Place(1, 1), ("'!'", "'('", "/a pattern/", "CONTAINS", "a quoted word")),
        ('"US" && /a**/', "/a**/", Place(1, 9), ("/a pattern/",)),
        ("contains(US)", "US)", Place(1, 10), ("a quoted word",)),
    ],
)
def test_an_error_names_token_place_and_what_was_expected(
    text: str, token: str, place: Place, expected: tuple[str, ...]
) -> None:
    with pytest.raises(FilterError) as caught:
        parse(text)

    assert (caught.value.token, caught.value.place, caught.value.expected) == (
        token,
        place,
        expected,
    )
    assert str(place) in str(caught.value)


def test_an_error_of_a_pattern_says_what_is_wrong_with_it() -> None:
    with pytest.raises(FilterError) as caught:
        parse('"US" && /a**/')

    assert str(caught.value) == (
        "line 1, column 9: filter: pattern /a**/, character 4: a repetition of a repetition "
        "(group it)"
    )


def test_a_filter_that_is_none_is_refused_even_where_there_are_no_nodes() -> None:
    assert filtered('"US"', ()) == ()
    with pytest.raises(FilterError):
        filtered('"US" &&', ())


def test_a_filter_may_be_as_large_as_the_limits_say() -> None:
    longest = '"US"'.ljust(MAX_FILTER)
    nested = "$[?" + "!" * 62 + "@.region]"

    assert matches(parse(longest), VALUED)
    with pytest.raises(FilterError, match="at most 512 characters"):
        parse(longest + " ")
    assert matches(parse(nested), VALUED)
    assert not matches(parse(nested.replace("?", "?!")), VALUED)  # 64 brackets and negations
    with pytest.raises(FilterError, match="over 64 brackets and negations"):
        parse(nested.replace("?", "?!!"))


def test_two_negations_are_none() -> None:
    assert parse('!!"US"') == parse('"US"')
    assert parse('!(!!"US")') == parse('!"US"')


@pytest.mark.parametrize(
    "text",
    [
        "$[?(",
        "$[",
        "$[?@.a == 1e999]",
        "$[?@.a =~ /(/]",
        "$[?(@.a =~ /a/i)]",
        "$[?unheard(@.a)]",
        "$[?" + "(" * 300,
        '"' + "x" * MAX_FILTER + '"',
    ],
)
def test_what_is_no_filter_is_refused(text: str) -> None:
    with pytest.raises(FilterError):
        parse(text)


# A node as large as a node may be, so that what explodes does.
LARGE = Node(name="n", attributes={f"a{number}": "a" * 256 for number in range(MAX_ATTRIBUTES)})
HOSTILE = [
    "/(a+)+$/ || " * 30 + "/(a|a)*b/",
    "/(a{1,100}){2}b/",
    "/(.*)(.*)(.*)(.*)(.*)b/",
    "$..[?" + "$..[?" * 20 + "@" + "]" * 21,
    "$[?search(@.a1, '(a+)+b')]",
    "$[?(" + " || ".join(["@.a1 =~ /(a|aa)+b/"] * 20) + ")]",
    "$..[" + ",".join(["?$..*[?$..*[?@ == 1]]"] * 8) + "]",
    "$" + "..*" * 100,
    "!" * 500 + '"a"',
    "(" * 250 + '"a"' + ")" * 250,
]


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_no_filter_takes_long(number: int) -> None:
    expression = parse(HOSTILE[number])
    began = time.process_time()

    matches(expression, LARGE)

    # Measured: at most 0.1 s for what uses all its steps up; without them minutes, or for ever.
    assert time.process_time() - began < 1


def test_a_decision_is_made_once_for_a_node_however_often_it_is_asked_for() -> None:
    nodes = [msgspec.structs.replace(LARGE, name=f"n{number}") for number in range(5)]
    filtered(HOSTILE[1], nodes)
    began = time.process_time()

    for _ in range(50):
        filtered(HOSTILE[1], nodes)

    assert time.process_time() - began < 1  # anew each time it would take more than that of each


def test_a_node_with_other_attributes_is_decided_anew() -> None:
    assert filtered('"US"', (C,)) == (C,)
    other = msgspec.structs.replace(C, attributes={"EU": None})
    assert filtered('"US"', (other,)) == ()


def test_a_pattern_reaches_the_last_word_of_the_largest_node() -> None:
    last = msgspec.structs.replace(LARGE, attributes={**LARGE.attributes, "a63": "b" * 256})

    assert matches(parse("/b$/"), last)


def test_what_uses_its_steps_up_is_passed_by_no_node() -> None:
    text = "/(a{1,100}){2}b/"

    assert not matches(parse(text), LARGE)
    assert not matches(parse(f"!{text}"), LARGE)
    assert matches(parse(f"!{text}"), BARE)


def sized(count: int) -> Node:
    return Node(name="n", attributes={f"a{number}": "a" for number in range(count)})


# Half of what the first costs is names that are gone through and half values that are looked up;
# most of what the second costs is comparisons.
@pytest.mark.parametrize(
    ("text", "affordable", "too_large"),
    [
        ("$[?count($..[?count($..*) == 0]) == 0]", 30, 45),
        (f"$[?count($..[?$..[?{'||'.join(['1==2'] * 60)}]]) == 0]", 20, 24),
    ],
    ids=["accesses", "comparisons"],
)
def test_each_access_and_each_comparison_of_a_jsonpath_costs_steps(
    text: str, affordable: int, too_large: int
) -> None:
    for _ in range(2):  # the steps are those of one decision
        assert matches(parse(text), sized(affordable))
        assert not matches(parse(text), sized(too_large))


def test_a_word_of_a_filter_costs_a_step_for_each_word_of_the_node() -> None:
    node = Node(name="n", attributes={f"a{at}": "a" * 256 for at in range(42)} | {"last": "ab"})
    words = '"x",' * 100

    assert matches(parse(words + '"ab"'), node)
    assert matches(parse("/ab/"), node)  # of its 100 000 steps it leaves some 3 000
    assert not matches(parse(words + "/ab/"), node)


WORDS = st.sampled_from(["US", "EU", "SSD", "HDD", "Node A"])
EXPRESSIONS = st.recursive(
    WORDS.map(lambda word: (f'"{word}"', frozenset({word}), "word")),
    lambda inner: st.one_of(
        inner.map(lambda one: (f"!({one[0]})", one, "not")),
        st.tuples(inner, inner).map(lambda two: (f"({two[0][0]}) && ({two[1][0]})", two, "and")),
        st.tuples(inner, inner).map(lambda two: (f"({two[0][0]}) || ({two[1][0]})", two, "or")),
    ),
    max_leaves=8,
)


def holds(expression: tuple, words: tuple[str, ...]) -> bool:
    _, inner, kind = expression
    if kind == "word":
        return bool(inner & set(words))
    if kind == "not":
        return not holds(inner, words)
    both = [holds(one, words) for one in inner]
    return all(both) if kind == "and" else any(both)


@given(EXPRESSIONS)
def test_an_expression_means_what_its_connectives_mean(expression: tuple) -> None:
    for node in (A, B, C):
        assert matches(parse(expression[0]), node) is holds(expression, node.words)


@given(st.text(alphabet='"US”“()!&|,/a*+contais$[?@.=~ ]', max_size=60))
def test_any_text_is_a_filter_or_is_refused_by_name(text: str) -> None:
    try:
        expression = parse(text)
    except FilterError:  # any other error fails the test
        return
    for node in (A, VALUED, BARE):
        matches(expression, node)


def test_a_node_with_too_many_or_too_long_attributes_is_refused() -> None:
    for attributes in (
        {f"a{number}": 1 for number in range(MAX_ATTRIBUTES + 1)},
        {"a": "x" * 257},
        {"x" * 257: 1},
    ):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert({"name": "n", "attributes": attributes}, Node)
