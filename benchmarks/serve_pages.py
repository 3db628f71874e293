"""What a store of many runs costs to list: its index made anew, and every page in a browser.

``python benchmarks/serve_pages.py [--runs 10000] [--keep DIR]``. A few simulated runs of two cells,
with and without a planted bug, are copied by hard links until there are so many, every third of
them with the finding, in nights of ``NIGHT`` cells. The index is made from nothing, beside the
baseline "read": opening and reading the same files once. Then Chromium opens each page ``VISITS``
times, spread over the looks at the runs that the server takes meanwhile, beside the baseline
"empty": the page of what is not there. The bar: the index within ``REBUILD_S``, each visit of
every page within ``PAGE_S`` and ``PAGE_BYTES``. Exit code 1 where one is missed. First a
calibrator.
"""

from __future__ import annotations

import os
import platform
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import attrs
import click
import msgspec
from calibrator import calibrate
from comparison import runs as simulated

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "results"))

from chromium_pages import Browser, browsing

from harness.campaigns.cell_table import CampaignTable, CellRow
from harness.exit_codes import Outcome
from results.store.index import Query, opened
from results.store.run_entry import RunEntry
from results.store.run_figures import figures_path
from results.store.store import RunStore, run_id

REBUILD_S, PAGE_S, PAGE_BYTES = 60.0, 0.3, 1_000_000
VISITS = 9
NIGHT = 32  # cells of one
BAD_EVERY = 3
REST_S = 1.0  # between two rounds of visits
FIREDRILL = Path(sys.executable).with_name("firedrill")
MIB = 1 << 20


def copied(source: Path, target: Path, seed: int, tags: Sequence[str]) -> None:
    """Copy a run by hard links, under another seed and with tags of its own."""
    shutil.copytree(source, target, copy_function=os.link)
    text = (source / "plan.toml").read_text()
    old = next(line for line in text.splitlines() if line.startswith("seed = "))
    for name, content in (
        ("plan.toml", text.replace(old, f"seed = {seed}", 1)),
        ("tags.json", msgspec.json.encode(tags).decode()),
    ):
        (target / name).unlink(missing_ok=True)
        (target / name).write_text(content)


def grown(root: Path, count: int) -> RunStore:
    """Make the store of ``count`` runs below ``root``, or go on with what is there of it."""
    store, pool = RunStore(root / "runs"), root / "pool"
    good = simulated(pool, "good", range(3), {})
    bad = simulated(pool, "bad", range(2), {"system.bugs": ["ack-before-quorum"]})
    failed = [each for each in bad if each.findings] or bad
    stream = random.Random(1)
    first = datetime(2026, 1, 1, 1, tzinfo=UTC)
    rows: dict[int, list[CellRow]] = {}
    for number in range(count):
        night, cell = divmod(number, NIGHT)
        name, some = ("bad", failed) if number % BAD_EVERY == 0 else ("good", good)
        drawn: RunEntry = stream.choice(some)
        begun = first + timedelta(days=night, minutes=cell)
        wall_ns = int(begun.timestamp()) * 1_000_000_000
        target = store.root / run_id("night", wall_ns, number.to_bytes(4, "big")[2:])
        tags = [f"night={begun.date()}", f"commit={night:07x}", "campaign=night"]
        if not target.exists():
            copied(pool / name / drawn.run, target, number, tags)
        row = CellRow(
            axes={"workload": drawn.workload},
            seed=number,
            key=str(number),
            outcome=Outcome(drawn.outcome or Outcome.UNKNOWN),
            anomalies={each.anomaly: each.count for each in drawn.findings},
            run=str(target),
        )
        rows.setdefault(night, []).append(row)
    for night, cells in rows.items():
        directory = store.root / "campaigns" / f"night-{first + timedelta(days=night):%Y%m%d}"
        directory.mkdir(parents=True, exist_ok=True)
        worst = min((row.outcome for row in cells if row.outcome), key=list(Outcome).index)
        table = CampaignTable(name="night", outcome=worst, cells=tuple(cells))
        (directory / "campaign.json").write_bytes(msgspec.json.encode(table))
    return store


def read_once(store: RunStore) -> float:
    """Seconds to open and read the files once that an entry is made from."""
    begun_s = time.perf_counter()
    for run in store.runs():
        for path in (run.plan, run.manifest, run.verdict, figures_path(run), run.tags):
            path.read_bytes()
    return time.perf_counter() - begun_s


def rebuilt(store: RunStore) -> tuple[float, float]:
    """Seconds, of the wall and of a core, to make the index from nothing."""
    begun_s, cpu_s = time.perf_counter(), time.process_time()
    with opened(store, rebuild=True) as index:
        index.count()
    return time.perf_counter() - begun_s, time.process_time() - cpu_s


def pages_of(store: RunStore) -> list[str]:
    """The pages: of a run, a finding and a campaign the largest."""
    with opened(store) as index:
        entries = index.entries(Query())
    having = next(each for each in entries if each.findings)
    last = sorted((store.root / "campaigns").iterdir())
    new, base = last[-2].name, last[-3].name
    return [
        "/runs",
        "/runs?page=50",
        "/runs?sort=longest_gap_s",
        "/runs?sort=ok&dir=up&page=80",
        "/runs?q=outcome%3Dviolation",
        "/runs?q=bank+night",
        "/runs?q=finding%3D" + having.findings[0].fingerprint,
        f"/runs/{having.run}",
        "/campaigns",
        f"/campaigns/{new}",
        "/findings",
        f"/findings/{having.findings[0].fingerprint}",
        "/compare",
        f"/compare?new={new}&base={base}",
    ]


@attrs.define
class Visits:
    """What the visits of one page took, and the bytes that it was."""

    page: str
    load_s: list[float] = attrs.field(factory=list)
    size: int = 0

    @property
    def missed(self) -> bool:
        """Whether it is over the bar."""
        return max(self.load_s) > PAGE_S or self.size > PAGE_BYTES


def visited(browser: Browser, port: int, pages: Sequence[str]) -> Iterator[Visits]:
    """Open every page in turn, and all of them again."""
    found = [Visits(page) for page in pages]
    for _ in range(VISITS):
        for each in found:
            browser.open(f"http://127.0.0.1:{port}{each.page}")
            each.load_s.append(browser.load_s())
            each.size = int(
                browser.run("performance.getEntriesByType('navigation')[0].decodedBodySize")
            )
        time.sleep(REST_S)
    yield from found


def browse(store: RunStore, chromium: str, scratch: Path) -> bool:
    """Serve ``store``, visit every page, print what that took; return whether the bar is met."""
    begun_s = time.perf_counter()
    command = [FIREDRILL, "serve", "--port", "0", "--runs-dir", str(store.root)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None  # noqa: S101 (it is piped)
    port = int(process.stdout.readline().rstrip("/\n").rpartition(":")[2])
    print(f"serve: ready after {time.perf_counter() - begun_s:.1f} s")
    missed = []
    try:
        with browsing(chromium, scratch) as browser:
            pages = pages_of(store)
            empty, *found = visited(browser, port, ["/nothing-here", *pages])
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(30)
    base_s = statistics.median(empty.load_s)
    for each in (empty, *found):
        median_s = statistics.median(each.load_s)
        missed += [each.page] if each.missed else []
        print(
            f"{'MISSED' if each.missed else 'ok':6} median {median_s * 1e3:6.0f} ms "
            f"({median_s / base_s:5.1f} x empty), worst {max(each.load_s) * 1e3:6.0f} ms, "
            f"{each.size / 1e3:7.0f} kB  {each.page}"
        )
    return not missed


@click.command(help=__doc__)
@click.option("--runs", "count", default=10_000, show_default=True, type=click.IntRange(100))
@click.option("--keep", type=click.Path(file_okay=False, path_type=Path))
def main(count: int, keep: Path | None) -> None:
    """Measure, and say whether the bar is met."""
    python = platform.python_version()
    print(f"machine: {platform.platform()}, {os.cpu_count()} cores, Python {python}")
    print(calibrate(), flush=True)
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise click.UsageError("chromium is not installed")
    with tempfile.TemporaryDirectory() as scratch:
        root = keep or Path(scratch)
        store = grown(root, count)
        read_once(store)  # so that neither of the next is the first
        read_s = read_once(store)
        wall_s, cpu_s = rebuilt(store)
        size_mib = sum(path.stat().st_size for path in store.root.glob(".index-*")) / MIB
        in_time = wall_s <= REBUILD_S
        print(
            f"{'ok' if in_time else 'MISSED':6} index of {count} runs: {wall_s:.1f} s, "
            f"{cpu_s:.1f} s of a core ({wall_s / read_s:.1f} x read, {read_s:.1f} s), "
            f"{size_mib:.0f} MiB",
            flush=True,
        )
        fits = browse(store, chromium, Path(scratch) / "chromium")
    raise SystemExit(0 if in_time and fits else 1)


if __name__ == "__main__":
    main()
