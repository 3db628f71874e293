"""``firedrill compare`` and ``trend``: sides by their names, exit codes, one page and JSON."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "results"))
from synthetic_run import build, valid, violation, write_verdict

from cli.main import execute
from harness.campaigns.cell_table import CampaignTable, CellRow
from harness.errors import UsageError
from harness.exit_codes import Outcome
from harness.history.run_directory import RunDirectory
from harness.protocols.verdict import Anomaly
from results.compare.measure import keep_figures
from results.compare.run_selection import side_of
from results.store.run_tags import change_tags
from results.store.store import RunStore

ACTIVE = "<img src=x onerror=alert(1)>"
SEEDS = range(6)


def judged(root: Path, day: int, seed: int, release: str, *, broken: bool = False) -> RunDirectory:
    run = build(
        root / f"202611{day:02}-0200{seed:02}-night-{seed:04x}",
        seed=100 * day + seed,
        duration_s=12.0,
        rate_per_s=60.0,
    )
    run.plan.write_text(re.sub(r"(?m)^seed = .*$", f"seed = {seed}", run.plan.read_text()))
    verdict = violation() if broken else valid()
    if broken:
        (example,) = verdict.anomalies["lost-write"].examples
        told = msgspec.structs.replace(example, text=f"lost write: {ACTIVE}")
        verdict = msgspec.structs.replace(
            verdict, anomalies={"lost-write": Anomaly(count=1, examples=(told,))}
        )
    write_verdict(run, verdict)
    keep_figures(run)
    change_tags(run, [f"release={release}"])
    return run


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    for day, release in ((1, "3.0"), (2, "3.1")):
        for seed in SEEDS:
            judged(root, day, seed, release)
    judged(root, 3, 0, "3.2", broken=True)
    names = [row.root.name for row in RunStore(root).runs()]
    table = CampaignTable(
        name="night",
        outcome=Outcome.VALID,
        cells=tuple(
            CellRow(axes={}, seed=0, key=name, run=f"/elsewhere/{name}") for name in names[:4]
        ),
    )
    (root / "campaigns" / "night").mkdir(parents=True)
    path = root / "campaigns" / "night" / "campaign.json"
    path.write_bytes(msgspec.json.encode(table))
    return root


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("release=3.1", 6),
        ("release=3.1,seed<2", 2),
        ("2026-11-01", 6),
        ("2026-11-02..", 7),
        ("..2026-11-02", 12),
        ("2026-11-01..2026-11-03", 13),
        ("tag=release", 13),
        ("night", 4),
        ("20261103", 1),
        ("latest", 1),
    ],
)
def test_a_side_is_named_in_many_ways(text: str, count: int, root: Path) -> None:
    assert len(side_of(text, RunStore(root)).entries) == count


def test_a_side_is_a_directory_of_runs_or_of_a_campaign(root: Path, tmp_path: Path) -> None:
    elsewhere = RunStore(tmp_path)

    assert len(side_of(str(root), elsewhere).entries) == 13
    assert len(side_of(str(root / "campaigns" / "night"), elsewhere).entries) == 4
    assert len(side_of(str(elsewhere.root.parent / root.name), elsewhere).entries) == 13


@pytest.mark.parametrize(
    "text", ["release=9", "2027-01-01", "2026-13-01", "relase=3.1", "nonsense", ""]
)
def test_a_side_without_runs_is_refused(text: str, root: Path) -> None:
    with pytest.raises(UsageError):
        side_of(text, RunStore(root))


def test_two_releases_side_by_side(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "release=3.1", "release=3.0", "--runs-dir", str(root)]

    assert execute(words) == 0

    out = capsys.readouterr().out
    assert "throughput" in out
    assert "6 pairs" in out
    *_, last = out.splitlines()
    assert last.startswith("VALID: nothing is new")
    page = Path(last.rpartition(": ")[2])
    assert "release=3.1 compared with release=3.0" in page.read_text()
    found = json.loads(page.with_suffix(".json").read_bytes())
    assert (found["new"]["runs"], found["base"]["runs"]) == (6, 6)

    assert execute([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found


def test_a_new_finding_is_a_violation_and_its_text_is_text(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "pages" / "new.html"
    words = ["compare", "latest", "release=3.0", "--runs-dir", str(root), "--page", str(page)]

    assert execute(words) == 1

    assert "new finding: lost-write" in capsys.readouterr().out
    text = page.read_text()
    assert ACTIVE not in text
    assert "&lt;img src=x" in text


def test_a_page_that_can_not_be_written_leaves_what_was_found(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    to = ["--page", str(tmp_path / "file" / "page.html"), "--runs-dir", str(root)]

    assert execute(["compare", "latest", "release=3.0", *to]) == 1
    assert execute(["compare", "release=3.1", "release=3.0", *to]) == 255
    assert "VALID" in capsys.readouterr().out


def test_the_trend_of_a_store_and_the_commits_between(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "trend.html"

    assert execute(["trend", "--runs-dir", str(root), "--page", str(page)]) == 0

    out = capsys.readouterr().out
    assert "13 runs from 2026-11-01 to 2026-11-03" in out
    assert "lost-write (strict-serializable)" in out
    assert page.read_text().count("<svg") >= 4
    assert execute(["trend", "--runs-dir", str(root), "--where", "release=9"]) == 254


def test_commits_are_asked_of_a_repository_and_never_its_options(tmp_path: Path) -> None:
    from datetime import date

    from cli.trend import commits_between
    from results.trend.change_points import Shape
    from results.trend.trends import Series, Trend, Turn

    repo = tmp_path / "repo"
    git = ["git", "-C", str(repo), "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", str(repo)], check=True)
    commits = []
    for word in ("one", "two", "three"):
        subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", word], check=True)
        told = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True)
        commits.append(told.stdout.decode().strip())

    def found(good: str, bad: str) -> dict[str, list[str]]:
        turn = Turn(
            shape=Shape.STEP,
            at=date(2026, 1, 2),
            until=date(2026, 1, 2),
            before=1.0,
            after=2.0,
            change=1.0,
            worse=True,
            last_good="good",
            first_bad="bad",
            commits=(good, bad),
        )
        series = Series(
            cell="c", figure="p50_ms", words="p", unit="", nights=(), values=(), turns=(turn,)
        )
        whole = Trend(runs=1, first=None, last=None, series=(series,), findings=())
        return commits_between(whole, repo)

    (listed,) = found(commits[0], commits[2]).values()
    assert [line.partition(" ")[2] for line in listed] == ["three", "two"]
    assert found(f"--output={tmp_path}/written", commits[2]) == {}
    assert found("0" * 40, commits[2]) == {}
    assert not (tmp_path / "written").exists()
