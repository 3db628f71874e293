"""Mutants by rule: what each rule changes in small sources, and what it leaves alone."""

from __future__ import annotations

import ast
import re
import textwrap
from collections import Counter

import pytest

from harness.mutation.rules import Mutant, mutants_of, touching


def of(body: str, head: str = "def f(a, b):") -> list[Mutant]:
    """The mutants of a function with this ``body``, each a program that can be compiled."""
    source = f"{head}\n{textwrap.indent(textwrap.dedent(body), '    ')}\n"
    found = list(mutants_of("m", source))
    for mutant in found:
        assert ast.dump(ast.parse(mutant.applied(source))) != ast.dump(ast.parse(source))
    return found


def changes(rule: str, body: str, head: str = "def f(a, b):") -> list[str]:
    return [mutant.change for mutant in of(body, head) if mutant.rule == rule]


@pytest.mark.parametrize(
    ("rule", "body", "expected"),
    [
        ("condition-always", "if a:\n    b()", ["a -> True"]),
        ("condition-never", "if a:\n    b()", ["a -> False"]),
        ("condition-never", "while a:\n    b()", ["a -> False"]),
        ("condition-always", "return b if a else 0", ["a -> True"]),
        ("negated", "if a:\n    b()", ["a -> not (a)"]),
        ("negated", "return not a", ["not a -> (a)"]),
        ("negated", "return a == b", ["a == b -> (a) != (b)"]),
        ("negated", "return a in b", ["a in b -> (a) not in (b)"]),
        ("negated", "return a is None", ["a is None -> (a) is not (None)"]),
        ("negated", "return a < b", ["a < b -> (not (a < b))"]),
        ("negated", "return 0 < a < b", ["0 < a < b -> (not (0 < a < b))"]),
        ("negated", "return [x for x in a if x]", ["x -> not (x)"]),
        ("negated", "b(key=a == 1)", ["a == 1 -> (a) != (1)"]),
        ("bound-shifted", "return a < b", ["a < b -> (a) <= (b)"]),
        ("bound-shifted", "return a >= b", ["a >= b -> (a) > (b)"]),
        ("operand-dropped", "return a and b", ["a and b -> ((b))", "a and b -> ((a))"]),
        ("and-or", "return a or b", ["a or b -> ((a) and (b))"]),
        ("off-by-one", "return a + 1", ["a + 1 -> (a)"]),
        ("off-by-one", "return a[b:]", ["b -> (b) + 1"]),
        ("sign-flipped", "return a - b", ["a - b -> (a) + (b)"]),
        ("extreme-swapped", "return max(a, b)", ["max -> min"]),
        ("extreme-swapped", "return any(a)", ["any -> all"]),
        ("truth-flipped", "return a(True)", ["True -> False"]),
        ("call-removed", "a.append(b)", ["a.append(b) -> pass"]),
        ("sync-removed", "a.flush()", ["a.flush() -> pass"]),
        ("sync-removed", "a.write(b, fsync=self.sync)", ["self.sync -> False"]),
        ("assignment-removed", "a.x = b", ["a.x = b -> pass"]),
        ("assignment-removed", "a += b", ["a += b -> pass"]),
        ("assignment-removed", "del a[b]", ["del a[b] -> pass"]),
        ("raise-removed", "raise ValueError(a)", ["raise ValueError(a) -> pass"]),
        ("continue-removed", "for x in a:\n    continue", ["continue -> pass"]),
        ("break-removed", "for x in a:\n    break", ["break -> pass"]),
        ("statements-swapped", "a.x = b()\na.y()", ["a.x = b() a.y() -> a.y() a.x = b()"]),
        ("statements-swapped", "a.x(b)\nb = 0", ["a.x(b) b = 0 -> b = 0 a.x(b)"]),
        ("statements-swapped", "a.x()\nc = a.y", ["a.x() c = a.y -> c = a.y a.x()"]),
    ],
)
def test_each_rule_changes_what_it_names(rule: str, body: str, expected: list[str]) -> None:
    assert changes(rule, body) == expected


@pytest.mark.parametrize(
    ("rule", "body"),
    [
        ("condition-always", "while a:\n    b()"),  # a loop without an end, which any drill sees
        ("negated", "return a or b"),  # a value and its default
        ("negated", "return a + b"),
        ("bound-shifted", "return a == b"),
        ("off-by-one", "return a + 2"),
        ("sign-flipped", "return a + 'text'"),
        ("sign-flipped", "return f'{a}' + b"),
        ("extreme-swapped", "return a.max(b)"),
        ("truth-flipped", "return a(1)"),
        ("sync-removed", "a.write(b, fsync=True)"),  # flipped already
        ("call-removed", "c = a(b)"),  # the name would be missing at once
        ("assignment-removed", "c = b"),
        ("statements-swapped", "c = b()\na(c)"),  # the same
        ("statements-swapped", "a.x = b\na.y = b"),  # neither sees the other
        ("statements-swapped", "c = max(a.x, len(b))\nd = a.y"),
        ("statements-swapped", "a.x()\nc, d = [], b"),
        ("statements-swapped", "c = 0\na.x()"),
        ("statements-swapped", "return a()\nb()"),
        ("operand-dropped", "return a < b"),
    ],
)
def test_no_rule_goes_further(rule: str, body: str) -> None:
    assert changes(rule, body) == []


@pytest.mark.parametrize(
    "body",
    [
        '"""A contract: a == b."""',
        "raise Refused(f'{a} and {a == b}')",
        "assert a == b",
        "return f'{a == b}'",
        "x: a[1:] = None",
    ],
)
def test_what_people_read_is_left_alone(body: str) -> None:
    assert {mutant.rule for mutant in of(body)} <= {"raise-removed"}


def test_repr_defaults_and_the_code_outside_of_functions_are_left_alone() -> None:
    source = "X = 1 < 2\nclass A:\n    y = not X\n    def __repr__(self):\n        return not X\n"

    assert mutants_of("m", source) == ()
    assert mutants_of("m", "def f(a=not 1):\n    g: not 1\n") == ()
    assert mutants_of("m", source.replace("__repr__", "other"))


def test_awaits_and_locks_are_removed() -> None:
    head = "async def f(self, a):"
    locked = "async with self.lock:\n    await a.run()\n"

    assert changes("await-removed", locked, head) == ["await a.run() -> pass"]
    assert changes("guard-removed", locked, head) == ["async with self.lock -> if True"]
    assert changes("sync-removed", "await a.made_durable()", head)
    assert changes("guard-removed", "async with a as b:\n    b()", head) == []


def test_what_is_not_changed_stays_byte_for_byte() -> None:
    source = (
        "def f(a):  # ä: why\n    # before\n    if a < 1:  # ü\n        return 'ö'\n    return  0\n"
    )
    (mutant,) = [m for m in mutants_of("m", source) if m.rule == "bound-shifted"]

    assert mutant.applied(source) == source.replace("a < 1", "(a) <= (1)")
    assert [line[0] for line in mutant.diff(source, "m.py").splitlines()].count(
        "-"
    ) == 2  # with ---
    assert mutant.lines == (3, 3)


def test_swapped_statements_keep_the_comment_between_them() -> None:
    source = "def f(a):\n    a.x()\n    # why\n    a.y = (\n        1\n    )\n"
    (mutant,) = [m for m in mutants_of("m", source) if m.rule == "statements-swapped"]

    assert mutant.applied(source) == (
        "def f(a):\n    a.y = (\n        1\n    )\n    # why\n    a.x()\n"
    )


def test_keys_survive_changes_outside_of_their_function() -> None:
    source = "class A:\n    def f(self, a):\n        if a:\n            return a < 1\n"
    longer = (
        "import x\n\ndef g(a):\n    return a < 2\n\n" + source + "\n    def h(self): return 1<2\n"
    )
    before = {mutant.key: mutant.change for mutant in mutants_of("p.m", source)}
    after = {mutant.key: mutant.change for mutant in mutants_of("p.m", longer)}

    assert before.items() <= after.items()
    assert "p.m:A.f:bound-shifted:1" in before


def test_keys_are_unique_and_number_from_one() -> None:
    found = of("if a < 1:\n    return a < 2 and b < 3\nreturn a < 4")
    numbers = Counter(mutant.rule for mutant in found)

    assert len({mutant.key for mutant in found}) == len(found)
    for rule, count in numbers.items():
        assert [m.number for m in found if m.rule == rule] == list(range(1, count + 1))


def test_calls_can_be_left_alone_with_the_conditions_that_they_are_part_of() -> None:
    source = (
        "def f(a):\n    if planted('x') and a < 1:\n        a.log(a + 1)\n        return 2\n"
        "    return a > 2\n"
    )
    mutants = mutants_of("m", source)
    left_alone = touching(mutants, source, re.compile(r"^planted$|\blog$"))
    rest = {mutant.change for mutant in mutants if mutant.key not in left_alone}

    assert rest == {
        "a < 1 -> (a) <= (1)",
        "a < 1 -> (not (a < 1))",
        "a > 2 -> (a) >= (2)",
        "a > 2 -> (not (a > 2))",
    }
    assert touching(mutants, source, re.compile("nothing")) == set()


def test_a_condition_for_calls_that_are_left_alone_is_left_alone() -> None:
    pattern = re.compile("^reached$")
    alone = "def f(a):\n    if a < 1:\n        reached('x')\n"
    for source, left in (
        (alone, 0),
        (alone + "    else:\n        a()\n", 5),
        (alone + "        a()\n", 5),
    ):
        mutants = mutants_of("m", source)
        rest = {mutant.key for mutant in mutants} - touching(mutants, source, pattern)
        assert len(rest) == left
