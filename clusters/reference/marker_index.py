"""The markers of the node, found in its source: the list of what a campaign could reach."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import clusters.reference.node as node_package
from harness.errors import HarnessBug

MODULE = "clusters.reference.node.markers"
NODE_SOURCE = Path(node_package.__file__ or "").resolve().parent


@cache
def known_markers() -> dict[str, str]:
    """Return every marker of the node with its place (``raft/core.py:212``), by name. Raises
    ``HarnessBug`` where two places have one name, or a name that is no literal.
    """
    found: dict[str, str] = {}
    for path in sorted(NODE_SOURCE.rglob("*.py")):
        for marker, line in _markers_in(path):
            place = f"{path.relative_to(NODE_SOURCE)}:{line}"
            if marker in found:
                raise HarnessBug(f"marker {marker!r} is at {found[marker]} and at {place}")
            found[marker] = place
    return dict(sorted(found.items()))


def _markers_in(path: Path) -> Iterator[tuple[str, int]]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    # Raft has a word ``reached`` of its own: modules that use it import the module of markers.
    names = {ast.unparse(name) for name in ast.walk(tree) if _imports_markers(name)}
    called = "reached" if any("import reached" in name for name in names) else "markers.reached"
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == called:
            match call.args:
                case [ast.Constant(value=str(marker))]:
                    yield marker, call.lineno
                case _:
                    raise HarnessBug(f"{path}:{call.lineno}: a marker must be one literal")


def _imports_markers(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == MODULE
