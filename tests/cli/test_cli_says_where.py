"""A plan that is refused: what is wrong, at which key, and where it was written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cli.main import execute

HERE = ["--provider", "process", "--executor", "local"]


@pytest.fixture
def refused(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """What a refused run says."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")

    def run(*arguments: str) -> str:
        code = execute(["run", *arguments, "--runs-dir", str(tmp_path / "runs")])
        said = capsys.readouterr().err
        assert code in (254, 255)
        assert "run directory" not in said
        runs = tmp_path / "runs"
        assert not runs.exists() or [path for path in runs.iterdir() if path.is_dir()] == []
        return said.splitlines()[-1].removeprefix("firedrill: ")

    return run


def test_a_wrong_value_names_the_file_or_the_flags(refused, tmp_path: Path) -> None:
    plan = tmp_path / "mine.toml"
    plan.write_text("[drive]\nduration_s = -1\n[[nemesis.schedule]]\nat_s = 1\nkind = 'kil'\n"
                    "target = 'n1'\n")  # fmt: skip

    assert refused(str(plan), *HERE).startswith(f"{plan}: drive.duration_s: expected a number")
    assert refused(str(plan), *HERE, "--duration", "-2").startswith("flags: drive.duration_s: ")
    said = refused(str(plan), *HERE, "--duration", "9")
    assert said.startswith(f"{plan}: nemesis.schedule[0].kind: unknown fault 'kil' (did you mean")
    assert refused("--nodes", "0").startswith("flags: cluster.nodes: ")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--workload", "bnk"), "flags: workload.name: unknown workload 'bnk' (did you mean 'ban"),
        (("--system", "refrence"), "flags: system.name: unknown system 'refrence' (did you mean"),
        (("--provider", "proces"), "flags: cluster.provider: unknown provider 'proces' (did you"),
        (("--fault", "patition"), "flags: nemesis.mix: unknown fault 'patition' (did you mean"),
        (("--set", "cluster.options.x=1"), "flags: cluster.options"),
        (("--provider", "docker"), "no Docker daemon answers"),
    ],
)
def test_what_is_not_there_is_refused_before_a_run_is_announced(
    refused, flags: tuple[str, ...], says: str
) -> None:
    assert says in refused(*HERE, *flags)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--fault", "drop-messages"),
         "options.messages: required, but not given; a mix gives no options, a schedule does"),
        (("--fault", "majorities-ring", "--nodes", "2"),
         "target: fault 'majorities-ring' needs at least 4 nodes (got 2)"),
    ],
)  # fmt: skip
def test_a_fault_that_was_drawn_is_refused_by_the_mix_that_it_came_from(
    refused, flags: tuple[str, ...], says: str
) -> None:
    said = refused("--provider", "sim", *flags)
    assert re.fullmatch(rf"flags: nemesis\.mix: '{flags[1]}', drawn at [\d.]+ s: .*", said)
    assert said.endswith(says)


def test_a_byte_order_mark_is_no_part_of_a_plan(refused, tmp_path: Path) -> None:
    plan = tmp_path / "windows.toml"
    plan.write_bytes(b"\xef\xbb\xbf[drive]\nduration_s = -1\n")

    assert "drive.duration_s" in refused(str(plan), *HERE)
