"""Core, workloads, nemesis and node take time and entropy only through their seams."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from clusters.providers.sim import forbidden_calls

ROOT = Path(__file__).resolve().parents[2]
# The two places where the seam touches the machine, and a program of its own beside every run.
ALLOWED = (
    "harness/clock.py",
    "clusters/reference/node/runtime/real.py",
    "harness/supervisor.py",
)
WATCHED = ("harness", "workloads", "nemesis", "clusters/reference", "clusters/providers/sim")
BANNED = {
    "time": forbidden_calls.CLOCKS,
    "os": forbidden_calls.ENTROPY,
    "uuid": forbidden_calls.IDENTIFIERS,
    "datetime.datetime": {"now", "utcnow", "today"},
    "datetime.date": {"today"},
    "random": forbidden_calls.DRAWS | {"SystemRandom"},
}
BANNED_MODULES = {"secrets"}


def calls_of_machine(source: str) -> list[str]:
    """Uses of the machine's clock or entropy in ``source``, as dotted names with their line."""
    tree = ast.parse(source)
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update({a.asname or a.name: a.name for a in node.names})
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.update({a.asname or a.name: f"{node.module}.{a.name}" for a in node.names})
    found = [f"import {n}" for n in names.values() if n.split(".")[0] in BANNED_MODULES]
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and not node.args and not node.keywords:
            called = ast.unparse(node.func)
            if called == "random.Random" or names.get(called) == "random.Random":
                found.append(f"line {node.lineno}: random.Random() without a seed")
        if isinstance(node, ast.Attribute | ast.Name):
            dotted = ast.unparse(node)
            head, _, tail = dotted.partition(".")
            full = names.get(head, "") + (f".{tail}" if tail else "") if head in names else ""
            owner, _, verb = full.rpartition(".")
            if verb in BANNED.get(owner, set()):
                found.append(f"line {node.lineno}: {full}")
    return sorted(set(found))


def watched_files() -> list[Path]:
    files = (p for top in WATCHED for p in (ROOT / top).rglob("*.py"))
    return sorted(p for p in files if not str(p.relative_to(ROOT)).startswith(ALLOWED))


def test_no_module_behind_the_seams_asks_the_machine() -> None:
    found = {
        str(path.relative_to(ROOT)): calls
        for path in watched_files()
        if (calls := calls_of_machine(path.read_text()))
    }

    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "import time\ntime.monotonic()",
        "from time import monotonic as now\nnow()",
        "import random\nrandom.choice([1])",
        "import random as r\nr.Random(1)\nr.shuffle([])",
        "import os\nos.urandom(8)",
        "from uuid import uuid4\nuuid4()",
        "import secrets",
        "import random\nrandom.gauss(0, 1)",
        "import time\ntime.clock_gettime(1)",
        "from datetime import date\ndate.today()",
        "from random import Random\nr = Random()",
        "from datetime import datetime\ndatetime.now()",
        "import datetime\ndatetime.datetime.now()",
        "import time\ndeadline = time.time",
    ],
)
def test_the_grep_sees_a_call(source: str) -> None:
    assert calls_of_machine(source)


def test_the_grep_lets_seeded_streams_and_the_loop_pass() -> None:
    source = (
        "import asyncio, random\nr = random.Random(7)\nr.choice([1])\n"
        "asyncio.get_running_loop().time()\nasyncio.sleep(1)"
    )

    assert calls_of_machine(source) == []
