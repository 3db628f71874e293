"""The page of what was found is made from its record, and every line can be shown again."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import msgspec
import pytest
from click import Context
from synthetic_run import new_run, valid, violation, write_verdict

from cli.main import cli
from clusters.reference.node.bugs import KNOWN
from harness.plan.plan import load
from results.store.store import RunStore

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    sys.path.insert(0, str(ROOT))
    try:
        import scripts.track_record
    finally:
        sys.path.remove(str(ROOT))
    return scripts.track_record


@pytest.fixture(scope="module")
def record(script: ModuleType) -> object:
    return msgspec.json.decode(script.RECORD.read_bytes(), type=script.Record)


def test_the_page_is_what_the_script_makes_of_the_record(script, record) -> None:
    assert script.PAGE.read_text() == script.page(record)


def test_the_bugs_of_the_record_are_planted_and_found(record) -> None:
    bugs = [each.bug for each in record.planted]

    assert len(bugs) == len(set(bugs)) > 40
    assert set(bugs) <= set(KNOWN)
    for each in record.planted:
        assert 0 < each.found <= each.of, each.bug
        assert each.anomalies
        assert each.seed is not None


def test_every_line_has_a_command_that_the_command_line_takes(script, record) -> None:
    lines = re.findall(r"`(firedrill [^`]*)`", script.page(record))
    told = [line for line in lines if not line.startswith("firedrill list")]

    assert len(told) == len(record.released) + len(record.planted)
    for line in told:
        _, name, *arguments = line.split()
        command = cli.get_command(Context(cli), name)
        assert command is not None
        given = command.make_context(name, arguments).params
        if name == "run":
            assert load(ROOT / given["plan"], {"seed": 0}).system.name != "reference"


def test_what_is_counted_are_judged_runs_of_the_plan_and_the_release(
    script, record, tmp_path: Path
) -> None:
    defect = record.released[0]
    text = (ROOT / defect.plan).read_text()
    store = RunStore(tmp_path)

    assert script.counted(defect, store) == defect  # without runs of it nothing is changed

    plans = [text, text, text, text.replace("[system]\n", '[system]\nrelease = "9.9.9"\n')]
    verdicts = [violation(), valid(), None, violation()]
    for number, (plan, verdict) in enumerate(zip(plans, verdicts, strict=True)):
        run = new_run(tmp_path / f"20261101-120000-hunt-000{number}")
        run.plan.write_text(plan)
        if verdict is not None:
            write_verdict(run, verdict)
    found = script.counted(defect, store)
    assert (found.found, found.of) == (1, 2)
