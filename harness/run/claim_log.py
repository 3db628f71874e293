"""Stores what a simulation judged of claims (``harness.protocols.claims``), as two tables.

``claims.parquet`` has a row for each claim that was broken, up to a limit of each kind, by time;
``claims_judged.parquet`` one for each kind of claim: how many were judged, how many were broken.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from harness.clock import RunClock
from harness.history.parquet import read_summed, write_side_table
from harness.protocols.claims import ClaimsReport

CLAIMS_FILE = "claims.parquet"
JUDGED_FILE = "claims_judged.parquet"
CLAIMS = pa.schema(
    [
        ("at_ns", pa.int64()),
        ("claim", pa.string()),
        ("node", pa.string()),
        ("message", pa.string()),
        ("detail", pa.string()),
    ]
)
JUDGED = pa.schema([("claim", pa.string()), ("judged", pa.int64()), ("broken", pa.int64())])


def write_claims(root: Path, report: ClaimsReport, clock: RunClock) -> dict[str, str]:
    """Write both tables into ``root``; returns their checksums. Raises ``HarnessError``."""
    broken = [
        {
            "at_ns": clock.at_ns(each.at_s),
            "claim": each.claim.value,
            "node": each.node,
            "message": each.message,
            "detail": each.detail,
        }
        for each in report.examples
    ]
    judged = [
        {"claim": claim.value, "judged": count, "broken": report.broken.get(claim, 0)}
        for claim, count in report.judged.items()
    ]
    sums: dict[str, str] = {}
    for name, rows, schema in ((CLAIMS_FILE, broken, CLAIMS), (JUDGED_FILE, judged, JUDGED)):
        table = pa.Table.from_pylist(rows, schema=schema)
        sums |= write_side_table(root, name, table, "claims were not judged")
    return sums


def read_claims(root: Path, checksums: dict[str, str]) -> dict[str, pa.Table]:
    """``claims`` and ``claims_judged`` of the run in ``root``; empty where its manifest names none.

    Raises ``MalformedHistory`` for a file that the manifest names and that is missing or differs.
    """
    return read_summed(root, checksums, {CLAIMS_FILE: CLAIMS, JUDGED_FILE: JUDGED})
