"""Reading the usual layout of a history fast: one operation a line, integer keys, no odd text.

Lines of JSON go through a typed decoder in one call. Lines of EDN are first turned into JSON by a
few replacements of bytes; that is right for text of a narrow alphabet only, and a result that is no
JSON of exactly the expected shape is refused. The exact reader reads every block that is refused
here (``None``); where both read a line, they agree.

Why the translation can't go wrong: in the narrow alphabet there are no strings, comments, tags or
discards, every brace belongs to an operation's own map, and each keyword becomes a JSON string. A
comma or colon in the wrong place would not be JSON; a symbol, ratio or float is none of the
expected types.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

from harness.history.records import INT64_MAX, INT64_MIN
from harness.importers.jepsen.import_limits import (
    LOWEST_KEY,
    TIME_LIMIT_NS,
)
from harness.importers.jepsen.operation_forms import NO_INDEX, Operation, text_of

_Int64 = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]
_Key = Annotated[int, msgspec.Meta(ge=LOWEST_KEY, le=INT64_MAX)]
_Time = Annotated[int, msgspec.Meta(ge=-TIME_LIMIT_NS, le=TIME_LIMIT_NS)]
_Index = Annotated[int, msgspec.Meta(ge=0, le=TIME_LIMIT_NS)]
_Step = tuple[Literal["append", "r", "w"], _Key, _Int64 | list[_Int64] | None]


class _Line(Operation, gc=False, forbid_unknown_fields=True, kw_only=True):
    """Only transactions have one meaning: the value of ``read`` and the like is ambiguous."""

    f: Literal["txn"]
    process: _Int64
    index: _Index = NO_INDEX
    time: _Time | None = None
    value: list[_Step] | None  # type: ignore[assignment]  # of fewer steps: nobody adds others


_LINES = msgspec.json.Decoder(_Line)

_NARROW = bytes(
    sorted(set(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789:-_{}[], \t\r\n"))
)
_BLANKS = bytes.maketrans(b" \t\r", b",,,")
_KEYWORD = re.compile(rb"(?<=[\[,:]):([A-Za-z_-][A-Za-z0-9_-]*)")
_FIELDS = (b"type", b"process", b"f", b"value", b"index", b"time", b"error")
# Keywords of nearly every line, replaced without looking for others: it is twice as fast.
_WORDS = tuple(
    (b"%b:%b%b" % (before, word, after), b'%b"%b"%b' % (before, word, after))
    for before, words, after in (
        (b"[", (b"append", b"r", b"w"), b","),
        (b":", (b"invoke", b"ok", b"fail", b"info", b"txn"), b","),
        (b":", (b"invoke", b"ok", b"fail", b"info", b"txn"), b"}"),
    )
    for word in words
)
_RECORD = b"#jepsen.history.Op{"
# ``null`` is a symbol in EDN and nothing in JSON; ``::a`` is no keyword.
_AMBIGUOUS = (b"null", b"::")


def json_lines(data: bytes) -> list[Operation] | None:
    """The operations of ``data``, one a line, or ``None`` where it is not as simple as that."""
    try:
        found = _LINES.decode_lines(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    lines = data.count(b"\n") + (not data.endswith(b"\n"))
    # A colon more than fields that were set is a field that stands twice (the decoder would take
    # the last), or text with a colon in it: both are for the exact reader.
    if len(found) != lines or data.count(b":") != sum(map(_fields_set, found)):
        return None
    return [*found] if all(map(_sound, found)) else None


def edn_lines(data: bytes) -> list[Operation] | None:
    """As ``json_lines``, of EDN."""
    data = data.replace(_RECORD, b"{")
    if data.translate(None, _NARROW) or any(word in data for word in _AMBIGUOUS):
        return None
    lines = data.count(b"\n") + (not data.endswith(b"\n"))
    text = _tidy(data)
    if text.count(b"{") != lines or text.count(b"}") != lines:
        return None
    if text.count(b"}\n{") != lines - 1 or text[:1] != b"{" or text[-1:] != b"}":
        return None
    fields = 0
    for name in _FIELDS:
        keyword = b":%b," % name
        fields += text.count(keyword)
        text = text.replace(keyword, b'"%b":' % name)
    for keyword, word in _WORDS:
        text = text.replace(keyword, word)
    if text.count(b":") != fields:
        text = _KEYWORD.sub(_quoted, text)
    return json_lines(text.replace(b",nil", b",null").replace(b":nil", b":null"))


def _tidy(data: bytes) -> bytes:
    """``data`` with one comma between forms and none around brackets and lines."""
    text = data.translate(_BLANKS).strip(b",\n")
    while b",," in text:
        text = text.replace(b",,", b",")
    for loose, tight in (
        (b"[,", b"["),
        (b",]", b"]"),
        (b"{,", b"{"),
        (b",}", b"}"),
        (b",\n", b"\n"),
        (b"\n,", b"\n"),
        (b"][", b"],["),
    ):
        if loose in text:
            text = text.replace(loose, tight)
    return text


def _quoted(keyword: re.Match[bytes]) -> bytes:
    return b'"%b"' % keyword.group(1)


def _sound(operation: Operation) -> bool:
    """Whether values fit their steps, which no type says; makes the text of an error fit too."""
    if operation.error is not None:
        operation.error = text_of(operation.error)
    for f, _, value in operation.value or ():
        if f != "r" and value.__class__ is not int:
            return False
    return True


def _fields_set(operation: Operation) -> int:
    return (
        4
        + (operation.index != NO_INDEX)
        + (operation.time is not None)
        + (operation.error is not None)
    )
