"""A store's own tests, the last that a mutant is tried in: what no drill comes to, or tells from
the sound store, a test of the function may.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import UsageError
from harness.mutation.loading import keep_first
from harness.scratch import scratch_directory

# Options of a cell that runs tests in place of its plan: their paths, and what they are.
TESTS, TESTS_DIGEST = "tests", "tests-digest"
_SEPARATOR = "\n"
_NOT_OF_TESTS = {"__pycache__", ".hypothesis", ".pytest_cache"}


class Suite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tests under pytest of the modules below ``packages``: ``paths`` are files or directories,
    relative ones from the directory of the target's file.
    """

    packages: tuple[str, ...]
    paths: tuple[str, ...]

    def covers(self, module: str) -> bool:
        """Whether ``module`` is one of its packages, or below one."""
        return any(is_below(module, package) for package in self.packages)

    def options(self, root: Path) -> dict[str, str]:
        """Return the options of a cell that runs it, its relative paths being below ``root``.
        Raises ``UsageError`` where one is not there.
        """
        paths = [(root / path).resolve() for path in self.paths]
        for path in paths:
            if not path.exists():
                raise UsageError(f"tests of {', '.join(self.packages)}: {path} does not exist")
        return {TESTS: _SEPARATOR.join(map(str, paths)), TESTS_DIGEST: digest(paths)}


def is_below(module: str, package: str) -> bool:
    """Return whether ``module`` is ``package``, or below it."""
    # With the dots: package ``node`` has no part in module ``node_tools``.
    return f"{module}.".startswith(f"{package}.")


def paths_of(options: Mapping[str, str]) -> list[Path]:
    """Return the paths in ``Suite.options``."""
    return [Path(line) for line in options[TESTS].split(_SEPARATOR)]


def digest(paths: Iterable[Path]) -> str:
    """Return a digest of the tests at ``paths`` and of the helpers that stand beside them: of all
    sources below the uppermost directory with a conftest, or below their own.
    """
    whole = hashlib.sha256()
    for top in sorted({_uppermost(path) for path in paths}):
        for path in sorted(_files(top)):
            content = path.read_bytes()
            whole.update(f"{path} {len(content)}\n".encode())
            whole.update(content)
    return whole.hexdigest()[:16]


def _uppermost(path: Path) -> Path:
    start = path if path.is_dir() else path.parent
    above = [each for each in (start, *start.parents) if (each / "conftest.py").is_file()]
    return above[-1] if above else start


def _files(top: Path) -> Iterator[Path]:
    for path in top.iterdir():
        if path.is_dir() and not path.is_symlink() and path.name not in _NOT_OF_TESTS:
            yield from _files(path)
        elif path.suffix == ".py" and path.is_file():
            yield path


def first_failure(paths: Sequence[Path]) -> str | None:
    """Run the tests at ``paths`` in this process until one fails: return its name, or how pytest
    ended before any test; ``None`` where all passed. What they print is thrown away. Raises
    ``UsageError`` where pytest is not installed.

    A process can do this once: modules that a mutant has replaced stay replaced.
    """
    try:
        import pytest
    except ImportError as error:
        raise UsageError(f"tests of mutants need pytest: {error}") from error
    watch = _Watch()
    words = io.StringIO()
    with (
        scratch_directory("mutant") as scratch,
        contextlib.redirect_stdout(words),
        contextlib.redirect_stderr(words),
    ):
        # Not in processes of pytest's: they would load the sound module.
        options = ("-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:xdist")
        # Bytecode of test modules beside them would be written in the middle of other runs.
        sys.dont_write_bytecode = True
        place = ("--basetemp", str(scratch.path / "tests"))
        code = pytest.main([*options, *place, *map(str, paths)], plugins=[watch])
    if code == pytest.ExitCode.OK:
        return None
    return watch.failed or f"pytest ended with {int(code)}: {_last_line(words.getvalue())}"


class _Watch:
    """A plug-in of pytest that remembers the first failure."""

    def __init__(self) -> None:
        self.failed = ""

    def pytest_configure(self) -> None:
        """Begin: after conftests were loaded, and before tests are collected."""
        keep_first()  # before the finder by which pytest rewrites what looks like a test
        _let_hypothesis_be_brief()

    def pytest_runtest_logreport(self, report: Any) -> None:  # noqa: ANN401 (pytest's)
        """Note a test that failed, or its set-up or tear-down."""
        if report.failed and not self.failed:
            self.failed = str(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:  # noqa: ANN401 (pytest's)
        """Note a file that could not be collected."""
        if report.failed and not self.failed:
            self.failed = f"{report.nodeid} (not collected)"


def _let_hypothesis_be_brief() -> None:
    """Let examples be the same each time, and found ones neither be shrunk nor kept: the user's own
    runs would begin with those of mutants.
    """
    with contextlib.suppress(ImportError):
        from hypothesis import Phase, settings

        settings.register_profile(
            "mutant",
            database=None,
            derandomize=True,
            deadline=None,
            phases=[phase for phase in Phase if phase is not Phase.shrink],
        )
        settings.load_profile("mutant")


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no words"
