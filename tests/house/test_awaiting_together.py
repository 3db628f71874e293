"""What is awaited at once is awaited to its end: a failure abandons nothing that still acts."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WATCHED = ("harness", "nemesis", "clusters/providers")
ALLOWED = "harness/tasks.py"


def gathers(source: str) -> list[int]:
    """The lines of ``source`` that use ``asyncio.gather`` by any name."""
    tree = ast.parse(source)
    names = {"asyncio.gather"}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(f"{a.asname}.gather" for a in node.names if a.name == "asyncio")
        elif isinstance(node, ast.ImportFrom) and node.module == "asyncio":
            names.update(a.asname or a.name for a in node.names if a.name == "gather")
    return sorted(
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute | ast.Name) and ast.unparse(node) in names
    )


def test_only_together_gathers() -> None:
    files = sorted(path for top in WATCHED for path in (ROOT / top).rglob("*.py"))
    found = {
        str(path.relative_to(ROOT)): lines
        for path in files
        if str(path.relative_to(ROOT)) != ALLOWED and (lines := gathers(path.read_text()))
    }

    assert found == {}


@pytest.mark.parametrize(
    "source",
    [
        "import asyncio\nasyncio.gather()",
        "import asyncio as a\na.gather()",
        "from asyncio import gather as all_of\nall_of()",
    ],
)
def test_the_rule_sees_an_offence(source: str) -> None:
    assert gathers(source) == [2]
    assert gathers("from harness.tasks import together\ntogether([])") == []
