"""Plans: what they accept, what they refuse in which words, and that they survive being written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import PlanError
from harness.plan.overrides import override
from harness.plan.plan import Plan, dumps, load, loads, options, resolved
from harness.protocols.faults import PlannedFault

ROOT = Path(__file__).resolve().parents[2]
SCENARIOS = sorted((ROOT / "scenarios").rglob("*.toml"))
FAULT = PlannedFault(at_s=2.5, kind="kill", target="leader of partition 3", hold_s=4.0)
FULL = """
name = "full"
seed = 42
[cluster]
provider = "docker"
nodes = 3
[cluster.options]
memory_mb = 512
[system]
name = "reference"
partitions = 8
bugs = ["ack-before-quorum"]
[workload]
name = "list-append"
key_count = 4
[drive]
duration_s = 12
concurrency = 4
rate_per_s = 250
op_deadline_s = 1.5
[nemesis]
mix = ["kill"]
first_s = 1
hold_s = 2
quiet_s = 3
[check]
executor = "local"
min_ok = 7
[limits]
ready_s = 10
quiesce_s = 11
final_reads_s = 12
"""


def test_an_empty_plan_is_the_default_drill_with_the_seed_that_was_drawn() -> None:
    plan = loads("", seed=7)

    assert plan == Plan(seed=7)
    assert (plan.system.name, plan.workload.name) == ("reference", "list-append")
    assert plan.nemesis.mix == ("kill", "partition")


def test_every_key_arrives() -> None:
    plan = loads(FULL, seed=1)

    assert plan.seed == 42
    assert plan.cluster.options == {"memory_mb": 512}
    assert plan.system.options == {"partitions": 8, "bugs": ["ack-before-quorum"]}
    assert plan.workload.options == {"key_count": 4}
    assert plan.drive.rate_per_s == 250.0
    assert plan.check.executor == "local"
    assert (plan.limits.ready_s, plan.limits.final_reads_s) == (10.0, 12.0)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda p: p.name)
def test_the_scenarios_are_plans(path: Path) -> None:
    plan = load(path, seed=1)

    assert loads(dumps(plan)) == plan


@pytest.mark.parametrize("text", ["", FULL])
def test_a_plan_survives_being_written(text: str) -> None:
    plan = loads(text, seed=1)

    assert loads(dumps(plan)) == plan
    assert dumps(loads(dumps(plan))) == dumps(plan)


keys = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda k: k != "name")
toml_values = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.datetimes()
    | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=6,
)


@given(
    seed=st.integers(0, 2**63 - 1),
    table=st.dictionaries(keys, toml_values, max_size=4),
    duration_s=st.floats(0.1, 1000),
    rate=st.none() | st.floats(0.5, 1e6),
    schedule=st.lists(st.floats(0, 0.09), max_size=3),
)
def test_any_plan_survives_being_written(
    seed: int,
    table: dict[str, Any],
    duration_s: float,
    rate: float | None,
    schedule: list[float],
) -> None:
    base = loads("", {"drive.duration_s": duration_s, "drive.rate_per_s": rate}, seed=seed)
    plugin = msgspec.structs.replace(base.system, options=table)
    faults = [PlannedFault(at_s=at, kind="kill", target="n1") for at in schedule]
    plan = resolved(msgspec.structs.replace(base, system=plugin), faults)

    assert loads(dumps(plan)) == plan


def test_a_resolved_plan_holds_its_schedule_and_no_mix() -> None:
    plan = resolved(loads(FULL), [FAULT])

    assert plan.nemesis.schedule == (FAULT,)
    assert plan.nemesis.mix == ()
    assert loads(dumps(plan)) == plan
    assert resolved(plan, [FAULT]) == plan
    assert resolved(plan, []).nemesis.mix == ()


def test_a_schedule_takes_the_place_of_the_default_mix() -> None:
    plan = loads('seed = 1\n[[nemesis.schedule]]\nat_s = 1\nkind = "kill"\ntarget = "n1"')

    assert plan.nemesis.mix == ()
    assert plan.nemesis.schedule[0].hold_s == 5.0


def test_overrides_win_and_flags_that_were_not_given_do_nothing() -> None:
    plan = loads(
        FULL, {"drive.duration_s": 3, "seed": 5, "system.partitions": 2, "check.min_ok": None}
    )

    assert (plan.drive.duration_s, plan.seed) == (3.0, 5)
    assert plan.system.options["partitions"] == 2
    assert plan.check.min_ok == 7


def test_an_override_that_names_no_fault_takes_none_away() -> None:
    schedule = [msgspec.to_builtins(FAULT)]

    both = loads("seed = 1", {"nemesis.schedule": schedule, "nemesis.mix": []})
    assert (both.nemesis.mix, both.nemesis.schedule) == ((), (FAULT,))

    mixed = loads("seed = 1\n[nemesis]\nmix = ['pause']", {"nemesis.schedule": []})
    assert mixed.nemesis.mix == ("pause",)

    assert loads("seed = 1", {"nemesis.mix": []}).nemesis.mix == ()


def test_an_override_of_the_mix_replaces_a_schedule_and_the_other_way_round() -> None:
    scheduled = dumps(resolved(loads(FULL), [FAULT]))

    mixed = loads(scheduled, {"nemesis.mix": ["kill"]})
    assert (mixed.nemesis.mix, mixed.nemesis.schedule) == (("kill",), ())

    again = loads(dumps(mixed), {"nemesis.schedule": [msgspec.to_builtins(FAULT)]})
    assert (again.nemesis.mix, again.nemesis.schedule) == ((), (FAULT,))


@pytest.mark.parametrize(
    ("text", "path", "problem"),
    [
        ("sede = 1", "sede", "unknown key (did you mean 'seed'?)"),
        ("[drvie]", "drvie", "unknown key (did you mean 'drive'?)"),
        ("[drive]\nduration = 3", "drive.duration", "unknown key (did you mean 'duration_s'?)"),
        ("[cluster]\nnodes = 0", "cluster.nodes", "expected an integer >= 1 (got 0)"),
        ("[cluster]\nnodes = 65", "cluster.nodes", "expected an integer <= 64 (got 65)"),
        ("[cluster]\nnodes = true", "cluster.nodes", "expected an integer (got true)"),
        ("[cluster]\nnodes = 3.0", "cluster.nodes", "expected an integer (got 3.0)"),
        ("cluster = 3", "cluster", "expected a table (got 3)"),
        ("system = 3", "system", "expected a table (got 3)"),
        ("[system]\nname = 3", "system.name", "expected a string (got 3)"),
        ("[drive]\nduration_s = nan", "drive.duration_s", "expected a number > 0 (got nan)"),
        ("[drive]\nrate_per_s = 'x'", "drive.rate_per_s", "expected a number (got 'x')"),
        ("[drive]\nconcurrency = 0", "drive.concurrency", "expected an integer >= 1 (got 0)"),
        (
            "[check]\nexecutor = 'x'",
            "check.executor",
            "expected one of 'auto', 'spark', 'local' (got 'x')",
        ),
        ("[nemesis]\nmix = 'kill'", "nemesis.mix", "expected an array (got 'kill')"),
        ("[nemesis]\nmix = ['kill', 2]", "nemesis.mix[1]", "expected a string (got 2)"),
        (
            "name = 'a b'",
            "name",
            "expected 1 to 48 letters, digits, '_', '.' and '-', a letter or digit first, such as "
            "'nightly-2' (got 'a b')",
        ),
        ("name = 3", "name", "expected a string (got 3)"),
        ("seed = -1", "seed", "expected an integer >= 0 (got -1)"),
        (
            "[[nemesis.schedule]]\nat_s = 1\nkind = 'kill'",
            "nemesis.schedule[0].target",
            "required, but not given",
        ),
        (
            "[[nemesis.schedule]]\nat_s = 31\nkind = 'kill'\ntarget = 'n1'",
            "nemesis.schedule[0].at_s",
            "expected a time within drive.duration_s, 0 <= at_s < 30 (got 31)",
        ),
        (
            "[[nemesis.schedule]]\nat_s = 1\nkind = 'kill'\ntarget = 'n1'\nhold_s = 0",
            "nemesis.schedule[0].hold_s",
            "expected a number > 0 (got 0)",
        ),
        (
            "[nemesis]\nmix = ['kill']\n[[nemesis.schedule]]\nat_s = 1\nkind='kill'\ntarget='n1'",
            "nemesis.mix",
            "expected a mix or a schedule, not both",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_path(text: str, path: str, problem: str) -> None:
    with pytest.raises(PlanError) as caught:
        loads(text, seed=1)

    assert caught.value.path == path
    assert str(caught.value).startswith(f"plan: {path}: ")
    assert problem in str(caught.value)


def test_a_plan_without_any_seed_is_refused() -> None:
    with pytest.raises(PlanError, match="seed: required, but not given"):
        loads("")


@pytest.mark.parametrize("path", ["", ".x", "seed.x", "drive.", "drive..x"])
def test_an_override_that_names_no_key_is_refused(path: str) -> None:
    with pytest.raises(PlanError):
        loads("seed = 1", {path: 3})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("drive.duration_s=3", ("drive.duration_s", 3)),
        ("system.name=reference", ("system.name", "reference")),
        ('nemesis.mix=["kill"]', ("nemesis.mix", ["kill"])),
        ("system.note=a=b", ("system.note", "a=b")),
    ],
)
def test_an_override_is_a_toml_value_or_else_its_text(text: str, expected: object) -> None:
    assert override(text) == expected


def test_an_override_without_a_key_or_value_is_refused() -> None:
    for text in ("drive.duration_s", "=3", ""):
        with pytest.raises(PlanError, match=r"^--set: expected KEY=VALUE"):
            override(text)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"seed = 1\nname = \n", r"broken\.toml: line 2, column 8: Invalid value"),
        (b"seed = 1\nseed = 2\n", r"broken\.toml: line 2, column 9: Cannot overwrite a value"),
        (b"seed = 1\nx = [1,\n", r"broken\.toml: line 3, the end of the text: .*not closed"),
        (b"seed = 1\n# \xff\n", r"broken\.toml: line 2: not UTF-8 text"),
        (b"a = " + b"[" * 5000, r"broken\.toml: nested too deeply"),
        # Behind closing brackets of a comment, and between those of texts.
        (b"# " + b"]" * 5000 + b"\na = " + b"[" * 5000, r"broken\.toml: nested too deeply"),
        (b"a = " + b'["]", ' * 5000, r"broken\.toml: nested too deeply"),
        (b"#" * (1 << 21), r"broken\.toml: a plan has at most 1048576 bytes"),
    ],
)
def test_a_file_that_is_no_toml_is_named_with_line_and_reason(
    tmp_path: Path, content: bytes, problem: str
) -> None:
    path = tmp_path / "broken.toml"
    path.write_bytes(content)

    with pytest.raises(PlanError, match=problem):
        load(path, seed=1)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"absent\.toml: No such file"):
        load(tmp_path / "absent.toml")
    with pytest.raises(PlanError, match="Is a directory"):
        load(tmp_path)


class PluginOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    partitions: int = 8
    zones: tuple[PlannedFault, ...] = ()


def test_options_of_a_plugin_are_its_struct_and_errors_carry_the_plans_path() -> None:
    assert options(PluginOptions, {"partitions": 3}, "system") == PluginOptions(partitions=3)
    with pytest.raises(PlanError) as unknown:
        options(PluginOptions, {"partition": 3}, "system")
    with pytest.raises(PlanError) as deep:
        options(PluginOptions, {"zones": [{"at_s": "x"}]}, "system")

    assert str(unknown.value) == (
        "plan: system.partition: unknown key (did you mean 'partitions'?)"
    )
    assert str(deep.value) == "plan: system.zones[0].at_s: expected a number (got 'x')"


def test_limits_of_a_kind_stand_below_the_limits_of_the_run() -> None:
    plan = loads("seed = 1\n[promise]\nlongest_gap_s = 5\n[promise.kill]\np99_ms = 20\n")

    assert plan.promise.given == {"longest_gap_s": 5.0}
    assert list(plan.promise.sections) == ["promise", "promise.kill"]
    assert loads(dumps(plan)) == plan
    assert "promise" not in dumps(loads("seed = 1"))


@pytest.mark.parametrize(
    ("text", "path", "words"),
    [
        ("longest_gap = 5", "promise.longest_gap", "did you mean 'longest_gap_s'?"),
        ("p99_ms = 0", "promise.p99_ms", "expected a number > 0"),
        ("kill.p99 = 5", "promise.kill.p99", "did you mean 'p99_ms'?"),
        ("refused_within_s = 0", "promise.refused_within_s", "expected a number > 0"),
        ("kill.served_within_s = 6", "promise.kill.served_within_s", "'serves_within_s'?"),
        ("kill = 3", "promise.kill", "expected a table of limits while a fault of kind kill is in"),
        ("partition = []", "promise.partition", "is in force (got [])"),
        ("partitoin = 3", "promise.partitoin", "unknown key (did you mean 'partition'?)"),
        ("kill.indefinite_share = 2", "promise.kill.indefinite_share", "expected a number"),
    ],
)
def test_a_wrong_limit_is_refused_by_its_path(text: str, path: str, words: str) -> None:
    with pytest.raises(PlanError, match="promise") as refusal:
        loads(f"seed = 1\n[promise]\n{text}\n")

    assert refusal.value.path == path
    assert words in refusal.value.problem
