"""The judge on a store of another kind: what is told, and what the disks would give back."""

from __future__ import annotations

from oracles.toy_store import LOG, Bench, broken, details, judged

from clusters.providers.sim.disk import SimDisk
from harness.protocols.claims import Claim


def test_a_term_that_is_told_is_on_the_disk() -> None:
    async def synced(bench: Bench) -> None:
        await bench.write("n1", "p term 2 n3")
        bench.send("n1", "told p 2 n3")

    async def only_written(bench: Bench) -> None:
        await bench.write("n1", "p term 2 n3", sync=False)
        bench.send("n1", "told p 2 n3")

    async def another_vote(bench: Bench) -> None:
        await bench.write("n1", "p term 2 n2")
        bench.send("n1", "told p 2 n3")

    assert broken(synced) == []
    assert broken(only_written) == [("hard-state-synced", "n1", "told to n3")]
    (found,) = details(another_vote)
    assert found.detail == "the vote of term 2 in p went to n3, and n2 is synced"


def test_a_later_term_on_the_disk_proves_an_earlier_one_that_is_told() -> None:
    async def act(bench: Bench) -> None:
        await bench.write("n1", "p term 5 n2")
        bench.send("n1", "told p 2 n3")

    assert judged(act).judged[Claim.HARD_STATE_SYNCED] == 1
    assert broken(act) == []


def test_an_answer_about_the_log_would_survive_a_crash() -> None:
    async def synced(bench: Bench) -> None:
        bench.send("n3", "leads p 1 1 1 1")
        await bench.write("n1", "p term 1", "p 1 1 a", "p 2 1 b")
        bench.send("n1", "holds p 1 2")

    async def one_short(bench: Bench) -> None:
        bench.send("n3", "leads p 1 1 1 1")
        await bench.write("n1", "p term 1", "p 1 1 a")
        await bench.write("n1", "p 2 1 b", sync=False)
        bench.send("n1", "holds p 1 2")

    async def another_entry(bench: Bench) -> None:
        bench.send("n3", "leads p 2 1 2")
        await bench.write("n1", "p term 2", "p 1 1 a")
        bench.send("n1", "holds p 2 1")

    assert broken(synced) == []
    assert broken(one_short) == [("known-after-crash", "n1", "holds to n3")]
    (found,) = details(another_entry)
    assert found.detail == (
        "entry 1 of p is answered for as the leader of term 2 told it, and another one, of term 1, "
        "is synced"
    )


def test_an_answer_that_a_later_leader_overtook_binds_nobody() -> None:
    async def act(bench: Bench) -> None:
        await bench.write("n1", "p term 2")
        bench.send("n1", "holds p 1 7")

    assert broken(act) == []


def test_a_crash_makes_durable_what_it_left_and_no_more() -> None:
    async def act(bench: Bench) -> None:
        await bench.write("n1", "p term 1", "p 1 1 a")
        await bench.write("n1", "p 2 1 b", sync=False)
        bench.platters["n1"].crash()
        left = len(bench.platters["n1"].files[LOG].data)
        whole = bench.platters["n1"].files[LOG].data.endswith(b"b\n")
        assert left == bench.platters["n1"].files[LOG].durable_bytes
        bench.send("n1", f"holds p 1 {2 if whole else 1}")

    assert broken(act) == []


def test_a_log_that_is_cut_back_is_read_again() -> None:
    async def act(bench: Bench) -> None:
        await bench.write("n1", "p term 1", "p 1 1 a")
        size = len(bench.platters["n1"].files[LOG].data)
        await bench.write("n1", "p 2 1 b")
        bench.send("n1", "holds p 1 2")
        await SimDisk(bench.platters["n1"]).truncate(LOG, size)
        bench.send("n1", "holds p 1 2")

    (found,) = details(act)
    assert found.detail == "p up to entry 2 is answered for, up to 1 is synced"


def test_a_commit_is_on_a_majority_when_it_is_told() -> None:
    async def on_two(bench: Bench) -> None:
        bench.send("n1", "leads p 1 1 1")
        for node in ("n1", "n2"):
            await bench.write(node, "p term 1", "p 1 1 a")
        bench.send("n1", "committed p 1 1")

    async def on_one(bench: Bench) -> None:
        bench.send("n1", "leads p 1 1 1")
        await bench.write("n1", "p term 1", "p 1 1 a")
        await bench.write("n2", "p 1 1 a", sync=False)
        bench.send("n1", "committed p 1 1")

    assert broken(on_two) == []
    (found,) = details(on_one)
    assert found.claim is Claim.COMMITTED_ON_MAJORITY
    assert found.detail == (
        "entry 1 of p counts as committed, and the synced disks of 1 of 3 voters hold it"
    )


def test_what_a_member_without_it_could_overwrite_is_not_committed() -> None:
    # Figure 8 of the paper on raft: an entry of an old term on a majority, a later one elsewhere.
    async def act(bench: Bench) -> None:
        for node in ("n1", "n2"):
            await bench.write(node, "p term 4", "p 1 2 a")
        await bench.write("n3", "p term 3", "p 1 3 b")
        bench.send("n1", "leads p 4 1 2")
        bench.send("n1", "committed p 4 1")

    async def with_its_own(bench: Bench) -> None:
        for node in ("n1", "n2"):
            await bench.write(node, "p term 4", "p 1 2 a", "p 2 4 c")
        await bench.write("n3", "p term 3", "p 1 3 b")
        bench.send("n1", "leads p 4 1 2 4")
        bench.send("n1", "committed p 4 2")

    (found,) = details(act)
    assert found.detail == (
        "entry 1 of p counts as committed, and n3, which lacks it, could be elected by what is "
        "synced"
    )
    assert broken(with_its_own) == []


def test_what_was_committed_is_never_replaced() -> None:
    async def act(bench: Bench) -> None:
        bench.send("n1", "leads p 1 1 1 1")
        for node in ("n1", "n2"):
            await bench.write(node, "p term 1", "p 1 1 a", "p 2 1 b")
        bench.send("n1", "committed p 1 1")
        await bench.write("n2", "p 2 2 c")  # was never committed
        await bench.write("n2", "p 1 3 d")

    (found,) = details(act)
    assert (found.node, found.message) == ("n2", "a record of its log")
    assert found.detail == (
        "entry 1 of p, of term 1, was committed, and is replaced by entries of term 3"
    )


def test_an_acknowledged_transaction_is_on_majorities_of_all_its_partitions() -> None:
    async def both(bench: Bench) -> None:
        for node in ("n1", "n2", "n3"):
            await bench.write(node, "q members n1,n2,n3")
        for node in ("n1", "n2"):
            await bench.write(node, "p 1 1 a")
        for node in ("n2", "n3"):
            await bench.write(node, "q 1 1 b")
        bench.send("n1", "done a@p b@q", to="client")

    async def one(bench: Bench) -> None:
        for node in ("n1", "n2"):
            await bench.write(node, "p 1 1 a")
        bench.send("n1", "done a@p b@q", to="client")

    assert broken(both) == []
    (found,) = details(one)
    assert found.claim is Claim.DURABLE_ON_MAJORITY
    assert found.detail == "T1: b of q is acknowledged, and no synced disk holds it"


def test_data_that_the_simulation_destroys_accuses_nobody_unless_the_member_goes_on() -> None:
    async def a_new_life(bench: Bench, name: str) -> None:
        for node in ("n1", "n2"):
            await bench.write(node, "p 1 1 a")
        bench.platters["n2"].wipe()
        await bench.write("n2", f"member {name}")
        bench.send("n1", "done a@p", to="client")

    async def another(bench: Bench) -> None:
        await a_new_life(bench, "n2-again")

    async def the_same(bench: Bench) -> None:
        await a_new_life(bench, "n2")

    assert broken(another) == []
    assert broken(the_same) == [("durable-on-majority", "n1", "done to client")]


def test_a_log_is_cut_only_for_a_snapshot_that_is_synced() -> None:
    async def synced(bench: Bench) -> None:
        await bench.write("n1", "p 1 1 a")
        await bench.write("n1", "0123456", file="snapshot")
        await bench.write("n1", "p cut 1 1 snapshot 8")

    async def written(bench: Bench) -> None:
        await bench.write("n1", "p 1 1 a")
        await bench.write("n1", "0123456", file="snapshot", sync=False)
        await bench.write("n1", "p cut 1 1 snapshot 8")

    async def deleted(bench: Bench) -> None:
        await synced(bench)
        await SimDisk(bench.platters["n1"]).delete("snapshot")

    assert broken(synced) == []
    assert [found.detail for found in details(written)] == [
        "p is cut at entry 1, and 0 of the 8 bytes of snapshot that stand for it are synced"
    ]
    assert [found.detail for found in details(deleted)] == [
        "snapshot is deleted, which stands for the entries of p that were cut off"
    ]
