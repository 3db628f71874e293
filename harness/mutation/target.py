"""What is mutated: the modules of a store, what is left alone in them, and reviewed equivalents."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import attrs
import msgspec

from harness.errors import UsageError
from harness.mutation.loading import Mutation, source_of
from harness.mutation.rules import Mutant, mutants_of, touching
from harness.mutation.suites import Suite


class SkippedCalls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Calls, by a regular expression on the name as it is called, that no mutant touches."""

    name: str
    reason: str


class SkippedFunction(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function (``module:Class.function``) that has no mutants."""

    function: str
    reason: str


class Equivalent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mutant that a person found to break no promise. It counts as long as ``change`` is still
    what the mutant of this key does.
    """

    mutant: str
    change: str
    reason: str


class Target(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file that describes a target: ``packages`` are names of packages or modules, ``tests``
    those of the store itself.
    """

    packages: tuple[str, ...]
    skip_calls: tuple[SkippedCalls, ...] = ()
    skip_functions: tuple[SkippedFunction, ...] = ()
    equivalent: tuple[Equivalent, ...] = ()
    tests: tuple[Suite, ...] = ()


@attrs.frozen(kw_only=True)
class Sources:
    """The mutants of a target, with the sources that they are of: module -> (text, path)."""

    sources: Mapping[str, tuple[str, str]]
    mutants: Mapping[str, Mutant]
    equivalents: Mapping[str, Equivalent] = {}
    stale: tuple[str, ...] = ()

    def mutation(self, key: str) -> Mutation:
        """Return the mutant ``key`` for a run. Raises ``UsageError``."""
        mutant = self.mutant(key)
        return _mutation(mutant, self.sources[mutant.module][0])

    def mutant(self, key: str) -> Mutant:
        """Return the mutant ``key``. Raises ``UsageError``."""
        if key not in self.mutants:
            raise UsageError(
                f"mutant {key!r}: none of this name in what is mutated (--list-mutants shows all)"
            )
        return self.mutants[key]

    def diff(self, key: str) -> str:
        """Return a unified diff of the mutant ``key``."""
        mutant = self.mutant(key)
        source, _ = self.sources[mutant.module]
        return mutant.diff(source, self._file(mutant))

    def place(self, key: str) -> str:
        """Return ``file:line: rule`` of the mutant ``key``, for a line of a list."""
        mutant = self.mutant(key)
        return f"{self._file(mutant)}:{mutant.line}: {mutant.rule}"

    def _file(self, mutant: Mutant) -> str:
        """The file of ``mutant``, from the directory that its top package is in."""
        path = Path(self.sources[mutant.module][1])
        depth = mutant.module.count(".") + 1 + (path.name == "__init__.py")
        return str(Path(*path.parts[-depth:]))

    def equivalent(self, key: str) -> Equivalent | None:
        """Return the review of the mutant ``key``, where there is one that still holds."""
        return self.equivalents.get(key)


def read_target(path: Path) -> Target:
    """Read the TOML file ``path``. Raises ``UsageError``."""
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Target)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: expected a target of mutation: {error}") from error


def find_mutants(target: Target) -> Sources:
    """Find all mutants of ``target``; no module of it is imported. Raises ``UsageError``."""
    sources = {module: source_of(module) for module in _modules(target.packages)}
    skipped = {entry.function for entry in target.skip_functions}
    found: dict[str, Mutant] = {}
    for module, (source, _) in sources.items():
        mutants = mutants_of(module, source)
        left_alone = touching(mutants, source, _calls(target))
        for mutant in mutants:
            if mutant.key not in left_alone and f"{module}:{mutant.function}" not in skipped:
                found[mutant.key] = mutant
    valid = {
        entry.mutant: entry
        for entry in target.equivalent
        if entry.mutant in found and found[entry.mutant].change == entry.change
    }
    stale = tuple(entry.mutant for entry in target.equivalent if entry.mutant not in valid)
    return Sources(sources=sources, mutants=found, equivalents=valid, stale=stale)


def mutation_named(key: str) -> Mutation:
    """Return the mutant ``key`` of any target, for a run. Raises ``UsageError``."""
    module = key.partition(":")[0]
    source, _ = source_of(module)
    for mutant in mutants_of(module, source):
        if mutant.key == key:
            return _mutation(mutant, source)
    raise UsageError(f"mutant {key!r}: {module} has none of this name any more")


def _mutation(mutant: Mutant, source: str) -> Mutation:
    return Mutation(
        key=mutant.key,
        change=mutant.change,
        module=mutant.module,
        source=mutant.applied(source),
    )


def sample(mutants: Sequence[Mutant], count: int, seed: int) -> list[Mutant]:
    """Choose ``count`` of ``mutants`` by ``seed``: the packages in turn, in each the functions and
    rules that have had the fewest. What a seed prefers in a function does not depend on the rest.
    """
    drawn = {mutant.key: sha256(f"{seed} {mutant.key}".encode()).digest() for mutant in mutants}
    packages: dict[str, list[Mutant]] = {}
    for mutant in sorted(mutants, key=lambda mutant: drawn[mutant.key]):
        packages.setdefault(mutant.module.rpartition(".")[0], []).append(mutant)
    turns = [_spread(packages[name]) for name in sorted(packages)]
    chosen: list[Mutant] = []
    while turns and len(chosen) < count:
        for turn in list(turns):
            following = next(turn, None)
            if following is None:
                turns.remove(turn)
            else:
                chosen.append(following)
    return chosen[:count]


def _spread(mutants: Sequence[Mutant]) -> Iterator[Mutant]:
    """Yield ``mutants`` so that functions, and then rules, come about equally often."""
    left = list(mutants)
    functions: dict[tuple[str, str], int] = {}
    rules: dict[str, int] = {}
    while left:
        # Of equals the first, in the order that the seed has drawn.
        best = min(
            left,
            key=lambda each: (
                functions.get((each.module, each.function), 0),
                rules.get(each.rule, 0),
            ),
        )
        left.remove(best)
        place = best.module, best.function
        functions[place] = functions.get(place, 0) + 1
        rules[best.rule] = rules.get(best.rule, 0) + 1
        yield best


def _calls(target: Target) -> re.Pattern[str]:
    names = "|".join(f"(?:{skipped.name})" for skipped in target.skip_calls)
    try:
        return re.compile(names or "(?!)")  # by default one that is found nowhere
    except re.error as error:
        raise UsageError(f"skip_calls: expected regular expressions: {error}") from error


def _modules(packages: Sequence[str]) -> list[str]:
    """Return the modules of ``packages``, sorted."""
    found = []
    for package in packages:
        _, path = source_of(package)
        found.append(package)
        if Path(path).name == "__init__.py":
            root = Path(path).parent
            for file in root.rglob("*.py"):
                parts = file.relative_to(root).with_suffix("").parts
                found.append(".".join((package, *parts)).removesuffix(".__init__"))
    # Once each: a package may be named beside a module of it.
    return sorted(dict.fromkeys(found))
