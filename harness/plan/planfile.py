"""From TOML text and overrides to validated structs, and errors that name the key.

Every problem is a ``PlanError`` with the dotted path of the key, the expected and the found value;
an unknown key comes with the nearest known one.
"""

from __future__ import annotations

import codecs
import copy
import difflib
import enum
import os
import re
import stat
import tomllib
import typing
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, TypeAlias, TypeVar

import msgspec

from harness.errors import PlanError
from harness.history.regular_files import open_regular

T = TypeVar("T")

MAX_PLAN_BYTES = 1 << 20  # a plan is written by people; ten thousand faults fit in this
MAX_DEPTH = 16  # tables and arrays within each other; a plan has three
# A TOML reader takes time and memory by the square of the parts of one key: 12,000 of them, 24 KB
# of text, took it 8 s and 500 MB.
MAX_KEY_PARTS = MAX_DEPTH
NESTED_MAX = 100  # brackets that stand open, before they are known to be some of TOML's
TOO_DEEP = "nested too deeply"
OF_64_BITS = "expected an integer from -2^63 to 2^63 - 1"
MAX_SHOWN = 60  # characters of a wrong value in a message
FORM = "form"  # the key of ``Meta.extra`` that says a pattern in words

# msgspec's errors carry the path and the expectation in their text alone.
_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"unknown field `(?P<key>.*)`", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<key>.*)`")
_STEP = re.compile(r"\.(?P<name>[^.\[]+)|\[(?P<index>\d*)(?:\.\.\.)?\]")
_TOML_AT = re.compile(r"^(?P<reason>.*) \(at (?P<where>.*)\)$", re.DOTALL)
_BRACKET = re.compile(r"[\[\]{}]")
_WHOLE = re.compile(r"(?<=\d)\.0\b")  # as plans have whole numbers
_TYPE_WORDS = {
    "object": "a table",
    "array": "an array",
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
}

# The parts of TOML text that tell where its keys are. Whatever is written in strings and comments
# is no key: a string that is not closed goes on to the end of its line or of the text, and one of
# several lines takes up to two quotes more than close it, as a TOML reader has it. Each alternative
# matches as it goes, whatever follows: nothing is matched twice.
_TOKEN = re.compile(
    r"""
      (?P<blank> [ \t]+ )
    | (?P<dot> \. )
    | \#[^\n]*
    | "{3} (?: [^"\\]+ | \\. | "(?!"") )* (?: "{3,5} | \\?\Z )
    | '{3} (?: [^']+ | '(?!'') )* (?: '{3,5} | \Z )
    | (?P<part> [A-Za-z0-9_-]+ | "(?: [^"\\\n]+ | \\. )*"? | '[^'\n]*'? )
    | [^"'\#A-Za-z0-9_\-. \t]+
    """,
    re.VERBOSE | re.DOTALL,
)

Step = str | int
_Place: TypeAlias = "tuple[_Place | None, Step]"


def read_text(path: Path) -> str:
    """The text of a plan file. Raises ``PlanError`` naming the file."""
    try:
        # What a link leads to is read too, but nothing that never ends, or waits for a writer.
        # A pipe that was handed to this process by that very name is its caller's own.
        with (
            path.open("rb")
            if _is_handed(path)
            else open_regular(Path(os.path.realpath(path))) as file
        ):
            # One byte more tells a file that is too long, without reading all of it.
            data = file.read(MAX_PLAN_BYTES + 1)
    except OSError as error:
        raise PlanError("", f"{path}: {error.strerror or error}") from error
    if len(data) > MAX_PLAN_BYTES:
        raise PlanError("", f"{path}: a plan has at most {MAX_PLAN_BYTES} bytes")
    data = data.removeprefix(codecs.BOM_UTF8)  # some editors put it there, and TOML knows none
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise PlanError("", f"{path}: line {line}: not UTF-8 text") from error


def _is_handed(path: Path) -> bool:
    return path.is_relative_to("/dev/fd") or path == Path("/dev/stdin")


def is_read_once(path: Path) -> bool:
    """Whether a plan comes through a pipe, of which nothing is left once it is read."""
    try:
        return _is_handed(path) and not stat.S_ISREG(path.stat().st_mode)
    except OSError:
        return False


def read_table(path: Path, source: str = "") -> dict[str, Any]:
    """The tables of a plan file, which messages call ``source``, or by its path. Raises
    ``PlanError``.
    """
    return parse(read_text(path), source or str(path))


def parse(text: str, source: str) -> dict[str, Any]:
    """The tables of TOML ``text``. Raises ``PlanError`` with source, line and reason."""
    _require_short_keys(text, source)
    _require_shallow(text, source)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        match = _TOML_AT.match(str(error))
        where, reason = (match["where"], match["reason"]) if match else ("", str(error))
        if where == "end of document":
            where = f"line {text.count(chr(10)) + 1}, the end of the text"
            reason += " (is a bracket or a quote before it not closed?)"
        raise PlanError("", ": ".join(filter(None, (source, where, reason)))) from error
    except RecursionError as error:
        raise PlanError("", f"{source}: {TOO_DEEP}") from error
    except ValueError as error:  # Python refuses to read an integer of more than 4,300 digits
        raise PlanError("", f"{source}: {OF_64_BITS}, found one of far too many digits") from error
    require_shape(table, "", source)
    return table


def _require_shallow(text: str, source: str) -> None:
    """Refuse what the parser, which recurses, would not get to the bottom of: what else of Python
    runs there, a finalizer of another object, fails as well. Brackets within texts and comments
    count as any: no plan has so many, and what they hide is refused by the parser itself.
    """
    depth = 0
    for found in _BRACKET.finditer(text):
        depth = depth + 1 if found[0] in "[{" else max(depth - 1, 0)
        if depth > NESTED_MAX:
            raise PlanError("", f"{source}: {TOO_DEEP}")


def require_shape(value: object, path: str, source: str = "plan") -> None:
    """Refuse shapes that TOML allows and no plan has: nesting without limit, and integers of more
    than 64 bits. ``path`` is the path of ``value``. Raises ``PlanError``.
    """
    # A list in place of recursion, which would end in Python's own limit. A place is its step and
    # the place above it: as texts, ten thousand places below one long key would fill the memory.
    waiting: list[tuple[_Place | None, int, object]] = [(None, 0, value)]
    while waiting:
        place, depth, found = waiting.pop()
        if depth > MAX_DEPTH:
            problem = f"nested too deeply (more than {MAX_DEPTH} tables or arrays)"
            raise PlanError(_path_of(place, path)[:MAX_SHOWN], problem, source)
        if isinstance(found, int) and not -(1 << 63) <= found < 1 << 63:
            problem = f"{OF_64_BITS} (got one of {found.bit_length()} bits)"
            raise PlanError(_path_of(place, path), problem, source)
        if isinstance(found, Mapping):
            waiting += [((place, key), depth + 1, inner) for key, inner in found.items()]
        elif isinstance(found, list):
            waiting += [((place, n), depth + 1, inner) for n, inner in enumerate(found)]


def _path_of(place: _Place | None, path: str) -> str:
    steps: list[Step] = []
    while place is not None:
        place, step = place
        steps.append(step)
    return dotted(path, tuple(reversed(steps)))


def _require_short_keys(text: str, source: str) -> None:
    """Raise ``PlanError`` for a key of more than ``MAX_KEY_PARTS`` parts, before a TOML reader sees
    it. Takes time in proportion to the text.
    """
    parts, start, dotted_on = 0, 0, False
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup
        if kind == "part":
            parts, start = (parts + 1, start) if dotted_on else (1, token.start())
            dotted_on = False
            if parts > MAX_KEY_PARTS:
                line = text.count("\n", 0, start) + 1
                problem = (
                    f"line {line}: a key of more than {MAX_KEY_PARTS} parts is nested too deeply"
                )
                raise PlanError("", f"{source}: {problem}")
        elif kind == "dot" and parts and not dotted_on:
            dotted_on = True
        elif kind != "blank":
            parts, dotted_on = 0, False


def override(table: Mapping[str, Any], path: str, value: object) -> dict[str, Any]:
    """``table`` with the key at dotted ``path`` set to ``value``; missing tables on the way are
    made.
    """
    head, _, rest = path.partition(".")
    if not head:
        raise PlanError(path, "expected a key such as drive.duration_s")
    changed = dict(table)
    if not rest:
        changed[head] = copy.deepcopy(value)
        return changed
    inner = table.get(head, {})
    if not isinstance(inner, Mapping):
        raise PlanError(path, f"{head} is not a table (got {shown(inner)})")
    changed[head] = override(inner, rest, value)
    return changed


def convert(cls: type[T], table: object, path: str) -> T:
    """``table`` as a ``cls``. Raises ``PlanError`` with the key's path below ``path``."""
    try:
        return msgspec.convert(table, cls)
    except msgspec.ValidationError as error:
        raise _explained(cls, table, path, str(error)) from error


def shown(value: object) -> str:
    """A value as it looks in a plan, cut to the length of a sentence."""
    # As TOML writes them, so that the value can be found in the plan.
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 3] + "..."


def nearest(word: str, known: tuple[str, ...]) -> str:
    """`` (did you mean 'x'?)`` where one of ``known`` is near, else the known ones."""
    near = difflib.get_close_matches(word, known, n=1)
    if near:
        return f" (did you mean {near[0]!r}?)"
    return f" (known: {', '.join(known)})" if known else ""


def dotted(path: str, steps: tuple[Step, ...]) -> str:
    """``path`` and the steps below it as one dotted path: ``nemesis.schedule[2].kind``."""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else step
    return path


def _explained(cls: type, table: object, path: str, message: str) -> PlanError:
    match = _AT.match(message)
    what, at = (match["what"], match["path"] or "") if match else (message, "")
    steps = _steps(at)
    if unknown := _UNKNOWN.search(what):
        key = unknown["key"]
        hint = nearest(key, _keys(_type_at(cls, steps)))
        return PlanError(dotted(path, (*steps, key)), f"unknown key{hint}")
    if missing := _MISSING.search(what):
        return PlanError(dotted(path, (*steps, missing["key"])), "required, but not given")
    found, kind = _value_at(table, steps), _declared_at(cls, steps)
    choices = _choices(_bare(kind))
    expected = f"one of {', '.join(map(repr, choices))}" if choices else _expectation(what)
    if isinstance(found, str) and (form := _form(kind)):
        expected = form
    return PlanError(dotted(path, steps), f"expected {expected} (got {shown(found)})")


def _expectation(what: str) -> str:
    """msgspec's ``Expected `int` <= 5, got ...`` in a plan's words: ``an integer <= 5``."""
    match = re.match(r"Expected `(?P<types>[^`]*)`(?P<bound>.*?)(?:, got .*)?$", what, re.DOTALL)
    if not match:
        return what[:1].lower() + what[1:]
    types = [_TYPE_WORDS.get(t, t) for t in match["types"].split(" | ") if t != "null"]
    return " or ".join(types) + _WHOLE.sub("", match["bound"])


def _steps(at: str) -> tuple[Step, ...]:
    """msgspec's ``$.a.b[1]`` as ``("a", "b", 1)``."""
    return tuple(
        # ``[...]``, an item that msgspec does not number, has the first one's type.
        m["name"] if m["name"] is not None else int(m["index"] or 0)
        for m in _STEP.finditer(at.removeprefix("$"))
    )


def _value_at(table: object, steps: tuple[Step, ...]) -> object:
    for step in steps:
        try:
            table = table[step]  # type: ignore[index]
        except (KeyError, IndexError, TypeError):
            return None
    return table


def _type_at(kind: Any, steps: tuple[Step, ...]) -> Any:  # noqa: ANN401 (type expressions)
    """The type at ``steps`` below type ``kind``; ``None`` where there is none."""
    return _bare(_declared_at(kind, steps))


def _declared_at(kind: Any, steps: tuple[Step, ...]) -> Any:  # noqa: ANN401
    """As ``_type_at``, with ``Annotated``."""
    for step in steps:
        kind = _bare(kind)
        if isinstance(step, int):
            kind = next(iter(typing.get_args(kind)), None)
        elif isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            kind = typing.get_type_hints(kind, include_extras=True).get(step)
        else:
            return None
    return kind


def _form(kind: Any) -> str:  # noqa: ANN401
    """What the texts of a type with a pattern look like, in words: the ``FORM`` of its ``Meta``."""
    if typing.get_origin(kind) is typing.Annotated:
        metas = (meta for meta in kind.__metadata__ if isinstance(meta, msgspec.Meta))
        forms = (meta.extra[FORM] for meta in metas if meta.extra and FORM in meta.extra)
        return next(forms, "") or _form(typing.get_args(kind)[0])
    options = typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, UnionType) else ()
    return next(filter(None, map(_form, options)), "")


def _bare(kind: Any) -> Any:  # noqa: ANN401
    """``kind`` without ``Annotated`` and without ``| None``."""
    if typing.get_origin(kind) is typing.Annotated:
        return _bare(typing.get_args(kind)[0])
    options = [a for a in typing.get_args(kind) if a is not type(None)]
    if type(None) in typing.get_args(kind) and len(options) == 1:
        return _bare(options[0])
    return kind


def _keys(kind: Any) -> tuple[str, ...]:  # noqa: ANN401
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return tuple(field.encode_name for field in msgspec.structs.fields(kind))
    return ()


def _choices(kind: Any) -> tuple[object, ...]:  # noqa: ANN401
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return tuple(member.value for member in kind)
    return typing.get_args(kind) if typing.get_origin(kind) is typing.Literal else ()
