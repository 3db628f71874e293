"""An exact reader of EDN (extensible data notation), one form at a time, from hostile text.

=================================== =================================================
EDN                                 Python
=================================== =================================================
``nil``, ``true``, ``"text"``       ``None``, ``bool``, ``str``
``12``, ``-3``, ``7N``              ``int`` where 64 bits hold it, else ``Number``
``1.5``, ``2/3``, ``1e9``           ``Number``: kept as text, refused where it would count
``:name``, ``name``, ``\\c``         ``Keyword`` (without colon), ``Symbol``, ``Char``
``[..]``, ``(..)``                  ``list``
``#{..}``                           ``Unordered``: kept, refused where its order would count
``{..}``                            ``dict``; keys that Python can't hash become tuples
``#tag "text"``, ``#tag 5``         ``Tagged``: never equal to the form without its tag
``#tag [..]``, ``#tag {..}``        ``TaggedCollection``, likewise; also a record (``fields_of``)
``#_ form``                         nothing
=================================== =================================================

Nothing is executed and no tag has a meaning. It does not recurse.
"""

from __future__ import annotations

import re
from typing import Any

import attrs

from harness.history.records import INT64_MAX, INT64_MIN
from harness.importers.jepsen.import_limits import (
    MAX_DEPTH,
    MAX_DISCARDS,
    MAX_TOKENS,
)


class Keyword(str):
    """``:name``, without its colon."""

    __slots__ = ()


class Symbol(str):
    """A bare name."""

    __slots__ = ()


class Char(str):
    """One character."""

    __slots__ = ()


class Number(str):
    """The text of a number that is not an integer of 64 bits."""

    __slots__ = ()


class Tagged(str):
    """The text of a tag and of the form behind it, which is no collection: ``#uuid "a"``."""

    __slots__ = ()


@attrs.frozen(repr=False)
class TaggedCollection:
    """A list or a map, and the tags before it as their text: ``#my/point [1 2]``."""

    tags: str
    form: Any

    def __repr__(self) -> str:
        return f"{self.tags} {self.form!r}"


class Unordered(tuple[Any, ...]):
    """The elements of a set, in the order in which the text happens to have them."""

    __slots__ = ()


class Incomplete(Exception):
    """The text ends within a form; with more text it may be one."""


class Notation(Exception):
    """The text is no valid EDN or JSON: ``reason``, at character ``at``."""

    def __init__(self, at: int, reason: str) -> None:
        super().__init__(reason)
        self.at, self.reason = at, reason


class _Skipped:
    """The result of ``#_``: no form."""


SKIPPED = _Skipped()
DISCARD = "#_"

# Possessive wherever it repeats, so that hostile text can't make it search back and forth; and of
# single characters alone: before Python 3.11.5 possessive groups match what they should not.
_TOKEN = re.compile(
    r"""
      (?P<blank>[\ \t\r\n\f,]++|;[^\n]*+)
    | (?P<integers>[0-9][0-9\ \t\r\n,]{15,1023}+)
    | (?P<string>"[^"\\]*+"?)
    | (?P<open>[\[({]|\#\{)
    | (?P<close>[\])}])
    | (?P<discard>\#_)
    | (?P<symbolic>\#\#(?:Inf|-Inf|NaN))
    | (?P<tag>\#[A-Za-z][\w.*+!?$%&=<>/-]*+)
    | (?P<char>\\(?:[a-zA-Z0-9]++|.))
    | (?P<atom>[\w.*+!?$%&=<>/:\#'-]++)
    """,
    re.VERBOSE | re.DOTALL,
)
_ATOM = re.compile(r"[\w.*+!?$%&=<>/:\#'-]++")
# Of digits and blanks, what ``_atom`` has to look at: too long for 64 bits, or no number.
_UNUSUAL = re.compile(r"[0-9]{19}|(?<![0-9])0[0-9]")
_STRING_MARK = re.compile(r'["\\]')
_CLOSER = {"[": "]", "(": ")", "{": "}", "#{": "}"}
_INTEGER = re.compile(r"[+-]?(?:0|[1-9][0-9]*)N?")
_NUMBER = re.compile(r"[+-]?[0-9]+(?:/[0-9]+|(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?M?)")
_NUMERIC = re.compile(r"[+-]?[0-9]")
_KEYWORD = re.compile(r":[^:/0-9][^:/]*(?::[^:/]+)*(?:/[^:/]+(?::[^:/]+)*)?|:/")
_SYMBOL = re.compile(r"[^:#'0-9].*", re.DOTALL)
# The name of a class in its package; a tag of a reader has none, or a slash.
_RECORD = re.compile(r"#[A-Za-z][\w$-]*(?:\.[A-Za-z_][\w$-]*)+")
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|[0-7]{1,3}|.)", re.DOTALL)
_ESCAPED = {"t": "\t", "r": "\r", "n": "\n", "b": "\b", "f": "\f", "\\": "\\", '"': '"'}
_CHARS = {
    "newline": "\n",
    "space": " ",
    "tab": "\t",
    "return": "\r",
    "formfeed": "\f",
    "backspace": "\b",
}
_CONSTANTS = {"nil": None, "true": True, "false": False}
_NOT_ZERO = "123456789"
_LONGEST_INTEGER = 20  # digits and sign of a 64-bit integer
_NUMBER_SHOWN = 40
_MAY_GO_ON = frozenset({"atom", "char", "tag", "discard", "blank"})  # at the end of the text
_SHORTEST_TAIL = 16  # characters that a token at the end of the text may still grow to


@attrs.define
class _Frame:
    """An open bracket: its kind, its items so far, and prefixes that wait for a form."""

    kind: str
    at: int
    items: list[Any] = attrs.field(factory=list)
    prefixes: list[str] = attrs.field(factory=list)


@attrs.define
class Partial:
    """How far a form was read that its text cuts off: open brackets, and the character to go on
    at. Without it a long operation would be read again with every block of its text.
    """

    at: int
    stack: list[_Frame]
    discards: int = 0
    tokens: int = 0

    @classmethod
    def from_start(cls, at: int) -> Partial:
        """Nothing read of a form that begins at or after character ``at``."""
        return cls(at=at, stack=[_Frame("", at)])

    def moved(self, back: int) -> Partial:
        """The same in a text that lacks the first ``back`` characters of this one."""
        for frame in self.stack:
            frame.at -= back
        return attrs.evolve(self, at=self.at - back)


def resume_form(text: str, partial: Partial, *, final: bool) -> tuple[Any, int]:
    """The next form from where ``partial`` stands, and where it ends; ``SKIPPED`` for ``#_ form``.

    ``final`` says that no more text will come. Raises ``Incomplete``, also at the end of the text
    without a form, and ``Notation``; at ``Incomplete`` ``partial`` says how far it came.
    """
    stack, at = partial.stack, partial.at
    match = _TOKEN.match
    while True:
        token = match(text, at)
        partial.at = at
        if token is None:
            raise _unreadable(text, at, final)
        partial.tokens += 1
        if partial.tokens > MAX_TOKENS:
            what = "words, brackets and blanks between them"
            raise Notation(at, f"expected at most {MAX_TOKENS} {what} in one operation, found more")
        kind, begun, at = token.lastgroup, at, token.end()
        if kind == "integers":
            whole = _whole_integers(token.group())
            if whole and len(stack) > 1 and not stack[-1].prefixes:
                stack[-1].items += map(int, whole.replace(",", " ").split())
                at = begun + len(whole)
                continue
            kind, at = "atom", begun + len(_atom_at(text, begun))
        elif kind == "string":
            at = _string_end(text, at, begun)
        if at == len(text) and not final and kind in _MAY_GO_ON:
            raise Incomplete
        if kind == "blank":
            continue
        if kind == "open":
            if len(stack) > MAX_DEPTH:
                raise Notation(begun, f"brackets are nested more than {MAX_DEPTH} deep")
            stack.append(_Frame(token.group(), begun))
            continue
        if kind in ("discard", "tag"):
            _prefix(partial, kind, token.group(), begun)
            continue
        if kind == "atom":
            value = _atom(text[begun:at], begun)
        else:
            value = (
                _closed(stack, token.group(), begun)
                if kind == "close"
                else _value(kind, text[begun:at], begun)
            )
        if stack[-1].prefixes:
            value = _prefixed(stack[-1], value)
        if len(stack) == 1 and not stack[0].prefixes:
            return value, at
        if value is not SKIPPED:
            stack[-1].items.append(value)


def _prefix(partial: Partial, kind: str, text: str, at: int) -> None:
    """Remember a tag or a discard for the form that it stands before."""
    prefixes = partial.stack[-1].prefixes
    if len(prefixes) >= MAX_DEPTH:
        raise Notation(at, f"more than {MAX_DEPTH} tags in a row")
    partial.discards += kind == "discard"
    if partial.discards > MAX_DISCARDS:
        raise Notation(at, f"more than {MAX_DISCARDS} discarded forms (#_) in one operation")
    prefixes.append(text)


def _prefixed(frame: _Frame, value: Any) -> Any:  # noqa: ANN401 (EDN holds anything)
    """``value`` after the tags and discards that stand before it."""
    while frame.prefixes:
        prefix = frame.prefixes.pop()
        if prefix == DISCARD:
            return SKIPPED
        value = tagged(prefix, value)
    return value


def tagged(tag: str, value: Any) -> Any:  # noqa: ANN401
    """``value`` behind ``tag``. What is refused anyway needs none."""
    if isinstance(value, Number | Unordered):
        return value
    if isinstance(value, TaggedCollection):
        # One for all of its tags, so that forms are nested no deeper than brackets are.
        return TaggedCollection(f"{tag} {value.tags}", value.form)
    if isinstance(value, list | dict):
        return TaggedCollection(tag, value)
    return Tagged(f"{tag} {_literal(value)}")


def fields_of(form: object) -> object:
    """The map of a record, as Clojure prints one (``#jepsen.history.Op{:index 0}``): its meaning is
    that of its fields. Any other form is returned as it is.
    """
    if isinstance(form, TaggedCollection) and isinstance(form.form, dict):
        return form.form if _RECORD.fullmatch(form.tags) else form
    return form


def _literal(value: object) -> str:
    """A form that is no collection as its text, different for different forms."""
    match value:
        case None:
            return "nil"
        case bool():
            return "true" if value else "false"
        case Keyword():
            return f":{value}"
        case Char():
            return f"\\{value}"
        case Symbol() | Tagged():
            return str(value)
        case str():
            return f'"{value}"'
        case _:
            return str(value)


def _unreadable(text: str, at: int, final: bool) -> Exception:
    if at == len(text):
        return Incomplete()
    if not final and len(text) - at < _SHORTEST_TAIL:
        return Incomplete()
    return Notation(at, f"{text[at]!r} begins nothing that EDN knows")


def _closed(stack: list[_Frame], closer: str, at: int) -> Any:  # noqa: ANN401
    """The collection that ends here; its frame is gone then."""
    frame = stack.pop()
    if not stack:
        raise Notation(at, f"{closer!r} closes nothing")
    expected = _CLOSER[frame.kind]
    if closer != expected:
        raise Notation(at, f"expected {expected!r}, found {closer!r}")
    if frame.prefixes:
        raise Notation(at, f"a tag or #_ stands before {closer!r}, not before a form")
    if frame.kind == "{":
        return _map(frame)
    return Unordered(map(hashable, frame.items)) if frame.kind == "#{" else frame.items


def _map(frame: _Frame) -> dict[Any, Any]:
    if len(frame.items) % 2:
        raise Notation(frame.at, "a map with a key that has no value")
    found: dict[Any, Any] = {}
    pairs = iter(frame.items)
    for key, value in zip(pairs, pairs, strict=True):
        name = hashable(key)
        # ``:value`` and ``"value"`` too, two keys in EDN: here they are one, and say two things.
        if name in found:
            raise Notation(frame.at, f"the key {shown(key)} stands twice in one map")
        found[name] = value
    return found


def hashable(value: Any) -> Any:  # noqa: ANN401
    """``value`` with tuples for lists and maps."""
    if isinstance(value, list):
        return tuple(map(hashable, value))  # as deep as ``MAX_DEPTH`` at most
    if isinstance(value, dict):
        return tuple((key, hashable(held)) for key, held in value.items())
    if isinstance(value, TaggedCollection):
        return TaggedCollection(value.tags, hashable(value.form))
    return value


def _whole_integers(run: str) -> str:
    """The beginning of ``run``, digits and blanks, that is integers of 64 bits with a blank behind
    each.
    """
    unusual = _UNUSUAL.search(run)
    return (run[: unusual.start()] if unusual else run).rstrip("0123456789")


def _string_end(text: str, at: int, begun: int) -> int:
    """The end of the string that begins at ``begun`` and is plain up to ``at``. Raises
    ``Incomplete``: nothing tells how far away the end of an open string is.
    """
    if at - begun > 1 and text[at - 1] == '"':
        return at
    while mark := _STRING_MARK.search(text, at):
        if mark.group() == '"':
            return mark.end()
        at = mark.end() + 1  # behind the character that the backslash is for
    raise Incomplete


def _value(kind: str | None, text: str, at: int) -> Any:  # noqa: ANN401
    match kind:
        case "string":
            return _string(text, at)
        case "char":
            return _char(text[1:], at)
        case _:
            return Number(text)  # symbolic


def _string(text: str, at: int) -> str:
    if "\\" not in text:
        return text[1:-1]

    def plain(escape: re.Match[str]) -> str:
        code = escape.group(1)
        if code in _ESCAPED:
            return _ESCAPED[code]
        if code[0] == "u" and len(code) > 1:
            return chr(int(code[1:], 16))
        if code[0] in "01234567":
            return chr(int(code, 8))
        raise Notation(at + escape.start(), f"a string with the unknown escape \\{code}")

    return _paired(_ESCAPE.sub(plain, text[1:-1]))


def _paired(text: str) -> str:
    """Surrogate pairs, which EDN writes as two escapes, as the characters they stand for."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _char(name: str, at: int) -> Char:
    if len(name) == 1:
        return Char(name)
    if name in _CHARS:
        return Char(_CHARS[name])
    if re.fullmatch(r"u[0-9a-fA-F]{4}", name):
        return Char(_paired(chr(int(name[1:], 16))))
    if re.fullmatch(r"o[0-3]?[0-7]{1,2}", name):
        return Char(chr(int(name[1:], 8)))
    raise Notation(at, f"no character is called {shown(name)}")


def _atom_at(text: str, at: int) -> str:
    found = _ATOM.match(text, at)
    return found.group() if found else ""


def _atom(text: str, at: int) -> Any:  # noqa: ANN401
    if (
        text[0] in _NOT_ZERO
        and len(text) < _LONGEST_INTEGER - 1
        and text.isascii()  # ``isdigit`` takes the digits of every script
        and text.isdigit()
    ):
        return int(text)  # nearly every atom
    if _NUMERIC.match(text):
        return _number(text, at)
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if text[0] == ":":
        if not _KEYWORD.fullmatch(text):
            raise Notation(at, f"{shown(text)} is no keyword")
        return Keyword(text[1:])
    if not _SYMBOL.fullmatch(text):
        raise Notation(at, f"{shown(text)} is nothing that EDN knows")
    return Symbol(text)


def _number(text: str, at: int) -> int | Number:
    if _INTEGER.fullmatch(text):
        # Before it is converted, which takes time with the square of the digits.
        if len(text) <= _LONGEST_INTEGER + 1:
            number = int(text.rstrip("N"))
            if INT64_MIN <= number <= INT64_MAX:
                return number
    # Clojure reads a leading zero as octal; EDN has no such number.
    elif not _NUMBER.fullmatch(text) or re.match(r"[+-]?0[0-9]", text):
        raise Notation(at, f"{shown(text)} is no number")
    return Number(shortened(text))


def shortened(digits: str) -> str:
    """A number of any length in a few characters."""
    cut = len(digits) - _NUMBER_SHOWN
    return f"{digits[:_NUMBER_SHOWN]}... ({cut} more characters)" if cut > 0 else digits


def shown(value: Any) -> str:  # noqa: ANN401
    """A short text of any form, for an error."""
    text = str(value) if isinstance(value, str) else repr(value)
    return repr(text[:_NUMBER_SHOWN])
