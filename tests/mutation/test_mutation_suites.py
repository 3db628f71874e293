"""Tests as the last trial of a mutant: each run in a process of its own, with the mutant loaded."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.mutation.suites import Suite, digest, paths_of

LIMIT_S = 60.0
TRY = """
import sys
from pathlib import Path
from harness.mutation.loading import load_mutant
from harness.mutation.suites import first_failure
sys.path.insert(0, sys.argv[1])
if sys.argv[2]:
    load_mutant("shop.door", sys.argv[2])
print(repr(first_failure([Path(path) for path in sys.argv[3:]])))
"""
MUTANT = "def wide():\n    return False\n"


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A package with one function, and a test of it."""
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "door.py").write_text("def wide():\n    return True\n")
    write(tmp_path, "from shop.door import wide\n\ndef test_wide():\n    assert wide()\n")
    return tmp_path


def write(shop: Path, text: str) -> None:
    (shop / "tests").mkdir(exist_ok=True)
    (shop / "tests" / "test_door.py").write_text(textwrap.dedent(text))


def tried(shop: Path, mutant: str = "", **environment: str) -> str:
    """What comes of the tests of ``shop``."""
    done = subprocess.run(
        [sys.executable, "-c", TRY, str(shop), mutant, str(shop / "tests")],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env={**_plain(), **environment},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _plain() -> dict[str, str]:
    import os

    root = Path(__file__).resolve().parents[2]
    return {**os.environ, "PYTHONPATH": str(root), "PYTEST_ADDOPTS": ""}


def test_sound_tests_pass_and_say_nothing(shop: Path) -> None:
    assert tried(shop) == "None"


def test_the_first_test_that_fails_is_named(shop: Path) -> None:
    assert tried(shop, MUTANT).endswith("test_door.py::test_wide'")


def test_a_mutant_that_can_not_be_imported_fails(shop: Path) -> None:
    assert tried(shop, "def wide(:\n").endswith("test_door.py (not collected)'")


def test_no_test_is_no_pass(shop: Path) -> None:
    write(shop, "")
    assert tried(shop).startswith("'pytest ended with 5")


def test_options_of_the_users_do_not_take_the_tests_to_another_process(shop: Path) -> None:
    assert tried(shop, PYTEST_ADDOPTS="-n 1").startswith("'pytest ended with 4")


def test_what_pytest_would_rewrite_is_the_mutant_all_the_same(shop: Path) -> None:
    (shop / "pytest.ini").write_text("[pytest]\npython_files = *.py\n")
    assert tried(shop, MUTANT).endswith("test_wide'")


def test_an_example_that_fails_is_not_kept_for_the_users_own_runs(shop: Path) -> None:
    write(
        shop,
        """
        from hypothesis import given, strategies as st
        from shop.door import wide

        @given(st.integers())
        def test_wide(number):
            assert wide()
        """,
    )
    assert tried(shop, MUTANT).endswith("test_wide'")
    assert not list(shop.rglob(".hypothesis"))
    assert not list(shop.rglob("__pycache__"))


def test_a_suite_is_of_its_packages_alone(shop: Path) -> None:
    suite = Suite(packages=("shop.door",), paths=("tests", "tests/test_door.py"))
    assert suite.covers("shop.door")
    assert suite.covers("shop.door.frame")
    assert not suite.covers("shop.doors")
    assert paths_of(suite.options(shop)) == [shop / "tests", shop / "tests" / "test_door.py"]
    with pytest.raises(UsageError, match=r"tests of shop: .*nowhere does not exist"):
        Suite(packages=("shop",), paths=("nowhere",)).options(shop)


def test_a_helper_beside_the_tests_is_part_of_what_they_are(shop: Path) -> None:
    tests, deeper = shop / "tests", shop / "tests" / "deeper"
    deeper.mkdir()
    (tests / "conftest.py").write_text("")
    (deeper / "test_more.py").write_text("")
    before = digest([deeper / "test_more.py"])
    (tests / "helper.py").write_text("A = 1\n")
    after = digest([deeper / "test_more.py"])
    assert before != after
    (shop / "shop" / "door.py").write_text("")
    assert digest([deeper / "test_more.py"]) == after
