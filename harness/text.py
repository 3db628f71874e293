"""Times and figures as text; and strings from nodes, stores and files, made safe to show to a
person.

A node's error text may hold anything: escape sequences that repaint a terminal, characters that
turn the reading direction round, ten megabytes. Shown as they are they could forge a line of a
verdict.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from decimal import Decimal

from harness.clock import NS_PER_S

LIMIT_CHARS = 400  # a line that a person reads; longer texts end in a count of the cut characters


def inert(text: str, limit: int = LIMIT_CHARS) -> str:
    """``text`` on one line, at most ``limit`` characters of it (or all, where telling that some are
    cut would take as many), nothing in it active or invisible.

    Control, format (bidirectional too), surrogate, private and unassigned characters become
    ``\\x1b``-like escapes; tabs and line ends become a blank each. Nor is it a command to a CI that
    reads what is printed (``uncommanded``).
    """
    # Cut first: an escape has up to ten characters, and megabytes are not to be walked for a line.
    cut = len(text) - limit
    more = f"… ({cut} more characters)" if cut > 0 else ""
    if 0 < cut <= len(more):
        limit, more = len(text), ""
    shown = text[:limit]
    if not shown.isprintable():
        shown = "".join(map(_visible, shown))
    return uncommanded(shown) + more


_COMMAND = re.compile(r"^(\s*):(?=:)|#(?=#(?:\[|vso\[|teamcity\[))")
# A reader of lines takes a carriage return for an end of one, and may drop blanks of Unicode at its
# beginning. The blanks hold no carriage return, so that many of them take no square of time.
_COMMAND_BYTES = re.compile(
    rb"((?:^|\r)(?:[ \t\n\v\f\x1c-\x1f]|\xc2[\x85\xa0]|\xe1\x9a\x80"
    rb"|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80)*+):(?=:)"
    rb"|#(?=#(?:\[|vso\[|teamcity\[))"
)


def uncommanded(line: str) -> str:
    """``line`` so that no CI takes it for a command: ``::error`` at its beginning, ``##[`` and its
    like anywhere, lose their first character to an escape.
    """
    return _COMMAND.sub(lambda found: f"{found[1] or ''}{_escaped(found[0])}", line)


def uncommanded_bytes(line: bytes) -> bytes:
    """``uncommanded`` for a line of bytes, which stays as it is otherwise."""
    return _COMMAND_BYTES.sub(
        lambda found: (found[1] or b"") + _escaped(found[0].decode()).encode(), line
    )


def _escaped(mark: str) -> str:
    return f"\\x{ord(mark[-1]):02x}"


def _visible(char: str) -> str:
    if char in "\t\n\r":
        return " "
    if char.isprintable():
        return char
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def key_twice(document: bytes) -> str:
    """The first key that stands twice in one object of a JSON document that was decoded without an
    error; empty where none does. Decoders take the last one, other readers the first.
    """

    def unique(pairs: list[tuple[str, object]]) -> None:
        if len(dict(pairs)) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            found.append(next(key for key, count in counts.items() if count > 1))

    found: list[str] = []
    # Numbers stay text: one of a million digits would take an hour to convert.
    json.loads(document, object_pairs_hook=unique, parse_int=str, parse_float=str)
    return found[0] if found else ""


# Possessive: else each character of a text leaves 120 bytes to come back to.
_QUOTED = re.compile(rb'"(?:[^"\\]++|\\.)*+"')


def brackets(document: bytes) -> int:
    """How many lists and objects a JSON document holds. Each takes tens of times the two bytes that
    it is written with, once it is decoded.
    """
    bare = _QUOTED.sub(b"", document)
    return bare.count(b"[") + bare.count(b"{")


_PLAIN = re.compile(r"[ -~\n]*")


def inert_json(document: bytes) -> bytes:
    """The same JSON with an escape for each character that a terminal would act on or not show: a
    document that holds names and texts of nodes may go to one.
    """
    text = document.decode()
    if _PLAIN.fullmatch(text):
        return document
    return "\n".join(map(inactive, text.split("\n"))).encode()


def inactive(text: str) -> str:
    """Escape each character that a terminal would act on or not show, as in a string of JSON or
    EDN.
    """
    return text if text.isprintable() else "".join(map(_in_json, text))


def _in_json(char: str) -> str:
    # Of a character beyond 16 bits JSON escapes two halves.
    return char if char.isprintable() else json.dumps(char)[1:-1]


# -- A moment, and a length that is read beside moments, is in seconds to the millisecond; a length
# that stands for itself is in the unit that suits it; no figure has an exponent.

UNITS_NS = (("s", NS_PER_S), ("ms", 1_000_000), ("µs", 1_000), ("ns", 1))


def in_seconds(time_ns: float) -> str:
    """A time on the run's axis, or a duration, as a number of seconds to the millisecond."""
    return f"{time_ns / NS_PER_S:.3f}"


def seconds(time_ns: float) -> str:
    """``in_seconds`` with its unit: ``12.300 s``."""
    return f"{in_seconds(time_ns)} s"


def duration(length_ns: float) -> str:
    """A length of time to three digits, in the unit that suits it: ``44.9 s``, ``3.2 ms``."""
    for unit, per_unit in UNITS_NS:
        shown = significant(length_ns / per_unit, 3)
        # Of what is shown, so that 0.9996 s is 1 s.
        if abs(float(shown)) >= 1:
            return f"{shown} {unit}"
    return f"{significant(length_ns, 3)} ns"


def long_duration(length_s: float) -> str:
    """A length of time as people plan it, to three digits: ``45 s``, ``90 min``, ``14 d``."""
    for unit, unit_s in (("d", 86_400), ("h", 3_600), ("min", 60)):
        shown = significant(length_s / unit_s, 3)
        # Below two of a unit the smaller one is exact more often: 90 min.
        if float(shown) == 1 or float(shown) >= 2:
            return f"{shown} {unit}"
    return duration(length_s * NS_PER_S)


def significant(value: float, digits: int) -> str:
    """A figure to so many digits, those before the point whole, and never with an exponent."""
    rounded = Decimal(f"{value:.{digits}g}")
    return f"{value:.0f}" if abs(rounded) >= 10**digits else f"{rounded:f}"
