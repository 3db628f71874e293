"""The grammar: the seed's statements as it writes them, and errors that name token and place."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.reference.node.catalog.grammar import MAX_STATEMENT, parse
from clusters.reference.node.catalog.sql_errors import (
    IncompatibleOptions,
    ManualDataNodes,
    OptionValue,
    Place,
    SqlError,
    SqlSyntaxError,
)
from clusters.reference.node.catalog.statements import (
    AlterTable,
    AlterTableGroup,
    AlterZone,
    Column,
    CreateTable,
    CreateZone,
    Describe,
    DropTable,
    DropZone,
    Name,
    ResetPartitions,
    RestartPartitions,
    Select,
)


def options(text: str) -> dict[str, object]:
    statement = parse(text)
    without = (DropZone, DropTable, Describe, Select, ResetPartitions, RestartPartitions)
    assert not isinstance(statement, without)
    return {
        option.name: option.value.parts if isinstance(option.value, Name) else option.value
        for option in statement.options
    }


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (
            "CREATE ZONE zone1 WITH DATA_NODES_AUTO_ADJUST_SCALE_UP = 300, PARTITIONS = 1024, "
            "REPLICAS = 3, AFFINITY_FUNCTION = rendezvous; // Scale up only.",
            {
                "DATA_NODES_AUTO_ADJUST_SCALE_UP": 300,
                "PARTITIONS": 1024,
                "REPLICAS": 3,
                "AFFINITY_FUNCTION": ("RENDEZVOUS",),
            },
        ),
        (
            "CREATE ZONE zone2 WITH DATA_NODES_AUTO_ADJUST_SCALE_UP = 300, "
            "DATA_NODES_AUTO_ADJUST_SCALE_DOWN = 300; // Both scale up and scale down.",
            {"DATA_NODES_AUTO_ADJUST_SCALE_UP": 300, "DATA_NODES_AUTO_ADJUST_SCALE_DOWN": 300},
        ),
        (
            "CREATE ZONE zone2 WITH DATA_NODES_AUTO_ADJUST = 100; -- one value for both",
            {"DATA_NODES_AUTO_ADJUST": 100},
        ),
        (
            "CREATE ZONE zone1 WITH   DATA_NODES_AUTO_ADJUST_SCALE_UP = 300, "
            "DATA_NODES_AUTO_ADJUST_SCALE_DOWN= 300_000;",
            {"DATA_NODES_AUTO_ADJUST_SCALE_UP": 300, "DATA_NODES_AUTO_ADJUST_SCALE_DOWN": 300_000},
        ),
        (
            "ALTER ZONE Accounts WITH DATA_NODES_FILTER = \u2018(“US” || “EU”) && “SSD”\u2019",
            {"DATA_NODES_FILTER": "(“US” || “EU”) && “SSD”"},
        ),
        (
            "create zone z with (data_nodes_auto_adjust_scale_up = 1 & "
            "data_nodes_auto_adjust_scale_down = OFF), (partitions = 2)",
            {
                "DATA_NODES_AUTO_ADJUST_SCALE_UP": 1,
                "DATA_NODES_AUTO_ADJUST_SCALE_DOWN": ("OFF",),
                "PARTITIONS": 2,
            },
        ),
        ("ALTER ZONE z SET DATA_NODES_FILTER = 'it''s'", {"DATA_NODES_FILTER": "it's"}),
        # Typographic quotes end at their own other half: a quote within needs no second one.
        ("ALTER ZONE z SET DATA_NODES_FILTER = \u2018it''s\u2019", {"DATA_NODES_FILTER": "it''s"}),
        (
            "CREATE TABLE Accounts WITH PRIMARY_ZONE = a.b.zone1",
            {"PRIMARY_ZONE": ("A", "B", "ZONE1")},
        ),
        ("ALTER TABLE GROUP z SET REPLICAS = -1", {"REPLICAS": -1}),
    ],
)
def test_options_are_read_as_the_seed_writes_them(text: str, found: dict[str, object]) -> None:
    assert options(text) == found


@pytest.mark.parametrize(
    ("text", "kind", "soft"),
    [
        ("CREATE ZONE z", CreateZone, "if_not_exists"),
        ("CREATE ZONE IF NOT EXISTS z", CreateZone, "if_not_exists"),
        ("ALTER ZONE z SET REPLICAS = 1", AlterZone, "if_exists"),
        ("ALTER ZONE IF EXISTS z SET REPLICAS = 1", AlterZone, "if_exists"),
        ("DROP ZONE z", DropZone, "if_exists"),
        ("DROP ZONE IF EXISTS z;", DropZone, "if_exists"),
        ("CREATE TABLE z WITH PRIMARY_ZONE = y", CreateTable, "if_not_exists"),
        ("CREATE TABLE IF NOT EXISTS z WITH PRIMARY_ZONE = y", CreateTable, "if_not_exists"),
        ("ALTER TABLE z WITH PRIMARY_ZONE = y", AlterTable, "if_exists"),
        ("ALTER TABLE IF EXISTS z WITH PRIMARY_ZONE = y", AlterTable, "if_exists"),
        ("DROP TABLE z", DropTable, "if_exists"),
        ("DROP TABLE IF EXISTS z", DropTable, "if_exists"),
        ("ALTER TABLE GROUP z SET REPLICAS = 1", AlterTableGroup, "if_exists"),
        ("ALTER TABLE GROUP IF EXISTS z SET REPLICAS = 1", AlterTableGroup, "if_exists"),
    ],
)
def test_each_statement_with_and_without_if_exists(text: str, kind: type, soft: str) -> None:
    statement = parse(text)

    assert type(statement) is kind
    assert getattr(statement, soft) is (" IF " in text)
    assert statement.name.parts == ("Z",)


def test_describe_and_select_are_read() -> None:
    assert parse("DESCRIBE ZONE z") == Describe(kind="ZONE", name=Name(("Z",), Place(1, 15)))
    assert parse("describe table t;") == Describe(kind="TABLE", name=Name(("T",), Place(1, 16)))
    assert parse("DESCRIBE TABLE GROUP g") == Describe(
        kind="TABLE GROUP", name=Name(("G",), Place(1, 22))
    )
    everything = parse("SELECT * FROM SYSTEM.ZONES")
    assert isinstance(everything, Select)
    assert (everything.view.parts, everything.columns) == (("SYSTEM", "ZONES"), ())
    some = parse("SELECT a, b FROM SYSTEM.TABLES WHERE a = 'x' AND b = 1")
    assert isinstance(some, Select)
    assert some.columns == ("A", "B")
    assert [(equal.column, equal.value) for equal in some.where] == [("A", "x"), ("B", 1)]


def test_columns_are_read() -> None:
    statement = parse(
        'CREATE TABLE t (k BIGINT PRIMARY KEY, "v" varbinary(10)) WITH PRIMARY_ZONE=z'
    )

    assert isinstance(statement, CreateTable)
    assert statement.columns == (Column("K", "BIGINT", True), Column("v", "VARBINARY(10)"))


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("z", "Z"),
        ("public.z", "Z"),
        ("default.public.z", "Z"),
        ("s.z", "DEFAULT.S.Z"),
        ("d.s.z", "D.S.Z"),
        ('"z"', "z"),
        ('"a ""b"""', 'a "b"'),
        ("zone", "ZONE"),
        ("ifx", "IFX"),
    ],
)
def test_names_may_be_qualified_and_quoted(text: str, full: str) -> None:
    statement = parse(f"DROP ZONE {text}")

    assert isinstance(statement, DropZone)
    assert statement.name.full == full


NAMED: dict[str, Any] = {"kind": "ZONE", "name": Name(("Z",), Place(1, 26))}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("RESET PARTITIONS OF ZONE Z", ResetPartitions(**NAMED)),
        ("reset partitions of zone z;", ResetPartitions(**NAMED)),
        (
            "RESET PARTITIONS (0, 2, 2) OF TABLE a.t",
            ResetPartitions(kind="TABLE", name=Name(("A", "T"), Place(1, 37)), numbers=(0, 2)),
        ),
        (
            "RESTART PARTITIONS OF ZONE \"z\" ON 'n2', 'n1'",
            RestartPartitions(kind="ZONE", name=Name(("z",), Place(1, 28)), nodes=("n2", "n1")),
        ),
        (
            "RESTART PARTITIONS (7) OF TABLE reset",
            RestartPartitions(kind="TABLE", name=Name(("RESET",), Place(1, 33)), numbers=(7,)),
        ),
        (
            "restart partitions of zone z on 'n1' with cleanup;",
            RestartPartitions(
                kind="ZONE", name=Name(("Z",), Place(1, 28)), nodes=("n1",), cleanup=True
            ),
        ),
    ],
)
def test_statements_on_partitions(text: str, found: ResetPartitions | RestartPartitions) -> None:
    assert parse(text) == found


@pytest.mark.parametrize(
    ("text", "token"),
    [
        ("RESET PARTITIONS () OF ZONE z", ")"),
        ("RESET PARTITIONS ('1') OF ZONE z", "'1'"),
        ("RESET PARTITION OF ZONE z", "PARTITION"),
        ("RESET PARTITIONS OF ZONE z ON 'n1'", "ON"),
        ("RESTART PARTITIONS OF ZONE z ON n1", "n1"),
        ("RESTART PARTITIONS OF ZONE z ON 'n1' WITH CLEAN", "CLEAN"),
        ("RESET PARTITIONS OF ZONE z WITH CLEANUP", "WITH"),
    ],
)
def test_a_statement_on_partitions_that_is_wrong_names_the_token(text: str, token: str) -> None:
    with pytest.raises(SqlSyntaxError) as found:
        parse(text)
    assert found.value.token == token


@pytest.mark.parametrize("on", ["", " ON 'n1', 'n2'"])
def test_a_cleanup_is_of_exactly_one_node(on: str) -> None:
    with pytest.raises(IncompatibleOptions, match="ON names one") as found:
        parse(f"RESTART PARTITIONS OF ZONE z{on} WITH CLEANUP")
    assert found.value.token.upper() == "CLEANUP"


@pytest.mark.parametrize(
    ("text", "token", "place", "expected"),
    [
        (
            "",
            "",
            Place(1, 1),
            ("ALTER", "CREATE", "DESCRIBE", "DROP", "RESET", "RESTART", "SELECT"),
        ),
        ("CREATE FOO x", "FOO", Place(1, 8), ("TABLE", "ZONE")),
        ("CREATE ZONE", "", Place(1, 12), ("IF", "a name", "a quoted name")),
        ("CREATE ZONE z WITH\n  PARTITIONS 3", "3", Place(2, 14), ("'='",)),
        (
            "CREATE ZONE z PARTITIONS = 3",
            "PARTITIONS",
            Place(1, 15),
            ("'.'", "';'", "WITH", "the end"),
        ),
        (
            "CREATE ZONE z WITH REPLICAS = 300_",
            "300_",
            Place(1, 31),
            ("a name", "a number", "a quoted name", "a quoted text"),
        ),
        (
            "CREATE ZONE z WITH DATA_NODES_FILTER = 'US",
            "'US",
            Place(1, 40),
            ("a name", "a number", "a quoted name", "a quoted text"),
        ),
        ("CREATE TABLE t", "", Place(1, 15), ("'('", "WITH")),
        ("DROP ZONE a; DROP ZONE b", "DROP", Place(1, 14), ("the end",)),
        ("DROP ZONE a; ?", "?", Place(1, 14), ("the end",)),
        ("DROP ZONE a; 'x", "'x", Place(1, 14), ("the end",)),
        ("DROP ZONE a ?", "?", Place(1, 13), ("'.'", "';'", "the end")),
        ("DROP ZONE IF NOT EXISTS a", "NOT", Place(1, 14), ("EXISTS",)),
    ],
)
def test_an_error_names_token_place_and_what_was_expected(
    text: str, token: str, place: Place, expected: tuple[str, ...]
) -> None:
    with pytest.raises(SqlSyntaxError) as caught:
        parse(text)

    error = caught.value
    assert (error.token, error.place, error.expected) == (token, place, expected)
    assert str(place) in str(error)
    assert token in str(error)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "DROP ZONE IF x",
            "line 1, column 14: statement: 'x' is not expected here; expected EXISTS",
        ),
        ("DROP", "line 1, column 5: statement: it ends here; expected TABLE or ZONE"),
        (
            "CREATE ZONE",
            "line 1, column 12: statement: it ends here; expected IF, a name or a quoted name",
        ),
    ],
)
def test_an_error_reads_as_a_sentence(text: str, message: str) -> None:
    with pytest.raises(SqlSyntaxError) as caught:
        parse(text)

    assert str(caught.value) == message


def test_what_can_not_be_read_is_named_up_to_32_characters_or_a_space() -> None:
    for wrong, token in (("?" * 40, "?" * 32), ("?a b", "?a")):
        with pytest.raises(SqlSyntaxError) as caught:
            parse(f"DROP ZONE {wrong}")
        assert caught.value.token == token


@pytest.mark.parametrize(
    "text",
    ["ALTER ZONE z APPLY 'A, B'", "CREATE ZONE z WITH APPLY = 'A'", "ALTER ZONE z SET apply = 1"],
)
def test_apply_is_reserved(text: str) -> None:
    with pytest.raises(ManualDataNodes, match="manual data nodes are not supported") as caught:
        parse(text)

    assert caught.value.token.upper() == "APPLY"


def test_a_number_too_long_for_64_bits_is_refused_at_its_place() -> None:
    for number in ("123456789012345678", "-123_456_789_012_345_678"):
        assert options(f"CREATE ZONE z WITH REPLICAS = {number}") == {"REPLICAS": int(number)}
    with pytest.raises(OptionValue, match="at most 18 digits") as caught:
        parse("CREATE ZONE z WITH\n  REPLICAS = 1234567890123456789")

    assert caught.value.place == Place(2, 14)


def test_nesting_and_length_are_bounded() -> None:
    deep = "CREATE ZONE z WITH " + "(" * 7000 + "REPLICAS = 1" + ")" * 7000
    assert isinstance(parse(deep), CreateZone)

    longest = "DROP ZONE z".ljust(MAX_STATEMENT)
    assert isinstance(parse(longest), DropZone)
    with pytest.raises(SqlSyntaxError, match="at most 16384 characters"):
        parse(f"{longest} ")
    with pytest.raises(SqlSyntaxError, match="at most 16384 characters"):
        parse("-" * (MAX_STATEMENT + 1))


WORDS = st.sampled_from(
    re.findall(
        r"\S+",
        "CREATE ALTER DROP ZONE TABLE GROUP WITH SET IF NOT EXISTS DESCRIBE SELECT FROM PRIMARY "
        "KEY z a.b = , & ( ) ; 300_000 -1 'x' \"q\" OFF REPLICAS * // -- ? 'x",
    )
)


@given(st.lists(WORDS, max_size=12).map(" ".join))
def test_any_text_is_a_statement_or_a_named_error(text: str) -> None:
    try:
        parse(text)
    except SqlError as error:
        place = error.place
    else:
        place = Place(1, 1)
    assert place is not None
