"""What is mutated: modules found without importing them, samples, reviews that still hold."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from cli.mutant_drills import TARGET
from harness.errors import UsageError
from harness.mutation.target import (
    Equivalent,
    SkippedCalls,
    SkippedFunction,
    Sources,
    Target,
    find_mutants,
    mutation_named,
    read_target,
    sample,
)
from harness.protocols.cluster import Program, PythonTree

PACKAGES = (
    *("availability", "catalog", "groups", "metastorage", "placement", "raft", "rebalance"),
    *("replicas", "storage", "topology", "tx", "zones"),
)


@pytest.fixture(scope="module")
def reference() -> Sources:
    return find_mutants(read_target(TARGET))


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package ``shop`` that must not be imported."""
    package = tmp_path / "shop"
    (package / "till").mkdir(parents=True)
    (package / "__init__.py").write_text("raise SystemExit('imported')\n")
    (package / "till" / "__init__.py").write_text("")
    (package / "till" / "sums.py").write_text("def total(a, b):\n    return a - b\n")
    (package / "door.py").write_text("def wide(a):\n    log(a < 1)\n    return a < 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    return package


def test_a_package_is_searched_without_importing_it(shop: Path) -> None:
    found = find_mutants(Target(packages=("shop",)))

    assert sorted(found.sources) == ["shop", "shop.door", "shop.till", "shop.till.sums"]
    assert "shop" not in sys.modules
    assert "shop.till.sums:total:sign-flipped:1" in found.mutants
    assert found.place("shop.door:wide:bound-shifted:2") == "shop/door.py:3: bound-shifted"
    assert "--- shop/door.py" in found.diff("shop.door:wide:bound-shifted:2")


def test_one_module_is_a_target_too(shop: Path) -> None:
    assert list(find_mutants(Target(packages=("shop.door",))).sources) == ["shop.door"]


@pytest.mark.parametrize("name", ["nothing.here", "shop.nothing", "sys", "json.decoder.x"])
def test_what_has_no_source_is_refused(name: str, shop: Path) -> None:
    with pytest.raises(UsageError, match="expected one with a source file"):
        find_mutants(Target(packages=(name,)))


def test_what_is_skipped_does_not_change_the_keys_of_the_rest(shop: Path) -> None:
    every = find_mutants(Target(packages=("shop",))).mutants
    calls = (SkippedCalls(name="^log$", reason="for people"),)
    functions = (SkippedFunction(function="shop.till.sums:total", reason="tried elsewhere"),)
    rest = find_mutants(Target(packages=("shop",), skip_calls=calls, skip_functions=functions))

    assert rest.mutants.items() < every.items()
    assert set(rest.mutants) == {"shop.door:wide:bound-shifted:2", "shop.door:wide:negated:2"}
    assert mutation_named("shop.door:wide:bound-shifted:1").change == "a < 1 -> (a) <= (1)"


def test_a_bad_expression_is_refused(shop: Path) -> None:
    with pytest.raises(UsageError, match="regular expressions"):
        find_mutants(Target(packages=("shop",), skip_calls=(SkippedCalls(name="(", reason=""),)))


def test_a_review_holds_as_long_as_its_mutant_makes_the_same_change(shop: Path) -> None:
    key = "shop.door:wide:bound-shifted:2"
    review = Equivalent(mutant=key, change="a < 2 -> (a) <= (2)", reason="never 2")
    target = Target(packages=("shop",), equivalent=(review,))

    assert find_mutants(target).equivalent(key) == review
    assert find_mutants(target).stale == ()

    (shop / "door.py").write_text("def wide(a):\n    log(a < 1)\n    return a < 3\n")
    changed = find_mutants(target)

    assert changed.equivalent(key) is None
    assert changed.stale == (key,)


def test_unknown_keys_of_a_target_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "target.toml"
    path.write_text('packages = ["a"]\nskips = 1\n')

    with pytest.raises(UsageError, match="skips"):
        read_target(path)


def test_an_unknown_mutant_is_refused(shop: Path) -> None:
    with pytest.raises(UsageError, match="none of this name"):
        find_mutants(Target(packages=("shop",))).mutant("shop.door:wide:bound-shifted:9")
    with pytest.raises(UsageError, match="none of this name"):
        mutation_named("shop.door:wide:bound-shifted:9")


def test_a_sample_is_spread_over_packages_functions_and_rules(reference: Sources) -> None:
    chosen = sample(list(reference.mutants.values()), 240, 1)
    packages = Counter(mutant.module.split(".")[3] for mutant in chosen)
    rules = Counter(mutant.rule for mutant in chosen)
    functions = Counter((mutant.module, mutant.function) for mutant in chosen)

    assert packages == dict.fromkeys(PACKAGES, 20)
    assert len(rules) >= 17
    assert max(rules.values()) <= 0.12 * 240
    assert len(functions) > 130


def test_a_sample_depends_on_its_seed_alone(reference: Sources) -> None:
    mutants = list(reference.mutants.values())

    assert sample(mutants, 60, 1) == sample(mutants[::-1], 60, 1)
    assert sample(mutants, 60, 1) == sample(mutants, 240, 1)[:60]
    assert sample(mutants, 60, 1) != sample(mutants, 60, 2)


def test_a_sample_of_more_than_there_are_has_each_once(shop: Path) -> None:
    mutants = list(find_mutants(Target(packages=("shop",))).mutants.values())

    assert sorted(sample(mutants, 99, 1), key=lambda m: m.key) == sorted(
        mutants, key=lambda m: m.key
    )


def test_every_mutant_of_the_reference_store_can_be_compiled(reference: Sources) -> None:
    for mutant in sample(list(reference.mutants.values()), 600, 1):
        compile(mutant.applied(reference.sources[mutant.module][0]), mutant.key, "exec")


def test_every_review_of_the_reference_store_holds(reference: Sources) -> None:
    assert reference.stale == ()
    for review in reference.equivalents.values():
        assert len(review.reason) > 20, review.mutant


def test_a_node_gets_a_copy_of_its_package_with_the_mutant(shop: Path, tmp_path: Path) -> None:
    trees = (
        PythonTree(source=str(tmp_path / "elsewhere"), package="shops"),
        PythonTree(source=str(shop), package="shop"),
    )
    program = Program(argv=("python3",), python=trees)
    before = {path: path.read_bytes() for path in shop.rglob("*.py")}
    for key, name, line in (
        ("shop.till.sums:total:sign-flipped:1", "till/sums.py", "return (a) + (b)"),
        ("shop.door:wide:bound-shifted:2", "door.py", "return (a) <= (2)"),
    ):
        altered = mutation_named(key).altered(program, tmp_path / name)
        again = mutation_named(key).altered(program, tmp_path / name)
        copy = Path(altered.python[1].source)

        assert altered == again
        assert altered.python[0] == trees[0]
        assert altered.python[1].package == "shop"
        assert line in (copy / name).read_text()
        changed = [
            path for path in before if (copy / path.relative_to(shop)).read_bytes() != before[path]
        ]
        assert changed == [shop / name]
    assert {path: path.read_bytes() for path in shop.rglob("*.py")} == before


def test_a_node_that_gets_no_such_package_is_refused(shop: Path, tmp_path: Path) -> None:
    tree = PythonTree(source=str(shop), package="shop.till")
    mutation = mutation_named("shop.door:wide:bound-shifted:2")

    with pytest.raises(UsageError, match=r"nodes get no such package \(they get shop.till\)"):
        mutation.altered(Program(argv=("x",), python=(tree,)), tmp_path)
