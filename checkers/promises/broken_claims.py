"""Promises judged where they are made: what a simulation saw broken at the moment of a message.

A history shows a broken promise only once a client reads its consequence. A simulation sees the
disks, clocks and leases themselves, and records each message that claimed what was not so
(``harness.protocols.claims``); nothing of it is inferred here.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs
import pyarrow as pa

from harness.protocols.checker import EXAMPLES_MAX, Kernel, Lookup, Part, Tables
from harness.protocols.claims import ANOMALIES, Claim
from harness.protocols.finding import Finding
from harness.protocols.setting import Setting
from harness.protocols.verdict import Anomaly
from harness.text import seconds


@attrs.frozen
class Claims:
    """``claims``: an anomaly for each kind of claim that was broken."""

    name: str = "claims"
    kernels: tuple[Kernel, ...] = ()

    def judge(self, tables: Tables, setting: Setting, lookup: Lookup) -> Part:
        """Return the broken claims; nothing for a run whose claims were not judged."""
        judged = _counts(tables["claims_judged"], "judged")
        broken = _counts(tables["claims_judged"], "broken")
        findings: dict[str, list[Finding]] = {}
        for row in tables["claims"].to_pylist():
            found = findings.setdefault(row["claim"], [])
            if len(found) < EXAMPLES_MAX:
                found.append(_finding(row))
        return Part(
            anomalies={
                ANOMALIES[Claim(claim)]: Anomaly(count=broken[claim], examples=tuple(found))
                for claim, found in findings.items()
            },
            statistics={
                "claims": {
                    claim: {"judged": count, "broken": broken[claim]}
                    for claim, count in sorted(judged.items())
                }
            },
        )


def _counts(judged: pa.Table, column: str) -> Counter[str]:
    return Counter({row["claim"]: row[column] for row in judged.to_pylist()})


def _finding(row: dict[str, Any]) -> Finding:
    anomaly = ANOMALIES[Claim(row["claim"])].replace("-", " ")
    text = (
        f"{anomaly}: {row['node']} at {seconds(row['at_ns'])}, {row['message']}: {row['detail']} "
        f"(it claims: {row['claim']})"
    )
    return Finding(text=text, txns=(), keys=(), at_ns=row["at_ns"], node=row["node"])


CHECKER = Claims()
