"""Python files beside a run, or where a command is started, are never imported: not by the command,
the process that judges, Spark's workers, driver processes or nodes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from stranger_kit import NAME, sound_run

FIREDRILL = Path(sys.executable).with_name("firedrill")
LIMIT_S = 300
PACKAGES = (
    "numpy", "pyarrow", "pandas", "scipy", "pyspark", "py4j", "msgspec", "attr", "attrs", "click",
    "rich", "tomli_w", "matplotlib", "jinja2", "markupsafe", "networkx", "docker", "paramiko",
    "lark", "jsonpath", "re2", "dateutil", "six", "PIL", "packaging", "setuptools", "pip",
    "cli", "harness", "checkers", "results", "clusters", "nemesis", "workloads",
    "usercustomize", "sitecustomize",
)  # fmt: skip
MODULES = (*sorted(sys.stdlib_module_names), *PACKAGES)


def lay_traps(directory: Path, sprung: Path) -> None:
    """A file for every module that may be imported: each says so in ``sprung``."""
    directory.mkdir(parents=True, exist_ok=True)
    for module in MODULES:
        code = (
            f"import posix\nposix.write(posix.open({str(sprung)!r}, 1089, 0o600), b'{module} ')\n"
        )
        (directory / f"{module}.py").write_text(code)


def ended(*arguments: str, cwd: Path) -> int:
    """The exit code of ``firedrill`` in ``cwd``, without the variable that would protect it."""
    variables = {name: text for name, text in os.environ.items() if name != "PYTHONSAFEPATH"}
    done = subprocess.run(
        [FIREDRILL, *arguments],
        cwd=cwd,
        env=variables,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert "Traceback" not in done.stderr, done.stderr
    assert "gave up" not in done.stdout, done.stdout
    return done.returncode


def test_the_traps_work(tmp_path: Path) -> None:
    lay_traps(tmp_path, tmp_path / "sprung")

    subprocess.run([sys.executable, "-c", "import tomllib"], cwd=tmp_path, timeout=60, check=False)

    assert "tomllib" in (tmp_path / "sprung").read_text()


@pytest.mark.parametrize("executor", ["local", pytest.param("spark", marks=pytest.mark.spark)])
def test_check_and_report_of_a_run_import_nothing_that_lies_in_it(
    executor: str, tmp_path: Path
) -> None:
    sprung = tmp_path / "sprung"
    run = sound_run(tmp_path / "runs" / NAME)
    lay_traps(run.root, sprung)
    lay_traps(run.node("n1"), sprung)

    assert ended("check", ".", "--executor", executor, cwd=run.root) == 0
    assert ended("report", ".", cwd=run.root) == 0

    assert not sprung.exists(), sprung.read_text()


@pytest.mark.parametrize(
    "options",
    [
        ("--provider", "sim", "--executor", "local"),
        # Spark's processes start below a check alike.
        ("--provider", "process", "--executor", "local", "--set", "drive.drivers=2"),
    ],
)
def test_a_run_imports_nothing_that_lies_where_it_is_started(
    options: tuple[str, ...], tmp_path: Path
) -> None:
    here, sprung = tmp_path / "here", tmp_path / "sprung"
    lay_traps(here, sprung)
    lay_traps(here / "runs", sprung)
    short = ("--nodes", "3", "--duration", "6", "--schedule", "2:kill:n1:2", "--seed", "3")

    code = ended("run", *options, *short, "--set", "check.min_ok=10", cwd=here)

    assert not sprung.exists(), sprung.read_text()
    assert code in (0, 2)
