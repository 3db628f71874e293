"""DESCRIBE and the system views."""

from __future__ import annotations

import msgspec
import pytest

from clusters.reference.node.catalog.catalog import Catalog
from clusters.reference.node.catalog.grammar import parse
from clusters.reference.node.catalog.nodes import Node
from clusters.reference.node.catalog.sql_errors import NoSuchObject
from clusters.reference.node.catalog.statements import Describe, Name, Select
from clusters.reference.node.catalog.views import VIEWS, ClusterState, Rows, answer


def state() -> ClusterState:
    catalog = Catalog()
    for text in (
        "CREATE ZONE plain",
        "CREATE ZONE joint WITH DATA_NODES_AUTO_ADJUST = 60, PARTITIONS = 2, "
        "STORAGE_PROFILES = 'fast,slow', DATA_NODES_FILTER = '\"SSD\"'",
        "CREATE TABLE accounts (id BIGINT PRIMARY KEY, balance INT) WITH PRIMARY_ZONE = joint",
        "CREATE TABLE orders WITH PRIMARY_ZONE = joint, STORAGE_PROFILE = slow",
    ):
        statement = parse(text)
        assert not isinstance(statement, (Describe, Select))
        catalog = catalog.apply(statement)
    return ClusterState(
        catalog=catalog,
        data_nodes={"ACCOUNTS": ("a", "b"), "ORDERS": ()},
        assignments={
            ("ACCOUNTS", 0): {"stable": ("a", "b"), "pending": ("b", "c")},
            ("ACCOUNTS", 1): {"stable": ("b",)},
        },
        standings={("ACCOUNTS", 0): ("MAJORITY", 0), ("ACCOUNTS", 1): ("MINORITY", 2)},
        topology=(Node(name="a", attributes={"SSD": None, "region": "EU"}), Node(name="b")),
        topology_revision=7,
        physical=("a", "b", "c"),
    )


def asked(text: str) -> Rows:
    query = parse(text)
    assert isinstance(query, (Describe, Select))
    return answer(query, state())


def test_describe_zone_shows_the_defaults() -> None:
    assert asked("DESCRIBE ZONE plain") == Rows(
        columns=("PROPERTY", "VALUE"),
        rows=(
            ("ZONE_NAME", "PLAIN"),
            ("ZONE_ID", 1),
            ("PARTITIONS", 25),
            ("REPLICAS", 1),
            ("AFFINITY_FUNCTION", "rendezvous"),
            ("DATA_NODES_AUTO_ADJUST", None),
            ("DATA_NODES_AUTO_ADJUST_SCALE_UP", "0"),
            ("DATA_NODES_AUTO_ADJUST_SCALE_DOWN", "OFF"),
            ("DATA_NODES_FILTER", "$..*"),
            ("STORAGE_PROFILES", "default"),
            ("CONSISTENCY_MODE", "STRONG_CONSISTENCY"),
            ("PARTITION_DISTRIBUTION_RESET_TIMEOUT", 0),
        ),
    )


def test_describe_table_shows_its_data_nodes_its_columns_and_its_zones_configuration() -> None:
    rows = dict(asked("DESCRIBE TABLE accounts").rows)

    assert rows["PRIMARY_ZONE"] == "JOINT"
    assert rows["DATA_NODES"] == "a,b"
    assert rows["STORAGE_PROFILE"] == "fast"
    assert (rows["COLUMN ID"], rows["COLUMN BALANCE"]) == ("BIGINT PRIMARY KEY", "INT")
    assert (rows["DATA_NODES_AUTO_ADJUST"], rows["DATA_NODES_AUTO_ADJUST_SCALE_UP"]) == ("60", None)
    assert rows["DATA_NODES_FILTER"] == '"SSD"'


def test_data_nodes_that_are_not_known_yet_are_null_and_none_are_an_empty_text() -> None:
    described = Describe(kind="TABLE", name=Name(("ORDERS",)))
    unknown = msgspec.structs.replace(state(), data_nodes={})

    assert dict(answer(described, state()).rows)["DATA_NODES"] == ""
    assert dict(answer(described, unknown).rows)["DATA_NODES"] is None


def test_a_table_group_is_all_tables_of_one_zone() -> None:
    found = asked("DESCRIBE TABLE GROUP joint")

    assert found.columns == (
        "TABLE_NAME",
        "TABLE_ID",
        "PRIMARY_ZONE",
        "STORAGE_PROFILE",
        "DATA_NODES",
    )
    assert found.rows == (
        ("ACCOUNTS", 3, "JOINT", "fast", "a,b"),
        ("ORDERS", 4, "JOINT", "slow", ""),
    )
    assert asked("DESCRIBE TABLE GROUP plain").rows == ()


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("SELECT ZONE_NAME, PARTITIONS FROM SYSTEM.ZONES", (("JOINT", 2), ("PLAIN", 25))),
        ("SELECT ZONE_NAME FROM system.zones WHERE REPLICAS = 1 AND PARTITIONS = 2", (("JOINT",),)),
        (
            "SELECT * FROM SYSTEM.ZONE_STORAGE_PROFILES WHERE ZONE_NAME = 'JOINT'",
            (("JOINT", "fast"), ("JOINT", "slow")),
        ),
        ("SELECT TABLE_NAME, DATA_NODES FROM SYSTEM.TABLES", (("ACCOUNTS", "a,b"), ("ORDERS", ""))),
        ("SELECT NODE_NAME FROM SYSTEM.DATA_NODES", (("a",), ("b",))),
        (
            "SELECT * FROM SYSTEM.ASSIGNMENTS",
            (
                ("ACCOUNTS", 0, "stable", "a,b"),
                ("ACCOUNTS", 0, "pending", "b,c"),
                ("ACCOUNTS", 1, "stable", "b"),
            ),
        ),
        (
            "SELECT * FROM SYSTEM.PARTITION_STATES",
            (("ACCOUNTS", 0, "MAJORITY", 0, "a,b"), ("ACCOUNTS", 1, "MINORITY", 2, "b")),
        ),
    ],
)
def test_system_views(text: str, rows: tuple) -> None:
    assert asked(text).rows == rows


def test_topologies_show_what_nodes_announce() -> None:
    rows = asked("SELECT * FROM SYSTEM.LOGICAL_TOPOLOGY").rows

    assert rows == (("a", "SSD,region=EU", "default", 7), ("b", "", "default", 7))
    assert asked("SELECT * FROM SYSTEM.PHYSICAL_TOPOLOGY").rows == (("a",), ("b",), ("c",))


@pytest.mark.parametrize("view", VIEWS)
def test_every_row_of_a_view_has_its_columns(view: str) -> None:
    everything = Select(view=Name(("SYSTEM", view)))

    found = answer(everything, state())

    assert found.rows
    assert {len(row) for row in found.rows} == {len(found.columns)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("DESCRIBE ZONE x", "there is no zone 'X'"),
        ("DESCRIBE TABLE x", "there is no table 'X'"),
        ("DESCRIBE TABLE GROUP x", "there is no table group 'X'"),
        ("SELECT * FROM ZONES", "there is no system view 'ZONES'; expected SYSTEM.ZONES"),
        ("SELECT * FROM SYSTEM.X", "there is no system view 'SYSTEM.X'"),
        ("SELECT X FROM SYSTEM.ZONES", "there is no column 'SYSTEM.ZONES.X'"),
        ("SELECT * FROM SYSTEM.ZONES WHERE X = 1", "there is no column 'SYSTEM.ZONES.X'"),
    ],
)
def test_what_there_is_not_is_named(text: str, message: str) -> None:
    with pytest.raises(NoSuchObject, match=message):
        asked(text)
