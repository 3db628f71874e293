"""Lets one module of this process have the source of a mutant; nothing is written anywhere.

``load_mutant`` has to come before anything imports the module: a module that others have already
taken names from would go on in them as it was.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import decode_source
from types import CodeType, ModuleType

from harness.errors import HarnessBug, UsageError


def source_of(module: str) -> tuple[str, str]:
    """Return the source of ``module`` and the path of its file, without importing it or a package
    above it. Raises ``UsageError``.
    """
    spec = _spec(module)
    if spec is None or not isinstance(spec.loader, SourceFileLoader) or spec.origin is None:
        raise UsageError(f"module {module!r}: expected one with a source file")
    try:
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
    sys.meta_path.insert(0, _Finder(module, code, names))


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
