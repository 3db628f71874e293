"""``firedrill nightly``: a night as one command, the next one that knows it, and its guide."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from junitparser import JUnitXml
from small_campaign import BUGGY, PLAN

from cli.main import COMMANDS, execute
from cli.nightly import ci_tags, nightly
from harness.campaigns.matrix import CampaignFile, places, read
from harness.exit_codes import Outcome
from harness.history.run_directory import RunDirectory
from results.store.index import opened
from results.store.run_tags import require_tags
from results.store.store import RunStore
from results.web.background_analysis import compared
from results.web.store_view import Catalog

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs" / "ci.md").read_text()
CAMPAIGN = """
name = "night"
plan = "base.toml"
repeats = 0
[matrix]
workload = ["list-append"]
faults = ["kill"]
[night]
keep_nights = 1
keep_failed_nights = 1
compare = "findings"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in (*os.environ,):
        if name.startswith(("GITHUB_", "CI_COMMIT")):
            monkeypatch.delenv(name)
    (tmp_path / "base.toml").write_text(BUGGY)
    path = tmp_path / "night.toml"
    path.write_text(CAMPAIGN)
    return path


def run(file: Path, night: str, *more: str) -> int:
    of = ["--runs-dir", str(file.parent / "runs"), "--no-shrink", "--night", night]
    return execute(["nightly", str(file), *of, *more])


def night_of(file: Path, night: str) -> dict[str, Any]:
    path = file.parent / "runs" / "campaigns" / f"night-{night.replace('-', '')}" / "night.json"
    found: dict[str, Any] = json.loads(path.read_bytes())
    return found


def test_a_night_is_one_command_and_the_next_one_knows_what_it_found(
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "step.md"))
    monkeypatch.setenv("GITHUB_SHA", "0123abc")
    monkeypatch.setenv("GITHUB_REF_NAME", "main")
    told = tmp_path / "told.json"
    script = tmp_path / "notify me.py"
    script.write_text("import sys\nopen(sys.argv[1], 'wb').write(sys.stdin.buffer.read())\n")
    command = shlex.join([sys.executable, str(script), str(told)])

    first = run(file, "2026-11-21", "--notify", command, "--output", str(tmp_path / "out"))
    capsys.readouterr()
    second = run(file, "2026-11-22")
    out = capsys.readouterr().out

    assert (first, second) == (1, 1)
    summary, next_one = night_of(file, "2026-11-21"), night_of(file, "2026-11-22")
    assert json.loads(told.read_bytes()) == summary
    assert summary["outcome"] == "violation"
    assert summary["findings"]
    assert {each["known_since"] for each in summary["findings"]} == {"2026-11-21"}
    assert {each["known_since"] for each in next_one["findings"]} == {"2026-11-21"}
    assert next_one["base"] == "2026-11-21"
    page = tmp_path / "runs/campaigns/night-20261122/campaign.html"
    assert "known since 2026-11-21" in page.read_text()
    commands = [line for line in out.splitlines() if line.startswith("::")]
    assert commands
    assert all("known since 2026-11-21" in line for line in commands)
    assert (tmp_path / "step.md").read_text().count("## ") == 2
    (suite,) = JUnitXml.fromfile(str(tmp_path / "out" / "junit.xml"))
    assert (suite.tests, suite.failures) == (1, 1)

    # Every run of the night is found by it, and by what the CI says of the code.
    capsys.readouterr()
    where = [
        f"--where={each}" for each in ("tag=night=2026-11-22", "commit=0123abc", "branch=main")
    ]
    assert execute(["runs", "--runs-dir", str(tmp_path / "runs"), "--json", *where]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert "campaign=night" in listed["tags"]

    # What is attached opens in another store, with its verdict and its report.
    (packed,) = (tmp_path / "out" / "artifacts").glob("*.tar.gz")
    assert packed.stat().st_size < 1 << 20
    elsewhere = tmp_path / "elsewhere"
    assert execute(["check", str(packed), "--runs-dir", str(elsewhere), "--executor", "local"]) == 1
    assert execute(["report", str(packed), "--runs-dir", str(elsewhere)]) == 0
    (opened,) = RunStore(elsewhere).runs()
    assert opened.report.is_file()
    assert packed.name.startswith(opened.root.name)

    # So does the page: it leads to what is beside it, and nowhere else.
    leads = re.findall(r'href="([^"]*)"', (tmp_path / "out" / "campaign.html").read_text())
    assert leads == [f"artifacts/{opened.root.name}.html"]
    assert (tmp_path / "out" / leads[0]).read_bytes() == (
        tmp_path / "runs" / opened.root.name / "report.html"
    ).read_bytes()


def test_a_night_that_is_known_runs_nothing_again_and_a_failed_notify_is_trouble(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (file.parent / "base.toml").write_text(PLAN)
    first = run(file, "2026-11-21")
    again = run(file, "2026-11-21", "--notify", "false")

    assert (first, again) == (0, 255)
    assert len(RunStore(file.parent / "runs").runs()) == 1
    summary = night_of(file, "2026-11-21")
    assert summary["outcome"] == "harness error"
    assert summary["campaign_outcome"] == "valid"
    assert "--notify" in summary["trouble"][0]
    assert capsys.readouterr().out.rstrip().splitlines()[-1].startswith("HARNESS ERROR: ")


def test_old_runs_of_the_campaign_go_and_no_others(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (file.parent / "base.toml").write_text(PLAN)
    runs = file.parent / "runs"
    assert run(file, "2026-11-21") == 0
    (young,) = RunStore(runs).runs()
    old = runs / f"20260101-000000-night-{young.root.name[-4:]}"
    other = runs / f"20260101-000001-other-{young.root.name[-4:]}"
    shutil.copytree(young.root, old)
    shutil.copytree(young.root, other)
    (other / "tags.json").write_text('["nightly"]')
    # Another command may remove one at the same moment: that is no trouble of the night.
    lost = runs / f"20260102-000000-night-{young.root.name[-4:]}"
    shutil.copytree(young.root, lost)
    remove = RunStore.remove

    def removed_twice(store: RunStore, each: RunDirectory) -> None:
        if each.root == lost:
            remove(store, each)
        remove(store, each)

    monkeypatch.setattr(RunStore, "remove", removed_twice)

    assert run(file, "2026-11-22") == 0

    assert not old.exists()
    assert not lost.exists()
    assert other.exists()
    assert young.root.exists()
    assert night_of(file, "2026-11-22")["removed_runs"] == 1


def test_old_runs_stay_where_their_export_failed(file: Path, tmp_path: Path) -> None:
    (file.parent / "base.toml").write_text(PLAN)
    assert run(file, "2026-11-21") == 0
    (young,) = RunStore(tmp_path / "runs").runs()
    old = young.root.with_name(f"20260101-000000-night-{young.root.name[-4:]}")
    shutil.copytree(young.root, old)
    tables = tmp_path / "tables"
    part = tables / "runs" / "month=2026-01" / "system=reference" / "part-0.parquet"
    part.mkdir(parents=True)

    assert run(file, "2026-11-22", "--export", str(tables)) == 255

    assert old.exists()
    (trouble,) = night_of(file, "2026-11-22")["trouble"]
    assert trouble.startswith("--export: ")
    part.rmdir()
    assert run(file, "2026-11-22", "--export", str(tables)) == 0
    assert not old.exists()


def test_fresh_seeds_are_other_ones_every_night_and_follow_from_its_date(file: Path) -> None:
    file.write_text(CAMPAIGN.replace("[night]", '[night]\nseeds = "fresh"'))
    (file.parent / "base.toml").write_text(PLAN)
    runs = file.parent / "runs"

    def seed(night: str) -> int:
        assert run(file, night) == 0
        name = f"night-{night.replace('-', '')}"
        table = json.loads((runs / "campaigns" / name / "campaign.json").read_bytes())
        found: int = table["cells"][0]["seed"]
        return found

    assert seed("2026-11-21") != seed("2026-11-22")
    shutil.rmtree(runs / "campaigns" / "night-20261122")
    assert seed("2026-11-22") == seed("2026-11-22")


def test_one_seed_a_cell_compares_findings_and_says_so(file: Path, tmp_path: Path) -> None:
    (file.parent / "base.toml").write_text(PLAN)
    file.write_text(CAMPAIGN.replace('compare = "findings"', 'compare = "all"'))

    nights = (run(file, "2026-11-21"), run(file, "2026-11-22"))
    summary = night_of(file, "2026-11-22")

    assert nights == (0, 0)
    assert summary["comparison"] == summary["outcome"] == "valid"
    assert summary["changes"] == []
    (note,) = summary["compare_notes"]
    assert "too few runs" in note
    assert "findings and faults alone were compared" in note
    told = tmp_path / "runs" / "campaigns" / "night-20261122"
    assert "findings and faults alone were compared" in (told / "summary.md").read_text()


def test_a_night_that_ran_nothing_hides_nothing_of_the_one_before(file: Path) -> None:
    file.write_text(CAMPAIGN.replace('compare = "findings"', 'compare = "all"'))
    assert run(file, "2026-11-20") == 1
    had = {each["fingerprint"] for each in night_of(file, "2026-11-20")["findings"]}

    assert run(file, "2026-11-21", "--no-run") == 2
    untried = night_of(file, "2026-11-21")
    (file.parent / "base.toml").write_text(PLAN)
    assert run(file, "2026-11-22", "--no-run") == 2
    still = night_of(file, "2026-11-22")
    assert run(file, "2026-11-23") == 0
    mended = night_of(file, "2026-11-23")

    for night in (untried, still):
        assert {each["fingerprint"] for each in night["findings_untried"]} == had
    assert {each["fingerprint"] for each in mended["findings_gone"]} == had
    assert (mended["base"], mended["comparison"]) == ("2026-11-20", "valid")
    assert "no run of the night of 2026-11-22 that counts is known" in mended["compare_notes"]

    # What the night says of its findings, the commands and pages say that it leads to.
    (file.parent / "base.toml").write_text(BUGGY)
    assert run(file, "2026-11-24") == 1
    store = RunStore(file.parent / "runs")
    sides = ["night-20261124", "night-20261123"]
    assert night_of(file, "2026-11-24")["comparison"] == "valid"
    assert execute(["compare", *sides, "--runs-dir", str(store.root)]) == 0
    catalog = Catalog(store=store)
    assert catalog.campaign_before("night-20261123") == "night-20261120"
    with opened(store) as index:
        found = compared(catalog, index, *sides, "", frozenset())
    assert (found.outcome, found.findings_new) == (Outcome.VALID, ())
    assert {each.fingerprint for each in found.findings_known} == had


def test_a_comparison_that_can_not_be_made_is_told_of(file: Path, tmp_path: Path) -> None:
    (file.parent / "base.toml").write_text(PLAN)
    assert run(file, "2026-11-21") == 0
    assert night_of(file, "2026-11-21")["compare_notes"] == []
    for each in RunStore(tmp_path / "runs").runs():
        shutil.rmtree(each.root)
    # As of a night of an older version.
    (tmp_path / "runs/campaigns/night-20261121/runs.json").unlink()

    assert run(file, "2026-11-22") == 0

    (note,) = night_of(file, "2026-11-22")["compare_notes"]
    assert "compared with no night before" in note
    told = tmp_path / "runs" / "campaigns" / "night-20261122"
    for page in ("summary.md", "campaign.html"):
        assert note in (told / page).read_text()


def test_the_night_before_takes_part_in_the_exit_code(file: Path) -> None:
    (file.parent / "base.toml").write_text(PLAN)
    file.write_text(CAMPAIGN.replace('compare = "findings"', 'compare = "all"'))
    first = run(file, "2026-11-21")
    # Another cell has nothing in common with it: that is no pass.
    other = file.read_text().replace('faults = ["kill"]', 'faults = ["pause"]')
    file.write_text(other)
    again = run(file, "2026-11-22")
    summary = night_of(file, "2026-11-22")

    assert (first, again) == (0, 2)
    assert summary["campaign_outcome"] == "valid"
    assert summary["comparison"] == summary["outcome"] == "unknown"
    assert summary["changes"]
    page = Path(summary["page"]).read_text()
    assert 'Campaign night-20261122: <span class="outcome-unknown">' in page
    assert "against the night of 2026-11-21: nothing to compare" in page
    suites = {s.name: s for s in JUnitXml.fromfile(str(Path(summary["page"]).parent / "junit.xml"))}
    # Its exit code is no pass, and no more is what a CI shows.
    assert suites["night: compared with the night before"].errors == 1

    file.write_text(other.replace('compare = "all"', 'compare = "nothing"'))
    assert run(file, "2026-11-22") == 0
    assert night_of(file, "2026-11-22")["comparison"] is None

    # What is found for the first time is new to both.
    (file.parent / "base.toml").write_text(BUGGY)
    file.write_text(CAMPAIGN)
    assert run(file, "2026-11-23") == 1
    summary = night_of(file, "2026-11-23")
    assert summary["comparison"] == "violation"
    assert summary["changes"][0].startswith("new finding: ")

    # Back after a night without it, it is no news: the page says since when it is known.
    (file.parent / "base.toml").write_text(PLAN)
    assert run(file, "2026-11-24") == 0
    assert night_of(file, "2026-11-24")["findings_gone"]
    (file.parent / "base.toml").write_text(BUGGY)
    assert run(file, "2026-11-25") == 1
    summary = night_of(file, "2026-11-25")
    assert (summary["comparison"], summary["changes"]) == ("valid", [])
    assert summary["findings"][0]["known_since"] == "2026-11-23"


def test_a_night_is_compared_with_one_whose_runs_are_gone(file: Path) -> None:
    (file.parent / "base.toml").write_text(PLAN)
    file.write_text(CAMPAIGN.replace('compare = "findings"', 'compare = "all"'))
    assert run(file, "2026-11-21") == 0
    # As in a CI whose shards ran it on other machines.
    for each in RunStore(file.parent / "runs").runs():
        shutil.rmtree(each.root)
    file.write_text(file.read_text().replace('faults = ["kill"]', 'faults = ["pause"]'))

    assert run(file, "2026-11-22") == 2
    assert night_of(file, "2026-11-22")["changes"][0].startswith("nothing to compare: no cell")


def test_what_a_killed_night_had_found_is_known_to_the_next(file: Path, tmp_path: Path) -> None:
    file.write_text(CAMPAIGN.replace('compare = "findings"', 'compare = "all"'))
    assert run(file, "2026-11-20", "--no-run") == 2
    assert run(file, "2026-11-21") == 1
    # Killed before it was closed, of the campaign there is the ledger alone.
    for path in (tmp_path / "runs" / "campaigns" / "night-20261121").iterdir():
        if path.name != "campaign.jsonl":
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    assert run(file, "2026-11-22") == 1

    summary = night_of(file, "2026-11-22")
    assert {each["known_since"] for each in summary["findings"]} == {"2026-11-21"}


def test_a_night_goes_on_from_another_directory_under_another_name(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    of = ["nightly", str(file), "--no-shrink", "--night", "2026-11-21", "--runs-dir"]
    assert execute([*of, "runs"]) == 1
    found = night_of(file, "2026-11-21")["findings"]

    monkeypatch.chdir(elsewhere)
    assert execute([*of, "../runs"]) == 1

    assert found
    assert night_of(file, "2026-11-21")["findings"] == found
    # What failed is run again as the night after, which finds the runs of this one.
    assert run(file, "2026-11-22") == 1
    assert night_of(file, "2026-11-22")["comparison"] == "valid"


def test_a_first_night_that_ran_nothing_is_unknown_and_complains_of_nothing_else(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(file, "2026-11-21", "--no-run") == 2
    assert capsys.readouterr().err == ""


def test_results_of_other_code_do_not_count_and_say_so(
    file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(file, "2026-11-21") == 1
    capsys.readouterr()
    assert run(file, "2026-11-21", "--no-run") == 1
    assert "other code" not in capsys.readouterr().err

    monkeypatch.setattr("cli.campaign.code_digest", lambda: "another")
    assert run(file, "2026-11-21", "--no-run") == 2
    assert "campaign.jsonl are of other code: they do not count" in capsys.readouterr().err
    # What the night had found by then is not forgotten, nor since when it is known.
    summary = night_of(file, "2026-11-21")
    assert summary["findings"] == []
    assert [each["known_since"] for each in summary["findings_untried"]] == ["2026-11-21"]
    assert run(file, "2026-11-22") == 1
    (again,) = night_of(file, "2026-11-22")["findings"]
    assert again["known_since"] == "2026-11-21"


@pytest.mark.parametrize("below", ["", "night-20261121", "night-20261121/out"])
def test_a_night_is_not_copied_into_the_campaigns(
    below: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "runs" / "campaigns" / below

    assert run(file, "2026-11-21", "--output", str(output)) == 254
    assert "--output: expected a directory of its own" in capsys.readouterr().err
    assert not output.exists()


@pytest.mark.parametrize("command", ["'", "", "   "])
def test_a_command_that_is_none_is_refused(command: str, file: Path) -> None:
    assert run(file, "2026-11-21", "--notify", command) == 254


def test_a_branch_whose_name_is_no_tag_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*os.environ,):
        if name.startswith(("GITHUB_", "CI_COMMIT")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GITHUB_SHA", "0123abc")
    for branch in ("fix\u202egnp", "a b", "a\u200b", "x" * 300):
        monkeypatch.setenv("GITHUB_REF_NAME", branch)
        assert ci_tags() == ["commit=0123abc"]
        require_tags(ci_tags())


def blocks(language: str) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```", GUIDE)


def commands_in(text: str) -> list[list[str]]:
    text = re.sub(r"\$\{\{.*?\}\}", "2", text)
    found = [line for line in text.splitlines() if "firedrill nightly" in line]
    return [
        shlex.split(line[line.rindex("firedrill nightly") :].partition(" >>")[0]) for line in found
    ]


def parsed(arguments: list[str]) -> None:
    """Parse a command line of the guide; a name that no option has raises."""
    assert arguments[:2] == ["firedrill", "nightly"]
    context = nightly.make_context("nightly", arguments[2:])
    assert (ROOT / context.params["file"]).is_file()


def test_the_workflows_of_the_guide_are_yaml_and_run_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in (1, 2, 3):
        (tmp_path / f"part-{number}").mkdir()
    flows = [yaml.safe_load(text) for text in blocks("yaml")]

    github = [flow for flow in flows if "jobs" in flow]
    assert len(github) == 2
    for flow in github:
        # YAML 1.1 reads the key ``on`` as true.
        assert {"name", True, "jobs", "permissions"} <= set(flow)
        for job in flow["jobs"].values():
            assert job["runs-on"]
            for step in job["steps"]:
                assert ("run" in step) != ("uses" in step)
                for script in re.findall(r"scripts/[\w-]+", step.get("run", "")):
                    assert (ROOT / script).is_file()
            # The last that it keeps is kept also after a red night.
            kept = [step for step in job["steps"] if "cache/save" in step.get("uses", "")]
            assert all(step["if"] == "always()" for step in kept)
    (gitlab,) = (flow for flow in flows if "nightly" in flow)
    job = gitlab["nightly"]
    assert job["artifacts"]["when"] == job["cache"]["when"] == "always"
    assert job["artifacts"]["reports"] == {
        "junit": "night/junit.xml",
        "codequality": "night/code-quality.json",
    }
    lines = [each for text in blocks("yaml") for each in commands_in(text)]
    assert len(lines) == 4
    for arguments in lines:
        parsed(arguments)


def test_the_crontab_and_the_units_of_the_guide_run_what_there_is() -> None:
    (line,) = blocks("crontab")
    service, timer = (configparser.ConfigParser(interpolation=None) for _ in range(2))
    for parser in (service, timer):
        parser.optionxform = str  # type: ignore[assignment,method-assign]
    texts = blocks("ini")
    service.read_string(texts[0])
    timer.read_string(texts[1])

    assert re.match(r"\d+ \d+ \* \* \* cd /\S+ && flock --nonblock ", line)
    # A percent sign is the end of a command to cron.
    assert "%" not in line
    parsed(*commands_in(line))
    assert service["Service"]["Type"] == "oneshot"
    assert service["Service"]["KillSignal"] == "SIGINT"
    parsed(*commands_in(texts[0]))
    assert timer["Timer"]["OnCalendar"] == "*-*-* 01:17:00"


def test_the_campaign_of_the_guide_is_one_and_names_every_rule(tmp_path: Path) -> None:
    (text,) = blocks("toml")
    path = tmp_path / "night.toml"
    path.write_text(text)

    rules = read(path).night

    assert rules == CampaignFile().night  # it shows what holds by itself
    for field in msgspec.structs.fields(rules):
        assert re.search(rf"(?m)^{field.name} = ", text)
    assert read(ROOT / ".ci" / "night.toml").night.seeds == "fresh"
    ignite = read(ROOT / ".ci" / "night-ignite.toml")
    assert {place.overrides()["system.mode"] for place in places(ignite)} == {"SC", "HA"}
    assert (ROOT / ".ci" / str(ignite.plan)).is_file()
    assert "nightly" in COMMANDS
