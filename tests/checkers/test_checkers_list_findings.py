"""Anomalies of single keys: each shown by a history, and gone from its repaired twin."""

from __future__ import annotations

import pytest
from checker_histories import Txn, a, fail, info, names, ok, r, unknown, verdict

PAIRS: dict[str, tuple[list[Txn], list[Txn]]] = {
    "G1a": (
        [fail(a(1, 1)), ok(r(1, 1))],
        [info(a(1, 1)), ok(r(1, 1))],
    ),
    "G1b": (
        [ok(a(1, 1), a(1, 2), start=0, finish=50), ok(r(1, 1), start=0, finish=50)],
        [ok(a(1, 1), a(1, 2), start=0, finish=50), ok(r(1, 1, 2), start=0, finish=50)],
    ),
    "garbage-read": (
        [ok(a(1, 1)), ok(r(1, 1, 7))],
        [ok(a(1, 1)), ok(r(1, 1))],
    ),
    "duplicate-elements": (
        [ok(a(1, 1)), ok(r(1, 1, 1))],
        [ok(a(1, 1)), ok(r(1, 1))],
    ),
    "incompatible-order": (
        [ok(a(1, 1)), ok(a(1, 2)), ok(r(1, 1, 2)), ok(r(1, 2))],
        [ok(a(1, 1)), ok(a(1, 2)), ok(r(1, 1, 2)), ok(r(1, 1, 2))],
    ),
    "future-read": (
        [ok(r(1, 1), a(1, 1)), ok(r(1, 1))],
        [ok(r(1), a(1, 1), r(1, 1)), ok(r(1, 1))],
    ),
    "dirty-update": (
        [fail(a(1, 1)), ok(a(1, 2)), ok(r(1, 1, 2))],
        [info(a(1, 1)), ok(a(1, 2)), ok(r(1, 1, 2))],
    ),
    "internal": (
        [ok(a(1, 1)), ok(r(1, 1), a(1, 2), r(1, 1))],
        [ok(a(1, 1)), ok(r(1, 1), a(1, 2), r(1, 1, 2))],
    ),
    "lost-update": (
        [
            ok(r(1), a(1, 1), start=0, finish=50),
            ok(r(1), a(1, 2), start=0, finish=50),
            ok(r(1, 1, 2)),
        ],
        [
            ok(r(1), a(1, 1), start=0, finish=50),
            ok(r(1, 1), a(1, 2), start=0, finish=50),
            ok(r(1, 1, 2), start=60),
        ],
    ),
    "lost-write": (
        [ok(a(1, 1)), ok(a(1, 2)), ok(r(1, 2))],
        [ok(a(1, 1)), ok(a(1, 2)), ok(r(1, 1, 2))],
    ),
    "G0": (
        [
            ok(a(1, 1), a(2, 1), start=0, finish=50),
            ok(a(1, 2), a(2, 2), start=0, finish=50),
            ok(r(1, 1, 2), r(2, 2, 1), start=60, finish=70),
        ],
        [
            ok(a(1, 1), a(2, 1), start=0, finish=50),
            ok(a(1, 2), a(2, 2), start=0, finish=50),
            ok(r(1, 1, 2), r(2, 1, 2), start=60, finish=70),
        ],
    ),
    "G1c": (
        [
            ok(a(1, 1), r(2, 1), start=0, finish=50),
            ok(a(2, 1), r(1, 1), start=0, finish=50),
        ],
        [
            ok(a(1, 1), r(2), start=0, finish=50),
            ok(a(2, 1), r(1, 1), start=0, finish=50),
        ],
    ),
}


@pytest.mark.parametrize("anomaly", sorted(PAIRS))
def test_an_anomaly_is_found_and_its_repaired_twin_is_valid(anomaly: str) -> None:
    broken, repaired = PAIRS[anomaly]

    found = verdict(broken)

    assert anomaly in found.anomalies
    assert found.outcome == "violation"
    assert found.anomalies[anomaly].examples[0].text
    assert names(verdict(repaired)) == set()
    assert verdict(repaired).outcome == "valid"


def test_a_lost_write_stands_aside_where_the_model_promises_no_real_time() -> None:
    found = verdict(PAIRS["lost-write"][0], model="serializable")

    assert found.outcome == "valid"
    assert "lost-write" in found.observed


def test_an_append_that_no_later_read_covers_is_unverified_not_lost() -> None:
    found = verdict([ok(a(1, 1)), ok(r(1, 1)), ok(a(1, 2)), ok(a(2, 1))])

    assert found.statistics["lost_writes"] == {"acknowledged": 3, "unverified": 2, "lost": 0}
    assert names(found) == set()


def test_where_final_reads_were_made_an_unverified_append_leaves_the_verdict_open() -> None:
    read, unread = [ok(a(1, 1)), ok(r(1, 1))], [ok(a(1, 1)), ok(r(1, 1)), ok(a(2, 1))]
    final = {"phases": (("drive", 0), ("final-reads", 1))}

    assert verdict(read, **final).outcome == "valid"
    assert verdict(unread).outcome == "valid"
    found = verdict(unread, **final)
    assert found.outcome == "unknown"
    assert "1 acknowledged appends are unverified" in found.reasons[0]
    assert verdict(unread, model="serializable", **final).outcome == "valid"


def test_a_read_that_began_when_the_append_ended_is_concurrent() -> None:
    touching = [ok(a(1, 1), start=0, finish=10), ok(r(1), start=10, finish=20)]
    after = [ok(a(1, 1), start=0, finish=10), ok(r(1), start=11, finish=20)]

    assert "lost-write" not in names(verdict(touching))
    assert "lost-write" in names(verdict(after))


def test_reads_of_unknown_fate_accuse_nobody() -> None:
    history = [ok(a(1, 1)), info(r(1, 9)), info(unknown(1)), fail(r(1, 7)), ok(r(1, 1))]

    assert names(verdict(history)) == set()


def test_an_element_appended_twice_makes_the_checker_give_up_and_the_others_stand() -> None:
    found = verdict([ok(a(1, 1)), ok(a(1, 1)), ok(r(1, 1))], checkers=("list-append", "statistics"))

    assert found.outcome == "unknown"
    assert "appended twice" in found.reasons[0]
    assert found.statistics["transactions"]["ok"] == 3


def test_elements_at_the_ends_of_64_bits_are_told_apart() -> None:
    low, high = -(2**63), 2**63 - 1
    history = [ok(a(1, low)), ok(a(1, high)), ok(a(2, low)), ok(r(1, low, high), r(2, low))]

    assert names(verdict(history)) == set()
    assert "garbage-read" in names(verdict([*history, ok(r(1, low, high, 0))]))


def test_an_element_far_from_all_others_is_no_other() -> None:
    # The distance between the two does not fit in 64 bits.
    history = [ok(a(1, -10)), ok(a(1, 5)), ok(r(1, -10, 5)), ok(r(1, -10, 2**63 - 1))]

    assert "garbage-read" in names(verdict(history))


def test_transactions_that_have_nothing_to_do_with_each_other_show_nothing() -> None:
    apart = [ok(a(1, 1), r(1, 1)), ok(a(2, 1))]

    for found in (verdict([]), verdict(apart), verdict([*apart, info(r(2, 1))])):
        assert found.outcome == "unknown"
        assert found.reasons[0].startswith("nothing to judge: ")
    for more in (ok(r(2, 1)), ok(r(2)), ok(a(1, 2))):
        assert verdict([*apart, more]).outcome != "unknown"


def test_an_anomaly_needs_no_dependency() -> None:
    assert verdict([ok(a(1, 1), r(1))]).outcome == "violation"


def test_every_example_is_of_a_transaction_of_its_own() -> None:
    """Counted are transactions, however often each is found out."""
    twice = ok(r(1, 1, 2), r(1, 2), r(1, 2), r(1, 3))
    found = verdict([ok(a(1, 1)), ok(a(1, 2)), ok(a(1, 3)), ok(r(1, 1, 2, 3)), twice])

    for name, anomaly in {**found.anomalies, **found.observed}.items():
        texts = [example.text for example in anomaly.examples]
        assert len(set(texts)) == len(texts) == min(anomaly.count, 5), name
    assert found.anomalies["incompatible-order"].count == 1


def test_more_than_five_transactions_are_counted_and_five_are_shown() -> None:
    reads = [ok(r(1, 9), r(1, 9)) for _ in range(7)]
    found = verdict([ok(a(1, 1)), ok(r(1, 1)), *reads])

    anomaly = found.anomalies["garbage-read"]
    assert anomaly.count == 7
    assert len({example.txns[0] for example in anomaly.examples}) == 5


SEEN_THEN_MISSED = [
    ok(a(1, 1), start=0, finish=10),
    ok(a(1, 2), start=20, finish=30),
    ok(r(1, 1, 2), start=40, finish=60),
    ok(r(1, 1), start=45, finish=70),
]


def test_what_some_later_read_shows_is_not_lost_whichever_read_came_last() -> None:
    beside = verdict(SEEN_THEN_MISSED)
    after = verdict([*SEEN_THEN_MISSED[:3], ok(r(1, 1), start=65, finish=70)])
    missed = verdict([*SEEN_THEN_MISSED[:2], ok(r(1, 1), start=40, finish=60)])

    for stale in (beside, after):
        assert names(stale) == {"G-single-item-realtime"}
        assert stale.statistics["lost_writes"] == {"acknowledged": 2, "unverified": 0, "lost": 0}
    assert "lost-write" in names(missed)


def test_what_a_read_beside_its_acknowledgement_saw_is_lost_if_no_later_read_does() -> None:
    seen_early = [ok(a(1, 1), start=0, finish=10), ok(r(1, 1), start=5, finish=8)]

    found = verdict([*seen_early, ok(r(1), start=20, finish=30)])

    (example,) = found.anomalies["lost-write"].examples
    assert example.text.endswith("(value 1) is in no later read")


def test_what_was_seen_and_is_in_no_final_read_is_lost_and_told_so() -> None:
    final = {"phases": (("drive", 0), ("final-reads", 65))}
    gone = [*SEEN_THEN_MISSED[:3], ok(r(1, 1), start=66, finish=70)]

    found = verdict(gone, **final)

    (example,) = found.anomalies["lost-write"].examples
    assert example.text == (
        "lost write: an acknowledged append to key 1 (value 2), which T2 was the last to read, is "
        "in none of the final reads"
    )
    assert example.txns == (1, 2, 3)
    kept = [*gone, ok(r(1, 1, 2), start=67, finish=71)]
    assert "lost-write" not in names(verdict(kept, **final))


def test_an_append_that_a_later_version_lacks_is_lost_though_the_key_went_on() -> None:
    skipped = [ok(a(1, 1)), ok(a(1, 2)), ok(a(1, 3)), ok(r(1, 1, 3))]

    assert verdict(skipped).statistics["lost_writes"]["lost"] == 1
    assert names(verdict([*skipped[:3], ok(r(1, 1, 2, 3))])) == set()
