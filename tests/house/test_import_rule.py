"""The rooms of the house import the core and not each other."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("workloads", "nemesis", "checkers", "clusters", "results")
ROOF = "cli"  # it wires the rooms, and no room imports it
NODE = ROOT / "clusters" / "reference" / "node"
NODE_DEPENDENCIES = {"msgspec", "lark", "jsonpath"}


def imports(source: str, package: str) -> Iterator[str]:
    """Absolute names of what ``source``, a module of ``package``, imports, wherever it does."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) + 1 - node.level]
            prefix = ".".join(base) + "." if node.level else ""
            yield (prefix + (node.module or "")).rstrip(".")
            if not node.module or "." not in node.module:
                yield from (f"{prefix}{node.module or ''}.{a.name}".strip(".") for a in node.names)


def forbidden(room: str, name: str) -> bool:
    """Whether a module of ``room`` must not import ``name``."""
    top = name.split(".")[0]
    return room != ROOF and top in (*ROOMS, ROOF) and top != room


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def modules() -> list[Path]:
    return sorted(p for top in (ROOF, "harness", *ROOMS) for p in (ROOT / top).rglob("*.py"))


def offences(path: Path, source: str) -> list[str]:
    package = ".".join(path.relative_to(ROOT).parent.parts)
    return [name for name in imports(source, package) if forbidden(room_of(path), name)]


def test_no_room_imports_another_room() -> None:
    found = {
        str(path.relative_to(ROOT)): bad
        for path in modules()
        if (bad := offences(path, path.read_text()))
    }

    assert found == {}


@pytest.mark.parametrize(
    ("where", "source"),
    [
        ("harness/plan/plan.py", "import nemesis.node_faults"),
        ("harness/plan/plan.py", "def f():\n    from checkers import analyze"),
        ("harness/run/lifecycle.py", "from cli import wiring"),
        ("results/report/render.py", "from checkers.promises.lost_write import CHECKER"),
        ("nemesis/node_faults.py", "from cli.main import main"),
        ("workloads/bank.py", "import cli.main"),
    ],
)
def test_the_rule_sees_an_offence(where: str, source: str) -> None:
    assert offences(ROOT / where, source)


def test_the_rule_lets_the_wiring_wire() -> None:
    source = "import nemesis.node_faults\nfrom checkers.lists import list_ops\nfrom cli import main"

    assert offences(ROOT / "cli/run.py", source) == []


def test_the_node_imports_only_itself_and_its_three_dependencies() -> None:
    found = {}
    for path in sorted(NODE.rglob("*.py")):
        package = ".".join(path.relative_to(ROOT).parent.parts)
        bad = [
            name
            for name in imports(path.read_text(), package)
            if not (name + ".").startswith("clusters.reference.node.")
            and name.split(".")[0] not in NODE_DEPENDENCIES | sys.stdlib_module_names
        ]
        if bad:
            found[str(path.relative_to(ROOT))] = bad

    assert found == {}


def test_the_packages_above_the_node_are_empty() -> None:
    for package in ("clusters", "clusters/reference"):
        assert (ROOT / package / "__init__.py").read_text() == ""


def test_examples_import_the_one_face_for_authors_and_what_it_names_to_build_upon() -> None:
    from harness import api

    tops = (*ROOMS, ROOF, "harness")
    ours = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in (ROOT / "examples").glob("*/[a-z]*/*.py")
        if path.parent.name != "tests"
        for name in imports(path.read_text(), path.parent.name)
        if name.split(".")[0] in tops
    }
    faces = ("harness.api", *api.FOUNDATIONS)
    assert ours
    assert [each for each in sorted(ours) if not each[1].startswith(faces)] == []
