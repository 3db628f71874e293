"""The checker of claims: what a simulation recorded becomes violations, and nothing else does."""

from __future__ import annotations

import asyncio
from pathlib import Path

from checkers.promises.broken_claims import CHECKER
from harness.clock import RunClock
from harness.protocols.claims import Claim, ClaimBroken, ClaimsReport
from harness.protocols.consistency_models import decides
from harness.protocols.promise import Declaration
from harness.protocols.setting import Setting
from harness.run.claim_log import read_claims, write_claims

SETTING = Setting(
    model="strict-serializable", declaration=Declaration(system="toy", mode="SC", promises=())
)
EARLY = ClaimBroken(
    claim=Claim.DURABLE_ON_MAJORITY,
    node="n2",
    at_s=2.5,
    message="CommitReply to n3",
    detail="T1: commit of p0 is acknowledged, and the synced disks of 1 of 3 voters hold it",
)


def stored(root: Path, *examples: ClaimBroken, count: int = 0) -> dict[str, str]:
    report = ClaimsReport(
        judged={Claim.DURABLE_ON_MAJORITY: 7, Claim.LEASE_VALID: 0},
        broken={Claim.DURABLE_ON_MAJORITY: count} if count else {},
        examples=examples,
    )
    loop = asyncio.new_event_loop()
    try:
        return write_claims(root, report, RunClock(loop, origin_s=0.5))
    finally:
        loop.close()


def test_a_broken_claim_names_node_time_message_and_promise(tmp_path: Path) -> None:
    sums = stored(tmp_path, EARLY, count=150)
    part = CHECKER.judge(read_claims(tmp_path, sums), SETTING, lambda *_: {})  # type: ignore[arg-type]

    anomaly = part.anomalies["ack-before-durable"]
    assert anomaly.count == 150
    assert anomaly.examples[0].text == (
        "ack before durable: n2 at 2.000 s, CommitReply to n3: T1: commit of p0 is acknowledged, "
        "and the synced disks of 1 of 3 voters hold it (it claims: durable-on-majority)"
    )
    assert (anomaly.examples[0].node, anomaly.examples[0].at_ns) == ("n2", 2_000_000_000)
    assert decides("ack-before-durable", "read-uncommitted")
    assert part.statistics["claims"]["durable-on-majority"] == {"judged": 7, "broken": 150}


def test_claims_that_held_are_counted_and_accuse_nobody(tmp_path: Path) -> None:
    sums = stored(tmp_path)
    part = CHECKER.judge(read_claims(tmp_path, sums), SETTING, lambda *_: {})  # type: ignore[arg-type]

    assert part.anomalies == {}
    assert part.statistics["claims"]["lease-valid"] == {"judged": 0, "broken": 0}


def test_a_run_without_the_files_has_no_claims(tmp_path: Path) -> None:
    tables = read_claims(tmp_path, {})

    assert {name: table.num_rows for name, table in tables.items()} == {
        "claims": 0,
        "claims_judged": 0,
    }
