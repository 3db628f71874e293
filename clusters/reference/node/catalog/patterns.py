"""Regular expressions of users, at a cost that is bounded by their length.

The machine's ``re`` backtracks: ``(a+)+$`` takes time exponential in the text, nothing can stop it
from within one thread, and a limit in seconds would let two nodes come to different answers. So a
pattern is an automaton here (Thompson, 1968), whose states are followed all at once: no more than
states times characters, counted in ``Steps``, and the same count on every node. What needs
backtracking (back references, look-around) is not accepted.

Accepted: ``.``, ``[a-z]``, ``[^a-z]``, ``\\d \\w \\s`` and their opposites, ``\\n \\t``, ``^ $``,
``( )``, ``(?: )``, ``|``, ``* + ?``, ``{m}``, ``{m,}``, ``{m,n}``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import msgspec

MAX_PATTERN = 256  # characters
MAX_STATES = 512  # of the automaton: what counted repetition may unfold to
# Of one decision about one node: some 30 ms. A pattern is followed through the 64 attributes of 256
# characters that a node may have; a filter that costs more holds no leader up for long.
MAX_STEPS = 100_000
MAX_GROUPS = 32  # one within the other

Test = Callable[[str], bool]


class PatternError(ValueError):
    """A text that is no pattern, or one that is too large."""


class TooManySteps(Exception):
    """A decision has used its steps up."""


class Steps:
    """What one decision may still cost."""

    def __init__(self, limit: int = MAX_STEPS) -> None:
        self.left = limit

    def spend(self, steps: int = 1) -> None:
        """Take ``steps``. Raises ``TooManySteps``."""
        self.left -= steps
        if self.left < 0:
            raise TooManySteps


class State(msgspec.Struct):
    """A state of the automaton: it reads a character that passes ``test``, or none (``test`` is
    ``None``), and goes on to ``next``. ``anchor``: only there may it be passed.
    """

    next: tuple[int, ...]
    test: Test | None = None
    anchor: str = ""


class Pattern:
    """A pattern that is ready to be matched."""

    flags = 0  # that of ``re``: JSONPath's literals show them

    def __init__(self, pattern: str) -> None:
        """Raises ``PatternError``."""
        self.pattern = pattern
        self._states, self._start, self._final = _Compiler(pattern).compile()

    def search(self, text: str, steps: Steps) -> bool:
        """Whether the pattern matches anywhere in ``text``. Raises ``TooManySteps``."""
        return self._run(text, steps, anywhere=True)

    def fullmatch(self, text: str, steps: Steps) -> bool:
        """Whether the pattern matches all of ``text``. Raises ``TooManySteps``."""
        return self._run(text, steps, anywhere=False)

    def _run(self, text: str, steps: Steps, *, anywhere: bool) -> bool:
        current = self._closure((self._start,), 0, text, steps)
        for at, character in enumerate(text):
            if anywhere and self._final in current:
                return True
            steps.spend(len(current) + 1)
            follow = [n for s in current for n in self._read(s, character)]
            if anywhere:
                follow.append(self._start)
            current = self._closure(follow, at + 1, text, steps)
        return self._final in current

    def _read(self, state: int, character: str) -> tuple[int, ...]:
        test = self._states[state].test
        return self._states[state].next if test is not None and test(character) else ()

    def _closure(self, states: Iterable[int], at: int, text: str, steps: Steps) -> set[int]:
        """``states`` and all that is reached from them at ``at`` without reading."""
        seen: set[int] = set()
        waiting = list(states)
        while waiting:
            state = waiting.pop()
            if state in seen:
                continue
            seen.add(state)
            steps.spend()
            held = self._states[state]
            if held.test is None and _stands(held.anchor, at, text):
                waiting.extend(held.next)
        return seen


@lru_cache(maxsize=256)
def compiled(pattern: str) -> Pattern:
    """The ``Pattern`` of a text. Raises ``PatternError``."""
    return Pattern(pattern)


def _stands(anchor: str, at: int, text: str) -> bool:
    if anchor == "^":
        return at == 0
    return anchor != "$" or at == len(text)


_CLASSES: dict[str, Test] = {
    "d": str.isdecimal,
    "w": lambda c: c.isalnum() or c == "_",
    "s": str.isspace,
}
_CONTROLS = {"n": "\n", "t": "\t", "r": "\r"}
# A part of the automaton, with one state to enter and one to leave it by.
_Part = tuple[int, int]


class _Compiler:
    """Recursive descent: alternatives of sequences of repeated atoms."""

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_PATTERN:
            raise PatternError(f"a pattern has at most {MAX_PATTERN} characters")
        self._text, self._at, self._depth = pattern, 0, 0
        self._states: list[State] = []

    def compile(self) -> tuple[tuple[State, ...], int, int]:
        start, final = self._alternatives()
        if self._at < len(self._text):
            raise self._wrong("')' without '('")
        return tuple(self._states), start, final

    # -- the text

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _take(self) -> str:
        taken = self._peek()
        if not taken:
            raise self._wrong("it ends too early")
        self._at += 1
        return taken

    def _eat(self, wanted: str) -> bool:
        if not self._text.startswith(wanted, self._at):
            return False
        self._at += len(wanted)
        return True

    def _wrong(self, what: str) -> PatternError:
        return PatternError(f"pattern /{self._text}/, character {self._at + 1}: {what}")

    # -- the automaton

    def _state(self, *following: int, test: Test | None = None, anchor: str = "") -> int:
        if len(self._states) >= MAX_STATES:
            raise PatternError(f"pattern /{self._text}/ unfolds to over {MAX_STATES} states")
        self._states.append(State(next=following, test=test, anchor=anchor))
        return len(self._states) - 1

    def _lead(self, state: int, *following: int) -> None:
        self._states[state].next += following

    def _single(self, test: Test | None = None, anchor: str = "") -> _Part:
        end = self._state()
        return self._state(end, test=test, anchor=anchor), end

    # -- the grammar

    def _alternatives(self) -> _Part:
        parts = [self._sequence()]
        while self._eat("|"):
            parts.append(self._sequence())
        if len(parts) == 1:
            return parts[0]
        end = self._state()
        for _, last in parts:
            self._lead(last, end)
        return self._state(*(first for first, _ in parts)), end

    def _sequence(self) -> _Part:
        start = end = self._state()
        while self._peek() not in ("", "|", ")"):
            first, last = self._repeated()
            self._lead(end, first)
            end = last
        return start, end

    def _repeated(self) -> _Part:
        began = self._at
        part = self._atom()
        counts = self._counts()
        if counts is None:
            return part
        ended = self._at
        if self._counts() is not None:
            raise self._wrong("a repetition of a repetition (group it)")
        least, most = counts
        start, out = self._state(), self._state()
        end = start
        for number in range(max(least, 1) if most is None else most):
            # Each time that the atom may occur is a copy of its own, compiled from the text again.
            first, last = part if number == 0 else self._copy(began)
            if number >= least:
                self._lead(end, out)
            self._lead(end, first)
            end = last
        if most is None:
            self._lead(last, first)
        self._lead(end, out)
        self._at = ended
        return start, out

    def _copy(self, began: int) -> _Part:
        self._at = began
        return self._atom()

    def _counts(self) -> tuple[int, int | None] | None:
        for sign, counts in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._eat(sign):
                return counts
        return self._braces() if self._eat("{") else None

    def _braces(self) -> tuple[int, int | None]:
        least = self._number()
        if least is None:
            raise self._wrong("'{' without a number")
        most: int | None = least
        if self._eat(","):
            most = self._number()
        if not self._eat("}"):
            raise self._wrong("'{' without '}'")
        if most is not None and most < least:
            raise self._wrong(f"at least {least} times and at most {most}")
        return least, most

    def _number(self) -> int | None:
        digits = ""
        while self._peek() in tuple("0123456789"):
            digits += self._take()
        if len(digits) > 4:
            raise self._wrong("a repetition of over 9999 times")
        return int(digits) if digits else None

    def _atom(self) -> _Part:
        taken = self._take()
        if taken == "(":
            return self._group()
        if taken == "[":
            return self._single(self._set())
        if taken == ".":
            return self._single(lambda c: c != "\n")
        if taken in ("^", "$"):
            return self._single(anchor=taken)
        if taken == "\\":
            return self._single(self._escaped())
        if taken in tuple("*+?{"):
            raise self._wrong(f"{taken!r} repeats nothing")
        return self._single(_is(taken))

    def _group(self) -> _Part:
        self._depth += 1
        if self._depth > MAX_GROUPS:
            raise self._wrong(f"over {MAX_GROUPS} groups in one another")
        if self._eat("?") and not self._eat(":"):
            raise self._wrong("look-around, names and flags are not supported")
        part = self._alternatives()
        if not self._eat(")"):
            raise self._wrong("'(' without ')'")
        self._depth -= 1
        return part

    def _escaped(self) -> Test:
        taken = self._take()
        if taken.lower() in _CLASSES:
            test = _CLASSES[taken.lower()]
            return test if taken.islower() else _none_of((test,))
        return _is(self._literal(taken))

    def _literal(self, taken: str) -> str:
        if taken in _CONTROLS:
            return _CONTROLS[taken]
        if taken.isalnum():
            raise self._wrong(f"'\\{taken}' is not supported")
        return taken

    def _set(self) -> Test:
        opposite = self._eat("^")
        tests: list[Test] = []
        while not tests or self._peek() != "]":
            tests.append(self._range())
        self._take()
        return _none_of(tests) if opposite else _any_of(tests)

    def _range(self) -> Test:
        low = self._take()
        if low == "\\":
            escaped = self._take()
            if escaped.lower() in _CLASSES:
                self._at -= 1
                return self._escaped()
            low = self._literal(escaped)
        if self._peek() != "-" or self._text[self._at + 1 : self._at + 2] in ("", "]"):
            return _is(low)
        self._take()
        high = self._take()
        if high == "\\":
            high = self._literal(self._take())
        if high < low:
            raise self._wrong(f"the range {low}-{high} is empty")
        return lambda c: low <= c <= high


def _is(character: str) -> Test:
    return lambda c: c == character


def _any_of(tests: Iterable[Test]) -> Test:
    kept = tuple(tests)
    return lambda c: any(test(c) for test in kept)


def _none_of(tests: Iterable[Test]) -> Test:
    kept = tuple(tests)
    return lambda c: not any(test(c) for test in kept)
