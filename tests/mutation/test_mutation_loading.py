"""A mutant in place of its module, in a process of its own; a module that counts its lines."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.mutation.line_coverage import counted, decode

SOURCE = '''"""A shop."""
from __future__ import annotations

def price(count):
    """Say what it costs."""
    if count > 9:
        return 8
    elif count > 4:
        return 9
    for _ in range(count):
        try:
            int("x")
        except ValueError:
            continue
        finally:
            count += 0
    match count:
        case 1:
            return 11
    return 10
'''


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SOURCE)
    return tmp_path


def run(where: Path, program: str) -> str:
    """The output of ``program`` beside the package."""
    head = "from harness.mutation.loading import load_mutant, source_of\n"
    return subprocess.run(
        [sys.executable, "-c", head + program],
        cwd=where,
        env={"PYTHONPATH": f"{where}:{Path(__file__).resolve().parents[2]}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_the_mutant_is_imported_and_nothing_is_written(shop: Path) -> None:
    before = sorted(path.name for path in shop.rglob("*"))
    said = run(
        shop,
        "import sys\nsys.dont_write_bytecode = False\n"
        "load_mutant('shop', source_of('shop')[0].replace('return 10', 'return 7'))\n"
        "import shop\nprint(shop.price(0), shop.__file__)",
    )

    assert said.split() == ["7", str(shop / "shop.py")]
    assert sorted(path.name for path in shop.rglob("*")) == before
    assert (shop / "shop.py").read_text() == SOURCE
    assert run(shop, "import shop\nprint(shop.price(0))").split() == ["10"]


def test_the_sound_modules_bytecode_is_not_taken_for_the_mutants(shop: Path) -> None:
    run(shop, "import sys\nsys.dont_write_bytecode = False\nimport shop")
    cached = {path: path.read_bytes() for path in shop.rglob("*.pyc")}
    said = run(
        shop,
        "load_mutant('shop', source_of('shop')[0].replace('return 10', 'return 7'))\n"
        "import shop\nprint(shop.price(0))",
    )

    assert cached
    assert said.split() == ["7"]
    assert {path: path.read_bytes() for path in shop.rglob("*.pyc")} == cached


def test_a_module_that_is_imported_already_is_refused(shop: Path) -> None:
    said = run(
        shop,
        "import shop\n"
        "try:\n    load_mutant('shop', '')\nexcept Exception as error:\n    print(error)",
    )

    assert said.strip() == "shop was imported before its mutant"


def test_lines_that_run_are_counted_and_others_are_not(shop: Path) -> None:
    said = run(
        shop,
        "from harness.mutation.line_coverage import count_lines\n"
        "found = count_lines({'shop': source_of('shop')})\n"
        "import shop\n"
        "print(shop.price(10), sorted(found['shop']))\n"
        "print(shop.price(1), sorted(found['shop']))",
    ).splitlines()

    assert said[0] == "8 [5, 6, 7]"
    assert said[1] == "11 [5, 6, 7, 8, 10, 11, 12, 14, 16, 17, 19]"


def test_a_counted_module_keeps_its_first_lines() -> None:
    tree = counted(SOURCE)

    assert [type(node).__name__ for node in tree.body] == ["Expr", "ImportFrom", "FunctionDef"]


def test_lines_come_back_from_the_ledger_with_how_often_they_ran(shop: Path) -> None:
    said = run(
        shop,
        "from harness.mutation.line_coverage import count_lines, decode, encode\n"
        "found = count_lines({'shop': source_of('shop')})\n"
        "import shop\n"
        "for _ in range(3):\n    shop.price(10)\n"
        "print(decode(encode(found)))",
    )

    assert said.strip() == "{'shop': {5: 3, 6: 3, 7: 3}}"
    assert decode(b"") == {}
