"""The catalog: defaults, the compatibility matrix, overrides, tables, drops, compare-and-set."""

from __future__ import annotations

from itertools import combinations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusters.reference.node.catalog import catalog as catalogs
from clusters.reference.node.catalog.catalog import Catalog
from clusters.reference.node.catalog.filters import EVERYTHING
from clusters.reference.node.catalog.grammar import parse
from clusters.reference.node.catalog.options import Joint, Separate, Zone, timer_warnings
from clusters.reference.node.catalog.sql_errors import (
    FilterError,
    IncompatibleOptions,
    NoSuchObject,
    NotAlterable,
    ObjectExists,
    OptionValue,
    PartitionsDiffer,
    Place,
    RepeatedOption,
    SqlError,
    UnknownOption,
    ZoneInUse,
)
from clusters.reference.node.catalog.statements import Describe, Select
from clusters.reference.node.metastorage.metastorage import Metastorage, encode_invoke
from clusters.reference.node.raft.types import Entry

UP = "DATA_NODES_AUTO_ADJUST_SCALE_UP"
DOWN = "DATA_NODES_AUTO_ADJUST_SCALE_DOWN"
JOINT = "DATA_NODES_AUTO_ADJUST"
FILTER = "DATA_NODES_FILTER"


def after(*texts: str, catalog: Catalog | None = None) -> Catalog:
    held = catalog or Catalog()
    for text in texts:
        statement = parse(text)
        assert not isinstance(statement, (Describe, Select))
        held = held.apply(statement)
    return held


def zone(*texts: str) -> Zone:
    return after(*texts).zones["Z"]


# -- defaults and values


def test_a_zone_that_says_nothing_has_the_defaults() -> None:
    assert zone("CREATE ZONE z") == Zone(
        id=1,
        name="Z",
        partitions=25,
        replicas=1,
        affinity="rendezvous",
        waits=Separate(up_s=0, down_s=None),
        filter=EVERYTHING,
        profiles=("default",),
    )


def test_every_option_is_kept() -> None:
    made = zone(
        "CREATE ZONE z WITH DATA_NODES_AUTO_ADJUST_SCALE_UP = 300, "
        "DATA_NODES_AUTO_ADJUST_SCALE_DOWN = 300_000, DATA_NODES_FILTER = '\"SSD\"', "
        "PARTITIONS = 1024, REPLICAS = 3, AFFINITY_FUNCTION = Rendezvous, "
        "STORAGE_PROFILES = 'fast, slow'"
    )

    assert made == Zone(
        id=1,
        name="Z",
        partitions=1024,
        replicas=3,
        waits=Separate(300, 300_000),
        filter='"SSD"',
        profiles=("fast", "slow"),
    )


@pytest.mark.parametrize(
    ("option", "message"),
    [
        (f"{UP} = -1", f"{UP} must be seconds from 0 to 2147483647, or OFF (got -1)"),
        (f"{DOWN} = 3_000_000_000", f"{DOWN} must be seconds"),
        (f"{JOINT} = 'a'", f"{JOINT} must be seconds"),
        (f"{JOINT} = never", f"{JOINT} must be seconds"),
        (f"{FILTER} = 3", f"{FILTER} must be a filter in quotes (got 3)"),
        ("PARTITIONS = 0", "PARTITIONS must be a number from 1 to 1024 (got 0)"),
        ("PARTITIONS = 1_025", "PARTITIONS must be a number from 1 to 1024 (got 1_025)"),
        ("REPLICAS = 0", "REPLICAS must be a number from 1 to 100 (got 0)"),
        ("REPLICAS = all", "REPLICAS must be a number"),
        ("AFFINITY_FUNCTION = modulo", "AFFINITY_FUNCTION must be one of rendezvous (got MODULO)"),
        ("AFFINITY_FUNCTION = 3", "AFFINITY_FUNCTION must be one of rendezvous (got 3)"),
        ("AFFINITY_FUNCTION = rendezvous.x", "must be one of rendezvous (got RENDEZVOUS.X)"),
        ("CONSISTENCY_MODE = 3", "must be STRONG_CONSISTENCY or HIGH_AVAILABILITY (got 3)"),
        ("STORAGE_PROFILES = 3", "STORAGE_PROFILES must be 1 to 16 different names"),
        ("STORAGE_PROFILES = fast", "STORAGE_PROFILES must be 1 to 16 different names in quotes"),
        ("STORAGE_PROFILES = 'a,,b'", "STORAGE_PROFILES must be 1 to 16 different names"),
        ("STORAGE_PROFILES = 'a,a'", "STORAGE_PROFILES must be 1 to 16 different names"),
    ],
)
def test_a_value_that_can_not_be_is_refused_at_its_place(option: str, message: str) -> None:
    text = f"CREATE ZONE z WITH {option}"
    with pytest.raises(OptionValue) as caught:
        after(text)

    assert message in str(caught.value)
    assert caught.value.place == Place(1, text.index("=") + 3)
    assert caught.value.expected


def test_a_zone_has_at_most_16_storage_profiles() -> None:
    names = tuple(f"p{number}" for number in range(17))

    made = zone(f"CREATE ZONE z WITH STORAGE_PROFILES = '{','.join(names[:16])}'")
    assert made.profiles == names[:16]
    with pytest.raises(OptionValue, match="STORAGE_PROFILES must be 1 to 16 different names"):
        after(f"CREATE ZONE z WITH STORAGE_PROFILES = '{','.join(names)}'")


def test_a_filter_that_is_none_is_refused_in_the_statement() -> None:
    with pytest.raises(FilterError, match="expected") as caught:
        after("CREATE ZONE z WITH DATA_NODES_FILTER = '\"US\" &&'")

    assert caught.value.place == Place(1, 40)


def test_options_that_are_unknown_or_set_twice_are_refused_by_name() -> None:
    with pytest.raises(UnknownOption, match="'PARTITION' is no option of a zone") as unknown:
        after("CREATE ZONE z WITH PARTITION = 3")
    with pytest.raises(RepeatedOption, match="REPLICAS is set twice") as twice:
        after("CREATE ZONE z WITH REPLICAS = 3, REPLICAS = 3")

    assert unknown.value.place == Place(1, 20)
    assert "PARTITIONS" in unknown.value.expected
    assert twice.value.place == Place(1, 34)


# -- the compatibility matrix and the override rules

VALUES = {UP: 7, DOWN: 8, JOINT: 9, FILTER: '"US"'}
SUBSETS = [names for size in range(1, 5) for names in combinations(VALUES, size)]
STATES = {
    "none": (),
    "up": (f"{UP} = 1",),
    "down": (f"{DOWN} = 2",),
    "up-and-down": (f"{UP} = 1", f"{DOWN} = 2"),
    "joint": (f"{JOINT} = 3",),
    "filter": (f"{FILTER} = '\"EU\"'",),
}
BEFORE: dict[str, tuple[Separate | Joint, str]] = {
    "none": (Separate(0, None), EVERYTHING),
    "up": (Separate(1, None), EVERYTHING),
    "down": (Separate(0, 2), EVERYTHING),
    "up-and-down": (Separate(1, 2), EVERYTHING),
    "joint": (Joint(3), EVERYTHING),
    "filter": (Separate(0, None), '"EU"'),
}


def written(names: tuple[str, ...]) -> str:
    return ", ".join(
        f"{n} = '{v}'" if n == FILTER else f"{n} = {v}" for n, v in VALUES.items() if n in names
    )


def named(subset: tuple[str, ...]) -> str:
    short = {UP: "up", DOWN: "down", JOINT: "joint", FILTER: "filter"}
    return "-".join(short[name] for name in subset)


def compatible(subset: tuple[str, ...]) -> bool:
    """The seed's table: AUTO_ADJUST excludes SCALE_UP, SCALE_DOWN and both of them together."""
    return not (JOINT in subset and {UP, DOWN} & set(subset))


def expected(subset: tuple[str, ...], state: str) -> tuple[Separate | Joint, str]:
    """The override rules, written out by state: what the seed says, and ``Separate()`` where a
    zone had one wait for both.
    """
    waits, text = BEFORE[state]
    kept = {"up": {"up": 1}, "down": {"down": 2}, "up-and-down": {"up": 1, "down": 2}}.get(
        state, {}
    )
    if JOINT in subset:
        waits = Joint(9)
    elif UP in subset and DOWN in subset:
        waits = Separate(7, 8)
    elif UP in subset:
        waits = Separate(7, kept.get("down"))
    elif DOWN in subset:
        waits = Separate(kept.get("up", 0), 8)
    return waits, '"US"' if FILTER in subset else text


def test_there_are_fifteen_subsets_and_two_of_the_three_kinds_of_waits_exclude_each_other() -> None:
    assert len(SUBSETS) == 15
    assert sum(map(compatible, SUBSETS)) == 9


@pytest.mark.parametrize("subset", SUBSETS, ids=named)
def test_the_matrix_at_create(subset: tuple[str, ...]) -> None:
    text = f"CREATE ZONE z WITH {written(subset)}"
    if not compatible(subset):
        with pytest.raises(IncompatibleOptions, match=f"{JOINT} is incompatible with") as caught:
            after(text)
        assert caught.value.place is not None
        assert caught.value.token == JOINT  # it is written last
        return

    made = zone(text)

    assert (made.waits, made.filter) == expected(subset, "none")


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("subset", SUBSETS, ids=named)
@pytest.mark.parametrize(
    "verb", ["ALTER ZONE z WITH", "ALTER ZONE z SET", "ALTER TABLE GROUP z SET"]
)
def test_the_matrix_and_the_overrides_at_alter(
    verb: str, subset: tuple[str, ...], state: str
) -> None:
    options = " & ".join(STATES[state])
    before = after(f"CREATE ZONE z WITH {options}" if options else "CREATE ZONE z")
    text = f"{verb} {written(subset)}"
    if not compatible(subset):
        with pytest.raises(IncompatibleOptions):
            after(text, catalog=before)
        return

    altered = after(text, catalog=before).zones["Z"]

    assert (altered.waits, altered.filter) == expected(subset, state)
    assert (altered.partitions, altered.replicas) == (25, 1)


# The seed's own three examples, one after the other ("Override rules").
ACCOUNTS = (
    "CREATE ZONE Accounts WITH\n\tDATA_NODES_AUTO_ADJUST_SCALE_UP = 300,\n"
    "\tDATA_NODES_AUTO_ADJUST_SCALE_DOWN = 300_000;"
)


@pytest.mark.parametrize(
    ("text", "waits", "text_of_filter"),
    [
        (
            "ALTER ZONE Accounts WITH\n\tDATA_NODES_AUTO_ADJUST_SCALE_UP = 500",
            Separate(500, 300_000),
            EVERYTHING,
        ),
        ("ALTER ZONE Accounts WITH DATA_NODES_AUTO_ADJUST = 1000", Joint(1000), EVERYTHING),
        (
            "ALTER ZONE Accounts WITH DATA_NODES_FILTER = \u2018(“US” || “EU”) && “SSD”\u2019",
            Separate(300, 300_000),
            "(“US” || “EU”) && “SSD”",
        ),
    ],
    ids=["scale-up", "joint", "filter"],
)
def test_the_seeds_examples_of_overrides(
    text: str, waits: Separate | Joint, text_of_filter: str
) -> None:
    altered = after(ACCOUNTS, text).zones["ACCOUNTS"]

    assert (altered.waits, altered.filter) == (waits, text_of_filter)


def test_waits_may_be_off_in_each_way() -> None:
    assert zone(f"CREATE ZONE z WITH {UP} = OFF").waits == Separate(None, None)
    assert zone(f"CREATE ZONE z WITH {JOINT} = off").waits == Joint(None)
    assert zone(
        f"CREATE ZONE z WITH {DOWN} = 5", f"ALTER ZONE z SET {DOWN} = OFF"
    ).waits == Separate(0, None)


@pytest.mark.parametrize("option", ["PARTITIONS = 3", "STORAGE_PROFILES = 'a'"])
def test_what_decides_where_data_lies_can_not_be_altered(option: str) -> None:
    with pytest.raises(NotAlterable, match=f"zone 'Z': {option.split()[0]} can't be altered"):
        after("CREATE ZONE z", f"ALTER ZONE z SET REPLICAS = 2, {option}")


# -- existence


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("CREATE ZONE z", ObjectExists, "zone 'Z' exists already"),
        ("ALTER ZONE y SET REPLICAS = 1", NoSuchObject, "there is no zone 'Y'"),
        ("DROP ZONE y", NoSuchObject, "there is no zone 'Y'"),
        ("DROP ZONE z", ZoneInUse, "it is the primary zone of T"),
        ("ALTER TABLE GROUP y SET REPLICAS = 1", NoSuchObject, "there is no table group 'Y'"),
        ("CREATE TABLE t WITH PRIMARY_ZONE = z", ObjectExists, "table 'T' exists already"),
        ("CREATE TABLE u WITH PRIMARY_ZONE = y", NoSuchObject, "there is no zone 'Y'"),
        ("CREATE TABLE u WITH PRIMARY_ZONE = 3", OptionValue, "must be the name of a zone (got 3)"),
        ("CREATE TABLE u WITH STORAGE_PROFILE = a", OptionValue, "needs a PRIMARY_ZONE"),
        ("CREATE TABLE u WITH REPLICAS = 3", UnknownOption, "no option of a table"),
        ("ALTER TABLE u SET PRIMARY_ZONE = z", NoSuchObject, "there is no table 'U'"),
        ("ALTER TABLE t SET STORAGE_PROFILE = a", NotAlterable, "STORAGE_PROFILE can't be altered"),
        ("DROP TABLE u", NoSuchObject, "there is no table 'U'"),
    ],
)
def test_what_is_not_as_the_statement_needs_is_named(
    text: str, error: type[SqlError], message: str
) -> None:
    before = after("CREATE ZONE z", "CREATE TABLE t WITH PRIMARY_ZONE = z")

    with pytest.raises(error) as caught:
        after(text, catalog=before)

    assert message in str(caught.value)
    assert caught.value.place is not None


@pytest.mark.parametrize(
    "text",
    [
        "CREATE ZONE IF NOT EXISTS z WITH REPLICAS = 3",
        "ALTER ZONE IF EXISTS y SET REPLICAS = 3",
        "ALTER TABLE GROUP IF EXISTS y SET REPLICAS = 3",
        "ALTER ZONE z SET REPLICAS = 1",
        "ALTER ZONE z SET CONSISTENCY_MODE = STRONG_CONSISTENCY",
        "DROP ZONE IF EXISTS y",
        "CREATE TABLE IF NOT EXISTS t WITH PRIMARY_ZONE = z",
        "ALTER TABLE IF EXISTS u SET PRIMARY_ZONE = z",
        "ALTER TABLE t SET PRIMARY_ZONE = z",
        "DROP TABLE IF EXISTS u",
    ],
)
def test_what_changes_nothing_leaves_the_very_catalog(text: str) -> None:
    before = after("CREATE ZONE z", "CREATE TABLE t WITH PRIMARY_ZONE = z")

    assert after(text, catalog=before) is before


def test_if_exists_excuses_no_option_that_is_wrong() -> None:
    with pytest.raises(UnknownOption):
        after("ALTER ZONE IF EXISTS y SET REPLICA = 3")
    with pytest.raises(OptionValue):
        after("CREATE ZONE z", "CREATE ZONE IF NOT EXISTS z WITH REPLICAS = 0")
    with pytest.raises(NotAlterable, match="is an option of its primary zone: ALTER ZONE"):
        after("ALTER TABLE IF EXISTS u SET REPLICAS = 3")


def test_if_exists_carries_out_the_statement_on_what_there_is() -> None:
    made = after(
        "CREATE ZONE z",
        "CREATE ZONE y",
        "CREATE TABLE t WITH PRIMARY_ZONE = z",
        "ALTER ZONE IF EXISTS z SET REPLICAS = 2",
        "ALTER TABLE GROUP IF EXISTS y SET REPLICAS = 3",
        "ALTER TABLE IF EXISTS t SET PRIMARY_ZONE = y",
    )

    assert [made.zones[name].replicas for name in ("Z", "Y")] == [2, 3]
    assert made.tables["T"].zone == "Y"
    emptied = after("DROP TABLE IF EXISTS t", "DROP ZONE IF EXISTS y", catalog=made)
    assert (set(emptied.zones), emptied.tables) == ({"Z"}, {})


def test_a_name_is_one_object_however_it_is_qualified() -> None:
    made = after("CREATE ZONE default.public.z", "ALTER ZONE public.Z SET REPLICAS = 2")

    assert made.zones["Z"].replicas == 2
    assert set(after("CREATE ZONE s.z", catalog=made).zones) == {"Z", "DEFAULT.S.Z"}


def test_an_id_is_never_given_twice() -> None:
    made = after(
        "CREATE ZONE z", "DROP ZONE z", "CREATE ZONE z", "CREATE TABLE t WITH PRIMARY_ZONE = z"
    )

    assert (made.zones["Z"].id, made.tables["T"].id, made.version) == (2, 3, 4)


# -- limits


def test_a_cluster_has_at_most_256_zones() -> None:
    zones = {f"Z{number}": Zone(id=number, name=f"Z{number}") for number in range(255)}
    full = after("CREATE ZONE last", catalog=Catalog(zones=zones))

    assert len(full.zones) == 256
    with pytest.raises(SqlError, match="a cluster has at most 256 zones"):
        after("CREATE ZONE more", catalog=full)


def test_a_cluster_has_at_most_1024_tables() -> None:
    made = after("CREATE ZONE z WITH PARTITIONS = 1", "CREATE TABLE t0 WITH PRIMARY_ZONE = z")
    one = made.tables["T0"]
    tables = {f"T{number}": one for number in range(1023)}
    full = after(
        "CREATE TABLE u WITH PRIMARY_ZONE = z", catalog=msgspec.structs.replace(made, tables=tables)
    )

    assert len(full.tables) == 1024
    with pytest.raises(SqlError, match="a cluster has at most 1024 tables"):
        after("CREATE TABLE v WITH PRIMARY_ZONE = z", catalog=full)


def test_the_tables_of_a_cluster_have_at_most_1024_partitions_together() -> None:
    full = after(
        "CREATE ZONE half WITH PARTITIONS = 512",
        "CREATE ZONE one WITH PARTITIONS = 1",
        "CREATE TABLE a WITH PRIMARY_ZONE = half",
        "CREATE TABLE b WITH PRIMARY_ZONE = half",
    )

    assert sum(map(full.partitions, full.tables.values())) == 1024
    with pytest.raises(SqlError, match="its tables have 1024, zone 'ONE' asks for 1 more"):
        after("CREATE TABLE c WITH PRIMARY_ZONE = one", catalog=full)
    assert after("DROP TABLE a", "CREATE TABLE c WITH PRIMARY_ZONE = one", catalog=full).tables


# -- tables


def test_the_flat_numbers_of_a_dropped_tables_partitions_are_never_given_again() -> None:
    made = after(
        "CREATE ZONE z WITH PARTITIONS = 25",
        "CREATE ZONE y WITH PARTITIONS = 2",
        "CREATE TABLE a WITH PRIMARY_ZONE = z",
        "CREATE TABLE b WITH PRIMARY_ZONE = y",
        "DROP TABLE b",
        "CREATE TABLE c WITH PRIMARY_ZONE = z",
        "CREATE TABLE d WITH PRIMARY_ZONE = y",
    )

    assert {table.name: table.base for table in made.tables.values()} == {"A": 0, "C": 27, "D": 52}


@pytest.mark.parametrize("option", ["PRIMARY_ZONE", "STORAGE_PROFILE"])
def test_an_option_of_a_table_that_is_set_twice_is_refused_by_name(option: str) -> None:
    text = f"CREATE TABLE t WITH {option} = 'z', {option} = 'z'"
    with pytest.raises(RepeatedOption, match=f"{option} is set twice") as caught:
        after("CREATE ZONE z", text)

    assert caught.value.place == Place(1, text.rindex(option) + 1)


def test_a_tables_profile_is_one_of_its_zones() -> None:
    made = after(
        "CREATE ZONE z WITH STORAGE_PROFILES = 'fast,slow'",
        "CREATE TABLE a WITH PRIMARY_ZONE = z",
        "CREATE TABLE b WITH PRIMARY_ZONE = 'z', STORAGE_PROFILE = 'slow'",
    )

    assert [made.tables[name].profile for name in ("A", "B")] == ["fast", "slow"]
    with pytest.raises(
        OptionValue, match="zone 'Z' has no storage profile 'x'; expected one of fast, slow"
    ):
        after("CREATE TABLE c WITH PRIMARY_ZONE = z, STORAGE_PROFILE = x", catalog=made)


def test_a_table_moves_to_a_zone_of_as_many_partitions_that_has_its_profile() -> None:
    made = after(
        "CREATE ZONE a",
        "CREATE ZONE b WITH REPLICAS = 3",
        "CREATE ZONE c WITH PARTITIONS = 8",
        "CREATE ZONE d WITH STORAGE_PROFILES = 'fast'",
        "CREATE TABLE t WITH PRIMARY_ZONE = a",
    )

    assert after("ALTER TABLE t SET PRIMARY_ZONE = b", catalog=made).tables["T"].zone == "B"
    with pytest.raises(PartitionsDiffer, match="table 'T' has 25 partitions, zone 'C' has 8"):
        after("ALTER TABLE t SET PRIMARY_ZONE = c", catalog=made)
    with pytest.raises(OptionValue, match="zone 'D' has no storage profile 'default'"):
        after("ALTER TABLE t SET PRIMARY_ZONE = d", catalog=made)


def test_options_of_data_nodes_in_alter_table_are_refused_and_name_the_zone() -> None:
    made = after("CREATE ZONE z", "CREATE TABLE t WITH PRIMARY_ZONE = z")

    for option in (f"{UP} = 1", f"{JOINT} = 1", f"{FILTER} = '\"a\"'", "REPLICAS = 3"):
        with pytest.raises(NotAlterable, match="is an option of zone 'Z': ALTER ZONE"):
            after(f"ALTER TABLE t SET {option}", catalog=made)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("(k INT)", "needs one column that is its PRIMARY KEY"),
        ("(k INT PRIMARY KEY, v INT PRIMARY KEY)", "needs one column that is its PRIMARY KEY"),
        ("(k INT PRIMARY KEY, k INT)", "has a column twice"),
        ("(k FLOAT PRIMARY KEY)", "column 'K' must be of INT"),
    ],
)
def test_columns_that_make_no_table_are_refused(columns: str, message: str) -> None:
    with pytest.raises(OptionValue, match=message):
        after("CREATE ZONE z", f"CREATE TABLE t {columns} WITH PRIMARY_ZONE = z")


def test_a_table_has_at_most_64_columns() -> None:
    def create(count: int) -> Catalog:
        columns = ", ".join(f"c{number} INT" for number in range(1, count))
        text = f"CREATE TABLE t (k INT PRIMARY KEY, {columns}) WITH PRIMARY_ZONE = z"
        return after("CREATE ZONE z", text)

    assert len(create(64).tables["T"].columns) == 64
    with pytest.raises(OptionValue, match=r"table 'T' has at most 64 columns \(got 65\)"):
        create(65)


def test_a_zone_can_be_dropped_once_its_tables_are() -> None:
    made = after(
        "CREATE ZONE z", "CREATE TABLE t WITH PRIMARY_ZONE = z", "DROP TABLE t", "DROP ZONE z"
    )

    assert (made.zones, made.tables) == ({}, {})


# -- in metastorage


def test_of_two_statements_at_once_one_is_refused_and_applied_again() -> None:
    store = Metastorage()

    def put(catalog: Catalog) -> bool:
        return store.apply(Entry(1, 1, encode_invoke(catalogs.written(store.get, catalog)))).success

    assert catalogs.read(store.get) == Catalog()
    first, second = after("CREATE ZONE a"), after("CREATE ZONE b")
    late = catalogs.written(store.get, second)

    assert put(first)
    assert not store.apply(Entry(1, 2, encode_invoke(late))).success
    assert catalogs.read(store.get) == first
    assert put(after("CREATE ZONE b", catalog=catalogs.read(store.get)))
    assert set(catalogs.read(store.get).zones) == {"A", "B"}


STATEMENTS = st.sampled_from(
    [
        "CREATE ZONE a WITH REPLICAS = 2",
        "CREATE ZONE b WITH DATA_NODES_AUTO_ADJUST = 3",
        "ALTER ZONE a SET DATA_NODES_AUTO_ADJUST_SCALE_UP = 4",
        "ALTER ZONE b SET DATA_NODES_AUTO_ADJUST_SCALE_DOWN = 5",
        "DROP ZONE a",
        "DROP ZONE b",
        "CREATE TABLE t WITH PRIMARY_ZONE = a",
        "CREATE TABLE u WITH PRIMARY_ZONE = b",
        "ALTER TABLE t SET PRIMARY_ZONE = b",
        "DROP TABLE t",
        "DROP TABLE u",
    ]
)


@given(st.lists(STATEMENTS, max_size=20))
def test_a_catalog_stays_whole_whatever_is_said(texts: list[str]) -> None:
    held, ids = Catalog(), set()
    for text in texts:
        before = msgspec.json.encode(held)
        try:
            following = after(text, catalog=held)
        except SqlError:
            following = held
        assert msgspec.json.encode(held) == before  # a value: never changed in place
        assert following.version == held.version + (following is not held)
        held = following
        ids |= {o.id for o in (*held.zones.values(), *held.tables.values())}
        assert all(table.zone in held.zones for table in held.tables.values())
        assert all(identifier < held.next_id for identifier in ids)
    assert msgspec.json.decode(msgspec.json.encode(held), type=Catalog) == held


def test_a_zone_is_made_highly_available_and_not_back() -> None:
    made = "CREATE ZONE z WITH CONSISTENCY_MODE='HIGH_AVAILABILITY', "
    assert zone("CREATE ZONE z").mode == "STRONG_CONSISTENCY"
    assert not zone("CREATE ZONE z").highly_available
    named = zone(made + "PARTITION_DISTRIBUTION_RESET_TIMEOUT=1")
    assert (named.highly_available, named.reset_timeout_s) == (True, 1)
    altered = zone("CREATE ZONE z", "ALTER ZONE z SET CONSISTENCY_MODE = HIGH_AVAILABILITY")
    assert altered.highly_available
    later = zone(made + "REPLICAS = 3", "ALTER ZONE z SET PARTITION_DISTRIBUTION_RESET_TIMEOUT=5")
    assert (later.highly_available, later.reset_timeout_s) == (True, 5)
    with pytest.raises(NotAlterable, match="can't go back to STRONG_CONSISTENCY"):
        after(made + "REPLICAS = 3", "ALTER ZONE z SET CONSISTENCY_MODE='STRONG_CONSISTENCY'")
    for wrong in ("CONSISTENCY_MODE = 'HALF'", "PARTITION_DISTRIBUTION_RESET_TIMEOUT = -1"):
        with pytest.raises(OptionValue):
            after(f"CREATE ZONE z WITH {wrong}")


def test_timers_in_each_others_way_are_warned_of() -> None:
    up, down = "DATA_NODES_AUTO_ADJUST_SCALE_UP", "DATA_NODES_AUTO_ADJUST_SCALE_DOWN"
    reset = "PARTITION_DISTRIBUTION_RESET_TIMEOUT"
    ha = "CREATE ZONE z WITH CONSISTENCY_MODE='HIGH_AVAILABILITY'"

    assert timer_warnings(zone(f"{ha}, {reset} = 2, {up} = 600, {down} = 90000")) == ()
    (told,) = timer_warnings(zone(f"{ha}, {reset} = 600, {up} = 600, {down} = OFF"))
    assert f"{reset} (600) should be less than {up} (600)" in told
    (told,) = timer_warnings(zone(f"{ha}, {reset} = 1, {up} = 60, {down} = 60"))
    assert f"{up} (60) should be less than {down} (60)" in told
    (told,) = timer_warnings(zone(f"{ha}, {reset} = 600, {up} = OFF, {down} = 60"))
    assert f"{up} (OFF) should be less than {down} (60)" in told
    assert timer_warnings(zone(f"{ha}, {reset} = 600, {JOINT} = 1")) == ()
    assert timer_warnings(zone(f"CREATE ZONE z WITH {reset} = 600, {up} = 600")) == ()
