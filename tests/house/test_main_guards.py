"""What ``python -m`` runs has all of its module: the guard is a module's last statement."""

from __future__ import annotations

import ast
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def is_guard(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test)


def test_nothing_follows_a_main_guard() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    early, guards = [], 0
    for name in listed:
        if not (ROOT / name).exists():
            continue
        body = ast.parse((ROOT / name).read_text()).body
        guards += sum(map(is_guard, body))
        early += [name for statement in body[:-1] if is_guard(statement)]
    assert early == []
    assert guards > 10
