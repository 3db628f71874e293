"""Puts a mutant in the place of its module: in this process, or in the program of a real node.

In this process nothing is written anywhere. ``load_mutant`` has to come before anything imports the
module: a module that others have already taken names from would go on in them as it was.
"""

from __future__ import annotations

import ast
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import decode_source
from pathlib import Path
from types import CodeType, ModuleType

import attrs
from msgspec.structs import replace

from harness.errors import HarnessBug, UsageError
from harness.history.durable_files import disk_failure
from harness.protocols.cluster import Program, PythonTree

MUTANT, CHANGE = "mutant", "mutant-change"  # among the versions in a manifest


@attrs.frozen(kw_only=True)
class Mutation:
    """A mutant for a run: its key and its change, its module and the source that this has."""

    key: str
    change: str
    module: str
    source: str

    @property
    def versions(self) -> dict[str, str]:
        """What the run's manifest says of it."""
        return {MUTANT: self.key, CHANGE: self.change}

    def altered(self, program: Program, scratch: Path) -> Program:
        """Return ``program`` with the mutant in the place of its module: nodes get a copy of the
        package, which is made below ``scratch``. Raises ``UsageError`` where they get no such
        package from here.
        """
        for number, tree in enumerate(program.python):
            # With the dots: package ``node`` has no part in module ``node_tools``.
            if not f"{self.module}.".startswith(f"{tree.package}."):
                continue
            copy = scratch / tree.package
            if not copy.exists():  # one for all nodes
                self._copy(tree, copy)
            trees = list(program.python)
            trees[number] = replace(tree, source=str(copy))
            return replace(program, python=tuple(trees))
        known = ", ".join(tree.package for tree in program.python) or "none"
        raise UsageError(f"mutant of {self.module}: nodes get no such package (they get {known})")

    def _copy(self, tree: PythonTree, copy: Path) -> None:
        path = Path(tree.source).joinpath(*self.module.removeprefix(tree.package).split("."))
        path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        inside = path.relative_to(tree.source)
        try:
            shutil.copytree(tree.source, copy, ignore=shutil.ignore_patterns("__pycache__"))
            (copy / inside).write_text(self.source, encoding="utf-8")
        except OSError as error:
            raise disk_failure("copy", copy, error, "nodes can't have the mutant") from error


def source_of(module: str) -> tuple[str, str]:
    """Return the source of ``module`` and the path of its file, without importing it or a package
    above it. Raises ``UsageError``.
    """
    spec = _spec(module)
    if spec is None or not isinstance(spec.loader, SourceFileLoader) or spec.origin is None:
        raise UsageError(f"module {module!r}: expected one with a source file")
    try:
        # As the interpreter decodes it: a line of the source may name another encoding.
        return decode_source(spec.loader.get_data(spec.origin)), spec.origin
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise UsageError(f"module {module!r}: {spec.origin} can't be read: {error}") from error


def load_mutant(module: str, source: str) -> None:
    """Let ``module`` have ``source`` when this process imports it. Raises ``HarnessBug`` where it
    is imported already.
    """
    load_code(module, source, {})


def load_code(module: str, code: str | ast.Module, names: Mapping[str, object]) -> None:
    """Let ``module`` be compiled from ``code`` when this process imports it, and have ``names``
    from the beginning. Raises ``HarnessBug`` where it is imported already.
    """
    if module in sys.modules:
        raise HarnessBug(f"{module} was imported before its mutant")
    # Ahead of the finder of paths, which would load the file itself.
    sys.meta_path.insert(0, _Finder(module, code, names))


def keep_first() -> None:
    """Let no finder that was added since come before those of ``load_code``."""
    sys.meta_path.sort(key=lambda finder: not isinstance(finder, _Finder))


class _Finder(MetaPathFinder):
    def __init__(self, module: str, code: str | ast.Module, names: Mapping[str, object]) -> None:
        self._module, self._code, self._names = module, code, names

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self._code, self._names)
        return spec


class _Loader(SourceFileLoader):
    """Its path is that of the file, so that tracebacks lead there."""

    def __init__(
        self, module: str, path: str, code: str | ast.Module, names: Mapping[str, object]
    ) -> None:
        super().__init__(module, path)
        self._code, self._names = code, names

    def exec_module(self, module: ModuleType) -> None:
        # Before the module's code: it may call its own functions while it is imported.
        vars(module).update(self._names)
        super().exec_module(module)

    def get_code(self, fullname: str) -> CodeType:
        # Not the base's: that one reads and writes the cache of the sound module's bytecode.
        code: CodeType = self.source_to_code(self._code, self.path)
        return code


def _spec(module: str) -> ModuleSpec | None:
    """Find ``module`` along its packages, which need not be imported for that."""
    path: Sequence[str] | None = None
    spec = None
    names = module.split(".")
    for count in range(1, len(names) + 1):
        spec = PathFinder.find_spec(".".join(names[:count]), path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return spec
