"""From operations in the order of a file to columns of transactions, each paired and checked.

An operation exists as an object only until its batch is processed (an open one until it is
completed); afterwards only columns of numbers remain.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from types import NoneType
from typing import Any

import attrs
import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from harness.errors import MalformedHistory
from harness.history.records import INT64_MIN, OpType
from harness.history.tables import NO_COMPLETION
from harness.importers.jepsen.import_limits import (
    LOWEST_KEY,
    MAX_NAMED_KEYS,
    MAX_REMARKS,
)
from harness.importers.jepsen.operation_forms import (
    EXPORTED,
    NO_INDEX,
    SINGLE_KEY,
    TXN,
    Names,
    Operation,
    Remark,
    text_of,
)

OK, FAIL, INFO = 0, 1, 2
TYPES = (OpType.OK.value, OpType.FAIL.value, OpType.INFO.value)
_CODES = {name: code for code, name in enumerate(TYPES)}
_STEP_CODES = {"r": 0, "append": 1, "w": 2, "cas": 3, "add": 4, "balance": 5}
# By the codes of steps: a balance is the result of a read, and known for a bank's.
STEP_NAMES = ("r", "append", "w", "cas", "add", "r")
LISTS = "appends and reads of lists"
REGISTERS = "reads and writes of registers"
# The kinds of steps that a history may consist of.
BANKS = "transfers and reads of a bank"
_BANK_STEPS = frozenset({"add", "balance"})

# Completed operations whose steps wait as objects to become columns.
STAGED_OPERATIONS = 16_384

# Of a transaction, in an error.
STEPS_SHOWN = 4

NOT_COMPLETED = -1
NO_ERROR = -1

Ints = npt.NDArray[np.int64]


@attrs.define
class Transactions:
    """Columns by transaction, numbered by invocation. ``*_at`` are places in the order of the file,
    nemesis included; ``*_index`` are the file's own, or places where it has none.
    """

    process: array[int] = attrs.field(factory=lambda: array("q"))
    invoke_at: array[int] = attrs.field(factory=lambda: array("q"))
    invoke_index: array[int] = attrs.field(factory=lambda: array("q"))
    complete_at: array[int] = attrs.field(factory=lambda: array("q"))
    complete_index: array[int] = attrs.field(factory=lambda: array("q"))
    type: array[int] = attrs.field(factory=lambda: array("b"))
    error: array[int] = attrs.field(factory=lambda: array("q"))
    line: array[int] = attrs.field(factory=lambda: array("q"))

    def extend(
        self, later: Transactions, *, at: int, index: int, line: int, errors: list[int]
    ) -> None:
        """Add those of ``later``, whose places, indices and lines count from ``at``, ``index`` and
        ``line``, and whose errors have the numbers ``errors`` here.
        """
        opened = numbers(later.complete_at) == NOT_COMPLETED
        error = np.append(np.asarray(errors, np.int64), NO_ERROR)[numbers(later.error)]
        moved = {
            "process": numbers(later.process),
            "invoke_at": numbers(later.invoke_at) + at,
            "invoke_index": numbers(later.invoke_index) + index,
            "complete_at": np.where(opened, NOT_COMPLETED, numbers(later.complete_at) + at),
            "complete_index": np.where(
                opened, NOT_COMPLETED, numbers(later.complete_index) + index
            ),
            "type": np.frombuffer(later.type, np.int8),
            "error": error,
            "line": numbers(later.line) + line,
        }
        for name, column in moved.items():
            getattr(self, name).frombytes(column.tobytes())


@attrs.frozen
class Steps:
    """Micro-operations as Arrow columns, in the order of completion."""

    txn: pa.Array
    pos: pa.Array
    f: pa.Array
    key: pa.Array
    value: pa.Array
    elements: pa.Array
    type: pa.Array

    def without(self, code: int) -> Steps:
        """All but the steps of this ``code``."""
        keep = pa.array(self.f.to_numpy() != code)
        columns = {name: getattr(self, name).filter(keep) for name in attrs.fields_dict(Steps)}
        return Steps(**columns)

    def moved(self, txns: int, keys: Ints) -> Steps:
        """The same after ``txns`` transactions, with ``keys`` for provisional numbers of keys."""
        key = self.key.to_numpy()
        named = np.flatnonzero(key < LOWEST_KEY)
        if len(named):
            key = key.copy()
            key[named] = keys[key[named] - INT64_MIN]
        return attrs.evolve(self, txn=pa.array(self.txn.to_numpy() + txns), key=pa.array(key))


class PartSummary(msgspec.Struct, kw_only=True):
    """Of a ``Part``, what is no long column.

    ``ended`` are the completions of operations that were invoked before it, with their places,
    indices and lines; ``opened`` those that wait for a completion, with transactions and lines;
    ``crashed`` the lines on which processes ended for good.
    """

    remarks: list[tuple[int, Remark]]
    errors: list[str]
    names: tuple[str, ...]
    ended: list[tuple[Operation, int, int, int]]
    opened: list[tuple[int, Operation, int]]
    crashed: dict[int, int]
    operations: int
    longest: int
    timed: bool
    indexed: bool
    first_index: int
    last_index: int
    kind: str | None


@attrs.frozen(kw_only=True)
class Part:
    """What the operations of a later part of a file came to, apart from those before it: places and
    lines count from the part's beginning, indices as well where the file has none.
    """

    transactions: Transactions
    steps: list[Steps]
    times: array[int]
    untold: array[int]
    told: PartSummary


class Pairing:
    """Pairs operations and refuses those that no history can hold. Call ``add`` for all, then
    ``finish``. One that pairs a later part of a file by itself calls ``part`` at the end, and
    another takes that.
    """

    def __init__(
        self, file: str, names: Names | None = None, *, begins_history: bool = True
    ) -> None:
        self.transactions = Transactions()
        self.steps: list[Steps] = []
        self.errors: list[str] = []
        self.remarks: list[tuple[int, Remark]] = []
        self.times = array("q")
        self.timed = True
        self.operations = 0
        self.incomplete = 0
        self.longest = 0
        self._file = file
        self._names = names or Names()
        self._begins_history = begins_history
        self._indexed = False
        self._first_index = self._last_index = NO_INDEX
        self._open: dict[int, tuple[int, Operation, int]] = {}
        self._crashed: dict[int, int] = {}
        self._error_codes: dict[str, int] = {}
        self._staged: list[tuple[int, int, int, list[Any]]] = []
        self.kind: str | None = None
        self._kind_line = 0
        self._untold = array("q")
        # Of a later part: completions of operations that are not in it, and processes that are.
        self._ended: dict[int, tuple[Operation, int, int, int]] = {}
        self._invoking: set[int] = set()

    def add(self, operations: Sequence[Operation | Remark], lines: Sequence[int]) -> None:
        """Take the next operations. Raises ``MalformedHistory``."""
        for operation, line in zip(operations, lines, strict=True):
            index = self._place(operation, line)
            if isinstance(operation, Remark):
                self._note(operation, line)
            elif operation.type == "invoke":
                self._begin(operation, index, line)
            else:
                self._end(operation, index, line)
            self.operations += 1
        if len(self._staged) >= STAGED_OPERATIONS:
            self._flush()

    @contextmanager
    def refusing_in_order(self) -> Iterator[None]:
        """Of what is raised within the block for a place of the file, raise the first of all that
        was completed before: what was added may be refused only as it is turned into columns.
        """
        try:
            yield
        except MalformedHistory:
            self._flush()
            raise

    def part(self) -> Part:
        """What this one came to, for one that pairs the file from its beginning to ``take``."""
        self._flush()
        return Part(
            transactions=self.transactions,
            steps=self.steps,
            times=self.times,
            untold=self._untold,
            told=PartSummary(
                remarks=self.remarks,
                errors=self.errors,
                names=self._names.names,
                ended=list(self._ended.values()),
                opened=list(self._open.values()),
                crashed=self._crashed,
                operations=self.operations,
                longest=self.longest,
                timed=self.timed,
                indexed=self._indexed,
                first_index=self._first_index,
                last_index=self._last_index,
                kind=self.kind,
            ),
        )

    def take(self, part: Part, lines: int) -> bool:
        """Take what follows the operations added so far and the ``lines`` that they stand on.
        Returns ``False``, and takes nothing, where ``add`` might refuse one of it.
        """
        told = part.told
        self._flush()  # what was added is told apart by kind only then
        if not self._is_followed_by(part):
            return False
        # They are the same numbers if it is not taken after all: in the order of the file.
        keys = np.asarray([self._names.number(name) for name in told.names], np.int64)
        for operation in (*(ended[0] for ended in told.ended), *(o[1] for o in told.opened)):
            operation.value = _renumbered(operation.value, keys)
        try:
            done = [self._done(o, self._open[o.process], at) for o, _, _, at in told.ended]
        except MalformedHistory:
            return False
        before, columns = self.operations, self.transactions
        first, index_before = len(columns.process), 0 if told.indexed else before
        for (operation, at, index, line), steps in zip(told.ended, done, strict=True):
            txn, _, _ = self._open.pop(operation.process)
            self._complete(txn, operation, before + at, index_before + index, lines + line, steps)
        self._flush()
        columns.extend(
            part.transactions,
            at=before,
            index=index_before,
            line=lines,
            errors=[self._error(error) for error in told.errors],
        )
        self.steps += [steps.moved(first, keys) for steps in part.steps]
        self._open |= {o.process: (first + txn, o, lines + line) for txn, o, line in told.opened}
        self._crashed |= {process: lines + line for process, line in told.crashed.items()}
        self._untold.extend(first + txn for txn in part.untold)
        self.remarks += [(before + at, remark) for at, remark in told.remarks]
        self.times.extend(part.times)
        self.timed = self.timed and told.timed
        self.operations += told.operations
        self.longest = max(self.longest, told.longest)
        self._last_index = index_before + told.last_index
        return True

    def _is_followed_by(self, part: Part) -> bool:
        """Whether operations like those of ``part`` may come next, but for what they complete."""
        told = part.told
        in_order = told.indexed == self._indexed and (
            not self._indexed or told.first_index > self._last_index
        )
        ended = {operation.process for operation, *_ in told.ended}
        steps = [(name, type(v)) for o, *_ in told.ended for name, _, v in o.value or ()]
        kinds = _kinds(steps) | ({told.kind} - {None})
        # Those that are open and ended first in the part may go on in it; those that crashed not.
        barred = np.asarray([*(self._open.keys() - ended), *self._crashed], np.int64)
        return (
            in_order
            and ended <= self._open.keys()
            and kinds <= {self.kind}
            and not np.isin(numbers(part.transactions.process), barred).any()
            and len(self.remarks) + len(told.remarks) <= MAX_REMARKS
            and len(self._names.names) + len(told.names) <= MAX_NAMED_KEYS
        )

    def finish(self) -> None:
        """End open operations as uncertain, after all others."""
        opened = sorted(self._open.values(), key=lambda begun: begun[0])
        at, index = self.operations, self._last_index
        for place, (txn, operation, line) in enumerate(opened):
            self._close(txn, at + place, index + 1 + place, INFO, NO_COMPLETION)
            self._staged.append((txn, INFO, line, _asked(operation)))
        self.incomplete = len(opened)
        self._open.clear()
        self._flush()
        if self.kind == BANKS:
            self._finish_bank()

    def _finish_bank(self) -> None:
        """An ok read that names no account found no balance in any; a failed read observed none."""
        nothing = [("balance", account, None) for account in self._accounts()]
        for txn in self._untold:
            self._staged.append((txn, OK, self.transactions.line[txn], nothing))
            if len(self._staged) * len(nothing) >= STAGED_OPERATIONS:
                self._flush()
        self._flush()
        self.steps = [piece.without(_STEP_CODES["r"]) for piece in self.steps]

    def _accounts(self) -> list[int]:
        keys = [piece.key.to_numpy() for piece in self.steps]
        codes = [piece.f.to_numpy() for piece in self.steps]
        told = [
            np.unique(key[code >= _STEP_CODES["add"]])
            for key, code in zip(keys, codes, strict=True)
        ]
        return list(map(int, np.unique(np.concatenate(told))))

    def _place(self, operation: Operation | Remark, line: int) -> int:
        """The operation's index; remembers its time."""
        index = operation.index
        if not self.operations:
            self._indexed = index != NO_INDEX
            self._first_index = max(index, 0)
        if not self._indexed:
            if index != NO_INDEX:
                raise self._malformed(line, f"index {index}, but the operations before have none")
            index = self.operations
        elif index <= self._last_index:
            after = f"expected an index after {self._last_index}"
            found = "none" if index == NO_INDEX else str(index)
            raise self._malformed(line, f"{after}, found {found}")
        self._last_index = index
        time = operation.time
        if time is None:
            self.timed = False
            time = 0
        self.times.append(time)
        return index

    def _note(self, remark: Remark, line: int) -> None:
        """Keep an operation of no client."""
        if remark.process.removeprefix(":") == EXPORTED:
            reason = (
                "a record of an exported run, whose manifest is not at the beginning of the file"
            )
            raise self._malformed(line, f"expected no {reason}: it was cut off or altered")
        if len(self.remarks) >= MAX_REMARKS + self.operations - len(self.remarks):
            limit = f"expected at most {MAX_REMARKS} more operations of no client than of clients"
            raise self._malformed(line, f"{limit}, found more")
        self.remarks.append((self.operations, remark))

    def _begin(self, operation: Operation, index: int, line: int) -> None:
        process, columns = operation.process, self.transactions
        if process in self._open:
            begun = f"the one invoked on line {self._open[process][2]}"
            raise self._malformed(
                line, f"process {process} invokes an operation before {begun} has completed"
            )
        if process in self._crashed:
            crashed = f"its operation on line {self._crashed[process]} ended as info"
            raise self._malformed(line, f"process {process} is used again after {crashed}")
        if operation.value is None and operation.f != "read":
            # Had it taken effect, its written value would look like a garbage read.
            raise self._malformed(line, f"an invoked {operation.f} does not say what it asks for")
        if not self._begins_history:
            self._invoking.add(process)
        self._open[process] = (len(columns.process), operation, line)
        columns.process.append(process)
        columns.invoke_at.append(self.operations)
        columns.invoke_index.append(index)
        columns.complete_at.append(NOT_COMPLETED)
        columns.complete_index.append(NOT_COMPLETED)
        columns.type.append(INFO)
        columns.error.append(NO_ERROR)
        columns.line.append(line)

    def _end(self, operation: Operation, index: int, line: int) -> None:
        process = operation.process
        begun = self._open.pop(process, None)
        if begun is None and not self._begins_history and self._is_new(process):
            self._ended[process] = (operation, self.operations, index, line)
            if operation.type == "info":
                self._crashed[process] = line
            return
        if begun is None:
            ended = f"process {process} completes an operation ({operation.type})"
            raise self._malformed(line, f"{ended}, but has invoked none")
        done = self._done(operation, begun, line)
        if operation.type == "info":
            self._crashed[process] = line
        self._complete(begun[0], operation, self.operations, index, line, done)

    def _is_new(self, process: int) -> bool:
        return process not in self._invoking and process not in self._ended

    def _complete(
        self, txn: int, operation: Operation, at: int, index: int, line: int, done: list[Any]
    ) -> None:
        code = _CODES[operation.type]
        if code == OK and operation.f == "read" and not operation.value:
            self._untold.append(txn)
        self._close(txn, at, index, code, operation.error)
        self._staged.append((txn, code, line, done))

    def _close(self, txn: int, at: int, index: int, code: int, error: str | None) -> None:
        columns = self.transactions
        columns.complete_at[txn] = at
        columns.complete_index[txn] = index
        columns.type[txn] = code
        if error is not None:
            columns.error[txn] = self._error(error)

    def _error(self, error: str) -> int:
        """The position of ``error`` in ``errors``."""
        known = self._error_codes.setdefault(error, len(self.errors))
        if known == len(self.errors):
            self.errors.append(error)
        return known

    def _done(
        self, operation: Operation, begun: tuple[int, Operation, int], line: int
    ) -> list[Any]:
        """The completed steps, and for an uncertain outcome also the requested ones."""
        _, invoked, begun_line = begun
        if operation.f != invoked.f:
            process, expected = operation.process, f"it invoked {invoked.f} on line {begun_line}"
            raise self._malformed(line, f"process {process} completes {operation.f}; {expected}")
        code = _CODES[operation.type]
        done, asked = operation.value, invoked.value
        if done is None:
            if code == OK and operation.f == TXN:
                raise self._malformed(line, "an ok txn does not say what it did")
            return _asked(invoked)
        if asked is None:
            return done
        if not _answers(done, asked, whole=code == OK):
            completes = f"process {operation.process} completes {self._shown(done)}"
            expected = f"it invoked {self._shown(asked)} on line {begun_line}"
            raise self._malformed(line, f"{completes}; {expected}")
        return done if len(done) == len(asked) else done + _asked(invoked)[len(done) :]

    def _shown(self, steps: list[Any]) -> str:
        """The first of ``steps``, for an error."""
        named = [[f, self._names.shown(key), value] for f, key, value in steps[:STEPS_SHOWN]]
        rest = len(steps) - len(named)
        return text_of(named) + (f" and {rest} more steps" if rest else "")

    def _flush(self) -> None:
        """Turn the staged operations into columns."""
        if not self._staged:
            return
        txns, codes, lines, values = zip(*self._staged, strict=True)
        self._staged = []
        counts = np.fromiter(map(len, values), np.int64, len(values))
        self.longest = max(self.longest, int(counts.max(initial=0)))
        if not counts.any():
            return
        row = np.repeat(np.arange(len(counts)), counts)
        names, keys, told = zip(*chain.from_iterable(values), strict=True)
        code = np.asarray(codes, np.int8)[row]
        steps = self._columns(np.asarray(txns)[row], row, counts, names, keys, told, code)
        self._require_one_kind(names, told, np.asarray(lines)[row])
        self.steps.append(steps)

    def _columns(
        self,
        txn: Ints,
        row: Ints,
        counts: Ints,
        names: tuple[str, ...],
        keys: tuple[int, ...],
        told: tuple[Any, ...],
        code: npt.NDArray[np.int8],
    ) -> Steps:
        empty: list[int] = []
        elements = [
            value if value.__class__ is list else empty if value is None and not ended else None
            for value, ended in zip(told, code.tolist(), strict=True)
        ]
        first = np.cumsum(counts) - counts
        return Steps(
            txn=pa.array(txn),
            pos=pa.array((np.arange(len(row)) - first[row]).astype(np.int32)),
            f=pa.array(np.fromiter(map(_STEP_CODES.__getitem__, names), np.int8, len(names))),
            key=pa.array(keys, pa.int64()),
            value=pa.array([v if v.__class__ is int else None for v in told], pa.int64()),
            elements=pa.array(elements, pa.list_(pa.field("element", pa.int64()))),
            type=pa.array(code),
        )

    def _require_one_kind(self, names: tuple[str, ...], told: tuple[Any, ...], lines: Ints) -> None:
        """Lists and registers are judged differently, so a history may hold only one of them."""
        # Of millions of steps, the few that differ.
        if self.kind is not None and _kinds(zip(names, map(type, told), strict=True)) <= {
            self.kind
        }:
            return
        for place, (name, value) in enumerate(zip(names, told, strict=True)):
            for kind in _kinds([(name, type(value))]):
                if self.kind is None:
                    self.kind, self._kind_line = kind, int(lines[place])
                elif kind != self.kind:
                    before = f"{self.kind} are on line {self._kind_line}"
                    raise self._malformed(int(lines[place]), f"{kind}, but {before}")

    def _malformed(self, line: int, reason: str) -> MalformedHistory:
        return MalformedHistory(self._file, f"line {line}", reason)


def _kinds(steps: Iterable[tuple[str, type]]) -> set[str]:
    """The kinds of histories that steps belong to, by their names and the types of their values."""
    found = set()
    for name, value in set(steps):
        if name == "append" or (name == "r" and value is list):
            found.add(LISTS)
        elif name in _BANK_STEPS:
            found.add(BANKS)
        # A read that saw nothing is one of a list as well as of a register.
        elif name != "r" or value is not NoneType:
            found.add(REGISTERS)
    return found


def numbers(column: array[int]) -> Ints:
    """A column of 64 bits as numpy sees it."""
    # ``frombuffer`` refuses an empty buffer.
    return np.frombuffer(column, np.int64) if len(column) else np.zeros(0, np.int64)


def _renumbered(steps: list[Any] | None, keys: Ints) -> list[Any] | None:
    """``steps`` with ``keys`` for the provisional numbers of keys."""
    if steps is None or not len(keys):
        return steps
    return [
        (f, key if key >= LOWEST_KEY else int(keys[key - INT64_MIN]), value)
        for f, key, value in steps
    ]


def _asked(operation: Operation) -> list[Any]:
    """The steps that an invocation requests. The results of its reads are not known yet."""
    if operation.value is None:
        return [("r", SINGLE_KEY, None)]  # only a read of a single register need not name a key
    return [step if step[0] != "r" else ("r", step[1], None) for step in operation.value]


def _answers(done: list[Any], asked: list[Any], *, whole: bool) -> bool:
    """Whether ``done`` are the steps that were ``asked`` for, in their order: only reads gain
    values. An operation that did not succeed may report only a prefix of them.
    """
    if len(done) != len(asked) and (whole or len(done) > len(asked)):
        return False
    for (f, key, value), (asked_f, asked_key, asked_value) in zip(done, asked, strict=False):
        if f != asked_f or key != asked_key or (f != "r" and value != asked_value):
            return False
    return True
