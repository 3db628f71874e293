"""What a check is, and what it can come to."""

from __future__ import annotations

import enum
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import attrs
import msgspec

from harness.errors import FiredrillError

if TYPE_CHECKING:
    from harness.conform.bench import Bench


class CheckFailure(FiredrillError):
    """The adapter, or what it drives, does what the harness can't live with."""


class CheckHang(CheckFailure):
    """A call that knows its deadline went on long after it."""


class NotTried(FiredrillError):
    """What a check needs is not to be had here; the text says what that is."""


class Mark(enum.StrEnum):
    """What a check came to."""

    HOLDS = "holds"
    BROKEN = "BROKEN"
    NOT_TRIED = "not tried"


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table: ``text`` is what was seen."""

    name: str
    mark: Mark
    text: str


@attrs.frozen(kw_only=True)
class Check:
    """``run`` returns what it saw, or raises ``Broken`` or ``NotTried``. It leaves the cluster
    whole where it returns. ``relies`` is what the harness relies on, in a sentence.

    ``limit_s``: all of it; past that it is broken, too.
    """

    name: str
    relies: str
    run: Callable[[Bench], Awaitable[str]]
    limit_s: float = 120.0
