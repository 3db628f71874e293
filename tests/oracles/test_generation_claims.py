"""Claims after forced resets: each generation of a group is judged by itself, and as hard as the
first.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow.parquet
from oracles.toy_store import Bench, broken, details, judged

from cli.cells import simulate
from cli.selftest import checker_of
from clusters.reference.claims.durable_facts import LogReader
from clusters.reference.node.raft.configuration import Configuration, Generation, encode
from clusters.reference.node.raft.types import Entry, HardState
from clusters.reference.node.storage.log_records import Update, encode_record, segment_header
from clusters.reference.node.storage.shared_log import segment_name
from harness.campaigns.cell import Cell, CellResult
from harness.plan.plan import load
from harness.protocols.claims import (
    Claim,
    LockGrant,
    LogUpdate,
    Member,
    Members,
    NewGeneration,
    Outcome,
    PreparedLocks,
)
from harness.protocols.consistency_models import OF_CLAIMS, RESET_IN_SC

LOSES_A_MAJORITY = {
    "name": "ha-loss",
    "seed": 1,
    "cluster.provider": "sim",
    "cluster.nodes": 8,
    "system": {
        "name": "reference",
        "partitions": 2,
        "replicas": 3,
        "system_nodes": 1,
        "system_apart": True,
        "mode": "HA",
        "reset_timeout_s": 1,
    },
    "workload": {"name": "list-append", "key_count": 40, "key_choice": "uniform"},
    "drive": {"duration_s": 18, "concurrency": 8, "rate_per_s": 30},
    "check": {"executor": "local", "min_ok": 50},
    "nemesis.schedule": [
        {"at_s": 3.0, "kind": "kill", "target": "majority of partition 0", "hold_s": 7.0}
    ],
}


def drilled(into: Path, *bugs: str) -> tuple[CellResult, str]:
    """The result of the drill, and its verdict as text."""
    plan = load(None, LOSES_A_MAJORITY | {"system.bugs": list(bugs)})
    result = simulate(Cell(plan=plan), lambda _run: None, runs_dir=into, keep=True)
    return result, (Path(result.run) / "analysis" / "verdict.json").read_text()


def test_a_sound_store_breaks_no_claim_by_a_reset(tmp_path: Path) -> None:
    result, verdict = drilled(tmp_path)

    assert not OF_CLAIMS & set(result.anomalies)
    claims = msgspec.json.decode(verdict)["statistics"]["claims"]
    assert claims["committed-on-majority"]["judged"] > 50
    logs = [path.read_text(errors="replace") for path in Path(result.run).rglob("node.log")]
    assert any("generation 1 begins behind entry" in log for log in logs)


def test_a_mistake_is_seen_in_spite_of_resets(tmp_path: Path) -> None:
    result, _ = drilled(tmp_path, "commit-before-quorum")

    assert {"ack-before-durable", "commit-without-majority"} <= set(result.anomalies)
    found = pyarrow.parquet.read_table(Path(result.run) / "claims.parquet").to_pylist()
    # In the first generation of the partition and in the one that the reset began.
    assert any("of p0 counts as committed" in each["detail"] for each in found)
    assert any("of p0@1 counts as committed" in each["detail"] for each in found)


async def reset(bench: Bench) -> None:
    """Two entries are committed; n2 and n3 are gone, and n1 goes on without the third."""
    await bench.agree("p 1 1 a", "p 2 1 b")
    await bench.write("n2", "p 3 1 c")
    await bench.write("n3", "p 3 1 c")
    bench.send("n2", "leads p 1 1 1 1 1")
    bench.send("n2", "committed p 1 3")
    await bench.write("n1", "p begins p@1", "p@1 term 2 n1", "p@1 members n1", "p@1 3 2 d")


def test_a_generation_begins_with_less_than_was_committed() -> None:
    async def alone(bench: Bench) -> None:
        await reset(bench)
        bench.send("n1", "leads p@1 2 3 2")
        bench.send("n1", "committed p@1 2 3")

    async def beside_the_majority_of_before(bench: Bench) -> None:
        await reset(bench)
        bench.send("n1", "committed p 2 3")

    assert judged(alone).judged[Claim.COMMITTED_ON_MAJORITY] == 3
    assert broken(alone) == []
    assert broken(beside_the_majority_of_before) == []


def test_within_a_generation_a_commit_needs_its_majority() -> None:
    async def joined(bench: Bench, *nodes: str) -> None:
        await reset(bench)
        await bench.write("n1", "p@1 members n1,n2,n3", "p@1 4 2 e")
        for node in nodes:
            await bench.write(node, "p begins p@1", "p@1 term 2", "p@1 3 2 d", "p@1 4 2 e")
        bench.send("n1", "leads p@1 2 3 2 2")
        bench.send("n1", "committed p@1 2 4")

    async def on_one(bench: Bench) -> None:
        await joined(bench)

    async def on_two(bench: Bench) -> None:
        await joined(bench, "n2")

    (found,) = details(on_one)
    assert found.detail == (
        "entry 4 of p@1 counts as committed, and the synced disks of 1 of 3 voters hold it"
    )
    assert broken(on_two) == []


def test_hard_states_are_those_of_their_generation() -> None:
    async def behind(bench: Bench) -> None:
        await reset(bench)
        bench.send("n1", "told p@1 2 n1")
        bench.send("n1", "told p 9 n3")  # left for a later one, as for a later term

    async def ahead(bench: Bench) -> None:
        await reset(bench)
        bench.send("n1", "told p@1 3")

    async def not_entered(bench: Bench) -> None:
        await bench.write("n2", "p term 9")
        bench.send("n2", "told p@1 1")

    assert broken(behind) == []
    assert [found.detail for found in details(ahead)] == ["term 3 of p@1 is told, term 2 is synced"]
    assert broken(not_entered) == [("hard-state-synced", "n2", "told to n3")]


def test_what_is_acknowledged_is_durable_in_a_generation() -> None:
    async def on_one_of_three(bench: Bench) -> None:
        await reset(bench)
        await bench.write("n1", "p@1 members n1,n2,n3", "p@1 4 2 e")
        bench.send("n1", "done e@p")

    async def on_all_there_is(bench: Bench) -> None:
        await reset(bench)
        bench.send("n1", "done d@p")

    async def before_the_reset(bench: Bench) -> None:
        await reset(bench)
        bench.send("n1", "done b@p c@p")

    assert [found.claim for found in details(on_one_of_three)] == [Claim.DURABLE_ON_MAJORITY]
    assert broken(on_all_there_is) == []
    assert broken(before_the_reset) == []


def test_what_only_the_survivor_had_is_durable_in_the_generation_that_began_with_it() -> None:
    async def goes_on(bench: Bench, members: str) -> None:
        await bench.agree("p 1 1 a", "p 2 1 b")
        await bench.write("n1", "p 3 1 c")
        await bench.write("n1", "p begins p@1", "p@1 term 2 n1", f"p@1 members {members}")
        bench.send("n1", "done c@p")

    async def alone(bench: Bench) -> None:
        await goes_on(bench, "n1")

    async def beside_others_that_lack_it(bench: Bench) -> None:
        await goes_on(bench, "n1,n2,n3")

    assert broken(alone) == []
    (found,) = details(beside_others_that_lack_it)
    assert "the synced disks of 1 of 3 voters hold it" in found.detail


def test_a_reset_frees_what_it_has_cut_and_nothing_else() -> None:
    """``c``, of transaction T-c, is cut off, ``b`` is kept."""

    async def taken(bench: Bench, txn: str, key: bytes) -> None:
        for each, name in (("T-b", b"kept"), ("T-c", b"cut")):
            bench.declare("n2", PreparedLocks("p", 1, each, (), (name,)))
            bench.declare("n2", Outcome(each, 7))
        await reset(bench)
        bench.declare("n1", LockGrant("p", 2, "T9", key, True))
        bench.declare("n1", Outcome(txn, None))

    async def of_the_cut(bench: Bench) -> None:
        await taken(bench, "T-c", b"cut")

    async def of_the_kept(bench: Bench) -> None:
        await taken(bench, "T-b", b"kept")

    assert broken(of_the_cut) == []
    assert [claim for claim, _, _ in broken(of_the_kept)] == ["lock-exclusive", "one-outcome"]


def test_a_log_is_read_by_generations() -> None:
    begun = Generation(1, 0, 1, 1)
    voters, alone = Configuration(voters=("a", "b")), Configuration(voters=("a",), lineage=(begun,))
    entries = (Entry(1, 1, encode(voters), True), Entry(2, 2, encode(alone), True))
    updates = (
        Update("p0", HardState(1, "a"), entries[:1]),
        Update("p0", HardState(2, None, 1), entries[1:]),
        Update("p0", HardState(1, "a"), entries[:1], dropped=7),
    )
    header = segment_header(1)
    data = header + encode_record(updates, 1, len(header))

    _, facts = LogReader(lambda _group, _entry, _mark: ()).read(segment_name(1), 0, data)

    names = [(fact.group, fact.term, fact.dropped) for fact in facts if isinstance(fact, LogUpdate)]
    assert names == [
        *(("p0", 1, False), ("p0@1", 2, False)),
        *(("p0", None, True), ("p0@1", None, True), ("p0", 1, False)),
    ]
    assert [fact for fact in facts if isinstance(fact, NewGeneration)] == [
        NewGeneration("p0", "p0", "p0@1")
    ]
    # No part of the erased copy is the next one's, in either generation.
    assert [fact.group for fact in facts if isinstance(fact, Member)] == ["p0", "p0@1"]
    said = [e.says for fact in facts if isinstance(fact, LogUpdate) for e in fact.entries]
    assert said == [(Members(("a", "b")),), (Members(("a",)),), (Members(("a", "b")),)]


def test_broken_rules_of_resets_are_reported_as_theirs() -> None:
    assert checker_of(RESET_IN_SC) == "resets"
