"""What the packages never do, and the page that names a test for each promise."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "promises.md"
PACKAGES = ("cli", "harness", "workloads", "nemesis", "checkers", "clusters", "results", "examples")
MODULES = frozenset({"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"})
CALLS = frozenset({"eval", "exec", "os.system", "os.popen", "yaml.load", "read_pickle"})
FLAGS = frozenset({"shell", "allow_pickle"})
PROMISES = [*(f"R{number}" for number in range(1, 21)), *(f"S{n}" for n in range(1, 13))]


def offences(source: str) -> Iterator[str]:
    """What turns data into code in ``source``, with its line."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        yield from (f"{node.lineno}: {name}" for name in names if name.split(".")[0] in MODULES)
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called in CALLS or called.rpartition(".")[2] == "read_pickle":
                yield f"{node.lineno}: {called}"
            for keyword in node.keywords:
                off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                if keyword.arg in FLAGS and not off:
                    yield f"{node.lineno}: {keyword.arg}"


def test_nothing_unpickles_evaluates_or_starts_a_shell() -> None:
    files = [path for top in PACKAGES for path in sorted((ROOT / top).rglob("*.py"))]
    found = {str(path): list(offences(path.read_text())) for path in files}

    assert len(files) > 300
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from marshal import loads",
        "eval(text)",
        "exec(text)",
        "import yaml; yaml.load(text)",
        "subprocess.run(text, shell=True)",
        "numpy.load(path, allow_pickle=True)",
        "pandas.read_pickle(path)",
        "os.system(text)",
    ],
)
def test_the_rule_sees_an_offence(source: str) -> None:
    assert list(offences(source))


def test_the_rule_lets_what_is_no_code_pass() -> None:
    assert not list(offences("re.compile(x); run(x, shell=False); loop.create_subprocess_exec(x)"))


def test_every_requirement_of_a_lock_has_its_sums_and_set_up_takes_nothing_else() -> None:
    locks = sorted((ROOT / "requirements").glob("*.lock"))
    assert {"run.lock", "dev.lock", "node.lock", "build.lock"} <= {path.name for path in locks}
    for path in locks:
        lines = re.sub(r"\\\n", " ", path.read_text()).splitlines()
        wanted = [line for line in lines if line.strip() and not line.lstrip().startswith("#")]
        assert wanted, path.name
        for line in wanted:
            assert re.match(r"[A-Za-z0-9_.-]+(\[[a-z,]+\])?==[^ ]+ .*--hash=sha256:", line), line

    script = (ROOT / "scripts" / "set-up").read_text()
    assert "install_locked() {\n  install --require-hashes --only-binary :all:" in script
    free = re.findall(r"^ *install (?!--require-hashes).*$", script, re.MULTILINE)
    assert free == ["install --no-deps --editable ."]


def test_each_promise_names_tests_that_there_are_or_a_reason() -> None:
    rows = dict(re.findall(r"^\| ([RS]\d+) .*? \| (.+) \|$", PAGE.read_text(), re.MULTILINE))
    there = {
        name
        for path in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"def (test_\w+)\(", path.read_text())
    }

    assert list(rows) == PROMISES
    for promise, shown in rows.items():
        named = re.findall(r"`(test_\w+)`", shown)
        assert named or shown.startswith("left: "), promise
        assert set(named) <= there, promise
