"""The reader of EDN, which goes by patterns, against one that looks at each character: the patterns
of some releases of Python match what they should not.
"""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.importers.jepsen import edn, reader
from harness.importers.jepsen.exact_parser import EdnForms, Found

BLANKS = " \t\r\n\f,"
CLOSERS = {"[": "]", "(": ")", "{": "}", "#{": "}"}
OF_ATOMS = ".*+!?$%&=<>/:#'-_"
PARTS = """
{ } [ ] ( ) #{ #_ #x #x/y ##Inf ##-Inf ##NaN ##In " "a" "" \\ \\a \\newline \\u0041 \\" ; : :a :a/b
a
nil true 0 1 -1 +1 007 12 12345678901234567890 5N 1.5 1/2 ^ ' @ # ~ é ٣ \\\\
"""
RUNS = ["1 2 3 4 5 6 7 8 9 10 11 12", "1,2,03,4,5,6,7,8,9,1,2", "1234567890123456 9 9", "9" * 19]
LONG_RUNS = " ".join(map(str, range(3000)))
TEXTS = st.lists(
    st.sampled_from([*PARTS.split(), *RUNS, *BLANKS, ";a\n", ";\n\n", "\n;", '\\"', '"\n']),
    max_size=25,
).map("".join)
BYTES = st.lists(st.sampled_from(list(b' \t\n\r\x0b\f,;{[(#a"]')), max_size=12).map(bytes)


class Bad(Exception):
    """The text is no EDN."""


def blank_until(text: str, at: int) -> int:
    while at < len(text) and text[at] in BLANKS + ";":
        if text[at] == ";":
            while at < len(text) and text[at] != "\n":
                at += 1
        else:
            at += 1
    return at


def while_of(text: str, at: int, more: str) -> int:
    while at < len(text) and (text[at].isalnum() or text[at] in more):
        at += 1
    return at


def plain_form(text: str, at: int) -> tuple[Any, int]:
    """The next form, or ``SKIPPED``, and where it ends."""
    at = blank_until(text, at)
    if at >= len(text):
        raise Bad
    rest = text[at:]
    for opener in ("#{", "[", "(", "{"):
        if rest.startswith(opener):
            return plain_collection(text, at, opener)
    if rest.startswith("#_"):
        _, at = plain_value(text, at + 2)
        return edn.SKIPPED, at
    for symbolic in ("##Inf", "##-Inf", "##NaN"):
        if rest.startswith(symbolic):
            return edn.Number(symbolic), at + len(symbolic)
    if rest[0] == "#" and len(rest) > 1 and rest[1].isascii() and rest[1].isalpha():
        end = while_of(text, at + 1, ".*+!?$%&=<>/-_")
        value, after = plain_value(text, end)
        return edn.tagged(text[at:end], value), after
    if rest[0] == '"':
        return plain_string(text, at)
    if rest[0] == "\\":
        end = at + 1
        while end < len(text) and text[end].isascii() and text[end].isalnum():
            end += 1
        end = max(end, at + 2)
        if end > len(text):
            raise Bad
        return edn._char(text[at + 1 : end], at), end
    end = while_of(text, at, OF_ATOMS)
    if end == at:
        raise Bad
    return edn._atom(text[at:end], at), end


def plain_value(text: str, at: int) -> tuple[Any, int]:
    """The next form that is none that is skipped."""
    while True:
        value, at = plain_form(text, at)
        if value is not edn.SKIPPED:
            return value, at


def plain_string(text: str, at: int) -> tuple[str, int]:
    end = at + 1
    while end < len(text) and text[end] != '"':
        end += 2 if text[end] == "\\" else 1
    if end >= len(text):
        raise Bad
    return edn._string(text[at : end + 1], at), end + 1


def plain_collection(text: str, at: int, opener: str) -> tuple[Any, int]:
    items: list[Any] = []
    begun, at = at, at + len(opener)
    while True:
        at = blank_until(text, at)
        if at >= len(text):
            raise Bad
        if text[at] in "])}":
            if text[at] != CLOSERS[opener]:
                raise Bad
            break
        value, at = plain_form(text, at)
        if value is not edn.SKIPPED:
            items.append(value)
    frame = edn._Frame(opener, begun, items)
    return edn._closed([edn._Frame("", 0), frame], text[at], at), at + 1


def both(text: str) -> tuple[Any, Any]:
    """What the plain reader and the other one make of the beginning of ``text``."""
    plain: Any = "refused"
    found: Any = "refused"
    with contextlib.suppress(Bad, edn.Notation):
        plain = plain_form(text, 0)
    with contextlib.suppress(edn.Incomplete, edn.Notation):
        found = edn.resume_form(text, edn.Partial.from_start(0), final=True)
    return plain, found


def typed(value: Any) -> Any:
    """With the types of its parts: a keyword is no symbol, and true no 1."""
    if isinstance(value, dict):
        return [(typed(key), typed(held)) for key, held in value.items()]
    if isinstance(value, (list, tuple)):
        return [type(value), *map(typed, value)]
    if isinstance(value, edn.TaggedCollection):
        return [value.tags, typed(value.form)]
    return (type(value), value)


@settings(max_examples=3000, deadline=None)
@given(TEXTS)
@example("#_ #_ 1 2 3")
@example("[#_ #_ 1 2 3]")
@example("#x #_ 1 2")
@example("[" + LONG_RUNS + "]")
@example("[" + LONG_RUNS + " 01]")
@example("[" + LONG_RUNS + " 9223372036854775808 5 " + LONG_RUNS + "]")
@example("{" + LONG_RUNS + "}")
@example("#_ " + LONG_RUNS)
@example("[#_ " + LONG_RUNS + "1.5]")
@example('["' + '\\"' * 3000 + '" "\\\\" "' + "x" * 3000 + '"]')
@example(";" * 3000 + "\n;\n" * 3000 + "1")
def test_each_form_is_read_as_character_by_character(text: str) -> None:
    plain, found = both(text)

    assert typed(found) == typed(plain)


@settings(max_examples=1500, deadline=None)
@given(text=TEXTS, data=st.data())
def test_a_text_in_pieces_is_read_as_the_whole(text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=3)))

    assert typed(in_pieces(text, cuts)) == typed(in_pieces(text, []))


def in_pieces(text: str, cuts: list[int]) -> Any:
    forms, rest = EdnForms(), ""
    found: Found = []
    try:
        for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
            rest += text[begin:end]
            rest = rest[forms.take(rest, found, final=False) :]
        forms.take(rest, found, final=True)
        return [form for form, _ in found]
    except edn.Notation:
        return "refused"


@settings(max_examples=1500, deadline=None)
@given(BYTES)
@example(b";" * 100_000)
@example(b";\n" * 100_000 + b"{")
@example(b" ," * 100_000 + b"{")
def test_the_beginning_of_a_file_is_found_as_character_by_character(beginning: bytes) -> None:
    at = 0
    while at < len(beginning) and beginning[at] in b" \t\n\r\x0b\f,;":
        if beginning[at] == ord(";"):
            while at < len(beginning) and beginning[at] != ord("\n"):
                at += 1
        else:
            at += 1
    firsts = []
    for _ in range(3):
        firsts.append(beginning[at : at + 1])
        at += 1
        while at < len(beginning) and beginning[at] in b" \t\n\r\x0b\f":
            at += 1

    match = reader._BEGINNING.match(beginning, reader._first_form(beginning))

    assert match is not None
    assert list(match.groups()) == firsts
