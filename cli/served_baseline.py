"""What a simulated campaign served in calm, beside a recorded one: ``firedrill sim --no-swarm``."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs
import click
import msgspec
from msgspec.structs import replace

from harness.campaigns import baseline
from harness.campaigns.baseline import Baseline
from harness.campaigns.cell import CellResult
from harness.errors import UsageError
from harness.exit_codes import FAILED, Outcome, worst
from harness.plan.plan import NemesisPlan, Plan

RECORDED = Path(__file__).with_name("sim_baseline.json")
NOT_FIXED = "no baseline: only seeds of the one setting of --no-swarm, without PLAN, have one"
_LEFT_OUT = ("bugs",)  # of the system's options: to notice a planted bug is what a baseline is for


def setting_of(plans: Sequence[Plan]) -> str:
    """Return a digest of what ``plans`` have in common; empty where they differ in more than their
    seed, faults and workload.
    """
    # Sorted: the order of options in a plan makes no other setting.
    texts = {msgspec.json.encode(_unlike(_common(plan)), order="sorted") for plan in plans}
    return hashlib.sha256(texts.pop()).hexdigest()[:16] if len(texts) == 1 else ""


def _unlike(plan: Plan) -> dict[str, Any]:
    """Return the tables of ``plan`` without what is as by default: a key or a table that plans did
    not have when a baseline was recorded makes no other setting, where it stays at its default.
    """
    tables, usual = (msgspec.to_builtins(each) for each in (plan, Plan(seed=0)))
    unlike = {
        name: {k: v for k, v in table.items() if k not in usual[name] or v != usual[name][k]}
        for name, table in tables.items()
        if isinstance(table, dict)
    }
    return {name: table for name, table in unlike.items() if table}


def _common(plan: Plan) -> Plan:
    options = {k: v for k, v in plan.system.options.items() if k not in _LEFT_OUT}
    return replace(
        plan,
        seed=0,
        name="",
        nemesis=NemesisPlan(),
        workload=replace(plan.workload, name=""),
        system=replace(plan.system, options=options),
    )


@attrs.frozen(kw_only=True)
class Comparison:
    """The setting of a campaign (empty for one that has no baseline), and what it is compared with
    or recorded into.
    """

    setting: str
    recorded: Baseline | None
    record_path: Path | None

    @classmethod
    def of(
        cls, plans: Sequence[Plan], baseline_path: Path | None, record_path: Path | None
    ) -> Comparison:
        """Prepare the comparison of ``plans``, all of one setting; none for other seeds. Raises
        ``UsageError`` for a file that is no baseline, and where one is asked for and can't be.
        """
        setting = setting_of(plans) if plans else ""
        if not setting and (baseline_path or record_path):
            raise UsageError(NOT_FIXED)
        path = baseline_path or RECORDED
        wanted = bool(setting) and record_path is None and (baseline_path or path.exists())
        return cls(
            setting=setting,
            recorded=baseline.read(path) if wanted else None,
            record_path=record_path,
        )

    def outcome(
        self, results: Sequence[CellResult], outcome: Outcome, *, finished: bool
    ) -> Outcome:
        """Print what ``results`` served, and how that compares; return ``outcome``, or
        ``regression`` where that is worse. A campaign that was interrupted records nothing.
        """
        now = baseline.served(results)
        for line in baseline.described(now):
            click.echo(line)
        if self.record_path is not None and finished:
            if outcome in FAILED:
                raise UsageError(f"{self.record_path}: not recorded, since a seed failed")
            baseline.write(self.record_path, Baseline(setting=self.setting, workloads=now))
            click.echo(f"recorded as a baseline: {self.record_path}")
        if self.recorded is None:
            if not self.setting:
                click.echo(NOT_FIXED)
            return outcome
        if self.recorded.setting != self.setting:
            click.echo("not compared: the baseline was recorded under another setting")
            return outcome
        found = baseline.worse(now, self.recorded.workloads)
        for row in found:
            click.echo(f"WORSE THAN THE BASELINE: {row.text}")
        return worst((outcome, Outcome.REGRESSION)) if found else outcome
