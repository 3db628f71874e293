"""The file in which a campaign records every cell's result, so that it can be interrupted and
continued: a line of JSON a result, appended as soon as the cell has ended.

A result counts for one cell and one state of the code: other code has to be run again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import zlib
from collections.abc import Callable
from io import BufferedRandom
from pathlib import Path

import attrs
import msgspec

from harness.campaigns.cell import CellResult
from harness.exit_codes import Outcome
from harness.history.durable_files import disk_failure
from harness.history.regular_files import open_regular

RESULTS_FILE = "campaign.jsonl"
_BLOCK_BYTES = 1 << 16
# A line of anyone's: also nested without limit, or not text.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class _Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """``crc`` is of ``result`` as it stands in the line; with ``again`` it takes the place of all
    that was known of its cell.
    """

    code: str
    result: msgspec.Raw
    crc: int
    again: bool = False


# Whether a result that was recorded is one, or the cell has to be run again.
Counts = Callable[[CellResult], bool]


def _judged(result: CellResult) -> bool:
    return result.judged


@attrs.define
class Ledger:
    """Results by the keys of their cells: ``known``, and a file of them, where there is a ``path``.

    ``code`` names the state of the code that the cells run. ``again``: results that are added take
    the place of those that the file has.
    """

    path: Path | None = None
    code: str = ""
    known: dict[str, CellResult] = attrs.field(factory=dict)
    again: bool = False

    @classmethod
    def read(cls, path: Path, code: str, counts: Counts = _judged) -> Ledger:
        """Return the ledger with the results of this ``code`` that stand in ``path`` so far.

        A line that is torn, damaged or of another version does not count, and neither does by
        default a cell without a verdict: mostly the machine was the cause, so it is run again.
        ``counts`` is what a campaign says that expects such cells. A cell that showed
        nothing counts: the result of a simulated run depends on its plan and its code alone, and
        would be the same the next time. Of a cell that two campaigns ran at once a violation
        counts, whichever was first. Raises ``HarnessError``.
        """
        ledger = cls(path, code)
        try:
            with open_regular(path) as file:
                for text in file:
                    result = _decoded(text, code)
                    if result is None or not counts(result):
                        continue
                    if _line(text).again or outweighs(result, ledger.known.get(result.key)):
                        ledger.known[result.key] = result
        except FileNotFoundError:
            pass
        except OSError as error:
            raise disk_failure("read", path, error, "no seed counts as known") from error
        return ledger

    def add(self, result: CellResult) -> None:
        """Record ``result``. Raises ``HarnessError`` where the disk refuses."""
        self.known[result.key] = result
        if self.path is None:
            return
        raw = msgspec.json.encode(result)  # once: the sum is of the very bytes in the line
        line = _Line(self.code, msgspec.Raw(raw), zlib.crc32(raw), self.again)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Appending goes to the end, also where another campaign wrote meanwhile. Not synced:
            # cells whose results a power failure takes are run again.
            with open(self.path, "a+b", opener=_no_link) as file:
                fcntl.flock(file, fcntl.LOCK_EX)  # two campaigns may share a directory
                _cut_torn_line(file)
                file.write(msgspec.json.encode(line) + b"\n")
        except OSError as error:
            missing = "the seed's result is not kept"
            raise disk_failure("write", self.path, error, missing) from error


def outweighs(result: CellResult, known: CellResult | None) -> bool:
    """Whether ``result`` takes the place of what is ``known`` of its cell: on real nodes two runs
    of it differ, and no run takes a violation back.
    """
    return (
        known is None or known.outcome is not Outcome.VIOLATION or result.outcome is known.outcome
    )


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def past_results(path: Path) -> list[tuple[str, CellResult]]:
    """Return every result in ``path`` with the code that it is of, oldest first; none where there
    is no such file. Raises ``HarnessError``.
    """
    found = []
    try:
        with open_regular(path) as file:
            for text in file:
                with contextlib.suppress(*_UNREADABLE):
                    code = msgspec.json.decode(text, type=_Line).code
                    if (result := _decoded(text, code)) is not None:
                        found.append((code, result))
    except FileNotFoundError:
        pass
    except OSError as error:
        raise disk_failure("read", path, error, "nothing is known of the past") from error
    return found


def unusable_lines(path: Path) -> list[tuple[int, str]]:
    """Return the number of every line of ``path`` that is no result of any code, and why. Raises
    ``HarnessError``.
    """
    found = []
    try:
        with open_regular(path) as file:
            for number, text in enumerate(file, 1):
                try:
                    _line(text)
                except ValueError as error:
                    found.append((number, str(error)))
    except OSError as error:
        raise disk_failure("read", path, error, "its results are not known") from error
    return found


def _line(text: bytes) -> _Line:
    """Raises ``ValueError`` for what is no whole line."""
    if not text.endswith(b"\n"):  # also where only that is missing: the next writer cuts it
        raise ValueError("it is cut off")
    try:
        line = msgspec.json.decode(text, type=_Line)
    except _UNREADABLE as error:
        raise ValueError(f"it is no result: {error}") from error
    if line.crc != zlib.crc32(line.result):
        raise ValueError("its sum is wrong: it was changed after it was written")
    return line


def _decoded(text: bytes, code: str) -> CellResult | None:
    try:
        line = _line(text)
        return msgspec.json.decode(line.result, type=CellResult) if line.code == code else None
    except (ValueError, *_UNREADABLE):
        return None


def _cut_torn_line(file: BufferedRandom) -> None:
    """Drop what follows the last line break: a writer died there, and the next line, appended to
    it, would be lost with it.
    """
    end = size = file.seek(0, os.SEEK_END)
    while end:
        begin = max(0, end - _BLOCK_BYTES)
        file.seek(begin)
        place = file.read(end - begin).rfind(b"\n")
        if place >= 0:
            end = begin + place + 1
            break
        end = begin
    if end < size:
        file.truncate(end)
