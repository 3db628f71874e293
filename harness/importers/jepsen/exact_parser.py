"""Reading whole operations from the beginning of a text, exactly: EDN or JSON, lines or one array.

A file is a sequence of maps or one array of maps. This reader follows the format's definition, for
every layout; it is slow, and ``quick`` reads the usual layouts.
"""

from __future__ import annotations

import json
import re
from typing import Any, Protocol

import attrs

from harness.history.records import INT64_MAX, INT64_MIN
from harness.importers.jepsen import edn
from harness.importers.jepsen.edn import SKIPPED, Incomplete, Notation, Number, Partial
from harness.importers.jepsen.import_limits import (
    MAX_FILLER_BYTES,
    MAX_TOKENS,
)

# Forms, each with the character where it begins.
Found = list[tuple[Any, int]]


@attrs.define
class Filler:
    """Counts the characters between operations: blanks, comments, discarded forms."""

    passed: int = 0
    operations: int = 0

    def pass_over(self, start: int, end: int) -> None:
        """Count the text from ``start`` to ``end``. Raises ``Notation`` above the limit."""
        self.passed += end - start
        if self.passed > MAX_FILLER_BYTES + self.operations:
            what = "blanks, comments and discarded forms between operations"
            limit = f"at most {MAX_FILLER_BYTES} bytes of {what} beyond the size of the operations"
            raise Notation(start, f"expected {limit}, found more")

    def has_room_for(self, other: Filler) -> bool:
        """Whether what ``other`` counted of text that follows is within the limit at any place."""
        # At worst, all operations stand behind all that is passed over.
        return self.passed + other.passed <= MAX_FILLER_BYTES + self.operations

    def add(self, other: Filler) -> None:
        """Count what ``other`` counted."""
        self.passed += other.passed
        self.operations += other.operations


class Forms(Protocol):
    """A reader of one file, which remembers its position in it.

    ``begun``: an operation was read, by this reader or by another. ``by_line``: at this position
    whole operations may follow one a line, with nothing between them. ``enclosed``: they stand in a
    vector or array, or one has ended.
    """

    begun: bool
    filler: Filler

    @property
    def by_line(self) -> bool: ...

    @property
    def enclosed(self) -> bool: ...

    def take(self, text: str, found: Found, *, final: bool) -> int:
        """Put the whole forms at the beginning of ``text`` into ``found``; returns how many
        characters are done with. The next call repeats the rest, followed by more text.

        ``final``: no more text will come, so nothing may remain. Raises ``Notation`` for what
        stands behind the forms that were found.
        """


_CLOSER = {"[": "]", "(": ")"}


class EdnForms:
    """Maps of EDN, commas and comments between them; or one vector or list of maps."""

    _BLANK = re.compile(r"[ \t\r\n\f,]*")

    def __init__(self) -> None:
        self._closer = ""
        self.begun = False
        self.filler = Filler()
        self._ended = False
        self._partial: Partial | None = None

    @property
    def by_line(self) -> bool:
        """See ``Forms``. Commas are blanks: a vector's operations stand as they do alone."""
        return not self._ended

    @property
    def enclosed(self) -> bool:
        """See ``Forms``."""
        return bool(self._closer) or self._ended

    def take(self, text: str, found: Found, *, final: bool) -> int:
        """See ``Forms``."""
        at = 0
        while True:
            at = self._skip(text, at, final)
            if at == len(text) or self._ended:
                break
            if self._closer and text[at] == self._closer:
                self._closer, self._ended = "", True
                at += 1
                continue
            # Before the first operation alone: a later one would be an operation that is no map.
            if not self.begun and text[at] in _CLOSER:
                self._closer, self.begun = _CLOSER[text[at]], True
                at += 1
                continue
            partial = self._partial or Partial.from_start(at)
            self._partial = None
            try:
                form, end = edn.resume_form(text, partial, final=final)
            except Incomplete:
                if final:
                    raise Notation(at, "the file ends within an operation") from None
                self._partial = partial.moved(at)
                return at
            if form is SKIPPED:
                self.filler.pass_over(at, end)
            else:
                self.begun = True
                self.filler.operations += end - at
                found.append((form, at))
            at = end
        if at < len(text):
            raise Notation(at, "something follows the end of the vector")
        if final and self._closer:
            raise Notation(at, "the file ends within the vector of operations")
        return at

    def _skip(self, text: str, at: int, final: bool) -> int:
        """Where the next form begins, or a comment that the text cuts off and the next one
        continues.
        """
        while True:
            blank = self._BLANK.match(text, at)
            end = blank.end() if blank else at
            self.filler.pass_over(at, end)
            if end == len(text) or text[end] != ";":
                return end
            line_end = text.find("\n", end)
            if line_end < 0 and not final:
                return end
            at = line_end + 1 or len(text)
            self.filler.pass_over(end, at)


class JsonForms:
    """Objects of JSON, one after the other; or one array of objects."""

    _BLANK = re.compile(r"[ \t\r\n]*")
    _LONG_INTEGER = re.compile(r"[0-9]{19}")
    _SHORTEST_TAIL = 16

    def __init__(self) -> None:
        self._within = False
        self.begun = False
        self.filler = Filler()
        self._ended = False
        self._comma_due = False
        self._after_comma = False
        # ``int`` takes a tenth of the time, for text without an integer of more than 64 bits.
        self._decoders = {
            long: json.JSONDecoder(
                object_pairs_hook=_object,
                parse_int=_integer if long else int,
                parse_float=self._inexact,
                parse_constant=self._inexact,
            )
            for long in (False, True)
        }
        self._inexact_numbers = 0

    @property
    def by_line(self) -> bool:
        """See ``Forms``."""
        return not self.enclosed

    @property
    def enclosed(self) -> bool:
        """See ``Forms``."""
        return self._within or self._ended

    def take(self, text: str, found: Found, *, final: bool) -> int:
        """See ``Forms``."""
        at = 0
        decoder = self._decoders[self._LONG_INTEGER.search(text) is not None]
        while True:
            at = self._skip(text, at)
            if at == len(text) or self._ended:
                break
            if self._bracket(text, at):
                at += 1
                continue
            try:
                form, end = decoder.raw_decode(text, at)
            except json.JSONDecodeError as error:
                if final or not self._may_go_on(text, error):
                    raise Notation(error.pos, f"it is no JSON: {error.msg}") from None
                self._inexact_numbers = 0  # of the operation that is read again with more text
                return at
            except RecursionError:
                raise Notation(at, "brackets are nested too deep") from None
            except _Refused as error:
                raise Notation(at, str(error)) from None
            self._inexact_numbers = 0
            self.begun, self._comma_due, self._after_comma = True, True, False
            self.filler.operations += end - at
            found.append((form, at))
            at = end
        if at < len(text):
            raise Notation(at, "something follows the end of the array")
        if final and self._within:
            raise Notation(at, "the file ends within the array of operations")
        return at

    def _bracket(self, text: str, at: int) -> bool:
        """Whether the character at ``at`` belongs to the array that holds the operations."""
        char = text[at]
        if not self.begun and char == "[":
            self._within = self.begun = True
            return True
        if not self._within:
            return False
        if char == "]":
            if self._after_comma:
                raise Notation(at, "a comma stands before ']', not before an operation")
            self._within, self._ended = False, True
            return True
        if self._comma_due:
            if char != ",":
                raise Notation(at, f"expected ',' or ']', found {char!r}")
            self._comma_due, self._after_comma = False, True
            return True
        return False

    def _skip(self, text: str, at: int) -> int:
        blank = self._BLANK.match(text, at)
        end = blank.end() if blank else at
        self.filler.pass_over(at, end)
        return end

    def _inexact(self, text: str) -> Number:
        self._inexact_numbers += 1
        if self._inexact_numbers > MAX_TOKENS:
            what = "numbers that are no integers"
            raise _Refused(f"expected at most {MAX_TOKENS} {what} in one operation, found more")
        return Number(edn.shortened(text))

    def _may_go_on(self, text: str, error: json.JSONDecodeError) -> bool:
        # The decoder's error is the same for text that is cut off and for text that is wrong: only
        # its place tells which.
        near_end = len(text) - error.pos < self._SHORTEST_TAIL
        return near_end or error.msg.startswith("Unterminated string")


class _Refused(Exception):
    """An object has a key twice, or there are too many numbers that are no integers."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _Refused(f"the key {edn.shown(key)} stands twice in one object")
            seen.add(key)
    return found


def _integer(digits: str) -> int | Number:
    # Before it is converted, which takes time with the square of the digits.
    if len(digits) <= len(str(INT64_MIN)):
        number = int(digits)
        if INT64_MIN <= number <= INT64_MAX:
            return number
    return Number(edn.shortened(digits))
