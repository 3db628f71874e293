"""Drills of the reference store: each mistake is seen at the message that breaks its promise, and
without it nothing is.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cli.cells import simulate
from cli.selftest import plan_of
from harness.campaigns.cell import Cell, CellResult
from harness.exit_codes import Outcome

FOUND = [
    ("ack-before-quorum", "ack-before-durable"),
    ("commit-before-quorum", "commit-without-majority"),
    ("clock-not-advanced", "snapshot-overtaken"),
    ("commit-retried", "two-outcomes"),
    ("conflict-kept", "unsynced-answer"),
    ("lease-past-end", "answer-outside-lease"),
    ("no-fsync", "unsynced-answer"),
    ("prepared-times-out", "lock-granted-twice"),
    ("reader-joins-writer", "lock-granted-twice"),
    ("refusal-ignored", "ack-before-durable"),
    ("released-before-durable", "lock-given-up-early"),
    ("term-not-persisted", "unsynced-hard-state"),
    ("vote-not-persisted", "unsynced-hard-state"),
]


def drilled(bug: str, seed: int, into: Path, *, on: bool, keep: bool = False) -> CellResult:
    plan = plan_of(bug, seed, on=on)
    return simulate(Cell(plan=plan), lambda _run: None, runs_dir=into, keep=keep)


# The first seed in which that promise is broken, where it is not 1.
SEEDS = {"commit-retried": 5, "prepared-times-out": 5}


@pytest.mark.parametrize(("bug", "name"), FOUND)
def test_a_mistake_is_seen_where_its_promise_is_made(bug: str, name: str, tmp_path: Path) -> None:
    assert name in drilled(bug, SEEDS.get(bug, 1), tmp_path, on=True).anomalies


def test_the_sound_node_breaks_no_claim_and_makes_each(tmp_path: Path) -> None:
    result = drilled("refusal-ignored", 1, tmp_path, on=False, keep=True)

    assert (result.outcome, result.anomalies) == (Outcome.VALID, {})
    verdict = msgspec.json.decode((Path(result.run) / "analysis" / "verdict.json").read_bytes())
    claims = verdict["statistics"]["claims"]
    # A promise that nobody made was not judged either.
    assert all(claims[name]["judged"] > 50 for name in MADE)
    assert not any(counts["broken"] for counts in claims.values())


MADE = (
    "hard-state-synced",
    "known-after-crash",
    "committed-on-majority",
    "durable-on-majority",
    "lease-valid",
    "one-primary",
    "lock-exclusive",
    "lock-kept",
    "one-outcome",
    "snapshot-stable",
    "clock-carried",
    "replicas-agree",
)
