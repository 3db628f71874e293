"""``firedrill plan`` and ``list``: what a plan comes to, and what it may name, without a run."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from checkers.engine.spark import java
from cli.listing import KINDS
from cli.main import execute

ROOT = Path(__file__).parents[2]
SIM = ("--provider", "sim", "--seed", "7")


@pytest.fixture(autouse=True)
def _own_store_and_no_daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FIREDRILL_RUNS_DIR", str(tmp_path / "runs"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    monkeypatch.setenv("COLUMNS", "200")


def test_a_plan_is_shown_as_it_would_be_driven_and_nothing_is_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["plan", *SIM, "--fault", "kill", "--nodes", "2"]) == 0

    shown = capsys.readouterr().out
    keys, _, rest = shown.partition("schedule: ")
    plan = tomllib.loads(keys)
    assert (plan["seed"], plan["cluster"]["nodes"]) == (7, 2)
    # A key that the plan leaves out is shown, and is no key of what is shown.
    assert "# replicas = 2" in keys
    assert plan["system"] == {"name": "reference"}
    assert [fault["kind"] for fault in plan["nemesis"]["schedule"]] == ["kill"] * 3
    assert rest.startswith("3 faults in 30 s")
    assert "kill  leader of any partition" in rest
    assert "this machine can run it" in rest
    assert not (tmp_path / "runs").exists()


def test_the_keys_that_are_shown_are_a_plan_that_comes_to_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["plan", *SIM, "--seed", "4"]) == 0
    shown = capsys.readouterr().out
    keys, _, faults = shown.partition("schedule: ")
    saved = tmp_path / "saved.toml"
    saved.write_text(keys)

    assert execute(["plan", str(saved)]) == 0
    again = capsys.readouterr().out.partition("schedule: ")[2]

    assert again.partition("provider ")[0] == faults.partition("provider ")[0]


def test_the_schedule_is_the_one_that_the_seed_draws(capsys: pytest.CaptureFixture[str]) -> None:
    schedules = []
    for seed in ("7", "7", "8"):
        assert execute(["plan", "--provider", "sim", "--seed", seed, "--json"]) == 0
        schedules.append(json.loads(capsys.readouterr().out)["plan"]["nemesis"]["schedule"])

    assert schedules[0] == schedules[1] != schedules[2]


def test_everything_that_the_machine_lacks_is_named_at_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    mix = ("--fault", "crash", "--fault", "disk-full", "--fault", "kill")

    assert execute(["plan", "--provider", "process", "--seed", "1", *mix, "--json"]) == 254

    missing = json.loads(capsys.readouterr().out)["missing"]
    assert len(missing) == 2
    assert "fault 'crash' needs 'crash-points'" in missing[0]
    assert "fault 'disk-full' needs 'disk'" in missing[1]


def test_a_java_that_is_not_there_is_missing_where_spark_is_to_judge(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    none = java.JavaChoice(home=None, version=None, origin="", reason="no java on the PATH")
    monkeypatch.setattr(java, "find_java", lambda: none)

    assert execute(["plan", *SIM, "--executor", "local"]) == 0
    capsys.readouterr()
    assert execute(["plan", *SIM, "--executor", "spark", "--json"]) == 254

    (missing,) = json.loads(capsys.readouterr().out)["missing"]
    assert f"the executor 'spark' needs 'Java {java.JAVA_MIN}'" in missing


def test_a_limit_that_a_value_must_stay_below_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["plan", "--reference", "--own"]) == 0

    (row,) = (line for line in capsys.readouterr().out.splitlines() if "`indefinite_share`" in line)
    assert "at least 0, below 1" in row


@pytest.mark.parametrize("command", [("run",), ("plan",), ("sim", "--seeds", "1")])
def test_no_name_is_no_plan(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert execute([command[0], "", *command[1:]]) == 254

    assert "expected the path of a plan (got an empty name)" in capsys.readouterr().err


def test_a_daemon_that_is_not_there_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    assert execute(["plan", "--provider", "docker", "--seed", "1"]) == 254

    assert "missing: no Docker daemon answers" in capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_plan_may_name_is_listed_with_a_line_each(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert execute(["list", kind, "--json"]) == 0

    rows = json.loads(capsys.readouterr().out)
    assert rows
    assert all(row["name"] and row["text"] for row in rows)
    assert execute(["list", kind]) == 0
    assert rows[0]["name"] in capsys.readouterr().out


def test_options_of_a_provider_are_refused_before_a_run_begins(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ("--set", "cluster.options.frist_port=1")

    assert execute(["plan", "--provider", "process", *wrong]) == 254

    assert "cluster.options.frist_port: unknown key" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["promise.kil.p99_ms=5"], "promise.kil: unknown fault 'kil' (did you mean 'kill'?"),
        (
            ["promise.wipe.p99_ms=5"],
            "promise.wipe: expected a kind of the schedule's faults (kill)",
        ),
        (["promise.longest_gap_s=30"], "expected less than drive.duration_s, 30"),
        (["promise.recovered_within_s=22"], "the longest time without faults after a fault is 21"),
        (["promise.recovered_within_s=20.5"], "expected at most 20: the longest time without"),
        (["promise.kill.recovered_within_s=22"], "after a fault of kind kill is 21"),
        (
            ["promise.recovered_within_s=17", "drive.rate_per_s=20"],
            "expected at most 16: the longest time without faults after a fault is 21, and 5 of it",
        ),
        (["promise.refused_within_s=1"], "at most 1 of 3 voters are down together"),
        (["promise.kill.refused_within_s=1"], "expected faults of kind kill that take a partition"),
        (["promise.serves_within_s=1"], "expected refused_within_s, alone or beside it"),
    ],
    ids=str,
)
def test_limits_that_no_run_could_break_or_test_are_refused(
    wrong: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    schedule = ("--schedule", "5:kill:n1:4", "--duration", "30")
    sets = [word for each in wrong for word in ("--set", each)]

    assert execute(["plan", *SIM, *schedule, *sets]) == 254

    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("schedule", "sets", "words"),
    [
        (["5:partition:majority of partition 0:9"], [], "that take a partition the majority"),
        (
            ["5:kill:majority of partition 0:4"],
            [],
            "expected less than 1: the longest loss lasts 4 s, which is timed from 3 s after the",
        ),
        (["5:rolling-restart:all:9"], [], "that take a partition the majority"),
        (["5:kill:one:9", "15:kill:one:9"], [], "at most 1 of 3 voters are down together"),
    ],
    ids=str,
)
def test_a_limit_of_lost_majorities_is_refused_where_no_fault_takes_one_for_so_long(
    schedule: list[str], sets: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word for each in schedule for word in ("--schedule", each)]
    given += [word for each in (*sets, "promise.refused_within_s=2") for word in ("--set", each)]

    assert execute(["plan", *SIM, *given, "--duration", "30"]) == 254

    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "schedule",
    [
        ["5:kill:majority of partition 0:9"],
        ["5:kill:n1,n2:9"],
        ["5:pause:n1,n2:9"],
        ["5:kill:n1:9", "7:kill:n2:9"],
    ],
    ids=str,
)
def test_a_limit_of_lost_majorities_is_planned_where_a_fault_takes_one(
    schedule: list[str],
) -> None:
    given = [word for each in schedule for word in ("--schedule", each)]

    assert execute(["plan", *SIM, *given, "--set", "promise.refused_within_s=1"]) == 0


@pytest.mark.parametrize(
    ("target", "refused"),
    [
        ("n4,n5", True),
        ("majority", True),
        ("majority of any partition", True),
        ("majority of partition 1", False),
        ("all but one of partition 1", False),
    ],
)
def test_a_limit_of_lost_majorities_needs_the_partition_named_where_a_store_tells_no_states(
    target: str, refused: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--schedule", f"5:kill:{target}:9", "--set", "promise.refused_within_s=1")

    execute(["plan", "--system", "ignite3", "--provider", "process", *given])

    told = "system 'ignite3' does not tell the states of its replicas"
    assert (told in capsys.readouterr().err) is refused


@pytest.mark.parametrize(
    ("schedule", "sets", "words"),
    [
        (["5:kill:all of partition 0:9"], [], "aim at `majority of partition P`"),
        (["5:pause:all:9"], [], "aim at `majority of partition P`"),
        (["5:kill:all of metastorage:9"], [], "in which n1, n2, n3, n4, n5 vote, its majority"),
        (["5:kill:majority of metastorage:9"], [], "nothing is certain of partitions"),
        (["5:kill:n1,n2:9", "7:kill:n3:4"], [], None),
        (["5:kill:n1,n2:9", "5:kill:n3:4"], [], "aim at `majority of partition P`"),
        (["5:kill:majority of partition 0:9"], ["cluster.nodes=3"], "more nodes (cluster.nodes)"),
        (["5:kill:majority of partition 0:9"], ["cluster.nodes=4"], "more nodes (cluster.nodes)"),
        (
            ["5:kill:n1,n2:9"],
            ["cluster.nodes=6", "system.system_nodes=3"],
            "in which n1, n2, n3 vote, its majority",
        ),
        (["5:kill:n4,n5:9"], ["cluster.nodes=6", "system.system_nodes=3"], None),
        (
            ["5:kill:first half:9"],
            ["cluster.nodes=8", "system.system_nodes=3", "system.mode='HA'"],
            "in which n1, n2, n3 vote, its majority",
        ),
    ],
    ids=str,
)
def test_a_limit_of_lost_majorities_needs_a_fault_that_leaves_metastorage_its_own(
    schedule: list[str], sets: list[str], words: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = "serves" if "system.mode='HA'" in sets else "refused"
    given = [word for each in schedule for word in ("--schedule", each)]
    given += [word for each in (*sets, f"promise.{limit}_within_s=1") for word in ("--set", each)]

    assert execute(["plan", *SIM, *given]) == (254 if words else 0)

    assert words is None or words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (
            ["drive.rate_per_s=5", "drive.duration_s=20", "check.min_ok=151"],
            "check.min_ok: expected at most 150: no more operations begin of drive.rate_per_s 5 x",
        ),
        (["drive.rate_per_s=5", "drive.duration_s=20", "check.min_ok=150"], None),
        (
            [
                "drive.rate_per_s=5",
                "drive.overtime_s=20",
                "drive.duration_s=20",
                "check.min_ok=400",
            ],
            "+ drive.overtime_s 20 (got 400)",
        ),
        (["promise.p99_ms=2000"], "less than drive.op_deadline_s, 2000 ms: no transaction is"),
        (["promise.kill.p99_ms=2500"], "promise.kill.p99_ms: expected less than drive.op_dead"),
        (["promise.p99_ms=2500", "drive.op_deadline_s=3"], None),
        # An open loop counts from the intended start, which may have waited for a client.
        (["promise.p99_ms=2500", "drive.rate_per_s=50"], None),
    ],
    ids=str,
)
def test_what_no_load_of_the_plan_can_reach_is_refused(
    sets: list[str], words: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word for each in sets for word in ("--set", each)]

    code = execute(["plan", *SIM, "--schedule", "5:kill:n1:4", *given])

    assert code == (254 if words else 0)
    assert words is None or words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("schedule", "sets", "refused"),
    [
        (["5:kill:learner of partition 0:4"], [], True),
        (["5:kill:learner of any partition:4"], [], True),
        (["5:kill:learner of partition 0:4", "9:wipe:n1:4"], [], False),
        # Zones move data by themselves.
        (["5:kill:learner of partition 0:4"], ["system.system_nodes=3"], False),
    ],
    ids=str,
)
def test_a_fault_of_learners_is_refused_where_every_replica_votes(
    schedule: list[str], sets: list[str], refused: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [word for each in schedule for word in ("--schedule", each)]
    given += [word for each in sets for word in ("--set", each)]

    assert execute(["plan", *SIM, *given]) == (254 if refused else 0)

    said = capsys.readouterr().err
    assert ("nemesis.schedule[0].target: expected a target that some node is" in said) is refused
    assert ("aim at `follower of partition P`" in said) is refused


def test_more_faults_together_than_there_are_nodes_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = ("plan", *SIM, "--nodes", "5", "--set")

    assert execute([*given, "nemesis.overlap=6"]) == 254
    assert "expected at most cluster.nodes, 5" in capsys.readouterr().err
    assert execute([*given, "nemesis.overlap=5"]) == 0


@pytest.mark.parametrize("schedule", ["0:kill:n1:4", "0.5:kill:n1:4"])
def test_a_recovery_is_refused_where_no_time_before_a_fault_tells_the_rate(
    schedule: str, capsys: pytest.CaptureFixture[str]
) -> None:
    limit = ("--set", "promise.recovered_within_s=5")

    assert execute(["plan", *SIM, "--schedule", schedule, *limit]) == 254

    assert "1 s without faults before one, which tell the rate" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("fault", "nodes"),
    [
        ("partition:one", 1),
        ("partition:n1", 1),
        ("one-way:one", 1),
        ("one-way:all", 3),
        ("one-way-in:n1,n2,n3", 3),
        ("bridge:one", 2),
        ("delay:one", 1),
        ("loss:n1", 1),
    ],
)
def test_a_fault_of_links_is_refused_where_there_is_no_link(
    fault: str, nodes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ("--schedule", f"5:{fault}:4", "--nodes", str(nodes))

    assert execute(["plan", "--provider", "sim", "--executor", "local", *given]) == 254

    assert "has no link to" in capsys.readouterr().err


def test_a_missing_capability_is_named_by_its_word(capsys: pytest.CaptureFixture[str]) -> None:
    given = ("--system", "ignite3", "--provider", "process", "--schedule", "5:leave:n1:4")

    assert execute(["plan", *given]) == 254

    assert "fault 'leave' needs 'members', which is not available" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["/dev/stdin", "-"])
def test_a_plan_is_read_from_a_pipe_that_its_caller_opened(name: str) -> None:
    firedrill = Path(sys.executable).with_name("firedrill")
    done = subprocess.run(
        [firedrill, "plan", name],
        input='name = "piped"\nseed = 1\n',
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0, done.stderr
    assert 'name = "piped"' in done.stdout


@pytest.mark.parametrize(
    ("flags", "source"),
    [
        ([], "/dev/stdin"),
        (["--seed", "3"], "/dev/stdin or flags (seed)"),
        (["--nodes", "-2"], "flags"),
    ],
)
def test_a_mistake_in_a_plan_from_a_pipe_is_blamed_on_no_flag_that_may_be_sound(
    flags: list[str], source: str
) -> None:
    firedrill = Path(sys.executable).with_name("firedrill")
    done = subprocess.run(
        [firedrill, "plan", "-", *flags],
        input="[cluster]\nnodes = -1\n",
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 254
    assert done.stderr.startswith(f"firedrill: {source}: cluster.nodes: "), done.stderr


FROM_FILE = """
name = "x"
[cluster]
nodes = 5
provider = "sim"
[drive]
duration_s = 30
[[nemesis.schedule]]
at_s = 20
kind = "kill"
target = "n5"
hold_s = 5
[promise]
longest_gap_s = 20
"""


@pytest.mark.parametrize(
    ("flags", "source", "words"),
    [
        (
            ["--duration", "22"],
            "{} and flags (drive.duration_s)",
            "would end at 25 s, after drive.duration_s, 22 s",
        ),
        (
            ["--duration", "20"],
            "{} and flags (drive.duration_s)",
            "within drive.duration_s, 0 <= at_s < 20",
        ),
        (["--nodes", "3"], "{} and flags (cluster.nodes)", "cluster.nodes: n1, n2, n3; got 'n5'"),
        (["--set", "promise.longest_gap_s=60"], "flags", "no gap is as long as the drive"),
        (["--set", "promise={longest_gap_s=60}"], "flags", "no gap is as long as the drive"),
        (["--set", "drive.overtime_s=1", "--name", "y"], "{}", "expected a number"),
    ],
    ids=str,
)
def test_an_error_names_the_source_of_the_value(
    flags: list[str],
    source: str,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The flags, the file, or both with the flags that contradict it."""
    text = FROM_FILE if source != "{}" else FROM_FILE.replace("hold_s = 5", "hold_s = 'x'")
    path = tmp_path / "drill.toml"
    path.write_text(text)

    assert execute(["plan", str(path), *flags]) == 254

    said = capsys.readouterr().err
    assert said.startswith(f"firedrill: {source.format(path)}: "), said
    assert words in said


HALF = FROM_FILE.replace('target = "n5"', 'target = "half"')


@pytest.mark.parametrize(
    ("text", "flags", "source"),
    [
        (HALF, ["--nodes", "1", "--name", "y"], "{} and flags (cluster.nodes)"),
        (HALF.replace("nodes = 5", "nodes = 1"), ["--name", "y"], "{}"),
        (
            FROM_FILE,
            ["--duration", "18", "--set", "promise.longest_gap_s=5"],
            "{} and flags (drive.duration_s)",
        ),
        (FROM_FILE, ["--duration", "22", "--nodes", "3"], "{} and flags (drive.duration_s)"),
    ],
    ids=["a flag", "the file", "one of two flags", "the first of two mistakes of two flags"],
)
def test_an_error_that_names_no_key_of_a_flag_names_the_flag_that_causes_it(
    text: str, flags: list[str], source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "drill.toml"
    path.write_text(text)

    assert execute(["plan", str(path), *flags]) == 254

    said = capsys.readouterr().err
    assert said.startswith(f"firedrill: {source.format(path)}: nemesis.schedule[0]"), said


def test_of_two_mistakes_in_the_file_no_flag_is_blamed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "two.toml"
    path.write_text("[workload]\nname = 'bnk'\n[[nemesis.schedule]]\nat_s = 1\nkind = 'kill'\n"
                    "target = 'one node'\n")  # fmt: skip

    assert execute(["plan", str(path), "--provider", "sim"]) == 254
    assert capsys.readouterr().err.startswith(f"firedrill: {path}: nemesis.schedule[0].target: ")
