"""How a night of a campaign is closed: compared with the one before, told in the forms that a CI
reads, packed, exported, and pruned.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import attrs
import msgspec

from cli.campaign import Conducted, write_page, write_table
from cli.run_pages import refresh_index
from cli.run_state import held_by
from cli.runs import export_store
from cli.session import say
from harness.campaigns.cell_table import TABLE, CampaignTable, read_table
from harness.campaigns.ledger import RESULTS_FILE, past_results
from harness.campaigns.matrix import CampaignFile, NightRules
from harness.errors import FiredrillError, HarnessError, UsageError
from harness.exit_codes import FAILED, Outcome, exit_code, worst
from harness.history.durable_files import write_atomically
from harness.history.regular_files import is_regular
from harness.history.run_directory import RunDirectory
from harness.run.disk_budget import MIB
from harness.text import inert
from results.nights.summary import (
    RUNS,
    NightFinding,
    NightRun,
    NightSummary,
    axes_of,
    counts_of,
    failed,
    findings_of,
    missed_of,
    read_night,
    read_runs,
    red_cells,
    tried_again,
    write_night,
    write_runs,
)
from results.store.archive import SUFFIX, archive
from results.store.retention import Rule, RunRecord, to_prune
from results.store.run_entry import RunEntry, entry_of, record_of
from results.store.run_tags import change_tags
from results.store.store import RunStore

if TYPE_CHECKING:
    from results.compare.comparison import Comparison
    from results.report.campaign_page import PageFinding

ARTIFACTS = "artifacts"
NOTIFY_LIMIT_S = 60.0
DAY_S = 86_400.0
_FAILED = frozenset(outcome.value for outcome in FAILED)


@attrs.define(kw_only=True)
class NightClosing:
    """What follows the campaign of a ``night``: each step that fails leaves a sentence in
    ``trouble``, and the others go on.
    """

    store: RunStore
    asked: CampaignFile
    file: Path
    night: date
    before: Sequence[tuple[date, Path]]
    done: Conducted
    tags: Sequence[str]
    tables: Path | None = None
    trouble: list[str] = attrs.field(factory=list)
    _entries: dict[Path, RunEntry] = attrs.field(init=False, factory=dict)

    def close(self, begun: datetime, *, whole: bool) -> NightSummary:
        """Do all steps and return what came of them. A night that is not ``whole``, a shard, is
        compared with none, and removes nothing.
        """
        done = self.done
        self._tag()
        earlier = [found for _, path in self.before if (found := read_night(path)) is not None]
        last = earlier[-1] if earlier and whole else None
        same = read_night(done.root)
        before = [each for night in earlier for each in night.known_findings()]
        before += self._unclosed()
        own = same.known_findings() if same else ()
        findings = findings_of(self.night, self._judged(), [*before, *own])
        base, then = self._base_of(earlier) if whole else (None, [])
        compared = self._compared(then, frozenset(each.fingerprint for each in before))
        notes = self._base_notes(earlier, base, compared) if whole else []
        notes += compared.notes if compared else ()
        missed = missed_of(findings, base=last, same=same)
        again = [each for each in missed if tried_again(each, done.table)]
        # Runs that no table holds stay: with them goes all that is known of them.
        exported = self._export()
        removed = self._retain() if exported and whole and done.finished else 0
        summary = NightSummary(
            campaign=self.asked.name,
            night=self.night,
            outcome=done.table.outcome,
            exit_code=0,
            meaning="",
            campaign_outcome=done.table.outcome,
            base=base.night if base else None,
            comparison=compared.outcome if compared else None,
            changes=tuple(map(inert, compared.reasons)) if compared else (),
            compare_notes=tuple(map(inert, notes)),
            begun=begun,
            took_s=round(done.took_s, 1),
            counts=counts_of(done.table),
            cell_count=len(done.table.cells),
            note=done.note,
            findings=findings,
            findings_gone=tuple(again),
            findings_untried=tuple(each for each in missed if each not in again),
            cells=red_cells(done.table),
            artifacts=self._pack(),
            removed_runs=removed,
            tags=tuple(self.tags),
        )
        return self._written(summary)

    def notify(self, command: Sequence[str], summary: NightSummary) -> NightSummary:
        """Run ``command`` with the summary on its standard input. A command that fails is one more
        trouble of the night.
        """
        try:
            subprocess.run(
                command,
                input=msgspec.json.encode(summary),
                stdout=subprocess.DEVNULL,
                timeout=NOTIFY_LIMIT_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            self.trouble.append(f"--notify: {error}")
            return self._written(summary)
        return summary

    def copy(self, target: Path, summary: NightSummary) -> NightSummary:
        """Copy what the night wrote into ``target``, without what it goes on from, and the reports
        of what was packed, to which its page leads there.
        """
        left_out = shutil.ignore_patterns(RESULTS_FILE, RUNS, ".*")
        paths = {Path(row.run).name: Path(row.run) for row in self.done.table.cells if row.run}
        reports: dict[str, str] = {}
        try:
            shutil.copytree(self.done.root, target, ignore=left_out, dirs_exist_ok=True)
            for name in summary.artifacts:
                run = Path(name).name.removesuffix(SUFFIX)
                report = RunDirectory(paths[run]).report
                if is_regular(report):
                    shutil.copyfile(report, target / ARTIFACTS / f"{run}.html")
                    reports[run] = f"{ARTIFACTS}/{run}.html"
            self._write_page(target, summary, reports)
        except FiredrillError as error:
            self.trouble.append(f"--output: {error}")
            return self._written(summary)
        except OSError as error:  # of several files one of its kind
            self.trouble.append(f"--output: {error.strerror or 'not all could be copied'}")
            return self._written(summary)
        return summary

    def _written(self, summary: NightSummary) -> NightSummary:
        """Settle the outcome, and write every form of ``summary``."""
        summary = self._settled(summary)
        writers = (self._page, self._table_forms, self._texts)
        for write in writers:
            try:
                summary = write(summary)
            except FiredrillError as error:
                self.trouble.append(str(error))
        if len(self.trouble) > len(summary.trouble):
            summary = self._settled(summary)
            with contextlib.suppress(HarnessError):
                write_night(self.done.root, summary)
        return summary

    def _settled(self, summary: NightSummary) -> NightSummary:
        outcomes = [summary.campaign_outcome]
        outcomes += [] if summary.comparison is None else [summary.comparison]
        outcomes += [Outcome.HARNESS_ERROR] if self.trouble else []
        outcome = worst(outcomes)
        return msgspec.structs.replace(
            summary,
            outcome=outcome,
            meaning=outcome.meaning,
            exit_code=exit_code(outcome, interrupted=not self.done.finished),
            trouble=tuple(inert(text) for text in self.trouble),
        )

    def _page(self, summary: NightSummary) -> NightSummary:
        write_table(self.done)
        page = self._write_page(self.done.root, summary)
        return msgspec.structs.replace(summary, page=str(page))

    def _write_page(
        self, root: Path, summary: NightSummary, reports: Mapping[str, str] | None = None
    ) -> Path:
        return write_page(
            self.done,
            root,
            outcome=summary.outcome,
            findings=_page_findings(summary),
            notes=_page_notes(summary),
            reports=reports,
        )

    def _table_forms(self, summary: NightSummary) -> NightSummary:
        from results.nights.annotations import CODE_QUALITY, code_quality
        from results.nights.junit import write_junit

        write_junit(self.done.root, summary, self.done.table)
        write_atomically(self.done.root / CODE_QUALITY, code_quality(summary, str(self.file)))
        return summary

    def _texts(self, summary: NightSummary) -> NightSummary:
        from results.nights.markdown import SUMMARY, markdown

        write_night(self.done.root, summary)
        write_runs(self.done.root, self._first_runs(self.done.root, self.done.table))
        text = markdown(summary).encode("utf-8", "backslashreplace")
        write_atomically(self.done.root / SUMMARY, text)
        return summary

    def _unclosed(self) -> Iterator[NightFinding]:
        """Yield what nights before found that were killed before they were closed: their results
        are recorded, and their runs are there.
        """
        for day, directory in self.before:
            if read_night(directory) is not None:
                continue
            try:
                named = [result.run for _, result in past_results(directory / RESULTS_FILE)]
            except FiredrillError as error:
                self.trouble.append(str(error))
                continue
            found = [path for run in named if run and (path := self.store.located(run))]
            yield from findings_of(day, [NightRun(entry=self._entry(path)) for path in found])

    def _base_of(
        self, earlier: Sequence[NightSummary]
    ) -> tuple[NightSummary | None, list[RunEntry]]:
        """Return the last night that ran anything, and its runs: one that was broken off before its
        first cell would hide from all nights behind it what the one before had.
        """
        for night in reversed(earlier):
            directory = next((path for day, path in self.before if day == night.night), None)
            if directory and (runs := self._first_runs(directory, table_of(directory))):
                return night, runs
        return None, []

    def _base_notes(
        self,
        earlier: Sequence[NightSummary],
        base: NightSummary | None,
        compared: Comparison | None,
    ) -> list[str]:
        """Say what a reader would take for granted of the comparison, and is not so."""
        if not earlier or self.asked.night.compare == "nothing":
            return []
        if base is None:
            return ["compared with no night before: no run of one that counts is known any more"]
        if compared is not None and base is not earlier[-1]:
            return [f"no run of the night of {earlier[-1].night} that counts is known"]
        return []

    def _compared(self, then: Sequence[RunEntry], known: frozenset[str]) -> Comparison | None:
        """Compare the runs of the cells that count with those of a night before, ``then``; ``None``
        where there are none, or nothing is to be compared. Findings that any night before had are
        ``known``.
        """
        rule = self.asked.night.compare
        if rule == "nothing":
            return None
        new = self._first_runs(self.done.root, self.done.table)
        if not new or not then:
            return None
        from results.compare.comparison import compare
        from results.compare.effect_thresholds import Rules

        try:
            # One seed a cell is a night too: nobody would read a change of a rate out of it.
            found = compare(new, then, rules=Rules(findings_suffice=True, known=known))
        except FiredrillError as error:
            self.trouble.append(str(error))
            return None
        if rule == "findings":
            outcome = Outcome.VIOLATION if found.findings_new else Outcome.VALID
            reasons = found.reasons[: len(found.findings_new)]  # the worst come first
            found = msgspec.structs.replace(found, outcome=outcome, reasons=reasons)
        return found

    def _first_runs(self, directory: Path, table: CampaignTable | None) -> list[RunEntry]:
        """Return the run of each cell that counts in the ``table`` of a night, or what the night
        recorded in its ``directory`` of one that is gone; repetitions would weigh failures twice.
        """
        recorded = read_runs(directory)
        found = []
        for row in table.cells if table else ():
            if row.counts and row.run:
                path = self.store.located(row.run)
                entry = recorded.get(Path(row.run).name) if path is None else self._entry(path)
                found += [entry] if entry is not None else []
        return found

    def _tag(self) -> None:
        """Tag every run of the night, those of repetitions too."""
        for key, runs in self.done.runs.items():
            for path in runs:
                # Runs of other machines are theirs.
                if path.is_dir() and path.resolve().parent == self.store.root.resolve():
                    try:
                        change_tags(RunDirectory(path), [*self.tags, f"cell={key}"])
                    except FiredrillError as error:
                        self.trouble.append(str(error))

    def _judged(self) -> list[NightRun]:
        """Return the runs of the night, repetitions among them."""
        return [
            NightRun(entry=self._entry(path), place=axes_of(row), quarantined=bool(row.quarantine))
            for row in self.done.table.cells
            for path in self.done.runs.get(row.key, ())
            if path.is_dir()
        ]

    def _entry(self, path: Path) -> RunEntry:
        if path not in self._entries:
            self._entries[path] = entry_of(RunDirectory(path), sized=False)
        return self._entries[path]

    def _pack(self) -> tuple[str, ...]:
        """Write the first runs that failed as files, as many and as large as the rules allow."""
        rules, root = self.asked.night, self.done.root / ARTIFACTS
        packed: list[str] = []
        for row in filter(failed, self.done.table.cells):
            if len(packed) >= rules.artifacts:
                break
            if not row.run or not Path(row.run).is_dir():
                continue
            target = root / f"{Path(row.run).name}{SUFFIX}"
            try:
                if not target.is_file():
                    root.mkdir(parents=True, exist_ok=True)
                    archive(RunDirectory(Path(row.run)), target)
                if target.stat().st_size > rules.artifact_mib * MIB:
                    say(f"{target.name}: larger than night.artifact_mib: it is not kept")
                    target.unlink()
                    continue
            except (FiredrillError, OSError) as error:
                self.trouble.append(str(error))
                continue
            packed.append(f"{ARTIFACTS}/{target.name}")
        return tuple(packed)

    def _export(self) -> bool:
        """Add the runs of the store to the tables that were asked for; return false where that
        failed.
        """
        from results.store.index import Query

        if self.tables is None:
            return True
        try:
            export_store(self.store, self.tables, Query())
        except FiredrillError as error:
            self.trouble.append(f"--export: {error}; no run was removed")
            return False
        return True

    def _retain(self) -> int:
        """Remove the runs of earlier nights that are too old, and their files; return how many."""
        rules, removed = self.asked.night, 0
        now = datetime.now(UTC)
        for rule in _rules(rules):
            for chosen in to_prune(self._records(), rule, now):
                run = self._run(chosen.run_id)
                try:
                    self.store.remove(run)
                    removed += 1
                except HarnessError as error:
                    if run.root.exists():  # else another command removed it
                        self.trouble.append(str(error))
        for day, path in self.before:
            if (self.night - day).days > rules.keep_nights:
                for file in (path / ARTIFACTS).glob(f"*{SUFFIX}"):
                    with contextlib.suppress(OSError):
                        file.unlink()
        if self.store.root.is_dir():  # else nothing was run yet
            refresh_index(self.store)
        return removed

    def _records(self) -> list[RunRecord]:
        """Return the runs of this campaign's nights: no rule of its own touches other runs of the
        store. Those of this one are held, and prove what they found.
        """
        from results.store.index import Condition, Query, opened

        mine = Condition(name="tag", operator="=", value=f"campaign={self.asked.name}")
        with opened(self.store) as index:
            found = index.entries(Query(conditions=(mine,)))
        tonight = f"night={self.night}"
        return [
            record_of(each, tonight if tonight in each.tags else held_by(self._run(each.run)))
            for each in found
        ]

    def _run(self, name: str) -> RunDirectory:
        return RunDirectory(self.store.root / name)


def _page_notes(summary: NightSummary) -> list[str]:
    compared = []
    if summary.comparison is not None:
        said = summary.changes or (summary.comparison.value,)
        compared = [f"against the night of {summary.base}: {each}" for each in said]
    return [*compared, *summary.compare_notes, *summary.trouble]


def _page_findings(summary: NightSummary) -> list[PageFinding]:
    from results.report.campaign_page import PageFinding

    found = [(each, summary.status(each)) for each in summary.findings]
    return [
        PageFinding(
            fingerprint=each.fingerprint,
            anomaly=each.anomaly,
            cause=each.cause,
            status=status,
            count=each.count,
            runs=each.run_count,
            example=each.example,
        )
        for each, status in (*found, *summary.missed())
    ]


def _rules(rules: NightRules) -> tuple[Rule, Rule]:
    sound = Rule(older_than_s=rules.keep_nights * DAY_S, keep_failed=True, failed=_FAILED)
    every = Rule(older_than_s=rules.keep_failed_nights * DAY_S)
    return sound, every


def table_of(directory: Path) -> CampaignTable | None:
    """Return the table of the campaign in ``directory``; ``None`` where none can be read."""
    try:
        return read_table(directory / TABLE)
    except UsageError:
        return None
