"""A store's own tests, the last that a mutant is tried in: what no drill comes to, or tells from
the sound store, a test of the function may.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from harness.errors import UsageError

SEPARATOR = "\n"  # of paths in an option of a cell


class Suite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Tests under pytest of the modules below ``packages``: ``paths`` are files or directories,
    relative ones from the directory of the target's file.
    """

    packages: tuple[str, ...]
    paths: tuple[str, ...]

    def covers(self, module: str) -> bool:
        """Whether ``module`` is one of its packages, or below one."""
        # With the dots: package ``node`` has no part in module ``node_tools``.
        return any(f"{module}.".startswith(f"{package}.") for package in self.packages)

    def found(self, root: Path) -> tuple[Path, ...]:
        """Return its paths, of which relative ones are below ``root``. Raises ``UsageError`` where
        one is not there.
        """
        paths = tuple((root / path).resolve() for path in self.paths)
        for path in paths:
            if not path.exists():
                raise UsageError(f"tests of {', '.join(self.packages)}: {path} does not exist")
        return paths


def first_failure(paths: Iterable[Path]) -> str | None:
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
        tempfile.TemporaryDirectory(prefix="firedrill-mutant-") as scratch,
        contextlib.redirect_stdout(words),
        contextlib.redirect_stderr(words),
    ):
        options = ("-x", "-q", "--tb=no", "-p", "no:cacheprovider", "--basetemp", scratch)
        # Bytecode of test modules beside them would be written in the middle of other runs.
        sys.dont_write_bytecode = True
        code = pytest.main([*options, *map(str, paths)], plugins=[watch])
    if code == pytest.ExitCode.OK:
        return None
    return watch.failed or f"pytest ended with {int(code)}: {_last_line(words.getvalue())}"


class _Watch:
    """A plug-in of pytest that remembers the first failure."""

    def __init__(self) -> None:
        self.failed = ""

    def pytest_runtest_logreport(self, report: Any) -> None:  # noqa: ANN401 (pytest's)
        """Note a test that failed, or its set-up or tear-down."""
        if report.failed and not self.failed:
            self.failed = str(report.nodeid)

    def pytest_collectreport(self, report: Any) -> None:  # noqa: ANN401 (pytest's)
        """Note a file that could not be collected."""
        if report.failed and not self.failed:
            self.failed = f"{report.nodeid} (not collected)"


def joined(paths: Sequence[Path]) -> str:
    """Return ``paths`` as one text, for an option of a cell."""
    return SEPARATOR.join(map(str, paths))


def split(text: str) -> list[Path]:
    """Return the paths that ``joined`` made ``text`` of."""
    return [Path(line) for line in text.split(SEPARATOR)]


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "no words"
