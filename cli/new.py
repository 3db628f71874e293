"""``firedrill new``: a package of one's own, made from one of the examples."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import keyword
import os
import re
import shlex
import shutil
import sys
import tokenize
from pathlib import Path

import attrs
import click

from harness import plugins
from harness.errors import HarnessError, UsageError

NAME = re.compile(r"[a-z][a-z0-9]{1,29}")
SUFFIXES = (".py", ".toml")
# What pytest and build tools import by name, in the directory of the package as well.
RESERVED = frozenset({"conftest", "firedrill", "setup", "test", "tests"})


@attrs.frozen
class Example:
    """A package in ``examples``: the word that it goes by, and the plug-ins that it has. ``run`` is
    what to try once it is installed.
    """

    directory: str
    word: str
    groups: tuple[str, ...]
    run: str


KINDS = {
    "workload": Example("own-workload", "ledger", ("workloads",), "run --workload ledger"),
    "checker": Example("own-checker", "tally", ("workloads", "checkers"), "run --workload tally"),
    "system": Example("own-store", "pebble", ("systems",), "conform pebble"),
    "fault": Example("own-fault", "crashloop", ("faults",), "run --fault crashloop"),
}


@click.command()
@click.argument("kind", type=click.Choice(list(KINDS)))
@click.argument("name")
@click.option(
    "--into",
    type=click.Path(path_type=Path),
    default=Path(),
    help="Where to make the directory NAME (here).",
)
def new(kind: str, name: str, into: Path) -> int:
    """Write a package NAME with a KIND of plug-in of your own: it runs, and has its tests.

    NAME is that of a Python package, too: 2 to 30 small letters and digits, a letter first. A
    checker comes with the workload that it judges, a system with a small store.
    """
    example, target = KINDS[kind], into / name
    _check(example, name, target)
    written = _write(_source(example), example.word, name, target)
    for path in written:
        click.echo(path)
    python = shlex.quote(_shown(sys.executable))
    tools = [] if importlib.util.find_spec("pytest") else [f"  {python} -m pip install pytest"]
    for line in (
        "next:",
        # Of another registry's package with the name of ours, nothing must be fetched for it.
        f"  {python} -m pip install --no-deps --no-build-isolation {shlex.quote(_as_path(target))}",
        *tools,
        f"  {python} -m pytest {shlex.quote(f'{target}/tests')}",
        f"  firedrill {example.run.replace(example.word, name)}",
        "firedrill doctor shows it; install it again after a change",
    ):
        click.echo(line)
    return 0


def _as_path(target: Path) -> str:
    """``target`` as pip takes it for a directory: a bare name would be looked for in a registry."""
    return f"{target}" if len(target.parts) > 1 else f"./{target}"


def _check(example: Example, name: str, target: Path) -> None:
    """Refuse a name that can't be one, or is taken. Raises ``UsageError``."""
    if keyword.iskeyword(name):
        raise UsageError(f"name {name!r}: expected no word of Python's own")
    if not NAME.fullmatch(name):
        expected = "expected 2 to 30 small letters and digits that begin with a letter"
        raise UsageError(f"name {name!r}: {expected}: it is that of a Python package, too")
    for group in example.groups:
        if name in plugins.names(group):
            raise UsageError(f"name {name!r}: there is a {group.removesuffix('s')} of that name")
    if name in sys.stdlib_module_names or name in RESERVED:
        raise UsageError(f"name {name!r}: a module of that name is another's, which it would hide")
    if _distributed(name):
        raise UsageError(f"name {name!r}: a package of that name is installed, which it replaces")
    if importlib.util.find_spec(name) is not None:
        raise UsageError(f"name {name!r}: there is a Python package of that name, which it hides")
    if {name, name.capitalize()} & _words_of(_source(example)):
        raise UsageError(f"name {name!r}: the example's code has that word for something else")
    above = next(path for path in (*target.parents, Path()) if os.path.lexists(path))
    if not above.is_dir():
        expected = "expected a directory, found another file in its place"
        raise UsageError(f"--into: {expected}: {above}")
    if os.path.lexists(target):
        raise UsageError(f"{target}: it is there already, and nothing is written over")


def _words_of(source: Path) -> set[str]:
    """The identifiers in the Python code below ``source``, and those in strings of one word."""
    found = set()
    for path in sorted(source.rglob("*.py")):
        with path.open("rb") as file:
            for token in tokenize.tokenize(file.readline):
                if token.type in {tokenize.NAME, tokenize.STRING}:
                    found.add(token.string.strip("\"'"))
    return found


def _distributed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _source(example: Example) -> Path:
    """The example's directory: beside the code in a wheel, beside its packages in a checkout."""
    here = Path(__file__).parent
    places = [root / "examples" / example.directory for root in (here, here.parent)]
    found = next((place for place in places if place.is_dir()), None)
    if found is None:
        raise HarnessError(f"the example {example.directory} is not installed: {places[0]}")
    return found


def _write(source: Path, word: str, name: str, target: Path) -> list[Path]:
    """Write the package of ``source`` as ``target``, with ``name`` in place of ``word``; all of it,
    or nothing.
    """
    above = next(path for path in target.parents if path.exists())
    try:
        return _written(source, word, name, target)
    except BaseException:
        # Nothing of it was there: half a package would hold the name, and is none.
        shutil.rmtree(target, ignore_errors=True)
        for path in target.parents:
            if path == above:
                break
            with contextlib.suppress(OSError):
                path.rmdir()
        raise


def _written(source: Path, word: str, name: str, target: Path) -> list[Path]:
    written = []
    for path in sorted(source.rglob("*")):
        inner = path.relative_to(source)
        # What an installation of the example left beside it is none of it.
        if path.suffix not in SUFFIXES or "build" in inner.parts:
            continue
        text = path.read_text()
        for old, fresh in ((word, name), (word.capitalize(), name.capitalize())):
            text = text.replace(old, fresh)
        file = target / Path(*(part.replace(word, name) for part in inner.parts))
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        except OSError as error:
            raise HarnessError(f"{file}: {error.strerror}") from error
        written.append(file)
    return written


def _shown(path: str) -> str:
    """``path`` from here, where it is below."""
    return os.path.relpath(path) if Path(path).is_relative_to(Path.cwd()) else path
