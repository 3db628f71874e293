"""A file of Jepsen's as batches of operations with their lines: text, gzip, EDN or JSON.

Text is read in blocks of whole lines. A block that ``quick`` can't read is halved until the unusual
lines stand alone, and those are read exactly. An operation that a block cuts off waits for more
text, up to ``MAX_OPERATION_BYTES``.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import attrs

from harness.errors import MalformedHistory
from harness.importers.jepsen import quick_parser
from harness.importers.jepsen.edn import Notation
from harness.importers.jepsen.exact_parser import EdnForms, Filler, Forms, Found, JsonForms
from harness.importers.jepsen.file_signatures import GZIP, format_of
from harness.importers.jepsen.import_limits import (
    BLOCK_BYTES,
    FREE_EXPANSION_BYTES,
    FREE_READING_S,
    LEAST_BYTES_PER_S,
    MAX_EXPANDED_BYTES,
    MAX_EXPANSION,
    MAX_OPERATION_BYTES,
    MAX_OPERATION_TEXT_BYTES,
)
from harness.importers.jepsen.operation_forms import Names, Operation, Refused, Remark, normalize

# Operations, and the line of each in the file, from 1.
Batch = tuple[Sequence[Operation | Remark], Sequence[int]]

# Seconds of processor time that were spent so far.
Clock = Callable[[], float]

Quick = Callable[[bytes], list[Operation] | None]

_BOM = b"\xef\xbb\xbf"  # some editors put it there, and neither format knows it
# Below, halving a block costs more than reading it exactly.
_LEAF_BYTES = 2048

_BLANK = re.compile(rb"[\s,]*")
_BLANKS = b" \t\r\n\f,"
_BEGINNING = re.compile(rb"(.?)\s*(.?)\s*(.?)", re.DOTALL)
_NOT_TEXT = b"0123456789, \t\r\n"


class HistoryFile:
    """A file that is being read, operation by operation, in its order."""

    def __init__(self, path: Path, text: _Text, reader: _Reader) -> None:
        self._path = path
        self._text = text
        self._reader = reader

    def batches(self, until: int | None = None) -> Iterator[Batch]:
        """Every operation from here on; or up to the byte ``until``, where a line begins. Raises
        ``MalformedHistory``, also for a file that takes more time than its size allows.
        """
        self._text.end_at(until)
        yield from self._reader.batches(self._text)
        if until is None:
            yield from self._reader.last()

    @property
    def lines(self) -> int:
        """The number of lines before this place."""
        return self._reader.line - 1

    @property
    def filler(self) -> Filler:
        """What was passed over so far."""
        return self._reader.forms.filler

    def between_operations(self) -> bool:
        """Whether a reader that begins here reads what this one goes on with: nothing was begun
        that ends behind this place.
        """
        return not self._reader.rest.strip(_BLANKS) and not self._reader.forms.enclosed

    def go_on_at(self, offset: int, *, lines: int, filler: Filler) -> None:
        """Go on at the byte ``offset``: another has read ``lines`` lines to there, and passed over
        ``filler``.
        """
        self._reader.rest = b""
        self._reader.line += lines
        self._reader.forms.begun = True
        self._reader.forms.filler.add(filler)
        self._text.go_on_at(offset)

    def cuts(self, most: int, least_bytes: int) -> tuple[int, ...]:
        """Where each of at most ``most`` parts of at least about ``least_bytes`` begins, with a
        line, and the end of the file; none where it can't be read from its middle.
        """
        first = self._text.peek().lstrip(_BLANKS)[:1]
        # In what is compressed, a vector or an array no place means anything by itself.
        return self._text.cuts(most, least_bytes) if first in (b"{", b"#") else ()

    @contextlib.contextmanager
    def of_part(self, begin: int, end: int, names: Names) -> Iterator[HistoryFile]:
        """A reading of the same file from ``begin`` to ``end``, two of its cuts, apart from this
        one, its lines counted from 1.
        """
        reader = attrs.evolve(
            self._reader, forms=type(self._reader.forms)(), made=lambda form: normalize(form, names)
        )
        # No part may be a vector: what begins one in the middle of a file is no operation.
        reader.forms.begun = True
        with self._text.reopened() as raw:
            text = _Text(raw, self._path, begin=begin)
            text.end_at(end)
            yield HistoryFile(self._path, text, reader)


@contextlib.contextmanager
def opened(path: Path, names: Names, clock: Clock = lambda: 0.0) -> Iterator[HistoryFile]:
    """The file, to be read from its beginning within the processor time of ``clock`` that its size
    allows. Raises ``MalformedHistory``.
    """
    with _opened(path) as text:
        yield HistoryFile(
            path, text, _reader(text, path, lambda form: normalize(form, names), clock)
        )


def forms(path: Path, clock: Clock = lambda: 0.0) -> Iterator[tuple[Sequence[Any], Sequence[int]]]:
    """As ``batches``, but each operation as the map that the file holds."""
    with _opened(path) as text:
        reader = attrs.evolve(_reader(text, path, lambda form: form, clock), quick=None)
        yield from reader.batches(text)
        yield from reader.last()


def beginning(path: Path) -> bytes:
    """The first bytes of the file, expanded where they are compressed."""
    with _opened(path) as text:
        return text.peek()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_Text]:
    try:
        with path.open("rb") as raw:
            yield _Text(raw, path)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else str(error)
        reason = f"it can't be read: {why}"
        raise MalformedHistory(str(path), "", reason) from error


class _Text:
    """The bytes of a file from ``begin`` on, expanded where they are compressed, within limits."""

    def __init__(self, raw: BinaryIO, path: Path, begin: int = 0) -> None:
        self._path = path
        self._raw = raw
        self._given = begin
        self._limit = MAX_EXPANDED_BYTES
        self._end: int | None = None
        self._ahead = b""
        source = io.BufferedReader(raw) if isinstance(raw, io.RawIOBase) else raw
        self._source: BinaryIO = source
        if begin:
            source.seek(begin)
            return
        self._packed = source.read(len(GZIP)) == GZIP
        source.seek(0)
        if self._packed:
            size = os.fstat(raw.fileno()).st_size
            ratio_limit = max(FREE_EXPANSION_BYTES, MAX_EXPANSION * size)
            self._limit = min(self._limit, ratio_limit)
            self._source = io.BufferedReader(gzip.GzipFile(fileobj=source, mode="rb"))
        # ``lines`` looks at it first.
        self._ahead = self.lines(BLOCK_BYTES).removeprefix(_BOM)

    def end_at(self, end: int | None) -> None:
        """Give nothing from the byte ``end`` on, where a line begins behind what was looked at."""
        self._end = end

    def go_on_at(self, offset: int) -> None:
        """Give what begins at the byte ``offset``."""
        self._source.seek(offset)
        self._given, self._ahead = offset, b""

    def cuts(self, most: int, least_bytes: int) -> tuple[int, ...]:
        """See ``Reading.cuts``."""
        if self._packed:
            return ()
        size, found = os.fstat(self._raw.fileno()).st_size, set()
        parts = min(most, size // least_bytes)
        with self.reopened() as raw:
            for number in range(1, parts):
                raw.seek(size * number // parts)
                line = raw.readline(BLOCK_BYTES)
                if line.endswith(b"\n") and self._given <= raw.tell() < size:
                    found.add(raw.tell())
        return (*sorted(found), size)

    @contextlib.contextmanager
    def reopened(self) -> Iterator[BinaryIO]:
        """The same file once more, with a place of its own, even if its name was given away."""
        with Path(f"/proc/self/fd/{self._raw.fileno()}").open("rb") as raw:
            yield raw

    def peek(self) -> bytes:
        """The first bytes of the next block."""
        return self._ahead

    def lines(self, size: int) -> bytes:
        """About ``size`` bytes that end with a line, if that line is no longer than ``size``; empty
        at the end.
        """
        if self._ahead:
            ahead, self._ahead = self._ahead, b""
            return ahead
        if self._end is not None:
            size = min(size, self._end - self._given)
        try:
            found = self._source.read(size)
            if len(found) == size and not found.endswith(b"\n"):
                found += self._source.readline(size)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise MalformedHistory(str(self._path), "", f"it is no whole gzip: {error}") from error
        self._given += len(found)
        if self._given > self._limit:
            reason = f"it expands to more than {self._limit} bytes, which no history does"
            raise MalformedHistory(str(self._path), "", reason)
        return found


class Pace:
    """Refuses a file that takes far more processor time than any regular one of its size."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._begun_s = clock()
        self._bytes = 0

    def keep(self, size: int) -> None:
        """Account for ``size`` more bytes. Raises ``MalformedHistory``."""
        self._bytes += size
        spent_s = self._clock() - self._begun_s
        limit_s = FREE_READING_S + self._bytes / LEAST_BYTES_PER_S
        if spent_s > limit_s:
            reason = f"expected {self._bytes} bytes of it to be read within {limit_s:.0f} s"
            found = f"took {spent_s:.0f} s of processor time"
            raise MalformedHistory(str(self._path), "", f"{reason}, {found}")


def _format(beginning: bytes) -> tuple[Quick, Forms] | None:
    match = _BEGINNING.match(beginning, _first_form(beginning))
    first, second, third = match.groups() if match else (b"", b"", b"")
    if first == b"#":
        return quick_parser.edn_lines, EdnForms()
    listed = first in (b"[", b"(")
    inner = third if listed else second
    if not (listed or first == b"{") or (listed and second not in (b"{", b"#", b"]", b")", b";")):
        return None
    if first == b"(":
        return quick_parser.edn_lines, EdnForms()
    if inner == b'"' or (first == b"[" and second == b"]"):
        return quick_parser.json_lines, JsonForms()
    return quick_parser.edn_lines, EdnForms()


def _first_form(beginning: bytes) -> int:
    """Where blanks and comments end."""
    at = 0
    while True:
        blank = _BLANK.match(beginning, at)
        at = blank.end() if blank else at
        if beginning[at : at + 1] != b";":
            return at
        line_end = beginning.find(b"\n", at)
        at = line_end if line_end >= 0 else len(beginning)


def _reader(text: _Text, path: Path, made: Callable[[object], Any], clock: Clock) -> _Reader:
    found = _format(text.peek())
    # Wide characters may look like a bracket and something that is wrong.
    if found is None or b"\0" in text.peek()[:4]:
        expected = "expected operations in EDN or JSON"
        if named := format_of(text.peek()):
            reason = f"{expected}, as they are or compressed with gzip, found {named}"
            raise MalformedHistory(str(path), "", reason)
        raise MalformedHistory(str(path), "line 1", f"{expected}, found neither")
    return _Reader(path=path, quick=found[0], forms=found[1], made=made, clock=clock)


@attrs.define(kw_only=True)
class _Reader:
    """``line`` is the line on which ``rest``, the beginning of an operation, begins; ``made`` makes
    an operation of a form that was read exactly.
    """

    path: Path
    quick: Quick | None
    forms: Forms
    made: Callable[[object], Any]
    clock: Clock
    line: int = 1
    rest: bytes = b""

    def batches(self, text: _Text) -> Iterator[Batch]:
        """Everything in ``text`` but an operation that more text may end."""
        pace = Pace(self.path, self.clock)
        while block := text.lines(self._next_bytes()):
            yield from self._block(block)
            pace.keep(len(block))

    def _next_bytes(self) -> int:
        """As much as waits, since a long operation is copied again with each block; but not far
        beyond the longest that may be. ``lines`` gives up to twice as much.
        """
        waiting = len(self.rest)
        text_bytes = max(1, len(self.rest.translate(None, _NOT_TEXT)))
        longest = min(MAX_OPERATION_BYTES, MAX_OPERATION_TEXT_BYTES * waiting // text_bytes)
        return max(BLOCK_BYTES, min(waiting, (longest - waiting) // 2 + 1))

    def last(self) -> Iterator[Batch]:
        """What waits, behind which no text comes."""
        yield from self._exactly(b"", final=True)

    def _block(self, block: bytes) -> Iterator[Batch]:
        pieces = [block]
        while pieces:
            piece = pieces.pop()
            if self.quick and not self.rest and self.forms.by_line and piece.endswith(b"\n"):
                found = self.quick(piece)
                if found is not None:
                    yield found, range(self.line, self.line + len(found))
                    self.line += len(found)
                    self.forms.begun = True
                    self.forms.filler.operations += len(piece)
                    continue
                middle = piece.find(b"\n", len(piece) // 2) + 1
                if len(piece) > _LEAF_BYTES and middle < len(piece):
                    pieces += (piece[middle:], piece[:middle])  # the first half is popped next
                    continue
            yield from self._exactly(piece, final=False)

    def _exactly(self, piece: bytes, *, final: bool) -> Iterator[Batch]:
        """Yield the operations before a mistake, then raise it: one of them may be refused, so that
        the same mistake of a file is told however it was cut.
        """
        text, cut, wrong = self._decoded(self.rest + piece, final)
        forms: Found = []
        done = len(text)
        try:
            done = self.forms.take(text, forms, final=final and wrong is None)
        except Notation as error:
            wrong = self._malformed(self.line + text.count("\n", 0, error.at), error.reason)
        found: list[Any] = []
        lines: list[int] = []
        line, at = self.line, 0
        for form, begun in forms:
            line, at = line + text.count("\n", at, begun), begun
            try:
                found.append(self.made(form))
            except Refused as error:
                wrong = self._malformed(line, str(error))
                break
            lines.append(line)
        yield found, lines
        if wrong is not None:
            raise wrong
        self.line += text.count("\n", 0, done)
        self.rest = text[done:].encode() + cut
        self._require_short_rest()

    def _require_short_rest(self) -> None:
        if len(self.rest) <= MAX_OPERATION_TEXT_BYTES:
            return
        remedy = "is a quote or a bracket left open there?"
        if len(self.rest) > MAX_OPERATION_BYTES:
            most = f"an operation of more than {MAX_OPERATION_BYTES} bytes"
            raise self._malformed(self.line, f"{most}; {remedy}")
        if len(self.rest.translate(None, _NOT_TEXT)) > MAX_OPERATION_TEXT_BYTES:
            most = f"an operation of more than {MAX_OPERATION_TEXT_BYTES} bytes"
            raise self._malformed(self.line, f"{most} that are not its integers; {remedy}")

    def _decoded(self, data: bytes, final: bool) -> tuple[str, bytes, MalformedHistory | None]:
        """``data`` as text, up to what is none; and the bytes of a character that its end cuts off,
        or what is wrong there.
        """
        try:
            return data.decode(), b"", None
        except UnicodeDecodeError as error:
            text = data[: error.start].decode()
            if error.end == len(data) and not final and "unexpected end" in error.reason:
                return text, data[error.start :], None
            line = self.line + text.count("\n")
            return text, b"", self._malformed(line, f"it is no UTF-8: {error.reason}")

    def _malformed(self, line: int, reason: str) -> MalformedHistory:
        return MalformedHistory(str(self.path), f"line {line}", reason)
