"""One operation of Jepsen's, checked and in the terms of the tables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from harness.history.records import INT64_MIN
from harness.importers.jepsen.edn import (
    Char,
    Keyword,
    Number,
    Symbol,
    Tagged,
    TaggedCollection,
    Unordered,
    fields_of,
    shown,
)
from harness.importers.jepsen.import_limits import (
    LOWEST_KEY,
    MAX_MONEY,
    MAX_NAMED_KEYS,
    MAX_TEXT_CHARS,
    TIME_LIMIT_NS,
)
from harness.text import inert

Type = Literal["invoke", "ok", "fail", "info"]

Step = tuple[str, int, int | list[int] | None]

NO_INDEX = -1
# The key of a register that stands alone.
SINGLE_KEY = 0

# Characters of room that a bracket takes, so that a thousand of them end soon.
NESTING_COST = 8

TXN = "txn"
TRANSFER = "transfer"
OPERATIONS = (TXN, "read", "write", "cas", TRANSFER)
_TRANSFER_FIELDS = frozenset({"from", "to", "amount"})
_DIGITS = re.compile(r"0|-?[1-9][0-9]{0,17}")  # what 64 bits hold for certain
_TYPES = frozenset({"invoke", "ok", "fail", "info"})
_MARKS = frozenset(":'\\\"#")
_FIELDS = ("type", "process", "f", "value", "index", "time", "error")


class Operation(msgspec.Struct, gc=False, forbid_unknown_fields=True, kw_only=True):
    """An invocation or a completion of a client process.

    ``value`` holds steps (f, key, value); ``None``: the file does not contain it. A step of ``cas``
    has the list of old and new value, or of the new one where the old one is nil: that of a
    register that was never written. A transfer is two steps of ``add``, a read of a bank one of
    ``balance`` for each account.
    """

    type: Type
    process: int
    f: Literal["txn", "read", "write", "cas", "transfer"]
    value: list[Step] | None
    index: int = NO_INDEX
    time: int | None = None
    error: str | None = None


class Remark(msgspec.Struct, gc=False, kw_only=True):
    """An operation of a process that is no client: the nemesis, mostly."""

    type: str
    process: str
    f: str
    text: str
    index: int = NO_INDEX
    time: int | None = None


EXPORTED = "firedrill"
"""The process of records that ``firedrill export`` writes beside the operations."""


class Refused(Exception):
    """Not an operation that a history may hold; the text says why."""


class Names:
    """Integers for keys that are no integers, in the order of first appearance."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, name: str) -> int:
        """The provisional number of ``name``: below ``LOWEST_KEY``, so that no key has it."""
        number = self._numbers.get(name)
        if number is None:
            if len(self._numbers) >= MAX_NAMED_KEYS:
                raise Refused(f"more than {MAX_NAMED_KEYS} keys that are no integers")
            number = INT64_MIN + len(self._numbers)
            self._numbers[name] = number
        return number

    def shown(self, key: int) -> str:
        """The key with the provisional number ``key``, or the integer key itself."""
        return str(key) if key >= LOWEST_KEY else list(self._numbers)[key - INT64_MIN]

    @property
    def names(self) -> tuple[str, ...]:
        """Every name, by its number."""
        return tuple(self._numbers)


def normalize(form: object, names: Names) -> Operation | Remark:
    """The operation that a map of EDN or JSON describes. Raises ``Refused``."""
    fields = _fields(form)
    for name in ("type", "process", "f"):
        if name not in fields:
            raise Refused(f"an operation has no {name}")
    type_ = _name(fields["type"])
    if type_ not in _TYPES:
        expected = "expected the type invoke, ok, fail or info"
        raise Refused(f"{expected}, found {shown(fields['type'])}")
    process = fields["process"]
    index = _index(fields.get("index"))
    time = _time(fields.get("time"))
    if type(process) is not int:
        if _name(fields["f"]) == TXN:
            found = shown(text_of(process))
            raise Refused(f"expected the process of a txn to be an integer, found {found}")
        return _remark(fields, type_, index, time)
    f = _name(fields["f"])
    if f not in OPERATIONS:
        expected = f"expected f to be {', '.join(OPERATIONS[:-1])} or {OPERATIONS[-1]}"
        raise Refused(f"{expected} for a client process, found {shown(fields['f'])}")
    told, value = fields.get("error"), fields_of(fields.get("value"))
    if type_ in ("fail", "info") and _is_reason(f, value):
        value = None
    return Operation(
        type=type_,  # type: ignore[arg-type]  # one of _TYPES
        process=process,
        f=f,  # type: ignore[arg-type]  # just looked at
        value=_steps(f, type_, value, names),
        index=index,
        time=time,
        error=None if told is None else text_of(told),
    )


def _is_reason(f: str, value: object) -> bool:
    """Whether a client tells there why an operation had no known effect, as ``:timed-out``: that
    takes the place of the value, which is the invocation's.
    """
    if f == TRANSFER:
        return not isinstance(value, Mapping)
    return isinstance(value, str) and not isinstance(value, Number)


def _fields(form: object) -> dict[str, Any]:
    """The used fields, by their names without colons."""
    form = fields_of(form)
    if not isinstance(form, Mapping):
        raise Refused(f"expected an operation, which is a map, found {shown(text_of(form))}")
    found: dict[str, Any] = {}
    for key, value in form.items():
        name = _name(key)
        if name in found and name in _FIELDS:
            raise Refused(f"the field {name} stands twice in one operation")
        if name is not None:
            found[name] = value
    return found


def _name(value: object) -> str | None:
    """``txn`` for ``:txn``, ``"txn"`` and ``":txn"``; ``None`` for a value that is no name."""
    if type(value) is Keyword:
        return str(value)
    return value.removeprefix(":") if type(value) is str else None


def _index(value: object) -> int:
    if value is None:
        return NO_INDEX
    if type(value) is not int or not 0 <= value <= TIME_LIMIT_NS:
        raise Refused(f"expected an index that is an integer from 0, found {text_of(value)}")
    return value


def _time(value: object) -> int | None:
    if value is not None and (type(value) is not int or abs(value) > TIME_LIMIT_NS):
        raise Refused(f"expected a time in integer nanoseconds, found {text_of(value)}")
    return value


def _remark(fields: dict[str, Any], type_: str, index: int, time: int | None) -> Remark:
    told = [text_of(fields[n]) for n in ("value", "error") if fields.get(n) is not None]
    return Remark(
        type=type_,
        process=text_of(fields["process"]),
        f=text_of(fields["f"]),
        text=inert(" ".join(told), MAX_TEXT_CHARS),
        index=index,
        time=time,
    )


def _steps(f: str, type_: str, value: Any, names: Names) -> list[Any] | None:  # noqa: ANN401 (as read)
    if f == TXN:
        if value is None:
            return None
        if not isinstance(value, list):
            raise Refused(f"expected a list of micro-operations, found {shown(text_of(value))}")
        return [_step(step, names) for step in value]
    if f == TRANSFER:
        return None if value is None else _transfer(value, names)
    if f == "read" and isinstance(value, Mapping):
        return None if type_ == "invoke" else _balances(value, names)
    return _register_step(f, value, names)


def _step(step: object, names: Names) -> tuple[str, int, Any]:
    if not isinstance(step, list) or len(step) != 3:
        raise Refused(f"expected a micro-operation [f key value], found {shown(text_of(step))}")
    f, key = _name(step[0]), _key(step[1], names)
    value = step[2]
    if f in ("append", "w"):
        return f, key, _int64(value, f"the value of {f}")
    if f == "r":
        return f, key, _read_value(value)
    raise Refused(f"expected a micro-operation append, r or w, found {shown(text_of(step[0]))}")


def _read_value(value: Any) -> Any:  # noqa: ANN401
    if isinstance(value, list):
        return [_int64(element, "an element of a list") for element in value]
    if isinstance(value, Unordered):
        found = f"found {shown(text_of(value))}, a set, which has no order"
        raise Refused(f"expected the list that a read saw, {found}")
    return None if value is None else _int64(value, "what a read saw")


def _register_step(f: str, value: Any, names: Names) -> list[Any] | None:  # noqa: ANN401
    """``:read``, ``:write`` and ``:cas`` of one register, or of one of several by [key value]."""
    key = SINGLE_KEY
    # ``[old new]`` and ``[key [old new]]`` are both pairs: the second one holds another.
    if isinstance(value, list) and not (f == "cas" and _plain_pair(value)):
        if len(value) != 2:
            raise Refused(f"expected [key value] for {f}, found {shown(text_of(value))}")
        key, value = _key(value[0], names), value[1]
        if f == "read" and value is None:
            return [("r", key, None)]
    if value is None:
        return None
    if f == "cas":
        if not (isinstance(value, list) and _plain_pair(value)):
            raise Refused(f"expected [old new] for cas, found {shown(text_of(value))}")
        # From nil, which is a register that was never written, only the new value is held.
        held = value[1:] if value[0] is None else value
        return [("cas", key, [_int64(part, "a value of cas") for part in held])]
    name = "r" if f == "read" else "w"
    return [(name, key, _int64(value, f"the value of {f}"))]


def _transfer(value: object, names: Names) -> list[Any]:
    """``{:from 0 :to 1 :amount 5}`` as the amount that it adds to each account."""
    told = {_name(key): part for key, part in value.items()} if isinstance(value, Mapping) else {}
    if told.keys() != _TRANSFER_FIELDS:
        expected = "expected {from, to, amount} for transfer"
        raise Refused(f"{expected}, found {shown(text_of(value))}")
    amount = _money(told["amount"], "the amount of a transfer")
    payer, payee = _account(told["from"], names), _account(told["to"], names)
    return [("add", payer, -amount), ("add", payee, amount)]


def _balances(value: Mapping[Any, Any], names: Names) -> list[Any]:
    """``{0 50, 1 nil}``, the result of a read of a bank."""
    found: dict[int, Any] = {}
    for name, balance in value.items():
        account = _account(name, names)
        if account in found:
            raise Refused(f"account {text_of(name)} stands twice in one read")
        held = None if balance is None else _money(balance, "a balance")
        found[account] = ("balance", account, held)
    return list(found.values())


def _account(key: object, names: Names) -> int:
    """The account of ``key``. JSON has no integer keys, so a text that looks like an integer is
    one.
    """
    if type(key) is str and _DIGITS.fullmatch(key):
        return int(key)
    return _key(key, names)


def _money(value: object, what: str) -> int:
    number = _int64(value, what)
    if abs(number) > MAX_MONEY:
        raise Refused(f"expected {what} of at most {MAX_MONEY}, found {number}")
    return number


def _plain_pair(value: list[Any]) -> bool:
    return len(value) == 2 and not isinstance(value[1], list)


def _int64(value: object, what: str) -> int:
    # Not ``isinstance``: to Python ``True`` is an integer.
    if type(value) is not int:
        raise Refused(f"expected an integer of 64 bits for {what}, found {shown(text_of(value))}")
    return value


def _key(key: object, names: Names) -> int:
    if type(key) is int:
        if key < LOWEST_KEY:
            raise Refused(f"expected a key of at least {LOWEST_KEY}, found {key}")
        return key
    if isinstance(key, str) and not isinstance(key, Number):
        return names.number(_key_name(key))
    raise Refused(f"expected a key that is an integer or a name, found {shown(text_of(key))}")


def _key_name(key: str) -> str:
    """Different for different keys: the string ``":x"`` of EDN is not the keyword ``:x``."""
    text = str(key)
    if len(text) > MAX_TEXT_CHARS:
        raise Refused(f"a key of {len(text)} characters; at most {MAX_TEXT_CHARS} can be kept")
    # Lone surrogates became one character: it may stand for different keys.
    if not text.isprintable() or "\ufffd" in text:
        raise Refused(f"expected a key that can be shown, found {inert(text)!r}")
    if type(key) is Keyword:
        return f":{text}"
    if isinstance(key, Symbol):
        return f"'{text}"
    if isinstance(key, Char):
        return f"\\{text}"
    if isinstance(key, Tagged):
        return text
    # A text of digits would be told as the integer that it is not.
    return f'"{text}"' if text[:1] in _MARKS or _DIGITS.fullmatch(text) else text


def text_of(value: object) -> str:
    """Any form as a short text in which nothing is active: for errors and notes."""
    return inert(_written(value, MAX_TEXT_CHARS), MAX_TEXT_CHARS)


def _written(value: object, room: int) -> str:
    """About ``room`` characters of ``value``, and so never deep into it."""
    match value:
        case None:
            return "nil"
        case bool():
            return "true" if value else "false"
        case Keyword():
            return str(value)
        case str():
            return value.removeprefix(":")[: room + 1]
        case TaggedCollection():
            return f"{value.tags[:room]} {_written(value.form, room - NESTING_COST)}"
        case Unordered():
            return f"#{{{_listed(value, room - NESTING_COST)}}}"
        case list() | tuple():
            return f"[{_listed(value, room - NESTING_COST)}]"
        case dict():
            flat = [part for pair in list(value.items())[:room] for part in pair]
            return f"{{{_listed(flat, room - NESTING_COST)}}}"
        case _:
            return str(value)


def _listed(values: list[Any] | tuple[Any, ...], room: int) -> str:
    parts: list[str] = []
    for value in values:
        if room <= 0:
            parts.append("...")
            break
        parts.append(_written(value, room))
        room -= len(parts[-1]) + 1
    return " ".join(parts)
