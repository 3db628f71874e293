"""The oracle against histories written by hand, each anomaly with a twin that is clean."""

import corpus
import gallery
import oracle
import oracle_models
import pytest
from gallery import history, txn

EXHIBITS = gallery.exhibits()


def judge(*txns):
    return oracle.judge(history(txns))


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: "+".join(exhibit.names))
def test_an_exhibit_shows_its_anomalies_and_its_twin_none(exhibit):
    verdict = oracle.judge(exhibit.bad)
    assert verdict.names == set(exhibit.names)
    assert bool(verdict.lost) is exhibit.lost
    assert verdict.outcome("strict-serializable") == "violation"
    twin = oracle.judge(exhibit.twin)
    assert (twin.names, twin.not_, twin.also_not, twin.lost) == (set(),) * 4
    assert twin.outcome("strict-serializable") == "valid"


def test_the_exhibits_name_every_anomaly():
    shown = {name for exhibit in EXHIBITS for name in exhibit.names}
    assert shown == set(oracle.NAMES)


def test_a_violation_of_a_strong_model_is_none_of_a_weak_one():
    exhibit = next(one for one in EXHIBITS if one.names == ("G2-item",))
    verdict = oracle.judge(exhibit.bad)
    assert verdict.outcome("serializable") == "violation"
    assert verdict.outcome("snapshot-isolation") == "valid"
    assert verdict.outcome("read-committed") == "valid"


def test_touching_transactions_are_concurrent():
    stale = (txn(0, 0, 10, "a0=1"), txn(1, 10, 20, "r0="))
    later = (txn(0, 0, 10, "a0=1"), txn(1, 11, 20, "r0="))
    assert judge(*stale, txn(2, 30, 40, "r0=1")).names == set()
    assert judge(*later, txn(2, 30, 40, "r0=1")).names == {"G-single-item-realtime"}


def test_only_an_acknowledgement_orders_what_follows():
    for kind in ("info", "fail"):
        assert judge(txn(0, 0, 10, "a0=1", kind), txn(1, 20, 30, "r0=")).names == set()


def test_what_follows_an_acknowledgement_may_be_a_crash():
    """The read at 0 saw the append of an operation that began later and whose end is unknown."""
    read, write = txn(0, 0, 10, "r0=1"), txn(1, 20, 30, "a0=1", "info")
    assert judge(read, write).names == {"G1c-realtime"}
    assert judge(read, txn(1, 5, 30, "a0=1", "info")).names == set()


def test_an_unknown_read_of_a_crashed_transaction_says_nothing():
    crashed = txn(0, 0, 10, "r0=? a1=1", "info")
    saw_nothing = txn(0, 0, 10, "r0= a1=1", "info")
    others = (txn(1, 0, 10, "a0=1"), txn(2, 0, 10, "r0=1 r1=1"))
    bad = (txn(1, 0, 10, "r1=1 a0=1"), txn(2, 0, 10, "r0=1"))
    assert judge(crashed, *others).names == set()
    assert judge(crashed, *bad).names == set()
    assert judge(saw_nothing, *bad).names == set()
    reversed_read = txn(0, 0, 10, "r0=1 a1=1", "info")
    assert judge(reversed_read, *bad).names == {"G1c"}


def test_an_element_that_was_never_read_comes_after_all_that_were():
    order = (txn(0, 0, 10, "a0=1"), txn(1, 0, 10, "r0=1 a1=1"), txn(2, 20, 30, "a0=2"))
    relations = oracle.dependencies(history(order))
    assert relations["ww"] == {(0, 2)}
    assert relations["rw"] == {(1, 2)}
    assert relations["wr"] == {(0, 1)}
    assert relations["realtime"] == {(0, 2), (1, 2)}


def test_one_list_may_be_read_in_pieces_but_not_out_of_itself():
    appends = (txn(0, 0, 50, "a0=1"), txn(1, 0, 50, "a0=2"), txn(2, 0, 50, "a0=3"))
    assert judge(*appends, txn(3, 0, 50, "r0=1,2,3"), txn(4, 0, 50, "r0=1,2")).names == set()
    holes = judge(*appends, txn(3, 0, 50, "r0=1,2,3"), txn(4, 0, 50, "r0=1,3"))
    assert holes.names == {"incompatible-order"}


def test_own_intermediate_states_may_be_read_only_by_the_writer():
    own = txn(0, 0, 10, "a0=1 r0=1 a0=2")
    assert judge(own, txn(1, 0, 10, "r0=1,2")).names == set()
    assert "G1b" in judge(own, txn(1, 0, 10, "r0=1")).names


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("a0=1 r0=1 a0=2 r0=1,2", "a0=1 r0=1 a0=2 r0=2"),
        ("r0= a0=1 r0=1", "r0= a0=1 r0="),
        ("a0=1 a0=2 r0=1,2", "a0=1 a0=2 r0=2,1"),
        ("a0=1 r1= r0=1", "a0=1 r1= r0="),
    ],
)
def test_a_transaction_sees_what_it_did_itself(good, bad):
    assert "internal" not in judge(txn(0, 0, 10, good)).names
    assert "internal" in judge(txn(0, 0, 10, bad)).names


def test_crashed_appends_between_do_not_make_an_update_clean():
    failed, crashed = txn(0, 0, 10, "a0=1", "fail"), txn(1, 0, 10, "a0=2", "info")
    acknowledged = txn(2, 0, 10, "a0=3")
    dirty = judge(failed, crashed, acknowledged, txn(3, 0, 10, "r0=1,2,3"))
    assert dirty.names == {"G1a", "dirty-update"}
    clean = judge(failed, crashed, acknowledged, txn(3, 0, 10, "r0=3,2,1"))
    assert clean.names == {"G1a"}


def test_a_store_that_validates_reads_at_commit_is_not_accused_by_what_never_committed():
    """A torn read and one's own append, in a transaction of which nobody saw anything."""
    others = (txn(0, 0, 50, "a0=1 a1=1"), txn(1, 0, 50, "r0=1 r1=1"))
    torn, own = "r0=1 r1= a2=1", "a0=9 r0=9"
    assert judge(*others, txn(2, 0, 50, torn, "info")).names == set()
    assert judge(*others, txn(2, 0, 50, own, "info")).names == set()
    assert judge(*others, txn(2, 0, 50, torn)).names == {"G-single-item"}
    seen = txn(3, 0, 50, "r2=1")
    assert judge(*others, txn(2, 0, 50, torn, "info"), seen).names == {"G-single-item"}


def test_a_crash_is_proven_to_have_committed_through_a_proven_one():
    chain = (txn(0, 0, 50, "a0=1", "info"), txn(1, 0, 50, "r0=1 a1=1", "info"))
    assert oracle.committed(history(chain)) == []
    proven = oracle.committed(history((*chain, txn(2, 0, 50, "r1=1"))))
    assert [one.process for one in proven] == [0, 1, 2]


def test_lists_of_crashes_count_only_where_they_are_proven():
    txns = (
        *(txn(0, 0, 50, "a0=1"), txn(1, 0, 50, "a0=2"), txn(2, 0, 50, "r0=1,2")),
        txn(3, 0, 50, "r0=2,1 a1=1", "info"),
    )
    assert judge(*txns, txn(4, 0, 50, "r1=")).names == set()
    assert judge(*txns, txn(4, 0, 50, "r1=1")).names == {"incompatible-order"}


def test_a_crash_belongs_to_the_session_that_it_ends():
    read = txn(0, 0, 10, "r0=1")
    assert judge(read, txn(0, 20, 30, "a0=1", "info")).names == {"G1c-process"}
    assert judge(read, txn(1, 20, 30, "a0=1", "info")).names == {"G1c-realtime"}


def test_what_is_told_rules_out_what_all_that_was_found_does():
    for case in corpus.corpus():
        all_of_them = oracle.found(case.txns)
        lattice = oracle_models.ruled_out(all_of_them)
        assert oracle_models.ruled_out(oracle.judge(case.txns).names) == lattice


def test_a_serial_execution_is_clean():
    lists, txns = {0: (), 1: ()}, []
    for place in range(30):
        key, at = place % 2, place * 10
        read = ",".join(map(str, lists[key]))
        lists[key] += (place,)
        txns.append(txn(place % 4, at, at + 5, f"r{key}={read} a{key}={place}"))
    verdict = judge(*txns)
    assert (verdict.names, verdict.lost, verdict.not_) == (set(), set(), set())
    assert verdict.unverified == {0, 1}  # nobody reads the last element of either key


def test_an_acknowledged_element_that_no_later_read_has_is_a_lost_write():
    appends = (txn(0, 0, 10, "a0=1"), txn(1, 20, 30, "a0=2"))
    kept = judge(*appends, txn(2, 40, 50, "r0=1,2"))
    assert (kept.lost, kept.unverified) == (set(), set())
    lost = judge(*appends, txn(2, 40, 50, "r0=1"))
    assert (lost.lost, lost.unverified) == ({(0, 2)}, set())
    assert lost.outcome("strict-serializable") == "violation"
    assert lost.outcome("serializable") == "valid"


def test_what_any_later_read_has_is_not_lost_and_the_read_that_lacks_it_is_stale():
    append = txn(0, 0, 10, "a0=1")
    for invoke in (20, 45):
        seen = judge(append, txn(2, invoke, 60, "r0=1"), txn(3, 40, 50, "r0="))
        assert (seen.lost, "G-single-item-realtime" in seen.names) == (set(), True)
    before = judge(append, txn(2, 5, 60, "r0=1"), txn(3, 40, 50, "r0="))
    assert before.lost == {(0, 1)}, "that read may have come before the acknowledgement"


def test_a_key_that_nobody_reads_after_the_acknowledgement_is_unverified():
    read = (txn(0, 0, 10, "a0=1"), txn(1, 5, 20, "r0=1"))
    assert judge(*read).unverified == {0}
    assert judge(*read, txn(2, 11, 30, "r0=1")).unverified == set()


def test_nothing_that_depends_on_anything_is_unknown_not_valid():
    alone = judge(txn(0, 0, 10, "a0=1"), txn(1, 0, 10, "a1=1"))
    assert alone.outcome("strict-serializable") == "unknown"
    read = judge(txn(0, 0, 10, "a0=1"), txn(1, 0, 10, "r0=1"))
    assert read.outcome("strict-serializable") == "valid"


@pytest.mark.parametrize(
    ("name", "weakest"),
    [
        ("G0", {"read-uncommitted"}),
        ("duplicate-elements", {"read-uncommitted"}),
        ("garbage-read", {"read-uncommitted"}),
        ("G1a", {"read-committed"}),
        ("G1b", {"read-committed"}),
        ("G1c", {"read-committed"}),
        ("dirty-update", {"read-committed"}),
        ("incompatible-order", {"read-committed"}),
        ("future-read", {"read-committed"}),
        ("internal", {"read-atomic"}),
        ("lost-update", {"cursor-stability", "update-atomic"}),
        ("G-single-item", {"consistent-view", "repeatable-read"}),
        ("G-nonadjacent-item", {"snapshot-isolation", "repeatable-read"}),
        ("G2-item", {"repeatable-read"}),
        ("G0-process", {"strong-session-read-uncommitted"}),
        ("G1c-process", {"strong-session-read-committed"}),
        ("G-single-item-process", {"strong-session-snapshot-isolation"}),
        ("G-nonadjacent-item-process", {"strong-session-snapshot-isolation"}),
        ("G2-item-process", {"strong-session-serializable"}),
        ("G0-realtime", {"strong-read-uncommitted"}),
        ("G1c-realtime", {"strong-read-committed"}),
        ("G-single-item-realtime", {"strong-snapshot-isolation"}),
        ("G-nonadjacent-item-realtime", {"strong-snapshot-isolation"}),
        ("G2-item-realtime", {"strict-serializable"}),
    ],
)
def test_an_anomaly_rules_out_the_weakest_models_of_the_published_table(name, weakest):
    not_, also_not = oracle_models.ruled_out({name})
    assert not_ == weakest
    stronger = set().union(*(oracle_models.stronger_or_equal(model) for model in weakest))
    assert also_not == stronger - weakest
