"""Plug-ins by name, through entry points: a user's own workload or system is a package with one
line.

A defect of a plug-in is reported before anything starts, with its package, file and line.
"""

from __future__ import annotations

import dis
import importlib.util
import inspect
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import Distribution, EntryPoint, entry_points
from pathlib import Path
from traceback import walk_tb
from types import CodeType
from typing import Any, NoReturn

from harness.errors import BrokenPlugin, FiredrillError, HarnessError, UnknownPlugin
from harness.plugin_trial import refusal

# The entry point of the command ``firedrill``, which another distribution of its name lacks.
COMMAND = "cli.entry:main"

GROUPS = ("workloads", "faults", "checkers", "providers", "systems", "doctors")


def names(group: str) -> tuple[str, ...]:
    """Every installed plug-in of ``group`` (one of ``GROUPS``), sorted."""
    return tuple(sorted({point.name for point in _points(group)}))


def load(group: str, name: str) -> Any:  # noqa: ANN401 (each group has its own protocol)
    """The factory that the plugin's entry point names. Raises ``UnknownPlugin``, and
    ``BrokenPlugin`` where it can't be imported, or two packages bring one of the name.
    """
    found = {_distribution(p): p for p in reversed(_points(group)) if p.name == name}
    if not found:
        raise UnknownPlugin(group.removesuffix("s"), name, names(group))
    if len(found) > 1:
        raise BrokenPlugin(f"{group.removesuffix('s')} {name!r}: {_several(found.values())}")
    (point,) = found.values()
    if not _is_well_formed(point):
        what = f"its entry point: expected package.module:factory (got {point.value!r:.100})"
        raise BrokenPlugin(f"{_known_as(group, name)}: {what}")

    def loaded() -> Any:  # noqa: ANN401
        with naming(group, name):
            try:
                return point.load()
            except FiredrillError as error:
                if not _is_foreign(point):
                    raise
                # What its module asked of us in a wrong way: the sentence does not say where.
                raise broken(group, name, error) from error

    if _is_foreign(point) and (why := refusal(point.module, loaded)):
        raise BrokenPlugin(f"{_known_as(group, name)}: {why}")
    return loaded()


def _several(points: Iterable[EntryPoint]) -> str:
    """That ``points`` of several packages have one name. The built-in one is never replaced."""
    others = " and ".join(sorted(_package(point) for point in points if _is_foreign(point)))
    if any(not _is_foreign(point) for point in points):
        return f"it is built in, and {others} brings another: give that a name of its own"
    return f"expected one package that brings it (got {others}): uninstall the others"


def own(group: str, name: str) -> Any | None:  # noqa: ANN401 (each group has its own protocol)
    """The factory that firedrill's own plug-in of this name is, or ``None``: another package may
    bring one of the same name.
    """
    distribution = _own().name
    for point in _points(group):
        if point.name == name and point.dist is not None and point.dist.name == distribution:
            return point.load()
    return None


def require_name(group: str, name: str, got: object) -> None:
    """Raise ``BrokenPlugin`` unless the plug-in bears the ``name`` of its entry point."""
    if got != name:
        what = f"name: expected that of its entry point, {name!r} (got {got!r:.100})"
        raise BrokenPlugin(f"{_known_as(group, name)}: {what}")


def made(group: str, name: str, protocol: type, factory: Callable[[], Any]) -> Any:  # noqa: ANN401
    """The result of ``factory`` for the plug-in ``name``, if it has every member of ``protocol``.
    Raises ``BrokenPlugin``, and every ``FiredrillError`` that the factory raises.
    """
    with naming(group, name):
        part = factory()
        # A member may be code of the plug-in's, too.
        lacking = [member for member in _members(protocol) if not hasattr(part, member)]
    if lacking:
        kind = type(part)
        what = f"{kind.__name__} has no {', no '.join(map(repr, lacking))}"
        raise BrokenPlugin(f"{_known_as(group, name)}: {what} ({_stands(kind)})")
    return part


@contextmanager
def naming(group: str, name: str) -> Iterator[None]:
    """Within the block an exception of the plug-in is reported with its package, file and line;
    so is its attempt to end this process.
    """
    interrupted = _handler_code()
    try:
        with _kept_alive():
            yield
    # It is a sentence for a person already, and its kind decides the exit code.
    except FiredrillError:
        raise
    # Code that is made to be a program leaves by ``sys.exit``: it must not end this one.
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and _is_users(error, interrupted):
            raise
        raise broken(group, name, error) from error


def broken(group: str, name: str, error: BaseException) -> BrokenPlugin:
    """The report of ``error``, which the plug-in ``name`` raised, with package, file and line."""
    return BrokenPlugin(f"{_known_as(group, name)}: {told(error)}")


def blamed(error: BaseException) -> str:
    """Tell of an ``error`` of a plug-in whose name is not at hand: its package is that of the last
    file of a plug-in's package which it passed.
    """
    names = [str(frame.f_globals.get("__name__")) for frame, _ in walk_tb(error.__traceback__)]
    brings = _bringers()
    packages = [brings[top] for name in names if (top := name.partition(".")[0]) in brings]
    of = f"package {packages[-1]}" if packages else "a plug-in"
    return f"code of {of} ended the process: {told(error)}"


def told(error: BaseException) -> str:
    """The type and the text of ``error``, and the line that raised it, as ``where`` has it."""
    text = f"{type(error).__name__}: {error}".removesuffix(": ")
    place = where(error)
    # A file that is no Python raises in none of its own lines; the text names file and line.
    return f"{text} ({place})" if place and not isinstance(error, SyntaxError) else text


class ProcessExit(SystemExit):
    """A plug-in called a function that ends the process without unwinding it."""


class _Guard(threading.local):
    """How many blocks of a thread keep the process alive, and the process that they began in."""

    depth = 0
    process = 0


_GUARD = _Guard()
_kept: list[int] = []  # the process that is kept alive in all threads, as often as it is
_decided: dict[int, int] = {}  # the exit code of a process

exit_at_once = os._exit
"""Ends the process from anywhere, also where a plug-in that asks for it is refused."""


@contextmanager
def keeping_alive() -> Iterator[None]:
    """Within the block ``os._exit`` and ``os.abort`` raise ``ProcessExit`` in all of this process's
    threads: a run that ended so would be neither healed nor sealed, and the exit code of a plug-in
    would be taken for a verdict.
    """
    _kept.append(os.getpid())
    try:
        yield
    finally:
        _kept.pop()


def decide_exit_code(code: int) -> None:
    """From here on ``os._exit`` ends this process with ``code``: what a plug-in has Python call at
    its end (``atexit``) changes no verdict.
    """
    _decided[os.getpid()] = code


@contextmanager
def _kept_alive() -> Iterator[None]:
    """Within the block ``os._exit`` and ``os.abort`` of this thread raise ``ProcessExit``, also
    where no command keeps the process alive.
    """
    if _GUARD.process != os.getpid():  # the blocks of the process that this is a fork of
        _GUARD.depth, _GUARD.process = 0, os.getpid()
    _GUARD.depth += 1
    try:
        yield
    finally:
        _GUARD.depth -= 1


def _refuse(call: str) -> None:
    # A child that the plug-in forks has to end, and what other threads ask for is not its own.
    process = os.getpid()
    if process in _kept or (_GUARD.depth and _GUARD.process == process):
        raise ProcessExit(call)


def _install_refusal() -> None:
    end, abort = os._exit, os.abort

    def refused_exit(status: int) -> NoReturn:
        _refuse(f"os._exit({status})")
        end(_decided.get(os.getpid(), status))

    def refused_abort() -> NoReturn:
        _refuse("os.abort()")
        abort()

    os._exit, os.abort = refused_exit, refused_abort


# Once, for good: of threads that overlap, each would restore what another installed.
_install_refusal()


def _is_users(error: KeyboardInterrupt, handler: CodeType | None) -> bool:
    """Tell whether a signal raised ``error``, by ``handler`` or by the interpreter's own, and no
    ``raise`` of a plug-in: a signal interrupts a call, a loop or the start of a function.
    """
    frames = [frame.f_code for frame, _ in walk_tb(error.__traceback__)]
    # A library may install a handler in Python, as pyspark does, and leave it there.
    if any(code is not None and code in frames for code in (handler, _handler_code())):
        return True
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return True
    return trace.tb_frame.f_code.co_code[trace.tb_lasti] != dis.opmap["RAISE_VARARGS"]


def _handler_code() -> CodeType | None:
    """The code of the handler of SIGINT that is installed, where that is a function of Python."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler):
        return None
    plain = handler if hasattr(handler, "__code__") else type(handler).__call__
    code = getattr(plain, "__code__", None)
    return code if isinstance(code, CodeType) else None


def where(error: BaseException) -> str:
    """The file and the line that raised ``error``, as ``package/module.py:7``: the same on every
    machine. For frames within libraries, and for a key that a mapping does not have, the caller's
    line counts; empty where there is none.
    """
    frames = [(frame, line) for frame, line in walk_tb(error.__traceback__)]
    own = [at for at in frames if not _is_callers(at[0].f_code)] or frames
    if not own:
        return ""
    frame, line = own[-1]
    return _place(frame.f_code, line, frame.f_globals)


def _place(code: CodeType, line: int, names: Mapping[str, object]) -> str:
    file = Path(code.co_filename).name
    package = str(names.get("__package__") or "").replace(".", "/")
    return f"{package}/{file}:{line}" if package else f"{file}:{line}"


def defined(function: Callable[..., object]) -> str:
    """The file and the line that define ``function``, in the form of ``where``."""
    plain = inspect.unwrap(function)
    code = getattr(plain, "__code__", None)
    if code is None:  # an object that can be called
        return type(function).__qualname__
    return _place(code, code.co_firstlineno, getattr(plain, "__globals__", {}))


def own_version() -> str:
    """The version of firedrill itself."""
    return _own().version


def foreign() -> Iterator[tuple[str, str, str]]:
    """Group, name and package of every installed plug-in that is not firedrill's own, sorted."""
    for group in GROUPS:
        for point in sorted(_points(group), key=lambda point: point.name):
            if _is_foreign(point):
                yield group, point.name, _package(point)


def foreign_sources() -> Iterator[tuple[str, Path]]:
    """Name and path of every source file of the plug-ins that are not firedrill's own, sorted: of
    all packages of their distributions. Imports none of them.
    """
    packages = set[str]()
    for group in GROUPS:
        for point in _points(group):
            if _is_foreign(point):
                packages.update(_packages(point))
    for package in sorted(packages):
        yield from _sources(package)


def _is_foreign(point: EntryPoint) -> bool:
    return point.dist is None or point.dist.name != _own().name


def _is_well_formed(point: EntryPoint) -> bool:
    """Whether ``point`` names a module: of another even that can't be looked at."""
    return point.pattern.match(point.value) is not None


def _bringers() -> dict[str, str]:
    """The package of each top-level name that a plug-in which is not firedrill's own brings."""
    foreign = (point for group in GROUPS for point in _points(group) if _is_foreign(point))
    return {name: _package(point) for point in foreign for name in _packages(point)}


def _packages(point: EntryPoint) -> Iterator[str]:
    """The top-level names of the distribution that brings ``point``."""
    if _is_well_formed(point):
        yield point.module.partition(".")[0]
    for file in (point.dist.files if point.dist else None) or ():
        # An editable installation lists its finder alone: then the entry point has to do.
        name = file.parts[0].removesuffix(".py")
        if file.suffix == ".py" and name.isidentifier():
            yield name


def _sources(package: str) -> Iterator[tuple[str, Path]]:
    # Of a top-level name this runs none of the package's code, unlike that of a submodule.
    spec = importlib.util.find_spec(package)
    if spec is None:
        return
    if spec.submodule_search_locations is None:
        # A built-in module has an origin, too, which is no path.
        if spec.has_location and spec.origin:
            yield f"{package}.py", Path(spec.origin)
        return
    # A namespace package may lie in several places.
    for root in spec.submodule_search_locations:
        for path in sorted(Path(root).rglob("*.py")):
            yield f"{package}/{path.relative_to(root)}", path


@cache
def _own() -> Distribution:
    """The distribution that brings the command. It can't be looked up by name: in the public
    registry ``firedrill`` is another project.
    """
    for command in entry_points(group="console_scripts", name="firedrill"):
        if command.value == COMMAND and command.dist is not None:
            return command.dist
    raise HarnessError("firedrill is not installed in this environment: expected its command")


_LIBRARIES = ("pyarrow", "numpy", "pandas", "msgspec", "attr", "attrs", "asyncio", "importlib")


def _is_callers(code: CodeType) -> bool:
    """Whether an error that ``code`` raises is its caller's."""
    file = code.co_filename
    # Generated code (``attrs`` makes methods) and frozen modules have no file to show.
    library = file.startswith("<") or not set(Path(file).parts).isdisjoint(_LIBRARIES)
    library = library or file == __file__  # what refuses to end the process
    return library or code.co_name == "__getitem__"


def _known_as(group: str, name: str) -> str:
    package = next((_package(point) for point in _points(group) if point.name == name), "")
    of = f" of package {package}" if package else ""
    return f"{group.removesuffix('s')} {name!r}{of}"


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist else point.value


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist else point.value


def _members(protocol: type) -> tuple[str, ...]:
    """The members of ``protocol``: the attributes and methods of its class body."""
    # Attributes without a value are only among the annotations, methods only among the variables.
    body = {**inspect.get_annotations(protocol), **vars(protocol)}
    return tuple(sorted(name for name in body if not name.startswith("_")))


def _stands(kind: type) -> str:
    try:
        return f"{inspect.getsourcefile(kind)}:{inspect.getsourcelines(kind)[1]}"
    except (OSError, TypeError):  # made by no source file
        return kind.__module__


@cache
def _points(group: str) -> tuple[EntryPoint, ...]:
    """Cached: the installed packages do not change during a process, and each lookup reads every
    package's files.
    """
    return tuple(entry_points(group=f"firedrill.{group}"))
