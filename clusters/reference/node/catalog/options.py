"""The options of a zone: their values, defaults, compatibility and overrides (IEP-101,
"Compatibility Matrix" and "Override rules").

Only DATA_NODES_AUTO_ADJUST is incompatible with the two others of its kind. So a zone has either
two timers or one (``Separate`` or ``Joint``), and what overrides what follows: a joint wait
replaces both, one of the two replaces a joint one and leaves the other at its default.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from clusters.reference.node.catalog import filters
from clusters.reference.node.catalog.nodes import DEFAULT_PROFILE
from clusters.reference.node.catalog.sql_errors import (
    FilterError,
    IncompatibleOptions,
    NotAlterable,
    OptionValue,
    RepeatedOption,
    UnknownOption,
)
from clusters.reference.node.catalog.statements import Name, Option
from clusters.reference.node.config import MAX_MEMBERS, MAX_PARTITIONS

OFF = "OFF"  # a timer that never fires
MAX_WAIT_S = 2**31 - 1  # 68 years; Ignite's word for "never"
MAX_PROFILES = 16
AFFINITY_FUNCTIONS = ("rendezvous",)
JOINT = "DATA_NODES_AUTO_ADJUST"
SCALE_UP = "DATA_NODES_AUTO_ADJUST_SCALE_UP"
SCALE_DOWN = "DATA_NODES_AUTO_ADJUST_SCALE_DOWN"
FILTER = "DATA_NODES_FILTER"
PARTITIONS = "PARTITIONS"
REPLICAS = "REPLICAS"
AFFINITY = "AFFINITY_FUNCTION"
PROFILES = "STORAGE_PROFILES"
MODE = "CONSISTENCY_MODE"
RESET_TIMEOUT = "PARTITION_DISTRIBUTION_RESET_TIMEOUT"
STRONG, HIGHLY_AVAILABLE = "STRONG_CONSISTENCY", "HIGH_AVAILABILITY"
FIXED = (PARTITIONS, PROFILES)  # where data lies depends on them


class Separate(msgspec.Struct, frozen=True, tag="separate"):
    """A wait for nodes that join and one for nodes that leave, in seconds; ``None`` is never."""

    up_s: int | None = 0
    down_s: int | None = None


class Joint(msgspec.Struct, frozen=True, tag="joint"):
    """One wait for both, in seconds; ``None`` is never."""

    wait_s: int | None


class Zone(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution zone. ``id`` is never given again, so that what is stored about a dropped zone
    is never another's.
    """

    id: int
    name: str
    partitions: int = 25
    replicas: int = 1
    affinity: str = AFFINITY_FUNCTIONS[0]
    waits: Separate | Joint = Separate()
    filter: str = filters.EVERYTHING
    profiles: tuple[str, ...] = (DEFAULT_PROFILE,)
    mode: str = STRONG
    reset_timeout_s: int = 0

    @property
    def highly_available(self) -> bool:
        """Whether partitions that have lost their majority go on with what is left (IEP-131)."""
        return self.mode == HIGHLY_AVAILABLE


def seconds(wait_s: int | None) -> str:
    """A wait as a statement writes it."""
    return OFF if wait_s is None else str(wait_s)


def values_of(options: Sequence[Option], affinities: Sequence[str]) -> dict[str, Any]:
    """Each option's name to its value. Raises ``SqlError`` at the first that is unknown, repeated
    or has no such value, and where the compatibility matrix forbids two.
    """
    found: dict[str, Option] = {}
    for option in options:
        if option.name not in _VALUES:
            raise unknown(option, tuple(_VALUES), "a zone")
        if option.name in found:
            message = f"{option.name} is set twice"
            raise RepeatedOption(message, token=option.name, place=option.place)
        found[option.name] = option
    _check_compatible(found)
    return {name: _VALUES[name](option, affinities) for name, option in found.items()}


def unknown(option: Option, known: tuple[str, ...], owner: str) -> UnknownOption:
    """The error about an option that ``owner`` does not have."""
    message = f"{option.name!r} is no option of {owner}; expected {', '.join(known)}"
    return UnknownOption(message, token=option.name, place=option.place, expected=known)


def created(zone: Zone, values: Mapping[str, Any]) -> Zone:
    """A new ``zone`` with ``values``."""
    return _assigned(zone, values)


def altered(zone: Zone, options: Sequence[Option], values: Mapping[str, Any]) -> Zone:
    """``zone`` with ``values`` in place of its own. Raises ``NotAlterable``."""
    for option in options:
        if option.name in FIXED:
            raise NotAlterable(
                f"zone {zone.name!r}: {option.name} can't be altered",
                token=option.name,
                place=option.place,
                expected=tuple(name for name in _VALUES if name not in FIXED),
            )
    if zone.highly_available and values.get(MODE) == STRONG:
        option = next(option for option in options if option.name == MODE)
        raise NotAlterable(
            f"zone {zone.name!r}: {MODE} can't go back to {STRONG}",
            token=option.text,
            place=option.value_place,
            expected=(HIGHLY_AVAILABLE,),
        )
    return _assigned(zone, values)


def timer_warnings(zone: Zone) -> tuple[str, ...]:
    """What to tell of a zone whose timers are in each other's way (IEP-131, "recommended values").
    Only with one that is highly available, and has both of the other timers.
    """
    if not zone.highly_available or isinstance(zone.waits, Joint):
        return ()
    up_s, down_s = zone.waits.up_s, zone.waits.down_s
    told = []
    if up_s is not None and zone.reset_timeout_s >= up_s:
        told.append(
            f"zone {zone.name!r}: {RESET_TIMEOUT} ({zone.reset_timeout_s}) should be less than "
            f"{SCALE_UP} ({up_s})"
        )
    if down_s is not None and (up_s is None or up_s >= down_s):
        told.append(
            f"zone {zone.name!r}: {SCALE_UP} ({seconds(up_s)}) should be less than {SCALE_DOWN} "
            f"({down_s})"
        )
    return tuple(told)


def _assigned(zone: Zone, values: Mapping[str, Any]) -> Zone:
    fields = {_FIELDS[name]: value for name, value in values.items() if name in _FIELDS}
    return msgspec.structs.replace(zone, waits=_waits(zone.waits, values), **fields)


def _waits(before: Separate | Joint, values: Mapping[str, Any]) -> Separate | Joint:
    if JOINT in values:
        return Joint(values[JOINT])
    if SCALE_UP not in values and SCALE_DOWN not in values:
        return before
    # A side that is not said keeps its wait, or takes its default where one wait was for both.
    kept = before if isinstance(before, Separate) else Separate()
    return Separate(values.get(SCALE_UP, kept.up_s), values.get(SCALE_DOWN, kept.down_s))


def _check_compatible(options: Mapping[str, Option]) -> None:
    others = [name for name in (SCALE_UP, SCALE_DOWN) if name in options]
    if JOINT not in options or not others:
        return
    # The place is that of whichever came second: it is the one that can't stand there.
    last = max((options[JOINT], *(options[name] for name in others)), key=lambda o: o.place)
    raise IncompatibleOptions(
        f"{JOINT} is incompatible with {' and '.join(others)}",
        token=last.name,
        place=last.place,
    )


def _wrong(option: Option, expected: str) -> OptionValue:
    return OptionValue(
        f"{option.name} must be {expected} (got {option.text})",
        token=option.text,
        place=option.value_place,
        expected=(expected,),
    )


def _number(option: Option, least: int, most: int) -> int:
    if not isinstance(option.value, int) or not least <= option.value <= most:
        raise _wrong(option, f"a number from {least} to {most}")
    return option.value


def _wait(option: Option, _: Sequence[str]) -> int | None:
    if isinstance(option.value, Name) and option.value.parts == (OFF,):
        return None
    if not isinstance(option.value, int) or not 0 <= option.value <= MAX_WAIT_S:
        raise _wrong(option, f"seconds from 0 to {MAX_WAIT_S}, or {OFF}")
    return option.value


def _filter(option: Option, _: Sequence[str]) -> str:
    if not isinstance(option.value, str):
        raise _wrong(option, "a filter in quotes")
    try:
        filters.parse(option.value)
    except FilterError as error:
        raise FilterError(
            f"{option.name}: {error}",
            token=error.token,
            place=option.value_place,
            expected=error.expected,
        ) from error
    return option.value


def _affinity(option: Option, known: Sequence[str]) -> str:
    name = _said(option)
    for function in known:
        if name is not None and name.lower() == function.lower():
            return function
    raise _wrong(option, f"one of {', '.join(known)}")


def _profiles(option: Option, _: Sequence[str]) -> tuple[str, ...]:
    text = option.value if isinstance(option.value, str) else ""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names) or len(names) > MAX_PROFILES:
        raise _wrong(option, f"1 to {MAX_PROFILES} different names in quotes, separated by ','")
    return names


def _mode(option: Option, _: Sequence[str]) -> str:
    name = _said(option)
    for mode in (STRONG, HIGHLY_AVAILABLE):
        if name is not None and name.upper() == mode:
            return mode
    raise _wrong(option, f"{STRONG} or {HIGHLY_AVAILABLE}")


def _said(option: Option) -> str | None:
    if isinstance(option.value, Name):
        return option.value.parts[0] if len(option.value.parts) == 1 else None
    return option.value if isinstance(option.value, str) else None


_VALUES: Mapping[str, Callable[[Option, Sequence[str]], Any]] = {
    SCALE_UP: _wait,
    SCALE_DOWN: _wait,
    JOINT: _wait,
    FILTER: _filter,
    PARTITIONS: lambda option, _: _number(option, 1, MAX_PARTITIONS),
    REPLICAS: lambda option, _: _number(option, 1, MAX_MEMBERS),
    AFFINITY: _affinity,
    PROFILES: _profiles,
    MODE: _mode,
    RESET_TIMEOUT: lambda option, _: _number(option, 0, MAX_WAIT_S),
}
ALL = tuple(_VALUES)
_FIELDS = {
    FILTER: "filter",
    PARTITIONS: "partitions",
    REPLICAS: "replicas",
    AFFINITY: "affinity",
    PROFILES: "profiles",
    MODE: "mode",
    RESET_TIMEOUT: "reset_timeout_s",
}
