"""No file imports in a circle: each can be read once those that it imports are."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("cli", "results", "checkers", "nemesis", "workloads", "clusters", "harness")


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def imported(source: str) -> Iterator[str]:
    """What ``source`` imports anywhere, also for types alone, each as a module may be called."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def circle(sources: Mapping[str, str]) -> tuple[str, ...]:
    """The modules of one circle of imports, empty where there is none."""
    graph = {
        name: {other for other in imported(source) if other in sources and other != name}
        for name, source in sources.items()
    }
    # ``from package import module`` is an import of the module, not of what else the package has.
    for name, others in graph.items():
        graph[name] = {o for o in others if not any(p.startswith(f"{o}.") for p in others)}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return tuple(error.args[1])
    return ()


def test_no_file_imports_in_a_circle() -> None:
    paths = [path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py"))]
    sources = {module_of(path): path.read_text(encoding="utf-8") for path in paths}

    assert len(sources) > 500
    assert circle(sources) == ()


@pytest.mark.parametrize(
    ("second", "found"),
    [
        ("from p import a", True),
        ("def f():\n    import p.a", True),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import A", True),
        ("import p.c", False),
    ],
)
def test_the_rule_sees_a_circle(second: str, found: bool) -> None:
    sources = {"p.a": "from p.b import B", "p.b": second, "p.c": "x = 1"}

    assert bool(circle(sources)) is found
