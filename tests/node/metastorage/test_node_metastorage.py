"""Metastorage as a value: invokes that compare and branch, history, watches that miss nothing."""

from __future__ import annotations

import attrs
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_kit import restore

from clusters.reference.node.metastorage import metastorage as metastorage_store
from clusters.reference.node.metastorage.metastorage import (
    Change,
    Compacted,
    Condition,
    Derived,
    Invoke,
    InvokeResult,
    Metastorage,
    ObservedKeys,
    Operation,
    View,
    encode_invoke,
    together,
    unchanged,
)
from clusters.reference.node.raft.types import Entry


def do(store: Metastorage, invoke: Invoke) -> InvokeResult:
    return store.apply(Entry(1, 1, encode_invoke(invoke)))


def put(store: Metastorage, *pairs: tuple[str, bytes | None]) -> InvokeResult:
    return do(store, Invoke((), tuple(Operation(key, value) for key, value in pairs)))


@attrs.define
class Seen:
    """What a watch was called with."""

    changes: list[Change] = attrs.field(factory=list)
    compactions: list[int] = attrs.field(factory=list)

    def changed(self, change: Change) -> None:
        self.changes.append(change)

    def compacted(self, revision: int) -> None:
        self.compactions.append(revision)


# -- compare and branch


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        (Condition("a", "value<", value=b"n"), True),
        (Condition("a", "value<", value=b"m"), False),
        (Condition("a", "value<", value=b"b"), False),
        (Condition("a", "revision<", revision=2), True),
        (Condition("a", "revision<", revision=1), False),
        (Condition("z", "value<", value=b"x"), False),
        (Condition("z", "revision<", revision=9), False),
    ],
)
def test_a_condition_can_ask_for_less_and_never_holds_of_a_key_that_is_absent(
    condition: Condition, holds: bool
) -> None:
    store = Metastorage()
    put(store, ("a", b"m"))

    assert do(store, Invoke((condition,), ())).success is holds


def test_an_invoke_that_writes_nothing_in_any_branch_can_be_read() -> None:
    store = Metastorage()
    put(store, ("key", b"1"))
    one = Invoke((Condition("key", "value", value=b"1"),), ())
    two = Invoke((Condition("key", "value", value=b"2"),), ())
    writes = Invoke((Condition("key", "absent"),), (), (Operation("key", b"2"),))
    chains = [msgspec.structs.replace(a, otherwise=b) for a, b in ((one, two), (two, one))]
    for reads in (one, two, *chains, Invoke((), ())):
        assert store.read(encode_invoke(reads)) == do(store, reads)
    for last in (writes, put_of("key"), together((one, put_of("key")))):
        assert store.read(encode_invoke(last)) is None
        assert store.read(encode_invoke(msgspec.structs.replace(two, otherwise=last))) is None
    assert store.revision == 1


def put_of(key: str) -> Invoke:
    return Invoke((), (Operation(key, b"x"),))


def test_invokes_that_share_a_commit_are_decided_in_turn_as_revisions_of_their_own() -> None:
    store, changes = Metastorage(), list[Change]()
    store.observe("", changes.append)
    first = Invoke((Condition("key", "absent"),), (Operation("key", b"1"),))
    second = Invoke(
        (Condition("key", "absent"),),
        (Operation("other", b"x"),),
        otherwise=Invoke((Condition("key", "value", value=b"1"),), (Operation("key", b"2"),)),
    )

    done = do(store, together((first, second, first)))
    assert (done.success, done.revision) == (True, 1)
    assert done.following == (
        InvokeResult(success=True, revision=2, branch=1),
        InvokeResult(success=False, revision=2),
    )
    assert [(change.revision, change.entries) for change in changes] == [
        (1, {"key": b"1"}),
        (2, {"key": b"2"}),
    ]
    assert together((first,)) == first


@pytest.mark.parametrize(
    ("value", "branch", "success", "written"),
    [
        (b"1", 0, True, {"first": b"x", "both": b"x"}),
        (b"2", 1, True, {"second": b"y", "both": b"y"}),
        (b"3", 1, False, {"third": b"z", "both": b"z"}),
    ],
)
def test_a_chain_of_invokes_does_one_branch_with_all_its_updates_as_one_revision(
    value: bytes, branch: int, success: bool, written: dict[str, bytes]
) -> None:
    store = Metastorage()
    put(store, ("key", value))
    chain = Invoke(
        (Condition("key", "value", value=b"1"),),
        (Operation("first", b"x"), Operation("both", b"x")),
        otherwise=Invoke(
            (Condition("key", "value", value=b"2"),),
            (Operation("second", b"y"), Operation("both", b"y")),
            (Operation("third", b"z"), Operation("both", b"z")),
        ),
    )

    assert do(store, chain) == InvokeResult(success=success, revision=2, branch=branch)
    held = store.prefixed("")
    assert {k: v.value for k, v in held.items() if k != "key"} == written
    assert {v.revision for k, v in held.items() if k != "key"} == {2}


def test_an_invoke_without_a_chain_is_encoded_as_it_always_was() -> None:
    invoke = Invoke((Condition("a", "absent"),), (Operation("a", b"1"),))

    assert len(msgspec.msgpack.decode(encode_invoke(invoke))) == 3


# -- history and watches


def test_a_watch_begins_at_any_revision_and_sees_each_later_one_by_itself() -> None:
    store, seen = Metastorage(), Seen()
    put(store, ("a/1", b"1"), ("b/1", b"1"))
    put(store, ("a/1", b"2"))
    put(store, ("b/1", b"2"))
    store.watch("a/", 1, seen)
    assert seen.changes == [Change(revision=2, entries={"a/1": b"2"})]

    put(store, ("a/1", None), ("b/1", b"3"))
    put(store, ("b/1", b"4"))
    assert seen.changes[1:] == [Change(revision=4, entries={"a/1": None})]


def test_changes_are_those_above_a_revision_and_not_its_own() -> None:
    store = Metastorage()
    for value in (b"1", b"2", b"3"):
        put(store, ("a", value))
    assert [change.revision for change in store.changes("a", 1)] == [2, 3]
    assert store.changes("a", 3) == ()


def test_an_observer_that_was_not_told_of_a_key_is_told_which() -> None:
    store = Metastorage()
    put(store, ("b", b"1"), ("c", b"2"))
    observed = ObservedKeys(store)
    problem = observed.problem()
    assert problem is not None
    assert "'b'" in problem
    put(store, ("b", b"1"), ("c", b"3"))
    assert observed.problem() is None
    put(store, ("b", None))
    assert observed.problem() is None


@pytest.mark.parametrize(
    ("untold", "key"), [(("c", b"3"), "'c'"), (("b", None), "'b'"), (("d", b"4"), "'d'")]
)
def test_an_observer_that_was_not_told_of_a_change_is_told_of_which_key(
    untold: tuple[str, bytes | None], key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Metastorage()
    observed = ObservedKeys(store)
    put(store, ("b", b"1"), ("c", b"2"))
    assert observed.problem() is None
    monkeypatch.setattr(store, "_notify", lambda change: None)
    put(store, untold)
    assert key in str(observed.problem())


def test_what_is_derived_is_computed_once_for_each_change_of_its_prefix() -> None:
    store, computed = Metastorage(), list[int]()

    def values(view: View) -> list[bytes]:
        computed.append(store.revision)
        return [held.value for held in view.prefixed("a/").values()]

    derived = Derived(store, "a/", values)
    assert (derived(), derived()) == ([], [])
    put(store, ("b/1", b"x"))
    assert derived() == []
    put(store, ("a/1", b"1"))
    assert (derived(), derived()) == ([b"1"], [b"1"])
    put(store, ("a/1", None))
    assert derived() == []
    assert computed == [0, 2, 3]


def test_unchanged_holds_of_a_key_as_it_was_read() -> None:
    store = Metastorage()
    put(store, ("a", b"1"))
    as_read = [unchanged(key, store.get(key)) for key in ("a", "b")]
    assert [do(store, Invoke((each,), ())).success for each in as_read] == [True, True]

    put(store, ("a", b"1"), ("b", b"1"))
    assert [do(store, Invoke((each,), ())).success for each in as_read] == [False, False]


def test_replicas_differ_in_content_by_keys_and_by_how_far_back_their_history_goes() -> None:
    one, other, short = Metastorage(), Metastorage(), Metastorage(max_history=1)
    assert list(one.content()) == list(other.content())
    for store in (one, other, short):
        put(store, ("a", b"1"))
        put(store, ("a", b"2"))
    assert list(one.content()) == list(other.content())
    assert list(one.content()) != list(short.content())
    put(other, ("b", b"1"))
    assert list(one.content()) != list(other.content())

    # Of the same keys one has the history of its first revision, one that of its second.
    first, second = Metastorage(), Metastorage()
    put(first, ("gone", None))
    put(first, ("lease/n1", b"1"))
    put(second, ("lease/n1", b"1"))
    put(second, ("gone", None), ("lease/n1", b"1"))
    assert first.prefixed("") == second.prefixed("")
    assert list(first.content()) != list(second.content())


def test_a_watch_that_is_ended_sees_nothing_more() -> None:
    store, seen = Metastorage(), Seen()
    watch = store.watch("a/", 0, seen)
    put(store, ("a/1", b"1"))
    store.unwatch(watch)
    put(store, ("a/1", b"2"))

    assert [change.revision for change in seen.changes] == [1]


def test_a_restored_snapshot_shows_a_watch_every_revision_that_it_brings() -> None:
    store, behind, seen = Metastorage(), Metastorage(), Seen()
    for target in (store, behind):
        put(target, ("a/1", b"1"))
    behind.watch("a/", 0, seen)
    for value in (b"2", b"3", None):
        put(store, ("a/1", value))
    restore(behind, store.snapshot())

    assert [(c.revision, c.entries["a/1"]) for c in seen.changes] == [
        (1, b"1"),
        (2, b"2"),
        (3, b"3"),
        (4, None),
    ]


def test_a_watch_of_what_nothing_touched_has_seen_all_that_was_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(metastorage_store, "MAX_HISTORY", 3)
    ahead, behind, seen = Metastorage(), Metastorage(), Seen()
    for number in range(5):
        for store in (ahead, behind) if number < 3 else (ahead,):
            put(store, ("a", b"%d" % number))
    behind.watch("z", 0, seen)
    assert ahead.compacted == 2

    restore(behind, ahead.snapshot())

    assert not seen.compactions


def test_a_history_that_does_not_reach_back_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metastorage_store, "MAX_HISTORY", 2)
    store, behind, seen = Metastorage(), Metastorage(), Seen()
    behind.watch("a", 0, seen)
    for value in (b"1", b"2", b"3", b"4"):
        put(store, ("a", value))
    with pytest.raises(Compacted, match="after revision 1 were asked for, those up to 2"):
        store.watch("a", 1, Seen())
    assert [change.revision for change in store.changes("a", 2)] == [3, 4]

    restore(behind, store.snapshot())
    assert (seen.changes, seen.compactions) == ([], [4])
    put(behind, ("a", b"5"))
    assert [change.revision for change in seen.changes] == [5]


def test_keys_without_history_take_no_room_in_it_and_can_not_be_watched() -> None:
    store = Metastorage(max_history=1)
    put(store, ("a", b"1"))
    for number in range(100):
        put(store, ("lease/n1", b"%d" % number))
    assert store.changes("", 0) == (Change(revision=1, entries={"a": b"1"}),)
    for prefix in ("", "lease/", "lease/n1", "le", ("a", "lease/")):
        with pytest.raises(ValueError, match="have no history"):
            store.watch(prefix, 0, Seen())


def test_a_snapshot_of_a_store_without_history_is_read_and_has_none() -> None:
    old = msgspec.msgpack.encode((7, {"a": (b"1", 7)}))
    store = Metastorage()
    restore(store, [old])

    assert (store.revision, store.compacted) == (7, 7)
    with pytest.raises(Compacted):
        store.watch("a", 6, Seen())
    assert store.watch("a", 7, Seen()).revision == 7


WRITES = st.lists(
    st.dictionaries(
        st.sampled_from(["a/1", "a/2", "b/1", "lease/n1"]),
        st.one_of(st.none(), st.binary(max_size=1)),
        min_size=1,
    ),
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(writes=WRITES, choose=st.data())
def test_no_watch_misses_repeats_or_merges_a_change_over_restarts_and_snapshots(
    writes: list[dict[str, bytes | None]], choose: st.DataObject
) -> None:
    """A replica that is killed begins again with its last snapshot, and applies its log anew; one
    that lags is sent another's snapshot. Its consumer goes on from the last revision that it saw.
    """
    whole = [encode_invoke(Invoke((), tuple(map(Operation, w, w.values())))) for w in writes]
    expected = []
    for revision, write in enumerate(writes, 1):
        entries = {key: value for key, value in write.items() if key.startswith("a/")}
        if entries:
            expected.append(Change(revision=revision, entries=entries))
    replica, seen, applied = Metastorage(), Seen(), 0
    saved, saved_at = list(replica.snapshot()), 0
    replica.watch("a/", 0, seen)
    while applied < len(whole):
        step = choose.draw(st.sampled_from(["apply", "apply", "save", "kill", "install"]))
        if step == "apply":
            replica.apply(Entry(1, applied + 1, whole[applied]))
            applied += 1
        elif step == "save":
            saved, saved_at = list(replica.snapshot()), applied
        elif step == "kill":
            seen_up_to = seen.changes[-1].revision if seen.changes else 0
            replica, applied = Metastorage(), saved_at
            if choose.draw(st.booleans()):  # the consumer comes before the snapshot is read
                replica.watch("a/", seen_up_to, seen)
                restore(replica, saved)
            else:
                restore(replica, saved)
                replica.watch("a/", seen_up_to, seen)
        else:
            other, target = Metastorage(), choose.draw(st.integers(applied, len(whole)))
            for index, data in enumerate(whole[:target], 1):
                other.apply(Entry(1, index, data))
            restore(replica, other.snapshot())
            applied = target

    assert seen.changes == expected
    assert seen.compactions == []
