"""The lines of some modules that a run executes: a drill can't kill a mutant that it never meets.

Each statement of a function is preceded by a call that notes its line. A tracer of the interpreter
would be asked at every call of every library, and made a drill five times as long.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

import msgspec

from harness.mutation.loading import load_code

# Module -> its lines that were executed.
Lines = Mapping[str, frozenset[int]]
_NOTE = "__note_line__"  # in each module that is counted


def count_lines(sources: Mapping[str, tuple[str, str]]) -> dict[str, set[int]]:
    """Let the modules of ``sources`` (name -> text and path) note the lines that they execute, once
    they are imported; return where they note them. Raises ``HarnessBug`` where one is imported.
    """
    found: dict[str, set[int]] = {}
    for module, (text, _) in sources.items():
        lines = found[module] = set()
        # The method of the set itself: a note costs one call, and needs no import.
        load_code(module, counted(text), {_NOTE: lines.add})
    return found


def counted(source: str) -> ast.Module:
    """Return the syntax tree of ``source`` with a note before each statement of a function."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        # Bodies of modules and classes run at the import: every drill executes them. ``walk`` has
        # listed the children before it yields a node, so it does not come by the notes.
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                _count_below(statement)
            node.body = _noted(node.body)
    return ast.fix_missing_locations(tree)


def encode(lines: Mapping[str, set[int]]) -> bytes:
    """Encode ``lines`` for a campaign's ledger."""
    return msgspec.json.encode({module: sorted(found) for module, found in sorted(lines.items())})


def decode(content: bytes) -> Lines:
    """Decode what ``encode`` returned; of nothing, no lines."""
    return msgspec.json.decode(content, type=dict[str, frozenset[int]]) if content else {}


def _count_below(statement: ast.AST) -> None:
    """Note the statements in the blocks of ``statement``; functions in it come by themselves."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    for name in ("body", "orelse", "finalbody"):
        if block := getattr(statement, name, None):
            for inner in block:
                _count_below(inner)
            setattr(statement, name, _noted(block))
    for name in ("handlers", "cases"):
        for part in getattr(statement, name, ()):
            _count_below(part)


def _noted(block: list[ast.stmt]) -> list[ast.stmt]:
    noted: list[ast.stmt] = []
    for statement in block:
        call = ast.Call(ast.Name(_NOTE, ast.Load()), [ast.Constant(statement.lineno)], [])
        noted += [ast.copy_location(ast.Expr(call), statement), statement]
    return noted
