"""The lines of some modules that a run executes: a drill can't kill a mutant that it never meets.

Each statement of a function is preceded by a call that notes its line. A tracer of the interpreter
would be asked at every call of every library, and made a drill five times as long.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from itertools import count

import msgspec

from harness.mutation.loading import load_code

# Module -> its lines that were executed, and how often.
Lines = Mapping[str, Mapping[int, int]]
_NOTE = "__note_line__"  # in each module that is counted


# Each call returns how many there were before it.
Counter = Callable[[], int]


class _Counters(dict[int, Counter]):
    def __missing__(self, line: int) -> Counter:
        made = self[line] = count().__next__
        return made


def count_lines(sources: Mapping[str, tuple[str, str]]) -> Mapping[str, Mapping[int, Counter]]:
    """Let the modules of ``sources`` (name -> text and path) count the lines that they execute,
    once they are imported; return the counters. Raises ``HarnessBug`` where one is imported.
    """
    found: dict[str, _Counters] = {}
    for module, (text, _) in sources.items():
        counters = found[module] = _Counters()
        # The counter is the interpreter's own: a note costs a look-up and a call without a frame.
        load_code(module, counted(text), {_NOTE: counters})
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


def encode(counters: Mapping[str, Mapping[int, Counter]]) -> bytes:
    """Encode what ``counters`` have counted, for a campaign's ledger; this ends the counting."""
    lines = {
        module: {line: found[line]() for line in sorted(found)}
        for module, found in sorted(counters.items())
    }
    return msgspec.json.encode(lines)


def decode(content: bytes) -> Lines:
    """Decode what ``encode`` returned; of nothing, no lines."""
    return msgspec.json.decode(content, type=dict[str, dict[int, int]]) if content else {}


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
        line = ast.Constant(statement.lineno)
        counter = ast.Subscript(ast.Name(_NOTE, ast.Load()), line, ast.Load())
        call = ast.Call(counter, [], [])
        noted += [ast.copy_location(ast.Expr(call), statement), statement]
    return noted
